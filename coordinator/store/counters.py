"""Counts what the metadata store does: plain numbers, written and read on one event loop. Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from ..protocol.metadata import Index

QUERY_BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
"""Upper bounds of the buckets; each is one more series for each index."""


@dataclass(slots=True)
class QueryTimes:
    """How long queries of one index took."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(QUERY_BOUNDS_S) + 1))
    """Number of queries in each bucket; the last one has no upper bound."""
    sum_s: float = 0.0

    def observe(self, duration_s: float) -> None:
        """Counts a query."""
        self.counts[bisect_left(QUERY_BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s


@dataclass(slots=True)
class StoreCounters:
    """The counters of one coordinator's store since it started."""

    op_writes: int = 0
    """Operations written."""
    operations: int = 0
    """Operations in the store, when it was last asked."""
    queries: dict[Index, QueryTimes] = field(
        default_factory=lambda: {index: QueryTimes() for index in Index}
    )
    swept_operations: int = 0
    swept_headers: int = 0
    swept_ms: int = 0
    """When the last sweep ended, milliseconds since 1970; 0: none has."""
    rebuilt: int = 0
    """Journal partitions that were projected again from the beginning."""
