"""Consumes, transforms and produces: input offsets and output in one transaction, exactly once."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import confluent_kafka

import logtx

from ..clients import (
    CONNECT_TIMEOUT_S,
    CONSUMER,
    PRODUCER,
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
RECORDS: Final = 100
"""Input records in a transaction; each makes one output record."""
TRANSACTIONS: Final = 2_000
"""Transactions in the backlog: more than a round gets through."""
SECONDS: Final = 1.0
"""Length of a round."""
WARM_UP_ROUNDS: Final = 1
IN_FLIGHT: Final = 8
"""Transactions in flight of the pipelined side."""
VALUE: Final = b"x" * 100
KAFKA_TUNED: Final = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 10}
KINDS: Final = ("kafka", "logtx")


def _input(kind: str) -> str:
    return f"bench-transform-{kind}-in"


def _output(kind: str) -> str:
    return f"bench-transform-{kind}-out"


class _Transform:
    """A side whose rounds each read the input's backlog from its start, as a new consumer group."""

    kind = ""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.output = _output(self.kind)
        self.groups = itertools.count()
        self.name = f"bench-{type(self).__name__}"

    def measure(self) -> Sample:
        """Runs one round."""
        group = f"{self.name}-{next(self.groups)}"
        consumer = self.connect(consumer_config(self.context.bootstrap_servers, group))
        try:
            consumer.assign(from_start(_input(self.kind), PARTITIONS))
            return self._run(consumer)
        finally:
            consumer.close()

    def _run(self, consumer: Any) -> Sample:
        clock = time.perf_counter
        seconds, most = self.context.sized(SECONDS, 0.2), _transactions(self.context) - 1
        stop = threading.Event()
        started = until = 0.0
        done = -1
        for records in self.transactions(consumer, stop):
            done += 1
            if not done:
                # The group's first commit is not measured: it makes connections.
                started = clock()
                until = started + seconds
            elif records != RECORDS:
                raise TimeoutError("the input came to an end")
            if done >= most or clock() >= until:
                stop.set()
        rate = done / (clock() - started)
        return Sample(rate * RECORDS, {"transactions": float(done), "transactions/s": rate})

    def connect(self, settings: dict[str, Any]) -> Any:
        raise NotImplementedError

    def transactions(self, consumer: Any, stop: threading.Event) -> Iterator[int]:
        """Yields the number of records of each transaction until `stop`; then all are decided."""
        raise NotImplementedError


class Kafka(_Transform):
    """Kafka's side: the producer's transaction takes the consumer's offsets."""

    kind = "kafka"
    settings: Mapping[str, Any] = {}

    def open(self) -> None:
        """Connects the producer; every round has a consumer of its own."""
        servers = self.context.bootstrap_servers
        self.producer = kafka_producer(servers, self.name, self.settings)

    def close(self) -> None:
        """Does nothing."""

    def connect(self, settings: dict[str, Any]) -> Any:
        """Returns a new consumer."""
        return confluent_kafka.Consumer(settings)

    def transactions(self, consumer: Any, stop: threading.Event) -> Iterator[int]:
        """Begins, produces, sends offsets, commits."""
        producer = self.producer
        while not stop.is_set():
            batch = self._batch(consumer)
            producer.begin_transaction()
            for message in batch:
                producer.produce(self.output, message.value(), message.key())
            places = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(
                [place for place in places if place.offset >= 0],
                consumer.consumer_group_metadata(),
                CONNECT_TIMEOUT_S,
            )
            producer.commit_transaction(CONNECT_TIMEOUT_S)
            yield len(batch)

    def _batch(self, consumer: Any) -> list[Any]:
        batch: list[Any] = []
        while len(batch) < RECORDS:
            # consume(n, t) would wait the whole of t for a full batch.
            message = consumer.poll(CONNECT_TIMEOUT_S)
            if message is None:
                break
            batch.append(message)
            if len(batch) < RECORDS:
                batch += consumer.consume(RECORDS - len(batch), 0)
        return batch


class KafkaTuned(Kafka):
    """Kafka's side with a producer that repeats a refused request after 1 ms."""

    settings = KAFKA_TUNED


