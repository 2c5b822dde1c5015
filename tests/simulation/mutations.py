"""Rules of the cores, each with a plausible way to lose it, and the checker that must notice.

The simulator is as it is: what is broken here is coordinator, producer, consumer or the reading of
the journal. `test_mutations.py` shows that each is caught by the checker named for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from logtx.consumer import lookup
from logtx.consumer.core import buffer, looks
from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.entries import EntryState, PlainRun
from logtx.consumer.core.pending import PendingTransaction
from logtx.consumer.core.ranges import ControlCache, Match
from logtx.consumer.core.serial_buffer import SerialBuffer
from logtx.consumer.core.serial_order import SerialOrder
from logtx.coordinator.core import shard, snapshot
from logtx.coordinator.core.ages import Ages
from logtx.coordinator.core.claims import Claims
from logtx.coordinator.core.committed_offsets import CommittedOffsets
from logtx.coordinator.core.committed_offsets import StepsVerdict as OffsetsVerdict
from logtx.coordinator.core.decision import WriteMarkers
from logtx.coordinator.core.producers import Producers
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.core.tenure import Tenure
from logtx.coordinator.core.watermark import Deferred
from logtx.coordinator.protocol.commands import Action
from logtx.journal.control import Marker
from logtx.journal.records.fate import NO_EPOCH, EpochFilter
from logtx.journal.records.types import AbortReason, Entry, Owner, PrepareAbort
from logtx.journal.state import State
from logtx.producer.core import bookkeeping
from logtx.producer.core.bookkeeping import Phase, TransactionBook
from logtx.producer.core.tally import BranchTally

from . import (
    adopting_mutations,
    compaction_mutations,
    place_mutations,
    placed_queue_mutations,
    queue_mutations,
    reset_mutations,
    shell_mutations,
    shown_mutations,
    sidecar_mutations,
)
from .registry import MUTATIONS, Mutation, Patch, caught_by

__all__ = [
    "MUTATIONS",
    "Mutation",
    "Patch",
    "adopting_mutations",
    "compaction_mutations",
    "place_mutations",
    "placed_queue_mutations",
    "queue_mutations",
    "reset_mutations",
    "shell_mutations",
    "shown_mutations",
    "sidecar_mutations",
]


# ---- who may write the journal ------------------------------------------------------------------


@caught_by("fenced")
def no_epoch_check(patch: Patch) -> None:
    """Readers believe what a replaced coordinator appends (trap 3)."""
    accept = EpochFilter.accept

    def mutant(self: EpochFilter, offset: int, entry: Entry) -> bool:
        if not isinstance(entry.record, Owner):
            entry = replace(entry, epoch=self.epoch, predicted=offset)
        return accept(self, offset, entry)

    def acknowledged(
        self: Tenure, predicted: int, offset: int | None, now_ms: int, why: str = ""
    ) -> None:
        original(self, predicted, None if offset is None else predicted, now_ms, why)

    original = Tenure.acknowledged
    patch(EpochFilter, "accept", mutant)
    patch(Tenure, "acknowledged", acknowledged)


@caught_by("decided-once")
def no_prediction_check(patch: Patch) -> None:
    """Readers believe a record that lies in the place of a lost one (traps 3, 26)."""
    accept = EpochFilter.accept

    def mutant(self: EpochFilter, offset: int, entry: Entry) -> bool:
        return accept(self, offset, replace(entry, predicted=offset))

    patch(EpochFilter, "accept", mutant)


@caught_by("durable")
def strangers_are_passed_over(patch: Patch) -> None:
    """Readers believe an epoch again behind a record that was not its own (trap 2)."""
    accept = EpochFilter.accept

    def mutant(self: EpochFilter, offset: int, entry: Entry) -> bool:
        accepted = accept(self, offset, entry)
        self._surprised = self.epoch == NO_EPOCH
        return accepted

    patch(EpochFilter, "accept", mutant)


@caught_by("durable")
def any_offset_will_do(patch: Patch) -> None:
    """An append is taken for durable wherever it was acknowledged (traps 2 and 5)."""
    acknowledged = Tenure.acknowledged

    def mutant(
        self: Tenure, predicted: int, offset: int | None, now_ms: int, why: str = ""
    ) -> None:
        acknowledged(self, predicted, None if offset is None else predicted, now_ms, why)

    patch(Tenure, "acknowledged", mutant)


@caught_by("durable")
def same_epoch_again(patch: Patch) -> None:
    """After an append of unknown outcome the owner serves on under its old epoch (trap 3)."""
    acknowledged = Tenure.acknowledged

    def mutant(
        self: Tenure, predicted: int, offset: int | None, now_ms: int, why: str = ""
    ) -> None:
        acknowledged(self, predicted, predicted if offset is None else offset, now_ms, why)

    patch(Tenure, "acknowledged", mutant)


# ---- when a client may be told ------------------------------------------------------------------


@caught_by("durable")
def reply_before_acknowledgement(patch: Patch) -> None:
    """A reply does not wait for its record."""
    patch(Tenure, "_park", lambda self, parked: self._tell(parked.item))


@caught_by("durable")
def bare_reply_at_once(patch: Patch) -> None:
    """A retried commit has nothing to append, and is answered at once (trap 1)."""
    apply = Tenure._apply

    def mutant(self: Tenure, decision: Any) -> None:
        if decision.records or decision.fresh:
            apply(self, decision)
            return
        for ref, reply in decision.replies:
            self._shell.answer(ref, reply)
        apply(self, replace(decision, replies=()))

    patch(Tenure, "_apply", mutant)


@caught_by("offsets")
def stale_answers(patch: Patch) -> None:
    """An answer that could be stale does not ask for the journal's end."""
    patch(Tenure, "_ask", lambda self, parked: self._park(parked))


