"""What a home's journal says to views, and a form of it that costs the garbage collector nothing.

A consumer keeps tens of thousands of journal records for partitions that may begin there. Python's
collector looks at each object that may refer to others again and again: with these, a reader of a
backlog spent a third of its time so. Of tuples that hold strings and numbers alone it lets go. So
what was told is packed into such, and unpacked for who begins there.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, TypeAlias

from ...journal.control import BranchRange
from ...journal.modes import ModeChange
from ...journal.places import Adoption, PartitionId, Placed
from ...journal.records.types import PrepareAbort
from ...journal.value import value
from .home_view import Aside, HomeWrites


@value(frozen=True, slots=True)
class Decided:
    """A decision to commit, as views take it in: made once, for all that are told."""

    begin: int
    """Offset of the BEGIN."""
    writes: tuple[HomeWrites, ...]
    further: tuple[HomeWrites, ...]
    """The partitions of which the decision does not say all; see `PrepareCommit.added`."""


Said: TypeAlias = Decided | PrepareAbort | Placed | Adoption | ModeChange | None
"""What a view is told; None for a BEGIN, of which the offset says all."""
Packed: TypeAlias = tuple[str | int | None, ...]
"""A decision or places, one field behind the other."""
_DECIDED: Final = 0
_PLACED: Final = 1


def packed(said: Said | Packed) -> Said | Packed:
    """Packs a decision or places. What is rare stays as it is."""
    if isinstance(said, Decided):
        flat: list[str | int | None] = [_DECIDED, said.begin]
        for writes in (said.writes, said.further):
            flat.append(len(writes))
            for each in writes:
                flat += each.partition
                flat.append(each.placed)
                _put(flat, each.branches)
                flat.append(None if each.aside is None else each.aside.topic_id)
                if each.aside is not None:
                    _put(flat, each.aside.branches)
        return tuple(flat)
    if isinstance(said, Placed):
        flat = [_PLACED, said.upto]
        for partition, end in said.ends.items():
            flat += (*partition, end)
        return tuple(flat)
    return said


def unpacked(said: Said | Packed) -> Said:
    """Returns what was packed, or what is not packed as it is."""
    if not isinstance(said, tuple):
        return said
    fields: Iterator[Any] = iter(said)
    if next(fields) == _DECIDED:
        return Decided(next(fields), _take_writes(fields), _take_writes(fields))
    upto = next(fields)
    return Placed(
        upto, {PartitionId(*where): end for *where, end in zip(*[fields] * 4, strict=True)}
    )


def _put(flat: list[str | int | None], branches: tuple[BranchRange, ...]) -> None:
    flat.append(len(branches))
    for each in branches:
        flat += (each.branch, each.first_offset, each.last_offset, each.count)


def _take_writes(fields: Iterator[Any]) -> tuple[HomeWrites, ...]:
    found = []
    for _ in range(next(fields)):
        where, placed = PartitionId(*islice(fields, 3)), next(fields)
        branches, topic_id = _take_branches(fields), next(fields)
        aside = None if topic_id is None else Aside(_take_branches(fields), topic_id)
        found.append(HomeWrites(where, branches, placed, aside))
    return tuple(found)


def _take_branches(fields: Iterator[Any]) -> tuple[BranchRange, ...]:
    return tuple([BranchRange(*islice(fields, 4)) for _ in range(next(fields))])
