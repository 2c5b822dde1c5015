"""How soon a small transaction is delivered, alone and while another one stays open."""

from __future__ import annotations

import struct
import time
from contextlib import closing
from multiprocessing.connection import Connection
from typing import Any, Final

import confluent_kafka

import logtx

from ..clients import (
    CONNECT_TIMEOUT_S,
    CONSUMER,
    PRODUCER,
    consumer_config,
    delete_topics,
    kafka_producer,
    logtx_producer,
    make_topic,
    shown,
)
from ..model import Better, Comparison, Context, Sample, Scenario
from ..remote import Remote, answering
from ..stats import percentile

PARTITIONS: Final = 2
"""Partitions of a transaction, with a record in each."""
OPEN_S: Final = 1.5
"""Length of a round beside an open transaction; Kafka's p50 is about half of it."""
ALONE_S: Final = 1.0
"""Length of a round without one."""
EVERY_S: Final = 0.025
"""Time from one begin to the next. Less would measure a queue."""
_NUMBER: Final = struct.Struct("<Q")
_PADDING: Final = b"x" * (100 - _NUMBER.size)
HANGING: Final = 2**64 - 1
"""Number of the transaction that stays open; its delivery is not waited for."""
_POLL_S: Final = 0.05
"""Longest poll of the consumer; a request waits this long at most."""
_PROBE_S: Final = 0.5
"""How long to wait for the delivery of a transaction before sending another."""


def value_of(number: int) -> bytes:
    """Returns a record's value."""
    return _NUMBER.pack(number) + _PADDING


def _consume(
    connection: Connection, kind: str, servers: str, group: str, topic: str, partitions: int
) -> None:
    """Runs in the consumer's process: notes when each transaction was delivered completely.

    Takes the requests "start", "stop" and "times", and answers each with {transaction: monotonic
    ns}. The clock is the machine's, the same in all processes.
    """
    make: Any = confluent_kafka.Consumer if kind == "kafka" else logtx.Consumer
    with answering(connection), closing(make(consumer_config(servers, group))) as consumer:
        counts: dict[int, int] = {}
        times: dict[int, int] = {}
        connection.send("ready")
        while True:
            message = consumer.poll(_POLL_S)
            if message is not None and message.error() is None:
                (number,) = _NUMBER.unpack_from(message.value())
                counts[number] = counts.get(number, 0) + 1
                if counts[number] == partitions:
                    times[number] = time.monotonic_ns()
            if not connection.poll():
                continue
            request = connection.recv()
            if request == "start":
                end = confluent_kafka.OFFSET_END
                places = [confluent_kafka.TopicPartition(topic, p, end) for p in range(partitions)]
                consumer.assign(places)
                counts.clear()
                times.clear()
            elif request == "stop":
                consumer.unassign()
            connection.send(dict(times))


