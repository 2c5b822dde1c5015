"""Slows clients down while a journal partition has too many appends on their way.

A stream reads no further request meanwhile: the transport's flow control then slows its sender, and
nothing is refused or lost. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

APPENDS_MAX: Final = 10_000
"""Appends on their way to one journal partition; a request makes one, seldom a few."""
APPENDS_MAX_BYTES: Final = 32 * 1024 * 1024


class Pressure:
    """Appends of one journal partition on their way."""

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._ended = False
        self._room = asyncio.Event()
        self._room.set()

    def appended(self, size: int) -> None:
        """A record of `size` bytes is on its way."""
        self._sizes.append(size)
        self._bytes += size
        full = len(self._sizes) >= APPENDS_MAX or self._bytes >= APPENDS_MAX_BYTES
        if full and not self._ended:
            self._room.clear()

    def acknowledged(self) -> None:
        """The oldest was answered."""
        self._bytes -= self._sizes.popleft()
        # Half, so that those who wait are woken once for thousands and not for each.
        if len(self._sizes) <= APPENDS_MAX // 2 and self._bytes <= APPENDS_MAX_BYTES // 2:
            self._room.set()

    def end(self) -> None:
        """Nothing will be appended any more: whoever waits goes on, to be told why."""
        self._ended = True
        self._room.set()

    async def room(self) -> None:
        """Wait while too much is on its way."""
        await self._room.wait()
