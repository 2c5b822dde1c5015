"""What the records of a journal partition made of it: the part of a shard that `replay` changes.

Nothing else changes the state that comes from the journal. `shard.py` decides on it.

Source: Transactional Messaging in Kafka, "Transaction coordinator" and "Transaction flow"; PIP-31,
"TC Startup".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from ...journal.acks import Ack, AddAcks, Subscribe
from ...journal.control import TopicPartition
from ...journal.errors import CorruptRecordError, TransactionStateError
from ...journal.modes import ModeChange, Phase
from ...journal.places import Adoption, PartitionId, Placed
from ...journal.records.fate import NO_EPOCH, EpochFilter
from ...journal.records.types import (
    Aborted,
    AbortReason,
    AddOffsets,
    AddPartitions,
    AddWrites,
    Begin,
    Bind,
    Claim,
    Committed,
    Entry,
    Forget,
    JournalRecord,
    Owner,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
    Snapshot,
)
from ...journal.state import State
from ...journal.txid import TxId
from .adopting import Adopted, Handed, HandedOver, HandedWrites
from .ages import Ages
from .claims import Claims
from .clocks import Clocks
from .committed_offsets import CommittedOffsets
from .decision import (
    ClearOffsets,
    Effect,
    EndSidecars,
    HandedFinished,
    HandOver,
    Instant,
    PlacesGiven,
    PublishMode,
    ShardConfig,
    WriteLateMarkers,
    WriteMarkers,
    WriteModeRecords,
    WriteOffsets,
)
from .fences import Fences
from .modes import SWITCHING, TopicMode, TopicModes
from .places import Places
from .placing import PlaceWrites
from .producers import Producers
from .queues import Queues
from .sidecars import placed_sidecars, places_of
from .staircases import Staircases
from .topic_homes import TopicHomes
from .transactions import TransactionMetadata, TransactionMetadataStore
from .waiting import WaitingCommits, WaitingQuestions
from .watermark import Watermark

PAST_EPOCHS_MAX: Final = 8
"""Number of earlier epochs whose records in `__transaction_offsets` a new owner clears.

