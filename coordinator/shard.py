"""Transaction coordinator state machine for one journal partition.

`handle` decides, `replay` applies; nothing else changes what the journal says. No I/O, clock or
randomness: the caller supplies them.

How the caller joins it to a journal (`runtime.py`), and why that is sound:

1. `handle(command)` returns the records that the command needs, at most one of them a decision,
   and its reply. It reads the state and changes none of it.
2. The caller replays the records at once, at the offsets they will get: `next_offset` and on. So
   the next command is decided on what this one did, and a TxId is a predicted offset.
3. It appends the records, and releases the reply when every append up to them was acknowledged
   at its predicted offset. Offsets are contiguous, so an acknowledgement at the predicted offset
   proves that nobody else wrote in between. At the first surprise the whole shard is thrown away.
4. `acknowledge(offset)` then returns what may be done now that the record is durable (markers,
   offsets), and moves the high watermark. Both look at acknowledged records alone: a marker
   written for a decision whose append is lost, or a HW computed from one, would be believed by
   consumers for ever.

Atomicity of a command: it is one record, or every prefix of its records is a safe state. The one
command of several is a fencing `Connect`: PRODUCER first, then an abort for each transaction of
the fenced generation. Whoever loads a journal that ends in between finds transactions of a fenced
generation and goes on aborting them (`loaded`).

Volatile state (sessions attached, deadlines, commits that wait) is lost with the process. Losing
it delays an abort or makes a client ask again; it decides nothing.

Source: seed 001, "Transaction coordinator" and "Transaction flow"; seed 000, "TC Request
Processing".
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..journal.control import BranchRange, TopicPartition
from ..journal.errors import (
    DoubleStartError,
    LogtxError,
    NotSupportedError,
    OffsetsConflictError,
    ProducerFencedError,
    RequestTooLargeError,
    SessionClosedError,
    TransactionAbortedError,
    TransactionCommittedError,
    UnknownTopicError,
    UnknownTransactionError,
)
from ..journal.fate import NO_EPOCH, EpochFilter
from ..journal.records import (
    Aborted,
    AbortReason,
    AddOffsets,
    AddPartitions,
    Begin,
    Bind,
    Committed,
    DataPartition,
    Entry,
    JournalRecord,
    Owner,
    PartitionWrites,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
)
from ..journal.state import State
from ..journal.txid import TxId
from . import commands as c
from .clocks import Clocks
from .decision import (
    Decision,
    Effect,
    Instant,
    Ref,
    ShardConfig,
    TopicFacts,
    WriteMarkers,
    WriteOffsets,
)
from .metadata import Producer, Transaction, TransactionMetadataStore, merge_steps
from .offsets import CommittedOffsets, Verdict

BRANCH_MARKER_BYTES: Final = 40
"""Upper bound of what one branch adds to a marker."""
MARKER_FIXED_BYTES: Final = 1536
"""Upper bound of a marker without its branches: the partition list takes up to 1 KiB."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A commit whose input offsets continue those of an earlier, undecided transaction."""

    command: c.End
    ref: Ref


