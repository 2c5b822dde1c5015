"""Watches of a store that can't tell its changes: the range is read again and again, and compared.

For any back end that has ranges, and no watches of them. Changes that follow each other within one
pause come as one, and a reader of a large range costs the store all of it at each look.

Source: PIP-471, "A note on metadata-store backends".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from ...journal.errors import MetadataStoreError
from .base import PAGE, READY, Event, Item
from .core.keys import Span

POLL_S: Final = 0.1
"""Pause between two looks: the latest that a watcher learns of a change. A shorter one costs the
store more."""
RANGE_MAX: Final = 100_000
"""Most keys of a range that is watched: all are kept in memory for each watcher."""

Scan = Callable[[Span], AsyncIterator[list[Item]]]


class PollingWatch:
    """Watches ranges of a store by its `scan` alone."""

    def __init__(self, scan: Scan, pause_s: float = POLL_S) -> None:
        """Reads nothing before `watch`.

        Args:
            scan: reads a range of the store, in pages.
            pause_s: between two looks.
        """
        self._scan = scan
        self._pause_s = pause_s

    async def watch(self, span: Span) -> AsyncIterator[list[Event]]:
        """Yields what a range has, then `READY`, then how it differs from one look to the next.

        Raises:
            MetadataStoreError: the store fails, or the range has more than `RANGE_MAX` keys.
        """
        known = await self._look(span)
        content = [Event(*item) for item in sorted(known.items())]
        for at in range(0, len(content), PAGE):
            yield content[at : at + PAGE]
        yield [READY]
        while True:
            await asyncio.sleep(self._pause_s)
            found = await self._look(span)
            changes = [Event(key, None) for key in known.keys() - found.keys()]
            changes += [Event(k, v) for k, v in found.items() if known.get(k) != v]
            known = found
            if changes:
                yield sorted(changes, key=lambda event: event.key)

    async def _look(self, span: Span) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        async for page in self._scan(span):
            found.update(page)
            if len(found) > RANGE_MAX:
                raise MetadataStoreError(
                    f"more than {RANGE_MAX} keys are watched at once: watch a smaller range"
                )
        return found
