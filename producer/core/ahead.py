"""The next transaction's BEGIN, sent while the one before it ends.

Transactions one after another wait three times each: for the TxId, for their records, for the
decision. The first wait is spared where the BEGIN goes out while the transaction before ends. To
everybody else that is a transaction that was begun early: the rules of `Transaction` and of the
coordinator hold for it as they stand, and a crash leaves an open transaction without records, which
the coordinator aborts as any other.

Only a habit makes us begin ahead: a transaction that was begun alone, right after the one before it
ended. One that is not asked for soon is aborted, and the habit forgotten.

Pure: its owner has the lock and the clock.
"""

from __future__ import annotations

import math
from typing import Final, Generic, Protocol, TypeVar

IN_A_ROW_S: Final = 0.05
"""A transaction begun so soon after the one before follows it."""
KEPT_S: Final = 0.2
"""How long one that was begun ahead waits to be asked for. So long it may hold the high watermark
back, which delays nobody, and so much less of its timeout is left."""
TIMEOUT_MIN_MS: Final = 20_000
"""Of a shorter timeout `KEPT_S` would be more than a hundredth."""


class Untouched(Protocol):
    """A transaction, as far as it matters here."""

    @property
    def is_untouched(self) -> bool:
        """Whether nothing happened to it since it was begun."""


T = TypeVar("T", bound=Untouched)


class Ahead(Generic[T]):
    """At most one transaction that nobody has asked for yet."""

    def __init__(self, *, allowed: bool) -> None:
        """Nothing is known of habits. `allowed`: whether to begin ahead at all."""
        self.transaction: T | None = None
        self._allowed = allowed
        self._kept_until_s = -math.inf
        self._timeout_ms: int | None = None
        """Of the transactions that follow each other; None: they don't."""
        self._ended_s = -math.inf

    def begun(self, timeout_ms: int, *, alone: bool, now_s: float) -> None:
        """A transaction was asked for, and nothing more than its timeout.

        Args:
            timeout_ms: its timeout.
            alone: whether the application has no other.
            now_s: monotonic clock.
        """
        follows = alone and now_s - self._ended_s <= IN_A_ROW_S
        habit = self._allowed and follows and timeout_ms >= TIMEOUT_MIN_MS
        self._timeout_ms = timeout_ms if habit else None

    def ended(self, transaction: T, now_s: float) -> None:
        """A transaction needs nothing any more."""
        if transaction is self.transaction:
            self.transaction = None
        else:
            self._ended_s = now_s

    @property
    def wanted(self) -> int | None:
        """Timeout, in ms, of a transaction to begin now that one ends; None: begin none."""
        return self._timeout_ms if self.transaction is None else None

    def keep(self, transaction: T, now_s: float) -> None:
        """It was begun ahead."""
        self.transaction, self._kept_until_s = transaction, now_s + KEPT_S

    def take(self, timeout_ms: int, *, now_s: float) -> T | None:
        """The one that was begun ahead, if it is what is asked for.

        Of one that is too old the coordinator may have seen the connection break, in a process
        that stood still: it is left to `expired`.
        """
        transaction = self.transaction
        fits = timeout_ms == self._timeout_ms and now_s < self._kept_until_s
        if transaction is None or not fits or not transaction.is_untouched:
            return None
        self.transaction = None
        return transaction

    def expired(self, now_s: float) -> T | None:
        """The one that was begun in vain, to be aborted."""
        transaction = self.transaction
        if transaction is None or now_s < self._kept_until_s:
            return None
        self.transaction = self._timeout_ms = None
        return transaction