@caught_by("durable")
def marker_before_the_decision(patch: Patch) -> None:
    """Markers go out when the decision is appended, not when it is durable."""
    apply = Tenure._apply

    def mutant(self: Tenure, decision: Any) -> None:
        apply(self, decision)
        in_flight = self.shard.watermark.in_flight
        early = [item for item in in_flight if isinstance(item, Deferred)]
        for item in early:
            in_flight.remove(item)
        self._execute(item.effect for item in early)

    patch(Tenure, "_apply", mutant)


# ---- what is decided ----------------------------------------------------------------------------


@caught_by("high-watermark")
def speculative_hw(patch: Patch) -> None:
    """HW counts what is still in flight (trap 4)."""

    def mutant(self: Shard) -> int:
        return min((t.begin for t in self.transactions), default=self.next_offset)

    patch(Shard, "hw", property(mutant))


@caught_by("high-watermark")
def hw_too_early(patch: Patch) -> None:
    """HW passes a transaction that is decided, before its markers are written."""

    def mutant(self: Shard) -> int:
        opened = (t.begin for t in self.transactions if t.state is State.OPEN)
        return min((*opened, self.watermark.end))

    patch(Shard, "hw", property(mutant))


@caught_by("offsets")
def no_compare_and_set(patch: Patch) -> None:
    """Input offsets are not compared when the commit is decided (trap 26)."""
    patch(CommittedOffsets, "evaluate", lambda *_: (OffsetsVerdict.EQUAL, ()))


@caught_by("offsets")
def no_wait_for_earlier_input(patch: Patch) -> None:
    """A commit does not wait for the earlier transaction whose input it continues."""
    evaluate = CommittedOffsets.evaluate

    def mutant(self: CommittedOffsets, *args: Any) -> Any:
        verdict, blockers = evaluate(self, *args)
        return OffsetsVerdict.EQUAL if verdict is OffsetsVerdict.WAIT else verdict, blockers

    patch(CommittedOffsets, "evaluate", mutant)


@caught_by("decided-once")
def retried_begin_opens_another(patch: Patch) -> None:
    """The request of a BEGIN is forgotten."""
    replay = Shard._replay_begin

    def mutant(self: Shard, offset: int, record: Any) -> None:
        replay(self, offset, record)
        self.producers[record.producer_id].begins.clear()

    patch(Shard, "_replay_begin", mutant)


@caught_by("fenced")
def fenced_generation_commits(patch: Patch) -> None:
    """The session of a command is not looked at, and fenced transactions stay open."""
    patch(Producers, "require", lambda self, s: self[s.producer_id])
    patch(Shard, "_due_to_abort", lambda *_: None)


