"""Whole transactions of one transaction group, in commit-sequence order across partitions.

Two things are joined. `SerialBuffer` collects, per data partition, the group's transactions whose
marker was read. `SerialOrder` takes the decisions from the journal, in order, and lets the first
one through when it has ended in every partition of ours. No I/O, clock or randomness.

Why the journal: one partition's markers don't say what another partition's next marker is, so
only the journal knows that nothing comes before (T2's marker may stand at 50 and T1's, decided
earlier, in another partition at 100).

Why waiting ends. The first decision waits for its markers in our partitions. Each is written in
the end, and read, unless it lies below where we began. That is known when the journal says
"finished" and *then* the partition's end is asked for and read up to: a finished transaction's
markers lie below that end, so one not met by then lies below our start, and is passed over.

Below the *floor*. The journal may be trimmed while data is still there, so reading of it may begin
at an offset above decisions that are due. Of all decided below that floor the few unfinished are
known, and of the others every marker lies below the ends that our partitions have by then. So the
markers alone give their order: in one partition they stand in commit-sequence order, so when each
partition shows its next marker, or was read up to that end, the lowest of them is the next
transaction, and what stands in front with its commit sequence is all of it.

Positions. In one data partition the markers of one journal partition stand in commit-sequence
order, so (o2, o3) mean there what they mean to every consumer: of this group, what ended below o2
is delivered, and o3 records of what ended at o2. `delivered` is the last commit sequence up to
which nothing is due in this partition; it says which decisions of the journal are behind it, those
without records in this partition included. So each partition has a place of its own: in the middle
of a transaction those before have passed it, those behind have not, and one stands within it.

What would go wrong otherwise: traps 18 and 23.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from ...journal.control import Marker, TopicPartition
from ...journal.errors import ConsumerError, MalformedHeaderError
from ...journal.position import Journal, Position
from ...journal.txid import TxId
from ...journal.value import value
from .buffer import MalformedFactory, PartitionBuffer, met_before
from .counters import ConsumerCounters
from .entries import EndedTransaction, EntryState, PlainRun, advance
from .headers import txid_error
from .pending import PendingTransaction, PendingTransactionMap, RawTxId, Record

PARTITION_BYTES: Final = 2
"""The part of a TxId that names the journal partition."""
NO_TIMESTAMP: Final = -1
"""Stands for the time of a decision that was trimmed from the journal, as in Kafka."""


class SerialBuffer(PartitionBuffer):
    """A data partition in serial order: one journal partition's transactions only."""

    delivers_plain = False

    def __init__(
        self,
        partition: TopicPartition,
        start: Position,
        pending_map: PendingTransactionMap,
        *,
        journal_partition: int,
        malformed: MalformedFactory,
        counters: ConsumerCounters | None = None,
        torn_skip_below: int = 0,
    ) -> None:
        """Collect nothing yet; arguments as `PartitionBuffer`'s, and `journal_partition`: whose
        transactions are collected."""
        own = {j: s for j, s in met_before(start).items() if j[0] == journal_partition}
        super().__init__(
            partition,
            replace(start, met=own, delivered={}),
            pending_map,
            malformed=malformed,
            counters=counters,
            torn_skip_below=torn_skip_below,
        )
        self.journal_partition = journal_partition
        self._wanted = journal_partition.to_bytes(PARTITION_BYTES, "big")
        self._held: dict[RawTxId, EndedTransaction] = {}
        """Committed and not let through yet, by marker, so by commit sequence."""
        self._held_records = 0
        self._unsettled: dict[RawTxId, EndedTransaction] = {}
        """Those of `_held` that waited for a side read when last looked at."""
        self._parked = self._pending_map.view()
        """Records of `_held`, which count against the limit of memory and may be spilled."""
        self._fresh: list[PendingTransaction] = []
        """Of those, the ones that this batch added."""
        self.malformed: deque[tuple[Record, MalformedHeaderError]] = deque()
        """Records whose headers did not decode, as events, to be told once each."""

    @property
    def delivered(self) -> Mapping[Journal, int]:
        """Last commit sequence, by journal, up to which nothing is due in this partition."""
        return self._met_taken

    def skip_to(self, journal: Journal, sequence: int) -> None:
        """Deliver nothing that is decided up to here. Before the first `feed`."""
        self._met_taken[journal] = max(sequence, self._met_taken.get(journal, -1))

    # ---- in -------------------------------------------------------------------------------------

    def _begin(self, raw: bytes | None, record: Record, live: bool) -> PendingTransaction | None:
        if raw is not None and raw[:PARTITION_BYTES] != self._wanted and len(raw) == 16:
            self.counters.passed_records += live
            return None
        return super()._begin(raw, record, live)

    def _end(self, raw: RawTxId, marker: Marker, offset: int, live: bool) -> None:
        if raw[:PARTITION_BYTES] == self._wanted:
            super()._end(raw, marker, offset, live)

    def _report(
        self, record: Record, raw: bytes | None, error: MalformedHeaderError | None, live: bool
    ) -> None:
        if live:
            error = error or txid_error(raw)
            self.counters.malformed_headers += 1
            topic, partition = self.partition
            where = f"record at {topic}[{partition}] offset {record.offset()} is not delivered"
            event = self._malformed(record, error)
            self.malformed.append((event, MalformedHeaderError(f"{where}: {error}")))

    def _push(self, entry: EndedTransaction) -> None:
        # Entries without records stand for a duplicate: their end lies before our start.
        raw = entry.txid
        passed = entry.marker.commit_sequence <= self._met_taken.get(entry.journal, -1)
        if passed or raw in self._held:
            # Not `_finish`, which would say that it was delivered.
            if entry.pending is not None:
                self._parked.pop(raw, None)
                self._pending_map.discard(entry.pending)
            return
        self._held[raw] = entry
        self._held_records += entry.stated
        if entry.state is EntryState.WAITING:
            self._unsettled[raw] = entry

    def _filled(self, entry: EndedTransaction) -> None:
        # Its turn may come late: until then it may be spilled, so nothing reads it yet.
        if entry.pending is not None:
            self._parked[entry.txid] = entry.pending
            self._fresh.append(entry.pending)

    def _after_batch(self) -> None:
        super()._after_batch()
        if self._fresh:
            still = {id(p): p for p in self._fresh if self._parked.get(p.txid) is p}
            self._fresh = []
            self._pending_map.charge(list(still.values()))

    def _waiting(self) -> Iterator[EndedTransaction]:
        unsettled = self._unsettled
        for raw in [r for r, e in unsettled.items() if e.state is not EntryState.WAITING]:
            del unsettled[raw]
        return iter(list(unsettled.values()))

    def _undelivered(self) -> Iterator[EndedTransaction]:
        return chain(super()._undelivered(), self._held.values())

    @property
    def ready(self) -> bool:
        """Never: whose turn it is, is `SerialOrder`'s to say."""
        return False

    @property
    def blocked(self) -> bool:
        """Whether a side read is wanted."""
        return next(self._waiting(), None) is not None

    @property
    def queued_records(self) -> int:
        """Records of collected transactions."""
        return self._held_records

    # ---- out ------------------------------------------------------------------------------------

    def ended(self, raw: RawTxId) -> EndedTransaction | None:
        """A collected transaction."""
        return self._held.get(raw)

    def first(self) -> EndedTransaction | None:
        """The collected transaction of the lowest commit sequence."""
        return next(iter(self._held.values()), None)

    def release(self, journal: Journal, sequence: int) -> None:
        """Nothing up to this commit sequence is due here any more: pass over what is collected."""
        passed = []
        for raw, entry in self._held.items():
            if entry.journal == journal:
                if entry.marker.commit_sequence > sequence:
                    break
                passed.append(raw)
        for raw in passed:
            self._finish(self._unhold(raw))
        self._met_taken[journal] = max(sequence, self._met_taken.get(journal, -1))

    def let_through(self, raw: RawTxId) -> None:
        """It is this transaction's turn here: from now on `take` gives its records."""
        entry = self._unhold(raw)
        self._open_stream(entry)
        self._queue.append(entry)

    @property
    def delivering(self) -> bool:
        """Whether what was let through is not all taken."""
        self._pass_finished()
        return bool(self._queue)

    def hand_over(self, raw: RawTxId) -> EndedTransaction:
        """Give a transaction out as one: it counts as delivered, and `finish` drops its records."""
        entry = self._unhold(raw)
        advance(self._met_taken, entry)
        return entry

    def stream(self, entry: EndedTransaction) -> Sequence[Record] | Iterator[Record]:
        """The records of a transaction that was handed over."""
        if entry.pending is not None:
            self._open_stream(entry)
        stream = entry.stream
        return stream[entry.taken :] if isinstance(stream, Sequence) else stream

    def finish(self, entry: EndedTransaction) -> None:
        """Drop a handed-over entry's records; also after `close`."""
        self._finish(entry)

    def _unhold(self, raw: RawTxId) -> EndedTransaction:
        entry = self._held.pop(raw)
        self._held_records -= entry.stated
        self._unsettled.pop(raw, None)
        self._parked.pop(raw, None)
        return entry

    # ---- positions ------------------------------------------------------------------------------

    def position(self) -> Position:
        """What was delivered, exactly: (o1, o2, o3) and `delivered`."""
        self._pass_finished()
        first = self.first()
        if self._queue or first is None:
            return super().position()
        return self._position(first.marker_offset, first.taken, self._met_taken, ())

    def _position(
        self,
        o2: int,
        o3: int,
        met: dict[Journal, int],
        queue: Sequence[PlainRun | EndedTransaction] | deque[PlainRun | EndedTransaction],
    ) -> Position:
        place = super()._position(o2, o3, met, [*queue, *self._held.values()])
        # Below o2 of the start nothing was let through, but decisions may have passed by.
        return replace(place, met={}, delivered=dict(met))

    def close(self) -> None:
        """Drop everything that is held, in memory and on disk."""
        for entry in self._held.values():
            self._finish(entry)
        self._held.clear()
        self._pending_map.drop(self._parked)
        super().close()


