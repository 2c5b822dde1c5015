"""One side of the benchmark: transactions with their records in the topic, or in its sidecar."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import TopicPartition

import logtx
from logtx.journal.sidecar import sidecar_of

from ..clients import (
    CONNECT_TIMEOUT_S,
    consumer_config,
    delete_topics,
    from_start,
    logtx_producer,
    make_topic,
)
from ..metadata.disk import Disk
from ..scenarios.consumption import BATCH, read_all
from ..spill.measure import COMMIT_TIMEOUT_S, MEMORY_MAX_BYTES, Bench, Large
from ..spill.payload import Payload, number_of
from ..spill.process import ReaderFailedError
from ..stats import percentile

MARKERS: Final = "markers"
SIDECAR: Final = "sidecar"
SIDES: Final = (MARKERS, SIDECAR)
IN_FLIGHT: Final = 64
"""Transactions of the backlog that are written at a time."""
SMALL: Final = Payload(100, 10)
"""What a transaction of the backlog holds."""
MIDDLING: Final = Payload(1_000, 1_000)
"""What a transaction of `first_ms` holds."""


class Side:
    """Measures one side; everything is deleted behind it."""

    def __init__(self, name: str, servers: str, data_dir: Path, directory: Path) -> None:
        """Keeps the parameters.

        Args:
            name: one of `SIDES`.
            servers: the broker.
            data_dir: the broker's.
            directory: for what readers spill, and log.
        """
        self.name = name
        self._servers, self._disk, self._spill = servers, Disk(data_dir), directory / "spill"
        self._bench = Bench(servers, directory, sidecar=name == SIDECAR)
        self._spill.mkdir(exist_ok=True)
        self._topics = 0

    @contextmanager
    def _topic(self) -> Iterator[str]:
        self._topics += 1
        topic = f"bench-{self.name}-{self._topics}"
        try:
            yield topic
        finally:
            delete_topics(self._servers, [topic, sidecar_of(topic)])

    def _producer(self, topic: str) -> logtx.Producer:
        least = 0 if self.name == SIDECAR else -1
        return logtx_producer(self._servers, topic, {"transaction.sidecar.min.bytes": least})

    def _consumer(self, topic: str) -> logtx.Consumer:
        config = consumer_config(self._servers, f"read-{topic}")
        return logtx.Consumer({**config, "pending.dir": str(self._spill)})

    # ---- a large one

    def round(self, payload: Payload, step: Callable[[str], None]) -> tuple[Large, float, float]:
        """Reads a large transaction in three ways.

        Returns:
            (how a process read it that was there before the commit; seconds that a process took
            which came later; seconds until one that came back in its middle got the next record).

        Raises:
            ReaderFailedError: a reader failed.
        """
        with self._topic() as topic:
            step(f"{self.name}: open, and then committed")
            large = self._bench.large(topic, payload, lambda _: None)
            step(f"{self.name}: by a consumer that comes later")
            seconds = self._bench.seconds(topic, payload, MEMORY_MAX_BYTES)
            step(f"{self.name}: by a consumer that comes back in the middle")
            return large, seconds, self._restart_s(topic, payload.count // 2)

    def _restart_s(self, topic: str, middle: int) -> float:
        with self._consumer(topic) as consumer:
            consumer.assign(from_start(topic, 1))
            left = middle
            while left:
                found = consumer.consume(min(BATCH, left), CONNECT_TIMEOUT_S)
                if not found:
                    raise ReaderFailedError(f"{left} of {middle} records did not come")
                left -= len(found)
            consumer.commit(asynchronous=False)
        with self._consumer(topic) as consumer:
            # librdkafka may take a second to look for the topic, and for the group's coordinator.
            consumer.list_topics(topic, timeout=CONNECT_TIMEOUT_S)
            place = TopicPartition(topic, 0)
            consumer.committed([place], timeout=CONNECT_TIMEOUT_S)
            began_s = time.perf_counter()
            consumer.assign([place])
            message = consumer.poll(COMMIT_TIMEOUT_S)
            seconds = time.perf_counter() - began_s
        if message is None or number_of(message) != middle:
            raise ReaderFailedError(f"record {middle} did not come next")
        return seconds

    def bytes_of_an_abort(self, payload: Payload) -> int:
        """Returns how many bytes the topic's log has, of a large transaction that is aborted."""
        with self._topic() as topic:
            with self._bench.written(topic, payload, lambda _: None) as transaction:
                transaction.abort(COMMIT_TIMEOUT_S)
            return self._disk.of(topic)

    # ---- small ones

    def first_ms(self, count: int) -> float:
        """Returns the p50, in ms, from the call of commit to the first record.

        Args:
            count: transactions of `MIDDLING`, one after another. The consumer has all that is
                there before the commit.
        """
        with self._topic() as topic:
            make_topic(self._servers, topic, 1)
            with self._producer(topic) as producer, self._consumer(topic) as consumer:
                consumer.assign(from_start(topic, 1))
                times_ms = [self._first_ms(producer, consumer, topic) for _ in range(count)]
        return percentile(times_ms, 50)

    def _first_ms(self, producer: logtx.Producer, consumer: logtx.Consumer, topic: str) -> float:
        transaction = producer.begin_transaction()
        for number in range(MIDDLING.count):
            transaction.produce(topic, MIDDLING.value(number), partition=0)
        if producer.flush(CONNECT_TIMEOUT_S):
            raise TimeoutError("records were not acknowledged")
        self._await_pending(consumer)
        began_s = time.perf_counter()
        transaction.commit(CONNECT_TIMEOUT_S)
        first = consumer.poll(CONNECT_TIMEOUT_S)
        took_ms = (time.perf_counter() - began_s) * 1_000
        left = MIDDLING.count - (first is not None)
        while left:
            found = consumer.consume(left, CONNECT_TIMEOUT_S)
            if not found:
                raise ReaderFailedError(f"{left} records did not come")
            left -= len(found)
        return took_ms

    def _await_pending(self, consumer: logtx.Consumer) -> None:
        # Nothing is to be read of a sidecar: the consumer stands, once it was asked.
        count = 0 if self.name == SIDECAR else MIDDLING.count
        deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
        while True:
            if consumer.poll(0.05) is not None:
                raise ReaderFailedError("a record came before the commit")
            if consumer.stats()["pending_records"] == count:
                return
            if time.monotonic() > deadline_s:
                raise ReaderFailedError(f"{count} records are not pending")

    @contextmanager
    def backlog(self, count: int) -> Iterator[Callable[[], float]]:
        """Writes transactions of `SMALL` to one partition, one after another committed.

        Yields:
            Reads them by a new consumer: returns transactions per second.
        """
        with self._topic() as topic:
            make_topic(self._servers, topic, 1)
            flying: deque[Future[Any]] = deque()
            with self._producer(topic) as producer:
                for _ in range(count):
                    transaction = producer.begin_transaction()
                    for number in range(SMALL.count):
                        transaction.produce(topic, SMALL.value(number), partition=0)
                    flying.append(transaction.commit_async())
                    if len(flying) >= IN_FLIGHT:
                        flying.popleft().result(CONNECT_TIMEOUT_S)
                while flying:
                    flying.popleft().result(CONNECT_TIMEOUT_S)
            yield lambda: self._transactions_per_s(topic, count)

    def _transactions_per_s(self, topic: str, count: int) -> float:
        with self._consumer(topic) as consumer:
            consumer.assign(from_start(topic, 1))
            return read_all(consumer, count * SMALL.count, reads_all=True).value / SMALL.count
