"""Entries of a `PartitionBuffer`'s queue, between reading and delivery."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
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
    """It waits for a side read."""
    STREAMING = "streaming"
    """What was read of it is delivered; its next records are being read in the sidecar."""
    FAILED = "failed"
    """It can't be delivered: `error` says why, and the partition stops there."""


class PlainRun:
    """Consecutive plain records, with an event in the place of each malformed record."""

    __slots__ = ("index", "records")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.index = 0
        """How many of the records are taken."""

    @property
    def first_offset(self) -> int:
        """Offset of the next record to take."""
        return self.records[self.index].offset()


class EndedTransaction:
    """A committed transaction at its marker, on its way to the application."""

    __slots__ = (
        "available",
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
        """Begins without records. A duplicate or an empty transaction stays so."""
        self.txid = txid
        self.journal = journal_of(txid)
        self.marker = marker
        self.marker_offset = marker_offset
        self.first_offset = marker_offset
        """Offset of its first record, buffered or to be read aside; o1 must not pass it before all
        are taken."""
        ranges = marker.branches
        self.stated = ranges[0].count if len(ranges) == 1 else sum(r.count for r in ranges)
        """Number of its records, by the marker."""
        self.state = EntryState.READY
        self.pending: PendingTransaction | None = None
        """Holds the records, in memory or on disk."""
        self.selects: Verdict | None = None
        """Tells its records from late ones; None if there are no late ones."""
        self.stream: Sequence[Record] | Iterator[Record] = ()
        """The records to deliver; an iterator goes on from `taken`."""
        self.total = 0
        """Number of records to deliver: `stated` once they are there, 0 before."""
        self.available = 0
        """How many of them are read: all, unless they lie in a sidecar."""
        self.taken = 0
        self.error: ConsumerError | None = None

    @property
    def may_begin(self) -> bool:
        """Whether all that is known of it says that it can be delivered whole."""
        return self.state is EntryState.READY

    @property
    def behind(self) -> int:
        """o2 of a reader that has delivered it, and nothing behind it."""
        return self.marker_offset + 1

    @property
    def read_to(self) -> int:
        """Everything below this offset tells what there is of it."""
        return self.marker_offset

    @property
    def read_from(self) -> int:
        """Who has read everything from here on, up to the marker, knows whether it is the first."""
        return min(r.first_offset for r in self.marker.branches)

    def part(self, start: int, stop: int) -> Sequence[Record]:
        """Returns the records of these indices; `start` is `taken`, and they are read."""
        if isinstance(self.stream, Sequence):
            whole = not start and stop >= len(self.stream)
            return self.stream if whole else self.stream[start:stop]
        return list(islice(self.stream, stop - start))

    @property
    def is_foreign(self) -> bool:
        """Whether its marker claims records that can't be in this log: at its own offset or behind.

        They were in a deleted topic of that name, and went with it.
        """
        return any(r.last_offset >= self.marker_offset for r in self.marker.branches)


class ModeMet(NamedTuple):
    """A mode record: from here on transactions of its home are placed in the partition, or marked
    again."""

    offset: int
    home: Journal
    mode_offset: int
    """Journal offset of the MODE record with which the switch began."""
    topic_id: str
    """Id of the topic that was switched; "" if the log has none."""
    places: bool
    """Whether they are placed from here on. If not, they were so far, and the reader followed no
    home: it did not hear of the switch."""


class Share(NamedTuple):
    """The part of an entry that one call took."""

    entry: PlainRun | EndedTransaction
    start: int
    """How many of the entry's records were taken before."""
    records: Sequence[Record]


@dataclass(frozen=True, slots=True)
class SideRead:
    """A request for one TxId's records between two offsets, and for any marker among them."""

    txid: RawTxId
    marker: Marker
    first_offset: int
    """Offset to read from: the lowest first offset that the marker states."""
    marker_offset: int
    """Offset of the marker, or the place: the range ends below it."""
    end_offset: int
    """The range is read when everything below is."""

    @classmethod
    def of(cls, entry: EndedTransaction) -> SideRead:
        """Returns the side read that settles a waiting entry."""
        first = entry.read_from
        return cls(entry.txid, entry.marker, first, entry.marker_offset, entry.read_to)


def journal_of(txid: RawTxId) -> Journal:
    """Returns (journal partition, incarnation) of a TxId that was found well-formed before."""
    number = int.from_bytes(txid[:8], "big")
    return number >> 48, number & (1 << 48) - 1


def advance(met: dict[Journal, int], entry: EndedTransaction) -> None:
    """Notes an entry's commit sequence as met."""
    met[entry.journal] = max(entry.marker.commit_sequence, met.get(entry.journal, -1))
