"""Futures of commits and aborts, whose callbacks may call the producer.

A transaction is decided on one of the producer's threads: one that hands out answers, the sender's,
which serves all reports, or the resolver's. A callback that waited there for another transaction
would wait for itself, and hold up others. So callbacks have a thread of their own. A future without
callbacks pays nothing for that.
"""

from __future__ import annotations

import logging
import queue
import threading
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
        self._guard = threading.Lock()
        """Held by who starts the thread, and by the thread when it ends."""
        self._waiting: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def is_current(self) -> bool:
        """Returns whether the caller is a callback."""
        return self._thread is not None and threading.current_thread() is self._thread

    def call(self, callback: Callable[..., object], *arguments: object) -> None:
        """Calls the callback soon; what it raises is logged.

        Where no thread can be had, it is called here: the process has too many, or it ends, and
        Python 3.12 starts none any more.
        """
        # Comes first: a thread that is about to end looks once more behind its farewell.
        self._waiting.put(partial(callback, *arguments))
        if self._thread is None and not self._starts():
            self._run(0)

    def close(self) -> None:
        """Lets the thread end as soon as nothing waits; it stays for no further callbacks."""
        self._closed = True
        self._waiting.put(None)

    def _starts(self) -> bool:
        """Starts the thread if there is none. Returns False if the caller is to stand in for it."""
        with self._guard:
            if self._thread is None:
                thread = threading.Thread(
                    target=self._run, args=(_IDLE_S,), name=self._name, daemon=True
                )
                try:
                    thread.start()
                except RuntimeError as error:
                    _LOG.warning("no_thread_for_callbacks error=%s", error)
                    self._thread = threading.current_thread()
                    return False
                self._thread = thread
        return True

    def _run(self, idle_s: float) -> None:
        while True:
            call = self._next(idle_s)
            if call is None:
                if self._ends():
                    return
                continue
            try:
                call()
            except BaseException:  # noqa: BLE001 - the application's callback, whatever it raises
                _LOG.exception("callback_raised")
            del call  # While the thread waits, it keeps nothing of the application alive.

    def _next(self, idle_s: float) -> Callable[[], object] | None:
        try:
            return self._waiting.get(timeout=0 if self._closed else idle_s)
        except queue.Empty:
            return None

    def _ends(self) -> bool:
        with self._guard:
            self._thread = None
            if self._waiting.empty():
                return True
            self._thread = threading.current_thread()
            return False


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
