"""The projection is what a naive replay says, wherever a projector is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logtx.coordinator.store.core.changes import Cursor
from logtx.coordinator.store.core.projection import Projection
from logtx.coordinator.store.memory import MemoryStore
from logtx.integration.inspect.metadata import Replay
from logtx.journal.records.fate import EpochFilter

from ...golden import files, show
from .journals import ACTIONS, Action, write
from .stores import CrashedError, Replaying, content, transactions

ACTION = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5), st.integers(0, 5))
STORIES = st.lists(ACTION, min_size=5, max_size=25)
SIZES = st.sampled_from([3, 7, 20, 10_000])


@settings(max_examples=60, deadline=None)
@given(STORIES, SIZES, st.integers(1, 9))
def test_the_projection_is_what_a_naive_replay_says(
    actions: list[Action], size: int, batch: int
) -> None:
    async def check() -> None:
        journal, store = write(actions), MemoryStore(size)
        await Replaying(store, journal.entries).run(batch=batch)
        assert await transactions(store) == journal.replay().expected()

    asyncio.run(check())


@settings(max_examples=60, deadline=None)
@given(STORIES, SIZES, st.integers(1, 9))
def test_a_projector_that_is_killed_after_each_write_ends_with_the_same(
    actions: list[Action], size: int, batch: int
) -> None:
    async def check() -> None:
        journal, whole, store = write(actions), MemoryStore(size), MemoryStore(size)
        await Replaying(whole, journal.entries).run(batch=batch)
        lives = 0
        while True:
            lives += 1
            assert lives < 300, "it makes no progress"
            try:
                await Replaying(store, journal.entries).run(writes=1, batch=batch)
            except CrashedError:
                continue
            break
        assert await content(store) == await content(whole)

    asyncio.run(check())


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
