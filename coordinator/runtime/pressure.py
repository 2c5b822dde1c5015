"""What slows clients down: appends that the journal has not acknowledged, and answers not taken.

Everything that a request occupies is bounded by not reading the next one: the transport's flow
control then slows its sender, and nothing is refused or lost. Live on the event loop.
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
        """None is."""
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


class Window:
    """Requests of one stream, from their reading until the network took the answers."""

    def __init__(self, requests_max: int, bytes_max: int) -> None:
        """None is."""
        self.requests = 0
        self.bytes = 0
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._room = asyncio.Event()

    async def enter(self, size: int) -> None:
        """Wait for room for a request that occupies `size` bytes; alone it always has."""
        while self.requests and (
            self.requests >= self._requests_max or self.bytes + size > self._bytes_max
        ):
            self._room.clear()
            await self._room.wait()
        self.requests += 1
        self.bytes += size

    def leave(self, size: int) -> None:
        """An answer was taken; `size` is that of its request."""
        self.requests -= 1
        self.bytes -= size
        self._room.set()
