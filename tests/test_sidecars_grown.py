"""Transactions that grow into their sidecars: producer, coordinator and consumer together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import logtx
from logtx.integration.inspect.audit import run_audit
from logtx.integration.inspect.sums import sum_up
from logtx.journal.errors import ConfigError, ConsumerError, UnsupportedTopicError
from logtx.journal.logs.interface import Log
from logtx.journal.sidecar import sidecar_of
from logtx.producer.sender_thread import SERVE_EVERY

from .parameters import KAFKA, SLOW_KAFKA, SLOW_MOCK
from .test_end_to_end import MakeTopic, cluster, consumer, servers, values
from .waiting import eventually

__all__ = ["cluster", "consumer", "servers"]
MakeConsumer = Callable[..., logtx.Consumer]
MIN_BYTES = 20
"""What each writer of `producer` writes to a topic at most."""
TIMEOUT_S = 20.0


@pytest.fixture(params=["memory", "mock", SLOW_KAFKA])
def transport(request: pytest.FixtureRequest) -> str:
    """A log in memory, librdkafka's mock cluster, and Kafka."""
    return str(request.param)


@pytest.fixture
def growing(servers: dict[str, Any], unique: Callable[[str], str]) -> dict[str, Any]:
    """Settings of a producer whose transactions grow into their sidecars."""
    own = {"transactional.id": unique("producer"), "transaction.sidecar.min.bytes": MIN_BYTES}
    return {**servers, **own}


@pytest.fixture
def producer(growing: dict[str, Any]) -> Iterator[logtx.Producer]:
    """A producer whose transactions grow into their sidecars."""
    with logtx.Producer(growing) as made:
        yield made


