"""Dumped data partitions, and what each isolation level must deliver from them, in which order.

For logtx this is only the rule of docs/architecture.md. A plain record is due at its own place. A
transaction is due at its first marker in the partition, if that says COMMITTED; of its records,
those that the marker states are delivered. For Kafka it is what Kafka's own read_committed consumer
was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from .journal import Partition, Place
from .wire import Control, Range, TxId

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
    """Its transaction has no marker."""
    LATE = auto()
    """It is behind its transaction's marker, or outside of what that accepts."""
    TORN = auto()
    """Its transaction's beginning was trimmed: a reader may or may not have had it."""
    MARKER = auto()
    MODE = auto()
    """It says that the topic's mode turned, and is of no transaction."""


class Marker(NamedTuple):
    """The end of a transaction in a partition."""

    offset: int
    control: Control


class Broken(NamedTuple):
    """A committed transaction for which the log does not hold what its marker states."""

    txid: TxId
    marker: Marker
    stated: int
    found: int


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
    places: list[Place] = field(default_factory=list)
    """For each offset of `committed`, a consumer's position before it: (o2, o3)."""
    others: dict[tuple[str, int], Order] = field(default_factory=dict)
    """What readers of other isolation levels must be given; made when asked for."""
    standing: dict[int, Standing] = field(default_factory=dict)
    """Offset → standing, of records that read_committed is not given."""
    first_markers: dict[TxId, Marker] = field(default_factory=dict)
    """First marker of each transaction, in the order of their offsets."""
    later_markers: list[tuple[TxId, Marker]] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    judged: frozenset[TxId] | None = None
    """The transactions whose records and markers are here; None: all. The others may have records
    in an earlier incarnation of the topic."""

    def judges(self, txid: TxId) -> bool:
        """Returns whether what is here of a transaction is all that there can be."""
        return self.judged is None or txid in self.judged

    def order(self, isolation: str, journal: int = 0) -> Order:
        """Returns the order for an isolation level; `journal` matters for serializable only."""
        if isolation == "read_committed":
            return self.committed
        key = isolation, (journal if isolation == "serializable" else 0)
        if key not in self.others:
            given = self._of_journal(journal) if isolation == "serializable" else self._all()
            self.others[key] = Order.of(given)
        return self.others[key]

    def is_first(self, marker: Marker) -> bool:
        """Returns whether a marker of `first_markers` is the first: none can have been trimmed."""
        return self.start == 0 or any(r.last >= self.start for r in marker.control.ranges)

    def deliver(self, offset: int, place: Place) -> None:
        """Appends the next record for read_committed."""
        self.committed.add(offset)
        self.places.append(place)

    def _of_journal(self, journal: int) -> Iterator[int]:
        for offset in self.committed.offsets:
            txid = self.records[offset].txid
            if txid is not None and txid.partition == journal:
                yield offset

    def _all(self) -> Iterator[int]:
        return (offset for offset, record in self.records.items() if record.value != NO_VALUE)


def view_logtx(partition: Partition, start: int, end: int, records: Iterable[Record]) -> View:
    """Reads a partition as a consumer of logtx must.

    Args:
        partition: topic and number.
        start: its first offset.
        end: the offset behind its last record.
        records: in offset order, markers too.
    """
    view = View(partition, start, end)
    pending: dict[TxId, list[Record]] = {}
    for record in records:
        offset, txid, control = record.offset, record.txid, record.control
        view.records[offset] = record
        if control is not None and control.is_mode_record:
            view.standing[offset] = Standing.MODE
            continue
        if txid is not None and control is not None and control.is_marker:
            view.standing[offset] = Standing.MARKER
            marker = Marker(offset, control)
            if txid in view.first_markers:
                view.later_markers.append((txid, marker))
            else:
                view.first_markers[txid] = marker
                _end(view, txid, marker, pending.pop(txid, []))
            continue
        if txid is None:
            view.deliver(offset, (offset, 0))
        elif txid in view.first_markers:
            view.standing[offset] = Standing.LATE
        else:
            pending.setdefault(txid, []).append(record)
    for left in pending.values():
        view.standing.update((record.offset, Standing.UNDECIDED) for record in left)
    return view


def _end(view: View, txid: TxId, marker: Marker, records: Sequence[Record]) -> None:
    if not marker.control.committed:
        view.standing.update((record.offset, Standing.ABORTED) for record in records)
        return
    ranges = {stated.branch: stated for stated in marker.control.ranges}
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
    if any(stated.first < view.start for stated in ranges.values()):
        view.standing.update((record.offset, Standing.TORN) for record in accepted)
        return
    stated_count = sum(stated.records for stated in ranges.values())
    if len(accepted) != stated_count:
        view.broken.append(Broken(txid, marker, stated_count, len(accepted)))
    for index, record in enumerate(accepted):
        view.deliver(record.offset, (marker.offset, index))


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
            view.deliver(offset, (offset, 0))
        elif offset >= stable:
            view.standing[offset] = Standing.UNDECIDED
        else:
            view.standing[offset] = Standing.ABORTED
    return view
