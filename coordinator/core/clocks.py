"""When transactions expire, and producers that went away are given up.

Pure: the caller has the time. Volatile: lost with the process, and started again by whoever loads
the journal. Losing them delays an abort; it decides nothing.
"""

from __future__ import annotations

import heapq

from .decision import Instant, ShardConfig
from .transactions import TransactionMetadata


class Clocks:
    """Deadlines of open transactions, and graces of producers without a stream."""

    def __init__(self, config: ShardConfig) -> None:
        """Nothing runs."""
        self._config = config
        self._unstarted: list[TransactionMetadata] = []
        self._deadlines: list[tuple[int, int]] = []
        """Heap of (monotonic ms, BEGIN)."""
        self._detached: dict[str, int] = {}
        self._graces: list[tuple[int, str]] = []
        """Heap of (monotonic ms, producer id); void unless `_detached` says the same."""

    def begin(self, transaction: TransactionMetadata) -> None:
        """A transaction began; its timeout runs from the next `start`."""
        self._unstarted.append(transaction)

    def start(self, now: Instant) -> None:
        """Let the timeouts of what began run from now."""
        for transaction in self._unstarted:
            self._expire_at(now.monotonic_ms + transaction.timeout_ms, transaction)
        self._unstarted.clear()

    def reload(self, transactions: list[TransactionMetadata], now: Instant) -> None:
        """Start over: these are open in a journal that was just loaded, their producers away."""
        self._unstarted.clear()
        grace_ms = self._config.reload_grace_ms
        for transaction in transactions:
            # The whole timeout: how much of it has passed only wall clocks could tell, of two
            # machines, and one that jumped would abort what has hardly begun. Of producers that
            # don't come back everything is aborted after the grace anyway.
            self._expire_at(now.monotonic_ms + transaction.timeout_ms, transaction)
            self._give_up_at(now.monotonic_ms + grace_ms, transaction.producer_id)

    def attach(self, producer_id: str) -> None:
        """A producer's stream is connected."""
        self._detached.pop(producer_id, None)

    def detach(self, producer_id: str, now: Instant) -> None:
        """A producer's stream broke."""
        self._give_up_at(now.monotonic_ms + self._config.session_grace_ms, producer_id)

    def expired(self, now: Instant) -> int | None:
        """BEGIN of the next transaction whose deadline passed, each once, by deadline."""
        if self._deadlines and self._deadlines[0][0] <= now.monotonic_ms:
            return heapq.heappop(self._deadlines)[1]
        return None

    def given_up(self, now: Instant) -> str | None:
        """The next producer whose grace passed; again until `forget_given_up`."""
        while self._graces and self._graces[0][0] <= now.monotonic_ms:
            deadline_ms, producer_id = self._graces[0]
            if self._detached.get(producer_id) == deadline_ms:
                return producer_id
            heapq.heappop(self._graces)
        return None

    def forget_given_up(self) -> None:
        """Nothing is left of the producer that `given_up` named."""
        heapq.heappop(self._graces)

    def _expire_at(self, deadline_ms: int, transaction: TransactionMetadata) -> None:
        heapq.heappush(self._deadlines, (deadline_ms, transaction.begin))

    def _give_up_at(self, deadline_ms: int, producer_id: str) -> None:
        self._detached[producer_id] = deadline_ms
        heapq.heappush(self._graces, (deadline_ms, producer_id))
