"""Collects the transactions of one transaction group in one data partition, for serial order.

`serial_order` says whose turn it is. No I/O, clock or randomness.

Positions. In one data partition the markers of one journal partition stand in commit-sequence
order, so (o2, o3) mean what they mean to every consumer: of this group's transactions, those that
ended below o2 are delivered, and o3 records of the one that ended at o2. `delivered` is the last
commit sequence up to which nothing is due in this partition. It says which decisions of the journal
lie behind the partition, also those without records in it. So each partition has a place of its
own. In the middle of a transaction, partitions that were delivered have passed it, those that come
later have not, and one stands within it. `met` is of markers that were read: `delivered` says
nothing of what lies ahead, for it rises also where a transaction has no marker.

Sidecars. A transaction in a sidecar waits for its turn without records. Whether its sidecar holds
the range is asked as soon as it is the first that waits here, and its turn does not come before
that is known in each partition: it is delivered in all of them, or in none (trap 106). Its records
are read when they are delivered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final, NamedTuple

from ...journal.control import Marker, ModeRecord, TopicPartition
from ...journal.errors import MalformedHeaderError
from ...journal.places import GONE
from ...journal.position import Journal, Passed, Position
from .buffer import MalformedFactory, PartitionBuffer, met_before
from .counters import ConsumerCounters
from .entries import EndedTransaction, EntryState, PlainRun, SideRead, advance, journal_of
from .headers import txid_error
from .held import HeldTransactions
from .pending import PendingTransaction, PendingTransactionMap, RawTxId, Record
from .placed_buffer import PlacedTransaction, placed_entry
from .pointers import PointedTransaction, with_side
from .shared import Shared

PARTITION_BYTES: Final = 2
"""Length of a TxId's first part, which names the journal partition."""
_READ_KEPT: Final = 1_000
"""Markers at or below the position that a buffer keeps in mind, about as many as it remembers
delivered transactions. With fewer, an older position may not say which marker was read."""
PIECE_RECORDS: Final = 2_000
"""Most records of a transaction in a sidecar that `SerialBuffer.stream` returns at a time. What
lies in the topic may be spilled: more of it take more memory, fewer cost more CPU."""


class _Due(NamedTuple):
    """A committed transaction that ends without a marker."""

    offset: int
    """Its place, or the offset behind its last record."""
    raw: RawTxId
    end: Marker
    is_place: bool


class HandedTransaction(PlacedTransaction):
    """A committed transaction that the home of another journal places, or refuses. It ends behind
    its last record, where a marker of another one may lie."""

    __slots__ = ()


