"""Dumped data partitions, and what each isolation level must deliver from them, in which order.

For logtx this is only the rule of docs/architecture.md. A plain record is due at its own offset. A
transaction is due at its first marker in the partition, if that says COMMITTED, or at its place, if
the journal gives it one: before the record at that offset, and behind those of lower commit
sequence. Of its records, those that its end states are delivered. For Kafka it is what Kafka's own
read_committed consumer was given.

Records of a transaction in the partition's sidecar are here by the offsets that consumers are given
them with. They end by their pointer, which is a marker, or by the place that stands for it. An
abort ends them in the sidecar alone.

Readers of uncommitted records are given what is placed in two orders, side by side: each record of
the partition at its own offset, and what lies in the sidecar in the order of the home. It comes at
its place or later, for the place may be told late.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from .journal import GONE, Fate, Partition, Place, PlacedEnd
from .wire import ASIDE_FROM, Control, Range, TxId

NO_VALUE = -1


class Record(NamedTuple):
    """A record of a data partition."""

    offset: int
    value: int
    """Number of its value in the history; `NO_VALUE` for a marker or mode record."""
    op: str | None = None
    """The operation that wrote it, from its value; None for a plain record."""
    txid: TxId | None = None
    control: Control | None = None


class Standing(Enum):
    """Why a record must not be delivered to a read_committed reader."""

    ABORTED = auto()
    UNDECIDED = auto()
    """Its transaction has no marker and no place."""
    LATE = auto()
    """It is behind its transaction's end, or outside of what that accepts."""
    TORN = auto()
    """Its transaction's beginning was trimmed, the pointer to it, or its decision: a reader may or
    may not have had it."""
    MARKER = auto()
    MODE = auto()
    """It says that the topic's mode turned, and is of no transaction."""


class Marker(NamedTuple):
    """The end of a transaction in a partition."""

    offset: int
    control: Control


class End(NamedTuple):
    """Where a transaction ends in a partition, by whatever."""

    txid: TxId
    offset: int
    """Of the marker, or the place."""
    commit_sequence: int
    """In its own journal."""
    committed: bool
    ranges: tuple[Range, ...]
    aside: tuple[Range, ...] = ()
    """What it states of the sidecar."""
    placed: PlacedEnd | None = None
    """None: by a marker."""
    since: int = 0
    """Of a pointer: see `Control`."""

    @property
    def is_place(self) -> bool:
        """Whether it is a place, and no record lies there that says so."""
        return self.placed is not None

    @property
    def sequence(self) -> int:
        """Commit sequence in the journal that ends it here: the home of its place, or its own."""
        return self.commit_sequence if self.placed is None else self.placed.sequence


class Aside(NamedTuple):
    """A dumped partition of a sidecar."""

    start: int
    end: int
    records: tuple[Record, ...]
    """With offsets in the sidecar; markers, too."""


class Broken(NamedTuple):
    """A committed transaction for which the log does not hold what its end states."""

    end: End
    stated: int
    found: int


class Due(NamedTuple):
    """When one record is due: what a consumer's position says of it depends on this."""

    offset: int
    """Its own, if it is plain; else that of its transaction's end."""
    number: int = 0
    """Its number within its transaction."""
    sequence: int | None = None
    """Commit sequence of its transaction in the home, if that is placed."""
    home: int = -1
    """The journal partition that places it."""
    before: int = -1
    """Commit sequence of what was placed in the partition before."""

    def is_before(self, place: Place) -> bool:
        """Returns whether a reader that stands there has been given it."""
        passed = place.passed
        if self.sequence is not None and passed is not None and passed.journal == self.home:
            if self.sequence <= passed.sequence:
                return True
            return self.before <= passed.sequence and self.number < passed.taken
        # Without a word on what is placed, nothing that is placed at o2 was delivered.
        number = self.number if self.sequence is None else place.o3
        return self.offset < place.o2 or (self.offset == place.o2 and number < place.o3)


@dataclass(slots=True)
class Order:
    """What a reader must be given of a partition, in this order."""

    offsets: list[int] = field(default_factory=list)
    rank: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, offsets: Iterable[int]) -> Order:
        """Makes an order of these offsets."""
        listed = list(offsets)
        return cls(listed, {offset: rank for rank, offset in enumerate(listed)})

    def add(self, offset: int) -> None:
        """Appends the next offset."""
        self.rank[offset] = len(self.offsets)
        self.offsets.append(offset)


