"""The calls of `confluent_kafka.ShareConsumer`: programs move over by changing an import."""

from __future__ import annotations

import inspect
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from logtx.consumer.core.runs import GivenRun, Run
from logtx.consumer.share_consumer import ShareConsumer
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol.queues import AcknowledgeType
from logtx.journal.errors import (
    AckOutOfRangeError,
    ClosedError,
    ConcurrentUseError,
    CoordinatorNotAvailableError,
    NotHeldError,
    NotSubscribedError,
    UnknownTopicError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.spans import MessageId
from logtx.producer.producer import Producer

from ..waiting import eventually
from .test_share_consumer import Queues, coordinator, fill, producer, queues, take, values

__all__ = ["coordinator", "producer", "queues"]
MISSING = {"set_sasl_credentials"}
"""What `confluent_kafka.ShareConsumer` has, and ours has not: docs/queues.md says so."""


def test_every_call_is_there() -> None:
    theirs = {name for name in dir(confluent_kafka.ShareConsumer) if not name.startswith("_")}
    ours = {name for name in dir(ShareConsumer) if not name.startswith("_")}
    assert theirs - ours == MISSING
    named = inspect.signature(ShareConsumer.acknowledge_offset).parameters
    assert list(named)[1:5] == ["topic", "partition", "offset", "ack_type"]


# ---- types, and messages by their offsets -------------------------------------------------------


@pytest.mark.parametrize(
    ("ack_type", "comes_again"),
    [
        (confluent_kafka.AcknowledgeType.ACCEPT, False),
        (1, False),
        (AcknowledgeType.ACCEPT, False),
        (2, True),
        (confluent_kafka.AcknowledgeType.RELEASE, True),
        (3, False),
        (confluent_kafka.AcknowledgeType.REJECT, False),
    ],
)
def test_types_are_ours_theirs_and_numbers(
    queues: Queues, producer: Producer, ack_type: Any, comes_again: bool
) -> None:
    fill(producer, 1)
    queue = queues()
    (message,) = take(queue, 1)
    queue.acknowledge(message, ack_type)
    again = take(queue, 1, 5.0 if comes_again else 0.5)
    assert bool(again) is comes_again


def test_a_message_is_renewed_by_number(queues: Queues, producer: Producer) -> None:
    fill(producer, 1)
    queue = queues(**{"ack.timeout.ms": 800})
    (message,) = take(queue, 1)
    for _ in range(3):
        queue.acknowledge_offset("orders", 0, message.offset(), 4)
        assert queue.poll(0.5) == []
    queue.acknowledge(message)
    queue.commit_sync()


@pytest.mark.parametrize(
    ("ack_type", "error"),
    [(0, ValueError), (5, ValueError), (True, TypeError), ("accept", TypeError), (None, TypeError)],
)
def test_what_is_no_type_is_refused(
    queues: Queues, producer: Producer, ack_type: Any, error: type[Exception]
) -> None:
    fill(producer, 1)
    queue = queues()
    (message,) = take(queue, 1)
    for call in (
        lambda: queue.acknowledge(message, ack_type),
        lambda: queue.acknowledge_offset("orders", 0, 0, ack_type),
    ):
        with pytest.raises(error):
            call()
    assert queue.delivery_count(message) == 1, "it is held as before"


def test_a_message_is_acknowledged_by_its_offset(queues: Queues, producer: Producer) -> None:
    with producer.begin_transaction() as txn:
        for number in range(3):
            txn.produce("orders", b"%d" % number, partition=0)
    queue = queues()
    first, second, third = take(queue, 3)
    queue.acknowledge_offset("orders", 0, first.offset())
    queue.acknowledge_offset("orders", 0, second.offset(), AcknowledgeType.RELEASE, delay=0.2)
    txn = producer.begin_transaction()
    queue.acknowledge_offset("orders", 0, third.offset(), txn=txn)
    txn.commit()
    assert values(take(queue, 1)) == [b"1"]
    assert take(queue, 1, 0.5) == []
    with pytest.raises(NotHeldError, match=r"orders\[0\] at 3 is not held"):
        queue.acknowledge_offset("orders", 0, 3)  # a marker: what Kafka calls a gap
    for bad, error in ((("orders", -1, 0), ValueError), (("orders", 0, -1), ValueError)):
        with pytest.raises(error):
            queue.acknowledge_offset(*bad)
    for other in ((b"orders", 0, 0), ("orders", "0", 0), ("orders", 0, 0.0)):
        with pytest.raises(TypeError):
            queue.acknowledge_offset(*other)  # type: ignore[arg-type]


# ---- topics -------------------------------------------------------------------------------------


def test_topics_are_listed_and_replaced(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    memory_log.create_topic("returns", partitions=1)
    for topic in ("orders", "returns"):
        for number in range(4):
            producer.produce(topic, b"%s-%d" % (topic.encode(), number), partition=0)
    producer.flush()
    queue = queues()
    assert queue.subscription() == ["orders"]
    (first,) = queue.poll(10, max_records=1)
    assert first.value() == b"orders-0"
    queue.subscribe(["returns"])
    assert queue.subscription() == ["returns"]
    found = take(queue, 4)
    assert values(found) == [b"returns-%d" % n for n in range(4)]
    assert take(queue, 1, 0.5) == []
    queue.acknowledge(first)  # it is still its own
    assert set(queue.commit_sync().values()) == {None}
    queue.acknowledge_cumulative(found[-1])
    queue.subscribe(["orders", "returns"])
    rest = take(queue, 3)
    assert sorted(values(rest)) == [b"orders-%d" % n for n in (1, 2, 3)]
    assert {queue.delivery_count(m) for m in rest} == {1}, "nobody got them before"


def test_a_consumer_without_topics_gets_nothing_and_may_finish(
    queues: Queues, producer: Producer
) -> None:
    fill(producer, 3)
    queue, other = queues(), queues("orders")
    first, _, _ = take(queue, 3)
    queue.acknowledge(first)
    queue.unsubscribe()
    assert queue.subscription() == []
    with pytest.raises(NotSubscribedError, match="subscribe"):
        queue.poll(0)
    queue.release_all()
    assert set(queue.commit_sync().values()) == {None}
    assert sorted(values(take(other, 2))) == [b"1", b"2"]
    other.release_all()
    other.unsubscribe()
    other.commit_sync()
    queue.subscribe(["orders"])
    assert sorted(values(take(queue, 2))) == [b"1", b"2"]
    queue.subscribe([])
    assert queue.subscription() == []
    queue.close()
    for refused in (queue.unsubscribe, lambda: queue.subscribe(["orders"])):
        with pytest.raises(ClosedError, match="closed"):
            refused()


def test_a_topic_that_joins_later_begins_at_its_end(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    memory_log.create_topic("returns", partitions=1)
    producer.produce("returns", b"old", partition=0)
    producer.flush()
    queue = queues(**{"auto.offset.reset": "latest"})
    assert queue.poll(0.2) == []
    queue.subscribe(["orders", "returns"])
    assert queue.poll(0.5) == []
    producer.produce("returns", b"new", partition=0)
    producer.flush()
    assert values(take(queue, 1)) == [b"new"]
    with pytest.raises(UnknownTopicError):
        queue.subscribe(["nowhere"])
    assert queue.subscription() == ["orders", "returns"]


def test_what_is_no_list_of_topics_is_refused(queues: Queues) -> None:
    queue = queues()
    with pytest.raises(ValueError, match="max_records"):
        queue.poll(0, max_records=0)
    for bad in (["orders", "orders"], [""]):
        with pytest.raises(ValueError, match="there once"):
            queue.subscribe(bad)
    with pytest.raises(TypeError, match="list of names"):
        queue.subscribe("orders")
    assert queue.subscription() == ["orders"]


def test_who_could_not_subscribe_may_try_again(memory_log: MemoryLog) -> None:
    settings = {"group.id": "q", "coordinator.timeout.ms": 300}
    with ShareConsumer(settings, log=memory_log) as queue:
        for _ in range(2):
            with pytest.raises(CoordinatorNotAvailableError):
                queue.subscribe(["orders"])
            assert queue.subscription() == []
        queue.unsubscribe()


# ---- the callback of acknowledgements -----------------------------------------------------------


def test_a_callback_is_told_what_was_acknowledged(queues: Queues, producer: Producer) -> None:
    fill(producer, 3)
    fill(producer, 2, partition=1, first=3)
    queue = queues()
    told: list[tuple[dict[TopicPartition, set[int]], Exception | None]] = []
    queue.set_acknowledgement_commit_callback(lambda offsets, error: told.append((offsets, error)))
    for message in take(queue, 5):
        queue.acknowledge(message)
    queue.commit_async()
    assert told == []
    eventually(lambda: queue.poll(0) == [] and bool(told))
    p0, p1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
    assert told == [({p0: {0, 1, 2}, p1: {0, 1}}, None)]
    told.clear()
    fill(producer, 2, first=5)
    first, second = take(queue, 2)
    queue.acknowledge(first)
    queue.acknowledge(second, AcknowledgeType.REJECT)
    assert set(queue.commit_sync().values()) == {None}
    assert [(offsets[p0], error) for offsets, error in told] == [({3}, None), ({4}, None)]
    told.clear()
    fill(producer, 1, first=7)
    queue.acknowledge(take(queue, 1)[0])
    queue.close()
    assert [offsets for offsets, _ in told] == [{p0: {5}}]
    with pytest.raises(ClosedError):
        queue.set_acknowledgement_commit_callback(None)


def test_a_callback_is_told_errors_in_place_of_poll(
    queues: Queues, producer: Producer, coordinator: EmbeddedCoordinator
) -> None:
    fill(producer, 1)
    queue = queues()
    (message,) = take(queue, 1)
    told: list[Exception | None] = []
    queue.set_acknowledgement_commit_callback(lambda _, error: told.append(error))
    given = queue._work.holdings.look(("orders", 0, 0))
    assert given is not None
    run = Run("orders", 0, (given.record,), (0,), MessageId(999))
    beyond = GivenRun(given.partition, 1, 0, given.span.lo, run)
    queue._work.holdings._given["orders", 0][0] = beyond
    queue.acknowledge(message)
    eventually(lambda: queue.poll(0.1) == [] and bool(told))
    assert isinstance(told[0], AckOutOfRangeError)
    assert coordinator.address


def test_a_callback_may_not_poll_and_is_a_function(queues: Queues, producer: Producer) -> None:
    fill(producer, 2)
    queue = queues()
    with pytest.raises(TypeError, match="function"):
        queue.set_acknowledgement_commit_callback("no function")  # type: ignore[arg-type]
    seen: list[BaseException] = []

    def calls_back(*_: object) -> None:
        for call in (lambda: queue.poll(0), queue.commit_sync, queue.commit_async, queue.close):
            with pytest.raises(ConcurrentUseError) as refused:
                call()
            seen.append(refused.value)

    queue.set_acknowledgement_commit_callback(calls_back)
    first, second = take(queue, 2)
    queue.acknowledge(first)
    queue.commit_sync()
    assert len(seen) == 4
    queue.set_acknowledgement_commit_callback(None)
    queue.acknowledge(second)
    queue.commit_sync()
    assert len(seen) == 4


def test_what_a_callback_raises_is_raised_and_loses_nothing(
    queues: Queues, producer: Producer
) -> None:
    fill(producer, 3)
    queue = queues()

    def fails(*_: object) -> None:
        raise RuntimeError("mine")

    queue.set_acknowledgement_commit_callback(fails)
    first, second, third = take(queue, 3)
    queue.acknowledge(first)
    with pytest.raises(RuntimeError, match="mine"):
        queue.commit_sync()
    queue.acknowledge(second, AcknowledgeType.RELEASE)
    with pytest.raises(RuntimeError, match="mine"):
        queue.commit_sync()
    queue.set_acknowledgement_commit_callback(None)
    queue.acknowledge(third)
    assert values(take(queue, 1)) == [b"1"]