class Shard:
    """One journal partition: its transactions, producers and committed input offsets."""

    def __init__(self, partition: int, config: ShardConfig | None = None) -> None:
        """An empty shard, to be filled by `replay` from the journal's start."""
        self.partition = partition
        self.config = config or ShardConfig()
        self._epochs = EpochFilter()
        self.owner: Owner | None = None
        self.past_epochs: list[int] = []
        """Epochs before this one, oldest first: their offsets records are cleared."""
        self.next_offset = 0
        self.transactions = TransactionMetadataStore()
        self.producers: dict[str, Producer] = {}
        self.offsets = CommittedOffsets()
        self.bindings: dict[str, str] = {}
        self.topics: dict[str, TopicFacts] = {}
        self._acknowledged_end = 0
        self._effects: deque[tuple[int, int, bool, Effect | None]] = deque()
        self._unfinished_heap: list[int] = []
        self._finished: set[int] = set()
        self._clocks = Clocks(self.config)
        self._to_abort: deque[tuple[int, AbortReason]] = deque()
        self._waiting: dict[int, _Waiting] = {}
        self._wake: set[str] = set()

    # ---- what the journal says -------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Offset of the OWNER record that the partition is served under; `NO_EPOCH` before."""
        return self._epochs.epoch

    @property
    def incarnation(self) -> int:
        """Of the journal partition; 0 before its first OWNER record."""
        return self._epochs.incarnation or 0

    def entry(self, record: JournalRecord, ahead: int = 0) -> Entry:
        """A record as it is to be appended, `ahead` records behind the next."""
        return Entry(self.epoch, self.incarnation, record, self.next_offset + ahead)

    @property
    def hw(self) -> int:
        """Transaction high watermark: the oldest unfinished BEGIN, else the acknowledged end.

        From acknowledged records only: a HW that counted a COMMITTED still in flight would be
        above a BEGIN if that append were lost, and consumers would drop its data.
        """
        while self._unfinished_heap and self._unfinished_heap[0] in self._finished:
            self._finished.discard(heapq.heappop(self._unfinished_heap))
        if self._unfinished_heap:
            return min(self._unfinished_heap[0], self._acknowledged_end)
        return self._acknowledged_end

    def replay(self, offset: int, entry: Entry) -> None:
        """Apply a journal record, from the log or just decided; void ones change nothing."""
        self.next_offset = offset + 1
        record, former = entry.record, self.epoch
        if not self._epochs.accept(offset, entry):
            return
        begin, finished = offset, False
        effects: tuple[Effect, ...] = ()
        match record:
            case Owner():
                self.past_epochs += [former] if former != NO_EPOCH else []
                self.owner = record
            case ProducerRecord():
                self._replay_producer(record)
            case Begin():
                self._replay_begin(offset, record)
            case AddPartitions():
                self.transactions.add_produced_partitions(record.begin, record.partitions)
            case AddOffsets():
                self.transactions.add_offsets(record.begin, record.group, record.steps)
                self.offsets.hold(record.begin, record.group, record.steps)
            case PrepareCommit():
                effects = self._replay_commit(offset, record)
            case PrepareAbort():
                effects = self._replay_abort(offset, record)
            case Committed() | Aborted():
                begin, finished = record.begin, True
                self._replay_finished(record)
            case Bind():
                self.bindings.setdefault(record.group, record.transaction_group)
        if isinstance(record, Begin) or finished:
            self._effects.append((offset, begin, finished, None))
        for effect in effects:
            self._effects.append((offset, begin, finished, effect))

    def _replay_producer(self, record: ProducerRecord) -> None:
        producer = self.producers.get(record.producer_id)
        if producer is None:
            producer = Producer(
                generation=record.generation, nonce=record.session_nonce, owner=record.owner
            )
            self.producers[record.producer_id] = producer
        elif (producer.generation, producer.nonce) != (record.generation, record.session_nonce):
            producer.begins.clear()
            producer.answered_below = 0
        producer.generation, producer.nonce = record.generation, record.session_nonce
        producer.owner, producer.voided = record.owner, record.voided
        reason = AbortReason.DOUBLE_START if record.voided else AbortReason.FENCED
        for begin, transaction in producer.open.items():
            if record.voided or transaction.generation < record.generation:
                self._to_abort.append((begin, reason))

    def _replay_begin(self, offset: int, record: Begin) -> None:
        transaction = Transaction(
            txid=TxId(self.partition, self.incarnation, offset),
            producer_id=record.producer_id,
            generation=record.generation,
            timeout_ms=record.timeout_ms,
            started_ms=record.started_ms,
        )
        self.transactions.new_transaction(transaction)
        self.transactions.add_produced_partitions(offset, record.partitions)
        producer = self.producers[record.producer_id]
        producer.open[offset] = transaction
        self._clocks.begin(transaction)
        begins = producer.begins
        producer.answered_below = max(producer.answered_below, record.answered_below)
        for request_id in [r for r in begins if r < record.answered_below]:
            del begins[request_id]
        begins[record.request_id] = offset

    def _replay_commit(self, offset: int, record: PrepareCommit) -> tuple[Effect, ...]:
        partitions = [w.partition for w in record.writes]
        self.transactions.add_produced_partitions(record.begin, partitions)
        transaction = self._decide(record.begin, State.COMMITTING, offset)
        transaction.branches = {w.partition.key: w.branches for w in record.writes}
        effects: list[Effect] = []
        for group, steps in transaction.offsets.items():
            self.offsets.commit(group, steps.values(), transaction.txid, offset)
            effects.append(WriteOffsets(group, record.begin, self.offsets.committed(group)))
        return (*effects, WriteMarkers(transaction))

    def _replay_abort(self, offset: int, record: PrepareAbort) -> tuple[Effect, ...]:
        transaction = self._decide(record.begin, State.ABORTING, offset)
        transaction.reason = record.reason
        return (WriteMarkers(transaction),)

    def _replay_finished(self, record: Committed | Aborted) -> None:
        if isinstance(record, Committed):
            self.transactions.update_status(record.begin, State.COMMITTED, State.COMMITTING)
        else:
            self.transactions.update_status(record.begin, State.ABORTED, State.ABORTING)

    def _decide(self, begin: int, state: State, offset: int) -> Transaction:
        transaction = self.transactions.update_status(begin, state, State.OPEN)
        transaction.commit_sequence = offset
        self.offsets.release(transaction)
        self.producers[transaction.producer_id].open.pop(begin, None)
        self._wake.add(transaction.producer_id)
        return transaction

    def acknowledge(self, offset: int) -> list[Effect]:
        """Every record up to `offset` is durable: what may be done now, in journal order."""
        self._acknowledged_end = offset + 1
        ready: list[Effect] = []
        while self._effects and self._effects[0][0] <= offset:
            _, begin, finished, effect = self._effects.popleft()
            if effect is not None:
                ready.append(effect)
            elif finished:
                self._finished.add(begin)
            else:
                heapq.heappush(self._unfinished_heap, begin)
        return ready

    def loaded(self, now: Instant) -> list[Effect]:
        """The journal was replayed to its end under this coordinator's own epoch.

        Returns what earlier owners may have left undone, in commit-sequence order: all markers
        of decided transactions, and each consumer group's IOV. (Doing them again is harmless.)
        Starts the clocks of what is open: a producer has `reload_grace_ms` to come back.
        """
        self.acknowledge(self.next_offset - 1)
        self._wake.clear()
        self._to_abort.clear()
        still_open = [t for t in self.transactions if t.state is State.OPEN]
        self._clocks.reload(still_open, now)
        for transaction in still_open:
            producer = self.producers[transaction.producer_id]
            if producer.voided:
                self._to_abort.append((transaction.begin, AbortReason.DOUBLE_START))
            elif transaction.generation < producer.generation:
                self._to_abort.append((transaction.begin, AbortReason.FENCED))
        redo = [t for t in self.transactions if t.state is not State.OPEN]
        redo.sort(key=lambda t: t.commit_sequence or 0)
        offsets = [
            WriteOffsets(group, NO_EPOCH, self.offsets.committed(group))
            for group in self.offsets.groups()
        ]
        return [*offsets, *(WriteMarkers(t) for t in redo)]

    # ---- what clients ask ------------------------------------------------------------------

    def handle(self, command: c.Command, ref: Ref, now: Instant) -> Decision:
        """Decide a command. A refusal is a reply too, and leaves everything as it was."""
        try:
            match command:
                case c.Connect():
                    return self._handle_connect(command, ref)
                case c.Begin():
                    return self._handle_begin(command, ref, now)
                case c.AddPartitions():
                    return self._handle_add_partitions(command, ref)
                case c.AddOffsets():
                    return self._handle_add_offsets(command, ref)
                case c.End():
                    return self._handle_end(command, ref, now)
                case c.GetOutcome():
                    return self._handle_get_outcome(command, ref)
                case c.FetchOffsets():
                    reply = self.offsets.fetch(command.group, command.partitions)
                    return Decision(replies=((ref, reply),), fresh=True)
                case c.BindGroup():
                    return self._handle_bind(command, ref)
                case c.ListTransactions():
                    return Decision(replies=((ref, self._list()),), fresh=True)
        except UnknownTransactionError as error:
            return self._missing(command, ref, error)
        except LogtxError as error:
            fresh = isinstance(error, OffsetsConflictError) or not self._is_fact(error)
            return Decision(replies=((ref, error),), fresh=fresh)

    @staticmethod
    def _is_fact(error: LogtxError) -> bool:
        # True whoever owns the journal now: generations only rise and decisions never change.
        return isinstance(
            error,
            ProducerFencedError
            | TransactionAbortedError
            | TransactionCommittedError
            | UnknownTopicError
            | RequestTooLargeError
            | NotSupportedError,
        )

    def _missing(self, command: c.Command, ref: Ref, error: UnknownTransactionError) -> Decision:
        txid: TxId | None = getattr(command, "txid", None)
        mine = (self.partition, self.incarnation)
        if txid is not None and txid.journal == mine and txid.offset < self.next_offset:
            return Decision(look_up=txid, fresh=True)
        return Decision(replies=((ref, error),), fresh=True)

    @staticmethod
    def answer_fate(command: c.Command, outcome: c.Outcome) -> c.Reply:
        """Answer a command about a transaction that only the journal remembers.

        The shard knows whatever is unfinished. So an unfinished fate is that of the void BEGIN of
        a replaced coordinator, whose TxId nobody was told: never begun, and never aborted.
        """
        if not outcome.state.finished:
            outcome = c.Outcome(outcome.txid, State.UNKNOWN)
        txid, state = outcome.txid, outcome.state
        if isinstance(command, c.GetOutcome):
            return outcome
        if state is State.UNKNOWN:
            return UnknownTransactionError(f"no transaction {txid} is known")
        if isinstance(command, c.End) and state.commits == (command.action is c.Action.COMMIT):
            return outcome
        if state.commits:
            return TransactionCommittedError(f"transaction {txid} is committed")
        return TransactionAbortedError(f"transaction {txid} was aborted")

    def _handle_connect(self, command: c.Connect, ref: Ref) -> Decision:
        producer = self.producers.get(command.producer_id)
        asked = command.generation
        if producer is None:
            return self._connected(command, ref, asked if asked is not None else 0)
        same = producer.nonce == command.nonce and not producer.voided
        if asked is not None and asked < producer.generation:
            raise ProducerFencedError(
                f"producer {command.producer_id!r} of generation {asked} was replaced by"
                f" generation {producer.generation}"
            )
        if same and asked in (None, producer.generation):
            # An honest re-attach, over a socket that may be half open, or a retried request.
            return self._connected(command, ref, producer.generation, producer)
        if asked is None or asked > producer.generation:
            generation = producer.generation + 1 if asked is None else asked
            fenced = ProducerFencedError(
                f"producer {command.producer_id!r} was replaced by generation {generation}"
            )
            close = ((command.producer_id, producer.nonce, fenced),)
            return replace(self._connected(command, ref, generation), close=close)
        error = DoubleStartError(
            f"two producers {command.producer_id!r} started with generation {asked}: both are"
            f" closed and what they began is aborted; start one of them with a higher generation"
        )
        record = ProducerRecord(
            producer_id=command.producer_id,
            generation=producer.generation,
            session_nonce=producer.nonce,
            owner=producer.owner,
            voided=True,
        )
        return Decision(
            records=() if producer.voided else (record,),
            replies=((ref, error),),
            close=((command.producer_id, producer.nonce, error),),
        )

    def _connected(
        self, command: c.Connect, ref: Ref, generation: int, same: Producer | None = None
    ) -> Decision:
        reply = c.Connected(
            generation=generation,
            partition=self.partition,
            incarnation=self.incarnation,
            epoch=self.epoch,
        )
        record = ProducerRecord(
            producer_id=command.producer_id,
            generation=generation,
            session_nonce=command.nonce,
            owner=command.owner,
        )
        return Decision(records=() if same else (record,), replies=((ref, reply),))

    def _require_session(self, session: c.Session) -> Producer:
        producer = self.producers.get(session.producer_id)
        if producer is None or session.generation > producer.generation:
            raise SessionClosedError(f"producer {session.producer_id!r} must connect again")
        if producer.voided:
            raise DoubleStartError(
                f"generation {producer.generation} of producer {session.producer_id!r} was voided"
                " by a double start"
            )
        if session.generation < producer.generation or session.nonce != producer.nonce:
            raise ProducerFencedError(
                f"producer {session.producer_id!r} of generation {session.generation} was replaced"
                f" by generation {producer.generation}"
            )
        return producer

    def _resolve(self, partitions: Iterable[TopicPartition]) -> tuple[DataPartition, ...]:
        resolved = []
        for topic, partition in partitions:
            facts = self.topics.get(topic)
            if facts is None or not 0 <= partition < facts.partition_count:
                raise UnknownTopicError(f"there is no partition {topic}[{partition}]")
            resolved.append(DataPartition(topic, partition, facts.topic_id))
        return tuple(resolved)

    def _handle_begin(self, command: c.Begin, ref: Ref, now: Instant) -> Decision:
        session = command.session
        producer = self._require_session(session)
        known = producer.begins.get(command.request_id)
        if known is not None:
            txid = TxId(self.partition, self.incarnation, known)
            return Decision(replies=((ref, c.Began(txid)),))
        if command.request_id < producer.answered_below:
            # A duplicate out of a broken stream, read late: nobody would ever end what it opens.
            raise SessionClosedError(f"request {command.request_id} was answered before")
        if not 0 < command.timeout_ms <= self.config.max_timeout_ms:
            raise NotSupportedError(
                f"a timeout of {command.timeout_ms} ms: this coordinator allows 1 to"
                f" {self.config.max_timeout_ms} ms (max.timeout.ms)"
            )
        record = Begin(
            producer_id=session.producer_id,
            generation=session.generation,
            session_nonce=session.nonce,
            request_id=command.request_id,
            answered_below=command.answered_below,
            timeout_ms=command.timeout_ms,
            started_ms=now.wall_ms,
            partitions=self._resolve(command.partitions),
        )
        txid = TxId(self.partition, self.incarnation, self.next_offset)
        return Decision(records=(record,), replies=((ref, c.Began(txid)),))

    def _require(self, txid: TxId, session: c.Session | None) -> Transaction:
        if txid.journal != (self.partition, self.incarnation):
            raise UnknownTransactionError(f"no transaction {txid} is known here")
        transaction = self.transactions.require_open(txid)
        if session is not None:
            self._require_session(session)
            if session.producer_id != transaction.producer_id:
                raise ProducerFencedError(
                    f"transaction {txid} belongs to producer {transaction.producer_id!r}"
                )
        return transaction

    def _handle_add_partitions(self, command: c.AddPartitions, ref: Ref) -> Decision:
        transaction = self._require(command.txid, command.session)
        resolved = self._resolve(command.partitions)
        new = tuple(p for p in resolved if p.key not in transaction.partitions)
        records = (AddPartitions(begin=transaction.begin, partitions=new),) if new else ()
        return Decision(records=records, replies=((ref, c.Done()),))

    def _handle_add_offsets(self, command: c.AddOffsets, ref: Ref) -> Decision:
        transaction = self._require(command.txid, command.session)
        new = merge_steps(transaction, command.group, command.steps)
        record = AddOffsets(begin=transaction.begin, group=command.group, steps=command.steps)
        return Decision(records=(record,) if new else (), replies=((ref, c.Done()),))

    def _handle_bind(self, command: c.BindGroup, ref: Ref) -> Decision:
        bound = self.bindings.get(command.group)
        if bound is not None or command.transaction_group is None:
            return Decision(replies=((ref, c.Binding(bound)),), fresh=bound is None)
        record = Bind(group=command.group, transaction_group=command.transaction_group)
        return Decision(records=(record,), replies=((ref, c.Binding(command.transaction_group)),))

    def _handle_get_outcome(self, command: c.GetOutcome, ref: Ref) -> Decision:
        if command.txid.journal != (self.partition, self.incarnation):
            return Decision(replies=((ref, c.Outcome(command.txid, State.UNKNOWN)),), fresh=True)
        outcome = self.transactions.outcome(command.txid.offset)
        if outcome is None:
            if command.txid.offset >= self.next_offset:
                outcome = c.Outcome(command.txid, State.UNKNOWN)
                return Decision(replies=((ref, outcome),), fresh=True)
            return Decision(look_up=command.txid, fresh=True)
        return Decision(replies=((ref, outcome),), fresh=outcome.state is State.OPEN)

    def _list(self) -> c.Transactions:
        return c.Transactions(
            tuple(
                c.TransactionInfo(
                    txid=t.txid,
                    state=t.state,
                    producer_id=t.producer_id,
                    generation=t.generation,
                    started_ms=t.started_ms,
                    timeout_ms=t.timeout_ms,
                    partitions=tuple(t.partitions),
                    groups=tuple(t.offsets),
                )
                for t in self.transactions
            )
        )

    # ---- ending a transaction --------------------------------------------------------------

    def _handle_end(self, command: c.End, ref: Ref, now: Instant) -> Decision:
        """Source: seed 000, "CommandEndTxn"; here every request names its TxId."""
        txid, commit = command.txid, command.action is c.Action.COMMIT
        if txid.journal == (self.partition, self.incarnation):
            outcome = self.transactions.outcome(txid.offset)
            if outcome and (outcome.state.commits if commit else outcome.state.aborts):
                return Decision(replies=((ref, outcome),))
        transaction = self._require(txid, command.session)
        if commit:
            return self._commit(transaction, command, ref, now)
        added = self._added(transaction, (p for p in command.writes if self._exists(p)))
        return self._abort(transaction, AbortReason.REQUESTED, now, ref, added)

    def _commit(self, transaction: Transaction, command: c.End, ref: Ref, now: Instant) -> Decision:
        open_now = self.producers[transaction.producer_id].open
        verdict = self.offsets.evaluate(transaction, open_now)
        if verdict is Verdict.WAIT:
            self._waiting[transaction.begin] = _Waiting(command, ref)
            return Decision()
        self._waiting.pop(transaction.begin, None)
        if verdict is Verdict.CONFLICT:
            raise OffsetsConflictError(
                f"the input offsets of transaction {transaction.txid} do not continue the"
                " committed ones; abort, rewind to the committed offsets and redo"
            )
        writes = self._writes(transaction, command.writes)
        record = PrepareCommit(begin=transaction.begin, writes=writes, decided_ms=now.wall_ms)
        outcome = c.Outcome(transaction.txid, State.COMMITTING, self.next_offset)
        return Decision(records=(record,), replies=((ref, outcome),))

    def _writes(
        self,
        transaction: Transaction,
        named: Mapping[TopicPartition, tuple[BranchRange, ...]],
    ) -> tuple[PartitionWrites, ...]:
        for (topic, partition), branches in named.items():
            facts = self.topics.get(topic)
            size = MARKER_FIXED_BYTES + BRANCH_MARKER_BYTES * len(branches)
            if facts is not None and size > facts.record_max_bytes:
                raise RequestTooLargeError(
                    f"the marker of {topic}[{partition}] would name {len(branches)} branches, up"
                    f" to {size} bytes; the topic takes {facts.record_max_bytes}"
                    " (max.message.bytes)"
                )
        added = self._added(transaction, named)
        partitions = (*transaction.partitions.values(), *added)
        return tuple(PartitionWrites(p, named.get(p.key, ())) for p in partitions)

    def _added(
        self, transaction: Transaction, named: Iterable[TopicPartition]
    ) -> tuple[DataPartition, ...]:
        return self._resolve(p for p in named if p not in transaction.partitions)

    def _exists(self, partition: TopicPartition) -> bool:
        facts = self.topics.get(partition[0])
        return facts is not None and 0 <= partition[1] < facts.partition_count

    def _abort(
        self,
        transaction: Transaction,
        reason: AbortReason,
        now: Instant,
        asked_by: Ref | None = None,
        added: tuple[DataPartition, ...] = (),
    ) -> Decision:
        # Partitions first: a crash between the two leaves an open transaction that knows more of
        # its partitions, which is harmless; the reverse order would leave them without a marker.
        records: list[JournalRecord] = []
        if added:
            records.append(AddPartitions(begin=transaction.begin, partitions=added))
        records.append(PrepareAbort(begin=transaction.begin, reason=reason, decided_ms=now.wall_ms))
        sequence = self.next_offset + len(records) - 1
        replies: list[tuple[Ref, c.Reply]] = []
        if asked_by is not None:
            outcome = c.Outcome(transaction.txid, State.ABORTING, sequence)
            replies.append((asked_by, outcome))
        waiting = self._waiting.pop(transaction.begin, None)
        if waiting is not None:
            error = TransactionAbortedError(f"transaction {transaction.txid} was aborted: {reason}")
            replies.append((waiting.ref, error))
        return Decision(records=tuple(records), replies=tuple(replies))

    def finish(self, begin: int, gone: tuple[TopicPartition, ...]) -> Decision:
        """Every marker of a decided transaction is acknowledged, or its partition is `gone`."""
        transaction = self.transactions.get(begin)
        if transaction is None or transaction.state is State.OPEN:
            return Decision()
        if transaction.state is State.COMMITTING:
            return Decision(records=(Committed(begin=begin, gone=gone),))
        return Decision(records=(Aborted(begin=begin, gone=gone),))

    # ---- what time and other decisions bring about -----------------------------------------

    def due(self, now: Instant) -> Decision | None:
        """The next thing that no client asks for: call it until it returns None.

        In this order: transactions of fenced generations are aborted; commits that waited for an
        earlier transaction's offsets are decided; transactions past their timeout, then those of
        producers that went away, are aborted in the order of their deadlines.
        """
        self._clocks.start(now)
        return (
            self._due_fenced(now)
            or self._due_waiting(now)
            or self._due_expired(now)
            or self._due_detached(now)
        )

    def attach(self, producer_id: str) -> None:
        """A producer's stream is connected."""
        self._clocks.attach(producer_id)

    def detach(self, producer_id: str, nonce: int, now: Instant) -> None:
        """A producer's stream broke; it has `session_grace_ms` to come back."""
        producer = self.producers.get(producer_id)
        if producer is not None and producer.nonce == nonce:
            self._clocks.detach(producer_id, now)

    def forget_waiting(self, refs: Iterable[Ref]) -> None:
        """Commits whose client went away stop waiting; their transactions stay open."""
        gone = set(map(id, refs))
        for begin in [b for b, w in self._waiting.items() if id(w.ref) in gone]:
            del self._waiting[begin]

    def _due_fenced(self, now: Instant) -> Decision | None:
        while self._to_abort:
            begin, reason = self._to_abort.popleft()
            transaction = self.transactions.get(begin)
            if transaction is not None and transaction.state is State.OPEN:
                return self._abort(transaction, reason, now)
        return None

    def _due_waiting(self, now: Instant) -> Decision | None:
        while self._wake:
            for begin in sorted(self._waiting):
                waiting = self._waiting[begin]
                transaction = self.transactions.get(begin)
                if transaction is None or transaction.producer_id not in self._wake:
                    continue
                try:
                    decision = self._commit(transaction, waiting.command, waiting.ref, now)
                except LogtxError as error:
                    self._waiting.pop(begin, None)
                    return Decision(replies=((waiting.ref, error),), fresh=True)
                if decision.records:
                    return decision
            self._wake.clear()
        return None

    def _due_expired(self, now: Instant) -> Decision | None:
        while (begin := self._clocks.expired(now)) is not None:
            transaction = self.transactions.get(begin)
            if transaction is not None and transaction.state is State.OPEN:
                return self._abort(transaction, AbortReason.EXPIRED, now)
        return None

    def _due_detached(self, now: Instant) -> Decision | None:
        while (producer_id := self._clocks.given_up(now)) is not None:
            producer = self.producers.get(producer_id)
            if producer is not None and producer.open:
                transaction = next(iter(producer.open.values()))
                return self._abort(transaction, AbortReason.DISCONNECTED, now)
            self._clocks.forget_given_up()
        return None
