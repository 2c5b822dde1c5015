"""Makes Arrow batches of committed records: the columns of Kafka's connector, and two of ours.

Behind the consumer's cores, only this module looks into a record. A consumer that gives columns
instead of records would give them here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Message

from ...consumer.columns import HEADERS, user_headers
from ...consumer.range_reader.reading import Share
from ...journal.collector import collector_paused
from ...journal.txid import TxId
from .columns import HEADERS_TYPE

SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, "
    "timestamp timestamp, timestampType int"
)
OUR_SCHEMA: Final = "txid string, commit_sequence bigint"
BATCH_RECORDS: Final = 10_000
BATCH_BYTES: Final = 16 * 1024 * 1024
"""An Arrow batch ends with the share that reaches this many rows, or this many bytes of values.
Larger batches take more of a task's memory; smaller ones cost more per row."""
_MILLIS: Final = pa.timestamp("ms", tz="UTC")
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

_key: Any = Message.key
_value: Any = Message.value
_offset: Any = Message.offset
_timestamp: Any = Message.timestamp
_headers: Any = Message.headers


def schema(*, headers: bool) -> str:
    """Returns the source's columns as Spark's DDL."""
    middle = f", headers {HEADERS_TYPE}" if headers else ""
    return f"{SCHEMA}{middle}, {OUR_SCHEMA}"


class Batches:
    """Collects shares until there are enough rows for an Arrow batch."""

    def __init__(self, topic: str, partition: int, *, headers: bool) -> None:
        self._topic = topic
        self._partition = partition
        self._headers = headers
        self._records: list[Message] = []
        self._runs: list[tuple[str | None, int | None, int]] = []
        self._bytes = 0

    def of(self, shares: Iterable[Share]) -> Iterator[pa.RecordBatch]:
        """Yields Arrow batches of all records, in order."""
        for share in shares:
            txid = None if share.txid is None else str(TxId.from_bytes(share.txid))
            self._records += share.records
            self._runs.append((txid, share.commit_sequence, len(share.records)))
            self._bytes += sum(map(len, share.records))
            if len(self._records) >= BATCH_RECORDS or self._bytes >= BATCH_BYTES:
                yield self._batch()
        if self._records:
            yield self._batch()

    def _batch(self) -> pa.RecordBatch:
        records, self._records = self._records, []
        runs, self._runs = self._runs, []
        self._bytes = 0
        with collector_paused():
            columns = self._columns(records, runs)
        return pa.RecordBatch.from_arrays([c for _, c in columns], [name for name, _ in columns])

    def _columns(
        self, records: list[Message], runs: list[tuple[str | None, int | None, int]]
    ) -> list[tuple[str, Any]]:
        # Column by column, each in one call to C: takes half the time of a loop over records.
        size = len(records)
        kinds, stamps_ms = _stamps(records)
        columns: list[tuple[str, Any]] = [
            ("key", pa.array(list(map(_key, records)), pa.binary())),
            ("value", pa.array(list(map(_value, records)), pa.binary())),
            ("topic", pa.repeat(pa.scalar(self._topic), size)),
            ("partition", pa.repeat(pa.scalar(self._partition, pa.int32()), size)),
            ("offset", pa.array(list(map(_offset, records)), pa.int64())),
            ("timestamp", pa.array(stamps_ms, pa.int64()).cast(_MILLIS).cast(_TIMESTAMP)),
            ("timestampType", kinds),
        ]
        if self._headers:
            found = list(map(user_headers, map(_headers, records)))
            columns.append(("headers", pa.array(found, HEADERS)))
        columns += [
            ("txid", _repeated([(txid, n) for txid, _, n in runs], pa.string())),
            ("commit_sequence", _repeated([(s, n) for _, s, n in runs], pa.int64())),
        ]
        return columns


def _stamps(records: Sequence[Message]) -> tuple[Any, list[int]]:
    """Returns (kinds of the timestamps, timestamps in milliseconds)."""
    # Kafka's connector counts kinds from 0 (CreateTime), confluent-kafka from 1; -1 means none.
    kind = _timestamp(records[0])[0]
    stamps_ms = [ms for of, ms in map(_timestamp, records) if of == kind]
    if len(stamps_ms) == len(records):
        return pa.repeat(pa.scalar(kind - 1, pa.int32()), len(records)), stamps_ms
    stamps = list(map(_timestamp, records))
    return pa.array([of - 1 for of, _ in stamps], pa.int32()), [ms for _, ms in stamps]


def _repeated(runs: list[tuple[Any, int]], kind: Any) -> Any:
    if len(runs) == 1:
        return pa.repeat(pa.scalar(runs[0][0], kind), runs[0][1])
    values: list[Any] = []
    for value, count in runs:
        values += [value] * count
    return pa.array(values, kind)