@dataclass(slots=True)
class View:
    """One data partition."""

    partition: Partition
    start: int
    """Everything below this offset was trimmed."""
    end: int
    records: dict[int, Record] = field(default_factory=dict)
    committed: Order = field(default_factory=Order)
    """What a read_committed reader must be given."""
    due: list[Due] = field(default_factory=list)
    """For each offset of `committed`, when it is due."""
    others: dict[tuple[str, int], tuple[Order, ...]] = field(default_factory=dict)
    """What readers of other isolation levels must be given; made when asked for."""
    standing: dict[int, Standing] = field(default_factory=dict)
    """Offset → standing, of records that read_committed is not given."""
    first_markers: dict[TxId, Marker] = field(default_factory=dict)
    """First marker of each transaction, in the order of their offsets."""
    later_markers: list[tuple[TxId, Marker]] = field(default_factory=list)
    placed: dict[TxId, End] = field(default_factory=dict)
    """Committed transactions that end by a place, in the order of delivery."""
    broken: list[Broken] = field(default_factory=list)
    aside_start: int = 0
    aside_end: int = 0
    """The end of its sidecar, 0 if it has none."""
    aside_at: dict[int, list[int]] = field(default_factory=dict)
    """Offset of a pointer → offsets of what is delivered from the sidecar there."""
    placed_aside: dict[int, int] = field(default_factory=dict)
    """Offset of what is delivered from the sidecar at a place → that place. In the order of
    delivery."""
    aside_markers: list[tuple[TxId, Marker]] = field(default_factory=list)
    """The markers in its sidecar."""
    judged: frozenset[TxId] | None = None
    """The transactions whose records and markers are here; None: all. The others may have records
    in an earlier incarnation of the topic."""

    def is_beyond(self, offset: int) -> bool:
        """Returns whether a delivered offset lies behind the end of its log."""
        return offset >= (self.aside_end + ASIDE_FROM if offset >= ASIDE_FROM else self.end)

    def judges(self, txid: TxId) -> bool:
        """Returns whether what is here of a transaction is all that there can be."""
        return self.judged is None or txid in self.judged

    def orders(self, isolation: str, journal: int = 0) -> tuple[Order, ...]:
        """Returns what readers of an isolation level must be given: each offset is in one of the
        orders, and between those nothing is promised. `journal` matters for serializable only."""
        if isolation == "read_committed":
            return (self.committed,)
        key = isolation, (journal if isolation == "serializable" else 0)
        if key not in self.others:
            if isolation == "serializable":
                self.others[key] = (Order.of(self._of_journal(journal)),)
            else:
                self.others[key] = Order.of(self._all()), Order.of(self.placed_aside)
        return self.others[key]

    def order(self, isolation: str, journal: int = 0) -> Order:
        """Returns the order of committed records, or the first one; see `orders`."""
        return self.orders(isolation, journal)[0]

    def end_of(self, txid: TxId) -> End | None:
        """Returns where a transaction ends here; None if it does not, as far as is known."""
        placed = self.placed.get(txid)
        if placed is not None:
            return placed
        marker = self.first_markers.get(txid)
        return None if marker is None else _by_marker(txid, marker)

    def given_before(self, place: Place) -> int:
        """Returns how many records of `committed` a reader that stands there has been given."""
        return bisect_left(self.due, True, key=lambda due: not due.is_before(place))

    def is_first(self, marker: Marker) -> bool:
        """Returns whether a marker of `first_markers` is the first: none can have been trimmed."""
        return self.start == 0 or any(r.last >= self.start for r in marker.control.ranges)

    def deliver(self, offset: int, due: Due) -> None:
        """Appends the next record for read_committed."""
        self.committed.add(offset)
        self.due.append(due)

    def _of_journal(self, journal: int) -> Iterator[int]:
        for offset in self.committed.offsets:
            txid = self.records[offset].txid
            if txid is not None and txid.partition == journal:
                yield offset

    def _all(self) -> Iterator[int]:
        # Two logs have no order between them: what lies in the sidecar comes at its pointer. What
        # is placed there has an order of its own.
        for offset, record in self.records.items():
            if record.value != NO_VALUE and offset < ASIDE_FROM:
                yield offset
            yield from self.aside_at.get(offset, ())


FateOf = Callable[[TxId], Fate | None]


def _unknown(txid: TxId) -> None:  # noqa: ARG001
    return None


