"""Topics that are created anew under a consumer, and that librdkafka reads nothing of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from typing import Any, cast

import pytest
from confluent_kafka import TopicPartition as KafkaPartition

from logtx.consumer import successors
from logtx.consumer.consumer import Consumer
from logtx.consumer.successors import ASK_EVERY_S, Successors
from logtx.journal.control import TopicPartition
from logtx.journal.errors import BrokerError, LogtxError, TopicRecreatedError
from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.log import MemoryLog

from ..waiting import eventually

KEY = ("t", 0)


class Told:
    """A log that answers what it is told to."""

    def __init__(self) -> None:
        self.ids: dict[str, str] | LogtxError = {"t": "first"}
        self.ends: dict[TopicPartition, int | LogtxError] = {}
        self.asked_ends: list[TopicPartition] = []

    def topic_ids(self, topics: Sequence[str]) -> Mapping[str, str]:
        if isinstance(self.ids, LogtxError):
            raise self.ids
        return {topic: id_ for topic, id_ in self.ids.items() if topic in topics}

    def each_end_offset(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | LogtxError]:
        self.asked_ends += partitions
        return {key: self.ends.get(key, BrokerError("away")) for key in partitions}


class Watched:
    """`Successors` whose clock a test moves on."""

    def __init__(self) -> None:
        self.log = Told()
        self.successors = Successors(cast(Log, self.log))
        self.now_s = 0.0

    def look(self, *offsets: int, key: TopicPartition = KEY) -> bool:
        """Looks once with each offset; returns whether the last one was told to be stuck."""
        for offset in offsets:
            self.now_s += ASK_EVERY_S
            is_stuck = self.successors.look([(key, offset)], self.now_s) == [key]
            eventually(lambda: bool(self.successors._told))
        return is_stuck


@pytest.fixture
def watched() -> Watched:
    """One partition, at 5, of a topic that is known."""
    made = Watched()
    assert not made.look(5, 5, 5)
    return made


def test_trap_293_who_still_stands_a_while_after_another_id_was_told_is_stuck(
    watched: Watched,
) -> None:
    watched.log.ids, watched.log.ends = {"t": "second"}, {KEY: 9}
    assert not watched.look(5), "the answer is of before"
    assert not watched.look(5), "it is told for the first time"
    assert watched.look(5)
    assert watched.look(5), "it is told as long as it is so"


@pytest.mark.parametrize("end", [3, 0])
def test_an_end_below_would_be_told_out_of_range(watched: Watched, end: int) -> None:
    watched.log.ids, watched.log.ends = {"t": "second"}, {KEY: end}
    assert watched.look(5, 5, 5)


def test_who_reads_on_reads_the_new_one(watched: Watched) -> None:
    watched.log.ids, watched.log.ends = {"t": "second"}, {KEY: 9}
    assert not watched.look(5, 5, 7, 7, 7, 7)
    watched.log.ids = {"t": "third"}
    assert watched.look(7, 7, 7)


def test_who_read_the_former_one_up_to_when_it_was_told_is_stuck_too(watched: Watched) -> None:
    watched.log.ids, watched.log.ends = {"t": "second"}, {KEY: 2}
    assert not watched.look(5, 8)
    assert watched.look(8)


def test_who_stands_at_the_end_may_be_able_to_read(watched: Watched) -> None:
    watched.log.ids, watched.log.ends = {"t": "second"}, {KEY: 5}
    assert not watched.look(5, 5, 5, 5, 5)
    watched.log.ends = {KEY: 6}
    assert watched.look(5, 5)


@pytest.mark.parametrize("ids", [{"t": "first"}, {}, BrokerError("away")])
def test_a_broker_that_is_behind_or_away_proves_nothing(watched: Watched, ids: Any) -> None:
    watched.log.ids, watched.log.ends = {"t": "second"}, {KEY: 9}
    assert not watched.look(5, 5)
    watched.log.ids = ids
    assert not watched.look(5, 5) or not ids, "what was told before is looked at once"
    watched.log.ends = {}
    watched.log.ids = {"t": "second"}
    assert not watched.look(5, 5, 5), "nobody tells the end"


def test_a_topic_that_nobody_replaces_costs_one_question_now_and_then(watched: Watched) -> None:
    assert not watched.look(5, 5, 6, 6)
    assert watched.log.asked_ends == []
    asked = watched.successors._told
    watched.successors.look([(KEY, 6)], watched.now_s + ASK_EVERY_S / 2)
    assert watched.successors._told is asked


def test_what_is_assigned_anew_may_be_of_any_topic(watched: Watched) -> None:
    assert not watched.look(5, key=("other", 0))
    watched.log.ids, watched.log.ends = {"t": "second"}, {KEY: 9}
    assert not watched.look(5, 5, 5, 5)


def test_a_consumer_says_so_and_commits_no_place_in_the_new_topic(
    memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(successors, "ASK_EVERY_S", 0.3)
    memory_log.create_topic("t", partitions=1)
    memory_log.elect("t", 0)
    memory_log.append_directly("t", 0, b"1")
    settings = {"group.id": "g", "auto.offset.reset": "earliest", "pending.lookup.age.ms": 200}
    with closing(Consumer(settings, log=memory_log)) as consumer:
        consumer.assign([KafkaPartition("t", 0)])
        found: list[Any] = []
        eventually(lambda: bool(found.extend(consumer.consume(5, 0.1)) or found))
        known = consumer._reading._successors
        eventually(lambda: consumer.consume(1, 0.1) == [] and bool(known._known))
        memory_log.delete_topic("t")
        memory_log.create_topic("t", partitions=1)
        for value in (b"2", b"3"):
            memory_log.append_directly("t", 0, value)
        with pytest.raises(TopicRecreatedError, match="close this consumer"):
            consumer.consume(1, 20.0)
    with closing(Consumer(settings, log=memory_log)) as consumer:
        consumer.assign([KafkaPartition("t", 0)])
        assert [m.value() for m in consumer.consume(2, 10.0)] == [b"2", b"3"]
