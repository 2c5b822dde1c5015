"""What stands in a `PartitionBuffer`'s queue, between reading and delivery."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ...journal.control import Marker
from ...journal.errors import ConsumerError
from ...journal.position import Journal
from .pending import PendingTransaction, RawTxId, Record
from .ranges import Verdict


class EntryState(Enum):
    """Whether an ended transaction can be delivered."""

    READY = "ready"
    WAITING = "waiting"
    """For a side read."""
    FAILED = "failed"
    """`error` says why; the partition stops there."""


class PlainRun:
    """Plain records in a row, and malformed ones as events."""

    __slots__ = ("index", "records")

    def __init__(self) -> None:
        """Begin empty."""
        self.records: list[Record] = []
        self.index = 0
        """Records taken."""

    @property
    def first_offset(self) -> int:
        """Offset of the next record to take."""
        return self.records[self.index].offset()


class EndedTransaction:
    """A committed transaction at its marker, on its way to the application."""

    __slots__ = (
        "error",
        "first_offset",
        "journal",
        "marker",
        "marker_offset",
        "pending",
        "selects",
        "state",
        "stated",
        "stream",
        "taken",
        "total",
        "txid",
    )

    def __init__(self, txid: RawTxId, marker: Marker, marker_offset: int) -> None:
        """Begin without records: what a duplicate or an empty transaction is."""
        self.txid = txid
        self.journal = journal_of(txid)
        self.marker = marker
        self.marker_offset = marker_offset
        self.first_offset = marker_offset
        """Of its records that were buffered; o1 must not pass it before all are taken."""
        ranges = marker.branches
        self.stated = ranges[0].count if len(ranges) == 1 else sum(r.count for r in ranges)
        """Records, by the marker."""
        self.state = EntryState.READY
        self.pending: PendingTransaction | None = None
        """Holder of the records' memory or disk."""
        self.selects: Verdict | None = None
        """By what its records are told from late ones; None where all are its own."""
        self.stream: Sequence[Record] | Iterator[Record] = ()
        self.total = 0
        """Records to deliver, once they are there: those stated."""
        self.taken = 0
        self.error: ConsumerError | None = None


class Share(NamedTuple):
    """What was taken of an entry at a time."""

    entry: PlainRun | EndedTransaction
    start: int
    """Records of the entry that were taken before."""
    records: Sequence[Record]


@dataclass(frozen=True, slots=True)
class SideRead:
    """Ask for the records of one TxId between two offsets, and whether a marker is among them."""

    txid: RawTxId
    marker: Marker
    first_offset: int
    """Lowest first offset that the marker states."""
    marker_offset: int
    """Read below this offset."""

    @classmethod
    def of(cls, entry: EndedTransaction) -> SideRead:
        """The side read that settles a waiting entry."""
        first = min(r.first_offset for r in entry.marker.branches)
        return cls(entry.txid, entry.marker, first, entry.marker_offset)


def journal_of(txid: RawTxId) -> Journal:
    """(journal partition, incarnation) of a TxId that was found well-formed before."""
    number = int.from_bytes(txid[:8], "big")
    return number >> 48, number & (1 << 48) - 1


def advance(met: dict[Journal, int], entry: EndedTransaction) -> None:
    """Note an entry's commit sequence as met."""
    met[entry.journal] = max(entry.marker.commit_sequence, met.get(entry.journal, -1))
