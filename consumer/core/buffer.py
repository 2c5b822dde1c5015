"""PartitionBuffer: takes one data partition's records in, and gives out what may be delivered.

`feed` takes records in offset order. `take`, of `DeliveryQueue`, returns what can be delivered, in
delivery order, and `position` says at every step what the application got. It has no I/O, clock or
randomness.

Why it is right. Call a TxId's first marker in the partition its *end*.

1. *All readers see one order.* A transaction is delivered at its end and a plain record at its own
   offset, so the order depends on the log alone, not on where a reader started.
2. *No reader takes a later marker for the end.* A marker is a duplicate in three cases:
   (a) We have read an earlier marker of its TxId (`EndedTxIds`).
   (b) Its TxId is below a HW met here. Then the transaction was finished, its markers acknowledged,
   before that HW was written, so its end lies below the marker that carries the HW.
   (c) Its commit sequence is at or below the last one met. Ends stand in commit-sequence order, so
   its end is the marker that carried that sequence, or lies below it.
   In all other cases: if the buffer holds exactly what the marker states, with the first record,
   then we have read everything from that first record on. An earlier marker would stand behind the
   transaction's last record, so we would have read it; so this marker is the end. If the buffer
   holds less, a side read looks from the first record on, with the same conclusion.
3. *All or nothing.* A transaction is delivered only if first offset, last offset and count of each
   accepted branch are those that the marker states. Else it is side-read, or reported.
4. *What is forgotten does no harm.* `EndedTxIds` forgets TxIds below the HW, which (b) still
   covers. Beyond `ended_max` it also forgets the oldest: their late data is buffered, a later
   marker of theirs is a duplicate by (c), and a look-up drops the data. A pending TxId below a HW
   met here is dropped, for by (b) no marker of it lies ahead. Where the topic was never switched,
   as far as is known, only a look-up drops it: it may be placed, and this reader not told so yet
   (trap 215).
5. *Positions.* Below o2 everything is delivered, ended or pending, and everything pending lies at
   or after o1. So a reader goes on exactly if it starts at o1, delivers nothing that ends below o2
   and skips o3 records of what ends at o2. `met` is as of o2: it leaves out the marker at o2, which
   a restarted reader would otherwise take for a duplicate.

Source: Transactional Messaging in Kafka, "Transactional consumer".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias

from ...journal.control import (
    TXCTL_HEADER,
    TXID_HEADER,
    Marker,
    ModeRecord,
    TopicPartition,
    decode_control,
)
from ...journal.errors import (
    MalformedHeaderError,
)
from ...journal.native.interface import HeaderRun
from ...journal.position import Journal, Position
from ...journal.txid import TxId
from .counters import ConsumerCounters
from .ended import EndedTxIds
from .entries import (
    EndedTransaction,
    EntryState,
    ModeMet,
    PlainRun,
    advance,
    journal_of,
)
from .headers import by_headers, txid_error, well_formed
from .pending import PendingTransaction, PendingTransactionMap, RawTxId, Record
from .pointers import PointedTransaction, side_at, side_behind, with_side
from .settling import SettlingQueue
from .shared import Shared

MalformedFactory: TypeAlias = Callable[[Record, MalformedHeaderError], Record]
"""Makes the event that takes the place of a record whose header does not decode."""


class _StopsHereError(Exception):
    """Ends the scan of a batch at a mode record that counts."""

    def __init__(self, met: ModeMet) -> None:
        super().__init__(met)
        self.met = met


def met_before(start: Position) -> dict[Journal, int]:
    """Returns the last commit sequence that a position knows of each journal.

    It joins `met` with `delivered`, which a serializable reader leaves: a transaction that either
    covers must not be delivered again.
    """
    met = dict(start.met)
    for journal, sequence in start.delivered.items():
        met[journal] = max(sequence, met.get(journal, -1))
    return met


class PartitionBuffer(SettlingQueue):
    """Applies the rules of ``read_committed`` to one data partition.

    Source: Transactional Messaging in Kafka, "Transactional consumer", READ_COMMITTED.
    """

    is_told_places = False
    """Whether the journal, which is read anyway, tells it where transactions are placed."""
    delivers_plain = True
    """Whether records without a TxId are delivered; else they are passed over."""
    looks_up = False
    """Whether only a look-up drops what is pending, though a HW says that it has ended. Needed
    where it is not known whether a home places; without, what was aborted costs no look-up."""

    @property
    def delivered(self) -> Mapping[Journal, int]:
        """The last commit sequence, by journal, up to which nothing is due here, where records come
        in serial order. Elsewhere nothing says that."""
        return {}

    def __init__(
        self,
        partition: TopicPartition,
        start: Position,
        pending_map: PendingTransactionMap,
        *,
        malformed: MalformedFactory,
        counters: ConsumerCounters | None = None,
        torn_skip_below: int = 0,
        shared: Shared | None = None,
    ) -> None:
        """Begins at a position.

        Args:
            partition: topic and number.
            start: where to go on; records must be fed from `start.o1` on.
            pending_map: where pending transactions are kept.
            malformed: makes the event for a record whose header does not decode.
            counters: counters to add to; None makes private ones.
            torn_skip_below: a torn transaction that begins below this offset is skipped; one that
                begins at or above stops the partition with `TornTransactionError`.
            shared: shared with the consumer's other partitions; None shares nothing.
        """
        met = met_before(start)
        super().__init__(
            partition,
            start,
            pending_map,
            dict(met),
            counters=counters,
            torn_skip_below=torn_skip_below,
            shared=shared,
        )
        self._pending = pending_map.view()
        self._malformed = malformed
        self.next_offset = start.o1
        """Offset of the next record to feed: everything below was read."""
        self._met = met
        """Last commit sequence met of each journal, as of `next_offset`."""
        self._ended = EndedTxIds()
        self._touched: list[PendingTransaction] = []
        """Transactions that this batch added records to."""
        self._passed: list[Record] = []
        """Plain records of this batch that are not delivered."""
        self._put_back: Position | None = None
        """What `position` returns from now on, after `put_back`."""
        self.known_mode: int | None = None
        """Journal offset of the latest MODE record known of the topic: a mode record of that or an
        earlier one changes nothing. None: who reads this follows no home, so mode records become
        events: it must not pass over what they say."""
        self.mode_met: ModeMet | None = None
        """The mode record at which it stopped: what follows is for a `PlacedBuffer`."""
        self._verdicts: dict[RawTxId, tuple[int, bool]] = {}
        """Answers of look-ups that wait until the partition is read up to their end offset:
        (end offset, whether the transaction ended)."""

    # ---- in -------------------------------------------------------------------------------------

    def feed(self, batch: Sequence[Record], runs: Sequence[HeaderRun] | None = None) -> None:
        """Takes in a batch of records in offset order. Ignores those below `next_offset`.

        Ignores those behind a mode record that counts, too.

        Args:
            batch: the records.
            runs: the batch by headers, if somebody compared these already.
        """
        if not batch or self.mode_met is not None:
            return
        if batch[0].offset() < self.next_offset:
            runs = None
            batch = [record for record in batch if record.offset() >= self.next_offset]
            if not batch:
                return
        replayed: Sequence[Record] = ()
        o2 = self._start.o2
        if self.next_offset < o2:
            fresh = next((i for i, r in enumerate(batch) if r.offset() >= o2), len(batch))
            replayed, batch, runs = batch[:fresh], batch[fresh:], None
            self._scan(replayed, None, live=False)
            self._passed.clear()  # delivered, or counted, before the restart
        try:
            self._scan(batch, runs, live=True)
            self.next_offset = (batch or replayed)[-1].offset() + 1
        except _StopsHereError as stop:
            self.mode_met = stop.met
            self.next_offset = stop.met.offset
        self._after_batch()

    @property
    def lacks_place(self) -> bool:
        """Whether a place is known that reading has not come to."""
        return False

    def skip_unseen(self, offset: int) -> None:
        """Counts everything below an offset as read: no further record there will be fed."""
        if offset > self.next_offset and self.mode_met is None:
            self.next_offset = offset
            self._after_batch()

    def _scan(
        self, batch: Sequence[Record], runs: Sequence[HeaderRun] | None, *, live: bool
    ) -> None:
        # The hot loop. Consecutive records with equal headers go the same way: C code groups and
        # moves them, without a Python instruction or a new object per record.
        if not batch:
            return
        extends: dict[RawTxId, Callable[[Iterable[Record]], None]] = {}
        plain = live and self.delivers_plain
        for headers, alike in by_headers(batch, runs):
            if headers:
                name, raw = headers[0]
                if len(headers) == 1:
                    if name == TXID_HEADER:
                        extend = extends.get(raw)  # type: ignore[arg-type]
                        if extend is None:
                            extend = self._open(raw, alike, live)
                            if extend is None:
                                continue
                            extends[raw] = extend  # type: ignore[index]
                        extend(alike)
                        continue
                elif name == TXID_HEADER or any(n == TXID_HEADER for n, _ in headers):
                    if not self._several_headers(alike, headers, live):
                        # It may have been a marker, which ends the use of a transaction's list.
                        extends.clear()
                    continue
            if plain:
                self._run().records.extend(alike)
            else:
                self._passed.extend(alike)

    def _open(
        self, raw: bytes | None, alike: Iterator[Record], live: bool
    ) -> Callable[[Iterable[Record]], None] | None:
        # Returns what appends records with this TxId and no other header to their transaction,
        # which it begins if need be; None if they are dropped.
        pending = self._pending.get(raw) if raw is not None else None
        if pending is None:
            for record in alike:
                pending = self._begin(raw, record, live)
                if pending is not None:
                    pending.records.append(record)
                    break
            else:
                return None
        elif pending.control is not None:
            pending.uniform = False
        self._touched.append(pending)
        return pending.records.extend

    def _begin(self, raw: bytes | None, record: Record, live: bool) -> PendingTransaction | None:
        # Handles the first record of a TxId here, a late record, or one with a malformed TxId.
        if raw is None or not well_formed(raw):
            self._report(record, raw, None, live)
            return None
        if self.has_ended(raw):
            self.counters.late_records += live
            return None
        pending = PendingTransaction(self.partition, raw, record.offset())
        self._pending[raw] = pending
        return pending

    def _report(
        self, record: Record, raw: bytes | None, error: MalformedHeaderError | None, live: bool
    ) -> None:
        # Puts an event in the record's place: never a crash, never silence.
        if not live:
            return
        self.counters.malformed_headers += 1
        self._run().records.append(self._malformed(record, error or txid_error(raw)))

    def _several_headers(
        self, alike: Iterator[Record], headers: Sequence[tuple[str, bytes | None]], live: bool
    ) -> bool:
        # Handles markers, and a transaction's records with a TxCtl or headers of the application.
        # Returns True if they are such records and went to their transaction.
        if len(headers) == 2 and headers[0][0] == TXID_HEADER and headers[1][0] == TXCTL_HEADER:
            txids, controls = [headers[0][1]], [headers[1][1]]
        else:
            txids = [raw for name, raw in headers if name == TXID_HEADER]
            controls = [raw for name, raw in headers if name == TXCTL_HEADER]
        raw = txids[0]
        for record in alike:
            try:
                marker = self._marker(record, txids, controls)
            except MalformedHeaderError as error:
                self._report(record, raw, error, live)
                continue
            if marker is not None:
                assert raw is not None
                if isinstance(marker, ModeRecord):
                    self._change_mode(raw, marker, record.offset(), live)
                else:
                    self._end(raw, marker, record.offset(), live)
                continue
            pending = self._data(raw, controls[0] if controls else None, record, live)
            if pending is not None:
                # One record with these headers is not a marker, so none of the others is.
                pending.records.extend(alike)
                return True
        return False

    def _data(
        self, raw: bytes | None, control: bytes | None, record: Record, live: bool
    ) -> PendingTransaction | None:
        # Appends a record with further headers. Returns the transaction it went to, if any.
        pending = self._pending.get(raw) if raw is not None else None
        if pending is None:
            pending = self._begin(raw, record, live)
            if pending is None:
                return None
            pending.control = control
        elif pending.control != control:
            pending.uniform = False
        pending.further_headers = True
        pending.records.append(record)
        self._touched.append(pending)
        return pending

    def _marker(
        self, record: Record, txids: Sequence[bytes | None], controls: Sequence[bytes | None]
    ) -> Marker | ModeRecord | None:
        """Returns the record as a marker or mode record, or None if it is data.

        Raises:
            MalformedHeaderError: a header is there twice, or does not decode.
        """
        if len(txids) > 1 or len(controls) > 1:
            raise MalformedHeaderError("more than one TxId or TxCtl header")
        if not controls:
            return None
        if not well_formed(txids[0]):
            TxId.from_bytes(txids[0])
        control = controls[0] or b""
        if record.value() is None and record.key() is None:
            marker = decode_control(control)
            if isinstance(marker, Marker) or (isinstance(marker, ModeRecord) and self._knows_modes):
                return marker
        self._controls.decode(control)
        return None

    # ---- mode records and markers ---------------------------------------------------------------

    @property
    def _knows_modes(self) -> bool:
        return self.known_mode is not None

    def _change_mode(self, raw: RawTxId, record: ModeRecord, offset: int, live: bool) -> None:
        mode_offset = TxId.from_bytes(raw).offset
        known = self.known_mode
        if live and known is not None and mode_offset > known:
            met = ModeMet(offset, journal_of(raw), mode_offset, record.topic_id, record.places)
            raise _StopsHereError(met)

    def _end(self, raw: RawTxId, marker: Marker, offset: int, live: bool) -> None:
        journal = journal_of(raw)
        pending = self._pending.pop(raw, None)
        duplicate = self.has_ended(raw) or (
            marker.committed and marker.commit_sequence <= self._met.get(journal, -1)
        )
        self._ended.add(raw, self._shared.ended_max)
        if marker.committed:
            # Only a COMMITTED marker advances `_met`. An ABORTED one delivers nothing whether it is
            # the first or not, so it need not stand in order; and so it never makes a commit look
            # like a duplicate.
            self._met[journal] = max(marker.commit_sequence, self._met.get(journal, -1))
        # The HW comes last: it does not cover this marker's own TxId, which was unfinished then.
        self._ended.raise_floor(raw, marker.hw)
        if live and duplicate:
            self.counters.duplicate_markers += 1
            self.counters.late_records += 0 if pending is None else pending.count
        if live and marker.committed and not duplicate:
            self._commit(self._entry(raw, marker, offset), pending)
        else:
            if live and marker.committed:
                self._pass_duplicate(raw, marker, offset)
            if pending is not None:
                self._pending_map.discard(pending)

    def _pass_duplicate(self, raw: RawTxId, marker: Marker, offset: int) -> None:
        # Its sequence counts as met in the position behind it, too.
        self._push(EndedTransaction(raw, marker, offset))

    def _entry(self, raw: RawTxId, marker: Marker, offset: int) -> EndedTransaction:
        if marker.is_pointer:
            return PointedTransaction(raw, marker, offset, self.partition)
        return EndedTransaction(raw, marker, offset)

    def has_ended(self, raw: RawTxId) -> bool:
        """Returns whether the TxId is known to have ended here; False too if that was forgotten."""
        return raw in self._ended

    def _commit(self, entry: EndedTransaction, pending: PendingTransaction | None) -> None:
        ranges = entry.marker.branches
        pointed = entry if isinstance(entry, PointedTransaction) else None
        if not ranges or (pointed and self._delivered_before(entry) >= entry.stated):
            # Nothing that is due lies here; what was delivered of it may be gone (trap 117).
            if pending is not None:
                self.counters.late_records += 0 if ranges else pending.count
                self._pending_map.discard(pending)
            if pointed is not None:
                self._commit_pointer(pointed)
        elif pending is None and entry.is_foreign:
            # Were any of its records here, it would be no marker of another topic: a log that was
            # copied with other offsets, or is damaged, must not pass for an empty one.
            self.counters.foreign_markers += 1
        elif pending is None:
            entry.state = EntryState.WAITING
        else:
            entry.first_offset = pending.first_offset
            self._fill(entry, pending)
            if entry.state in (EntryState.WAITING, EntryState.FAILED):
                # A side read gets all records; keeping this part as well would only cost memory.
                entry.first_offset = entry.marker_offset
                self._pending_map.discard(pending)
        if entry.state is EntryState.WAITING and ranges:
            # Whoever deletes what lies below o1 would take them from the side read (trap 89).
            entry.first_offset = min(r.first_offset for r in ranges)
            self.counters.side_reads += 1
        self._push(entry)

    def _after_batch(self) -> None:
        if self._passed:
            self.counters.passed_records += len(self._passed)
            self._passed.clear()
        if self._ended.forget() and not self.looks_up:
            for raw in [r for r in self._pending if self._ended.is_below_floor(r)]:
                self._drop(raw)
        if self._touched:
            still = {id(p): p for p in self._touched if self._pending.get(p.txid) is p}
            self._touched = []
            self._pending_map.charge(list(still.values()))
        if self._verdicts:
            self._apply_verdicts()

    def _drop(self, raw: RawTxId) -> None:
        pending = self._pending.pop(raw)
        self.counters.discarded_transactions += 1
        self._pending_map.discard(pending)

    # ---- look-ups ---------------------------------------------------------------------------

    def pending(self) -> Iterator[PendingTransaction]:
        """Returns the pending transactions, by first offset."""
        return iter(list(self._pending.values()))

    @property
    def holds_pending(self) -> bool:
        """Whether any transaction is pending."""
        return bool(self._pending)

    def find(self, raw: RawTxId) -> PendingTransaction | None:
        """Returns the transaction of this TxId, if it is pending here."""
        return self._pending.get(raw)

    def holding(self) -> PendingTransaction | EndedTransaction | None:
        """Returns the transaction at whose first record o1 stands; None if o1 is o2."""
        position = self.position()
        if position.o1 == position.o2:
            return None
        held: list[PendingTransaction | EndedTransaction] = list(self._undelivered())
        held += islice(self._pending.values(), 1)
        return next((h for h in held if h.first_offset == position.o1), None)

    def _undelivered(self) -> Iterator[EndedTransaction]:
        return (e for e in self._queue if isinstance(e, EndedTransaction))

    def last_met(self, journal: Journal) -> int | None:
        """Returns the last commit sequence met of a journal, or passed before reading began.

        Ends stand in commit-sequence order. So the end of a transaction with a higher commit
        sequence lies ahead, and that of one with a lower one does not. None: that can't be told.
        """
        return self._met.get(journal)

    def resolve(self, raw: RawTxId, *, end_offset: int, ended: bool) -> None:
        """Answers a look-up. Obeys the marker if one stands below `end_offset`, else the answer.

        An answer that it ended must be one that may be believed (`looks`).

        Never delivers. The fate must have been read *before* `end_offset` was asked for: if the
        transaction was finished then, its marker lies below that end in each of its partitions.

        Args:
            raw: the TxId.
            end_offset: end of this data partition, asked for after the fate.
            ended: whether the journal showed the transaction finished, or no longer has it.
        """
        if raw in self._pending:
            self._verdicts[raw] = end_offset, ended
            self._apply_verdicts()

    def _apply_verdicts(self) -> None:
        reached = [r for r, (end, _) in self._verdicts.items() if end <= self.next_offset]
        for raw in reached:
            _, ended = self._verdicts.pop(raw)
            pending = self._pending.get(raw)
            if pending is None:
                continue  # its marker was read on the way
            if ended:
                self._ended.add(raw, self._shared.ended_max)
                self._drop(raw)
            else:
                pending.since = None  # look again later

    @property
    def looked_up(self) -> frozenset[RawTxId]:
        """TxIds whose look-up was answered; the answer waits until its end offset is read."""
        return frozenset(self._verdicts)

    # ---- positions ------------------------------------------------------------------------------

    def position(self) -> Position:
        """Returns exactly what was delivered: (o1, o2, o3) and `met`."""
        if self._put_back is not None:
            return self._put_back
        self._pass_finished()
        queue = self._queue
        if not queue:
            return self._position(self.next_offset, 0, self._met_taken, ())
        head = queue[0]
        if isinstance(head, PlainRun):
            return self._position(head.first_offset, 0, self._met_taken, queue)
        position = self._position(head.marker_offset, head.taken, self._met_taken, queue)
        return with_side(position, head.side) if isinstance(head, PointedTransaction) else position

    def _position(
        self,
        o2: int,
        o3: int,
        met: Mapping[Journal, int],
        queue: Iterable[PlainRun | EndedTransaction],
    ) -> Position:
        o1 = min(o2, self.next_offset)
        if self._pending:
            o1 = min(o1, next(iter(self._pending.values())).first_offset)
        for entry in queue:
            if isinstance(entry, EndedTransaction):
                o1 = min(o1, entry.first_offset)
        if o2 < self._start.o2:
            start = self._start
            return Position(o1=o1, o2=start.o2, o3=start.o3, met=start.met, side=start.side)
        side = None
        if o2 == self._start.o2 and not o3:
            o3, side = self._start.o3, self._start.side
        return Position(o1=o1, o2=o2, o3=o3, met=dict(met), side=side)

    def position_after(self, offset: int) -> Position | None:
        """Returns the position after the record at `offset`, as if it were the last delivered.

        None if it was not delivered here, or too long ago: see `Past`.
        """
        found = self._past.find(offset)
        if found is None:
            return None
        share, index, later = found
        entry, rest = share.entry, [*later, *self._queue]
        if entry is None:
            return self._position(offset + 1, 0, share.met, rest)
        if share.start + index + 1 < entry.total:
            rest.append(entry)
            o3 = share.start + index + 1
            position = self._position(entry.marker_offset, o3, share.met, rest)
            if isinstance(entry, PointedTransaction) and entry.keeps_side:
                position = with_side(position, side_behind(offset))
            return position
        met = dict(share.met)
        advance(met, entry)
        return self._position(entry.behind, 0, met, rest)

    def put_back(self) -> None:
        """Sets `position` back to before the last `take`: the application did not get its records.

        The buffer is of no other use from now on: make another one that begins at `position`. May
        be called after an exception broke `take` off, wherever it came.
        """
        if not self.last_take:
            return
        first, *_ = self.last_take
        rest = [*(share.entry for share in self.last_take), *self._queue]
        side = None
        if isinstance(first.entry, PlainRun):
            o2, o3 = first.records[0].offset(), 0
        else:
            o2, o3 = first.entry.marker_offset, first.start
            if o3 and first.records:
                side = side_at(first.entry, first.records[0].offset())
        self._put_back = with_side(self._position(o2, o3, self._met_before, rest), side)

    def close(self) -> None:
        """Drops everything that is held, in memory and on disk."""
        for entry in self._queue:
            if isinstance(entry, EndedTransaction) and entry.pending is not None:
                self._pending_map.discard(entry.pending)
        self._queue.clear()
        self.last_take = []
        self._pending_map.drop(self._pending)
