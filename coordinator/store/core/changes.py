"""Changes of the store: what a record was, and what it becomes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from ....journal.errors import MetadataStoreError
from ....journal.records.fate import NO_EPOCH, EpochFilter
from ....journal.value import value
from ...protocol.metadata import Record

REBUILDING: Final = -1
"""Offset of a cursor while what a snapshot tells is being written: what is there is incomplete."""


@value(frozen=True, slots=True)
class Cursor:
    """How far the store has a journal partition, and what is needed to go on with certainty."""

    offset: int
    """Journal offset of the record to come next, or `REBUILDING`."""
    epoch: int = NO_EPOCH
    """The epoch that is current there."""
    incarnation: int | None = None
    """That of the journal partition; None before its first record."""
    surprised: bool = False
    """Whether that epoch has met its surprise: what follows of it is void, see `EpochFilter`."""
    part: int = 0
    """Number of writes that the record at `offset` has filled already: one that changes very much
    is not written at once."""

    def epochs(self) -> EpochFilter:
        """Returns the filter that tells valid entries from void ones, from `offset` on."""
        return EpochFilter(self.epoch, self.incarnation, surprised=self.surprised)


class HeaderDiffersError(MetadataStoreError):
    """The store has another version of a header than the one that a change replaces: what it has
    is not what the journal says. It is made again from the journal."""

    code = 0


class Change(NamedTuple):
    """A header or an operation that is put (`after`), or deleted (no `after`).

    The store puts a header only on top of `before`, the version that it replaces; without one, only
    where there is none. Of operations the cursor says that nobody else changes them.
    """

    before: Record | None
    after: Record | None

    @property
    def record(self) -> Record:
        """What it is about."""
        record = self.after if self.after is not None else self.before
        assert record is not None, "a change of nothing"
        return record


Mutation: TypeAlias = tuple[bytes, bytes | None]
"""(key, its new value, or None to delete it)."""

MUTATIONS_MAX: Final = 3
"""Most keys that the change of one record writes: it, its new index entry, its old one."""


Guards: TypeAlias = Mapping[bytes, bytes | None]
"""Key → the value that the store must have there; None: there must be none."""


class Write(NamedTuple):
    """What is written at once, with the cursor."""

    mutations: Sequence[Mutation]
    added: int
    """By how much it changes the number of operations."""
    put: int
    """Number of operations that it puts."""
    cursor: Cursor
    guards: Guards
    """The versions of the headers that it replaces."""
