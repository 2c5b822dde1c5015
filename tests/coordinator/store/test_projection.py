"""The projection is what a naive replay says, wherever a projector is killed."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logtx.coordinator.store.memory import MemoryStore

from .journals import ACTIONS, Action, Journal, data, write
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


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_a_record_places_what_it_covers_where_it_names_an_end(batch: int) -> None:
    """Not what is decided later, nor where it names none: a later record places that."""

    async def check() -> None:
        journal, restarted = Journal(), MemoryStore()
        partitions = [data(1, number) for number in range(3)]
        for _ in range(3):
            journal.commit(journal.begin(), partitions)
        first, second, _ = sorted(journal.sequences.values())
        for numbers, upto in (
            ([0], first),
            ([0, 1], second),
            ([2], first),
            ([2], None),
            ([0, 1], None),
            ([0, 1, 2], None),
        ):
            journal.commit(journal.begin(), [data(1, 1)])
            journal.place(numbers, upto=upto)
            for store in (MemoryStore(), restarted):
                await Replaying(store, journal.entries).run(batch=batch)
                assert await transactions(store) == journal.replay().expected()

    asyncio.run(check())
