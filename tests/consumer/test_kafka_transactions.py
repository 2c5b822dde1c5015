"""Topics that Kafka's own transactions write to, as well as those of logtx.

Finding 19 of the clients. librdkafka's mock and the log in memory have no Kafka transactions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from logtx.journal.logs.interface import Log

from .conftest import MakeConsumer
from .logs import Transactions, nothing_more, read, wait_for

MakeTopic = Callable[..., str]
pytestmark = pytest.mark.parametrize(
    "transport", [pytest.param("kafka", marks=pytest.mark.kafka)], indirect=True
)


@pytest.fixture
def native(log: Log, unique: Callable[[str], str]) -> Producer:
    """Kafka's own transactional producer."""
    producer: Any = log.producer({"transactional.id": unique("native"), "linger.ms": 0})
    producer.init_transactions(30)
    return producer


def write(native: Producer, topic: str, *values: bytes) -> None:
    """Writes records, in the transaction that is open."""
    for value in values:
        native.produce(topic, value, partition=0)
    native.flush(10)


def test_finding_19_aborted_records_of_kafka_are_hidden_if_asked_for(
    native: Producer, make_topic: MakeTopic, transactions: Transactions, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    for values, commit in (
        ((b"gone1", b"gone2"), False),
        ((b"stays",), True),
        ((b"gone3",), False),
    ):
        native.begin_transaction()
        write(native, topic, *values)
        transactions.transaction(topic, [b"ours of " + values[0]])
        (native.commit_transaction if commit else native.abort_transaction)(30)
    ours = [b"ours of gone1", b"ours of stays", b"ours of gone3"]
    for level, want in (
        ("read_uncommitted", [b"gone1", b"gone2", ours[0], b"stays", ours[1], b"gone3", ours[2]]),
        ("read_committed", [ours[0], b"stays", *ours[1:]]),
    ):
        consumer = make_consumer(kafka_isolation_level=level)
        consumer.assign([TopicPartition(topic, 0)])
        assert read(consumer, len(want)) == want
        assert nothing_more(consumer)


def test_finding_19_kafkas_open_transaction_holds_up_the_rest_of_its_partition(
    native: Producer, make_topic: MakeTopic, transactions: Transactions, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    native.begin_transaction()
    write(native, topic, b"native")
    transactions.transaction(topic, [b"ours"])
    default = make_consumer()
    default.assign([TopicPartition(topic, 0)])
    assert read(default, 2) == [b"native", b"ours"]
    consumer = make_consumer(kafka_isolation_level="read_committed")
    consumer.assign([TopicPartition(topic, 0)])
    assert nothing_more(consumer, 1)
    native.commit_transaction(30)
    assert read(consumer, 2) == [b"native", b"ours"]


def test_finding_19_what_is_not_shown_at_the_end_counts_as_read(
    native: Producer, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    native.begin_transaction()
    write(native, topic, b"gone")
    native.abort_transaction(30)
    consumer = make_consumer(kafka_isolation_level="read_committed")
    consumer.assign([TopicPartition(topic, 0)])
    wait_for(lambda: consumer.lag()[0].lag == 0, consumer)
    [place] = consumer.position([TopicPartition(topic, 0)])
    assert place.offset == 2
    consumer.commit(asynchronous=False)
    assert consumer.committed([TopicPartition(topic, 0)])[0].offset == 2
