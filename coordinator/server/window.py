"""Bounds what the unanswered requests of one stream occupy.

The stream reads no further request while its window is full: the transport's flow control then
slows its sender, and nothing is refused or lost. Lives on the event loop.
"""

from __future__ import annotations

import asyncio


class Window:
    """Requests of one stream, from their reading until the network took the answers."""

    def __init__(self, requests_max: int, bytes_max: int) -> None:
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
