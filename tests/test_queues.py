"""Queues over each transport: producers, a coordinator, and consumers that share the work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import logtx

from .test_end_to_end import MakeTopic, cluster, producer, servers

__all__ = ["cluster", "producer", "servers"]
TIMEOUT_S = 30.0
MakeQueue = Callable[..., logtx.ShareConsumer]


@pytest.fixture
def queue(cluster: Any, servers: Any, unique: Any) -> Iterator[MakeQueue]:
    """`queue(topic, …)` makes a consumer of the test's subscription."""
    made: list[logtx.ShareConsumer] = []
    group = unique("queue")
    assert cluster is not None

    def make(topic: str, **settings: Any) -> logtx.ShareConsumer:
        given = {"group.id": group, "auto.offset.reset": "earliest", **settings}
        given.setdefault("share.acknowledgement.mode", "explicit")
        consumer = logtx.ShareConsumer({**servers, **given})
        made.append(consumer)
        consumer.subscribe([topic])
        return consumer

    yield make
    for each in made:
        each.close()


def take(queue: logtx.ShareConsumer, count: int, timeout_s: float = TIMEOUT_S) -> list[Any]:
    found: list[Any] = []
    deadline_s = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline_s:
        found += queue.poll(0.2)
    return found


def values(messages: list[Any]) -> list[bytes]:
    return [message.value() for message in messages]


def test_plain_records_and_transactions_are_worked_off_once(
    producer: logtx.Producer, queue: MakeQueue, make_topic: MakeTopic
) -> None:
    topic, outputs = make_topic(), make_topic()
    for number in range(5):
        producer.produce(topic, b"%d" % number, partition=0)
    producer.flush()
    with producer.begin_transaction() as txn:
        for number in range(5, 10):
            txn.produce(topic, b"%d" % number, partition=0)
    aborted = producer.begin_transaction()
    aborted.produce(topic, b"never", partition=0)
    producer.flush()
    aborted.abort()
    one, other = queue(topic, **{"max.poll.records": 4}), queue(topic)
    found = take(one, 4)
    assert values(found) == [b"%d" % n for n in range(4)]
    rest = take(other, 6)
    assert values(rest) == [b"%d" % n for n in range(4, 10)]
    with producer.begin_transaction() as txn:
        txn.produce(outputs, b"out", partition=0)
        for message in found:
            one.acknowledge(message, txn=txn)
    failed = producer.begin_transaction()
    other.acknowledge_cumulative(rest[2], txn=failed)
    failed.abort()
    for message in rest[3:]:
        other.acknowledge(message)
    assert set(other.commit_sync().values()) == {None}
    one.close()
    other.close()
    again = take(queue(topic), 3)
    assert values(again) == [b"4", b"5", b"6"]
