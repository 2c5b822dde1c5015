"""Where a partition is read on, once a broker says that it has nothing at our offset.

The records there were deleted, or the log was cut below it. librdkafka's own reset would skip them
silently. Or the broker is wrong: one that does not know yet that another leads the partition tells
an end of the past. So an end below our offset must be told for some time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from ..journal.control import TopicPartition
from ..journal.logs.interface import Log
from ..journal.position import Position
from .assigned import Assigned, StartedAt
from .core.looks import LOOK_TIMEOUT_S, LOOKS_APART_S, OFFSET_TIMEOUT_S
from .topic_ids import TopicIds

_LOG = logging.getLogger(__name__)


class Refusal(Enum):
    """Why a partition is not begun again."""

    DOUBTED = auto()
    """The end is told below our offset, which nobody believes yet."""
    RECREATED = auto()
    """Another topic has the name."""
    UNWANTED = auto()
    """``auto.offset.reset`` is ``error``: the application is to hear of it."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Where a partition begins again."""

    position: Position
    started_at: StartedAt


class OutOfRange:
    """The partitions of one consumer whose offset a broker did not have."""

    def __init__(self, log: Log, topic_ids: TopicIds, reset: str) -> None:
        """Asks nothing yet. `reset` is ``auto.offset.reset``."""
        self._log = log
        self._topic_ids = topic_ids
        self._reset = reset
        self._doubted: set[TopicPartition] = set()
        """Partitions to be read again, as a broker told an end below where they are read."""

    def restart(self, assigned: Assigned) -> Restart | Refusal:
        """Returns where a partition is read on, whose offset a broker does not have.

        Raises:
            BrokerError: the partition's leader does not answer.
        """
        topic, partition = assigned.key
        start = self._log.start_offset(topic, partition, timeout_s=OFFSET_TIMEOUT_S)
        end = self._log.end_offset(topic, partition, timeout_s=OFFSET_TIMEOUT_S)
        position = assigned.buffer.position()
        started_at = StartedAt.ELSEWHERE
        if position.o2 > end:
            if self._topic_ids.becomes_another(topic, assigned.topic_id):
                return Refusal.RECREATED
            if not self._is_cut(assigned, end):
                return Refusal.DOUBTED
        if start <= position.o2 <= end:
            # Only data between o1 and o2 is gone: side reads and `torn.reset` settle each
            # transaction.
            position = replace(position, o1=max(start, min(position.o1, end)))
        elif self._reset == "error":
            return Refusal.UNWANTED
        else:
            started_at = StartedAt.AT_START if self._reset == "earliest" else StartedAt.AT_END
            met = position.met
            position = Position.at(start if self._reset == "earliest" else end)
            if started_at is StartedAt.AT_START:
                # A copy of a pointer or marker that it has delivered may lie above (trap 94).
                position = replace(position, met=met)
        _LOG.warning(
            "offset_reset topic=%s partition=%d from=%d to=%d start=%d end=%d",
            *(topic, partition, assigned.buffer.next_offset, position.o1, start, end),
        )
        return Restart(position, started_at)

    def _is_cut(self, assigned: Assigned, end: int) -> bool:
        now = time.monotonic()
        if assigned.cut_s is None:
            assigned.cut_s = now
        if now - assigned.cut_s >= LOOKS_APART_S:
            return True
        _LOG.warning(
            "end_below_position topic=%s partition=%d position=%d end=%d",
            *(*assigned.key, assigned.buffer.next_offset, end),
        )
        self._doubted.add(assigned.key)
        return False

    def to_read_again(
        self, assigned: Mapping[TopicPartition, Assigned], now: float
    ) -> list[TopicPartition]:
        """Returns the doubted partitions that librdkafka must be told to read again.

        It does not read a partition on by itself that was out of range.

        Args:
            assigned: the consumer's partitions.
            now: monotonic time in seconds.
        """
        due = [k for k in self._doubted if (a := assigned.get(k)) is None or _is_due(a, now)]
        self._doubted.difference_update(due)
        again = [key for key in due if key in assigned]
        if not again:
            return again
        ends = self._log.each_end_offset(again, timeout_s=LOOK_TIMEOUT_S)
        for key, end in ends.items():
            if not isinstance(end, int):
                self._doubted.add(key)
                again.remove(key)
            elif end >= assigned[key].buffer.position().o2:
                assigned[key].cut_s = None
        return again


def _is_due(assigned: Assigned, now: float) -> bool:
    return assigned.cut_s is None or now - assigned.cut_s >= LOOKS_APART_S
