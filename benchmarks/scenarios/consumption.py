"""Reads committed records from a backlog."""

from __future__ import annotations

import gc
import time
from functools import partial
from typing import Any, Final

import confluent_kafka

import logtx

from ..clients import (
    CONNECT_TIMEOUT_S,
    CONSUMER,
    consumer_config,
    delete_topics,
    from_start,
    kafka_producer,
    logtx_producer,
    make_topic,
    shown,
)
from ..model import Better, Comparison, Context, Sample, Scenario

PARTITIONS: Final = 4
RECORDS: Final = {100: 600_000, 1_000: 200_000}
"""Number of records in the backlog, by their size in bytes. More make a round longer."""
PER_TRANSACTION: Final = 1_000
"""Records in a transaction."""
HEADERS: Final = [("TxId", b"0123456789abcdef")]
"""Headers of Kafka's records, so that both logs have the same payload."""
BATCH: Final = 1_000
"""Most records taken at once; with smaller batches each record costs more Python."""
GARBAGE: Final = (
    "the garbage collector is at its defaults: with batches of 1,000 it is a good part of what a "
    "record costs Kafka's reading thread, and with batches of 100 hardly wakes; logtx's pauses it "
    "where it can find nothing"
)


def read_all(consumer: Any, total: int, *, reads_all: bool) -> Sample:
    """Reads a backlog by poll() and consume(). Returns the rate, from the first record on.

    Args:
        consumer: of either kind, with the backlog assigned.
        total: how many records there are.
        reads_all: whether the application reads every value and header.
    """
    clock = time.perf_counter
    first = consumer.poll(CONNECT_TIMEOUT_S)
    if first is None:
        raise TimeoutError("no record came")
    started, got = clock(), 0
    while got < total - 1:
        # consume(n, t) would wait the whole of t for a full batch.
        message = consumer.poll(CONNECT_TIMEOUT_S)
        if message is None:
            raise TimeoutError(f"{got + 1} of {total} records came")
        batch = consumer.consume(BATCH - 1, 0)
        batch.append(message)
        if reads_all:
            for message in batch:
                message.value()
                message.headers()
        got += len(batch)
    seconds = clock() - started
    return Sample(got / seconds, {"records": float(got), "seconds": seconds})


class Reading:
    """Reads the topic from its start to its last record, with a new consumer in each round."""

    kind = ""
    reads_all = True

    def __init__(self, context: Context, size: int) -> None:
        self.context = context
        self.size = size

    def open(self) -> None:
        """Does nothing: every round has a consumer of its own."""

    def close(self) -> None:
        """Does nothing."""

    def connect(self, settings: dict[str, Any]) -> Any:
        raise NotImplementedError

    def read(self, consumer: Any, total: int) -> Sample:
        """Reads so many records."""
        return read_all(consumer, total, reads_all=self.reads_all)

    def measure(self) -> Sample:
        """Runs one round."""
        name = f"bench-{type(self).__name__}"
        consumer = self.connect(consumer_config(self.context.bootstrap_servers, name))
        try:
            consumer.assign(from_start(topic_of(self.kind, self.size), PARTITIONS))
            return self.read(consumer, total_of(self.context, self.size))
        finally:
            consumer.close()


class KafkaAll(Reading):
    """confluent-kafka; the application reads every value and header."""

    kind = "kafka"

    def connect(self, settings: dict[str, Any]) -> Any:
        """Returns a new consumer."""
        return confluent_kafka.Consumer(settings)


class KafkaNeither(KafkaAll):
    """confluent-kafka; the application reads neither values nor headers."""

    reads_all = False


class LogtxAll(Reading):
    """logtx; the application reads every value and header."""

    kind = "logtx"

    def connect(self, settings: dict[str, Any]) -> Any:
        """Returns a new consumer."""
        return logtx.Consumer(settings)


class LogtxNeither(LogtxAll):
    """logtx; the application reads neither values nor headers."""

    reads_all = False


def topic_of(kind: str, size: int) -> str:
    """Returns the topic that a kind of consumer reads."""
    return f"bench-read-{kind}-{size}"


def total_of(context: Context, size: int) -> int:
    """Returns how many records the backlog has."""
    return int(context.sized(RECORDS[size] / PER_TRANSACTION, 5)) * PER_TRANSACTION


def prepare(context: Context, size: int) -> None:
    """Writes the backlog of both kinds."""
    servers, transactions = context.bootstrap_servers, total_of(context, size) // PER_TRANSACTION
    value, topic = b"x" * size, topic_of("kafka", size)
    make_topic(servers, topic, PARTITIONS)
    kafka = kafka_producer(servers, "bench-read-fill")
    for number in range(transactions):
        kafka.begin_transaction()
        for _ in range(PER_TRANSACTION):
            kafka.produce(topic, value, partition=number % PARTITIONS, headers=list(HEADERS))
        kafka.poll(0)
        kafka.commit_transaction(CONNECT_TIMEOUT_S)
    topic = topic_of("logtx", size)
    make_topic(servers, topic, PARTITIONS)
    with logtx_producer(servers, "bench-read-fill") as producer:
        for number in range(transactions):
            transaction = producer.begin_transaction()
            for _ in range(PER_TRANSACTION):
                transaction.produce(topic, value, partition=number % PARTITIONS)
            transaction.commit(CONNECT_TIMEOUT_S)
    del kafka, producer, transaction
    # A closed producer is part of a reference cycle: its connections would outlive the broker.
    gc.collect()


def finish(context: Context, size: int) -> None:
    """Deletes it."""
    delete_topics(context.bootstrap_servers, [topic_of(kind, size) for kind in ("kafka", "logtx")])


def _scenario(size: int, label: str, target: float, *, quick: bool = False) -> Scenario:
    return Scenario(
        name=f"consumption-{size}",
        title=f"Committed consumption, records of {label}",
        unit="records/s",
        better=Better.HIGHER,
        method=(
            f"A new consumer a round reads a backlog of {RECORDS[size]:,} records of {label}, "
            f"committed in transactions of {PER_TRANSACTION:,}, from {PARTITIONS} partitions, by "
            f"poll() and consume({BATCH - 1}, 0). Kafka's records carry one header of 16 bytes, as "
            "logtx's carry their TxId: the same payload in both logs. Measured: records, over the "
            "time from the first record's delivery to the last's."
        ),
        settings=(shown(CONSUMER), GARBAGE),
        sides={
            "kafka": partial(KafkaAll, size=size),
            "logtx": partial(LogtxAll, size=size),
            "kafka-neither": partial(KafkaNeither, size=size),
            "logtx-neither": partial(LogtxNeither, size=size),
        },
        comparisons=(
            Comparison(
                title=f"read_committed, {label}, both read values and headers",
                kafka="kafka",
                logtx="logtx",
                target=target,
            ),
            Comparison(
                title=f"read_committed, {label}, neither reads them",
                kafka="kafka-neither",
                logtx="logtx-neither",
                target=1.0,
            ),
        ),
        prepare=partial(prepare, size=size),
        finish=partial(finish, size=size),
        quick=quick,
    )


CONSUMPTION_100B: Final = _scenario(100, "100 B", 1.5, quick=True)
CONSUMPTION_1KB: Final = _scenario(1_000, "1 KB", 1.2)
