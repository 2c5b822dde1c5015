"""A reader that retention overtook keeps the sequences that it met."""

from __future__ import annotations

from typing import cast

import pytest

from logtx.consumer.assigned import Assigned, StartedAt
from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.out_of_range import OutOfRange, Restart
from logtx.consumer.topic_ids import TopicIds
from logtx.journal.logs.interface import Log
from logtx.journal.position import Position

from .records import DATA, malformed

MET = {(0, 0xABC): 17}


class TrimmedLog:
    """A log whose start lies above where the reader was."""

    def start_offset(self, *_: object, timeout_s: float) -> int:
        assert timeout_s > 0
        return 5

    def end_offset(self, *_: object, timeout_s: float) -> int:
        assert timeout_s > 0
        return 9


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_trap_94_a_reset_to_the_earliest_keeps_what_was_met(reset: str) -> None:
    position = Position(o1=2, o2=2, met=MET)
    assigned = Assigned(DATA, position, position, StartedAt.ELSEWHERE)
    assigned.buffer = PartitionBuffer(
        DATA, position, PendingTransactionMap(10**6), malformed=malformed
    )
    log = cast(Log, TrimmedLog())
    found = OutOfRange(log, TopicIds(log), reset).restart(assigned)
    assert isinstance(found, Restart)
    at_start = reset == "earliest"
    assert found.position.o2 == (5 if at_start else 9)
    # Else a copy of a pointer that it has delivered would be delivered again.
    assert found.position.met == (MET if at_start else {})
