"""Futures of commits and aborts, whose callbacks may call the producer.

A transaction is decided on one of the producer's threads: the session's, which takes all answers,
the sender's, which serves all reports, or the resolver's. A callback that waited there for another
transaction would wait for itself, and hold up all others. So callbacks have a thread of their own.
A future without callbacks pays nothing for that.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from ..coordinator.protocol.commands import Outcome
from ..journal.errors import LogtxError
from ..journal.fork import refuse

_LOG = logging.getLogger(__name__)

_IDLE_S: Final = 1.0
"""How long the thread stays without a callback to call; a new one costs 0.1 ms."""


class Callbacks:
    """Calls callbacks, one after the other, on a thread that it starts when needed."""

    def __init__(self, name: str) -> None:
        """Calls nothing yet; `name` is the thread's."""
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None

    def is_current(self) -> bool:
        """Returns whether the caller is a callback."""
        return self._thread is not None and threading.current_thread() is self._thread

    def call(self, callback: Callable[..., object], *arguments: object) -> None:
        """Calls the callback soon; what it raises is logged."""
        with self._changed:
            self._waiting.append(partial(callback, *arguments))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting), _IDLE_S)
                if not self._waiting:
                    self._thread = None
                    return
                call = self._waiting.popleft()
            try:
                call()
            except BaseException:  # noqa: BLE001 - the application's callback, whatever it raises
                _LOG.exception("callback_raised")
            del call  # While the thread waits, it keeps nothing of the application alive.


class EndFuture(Future[Outcome]):
    """The outcome of a commit or abort."""

    def __init__(self, callbacks: Callbacks) -> None:
        """Starts under way; `callbacks` calls what waits for it."""
        super().__init__()
        self._callbacks = callbacks
        # What was asked for is under way: cancelling the future would only lose the answer.
        self.set_running_or_notify_cancel()

    def add_done_callback(self, fn: Callable[[Future[Outcome]], Any]) -> None:
        """Calls `fn` with this future once it is done, on a thread for callbacks alone."""
        super().add_done_callback(partial(self._callbacks.call, fn))

    def finish(self, result: Outcome | LogtxError) -> None:
        """Completes it."""
        if isinstance(result, LogtxError):
            self.set_exception(result)
        else:
            self.set_result(result)

    def after_fork(self) -> None:
        """Makes every call raise ForkedError, in a child: the parent alone gets the outcome."""
        refuse(self, "result", "exception")
