"""Finds where a journal can be read without its past: at a snapshot that counts. Pure.

A reader that begins in the middle must know which epoch is current there, because the void records
of a replaced owner look like any other. A snapshot that counts tells it: its chunks are valid, so
their epoch was current and without a surprise at the first of them. It also lists what was
unfinished then, so every transaction that was decided below it and is not listed is finished.

The checkpoint names a snapshot that counts. If the checkpoint is lost, the first snapshot that the
reader meets, A, may be void. In a journal that was not trimmed it may be the only one (trap 266).
But there the epochs are known from offset 0 on. Else, as owners trim only below a snapshot that
counts, one that counts, B, follows. Two rules lead to B, whatever void snapshot A was believed
before (the coordinator's replica uses the same rules):

- an entry of a higher epoch than the current one proves that what was believed is void: each epoch
  was won before anything was written under it;
- a complete snapshot that is valid by what is believed replaces it.

`found` counts once every entry was fed up to an end of the journal that was asked for after the
scan started.

Source: Transactional Messaging in Kafka, "Transaction coordinator" (a checkpoint of its state).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from ..control import TopicPartition
from ..errors import CorruptRecordError
from ..places import PartitionId
from ..sidecar import main_partition
from ..state import State
from .fate import EpochFilter
from .types import (
    Entry,
    Owner,
    PartitionWrites,
    PointerStep,
    Snapshot,
    SnapshotMode,
    SnapshotSince,
)


def last_needed(
    last_places: Mapping[PartitionId, int], pointers: Iterable[PointerStep]
) -> dict[PartitionId, int]:
    """Returns partition → the offset at which its log must start before a snapshot tells all that
    readers of what is left need: its last place, or one more.

    One more where records of a sidecar may be placed there. They have no record below the place, so
    they are still to be delivered when the log starts at it (trap 167).

    Args:
        last_places: see `Snapshot.last_places`.
        pointers: see `Snapshot.pointers`, of the whole snapshot: a place is noted there as a
            pointer is. Of unfinished transactions, too. They are listed; but one that is not, and
            is placed there as well, may come behind.
    """
    highest: dict[TopicPartition, int] = {}
    for step in pointers:
        main = main_partition(step.sidecar)
        highest[main] = max(step.pointer, highest.get(main, -1))
    if not highest:
        return dict(last_places)
    return {p: place + (highest.get(p.key, -1) >= place) for p, place in last_places.items()}


def sidecars_named(rows: Iterable[SnapshotSince]) -> dict[int, set[TopicPartition]]:
    """Returns BEGIN → the sidecar partitions that a snapshot's rows name of that transaction."""
    found: dict[int, set[TopicPartition]] = {}
    for row in rows:
        found.setdefault(row.begin, set()).update(key for key, _ in row.partitions)
    return found


class LastNeeded:
    """What the chunks of one snapshot say of last places: see `last_needed`."""

    def __init__(self) -> None:
        """Begins before the first chunk."""
        self._last: dict[PartitionId, int] = {}
        self._pointers: list[PointerStep] = []
        self._since: list[SnapshotSince] = []
        self._places: list[tuple[int, PartitionId, int]] = []

    def add(self, chunk: Snapshot) -> None:
        """Takes the next chunk."""
        self._last.update(chunk.last_places)
        self._pointers += chunk.pointers
        self._since += chunk.sidecar_since
        for row in chunk.places:
            self._places += [(row.begin, p, at) for p, _, at in row.places if at is not None]

    def found(self) -> dict[PartitionId, int]:
        """Returns what `last_needed` does, of the whole snapshot."""
        mains = {
            begin: {main_partition(key): key for key in keys}
            for begin, keys in sidecars_named(self._since).items()
        }
        unfinished = (
            PointerStep(mains[begin][p.key], place, 0)
            for begin, p, place in self._places
            if p.key in mains.get(begin, ())
        )
        return last_needed(self._last, chain(self._pointers, unfinished))


@dataclass(frozen=True, slots=True)
class Committing:
    """A transaction that was decided before a snapshot, and still lacked markers at it."""

    begin: int
    commit_sequence: int
    writes: tuple[PartitionWrites, ...]


