"""Changes of the store: what a record was, and what it becomes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ....journal.records.fate import NO_EPOCH, EpochFilter
from ....journal.value import value
from ...protocol.metadata import Header, Operation, Record

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


class Change(NamedTuple):
    """A header or an operation that is put (`after`), or deleted (no `after`).

    The store writes it only on top of `before`, the version that it replaces.
    """

    before: Record | None
    after: Record | None

    @property
    def record(self) -> Record:
        """What it is about."""
        record = self.after if self.after is not None else self.before
        assert record is not None, "a change of nothing"
        return record


class Step(NamedTuple):
    """The changes that one journal record makes."""

    changes: Sequence[Change]
    before: Cursor
    """Before the record."""
    after: Cursor


class Write(NamedTuple):
    """Changes that are written at once, with the cursor."""

    changes: Sequence[Change]
    cursor: Cursor


def net(changes: Iterable[Change]) -> list[Change]:
    """Joins the changes of each header and operation of one journal incarnation, in their order.

    What came and went is left out. A new header comes before its operations, so that a projector
    that starts finds them; one that changes comes behind them, so that a record that is half
    written finds the header as it was.
    """
    headers: dict[int, Change] = {}
    operations: dict[tuple[int, tuple[int, int]], Change] = {}
    for change in changes:
        before, after = change
        record = before if after is None else after
        if isinstance(record, Operation):
            key = record.txid.offset, record.seq
            known = operations.get(key)
            operations[key] = change if known is None else Change(known.before, after)
        elif isinstance(record, Header):
            begin = record.txid.offset
            known = headers.pop(begin, None)
            headers[begin] = change if known is None else Change(known.before, after)
    begun = [c for c in headers.values() if c.before is None]
    changed = [c for c in headers.values() if c.before is not None]
    joined = (*begun, *operations.values(), *changed)
    return [c for c in joined if not (c.before is None and c.after is None)]


MUTATIONS_MAX: Final = 3
"""Most keys that one change writes: a record, its new index entry, its old one."""


def writes_of(steps: Iterable[Step], mutations_max: int) -> Iterator[Write]:
    """Joins steps to writes of at most `mutations_max` keys, the cursor's not counted.

    A step that is too large for one write becomes several, alone: it is fed again if it is left
    half written, and then finds what is written. If other steps lay in the same write, feeding
    them again would find their effects too.
    """
    pending: list[Change] = []
    last: Cursor | None = None
    for step in steps:
        size = len(step.changes) * MUTATIONS_MAX
        if last is not None and len(pending) * MUTATIONS_MAX + size > mutations_max:
            yield Write(net(pending), last)
            pending, last = [], None
        if size > mutations_max:
            yield from _parts(step, mutations_max)
        else:
            pending += step.changes
            last = step.after
    if last is not None:
        yield Write(net(pending), last)


def _parts(step: Step, mutations_max: int) -> Iterator[Write]:
    # What was written by a projector that was killed in between is there already.
    joined = [change for change in net(step.changes) if change.before != change.after]
    count = max(1, mutations_max // MUTATIONS_MAX)
    parts = [joined[at : at + count] for at in range(0, len(joined), count)] or [[]]
    part = step.before.part
    for changes in parts[:-1]:
        # The cursor stays before the record. It changes all the same, so that of two projectors
        # one alone wins each part.
        part += 1
        yield Write(changes, replace(step.before, part=part))
    yield Write(parts[-1], step.after)
