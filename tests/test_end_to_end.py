"""Producer, coordinator and consumer together, over each transport."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Message, TopicPartition

import logtx
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.journal.logs.interface import Log

from .parameters import KAFKA, SLOW_MOCK

MakeTopic = Callable[..., str]
TIMEOUT_S = 20.0


@pytest.fixture(params=["memory", SLOW_MOCK, KAFKA])
def transport(request: pytest.FixtureRequest) -> str:
    """Every run of the tests has all of them on a real broker."""
    return str(request.param)


@pytest.fixture
def cluster(log: Log) -> Iterator[EmbeddedCoordinator]:
    """A coordinator on the transport of the test."""
    config = CoordinatorConfig(
        bootstrap_servers=log.bootstrap_servers, listen="127.0.0.1:0", journal_partitions=4
    )
    with EmbeddedCoordinator(config) as running:
        yield running


@pytest.fixture
def servers(log: Log, cluster: EmbeddedCoordinator) -> dict[str, Any]:
    """Settings of every client."""
    assert cluster.address
    return {"bootstrap.servers": log.bootstrap_servers}


@pytest.fixture
def producer(servers: dict[str, Any], unique: Callable[[str], str]) -> Iterator[logtx.Producer]:
    """A producer of a new name."""
    with logtx.Producer({**servers, "transactional.id": unique("producer")}) as made:
        yield made


@pytest.fixture
def consumer(
    servers: dict[str, Any], unique: Callable[[str], str]
) -> Iterator[Callable[..., logtx.Consumer]]:
    """`consumer(topic, **settings)` makes one that reads partition 0 from the start."""
    made: list[logtx.Consumer] = []

    def make(topic: str, *partitions: int, **settings: Any) -> logtx.Consumer:
        config = {"group.id": unique("group"), "auto.offset.reset": "earliest"}
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        each = logtx.Consumer({**servers, **config, **dotted})
        each.assign([TopicPartition(topic, p) for p in partitions or (0,)])
        made.append(each)
        return each

    yield make
    for each in made:
        each.close()


def values(consumer: logtx.Consumer, count: int, quiet_s: float = 0.3) -> list[bytes]:
    """Returns the values of the next `count` records, and of any that come shortly after."""
    found: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        wait_s = quiet_s if len(found) >= count else deadline - time.monotonic()
        message = consumer.poll(max(wait_s, 0))
        if message is None:
            return found
        assert message.error() is None, message.error()
        found.append(_value(message))


def _value(message: Message) -> bytes:
    value = message.value()
    assert isinstance(value, bytes)
    return value


def test_committed_is_delivered_in_commit_order_and_aborted_never(
    servers: dict[str, Any],
    producer: logtx.Producer,
    consumer: Callable[..., logtx.Consumer],
    make_topic: MakeTopic,
) -> None:
    topic = make_topic()
    first, second, third = (producer.begin_transaction() for _ in range(3))
    for number in range(3):
        first.produce(topic, f"first {number}", partition=0)
        second.produce(topic, f"second {number}", partition=0)
        third.produce(topic, f"third {number}", partition=0)
    producer.flush(TIMEOUT_S)
    with logtx.Producer(servers) as plain:
        plain.produce(topic, "plain", partition=0)
    second.commit()
    third.abort()
    first.commit()
    found = values(consumer(topic), 7)
    assert found == [
        b"plain",
        *(f"second {n}".encode() for n in range(3)),
        *(f"first {n}".encode() for n in range(3)),
    ]
    everything = values(consumer(topic, isolation_level="read_uncommitted"), 10)
    assert len(everything) == 10, "without the markers"


def test_an_open_transaction_holds_nobody_up(
    producer: logtx.Producer, consumer: Callable[..., logtx.Consumer], make_topic: MakeTopic
) -> None:
    topic = make_topic()
    hanging = producer.begin_transaction()
    hanging.produce(topic, "hanging", partition=0)
    reader = consumer(topic)
    for number in range(5):
        with producer.begin_transaction() as txn:
            txn.produce(topic, str(number), partition=0)
        assert values(reader, 1, quiet_s=0) == [str(number).encode()]
    hanging.abort()


def test_many_in_flight_from_one_thread(
    producer: logtx.Producer, consumer: Callable[..., logtx.Consumer], make_topic: MakeTopic
) -> None:
    topic, count = make_topic(2), 200
    futures = []
    for number in range(count):
        txn = producer.begin_transaction()
        txn.produce(topic, f"a{number}", partition=0)
        txn.produce(topic, f"b{number}", partition=1)
        futures.append(txn.commit_async())
    sequences = [future.result(TIMEOUT_S).commit_sequence for future in futures]
    assert len(set(sequences)) == count
    order = [n for _, n in sorted(zip(sequences, range(count), strict=True))]
    assert values(consumer(topic), count) == [f"a{n}".encode() for n in order]
    assert values(consumer(topic, 1), count) == [f"b{n}".encode() for n in order]


def test_whole_transactions_in_commit_order_across_partitions(
    producer: logtx.Producer, consumer: Callable[..., logtx.Consumer], make_topic: MakeTopic
) -> None:
    topic, count = make_topic(3), 20
    expected = {}
    open_now = [producer.begin_transaction() for _ in range(count)]
    for number, txn in enumerate(open_now):
        for partition in {number % 3, (number + 1) % 3}:
            txn.produce(topic, f"{number}", partition=partition)
    for number, txn in reversed(list(enumerate(open_now))):
        if number % 4 == 3:
            txn.abort()
            continue
        expected[txn.txid] = (txn.commit().commit_sequence, number)
    whole = []
    for found in consumer(topic, 0, 1, 2).transactions(timeout=5):
        whole.append((found.txid, found.commit_sequence, [_value(m) for m in found.records]))
        assert found.complete
        if len(whole) == len(expected):
            break
    assert [(t, s) for t, s, _ in whole] == [(t, s) for t, (s, _) in expected.items()]
    for txid, _, records in whole:
        assert records == [str(expected[txid][1]).encode()] * 2


def test_read_process_write_resumes_from_the_committed_offsets(
    servers: dict[str, Any],
    producer: logtx.Producer,
    consumer: Callable[..., logtx.Consumer],
    make_topic: MakeTopic,
    unique: Callable[[str], str],
) -> None:
    source, sink, group, total = make_topic(), make_topic(), unique("workers"), 24
    for number in range(total):
        producer.produce(source, str(number), partition=0)
    producer.flush(TIMEOUT_S)
    worker = unique("worker")
    done = 0
    for attempt in range(100):
        with logtx.Producer({**servers, "transactional.id": worker}) as writer:
            reader = consumer(source, group_id=group, offsets_storage="transactions")
            block = reader.consume(7, timeout=2)
            if not block:
                break
            txn = writer.begin_transaction()
            for message in block:
                txn.produce(sink, message.value(), partition=0)
            txn.send_offsets(reader)
            if attempt % 3 == 2:
                txn.abort()  # its work is redone by the next
            else:
                txn.commit()
                done += len(block)
            reader.close()
    assert done == total
    assert values(consumer(sink), total) == [str(n).encode() for n in range(total)]


def test_work_that_is_sent_again_never_commits_without_its_input(
    producer: logtx.Producer,
    consumer: Callable[..., logtx.Consumer],
    make_topic: MakeTopic,
    unique: Callable[[str], str],
) -> None:
    """An application that keeps a batch, and does it again after an abort without a rewind."""
    source, sink, group = make_topic(), make_topic(), unique("workers")
    for number in range(3):
        producer.produce(source, str(number), partition=0)
    producer.flush(TIMEOUT_S)
    reader = consumer(source, group_id=group, offsets_storage="transactions")
    assert values(reader, 3) == [b"0", b"1", b"2"]

    def work() -> None:
        producer.begin_transaction()
        producer.produce(sink, "done", partition=0)
        producer.send_offsets_to_transaction(
            reader.position(reader.assignment()), reader.consumer_group_metadata()
        )

    work()
    producer.abort_transaction(TIMEOUT_S)
    for _ in range(2):
        with pytest.raises(logtx.OffsetsConflictError, match="rewind") as refused:
            work()
        assert refused.value.args[0].txn_requires_abort()
        producer.abort_transaction(TIMEOUT_S)
    reader.rewind()
    assert values(reader, 3) == [b"0", b"1", b"2"]
    work()
    producer.commit_transaction(TIMEOUT_S)
    assert [p.offset for p in reader.committed(reader.assignment(), TIMEOUT_S)] == [3]
    assert values(consumer(sink), 1) == [b"done"]


def is_held(consumer: logtx.Consumer, topic: str) -> bool:
    """Waits for a bounded time; returns whether a pending transaction holds the offset back."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            consumer.committed([TopicPartition(topic, 0)])
        except logtx.OffsetsPendingError:
            return True
        except logtx.RequestTimedOutError:
            continue  # The machine is busy: the coordinator's answer came too late.
    return False


