"""What the branches of one transaction wrote, and how it is told to the coordinator. Pure.

The commit names it all if one journal record takes it. What is more goes before the commit, in
parts: each names whole partitions as far as possible, so that a partition's name is sent seldom.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...journal.control import BranchRange, TopicPartition
from ...journal.errors import TransactionStateError
from .summary import BranchSummary

COMMIT_BYTES: Final = 800_000
"""Upper bound of what branches wrote in the journal's record of a commit, which has 900,000 bytes
for it and for partitions without records. Less would write parts where one record is enough."""
PART_BYTES: Final = 100_000
"""The same in a part: 4,000 to 5,000 ranges. A larger part holds the coordinator's event loop for
longer than 40 ms; smaller ones make more records."""
_PARTITION_BYTES: Final = 48
"""Upper bound of a partition in the journal, without its topic's name."""
_NONCE_BYTES: Final = 10
_FEW_BYTES: Final = 400
"""Upper bound of a partition with one range, whose topic has an ordinary name."""


def _number_bytes(number: int) -> int:
    # As Avro has it: seven bits in a byte, and one for the sign.
    return number.bit_length() // 7 + 1


def _range_bytes(written: BranchRange) -> int:
    first, last, count = written.first_offset, written.last_offset, written.count
    return _NONCE_BYTES + _number_bytes(first) + _number_bytes(last) + _number_bytes(count)


def _partition_bytes(key: TopicPartition) -> int:
    return _PARTITION_BYTES + 4 * len(key[0])


class AcceptedWrites:
    """Collects the summaries of accepted branches, and gives parts out."""

    def __init__(self, commit_bytes: int = COMMIT_BYTES, part_bytes: int = PART_BYTES) -> None:
        """Begins without any; the arguments bound what the commit names, and what a part does."""
        self._commit_bytes, self._part_bytes = commit_bytes, part_bytes
        self.parts = 0
        """Number of parts that were given out."""
        self._known: dict[int, int] = {}
        """Branch → hash of its summary. What parts have named is not kept."""
        self._left: dict[TopicPartition, list[BranchRange]] = {}
        self._bytes = 0

    def accept(self, summary: BranchSummary) -> None:
        """Takes a branch's summary; the same one again changes nothing.

        Raises:
            TransactionStateError: it was accepted with other records.
        """
        told = hash(frozenset(summary.writes.items()))
        known = self._known.get(summary.branch)
        if known is not None and known != told:
            raise TransactionStateError(
                f"branch {summary.branch:016x} was accepted with other records before"
            )
        if known is not None:
            return
        self._known[summary.branch] = told
        self._add(summary.writes)

    def add_own(self, writes: Mapping[TopicPartition, BranchRange]) -> bool:
        """Takes what the owner wrote itself, unless the commit has room for it.

        Returns:
            Whether it was taken.
        """
        size = self._bytes + len(writes) * _FEW_BYTES
        if size <= self._commit_bytes:
            return False
        own = sum(_partition_bytes(key) + _range_bytes(r) for key, r in writes.items())
        if self._bytes + own <= self._commit_bytes:
            return False
        self._add(writes)
        return True

    def _add(self, writes: Mapping[TopicPartition, BranchRange]) -> None:
        for key, written in writes.items():
            ranges = self._left.get(key)
            if ranges is None:
                ranges = self._left[key] = []
                self._bytes += _partition_bytes(key)
            ranges.append(written)
            self._bytes += _range_bytes(written)

    @property
    def parts_left(self) -> int:
        """Number of parts that are to go before the commit, about."""
        if self._bytes <= (self._part_bytes if self.parts else self._commit_bytes):
            return 0
        return max(self._bytes // self._part_bytes, 1)

    def next_part(self) -> dict[TopicPartition, tuple[BranchRange, ...]]:
        """Returns what the next part says, and forgets it. To be called if `parts_left`."""
        self.parts += 1
        taken: dict[TopicPartition, tuple[BranchRange, ...]] = {}
        size = 0
        while self._left and size < self._part_bytes:
            key, ranges = next(iter(self._left.items()))
            size += _partition_bytes(key)
            count = 0
            while count < len(ranges) and (size < self._part_bytes or not count):
                size += _range_bytes(ranges[count])
                count += 1
            taken[key] = tuple(ranges[:count])
            del self._left[key], ranges[:count]
            if ranges:
                self._left[key] = ranges
                self._bytes += _partition_bytes(key)
        self._bytes -= size
        return taken

    def rest(self) -> dict[TopicPartition, tuple[BranchRange, ...]]:
        """Returns what no part has named: it goes with the commit."""
        return {key: tuple(ranges) for key, ranges in self._left.items()}