@caught_by("fenced", of="key")
def deleted_key_begins_anew(patch: Patch) -> None:
    """A deleted key's epochs are given out again from 0 (trap 32)."""
    admit = Producers._admit_key

    def mutant(self: Producers, command: Any, now: Any) -> Any:
        producer = self.get(command.producer_id)
        if producer is not None and producer.voided:
            return self._admitted(command, 0, now)
        return admit(self, command, now)

    patch(Producers, "_admit_key", mutant)


@caught_by("fenced")
def forgotten_generations_come_back(patch: Patch) -> None:
    """What is forgotten of a producer leaves no floor (trap 32)."""
    patch(Producers, "replay_forget", lambda self, names: [self.pop(n, None) for n in names])


@caught_by("finished")
def what_is_open_is_forgotten(patch: Patch) -> None:
    """A producer is forgotten though it has a transaction open."""
    patch(Ages, "_is_free", lambda *_: True)


@caught_by("fenced", of="key")
def key_with_many_transactions(patch: Patch) -> None:
    """A transaction key may have several transactions open."""
    patch(Producers, "check_may_begin", lambda *_: None)


@caught_by("decided-once")
def expiry_ignores_the_decision(patch: Patch) -> None:
    """A time-out aborts what is being committed, and the last decision counts (trap 13)."""
    replay = Shard._replay_abort

    def replay_abort(self: Shard, offset: int, record: PrepareAbort) -> Any:
        transaction = self.transactions.get(record.begin)
        if transaction is not None and transaction.state is State.COMMITTING:
            transaction.state, transaction.commit_sequence = State.ABORTING, offset
            return ()
        return replay(self, offset, record)

    def due_expired(self: Shard, now: Any) -> Any:
        for transaction in self.transactions:
            late = transaction.started_ms + transaction.timeout_ms <= now.wall_ms
            if late and not transaction.state.aborts:
                return self._abort(transaction, AbortReason.EXPIRED, now)
        return None

    patch(Shard, "_replay_abort", replay_abort)
    patch(Shard, "_due_expired", due_expired)


@caught_by("exactly-once", of="parts")
def repeated_parts_count_again(patch: Patch) -> None:
    """A part of what branches wrote that is sent again is taken for another one."""
    handle = Shard._handle_add_writes

    def mutant(self: Shard, command: Any, *rest: Any) -> Any:
        known = self.transactions.get(command.txid.offset)
        if known is not None:
            command = replace(command, part=known.parts)
        return handle(self, command, *rest)

    patch(Shard, "_handle_add_writes", mutant)
    patch(shard, "check_parts", lambda *_: None)


@caught_by("exactly-once", of="parts")
def the_decision_alone_counts(patch: Patch) -> None:
    """What is named in parts is not part of the transaction that is committed."""
    replay = Shard._replay_commit

    def mutant(self: Shard, offset: int, record: Any) -> None:
        self.transactions.forget_writes(record.begin)
        replay(self, offset, record)

    patch(Shard, "_replay_commit", mutant)


@caught_by("exactly-once", of="parts")
def snapshot_forgets_parts(patch: Patch) -> None:
    """A snapshot says how many parts an open transaction has, and not what they say (trap 8)."""
    row = snapshot._transaction_row

    def mutant(transaction: Any) -> Any:
        kept = row(transaction)
        if transaction.state is not State.OPEN or not kept.parts:
            return kept
        return kept._replace(partitions=tuple(transaction.partitions.values()), writes=())

    patch(snapshot, "_transaction_row", mutant)


@caught_by("offsets")
def bindings_change(patch: Patch) -> None:
    """The last to bind a consumer group wins, not the first (trap 28)."""
    handle = Shard._handle_bind

    def mutant(self: Shard, *args: Any) -> Any:
        bound, self.bindings = self.bindings, {}
        try:
            return handle(self, *args)
        finally:
            self.bindings = bound

    patch(Shard, "_handle_bind", mutant)


# ---- claims -------------------------------------------------------------------------------------


@caught_by("claims", of="claim")
def claims_doom_nothing(patch: Patch) -> None:
    """What is open when its input is claimed may still be committed (trap 24)."""
    patch(Shard, "_replay_claim", lambda self, offset, record: self.claims.replay(offset, record))


