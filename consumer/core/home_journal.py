"""HomeJournal: how far one consumer has read a home's journal, and what it keeps of that.

Where a partition must begin to read its home (R12) lies often below what was read for others. A
reader with a backlog has read the journal far ahead of its data, and begins a partition anew at
each mode record that it passes. So the last records are kept, and a partition that begins among
them takes them from here.

Why they are as good as the journal. Whether an entry counts depends on the entries before it. All
of them come here in order, through one `EpochFilter` that is certain where reading begins. So a
view that begins anywhere from `first` on is told what it would read there (R6). Records do not
change, and retention takes nothing from here. If the journal has no record where reading stands, a
tail that is kept here may be lost: `lose`, and nothing kept counts any more.

A partition that must begin below `first` makes reading go back (`restart`). What is kept always
ends where reading stands, so partitions that begin soon after find what they need. Views that stand
above are not told anything twice: they go on when reading comes to where they stand.

Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from ...journal.control import BranchRange, TopicPartition
from ...journal.modes import ModeChange
from ...journal.places import Adoption, Placed
from ...journal.records.fate import EpochFilter
from ...journal.records.types import (
    Begin,
    DataPartition,
    Entry,
    JournalRecord,
    PartitionWrites,
    PrepareAbort,
    PrepareCommit,
)
from ...journal.sidecar import main_partition
from ...journal.value import value
from .home_said import Decided, Packed, Said, packed, unpacked
from .home_view import SOME_RECORDS, Aside, HomeWrites

RECENT_MAX: Final = 60_000
"""Records of homes' journals, and partitions that they name, that a consumer keeps, at most, beside
what its partitions wait for: about 15 MB. Fewer make a reader with a backlog read the journal again
for partitions that begin."""
GAP_MAX: Final = 1_000
"""Entries that reading passes over, at most, for a partition that begins behind them, where no
other partition needs them. To begin anew takes requests, and costs the time of about as many."""
_DROPPED_AT_ONCE: Final = 4
"""Part of the records that is dropped at once, as its reciprocal: to drop each alone would move all
others each time."""


@value(frozen=True, slots=True)
class Kept:
    """Where a partition may begin without a request."""

    first: int
    """Everything from this journal offset on is kept, or will be read."""
    most: int | None
    """Up to this one; None: up to any."""
    is_partial: bool
    """Whether what was read below was dropped."""

    def covers(self, offset: int) -> bool:
        """Returns whether a partition may begin at a journal offset."""
        return self.first <= offset and (self.most is None or offset <= self.most)


class HomeJournal:
    """What one consumer has read of one home."""

    next_offset: int
    """Offset of the next entry."""
    first: int
    """Everything that counts from this offset on is kept."""

    def __init__(self, read_from: int, epochs: EpochFilter) -> None:
        """Begins to read at a journal offset, with the epochs as they stand there."""
        self.restart(read_from, epochs)

    def restart(self, read_from: int, epochs: EpochFilter) -> None:
        """Goes back, or elsewhere: drops what is kept."""
        self._began = self.first = self.next_offset = read_from
        self._epochs = epochs
        self._recent: list[tuple[int, int, Said | Packed]] = []
        """(offset, weight, what a view is told), the oldest first."""
        self._weight = self._packed = 0
        """Of all of them; how many, from the oldest on, are packed."""
        self._is_lost = False

    def lose(self) -> None:
        """Notes that reading can't go on from here: partitions begin by `restart` only."""
        self._is_lost = True

    def feed(self, entries: Sequence[tuple[int, Entry]], upto: int) -> None:
        """Takes in entries in offset order. Ignores those below `next_offset`.

        Args:
            entries: (offset, entry).
            upto: everything below this offset was read: the last offsets may hold no entry.
        """
        fresh = bisect_left(entries, self.next_offset, key=_offset_of)
        for offset, entry in entries[fresh:]:
            if self._epochs.accept(offset, entry):
                self._keep(offset, entry.record)
            self.next_offset = offset + 1
        self.next_offset = max(self.next_offset, upto)

    def _keep(self, offset: int, record: JournalRecord) -> None:
        said: Said
        weight = 1
        if isinstance(record, Begin):
            said = None
        elif isinstance(record, PrepareCommit):
            said = _decided(record)
            weight += len(said.writes) + len(said.further)
        elif isinstance(record, Placed):
            said, weight = record, weight + len(record.ends)
        elif isinstance(record, PrepareAbort | Adoption | ModeChange):
            said = record
        else:
            return
        self._recent.append((offset, weight, said))
        self._weight += weight

    def since(self, offset: int) -> Iterator[tuple[int, Said]]:
        """Yields (offset, record) of what counts from a journal offset on, which is kept."""
        if offset < self.first:
            raise RuntimeError(
                f"what lies below {self.first} was dropped, and {offset} is asked for"
            )
        at = bisect_left(self._recent, offset, key=_offset_of)
        for there, _, said in self._recent[at:]:
            yield there, unpacked(said)

    def trim(self, most: int, needed: int) -> None:
        """Drops the oldest records of more than `most`, as `RECENT_MAX` counts them, but none from
        `needed` on. Those that stay, and were told to all, take less from then on."""
        told = bisect_left(self._recent, needed, key=_offset_of)
        if self._weight > most:
            told -= self._drop(told, most - most // _DROPPED_AT_ONCE)
        for at in range(self._packed, told):
            offset, weight, said = self._recent[at]
            self._recent[at] = offset, weight, packed(said)
        self._packed = max(self._packed, told)

    def _drop(self, told: int, most: int) -> int:
        """Drops the oldest of the first `told` records, of more than `most`. Returns how many."""
        drop = 0
        while drop < told and self._weight > most:
            self._weight -= self._recent[drop][1]
            drop += 1
        if drop:
            self.first = self._recent[drop - 1][0] + 1
            del self._recent[:drop]
            self._packed = max(0, self._packed - drop)
        return drop

    def kept(self, *, is_idle: bool) -> Kept | None:
        """Returns where a partition may begin without a request; None: nowhere.

        Args:
            is_idle: whether no partition is followed: what lies ahead is read for this one alone.
        """
        if self._is_lost:
            return None
        most = self.next_offset + GAP_MAX if is_idle else None
        return Kept(self.first, most, self.first > self._began)


def asides_of(
    writes: Iterable[PartitionWrites], sidecars: Collection[TopicPartition]
) -> dict[TopicPartition, Aside]:
    """Returns main partition → what a decision accepts in its sidecar.

    Args:
        writes: all that it says of partitions.
        sidecars: the sidecar partitions in which it accepts records; none, nearly always.
    """
    if not sidecars:
        return {}
    named = ((w.partition, w.branches) for w in writes if w.partition.key in sidecars)
    return {main_partition(p.key): Aside(tuple(b), p.topic_id) for p, b in named}


def _offset_of(item: tuple[int, *tuple[object, ...]]) -> int:
    return item[0]


def _decided(record: PrepareCommit) -> Decided:
    placed = frozenset(record.placed)
    asides = asides_of(record.writes, dict(record.sidecar_since))

    def writes(partition: DataPartition, branches: tuple[BranchRange, ...]) -> HomeWrites:
        where, is_placed = partition.identity, partition.key in placed
        aside = asides.get(partition.key) if is_placed and asides else None
        return HomeWrites(where, branches, is_placed, aside)

    return Decided(
        record.begin,
        tuple([writes(each.partition, each.branches) for each in record.writes]),
        tuple([writes(each, SOME_RECORDS) for each in record.added]),
    )
