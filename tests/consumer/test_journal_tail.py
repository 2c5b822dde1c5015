"""A serializable consumer and the journal: what it waits for, and what it keeps.

Findings 14, 15 and 21 of the clients.
"""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from logtx.consumer import journal_tail
from logtx.consumer.consumer import Consumer
from logtx.journal import follower
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.txid import TxId

from .conftest import MakeConsumer
from .logs import Transactions, nothing_more, read

pytestmark = pytest.mark.usefixtures("quick_looks")


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """A log in memory, so that each test has a journal of its own."""
    memory_log.create_topic("t", partitions=2)
    return memory_log


@pytest.fixture
def few_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets 20 decisions wait."""
    monkeypatch.setattr(journal_tail, "DECISIONS_MAX", 20)
    monkeypatch.setattr(follower, "BATCH_MAX", 5)


def before_the_start(written: Transactions) -> TxId:
    """Decides a transaction that has its marker in partition 0, and is not finished."""
    txid = written.begin()
    written.write(txid, "t", [b"before"])
    written.mark(txid, "t")
    return txid


def assign_behind(consumer: Consumer, log: MemoryLog) -> None:
    """Assigns partition 0 from its end on, where no marker comes, and all of partition 1."""
    consumer.assign([TopicPartition("t", 0, log.end_offset("t", 0)), TopicPartition("t", 1, 0)])


@pytest.mark.usefixtures("few_decisions")
@pytest.mark.parametrize("finished_before", [True, False])
def test_finding_14_a_decision_is_passed_however_late_the_journal_says_finished(
    finished_before: bool, written: Transactions, log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    first = before_the_start(written)
    second = before_the_start(written)
    values = [b"%d" % number for number in range(100)]
    consumer = make_consumer(isolation_level="serializable")
    assign_behind(consumer, log)
    if finished_before:
        written.finish(first)
    for value in values[:60]:
        written.finish(written.transaction("t", [value], 1))
    if not finished_before:
        assert nothing_more(consumer)
        written.finish(first)
        assert nothing_more(consumer)
    for value in values[60:]:
        written.finish(written.transaction("t", [value], 1))
    written.finish(second)
    assert read(consumer, 100) == values
    assert nothing_more(consumer)


@pytest.mark.usefixtures("few_decisions")
def test_finding_14_what_waits_stays_bounded(
    written: Transactions, log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    before_the_start(written)
    consumer = make_consumer(isolation_level="serializable")
    assign_behind(consumer, log)
    for number in range(100):
        written.finish(written.transaction("t", [b"%d" % number], 1))
    assert nothing_more(consumer)
    serial = consumer._delivery.serial
    assert serial is not None
    # It reads to the journal's end all the same.
    end = log.end_offset("__transaction_control", 0)
    deadline_s = time.monotonic() + 20
    while (follows := serial._tail._follower) is None or follows.next_offsets[0] < end:
        assert nothing_more(consumer)
        assert time.monotonic() < deadline_s
    assert 20 <= len(serial._order) <= 25


def test_a_quiet_partition_stays_at_its_start_until_all_from_before_is_passed(
    written: Transactions, log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    first = before_the_start(written)
    consumer = make_consumer(isolation_level="serializable")
    assign_behind(consumer, log)
    start = log.end_offset("t", 0)
    written.append("t", [b"plain"] * 3)
    written.finish(written.transaction("t", [b"a"], 1))
    assert nothing_more(consumer)
    buffer = consumer._reading.assigned["t", 0].buffer
    assert (buffer.next_offset, buffer.position().o2) == (start + 3, start)
    written.finish(first)
    assert read(consumer, 1) == [b"a"]
    assert nothing_more(consumer)
    assert buffer.position().o2 == start + 3
    assert buffer.position().met, "its next life must know that, too"


def test_finding_15_what_is_finished_after_its_delivery_is_not_kept(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    consumer = make_consumer(isolation_level="serializable")
    consumer.assign([TopicPartition("t", 0)])
    for number in range(30):
        txid = written.transaction("t", [b"%d" % number])
        read(consumer, 1)
        written.finish(txid)
    assert nothing_more(consumer)
    assert consumer._delivery.serial is not None
    assert not consumer._delivery.serial._order._finished
    assert not consumer._delivery.serial._tail._waiting


@pytest.mark.parametrize("isolation", ["read_committed", "serializable"])
def test_finding_21_events_of_kafka_come_one_by_one(
    isolation: str, written: Transactions, make_consumer: MakeConsumer
) -> None:
    written.transaction("t", [b"a"])
    consumer = make_consumer(isolation_level=isolation)
    consumer.assign([TopicPartition("t", 0)])
    codes = [KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._TRANSPORT]
    for code in codes:
        event = Message(topic=None, partition=-1, offset=-1, error=KafkaError(code))
        consumer._reading._events.append(event)
    found = []
    while len(found) < 3:
        message = consumer.poll(1)
        assert message is not None
        error = message.error()
        assert error is not None
        found.append(error.code())
    assert found == codes
    assert read(consumer, 1) == [b"a"]


def test_finding_21_transactions_wait_while_one_of_their_partitions_is_paused(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    places = [TopicPartition("t", 0), TopicPartition("t", 1)]
    consumer = make_consumer()
    consumer.assign(places)
    written.transaction("t", [b"a"], 0)
    found = [[m.value() for m in t.records] for t in consumer.transactions(0.5)]
    assert found == [[b"a"]]
    both = written.begin()
    for partition in range(2):
        written.write(both, "t", [b"b%d" % partition], partition)
    for partition in range(2):
        written.mark(both, "t", partition)
    last = written.transaction("t", [b"c"], 0)
    # All of it is read already, as it is if a pause comes while much is read ahead.
    deadline = time.monotonic() + 10
    assert consumer._delivery.serial is not None
    while consumer._reading.assigned["t", 0].buffer.next_offset < 6:
        assert time.monotonic() < deadline
        consumer._delivery.serial.work()
        consumer._delivery.serial.fetch(0.1)
    consumer.pause(places[1:])
    assert list(consumer.transactions(0.3)) == []
    consumer.resume(places[1:])
    assert [t.txid for t in consumer.transactions(0.5)] == [both, last]
