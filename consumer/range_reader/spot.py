"""Where a reader of ranges stands in a partition. Pure.

A place is (o2, o3), as for every consumer. A transaction belongs to the offset of its marker, so a
range of offsets holds each transaction's records in a partition whole or not at all.

Where a home places transactions, several may be delivered at one offset. So a place says up to
which commit sequence they are read, too. A place that does not say it has all of them below its
offset, and none at it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...journal.control import TopicPartition
from ...journal.position import Passed, Place, Position


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a partition."""

    o2: int
    """Offset: every transaction and plain record that ends below it is read."""
    o3: int = 0
    """Number of records read of the transaction whose marker is at `o2`."""
    o1: int = -1
    """Offset where a reader should begin, so that it has pending transactions at hand; -1 means at
    `o2`."""
    fresh: bool = False
    """Whether the group's IOV has no entry for this partition yet."""
    stood: Place | None = None
    """Where the group's IOV stands, if the records there are gone and reading begins elsewhere."""
    passed: Passed | None = None
    """What is read of the transactions that a home places here; None: those placed below `o2`."""

    @property
    def position(self) -> Position:
        """The same place in the form that the consumer's cores take."""
        o1 = self.o2 if self.o1 < 0 else self.o1
        return Position(o1=o1, o2=self.o2, o3=self.o3, passed=self.passed)

    @property
    def place(self) -> Place:
        """The part of it by which two are compared."""
        return Place(self.o2, self.o3, self.passed)

    @classmethod
    def of(cls, position: Position) -> Spot:
        """Makes a spot of a position; drops what else the position holds."""
        o1 = -1 if position.o1 == position.o2 else position.o1
        return cls(position.o2, position.o3, o1, passed=position.passed)


Vector = Mapping[TopicPartition, Spot]
