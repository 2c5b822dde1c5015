"""Decides whether to begin the next transaction ahead: while the transaction before it ends.

A producer that runs one transaction after another waits three times for each: for the TxId, for its
records, for the decision. Sending the BEGIN while the one before ends saves the first wait. For the
rest of the code that is an ordinary transaction, begun early: the rules of `Transaction` and
of the coordinator hold for it unchanged, and a crash leaves an open transaction without records,
which the coordinator aborts like any other.

A transaction is begun ahead only by habit: after one that was begun while no other was open, right
after the one before it ended. If it is not asked for soon, it is aborted and the habit forgotten.

Pure: the caller has the lock and the clock.
"""

from __future__ import annotations

import math
from typing import Final, Generic, Protocol, TypeVar

IN_A_ROW_S: Final = 0.05
"""A transaction that is begun within this time after the end of the one before follows it.

More also begins ahead for applications that pause, and then more often in vain.
"""
KEPT_S: Final = 0.2
"""How long a transaction that was begun ahead is kept for the application.

For this long it may hold the high watermark back, which delays no consumer, and this much less of
its timeout is left. Less aborts more of those that would have been used.
"""
TIMEOUT_MIN_MS: Final = 20_000
"""Shortest timeout of transactions begun ahead: `KEPT_S` is at most a hundredth of it."""


class Untouched(Protocol):
    """The part of a transaction that matters here."""

    @property
    def is_untouched(self) -> bool:
        """Whether nothing happened to it since it was begun."""


T = TypeVar("T", bound=Untouched)


class Ahead(Generic[T]):
    """Keeps at most one transaction that was begun ahead, and the habit that leads to it."""

    def __init__(self, *, allowed: bool) -> None:
        """Starts without a habit. `allowed`: whether to begin ahead at all."""
        self.transaction: T | None = None
        self._allowed = allowed
        self._kept_until_s = -math.inf
        self._timeout_ms: int | None = None
        """Timeout of the transactions that follow each other, in ms; None: they don't."""
        self._ended_s = -math.inf

    def begun(self, timeout_ms: int, *, alone: bool, now_s: float) -> None:
        """Notes that a transaction was asked for, with nothing but its timeout.

        Args:
            timeout_ms: its timeout.
            alone: whether the application has no other.
            now_s: monotonic clock.
        """
        follows = alone and now_s - self._ended_s <= IN_A_ROW_S
        habit = self._allowed and follows and timeout_ms >= TIMEOUT_MIN_MS
        self._timeout_ms = timeout_ms if habit else None

    def ended(self, transaction: T, now_s: float) -> None:
        """Notes that a transaction needs nothing any more."""
        if transaction is self.transaction:
            self.transaction = None
        else:
            self._ended_s = now_s

    @property
    def wanted(self) -> int | None:
        """Timeout, in ms, of a transaction to begin now that one ends; None: begin none."""
        return self._timeout_ms if self.transaction is None else None

    def keep(self, transaction: T, now_s: float) -> None:
        """Keeps a transaction that was begun ahead."""
        self.transaction, self._kept_until_s = transaction, now_s + KEPT_S

    def take(self, timeout_ms: int, *, now_s: float) -> T | None:
        """Returns the transaction that was begun ahead, if it is what is asked for, else None.

        If this process stood still, the coordinator may have seen the connection of one that is too
        old break: that one is left to `expired`.
        """
        transaction = self.transaction
        fits = timeout_ms == self._timeout_ms and now_s < self._kept_until_s
        if transaction is None or not fits or not transaction.is_untouched:
            return None
        self.transaction = None
        return transaction

    def expired(self, now_s: float) -> T | None:
        """Returns the transaction that was begun in vain, to be aborted, or None."""
        transaction = self.transaction
        if transaction is None or now_s < self._kept_until_s:
            return None
        self.transaction = self._timeout_ms = None
        return transaction