def test_a_pending_transaction_holds_its_offsets_until_its_input_is_taken_over(
    producer: logtx.Producer,
    consumer: Callable[..., logtx.Consumer],
    make_topic: MakeTopic,
    unique: Callable[[str], str],
) -> None:
    source, group = make_topic(), unique("workers")
    producer.produce(source, "x", partition=0)
    producer.flush(TIMEOUT_S)
    settings = {
        "group_id": group,
        "offsets_storage": "transactions",
        "coordinator_timeout_ms": 2_000,
    }
    reader = consumer(source, **settings)
    assert len(reader.consume(1, timeout=TIMEOUT_S)) == 1
    txn = producer.begin_transaction()
    txn.send_offsets(reader)
    assert is_held(reader, source)
    successor = consumer(source, **settings)
    assert len(successor.consume(1, timeout=TIMEOUT_S)) == 1
    with pytest.raises((logtx.TransactionAbortedError, logtx.ClaimFencedError)):
        txn.commit()
    with pytest.raises(logtx.ClaimFencedError):
        reader.rewind()
    with producer.begin_transaction() as txn:
        txn.send_offsets(successor)
    assert successor.committed([TopicPartition(source, 0)])[0].offset == 1


def test_a_successor_fences_and_aborts(
    servers: dict[str, Any],
    consumer: Callable[..., logtx.Consumer],
    make_topic: MakeTopic,
    unique: Callable[[str], str],
) -> None:
    topic, name = make_topic(), unique("worker")
    old = logtx.Producer({**servers, "transactional.id": name})
    left_open = old.begin_transaction()
    left_open.produce(topic, "left open", partition=0)
    old.flush(TIMEOUT_S)
    with logtx.Producer({**servers, "transactional.id": name}) as new:
        with new.begin_transaction() as txn:
            txn.produce(topic, "new", partition=0)
        with pytest.raises((logtx.ProducerFencedError, logtx.TransactionAbortedError)):
            left_open.commit()
        with pytest.raises(logtx.ProducerFencedError):
            old.begin_transaction()
    assert values(consumer(topic), 1) == [b"new"]
    old.close()


