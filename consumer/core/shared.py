"""What the buffers of one consumer share, so that its memory does not grow with its partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from ...journal.control import TopicPartition
from .entries import EndedTransaction
from .pointers import Relocate, relocated
from .ranges import ControlCache

ENDED_MAX: Final = 400_000
"""Ended TxIds that a consumer remembers while open transactions hold the HW back, in equal parts
for its partitions: about 48 MB. More cost memory. With fewer, late data of a forgotten one stays
pending until a look-up."""
ENDED_MAX_OF_ONE: Final = 100_000
"""The same for one partition: about 12 MB."""


GoOn: TypeAlias = Callable[[TopicPartition, EndedTransaction, str], str]
"""Says how to go on without a transaction of a partition that can't be delivered, or without a part
of it: it is told what that is."""


def by_commit(_partition: TopicPartition, entry: EndedTransaction, without: str) -> str:
    """Says how the application of a consumer group goes on."""
    return (
        f"to go on without {without}, commit offset {entry.marker_offset + 1} for the group and"
        " start again"
    )


class Shared:
    """Shared by the buffers of one consumer's partitions."""

    def __init__(self) -> None:
        self.controls = ControlCache()
        self.relocate: Relocate = relocated
        """Makes what is delivered of a record in a sidecar."""
        self.go_on: GoOn = by_commit
        """Ends the texts of errors."""
        self.ended_max = ENDED_MAX_OF_ONE
        """How many ended TxIds each partition may remember."""

    def divide(self, partitions: int) -> None:
        """Sets the part of each partition, if there are so many of them."""
        self.ended_max = min(ENDED_MAX_OF_ONE, ENDED_MAX // max(partitions, 1))