@caught_by("claims", of="claim")
def condition_not_looked_at(patch: Patch) -> None:
    """A conditional claim holds whoever claimed since: two fence each other (trap 29)."""
    decide = Claims.decide

    def mutant(self: Claims, command: Any) -> int | None:
        return decide(self, replace(command, expected=None))

    patch(Claims, "decide", mutant)


@caught_by("claims", of="claim")
def doomed_may_commit(patch: Patch) -> None:
    """What is doomed may still be committed, and nobody aborts it at once (trap 24)."""
    patch(shard, "_check_not_doomed", lambda _: None)
    patch(Shard, "_due_to_abort", lambda *_: None)


@caught_by("claims", of="claim")
def older_claims_go_on(patch: Patch) -> None:
    """Input of a worker whose partitions were given to another is taken (trap 24)."""
    patch(Claims, "check", lambda *_: None)


@caught_by("claims", of="claim")
def snapshot_forgets_claims(patch: Patch) -> None:
    """A snapshot leaves out the claims (trap 8)."""
    _snapshot(patch, lambda rows: [*rows[:4], [], *rows[5:]])


@caught_by("processed", of="claim")
def input_of_anybody(patch: Patch) -> None:
    """An IOV is taken from whoever commits it, without compare and without claim (traps 24, 26)."""
    patch(CommittedOffsets, "evaluate", lambda *_: (OffsetsVerdict.EQUAL, ()))
    older_claims_go_on(patch)
    claims_doom_nothing(patch)


# ---- what a new owner does ----------------------------------------------------------------------


def _loaded(patch: Patch, change: Callable[[list[Any]], list[Any]]) -> None:
    loaded = Shard.loaded
    patch(Shard, "loaded", lambda self, *args: change(loaded(self, *args)))


@caught_by("commit-order")
def redone_in_order_of_begin(patch: Patch) -> None:
    """A new owner writes markers in the order of the TxIds, not of the decisions."""

    def change(effects: list[Any]) -> list[Any]:
        markers = [e for e in effects if isinstance(e, WriteMarkers)]
        others = [e for e in effects if not isinstance(e, WriteMarkers)]
        return [*others, *sorted(markers, key=lambda e: e.transaction.begin)]

    _loaded(patch, change)


@caught_by("finished")
def nothing_redone(patch: Patch) -> None:
    """A new owner does not write the markers that its predecessor may not have written."""
    _loaded(patch, lambda effects: [e for e in effects if not isinstance(e, WriteMarkers)])


@caught_by("offsets")
def offsets_not_asserted_again(patch: Patch) -> None:
    """A new owner leaves the copy of the IOVs to the old one (trap 27)."""
    _loaded(patch, lambda effects: [e for e in effects if isinstance(e, WriteMarkers)])


def _snapshot(patch: Patch, change: Callable[[list[Any]], list[Any]]) -> None:
    rows = snapshot._rows
    patch(snapshot, "_rows", lambda shard: tuple(change(list(rows(shard)))))


@caught_by("fenced", of="snapshot")
def snapshot_forgets_generations(patch: Patch) -> None:
    """A snapshot holds the producers, but not how far their generations have come (trap 8)."""

    def change(rows: list[Any]) -> list[Any]:
        producers = [row._replace(generation=0, voided=False) for row in rows[0]]
        return [producers, *rows[1:]]

    _snapshot(patch, change)


@caught_by("offsets", of="snapshot")
def snapshot_forgets_offsets(patch: Patch) -> None:
    """A snapshot leaves out the committed input offsets (trap 8)."""
    _snapshot(patch, lambda rows: [*rows[:2], [], *rows[3:]])


@caught_by("durable", of="snapshot")
def snapshot_forgets_open_transactions(patch: Patch) -> None:
    """A snapshot leaves out what is open (trap 8)."""
    _snapshot(patch, lambda rows: [rows[0], [], *rows[2:]])


@caught_by("retained", of="snapshot")
def snapshot_counts_at_once(patch: Patch) -> None:
    """A snapshot counts, and the journal is trimmed, before all of it is durable (trap 9)."""
    take = Tenure.snapshot

    def mutant(self: Tenure) -> bool:
        further = take(self)
        if self._taker is not None:
            self.snapshot_offset = self._taker.first
        return further

    patch(Tenure, "snapshot", mutant)


