"""Makes metric families of labelled values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

PARTITION: Final = ("partition",)
"""Label of what is told of each journal partition."""

Labelled = Iterable[tuple[Sequence[str], float]]


def gauge(
    name: str, text: str, values: Labelled, labels: Sequence[str] = PARTITION
) -> GaugeMetricFamily:
    """Returns a gauge of these values."""
    family = GaugeMetricFamily(f"logtx_{name}", text, labels=labels)
    for names, value in values:
        family.add_metric(names, value)
    return family


def counter(
    name: str, text: str, values: Labelled, labels: Sequence[str] = PARTITION
) -> CounterMetricFamily:
    """Returns a counter of these values."""
    family = CounterMetricFamily(f"logtx_{name}", text, labels=labels)
    for names, value in values:
        family.add_metric(names, value)
    return family