class Logtx(_Transform):
    """logtx's side, one transaction after another."""

    kind = "logtx"
    in_flight = 1

    def open(self) -> None:
        """Connects the producer; every round has a consumer of its own."""
        self.producer = logtx_producer(self.context.bootstrap_servers, self.name)

    def close(self) -> None:
        """Disconnects."""
        self.producer.close()

    def connect(self, settings: dict[str, Any]) -> Any:
        """Returns a new consumer whose positions are committed by transactions."""
        return logtx.Consumer({**settings, "offsets.storage": "transactions"})

    def transactions(self, consumer: Any, stop: threading.Event) -> Iterator[int]:
        """Runs logtx.process."""
        records = 0
        for block in logtx.process(
            consumer,
            self.producer,
            max_records=RECORDS,
            in_flight=self.in_flight,
            timeout=CONNECT_TIMEOUT_S,
            stop=stop,
        ):
            if records:
                yield records  # of the block before: the loop came back, so that one is committed
            for message in block:
                block.produce(self.output, message.value(), message.key())
            records = len(block)
        yield records


class LogtxPipelined(Logtx):
    """logtx's side, with several undecided transactions at a time."""

    in_flight = IN_FLIGHT


def _transactions(context: Context) -> int:
    return int(context.sized(TRANSACTIONS, 10))


def prepare(context: Context) -> None:
    """Creates topics, and fills the inputs with plain records on both sides."""
    servers = context.bootstrap_servers
    producer = kafka_producer(servers, None)
    for kind in KINDS:
        make_topic(servers, _input(kind), PARTITIONS)
        make_topic(servers, _output(kind), PARTITIONS)
        for number in range(_transactions(context) * RECORDS):
            producer.produce(_input(kind), VALUE, b"%d" % number, partition=number % PARTITIONS)
            if not number % 1_000:
                producer.flush(CONNECT_TIMEOUT_S)
        if producer.flush(CONNECT_TIMEOUT_S):
            raise TimeoutError("the input was not acknowledged")


def finish(context: Context) -> None:
    """Deletes the topics."""
    topics = [name(kind) for kind in KINDS for name in (_input, _output)]
    delete_topics(context.bootstrap_servers, topics)


TRANSFORM: Final = Scenario(
    name="transform",
    title="Consume, transform, produce",
    unit="records/s",
    better=Better.HIGHER,
    method=(
        f"A consumer and a producer in one process: transactions of {RECORDS} input records of "
        "100 bytes each, as many output records and the input's offsets, for "
        f"{SECONDS:g} s a round from a backlog in {PARTITIONS} partitions. Kafka's by "
        "send_offsets_to_transaction, one after another, for its producer has one at a time. "
        "librdkafka repeats a refused request after retry.backoff.ms, 100 by default; with 1 these "
        "transactions are several times as quick, so Kafka's is shown with both. "
        f"Logtx's by logtx.process, one after another, and {IN_FLIGHT} in flight. A round is a new "
        "consumer group, whose first transaction is not measured. Measured: input records of "
        "decided transactions, over the time from the first begin to the last acknowledged commit."
    ),
    settings=(shown(PRODUCER), shown(CONSUMER)),
    sides={
        "kafka": Kafka,
        "logtx": Logtx,
        "kafka-tuned": KafkaTuned,
        "logtx-pipelined": LogtxPipelined,
    },
    comparisons=(
        Comparison(
            title=f"consume-transform-produce, {RECORDS} records, one after another",
            kafka="kafka",
            logtx="logtx",
            target=5,
        ),
        Comparison(
            title=f"the same, {IN_FLIGHT} in flight", kafka="kafka", logtx="logtx-pipelined"
        ),
        Comparison(
            title=f"the same, one after another; Kafka's with {shown(KAFKA_TUNED)}",
            kafka="kafka-tuned",
            logtx="logtx",
        ),
    ),
    prepare=prepare,
    finish=finish,
    warm_up_rounds=WARM_UP_ROUNDS,
    quick=True,
)
