"""Holds the committed transactions of one partition that wait for their turn in serial order. Pure.

Each incarnation of a journal has an order of its own. Who follows one of them lets nothing of
another one through, so what that one decided must stand in nobody's way (trap 115).
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from ...journal.position import Journal
from .entries import EndedTransaction, journal_of
from .pending import RawTxId
from .pointers import PointedTransaction


class HeldTransactions:
    """Transactions by journal, and of each journal by commit sequence.

    They come in nearly any order: the place of a transaction may be told long after the markers
    behind it were read. So what comes next is kept in a heap. With an order that is made again at
    each of them, a backlog took time that rose with its square.
    """

    def __init__(self) -> None:
        """Begins empty."""
        self._by_journal: dict[Journal, dict[RawTxId, EndedTransaction]] = {}
        self._next: dict[Journal, list[tuple[int, RawTxId]]] = {}
        """A heap of each journal's transactions, and of some that are held no more."""
        self.records = 0
        """Number of their records. A pointer counts as one more: it takes memory, too."""

    def add(self, entry: EndedTransaction) -> None:
        """Adds a transaction that is not held."""
        # An exception in between leaves an entry in the heap, which is passed over.
        heap = self._next.setdefault(entry.journal, [])
        heappush(heap, (entry.marker.commit_sequence, entry.txid))
        self._by_journal.setdefault(entry.journal, {})[entry.txid] = entry
        self.records += _weight(entry)

    def pop(self, raw: RawTxId) -> EndedTransaction:
        """Removes a transaction, and returns it."""
        journal = journal_of(raw)
        held = self._by_journal[journal]
        entry = held.pop(raw)
        if not held:
            del self._by_journal[journal], self._next[journal]
        self.records -= _weight(entry)
        return entry

    def get(self, raw: RawTxId) -> EndedTransaction | None:
        """Returns the transaction of this TxId, if it is held."""
        held = self._by_journal.get(journal_of(raw))
        return None if held is None else held.get(raw)

    def first(self, journal: Journal) -> EndedTransaction | None:
        """Returns the transaction of a journal with the lowest commit sequence, if any."""
        held = self._by_journal.get(journal)
        if held is None:
            return None
        heap = self._next[journal]
        while heap:
            if entry := held.get(heap[0][1]):
                return entry
            heappop(heap)
        return None

    def firsts(self) -> Iterator[EndedTransaction]:
        """Yields the first transaction of each journal."""
        return (entry for journal in self._by_journal if (entry := self.first(journal)) is not None)

    def __iter__(self) -> Iterator[EndedTransaction]:
        """Yields all transactions, in any order."""
        for held in self._by_journal.values():
            yield from held.values()

    def __contains__(self, raw: RawTxId) -> bool:
        """Returns whether the transaction of this TxId is held."""
        return self.get(raw) is not None


def _weight(entry: EndedTransaction) -> int:
    # What lies in a sidecar takes no memory; but pointers without number would.
    return entry.stated + isinstance(entry, PointedTransaction)
