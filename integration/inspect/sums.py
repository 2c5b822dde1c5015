"""Sums up each transaction's records in a log. The result is small, whatever the log's size.

This is done in Python: each column of a batch is one pass in C and no rows are made, so that it
takes half the time that the JVM's connector and Spark SQL need to group the same records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from operator import methodcaller
from typing import Any, Final, cast

from ...consumer.core.headers import by_headers
from ...consumer.core.pending import Record
from ...consumer.fetching import open_fetcher
from ...consumer.malformed import make_readable
from ...journal.collector import collector_paused
from ...journal.control import TXCTL_HEADER, TXID_HEADER, TopicPartition
from ...journal.fetcher import Fetched, Fetcher
from ...journal.logs.interface import Log
from ...journal.reader import READER_SETTINGS, read_fetched
from .groups import Group, Span

READ_TIMEOUT_S: Final = 60.0
"""Longest wait without progress: a smaller value fails on slow brokers, a larger one reports dead
ones later."""
TASK_OFFSETS: Final = 500_000
"""Offsets that one task reads. A smaller value starts more tasks; with a larger one fewer cores
share a partition, and the driver holds more sums at a time."""
_value_of: Any = methodcaller("value")


def sum_up(
    log: Log, key: TopicPartition, span: Span, fetcher: Fetcher | None = None
) -> list[Group]:
    """Sums up a range of a partition.

    Args:
        log: the log to read.
        key: topic and number.
        span: the range.
        fetcher: reads the records, with settings like `READER_SETTINGS`; the caller closes it. None
            opens one.

    Raises:
        BrokerError, RecordsTrimmedError: the range can't be read.
    """
    if fetcher is None:
        with closing(open_fetcher(log.consumer, READER_SETTINGS, records=_size(span))) as own:
            return sum_up(log, key, span, own)
    sums: dict[tuple[bytes, bytes], list[int]] = {}
    batches = read_fetched(log, *key, *span, fetcher, timeout_s=READ_TIMEOUT_S)
    with closing(batches), collector_paused():
        for batch in batches:
            for headers, alike in _by_headers(batch):
                found = {name: value or b"" for name, value in reversed(headers or ())}
                raw = found.get(TXID_HEADER)
                if raw is not None:
                    ctl = found.get(TXCTL_HEADER, b"")
                    _add(sums.setdefault((raw, ctl), [0, -1, -1, 0]), list(alike), blanks=bool(ctl))
    return [Group(*key, raw, ctl, *total) for (raw, ctl), total in sums.items()]


def _by_headers(batch: Fetched) -> Iterator[tuple[Any, Iterator[Record]]]:
    """Yields consecutive records with equal headers, which are so parsed once."""
    if batch.runs is None:
        make_readable(batch.records)
    return by_headers(cast(Sequence[Record], batch.records), batch.runs)


def _size(span: Span) -> int:
    return span[1] - span[0]


def _add(total: list[int], records: Sequence[Record], *, blanks: bool) -> None:
    if not total[0]:
        total[1] = records[0].offset()
    total[0] += len(records)
    total[2] = records[-1].offset()
    if blanks and None in map(_value_of, records):
        total[3] += sum(r.value() is None and r.key() is None for r in records)
