"""Waits until a committed transaction is finished: its markers, places and offsets are durable.

Source: How transactions work, 4.3.3.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Final

from ..coordinator.protocol.commands import Outcome
from ..journal.errors import LogtxError, NotFinishedError
from ..journal.fork import keep_from_children
from ..journal.txid import TxId
from .coordinators import Session
from .futures import EndFuture

_PAUSE_S: Final = 0.1
"""Least time between two questions: a coordinator of before does not wait with its answer. Shorter
asks that one more often, longer learns later from it."""


class Finishing:
    """Asks for one transaction, and asks again, until it is finished or the time is up."""

    def __init__(self, session: Session, future: EndFuture, *, timeout_s: float) -> None:
        """Asks nothing before `begin`.

        Args:
            session: whom to ask.
            future: is completed with the outcome; with NotFinishedError if that is not known in
                time.
            timeout_s: how long to ask. A question that is on its way is awaited.
        """
        self._session = session
        self._future = future
        self._timeout_s = timeout_s
        self._committed: Outcome | None = None
        self._until_s = self._asked_s = 0.0
        # The threads that complete it are the parent's.
        keep_from_children(future)

    def begin(self, commit: Future[Outcome]) -> None:
        """Begins to ask, for a commit whose future is done. Its error is the answer, if it has one.

        To be called where the session may be called.
        """
        error = commit.exception()
        if error is not None:
            self._future.set_exception(error)
            return
        self._committed = commit.result()
        self._until_s = time.monotonic() + self._timeout_s
        if self._committed.state.finished:
            self._future.finish(self._committed)
        else:
            self._ask()

    def _ask(self) -> None:
        assert self._committed is not None
        self._asked_s = time.monotonic()
        self._session.outcome(self._committed.txid, self._answered, until_finished=True)

    def _answered(self, reply: Outcome | LogtxError) -> None:
        if isinstance(reply, LogtxError):
            self._give_up(str(reply))
        elif reply.state.finished:
            self._future.finish(reply)
        elif time.monotonic() >= self._until_s:
            self._give_up(f"it is still {reply.state}")
        elif time.monotonic() - self._asked_s >= _PAUSE_S:
            self._ask()
        else:
            again = threading.Timer(_PAUSE_S, self._ask)
            again.daemon = True
            again.start()

    def _give_up(self, why: str) -> None:
        assert self._committed is not None
        self._future.finish(not_finished(self._committed.txid, why))


def not_finished(txid: TxId, why: str) -> NotFinishedError:
    """Returns the error for who waits no longer until a committed transaction is finished."""
    return NotFinishedError(
        f"transaction {txid} is committed, and it is not known that it is finished ({why}):"
        " commit(finished=True) goes on waiting"
    )
