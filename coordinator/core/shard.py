"""Transaction coordinator state machine for one journal partition.

`handle` decides, `replay` applies; nothing else changes the state that comes from the journal. No
I/O, clock or randomness: the caller supplies them.

How the caller (`tenure.py`) joins a shard to a journal, and why that is sound:

1. `handle(command)` returns the records that the command needs, at most one of them a decision,
   and its reply. It reads the state and changes none of it.
2. The caller replays the records at once, at the offsets that they will get, from `next_offset` on.
   So the next command is decided on what this one did, and a TxId is a predicted offset.
3. The caller appends the records. It releases the reply when every append up to them was
   acknowledged at its predicted offset. Offsets are contiguous, so an acknowledgement at the
   predicted offset proves that no other writer wrote in between. At the first surprise the whole
   shard is thrown away.
4. `acknowledge(offset)` then returns what may be done now that the record is durable (markers,
   offsets), and moves the high watermark. Both depend on acknowledged records alone: consumers
   would for ever believe a marker that was written for a decision whose append is lost, or a HW
   that was computed from one.

Why a command is atomic: it is one record, or every prefix of its records is a safe state. A fencing
`Connect` leads to several: PRODUCER first, then (by `due`) an abort for each transaction of the
fenced generation. If a journal ends in between, the coordinator that loads it finds transactions of
a fenced generation and goes on aborting them (`loaded`).

Volatile state (sessions attached, deadlines, commits that wait) is lost with the process. Losing
it delays an abort or makes a client ask again; it decides nothing.

Source: Transactional Messaging in Kafka, "Transaction coordinator" and "Transaction flow"; PIP-31,
"TC Request Processing".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from ...journal.control import TopicPartition
from ...journal.errors import (
    ClaimFencedError,
    CoordinatorBusyError,
    GroupBoundError,
    LogtxError,
    NotSupportedError,
    OffsetsConflictError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionStateError,
    UnknownTopicError,
    UnknownTransactionError,
)
from ...journal.keys import is_key_name
from ...journal.places import PartitionId
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
    DataPartition,
    JournalRecord,
    PrepareAbort,
    PrepareCommit,
)
from ...journal.state import State
from ...journal.txid import TxId
from ..protocol import commands
from ..protocol.reasons import because
from . import admin, switching
from .answers import is_fact
from .committed_offsets import StepsVerdict
from .data_partitions import (
    Topics,
    added_to,
    exists,
    part_of,
    resolve,
    writes_of,
)
from .decision import Decision, Instant, Ref
from .eras import end_era
from .producers import check_room, check_timeout
from .queue_listing import list_subscriptions
from .shard_state import ShardState, marked_by
from .sidecars import sidecars_among, since_of, steps_of
from .topic_homes import TopicHomes
from .transactions import (
    TransactionMetadata,
    check_added,
    check_parts,
    earlier_starts,
    merge_steps,
)
from .trimming import JournalView


class Shard(ShardState):
    """One journal partition: decides what becomes of its transactions, producers and offsets."""

    # ---- what clients ask -----------------------------------------------------------------------

    def handle(  # noqa: PLR0912
        self,
        command: commands.Command,
        ref: Ref,
        now: Instant,
        topics: Topics,
        doubt: LogtxError | None = None,
    ) -> Decision:
        """Decides a command. A refusal is a reply too, and leaves everything as it was.

        Args:
            command: what a client asks.
            ref: the caller's token, given back with the reply.
            now: the time.
            topics: what is known of the data topics that the command names.
            doubt: why a command that names them can't be decided; None if it can. What is decided
                already is answered all the same: a repeated commit must never be told as refused.
        """
        try:
            match command:
                case commands.Connect():
                    return self._handle_connect(command, ref, now)
                case commands.Begin():
                    return self._handle_begin(command, ref, now, topics, doubt)
                case commands.AddPartitions():
                    return self._handle_add_partitions(command, ref, topics, doubt)
                case commands.AddOffsets():
                    return self._handle_add_offsets(command, ref)
                case commands.AddAcks():
                    return self._handle_add_acks(command, ref)
                case commands.ExtendTransaction():
                    return self._handle_extend(command, ref, now)
                case commands.AddWrites():
                    return self._handle_add_writes(command, ref, topics, doubt)
                case commands.End():
                    return self._handle_end(command, ref, now, topics, doubt)
                case commands.GetOutcome():
                    return self._handle_get_outcome(command, ref, now)
                case commands.FetchOffsets():
                    self.queues.check_is_no_subscription(command.group)
                    reply = self.offsets.fetch(command.group, command.partitions)
                    return Decision(replies=((ref, reply),), fresh=True)
                case commands.ClaimOffsets():
                    return self._handle_claim(command, ref)
                case commands.BindGroup():
                    return self._handle_bind(command, ref)
                case commands.AbortTransaction():
                    return self._handle_abort(command, ref, now)
                case commands.DeleteKey():
                    return self._handle_delete_key(command, ref)
                case commands.ForgetProducer():
                    record = self.ages.forget_producer(command.producer_id, self._clocks)
                    return _done(ref, record)
                case commands.ForgetGroup():
                    return _done(ref, self.ages.forget_group(command.group, command.topics))
                case commands.UnbindGroup():
                    return _done(ref, self.ages.unbind(command.group))
                case commands.ListTransactions() | commands.ListKeys() | commands.GetKey():
                    store = self.transactions
                    answer = admin.answer(command, self.producers, store, self.places, now)
                    return Decision(replies=((ref, answer),), fresh=True)
                case commands.SetTopicMode():
                    return self._handle_set_topic_mode(command, ref, topics, doubt)
                case commands.DescribeTopics():
                    page = switching.describe(command, self.modes, self.places, self.published)
                    return Decision(replies=((ref, page),), fresh=True)
                case commands.DescribeSidecars():
                    return Decision(replies=((ref, self._sidecar_needs(command)),), fresh=True)
                case commands.Attach():
                    # A topic that was deleted may be one of the queue's.
                    _check_certain(None if isinstance(doubt, UnknownTopicError) else doubt)
                    self._check_is_no_group(command.group)
                    return self.queues.handle(command, ref, now, topics)
                case commands.Acquire() | commands.Acknowledge():
                    return self.queues.handle(command, ref, now, topics)
                case commands.ResetSubscription() | commands.DeleteSubscription():
                    journal = self.partition, self.incarnation
                    return end_era(self.queues, command, ref, now, journal)
                case commands.DescribeSubscriptions():
                    journal = self.partition, self.incarnation
                    listed = list_subscriptions(self.queues, command, journal)
                    return Decision(replies=((ref, listed),), fresh=True)
                case commands.SetTopicRule():
                    raise NotSupportedError("no journal partition keeps rules: ask by a call")
                case commands.OpenSidecars():
                    raise NotSupportedError("no journal partition keeps sidecars: ask by a call")
        except UnknownTransactionError as error:
            return self._missing(command, ref, error)
        except LogtxError as error:
            return self._refused((ref,), error)

    def _refused(self, refs: tuple[Ref, ...], error: LogtxError) -> Decision:
        return Decision(replies=tuple((r, error) for r in refs), fresh=not is_fact(error))

    def _missing(
        self, command: commands.Command, ref: Ref, error: UnknownTransactionError
    ) -> Decision:
        txid: TxId | None = getattr(command, "txid", None)
        mine = (self.partition, self.incarnation)
        if txid is not None and txid.journal == mine and txid.offset < self.next_offset:
            return Decision(look_up=txid, fresh=True)
        return Decision(replies=((ref, error),), fresh=True)

    def _handle_connect(self, command: commands.Connect, ref: Ref, now: Instant) -> Decision:
        admission = self.producers.admit(command, now)
        reply = admission.refusal or commands.Connected(
            generation=admission.generation,
            partition=self.partition,
            incarnation=self.incarnation,
            epoch=self.epoch,
        )
        return Decision(
            records=admission.records,
            replies=((ref, reply),),
            fenced=admission.fenced,
            fresh=admission.fresh,
        )

    def _handle_delete_key(self, command: commands.DeleteKey, ref: Ref) -> Decision:
        deletion = self.producers.delete_key(command)
        return Decision(
            records=deletion.records,
            replies=((ref, commands.Done()),),
            fenced=deletion.fenced,
            fresh=deletion.fresh,
        )

    def _handle_begin(
        self,
        command: commands.Begin,
        ref: Ref,
        now: Instant,
        topics: Topics,
        doubt: LogtxError | None,
    ) -> Decision:
        session = command.session
        known = self.producers.begun(command)
        if known is not None:
            txid = TxId(self.partition, self.incarnation, known)
            return Decision(replies=((ref, commands.Began(txid)),))
        self.producers.check_may_begin(session)
        _check_certain(doubt)
        producer, open_count = self.producers[session.producer_id], self.transactions.open_count
        check_room(self.config, self.partition, producer, open_count)
        check_timeout(self.config, command.timeout_ms)
        record = Begin(
            producer_id=session.producer_id,
            generation=session.generation,
            session_nonce=session.nonce,
            request_id=command.request_id,
            answered_below=command.answered_below,
            timeout_ms=command.timeout_ms,
            started_ms=now.wall_ms,
            partitions=resolve(
                topics, self.modes, command.partitions, self.next_offset, now.monotonic_ms
            ),
        )
        txid = TxId(self.partition, self.incarnation, self.next_offset)
        return Decision(records=(record,), replies=((ref, commands.Began(txid)),))

    def _require(self, txid: TxId, session: commands.SessionId | None) -> TransactionMetadata:
        if txid.journal != (self.partition, self.incarnation):
            raise UnknownTransactionError(f"no transaction {txid} is known here")
        if session is not None and is_key_name(session.producer_id):
            # Checked before the transaction's state: an old connection must learn that it was
            # replaced, not only that its transaction was aborted, or it would begin the next one.
            self.producers.require(session)
        transaction = self.transactions.require_open(txid)
        if session is not None:
            self.producers.require(session)
            if session.producer_id != transaction.producer_id:
                raise ProducerFencedError(
                    f"transaction {txid} belongs to producer {transaction.producer_id!r}"
                )
        return transaction

    def _handle_add_partitions(
        self, command: commands.AddPartitions, ref: Ref, topics: Topics, doubt: LogtxError | None
    ) -> Decision:
        transaction = self._require(command.txid, command.session)
        _check_certain(doubt)
        known, told = transaction.partitions, command.first_offsets
        new = (
            *added_to(topics, self.modes, transaction, command.partitions, told),
            *earlier_starts(known, told),
        )
        records = (AddPartitions(begin=transaction.begin, partitions=new),) if new else ()
        return Decision(records=records, replies=((ref, commands.Done()),))

    def _handle_add_offsets(self, command: commands.AddOffsets, ref: Ref) -> Decision:
        transaction = self._require(command.txid, command.session)
        _check_not_doomed(transaction)
        self.queues.check_is_no_subscription(command.group)
        self.claims.check(command.group, command.steps)
        self.offsets.check_steps(transaction, command.steps)
        new = merge_steps(transaction, command.group, command.steps)
        record = AddOffsets(begin=transaction.begin, group=command.group, steps=command.steps)
        return Decision(records=(record,) if new else (), replies=((ref, commands.Done()),))

    def _handle_add_writes(
        self, command: commands.AddWrites, ref: Ref, topics: Topics, doubt: LogtxError | None
    ) -> Decision:
        transaction = self._require(command.txid, command.session)
        done = ((ref, commands.Done()),)
        if command.part < transaction.parts:
            return Decision(replies=done)  # Sent again: the journal has it.
        _check_not_doomed(transaction)
        _check_certain(doubt)
        if command.part > transaction.parts:
            raise TransactionStateError(
                f"part {command.part} of what transaction {transaction.txid} wrote came before part"
                f" {transaction.parts}: send each when the one before was answered"
            )
        count = sum(map(len, command.writes.values()))
        check_added(self.config.max_added_ranges, transaction, count, self.transactions.added_count)
        writes = part_of(topics, transaction, command.writes, self.modes, self._handed_of)
        record = AddWrites(begin=transaction.begin, part=command.part, writes=writes)
        return Decision(records=(record,), replies=done)

    def _handle_add_acks(self, command: commands.AddAcks, ref: Ref) -> Decision:
        transaction = self._require(command.txid, command.session)
        _check_not_doomed(transaction)
        return self.queues.add_acks(transaction, command, ref)

    def _check_is_no_group(self, group: str) -> None:
        if self.ages.knows(group):
            raise GroupBoundError(f"{group!r} is a consumer group: a queue needs another name")

    def _handle_claim(self, command: commands.ClaimOffsets, ref: Ref) -> Decision:
        self.queues.check_is_no_subscription(command.group)
        partitions = tuple(sorted(set(command.partitions)))
        iov = self.offsets.committed(command.group, partitions)
        known = self.claims.decide(command)
        if known is not None:
            # Another consumer may have claimed since, from a new owner unknown to this one.
            return Decision(replies=((ref, commands.Claimed(known, iov)),), fresh=True)
        record = Claim(group=command.group, claimant=command.claimant, partitions=partitions)
        return Decision(
            records=(record,), replies=((ref, commands.Claimed(self.next_offset, iov)),)
        )

    def _handle_bind(self, command: commands.BindGroup, ref: Ref) -> Decision:
        bound = self.bindings.get(command.group)
        if command.transaction_group is None or (
            bound is not None and not self.ages.is_stale(command.group)
        ):
            return Decision(replies=((ref, commands.Binding(bound)),), fresh=True)
        # One that stands is bound again now and then, which keeps it from being forgotten.
        record = Bind(group=command.group, transaction_group=bound or command.transaction_group)
        reply = commands.Binding(record.transaction_group)
        return Decision(records=(record,), replies=((ref, reply),))

    def _handle_get_outcome(self, command: commands.GetOutcome, ref: Ref, now: Instant) -> Decision:
        if command.txid.journal != (self.partition, self.incarnation):
            return Decision(
                replies=((ref, commands.Outcome(command.txid, State.UNKNOWN)),), fresh=True
            )
        outcome = self.transactions.outcome(command.txid.offset)
        if outcome is None:
            if command.txid.offset >= self.next_offset:
                outcome = commands.Outcome(command.txid, State.UNKNOWN)
                return Decision(replies=((ref, outcome),), fresh=True)
            return Decision(look_up=command.txid, fresh=True)
        if command.until_finished and outcome.state in (State.COMMITTING, State.ABORTING):
            self._finishing.join(command.txid.offset, ref, now)
            return Decision()
        # `Decided` may be on its way, or lost: who asks is to learn why, too.
        outcome = replace(outcome, reason=self.transactions.reason(command.txid.offset))
        return Decision(replies=((ref, outcome),), fresh=outcome.state is State.OPEN)

    def _handle_extend(
        self, command: commands.ExtendTransaction, ref: Ref, now: Instant
    ) -> Decision:
        # In no record: a later owner begins all timeouts anew when it has loaded the journal.
        self._clocks.extend(self._require(command.txid, command.session), now)
        return Decision(replies=((ref, commands.Done()),), fresh=True)

    # ---- ending a transaction -------------------------------------------------------------------

    def _handle_end(
        self,
        command: commands.End,
        ref: Ref,
        now: Instant,
        topics: Topics,
        doubt: LogtxError | None,
    ) -> Decision:
        """Source: PIP-31, "CommandEndTxn"; here every request names its TxId."""
        txid, commit = command.txid, command.action is commands.Action.COMMIT
        if txid.journal == (self.partition, self.incarnation):
            outcome = self.transactions.outcome(txid.offset)
            if outcome and (outcome.state.commits if commit else outcome.state.aborts):
                return Decision(replies=((ref, outcome),))
        transaction = self._require(txid, command.session)
        if commit:
            _check_certain(doubt)
            return self._commit(transaction, command, now, topics, asked_by=(ref,))
        added = added_to(
            topics,
            self.modes,
            transaction,
            (p for p in command.writes if exists(topics, p)),
        )
        return self._abort(transaction, AbortReason.REQUESTED, now, ref, added)

    def _handle_abort(self, command: commands.AbortTransaction, ref: Ref, now: Instant) -> Decision:
        txid = command.txid
        if txid.journal == (self.partition, self.incarnation):
            outcome = self.transactions.outcome(txid.offset)
            if outcome and outcome.state.aborts:
                return Decision(replies=((ref, outcome),))
            if outcome and outcome.state.commits:
                raise TransactionCommittedError(f"transaction {txid} is {outcome.state}")
        return self._abort(self._require(txid, None), command.reason, now, ref)

    def _commit(
        self,
        transaction: TransactionMetadata,
        command: commands.End,
        now: Instant,
        topics: Topics,
        *,
        asked_by: tuple[Ref, ...] = (),
    ) -> Decision:
        """Decides a commit. Returns an empty decision if the commit has to wait."""
        begin, open_now = transaction.begin, self.producers[transaction.producer_id].open
        verdict, blockers = self.offsets.evaluate(transaction, open_now)
        if verdict is StepsVerdict.WAIT and transaction.doomed is None:
            bytes_max = self.config.max_waiting_bytes
            if self._waiting.join(begin, command, asked_by, blockers, bytes_max):
                return Decision()
            busy = CoordinatorBusyError("too many bytes of commits wait for input offsets")
            return self._refused(asked_by, busy)
        refs = (*self._waiting.pop(begin), *asked_by)
        try:
            _check_not_doomed(transaction)
            if verdict is StepsVerdict.CONFLICT:
                raise OffsetsConflictError(
                    f"the input offsets of transaction {transaction.txid} do not continue the"
                    " committed ones; abort, rewind to the committed offsets and redo"
                )
            self.offsets.check_fits(transaction)
            check_parts(transaction, command.parts)
            sidecars = sidecars_among(command.writes, transaction.branches)
            writes, of_parts, placed, handed = writes_of(
                topics,
                transaction,
                command.writes,
                self.modes,
                self._handed_of,
                sidecars=sidecars,
            )
        except LogtxError as error:
            return self._refused(refs, error)
        record = PrepareCommit(
            begin=begin,
            writes=writes,
            decided_ms=now.wall_ms,
            added=of_parts,
            placed=placed,
            handed=handed,
            sidecar_since=since_of(sidecars, command.main_ends) if sidecars else (),
        )
        outcome = commands.Outcome(transaction.txid, State.COMMITTING, self.next_offset)
        return Decision(records=(record,), replies=tuple((ref, outcome) for ref in refs))

    def _handed_of(
        self, partitions: Iterable[DataPartition]
    ) -> tuple[tuple[TopicPartition, int], ...]:
        """Returns where a decision that is made now is handed over, and to which homes."""
        homes = self.homes
        if not homes or not self.handed.watches:
            return ()
        named = [*partitions]
        foreign = homes.foreign({(p.topic, p.topic_id) for p in named}, self.partition)
        if not foreign:
            return ()  # Looked at by topic first: there are few, and many partitions.
        found = ((p.key, foreign.get((p.topic, p.topic_id))) for p in named)
        return tuple(
            (key, home) for key, home in found if home is not None and self.handed.may_hand(key)
        )

    def is_beside_markers(self, partitions: Collection[TopicPartition], topics: Topics) -> bool:
        """Returns whether a commit that is decided now would be marked in one of these partitions
        for no other reason than that an earlier decision still is (A4)."""
        homes = self.homes
        if not homes or not self.handed.marks_any:
            return False
        named = {topic for topic, _ in partitions}
        ids = {(topic, facts.topic_id) for topic in named if (facts := topics.get(topic))}
        foreign = {topic for topic, _ in homes.foreign(ids, self.partition)}
        return bool(foreign) and any(
            topic in foreign and not self.handed.may_hand((topic, number))
            for topic, number in partitions
        )

    def watch_homes(self, homes: TopicHomes) -> None:
        """Hands transactions over from now on.

        Args:
            homes: who places where, as this coordinator reads it.
        """
        self.homes = homes
        if self.handed.watches:
            return
        decided = (t for t in self.transactions if t.commit_sequence is not None)
        self.handed.watch((t.begin, marked_by(t)) for t in decided)

    def _abort(
        self,
        transaction: TransactionMetadata,
        reason: AbortReason,
        now: Instant,
        asked_by: Ref | None = None,
        added: tuple[DataPartition, ...] = (),
    ) -> Decision:
        # Partitions first: a crash between the two leaves an open transaction with more of its
        # partitions registered, which is harmless. In the other order they would get no marker.
        records: list[JournalRecord] = []
        if added:
            records.append(AddPartitions(begin=transaction.begin, partitions=added))
        registered = transaction.partitions.values()
        records.append(
            PrepareAbort(
                begin=transaction.begin,
                reason=reason,
                decided_ms=now.wall_ms,
                handed=self._handed_of((*registered, *added)),
            )
        )
        sequence = self.next_offset + len(records) - 1
        replies: list[tuple[Ref, commands.Reply]] = []
        if asked_by is not None:
            outcome = commands.Outcome(transaction.txid, State.ABORTING, sequence)
            replies.append((asked_by, outcome))
        error = TransactionAbortedError(
            f"transaction {transaction.txid} was aborted{because(reason)}"
        )
        replies.extend((ref, error) for ref in self._waiting.pop(transaction.begin))
        return Decision(records=tuple(records), replies=tuple(replies))

    def finish(
        self,
        begin: int,
        gone: tuple[TopicPartition, ...],
        pointers: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> Decision:
        """Finishes a decided transaction: every marker and place is durable, or its partition gone.

        Args:
            begin: offset of its BEGIN. An unknown or open transaction gets an empty decision.
            gone: its partitions that don't exist any more and got no marker. One that got no place
                either is not among them, if its marker went to another topic of the name.
            pointers: sidecar partition → offset in its main partition at which the pointer was
                acknowledged.
        """
        transaction = self.transactions.get(begin)
        if transaction is None or transaction.state is State.OPEN:
            return Decision()
        committed = transaction.state is State.COMMITTING
        record = (
            Committed(begin=begin, gone=gone, pointers=steps_of(transaction, pointers))
            if committed
            else Aborted(begin=begin, gone=gone)
        )
        asked_by = self._finishing.pop(begin)
        if not asked_by:
            return Decision(records=(record,))
        state = State.COMMITTED if committed else State.ABORTED
        outcome = commands.Outcome(transaction.txid, state, transaction.commit_sequence)
        return Decision(records=(record,), replies=tuple((ref, outcome) for ref in asked_by))

    # ---- places and modes -----------------------------------------------------------------------

    def place(self, upto: int, ends: Mapping[PartitionId, int]) -> Decision:
        """Places what waits at the ends of partitions: one PLACED record, or none if nothing does.

        Args:
            upto: commit sequence of the last decision that was acknowledged before the ends were
                asked for.
            ends: ends of partitions as their leaders told them, or `GONE`.
        """
        record = self.places.place(upto, ends)
        return Decision() if record is None else Decision(records=(record,))

    def mode_recorded(
        self, partition: PartitionId, offset: int, partitions: Collection[int]
    ) -> Decision:
        """Notes that a mode record is durable, and ends the switch after the last one.

        Args:
            partition: the data partition.
            offset: offset of the mode record in it.
            partitions: all partitions of the topic.
        """
        change = self.modes.recorded(partition, offset, partitions)
        return Decision() if change is None else Decision(records=(change,))

    def mode_ends(self, topic: str, topic_id: str, ends: Mapping[int, int]) -> Decision:
        """Ends a switch that writes no mode records.

        Returns an empty decision while something is to be placed in the topic: its readers read the
        home until all is placed, and none may be placed behind `since`.

        Args:
            topic: name of the topic.
            topic_id: its id.
            ends: partition → its end, asked for after the switch began. All partitions.
        """
        if self.places.waiting_in(topic, topic_id):
            return Decision()
        last = self.places.last
        since = {
            p: max(end, last.get(PartitionId(topic, p, topic_id), 0)) for p, end in ends.items()
        }
        change = self.modes.ended(topic, topic_id, since)
        return Decision() if change is None else Decision(records=(change,))

    def _handle_set_topic_mode(
        self, command: commands.SetTopicMode, ref: Ref, topics: Topics, doubt: LogtxError | None
    ) -> Decision:
        switching.check_name(command.topic)
        _check_certain(doubt)
        change = switching.begin(command, topics, self.modes, self.published)
        topic_id = topics[command.topic].topic_id
        if change is None:
            info = switching.info_of(
                command.topic, topic_id, self.modes, self.places, self.published
            )
            return Decision(replies=((ref, commands.TopicModes((info,))),), fresh=True)
        before = self.modes.of(change.topic, topic_id)
        goes_on = before.phase is change.phase
        info = commands.TopicModeInfo(
            topic=change.topic,
            topic_id=topic_id,
            phase=change.phase,
            mode_offset=before.offset if goes_on else self.next_offset,
            since=before.since,
            waiting=self.places.waiting_in(change.topic, topic_id),
        )
        return Decision(records=(change,), replies=((ref, commands.TopicModes((info,))),))

    def _sidecar_needs(self, command: commands.DescribeSidecars) -> commands.SidecarNeeds:
        view = JournalView.of(self)
        found = (view.needed(*each) for each in command.main_starts.items())
        return commands.SidecarNeeds(
            undecided=view.undecided,
            end=self.watermark.end,
            incarnation=self.incarnation,
            steps=tuple(step for step in found if step is not None),
        )

    # ---- what time and other decisions bring about ----------------------------------------------

    def due(self, now: Instant, topics: Topics) -> Decision | None:
        """Returns the next decision that no client asks for. Call it until it returns None.

        In this order, it

        1. aborts transactions of fenced generations, those whose input was claimed since, and the
           rest of what a producer left behind that went away;
        2. decides commits that waited for an earlier transaction's offsets;
        3. aborts transactions past their timeout, the earliest deadline first;
        4. aborts the transactions of the producer that went away first;
        5. answers who has waited for long that a transaction is finished;
        6. answers consumers of queues that waited for messages.

        Args:
            now: the time.
            topics: what is known of data topics, for commits that waited.
        """
        self._clocks.start(now)
        return (
            self._due_to_abort(now)
            or self._due_waiting(now, topics)
            or self._due_expired(now)
            or self._due_detached(now)
            or self._due_answer(now)
            or self.queues.due(now)
        )

    def end_hour(self, groups: Collection[str], bindings: Collection[str]) -> Decision:
        """Ends an hour of service, and forgets what nobody used for long: see `Ages.end_hour`."""
        return Decision(records=(self.ages.end_hour(self._clocks, groups, bindings),))

    def forget_rest(self) -> Decision:
        """Forgets producers for which the record of this hour had no room: see `Ages.rest`."""
        record = self.ages.rest(self._clocks)
        return Decision() if record is None else Decision(records=(record,))

    def attach(self, producer_id: str) -> None:
        """Notes that a producer's stream is connected."""
        self._clocks.attach(producer_id)

    def detach(self, producer_id: str, nonce: int, now: Instant) -> None:
        """Notes that a producer's stream broke. It has `session_grace_ms` to come back.

        Ignores the stream of a session that is not the producer's current one.
        """
        producer = self.producers.get(producer_id)
        if producer is not None and producer.nonce == nonce:
            self._clocks.detach(producer_id, now)

    def forget_waiting(self, refs: Iterable[Ref]) -> None:
        """Stops the waiting of requests whose client went away. Their transactions stay as they
        are."""
        self._waiting.forget(refs)
        self._finishing.forget(refs)
        self.queues.dispatch.forget(refs)

    def _due_to_abort(self, now: Instant) -> Decision | None:
        while self._to_abort:
            begin, reason = self._to_abort.popleft()
            transaction = self.transactions.get(begin)
            if transaction is not None and transaction.state is State.OPEN:
                return self._abort(transaction, reason, now)
        return None

    def _due_waiting(self, now: Instant, topics: Topics) -> Decision | None:
        while (woken := self._waiting.next_woken()) is not None:
            begin, waiting = woken
            transaction = self.transactions.get(begin)
            if transaction is None or transaction.state is not State.OPEN:
                continue
            decision = self._commit(transaction, waiting.command, now, topics)
            if decision.replies:
                return decision
        return None

    def _due_expired(self, now: Instant) -> Decision | None:
        while (begin := self._clocks.expired(now)) is not None:
            transaction = self.transactions.get(begin)
            if transaction is not None and transaction.state is State.OPEN:
                return self._abort(transaction, AbortReason.EXPIRED, now)
        return None

    def _due_answer(self, now: Instant) -> Decision | None:
        asked = self._finishing.overdue(now)
        outcome = None if asked is None else self.transactions.outcome(asked[0])
        if asked is None or outcome is None:
            return None
        return Decision(replies=((asked[1], outcome),))

    def _due_detached(self, now: Instant) -> Decision | None:
        while (producer_id := self._clocks.given_up(now)) is not None:
            producer = self.producers.get(producer_id)
            self._clocks.forget_given_up()
            if producer is not None and producer.open:
                self._to_abort.extend((b, AbortReason.DISCONNECTED) for b in producer.open)
                return self._due_to_abort(now)
        return None


def _done(ref: Ref, record: JournalRecord | None) -> Decision:
    return Decision(
        records=() if record is None else (record,),
        replies=((ref, commands.Done()),),
        fresh=record is None,
    )


def _check_certain(doubt: LogtxError | None) -> None:
    if doubt is not None:
        raise doubt


def _check_not_doomed(transaction: TransactionMetadata) -> None:
    if transaction.doomed is not None:
        raise ClaimFencedError(
            f"transaction {transaction.txid} can only be aborted{because(transaction.doomed)}"
        )
