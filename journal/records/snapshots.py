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

Source: seed 001, "Transaction coordinator" (a checkpoint of its state).
"""

from __future__ import annotations

from dataclasses import dataclass

from .fate import EpochFilter
from .records import Entry, Owner, PartitionWrites, Snapshot
from .state import State


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


class _Chunks:
    """A snapshot on its way."""

    def __init__(self, first: int, entry: Entry) -> None:
        self.first = first
        self.epoch, self.incarnation = entry.epoch, entry.incarnation
        self.epochs = EpochFilter(entry.epoch, entry.incarnation)
        self.believed = True
        self._committing: dict[int, Committing] = {}

    def add(self, record: Snapshot) -> None:
        for row in record.transactions:
            if row.state is not State.COMMITTING or row.commit_sequence is None:
                continue
            # A large one's lists are spread over several rows.
            before = self._committing.get(row.begin)
            writes = (*before.writes, *row.writes) if before is not None else row.writes
            self._committing[row.begin] = Committing(row.begin, row.commit_sequence, writes)

    def found(self) -> FoundSnapshot:
        committing = sorted(self._committing.values(), key=lambda c: c.commit_sequence)
        return FoundSnapshot(self.first, self.epoch, self.incarnation, tuple(committing))


class SnapshotScan:
    """Finds the snapshots among a journal partition's entries. Feed in order, from anywhere."""

    def __init__(self) -> None:
        self.found: FoundSnapshot | None = None
        """The latest complete snapshot that is valid by what is believed so far."""
        self._epochs: EpochFilter | None = None
        self._chunks: _Chunks | None = None

    @staticmethod
    def begins_at(offset: int, entry: Entry) -> bool:
        """Whether this is the first chunk of a snapshot, where its writer predicted it."""
        return isinstance(entry.record, Snapshot) and entry.record.first == offset

    def feed(self, offset: int, entry: Entry) -> None:
        """Take the next entry."""
        valid = False
        if self._epochs is not None:
            if entry.epoch > self._epochs.epoch:
                self._epochs = self.found = None
            else:
                valid = self._epochs.accept(offset, entry)
        chunks = self._chunks
        begins = self.begins_at(offset, entry)
        if chunks is not None:
            accepted = chunks.epochs.accept(offset, entry)
            if not accepted or isinstance(entry.record, Owner) or begins:
                chunks = None  # its owner died or lost its place, or gave it up for another
        if chunks is None and begins:
            chunks = _Chunks(offset, entry)
            chunks.epochs.accept(offset, entry)
        self._chunks = chunks
        if chunks is not None and isinstance(entry.record, Snapshot):
            self._chunk(chunks, entry.record, valid)

    def _chunk(self, chunks: _Chunks, record: Snapshot, valid: bool) -> None:
        chunks.believed = chunks.believed and valid
        chunks.add(record)
        if record.last:
            self._chunks = None
            if self._epochs is None or chunks.believed:
                self.found, self._epochs = chunks.found(), chunks.epochs
