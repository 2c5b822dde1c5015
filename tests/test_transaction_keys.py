"""Transaction keys, from `logtx.Producer` to the consumer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import logtx
from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.journal.errors import (
    ConcurrentTransactionsError,
    ExpiredTransactionError,
    GroupBoundError,
    LogtxError,
    ProducerFencedError,
    UnknownKeyError,
)
from logtx.journal.keys import TransactionKey
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import journal_partition_of
from logtx.journal.state import State
from logtx.journal.txid import TxId

from .coordinator.clusters import Node, cluster_of

TIMEOUT_S = 15.0
PARTITIONS = 4
NAME = TransactionKey("default", "k").name

Producers = Callable[..., logtx.Producer]


@pytest.fixture
def coordinator(memory_log: MemoryLog) -> Iterator[EmbeddedCoordinator]:
    """A coordinator of a log in memory that has the topics `in` and `out`."""
    for topic in ("in", "out"):
        memory_log.create_topic(topic, partitions=1)
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=PARTITIONS,
    )
    with EmbeddedCoordinator(config) as running:
        yield running


@pytest.fixture
def producers(memory_log: MemoryLog) -> Iterator[Producers]:
    """`producers(key)` makes a producer that is closed with the test."""
    made: list[logtx.Producer] = []

    def make(key: str = "k", **settings: Any) -> logtx.Producer:
        config = {
            "bootstrap.servers": memory_log.bootstrap_servers,
            "transaction.key": key,
            "coordinator.timeout.ms": 10_000,
        }
        made.append(logtx.Producer({**config, **settings}))
        return made[-1]

    yield make
    for each in made:
        each.close(1)


@pytest.fixture
def admin(memory_log: MemoryLog) -> Iterator[AdminQueries]:
    """The questions of an operator."""
    asking = AdminQueries(memory_log, timeout_s=TIMEOUT_S)
    yield asking
    asking.close()


def consumer(log: MemoryLog, topic: str, **settings: Any) -> logtx.Consumer:
    config = {
        "bootstrap.servers": log.bootstrap_servers,
        "group.id": "readers",
        "auto.offset.reset": "earliest",
    }
    made = logtx.Consumer({**config, **settings})
    made.subscribe([topic])
    return made


def read(log: MemoryLog, wanted: int) -> list[bytes | None]:
    """Reads `out` as `read_committed`; returns its values: `wanted` of them, and no more."""
    with consumer(log, "out") as reading:
        values: list[bytes | None] = []
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(values) < wanted and time.monotonic() < deadline_s:
            values += [m.value() for m in reading.consume(10, 0.1)]
        return [*values, *(m.value() for m in reading.consume(10, 0.3))]


def fenced(call: Callable[[], Any]) -> LogtxError:
    """Waits until a producer learns that it was replaced; returns the error of `call`."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            call()
        except ProducerFencedError as error:
            return error
        time.sleep(0.01)
    raise AssertionError("it is not fenced")


@pytest.mark.usefixtures("coordinator")
def test_read_process_write_under_a_key(memory_log: MemoryLog, producers: Producers) -> None:
    source = logtx.Producer({"bootstrap.servers": memory_log.bootstrap_servers})
    for i in range(4):
        source.produce("in", b"%d" % i)
    source.close()
    worker = producers()
    settings = {"group.id": "workers", "offsets.storage": "transactions"}
    with consumer(memory_log, "in", **settings) as reading:
        for _ in range(2):
            block = [m for _ in range(2) if (m := reading.poll(5)) is not None]
            with worker.begin_transaction() as txn:
                for message in block:
                    txn.produce("out", message.value())
                txn.send_offsets(reading)
            assert txn.txid.partition == journal_partition_of(NAME, PARTITIONS)
    assert read(memory_log, 4) == [b"0", b"1", b"2", b"3"]
    # The consumer group is bound to the transaction group of the key.
    with producers("other").begin_transaction() as txn:
        with pytest.raises(GroupBoundError, match="&default&k"):
            txn.send_offsets("workers", [])
        txn.abort()


@pytest.mark.usefixtures("coordinator")
def test_one_open_transaction_at_a_time(producers: Producers) -> None:
    producer = producers()
    first = producer.begin_transaction()
    with pytest.raises(ConcurrentTransactionsError):
        producer.begin_transaction()
    first.produce("out", b"1")
    ended = first.commit_async()
    with producer.begin_transaction() as second:  # waits for the decision
        second.produce("out", b"2")
    assert ended.result(TIMEOUT_S).state.commits
    with producers("of another key").begin_transaction() as third:
        third.produce("out", b"3")


