"""Fetches records of one partition at a time, without a consumer group: how bounded reads read."""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller
from typing import Any, Final, NamedTuple, Protocol

from confluent_kafka import Message
from confluent_kafka import TopicPartition as KafkaPartition

from .logs.interface import LogConsumer
from .native.interface import HeaderRun

_error_of: Final[Any] = methodcaller("error")


class Fetched(NamedTuple):
    """What came at a time."""

    records: list[Message]
    """In offset order."""
    events: Sequence[Message] = ()
    """Kafka's events: messages that have an error."""
    runs: Sequence[HeaderRun] | None = None
    """The records by their headers, if these were compared already."""

    @classmethod
    def of(cls, batch: list[Message]) -> Fetched:
        """Makes it of records and events as librdkafka gave them."""
        if not any(map(_error_of, batch)):
            return cls(batch)
        records = [message for message in batch if message.error() is None]
        return cls(records, [message for message in batch if message.error() is not None])

    def below(self, count: int) -> Fetched:
        """Returns the same with the first records only."""
        return self if count == len(self.records) else Fetched(self.records[:count], self.events)


class Fetcher(Protocol):
    """Reads the partition that it is told. One thread at a time may use it."""

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Reads a partition from an offset on, and no other one."""

    def fetch(self, limit: int, timeout_s: float) -> Fetched:
        """Takes up to `limit` records and events; nothing if none came within `timeout_s`."""


class PollingFetcher:
    """A `Fetcher` that takes confluent-kafka's Messages as soon as there is one."""

    def __init__(self, consumer: LogConsumer) -> None:
        """Reads nothing yet. `close` closes the consumer."""
        self._consumer = consumer

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Works as `Fetcher.assign`."""
        self._consumer.assign([KafkaPartition(topic, partition, offset)])

    def fetch(self, limit: int, timeout_s: float) -> Fetched:
        """Works as `Fetcher.fetch`."""
        # consume() with a time-out would wait for a full batch; poll() returns at the first record.
        first = self._consumer.poll(timeout_s)
        if first is None:
            return Fetched([])
        return Fetched.of([first, *(self._consumer.consume(limit - 1, 0) if limit > 1 else ())])

    def unassign(self) -> None:
        """Reads nothing any more, until it is assigned again."""
        self._consumer.unassign()

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()
