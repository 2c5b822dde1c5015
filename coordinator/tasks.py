"""Tasks that the coordinator cannot run without: if one fails, the process exits.

An exception that nobody expected is a bug, and what it leaves behind is not to be trusted. A
coordinator that answers its peers and serves nothing is worse than none, for the others leave its
partitions to it; they take them within a moment when it is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


def essential_task(coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """A task that may be cancelled or return, but not fail: that is `Failures`' to hear."""
    task = asyncio.create_task(coroutine, name=name)
    task.add_done_callback(_raise)
    return task


def _raise(task: asyncio.Task[None]) -> None:
    # Out of a callback, so that the event loop's exception handler gets it.
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


def raise_on(loop: asyncio.AbstractEventLoop, error: Exception) -> None:
    """Lets `Failures` hear of an exception that ended a thread; called in that thread."""

    def fail() -> None:
        raise error

    # A loop that is closed has nobody left who could miss the thread.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(fail)


class Failures:
    """Waits for the first exception of an essential task, or of a callback, on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listens from now on. An exception of one client's stream is only logged."""
        self.first: asyncio.Future[None] = loop.create_future()
        """Done with the exception."""
        loop.set_exception_handler(self._handle)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, Exception) and "handle" in context and not self.first.done():
            self.first.set_exception(error)
