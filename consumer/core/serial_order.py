"""Orders one transaction group's transactions by commit sequence, across partitions.

`SerialBuffer` (`serial_buffer`) collects, in one data partition, the group's transactions whose
marker was read. `SerialOrder` takes the decisions from the journal, in order, and lets the first
one through when it has ended in each of our partitions. No I/O, clock or randomness.

Why the journal is needed. One partition's markers don't say what another partition's next marker
is: T2's marker may stand at 50 and that of T1, decided earlier, in another partition at 100. Only
the journal knows that no other decision comes before.

Why waiting ends. The first decision waits for its markers in our partitions. Each marker is written
in the end, unless the journal says that the partition is gone, and we read it unless it lies below
our start in that partition. In one partition markers stand in commit-sequence order. So a decision
above the last marker read there lies ahead, and one below it lies below our start. Where we have
read no marker yet, we wait until the journal says "finished", and *then* ask for the partition's
end and read up to it. A finished transaction's markers lie below that end, so a marker not met by
then lies below our start, and we pass over the transaction there. What is told may be an end of the
past, so it takes two looks (`looks`). What should lie ahead, and is below no end that is told for
`CONTRADICTED_APART_S`, went with a deleted topic: it is passed over, too.

Below the *floor*, the first journal offset that can still be read. The journal may be trimmed while
data is still there, so the floor may lie above decisions that are due. Of all transactions decided
below the floor we know the few unfinished ones. All markers of the others lie below the ends that
our partitions have by then. So markers alone give their order: in one partition they stand in
commit-sequence order. When each partition shows its next marker, or was read up to that end, the
lowest of these markers is of the next transaction, and the next markers with the same commit
sequence are all of it. What is handed over ends behind its last record, and markers of lower
sequences may stand behind that: it shows nothing of what comes next in its partition.

What would go wrong otherwise: traps 18, 23 and 63.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...journal.control import TopicPartition
from ...journal.errors import ConsumerError
from ...journal.position import Journal
from ...journal.txid import TxId
from ...journal.value import value
from .counters import ConsumerCounters
from .entries import EndedTransaction
from .looks import CONTRADICTED_APART_S, Looks
from .serial_buffer import HandedTransaction, SerialBuffer

NO_TIMESTAMP: Final = -1
"""The time of a decision that was trimmed from the journal; Kafka uses the same value."""


@value(frozen=True, slots=True)
class CommitDecision:
    """A valid decision to commit."""

    sequence: int
    """The commit sequence: the decision's journal offset."""
    txid: TxId
    decided_ms: int
    """Time of the decision in milliseconds since 1970; `NO_TIMESTAMP` if its journal record was not
    read."""
    partitions: tuple[TopicPartition, ...]
    """Data partitions with accepted records, as far as they are known."""
    unnamed: int = 0
    """Number of further such partitions, whose names are not known as the decision was not read."""
    placed: frozenset[TopicPartition] = frozenset()
    """Those of the partitions in which it is placed, rather than marked."""
    handed: frozenset[TopicPartition] = frozenset()
    """Those of `placed` in which the home of another journal places it."""


@value(frozen=True, slots=True)
class Whole:
    """A transaction whose turn it is."""

    decision: CommitDecision
    entries: Mapping[TopicPartition, EndedTransaction]
    """The transaction in each of our partitions, except where it ended before our start."""


Buffers = Mapping[TopicPartition, SerialBuffer]
_Head = tuple[CommitDecision, list[TopicPartition]]
"""The first decision that is due, and those of our partitions in which it is."""


class _Finished(NamedTuple):
    """What the journal says of a finished transaction."""

    offset: int
    """Journal offset of the record that says so."""
    gone: frozenset[TopicPartition]
    """Partitions that were deleted before they took its marker."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The place at which reading the journal began, above decisions that may be due."""

    journal: Journal
    sequence: int
    """Journal offset of the floor. `SerialOrder.decide` gets the unfinished transactions that were
    decided below it; all others below it are finished."""


