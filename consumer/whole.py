"""Whole transactions of one transaction group, in commit-sequence order across partitions.

Two things are joined. `WholeBuffer` collects, per data partition, the group's transactions whose
marker was read. `WholeOrder` takes the decisions from the journal, in order, and lets the first
one through when it has ended in every partition of ours. No I/O, clock or randomness.

Why the journal: one partition's markers don't say what another partition's next marker is, so
only the journal knows that nothing comes before (T2's marker may stand at 50 and T1's, decided
earlier, at 100).

Why waiting ends. The first decision waits for its markers in our partitions. Each is written in
the end, and read, unless it lies below where we began. That is known when the journal says
"finished" and *then* the partition's end is asked for and read up to: a finished transaction's
markers lie below that end, so one not met by then lies below our start, and is passed over.

Source: DESIGN section 6, `transactions()`; TRAPS 23.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..journal.control import TopicPartition
from ..journal.errors import MalformedHeaderError
from ..journal.position import Journal, Position
from ..journal.txid import TxId
from .buffer import PartitionBuffer
from .counters import Counters
from .entries import EndedTransaction, EntryState, journal_of
from .headers import txid_error
from .pending import PendingTransaction, RawTxId, Record

PARTITION_BYTES = 2
"""The part of a TxId that names the journal partition."""


class WholeBuffer(PartitionBuffer):
    """A data partition as `transactions()` reads it: one journal partition's transactions only."""

    delivers_plain = False
    journal_partition = 0
    """Whose transactions are collected; set before the first `feed`."""

    def collect(self, journal_partition: int) -> None:
        """Begin: collect the transactions of this journal partition."""
        self.journal_partition = journal_partition
        self._wanted = journal_partition.to_bytes(PARTITION_BYTES, "big")
        self._start = replace(self._start, o3=0)
        self._held: dict[RawTxId, EndedTransaction] = {}
        self.malformed: deque[MalformedHeaderError] = deque()
        """Headers that did not decode, to be raised once each."""
        self.delivered: dict[Journal, int] = dict(self._start.delivered)
        """Last commit sequence delivered whole, or passed over, as far as this partition goes."""

    def _begin(self, raw: bytes | None, record: Record, live: bool) -> PendingTransaction | None:
        if raw is not None and raw[:PARTITION_BYTES] != self._wanted and len(raw) == 16:
            return None
        return super()._begin(raw, record, live)

    def _report(
        self, record: Record, raw: bytes | None, error: MalformedHeaderError | None, live: bool
    ) -> None:
        if live:
            error = error or txid_error(raw)
            self.counters.malformed_headers += 1
            topic, partition = self.partition
            where = f"record at {topic}[{partition}] offset {record.offset()} is not delivered"
            self.malformed.append(MalformedHeaderError(f"{where}: {error}"))

    def _push(self, entry: EndedTransaction) -> None:
        # Entries without records stand for a duplicate: their end lies before our start.
        raw = entry.txid
        foreign = raw[:PARTITION_BYTES] != self._wanted
        passed = entry.marker.commit_sequence <= self.delivered.get(journal_of(raw), -1)
        if foreign or passed or raw in self._held:
            self._finish(entry)
        else:
            self._held[raw] = entry

    def _waiting(self) -> Iterator[EndedTransaction]:
        return iter([e for e in self._held.values() if e.state is EntryState.WAITING])

    @property
    def ready(self) -> bool:
        """Never: what is collected goes by `WholeOrder`, not by `take`."""
        return False

    @property
    def blocked(self) -> bool:
        """Whether a side read is wanted."""
        return next(self._waiting(), None) is not None

    @property
    def queued_records(self) -> int:
        """Records of collected transactions."""
        return sum(e.total for e in self._held.values())

    def ended(self, raw: RawTxId) -> EndedTransaction | None:
        """A collected transaction."""
        return self._held.get(raw)

    def release(self, journal: Journal, sequence: int) -> dict[RawTxId, EndedTransaction]:
        """Everything up to this commit sequence is delivered or passed over here.

        Returns:
            Entries that were collected, by TxId; the caller gives them back with `finish`.
        """
        self.delivered[journal] = max(sequence, self.delivered.get(journal, -1))
        given = {
            raw: entry
            for raw, entry in self._held.items()
            if journal_of(raw) == journal and entry.marker.commit_sequence <= sequence
        }
        for raw in given:
            del self._held[raw]
        return given

    def finish(self, entry: EndedTransaction) -> None:
        """Drop a released entry's records."""
        self._finish(entry)

    def position(self) -> Position:
        """Where to go on: below o1 = o2 is nothing that is not delivered.

        o3 holds the last commit sequence delivered, so that places differ wherever deliveries do;
        a reader of `delivered` does not skip by it.
        """
        o1 = self.next_offset
        if self._pending:
            o1 = min(o1, next(iter(self._pending.values())).first_offset)
        for entry in self._held.values():
            o1 = min(o1, entry.first_offset)
        # A start that poll() committed: nothing that ended below its o2 may come again.
        o2 = max(o1, self._start.o2)
        last = max(self.delivered.values(), default=-1)
        return Position(o1=o1, o2=o2, o3=last + 1, delivered=dict(self.delivered))

    def position_after(self, record: Record) -> Position | None:
        """None: records of a transaction are not committed one by one."""
        del record
        return None

    def close(self) -> None:
        """Drop everything that is held, in memory and on disk."""
        for entry in self._held.values():
            self._finish(entry)
        self._held.clear()
        super().close()