def test_a_coordinator_restart_in_the_middle_loses_nothing(
    cluster: EmbeddedCoordinator,
    producer: logtx.Producer,
    consumer: Callable[..., logtx.Consumer],
    make_topic: MakeTopic,
) -> None:
    topic = make_topic()
    txns = [producer.begin_transaction() for _ in range(10)]
    for number, txn in enumerate(txns):
        txn.produce(topic, str(number), partition=0)
        assert txn.txid
    futures = [txn.commit_async() for txn in txns[:5]]
    cluster.stop()
    futures += [txn.commit_async() for txn in txns[5:]]
    cluster.start()
    for future in futures:
        assert future.result(TIMEOUT_S).state.commits
    assert sorted(values(consumer(topic), 10)) == [str(n).encode() for n in range(10)]


def test_branches_of_several_producers_make_one_transaction(
    servers: dict[str, Any],
    producer: logtx.Producer,
    consumer: Callable[..., logtx.Consumer],
    make_topic: MakeTopic,
) -> None:
    topic = make_topic()
    with producer.begin_transaction() as txn:
        txn.produce(topic, "owner", partition=0)
        token = txn.branch_token()
        for name in ("accepted", "dropped"):
            with logtx.Branch.join(servers, token) as branch:
                branch.produce(topic, name, partition=0)
                summary = branch.finish()
            if name == "accepted":
                txn.accept(summary)
    assert sorted(values(consumer(topic), 2)) == [b"accepted", b"owner"]


def test_serializable_stops_and_moves_within_transactions(
    producer: logtx.Producer,
    servers: dict[str, Any],
    make_topic: MakeTopic,
    unique: Callable[[str], str],
    transport: str,
) -> None:
    """Traps 18, 23, 24: a reader is killed within a transaction, then a second member joins."""
    topic, group, wanted = make_topic(partitions=3), unique("group"), []
    for number in range(6):
        with producer.begin_transaction() as transaction:
            for partition in range(3):
                for n in range(4):
                    value = b"%d-%d-%d" % (number, partition, n)
                    transaction.produce(topic, value, partition=partition)
                    wanted.append(value)
    config = {
        **servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "isolation.level": "serializable",
    }

    def some(consumer: logtx.Consumer, count: int) -> list[bytes]:
        found: list[bytes] = []
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(found) < count:
            assert time.monotonic() < deadline_s, found
            for message in consumer.consume(count - len(found), 0.2):
                assert message.error() is None, message.error()
                value = message.value()
                assert value is not None
                found.append(value)
        return found

    # A transaction's records come in a row, partition by partition, in whatever order written.
    got: list[bytes] = []
    for count in (5, 8, 20):
        with logtx.Consumer(config) as consumer:
            consumer.assign([TopicPartition(topic, p) for p in range(3)])
            got += some(consumer, count)
    assert got == wanted[:33]
    if transport == "mock":
        return  # its rebalances lose commits
    with logtx.Consumer(config) as first, logtx.Consumer(config) as second:
        first.subscribe([topic])
        got += some(first, 6)
        assert got == wanted[:39]
        second.subscribe([topic])
        deadline_s = time.monotonic() + 2 * TIMEOUT_S
        while len(got) < len(wanted) or not second.assignment():
            assert time.monotonic() < deadline_s
            for member in (first, second):
                got += [m.value() or b"" for m in member.consume(3, 0.05)]
    assert sorted(got) == wanted
    for partition in range(3):
        own = [value for value in got if value[2:3] == b"%d" % partition]
        assert own == sorted(own)
