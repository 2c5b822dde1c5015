"""Makes metric families of labelled values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

PARTITION: Final = ("partition",)
"""Label of what is told of each journal partition."""

_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)
Labelled = Iterable[tuple[Sequence[str], float]]


def gauge(
    name: str, text: str, values: Labelled, labels: Sequence[str] = PARTITION
) -> GaugeMetricFamily:
    """Returns a gauge of these values."""
    return _filled(GaugeMetricFamily(f"logtx_{name}", text, labels=labels), values)


def counter(
    name: str, text: str, values: Labelled, labels: Sequence[str] = PARTITION
) -> CounterMetricFamily:
    """Returns a counter of these values."""
    return _filled(CounterMetricFamily(f"logtx_{name}", text, labels=labels), values)


def _filled(family: _Family, values: Labelled) -> _Family:
    for names, value in values:
        family.add_metric(names, value)
    return family
