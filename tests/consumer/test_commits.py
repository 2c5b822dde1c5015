"""What is committed: after any message that was delivered, and again after a refusal."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.consumer.core import past
from logtx.consumer.malformed import UnreadableHeadersError
from logtx.consumer.source import Part, Read
from logtx.journal.errors import ConfigError, ConsumerError
from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.consumer import MemoryConsumer
from logtx.journal.logs.memory.log import MemoryLog

from .conftest import MakeConsumer
from .logs import Transactions, read
from .test_interruptions import MakeTopic

PLAIN, ACROSS = [b"p1", b"p2"], [b"a1", b"a2", b"a3"]


@pytest.fixture
def topic(make_topic: MakeTopic, transactions: Transactions) -> str:
    """A topic: a transaction around plain records, and another transaction behind it."""
    name = make_topic()
    txid = transactions.begin()
    transactions.write(txid, name, ACROSS[:1], 0)
    transactions.append(name, PLAIN)
    transactions.write(txid, name, ACROSS[1:], 0)
    transactions.mark(txid, name)
    transactions.transaction(name, [b"b1", b"b2"])
    return name


def one_by_one(consumer: Consumer, count: int) -> list[Message]:
    """Polls messages."""
    found = []
    while len(found) < count:
        message = consumer.poll(10)
        assert message is not None
        found.append(message)
    return found


@pytest.mark.parametrize("form", ["message", "offsets"])
def test_any_message_can_be_committed_later(
    form: str, topic: str, make_consumer: MakeConsumer
) -> None:
    consumer = make_consumer(enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, 0)])
    messages = one_by_one(consumer, 7)
    everything = [*PLAIN, *ACROSS, b"b1", b"b2"]
    assert [m.value() for m in messages] == everything
    again = make_consumer(group_id=consumer.group_id, enable_auto_commit=False)
    for done, last in enumerate(messages):
        if form == "message":
            consumer.commit(last, asynchronous=False)
        else:
            offset = last.offset()
            assert offset is not None
            consumer.commit(offsets=[TopicPartition(topic, 0, offset + 1)], asynchronous=False)
        again.assign([TopicPartition(topic, 0)])
        rest = everything[done + 1 :]
        assert [m.value() for m in one_by_one(again, len(rest))] == rest
        assert again.poll(0.2) is None


def test_messages_of_before_a_seek_are_not_remembered(
    topic: str, make_consumer: MakeConsumer
) -> None:
    consumer = make_consumer(enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, 0)])
    first = one_by_one(consumer, 3)[0]
    consumer.seek(TopicPartition(topic, 0, 0))
    with pytest.raises(ConsumerError, match="delivered lately"):
        consumer.commit(first)


def test_only_so_many_are_remembered(
    topic: str, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past, "SHARES_MAX", 2)
    consumer = make_consumer(enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, 0)])
    messages = one_by_one(consumer, 7)
    with pytest.raises(ConsumerError, match="delivered lately"):
        consumer.commit(messages[1])
    consumer.commit(messages[2])
    monkeypatch.setattr(past, "OFFSETS_MAX", 1)
    consumer.seek(TopicPartition(topic, 0, 0))
    assert consumer.commit(one_by_one(consumer, 7)[-1], asynchronous=False)


def test_finding_10_a_refused_commit_is_repeated(
    topic: str, log: Log, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(log, MemoryLog):
        pytest.skip("a broker refuses no commit when it is asked to")
    refusals = [KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE)] * 2
    store = MemoryConsumer._store

    def refuse(self: MemoryConsumer, offsets: list[TopicPartition], timeout_s: float) -> None:
        if refusals and timeout_s == 0:
            raise KafkaException(refusals.pop())
        store(self, offsets, timeout_s)

    monkeypatch.setattr(MemoryConsumer, "_store", refuse)
    heard: list[KafkaError | None] = []
    consumer = make_consumer(enable_auto_commit=True, auto_commit_interval_ms=0)
    consumer._on_commit = lambda error, _: heard.append(error)
    consumer.assign([TopicPartition(topic, 0)])
    read(consumer, 7)
    for _ in range(5):
        consumer.poll(0)
    assert not refusals
    assert [None if e is None else e.code() for e in heard] == [
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        None,
    ]
    [place] = consumer.committed([TopicPartition(topic, 0)])
    assert place.offset == consumer.position([TopicPartition(topic, 0)])[0].offset


def test_answers_to_commits_may_come_late(memory_log: MemoryLog) -> None:
    memory_log.create_topic("t", partitions=1)
    Transactions(memory_log).append("t", [b"%d" % number for number in range(6)])
    settings = {"group.id": "g", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 0}
    with Consumer(settings, log=memory_log) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        memory_log.hold_answers()
        read(consumer, 4)
        consumer.poll(0)
        assigned = consumer._reading.assigned["t", 0]
        assert assigned.asked is not None
        assert (assigned.stored, assigned.asked.o2) == (None, 4)
        memory_log.hold_answers(False)
        # The answers to earlier commits say nothing of the last one.
        consumer._inner._answers.rotate(1)  # type: ignore[attr-defined]
        last = consumer._inner._answers.popleft()  # type: ignore[attr-defined]
        consumer._inner.poll(0)
        assert assigned.stored is None
        consumer._inner._answers.append(last)  # type: ignore[attr-defined]
        consumer._inner.poll(0)
        assert assigned.stored is not None
        assert (assigned.stored.o2, assigned.asked) == (4, None)


def test_finding_10_a_commit_that_waits_repeats_what_was_refused(
    topic: str, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = make_consumer(enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, 0)])
    read(consumer, 7)
    with monkeypatch.context() as patch:
        patch.setattr(consumer._positions.store, "commit", lambda *_, **__: None)
        consumer.commit()
        consumer.commit()
    [place] = consumer.commit(asynchronous=False) or []
    assert place.offset == 9


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_the_end_of_a_partition_is_told_when_all_is_delivered_or_pending(
    isolation: str, topic: str, transactions: Transactions, make_consumer: MakeConsumer
) -> None:
    hanging = transactions.begin()
    transactions.write(hanging, topic, [b"pending"], 0)
    consumer = make_consumer(
        enable_partition_eof=True, isolation_level=isolation, enable_auto_commit=False
    )
    consumer.assign([TopicPartition(topic, 0)])
    count = 7 if isolation == "read_committed" else 8
    found = one_by_one(consumer, count + 1)
    assert [m.error() is None for m in found] == [True] * count + [False]
    error = found[-1].error()
    assert error is not None
    assert error.code() == KafkaError._PARTITION_EOF
    assert consumer.poll(0.2) is None
    transactions.mark(hanging, topic)
    if isolation == "read_committed":
        [message] = one_by_one(consumer, 1)
        assert message.value() == b"pending"
    [end] = one_by_one(consumer, 1)
    assert end.error() is not None


def test_the_end_is_not_told_in_serial_order(make_consumer: MakeConsumer) -> None:
    with pytest.raises(ConfigError, match=r"enable\.partition\.eof"):
        make_consumer(enable_partition_eof=True, isolation_level="serializable")


def test_an_end_that_was_read_before_an_interruption_is_not_told_before_its_records(
    topic: str, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = make_consumer(enable_partition_eof=True, enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, 0)])

    def unreadable() -> Iterator[Part]:
        raise UnreadableHeadersError
        yield

    end = KafkaError(KafkaError._PARTITION_EOF)
    event = Message(topic=topic, partition=0, offset=9, error=end)
    with monkeypatch.context() as patch:
        patch.setattr(consumer._reading._source, "read", lambda *_: Read(unreadable(), [event]))
        consumer._reading.fetch(0)
    assert consumer._reading.take(10) == []
    assert [m.error() is None for m in one_by_one(consumer, 8)] == [True] * 7 + [False]


def await_committed(consumer: Consumer, place: TopicPartition, offset: int) -> None:
    """Waits until the group's offset is committed."""
    deadline_s = time.monotonic() + 10
    while (found := consumer.committed([place])[0].offset) != offset:
        assert time.monotonic() < deadline_s, found
        time.sleep(0.02)


@pytest.mark.parametrize("how", ["unassign", "assign", "incremental_unassign", "assign again"])
def test_finding_22_what_was_delivered_is_committed_when_a_partition_is_given_up(
    how: str, topic: str, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    consumer = make_consumer()
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    assert read(consumer, 2) == PLAIN
    offset = consumer.position([place])[0].offset
    if how == "unassign":
        consumer.unassign()
    elif how == "incremental_unassign":
        consumer.incremental_unassign([place])
    elif how == "assign":
        consumer.assign([TopicPartition(make_topic(), 0)])
    else:
        consumer.assign([place])
        assert read(consumer, 3) == ACROSS
        return
    await_committed(consumer, place, offset)
    consumer.assign([place])
    assert read(consumer, 5) == [*ACROSS, b"b1", b"b2"]


def test_finding_22_without_auto_commit_nothing_is_committed(
    topic: str, make_consumer: MakeConsumer
) -> None:
    consumer = make_consumer(enable_auto_commit=False)
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    read(consumer, 2)
    consumer.unassign()
    consumer.assign([place])
    assert read(consumer, 2) == PLAIN
