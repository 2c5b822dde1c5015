"""Reading committed records from a backlog."""

from __future__ import annotations

import gc
import time
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

TOPICS: Final = {"kafka": "bench-read-kafka", "logtx": "bench-read-logtx"}
PARTITIONS: Final = 4
RECORDS: Final = 800_000
PER_TRANSACTION: Final = 1_000
VALUE: Final = b"x" * 100
HEADERS: Final = [("TxId", b"0123456789abcdef")]
"""What Kafka's records carry, so that both logs have the same payload."""
BATCH: Final = 1_000
GARBAGE: Final = (
    "the garbage collector is at its defaults: Kafka's reading thread takes 580 ns of CPU a record "
    "with batches of 1,000, and 330 ns with batches of 100, which hardly wake it; logtx's takes "
    "710 ns with either"
)


class _Reading:
    """Reads the topic from its start to its last record with a new consumer, once a round."""

    topic = ""
    reads_all = True

    def __init__(self, context: Context) -> None:
        self.context = context
        self.consumer: Any = None

    def open(self) -> None:
        """Every round has a consumer of its own."""

    def close(self) -> None:
        """Nothing is open."""

    def connect(self) -> Any:
        raise NotImplementedError

    def measure(self) -> Sample:
        """Run one round."""
        consumer = self.connect()
        try:
            consumer.assign(from_start(self.topic, PARTITIONS))
            return self._read(consumer, _total(self.context))
        finally:
            consumer.close()

    def _read(self, consumer: Any, total: int) -> Sample:
        clock, reads_all = time.perf_counter, self.reads_all
        first = consumer.poll(CONNECT_TIMEOUT_S)
        if first is None:
            raise TimeoutError("no record came")
        started, got = clock(), 0
        while got < total - 1:
            # consume(n, t) would wait all of t for a full batch.
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


class KafkaAll(_Reading):
    """confluent-kafka, every value and header read."""

    topic = TOPICS["kafka"]

    def connect(self) -> Any:
        """A new consumer."""
        name = f"bench-{type(self).__name__}"
        return confluent_kafka.Consumer(consumer_config(self.context.bootstrap_servers, name))


class KafkaNeither(KafkaAll):
    """confluent-kafka, neither read."""

    reads_all = False


class LogtxAll(_Reading):
    """logtx, every value and header read."""

    topic = TOPICS["logtx"]

    def connect(self) -> Any:
        """A new consumer."""
        name = f"bench-{type(self).__name__}"
        return logtx.Consumer(consumer_config(self.context.bootstrap_servers, name))


class LogtxNeither(LogtxAll):
    """logtx, neither read by the application."""

    reads_all = False


def _total(context: Context) -> int:
    return int(context.sized(RECORDS / PER_TRANSACTION, 5)) * PER_TRANSACTION


def prepare(context: Context) -> None:
    """Write the same payload in transactions of each kind."""
    servers, transactions = context.bootstrap_servers, _total(context) // PER_TRANSACTION
    for topic in TOPICS.values():
        make_topic(servers, topic, PARTITIONS)
    kafka = kafka_producer(servers, "bench-read-fill")
    for number in range(transactions):
        kafka.begin_transaction()
        for _ in range(PER_TRANSACTION):
            kafka.produce(
                TOPICS["kafka"], VALUE, partition=number % PARTITIONS, headers=list(HEADERS)
            )
        kafka.poll(0)
        kafka.commit_transaction(CONNECT_TIMEOUT_S)
    with logtx_producer(servers, "bench-read-fill") as producer:
        for number in range(transactions):
            transaction = producer.begin_transaction()
            for _ in range(PER_TRANSACTION):
                transaction.produce(TOPICS["logtx"], VALUE, partition=number % PARTITIONS)
            transaction.commit(CONNECT_TIMEOUT_S)
    del kafka, producer, transaction
    # A closed producer is part of a cycle: its connections would outlive the broker.
    gc.collect()


def finish(context: Context) -> None:
    """Delete both topics."""
    delete_topics(context.bootstrap_servers, list(TOPICS.values()))


CONSUMPTION: Final = Scenario(
    name="consumption",
    title="Committed consumption",
    unit="records/s",
    better=Better.HIGHER,
    method=(
        f"A new consumer a round reads a backlog of {RECORDS:,} records of 100 bytes, committed in "
        f"transactions of {PER_TRANSACTION:,}, from {PARTITIONS} partitions, by poll() and "
        f"consume({BATCH - 1}, 0). Kafka's records carry one header of 16 bytes, as logtx's carry "
        "their TxId: the same payload in both logs. Measured: records, over the time from the "
        "first record's delivery to the last's."
    ),
    settings=(
        shown(CONSUMER),
        GARBAGE,
    ),
    sides={
        "kafka": KafkaAll,
        "logtx": LogtxAll,
        "kafka-neither": KafkaNeither,
        "logtx-neither": LogtxNeither,
    },
    comparisons=(
        Comparison(
            title="read_committed, both read values and headers",
            kafka="kafka",
            logtx="logtx",
            target=0.8,
        ),
        Comparison(
            title="read_committed, neither reads them",
            kafka="kafka-neither",
            logtx="logtx-neither",
            target=0.4,
        ),
    ),
    prepare=prepare,
    finish=finish,
)
