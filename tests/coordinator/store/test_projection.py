"""The projection is what a naive replay says, wherever a projector is killed."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from logtx.coordinator.store.memory import MemoryStore

from .journals import ACTIONS, Action, write
from .stores import CrashedError, Replaying, content, transactions

ACTION = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5), st.integers(0, 5))
STORIES = st.lists(ACTION, min_size=5, max_size=25)
SIZES = st.sampled_from([3, 7, 20, 10_000])


@settings(max_examples=60)
@given(STORIES, SIZES, st.integers(1, 9))
def test_the_projection_is_what_a_naive_replay_says(
    actions: list[Action], size: int, batch: int
) -> None:
    async def check() -> None:
        journal, store = write(actions), MemoryStore(size)
        await Replaying(store, journal.entries).run(batch=batch)
        assert await transactions(store) == journal.replay().expected()

    asyncio.run(check())


@settings(max_examples=60)
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
