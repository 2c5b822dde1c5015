"""Consumer groups: positions follow the partitions, in every assignor."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.journal.errors import BrokerError
from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.log import MemoryLog

from .conftest import MakeConsumer
from .logs import Transactions, read

MakeTopic = Callable[..., str]


def run_until(
    condition: Callable[[], bool], *consumers: Consumer, timeout_s: float = 40
) -> list[bytes | None]:
    found = []
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        for consumer in consumers:
            for message in consumer.consume(100, 0.05):
                assert message.error() is None, message.error()
                found.append(message.value())
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"partition_assignment_strategy": "range"},
        {"partition_assignment_strategy": "cooperative-sticky"},
        {"group_protocol": "consumer"},
    ],
    ids=["range", "cooperative", "consumer"],
)
def test_trap_24_partitions_move_between_delivery_and_commit(
    transactions: Transactions,
    make_topic: MakeTopic,
    make_consumer: MakeConsumer,
    settings: dict[str, Any],
    transport: str,
    unique: Callable[[str], str],
) -> None:
    if transport in ("mock", "native") or (transport == "memory" and "group_protocol" in settings):
        pytest.skip("this log does not rebalance so")
    if transport == "memory" and "cooperative" in str(settings):
        pytest.skip("the log in memory knows eager rebalances only")
    topic = make_topic(partitions=2)
    hanging = [transactions.begin() for _ in range(2)]
    for partition in range(2):
        transactions.write(hanging[partition], topic, [b"h%d" % partition], partition)
        transactions.transaction(topic, [b"t%d" % partition], partition)
        transactions.append(topic, [b"p%d" % partition], partition=partition)
    group = unique("group")
    calls: list[tuple[str, int]] = []

    def note(kind: str) -> Callable[[Consumer, list[TopicPartition]], None]:
        return lambda _, partitions: calls.append((kind, len(partitions)))

    first = make_consumer(group_id=group, **settings)
    first.subscribe([topic], on_assign=note("assign"), on_revoke=note("revoke"))
    found = read(first, 4, 40)
    assert sorted(map(bytes, filter(None, found))) == [b"p0", b"p1", b"t0", b"t1"]
    second = make_consumer(group_id=group, **settings)
    second.subscribe([topic])
    extra = run_until(
        lambda: len(first.assignment()) == 1 and len(second.assignment()) == 1, first, second
    )
    # What was delivered was committed at the revocation: nothing comes twice.
    assert extra == []
    for partition in range(2):
        transactions.mark(hanging[partition], topic, partition)
    late: list[bytes | None] = []
    deadline = time.monotonic() + 20
    while len(late) < 2:
        assert time.monotonic() < deadline
        late += [m.value() for c in (first, second) for m in c.consume(10, 0.05)]
    assert sorted(map(bytes, filter(None, late))) == [b"h0", b"h1"]
    assert calls[0] == ("assign", 2)
    assert ("revoke", 2) in calls or ("revoke", 1) in calls
    first.close()
    second.close()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_positions_that_could_not_be_restored_are_asked_for_again(
    transactions: Transactions,
    make_topic: MakeTopic,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
    transport: str,
    strategy: str,
) -> None:
    if transport != "kafka" and strategy != "range":
        pytest.skip("cooperative rebalances need a real broker")
    topic = make_topic()
    transactions.append(topic, [b"1", b"2"])
    consumer = make_consumer(partition_assignment_strategy=strategy)
    real = consumer._positions.store.fetch
    failures = iter([True, True, False])

    def fetch(keys: Any) -> Any:
        if next(failures, False):
            raise BrokerError("no answer")
        return real(keys)

    monkeypatch.setattr(consumer._positions.store, "fetch", fetch)
    consumer.subscribe([topic])
    for _ in range(2):
        with pytest.raises(BrokerError):
            run_until(lambda: False, consumer)
        assert consumer.assignment() == []
    assert read(consumer, 2) == [b"1", b"2"]


def test_trap_24_a_member_that_was_expelled_commits_nothing(
    memory_log: MemoryLog, unique: Callable[[str], str]
) -> None:
    memory_log.create_topic("t", partitions=1)
    transactions = Transactions(memory_log)
    transactions.append("t", [b"1", b"2"])
    group = unique("group")
    config = {"group.id": group, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 0}
    lost: list[int] = []
    with Consumer(config, log=memory_log) as consumer:
        consumer.subscribe(["t"], on_lost=lambda _, partitions: lost.append(len(partitions)))
        assert read(consumer, 1) == [b"1"]
        memory_log.expel_member(group, str(consumer.memberid()))
        deadline = time.monotonic() + 10
        while not lost:
            assert time.monotonic() < deadline
            consumer.consume(1, 0.05)
        assert lost == [1]


@pytest.mark.parametrize("fails", [False, True])
def test_a_rebalance_within_consume_loses_nothing(
    fails: bool, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_log.create_topic("t", partitions=2)
    transactions = Transactions(memory_log)
    for number in range(20):
        transactions.transaction("t", [b"%d" % number], number % 2)
    settings = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    with Consumer(settings, log=memory_log) as consumer:
        consumer.subscribe(["t"])
        poll, fetch = consumer._inner.poll, consumer._positions.store.fetch
        expelled, failures = [], [BrokerError("no answer")] * fails

        def poll_and_expel(timeout: float) -> Any:
            found = poll(timeout)
            if found is not None and not expelled:
                expelled.append(memory_log.expel_member("g", str(consumer.memberid())))
            return found

        def fail_once(*args: Any) -> Any:
            if expelled and failures:
                raise failures.pop()
            return fetch(*args)

        monkeypatch.setattr(consumer._inner, "poll", poll_and_expel)
        monkeypatch.setattr(consumer._positions.store, "fetch", fail_once)
        found: list[bytes | None] = []
        deadline = time.monotonic() + 20
        while len(set(found)) < 20:
            assert time.monotonic() < deadline
            with suppress(BrokerError):
                found += [message.value() for message in consumer.consume(3, 0.1)]
        assert expelled
        assert not failures
        for partition in range(2):
            own = [b"%d" % number for number in range(partition, 20, 2)]
            # Each partition is delivered in order, without a gap.
            assert [v for v in found if v in own][-len(own) :] == own


def test_auto_commit_covers_what_was_delivered_before_the_present_poll(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer, log: Log
) -> None:
    topic = make_topic()
    transactions.append(topic, [b"1", b"2", b"3"])
    consumer = make_consumer(auto_commit_interval_ms=0)
    consumer.assign([TopicPartition(topic, 0)])
    assert read(consumer, 1) == [b"1"]
    message = consumer.poll(5)
    assert message is not None
    deadline = time.monotonic() + 10
    while True:
        stored = log.group_offset(consumer.group_id, topic, 0)
        if stored is not None and stored.offset > 0:
            break
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert stored.offset == 1
    consumer.close()
    stored = log.group_offset(consumer.group_id, topic, 0)
    assert stored is not None
    assert stored.offset == 2


def test_pause_resume_and_seek(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic(partitions=2)
    transactions.append(topic, [b"a", b"b"], partition=0)
    consumer = make_consumer()
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    consumer.assign(places)
    assert read(consumer, 1) == [b"a"]
    consumer.pause([places[0]])
    transactions.append(topic, [b"c"], partition=1)
    assert read(consumer, 1) == [b"c"]
    assert consumer.poll(0.1) is None
    consumer.resume([places[0]])
    assert read(consumer, 1) == [b"b"]
    consumer.seek(TopicPartition(topic, 0, 0))
    assert read(consumer, 2) == [b"a", b"b"]


def test_a_partition_that_was_paused_is_read_when_it_comes_back(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    transactions.append(topic, [b"a"])
    place = TopicPartition(topic, 0)
    consumer = make_consumer()
    consumer.assign([place])
    assert read(consumer, 1) == [b"a"]
    consumer.pause([place])
    assert consumer.poll(0.1) is None
    consumer.unassign()
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert read(consumer, 1) == [b"a"]


def test_unsubscribing_commits_what_was_delivered(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer, transport: str
) -> None:
    if transport in ("mock", "native"):
        pytest.skip("librdkafka's mock gives a member that subscribes again nothing")
    topic = make_topic()
    transactions.append(topic, [b"a", b"b"])
    consumer = make_consumer()
    consumer.subscribe([topic])
    assert read(consumer, 1) == [b"a"]
    consumer.unsubscribe()
    assert consumer.assignment() == []
    consumer.subscribe([topic])
    assert read(consumer, 1) == [b"b"]


def test_close_may_be_repeated_and_ends_everything(
    transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    transactions.append(topic, [b"a"])
    with make_consumer() as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        read(consumer, 1)
    consumer.close()
    assert consumer.counters.delivered_records == 1
    with pytest.raises(RuntimeError, match="closed"):
        consumer.poll(0)
