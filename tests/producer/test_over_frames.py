"""Producers and a real coordinator over frames, on each transport."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Message

from logtx.consumer.consumer import Consumer
from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.integration.testing import Cluster
from logtx.journal.control import BranchRange, Marker, decode_control
from logtx.journal.errors import (
    CoordinatorNotAvailableError,
    GroupBoundError,
    OffsetsConflictError,
    ProducerFencedError,
    TransactionAbortedError,
    UnsupportedTopicError,
)
from logtx.journal.logs.interface import Log
from logtx.journal.position import Place, Position
from logtx.journal.records.types import OffsetStep
from logtx.journal.state import State
from logtx.journal.txid import TxId
from logtx.producer.branch import Branch
from logtx.producer.producer import Producer

from ..conftest import MakeTopic
from ..parameters import SLOW_KAFKA
from ..waiting import eventually
from .conftest import ReadAll, read_topic


@pytest.fixture
def coordinator(log: Log) -> Iterator[EmbeddedCoordinator]:
    """A coordinator of that log."""
    with embedded(log) as running:
        yield running


def embedded(log: Log) -> EmbeddedCoordinator:
    config = CoordinatorConfig(
        bootstrap_servers=log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=4,
        limits=ShardConfig(session_grace_ms=300),
    )
    # It opens the log anew, for it closes what it has; in memory the name leads to the same.
    return EmbeddedCoordinator(config)


def producer_on(log: Log, **settings: Any) -> Producer:
    dotted = {name.replace("__", "."): value for name, value in settings.items()}
    return Producer({"coordinator.timeout.ms": 10_000, **dotted}, log=log)


def marker_of(message: Message) -> tuple[TxId, Marker] | None:
    headers = dict(message.headers() or [])
    if "TxCtl" not in headers:
        return None
    control = decode_control(headers["TxCtl"])
    return (TxId.from_bytes(headers["TxId"]), control) if isinstance(control, Marker) else None


def markers(log: Log, topic: str, partitions: int, wanted: int) -> list[tuple[TxId, Marker]]:
    found: list[tuple[TxId, Marker]] = []

    def read() -> bool:
        nonlocal found
        found = [m for r in read_topic(log, topic, partitions) if (m := marker_of(r))]
        return len(found) >= wanted

    eventually(read, 10)
    return found


@pytest.mark.usefixtures("coordinator")
def test_markers_state_what_was_written(log: Log, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    with producer_on(log) as producer:
        with producer.begin_transaction() as txn:
            for i in range(6):
                txn.produce(topic, b"%d" % i, partition=i % 2)
        outcome = producer.outcome(txn.txid)
        assert outcome.state.commits
        with producer.begin_transaction() as other:
            other.produce(topic, b"no", partition=0)
            other.abort()
    found = markers(log, topic, 2, 3)
    assert Counter(txid for txid, _ in found) == {txn.txid: 2, other.txid: 1}
    for txid, marker in found:
        if txid == txn.txid:
            assert marker.committed
            assert marker.branches == (BranchRange(0, 0, 2, 3),)
            assert marker.commit_sequence == outcome.commit_sequence
        else:
            assert not marker.committed


@pytest.mark.usefixtures("coordinator")
def test_what_is_finished_has_its_markers(log: Log, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    with producer_on(log) as producer:
        for written in range(1, 4):
            txn = producer.begin_transaction()
            for number in range(2):
                txn.produce(topic, b"x", partition=number)
            assert txn.commit(finished=True).state is State.COMMITTED
            found = [m for r in read_topic(log, topic, 2) if (m := marker_of(r))]
            assert len(found) == 2 * written
        futures = []
        for _ in range(50):
            txn = producer.begin_transaction()
            txn.produce(topic, b"x", partition=0)
            futures.append(txn.commit_async(finished=True))
        assert {f.result(20).state for f in futures} == {State.COMMITTED}


@pytest.mark.usefixtures("coordinator")
def test_many_in_flight_from_one_thread(log: Log, make_topic: MakeTopic, read_all: ReadAll) -> None:
    topic = make_topic(partitions=2)
    with producer_on(log) as producer:
        futures = []
        for i in range(300):
            txn = producer.begin_transaction()
            txn.produce(topic, b"%d" % i, partition=0)
            txn.produce(topic, b"%d" % i, partition=1)
            futures.append(txn.commit_async())
        outcomes = [f.result(20) for f in futures]
    assert all(o.state.commits for o in outcomes)
    assert len({o.commit_sequence for o in outcomes}) == 300
    values = Counter(m.value() for m in read_all(topic, 2) if marker_of(m) is None)
    assert values == {b"%d" % i: 2 for i in range(300)}


@pytest.mark.usefixtures("coordinator")
def test_a_branch_of_another_process(log: Log, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with producer_on(log) as producer:
        txn = producer.begin_transaction()
        config = {"partition.registration.delay.ms": 0, "coordinator.timeout.ms": 5_000}
        with Branch.join(config, txn.branch_token(), log=log) as branch:
            for _ in range(3):
                branch.produce(topic, b"x", partition=0)
            summary = branch.finish()
        txn.accept(summary)
        txn.commit()
    ((_, marker),) = markers(log, topic, 1, 1)
    assert marker.branches == (BranchRange(summary.branch, 0, 2, 3),)


@pytest.mark.usefixtures("coordinator")
def test_a_newer_producer_fences_the_older(log: Log, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with producer_on(log, transactional__id="w") as older:
        txn = older.begin_transaction()
        txn.produce(topic, b"zombie", partition=0)
        assert txn.txid
        with producer_on(log, transactional__id="w") as newer:
            newer.init_transactions()
            with pytest.raises(ProducerFencedError):
                txn.commit()
            with pytest.raises(ProducerFencedError):
                older.begin_transaction()
            with newer.begin_transaction() as next_one:
                next_one.produce(topic, b"alive", partition=0)
            assert newer.outcome(txn.txid).state.aborts


@pytest.mark.usefixtures("coordinator")
def test_an_expired_transaction(log: Log, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with producer_on(log) as producer:
        txn = producer.begin_transaction(timeout=0.1)
        txn.produce(topic, b"x", partition=0)
        txid = txn.txid
        eventually(lambda: producer.outcome(txid).state.aborts)
        with pytest.raises(TransactionAbortedError):
            txn.commit()
        producer.begin_transaction().commit()


@pytest.mark.usefixtures("coordinator")
@pytest.mark.parametrize("by", ["time-out", "operator"])
def test_trap_52_an_abort_is_told_without_a_request(
    by: str, log: Log, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    settings = {"partition.registration.delay.ms": 60_000, "coordinator.timeout.ms": 10_000}
    with Producer(settings, log=log) as producer:
        txn = producer.begin_transaction(timeout=0.2 if by == "time-out" else 60)
        txn.produce(topic, b"x", partition=0)
        if by == "operator":
            with closing(AdminQueries(log)) as admin:
                admin.abort(txn.txid)
        eventually(lambda: txn.is_decided)
        with pytest.raises(
            TransactionAbortedError, match="longer than" if by == "time-out" else by
        ):
            txn.produce(topic, b"late", partition=0)
        producer.begin_transaction().commit()


@pytest.mark.usefixtures("coordinator")
def test_offsets_are_compared_when_the_commit_is_decided(log: Log, unique: Any) -> None:
    group, source = unique("group"), unique("in")
    log.create_topic(source, partitions=1)

    def step(at: int | None, to: int) -> list[OffsetStep]:
        return [OffsetStep(source, 0, None if at is None else Place(at), Position.at(to))]

    with producer_on(log) as producer:
        first, second = producer.begin_transaction(), producer.begin_transaction()
        first.send_offsets(group, step(None, 3))
        second.send_offsets(group, step(3, 7))
        # The second goes on from the first, and waits for its decision.
        futures = [second.commit_async(), first.commit_async()]
        assert all(f.result(10).state.commits for f in futures)
        zombie = producer.begin_transaction()
        zombie.send_offsets(group, step(3, 5))
        with pytest.raises(OffsetsConflictError):
            zombie.commit()
        assert zombie.abort().state.aborts
        with producer_on(log, transaction__group="another") as other:
            txn = other.begin_transaction()
            with pytest.raises(GroupBoundError, match="default"):
                txn.send_offsets(group, step(7, 8))


@pytest.mark.usefixtures("coordinator")
def test_plain_offsets(log: Log, unique: Any) -> None:
    from confluent_kafka import TopicPartition

    group, source = unique("group"), unique("in")
    log.create_topic(source, partitions=1)
    with producer_on(log) as producer:
        for offset in (4, 9):
            producer.begin_transaction()
            producer.send_offsets_to_transaction([TopicPartition(source, 0, offset)], group)
            producer.commit_transaction()
    with producer_on(log) as later:
        later.begin_transaction()
        later.send_offsets_to_transaction([TopicPartition(source, 0, 12)], group)
        assert later.commit_transaction().state.commits


@pytest.mark.usefixtures("coordinator")
@pytest.mark.parametrize("transport", ["memory", SLOW_KAFKA], indirect=True)
def test_a_compacted_topic_is_refused(log: Log, unique: Any) -> None:
    topic = unique("compacted")
    log.create_topic(topic, partitions=1, settings={"cleanup.policy": "compact"})
    with producer_on(log) as producer:
        txn = producer.begin_transaction()
        txn.produce(topic, b"x", key=b"k", partition=0)
        with pytest.raises(UnsupportedTopicError):
            txn.commit()
        txn.abort()
        # Else its marker is tried for ever, and nothing behind it in the journal can be trimmed.
        log.delete_topic(topic)
        eventually(lambda: producer.outcome(txn.txid).state.finished, 60)


def test_commits_go_through_a_coordinators_restart(
    log: Log, make_topic: MakeTopic, coordinator: EmbeddedCoordinator
) -> None:
    topic = make_topic()
    with producer_on(log) as producer:
        transactions = []
        for i in range(20):
            txn = producer.begin_transaction()
            txn.produce(topic, b"%d" % i, partition=0)
            assert txn.txid
            transactions.append(txn)
        futures = [txn.commit_async() for txn in transactions[:10]]
        coordinator.stop()
        futures += [txn.commit_async() for txn in transactions[10:]]
        coordinator.start()
        assert all(f.result(20).state.commits for f in futures)
    wanted = {txn.txid for txn in transactions}
    # What the second run finds unfinished it marks again: some markers stand there twice.
    eventually(lambda: {txid for txid, _ in markers(log, topic, 1, 20)} == wanted)


@pytest.mark.usefixtures("coordinator")
def test_a_reader_gets_what_was_committed_and_accepted(
    log: Log, make_topic: MakeTopic, unique: Any
) -> None:
    topic = make_topic()
    with producer_on(log) as producer:
        held = producer.begin_transaction()
        held.produce(topic, b"never ended", partition=0)
        with producer.begin_transaction() as txn:
            txn.produce(topic, b"committed", partition=0)
            kept, stray = txn.branch(), txn.branch()
            kept.produce(topic, b"accepted", partition=0)
            stray.produce(topic, b"stray", partition=0)
            stray.finish()
            txn.accept(kept.finish())
        with producer.begin_transaction() as txn:
            txn.produce(topic, b"aborted", partition=0)
            txn.abort()
        with producer.begin_transaction() as txn:
            txn.produce(topic, b"last", partition=0)
        config = {"group.id": unique("group"), "auto.offset.reset": "earliest"}
        consumer = Consumer(config, log=log)
        consumer.subscribe([topic])
        found: list[bytes | None] = []

        def read() -> bool:
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None
                found.append(message.value())
            return found[-1:] == [b"last"]

        eventually(read, 20)
        consumer.close()
    assert found == [b"committed", b"accepted", b"last"]


def test_without_a_coordinator_in_bounded_time(log: Log) -> None:
    producer = producer_on(log, coordinator__timeout__ms=500)
    began_s = time.monotonic()
    with pytest.raises(CoordinatorNotAvailableError):
        producer.begin_transaction()
    assert time.monotonic() - began_s < 5
    producer.close()


def test_finding_11_equal_ids_of_two_transaction_groups_do_not_fence_each_other() -> None:
    # Its journal has one partition, so all groups share it.
    with closing(Cluster.in_memory()) as cluster:
        topic = cluster.topic()
        groups = ("audit", "risk")
        first, second = (
            cluster.producer(transactional_id="w", transaction_group=group) for group in groups
        )
        for producer in (first, second, first):
            with producer.begin_transaction() as txn:
                txn.produce(topic, b"v")