@dataclass(slots=True)
class Unfinished:
    """A transaction that began before a snapshot, and was not finished at it."""

    begin: int
    state: State
    commit_sequence: int | None = None
    """Of the decision to commit or abort; None before there is one."""
    writes: tuple[PartitionWrites, ...] = ()
    """What its accepted branches wrote; while it is open, what its parts named. A partition may
    come several times."""
    placed: frozenset[TopicPartition] = frozenset()
    """Partitions in which it is placed if it commits, and gets no marker if it aborts."""
    places: Mapping[PartitionId, int] = field(default_factory=dict)
    """Where it has its place, or `GONE`."""
    handed: frozenset[TopicPartition] = frozenset()
    """Partitions in which the home of another journal places it, or refuses."""
    placed_ids: tuple[PartitionId, ...] = ()
    """The partitions in `placed`, with the ids of their topics."""


@dataclass(frozen=True, slots=True)
class FoundSnapshot:
    """A complete snapshot."""

    first: int
    """Journal offset of its first chunk, where a reader that goes on from it begins."""
    epoch: int
    """The epoch that was current at `first`, without a surprise so far."""
    incarnation: int
    committing: tuple[Committing, ...]
    """Ordered by commit sequence. Every other commit that was decided below `first` is finished."""
    unfinished: tuple[Unfinished, ...] = ()
    """Every transaction that began below `first` and was not finished, ordered by its BEGIN. None
    are told if `modes` is empty: nothing is placed by this journal partition, so nobody asks."""
    last_places: Mapping[PartitionId, int] = field(default_factory=dict)
    """Partition → its last place at `first`. A transaction that is placed above it lies behind
    `first`, or is unfinished. In a topic of another home: the end of what was handed over."""
    modes: tuple[SnapshotMode, ...] = ()
    """The modes of the topics whose home the journal partition is, if they were ever switched."""

    def epochs(self) -> EpochFilter:
        """Returns the filter that tells valid entries from void ones, from `first` on."""
        return EpochFilter(self.epoch, self.incarnation)


def begins_at(offset: int, entry: Entry) -> bool:
    """Returns whether the entry is the first chunk of a snapshot, at its predicted offset."""
    return isinstance(entry.record, Snapshot) and entry.record.first == offset


class SnapshotCollector:
    """Follows one snapshot from its first chunk to its last, if its owner lived to write it."""

    def __init__(self, offset: int, entry: Entry) -> None:
        """Starts before the first chunk, which `feed` takes too.

        Args:
            offset: of the first chunk, for which `begins_at` returned True.
            entry: the first chunk.
        """
        self.first = offset
        self.epochs = EpochFilter(entry.epoch, entry.incarnation)
        """Tells valid entries from void ones, as seen from the epoch that wrote this snapshot."""
        self.torn = False
        """True if its owner died, was surprised or gave it up before its end: it never counts."""
        self.complete = False

    def feed(self, offset: int, entry: Entry) -> Snapshot | None:
        """Takes the next entry, the first chunk too. Returns it if it is one of the chunks."""
        record = entry.record
        if not self.epochs.accept(offset, entry) or isinstance(record, Owner):
            self.torn = True
        elif begins_at(offset, entry) and offset != self.first:
            self.torn = True  # The owner gave it up and begins another.
        elif isinstance(record, Snapshot):
            self.complete = record.last
            return record
        return None


class _Told:
    """Collects what a snapshot says about transactions, modes and places."""

    def __init__(self) -> None:
        self._unfinished: dict[int, Unfinished] = {}
        self._places: dict[int, list[tuple[PartitionId, int | None]]] = {}
        self._last: dict[PartitionId, int] = {}
        self._modes: list[SnapshotMode] = []
        self._handed: dict[int, set[TopicPartition]] = {}
        self._adopted: set[int] = set()
        """Offsets of ADOPT records, whose transactions other journals decided."""

    def add(self, record: Snapshot) -> None:
        """Takes a chunk."""
        for row in record.transactions:
            # The lists of a large transaction are spread over several rows.
            found = self._unfinished.get(row.begin)
            if found is None:
                found = Unfinished(row.begin, row.state, row.commit_sequence)
                self._unfinished[row.begin] = found
            found.writes += row.writes
        for over in record.handed:
            self._handed.setdefault(over.begin, set()).update(key for key, _ in over.partitions)
        adopted = {row.offset for row in record.unplaced}
        self._adopted |= adopted
        for placed in record.places:
            known = self._places.setdefault(placed.begin, [])
            known += [(partition, place) for partition, _, place in placed.places]
        self._last.update(record.last_places)
        self._modes += record.modes

    def found(self, first: int, entry: Entry) -> FoundSnapshot:
        """Returns the snapshot, of which every chunk was added."""
        for begin, places in self._places.items():
            if begin in self._adopted:
                continue
            transaction = self._unfinished.get(begin)
            if transaction is None:
                raise CorruptRecordError(
                    f"the snapshot at {first} says where a transaction that began at {begin} is"
                    " placed, and does not list it"
                )
            transaction.placed = frozenset(partition.key for partition, _ in places)
            transaction.placed_ids = tuple(partition for partition, _ in places)
            transaction.places = {p: place for p, place in places if place is not None}
        for begin, keys in self._handed.items():
            self._unfinished[begin].handed = frozenset(keys)
        committing = [
            Committing(t.begin, t.commit_sequence, t.writes)
            for t in self._unfinished.values()
            if t.state is State.COMMITTING and t.commit_sequence is not None
        ]
        return FoundSnapshot(
            first,
            entry.epoch,
            entry.incarnation,
            tuple(sorted(committing, key=lambda c: c.commit_sequence)),
            tuple(t for _, t in sorted(self._unfinished.items()))
            if self._modes or self._handed
            else (),
            self._last,
            tuple(self._modes),
        )