@pytest.fixture(autouse=True)
def quickly_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believes a lost sidecar almost at once: these logs have no leader that could have slept."""
    monkeypatch.setattr("logtx.consumer.sidecar_read.CONFIRM_S", 0.2)


def numbered(count: int, *, of: str = "") -> list[bytes]:
    """Returns values of 5 bytes: four of them are what a topic takes."""
    return [f"{of}{number:0{5 - len(of)}}".encode() for number in range(count)]


def write(txn: Any, topic: str, written: list[bytes], partition: int = 0) -> None:
    """Writes these values."""
    for value in written:
        txn.produce(topic, value, partition=partition)


@pytest.mark.parametrize("transport", ["memory", SLOW_MOCK, KAFKA], indirect=True)
@pytest.mark.parametrize("level", ["read_committed", "serializable"])
def test_a_small_transaction_needs_no_sidecar_and_a_large_one_is_delivered_as_it_was_written(
    log: Log, producer: logtx.Producer, consumer: MakeConsumer, make_topic: MakeTopic, level: str
) -> None:
    topic = make_topic()
    with producer.begin_transaction() as txn:
        write(txn, topic, numbered(4, of="a"))
    eventually(lambda: log.end_offset(topic, 0) == 5)
    assert sidecar_of(topic) not in log.topics()
    with producer.begin_transaction() as txn:
        write(txn, topic, numbered(30, of="b"))
    reader = consumer(topic, isolation_level=level)
    assert values(reader, 34) == numbered(4, of="a") + numbered(30, of="b")
    eventually(lambda: log.end_offset(sidecar_of(topic), 0) == 27)
    assert log.end_offset(topic, 0) == 5 + 4 + 1, "four records and a pointer"


def test_an_abort_leaves_what_the_topic_took(
    log: Log, producer: logtx.Producer, consumer: MakeConsumer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    txn = producer.begin_transaction()
    write(txn, topic, numbered(30, of="a"))
    producer.flush(TIMEOUT_S)
    txn.abort()
    with producer.begin_transaction() as txn:
        write(txn, topic, numbered(2, of="b"))
    assert values(consumer(topic), 2) == numbered(2, of="b")
    assert log.end_offset(topic, 0) == 4 + 1 + 2 + 1


def test_a_transaction_may_end_in_partitions_of_all_kinds(
    log: Log, producer: logtx.Producer, consumer: MakeConsumer, make_topic: MakeTopic
) -> None:
    topic, other = make_topic(3), make_topic(1)
    written = numbered(12)
    with producer.begin_transaction() as txn:
        write(txn, other, written[:4])
        # Four records are in topics. Partition 0 has no more of it, 1 has both, 2 the sidecar's.
        write(txn, topic, written[:2], 0)
        write(txn, topic, written[2:6], 1)
        write(txn, topic, written[6:], 2)
    for partition, due in enumerate((written[:2], written[2:6], written[6:])):
        assert values(consumer(topic, partition), len(due)) == due
    assert values(consumer(other), 4) == written[:4]
    assert sidecar_of(other) not in log.topics(), "each topic counts for itself"


@pytest.mark.parametrize("level", ["read_committed", "serializable"])
def test_restarts_anywhere_lose_and_repeat_nothing(
    producer: logtx.Producer, consumer: MakeConsumer, make_topic: MakeTopic, unique: Any, level: str
) -> None:
    topic, group = make_topic(), unique("group")
    open_now = [producer.begin_transaction() for _ in range(3)]
    for each in range(9):
        for number, txn in enumerate(open_now):
            txn.produce(topic, f"{number}{each:04}", partition=0)
    for txn in reversed(open_now):
        txn.commit(finished=True)
    expected = [f"{number}{each:04}".encode() for number in (2, 1, 0) for each in range(9)]
    settings = {"enable_auto_commit": "false", "isolation_level": level}
    found: list[bytes] = []
    while len(found) < len(expected):
        reader = consumer(topic, group_id=group, **settings)
        for _ in range(5):
            message = reader.poll(TIMEOUT_S if len(found) < len(expected) else 0.3)
            if message is None:
                break
            assert message.error() is None
            found.append(message.value() or b"")
        reader.commit(asynchronous=False)
        reader.close()
    assert found == expected


def test_the_part_in_the_topic_comes_uncommitted_and_the_rest_with_the_pointer(
    producer: logtx.Producer, consumer: MakeConsumer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    reader = consumer(topic, isolation_level="read_uncommitted")
    txn = producer.begin_transaction()
    write(txn, topic, numbered(9))
    producer.flush(TIMEOUT_S)
    assert values(reader, 4) == numbered(9)[:4]
    txn.commit()
    assert values(reader, 5) == numbered(9)[4:]


def test_transactions_give_out_a_grown_one_whole(
    producer: logtx.Producer, consumer: MakeConsumer, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    with producer.begin_transaction() as txn:
        write(txn, topic, numbered(3, of="a"), 1)
        write(txn, topic, numbered(5, of="b"), 0)
        write(txn, topic, numbered(5, of="c"), 1)
    transaction = next(consumer(topic, 0, 1).transactions(TIMEOUT_S))
    found = [message.value() for message in transaction.records]
    assert found == numbered(5, of="b") + numbered(3, of="a") + numbered(5, of="c")
    assert transaction.complete


def test_each_branch_grows_by_itself(
    log: Log,
    growing: dict[str, Any],
    producer: logtx.Producer,
    consumer: MakeConsumer,
    make_topic: MakeTopic,
) -> None:
    topic = make_topic()
    txn = producer.begin_transaction()
    inner, dropped = txn.branch(), txn.branch()
    write(txn, topic, numbered(6, of="a"))
    write(inner, topic, numbered(6, of="b"))
    write(dropped, topic, numbered(6, of="x"))
    txn.accept(inner.finish())
    dropped.finish()
    with logtx.Branch.join(growing, txn.branch_token()) as outer:
        write(outer, topic, numbered(3, of="c"))
        txn.accept(outer.finish(TIMEOUT_S))
    with logtx.Branch.join(growing, txn.branch_token(), sidecar=False) as outer:
        write(outer, topic, numbered(6, of="d"))
        txn.accept(outer.finish(TIMEOUT_S))
    assert log.end_offset(topic, 0) == 3 * 4 + 3 + 6
    txn.commit()
    found = values(consumer(topic), 21)
    assert len(found) == 21
    for name, count in (("a", 6), ("b", 6), ("c", 3), ("d", 6)):
        assert [v for v in found if v[:1] == name.encode()] == numbered(count, of=name)


def test_columns_go_over_in_their_middle(
    log: Log,
    servers: dict[str, Any],
    growing: dict[str, Any],
    producer: logtx.Producer,
    consumer: MakeConsumer,
    make_topic: MakeTopic,
) -> None:
    topic, count, here = make_topic(), 3 * SERVE_EVERY, SERVE_EVERY + 7
    written, others = numbered(count), [0] * count
    txn = producer.begin_transaction()
    config = {**growing, "transaction.sidecar.min.bytes": here * 5 + 4}
    with logtx.Branch.join(config, txn.branch_token()) as branch:
        branch.produce_columns(topic, written, [None] * count, others, others)
        branch.produce_columns(topic, [b""] * 3, [None] * 3, [0] * 3, [0] * 3)
        branch.produce_columns(topic, [], [], [], [])
        txn.accept(branch.finish(TIMEOUT_S))
    assert log.end_offset(topic, 0) == here
    txn.commit()
    assert values(consumer(topic), count + 3) == [*written, b"", b"", b""]
    del servers


def test_the_transaction_may_say_otherwise(
    log: Log, producer: logtx.Producer, consumer: MakeConsumer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    with producer.begin_transaction(sidecar=False) as txn:
        write(txn, topic, numbered(9, of="a"))
    with producer.begin_transaction(sidecar=True) as txn:
        write(txn, topic, numbered(9, of="b"))
    assert values(consumer(topic), 18) == numbered(9, of="a") + numbered(9, of="b")
    assert log.end_offset(topic, 0) == 9 + 1 + 1


def test_a_sidecar_that_is_refused_leaves_the_order_as_it_was(
    log: Log,
    producer: logtx.Producer,
    consumer: MakeConsumer,
    make_topic: MakeTopic,
    transport: str,
) -> None:
    # Trap 135: a small record would fit the topic still, behind one that did not.
    if transport == "mock":
        pytest.skip("librdkafka's mock cluster knows no settings")
    topic = make_topic()
    log.create_topic(sidecar_of(topic), partitions=1, settings={"retention.ms": "1000"})
    txn = producer.begin_transaction()
    write(txn, topic, numbered(3))
    for value in (b"too large", b"s"):
        with pytest.raises(UnsupportedTopicError, match=r"--add-config retention.ms=-1"):
            txn.produce(topic, value, partition=0)
    # The refused records are no part of it, and the application knows.
    txn.commit()
    assert values(consumer(topic), 3) == numbered(3)


@pytest.mark.parametrize("is_direct", [True, False])
def test_nobody_names_a_sidecar(
    producer: logtx.Producer, make_topic: MakeTopic, is_direct: bool
) -> None:
    topic = make_topic()
    txn = producer.begin_transaction()
    write(txn, topic, numbered(6))
    if is_direct:
        producer.flush(TIMEOUT_S)
    for value in (b"", b"beyond what a topic takes"):
        with pytest.raises(ConfigError, match=f"write to {topic}, in a transaction"):
            txn.produce(sidecar_of(topic), value, partition=0)
    txn.commit()


def test_records_deleted_in_the_sidecar_stop_readers_at_the_pointer(
    log: Log,
    producer: logtx.Producer,
    consumer: MakeConsumer,
    make_topic: MakeTopic,
    transport: str,
) -> None:
    if transport == "mock":
        pytest.skip("librdkafka's mock cluster deletes no records")
    topic = make_topic()
    with producer.begin_transaction() as txn:
        write(txn, topic, numbered(9, of="a"))
    with producer.begin_transaction() as txn:
        write(txn, topic, numbered(9, of="b"))
    eventually(lambda: log.end_offset(sidecar_of(topic), 0) == 12)
    log.delete_records(sidecar_of(topic), 0, 1)
    with pytest.raises(ConsumerError, match="begins at 1, and its records at 0"):
        consumer(topic).poll(TIMEOUT_S)
    # All or nothing: what lies in the topic is not delivered either.
    assert values(consumer(topic, torn_reset="skip"), 9) == numbered(9, of="b")


def test_an_audit_finds_no_fault(log: Log, producer: logtx.Producer, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    for number in range(4):
        txn = producer.begin_transaction()
        for partition in range(2):
            write(txn, topic, numbered(5), partition)
        producer.flush(TIMEOUT_S)
        if number % 2:
            txn.abort()
        else:
            txn.commit(finished=True)

    def sums(spans: Any) -> list[Any]:
        return [each for key, span in spans.items() for each in sum_up(log, key, span)]

    # Nothing of an aborted one is in partition 1 of the topic.
    ends = {(topic, 0): 4 * 5, (topic, 1): 2, (sidecar_of(topic), 0): 4 * 2}
    eventually(lambda: all(log.end_offset(*key) == end for key, end in ends.items()))
    eventually(lambda: log.end_offset(sidecar_of(topic), 1) == 4 * 6)
    report = run_audit(log, [topic], sums)
    severities = Counter(severity for severity, _ in report.counts)
    assert not severities["violation"] + severities["unverifiable"], report.findings
