"""Where a consumer of ranges stands, and when it assigns."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from logtx.consumer.range_reader.staying import Staying


class Scripted:
    """A consumer that returns what it is told to."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.assigned: list[tuple[str, int, int]] = []
        self.batches: list[list[Message] | Exception] = []

    def assign(self, partitions: list[KafkaPartition]) -> None:
        self.assigned += [(p.topic, p.partition, p.offset) for p in partitions]

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:  # noqa: ARG002
        batch = self.batches.pop(0)
        if isinstance(batch, Exception):
            raise batch
        return batch

    def open(self) -> Scripted:
        self.opened += 1
        return self

    def close(self) -> None:
        self.closed += 1


def record(offset: int) -> Message:
    return Message(topic="a", partition=0, offset=offset, value=b"")


def event(code: int, offset: int = 0, topic: str = "a") -> Message:
    return Message(topic=topic, partition=0, offset=offset, value=b"", error=KafkaError(code))


EOF = KafkaError._PARTITION_EOF
START = ("a", 0, 10)


def stands(*batches: Any, topic_id: str = "id", then: str = "id") -> tuple[Staying, Scripted]:
    """Returns a consumer that was assigned at 10 and has given out batches."""
    scripted = Scripted()
    scripted.batches += batches
    staying = Staying(scripted.open)
    staying.begin("a", topic_id)
    staying.assign([KafkaPartition(*START)])
    for batch in batches:
        if isinstance(batch, Exception):
            with pytest.raises(type(batch)):
                staying.consume(5, 0.1)
        else:
            assert staying.consume(5, 0.1) == batch
    staying.begin("a", then)
    assert scripted.assigned == [START]
    return staying, scripted


@pytest.mark.parametrize(
    ("batches", "offset"),
    [
        ((), 10),
        (([],), 10),
        (([record(10), record(11)],), 12),
        (([record(10)], [], [record(13)], []), 14),
        (([event(EOF, 10), record(10)],), 11),
        (([record(10), event(EOF, 11)],), 11),
        (([event(EOF, 12)],), 12),
        (([event(KafkaError._ALL_BROKERS_DOWN, topic="b")], [record(10)]), 11),
    ],
)
def test_where_it_stands_nothing_is_assigned_and_elsewhere_it_is(batches: Any, offset: int) -> None:
    staying, scripted = stands(*batches)
    staying.assign([KafkaPartition("a", 0, offset)])
    assert scripted.assigned == [START]
    for place in (("a", 0, offset - 1), ("a", 0, offset + 1), ("a", 1, offset), ("b", 0, offset)):
        staying, scripted = stands(*batches)
        staying.assign([KafkaPartition(*place)])
        assert scripted.assigned == [START, place]
        staying.assign([KafkaPartition(*place)])
        assert scripted.assigned == [START, place], "it stands there now"


def test_trap_199_below_an_end_that_was_told_it_does_not_stay() -> None:
    """Nothing would come of what holds no records up to there: the end is told once."""
    staying, scripted = stands([record(10), event(EOF, 13)])
    staying.assign([KafkaPartition("a", 0, 11)])
    assert scripted.assigned == [START, ("a", 0, 11)]


@pytest.mark.parametrize(
    "last",
    [
        [record(10), event(KafkaError._AUTO_OFFSET_RESET, 11)],
        [record(10), event(KafkaError._ALL_BROKERS_DOWN, topic="b")],
        [record(10), event(EOF, 11, topic="b")],
        KafkaException(KafkaError(KafkaError._FATAL)),
    ],
)
def test_behind_what_may_have_stopped_it_it_stands_nowhere(last: Any) -> None:
    for offset in (10, 11):
        staying, scripted = stands(last)
        staying.assign([KafkaPartition("a", 0, offset)])
        assert scripted.assigned == [START, ("a", 0, offset)]


def test_what_was_fetched_of_a_topic_is_not_given_out_of_its_successor() -> None:
    staying, scripted = stands([record(10)], then="another")
    staying.assign([KafkaPartition("a", 0, 11)])
    assert scripted.assigned == [START, ("a", 0, 11)]


def test_trap_293_a_successor_is_read_by_another_client() -> None:
    staying, scripted = stands([record(10)])
    staying.begin("b", "id-b")
    staying.begin("a", "id")
    staying.assign([KafkaPartition("a", 0, 0)])
    assert (scripted.opened, scripted.closed) == (1, 0), "the topics are those it knows"
    staying.begin("a", "another")
    assert scripted.closed == 0, "to close it may take long"
    for offset in (0, 5):
        staying.assign([KafkaPartition("a", 0, offset)])
        assert (scripted.opened, scripted.closed) == (2, 1)
    staying.begin("b", "another-b")
    staying.assign([KafkaPartition("b", 0, 0)])
    assert (scripted.opened, scripted.closed) == (2, 1), "that client never knew the former one"
    staying.close()
    assert scripted.closed == 2


def test_who_failed_to_read_assigns() -> None:
    staying, scripted = stands([record(10)])
    staying.leave()
    staying.assign([KafkaPartition("a", 0, 11)])
    assert scripted.assigned == [START, ("a", 0, 11)]
