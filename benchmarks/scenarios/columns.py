"""Reads committed records from a backlog into Arrow's columns."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import confluent_kafka
import pyarrow as pa
from confluent_kafka import Message

import logtx

from ..clients import CONNECT_TIMEOUT_S, CONSUMER, shown
from ..model import Better, Comparison, Sample, Scenario
from .consumption import (
    GARBAGE,
    PARTITIONS,
    PER_TRANSACTION,
    RECORDS,
    Reading,
    finish,
    prepare,
)

BATCH: Final = 10_000
"""Most records of a batch; with smaller ones each record costs more Python."""
THREAD_NS: Final = "application's thread, ns of CPU for each record"
_TIMESTAMP: Final = pa.timestamp("ms", tz="UTC")

_key: Any = Message.key
_value: Any = Message.value
_topic: Any = Message.topic
_partition: Any = Message.partition
_offset: Any = Message.offset
_timestamp: Any = Message.timestamp


def read_batches(consumer: Any, total: int, take: Callable[[Any], pa.RecordBatch]) -> Sample:
    """Reads a backlog batch by batch. Returns the rate, from the first record on.

    Args:
        consumer: of either kind, with the backlog assigned.
        total: how many records there are.
        take: takes a batch.
    """
    if consumer.poll(CONNECT_TIMEOUT_S) is None:
        raise TimeoutError("no record came")
    started, started_ns, got = time.perf_counter(), time.thread_time_ns(), 0
    while got < total - 1:
        batch = take(consumer)
        if not batch.num_rows:
            raise TimeoutError(f"{got + 1} of {total} records came")
        got += batch.num_rows
    seconds, spent_ns = time.perf_counter() - started, time.thread_time_ns() - started_ns
    return Sample(got / seconds, {"records": float(got), THREAD_NS: spent_ns / got})


def batch_of_messages(consumer: Any) -> pa.RecordBatch:
    """Takes a batch of confluent-kafka's consumer."""
    # consume(n, t) would wait the whole of t for a full batch.
    message = consumer.poll(CONNECT_TIMEOUT_S)
    found = consumer.consume(BATCH - 1, 0)
    if message is not None:
        found.insert(0, message)
    # Column by column, each in one call to C: takes half the time of a loop over messages.
    kinds, stamps_ms = zip(*map(_timestamp, found), strict=True) if found else ((), ())
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array(list(map(_key, found)), pa.binary()),
            "value": pa.array(list(map(_value, found)), pa.binary()),
            "topic": pa.array(list(map(_topic, found)), pa.string()).dictionary_encode(),
            "partition": pa.array(list(map(_partition, found)), pa.int32()),
            "offset": pa.array(list(map(_offset, found)), pa.int64()),
            "timestamp": pa.array(stamps_ms, _TIMESTAMP),
            "timestamp_type": pa.array(kinds, pa.int8()),
        }
    )


def batch_of_columns(consumer: Any) -> pa.RecordBatch:
    """Takes a batch of logtx's consumer."""
    return consumer.consume_arrow(BATCH, CONNECT_TIMEOUT_S)


class KafkaColumns(Reading):
    """confluent-kafka, whose messages are made columns."""

    kind = "kafka"

    def connect(self, settings: dict[str, Any]) -> Any:
        """Returns a new consumer."""
        return confluent_kafka.Consumer(settings)

    def read(self, consumer: Any, total: int) -> Sample:
        """Reads so many records."""
        return read_batches(consumer, total, batch_of_messages)


class LogtxColumns(Reading):
    """logtx, which delivers columns."""

    kind = "logtx"

    def connect(self, settings: dict[str, Any]) -> Any:
        """Returns a new consumer."""
        return logtx.Consumer(settings)

    def read(self, consumer: Any, total: int) -> Sample:
        """Reads so many records."""
        return read_batches(consumer, total, batch_of_columns)


COLUMNS_100B: Final = Scenario(
    name="columns-100",
    title="Committed records as Arrow columns, records of 100 B",
    unit="records/s",
    better=Better.HIGHER,
    method=(
        f"A new consumer a round reads a backlog of {RECORDS[100]:,} records of 100 B, committed "
        f"in transactions of {PER_TRANSACTION:,}, from {PARTITIONS} partitions, into batches of up "
        f"to {BATCH:,} records: Kafka's by poll() and consume({BATCH - 1}, 0), and then column by "
        "column, without headers; logtx's by consume_arrow, with headers, TxIds and commit "
        "sequences. Kafka's records carry one header of 16 bytes, as logtx's carry their TxId. "
        "Measured: records, over the time from the first record's delivery to the last's."
    ),
    settings=(shown(CONSUMER), GARBAGE),
    sides={
        "kafka": partial(KafkaColumns, size=100),
        "logtx": partial(LogtxColumns, size=100),
    },
    comparisons=(
        Comparison(
            title="records of 100 B to Arrow columns", kafka="kafka", logtx="logtx", target=4
        ),
        Comparison(
            title="the application's thread, for each record of 100 B to Arrow columns",
            kafka="kafka",
            logtx="logtx",
            note=THREAD_NS,
            unit="ns of CPU",
            better=Better.LOWER,
        ),
    ),
    prepare=partial(prepare, size=100),
    finish=partial(finish, size=100),
)