class SnapshotScan:
    """Finds the snapshots among a journal partition's entries. Feed in order, from any offset."""

    def __init__(self, start: int) -> None:
        """Begins before the entry at a journal offset."""
        self.found: FoundSnapshot | None = None
        """The latest complete snapshot that is valid by what is believed; None before the first."""
        self._epochs = EpochFilter() if start == 0 else None
        self._collector: SnapshotCollector | None = None
        self._believed = True
        """Whether all chunks of the snapshot under way are valid by what is believed."""
        self._told = _Told()

    def feed(self, offset: int, entry: Entry) -> None:
        """Takes the next entry."""
        valid = False
        if self._epochs is not None:
            if entry.epoch > self._epochs.epoch:
                self._epochs = self.found = None
            else:
                valid = self._epochs.accept(offset, entry)
        chunk = self._collector.feed(offset, entry) if self._collector is not None else None
        if self._collector is not None and self._collector.torn:
            self._collector = None
        if self._collector is None and begins_at(offset, entry):
            self._collector = SnapshotCollector(offset, entry)
            self._believed, self._told = True, _Told()
            chunk = self._collector.feed(offset, entry)
        if chunk is not None:
            self._believed = self._believed and valid
            self._told.add(chunk)
            self._complete(entry)

    def _complete(self, entry: Entry) -> None:
        collector = self._collector
        if collector is None or not collector.complete:
            return
        self._collector = None
        if self._epochs is None or self._believed:
            self._epochs = collector.epochs
            self.found = self._told.found(collector.first, entry)


class EarlierSnapshots:
    """Finds complete snapshots before one that counts. Feed all entries up to it, from anywhere."""

    def __init__(self, epochs: EpochFilter) -> None:
        """Begins with none.

        Args:
            epochs: what is known of epochs behind the last entry that will be fed.
        """
        self._epochs = epochs
        self._replaced: dict[int, int] = {}
        """Epoch of an OWNER record → the one that it replaces."""
        self._complete: list[tuple[int, int]] = []
        """(first chunk, epoch)."""
        self._collector: SnapshotCollector | None = None

    def feed(self, offset: int, entry: Entry) -> None:
        """Takes the next entry."""
        if entry.incarnation != self._epochs.incarnation:
            return  # A bid for the empty partition that came second.
        if isinstance(entry.record, Owner):
            self._replaced[offset] = entry.record.replaces
        if begins_at(offset, entry):
            self._collector = SnapshotCollector(offset, entry)
        if self._collector is not None:
            self._collector.feed(offset, entry)
            if self._collector.complete:
                self._complete.append((self._collector.first, self._collector.epochs.epoch))
            if self._collector.complete or self._collector.torn:
                self._collector = None

    def counting(self) -> list[int]:
        """Returns where those begin that were written under the epoch that was current there."""
        # Backwards from there, each OWNER record that counts names the epoch before its own.
        epochs = [self._epochs.epoch]
        while epochs[-1] in self._replaced:
            epochs.append(self._replaced[epochs[-1]])
        current = {
            first: next((e for e in epochs if e <= first), None) for first, _ in self._complete
        }
        return [first for first, epoch in self._complete if epoch == current[first]]