class Latency:
    """A producer here and a consumer in a process of its own.

    If `held_open` is set, another producer keeps a transaction open meanwhile.
    """

    kind = ""
    held_open = False
    partitions = PARTITIONS
    """Partitions of a transaction, with a record in each."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.topic = f"bench-latency-{self.kind}"
        self.name = f"bench-{type(self).__name__}"
        self.number = 0
        self.remote: Any = None
        """The consumer's process."""
        self.producer: Any = None
        self.other: Any = None

    def open(self) -> None:
        """Connects all of them."""
        self.producer = self.make_producer(self.name)
        if self.held_open:
            self.other = self.make_producer(f"{self.name}-other")
        where = self.context.bootstrap_servers, self.name, self.topic, self.partitions
        self.remote = Remote("the consumer", _consume, self.kind, *where)
        self.remote.receive(CONNECT_TIMEOUT_S)

    def close(self) -> None:
        """Disconnects."""
        if self.remote is not None:
            self.remote.close()
        for producer in (self.producer, self.other):
            if producer is not None:
                self.close_producer(producer)

    def make_producer(self, name: str) -> Any:
        raise NotImplementedError

    def close_producer(self, producer: Any) -> None:
        """Closes a producer, if its kind has to be closed."""

    def measure(self) -> Sample:
        """Runs one round."""
        self.ask("start")
        self.await_delivery()
        full = OPEN_S if self.held_open else ALONE_S
        if self.held_open:
            self._begin_other()
        committed: dict[int, int] = {}
        started = time.monotonic()
        until = started + self.context.sized(full, 0.3)
        while (now := time.monotonic()) < until:
            self.number += 1
            committed[self.number] = self.transaction(self.number)
            time.sleep(max(0.0, now + EVERY_S - time.monotonic()))
        if self.held_open:
            self.other.commit_transaction(CONNECT_TIMEOUT_S)
        times = self.times_of(committed)
        self.ask("stop")
        latencies_ms = [(times[n] - committed[n]) / 1e6 for n in committed]
        notes = {
            "transactions": float(len(latencies_ms)),
            "p99 ms": percentile(latencies_ms, 99),
            "max ms": max(latencies_ms),
        }
        return Sample(percentile(latencies_ms, 50), notes)

    def transaction(self, number: int) -> int:
        """Commits a record in each partition; returns when commit was called, in monotonic ns."""
        producer = self.producer
        producer.begin_transaction()
        for partition in range(self.partitions):
            producer.produce(self.topic, value_of(number), partition=partition)
        called_ns = time.monotonic_ns()
        producer.commit_transaction(CONNECT_TIMEOUT_S)
        return called_ns

    def _begin_other(self) -> None:
        self.other.begin_transaction()
        for partition in range(self.partitions):
            self.other.produce(self.topic, value_of(HANGING), partition=partition)
        if self.other.flush(CONNECT_TIMEOUT_S):
            raise TimeoutError("the open transaction's records were not acknowledged")

    def await_delivery(self) -> None:
        """Commits transactions until one is delivered: from then on the consumer reads."""
        deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
        while time.monotonic() < deadline_s:
            self.number += 1
            self.transaction(self.number)
            probe_s = time.monotonic() + _PROBE_S
            while time.monotonic() < probe_s:
                if self.number in self.ask("times"):
                    return
        raise TimeoutError("the consumer does not read")

    def times_of(self, numbers: dict[int, int]) -> dict[int, int]:
        """Returns when these transactions were delivered; waits for it. Raises TimeoutError."""
        deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
        while time.monotonic() < deadline_s:
            times = self.ask("times")
            if numbers.keys() <= times.keys():
                return times
        raise TimeoutError("not every transaction was delivered")

    def ask(self, request: str) -> dict[int, int]:
        """Sends a request to the consumer's process. Returns transaction → time of delivery."""
        self.remote.send(request)
        times: dict[int, int] = self.remote.receive(CONNECT_TIMEOUT_S)
        return times


class KafkaAlone(Latency):
    """Kafka's side, alone."""

    kind = "kafka"

    def make_producer(self, name: str) -> Any:
        """Returns a transactional producer."""
        return kafka_producer(self.context.bootstrap_servers, name)


class KafkaBesideOpen(KafkaAlone):
    """Kafka's side, beside an open transaction."""

    held_open = True


class LogtxAlone(Latency):
    """logtx's side, alone."""

    kind = "logtx"

    def make_producer(self, name: str) -> Any:
        """Returns a producer."""
        return logtx_producer(self.context.bootstrap_servers, name)

    def close_producer(self, producer: Any) -> None:
        """Closes it."""
        producer.close()


class LogtxBesideOpen(LogtxAlone):
    """logtx's side, beside an open transaction."""

    held_open = True


_TOPICS: Final = ("bench-latency-kafka", "bench-latency-logtx")


def prepare(context: Context) -> None:
    """Creates a topic for each kind."""
    for topic in _TOPICS:
        make_topic(context.bootstrap_servers, topic, PARTITIONS)


def finish(context: Context) -> None:
    """Deletes the topics."""
    delete_topics(context.bootstrap_servers, list(_TOPICS))


LATENCY: Final = Scenario(
    name="latency",
    title="Delivery of a small transaction while another stays open",
    unit="ms",
    better=Better.LOWER,
    method=(
        "One producer commits a transaction of 2 records in 2 partitions every 25 ms; a consumer "
        "in a process of its own polls. Measured: p50 of the time from the call of commit to the "
        "return of the poll that delivers the transaction's last record, by the machine's "
        "monotonic clock, which both processes share. Alone for 1 s a round; then for 1.5 s, while "
        "another producer's transaction with a record in each partition stays open. Kafka's "
        "consumer waits for that one's end, so its p50 is about half of that time."
    ),
    settings=(shown(PRODUCER), shown(CONSUMER)),
    sides={
        "kafka": KafkaAlone,
        "logtx": LogtxAlone,
        "kafka-beside-open": KafkaBesideOpen,
        "logtx-beside-open": LogtxBesideOpen,
    },
    comparisons=(
        Comparison(title="commit to delivery, p50", kafka="kafka", logtx="logtx", target=1.1),
        Comparison(title="commit to delivery, p99", kafka="kafka", logtx="logtx", note="p99 ms"),
        Comparison(
            title="commit to delivery beside an open transaction, p50; ratio: to logtx without it",
            kafka="kafka-beside-open",
            logtx="logtx-beside-open",
            baseline="logtx",
            target=1.2,
        ),
    ),
    prepare=prepare,
    finish=finish,
    quick=True,
)