@pytest.mark.usefixtures("coordinator")
def test_a_newer_connection_takes_over(
    memory_log: MemoryLog, producers: Producers, admin: AdminQueries
) -> None:
    former, newer = producers(), producers()
    old = former.begin_transaction()
    old.produce("out", b"old")
    former.flush()
    lost = old.txid
    with newer.begin_transaction() as txn:
        txn.produce("out", b"new")
    assert isinstance(fenced(lambda: old.produce("out", b"late")), ExpiredTransactionError)
    with pytest.raises(ExpiredTransactionError):
        old.commit()
    with pytest.raises(ProducerFencedError):
        former.begin_transaction()
    assert admin.outcome(lost).state.aborts
    # A record that was on its way at the fencing lands behind the abort marker.
    raw = memory_log.producer({})
    raw.produce("out", b"late", None, 0, headers=[("TxId", lost.to_bytes())])
    raw.flush(5)
    assert read(memory_log, 1) == [b"new"]


def test_an_open_transaction_survives_the_coordinator(
    coordinator: EmbeddedCoordinator,
    memory_log: MemoryLog,
    producers: Producers,
    admin: AdminQueries,
) -> None:
    producer = producers()
    with producer.begin_transaction() as txn:
        txn.produce("out", b"1")
        txid = txn.txid
        coordinator.stop()
        coordinator.start()
    assert admin.outcome(txid).state.commits
    assert admin.get_key(NAME).epoch == 0, "the same connection, resumed"
    assert read(memory_log, 1) == [b"1"]


@pytest.mark.parametrize("end", [Node.leave, Node.kill], ids=["it leaves", "it is killed"])
def test_an_open_transaction_goes_on_at_another_coordinator(
    memory_log: MemoryLog, producers: Producers, admin: AdminQueries, end: Callable[[Node], None]
) -> None:
    memory_log.create_topic("out", partitions=1)
    with cluster_of(memory_log) as cluster:
        cluster.joined(2)
        former, producer = producers(), producers()
        former.init_transactions()
        with producer.begin_transaction() as txn:
            txn.produce("out", b"1")
            txid = txn.txid
            end(cluster.owner(txid.partition))
        assert admin.outcome(txid).state.commits
        assert admin.get_key(NAME).epoch == 1
        assert isinstance(fenced(former.begin_transaction), ProducerFencedError)


def test_two_of_one_key_reconnect_during_a_failover(
    coordinator: EmbeddedCoordinator, producers: Producers, admin: AdminQueries
) -> None:
    former = producers()
    old = former.begin_transaction()
    lost = old.txid
    coordinator.stop()
    newer = producers()
    coordinator.start()
    with newer.begin_transaction() as txn:
        txn.produce("out", b"new")
    assert isinstance(fenced(lambda: old.produce("out", b"late")), ExpiredTransactionError)
    assert admin.outcome(lost).state.aborts
    assert admin.get_key(NAME).epoch == 1


def test_a_deleted_key_starts_above_its_zombies(
    coordinator: EmbeddedCoordinator, producers: Producers, admin: AdminQueries
) -> None:
    for _ in range(3):
        zombie = producers()
        zombie.init_transactions()
    open_then = zombie.begin_transaction()
    lost: TxId = open_then.txid
    admin.delete_key(NAME)
    admin.delete_key(NAME)
    assert admin.outcome(lost).state.aborts
    assert isinstance(fenced(lambda: open_then.produce("out", b"x")), ExpiredTransactionError)
    with pytest.raises(UnknownKeyError):
        admin.get_key(NAME)
    with pytest.raises(UnknownKeyError):
        admin.delete_key(TransactionKey("default", "never").name)
    coordinator.stop()
    coordinator.start()
    newcomer = producers()
    with newcomer.begin_transaction() as txn:
        txn.produce("out", b"new")
    assert admin.get_key(NAME).epoch == 3, "and not 0 (trap 32)"


@pytest.mark.usefixtures("coordinator")
def test_what_operators_see_of_keys(producers: Producers, admin: AdminQueries) -> None:
    before_ms = time.time_ns() // 1_000_000
    txns = [producers(key).begin_transaction() for key in ("a", "b", "c")]
    names = [TransactionKey("default", key).name for key in ("a", "b", "c")]
    named = {name: txn.txid for name, txn in zip(names, txns, strict=True)}
    listed = [key for p in range(admin.partition_count()) for key in admin.list_keys(p)]
    assert {k.name: k.transactions for k in listed} == {n: (t,) for n, t in named.items()}
    assert all(k.connected_ms >= before_ms and k.epoch == 0 for k in listed)
    for name, txid in named.items():
        home = journal_partition_of(name, PARTITIONS)
        [info] = admin.list_transactions(home, producer_id=name, states=(State.OPEN,))
        assert info.txid == txid
        assert list(admin.list_transactions(home, producer_id=name, age_min_ms=3_600_000)) == []
        assert list(admin.list_transactions(home, producer_id=name, topic="nowhere")) == []
        assert list(admin.list_transactions(home, states=(State.COMMITTING,))) == []
        assert admin.abort(txid).state is State.ABORTING
        assert admin.abort(txid).state.aborts, "a repeat is a success"
