"""Finds where a journal can be read without its past: at a snapshot that counts. Pure.

A reader that begins in the middle must know which epoch is current there, because the void records
of a replaced owner look like any other. A snapshot that counts tells it: its chunks are valid, so
their epoch was current and without a surprise at the first of them. It also lists what was
unfinished then, so every transaction that was decided below it and is not listed is finished.

The checkpoint names a snapshot that counts. If the checkpoint is lost, the first snapshot that the
reader meets, A, may be void. Owners trim only below a snapshot that counts, so one that counts, B,
follows. Two rules lead to B, whatever void snapshot A was believed before (the coordinator's
replica uses the same rules):

- an entry of a higher epoch than the current one proves that what was believed is void: each epoch
  was won before anything was written under it;
- a complete snapshot that is valid by what is believed replaces it.

`found` counts once every entry was fed up to an end of the journal that was asked for after the
scan started.

Source: Transactional Messaging in Kafka, "Transaction coordinator" (a checkpoint of its state).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..state import State
from .fate import EpochFilter
from .types import Entry, Owner, PartitionWrites, Snapshot


@dataclass(frozen=True, slots=True)
class Committing:
    """A transaction that was decided before a snapshot, and still lacked markers at it."""

    begin: int
    commit_sequence: int
    writes: tuple[PartitionWrites, ...]


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


class _Unfinished:
    """Collects what a snapshot says about transactions that are committing."""

    def __init__(self) -> None:
        self._committing: dict[int, Committing] = {}

    def add(self, record: Snapshot) -> None:
        for row in record.transactions:
            if row.state is not State.COMMITTING or row.commit_sequence is None:
                continue
            # The lists of a large transaction are spread over several rows.
            before = self._committing.get(row.begin)
            writes = (*before.writes, *row.writes) if before is not None else row.writes
            self._committing[row.begin] = Committing(row.begin, row.commit_sequence, writes)

    def by_commit_sequence(self) -> tuple[Committing, ...]:
        return tuple(sorted(self._committing.values(), key=lambda c: c.commit_sequence))


class SnapshotScan:
    """Finds the snapshots among a journal partition's entries. Feed in order, from any offset."""

    def __init__(self) -> None:
        self.found: FoundSnapshot | None = None
        """The latest complete snapshot that is valid by what is believed; None before the first."""
        self._epochs: EpochFilter | None = None
        self._collector: SnapshotCollector | None = None
        self._believed = True
        """Whether all chunks of the snapshot under way are valid by what is believed."""
        self._unfinished = _Unfinished()

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
            self._believed, self._unfinished = True, _Unfinished()
            chunk = self._collector.feed(offset, entry)
        if chunk is not None:
            self._believed = self._believed and valid
            self._unfinished.add(chunk)
            self._complete(entry)

    def _complete(self, entry: Entry) -> None:
        collector = self._collector
        if collector is None or not collector.complete:
            return
        self._collector = None
        if self._epochs is None or self._believed:
            self._epochs = collector.epochs
            committing = self._unfinished.by_commit_sequence()
            self.found = FoundSnapshot(collector.first, entry.epoch, entry.incarnation, committing)
