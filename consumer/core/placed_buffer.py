"""PlacedBuffer: a `PartitionBuffer` that ends transactions of the home at their places.

What is placed is an end like a marker, which was not read but known: same checks, side reads and
spilling. What differs:

- Several transactions may end at one offset, before the record at it. So a position says which of
  them are delivered by the commit sequence (`Position.passed`), and of how many records of the next
  one. By (o2, o3) alone a restart would repeat one of them (R10).
- A TxId of the home that has ended is known without having met a marker. Its records are dropped,
  and counted as late.
- What lies in the sidecar is streamed at the place as at a pointer. The place is sure to be the one
  there is, so nothing is looked for before. A position keeps no offset in the sidecar: at one o2 a
  pointer of another journal may be half delivered, too, and one offset does not say of which it is
  (trap 168). A restart in the middle reads the range from its start, and skips. Who knows of which
  transaction it is says it with the end (`end_at`).
- What is placed below the log's start is gone, as a marker there is, though the journal still tells
  of it (`pass_gone`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ...journal.control import Marker, ModeRecord, TopicPartition
from ...journal.errors import TornTransactionError
from ...journal.position import Journal, Passed, Position
from ...journal.txid import TxId
from .buffer import MalformedFactory, PartitionBuffer, met_before
from .counters import ConsumerCounters
from .ended import JOURNAL_BYTES
from .entries import EndedTransaction, EntryState, PlainRun
from .headers import well_formed
from .home_view import NO_ASIDE, Due
from .pending import PendingTransaction, PendingTransactionMap, RawTxId, Record
from .pointers import PointedTransaction
from .shared import Shared


class PlacedTransaction(EndedTransaction):
    """A committed transaction at its place. `marker_offset` is the place, and `marker` was made of
    what the journal says."""

    __slots__ = ()

    @property
    def behind(self) -> int:
        """Its place: the record at it comes next."""
        return self.marker_offset

    @property
    def read_to(self) -> int:
        """Its last record is enough: there may be none at its place, nor between."""
        return max(r.last_offset for r in self.marker.branches) + 1


class PlacedPointer(PlacedTransaction, PointedTransaction):
    """A committed transaction at its place, of which records lie in the sidecar."""

    __slots__ = ("before", "place", "rest_at")

    def __init__(self, txid: RawTxId, marker: Marker, offset: int, main: TopicPartition) -> None:
        """Begins without records."""
        super().__init__(txid, marker, offset, main)
        self.place = offset
        """Where it is placed: `marker_offset` lies above if that is told too late."""
        self.before = -1
        """Commit sequence of what was told before it, where no position follows from markers."""
        self.rest_at: int | None = None
        """Where in the sidecar that lies which was not delivered before, if it is known."""

    @property
    def read_to(self) -> int:
        """See `PlacedTransaction`; its place, where it has no records in the main partition."""
        return super().read_to if self.marker.branches else self.marker_offset

    def begin(self, taken: int, side: int | None) -> None:  # noqa: ARG002
        """Begins to read the sidecar; no position says from where on."""
        super().begin(taken, self.rest_at)
        self.side = None

    @property
    def keeps_side(self) -> bool:
        """False: see the module."""
        return False

    @property
    def is_only(self) -> bool:
        """True: the journal tells one place of it."""
        return True


def placed_entry(
    raw: RawTxId, end: Marker, offset: int, partition: TopicPartition
) -> PlacedTransaction:
    """Returns the entry of a transaction that is placed at an offset of a data partition."""
    if end.sidecar:
        return PlacedPointer(raw, end, offset, partition)
    return PlacedTransaction(raw, end, offset)


def _met_of_places(start: Position, home: Journal, known: Passed | None) -> dict[Journal, int]:
    # A reader that is told late of the switch has met markers of higher sequences than what is
    # placed below them, and still to come (trap 216).
    met = dict(start.met)
    if known is None:
        return met
    of_home = min(met.pop(home, -1), known.sequence)
    return met if of_home < 0 else {**met, home: of_home}


class PlacedBuffer(PartitionBuffer):
    """Applies the rules of ``read_committed`` to a partition in which one home places."""

    _knows_modes = True
    holds_back = True
    """Whether records wait until it is known what is placed before them."""

    def __init__(
        self,
        partition: TopicPartition,
        start: Position,
        pending_map: PendingTransactionMap,
        *,
        home: Journal,
        has_ended: Callable[[int], bool],
        malformed: MalformedFactory,
        topic_id: str = "",
        end_marked: Callable[[int], None] | None = None,
        counters: ConsumerCounters | None = None,
        torn_skip_below: int = 0,
        shared: Shared | None = None,
    ) -> None:
        """Begins at a position, with the arguments of `PartitionBuffer`.

        Args:
            partition: see `PartitionBuffer`.
            start: see `PartitionBuffer`.
            pending_map: see `PartitionBuffer`.
            home: the journal that places here.
            has_ended: says of a TxId of the home, by the offset of its BEGIN, whether nothing of it
                is to be delivered here any more.
            malformed: see `PartitionBuffer`.
            topic_id: id of the topic that the home places in. If another one has its name by now,
                what is placed is not looked for in it.
            end_marked: told of each marker of a TxId of the home, by the offset of its BEGIN.
            counters: see `PartitionBuffer`.
            torn_skip_below: see `PartitionBuffer`.
            shared: see `PartitionBuffer`.
        """
        known = start.passed if start.passed is not None and start.passed.home == home else None
        super().__init__(
            partition,
            replace(start, met=_met_of_places(start, home, known)),
            pending_map,
            malformed=malformed,
            counters=counters,
            torn_skip_below=torn_skip_below,
            shared=shared,
        )
        # Among themselves markers stand in order: this tells copies of those that were met.
        self._met = met_before(start)
        self._home = home
        self._prefix = TxId(*home, 0).to_bytes()[:JOURNAL_BYTES]
        self._topic_id = topic_id
        self._has_ended_there = has_ended
        self._end_marked = end_marked
        self._known = known
        self.begun_behind = None if self._known is None else self._known.sequence
        """What was placed up to this sequence was delivered before this buffer began; None: not
        known yet, and nothing may be fed at o2 or above."""
        # Without a sequence, only `met` says what an earlier life delivered at places.
        serial = start.delivered.get(home, -1)
        self._passed_over = serial if known is not None else self._met.get(home, -1)
        """What is placed up to this sequence is delivered or on its way."""
        self._serial = {j: s for j, s in start.delivered.items() if j != home}
        """What a reader in serial order had delivered of other journals, with places that it did
        not know: some may lie ahead."""

    # ---- in -------------------------------------------------------------------------------------

    def end_at(self, due: Due, place: int, rest_at: int | None = None) -> bool:
        """Ends a transaction at its place. Everything below the place must have been fed.

        Args:
            due: the transaction.
            place: offset before which it is delivered.
            rest_at: where in its sidecar that lies which was not delivered before; None: not known.

        Returns:
            False if more was fed: the transaction comes now, behind its place.
        """
        offset, aside = max(place, self.next_offset), due.aside or NO_ASIDE
        raw = (due.txid or TxId(*self._home, due.begin)).to_bytes()
        marker = Marker(
            committed=True,
            commit_sequence=due.sequence,
            hw=0,
            epoch=0,
            branches=due.branches,
            topic_id=self._topic_id,
            sidecar=aside.branches,
            sidecar_id=aside.topic_id,
        )
        pending = self._pending.pop(raw, None)
        if due.txid is not None:
            # The view says of TxIds of the home alone what has ended.
            self._ended.add(raw, self._shared.ended_max)
        self._met[self._home] = max(due.sequence, self._met.get(self._home, -1))
        entry = self._placed(raw, marker, offset)
        # The sequence is the home's, whoever began it. Counted for the other journal, it would make
        # that one's next markers look like duplicates.
        entry.journal = self._home
        if isinstance(entry, PlacedPointer):
            entry.place, entry.rest_at = place, rest_at
        self._commit(entry, pending)
        self._passed_over = max(due.sequence, self._passed_over)
        return offset == place

    def _placed(self, raw: RawTxId, end: Marker, offset: int) -> PlacedTransaction:
        return placed_entry(raw, end, offset, self.partition)

    def pass_gone(self, log_start: int) -> bool:
        """Passes over what stopped the partition as torn, if retention has taken its place, or what
        it has in the main partition, up to its place (trap 230).

        Args:
            log_start: first offset of the main partition's log.

        Returns:
            Whether it did.
        """
        head = self._queue[0] if self.failure is not None else None
        if not isinstance(head, PlacedTransaction):
            return False
        # Trap 174: what lies in the main partition is gone where the log starts at its place.
        place = head.place if isinstance(head, PlacedPointer) else head.marker_offset
        is_gone = log_start >= place + (head.taken >= head.stated)
        if not is_gone or not isinstance(head.error, TornTransactionError):
            return False
        head.error, head.state = None, EntryState.READY
        head.total = head.available = head.taken
        return True

    def _end(self, raw: RawTxId, marker: Marker, offset: int, live: bool) -> None:
        super()._end(raw, marker, offset, live)
        if self._end_marked is not None and raw.startswith(self._prefix):
            self._end_marked(TxId.from_bytes(raw).offset)

    def _change_mode(self, raw: RawTxId, record: ModeRecord, offset: int, live: bool) -> None:
        """Passes over a mode record. One that ends what is placed here is told to `PlacedInput`,
        which has nothing fed behind it."""

    def is_met(self, due: Due) -> bool:
        """Returns whether a transaction was delivered before: at a place of no lower sequence, or
        in the serial order of the journal that decided it."""
        # Not by `_met`: a reader that is told late of a switch, or an end of the past, meets a
        # marker before it hears of this place.
        if due.sequence <= self._passed_over:
            return True
        return due.txid is not None and due.there <= self._serial.get(due.txid.journal, -1)

    def drop(self, txid: TxId) -> None:
        """Drops a transaction of another journal that was aborted, and what is read of it later."""
        raw = txid.to_bytes()
        self._ended.add(raw, self._shared.ended_max)
        if raw in self._pending:
            self._drop(raw)

    def drop_ended(self) -> None:
        """Drops pending transactions of the home that have ended."""
        for raw in [r for r in self._pending if self._is_over(r)]:
            self._drop(raw)

    def _is_over(self, raw: RawTxId) -> bool:
        return raw.startswith(self._prefix) and self._has_ended_there(TxId.from_bytes(raw).offset)

    def _begin(self, raw: bytes | None, record: Record, live: bool) -> PendingTransaction | None:
        # A marker of a TxId that is over still counts here, if it was not met: the topic was
        # switched while it was on its way. Then a side read brings the records.
        if raw is not None and well_formed(raw) and self._is_over(raw):
            self.counters.late_records += live
            return None
        return super()._begin(raw, record, live)

    def _delivered_before(self, entry: EndedTransaction) -> int:
        if not isinstance(entry, PlacedTransaction):
            return super()._delivered_before(entry)
        # Those behind `begun_behind` are delivered in order, so the first that comes is the one.
        known = self._known
        is_next = (
            known is not None and self._sequence(self._met_taken, self._queue) == known.sequence
        )
        return known.taken if known is not None and is_next and self._is_first(entry) else 0

    def _is_first(self, entry: EndedTransaction) -> bool:
        placed = (e for e in self._queue if isinstance(e, PlacedTransaction))
        first = next(placed, entry)
        return first.marker.commit_sequence >= entry.marker.commit_sequence

    # ---- positions ------------------------------------------------------------------------------

    def _sequence(
        self, met: Mapping[Journal, int], queue: Iterable[PlainRun | EndedTransaction]
    ) -> int | None:
        del queue
        # Markers of the home count too: what both end stands in commit-sequence order.
        if self.begun_behind is None:
            return None
        return max(self.begun_behind, met.get(self._home, -1))

    def _position(
        self,
        o2: int,
        o3: int,
        met: Mapping[Journal, int],
        queue: Iterable[PlainRun | EndedTransaction],
    ) -> Position:
        queue = list(queue)
        sequence = self._sequence(met, queue)
        if sequence is None:
            return replace(super()._position(o2, o3, met, queue), delivered=self._serial)
        taken = 0
        if o3 and self._is_half_delivered(o2, sequence, queue):
            taken, o3 = o3, 0
        elif self._known is not None and sequence == self._known.sequence:
            taken = self._known.taken
        position = super()._position(o2, o3, met, queue)
        passed = Passed(self._home, sequence, taken)
        return replace(position, passed=passed, delivered=self._serial)

    @staticmethod
    def _is_half_delivered(
        o2: int, sequence: int, queue: Iterable[PlainRun | EndedTransaction]
    ) -> bool:
        # What is placed at an offset comes before the marker that may lie at it.
        return any(
            isinstance(e, PlacedTransaction)
            and e.marker_offset == o2
            and e.marker.commit_sequence > sequence
            for e in queue
        )
