"""Which reports of plain records say that a record was written. Pure.

librdkafka reports success of a batch that the broker calls a duplicate, though the broker may have
lost it (trap 240). The batch's first record has no offset then, and the next ones 0, 1, 2 and so
on, which are not theirs.
"""

from __future__ import annotations

from ...journal.control import TopicPartition
from .tally import Delivered


class PlainReports:
    """What the reports of one idempotent producer's plain records have said so far.

    These records lie in a partition in the order of their reports, so offsets rise. Where they do
    not, it is not known whether the record was written. Above the highest offset told before, made
    up ones are believed: a batch has as many only if the partition had few records.
    """

    def __init__(self) -> None:
        """Knows of no report."""
        self._highest: dict[TopicPartition, int] = {}
        self._made_up: dict[TopicPartition, int] = {}
        """Partition → the offset that the next record of such a batch has."""

    def tells(self, topic: str, message: Delivered) -> bool:
        """Returns whether a report without an error says that the record was written."""
        partition, offset = message.partition(), message.offset()
        if partition is None or offset is None or offset < 0:
            self._made_up[topic, -1 if partition is None else partition] = 0
            return False
        key = topic, partition
        highest = self._highest.get(key, -1)
        if offset > highest:
            self._made_up.pop(key, None)
            self._highest[key] = offset
            return True
        if self._made_up.get(key) == offset:
            self._made_up[key] = offset + 1
        else:
            # A topic that was deleted and created anew starts at 0: refused once, then believed.
            del self._highest[key]
        return False
