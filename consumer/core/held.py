"""Holds the committed transactions of one partition that wait for their turn in serial order. Pure.

Each incarnation of a journal has an order of its own. Who follows one of them lets nothing of
another one through, so what that one decided must stand in nobody's way (trap 115).
"""

from __future__ import annotations

from collections.abc import Iterator

from ...journal.position import Journal
from .entries import EndedTransaction, journal_of
from .pending import RawTxId
from .pointers import PointedTransaction


class HeldTransactions:
    """Transactions by journal, and of each journal by commit sequence."""

    def __init__(self) -> None:
        """Begins empty."""
        self._by_journal: dict[Journal, dict[RawTxId, EndedTransaction]] = {}
        self.records = 0
        """Number of their records. A pointer counts as one more: it takes memory, too."""

    def add(self, entry: EndedTransaction) -> None:
        """Adds a transaction that is not held."""
        held = self._by_journal.setdefault(entry.journal, {})
        last = next(reversed(held.values()), None)
        held[entry.txid] = entry
        self.records += _weight(entry)
        if last is not None and last.marker.commit_sequence > entry.marker.commit_sequence:
            # Its place was told after the marker behind it was read.
            ordered = sorted(held.items(), key=lambda item: item[1].marker.commit_sequence)
            self._by_journal[entry.journal] = dict(ordered)

    def pop(self, raw: RawTxId) -> EndedTransaction:
        """Removes a transaction, and returns it."""
        journal = journal_of(raw)
        held = self._by_journal[journal]
        entry = held.pop(raw)
        if not held:
            del self._by_journal[journal]
        self.records -= _weight(entry)
        return entry

    def get(self, raw: RawTxId) -> EndedTransaction | None:
        """Returns the transaction of this TxId, if it is held."""
        held = self._by_journal.get(journal_of(raw))
        return None if held is None else held.get(raw)

    def first(self, journal: Journal) -> EndedTransaction | None:
        """Returns the transaction of a journal with the lowest commit sequence, if any."""
        held = self._by_journal.get(journal)
        return None if held is None else next(iter(held.values()))

    def firsts(self) -> Iterator[EndedTransaction]:
        """Yields the first transaction of each journal."""
        return (next(iter(held.values())) for held in self._by_journal.values())

    def upto(self, journal: Journal, sequence: int) -> list[RawTxId]:
        """Returns the TxIds of a journal up to this commit sequence, in order."""
        found = []
        for raw, entry in self._by_journal.get(journal, {}).items():
            if entry.marker.commit_sequence > sequence:
                break
            found.append(raw)
        return found

    def __iter__(self) -> Iterator[EndedTransaction]:
        """Yields all transactions."""
        for held in self._by_journal.values():
            yield from held.values()

    def __contains__(self, raw: RawTxId) -> bool:
        """Returns whether the transaction of this TxId is held."""
        return self.get(raw) is not None


def _weight(entry: EndedTransaction) -> int:
    # What lies in a sidecar takes no memory; but pointers without number would.
    return entry.stated + isinstance(entry, PointedTransaction)
