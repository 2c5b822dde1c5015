"""What is decided and not placed: `Unplaced` for transactions over many partitions.

A PLACED record nearly always covers all that was decided before it, in all partitions. So what was
decided since the last one is kept by transaction, and covered with one comparison of sets for each.
What a record leaves, because a partition's end could not be asked for, is kept by partition, and so
is what waits with very many others. So what waits long costs later records nothing.

Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from itertools import takewhile
from typing import Final, NamedTuple

from ...journal.places import PartitionId, Placed, Unplaced, Waiting

WHOLE_MAX: Final = 1_000
"""Transactions that are kept whole. More make each question about one partition slower, while
nothing can be placed; fewer take longer to place when very many small ones are decided at once."""


class Covered(NamedTuple):
    """A transaction that a PLACED record places in some partitions."""

    sequence: int
    begin: int
    partitions: Collection[PartitionId]


class _Row(NamedTuple):
    sequence: int
    begin: int
    partitions: Mapping[PartitionId, object]


class UnplacedTransactions:
    """What is decided and not placed, in commit-sequence order."""

    def __init__(self) -> None:
        self._whole: deque[_Row] = deque()
        """Transactions decided behind what the latest record covers, `WHOLE_MAX` at most."""
        self._left: Unplaced[int] = Unplaced()
        """What was left of earlier ones: of lower sequences."""
        self._count = 0

    def __len__(self) -> int:
        """Returns the number of (transaction, partition) that wait."""
        return self._count

    def add(self, sequence: int, begin: int, partitions: Mapping[PartitionId, object]) -> None:
        """Adds a transaction. Must be called in commit-sequence order.

        Args:
            sequence: its commit sequence.
            begin: offset of its BEGIN.
            partitions: where it waits; the values are nobody's. Is not to be changed any more.
        """
        self._whole.append(_Row(sequence, begin, partitions))
        self._count += len(partitions)
        if len(self._whole) > WHOLE_MAX:
            row = self._whole.popleft()
            for partition in row.partitions:
                self._left.add(partition, row.sequence, row.begin)

    def cover(self, placed: Placed) -> Iterator[Covered]:
        """Removes what a PLACED record covers, and yields it by transaction.

        What an earlier one covered is not there any more, so the first one counts. A transaction
        comes once.
        """
        ends = placed.ends
        found: dict[int, tuple[int, list[PartitionId]]] = {}
        for partition, _, (sequence, begin) in self._left.cover(placed):
            found.setdefault(begin, (sequence, []))[1].append(partition)
        while self._whole and self._whole[0].sequence <= placed.upto:
            sequence, begin, partitions = self._whole.popleft()
            if partitions.keys() <= ends.keys():
                self._count -= len(partitions)
                yield Covered(sequence, begin, partitions)
                continue
            for partition in partitions:
                if partition in ends:
                    found.setdefault(begin, (sequence, []))[1].append(partition)
                else:
                    self._left.add(partition, sequence, begin)
        for begin, (sequence, covered) in found.items():
            self._count -= len(covered)
            yield Covered(sequence, begin, covered)

    def whole_by(self, placed: Placed) -> list[int]:
        """Returns BEGINs of what a PLACED record would cover whole, by commit sequence; without
        what an earlier record left."""
        keys = placed.ends.keys()
        rows = takewhile(lambda row: row.sequence <= placed.upto, self._whole)
        return [row.begin for row in rows if row.partitions.keys() <= keys]

    def of(self, partition: PartitionId) -> list[Waiting[int]]:
        """Returns what waits in a partition, in commit-sequence order."""
        whole = (Waiting(r.sequence, r.begin) for r in self._whole if partition in r.partitions)
        return [*self._left.of(partition), *whole]

    def first(self, partition: PartitionId) -> int | None:
        """Returns the sequence of the first that waits in a partition, or None."""
        if left := self._left.of(partition):
            return left[0].sequence
        return next((r.sequence for r in self._whole if partition in r.partitions), None)

    def partitions(self) -> list[PartitionId]:
        """Returns the partitions in which something waits, in the order in which they came."""
        return list(self.lasts())

    def lasts(self) -> dict[PartitionId, int]:
        """Returns partition → sequence of the last that waits there, in the order of coming."""
        left = self._left
        found = {p: left.of(p)[-1].sequence for p in left.partitions()}
        for row in self._whole:
            found.update(dict.fromkeys(row.partitions, row.sequence))
        return found

    def firsts(self) -> dict[PartitionId, int]:
        """Returns partition → sequence of the first that waits there, in no certain order."""
        left = self._left
        found: dict[PartitionId, int] = {}
        for row in reversed(self._whole):
            found.update(dict.fromkeys(row.partitions, row.sequence))
        found.update((p, left.of(p)[0].sequence) for p in left.partitions())
        return found

    def up_to(self, sequence: int) -> Iterator[tuple[int, Collection[PartitionId]]]:
        """Yields (BEGIN, where it waits) of what is decided up to a commit sequence.

        A transaction may come more than once, each time with other partitions.
        """
        for partition in self._left.partitions():
            for waiting in self._left.of(partition):
                if waiting.sequence <= sequence:
                    yield waiting.what, (partition,)
        for row in self._whole:
            if row.sequence > sequence:
                return
            yield row.begin, row.partitions