def view_logtx(
    partition: Partition,
    start: int,
    end: int,
    records: Iterable[Record],
    placed: Iterable[PlacedEnd] = (),
    fate_of: FateOf = _unknown,
    aside: Aside | None = None,
    journal_starts: Mapping[int, int] | None = None,
) -> View:
    """Reads a partition as a consumer of logtx must.

    Args:
        partition: topic and number.
        start: its first offset.
        end: the offset behind its last record.
        records: in offset order, markers too.
        placed: what the journals place here.
        fate_of: returns what the journal says of a transaction.
        aside: its sidecar.
        journal_starts: first offset of each journal partition that was trimmed.
    """
    view = View(partition, start, end)
    reading = _Reading(view, placed, journal_starts or {})
    if aside is not None:
        reading.read_aside(aside)
    for record in records:
        reading.place_up_to(record.offset)
        reading.read(record)
    reading.place_up_to(end)
    for txid, left in reading.pending.items():
        standing = _left_over(partition, fate_of(txid))
        view.standing.update((record.offset, standing) for record in left)
    for txid, left in reading.aside.items():
        standing = _left_aside(view, txid, fate_of(txid))
        view.standing.update((record.offset, standing) for record in left)
    return view


def _left_aside(view: View, txid: TxId, fate: Fate | None) -> Standing:
    """Returns the standing of records in the sidecar whose transaction has no pointer."""
    if view.end_of(txid) is not None:
        return Standing.LATE  # An aborted one with an end here, or one that accepts none of these.
    marker = next((m for t, m in view.aside_markers if t == txid), None)
    if marker is not None and not marker.control.committed:
        return Standing.ABORTED
    if _is_trimmed(fate):
        return Standing.TORN  # It may have said that it is placed.
    # Below the log's start its pointer may have been.
    decided = marker is not None or (fate is not None and fate.finished is not None)
    return Standing.TORN if decided and view.start > 0 else Standing.UNDECIDED


def _left_over(partition: Partition, fate: Fate | None) -> Standing:
    """Returns the standing of records whose transaction has no end in their partition."""
    if _is_trimmed(fate):
        return Standing.TORN  # Its decision said what became of it in this partition.
    if fate is None or fate.decided is None or partition not in fate.unmarked:
        return Standing.UNDECIDED
    if not fate.committed:
        return Standing.ABORTED
    # If its commit accepts nothing there, it needs no place.
    return Standing.UNDECIDED if fate.writes.get(partition) else Standing.LATE


def _is_trimmed(fate: Fate | None) -> bool:
    """Returns whether a transaction is finished whose decision was trimmed."""
    return fate is not None and fate.decided is None and fate.finished is not None


