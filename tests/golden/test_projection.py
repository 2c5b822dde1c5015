"""Journals that former versions wrote, as the metadata store has them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from logtx.coordinator.store.core.changes import Cursor
from logtx.coordinator.store.core.projection import Projection
from logtx.coordinator.store.memory import MemoryStore
from logtx.integration.inspect.metadata import Replay
from logtx.journal.records.fate import EpochFilter

from ..coordinator.store.stores import transactions
from . import files, show


@pytest.mark.parametrize("directory", files.sets(), ids=lambda path: path.name)
@pytest.mark.parametrize("size", [3, 10_000])
def test_a_journal_that_is_kept_is_projected(directory: Path, size: int) -> None:
    """Every kind of record, void ones among them, as coordinators wrote them."""

    async def check() -> None:
        entries = list(enumerate(show.entries_of(files.read(directory))))
        replay = Replay(0, EpochFilter())
        for offset, entry in entries:
            replay.feed(offset, entry)
        store, cursor = MemoryStore(size), None
        projection = Projection(0, Cursor(0), size)
        for at in range(0, len(entries), 7):
            for part in projection.feed(entries[at : at + 7]):
                assert len(part.mutations) <= size
                assert await store.write(0, cursor, part)
                cursor = part.cursor
        assert await transactions(store) == replay.expected()

    asyncio.run(check())
