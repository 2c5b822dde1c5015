"""Pointers: a committed transaction whose records lie in the partition's sidecar. Pure.

A consumer buffers nothing of such a transaction. When it meets the pointer, it reads the sidecar's
range and delivers what it finds, as far as the application takes it.

Why it is right. A pointer is its transaction's marker in the main partition, so what `buffer` says
of markers holds for it, but for one thing: the buffer holds no record by which it could tell that
no earlier marker was there. Instead:

1. *One lane.* Pointers stand in commit-sequence order with the markers of their journal. So one at
   or below the last sequence met is a duplicate, as is one whose TxId has ended or lies below a HW.
2. *Who has none of these asks the log, from `since` on.* That was an end of the main partition
   before the decision, so all copies lie at or behind it. A reader that read everything from there
   on, and met none, is at the first. Any other looks for an earlier one, by a side read from there
   on.
3. *`since` is part of the decision.* If each copy had its own, a later copy would claim that the
   first one lies behind itself (trap 91).
4. *Unsure.* If `since` lies below the log's start, the first pointer may have been there. If the
   sidecar still holds the range, the transaction is delivered: to pass over it would lose every
   transaction around which retention cuts (trap 92). It is delivered once, and whole; only a copy
   that was written just where retention cut is delivered later than readers had it that were there
   before. If the sidecar has lost the range, this is a copy: sidecars are trimmed behind the start
   of the main log alone. It is passed over, and counted: an error would stop readers at it for
   ever (trap 93). Who delivered a part of it at this pointer is not unsure: it was the first.
5. *A pointer below its own `since`*, in a log that lost its end, counts as if `since` were its
   offset.
6. *All or nothing.* Before the first record is delivered the sidecar must hold first and last
   offset, and have the id that the pointer names; while they are read the accepted records are
   counted, and one too few or too many is an IntegrityError at that place. It may come when a part
   is delivered, unlike with markers: only a broker that lost acknowledged records in the middle can
   cause it. A sidecar of another id may be one that was deleted and created anew, and has grown
   past those offsets. Or the records are in it all the same, as the coordinator learnt of it late.
   So they are all counted before one is delivered (trap 118).
7. *Positions.* o2 is the pointer's offset, o3 counts the records delivered, those of the main
   partition first. What lies in the sidecar does not hold o1 back, and what lies in the main
   partition does until all is delivered. `Position.side` says where in the sidecar to go on;
   without it a restarted reader reads from the first offset and skips, with the same result.
8. *What is delivered in part* is delivered to its end, or stops the partition: it is neither passed
   over as a copy nor skipped as torn (trap 116). Who has delivered what lies in the main partition
   needs no more of that (trap 117).

Source: PIP-31, "Sidecar Approach".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

from ...journal.control import OWN_BRANCH, TXID_HEADER, Marker, TopicPartition
from ...journal.errors import MalformedHeaderError, SpillError
from ...journal.position import Position
from ...journal.sidecar import (
    in_sidecar,
    is_delivered_from_sidecar,
    sidecar_of,
    to_delivered,
)
from .entries import EndedTransaction, EntryState
from .headers import is_marker, txid_of
from .pending import RawTxId, Record
from .ranges import ControlCache, Numbers


class Relocated:
    """A record of a sidecar, as it is delivered: with the offset that says so.

    A consumer's shell delivers messages of the main topic in its place.
    """

    __slots__ = ("_record",)

    def __init__(self, record: Record) -> None:
        self._record = record

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Returns the headers in order, or None."""
        return self._record.headers()

    def offset(self) -> int:
        """Returns the offset in the sidecar, as `journal.sidecar.to_delivered` gives it out."""
        return to_delivered(self._record.offset())

    def key(self) -> bytes | None:
        """Returns the key."""
        return self._record.key()

    def value(self) -> bytes | None:
        """Returns the value."""
        return self._record.value()

    def __len__(self) -> int:
        """Returns the number of bytes of the value."""
        return len(self._record)


Relocate: TypeAlias = Callable[[TopicPartition, Record], Record]
"""Makes, of a record in a sidecar, the one that is delivered of the main partition named."""


