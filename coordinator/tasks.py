"""Tasks that the coordinator cannot run without: if one fails, the process exits.

An unexpected exception is a bug, and the state that it leaves behind can't be trusted. A
coordinator that answers its peers but serves nothing is worse than none: the others leave its
partitions to it. When the process is gone, they take its partitions within a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

_CLOSED = "Event loop is closed"
"""What asyncio says of a call into a closed loop. A loop that still has a handler is not closed."""


def essential_task(coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Starts a task that may return or be cancelled. If it fails, `Failures` gets the exception."""
    task = asyncio.create_task(coroutine, name=name)
    task.add_done_callback(_raise)
    return task


def _raise(task: asyncio.Task[None]) -> None:
    # Raised in a callback, so that the event loop's exception handler gets it.
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


def raise_on(loop: asyncio.AbstractEventLoop, error: Exception) -> None:
    """Reports an exception that ended a thread to `Failures`; called in that thread."""

    def fail() -> None:
        raise error

    # If the loop is closed, the coordinator is gone and the thread is not missed.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(fail)


class Failures:
    """Waits for the first exception of an essential task, or of a callback, on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listens from now on. An exception in one client's stream is only logged."""
        self.first: asyncio.Future[None] = loop.create_future()
        """Fails with the first exception."""
        loop.set_exception_handler(self._handle)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        error = context.get("exception")
        if not isinstance(error, Exception) or "handle" not in context or _of_another_loop(error):
            return
        if not self.first.done():
            self.first.set_exception(error)


def _of_another_loop(error: Exception) -> bool:
    # gRPC, by which etcd is asked, has one queue of events for all loops of a process; each loop
    # hands over what belongs to the others. A second coordinator of this process that has just
    # ended leaves events behind, and whichever loop meets one gets this error. It says nothing
    # about ours.
    return isinstance(error, RuntimeError) and str(error) == _CLOSED