@dataclass(slots=True)
class SerialOrder:
    """Takes decisions in journal order; lets each through when it has ended in our partitions."""

    counters: ConsumerCounters
    _decisions: deque[CommitDecision] = field(default_factory=deque)
    """Decisions that wait, the first that is due in front."""
    _finished: dict[TxId, _Finished] = field(default_factory=dict)
    """Transactions in `_decisions` that the journal calls finished."""
    _looks: Looks = field(default_factory=Looks)
    """At ends of our partitions, since the journal is read."""
    _floor: Floor | None = None
    """Set until nothing below the floor is due any more."""

    def begin(self, floor: Floor | None = None) -> None:
        """Forgets everything: the journal will be read again, from a floor if there is one."""
        self._decisions.clear()
        self._finished.clear()
        self._looks.clear()
        self._floor = floor

    def __len__(self) -> int:
        """Returns the number of decisions that wait."""
        return len(self._decisions)

    def decide(self, decision: CommitDecision) -> None:
        """Takes the next decision of the journal."""
        self._decisions.append(decision)

    def finish(
        self, decision: CommitDecision, offset: int, gone: Iterable[TopicPartition] = ()
    ) -> None:
        """Notes that the journal calls a transaction finished: all its markers are written.

        Args:
            decision: the transaction's, as `decide` got it.
            offset: journal offset of the record that says so.
            gone: partitions that were deleted before they took a marker.
        """
        # Most are delivered before that; nobody would take their TxIds out again.
        if self._decisions and decision.sequence >= self._decisions[0].sequence:
            self._finished[decision.txid] = _Finished(offset, frozenset(gone))

    @property
    def waits_for_finish(self) -> bool:
        """Whether decisions wait, and the journal has not called the first one finished."""
        return bool(self._decisions) and self._decisions[0].txid not in self._finished

    def has_passed(self, sequence: int) -> bool:
        """Returns whether nothing waits that was decided below this commit sequence.

        Decisions must have been told up to there.
        """
        if self._floor is not None:
            return False
        return not self._decisions or self._decisions[0].sequence >= sequence

    # ---- which is the next ----------------------------------------------------------------------

    def head(self, buffers: Buffers) -> CommitDecision | None:
        """Returns the first decision that is due in our partitions; passes over those before it."""
        found = self._head(buffers)
        return None if found is None else found[0]

    def _head(self, buffers: Buffers) -> _Head | None:
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

    def _unread(self, floor: Floor, buffers: Buffers) -> list[TopicPartition]:
        # Returns partitions that may still show a lower marker than all others do.
        return [
            key
            for key, buffer in buffers.items()
            if not _shows_next(buffer.first(floor.journal))
            and buffer.delivered.get(floor.journal, -1) < floor.sequence - 1
            and not self._looks.is_read(key, buffer.next_offset, floor.sequence)
        ]

    def _below(self, floor: Floor, buffers: Buffers) -> None:
        # Called when every partition shows its next marker, or has none below the floor.
        found = {
            key: entry
            for key, buffer in buffers.items()
            if (entry := buffer.first(floor.journal)) is not None
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

    def due_in(self, buffers: Buffers) -> Sequence[TopicPartition]:
        """Returns those of our partitions in which the first decision is due."""
        found = self._head(buffers)
        return () if found is None else found[1]

    def has_ended(self, buffers: Buffers) -> bool:
        """Returns whether the first decision that is due has ended wherever it is due.

        Then it waits neither for the journal nor for more of the data partitions. It may wait for a
        side read, or for its sidecars.
        """
        found = self._head(buffers)
        return found is not None and not self._missing(found, buffers)

    def missing(self, buffers: Buffers) -> list[TopicPartition]:
        """Returns the partitions whose next marker the order waits for, which must be read on."""
        return self._missing(self._head(buffers), buffers)

    def _missing(self, head: _Head | None, buffers: Buffers) -> list[TopicPartition]:
        if head is None:
            return [] if self._floor is None else self._unread(self._floor, buffers)
        decision, needed = head
        raw = decision.txid.to_bytes()
        return [
            key
            for key in needed
            if buffers[key].ended(raw) is None and not self._is_behind(decision, key, buffers[key])
        ]

    def wants_ends(self, buffers: Buffers, now_s: float) -> list[TopicPartition]:
        """Returns partitions whose ends `set_ends` needs now. Earlier answers are of no use.

        Args:
            buffers: our partitions.
            now_s: any clock that goes on, in seconds.
        """
        head = self._head(buffers)
        if head is not None and head[0].txid not in self._finished:
            return []
        wanted = {k for k in self._missing(head, buffers) if self._wants(k, buffers, now_s)}
        if wanted:
            # All that may be in doubt soon: each further one would take two looks of its own.
            wanted |= {
                key
                for key, buffer in buffers.items()
                if not buffer.has_read and self._wants(key, buffers, now_s)
            }
        return sorted(wanted)

    def _wants(self, key: TopicPartition, buffers: Buffers, now_s: float) -> bool:
        return self._looks.wants(key, buffers[key].next_offset, now_s)

    def set_ends(
        self,
        ends: Mapping[TopicPartition, int | None],
        journal_end: int,
        asked_s: float,
        answered_s: float,
    ) -> None:
        """Takes the end offsets of what `wants_ends` returned.

        Args:
            ends: as they were told; None for a partition whose end nobody told.
            journal_end: a place up to which the journal reached *before* they were asked for.
            asked_s: the time of the question, on the clock of `wants_ends`.
            answered_s: the time of the answer.
        """
        self._looks.add(ends, journal_end, asked_s, answered_s)

    def take(
        self, buffers: Buffers, paused: Collection[TopicPartition] = frozenset()
    ) -> Whole | None:
        """Returns the next transaction, if it has ended in all of our partitions.

        The caller must have each of its partitions' buffers let it through or hand it over. Returns
        None also if the transaction failed, see `failure`.

        Args:
            buffers: our partitions.
            paused: those of them that hold up a transaction with records in them.
        """
        while (head := self._head(buffers)) is not None:
            decision, needed = head
            raw = decision.txid.to_bytes()
            entries: dict[TopicPartition, EndedTransaction] = {}
            for key in needed:
                buffer = buffers[key]
                entry = buffer.ended(raw)
                if entry is None:
                    if not self._is_behind(decision, key, buffer):
                        return None
                elif not entry.may_begin:
                    return None
                elif entry.taken < entry.total:
                    if key in paused:
                        return None
                    entries[key] = entry
            self._pass(buffers, keep=entries)
            if entries:
                return Whole(decision, entries)
            self.counters.skipped_transactions += 1
        return None

    def failure(self, buffers: Buffers) -> ConsumerError | None:
        """Returns the error for which the next transaction can't be delivered, if any."""
        head = self._head(buffers)
        if head is None:
            return None
        decision, needed = head
        raw = decision.txid.to_bytes()
        found = (buffers[key].ended(raw) for key in needed)
        return next((e.error for e in found if e is not None and e.error is not None), None)

    def _is_behind(
        self, decision: CommitDecision, key: TopicPartition, buffer: SerialBuffer
    ) -> bool:
        # Whether a transaction that was not collected here will not come: its marker was read, or
        # lies below our start, or was never written.
        txid, is_placed = decision.txid, key in decision.placed
        finished, met = self._finished.get(txid), buffer.last_met(txid.journal)
        if is_placed and buffer.will_not_come(txid.to_bytes()):
            return True
        if is_placed and finished is None:
            return False  # Its place may not be told yet, while what ends behind it was read.
        has_ended = not is_placed and buffer.has_ended(txid.to_bytes())
        if has_ended or (met is not None and met >= decision.sequence):
            return True
        if finished is None or key in finished.gone:
            return finished is not None
        # A place that was told lies ahead, as one of a higher sequence does. If it is below no end,
        # it went with a deleted topic.
        apart_s = None if met is None and not is_placed else CONTRADICTED_APART_S
        return self._looks.is_read(key, buffer.next_offset, finished.offset, apart_s)

    def _pass(
        self, buffers: Buffers, keep: Mapping[TopicPartition, EndedTransaction] | None = None
    ) -> None:
        # Removes the first decision, and drops what was collected up to it. In the partitions of
        # `keep` its delivery goes on.
        decision = self._decisions.popleft()
        self._finished.pop(decision.txid, None)
        for key, buffer in buffers.items():
            if not keep or key not in keep:
                buffer.release(decision.txid.journal, decision.sequence)


def _shows_next(first: EndedTransaction | None) -> bool:
    """Returns whether no end of a lower commit sequence lies behind this one in its partition."""
    return first is not None and not isinstance(first, HandedTransaction)
