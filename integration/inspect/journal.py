"""Reads all of the journal: a `JournalScan` of each partition, from offset 0 or its snapshot on."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from ...journal.errors import JournalError
from ...journal.follower import JournalFollower
from ...journal.logs.interface import Log
from ...journal.reader import JOURNAL_TOPIC, find_snapshot
from ...journal.records.fate import EpochFilter
from ...journal.records.scan import JournalPart, JournalScan, SeenTransaction

READ_TIMEOUT_S: Final = 60.0
"""Longest wait without progress: a smaller value fails on slow brokers, a larger one reports dead
ones later."""


class Journal:
    """Reads journal partitions; each `read_on` continues up to their present ends."""

    def __init__(self, log: Log, partitions: Collection[int] | None = None) -> None:
        """Finds where reading begins. Call `close` when done.

        Args:
            log: the log that the journal lies in.
            partitions: only these partitions of the journal; None: all.

        Raises:
            UnknownTopicError: there is no journal.
            JournalError, BrokerError: it can't be read.
        """
        self._scans: dict[int, JournalScan] = {}
        self.parts: list[JournalPart] = []
        places = {}
        if partitions is None:
            partitions = range(log.partition_count(JOURNAL_TOPIC))
        for partition in partitions:
            first, epochs = _begin(log, partition)
            scan = self._scans[partition] = JournalScan(partition, epochs, at_snapshot=first > 0)
            places[partition] = first
            self.parts.append(
                JournalPart(
                    *(partition, first, scan.transactions, scan.offsets, scan.forgotten),
                    scan.adopted,
                )
            )
        self._follower = JournalFollower(log, places)

    def read_on(self) -> list[SeenTransaction]:
        """Reads up to the present ends of the partitions.

        Returns:
            The transactions whose decision was read, by journal partition in commit order.

        Raises:
            JournalError, BrokerError: it can't be read.
        """
        decided: dict[int, list[SeenTransaction]] = {partition: [] for partition in self._scans}
        for partition, offset, entry in self._follower.read_to_ends(timeout_s=READ_TIMEOUT_S):
            decided[partition] += self._scans[partition].feed(offset, entry)
        return [seen for partition in sorted(decided) for seen in decided[partition]]

    def __iter__(self) -> Iterator[SeenTransaction]:
        """Iterates over all transactions that were read."""
        for part in self.parts:
            yield from part.transactions.values()

    def close(self) -> None:
        """Stops reading; the transactions that were read stay available."""
        self._follower.close()


def _begin(log: Log, partition: int) -> tuple[int, EpochFilter]:
    start = log.start_offset(JOURNAL_TOPIC, partition)
    if start == 0:
        return 0, EpochFilter()
    found = find_snapshot(log, partition, timeout_s=READ_TIMEOUT_S)
    if found is None:
        raise JournalError(
            f"{JOURNAL_TOPIC}-{partition} begins at {start} and holds no snapshot: it was not"
            " trimmed by its owner, so what its records mean is not certain"
        )
    return found.first, found.epochs()