@value(frozen=True, slots=True)
class CommitDecision:
    """A valid decision to commit."""

    sequence: int
    """Journal offset: the commit sequence."""
    txid: TxId
    decided_ms: int
    """`NO_TIMESTAMP` where its journal record was not read."""
    partitions: tuple[TopicPartition, ...]
    """Data partitions with accepted records."""
    unnamed: int = 0
    """How many there are besides: where the decision was not read, those are not named."""


@value(frozen=True, slots=True)
class Whole:
    """A transaction whose turn it is."""

    decision: CommitDecision
    entries: Mapping[TopicPartition, EndedTransaction]
    """What ended in each of our partitions; without those that ended before our start."""


Buffers = Mapping[TopicPartition, SerialBuffer]


@dataclass(frozen=True, slots=True)
class Floor:
    """Where reading of the journal began, above decisions that may be due."""

    journal: Journal
    sequence: int
    """Of everything decided below, all is finished that is not told by `SerialOrder.decide`."""
    ends: Mapping[TopicPartition, int]
    """End offsets of our partitions, asked for after that was known."""


@dataclass(slots=True)
class SerialOrder:
    """Decisions in journal order, each let through when it has ended in all our partitions."""

    counters: ConsumerCounters
    _decisions: deque[CommitDecision] = field(default_factory=deque)
    _finished: set[TxId] = field(default_factory=set)
    _ends: dict[TopicPartition, int] | None = None
    """Ends of the first decision's missing partitions, asked for after it was finished."""
    _floor: Floor | None = None

    def begin(self, floor: Floor | None = None) -> None:
        """Forget all: the journal will be read again, from its start or from a floor."""
        self._decisions.clear()
        self._finished.clear()
        self._ends = None
        self._floor = floor

    def __len__(self) -> int:
        """Decisions that wait."""
        return len(self._decisions)

    def decide(self, decision: CommitDecision) -> None:
        """Take the next decision of the journal."""
        self._decisions.append(decision)

    def finish(self, txid: TxId) -> None:
        """The journal says that all markers of this transaction are written."""
        self._finished.add(txid)

    # ---- which is the next ----------------------------------------------------------------------

    def head(self, buffers: Buffers) -> CommitDecision | None:
        """The first decision that concerns our partitions; passes over those before it."""
        found = self._head(buffers)
        return None if found is None else found[0]

    def _head(self, buffers: Buffers) -> tuple[CommitDecision, list[TopicPartition]] | None:
        # With those of our partitions that it concerns.
        while True:
            if self._floor is not None:
                if self._unread(self._floor, buffers):
                    return None
                self._below(self._floor, buffers)
            if not self._decisions:
                return None
            decision = self._decisions[0]
            journal, sequence = decision.txid.journal, decision.sequence
            needed = [
                key
                for key in decision.partitions
                if key in buffers and sequence > buffers[key].delivered.get(journal, -1)
            ]
            if needed:
                return decision, needed
            self._pass(buffers)

    @staticmethod
    def _unread(floor: Floor, buffers: Buffers) -> list[TopicPartition]:
        # Partitions that may still show a marker below all that the others show.
        return [
            key
            for key, buffer in buffers.items()
            if buffer.first() is None and buffer.next_offset < floor.ends.get(key, 0)
        ]

    def _below(self, floor: Floor, buffers: Buffers) -> None:
        # Every partition shows its next marker, or has none below the floor.
        found = {
            key: entry
            for key, buffer in buffers.items()
            if (entry := buffer.first()) is not None and entry.journal == floor.journal
        }
        lowest = min((e.marker.commit_sequence for e in found.values()), default=floor.sequence)
        known = self._decisions[0].sequence if self._decisions else floor.sequence
        if min(lowest, known) >= floor.sequence:
            self._floor = None
        elif lowest < known:
            entries = {k: e for k, e in found.items() if e.marker.commit_sequence == lowest}
            entry = next(iter(entries.values()))
            txid, unnamed = TxId.from_bytes(entry.txid), entry.marker.partition_count - len(entries)
            self._decisions.appendleft(
                CommitDecision(lowest, txid, NO_TIMESTAMP, tuple(sorted(entries)), max(unnamed, 0))
            )
            self._ends = None

    def missing(self, buffers: Buffers) -> list[TopicPartition]:
        """Partitions whose next marker the order waits for: they are to be read on."""
        head = self._head(buffers)
        if head is None:
            return [] if self._floor is None else self._unread(self._floor, buffers)
        decision, needed = head
        raw = decision.txid.to_bytes()
        return [
            key
            for key in needed
            if buffers[key].ended(raw) is None and not buffers[key].has_ended(raw)
        ]

    def wants_ends(self, buffers: Buffers) -> list[TopicPartition]:
        """Partitions whose ends are to be asked for, now and not earlier."""
        decision = self.head(buffers)
        if decision is None or self._ends is not None or decision.txid not in self._finished:
            return []
        return self.missing(buffers)

    def set_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """End offsets of what `wants_ends` gave, asked for after that."""
        self._ends = dict(ends)

    def take(self, buffers: Buffers) -> Whole | None:
        """The next transaction, if it has ended in all of our partitions.

        What it gives is to be let through, or handed over, by each of its partitions' buffers.
        None also where it failed, see `failure`.
        """
        while (head := self._head(buffers)) is not None:
            decision, needed = head
            raw = decision.txid.to_bytes()
            entries: dict[TopicPartition, EndedTransaction] = {}
            for key in needed:
                buffer = buffers[key]
                entry = buffer.ended(raw)
                if entry is None:
                    if not buffer.has_ended(raw) and not self._read_past(key, buffer):
                        return None
                elif entry.state is not EntryState.READY:
                    return None
                elif entry.taken < entry.total:
                    entries[key] = entry
            self._pass(buffers, keep=entries)
            if entries:
                return Whole(decision, entries)
            self.counters.skipped_transactions += 1
        return None

    def failure(self, buffers: Buffers) -> ConsumerError | None:
        """Why the next transaction can't be delivered, if so."""
        head = self._head(buffers)
        if head is None:
            return None
        decision, needed = head
        raw = decision.txid.to_bytes()
        found = (buffers[key].ended(raw) for key in needed)
        return next((e.error for e in found if e is not None and e.error is not None), None)

    def _read_past(self, key: TopicPartition, buffer: SerialBuffer) -> bool:
        return self._ends is not None and buffer.next_offset >= self._ends.get(key, 2**63)

    def _pass(
        self, buffers: Buffers, keep: Mapping[TopicPartition, EndedTransaction] | None = None
    ) -> None:
        # The first decision is done with, and with it whatever was collected up to it; but where
        # it is kept, delivery goes on.
        decision = self._decisions.popleft()
        self._finished.discard(decision.txid)
        self._ends = None
        for key, buffer in buffers.items():
            if not keep or key not in keep:
                buffer.release(decision.txid.journal, decision.sequence)
