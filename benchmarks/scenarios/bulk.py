"""Transactions of many records, and the plain idempotent producer beside them."""

from __future__ import annotations

import time
from functools import partial
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
from ..model import Better, Comparison, Context, Curve, Picture, Point, Sample, Scenario

RECORDS: Final = 10_000
"""Records in a transaction of the main scenarios."""
SIZES: Final[dict[int, str]] = {100: "100 B", 1_000: "1 KB", 10_000: "10 KB"}
COUNTS: Final = (10, 100, 1_000)
"""Records in a transaction of the other scenarios."""
PARTITIONS: Final = 4
SECONDS: Final = 1.0
"""Length of a round."""
POLL_EVERY: Final = 1_000
"""Records between two polls of confluent-kafka's producer; more polls only cost time."""
WARM_UP_ROUNDS: Final = 1
KINDS: Final = ("kafka", "logtx", "idempotent")
_ROOM_S: Final = 0.01
"""Longest wait for room in a full queue before the next try."""


def _topic(kind: str, size: int) -> str:
    return f"bench-bulk-{kind}-{size}"


class _Bulk:
    """Runs transactions of a fixed size, one after another, for a fixed time."""

    kind = ""

    def __init__(self, context: Context, size: int, records: int) -> None:
        """Keeps the parameters; `open` connects.

        Args:
            context: of the run.
            size: bytes of a record's value.
            records: records in a transaction.
        """
        self.context = context
        self.size, self.records = size, records
        self.value = b"x" * size
        self.topic = _topic(self.kind, size)
        self.name = f"bench-bulk-{self.kind}-{size}x{records}"

    def measure(self) -> Sample:
        """Runs one round."""
        clock = time.perf_counter
        transactions = 0
        started = clock()
        until = started + self.context.sized(SECONDS, 0.1)
        while clock() < until:
            self.transaction()
            transactions += 1
        rate = transactions * self.records / (clock() - started)
        notes = {"transactions": float(transactions), "MB/s": rate * self.size / 1e6}
        return Sample(rate, notes)

    def transaction(self) -> None:
        raise NotImplementedError


class Plain(_Bulk):
    """confluent-kafka's idempotent producer: the same number of records, and a flush."""

    kind = "idempotent"
    producer: confluent_kafka.Producer

    def open(self) -> None:
        """Connects."""
        self.producer = kafka_producer(self.context.bootstrap_servers, None)

    def close(self) -> None:
        """Does nothing."""

    def transaction(self) -> None:
        """Writes the records of one transaction, and waits until they are acknowledged."""
        self.send()
        if self.producer.flush(CONNECT_TIMEOUT_S):
            raise TimeoutError("records were not acknowledged")

    def send(self) -> None:
        """Writes the records; waits for room where the queue is full."""
        produce, poll = self.producer.produce, self.producer.poll
        topic, value = self.topic, self.value
        for number in range(self.records):
            while True:
                try:
                    produce(topic, value)
                    break
                except BufferError:
                    poll(_ROOM_S)
            if not number % POLL_EVERY:
                poll(0)


class Kafka(Plain):
    """Kafka's transactions."""

    kind = "kafka"

    def open(self) -> None:
        """Connects."""
        self.producer = kafka_producer(self.context.bootstrap_servers, self.name)

    def transaction(self) -> None:
        """Begins, writes the records, commits."""
        self.producer.begin_transaction()
        self.send()
        self.producer.commit_transaction(CONNECT_TIMEOUT_S)


class Logtx(_Bulk):
    """logtx's transactions."""

    kind = "logtx"
    producer: logtx.Producer

    def open(self) -> None:
        """Connects."""
        self.producer = logtx_producer(self.context.bootstrap_servers, self.name)

    def close(self) -> None:
        """Disconnects."""
        self.producer.close()

    def transaction(self) -> None:
        """Begins, writes the records, commits. The producer makes room and polls by itself."""
        transaction = self.producer.begin_transaction()
        produce, topic, value = transaction.produce, self.topic, self.value
        for _ in range(self.records):
            produce(topic, value)
        transaction.commit(CONNECT_TIMEOUT_S)


