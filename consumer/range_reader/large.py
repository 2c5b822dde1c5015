"""Large transactions: finds them, and lets several tasks read the records of one. Pure.

Which records of a transaction count is known at its marker, behind all of them. So the tasks that
read a range can share it only at markers: all records of a transaction come in one task, and the
others read and throw away. This divides a transaction whose records stand together: from its first
to its last one there is no other record, by the counts of its marker, which follows at once. Then
each task can check its own part: it must find a record of the transaction at each offset. One that
has records in the sidecar is left to a single task, for its pointer or place delivers both.

A `Search` finds such transactions by halving: the records of some offsets are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...journal.control import BranchRange, Marker, decode_control
from ...journal.errors import IntegrityError, MalformedHeaderError
from ...journal.native.interface import HeaderRun
from ...journal.position import Journal
from ...journal.txid import TxId
from ..core.headers import by_headers, control_of, txid_of
from ..core.home_view import Due
from ..core.pending import RawTxId, Record
from ..core.ranges import ControlCache

PART_RECORDS: Final = 50_000
"""Fewest records for which a task of their own pays: they take it about 0.1 s."""


@dataclass(frozen=True, slots=True)
class Large:
    """A committed transaction whose records in a partition stand together."""

    txid: RawTxId
    commit_sequence: int
    branches: tuple[BranchRange, ...]
    """The records, which lie between the first and the last offset of these, and nothing else."""
    is_placed: bool = False
    """Whether a home places it, so that it has no marker."""

    @property
    def first(self) -> int:
        """Offset of its first record."""
        return min(b.first_offset for b in self.branches)

    @property
    def marker(self) -> int:
        """Offset behind its last record, where its marker stands if it has one."""
        return max(b.last_offset for b in self.branches) + 1

    @property
    def behind(self) -> int:
        """Offset behind all that is its own."""
        return self.marker + (not self.is_placed)

    @classmethod
    def placed(cls, home: Journal, due: Due) -> Large | None:
        """Returns what is placed; None if its records do not stand together in the topic."""
        if due.aside is not None or not due.branches:
            return None
        txid = (due.txid or TxId(*home, due.begin)).to_bytes()
        found = cls(txid, due.sequence, due.branches, is_placed=True)
        stated = sum(b.count for b in due.branches)
        return found if stated == found.marker - found.first else None

    @classmethod
    def of(cls, txid: RawTxId, marker: Marker, offset: int) -> Large | None:
        """Returns what ends with this marker; None if it did not commit, or does not stand so."""
        if not marker.committed or not marker.branches or marker.is_pointer:
            return None
        found = cls(txid, marker.commit_sequence, tuple(marker.branches))
        stated = sum(b.count for b in marker.branches)
        is_whole = found.marker == offset and stated == offset - found.first
        return found if is_whole else None


class Search:
    """Looks for large transactions in a range of a partition."""

    def __init__(self, start: int, end: int, cuts: Sequence[int]) -> None:
        """Looks at the cuts between the parts of the range [start, end).

        A transaction that is larger than a part lies across a cut, if its records stand together.
        """
        self.found: list[Large] = []
        """In the order of their markers, which lie in the range."""
        self._start, self._end = start, end
        self._cuts = list(reversed(cuts))
        self._txid: RawTxId | None = None
        """Transaction whose marker is looked for; None while a cut is looked at."""
        self._low = self._high = 0
        """Offset of one of its records, and one behind all of them."""
        self.wanted: int | None = None
        """Offset whose record is to be taken next; None if there is nothing to look for."""
        self._next_cut()

    def take(self, record: Record | None) -> None:
        """Takes the first record at `wanted` or behind it; None if there is none."""
        at, self.wanted = self.wanted, None
        assert at is not None
        if record is None or record.offset() != at:
            self._next_cut()  # records are missing here: nothing stands together
            return
        txid, marker = _read(record)
        if txid is None or (self._txid is not None and txid != self._txid):
            self._narrow(at, of_it=False)
        elif marker is not None:
            large = Large.of(txid, marker, at)
            if large is not None and at >= self._start:
                self.found.append(large)
            self._next_cut()
        elif self._txid is None:
            self._txid, self._low, self._high = txid, at, self._end
            # Often the range ends with the transaction; so its last record is looked at first.
            self._want(self._end - 1)
        else:
            self._narrow(at, of_it=True)

    def _narrow(self, at: int, *, of_it: bool) -> None:
        if self._txid is None:
            self._next_cut()
            return
        if of_it:
            self._low = at
        else:
            self._high = at
        self._want((self._low + self._high) // 2)

    def _want(self, offset: int) -> None:
        if self._low < offset < self._high:
            self.wanted = offset
        else:
            self._next_cut()  # no marker follows at once, or it is behind the range

    def _next_cut(self) -> None:
        self._txid = None
        behind = self.found[-1].marker if self.found else -1
        while self._cuts:
            cut = self._cuts.pop()
            if cut > behind:
                self.wanted = cut
                return


def _read(record: Record) -> tuple[RawTxId | None, Marker | None]:
    """Returns the TxId of a record, and what it says as a marker; None for what it is not."""
    try:
        txid = txid_of(record)
        control = control_of(record)
        if txid is None or control is None or (record.key(), record.value()) != (None, None):
            return txid, None
        decoded = decode_control(control)
    except (MalformedHeaderError, SystemError):  # confluent-kafka's, for names that are not UTF-8
        return None, None
    return txid, decoded if isinstance(decoded, Marker) else None


class LargePart:
    """Takes the records of a part of a large transaction, and checks that they are all there."""

    def __init__(self, large: Large, start: int) -> None:
        """Begins at an offset."""
        self._large = large
        self._branches = {b.branch: b for b in large.branches}
        self._controls = ControlCache()
        self.next_offset = start
        """Offset of the next record to feed."""
        self.records: list[Record] = []
        """What was fed and not taken yet; the caller empties it."""

    def feed(self, batch: Sequence[Record], runs: Sequence[HeaderRun] | None = None) -> None:
        """Takes records in offset order, and the same by headers if these were compared.

        Raises:
            IntegrityError: one is not the transaction's, or is missing.
        """
        if not batch:
            return
        for _, alike in by_headers(batch, runs):
            run = list(alike)
            first, last = run[0].offset(), run[-1].offset()
            if first != self.next_offset or last - first + 1 != len(run):
                raise self._error(self.next_offset)
            stated = self._branch(run[0])
            if stated is None or not stated.first_offset <= first <= last <= stated.last_offset:
                raise self._error(first)
            self.next_offset = last + 1
            self.records += run

    def end(self, offset: int) -> None:
        """Checks that everything below an offset was fed.

        Raises:
            IntegrityError: it was not.
        """
        if self.next_offset < offset:
            raise self._error(self.next_offset)

    def _branch(self, record: Record) -> BranchRange | None:
        txid, marker = _read(record)
        if txid != self._large.txid or marker is not None:
            return None
        try:
            return self._branches.get(self._controls.branch(control_of(record)))
        except MalformedHeaderError:
            return None

    def _error(self, offset: int) -> IntegrityError:
        return IntegrityError(
            f"transaction {TxId.from_bytes(self._large.txid)}, marker {self._large.marker}: offset "
            f"{offset} does not hold one of its records; set minPartitions=0 to read it by one task"
        )
