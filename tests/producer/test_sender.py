"""The undocumented order of arguments that the hot path relies on, and what happens without it."""

from __future__ import annotations

from collections import deque
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Message

from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.log import MemoryLog
from logtx.producer.core.tally import BranchTally, Floors
from logtx.producer.succession import positional

from ..conftest import MakeTopic
from .conftest import MakeProducer, ReadAll


def test_every_argument_arrives_in_its_place(
    log: Log, make_topic: MakeTopic, read_all: ReadAll
) -> None:
    topic = make_topic(partitions=2)
    producer = log.producer({"enable.idempotence": True})
    reports: list[tuple[object, int | None]] = []

    def on_delivery(error: object, message: Message) -> None:
        reports.append((error, message.partition()))

    send = positional(producer)
    send(topic, b"v", b"k", 1, on_delivery, None, 1_700_000_000_000, [("h", b"1")])
    send(topic, "text", None, 0, None, None, 0, None)
    assert producer.flush(10) == 0
    assert reports == [(None, 1)]
    second, first = read_all(topic, 2)
    assert (first.value(), first.key(), first.partition()) == (b"v", b"k", 1)
    assert first.timestamp()[1] == 1_700_000_000_000
    assert first.headers() == [("h", b"1")]
    assert (second.value(), second.key(), second.headers()) == (b"text", None, None)


def test_the_fast_way_is_taken_with_this_confluent_kafka(mock_cluster: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": mock_cluster})
    assert positional(producer) == producer.produce
    assert len(producer) == 0


def test_keywords_are_used_where_the_order_is_another(memory_log: MemoryLog) -> None:
    producer = memory_log.producer({})
    assert positional(producer) != producer.produce
    assert len(producer) == 0


class Reordered:
    """A producer of another version, whose arguments are ordered otherwise."""

    def __init__(self, refusal: type[Exception]) -> None:
        self.calls: list[dict[str, Any]] = []
        self._refusal = refusal

    def produce(self, *args: Any, **kwargs: Any) -> None:
        if len(args) > 4:
            raise self._refusal("not in this order")
        self.calls.append(kwargs)


@pytest.mark.parametrize(
    "refusal", [TypeError, ValueError, confluent_kafka.KafkaException], ids=lambda e: e.__name__
)
def test_another_order_is_noticed(refusal: type[Exception]) -> None:
    producer = Reordered(refusal)
    positional(producer)("t", b"v", None, -1, print, None, 5, [])  # type: ignore[arg-type]
    assert producer.calls == [{"on_delivery": print, "timestamp": 5, "headers": []}]


def test_a_count_that_raises_lets_no_other_wait(make_memory_producer: MakeProducer) -> None:
    producer = make_memory_producer()
    told: list[str] = []

    def count(name: str, error: Exception | None = None) -> Any:
        def counted(_error_of: object) -> None:
            told.append(name)
            if error is not None:
                raise error

        tally = SimpleNamespace(counted=counted)
        return SimpleNamespace(owner=lambda: tally)

    dropped = SimpleNamespace(owner=lambda: None)
    counts: Any = [count("first", MemoryError("none left")), dropped, count("second")]
    producer._engine.sender.thread._take(counts)
    assert told == ["first", "second"]
    with pytest.raises(MemoryError, match="none left"):
        producer.poll(0)


def test_who_waits_no_more_disturbs_no_round(make_memory_producer: MakeProducer) -> None:
    thread = make_memory_producer()._engine.sender.thread

    class Counted(deque[Any]):
        """One goes between the question for the number and the step that takes it."""

        def __len__(self) -> int:
            return super().__len__() + 1

    waits: SimpleQueue[None] = SimpleQueue()
    thread._waiting = Counted([waits])
    thread._tell_served(0)
    waits.get(timeout=1)


def test_branches_that_wait_for_long_keep_no_others(make_memory_producer: MakeProducer) -> None:
    sender = make_memory_producer()._engine.sender
    stuck = [BranchTally(number, Floors(), on_settled=id, on_failure=id) for number in range(40)]  # type: ignore[arg-type]
    for tally in stuck:
        tally.admit()
        sender.count(tally)
        sender.ended(tally)
    for number in range(1_000):
        tally = BranchTally(number, Floors(), on_settled=_nothing, on_failure=print)
        sender.count(tally)
        sender.ended(tally)
    assert len(sender._ended) < 2 * len(stuck)


def _nothing() -> None:
    """Is what nobody waits for."""
