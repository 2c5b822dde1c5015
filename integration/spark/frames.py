"""Committed records as Arrow batches: the columns of Kafka's connector, and two of ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Message

from ...journal.control import TXCTL_HEADER, TXID_HEADER
from ...journal.txid import TxId
from .columns import HEADERS_TYPE
from .reading import TAKE_RECORDS, Share

SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, "
    "timestamp timestamp, timestampType int"
)
OUR_SCHEMA: Final = "txid string, commit_sequence bigint"
_OURS: Final = (TXID_HEADER, TXCTL_HEADER)
_MILLIS: Final = pa.timestamp("ms", tz="UTC")
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

_key: Any = Message.key
_value: Any = Message.value
_offset: Any = Message.offset
_timestamp: Any = Message.timestamp


def schema(*, headers: bool) -> str:
    """The source's columns, as Spark's DDL."""
    middle = f", headers {HEADERS_TYPE}" if headers else ""
    return f"{SCHEMA}{middle}, {OUR_SCHEMA}"


class Batches:
    """Gathers shares until there are enough rows for an Arrow batch."""

    def __init__(self, topic: str, partition: int, *, headers: bool) -> None:
        self._topic = topic
        self._partition = partition
        self._headers = headers
        self._records: list[Message] = []
        self._runs: list[tuple[str | None, int | None, int]] = []

    def of(self, shares: Iterable[Share]) -> Iterator[pa.RecordBatch]:
        """Arrow batches of all records, in order."""
        for share in shares:
            txid = None if share.txid is None else str(TxId.from_bytes(share.txid))
            self._records += share.records
            self._runs.append((txid, share.commit_sequence, len(share.records)))
            if len(self._records) >= TAKE_RECORDS:
                yield self._batch()
        if self._records:
            yield self._batch()

    def _batch(self) -> pa.RecordBatch:
        records, self._records = self._records, []
        runs, self._runs = self._runs, []
        size = len(records)
        # Column by column, and each in one call of C: half of what a loop over records takes.
        kinds, stamps_ms = zip(*map(_timestamp, records), strict=True)
        columns: list[tuple[str, Any]] = [
            ("key", pa.array(list(map(_key, records)), pa.binary())),
            ("value", pa.array(list(map(_value, records)), pa.binary())),
            ("topic", pa.repeat(pa.scalar(self._topic), size)),
            ("partition", pa.repeat(pa.scalar(self._partition, pa.int32()), size)),
            ("offset", pa.array(list(map(_offset, records)), pa.int64())),
            ("timestamp", pa.array(stamps_ms, pa.int64()).cast(_MILLIS).cast(_TIMESTAMP)),
            ("timestampType", _kinds(kinds)),
        ]
        if self._headers:
            columns.append(("headers", pa.array(list(map(_user_headers, records)), _HEADERS)))
        columns += [
            ("txid", _repeated([(txid, n) for txid, _, n in runs], pa.string())),
            ("commit_sequence", _repeated([(s, n) for _, s, n in runs], pa.int64())),
        ]
        return pa.RecordBatch.from_arrays([c for _, c in columns], [name for name, _ in columns])


def _kinds(kinds: Sequence[int]) -> Any:
    # Kafka's connector counts from 0 (CreateTime), confluent-kafka from 1; -1: none.
    if kinds.count(kinds[0]) == len(kinds):
        return pa.repeat(pa.scalar(kinds[0] - 1, pa.int32()), len(kinds))
    return pa.array([kind - 1 for kind in kinds], pa.int32())


def _repeated(runs: list[tuple[Any, int]], kind: Any) -> Any:
    if len(runs) == 1:
        return pa.repeat(pa.scalar(runs[0][0], kind), runs[0][1])
    values: list[Any] = []
    for value, count in runs:
        values += [value] * count
    return pa.array(values, kind)


def _user_headers(record: Message) -> list[dict[str, Any]] | None:
    headers: Any = record.headers()
    if not headers:
        return None
    return [{"key": n, "value": v} for n, v in headers if n not in _OURS] or None