class _Reading:
    """A consumer on its way through a partition."""

    def __init__(
        self, view: View, placed: Iterable[PlacedEnd], journal_starts: Mapping[int, int]
    ) -> None:
        self._view = view
        self._placed = deque(sorted(p for p in placed if p.place != GONE))
        self._gone: Final = dict[int, int]()
        """Home → commit sequence of what it placed last where the log starts, or below, and is gone
        with the partition's records."""
        for each in self._placed:
            if each.place <= view.start and each.ranges:
                self._gone[each.home] = max(each.sequence, self._gone.get(each.home, -1))
        # What a trimmed journal placed below its start is not known: a reader that had taken some
        # of "the next one" there had taken it of one of those.
        self._last_placed: Final = {home: start - 1 for home, start in journal_starts.items()}
        self.pending: Final = dict[TxId, list[Record]]()
        self.aside: Final = dict[TxId, list[Record]]()
        """Records in the sidecar whose transactions have no end yet."""

    def read_aside(self, aside: Aside) -> None:
        """Takes the sidecar, all at once: what a pointer names lay there before it was written."""
        view, view.aside_start, view.aside_end = self._view, aside.start, aside.end
        for record in aside.records:
            if record.txid is None:
                continue  # Nobody writes such records there; nobody is given one.
            if record.control is not None and record.control.is_marker:
                view.aside_markers.append((record.txid, Marker(record.offset, record.control)))
                continue
            moved = record._replace(offset=record.offset + ASIDE_FROM)
            view.records[moved.offset] = moved
            self.aside.setdefault(record.txid, []).append(moved)

    def place_up_to(self, offset: int) -> None:
        """Ends what is placed at or below the next record."""
        while self._placed and self._placed[0].place <= offset:
            placed = self._placed.popleft()
            if self._view.end_of(placed.txid) is not None:
                continue  # a marker stands before its place: told by the check of markers
            end = End(
                placed.txid,
                placed.place,
                placed.commit_sequence,
                True,
                placed.ranges,
                placed.aside,
                placed,
            )
            self._view.placed[placed.txid] = end
            self._end(end)

    def read(self, record: Record) -> None:
        """Takes the next record."""
        view, offset, txid, control = self._view, record.offset, record.txid, record.control
        view.records[offset] = record
        if control is not None and control.is_mode_record:
            view.standing[offset] = Standing.MODE
        elif txid is not None and control is not None and control.is_marker:
            view.standing[offset] = Standing.MARKER
            self._mark(txid, Marker(offset, control))
        elif txid is None:
            view.deliver(offset, Due(offset))
        elif view.end_of(txid) is not None:
            view.standing[offset] = Standing.LATE
        else:
            self.pending.setdefault(txid, []).append(record)

    def _mark(self, txid: TxId, marker: Marker) -> None:
        if txid in self._view.first_markers:
            self._view.later_markers.append((txid, marker))
            return
        is_over = self._view.end_of(txid) is not None
        self._view.first_markers[txid] = marker
        if not is_over:
            self._end(_by_marker(txid, marker))

    def _end(self, end: End) -> None:
        view, records = self._view, self.pending.pop(end.txid, [])
        if not end.committed:
            view.standing.update((record.offset, Standing.ABORTED) for record in records)
            return
        ranges = {stated.branch: stated for stated in end.ranges}
        accepted = _accepted(view, ranges, records)
        aside = {r.branch: _moved(r) for r in end.aside}
        # What lies in the partition comes first, then what lies in the sidecar.
        accepted += _accepted(view, aside, self.aside.pop(end.txid, []))
        home = end.txid.partition if end.placed is None else end.placed.home
        before = self._last_placed.get(home, -1)
        if end.is_place:
            self._last_placed[home] = end.sequence
        torn = any(stated.first < view.start for stated in ranges.values())
        if torn or self._began_below_start(end):
            view.standing.update((record.offset, Standing.TORN) for record in accepted)
            return
        if aside:
            given = [record.offset for record in accepted if record.offset >= ASIDE_FROM]
            if end.is_place:
                view.placed_aside |= dict.fromkeys(given, end.offset)
            else:
                view.aside_at[end.offset] = given
        stated_count = sum(stated.records for stated in (*ranges.values(), *aside.values()))
        if len(accepted) != stated_count:
            view.broken.append(Broken(end, stated_count, len(accepted)))
        for index, record in enumerate(accepted):
            due = Due(end.offset, index)
            if end.is_place:
                due = Due(end.offset, index, end.sequence, home, before)
            view.deliver(record.offset, due)

    def _began_below_start(self, end: End) -> bool:
        """Returns whether it is not known if a reader that begins where the log starts is due what
        lies in the sidecar alone.

        Its first pointer may have been trimmed. Or it is placed below the start; or there, and
        before something that is gone, which a position counts as delivered.
        """
        start = self._view.start
        if end.ranges:
            return False
        if end.placed is None:
            return bool(end.aside) and end.since < start
        precedes = end.sequence < self._gone.get(end.placed.home, -1)
        return end.offset < start or (end.offset == start and precedes)


def _by_marker(txid: TxId, marker: Marker) -> End:
    control = marker.control
    return End(
        txid,
        marker.offset,
        control.commit_sequence,
        control.committed,
        control.ranges,
        control.sidecar,
        since=control.since,
    )


def _moved(stated: Range) -> Range:
    return stated._replace(first=stated.first + ASIDE_FROM, last=stated.last + ASIDE_FROM)


def _accepted(view: View, ranges: Mapping[int, Range], records: Sequence[Record]) -> list[Record]:
    """Returns the records that an end states; the others are late."""
    accepted: list[Record] = []
    numbered: set[tuple[int, int]] = set()
    for record in records:
        branch, sequence = _writer(record)
        repeated = sequence is not None and (branch, sequence) in numbered
        if repeated or not _accepts(ranges.get(branch), record.offset):
            view.standing[record.offset] = Standing.LATE
        else:
            accepted.append(record)
            if sequence is not None:
                numbered.add((branch, sequence))
    return accepted


def _writer(record: Record) -> tuple[int, int | None]:
    control = record.control
    return (0, None) if control is None else (control.branch, control.sequence)


def _accepts(stated: Range | None, offset: int) -> bool:
    return stated is not None and stated.first <= offset <= stated.last


def view_kafka(
    partition: Partition,
    start: int,
    end: int,
    records: Iterable[Record],
    visible: Mapping[int, int],
    stable: int,
) -> View:
    """Reads a partition by what Kafka's own consumers were given.

    Args:
        partition: topic and number.
        start: its first offset.
        end: the offset behind its last record.
        records: what a read_uncommitted consumer was given.
        visible: offset → value of what a read_committed one was given.
        stable: where the log ended for that one; behind it nothing is decided.
    """
    view = View(partition, start, end)
    for record in records:
        offset = record.offset
        view.records[offset] = record
        if offset in visible:
            view.deliver(offset, Due(offset))
        elif offset >= stable:
            view.standing[offset] = Standing.UNDECIDED
        else:
            view.standing[offset] = Standing.ABORTED
    return view
