"""Transactions of 10,000 records, and the plain idempotent producer beside them."""

from __future__ import annotations

import time
from typing import Any, Final

import confluent_kafka

import logtx

from ..clients import (
    BULK_TOPIC,
    CONNECT_TIMEOUT_S,
    PRODUCER,
    delete_topics,
    kafka_producer,
    logtx_producer,
    make_topic,
    shown,
)
from ..model import Better, Comparison, Context, Sample, Scenario

RECORDS: Final = 10_000
"""In a transaction."""
PARTITIONS: Final = 4
SECONDS: Final = 1.0
POLL_EVERY: Final = 1_000
WARM_UP_ROUNDS: Final = 2
_ROOM_S: Final = 0.01


def _topic(side: str, size: int) -> str:
    return f"bench-bulk-{side}-{size}"


class _Bulk:
    """Transactions of 10,000 records, one after another, for a fixed time."""

    size = 0
    side = ""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.value = b"x" * self.size
        self.topic = _topic(self.side, self.size)

    def measure(self) -> Sample:
        """Run one round."""
        clock = time.perf_counter
        transactions = 0
        started = clock()
        until = started + self.context.sized(SECONDS, 0.1)
        while clock() < until:
            self.transaction()
            transactions += 1
        rate = transactions * RECORDS / (clock() - started)
        notes = {"transactions": float(transactions), "MB/s": rate * self.size / 1e6}
        return Sample(rate, notes)

    def transaction(self) -> None:
        raise NotImplementedError


class _Plain(_Bulk):
    """confluent-kafka's idempotent producer: 10,000 records and a flush."""

    side = "idempotent"
    producer: confluent_kafka.Producer

    def open(self) -> None:
        """Connect."""
        self.producer = kafka_producer(self.context.bootstrap_servers, None)

    def close(self) -> None:
        """Nothing is open."""

    def transaction(self) -> None:
        """Write as many records as a transaction has, and wait for them."""
        self.send()
        if self.producer.flush(CONNECT_TIMEOUT_S):
            raise TimeoutError("records were not acknowledged")

    def send(self) -> None:
        """Write 10,000 records."""
        produce, poll = self.producer.produce, self.producer.poll
        topic, value = self.topic, self.value
        for number in range(RECORDS):
            while True:
                try:
                    produce(topic, value)
                    break
                except BufferError:
                    poll(_ROOM_S)
            if not number % POLL_EVERY:
                poll(0)


class _Kafka(_Plain):
    """Kafka's transactions."""

    side = "kafka"

    def open(self) -> None:
        """Connect."""
        name = f"bench-{type(self).__name__}"
        self.producer = kafka_producer(self.context.bootstrap_servers, name)

    def transaction(self) -> None:
        """begin, 10,000 records, commit."""
        self.producer.begin_transaction()
        self.send()
        self.producer.commit_transaction(CONNECT_TIMEOUT_S)


class _Logtx(_Bulk):
    """logtx's transactions."""

    side = "logtx"
    producer: logtx.Producer

    def open(self) -> None:
        """Connect."""
        name = f"bench-{type(self).__name__}"
        self.producer = logtx_producer(self.context.bootstrap_servers, name)

    def close(self) -> None:
        """Disconnect."""
        self.producer.close()

    def transaction(self) -> None:
        """begin, 10,000 records, commit. The producer makes room and polls by itself."""
        transaction = self.producer.begin_transaction()
        produce, topic, value = transaction.produce, self.topic, self.value
        for _ in range(RECORDS):
            produce(topic, value)
        transaction.commit(CONNECT_TIMEOUT_S)


class Kafka100(_Kafka):
    """100 bytes."""

    size = 100


class Kafka1000(_Kafka):
    """1,000 bytes."""

    size = 1_000


class Plain100(_Plain):
    """100 bytes."""

    size = 100


class Plain1000(_Plain):
    """1,000 bytes."""

    size = 1_000


class Logtx100(_Logtx):
    """100 bytes."""

    size = 100


class Logtx1000(_Logtx):
    """1,000 bytes."""

    size = 1_000


class _Topics:
    """Topics of one record size."""

    def __init__(self, size: int) -> None:
        self.names = [_topic(side, size) for side in ("kafka", "logtx", "idempotent")]

    def prepare(self, context: Context) -> None:
        """Create them."""
        for name in self.names:
            make_topic(context.bootstrap_servers, name, PARTITIONS, BULK_TOPIC)

    def finish(self, context: Context) -> None:
        """Delete them."""
        delete_topics(context.bootstrap_servers, self.names)


def _scenario(size: int, label: str, target: float, sides: dict[str, Any]) -> Scenario:
    topics = _Topics(size)
    return Scenario(
        name=f"bulk-{size}",
        title=f"Bulk transactions of 10,000 records of {label}",
        unit="records/s",
        better=Better.HIGHER,
        method=(
            f"One producer, transactions of 10,000 records of {label} one after another (begin, "
            "produce, commit), for 1 s a round, partitions chosen by librdkafka. The plain "
            "idempotent producer writes and flushes as many. Measured: records committed, over "
            "the time from the first begin to the last acknowledged commit."
        ),
        settings=(
            shown(PRODUCER),
            f"{PARTITIONS} partitions, no keys, no headers of the user",
            f"confluent-kafka's sides poll every {POLL_EVERY:,} records, no delivery callbacks",
        ),
        sides=sides,
        comparisons=(
            Comparison(
                title=f"10,000 records of {label}", kafka="kafka", logtx="logtx", target=target
            ),
            Comparison(
                title=f"the same beside the plain idempotent producer, {label}",
                kafka="idempotent",
                logtx="logtx",
            ),
        ),
        prepare=topics.prepare,
        finish=topics.finish,
        warm_up_rounds=WARM_UP_ROUNDS,
    )


BULK_1KB: Final = _scenario(
    1_000, "1 KB", 0.9, {"kafka": Kafka1000, "logtx": Logtx1000, "idempotent": Plain1000}
)
BULK_100B: Final = _scenario(
    100, "100 B", 0.7, {"kafka": Kafka100, "logtx": Logtx100, "idempotent": Plain100}
)
