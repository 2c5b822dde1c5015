"""Takes from librdkafka's consumer what it has read, and tells records from events.

There are two ways. `MessageSource` takes confluent-kafka's Messages. `NativeSource` lets the C
extension take the records, as light messages, where there is one; confluent-kafka's `poll` serves
all else there, too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import ceil
from typing import Any, Final, NamedTuple, Protocol, cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

from ..journal.collector import collector_paused
from ..journal.control import TopicPartition
from ..journal.logs.interface import LogConsumer, RebalanceCallback
from ..journal.native.interface import Event, HeaderRun, Reader
from ..journal.native.loading import opened_consumer

_WAIT_MAX_S: Final = 0.2
"""Longest wait of one call, as in confluent-kafka: in between, Python handles signals."""

_topic_of: Any = Message.topic
_partition_of: Any = Message.partition
_error_of: Any = Message.error


class OtherQueueError(Exception):
    """Signals that a record came by another queue than the extension reads: assign it again."""


class Part(NamedTuple):
    """Records of one partition, in offset order."""

    key: TopicPartition
    records: Sequence[Message]
    runs: Sequence[HeaderRun] | None = None
    """The records by their headers, if they were compared already."""
    value_bytes: int | None = None
    """Bytes of their values, if they were counted already."""


class Read(NamedTuple):
    """What was read at a time."""

    parts: Iterable[Part]
    """The records, in order."""
    events: Sequence[Message]
    """Kafka's events: messages that have an error."""


class Source(Protocol):
    """Where `Reading` reads from."""

    def read(self, limit: int, timeout_s: float) -> Read | None:
        """Takes up to `limit` records and events, as soon as there is one. Serves rebalances.

        Returns None if nothing came within `timeout_s`.

        Raises:
            OtherQueueError: all must be read again.
            Exception: what the application's callbacks raised.
        """


class MessageSource:
    """Takes Messages from confluent-kafka's consumer."""

    def __init__(self, inner: LogConsumer, owner: Callable[[TopicPartition], object]) -> None:
        """Reads nothing yet.

        Args:
            inner: the consumer.
            owner: returns who reads a partition at present.
        """
        self._inner = inner
        self._owner = owner
        self.topics: set[str] = set()
        """All topics that records may come from."""

    def read(self, limit: int, timeout_s: float) -> Read | None:
        """Takes what is there, as `Source.read`."""
        # consume() with a time-out waits for a full batch; poll() returns at the first record.
        first = self._inner.poll(timeout_s)
        if first is None:
            return None
        with collector_paused():
            key = cast(TopicPartition, (first.topic(), first.partition()))
            owner = self._owner(key)
            batch = self._inner.consume(limit, 0) if limit > 1 else []
            # A rebalance that `consume` served may have begun the partition anew.
            if self._owner(key) is owner:
                batch.insert(0, first)
            events: list[Message] = []
            if any(map(_error_of, batch)):
                events = [message for message in batch if message.error() is not None]
                batch = [message for message in batch if message.error() is None]
            return Read(self._parts(batch), events)

    def _parts(self, batch: list[Message]) -> Iterator[Part]:
        # A partition's records come in a row, so C code splits the batch, without a look at each.
        if not batch:
            return
        by_topic: Iterable[tuple[Any, list[Message]]]
        if len(self.topics) == 1:
            by_topic = [(next(iter(self.topics)), batch)]
        else:
            by_topic = ((topic, list(records)) for topic, records in groupby(batch, _topic_of))
        for topic, records in by_topic:
            for number, run in _runs(records):
                yield Part((topic, number), run)


def _runs(batch: list[Message]) -> Iterator[tuple[int, list[Message]]]:
    """Yields each run of records of one partition, with the partition's number."""
    numbers = list(map(_partition_of, batch))
    if numbers.count(numbers[0]) == len(numbers):  # the usual case, at half the cost
        yield numbers[0], batch
        return
    start = 0
    for number, alike in groupby(numbers):
        stop = start + len(list(alike))
        yield number, batch[start:stop]
        start = stop


class NativeSource:
    """Takes light messages by the C extension, and events of the client from confluent-kafka."""

    def __init__(
        self,
        inner: LogConsumer,
        reader: Reader,
        error_cb: Callable[[KafkaError], object] | None = None,
    ) -> None:
        """Reads nothing yet.

        Args:
            inner: the consumer, a `TakenOver`.
            reader: what has taken its partitions over.
            error_cb: told of errors that librdkafka put into partitions' queues.
        """
        self._inner = inner
        self._reader = reader
        self._error_cb = error_cb
        self._errors: deque[KafkaError] = deque()
        """To be told. Not while records are in hand, which would be lost if the callback raises."""
        self.topics: set[str] = set()
        """All topics that records may come from. Not needed here: each part names its own."""

    def read(self, limit: int, timeout_s: float) -> Read | None:
        """Takes what is there, as `Source.read`."""
        until = time.monotonic() + timeout_s
        while True:
            while self._errors:
                error = self._errors.popleft()
                if self._error_cb is not None:
                    self._error_cb(error)
            first = self._inner.poll(0)
            parts, events = self._reader.read(limit)
            if events:
                clients = [event for event in events if _is_of_client(event)]
                self._errors += [KafkaError(code, text) for code, text, *_ in clients]
                events = [event for event in events if not _is_of_client(event)]
            if first is not None or parts or events:
                return Read(_native_parts(parts), [*_told(first), *map(_message, events)])
            if self._errors:
                continue
            left_s = until - time.monotonic()
            if left_s <= 0:
                return None
            self._reader.wait(ceil(min(left_s, _WAIT_MAX_S) * 1000))