class SerialBuffer(PartitionBuffer):
    """Collects one journal partition's transactions in one data partition, for serial order."""

    delivers_plain = False
    is_told_places = True

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
        shared: Shared | None = None,
    ) -> None:
        """Begins at a position, with the arguments of `PartitionBuffer`.

        Collects only transactions of `journal_partition`.
        """
        own = {j: s for j, s in met_before(start).items() if j[0] == journal_partition}
        passed = start.passed
        if passed is not None and passed.home[0] == journal_partition:
            own[passed.home] = max(passed.sequence, own.get(passed.home, -1))
        super().__init__(
            partition,
            replace(start, met=own, delivered={}),
            pending_map,
            malformed=malformed,
            counters=counters,
            torn_skip_below=torn_skip_below,
            shared=shared,
        )
        self.journal_partition = journal_partition
        self._wanted = journal_partition.to_bytes(PARTITION_BYTES, "big")
        self._held = HeldTransactions()
        """Committed transactions that are not let through yet."""
        self._unsettled: dict[RawTxId, EndedTransaction] = {}
        """Transactions in `_held` that waited for a side read when last looked at."""
        self._parked = self._pending_map.view()
        """Records of `_held`, which count against the memory limit and may be spilled."""
        self._handed: PointedTransaction | None = None
        """The transaction in a sidecar that was handed over last, until `finish`."""
        self._fresh: list[PendingTransaction] = []
        """What this batch added to `_parked`."""
        self._read: dict[Journal, list[int]] = {
            journal: [sequence]
            for journal, sequence in start.met.items()
            if journal[0] == journal_partition
        }
        """Commit sequences of the markers that were read, which rise, but for the oldest."""
        # From the front of a dict, entries are not taken in constant time.
        self._due: OrderedDict[RawTxId, _Due] = OrderedDict()
        """What ends without a marker, and is not read up to; in commit-sequence order."""
        told = {*start.met, *(() if passed is None else (passed.home,))}
        self.all_due = start.o2 == 0 or not told.isdisjoint(own)
        """Whether all is due here that is left in commit-sequence order, wherever it is placed."""
        self.begun_by_home = passed is not None and passed.home[0] != journal_partition
        """Whether a reader of another order had delivered what another home places."""
        self._not_coming: OrderedDict[RawTxId, int] = OrderedDict()
        """Commit sequences of those that are placed nowhere, or below where reading began."""
        self._half_of: RawTxId | None = None
        """The placed transaction of which an earlier life delivered some records."""
        self.malformed: deque[tuple[Record, MalformedHeaderError]] = deque()
        """Events for records whose headers did not decode; each is reported once."""

    @property
    def delivered(self) -> Mapping[Journal, int]:
        """The last commit sequence, by journal, up to which nothing is due in this partition."""
        return self._met_taken

    def skip_to(self, journal: Journal, sequence: int) -> None:
        """Skips what was decided up to this commit sequence: all that is left is due here.

        Call it before the first `feed`, or when nothing up to there is collected.
        """
        self._met_taken[journal] = max(sequence, self._met_taken.get(journal, -1))
        self.all_due = True

    # ---- in -------------------------------------------------------------------------------------

    @property
    def _knows_modes(self) -> bool:
        return True

    def _change_mode(self, raw: RawTxId, record: ModeRecord, offset: int, live: bool) -> None:
        """Passes over a mode record: the journal says of each transaction whether it is placed."""

    def place(self, raw: RawTxId, end: Marker, place: int) -> None:
        """Takes a transaction's place, which counts as its marker once it is read up to.

        Must be called in commit-sequence order. What was told before changes nothing.
        """
        # Below where an earlier life had read lies also what a broker told too low an end for. That
        # was pending then, and is read again, unless it lies in the sidecar alone.
        comes = self.all_due or place >= self._start.o2 or self._reads(end)
        self._await(_Due(place, raw, end, is_place=True), comes=place != GONE and comes)

    def end_behind_last(self, raw: RawTxId, end: Marker) -> None:
        """Ends a transaction that the home of another journal places, or marks if that refuses.

        Its place is not known here, and not needed: the decision says in which order it comes, and
        of which records it is. So it counts as ended when the last of them is read. What was told
        before changes nothing.
        """
        behind = _last_offset(end) + 1
        self._await(_Due(behind, raw, end, is_place=False), comes=self._reads(end))

    def _reads(self, end: Marker) -> bool:
        return _last_offset(end) >= self._start.o1

    def _await(self, due: _Due, *, comes: bool) -> None:
        sequence = due.end.commit_sequence
        if sequence <= self._met_taken.get(journal_of(due.raw), -1) or due.raw in self._held:
            return
        if not comes:
            self._not_coming[due.raw] = sequence
        elif due.raw not in self._due:
            self._due[due.raw] = due
            self._end_due()

    @property
    def lacks_place(self) -> bool:
        """Whether a place is known that reading has not come to."""
        return bool(self._due)

    def will_not_come(self, raw: RawTxId) -> bool:
        """Returns whether a placed transaction is placed where this reader will not come to."""
        return raw in self._not_coming

    def _end_due(self) -> None:
        while (first := self._first_due) is not None and first.offset <= self.next_offset:
            offset, raw, end, is_place = first
            del self._due[raw]
            journal, pending = journal_of(raw), self._pending.pop(raw, None)
            self._ended.add(raw, self._shared.ended_max)
            if not is_place:
                # Markers of lower sequences may lie behind it: it is not noted as met or read.
                # If it is held, its home refused it, and its marker was read.
                if raw not in self._held:
                    self._commit(HandedTransaction(raw, end, offset), pending)
                continue
            known = self._start.passed
            if known is not None and self._half_of is None and end.commit_sequence > known.sequence:
                self._half_of = raw
            self._met[journal] = max(end.commit_sequence, self._met.get(journal, -1))
            self._commit(placed_entry(raw, end, offset, self.partition), pending)
            self._note_read(journal, end.commit_sequence)

    @property
    def _first_due(self) -> _Due | None:
        return next(iter(self._due.values()), None)

    def _delivered_before(self, entry: EndedTransaction) -> int:
        if isinstance(entry, HandedTransaction):
            return self._start.o3 if entry.marker_offset - 1 == self._start.o2 else 0
        if not isinstance(entry, PlacedTransaction):
            return super()._delivered_before(entry)
        known = self._start.passed
        return known.taken if known is not None and entry.txid == self._half_of else 0

    def _begin(self, raw: bytes | None, record: Record, live: bool) -> PendingTransaction | None:
        if raw is not None and raw[:PARTITION_BYTES] != self._wanted and len(raw) == 16:
            self.counters.passed_records += live
            return None
        return super()._begin(raw, record, live)

    def _end(self, raw: RawTxId, marker: Marker, offset: int, live: bool) -> None:
        if raw[:PARTITION_BYTES] != self._wanted:
            return
        super()._end(raw, marker, offset, live)
        if marker.committed:
            self._note_read(journal_of(raw), marker.commit_sequence)

    def _pass_duplicate(self, raw: RawTxId, marker: Marker, offset: int) -> None:
        """Passes over a marker whose transaction ended before: nothing of it is due.

        If it were held, it would be the first by commit sequence, and the position would stand
        behind what was read before it and is not delivered (trap 201).
        """

    def _note_read(self, journal: Journal, sequence: int) -> None:
        read = self._read.setdefault(journal, [])
        if not read or sequence > read[-1]:
            read.append(sequence)
        if len(read) > 2 * _READ_KEPT:
            passed = bisect_right(read, self._met_taken.get(journal, -1))
            del read[: max(0, passed - _READ_KEPT)]

    def last_met(self, journal: Journal) -> int | None:
        """Returns the commit sequence of the last marker of a journal that was read, if any."""
        read = self._read.get(journal)
        return read[-1] if read else None

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
        # An entry without records stands for a duplicate: its end lies before our start.
        raw = entry.txid
        passed = entry.marker.commit_sequence <= self._met_taken.get(entry.journal, -1)
        # A copy of what is being delivered would stand before what comes next (trap 107).
        is_delivered = any(isinstance(e, EndedTransaction) and e.txid == raw for e in self._queue)
        if passed or is_delivered or raw in self._held:
            # Not by `_finish`, which would note it as delivered.
            if entry.pending is not None:
                self._parked.pop(raw, None)
                self._pending_map.discard(entry.pending)
            return
        self._held.add(entry)
        if entry.state is EntryState.WAITING:
            self._unsettled[raw] = entry

    def _filled(self, entry: EndedTransaction) -> None:
        # Its turn may come late. It may be spilled until then, so its stream is not opened yet.
        if entry.pending is not None:
            self._parked[entry.txid] = entry.pending
            self._fresh.append(entry.pending)

    def _after_batch(self) -> None:
        super()._after_batch()
        self._end_due()
        if self._fresh:
            still = {id(p): p for p in self._fresh if self._parked.get(p.txid) is p}
            self._fresh = []
            self._pending_map.charge(list(still.values()))

    def _at_pointer(self) -> PointedTransaction | None:
        """Returns the transaction of which something is to be read in the sidecar now, if any.

        Without one whose turn it is, that is the first that waits for its turn: whether its sidecar
        holds the range is told before any partition delivers of it. So it is delivered in all of
        them, or in none.
        """
        self._pass_finished()
        if self._queue:
            return super()._at_pointer()
        if self._handed is not None:
            return self._handed if self._handed.is_wanted else None
        firsts = (e for e in self._held.firsts() if isinstance(e, PointedTransaction))
        return next((e for e in firsts if e.is_wanted and not e.is_sure), None)

    def _waiting(self) -> Iterator[EndedTransaction]:
        unsettled = self._unsettled
        for raw in [r for r, e in unsettled.items() if e.state is not EntryState.WAITING]:
            del unsettled[raw]
        return iter(list(unsettled.values()))

    def _asker(self, request: SideRead) -> EndedTransaction | None:
        # A whole backlog may wait for side reads, and each has an answer of its own.
        entry = self._unsettled.get(request.txid)
        if entry is None or entry.marker_offset != request.marker_offset:
            return None
        return entry if entry.state is EntryState.WAITING else None

    def _undelivered(self) -> Iterator[EndedTransaction]:
        return chain(super()._undelivered(), self._held)

    @property
    def ready(self) -> bool:
        """Always False: `SerialOrder` says whose turn it is."""
        return False

    @property
    def blocked(self) -> bool:
        """Whether a collected transaction waits for a side read, or for its sidecar."""
        if next(self._waiting(), None) is not None:
            return True
        entry = self._at_pointer()
        return entry is not None and not (entry.is_sure and entry.available > entry.taken)

    @property
    def queued_records(self) -> int:
        """Number of records of the collected transactions."""
        return self._held.records

    # ---- out ------------------------------------------------------------------------------------

    def ended(self, raw: RawTxId) -> EndedTransaction | None:
        """Returns the collected transaction of this TxId, if any."""
        return self._held.get(raw)

    def first(self, journal: Journal) -> EndedTransaction | None:
        """Returns a journal's collected transaction with the lowest commit sequence, if any."""
        return self._held.first(journal)

    def release(self, journal: Journal, sequence: int) -> None:
        """Drops what is collected up to this commit sequence: none of it is due here any more."""
        while (first := self._held.first(journal)) and first.marker.commit_sequence <= sequence:
            self._finish(self._unhold(first.txid))
        while (due := self._first_due) is not None and due.end.commit_sequence <= sequence:
            del self._due[due.raw]  # It went with a deleted topic.
        while self._not_coming and next(iter(self._not_coming.values())) <= sequence:
            del self._not_coming[next(iter(self._not_coming))]
        self._met_taken[journal] = max(sequence, self._met_taken.get(journal, -1))

    def let_through(self, raw: RawTxId) -> None:
        """Lets a collected transaction through: from now on `take` returns its records."""
        entry = self._held.get(raw)
        assert entry is not None, "it was collected"
        self.all_due = True
        if entry.pending is not None:
            self._open_stream(entry)
        # It leaves `_held` last: if an exception came while it is in neither, `position` would lie
        # behind it.
        self._queue.append(entry)
        self._unhold(raw)

    @property
    def has_read(self) -> bool:
        """Whether a marker of the journal partition was read."""
        return bool(self._read)

    @property
    def delivering(self) -> bool:
        """Whether records of a transaction that was let through are left to take."""
        self._pass_finished()
        return bool(self._queue)

    def hand_over(self, raw: RawTxId) -> EndedTransaction:
        """Returns a collected transaction as one, which counts as delivered from now on.

        `stream` returns its records until `finish` drops them. `take_back` takes it back.
        """
        entry = self._unhold(raw)
        self.all_due = True
        advance(self._met_taken, entry)
        self._handed = entry if isinstance(entry, PointedTransaction) else None
        if self._handed is not None and entry.pending is not None:
            self._open_stream(entry)
        return entry

    def take_back(self, before: Position) -> None:
        """Works like `put_back`, for a transaction before which `position` was this."""
        self._put_back = before

    def stream(self, entry: EndedTransaction) -> Sequence[Record] | Iterator[Record]:
        """Returns the records of a transaction that was handed over, from `taken` on.

        Of one in a sidecar, only some of those that are read: call it again, and read on meanwhile,
        until `taken` is `total`, or `error` says why there are no more.

        Raises:
            SpillError: spilled records can't be read back.
        """
        if isinstance(entry, PointedTransaction):
            return entry.advance(PIECE_RECORDS) if entry.error is None else ()
        if entry.pending is not None:
            self._open_stream(entry)
        stream = entry.stream
        return stream[entry.taken :] if isinstance(stream, Sequence) else stream

    def finish(self, entry: EndedTransaction) -> None:
        """Drops the records of a transaction that was handed over. May be called after `close`."""
        if self._handed is entry:
            self._handed = None
        self._finish(entry)

    def _unhold(self, raw: RawTxId) -> EndedTransaction:
        entry = self._held.pop(raw)
        self._unsettled.pop(raw, None)
        self._parked.pop(raw, None)
        return entry

    # ---- positions ------------------------------------------------------------------------------

    def position(self) -> Position:
        """Returns exactly what was delivered: (o1, o2, o3) and `delivered`."""
        if self._put_back is not None:
            return self._put_back
        self._pass_finished()
        first = self._first_held()
        if self._queue or first is None:
            return super().position()
        position = self._position(first.marker_offset, first.taken, self._met_taken, ())
        side = first.side if isinstance(first, PointedTransaction) else None
        return with_side(position, side)

    def _position(
        self,
        o2: int,
        o3: int,
        met: Mapping[Journal, int],
        queue: Iterable[PlainRun | EndedTransaction],
    ) -> Position:
        queue = list(queue)
        ended = (e for e in queue if isinstance(e, EndedTransaction))
        head = next(ended, None) or self._first_held()
        read = self._read_by(met, head) if self.all_due else {}
        if not read:
            o2, o3 = min(o2, self._start.o2), 0
        place = super()._position(o2, o3, met, [*queue, *self._held])
        # Below the start's o2 nothing was let through, but decisions may have been passed over.
        place = replace(place, met=read, delivered={**dict.fromkeys(read, 0), **met})
        if not isinstance(head, PlacedTransaction) or not head.taken:
            return replace(place, passed=self._half_unseen)
        # It may end below the start's o2: an earlier life read on before it was told (trap 84).
        if isinstance(head, HandedTransaction):
            # At its last record no marker lies, that could be half delivered too. And whoever goes
            # on in the home's order must see that a part was delivered in another one.
            delivered = {head.journal: 0, **met}
            return replace(place, o2=head.marker_offset - 1, o3=head.taken, delivered=delivered)
        # Several may be placed at one offset, and a marker lie there: see `Position.passed`.
        # Its text has no negative sequence; at 0 lies the first OWNER record, and no decision.
        passed = Passed(head.journal, met.get(head.journal, 0), head.taken)
        return replace(place, o3=0, passed=passed)

    def _read_by(
        self, met: Mapping[Journal, int], head: EndedTransaction | None
    ) -> dict[Journal, int]:
        # Where nothing was read, `met` says all the same that what is left lies ahead.
        read = {j: s for j, s in met.items() if j[0] == self.journal_partition}
        if not read and head is not None:
            read[head.journal] = 0  # There lies the first OWNER record, and no decision.
        for journal, sequences in self._read.items():
            if below := bisect_right(sequences, met.get(journal, -1)):
                read[journal] = sequences[below - 1]
        return read

    def _first_held(self) -> EndedTransaction | None:
        # Below its first one, all that a journal decided is delivered: o2 is the lowest of these.
        return min(self._held.firsts(), key=lambda e: e.marker_offset, default=None)

    @property
    def _half_unseen(self) -> Passed | None:
        # What the start says of a transaction that was delivered in part, until its place is known
        # and read up to. If a position said less, its first records would come twice (trap 77).
        known = self._start.passed
        if known is None or self._half_of is not None or not known.taken:
            return None
        return known if known.home[0] == self.journal_partition else None

    def close(self) -> None:
        """Drops everything that is held, in memory and on disk."""
        for entry in self._held:
            self._finish(entry)
        self._held = HeldTransactions()
        self._pending_map.drop(self._parked)
        super().close()


def _last_offset(end: Marker) -> int:
    # Of what lies in the sidecar alone, no record is read here.
    return max((r.last_offset for r in end.branches), default=-1)
