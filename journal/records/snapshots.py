"""Where a journal can be read from without its past: at a snapshot that counts. Pure.

A reader that begins in the middle must know which epoch is current there, for void records of a
replaced owner look like any other. A snapshot that counts says so: its chunks are valid, so their
epoch was current and unsurprised at the first of them. And it lists what was unfinished then, so
of everything decided below it, all that is not listed is finished.

The checkpoint names a snapshot that counts. Where the checkpoint is lost, the first snapshot that
is met may be void; owners trim only below one that counts, so such a one, B, follows, and two
rules lead to it whatever void snapshot A was believed before (the same as in a coordinator's
replica):

- an entry of a higher epoch than the current one proves that what was believed is void: each
  epoch was won before anybody wrote under it;
- a complete snapshot that is valid by what is believed replaces it.

Once everything was fed up to an end that was asked for after the start, `found` counts.

Source: Transactional Messaging in Kafka, "Transaction coordinator" (a checkpoint of its state).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..state import State
from .fate import EpochFilter
from .types import Entry, Owner, PartitionWrites, Snapshot


@dataclass(frozen=True, slots=True)
class Committing:
    """A transaction that was decided before a snapshot, and whose markers were not all written."""

    begin: int
    commit_sequence: int
    writes: tuple[PartitionWrites, ...]


@dataclass(frozen=True, slots=True)
class FoundSnapshot:
    """A complete snapshot."""

    first: int
    """Journal offset of its first chunk: whoever reads on begins here."""
    epoch: int
    """Current and unsurprised at `first`."""
    incarnation: int
    committing: tuple[Committing, ...]
    """By commit sequence. Everything else decided to commit below `first` was finished."""

    def epochs(self) -> EpochFilter:
        """What tells valid entries from `first` on."""
        return EpochFilter(self.epoch, self.incarnation)


def begins_at(offset: int, entry: Entry) -> bool:
    """Whether this is the first chunk of a snapshot, where its writer predicted it."""
    return isinstance(entry.record, Snapshot) and entry.record.first == offset


class SnapshotCollector:
    """One snapshot on its way: from its first chunk to its last, if its owner lived to write it."""

    def __init__(self, offset: int, entry: Entry) -> None:
        """Nothing is collected before `feed`, which takes the first chunk too.

        Args:
            offset: of the first chunk, as `begins_at` knows it.
            entry: the first chunk.
        """
        self.first = offset
        self.epochs = EpochFilter(entry.epoch, entry.incarnation)
        """What tells valid entries of its own line from void ones."""
        self.torn = False
        """Its owner died, lost its place or gave it up before the last chunk: it never counts."""
        self.complete = False

    def feed(self, offset: int, entry: Entry) -> Snapshot | None:
        """Take the next entry, the first chunk too; returns it if it is a chunk of this one."""
        record = entry.record
        if not self.epochs.accept(offset, entry) or isinstance(record, Owner):
            self.torn = True
        elif begins_at(offset, entry) and offset != self.first:
            self.torn = True  # Its owner gave it up and begins another.
        elif isinstance(record, Snapshot):
            self.complete = record.last
            return record
        return None


class _Unfinished:
    """What a snapshot says of transactions that are committing."""

    def __init__(self) -> None:
        self._committing: dict[int, Committing] = {}

    def add(self, record: Snapshot) -> None:
        for row in record.transactions:
            if row.state is not State.COMMITTING or row.commit_sequence is None:
                continue
            # A large one's lists are spread over several rows.
            before = self._committing.get(row.begin)
            writes = (*before.writes, *row.writes) if before is not None else row.writes
            self._committing[row.begin] = Committing(row.begin, row.commit_sequence, writes)

    def by_commit_sequence(self) -> tuple[Committing, ...]:
        return tuple(sorted(self._committing.values(), key=lambda c: c.commit_sequence))


class SnapshotScan:
    """Finds the snapshots among a journal partition's entries. Feed in order, from anywhere."""

    def __init__(self) -> None:
        self.found: FoundSnapshot | None = None
        """The latest complete snapshot that is valid by what is believed so far."""
        self._epochs: EpochFilter | None = None
        self._collector: SnapshotCollector | None = None
        self._believed = True
        """Whether all chunks of the one on its way are valid by what is believed."""
        self._unfinished = _Unfinished()

    def feed(self, offset: int, entry: Entry) -> None:
        """Take the next entry."""
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
