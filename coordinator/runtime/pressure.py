"""Slows clients down while a journal partition has too many appends in flight.

A stream reads no further request meanwhile. The transport's flow control then slows its sender, and
nothing is refused or lost. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

APPENDS_MAX: Final = 10_000
"""Appends in flight to one journal partition, of which a request makes one, seldom a few. More take
more memory; if the tail is lost, a gap of this size must be filled (`lost_tail.py`)."""
APPENDS_MAX_BYTES: Final = 32 * 1024 * 1024
"""The same in bytes: bounds the memory of a partition whose appends are large."""


class Pressure:
    """Tracks the appends of one journal partition that are in flight."""

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._ended = False
        self._room = asyncio.Event()
        self._room.set()

    def appended(self, size: int) -> None:
        """Counts a record of `size` bytes that is now in flight."""
        self._sizes.append(size)
        self._bytes += size
        full = len(self._sizes) >= APPENDS_MAX or self._bytes >= APPENDS_MAX_BYTES
        if full and not self._ended:
            self._room.clear()

    def acknowledged(self) -> None:
        """Counts the oldest append as answered."""
        self._bytes -= self._sizes.popleft()
        # At half the limit, so that waiting streams are woken once for thousands of appends.
        if len(self._sizes) <= APPENDS_MAX // 2 and self._bytes <= APPENDS_MAX_BYTES // 2:
            self._room.set()

    def end(self) -> None:
        """Lets all waiting streams go on: nothing will be appended, and they are told why."""
        self._ended = True
        self._room.set()

    async def room(self) -> None:
        """Waits while too much is in flight."""
        await self._room.wait()
