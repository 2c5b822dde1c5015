"""A metadata store in memory, for tests: without the others' reasons to fail."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import AsyncIterator
from typing import ClassVar, Final

from .base import PAGE, READY, Event, Item
from .core.keys import Span
from .keyed import Batch, KeyedStore
from .watching import Watches

MUTATIONS_MAX: Final = 10_000
"""Most keys of a write."""


class MemoryStore(KeyedStore):
    """Keeps everything in this process."""

    name: ClassVar[str] = "memory"

    def __init__(self, mutations_max: int = MUTATIONS_MAX) -> None:
        self.mutations_max = mutations_max
        self._keys: list[bytes] = []
        self._values: dict[bytes, bytes] = {}
        self._operations = 0
        self._number = 0
        self._watches = Watches()

    async def _get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    async def _page(self, span: Span, limit: int) -> list[Item]:
        return self._range(span, limit)

    def _range(self, span: Span, limit: int | None = None) -> list[Item]:
        low, high = bisect_left(self._keys, span.low), bisect_left(self._keys, span.high)
        keys = self._keys[low:high] if limit is None else self._keys[low : min(high, low + limit)]
        return [(key, self._values[key]) for key in keys]

    async def _commit(self, batch: Batch) -> bool:
        if any(self._values.get(key) != value for key, value in batch.guards.items()):
            return False
        mutations = batch.all()
        for key, value in mutations:
            if value is not None:
                if key not in self._values:
                    insort(self._keys, key)
                self._values[key] = value
            elif self._values.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
        self._operations += batch.added
        self._number += 1
        self._watches.tell(self._number, mutations)
        return True

    async def watch(self, span: Span) -> AsyncIterator[list[Event]]:
        """Watches a range: see `MetadataStore`."""
        watch, behind, content = self._watches.begin(span), self._number, self._range(span)
        try:
            for at in range(0, len(content), PAGE):
                yield [Event(*item) for item in content[at : at + PAGE]]
            yield [READY]
            while True:
                yield await watch.take(behind)
        finally:
            self._watches.end(watch)

    async def outstanding(self) -> int:
        """Returns the number of operations."""
        return self._operations

    async def tidy(self) -> None:
        """Has nothing to do."""

    async def close(self) -> None:
        """Ends all watches; what is there stays."""
        self._watches.close()