# ---- the producer -------------------------------------------------------------------------------


@caught_by("exactly-once", of="producer")
def commit_before_the_reports(patch: Patch) -> None:
    """A commit does not wait for the reports of the transaction's records."""

    def ready(self: TransactionBook) -> bool:
        return self.phase is Phase.ENDING and (self.end is Action.ABORT or self.requests == 0)

    patch(TransactionBook, "ready", property(ready))


@caught_by("exactly-once", of="producer")
def failed_record_is_forgotten(patch: Patch) -> None:
    """A record that failed does not make its transaction abort-only."""
    patch(BranchTally, "_fail", lambda *_: None)


@caught_by("decided-once", of="producer")
def unknown_outcome_is_an_abort(patch: Patch) -> None:
    """An answer that tells nothing of a commit is taken for an abort."""
    read = bookkeeping.end_result

    def mutant(reply: Any) -> bookkeeping.EndResult:
        told = read(reply)
        unknown = told is bookkeeping.EndResult.UNKNOWN
        return bookkeeping.EndResult.ABORTED if unknown else told

    patch(bookkeeping, "end_result", mutant)


# ---- the consumer -------------------------------------------------------------------------------


@caught_by("exactly-once", of="consumer")
def duplicate_marker_believed(patch: Patch) -> None:
    """Any marker is taken for a transaction's end, and side reads pass over earlier ones."""
    patch(PartitionBuffer, "has_ended", lambda *_: False)
    ends, settle = PartitionBuffer._end, PartitionBuffer.answer_side_read

    def end(self: PartitionBuffer, *args: Any) -> None:
        self._met.clear()
        ends(self, *args)

    def mutant(self: PartitionBuffer, request: Any, found: Any, **how: Any) -> None:
        settle(self, request, found, **{**how, "duplicate": False})

    patch(PartitionBuffer, "_end", end)
    patch(PartitionBuffer, "answer_side_read", mutant)


@caught_by("exactly-once", of="consumer")
def count_forgotten(patch: Patch) -> None:
    """A transaction is delivered as the buffer has it, whatever its marker states."""
    judge = ControlCache.judge

    def mutant(self: ControlCache, records: Any, ranges: Any) -> Any:
        records = list(records)
        verdict = judge(self, records, ranges)
        return replace(verdict, match=Match.EXACT, accepted=len(records) - verdict.late)

    def fill(self: PartitionBuffer, entry: Any, pending: Any) -> None:
        original(self, entry, pending)
        if isinstance(entry.stream, list):
            entry.total = len(entry.stream)

    original = PartitionBuffer._fill
    patch(ControlCache, "judge", mutant)
    patch(PartitionBuffer, "_fill", fill)


@caught_by("exactly-once", of="consumer")
def strays_are_delivered(patch: Patch) -> None:
    """Records outside of what the marker accepts are delivered too (traps 15, 22)."""
    fill = PartitionBuffer._fill

    def mutant(self: PartitionBuffer, entry: Any, pending: Any) -> None:
        fill(self, entry, pending)
        if entry.state is EntryState.READY and pending.run is None:
            entry.stream, entry.total = pending.records, len(pending.records)

    patch(PartitionBuffer, "_fill", mutant)


@caught_by("exactly-once", of="consumer")
def delivered_part_forgotten(patch: Patch) -> None:
    """After a restart within a transaction its first records are delivered again (trap 18)."""
    begin = PartitionBuffer.__init__

    def mutant(self: PartitionBuffer, partition: Any, start: Any, *args: Any, **how: Any) -> None:
        begin(self, partition, replace(start, o3=0), *args, **how)

    patch(PartitionBuffer, "__init__", mutant)


@caught_by("atomic", of="consumer")
def marker_not_looked_at(patch: Patch) -> None:
    """An ABORTED marker ends a transaction like a COMMITTED one."""
    decode = buffer.decode_control

    def mutant(raw: bytes | None) -> Any:
        control = decode(raw)
        if isinstance(control, Marker) and not control.committed:
            return replace(control, committed=True)
        return control

    original = PartitionBuffer._commit

    def commit(self: PartitionBuffer, entry: Any, pending: Any) -> None:
        records = [] if pending is None else pending.records
        original(self, entry, pending)
        if not entry.marker.branches:
            entry.stream, entry.total = records, len(records)
            entry.available = entry.total

    patch(buffer, "decode_control", mutant)
    patch(PartitionBuffer, "_commit", commit)


