"""Watches of a store that only this process writes: each write is told to those who watch it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

from ...journal.errors import MetadataStoreError, WatchLaggedError
from .base import Event
from .core.keys import HEADER, Span

WATCH_MAX: Final = 20_000
"""Changes that wait for a watcher to take them; beyond it the watch ends. More take memory, some
400 bytes each; with fewer a watcher that pauses begins again sooner."""
WATCHES_MAX: Final = 1_000
"""Watches at one time: each write is compared with the range of each, but those of one header."""
_HEADER_BYTES: Final = 17


class Watch:
    """The changes that one watcher has not taken yet."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self._changes: deque[tuple[int, list[Event]]] = deque()
        """Numbers of writes, and what each changed of the range."""
        self._size = 0
        self._lagged = False
        self._closed = ""
        self._came = asyncio.Event()

    def put(self, number: int, events: list[Event]) -> None:
        """Adds what a write changed."""
        self._size += len(events)
        if self._size > WATCH_MAX:
            self._lagged = True
            self._changes.clear()
        elif not self._lagged:
            self._changes.append((number, events))
        self._came.set()

    def end(self, why: str) -> None:
        """Ends the watch."""
        self._closed = why
        self._came.set()

    def check(self) -> None:
        """Raises if the watcher did not keep up, or the store was closed."""
        if self._closed:
            raise MetadataStoreError(self._closed)
        if self._lagged:
            raise WatchLaggedError(
                f"more than {WATCH_MAX} changes waited for the watcher: watch again, and read on"
                " while changes come"
            )

    async def take(self, behind: int) -> list[Event]:
        """Waits for the next changes of writes behind a number, and returns them.

        Raises:
            WatchLaggedError: too many waited.
            MetadataStoreError: the store was closed.
        """
        while True:
            self.check()
            taken: list[Event] = []
            while self._changes:
                number, events = self._changes.popleft()
                self._size -= len(events)
                if number > behind:
                    taken += events
            if taken:
                return taken
            self._came.clear()
            await self._came.wait()


class Watches:
    """All watches of one store; lives on an event loop."""

    def __init__(self) -> None:
        self._headers: dict[bytes, set[Watch]] = {}
        """Key of a header → its watches. Branches watch one each, so there may be many."""
        self._ranges: set[Watch] = set()

    def __len__(self) -> int:
        """Returns the number of watches."""
        return len(self._ranges) + sum(map(len, self._headers.values()))

    def begin(self, span: Span) -> Watch:
        """Adds a watch.

        Raises:
            MetadataStoreError: there are too many.
        """
        if len(self) >= WATCHES_MAX:
            raise MetadataStoreError(f"{WATCHES_MAX} watches are under way: end some, then retry")
        watch = Watch(span)
        if _is_header(span):
            self._headers.setdefault(span.low, set()).add(watch)
        else:
            self._ranges.add(watch)
        return watch

    def end(self, watch: Watch) -> None:
        """Removes a watch."""
        self._ranges.discard(watch)
        there = self._headers.get(watch.span.low)
        if there is not None:
            there.discard(watch)
            if not there:
                del self._headers[watch.span.low]

    def tell(self, number: int, mutations: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Tells a write to those who watch what it changed. Call in the order of the writes."""
        if not self._ranges and not self._headers:
            return
        events = [Event(key, value) for key, value in mutations]
        for watch in self._ranges:
            low, high = watch.span
            found = [event for event in events if low <= event.key < high]
            if found:
                watch.put(number, found)
        for event in events if self._headers else ():
            for watch in self._headers.get(event.key, ()):
                watch.put(number, [event])

    def close(self) -> None:
        """Ends all watches."""
        for watch in [*self._ranges, *(w for there in self._headers.values() for w in there)]:
            watch.end("the metadata store was closed: watch again")


def _is_header(span: Span) -> bool:
    return span.low[:1] == HEADER and len(span.low) == _HEADER_BYTES
