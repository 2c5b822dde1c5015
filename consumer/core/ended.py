"""Knows which TxIds have ended in one data partition, in bounded memory.

What it forgets does no harm: `PartitionBuffer` says why.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from .pending import RawTxId

JOURNAL_BYTES: Final = 8
"""Length of a TxId's first part, which names journal partition and incarnation."""


class EndedTxIds:
    """TxIds whose marker was read in a partition, that a look-up found ended, or below a HW."""

    def __init__(self) -> None:
        self._txids: set[RawTxId] = set()
        self._by_journal: dict[bytes, list[RawTxId]] = {}
        """A heap of them per journal, so that the lowest can be forgotten first."""
        self._floors: dict[bytes, RawTxId] = {}
        """The highest HW met here of each journal, as the TxId whose BEGIN would lie at it."""
        self._floor_raised = False

    def __contains__(self, raw: RawTxId) -> bool:
        """Returns whether the TxId is known to have ended; False too if that was forgotten."""
        return raw in self._txids or self.is_below_floor(raw)

    def __len__(self) -> int:
        """Returns how many are remembered one by one."""
        return len(self._txids)

    def is_below_floor(self, raw: RawTxId) -> bool:
        """Returns whether a HW met here says that the TxId has ended."""
        return raw < self._floors.get(raw[:JOURNAL_BYTES], b"")

    def add(self, raw: RawTxId, most: int) -> None:
        """Remembers one, and forgets the lowest of the largest journal beyond `most`."""
        if raw in self._txids:
            return
        heappush(self._by_journal.setdefault(raw[:JOURNAL_BYTES], []), raw)
        self._txids.add(raw)
        while len(self._txids) > most:
            self._txids.discard(heappop(max(self._by_journal.values(), key=len)))

    def raise_floor(self, raw: RawTxId, hw: int) -> None:
        """Notes a HW of the TxId's journal: everything that began below has ended."""
        prefix = raw[:JOURNAL_BYTES]
        floor = prefix + min(hw, 2**63 - 1).to_bytes(8, "big")
        if floor > self._floors.get(prefix, b""):
            self._floors[prefix] = floor
            self._floor_raised = True

    def forget(self) -> bool:
        """Forgets those below the HWs. Returns whether a HW was met since the last call."""
        if not self._floor_raised:
            return False
        self._floor_raised = False
        for prefix, floor in self._floors.items():
            heap = self._by_journal.get(prefix, [])
            while heap and heap[0] < floor:
                self._txids.discard(heappop(heap))
        return True
