"""What branches wrote to one data partition, in a form that is small in memory. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, overload

from ...journal.control import BranchRange

_NUMBERS: Final = 4
"""Numbers of a range: branch, first offset, last offset, count."""


class PackedRanges(Sequence[BranchRange]):
    """The ranges of a transaction that may have a million of them: 32 bytes each.

    As objects they would take 200 bytes each, and the garbage collector would look at all of them.
    """

    __slots__ = ("_numbers",)
    __hash__ = None  # type: ignore[assignment]  # it grows

    def __init__(self, ranges: Iterable[BranchRange] = ()) -> None:
        """Begins with these."""
        self._numbers = array("Q")
        self.extend(ranges)

    def extend(self, ranges: Iterable[BranchRange]) -> None:
        """Adds ranges at the end."""
        if isinstance(ranges, PackedRanges):
            self._numbers.extend(ranges._numbers)
            return
        extend = self._numbers.extend
        for r in ranges:
            extend((r.branch, r.first_offset, r.last_offset, r.count))

    @property
    def first_offset(self) -> int:
        """The lowest first offset; there must be a range."""
        return min(islice(self._numbers, 1, None, _NUMBERS))

    @property
    def last_offset(self) -> int:
        """The highest last offset; there must be a range."""
        return max(islice(self._numbers, 2, None, _NUMBERS))

    def __len__(self) -> int:
        return len(self._numbers) // _NUMBERS

    def __iter__(self) -> Iterator[BranchRange]:
        numbers = iter(self._numbers)
        return map(BranchRange, numbers, numbers, numbers, numbers)

    @overload
    def __getitem__(self, index: int) -> BranchRange: ...
    @overload
    def __getitem__(self, index: slice) -> PackedRanges: ...
    def __getitem__(self, index: int | slice) -> BranchRange | PackedRanges:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            assert step == 1, "shares only"
            share = PackedRanges()
            share._numbers = self._numbers[start * _NUMBERS : stop * _NUMBERS]
            return share
        at = range(len(self))[index] * _NUMBERS
        return BranchRange(*self._numbers[at : at + _NUMBERS])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedRanges) and self._numbers == other._numbers

    def __repr__(self) -> str:
        return f"PackedRanges({list(self)})"


def first_offset_of(ranges: Sequence[BranchRange]) -> int:
    """Returns the lowest first offset of some ranges; there must be one."""
    if isinstance(ranges, PackedRanges):
        return ranges.first_offset
    return min(r.first_offset for r in ranges)


def last_offset_of(ranges: Sequence[BranchRange]) -> int:
    """Returns the highest last offset of some ranges; there must be one."""
    if isinstance(ranges, PackedRanges):
        return ranges.last_offset
    return max(r.last_offset for r in ranges)
