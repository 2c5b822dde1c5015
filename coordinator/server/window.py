"""Bounds the memory that the unanswered requests of one connection occupy, and their answers.

This is a limit of bytes, of one connection alone; `pressure.py` limits appends, of all streams of a
journal partition. No further request is read while the window is full. The transport's flow control
then slows its sender, and nothing is refused or lost. Lives on the event loop.
"""

from __future__ import annotations

import asyncio


class Window:
    """The requests of a connection, from their reading until the network has taken the answers."""

    def __init__(self, requests_max: int, bytes_max: int) -> None:
        self.requests = 0
        self.bytes = 0
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._room = asyncio.Event()

    async def enter(self, size: int) -> None:
        """Waits for room for a request of `size` bytes, which a lone request always has."""
        while self.requests and (
            self.requests >= self._requests_max or self.bytes + size > self._bytes_max
        ):
            self._room.clear()
            await self._room.wait()
        self.requests += 1
        self.bytes += size

    def answered(self, size: int, answer_bytes: int) -> int:
        """Gives a request of `size` bytes the room of its answer, which waits to be taken.

        Returns:
            Its size from now on, for `leave`.
        """
        self.bytes += answer_bytes - size
        self._room.set()
        return answer_bytes

    def leave(self, size: int) -> None:
        """Frees the room of a request whose answer was taken; `size` is the same as in `enter`,
        or what `answered` returned."""
        self.requests -= 1
        self.bytes -= size
        self._room.set()
