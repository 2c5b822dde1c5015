"""How a batch is sorted by partition, and that the garbage collector is left as it was."""

from __future__ import annotations

import gc
from contextlib import suppress
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.consumer.reading import run_end
from logtx.journal.collector import collector_paused

RUNS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 200)), min_size=1, max_size=12)


@given(RUNS)
def test_run_end_finds_what_groupby_finds(runs: list[tuple[int, int]]) -> None:
    values = [value for value, count in runs for _ in range(count)]
    found, start = [], 0
    while start < len(values):
        stop = run_end(values, start)
        found.append((values[start], stop - start))
        start = stop
    assert found == [(value, len(list(same))) for value, same in groupby(values)]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with suppress(KeyError), collector_paused():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