@caught_by("no-blocking", of="consumer")
def open_transactions_block(patch: Patch) -> None:
    """Nothing behind an open transaction's first record is delivered, as Kafka has it."""
    passed = PartitionBuffer._pass_finished

    def mutant(self: PartitionBuffer) -> None:
        passed(self)
        first = min((p.first_offset for p in self._pending.values()), default=2**63)
        held = self.__dict__.setdefault("held", [])
        queue = self._queue
        while held and _place(held[0]) < first:
            queue.append(held.pop(0))
        while queue and _place(queue[-1]) > first:
            held.insert(0, queue.pop())

    patch(PartitionBuffer, "_pass_finished", mutant)


def _place(entry: Any) -> int:
    return int(entry.first_offset if isinstance(entry, PlainRun) else entry.marker_offset)


@caught_by("exactly-once", of="consumer")
def end_before_the_fate(patch: Patch) -> None:
    """One look-up is believed, with the partition's end first and the fate after it (trap 17)."""

    def mutant(log: Any, questions: Any, *, timeout_s: float, clock: Any) -> list[Any]:
        ends = {key: log.end_offset(*key, timeout_s=timeout_s) for key, _ in questions}
        txids = {raw: lookup.TxId.from_bytes(raw) for _, raw in questions}
        fates = lookup.find_fates(log, txids.values(), timeout_s=timeout_s)
        return [
            lookup.LookedUp(key, raw, ends[key], fates[txids[raw]], clock())
            for key, raw in questions
        ]

    patch(lookup, "answer", mutant)
    patch(lookup.LookedUp, "_apart_s", lambda *_: -1.0)


@caught_by("exactly-once", of="consumer")
def look_up_believed_at_once(patch: Patch) -> None:
    """One look-up is believed, though a former leader may have told the end (trap 63)."""
    patch(lookup.LookedUp, "_apart_s", lambda *_: -1.0)


@caught_by("exactly-once", of="consumer")
def looks_counted_from_a_journal_of_the_past(patch: Patch) -> None:
    """The first of two looks may have been at a journal that ended before the BEGIN (trap 63)."""
    patch(PendingTransaction, "ahead", property(lambda _: False, lambda *_: None))


# ---- serializable readers -----------------------------------------------------------------------


@caught_by("serial-order", of="serial")
def markers_not_awaited(patch: Patch) -> None:
    """A transaction is given out before its markers were read in every partition (trap 23)."""
    patch(SerialOrder, "_is_behind", lambda *_: True)


@caught_by("serial-order", of="serial")
def order_of_the_markers(patch: Patch) -> None:
    """Decisions are let through as their markers come, not in the order of the journal."""
    head = SerialOrder.head

    def mutant(self: SerialOrder, buffers: Any) -> Any:
        first = head(self, buffers)
        for decision in [] if first is None else list(self._decisions):
            raw = decision.txid.to_bytes()
            if all(buffers[key].ended(raw) for key in decision.partitions if key in buffers):
                self._decisions.remove(decision)
                self._decisions.appendleft(decision)
                return head(self, buffers)
        return first

    patch(SerialOrder, "head", mutant)


@caught_by("serial-order", of="serial")
def serial_part_forgotten(patch: Patch) -> None:
    """A position in the middle of a transaction lies before its first record (trap 18)."""
    position = SerialBuffer.position
    patch(SerialBuffer, "position", lambda self: replace(position(self), o3=0))


@caught_by("serial-order", of="serial")
def finished_before_its_ends(patch: Patch) -> None:
    """The ends of partitions are asked for before the journal says that all markers are there."""
    decide = SerialOrder.decide

    def mutant(self: SerialOrder, decision: Any) -> None:
        decide(self, decision)
        self.finish(decision, -1)

    patch(SerialOrder, "decide", mutant)
    patch(looks, "LOOKS_APART_S", 0.0)


@caught_by("serial-order", of="serial")
def ends_believed_at_once(patch: Patch) -> None:
    """One end is believed, though a former leader may have told it (trap 63)."""
    patch(looks, "LOOKS_APART_S", 0.0)
