"""The statistics behind the benchmarks' figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.benchmarks.model import Better
from logtx.benchmarks.report import number, target_text
from logtx.benchmarks.runner import is_met
from logtx.benchmarks.stats import Spread, percentile, ratio

VALUES = st.lists(st.floats(0.001, 1e9), min_size=1, max_size=50)


def test_spread() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.of([4.0, 1.0]) == Spread(2.5, 1.0, 4.0)


@pytest.mark.parametrize(
    ("percent", "expected"), [(1, 1.0), (50, 5.0), (51, 6.0), (90, 9.0), (99, 10.0), (100, 10.0)]
)
def test_percentile_is_the_nearest_rank(percent: float, expected: float) -> None:
    assert percentile([float(n) for n in range(10, 0, -1)], percent) == expected


@given(VALUES, st.floats(0.1, 100))
def test_a_percentile_is_one_of_the_values(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(v <= found for v in values) >= len(values) * percent / 100 - 1e-6


def test_ratio_is_of_the_medians_and_its_spread_of_neighbouring_rounds() -> None:
    # The second round was disturbed on both sides alike, so its ratio was not.
    assert ratio([50.0, 5.0, 60.0], [100.0, 10.0, 100.0]) == Spread(0.5, 0.5, 0.6)


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        Spread.of([])
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    with pytest.raises(ValueError, match="percentage"):
        percentile([1.0], 0)
    with pytest.raises(ValueError, match="2 rounds beside 1"):
        ratio([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("found", "target", "better", "met"),
    [
        (5.0, 5, Better.HIGHER, True),
        (4.9, 5, Better.HIGHER, False),
        (1.0, 1, Better.LOWER, True),
        (1.1, 1, Better.LOWER, False),
        (9.9, None, Better.HIGHER, None),
    ],
)
def test_a_target_is_met_from_its_own_side(
    found: float, target: float | None, better: Better, met: bool | None
) -> None:
    assert is_met(found, target, better) is met


def test_figures_have_the_digits_that_count() -> None:
    shown = [number(v) for v in (1_234_567, 45_678, 1_234, 123.4, 1.234, 0.0456)]
    assert shown == ["1.23M", "46k", "1,234", "123", "1.23", "0.0456"]
    assert [target_text(5, "higher"), target_text(1.2, "lower"), target_text(None, "lower")] == [
        "≥ 5",
        "≤ 1.2",
        "",
    ]
