"""Sums up each transaction's records in a log. The result is small, whatever the log's size.

This is done in Python: each column of a batch is one pass in C and no rows are made, so that it
takes half the time that the JVM's connector and Spark SQL need to group the same records.
"""

from __future__ import annotations

from contextlib import closing
from itertools import groupby
from typing import Any, Final, cast

from confluent_kafka import Message

from ...journal.collector import collector_paused
from ...journal.control import TXCTL_HEADER, TXID_HEADER, TopicPartition
from ...journal.logs.interface import Log
from ...journal.reader import read_batches
from .groups import Group, Span

READ_TIMEOUT_S: Final = 60.0
"""Longest wait without progress: a smaller value fails on slow brokers, a larger one reports dead
ones later."""
TASK_OFFSETS: Final = 500_000
"""Offsets that one task reads. A smaller value starts more tasks; with a larger one fewer cores
share a partition, and the driver holds more sums at a time."""
# `map` and `groupby` call these unbound methods in C.
_headers_of: Any = Message.headers
_value_of: Any = Message.value


def sum_up(log: Log, key: TopicPartition, span: Span) -> list[Group]:
    """Sums up a range of a partition.

    Raises:
        BrokerError, RecordsTrimmedError: the range can't be read.
    """
    sums: dict[tuple[bytes, bytes], list[int]] = {}
    batches = read_batches(log, *key, *span, timeout_s=READ_TIMEOUT_S)
    with closing(batches), collector_paused():
        for batch in batches:
            # The headers of consecutive records with equal headers are parsed once.
            for headers, alike in groupby(batch, _headers_of):
                found = {name: value or b"" for name, value in reversed(headers or ())}
                raw = found.get(TXID_HEADER)
                if raw is not None:
                    ctl = found.get(TXCTL_HEADER, b"")
                    _add(sums.setdefault((raw, ctl), [0, -1, -1, 0]), list(alike), blanks=bool(ctl))
    return [Group(*key, raw, ctl, *total) for (raw, ctl), total in sums.items()]


def _add(total: list[int], records: list[Message], *, blanks: bool) -> None:
    if not total[0]:
        total[1] = cast(int, records[0].offset())
    total[0] += len(records)
    total[2] = cast(int, records[-1].offset())
    if blanks and None in map(_value_of, records):
        total[3] += sum(r.value() is None and r.key() is None for r in records)
