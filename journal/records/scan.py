"""Collects every transaction that a journal partition speaks of, from a given offset on.

Feed a `JournalScan` the entries in order; void ones of replaced owners change nothing. A journal
that was trimmed is read from a snapshot that counts, so nothing is known of the decisions below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..control import TopicPartition
from ..modes import ModeChange, Phase
from ..places import AdoptedWrites, Adoption, PartitionId, Placed, Unplaced
from ..position import Journal, Position
from ..sidecar import main_partition
from ..state import VALID_PREVIOUS, State
from ..txid import TxId
from .fate import EpochFilter
from .types import (
    Aborted,
    AbortReason,
    AddOffsets,
    AddPartitions,
    AddWrites,
    Begin,
    Committed,
    Entry,
    Forget,
    OffsetStep,
    Owner,
    PartitionWrites,
    PointerStep,
    PrepareAbort,
    PrepareCommit,
    Snapshot,
    joined,
)


@dataclass(slots=True, kw_only=True)
class SeenTransaction:
    """One transaction as the journal shows it."""

    txid: TxId
    state: State = State.OPEN
    producer_id: str = ""
    started_ms: int = 0
    timeout_ms: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)
    """Every partition that gets a marker, but for those in `placed`."""
    offsets: list[tuple[str, OffsetStep]] = field(default_factory=list)
    """(consumer group, step)."""
    commit_sequence: int | None = None
    """Journal offset of the decision, to commit or to abort."""
    decided_ms: int | None = None
    decided_in: int | None = None
    """Epoch of the coordinator that decided."""
    finished_in: int | None = None
    """Epoch of the coordinator that wrote the last marker."""
    reason: AbortReason | None = None
    writes: tuple[PartitionWrites, ...] = ()
    """What accepted branches wrote; while it is open, what was added so far. A partition may come
    several times before the decision."""
    gone: tuple[TopicPartition, ...] = ()
    """Partitions that were deleted before they took their marker."""
    placed: frozenset[TopicPartition] = frozenset()
    """Partitions in which its commit is placed, or its abort gets no marker; known once it is
    decided. Of an abort those whose topic's name was in metadata mode then."""
    handed: frozenset[TopicPartition] = frozenset()
    """Partitions in which the home of another journal places it, or refuses: then it gets a
    marker. Known once it is decided."""
    places: dict[PartitionId, int | None] = field(default_factory=dict)
    """Where its commit is placed and has records that count → the place, `GONE`, or None before
    there is one."""
    since: dict[TopicPartition, int] = field(default_factory=dict)
    """See `PrepareCommit.sidecar_since`."""
    pointers: tuple[PointerStep, ...] = ()
    """See `Committed.pointers`."""

    @property
    def outlived_coordinator(self) -> bool:
        """Whether one coordinator decided it and a later one finished it."""
        return self.finished_in is not None and self.finished_in != self.decided_in


@dataclass(slots=True)
class SeenAdoption:
    """A transaction of another journal, as the home that adopted it shows it."""

    home: Journal
    offset: int
    """Offset of its ADOPT record: the home orders it by that."""
    txid: TxId
    sequence: int
    """Its commit sequence in its own journal."""
    committed: bool
    places: dict[PartitionId, int | None] = field(default_factory=dict)
    """Where the home places its commit → the place, `GONE`, or None before there is one."""


@dataclass(frozen=True, slots=True)
class JournalPart:
    """What a scan found in one journal partition."""

    partition: int
    first: int
    """Offset at which reading began; nothing is known of decisions below it."""
    transactions: Mapping[int, SeenTransaction]
    """The transactions, by offset of their BEGIN."""
    offsets: Mapping[str, Mapping[TopicPartition, Position]] = field(default_factory=dict)
    """Consumer group → its IOV at `first`."""
    forgotten: Sequence[tuple[int, Forget]] = ()
    """FORGET records that end offsets of consumer groups, each with its offset."""
    adopted: Mapping[int, SeenAdoption] = field(default_factory=dict)
    """Transactions of other journals that this one adopted, as a home, by offset of ADOPT."""


