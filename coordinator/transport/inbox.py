"""What came for a task on an event loop, and was not taken yet."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from copy import copy
from typing import Generic, Protocol, TypeVar

from ...journal.errors import LogtxError
from .address import now_ms


class Costly(Protocol):
    """A message that takes room of a window."""

    @property
    def payload(self) -> bytes: ...
    @property
    def cost(self) -> int: ...


M = TypeVar("M", bound=Costly)


class Inbox(ABC, Generic[M]):
    """The messages of a connection, or of a stream, up to its end. Is the base of both."""

    def __init__(self) -> None:
        """Is empty."""
        self._inbox: deque[tuple[M, int]] = deque()
        """Messages, and when each came."""
        self._came = asyncio.Event()
        self._given = 0
        """What the message costs that `receive` returned last."""
        self.came_ms = 0
        """When that message came, by `now_ms`."""
        self.error: LogtxError | None = None
        """Why it is over; None while it is not."""

    async def receive(self) -> bytes:
        """Returns the next message. To ask for it frees the room of the one before.

        Raises:
            LogtxError: it is over, and all that came was returned.
        """
        self._free_given()
        while not self._inbox:
            if self.error is not None:
                raise copy(self.error)  # The traceback of one that is kept would make a circle.
            self._came.clear()
            await self._came.wait()
        message, self.came_ms = self._inbox.popleft()
        self._given = message.cost
        return message.payload

    def _keep(self, message: M) -> None:
        self._inbox.append((message, now_ms()))
        self._came.set()

    def _end(self, error: LogtxError) -> None:
        self.error = error
        self._came.set()

    def _free_given(self) -> None:
        given, self._given = self._given, 0
        if given:
            self._free(given)

    @abstractmethod
    def _free(self, cost: int) -> None:
        """Frees the room of messages, in bytes."""
