"""What a consumer asks the brokers: again after an answer that passes, for as long as told."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.journal.logs.memory.consumer import MemoryConsumer
from logtx.journal.logs.memory.log import MemoryLog

from .conftest import MakeConsumer
from .logs import Transactions, read

MakeTopic = Callable[..., str]
PLACE = TopicPartition("t", 0)
PASSING = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError._TRANSPORT,
)
CALLS: dict[str, tuple[str, Callable[[Consumer], Any]]] = {
    "watermarks": ("get_watermark_offsets", lambda c: c.get_watermark_offsets(PLACE, 5)),
    "for ever": ("get_watermark_offsets", lambda c: c.get_watermark_offsets(PLACE, None)),
    "times": (
        "offsets_for_times",
        lambda c: [p.offset for p in c.offsets_for_times([TopicPartition("t", 0, 0)], 5)],
    ),
    "topics": ("list_topics", lambda c: sorted(c.list_topics("t", 5).topics)),
    "cluster": ("list_topics", lambda c: c.cluster_id(5)),
    "committed": ("committed", lambda c: [p.offset for p in c.committed([PLACE], 5)]),
}


@pytest.fixture
def consumer(memory_log: MemoryLog) -> Consumer:
    """A consumer of a topic with two records."""
    memory_log.create_topic("t", partitions=1)
    Transactions(memory_log).append("t", [b"a", b"b"])
    return Consumer({"group.id": "g", "auto.offset.reset": "earliest"}, log=memory_log)


def refuse(monkeypatch: pytest.MonkeyPatch, method: str, *codes: int) -> list[int]:
    """Makes the broker's first answers these errors. Returns what is left of them."""
    left = list(codes)
    original = getattr(MemoryConsumer, method)

    def call(*args: Any, **named: Any) -> Any:
        if left:
            raise KafkaException(KafkaError(left.pop(0)))
        return original(*args, **named)

    monkeypatch.setattr(MemoryConsumer, method, call)
    return left


@pytest.mark.parametrize("name", CALLS)
def test_an_answer_that_passes_is_no_answer(
    name: str, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, call = CALLS[name]
    expected = call(consumer)
    left = refuse(monkeypatch, method, *PASSING)
    assert call(consumer) == expected
    assert not left


@pytest.mark.parametrize("name", [name for name in CALLS if name != "committed"])
def test_other_refusals_and_the_end_of_the_time_are_raised(
    name: str, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, call = CALLS[name]
    refuse(monkeypatch, method, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        call(consumer)
    refuse(monkeypatch, "get_watermark_offsets", *[KafkaError._TRANSPORT] * 1_000)
    began_s = time.monotonic()
    with pytest.raises(KafkaException, match="_TRANSPORT"):
        consumer.get_watermark_offsets(PLACE, 0.3)
    assert 0.1 < time.monotonic() - began_s < 5


@pytest.mark.parametrize("error", [KafkaError.LEADER_NOT_AVAILABLE, None])
def test_a_partition_without_an_answer_is_asked_for_again(
    error: int | None, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([OFFSET_INVALID, 1])

    def answer(*_: Any) -> list[Any]:
        class Place:
            topic, partition, offset = "t", 0, next(answers)
            error = None

        if Place.offset == OFFSET_INVALID and error is not None:
            Place.error = KafkaError(error)  # type: ignore[assignment]
        return [Place]

    monkeypatch.setattr(MemoryConsumer, "offsets_for_times", answer)
    [place] = consumer.offsets_for_times([TopicPartition("t", 0, 5)], 5)
    assert place.offset == 1


def test_committed_keeps_to_its_time_out(memory_log: MemoryLog, consumer: Consumer) -> None:
    memory_log.unavailable()
    began_s = time.monotonic()
    with pytest.raises(KafkaException):
        consumer.committed([PLACE], timeout=0.2)
    assert time.monotonic() - began_s < 5
    memory_log.unavailable(False)


def test_the_cluster_has_an_id(make_consumer: MakeConsumer, log: Any) -> None:
    found = make_consumer().cluster_id(10)
    assert found == log.consumer({"group.id": "g"}).list_topics(timeout=10).cluster_id
    assert found or isinstance(log, MemoryLog)


def test_credentials_are_set(make_consumer: MakeConsumer) -> None:
    consumer = make_consumer()
    consumer.set_sasl_credentials("me", "secret")
    consumer.close()
    with pytest.raises(RuntimeError, match="closed"):
        consumer.set_sasl_credentials("me", "secret")


def test_a_subclass_that_does_not_call_our_init_refuses_every_call() -> None:
    class Careless(Consumer):
        def __init__(self) -> None:
            pass

    careless = Careless()
    calls: list[Callable[[], Any]] = [
        careless.poll,
        careless.consume,
        careless.unsubscribe,
        careless.unassign,
        careless.assignment,
        careless.commit,
        careless.cluster_id,
        careless.lag,
        lambda: next(careless.transactions()),
        lambda: careless.subscribe(["t"]),
        lambda: careless.committed([PLACE]),
        lambda: careless.get_watermark_offsets(PLACE),
    ]
    for call in calls:
        with pytest.raises(RuntimeError):
            call()
    careless.close()


def test_every_call_of_confluents_consumer_is_here() -> None:
    theirs = {name for name in dir(confluent_kafka.Consumer) if not name.startswith("_")}
    assert theirs <= set(dir(Consumer))


def test_only_what_is_assigned_is_paused(
    make_topic: MakeTopic, transactions: Transactions, make_consumer: MakeConsumer
) -> None:
    topic = make_topic(partitions=2)
    transactions.append(topic, [b"a", b"b"])
    consumer = make_consumer()
    here, elsewhere = TopicPartition(topic, 0), TopicPartition(topic, 1)
    consumer.assign([here])
    assert read(consumer, 1) == [b"a"]
    for call in (consumer.pause, consumer.resume):
        with pytest.raises(KafkaException, match="not assigned"):
            call([here, elsewhere])
    assert read(consumer, 1) == [b"b"]
