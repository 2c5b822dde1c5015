"""Staircases against all steps as they came: they never need less than those."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.coordinator.core import staircases
from logtx.coordinator.core.staircases import Staircases
from logtx.journal.records.types import PointerStep

SIDE, OTHER = ("a._txnlog", 0), ("a._txnlog", 1)
SMALL = st.integers(0, 30)
STEPS = st.lists(st.builds(PointerStep, st.sampled_from((SIDE, OTHER)), SMALL, SMALL), max_size=40)


def lowest(steps: list[PointerStep], key: tuple[str, int], start: int) -> int | None:
    """What the pointers at or above `start` need, by all steps."""
    return min((s.first for s in steps if s.sidecar == key and s.pointer >= start), default=None)


@given(STEPS)
def test_they_say_what_all_steps_say(steps: list[PointerStep]) -> None:
    known = Staircases()
    known.replay(steps)
    for key in (SIDE, OTHER):
        for start in range(32):
            found = known.needed(key, start)
            assert (None if found is None else found.first) == lowest(steps, key, start)


@given(STEPS, st.integers(1, 4))
def test_joined_steps_need_more_and_never_less(steps: list[PointerStep], most: int) -> None:
    known = Staircases()
    with patch.object(staircases, "STEPS_MAX", most):
        known.replay(steps)
    for row in known.rows():
        assert len(row) <= most
        assert [*row] == sorted(row)
        assert [step.first for step in row] == sorted({step.first for step in row})
    for key in (SIDE, OTHER):
        for start in range(32):
            found, needed = known.needed(key, start), lowest(steps, key, start)
            assert (found is None) == (needed is None)
            assert found is None or needed is None or found.first <= needed


@given(STEPS, STEPS)
def test_a_snapshot_keeps_them_as_they_are(
    before: list[PointerStep], after: list[PointerStep]
) -> None:
    known, restored = Staircases(), Staircases()
    with patch.object(staircases, "STEPS_MAX", 3):
        known.replay(before)
        restored.replay([step for row in known.rows() for step in row])
        assert [*restored.rows()] == [*known.rows()]
        for each in (known, restored):
            each.replay(after)
    assert {*restored.rows()} == {*known.rows()}


@pytest.mark.parametrize("share", [1, 10, 100])
def test_of_an_even_spread_little_more_is_kept_than_needed(share: int) -> None:
    """However short the part of a partition's life is that retention has left."""
    known, count = Staircases(), 20_000
    known.replay(PointerStep(SIDE, 2 * n, 100 * n) for n in range(count))
    for n in range(count - count // share, count - count // share // 2):
        found = known.needed(SIDE, 2 * n)
        assert found is not None
        assert 100 * n - found.first <= 100 * (count - n) * 2 / 5
