"""The log of the simulated world keeps what every `Log` promises, as far as it has it."""

from __future__ import annotations

import pytest

from logtx.coordinator.core.decision import TopicFacts
from logtx.journal.errors import UnknownTopicError
from logtx.journal.reader import JOURNAL_TOPIC

from .history import History
from .logs import Broker, LogView, NotYetError
from .schedule import Scheduler


def broker() -> Broker:
    facts = TopicFacts(topic_id="an id", partition_count=2, record_max_bytes=1_000)
    made = Broker(Scheduler(), History(0), 1, {"t": facts})
    for _ in range(3):
        made.append_data(("t", 1), None, b"x", "writer", 0)
    return made


def test_the_offsets_of_many_partitions_with_their_errors_one_by_one() -> None:
    log = LogView(broker())
    asked = [("t", 0), ("t", 1), ("none", 0), ("t", 2), (JOURNAL_TOPIC, 0), (JOURNAL_TOPIC, 1)]
    ends, starts = log.each_end_offset(asked), log.each_start_offset(asked)
    assert list(ends) == list(starts) == asked
    for told, wanted in ((ends, 3), (starts, 0)):
        assert (told["t", 0], told["t", 1], told[JOURNAL_TOPIC, 0]) == (0, wanted, 0)
        for unknown in (("none", 0), ("t", 2), (JOURNAL_TOPIC, 1)):
            assert isinstance(told[unknown], UnknownTopicError)


def test_the_end_of_many_partitions_takes_time_too() -> None:
    made, answers = broker(), [0]
    with pytest.raises(NotYetError):
        LogView(made, answers).each_end_offset([("t", 0), ("t", 1)])
    answers.append(2)
    assert LogView(made, answers).each_end_offset([("t", 0), ("t", 1)]) == {
        ("t", 0): 0,
        ("t", 1): 2,
    }
