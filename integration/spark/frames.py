"""Makes Arrow batches of committed records: the columns of Kafka's connector, and two of ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Message

from ...consumer.columns import Columns, Spread, columns_of
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
        self._shares: list[tuple[str | None, int | None, int]] = []
        """(TxId, commit sequence, number of records)."""
        self._bytes = 0

    def of(self, shares: Iterable[Share]) -> Iterator[pa.RecordBatch]:
        """Yields Arrow batches of all records, in order."""
        for share in shares:
            txid = None if share.txid is None else str(TxId.from_bytes(share.txid))
            self._records += share.records
            self._shares.append((txid, share.commit_sequence, len(share.records)))
            self._bytes += sum(map(len, share.records))
            if len(self._records) >= BATCH_RECORDS or self._bytes >= BATCH_BYTES:
                yield self._batch()
        if self._records:
            yield self._batch()

    def _batch(self) -> pa.RecordBatch:
        records, self._records = self._records, []
        shares, self._shares = self._shares, []
        self._bytes = 0
        with collector_paused():
            place = self._topic, self._partition
            found = columns_of(records, place, headers=self._headers)
            columns = self._columns(found, shares)
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def _columns(
        self, found: Columns, shares: list[tuple[str | None, int | None, int]]
    ) -> dict[str, Any]:
        size = len(found.offsets)
        txids, sequences, lengths = zip(*shares, strict=True)
        ours = Spread(lengths)
        # Kafka's connector counts kinds from 0 (CreateTime), confluent-kafka from 1; -1 means none.
        kinds = [run.timestamp_type - 1 for run in found.runs]
        return {
            "key": found.keys,
            "value": found.values,
            "topic": pa.repeat(pa.scalar(self._topic), size),
            "partition": pa.repeat(pa.scalar(self._partition, pa.int32()), size),
            "offset": found.offsets,
            "timestamp": found.timestamps.cast(_MILLIS).cast(_TIMESTAMP),
            "timestampType": found.spread.column(kinds, pa.int32()),
            **({"headers": found.headers()} if self._headers else {}),
            "txid": ours.column(txids, pa.string()),
            "commit_sequence": ours.column(sequences, pa.int64()),
        }
