"""A Python source for Kafka without transactions, to compare logtx with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ..clients import CONSUMER

_BATCH: Final = 10_000
"""Most records of an Arrow batch."""
_TIMEOUT_S: Final = 60.0
"""Bounds the wait for records."""
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


class BareFailedError(Exception):
    """No record came."""


class Bare(DataSource):
    """The format "bare"; options ``servers`` and ``topic``."""

    @classmethod
    def name(cls) -> str:
        """Returns the format's name."""
        return "bare"

    def schema(self) -> str:
        """Returns the columns of Spark's own Kafka source, without headers."""
        return (
            "key binary, value binary, topic string, partition int, offset bigint, "
            "timestamp timestamp, timestampType int"
        )

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002
        """Returns the reader of a batch."""
        return BareReader(self.options["servers"], self.options["topic"])


@dataclass(frozen=True)
class Whole(InputPartition):
    """A whole partition, from its first offset to its end."""

    partition: int
    start: int
    end: int


class BareReader(DataSourceReader):
    """Reads every record that there is, markers too."""

    def __init__(self, servers: str, topic: str) -> None:
        self._servers = servers
        self._topic = topic

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                **CONSUMER,
                "bootstrap.servers": self._servers,
                "group.id": "bare",
                "isolation.level": "read_uncommitted",
            }
        )

    def partitions(self) -> list[InputPartition]:
        """Returns one task for each partition."""
        consumer = self._consumer()
        try:
            count = len(
                consumer.list_topics(self._topic, timeout=30).topics[self._topic].partitions
            )
            places = [TopicPartition(self._topic, number) for number in range(count)]
            return [
                Whole(place.partition, *consumer.get_watermark_offsets(place, timeout=30))
                for place in places
            ]
        finally:
            consumer.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yields a task's records as Arrow batches."""
        assert isinstance(partition, Whole)
        if partition.start == partition.end:
            return
        consumer = self._consumer()
        consumer.assign([TopicPartition(self._topic, partition.partition, partition.start)])
        following = partition.start
        try:
            while following < partition.end:
                # Not more than there are: `consume` would wait for them.
                count = min(_BATCH, partition.end - following)
                records = consumer.consume(count, _TIMEOUT_S)
                if not records:
                    raise BareFailedError("no record came")
                following = (records[-1].offset() or 0) + 1
                yield _batch(records)
        finally:
            consumer.close()


def _batch(records: list[Message]) -> Any:
    stamps = [record.timestamp() for record in records]
    columns = [
        pa.array([record.key() for record in records], pa.binary()),
        pa.array([record.value() for record in records], pa.binary()),
        pa.array([record.topic() for record in records], pa.string()),
        pa.array([record.partition() for record in records], pa.int32()),
        pa.array([record.offset() for record in records], pa.int64()),
        pa.array([ms * 1000 for _, ms in stamps], pa.int64()).cast(_TIMESTAMP),
        pa.array([kind - 1 for kind, _ in stamps], pa.int32()),
    ]
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    return pa.RecordBatch.from_arrays(columns, names)
