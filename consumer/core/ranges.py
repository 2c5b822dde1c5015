"""Tells which records of a transaction its marker accepts, and whether they are all there.

Pure: records in, verdict out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ...journal.control import OWN_BRANCH, TXCTL_HEADER, BranchRange, DataControl, decode_control
from ...journal.errors import MalformedHeaderError
from .pending import Record

CONTROL_CACHE_MAX: Final = 65_536
"""Distinct TxCtl values kept decoded; with sequence numbers every record has its own. More cost
memory, fewer decode a value again."""


class Match(Enum):
    """How the records at hand compare with what the marker states."""

    EXACT = "exact"
    FEWER = "fewer"
    """Some records are missing here; a side read settles it."""
    MORE = "more"
    """More than the marker states; `judge_without_duplicates` may find duplicates among them."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of `ControlCache.judge`."""

    match: Match
    accepted: int
    """Records that will be delivered, if `match` is EXACT."""
    late: int
    """Number of records outside every accepted branch's range."""
    remove_duplicates: bool = False
    """Whether only the first of several records with equal branch and sequence is delivered."""


@dataclass(slots=True)
class _Tally:
    count: int = 0
    first_offset: int = -1
    last_offset: int = -1


class Numbers:
    """A set of whole numbers. There may be many millions, but nearly all come in a row."""

    __slots__ = ("_high", "_low", "_others")

    def __init__(self) -> None:
        self._low = self._high = -1
        """The set holds all numbers n with `_low` <= n < `_high`."""
        self._others: set[int] = set()

    def add(self, number: int) -> bool:
        """Adds a number. Returns whether it is new."""
        if self._low <= number < self._high or number in self._others:
            return False
        if self._low == self._high:
            self._low = self._high = number
        if number != self._high:
            self._others.add(number)
            return True
        self._high += 1
        while self._high in self._others:
            self._others.remove(self._high)
            self._high += 1
        return True


class ControlCache:
    """Decoded TxCtl values of data records, and the methods that need them."""

    def __init__(self) -> None:
        self._decoded: dict[bytes, tuple[int, int | None]] = {}

    def decode(self, raw: bytes) -> tuple[int, int | None]:
        """Returns (branch, sequence) of a data record's TxCtl.

        Raises:
            MalformedHeaderError: it does not decode, or belongs to a marker or a mode record.
        """
        found = self._decoded.get(raw)
        if found is not None:
            return found
        control = decode_control(raw)
        if not isinstance(control, DataControl):
            raise MalformedHeaderError("the TxCtl of a marker or mode record on a data record")
        if len(self._decoded) >= CONTROL_CACHE_MAX:
            self._decoded.clear()
        self._decoded[raw] = control.branch, control.sequence
        return control.branch, control.sequence

    def branch(self, raw: bytes | None) -> int:
        """Returns the branch of a TxCtl value; None stands for a record without one."""
        return OWN_BRANCH if raw is None else self.decode(raw)[0]

    def branch_of(self, record: Record) -> tuple[int, int | None]:
        """Returns (branch, sequence) of a data record that was found well-formed before."""
        headers = record.headers()
        if headers is not None and len(headers) > 1:
            for name, raw in headers:
                if name == TXCTL_HEADER and raw:
                    return self.decode(raw)
        return OWN_BRANCH, None

    def judge(self, records: Iterable[Record], ranges: Sequence[BranchRange]) -> Verdict:
        """Compares a transaction's records in one partition with its marker.

        The marker's first and last offset belong to real records. If there is no record at one of
        them, records are missing even if the count happens to fit.
        """
        by_branch = {r.branch: r for r in ranges}
        tallies = {r.branch: _Tally() for r in ranges}
        late = 0
        for record in records:
            offset = record.offset()
            branch, _ = self.branch_of(record)
            stated = by_branch.get(branch)
            if stated is None or not stated.first_offset <= offset <= stated.last_offset:
                late += 1
                continue
            tally = tallies[branch]
            tally.count += 1
            tally.last_offset = offset
            if tally.first_offset < 0:
                tally.first_offset = offset
        match = Match.EXACT
        for stated in ranges:
            tally = tallies[stated.branch]
            ends = tally.first_offset, tally.last_offset
            if tally.count < stated.count or ends != (stated.first_offset, stated.last_offset):
                match = Match.FEWER
                break
            if tally.count > stated.count:
                match = Match.MORE
        return Verdict(match, sum(r.count for r in ranges), late)

    def judge_without_duplicates(
        self, records: Iterable[Record], ranges: Sequence[BranchRange], verdict: Verdict
    ) -> Verdict:
        """Compares again after `Match.MORE`, counting each (branch, sequence) once.

        Returns:
            An EXACT verdict if the counts fit now, else `verdict`.
        """
        seen = {r.branch: Numbers() for r in ranges}
        counts = {r.branch: 0 for r in ranges}
        for record in self.select(records, ranges, remove_duplicates=False):
            branch, sequence = self.branch_of(record)
            if sequence is None or seen[branch].add(sequence):
                counts[branch] += 1
        if all(counts[r.branch] == r.count for r in ranges):
            return Verdict(Match.EXACT, verdict.accepted, verdict.late, remove_duplicates=True)
        return verdict

    def select(
        self, records: Iterable[Record], ranges: Sequence[BranchRange], *, remove_duplicates: bool
    ) -> Iterator[Record]:
        """Yields the records that the marker accepts, in offset order."""
        by_branch = {r.branch: r for r in ranges}
        seen = {r.branch: Numbers() for r in ranges}
        for record in records:
            branch, sequence = self.branch_of(record)
            stated = by_branch.get(branch)
            if stated is None:
                continue
            if not stated.first_offset <= record.offset() <= stated.last_offset:
                continue
            if remove_duplicates and sequence is not None and not seen[branch].add(sequence):
                continue
            yield record