@dataclass(frozen=True, slots=True)
class Decision:
    """A valid decision to commit, from the journal."""

    sequence: int
    """Journal offset: the commit sequence."""
    txid: TxId
    decided_ms: int
    partitions: tuple[TopicPartition, ...]
    """Data partitions with accepted records."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A transaction that may be delivered now."""

    decision: Decision
    entries: Mapping[TopicPartition, EndedTransaction]
    """What ended in each of our partitions; without those that ended before our start."""


Buffers = Mapping[TopicPartition, WholeBuffer]


@dataclass(slots=True)
class WholeOrder:
    """Decisions in journal order, each let through when it has ended in all our partitions."""

    counters: Counters
    _decisions: deque[Decision] = field(default_factory=deque)
    _finished: set[TxId] = field(default_factory=set)
    _ends: dict[TopicPartition, int] | None = None
    """Ends of the first decision's missing partitions, asked for after it was finished."""

    def clear(self) -> None:
        """Forget all: the journal will be read again."""
        self._decisions.clear()
        self._finished.clear()
        self._ends = None

    def __len__(self) -> int:
        """Decisions that wait."""
        return len(self._decisions)

    def decide(self, decision: Decision) -> None:
        """Take the next decision of the journal."""
        self._decisions.append(decision)

    def finish(self, txid: TxId) -> None:
        """The journal says that all markers of this transaction are written."""
        self._finished.add(txid)

    def _needed(self, decision: Decision, buffers: Buffers) -> list[TopicPartition]:
        journal = decision.txid.journal
        return [
            key
            for key in decision.partitions
            if key in buffers and decision.sequence > buffers[key].delivered.get(journal, -1)
        ]

    def head(self, buffers: Buffers) -> Decision | None:
        """The first decision that concerns our partitions; passes over those before it."""
        while self._decisions:
            decision = self._decisions[0]
            if self._needed(decision, buffers):
                return decision
            self._pass(buffers, keep=None)
        return None

    def missing(self, buffers: Buffers) -> list[TopicPartition]:
        """Partitions in which the first decision's marker was not met yet."""
        decision = self.head(buffers)
        if decision is None:
            return []
        raw = decision.txid.to_bytes()
        return [
            key
            for key in self._needed(decision, buffers)
            if buffers[key].ended(raw) is None and not buffers[key].has_ended(raw)
        ]

    @property
    def wants_ends(self) -> bool:
        """Whether the ends of the missing partitions are to be asked for, now and not earlier."""
        first = self._decisions[0] if self._decisions else None
        return first is not None and first.txid in self._finished and self._ends is None

    def set_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """End offsets of `missing`, asked for after `wants_ends` became true."""
        self._ends = dict(ends)

    def take(self, buffers: Buffers) -> Whole | None:
        """The next transaction, if it has ended in all of our partitions.

        Raises:
            ConsumerError: it can't be delivered whole; again each time until that is mended.
        """
        while (decision := self.head(buffers)) is not None:
            raw = decision.txid.to_bytes()
            entries: dict[TopicPartition, EndedTransaction] = {}
            for key in self._needed(decision, buffers):
                buffer = buffers[key]
                entry = buffer.ended(raw)
                if entry is None:
                    if not buffer.has_ended(raw) and not self._read_past(key, buffer):
                        return None
                elif entry.error is not None:
                    raise entry.error.with_traceback(None)
                elif entry.state is EntryState.WAITING:
                    return None
                elif entry.total:
                    entries[key] = entry
            self._pass(buffers, keep=raw if entries else None)
            if entries:
                return Whole(decision, entries)
            self.counters.skipped_transactions += 1
        return None

    def _read_past(self, key: TopicPartition, buffer: WholeBuffer) -> bool:
        return self._ends is not None and buffer.next_offset >= self._ends.get(key, 2**63)

    def _pass(self, buffers: Buffers, *, keep: RawTxId | None) -> None:
        # The first decision is done with, and with it whatever was collected up to it.
        decision = self._decisions.popleft()
        self._finished.discard(decision.txid)
        self._ends = None
        for buffer in buffers.values():
            released = buffer.release(decision.txid.journal, decision.sequence)
            for raw, entry in released.items():
                if raw != keep:
                    buffer.finish(entry)
