"""The few statistics that the results need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Self


@dataclass(frozen=True, slots=True)
class Spread:
    """Median of some rounds, and the least and the greatest of them."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Returns the spread of `values`. Raises ValueError if there are none."""
        if not values:
            raise ValueError("no values")
        return cls(median(values), min(values), max(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the smallest value that at least `percent` of all do not exceed (nearest rank).

    Raises:
        ValueError: no values, or not 0 < percent <= 100.
    """
    if not values:
        raise ValueError("no values")
    if not 0 < percent <= 100:
        raise ValueError(f"not a percentage above 0: {percent}")
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]


def ratio(candidate: Sequence[float], baseline: Sequence[float]) -> Spread:
    """Returns the ratio of the medians; its least and most are ratios of rounds that ran in turn.

    Raises:
        ValueError: no rounds, or a different number of them.
    """
    if len(candidate) != len(baseline):
        raise ValueError(f"{len(candidate)} rounds beside {len(baseline)}")
    pairs = [c / b for c, b in zip(candidate, baseline, strict=True)]
    spread = Spread.of(pairs)
    return Spread(median(candidate) / median(baseline), spread.least, spread.most)
