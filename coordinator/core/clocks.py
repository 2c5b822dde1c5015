"""Decides when transactions expire, and when producers that went away are given up.

Pure: the caller has the time. Volatile: the clocks are lost with the process, and the next owner
starts them again when it has loaded the journal. Losing them delays an abort; it decides nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from .decision import Instant, ShardConfig
from .transactions import TransactionMetadata

STALE_MIN: Final = 1_000
"""Entries that count no more, and may always stay. Fewer make small heaps over and over."""


class Clocks:
    """Deadlines of open transactions, and graces of producers without a stream."""

    def __init__(self, config: ShardConfig) -> None:
        self._config = config
        self._unstarted: dict[int, TransactionMetadata] = {}
        """BEGIN → transaction whose timeout does not run yet."""
        self._deadlines: list[tuple[int, int]] = []
        """Heap of (monotonic ms, BEGIN). An entry counts only if `_running` agrees."""
        self._running: dict[int, int] = {}
        """BEGIN of a transaction whose timeout runs → its end in monotonic ms."""
        self._detached: dict[str, int] = {}
        """Producer id → end of its grace in monotonic ms, while it has no stream."""
        self._attached: set[str] = set()
        """Producer ids that have a stream."""
        self._graces: list[tuple[int, str]] = []
        """Heap of (monotonic ms, producer id). An entry counts only if `_detached` agrees."""

    def begin(self, transaction: TransactionMetadata) -> None:
        """Notes that a transaction began. Its timeout runs from the next `start`."""
        self._unstarted[transaction.begin] = transaction

    def start(self, now: Instant) -> None:
        """Dates all transactions that began since the last call, and starts their timeouts."""
        for transaction in self._unstarted.values():
            transaction.began_ms = now.monotonic_ms
            self._expire_at(now.monotonic_ms + transaction.timeout_ms, transaction)
        self._unstarted.clear()

    def stop(self, begin: int) -> None:
        """Stops a transaction's timeout: it is decided.

        Its entry is dropped when it comes up, or with others of its kind: they never outnumber
        those that count for long.
        """
        self._unstarted.pop(begin, None)
        self._running.pop(begin, None)
        self._drop_stale()

    def extend(self, transaction: TransactionMetadata, now: Instant) -> None:
        """Begins an open transaction's timeout anew."""
        if transaction.begin in self._running:
            self._expire_at(now.monotonic_ms + transaction.timeout_ms, transaction)
            self._drop_stale()

    def _drop_stale(self) -> None:
        if len(self._deadlines) > 2 * len(self._running) + STALE_MIN:
            self._deadlines = [(at_ms, begin) for begin, at_ms in self._running.items()]
            heapq.heapify(self._deadlines)

    def reload(self, transactions: list[TransactionMetadata], now: Instant) -> None:
        """Starts over with the open transactions of a journal that was just loaded.

        None of their producers is connected yet.
        """
        self._unstarted.clear()
        grace_ms = self._config.reload_grace_ms
        for transaction in transactions:
            # The whole timeout again. Only the wall clocks of two machines could tell how much of
            # it has passed, and a clock that jumped would abort a transaction that has hardly
            # begun. If a producer does not come back, the grace aborts all its work anyway.
            self._expire_at(now.monotonic_ms + transaction.timeout_ms, transaction)
            self._give_up_at(now.monotonic_ms + grace_ms, transaction.producer_id)

    def attach(self, producer_id: str) -> None:
        """Stops a producer's grace: its stream is connected."""
        self._detached.pop(producer_id, None)
        self._attached.add(producer_id)

    def detach(self, producer_id: str, now: Instant) -> None:
        """Starts a producer's grace: its stream broke."""
        self._attached.discard(producer_id)
        self._give_up_at(now.monotonic_ms + self._config.session_grace_ms, producer_id)

    def connected(self) -> Iterable[str]:
        """Returns the producers that have a stream."""
        return self._attached

    def is_here(self, producer_id: str) -> bool:
        """Returns whether a producer has a stream, or the grace to come back."""
        return producer_id in self._attached or producer_id in self._detached

    def expired(self, now: Instant) -> int | None:
        """Returns the BEGIN of the next transaction whose deadline passed; None if there is none.

        Names each transaction once, the earliest deadline first.
        """
        while self._deadlines and self._deadlines[0][0] <= now.monotonic_ms:
            at_ms, begin = heapq.heappop(self._deadlines)
            if self._running.get(begin) == at_ms:
                del self._running[begin]
                return begin
        return None

    def given_up(self, now: Instant) -> str | None:
        """Returns the next producer whose grace passed; None if there is none.

        Returns the same producer until `forget_given_up` is called.
        """
        while self._graces and self._graces[0][0] <= now.monotonic_ms:
            deadline_ms, producer_id = self._graces[0]
            if self._detached.get(producer_id) == deadline_ms:
                return producer_id
            heapq.heappop(self._graces)
        return None

    def forget_given_up(self) -> None:
        """Forgets the producer that `given_up` returned: it has nothing open any more."""
        del self._detached[heapq.heappop(self._graces)[1]]

    def _expire_at(self, deadline_ms: int, transaction: TransactionMetadata) -> None:
        self._running[transaction.begin] = deadline_ms
        heapq.heappush(self._deadlines, (deadline_ms, transaction.begin))

    def _give_up_at(self, deadline_ms: int, producer_id: str) -> None:
        self._detached[producer_id] = deadline_ms
        heapq.heappush(self._graces, (deadline_ms, producer_id))