class JournalScan:
    """Collects the transactions of one journal partition. Feed entries in order."""

    def __init__(self, partition: int, epochs: EpochFilter, *, at_snapshot: bool = False) -> None:
        """Starts without any transaction.

        Args:
            partition: number of the journal partition.
            epochs: as they stand at the first entry.
            at_snapshot: the first entry is the first chunk of a snapshot that counts.
        """
        self.transactions: dict[int, SeenTransaction] = {}
        """Every transaction, by offset of its BEGIN."""
        self.unfinished: dict[int, SeenTransaction] = {}
        """Transactions that are open, or decided but without their last marker."""
        self.owners: list[tuple[int, Owner]] = []
        """Valid OWNER records in order, each with its offset, which is its epoch."""
        self.offsets: dict[str, dict[TopicPartition, Position]] = {}
        """Consumer group → its IOV where reading began."""
        self.forgotten: list[tuple[int, Forget]] = []
        """Valid FORGET records that end offsets of consumer groups, each with its offset."""
        self.adopted: dict[int, SeenAdoption] = {}
        """What was adopted, by offset of its ADOPT record."""
        self.void_entries = 0
        """Number of entries that an owner appended after another one had replaced it."""
        self._partition = partition
        self._epochs = epochs
        self._loading = at_snapshot
        self._unplaced: Unplaced[SeenTransaction | SeenAdoption] = Unplaced()
        self._placing: set[str] = set()
        """Topics in metadata mode."""
        self._listed_places: dict[int, list[tuple[PartitionId, int, int | None]]] = {}
        """What the chunks of a snapshot say so far: offset of BEGIN, or of ADOPT → rows of
        `SnapshotPlaces`."""
        self._listed_handed: dict[int, set[TopicPartition]] = {}
        self._listed_since: dict[int, dict[TopicPartition, int]] = {}
        """The same of what is handed over."""
        self._between: list[tuple[int, Entry]] = []
        """Entries between the chunks of a snapshot, with their offsets.

        They wait for the last chunk: they are about transactions that a later chunk may name.
        """

    def feed(self, offset: int, entry: Entry) -> list[SeenTransaction]:
        """Takes the next entry. Returns the transactions that are decided by it."""
        record = entry.record
        if not self._epochs.accept(offset, entry):
            is_late = entry.epoch < self._epochs.epoch and not isinstance(record, Owner)
            self.void_entries += is_late
            return []
        if self._loading:
            if not isinstance(record, Snapshot):
                self._between.append((offset, entry))
                return []
            self._from_snapshot(entry.incarnation, record)
            if not record.last:
                return []
            self._loading = False
            self._loaded()
            between, self._between = self._between, []
            return [seen for o, e in between if (seen := self._take(o, e)) is not None]
        decided = self._take(offset, entry)
        return [] if decided is None else [decided]

    def _take(self, offset: int, entry: Entry) -> SeenTransaction | None:
        record = entry.record
        match record:
            case Begin():
                self.transactions[offset] = self.unfinished[offset] = SeenTransaction(
                    txid=TxId(self._partition, entry.incarnation, offset),
                    producer_id=record.producer_id,
                    started_ms=record.started_ms,
                    timeout_ms=record.timeout_ms,
                    partitions={p.key for p in record.partitions},
                )
            case AddPartitions() | AddOffsets() | AddWrites():
                self._add(record)
            case PrepareCommit() | PrepareAbort():
                return self._decide(offset, entry.epoch, record)
            case Committed() | Aborted():
                self._finish(entry.epoch, record)
            case Placed():
                for partition, place, waiting in self._unplaced.cover(record):
                    waiting.what.places[partition] = place
            case Adoption():
                home, told = (self._partition, entry.incarnation), record
                seen = SeenAdoption(home, offset, told.txid, told.sequence, told.committed)
                self._adopt(seen, record.writes)
                for partition in seen.places:
                    self._unplaced.add(partition, offset, seen)
            case ModeChange():
                self._turn(record.topic, record.phase)
            case Owner():
                self.owners.append((offset, record))
            case Forget() if record.groups or record.topics:
                self.forgotten.append((offset, record))
        return None

    def _add(self, record: AddPartitions | AddOffsets | AddWrites) -> None:
        seen = self.unfinished.get(record.begin)
        if seen is None or seen.state is not State.OPEN:
            return
        if isinstance(record, AddPartitions):
            seen.partitions.update(p.key for p in record.partitions)
        elif isinstance(record, AddWrites):
            seen.partitions.update(w.partition.key for w in record.writes)
            seen.writes += record.writes
        else:
            seen.offsets += [(record.group, step) for step in record.steps]

    def _decide(
        self, offset: int, epoch: int, record: PrepareCommit | PrepareAbort
    ) -> SeenTransaction | None:
        seen = self.unfinished.get(record.begin)
        commits = isinstance(record, PrepareCommit)
        state = State.COMMITTING if commits else State.ABORTING
        if seen is None or seen.state not in VALID_PREVIOUS[state]:
            return None
        seen.state, seen.decided_in = state, epoch
        seen.commit_sequence, seen.decided_ms = offset, record.decided_ms
        seen.handed = frozenset(key for key, _ in record.handed)
        if isinstance(record, PrepareCommit):
            seen.writes = joined((*seen.writes, *record.writes)) if seen.writes else record.writes
            seen.partitions.update(w.partition.key for w in record.writes)
            seen.since = dict(record.sidecar_since)
            self._place(seen, offset, record)
        else:
            seen.writes = ()
            seen.reason = record.reason
            seen.placed = self._in_metadata_mode(seen)
        return seen

    def _place(self, seen: SeenTransaction, offset: int, record: PrepareCommit) -> None:
        seen.placed = frozenset(record.placed)
        mains = set(map(main_partition, seen.since))
        for written in seen.writes:
            named = written.partition
            if named.key in seen.placed and (written.branches or named.key in mains):
                partition = named.identity
                seen.places[partition] = None
                self._unplaced.add(partition, offset, seen)

    def _adopt(self, adopted: SeenAdoption, writes: Iterable[AdoptedWrites]) -> None:
        # A snapshot may spread a large one over several rows.
        seen = self.adopted.setdefault(adopted.offset, adopted)
        for each in writes:
            if each.placed and each.branches:
                seen.places[each.partition] = None

    def _turn(self, topic: str, phase: Phase) -> None:
        if phase is Phase.METADATA:
            self._placing.add(topic)
        else:
            self._placing.discard(topic)

    def _in_metadata_mode(self, seen: SeenTransaction) -> frozenset[TopicPartition]:
        return frozenset(key for key in seen.partitions if key[0] in self._placing)

    def _finish(self, epoch: int, record: Committed | Aborted) -> None:
        seen = self.unfinished.get(record.begin)
        state = State.COMMITTED if isinstance(record, Committed) else State.ABORTED
        if seen is not None and seen.state in VALID_PREVIOUS[state]:
            seen.state, seen.gone, seen.finished_in = state, record.gone, epoch
            if isinstance(record, Committed):
                seen.pointers = record.pointers
            del self.unfinished[record.begin]

    def _from_snapshot(self, incarnation: int, record: Snapshot) -> None:
        for group in record.groups:
            known = self.offsets.setdefault(group.group, {})
            known.update({(topic, number): at for topic, number, at in group.offsets})
        for row in record.transactions:
            seen = self.transactions.get(row.begin)
            if seen is None:
                seen = SeenTransaction(
                    txid=TxId(self._partition, incarnation, row.begin),
                    state=row.state,
                    producer_id=row.producer_id,
                    started_ms=row.started_ms,
                    timeout_ms=row.timeout_ms,
                    commit_sequence=row.commit_sequence,
                    reason=row.reason,
                )
                self.transactions[row.begin] = self.unfinished[row.begin] = seen
            # The lists of a large transaction are spread over several rows.
            seen.partitions.update(p.key for p in row.partitions)
            seen.partitions.update(w.partition.key for w in row.writes)
            seen.writes += row.writes
            seen.offsets += [(s.group, step) for s in row.steps for step in s.steps]
        for over in record.handed:
            # The rows of its transaction may come in a later chunk.
            keys = self._listed_handed.setdefault(over.begin, set())
            keys.update(key for key, _ in over.partitions)
        for told in record.sidecar_since:
            self._listed_since.setdefault(told.begin, {}).update(told.partitions)
        for mode in record.modes:
            self._turn(mode.topic, mode.phase)
        for each in record.unplaced:
            home = self._partition, incarnation
            adopted = SeenAdoption(home, each.offset, each.txid, each.sequence, True)
            self._adopt(adopted, each.writes)
        for placed in record.places:
            self._listed_places.setdefault(placed.begin, []).extend(placed.places)

    def _loaded(self) -> None:
        """Puts together what the chunks of the snapshot say."""
        listed, self._listed_places = self._listed_places, {}
        for begin, keys in self._listed_handed.items():
            self.unfinished[begin].handed = frozenset(keys)
        for begin, since in self._listed_since.items():
            self.unfinished[begin].since = since
        waiting: list[tuple[int, PartitionId, SeenTransaction | SeenAdoption]] = []
        for begin, seen in self.unfinished.items():
            if seen.state.commits:
                seen.writes = joined(seen.writes)
            elif seen.commit_sequence is not None:
                seen.placed = self._in_metadata_mode(seen)
            mains = set(map(main_partition, seen.since))
            for partition, end, place in listed.get(begin, ()):
                seen.placed |= {partition.key}
                is_due = end or partition.key in mains
                if is_due:
                    seen.places[partition] = place
                if is_due and place is None:
                    waiting.append((seen.commit_sequence or 0, partition, seen))
        for offset, adopted in self.adopted.items():
            adopted.places |= {p: place for p, _, place in listed.get(offset, ())}
            waiting += [(offset, p, adopted) for p, at in adopted.places.items() if at is None]
        for sequence, partition, what in sorted(waiting, key=lambda each: each[0]):
            self._unplaced.add(partition, sequence, what)