def relocated(_partition: TopicPartition, record: Record) -> Record:
    """Returns the record with the offset that it is delivered with."""
    return Relocated(record)


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A request for the records of a transaction in a sidecar, from an offset on."""

    txid: RawTxId
    pointer_offset: int
    sidecar: TopicPartition
    next_offset: int
    """First offset in the sidecar that is to be read."""
    last_offset: int
    """Last offset in the sidecar of a record that the pointer names."""
    is_open: bool
    """Whether `open_stream` has said that the sidecar holds the range."""
    ahead: int
    """How many records of it are read and not taken."""


class PointedTransaction(EndedTransaction):
    """A committed transaction at its pointer. `stated` counts the records in the main partition."""

    __slots__ = (
        "_before",
        "accepted",
        "fetched",
        "is_open",
        "next_side",
        "numbers",
        "shown",
        "side",
        "side_stated",
        "sidecar",
        "skip",
        "unsure",
    )

    def __init__(self, txid: RawTxId, marker: Marker, offset: int, main: TopicPartition) -> None:
        """Begins without records."""
        super().__init__(txid, marker, offset)
        self.sidecar: TopicPartition = sidecar_of(main[0]), main[1]
        self.side_stated = sum(r.count for r in marker.sidecar)
        """Number of its records in the sidecar."""
        self.shown = 0
        """How many of its records were delivered at their own places, below its pointer: to readers
        of uncommitted records, all that lie in the main partition. They count in o3, too."""
        self.unsure = False
        """Whether an earlier pointer may have been below the main log's start."""
        self.is_open = False
        """Whether the sidecar was said to hold the range."""
        self._before: tuple[int, int, dict[int, Numbers]] | None = None
        """While its records are counted: `next_side`, `accepted` and `numbers` of before that."""
        self.next_side = min(r.first_offset for r in marker.sidecar)
        """First offset in the sidecar that was not read."""
        self.fetched: deque[Record] = deque()
        """Records of the sidecar that were read and not taken."""
        self.accepted = 0
        """How many records of the sidecar were read, or are known to be delivered."""
        self.skip = 0
        """How many of them, from the first on, an earlier life of the reader delivered."""
        self.side: int | None = None
        """See `Position.side`, as of `taken`."""
        self.numbers: dict[int, Numbers] = {}
        """Branch → sequence numbers that were read, if its records have any."""

    @property
    def is_only(self) -> bool:
        """Whether there can be no copy of it."""
        return False

    @property
    def read_from(self) -> int:
        if self.marker.branches:
            return super().read_from
        return min(self.marker.since, self.marker_offset)

    @property
    def last_side(self) -> int:
        """Last offset in the sidecar of a record that the pointer names."""
        return max(r.last_offset for r in self.marker.sidecar)

    def begin(self, taken: int, side: int | None) -> None:
        """Begins to read the sidecar: the transaction is known to be delivered here.

        Args:
            taken: how many of its records an earlier life of the reader delivered.
            side: where it was in the sidecar then, if it is known.
        """
        self.total = self.stated + self.side_stated
        self.taken = min(taken, self.total)
        done = max(0, self.taken - self.stated)
        if done and side is None and self._is_dense:
            side = self.next_side + done
        if done and side is not None:
            self.next_side = max(self.next_side, side)
            self.accepted, self.side = done, side
        else:
            self.skip = done
        self.available = self.stated + self.accepted
        self._settle()

    @property
    def _is_dense(self) -> bool:
        """Whether nothing lies between its records in the sidecar: their offsets follow from the
        first one's. Asked before any is read."""
        return self.last_side - self.next_side + 1 == self.side_stated

    def opened(self, *, counts_first: bool) -> None:
        """Notes that the sidecar holds the range.

        Args:
            counts_first: whether it may be another sidecar. Then all that is due is read once
                before any of it is delivered; `counted` follows.
        """
        self.is_open = True
        self._go_back()
        if counts_first:
            self._before = self.next_side, self.accepted, deepcopy(self.numbers)
        self._settle()

    @property
    def is_counting(self) -> bool:
        """Whether its records are read to be counted, and none is delivered yet."""
        return self._before is not None

    def counted(self) -> None:
        """Notes that all that is due was read, and begins to read it again."""
        self._go_back()
        self._settle()

    def _go_back(self) -> None:
        if self._before is not None:
            self.next_side, self.accepted, self.numbers = self._before
            self._before = None

    @property
    def is_sure(self) -> bool:
        """Whether the sidecar is known to hold what is due."""
        return self.is_open and not self.is_counting

    def _settle(self) -> None:
        # What lies in the main partition waits, too, until the sidecar is known to hold the rest.
        done = self.taken == self.total
        there = self.available > self.taken and self.is_sure
        self.state = EntryState.READY if done or there else EntryState.STREAMING

    @property
    def may_begin(self) -> bool:
        # Without a record of it: those are read in its turn.
        is_settled = self.state in (EntryState.READY, EntryState.STREAMING)
        return is_settled and (self.is_sure or self.taken == self.total)

    @property
    def is_wanted(self) -> bool:
        """Whether it is known to be delivered, and something of it is to be read in the sidecar."""
        is_settled = self.state in (EntryState.READY, EntryState.STREAMING)
        return is_settled and self.taken < self.total and self.next_side <= self.last_side

    def request(self) -> StreamRequest:
        """Returns what is to be read next."""
        return StreamRequest(
            self.txid,
            self.marker_offset,
            self.sidecar,
            self.next_side,
            self.last_side,
            self.is_open,
            len(self.fetched),
        )

    def push(
        self,
        records: Sequence[Record],
        upto: int,
        controls: ControlCache,
        deliver: Callable[[Record], Record],
    ) -> int:
        """Takes in what was read in the sidecar, in offset order.

        Args:
            records: all records of the sidecar from `next_side` on, of whatever transaction.
            upto: everything below this offset was read.
            controls: decodes TxCtl headers.
            deliver: makes the record that is delivered.

        Returns:
            How many records were passed over.

        Raises:
            SystemError: confluent-kafka can't read a record's headers; nothing was taken in.
        """
        first, last = self.next_side, self.last_side
        if records and (records[0].offset() < first or records[-1].offset() > last):
            records = [r for r in records if first <= r.offset() <= last]
        if not records:
            self.next_side = max(first, upto)
            return 0
        # Consecutive records with equal headers go the same way, as in `PartitionBuffer._scan`. All
        # are read before anything is changed: a header may be unreadable.
        runs = [(h, [*alike]) for h, alike in groupby(records, type(records[0]).headers)]
        self.next_side = max(records[-1].offset() + 1, upto)
        found: list[Record] = []
        ranges = self.marker.sidecar
        own = ranges[0] if len(ranges) == 1 and ranges[0].branch == OWN_BRANCH else None
        for headers, alike in runs:
            if own is not None and headers and len(headers) == 1:
                if headers[0] == (TXID_HEADER, self.txid):
                    found.extend(alike)  # Of one branch, whose ends are those of the range.
            elif headers:
                found.extend(r for r in alike if self._accepts(r, controls))
        self._add(found, deliver)
        return len(records) - len(found)

    def _accepts(self, record: Record, controls: ControlCache) -> bool:
        if txid_of(record) != self.txid or is_marker(record):
            return False
        try:
            branch, sequence = controls.branch_of(record)
        except MalformedHeaderError:
            return False  # It would be one too few: that is told.
        stated = next((r for r in self.marker.sidecar if r.branch == branch), None)
        if stated is None or not stated.first_offset <= record.offset() <= stated.last_offset:
            return False
        # A writer without idempotence numbers its records: the second of a number is a copy.
        return sequence is None or self.numbers.setdefault(branch, Numbers()).add(sequence)

    def _add(self, found: list[Record], deliver: Callable[[Record], Record]) -> None:
        left = self.skip - self.accepted
        self.accepted += len(found)
        if self.is_counting:
            return
        self.fetched.extend(map(deliver, found[left:] if left > 0 else found))
        self.available = self.stated + self.accepted
        self._settle()

    @property
    def may_go_on(self) -> bool:
        """Whether reading may begin in the middle of its sidecar. Not if its records carry sequence
        numbers: who begins there must see which numbers were delivered."""
        return not self.numbers

    @property
    def keeps_side(self) -> bool:
        """Whether a position in its middle says where to go on in the sidecar."""
        return self.may_go_on

    def advance(self, limit: int) -> Sequence[Record]:
        """Returns up to `limit` of the records that are read, which count as taken from now on.

        Raises:
            SpillError: spilled records can't be read back.
        """
        start = self.taken
        stop = min(start + limit, self.available)
        records = self.part(start, stop)
        if len(records) != stop - start:
            raise SpillError("spilled records are missing: start the consumer again")
        self.taken = start + len(records)
        self._settle()
        return records

    def part(self, start: int, stop: int) -> Sequence[Record]:
        """Returns the records of these indices: of the main partition first, then the sidecar's."""
        found: list[Record] = []
        if start < self.stated:
            found = [*super().part(start, min(stop, self.stated))]
        fetched = self.fetched
        aside = [fetched.popleft() for _ in range(stop - max(start, self.stated))]
        found += aside
        if aside:
            self.side = side_behind(found[-1].offset()) if self.keeps_side else None
        return found


def with_side(position: Position, side: int | None) -> Position:
    """Returns the position with this `side`, or as it is if there is none."""
    return position if side is None else replace(position, side=side)


def side_behind(offset: int) -> int | None:
    """Returns `Position.side` of a reader whose last delivered record has this offset."""
    return in_sidecar(offset) + 1 if is_delivered_from_sidecar(offset) else None


def side_at(entry: EndedTransaction, offset: int) -> int | None:
    """Returns `Position.side` of a reader whose next record to be delivered has this offset."""
    if isinstance(entry, PointedTransaction) and entry.keeps_side:
        return place_in_sidecar(entry, offset)
    return None


def place_in_sidecar(entry: EndedTransaction, offset: int) -> int | None:
    """Returns where in its sidecar a transaction can be read from, if its next record to be
    delivered has this offset; None: from its first record on. For who names the transaction beside
    it: see `Position.side`, which does not."""
    if isinstance(entry, PointedTransaction) and entry.may_go_on:
        return in_sidecar(offset) if is_delivered_from_sidecar(offset) else None
    return None
