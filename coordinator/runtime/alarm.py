"""Wakes a pure core at the monotonic times that it asks for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def monotonic_ms() -> int:
    """Returns the monotonic clock, as the cores have it."""
    return time.monotonic_ns() // 1_000_000


class Alarm:
    """Calls a core's ``tick`` on the event loop, at the earliest of the times that were set."""

    def __init__(self, tick: Callable[[int], None]) -> None:
        """Is not set.

        Args:
            tick: called with the monotonic time in milliseconds.
        """
        self._tick = tick
        self._timer: asyncio.TimerHandle | None = None
        self._at_ms = 0

    def set(self, at_ms: int) -> None:
        """Calls ``tick`` at `at_ms`, unless it is called before that."""
        if self._timer is not None:
            if self._at_ms <= at_ms:
                return
            self._timer.cancel()
        self._at_ms = at_ms
        delay_s = max(0, at_ms - monotonic_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._tick(monotonic_ms())

    def cancel(self) -> None:
        """Calls nothing until it is set again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