A larger number makes a new owner clear more, and every snapshot chunk a little larger. A smaller
one leaves records of a run of owners that ended before they had cleared their predecessors'.
"""
_OPEN: Final = State.OPEN
_COMMITTING: Final = State.COMMITTING
_COMMITTED: Final = State.COMMITTED
# Looked up once, as in `transactions`.


class ShardState:
    """The transactions, producers and committed input offsets of one journal partition."""

    def __init__(self, partition: int, config: ShardConfig | None = None) -> None:
        """Starts empty, to be filled by `replay` from the journal's start, or by `resume`."""
        self.partition = partition
        self.config = config or ShardConfig()
        self._epochs = EpochFilter()
        self.owner: Owner | None = None
        self.past_epochs: list[int] = []
        """The latest `PAST_EPOCHS_MAX` epochs before this one, oldest first."""
        self.next_offset = 0
        self.snapshot_offset: int | None = None
        """Offset of the first chunk of the latest complete snapshot that was replayed."""
        self.transactions = TransactionMetadataStore()
        self.producers = Producers()
        self.offsets = CommittedOffsets()
        self._cleared: dict[str, None] = {}
        """Consumer groups that were forgotten by records which were replayed before it served."""
        self.claims = Claims()
        self.bindings: dict[str, str] = {}
        """Consumer group → the transaction group that commits its offsets."""
        self.modes = TopicModes()
        """Modes of the topics whose home this journal partition is."""
        self.places = Places()
        self.fences = Fences()
        self._pointing: set[int] = set()
        """BEGINs of decided, unfinished transactions with records in sidecars."""
        self.handed = HandedOver()
        """What is decided here, and handed over to homes of other journal partitions."""
        self.adopted = Adopted(partition, self.places, self.modes)
        """What is decided elsewhere, and placed here."""
        self.homes: TopicHomes | None = None
        """Who places in the topics of other homes; None: nothing is handed over. Volatile."""
        self.queues = Queues()
        """The subscriptions that are bound here, and their consumers."""
        self.staircases = Staircases()
        """What the pointers of finished transactions need of sidecars."""
        self.published: set[str] = set()
        """Topics of whose mode readers are told. Volatile."""
        self.watermark = Watermark()
        self.ages = Ages(
            self.config,
            self.producers,
            self.transactions,
            self.offsets,
            self.claims,
            self.bindings,
        )
        self._clocks = Clocks(self.config)
        self._to_abort: deque[tuple[int, AbortReason]] = deque()
        """BEGINs of transactions that are to be aborted, and why: fenced ones, doomed ones, and
        those of a producer that went away."""
        self._waiting = WaitingCommits()
        self._finishing = WaitingQuestions()
        self._unread: dict[int, list[AddWrites | PrepareCommit]] = {}
        """BEGIN of an unfinished transaction → its parts and decision with writes that are not
        decoded yet, and what comes behind them."""

    # ---- what the journal says ------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Offset of the current OWNER record; `NO_EPOCH` before the first."""
        return self._epochs.epoch

    @property
    def incarnation(self) -> int:
        """The journal partition's incarnation; 0 before its first OWNER record."""
        return self._epochs.incarnation or 0

    def entry(self, record: JournalRecord, ahead: int = 0) -> Entry:
        """Returns a record as an entry that is predicted `ahead` offsets behind the next one."""
        return Entry(self.epoch, self.incarnation, record, self.next_offset + ahead)

    @property
    def hw(self) -> int:
        """Transaction high watermark, computed from acknowledged records only: see `Watermark`."""
        return self.watermark.hw

    @property
    def undecided(self) -> int:
        """The oldest BEGIN of a transaction without a durable decision, else the acknowledged end.

        A decision in flight does not count: it may be lost, and another one be made.
        """
        end = self.watermark.end
        for transaction in self.transactions:
            decided = transaction.commit_sequence
            if decided is None or decided >= end:
                return min(transaction.begin, end)
        return end

    def replay(self, offset: int, entry: Entry) -> None:  # noqa: PLR0912
        """Applies a journal record, read from the log or just decided. Void ones change nothing."""
        self.next_offset = offset + 1
        if not self.watermark.serving:
            self.watermark.end = offset + 1
        record = entry.record
        if not self._epochs.accept(offset, entry):
            return
        match record:  # the most frequent first: loading does nothing but this
            case Begin():
                self._replay_begin(offset, record)
            case AddPartitions():
                self.transactions.add_produced_partitions(record.begin, record.partitions)
            case PrepareCommit():
                self._replay_commit(offset, record)
            case Committed() | Aborted():
                self._replay_finished(offset, record)
            case AddOffsets():
                self.transactions.add_offsets(record.begin, record.group, record.steps)
                self.offsets.hold(record.begin, record.group, record.steps)
                self.ages.use(record.group)
            case AddWrites():
                self._replay_part(record)
            case PrepareAbort():
                self._replay_abort(offset, record)
            case ProducerRecord():
                fenced = self.producers.replay(record, self.ages.hour)
                if self.watermark.serving:
                    self._to_abort.extend(fenced)
            case Claim():
                self._replay_claim(offset, record)
            case Owner():
                past = [] if record.replaces == NO_EPOCH else [record.replaces]
                self.past_epochs = [*self.past_epochs, *past][-PAST_EPOCHS_MAX:]
                self.owner = record
            case Bind():
                self.bindings.setdefault(record.group, record.transaction_group)
                self.ages.use(record.group)
            case Forget():
                self._replay_forget(offset, record)
            case Placed():
                self._replay_placed(offset, record)
            case ModeChange():
                self._replay_mode(offset, record)
            case Adoption():
                self._replay_adoption(offset, record)
            case Ack() | AddAcks() | Subscribe():
                self.queues.replay(offset, record)
            case Snapshot():
                self.fences.replay(record)
                if record.last:
                    # The last chunk is valid, which proves that the others are.
                    self.snapshot_offset = record.first

    def _replay_placed(self, offset: int, record: Placed) -> None:
        for begin, keys in self.places.gone_by(record).items():
            if not self._is_own(begin):
                self.adopted.replay_gone(begin, keys)
                continue
            # Before the places are told: that lets markers of later sequences go (R4).
            self.watermark.emit(offset, self._late_markers(begin, keys))
        for effect in self._ends_of_sidecars(self._given_by(record)):
            self.watermark.emit(offset, effect)
        self.adopted.replay_placed(self.places.replay_placed(record))
        self.watermark.emit(offset, PlacesGiven(record))

    def _given_by(self, record: Placed) -> dict[int, dict[PartitionId, int]]:
        """Returns BEGIN → partition → place, of the transactions with sidecars that a record
        places, by commit sequence. Ask before it is replayed: the first one counts (R6)."""
        if not self._pointing:
            return {}
        rows = (self.places.of(begin) for begin in self._pointing)
        covered = [row for row in rows if row is not None and row.sequence <= record.upto]
        return {
            row.begin: {
                p: record.ends[p] for p in row.ends if p in record.ends and p not in row.places
            }
            for row in sorted(covered, key=lambda row: row.sequence)
        }

    def _ends_of_sidecars(
        self, given: Mapping[int, Mapping[PartitionId, int]]
    ) -> Iterator[EndSidecars]:
        """Yields what ends transactions in the sidecars of partitions in which they have a place.

        Args:
            given: BEGIN → partition → its place.
        """
        for begin, places in given.items():
            transaction = self.transactions.get(begin)
            if transaction is not None and transaction.since:
                ends = places_of(transaction, places)
                if ends:
                    yield EndSidecars(transaction, ends)

    def _replay_adoption(self, offset: int, record: Adoption) -> None:
        placed = self.adopted.replay(offset, record)
        if placed:
            self.watermark.emit(offset, PlaceWrites(offset, offset, placed))

    def _is_own(self, begin: int) -> bool:
        """Returns whether what is placed was decided here, and not adopted."""
        return self.transactions.get(begin) is not None

    def _late_markers(self, begin: int, keys: tuple[TopicPartition, ...]) -> WriteLateMarkers:
        transaction = self.transactions.get(begin)
        assert transaction is not None, "what is to be placed is not finished"
        return WriteLateMarkers(transaction, keys)

    def _replay_begin(self, offset: int, record: Begin) -> None:
        transaction = TransactionMetadata(
            txid=TxId(self.partition, self.incarnation, offset),
            producer_id=record.producer_id,
            generation=record.generation,
            timeout_ms=record.timeout_ms,
            started_ms=record.started_ms,
        )
        self.transactions.new_transaction(transaction)
        self.transactions.add_produced_partitions(offset, record.partitions)
        self.producers.replay_begin(record, transaction, self.ages.hour)
        self.watermark.begun(offset)
        if self.watermark.serving:
            self._clocks.begin(transaction)

    def _replay_commit(self, offset: int, record: PrepareCommit) -> None:
        transaction = self._decide(record.begin, _COMMITTING, offset)
        self._read_or_keep(transaction, record)
        if record.sidecar_since:
            transaction.since = dict(record.sidecar_since)
            self._pointing.add(record.begin)
        for group, steps in transaction.offsets.items():
            self.offsets.commit(group, steps.values(), transaction.txid, offset)
            self.ages.use(group)
            if self.watermark.serving:
                moved = self.offsets.committed(group, steps)
                self.watermark.emit(offset, WriteOffsets(group, record.begin, moved))
        if record.placed:
            self._replay_placed_writes(offset, transaction, record)
        if record.handed:
            self._read_kept(record.begin)
        if record.handed or self.handed.watches:  # as in nearly no journal
            self._hand_over(offset, transaction, record.handed)
        if self.watermark.serving:
            self.watermark.emit(offset, WriteMarkers(transaction))

    def _hand_over(
        self,
        offset: int,
        transaction: TransactionMetadata,
        homes: tuple[tuple[TopicPartition, int], ...],
    ) -> None:
        """Applies what a decision says of other homes, and counts what it marks."""
        if homes:
            transaction.handed = dict(homes)
            transaction.placed |= transaction.handed.keys()
        handed = handed_by(transaction)
        self.handed.replay_decided(handed, marked_by(transaction))
        if homes:
            self.watermark.emit(offset, HandOver(handed))

    def _replay_placed_writes(
        self, offset: int, transaction: TransactionMetadata, record: PrepareCommit
    ) -> None:
        begin = transaction.begin
        self._read_kept(begin)
        transaction.placed = frozenset(record.placed)
        branches, partitions = transaction.branches, transaction.partitions
        ends: dict[PartitionId, int] = {}
        for main in placed_sidecars(transaction).values():
            # It may have records in the sidecar alone: none that its place must not lie below.
            ends[_id_of(transaction, main)] = 0
        for key in record.placed:
            if ranges := branches.get(key):
                last = ranges[0].last_offset
                if len(ranges) > 1:
                    last = max(r.last_offset for r in ranges)
                ends[_named((key[0], key[1], partitions[key].topic_id))] = last + 1
        self.places.replay_commit(begin, offset, ends)
        if ends:
            self.watermark.emit(offset, PlaceWrites(begin, offset, tuple(ends)))

    def _replay_mode(self, offset: int, record: ModeChange) -> None:
        self.modes.replay(offset, record)
        self.published.discard(record.topic)
        if record.phase in SWITCHING:
            mode = self.modes.of(record.topic, record.topic_id)
            self.watermark.emit(offset, _mode_records(record.topic, mode))
        else:
            self.watermark.emit(offset, PublishMode(record.topic))

    def _replay_part(self, record: AddWrites) -> None:
        transaction = self.transactions.get(record.begin)
        if transaction is None or transaction.state is not State.OPEN:
            raise TransactionStateError(f"a part of the transaction at {record.begin}: not open")
        if record.part != transaction.parts:
            raise TransactionStateError(f"part {record.part} follows {transaction.parts} parts")
        transaction.parts += 1
        self._read_or_keep(transaction, record)

    def _read_or_keep(
        self, transaction: TransactionMetadata, record: AddWrites | PrepareCommit
    ) -> None:
        kept = self._unread.get(record.begin)
        if kept is not None:
            kept.append(record)
        elif record.unread is None:
            self._replay_writes(transaction, record)
        else:
            self._unread[record.begin] = [record]

    def _replay_writes(
        self, transaction: TransactionMetadata, record: AddWrites | PrepareCommit
    ) -> None:
        if isinstance(record, PrepareCommit) and not transaction.parts:
            writes = record.writes
            partitions = [w.partition for w in writes]
            self.transactions.add_produced_partitions(record.begin, partitions)
            keys = [(p.topic, p.partition) for p in partitions]
            transaction.branches = dict(zip(keys, [w.branches for w in writes], strict=True))
        elif transaction.state is State.ABORTING:
            partitions = [w.partition for w in record.writes]
            self.transactions.add_produced_partitions(record.begin, partitions)
        else:
            self.transactions.add_writes(record.begin, record.writes)

    def read_decisions(self) -> None:
        """Decodes what branches wrote, which loading a journal lazily left unread.

        Raises:
            CorruptRecordError: what a transaction wrote does not decode.
        """
        for begin in list(self._unread):
            self._read_kept(begin)

    def _read_kept(self, begin: int) -> None:
        records = self._unread.pop(begin, [])
        transaction = self.transactions.get(begin)
        assert transaction is not None, "what is finished is not kept"
        try:
            records.reverse()
            while records:
                # Each is let go at once: decoded, a part takes six times as much as packed.
                self._replay_writes(transaction, records.pop())
        except (ValueError, IndexError) as error:
            where = begin if transaction.commit_sequence is None else transaction.commit_sequence
            raise CorruptRecordError(
                f"journal partition {self.partition} at offset {where}:"
                f" the journal record does not decode: {error!r}"
            ) from error

    def _replay_abort(self, offset: int, record: PrepareAbort) -> None:
        transaction = self._decide(record.begin, State.ABORTING, offset)
        transaction.reason = record.reason
        if self.modes.places_any or record.handed:
            # What its parts name is read now: later, these topics may have another mode. What is
            # handed over may be named by its parts alone.
            self._read_kept(record.begin)
            transaction.placed = frozenset(
                key
                for key in transaction.partitions
                if self.modes.is_placed(_id_of(transaction, key))
            )
        self.transactions.forget_writes(record.begin)
        if record.handed or self.handed.watches:
            self._hand_over(offset, transaction, record.handed)
        self.watermark.emit(offset, WriteMarkers(transaction))

    def _replay_claim(self, offset: int, record: Claim) -> None:
        self.claims.replay(offset, record)
        self.ages.use(record.group)
        # Kept in the state, and not only in `_to_abort`: if the abort is lost, the next owner,
        # which loads the journal, must refuse the commit too.
        for begin in sorted(self.offsets.holders(record.group, record.partitions)):
            transaction = self.transactions.get(begin)
            assert transaction is not None, "only undecided transactions hold offsets"
            transaction.doomed = AbortReason.CLAIMED
            if self.watermark.serving:
                self._to_abort.append((begin, AbortReason.CLAIMED))

    def _replay_forget(self, offset: int, record: Forget) -> None:
        touched = dict.fromkeys((*record.groups, *(group for group, _ in record.topics)))
        known = [group for group in touched if self.offsets.knows(group)]
        self.ages.replay(record)
        if not self.watermark.serving:
            self._cleared.update(dict.fromkeys(known))
        for group in known:
            self.watermark.emit(offset, ClearOffsets(group))
            if self.offsets.knows(group):
                left = self.offsets.committed(group)
                self.watermark.emit(offset, WriteOffsets(group, NO_EPOCH, left))

    def _replay_finished(self, offset: int, record: Committed | Aborted) -> None:
        if isinstance(record, Committed):
            self.transactions.update_status(record.begin, _COMMITTED, _COMMITTING)
            if record.pointers:
                self.staircases.replay(record.pointers)
        else:
            self.transactions.update_status(record.begin, State.ABORTED, State.ABORTING)
        self._unread.pop(record.begin, None)
        self._pointing.discard(record.begin)
        self.places.replay_finished(record.begin)
        if (handed := self.handed.replay_finished(record.begin)) is not None:
            self.places.replay_handed(handed.ends)
            self.watermark.emit(offset, HandedFinished(record.begin))
        self.watermark.finished(offset, record.begin)

    def _decide(self, begin: int, state: State, offset: int) -> TransactionMetadata:
        transaction = self.transactions.update_status(begin, state, _OPEN)
        transaction.commit_sequence = offset
        self.offsets.release(transaction)
        self.producers.replay_decided(transaction)
        self.queues.replay_decided(begin, committed=state is _COMMITTING)
        if self.watermark.serving:
            self._waiting.wake(begin)
            self._clocks.stop(begin)
        return transaction

    def resume(
        self,
        offset: int,
        epochs: EpochFilter,
        owner: Owner,
        past_epochs: Iterable[int],
        transactions: Iterable[TransactionMetadata],
    ) -> None:
        """Completes a shard that is restored from a snapshot.

        The caller has restored all but the transactions. Everything below `offset`
        counts as acknowledged.

        Args:
            offset: offset of the next record to replay, the snapshot's first chunk.
            epochs: the filter as it stands at `offset`.
            owner: the OWNER record of the epoch.
            past_epochs: the latest epochs before this one, oldest first.
            transactions: all unfinished transactions.
        """
        self._epochs, self.owner, self.past_epochs = epochs, owner, list(past_epochs)
        self.next_offset = self.watermark.end = offset
        handed: list[Handed] = []
        for transaction in sorted(transactions, key=lambda t: t.begin):
            self.transactions.restore(transaction)
            self.watermark.begun(transaction.begin)
            if transaction.handed:
                handed.append(handed_by(transaction))
            if transaction.since:
                self._pointing.add(transaction.begin)
            if transaction.state is State.OPEN:
                self.producers[transaction.producer_id].open[transaction.begin] = transaction
                self.offsets.restore_held(transaction)
        for each in sorted(handed, key=lambda h: h.sequence):
            self.handed.replay_decided(each, ())

    def follow(self) -> None:
        """Turns an owner's shard into one that follows the journal. All its records are durable.

        Drops the clocks, the waiting commits and everything else that only an owner needs.
        """
        self.acknowledge(self.next_offset - 1)
        self.watermark.serving = False
        self._clocks = Clocks(self.config)
        self._to_abort.clear()
        self._waiting.clear()
        self._finishing.clear()
        self.modes.forget_recorded()
        self.handed.forget_marks()
        self.homes = None
        self.queues.follow()
        self.published.clear()

    def acknowledge(self, offset: int) -> list[Effect]:
        """Notes that every record up to `offset` is durable.

        Returns:
            The effects that may be carried out now, in journal order.
        """
        return self.watermark.acknowledge(offset)

    def loaded(self, now: Instant) -> list[Effect]:
        """Starts serving: the journal is replayed to its end, under this coordinator's own epoch.

        Starts the clocks of open transactions. A producer has `reload_grace_ms` to come back.

        Returns:
            What earlier owners may have left undone: the removal of IOVs that the journal shows
            forgotten since its snapshot, each consumer group's IOV, then what ends decided
            transactions in their partitions, and the publishing of each topic's mode. Doing it
            again is harmless.
        """
        self.watermark.serving = True
        still_open = [t for t in self.transactions if t.state is State.OPEN]
        self._clocks.reload(still_open, now)
        self.queues.loaded(now)
        self._to_abort.extend(self.producers.fenced(still_open))
        self._to_abort.extend((t.begin, t.doomed) for t in still_open if t.doomed is not None)
        cleared = [ClearOffsets(g) for g in self._cleared if not self.offsets.knows(g)]
        self._cleared.clear()
        offsets = [
            WriteOffsets(group, NO_EPOCH, self.offsets.committed(group))
            for group in self.offsets.groups()
        ]
        final = [topic for topic, mode in self.modes.rows() if mode.phase not in SWITCHING]
        return [*cleared, *offsets, *self._ends(), *map(PublishMode, final)]

    def _ends(self) -> list[Effect]:
        """Returns what ends decided transactions in their partitions, by journal offset.

        In this order no marker is carried out while the place of an earlier commit in its partition
        is not known to be missing (R4); nor is a mode record.
        """
        found: list[tuple[int, Effect]] = []
        for row in self.places.rows():
            left = tuple(p for p in row.ends if p not in row.places)
            if left:
                found.append((row.sequence, PlaceWrites(row.begin, row.sequence, left)))
            if (gone := self.places.gone(row.begin)) and self._is_own(row.begin):
                found.append((row.sequence, self._late_markers(row.begin, gone)))
            for effect in self._ends_of_sidecars({row.begin: row.places}):
                found.append((row.sequence, effect))
        for transaction in self.transactions:
            if transaction.commit_sequence is not None:
                found.append((transaction.commit_sequence, WriteMarkers(transaction)))
        found += [(handed.sequence, HandOver(handed)) for handed in self.handed.all()]
        for topic, mode in self.modes.under_way():
            found.append((mode.offset, _mode_records(topic, mode)))
        return [effect for _, effect in sorted(found, key=lambda each: each[0])]


_named: Final[Callable[[tuple[str, int, str]], PartitionId]] = partial(tuple.__new__, PartitionId)
"""Makes a `PartitionId` of its fields, in a third of the time that its class takes."""


def _id_of(transaction: TransactionMetadata, key: TopicPartition) -> PartitionId:
    return transaction.partitions[key].identity


def handed_by(transaction: TransactionMetadata) -> Handed:
    """Returns what of a decided transaction is handed over; it may be nothing."""
    sequence = transaction.commit_sequence
    assert sequence is not None, "it is decided"
    return Handed(
        transaction.txid,
        sequence,
        transaction.state.commits,
        tuple(
            HandedWrites(_id_of(transaction, key), transaction.branches.get(key, ()), home)
            for key, home in transaction.handed.items()
        ),
    )


def marked_by(transaction: TransactionMetadata) -> list[TopicPartition]:
    """Returns the partitions in which a decided transaction is marked."""
    return [key for key in transaction.partitions if key not in transaction.placed]


def _mode_records(topic: str, mode: TopicMode) -> WriteModeRecords:
    places = mode.phase is Phase.TO_METADATA
    return WriteModeRecords(topic, mode.topic_id, mode.offset, places, mode.with_records)