def _native_parts(parts: Iterable[Any]) -> Iterator[Part]:
    for topic, number, records, runs, value_bytes in parts:
        yield Part((topic, number), records, runs, value_bytes)


def _is_of_client(event: Event) -> bool:
    return event[2] is None


def _told(event: Message | None) -> list[Message]:
    if event is None:
        return []
    if event.error() is None:
        # Trap 271. Nobody could say what of the partition comes before it, and what behind.
        raise OtherQueueError
    return [event]


def _message(event: Event) -> Message:
    """Makes what confluent-kafka would have made of an event."""
    code, text, topic, partition, offset = event
    return Message(
        topic=cast(str, topic),
        partition=partition,
        offset=offset,
        value=text.encode(),
        error=KafkaError(code, text),
        timestamp=(TIMESTAMP_NOT_AVAILABLE, -1),
        leader_epoch=0,
    )


class _Taken:
    """Partitions that the C extension reads. Refers to its reader, and not to the consumer."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._keys: set[TopicPartition] = set()

    def add(self, partitions: Iterable[KafkaPartition]) -> None:
        if self._reader.is_reading:
            for key in _keys_of(partitions):
                self._keys.add(key)
                self._reader.take_over(*key)

    def drop(self, keys: Iterable[TopicPartition]) -> None:
        if self._reader.is_reading:
            for key in keys:
                self._reader.give_back(*key)
                self._keys.discard(key)

    def keep(self, partitions: Iterable[KafkaPartition]) -> None:
        self.drop(self._keys - _keys_of(partitions))

    def dropping(self, callback: RebalanceCallback | None) -> RebalanceCallback:
        """Returns a callback for partitions that are taken from the consumer."""

        def drop(consumer: LogConsumer, partitions: list[KafkaPartition]) -> None:
            try:
                if callback is not None:
                    callback(consumer, partitions)
            finally:
                self.drop(_keys_of(partitions))

        return drop


def _keys_of(partitions: Iterable[KafkaPartition]) -> set[TopicPartition]:
    return {(partition.topic, partition.partition) for partition in partitions}


class TakenOver:
    """confluent-kafka's consumer, of which the C extension reads all partitions.

    It takes a partition over before librdkafka reads it: what librdkafka had put elsewhere would
    come in another order. And at each assignment, as librdkafka may have dropped the partition in
    between. It gives a partition back behind the call that gives it up: were that to fail, records
    would wait unseen.
    """

    def __init__(self, inner: LogConsumer, reader: Reader) -> None:
        """Both were made together."""
        self._inner = inner
        self._reader = reader
        self._taken = _Taken(reader)

    def __getattr__(self, name: str) -> Any:
        """Returns the consumer's."""
        return getattr(self._inner, name)

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Works like the consumer's."""
        callbacks = {"on_assign": on_assign} if on_assign is not None else {}
        callbacks["on_revoke"] = self._taken.dropping(on_revoke)
        callbacks["on_lost"] = self._taken.dropping(on_lost or on_revoke)
        self._inner.subscribe(topics, **callbacks)

    def assign(self, partitions: list[KafkaPartition]) -> None:
        """Works like the consumer's."""
        self._taken.add(partitions)
        self._inner.assign(partitions)
        self._taken.keep(partitions)

    def unassign(self) -> None:
        """Works like the consumer's."""
        self._inner.unassign()
        self._taken.keep([])

    def incremental_assign(self, partitions: list[KafkaPartition]) -> None:
        """Works like the consumer's."""
        self._taken.add(partitions)
        self._inner.incremental_assign(partitions)

    def incremental_unassign(self, partitions: list[KafkaPartition]) -> None:
        """Works like the consumer's."""
        self._inner.incremental_unassign(partitions)
        self._taken.drop(_keys_of(partitions))

    def close(self) -> None:
        """Works like the consumer's."""
        try:
            self._reader.close()
        finally:
            self._inner.close()


def open_consumer(
    make: Callable[[Mapping[str, Any]], LogConsumer], settings: Mapping[str, Any]
) -> tuple[LogConsumer, Reader | None]:
    """Makes a consumer, whose partitions the C extension reads if it can.

    Raises:
        KafkaException: librdkafka refuses the settings.
    """
    inner, reader = opened_consumer(make, settings)
    if reader is None:
        return inner, None
    return cast(LogConsumer, TakenOver(inner, reader)), reader
