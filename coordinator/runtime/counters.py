"""Counts what a coordinator does: plain numbers, written and read on its event loop.

Pure. `metrics.py` copies them on the loop before another thread shows them. So nothing here needs a
lock, and counting costs a fraction of a microsecond.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from ...journal.errors import (
    LogtxError,
    RetriableError,
    TransactionAbortedError,
    TransactionCommittedError,
)
from ...journal.records.types import AbortReason
from ..core.transactions import TransactionMetadata
from ..protocol.commands import Reply

LATENCY_BOUNDS_S: Final = (
    *(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
"""Upper bounds of the commit latency's buckets; each bucket is one more series of the metrics."""


class Histogram:
    """Counts durations by bucket."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        """Starts empty. `bounds_s`: upper bounds of the buckets, inclusive, rising."""
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        """Number of durations in each bucket; the last bucket has no upper bound."""
        self.sum_s = 0.0

    def observe(self, duration_s: float) -> None:
        """Counts a duration."""
        self.counts[bisect_left(self.bounds_s, duration_s)] += 1
        self.sum_s += duration_s


@dataclass(slots=True)
class CoordinatorCounters:
    """The counters of one coordinator since it started.

    Keys are journal partitions, if nothing else is said.
    """

    committed: Counter[int] = field(default_factory=Counter)
    aborted: Counter[tuple[int, AbortReason]] = field(default_factory=Counter)
    appends: Counter[int] = field(default_factory=Counter)
    append_bytes: Counter[int] = field(default_factory=Counter)
    surprises: Counter[int] = field(default_factory=Counter)
    loads: Counter[int] = field(default_factory=Counter)
    load_seconds: dict[int, float] = field(default_factory=dict)
    connections_refused: Counter[str] = field(default_factory=Counter)
    """Why → streams that did not become a session."""
    requests_refused: Counter[int] = field(default_factory=Counter)
    """Code of the error → requests answered by it."""
    header_cas: Counter[str] = field(default_factory=Counter)
    """What came of a request to end a transaction → how often: ``ok`` (it is decided so),
    ``conflict`` (it was decided otherwise before), ``reject`` (fenced, or not allowed)."""
    commit_latency: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS_S))
    """Time from a commit's arrival to the answer that it is decided."""

    def appended(self, partition: int, size: int) -> None:
        """Counts a record of `size` bytes that was handed to the log."""
        self.appends[partition] += 1
        self.append_bytes[partition] += size

    def decided(self, partition: int, epoch: int, transaction: TransactionMetadata) -> None:
        """Counts a durable decision, unless an earlier epoch's owner has counted it."""
        if transaction.commit_sequence is None or transaction.commit_sequence < epoch:
            return
        if transaction.reason is None:
            self.committed[partition] += 1
        else:
            self.aborted[partition, transaction.reason] += 1

    def answered(self, reply: Reply) -> None:
        """Counts a request's answer if that is a refusal."""
        if isinstance(reply, LogtxError):
            self.requests_refused[reply.code] += 1

    def ended(self, reply: Reply) -> None:
        """Counts the answer to a request to end a transaction."""
        if not isinstance(reply, LogtxError):
            self.header_cas["ok"] += 1
        elif isinstance(reply, TransactionAbortedError | TransactionCommittedError):
            self.header_cas["conflict"] += 1
        elif not isinstance(reply, RetriableError):
            self.header_cas["reject"] += 1

    def connection_refused(self, error: LogtxError) -> None:
        """Counts a stream that was refused with an error."""
        self.connections_refused[type(error).__name__.removesuffix("Error")] += 1

    def loaded(self, partition: int, duration_s: float) -> None:
        """Counts a load of a journal partition from its snapshot or its start."""
        self.loads[partition] += 1
        self.load_seconds[partition] = self.load_seconds.get(partition, 0.0) + duration_s
