"""Transactions of 2 records in 2 partitions: how many a second, and how long one takes."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from typing import Any, Final

import confluent_kafka

import logtx

from ..clients import (
    CONNECT_TIMEOUT_S,
    PRODUCER,
    delete_topics,
    kafka_producer,
    logtx_producer,
    make_topic,
    shown,
)
from ..model import Better, Comparison, Context, Sample, Scenario
from ..stats import percentile

TOPICS: Final = {"kafka": "bench-small-kafka", "logtx": "bench-small-logtx"}
VALUE: Final = b"x" * 100
SECONDS: Final = 1.0
WARM_UP_ROUNDS: Final = 4
"""A new broker is three times as fast after some seconds of small transactions."""
IN_FLIGHT: Final = 64


def _sample(latencies_s: list[float], seconds: float, *, in_ms: bool) -> Sample:
    p50_ms = percentile(latencies_s, 50) * 1e3
    rate = len(latencies_s) / seconds
    notes = {
        "transactions": float(len(latencies_s)),
        "transactions/s": rate,
        "p50 ms": p50_ms,
        "p99 ms": percentile(latencies_s, 99) * 1e3,
    }
    return Sample(p50_ms if in_ms else rate, notes)


class _OneAfterAnother:
    """begin, two records, commit; the same calls on both sides."""

    in_ms = True
    topic = ""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.producer: Any = None

    def measure(self) -> Sample:
        """Run one round."""
        producer, topic, clock = self.producer, self.topic, time.perf_counter
        latencies: list[float] = []
        started = clock()
        until = started + self.context.sized(SECONDS, 0.2)
        while (began := clock()) < until:
            producer.begin_transaction()
            producer.produce(topic, VALUE, partition=0)
            producer.produce(topic, VALUE, partition=1)
            producer.commit_transaction(CONNECT_TIMEOUT_S)
            latencies.append(clock() - began)
        return _sample(latencies, clock() - started, in_ms=self.in_ms)


class KafkaSequential(_OneAfterAnother):
    """Kafka's transactions."""

    topic = TOPICS["kafka"]
    producer: confluent_kafka.Producer

    def open(self) -> None:
        """Connect."""
        servers = self.context.bootstrap_servers
        self.producer = kafka_producer(servers, f"bench-{type(self).__name__}")

    def close(self) -> None:
        """Nothing is open."""


class KafkaRate(KafkaSequential):
    """The same, as a rate."""

    in_ms = False


class LogtxSequential(_OneAfterAnother):
    """logtx's, one after another."""

    topic = TOPICS["logtx"]
    producer: logtx.Producer

    def open(self) -> None:
        """Connect."""
        servers = self.context.bootstrap_servers
        self.producer = logtx_producer(servers, f"bench-{type(self).__name__}")

    def close(self) -> None:
        """Disconnect."""
        self.producer.close()


class LogtxPipelined(LogtxSequential):
    """logtx's, 64 in flight."""

    def measure(self) -> Sample:
        """Run one round: a new transaction begins when the oldest is decided."""
        producer, topic, clock = self.producer, self.topic, time.perf_counter
        flying: deque[tuple[float, Future[Any]]] = deque()
        latencies: list[float] = []

        def land() -> None:
            began, future = flying.popleft()
            future.result(CONNECT_TIMEOUT_S)
            latencies.append(clock() - began)

        started = clock()
        until = started + self.context.sized(SECONDS, 0.2)
        while (began := clock()) < until:
            transaction = producer.begin_transaction()
            transaction.produce(topic, VALUE, partition=0)
            transaction.produce(topic, VALUE, partition=1)
            flying.append((began, transaction.commit_async()))
            if len(flying) >= IN_FLIGHT:
                land()
        while flying:
            land()
        return _sample(latencies, clock() - started, in_ms=False)


def prepare(context: Context) -> None:
    """Create a topic of two partitions for each side."""
    for topic in TOPICS.values():
        make_topic(context.bootstrap_servers, topic, 2)


def finish(context: Context) -> None:
    """Delete them."""
    delete_topics(context.bootstrap_servers, list(TOPICS.values()))


_SETTINGS: Final = (shown(PRODUCER), "values of 100 bytes, no keys, one broker, one producer")

PIPELINED: Final = Scenario(
    name="pipelined",
    title="Small transactions, 64 in flight",
    unit="transactions/s",
    better=Better.HIGHER,
    method=(
        "One producer, transactions of 2 records in 2 partitions, for 1 s a round. Kafka's run "
        "one after another, for a producer of Kafka has one at a time. Of logtx's 64 are in "
        "flight: the next begins when the oldest is decided. Measured: transactions decided, "
        "over the time from the first begin to the last acknowledged commit."
    ),
    settings=_SETTINGS,
    sides={"kafka": KafkaRate, "logtx": LogtxPipelined},
    comparisons=(
        Comparison(
            title="2 records in 2 partitions, 64 in flight", kafka="kafka", logtx="logtx", target=5
        ),
    ),
    prepare=prepare,
    finish=finish,
    warm_up_rounds=WARM_UP_ROUNDS,
)

SEQUENTIAL: Final = Scenario(
    name="sequential",
    title="Small transactions, one after another",
    unit="ms",
    better=Better.LOWER,
    method=(
        "One producer, transactions of 2 records in 2 partitions, one after another for 1 s a "
        "round, by the same calls on both sides. Measured: p50 of the time from begin to the "
        "acknowledged commit."
    ),
    settings=_SETTINGS,
    sides={"kafka": KafkaSequential, "logtx": LogtxSequential},
    comparisons=(
        Comparison(
            title="2 records in 2 partitions, one after another, p50",
            kafka="kafka",
            logtx="logtx",
            target=1,
        ),
    ),
    prepare=prepare,
    finish=finish,
    warm_up_rounds=WARM_UP_ROUNDS,
)
