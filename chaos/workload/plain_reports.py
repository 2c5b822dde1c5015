"""Which reports of plain records say that a record was written. Pure.

librdkafka reports success of records of which it does not know where they are (trap 240). The first
one of a batch has no offset then, and the next ones 0, 1, 2 and so on, which are not theirs. Some
were written, and some are lost. So none of them counts as acknowledged, and nothing is concluded.
"""

from __future__ import annotations

from ...journal.control import TopicPartition
from ...producer.core.tally import Delivered


class PlainReports:
    """What the reports have said of one idempotent producer's records, all of which come here.

    They lie in a partition in the order of their reports, so offsets rise.
    """

    def __init__(self) -> None:
        """Knows of no report."""
        self._highest: dict[TopicPartition, int] = {}
        self._made_up: dict[TopicPartition, int] = {}
        """Partition → the offset that the next record of such a batch has."""

    def tells(self, topic: str, message: Delivered) -> bool:
        """Returns whether a report without an error says that the record was written."""
        partition, offset = message.partition(), message.offset()
        key = topic, -1 if partition is None else partition
        if partition is None or offset is None or offset < 0:
            self._made_up[key] = 0
            return False
        if self._made_up.get(key) == offset:
            self._made_up[key] = offset + 1
            return False
        self._made_up.pop(key, None)
        rises = offset > self._highest.get(key, -1)
        # A topic that was deleted and created anew starts at 0: refused once, and then believed.
        self._highest[key] = offset if rises else -1
        return rises
