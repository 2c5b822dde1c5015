"""The airport ledger: a double entry per flight, and the check that a ledger matches the file.

Pure: entries in, counts out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .flights import Flight, date_of


class Entry(NamedTuple):
    """One side of a flight's double entry; the fields of `ledger_entry.avsc`."""

    airport: str
    amount: int
    """-1 at the origin, +1 at the destination."""
    date: str
    carrier: str
    flight: int
    origin: str
    sched_dep_time: int

    @property
    def flight_id(self) -> tuple[str, str, int, str, int]:
        """The flight's identity; unique in the file."""
        return self[2:]


def entries_of(flight: Flight) -> tuple[Entry, Entry]:
    """Returns a flight's two entries: -1 at its origin, +1 at its destination."""
    flight_id = (
        date_of(flight),
        flight["carrier"],
        flight["flight"],
        flight["origin"],
        flight["sched_dep_time"],
    )
    return Entry(flight["origin"], -1, *flight_id), Entry(flight["dest"], 1, *flight_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFindings:
    """What an audit found. In a correct ledger all counts below `entries` are zero."""

    entries: int
    """Entries seen, doubled and foreign ones included."""
    missing: int
    """Entries of the file that the ledger lacks."""
    doubled: int
    """Entries that repeat an earlier one."""
    foreign: int
    """Entries that match no flight of the file: another flight, airport or amount."""
    unbalanced: int
    """Transactions that do not net to zero."""
    split: int
    """Transactions that hold only one side of a flight."""
    torn: int
    """Transactions that were delivered without some of their partitions."""


class LedgerAudit:
    """Compares a ledger with the flights of the file. Takes whole transactions, in any order."""

    def __init__(self, flights: Iterable[Flight]) -> None:
        """Indexes the expected entries.

        Raises:
            ValueError: two flights have the same identity, so a ledger of them could not be
                checked.
        """
        self._index: dict[Entry, int] = {}
        for flight in flights:
            for entry in entries_of(flight):
                if entry in self._index:
                    raise ValueError(f"two flights of the file have one name: {entry.flight_id}")
                self._index[entry] = len(self._index)
        self._seen = bytearray(len(self._index))
        self.transactions = 0
        self.entries = 0
        self._distinct = self._doubled = self._foreign = self._unbalanced = 0
        self._split = self._torn = 0

    @property
    def expected(self) -> int:
        """Entries that the flights make: two per flight."""
        return len(self._index)

    def feed(self, transaction: Iterable[Entry], *, complete: bool = True) -> None:
        """Takes all entries of one transaction.

        Args:
            transaction: the entries that were delivered.
            complete: whether the consumer says that these are all.
        """
        net = 0
        halves: set[tuple[str, str, int, str, int]] = set()
        self.transactions += 1
        for entry in transaction:
            self.entries += 1
            net += entry.amount
            halves ^= {entry.flight_id}
            index = self._index.get(entry)
            if index is None:
                self._foreign += 1
            elif self._seen[index]:
                self._doubled += 1
            else:
                self._seen[index] = 1
                self._distinct += 1
        self._unbalanced += net != 0
        self._split += bool(halves)
        self._torn += not complete

    def findings(self) -> LedgerFindings:
        """Returns the findings for the transactions fed so far."""
        return LedgerFindings(
            entries=self.entries,
            missing=self.expected - self._distinct,
            doubled=self._doubled,
            foreign=self._foreign,
            unbalanced=self._unbalanced,
            split=self._split,
            torn=self._torn,
        )
