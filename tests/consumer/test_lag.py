"""Where a consumer stands, what holds it back, and what is committed: on every transport."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Message, TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.consumer.lag import HeldBack, HeldBy
from logtx.journal.errors import ConfigError, ConsumerError, TornTransactionError
from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.state import State

from .conftest import MakeConsumer
from .logs import Transactions, nothing_more, read, wait_for

MakeTopic = Callable[..., str]


def only(consumer: Consumer) -> HeldBack:
    [held] = consumer.held_back()
    return held


def test_lag_counts_what_was_not_looked_at_and_not_what_is_pending(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic(partitions=2)
    hanging = transactions.begin()
    transactions.write(hanging, topic, [b"h1", b"h2"])
    transactions.transaction(topic, [b"a1", b"a2"])
    transactions.append(topic, [b"p1"])
    consumer = make_consumer()
    consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    first, empty = sorted(consumer.lag(), key=lambda each: each.partition)
    assert (first.end_offset, first.offset, first.lag, first.held) == (6, 0, 6, 0)
    assert (empty.end_offset, empty.lag) == (0, 0)
    # In the middle of the transaction o2 stays at its marker: the marker and p1 are the lag.
    assert read(consumer, 1) == [b"a1"]
    first = next(each for each in consumer.lag() if each.partition == 0)
    assert (first.offset, first.first_pending_offset, first.lag, first.held) == (4, 0, 2, 4)
    assert read(consumer, 2) == [b"a2", b"p1"]
    first = next(each for each in consumer.lag() if each.partition == 0)
    assert (first.lag, first.held) == (0, 6)
    transactions.mark(hanging, topic)
    assert read(consumer, 2) == [b"h1", b"h2"]
    first = next(each for each in consumer.lag() if each.partition == 0)
    assert (first.end_offset, first.lag, first.held) == (7, 0, 0)


def test_held_back_names_the_oldest_transaction_its_age_and_its_size(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    old, young = transactions.begin(), transactions.begin()
    transactions.append(topic, [b"p0"])
    transactions.write(old, topic, [b"x" * 1_000] * 3)
    transactions.write(young, topic, [b"y"])
    transactions.append(topic, [b"p1"])
    consumer = make_consumer()
    consumer.assign([TopicPartition(topic, 0)])
    assert consumer.held_back() == []
    read(consumer, 2)
    held = only(consumer)
    assert (held.topic, held.partition, held.offset) == (topic, 0, 1)
    assert (held.txid, held.held_by, held.records) == (old, HeldBy.MARKER, 3)
    assert 3_000 <= held.memory_bytes < 6_000
    assert (held.spilled_bytes, held.state) == (0, None)
    assert held.age_s is not None
    assert 0 <= held.age_s < 60
    told = json.loads(json.dumps(consumer.stats()))["held_back"]
    assert [(t["txid"], t["held_by"]) for t in told] == [(str(old), "marker")]
    transactions.mark(old, topic)
    read(consumer, 3)
    assert only(consumer).txid == young
    transactions.mark(young, topic, commit=False)
    transactions.append(topic, [b"p2"])
    read(consumer, 1)
    assert consumer.held_back() == []


def test_held_back_tells_what_is_on_disk(
    memory_log: MemoryLog, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    memory_log.create_topic("t", partitions=1)
    transactions = Transactions(memory_log)
    hanging = transactions.begin()
    transactions.write(hanging, "t", [b"x" * 100] * 2_000)
    transactions.append("t", [b"p"])
    config = {"group.id": unique("group"), "auto.offset.reset": "earliest"}
    config |= {"pending.memory.max.bytes": "1000", "pending.dir": str(tmp_path)}
    with Consumer(config, log=memory_log) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        read(consumer, 1)
        nothing_more(consumer, 0.05)  # this spills, which each read does first
        held = only(consumer)
        assert held.records == 2_000
        assert held.spilled_bytes == 200_000
        assert held.memory_bytes == 0
        assert held.age_s is not None


def test_held_back_tells_what_the_journal_says(
    memory_log: MemoryLog, unique: Callable[[str], str]
) -> None:
    memory_log.create_topic("t", partitions=1)
    written = Transactions(memory_log)
    written.with_journal()
    txid = written.begin()
    written.write(txid, "t", [b"x"])
    config = {"group.id": unique("group"), "auto.offset.reset": "earliest"}
    with Consumer({**config, "pending.lookup.age.ms": 20}, log=memory_log) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        wait_for(lambda: consumer.held_back() and only(consumer).state, consumer)
        assert only(consumer).state is State.OPEN
        written.decide(txid)
        wait_for(lambda: only(consumer).state is State.COMMITTING, consumer)
        seen_s = only(consumer).seen_s
        assert seen_s is None or seen_s >= 0


def test_held_back_by_a_delivery_and_by_an_error(
    memory_log: MemoryLog, unique: Callable[[str], str]
) -> None:
    memory_log.create_topic("t", partitions=1)
    transactions = Transactions(memory_log)
    transactions.transaction("t", [b"1", b"2"])
    torn = transactions.begin()
    transactions.write(torn, "t", [b"3", b"4"])
    transactions.mark(torn, "t")
    config = {"group.id": unique("group"), "torn.reset": "error"}
    with Consumer(config, log=memory_log) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        read(consumer, 1)
        assert only(consumer).held_by is HeldBy.DELIVERY
        assert only(consumer).offset == 0
    memory_log.delete_records("t", 0, 4)
    with Consumer(config, log=memory_log) as consumer:
        consumer.assign([TopicPartition("t", 0, 4)])
        with pytest.raises(TornTransactionError):
            read(consumer, 1)
        # The buffer keeps nothing of it, so it does not hold o1 below o2.
        assert consumer.held_back() == []
        assert consumer.lag()[0].lag == 1


def test_store_offsets_decides_what_auto_commit_commits(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer, log: Log
) -> None:
    topic = make_topic()
    transactions.transaction(topic, [b"a1", b"a2", b"a3"])
    consumer = make_consumer(enable_auto_offset_store=False, auto_commit_interval_ms=0)
    consumer.assign([TopicPartition(topic, 0)])
    messages = consumer.consume(3, 10)
    assert len(messages) == 3
    assert nothing_more(consumer, 0.1)
    assert log.group_offset(consumer.group_id, topic, 0) is None
    consumer.assign([TopicPartition(topic, 0)])
    messages = consumer.consume(3, 10)
    consumer.store_offsets(messages[1])
    consumer.close()
    again = make_consumer(group_id=consumer.group_id, enable_auto_offset_store=False)
    again.assign([TopicPartition(topic, 0)])
    assert read(again, 1) == [b"a3"]
    again.store_offsets(offsets=again.position([TopicPartition(topic, 0)]))
    again.commit(asynchronous=False)
    again.close()
    [place] = make_consumer(group_id=consumer.group_id).committed([TopicPartition(topic, 0)])
    assert place.offset == 4


def test_store_offsets_refuses_what_it_cannot_know(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    transactions.append(topic, [b"1", b"2"])
    place = TopicPartition(topic, 0)
    everything = make_consumer()
    with pytest.raises(ConfigError, match=r"enable\.auto\.offset\.store"):
        everything.store_offsets(offsets=[place])
    chooser = make_consumer(enable_auto_offset_store=False)
    chooser.assign([place])
    with pytest.raises(ConsumerError, match="delivered lately"):
        chooser.store_offsets(Message(topic=topic, partition=0, offset=1))
    with pytest.raises(KafkaException):
        chooser.store_offsets(offsets=[TopicPartition(topic, 1, 0)])
    with pytest.raises(ConfigError, match=r"offsets\.storage"):
        make_consumer(enable_auto_offset_store=False, offsets_storage="transactions")


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_partitions_are_assigned_and_taken_away_one_by_one(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer, strategy: str
) -> None:
    topic = make_topic(partitions=3)
    hanging = transactions.begin()
    transactions.write(hanging, topic, [b"h"], 0)
    for partition in range(3):
        transactions.append(topic, [b"a%d" % partition, b"b%d" % partition], partition=partition)
    consumer = make_consumer(partition_assignment_strategy=strategy)
    places = [TopicPartition(topic, n) for n in range(3)]
    consumer.incremental_assign(places[:1])
    assert read(consumer, 1) == [b"a0"]
    consumer.incremental_assign([TopicPartition(topic, 1, 1)])
    assert sorted(map(bytes, filter(None, read(consumer, 2)))) == [b"b0", b"b1"]
    assert consumer.stats()["pending_transactions"] == 1
    consumer.incremental_unassign(places[:1])
    assert consumer.assignment() == [places[1]]
    assert consumer.stats()["pending_transactions"] == 0, "dropped with its partition"
    consumer.incremental_assign([places[2], TopicPartition(topic, 1, 0)])
    found = read(consumer, 4)
    assert sorted(map(bytes, filter(None, found))) == [b"a1", b"a2", b"b1", b"b2"]
    with pytest.raises(KafkaException):
        consumer.incremental_unassign(places[:1])


def test_seek_with_the_metadata_of_a_position_goes_on_in_a_transactions_middle(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    hanging = transactions.begin()
    transactions.write(hanging, topic, [b"h"])
    transactions.transaction(topic, [b"a1", b"a2", b"a3"])
    transactions.mark(hanging, topic)
    transactions.append(topic, [b"p"])
    consumer = make_consumer()
    consumer.assign([TopicPartition(topic, 0)])
    assert read(consumer, 2) == [b"a1", b"a2"]
    [place] = consumer.position([TopicPartition(topic, 0)])
    assert place.offset == 4, "the marker's offset, while its transaction is delivered"
    assert read(consumer, 3) == [b"a3", b"h", b"p"]
    consumer.seek(place)
    assert read(consumer, 3) == [b"a3", b"h", b"p"]
    consumer.seek(TopicPartition(topic, 0, 5))
    assert read(consumer, 2) == [b"h", b"p"], "what ends at 5 or later"


def test_questions_about_the_log(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer, transport: str
) -> None:
    topic = make_topic()
    began_ms = int(time.time() * 1000)
    transactions.transaction(topic, [b"a", b"b"])
    consumer = make_consumer()
    place = TopicPartition(topic, 0)
    assert consumer.get_watermark_offsets(place) == (0, 3)
    assert topic in consumer.list_topics(topic).topics
    [none] = consumer.committed([place])
    assert none.offset < 0
    if transport not in ("mock", "native"):  # which knows start and end only
        later: Any = TopicPartition(topic, 0, began_ms + 3_600_000)
        earlier = TopicPartition(topic, 0, began_ms - 1_000)
        assert consumer.offsets_for_times([earlier])[0].offset == 0
        assert consumer.offsets_for_times([later])[0].offset < 0
