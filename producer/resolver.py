"""Learns the decision of transactions whose commit or abort got no clear answer.

It asks until it has the decision or the time is up, and never guesses. Source: Transactional
Messaging in Kafka, "Failure cases" (time-out or error response to CommitTransaction).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from ..coordinator.protocol.commands import Outcome
from ..journal.errors import RetriableError
from ..journal.txid import TxId
from .core.bookkeeping import EndResult, end_result

_LOG = logging.getLogger(__name__)

_PAUSE_MIN_S: Final = 0.02
"""First pause between two rounds of questions; doubled each time."""
_PAUSE_MAX_S: Final = 1.0
"""Longest pause between two rounds of questions.

Longer learns decisions later, shorter asks a coordinator in trouble more often.
"""
_IDLE_S: Final = 1.0
"""Longest sleep without a transaction to resolve; `add` and `close` end it early."""


class Undecided(Protocol):
    """A transaction whose decision the resolver looks for."""

    @property
    def txid(self) -> TxId: ...
    def resolve_until(self, timeout_s: float) -> float: ...
    def resolved(self, outcome: Outcome) -> None: ...
    def send_end_again(self) -> None: ...
    def unresolved(self) -> None: ...


class Resolver:
    """Asks for decisions on one thread, started by the first `add`; safe from any thread."""

    def __init__(
        self, ask: Callable[[TxId], Outcome], *, timeout_s: float, may_resend: Callable[[], bool]
    ) -> None:
        """Starts without a thread.

        Args:
            ask: returns the state of a transaction; blocks, with a time-out of its own.
            timeout_s: how long one transaction's decision is looked for.
            may_resend: returns whether the session is there to send requests again.
        """
        self._ask = ask
        self._timeout_s = timeout_s
        # Bounded so that a transaction added during a pause has most of its time left afterwards.
        self._pause_max_s = min(_PAUSE_MAX_S, timeout_s / 8)
        self._may_resend = may_resend
        self._pending: list[Undecided] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, transaction: Undecided) -> None:
        """Looks for the decision of this transaction."""
        transaction.resolve_until(self._timeout_s)
        with self._changed:
            if not self._closed:
                self._pending.append(transaction)
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="logtx-resolver", daemon=True
                    )
                    self._thread.start()
                self._changed.notify()
                return
        transaction.unresolved()

    def close(self, timeout_s: float) -> None:
        """Gives up what is left; waits up to `timeout_s` for the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)
        for transaction in self._pending:
            transaction.unresolved()

    def _run(self) -> None:
        pause_s = 0.0
        while True:
            with self._changed:
                # A pause is kept whatever is added meanwhile, so a coordinator in trouble does not
                # get more questions because more is added.
                self._changed.wait_for(lambda: self._closed, pause_s)
                if not self._pending and not self._closed:
                    self._changed.wait(_IDLE_S)
                if self._closed:
                    return
                pending, self._pending = self._pending, []
            left, decided = self._round(pending)
            with self._changed:
                self._pending = left + self._pending
            if decided == len(pending):
                pause_s = 0.0
            else:
                pause_s = min(max(pause_s * 2, _PAUSE_MIN_S), self._pause_max_s)

    def _round(self, pending: list[Undecided]) -> tuple[list[Undecided], int]:
        """Asks once for each. Returns those to ask for again, and the number of decided ones."""
        left: list[Undecided] = []
        decided = 0
        reachable = True
        for transaction in pending:
            outcome = None
            if reachable and not self._closed:
                try:
                    outcome = self._ask(transaction.txid)
                except RetriableError:
                    # All have one coordinator: for the others each question would time out too.
                    reachable = False
                except Exception:  # noqa: BLE001 - the thread must live, for the others' sake
                    _LOG.exception("outcome_query_failed txid=%s", transaction.txid)
            told = end_result(outcome.state) if outcome is not None else EndResult.UNKNOWN
            if outcome is not None and told in (EndResult.COMMITTED, EndResult.ABORTED):
                decided += 1
                transaction.resolved(outcome)
            elif time.monotonic() >= transaction.resolve_until(self._timeout_s):
                transaction.unresolved()
            elif told is EndResult.UNDECIDED and self._may_resend():
                transaction.send_end_again()  # An unclear answer to that adds it again.
            else:
                left.append(transaction)
        return left, decided
