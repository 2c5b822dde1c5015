"""Runs the audit in processes of this machine: needs neither Spark nor Java."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from multiprocessing import get_context
from typing import Any, Final

from ...journal.control import TopicPartition
from ...journal.errors import ConfigError, LogtxError
from ...journal.logs.interface import Log
from ...journal.logs.memory.broker import SCHEME
from ...journal.logs.open import open_log
from .audit import Told, run_audit, tell_nobody
from .checks import Report
from .groups import Group, Span, merge
from .sums import sum_up

PIECE_OFFSETS: Final = 250_000
"""Offsets that a process sums up at a time. With a larger value processes wait longer for the last
one of a portion, with a smaller one they open consumers more often."""
PIECES_AT_A_TIME: Final = 4
"""Pieces per process whose sums are held at a time. More takes more memory."""


def audit(
    kafka: Mapping[str, str],
    topics: Sequence[str] | None = None,
    *,
    processes: int | None = None,
    begun: Told = tell_nobody,
    advanced: Told = tell_nobody,
) -> Report:
    """Checks every invariant that a cluster's logs can show; `docs/spark.md` lists them.

    Others may write during the audit. A script that calls this is imported by the new processes, so
    it needs ``if __name__ == "__main__":``.

    Args:
        kafka: librdkafka's settings, with ``bootstrap.servers``; without callbacks, unless there is
            one process.
        topics: data topics to check; None checks all topics that the journal names.
        processes: number of processes; None: one for each CPU that this one may use. With 1 the
            audit runs in this process.
        begun: called once, with the number of offsets to read.
        advanced: called with the numbers of offsets that were read.

    Raises:
        UnknownTopicError: there is no journal, or no topic of this name.
        ConfigError: fewer than one process.
        JournalError, BrokerError: the logs can't be read.
        LogtxError: one of the processes died.
    """
    count = len(os.sched_getaffinity(0)) if processes is None else processes
    if count < 1:
        raise ConfigError(f"an audit takes at least one process, not {count}")
    if kafka["bootstrap.servers"].startswith(SCHEME):
        count = 1  # That log is in this process.
    with closing(open_log(kafka)) as log:
        if count == 1:
            return run_audit(log, topics, _Here(log, advanced), PIECE_OFFSETS, begun)
        with _Pool(kafka, count, advanced) as pool:
            portion = PIECE_OFFSETS * PIECES_AT_A_TIME * count
            return run_audit(log, topics, pool, portion, begun)


class _Here:
    """Sums up in this process."""

    def __init__(self, log: Log, advanced: Told) -> None:
        self._log, self._advanced = log, advanced

    def __call__(self, spans: Mapping[TopicPartition, Span]) -> Iterator[Group]:
        return merge(self._groups(spans))

    def _groups(self, spans: Mapping[TopicPartition, Span]) -> Iterator[Group]:
        for key, span in pieces_of(spans):
            yield from sum_up(self._log, key, span)
            self._advanced(span[1] - span[0])


class _Pool:
    """Sums up in processes. A context manager."""

    def __init__(self, kafka: Mapping[str, str], count: int, advanced: Told) -> None:
        self._advanced = advanced
        # A fork would copy librdkafka's locks without the threads that hold them.
        self._pool = ProcessPoolExecutor(
            count, get_context("spawn"), initializer=_begin, initargs=(dict(kafka),)
        )
        # They start while the journal is read.
        for _ in range(count):
            self._pool.submit(os.getpid)

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __call__(self, spans: Mapping[TopicPartition, Span]) -> Iterator[Group]:
        return merge(self._groups(spans))

    def _groups(self, spans: Mapping[TopicPartition, Span]) -> Iterator[Group]:
        sizes = {self._pool.submit(_sum, *piece): piece[1] for piece in pieces_of(spans)}
        try:
            for done in as_completed(sizes):
                yield from map(Group._make, done.result())
                start, end = sizes[done]
                self._advanced(end - start)
        except BrokenProcessPool as error:
            raise LogtxError(
                "a process of the audit died: if memory ran out, give it fewer processes"
            ) from error


def pieces_of(spans: Mapping[TopicPartition, Span]) -> Iterator[tuple[TopicPartition, Span]]:
    """Cuts ranges into pieces of at most `PIECE_OFFSETS`."""
    for key, (start, end) in spans.items():
        for first in range(start, end, PIECE_OFFSETS):
            yield key, (first, min(first + PIECE_OFFSETS, end))


# ---- in the processes ---------------------------------------------------------------------------

_opened: list[Log] = []
"""The log of such a process, which lives as long as it does."""


def _begin(kafka: Mapping[str, str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends them all.
    _opened.append(open_log(kafka))


def _sum(key: TopicPartition, span: Span) -> list[tuple[Any, ...]]:
    # Plain tuples: pickle writes a reference to its class for each of another type.
    return [tuple(group) for group in sum_up(_opened[0], key, span)]