_MAKE: Final[dict[str, Any]] = {"kafka": Kafka, "logtx": Logtx, "idempotent": Plain}
_SETTINGS: Final = (
    shown(PRODUCER),
    f"{PARTITIONS} partitions, no keys, no headers of the user",
    f"confluent-kafka's sides poll every {POLL_EVERY:,} records, no delivery callbacks",
)


def _prepare(context: Context, size: int) -> None:
    for kind in KINDS:
        make_topic(context.bootstrap_servers, _topic(kind, size), PARTITIONS, BULK_TOPIC)


def _finish(context: Context, size: int) -> None:
    delete_topics(context.bootstrap_servers, [_topic(kind, size) for kind in KINDS])


def _large(size: int, target: float) -> Scenario:
    label = SIZES[size]
    return Scenario(
        name=f"bulk-{size}",
        title=f"Bulk transactions of {RECORDS:,} records of {label}",
        unit="records/s",
        better=Better.HIGHER,
        method=(
            f"One producer, transactions of {RECORDS:,} records of {label} one after another "
            "(begin, produce, commit), for some seconds a round, partitions chosen by librdkafka. "
            "The plain idempotent producer writes and flushes as many. Measured: records "
            "committed, over the time from the first begin to the last acknowledged commit."
        ),
        settings=_SETTINGS,
        sides={kind: partial(make, size=size, records=RECORDS) for kind, make in _MAKE.items()},
        comparisons=(
            Comparison(
                title=f"{RECORDS:,} records of {label}",
                kafka="kafka",
                logtx="logtx",
                target=target,
            ),
            Comparison(
                title=f"the same beside the plain idempotent producer, {label}",
                kafka="idempotent",
                logtx="logtx",
                target=0.8,
            ),
        ),
        prepare=partial(_prepare, size=size),
        finish=partial(_finish, size=size),
        warm_up_rounds=WARM_UP_ROUNDS,
        quick=True,
    )


def _by_count(size: int) -> Scenario:
    label = SIZES[size]
    return Scenario(
        name=f"bulk-sizes-{size}",
        title=f"Bulk transactions of {label} a record, by their size",
        unit="records/s",
        better=Better.HIGHER,
        method=(
            f"The same in transactions of {', '.join(f'{n:,}' for n in COUNTS)} records of {label} "
            "one after another. The plain idempotent producer flushes behind as many."
        ),
        settings=_SETTINGS,
        sides={
            f"{kind}-{count}": partial(make, size=size, records=count)
            for count in COUNTS
            for kind, make in _MAKE.items()
        },
        comparisons=tuple(
            line
            for count in COUNTS
            for line in (
                Comparison(
                    title=f"{count:,} records of {label}",
                    kafka=f"kafka-{count}",
                    logtx=f"logtx-{count}",
                ),
                Comparison(
                    title=f"the same beside the plain idempotent producer, {count:,} of {label}",
                    kafka=f"idempotent-{count}",
                    logtx=f"logtx-{count}",
                ),
            )
        ),
        prepare=partial(_prepare, size=size),
        finish=partial(_finish, size=size),
        warm_up_rounds=WARM_UP_ROUNDS,
        picture=Picture(
            x=f"records of {label} in a transaction",
            y="records/s",
            curves=[
                Curve(title, [Point(count, f"{kind}-{count}") for count in COUNTS])
                for kind, title in (
                    ("kafka", "Kafka's transactions"),
                    ("logtx", "logtx"),
                    ("idempotent", "plain idempotent producer"),
                )
            ],
        ),
    )


BULK_1KB: Final = _large(1_000, 1.0)
BULK_100B: Final = _large(100, 1.2)
BULK_SIZES: Final = tuple(_by_count(size) for size in SIZES)
