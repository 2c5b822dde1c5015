"""Records that librdkafka sends again as new ones, for another one failed (trap 295)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient, NewTopic

from logtx.integration.local.cluster import LocalCluster
from logtx.journal.errors import TransactionAbortOnlyError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.logs.open import open_log
from logtx.journal.state import State
from logtx.producer.producer import Producer
from logtx.producer.transaction import Transaction

from ..muted import Muted
from ..waiting import eventually
from .conftest import MakeProducer, count_in_c
from .fake import FakeCoordinators

T = "t"


@pytest.fixture
def producer(memory_log: MemoryLog, make_memory_producer: MakeProducer) -> Producer:
    memory_log.create_topic(T, partitions=2)
    return make_memory_producer()


def written(log: MemoryLog) -> list[bytes | None]:
    found = log.find_partition(T, 0)
    assert found is not None
    return [value for _, value, *_ in found.records]


def is_written(log: MemoryLog, values: list[bytes | None]) -> bool:
    return written(log) == values


def unanswered(producer: Producer, log: MemoryLog) -> Transaction:
    """Returns a transaction with a record that is written, and will be sent again."""
    log.lose_answers(T, 0)
    txn = producer.begin_transaction()
    txn.produce(T, b"there", partition=0)
    eventually(lambda: written(log) == [b"there"])
    return txn


def check_refuses(txn: Transaction) -> None:
    with pytest.raises(TransactionAbortOnlyError) as caught:
        txn.commit()
    assert "may lie there twice" in str(caught.value.__cause__)
    assert txn.abort().state is State.ABORTED


def test_what_is_known_again_commits(
    producer: Producer, memory_log: MemoryLog, coordinators: FakeCoordinators
) -> None:
    txn = unanswered(producer, memory_log)
    assert txn.commit().state is State.COMMITTED
    assert written(memory_log) == [b"there"]
    ((_, (range_,)),) = coordinators.transactions[txn.txid].writes.items()
    assert (range_.first_offset, range_.last_offset, range_.count) == (0, 0, 1)


@pytest.mark.parametrize("kind", ["transaction", "plain", "plain with a callback", "branch"])
def test_trap_295_behind_any_failure_it_does_not_commit(
    producer: Producer, memory_log: MemoryLog, kind: str
) -> None:
    txn = unanswered(producer, memory_log)
    memory_log.fail_appends(T, 1, KafkaError.MSG_SIZE_TOO_LARGE)
    other = producer.begin_transaction()
    if kind == "transaction":
        other.produce(T, b"refused", partition=1)
    elif kind == "branch":
        other.branch().produce(T, b"refused", partition=1)
    else:
        told: list[Any] = []
        callback = (lambda *report: told.append(report)) if "callback" in kind else None
        producer._engine.sender.produce_plainly(T, b"refused", None, 1, callback, 0, None)
    check_refuses(txn)
    assert written(memory_log) == [b"there", b"there"]
    other.abort()
    with producer.begin_transaction() as again:
        again.produce(T, b"again", partition=0)
    assert again.is_decided


def test_trap_295_plain_records_under_way_may_have_failed_unseen(
    producer: Producer, memory_log: MemoryLog
) -> None:
    """Nobody took their reports, for there was no transaction yet."""
    memory_log.hold_appends(T, 1)
    producer.produce(T, b"refused", partition=1)
    assert producer._engine.sender._unseen_until_s
    txn = unanswered(producer, memory_log)
    memory_log.fail_appends(T, 1, KafkaError.MSG_SIZE_TOO_LARGE)
    memory_log.release_appends(T, 1)
    check_refuses(txn)


def test_plain_records_that_were_reported_spoil_nothing(
    producer: Producer, memory_log: MemoryLog
) -> None:
    producer.produce(T, b"plain", partition=1)
    assert producer.flush(5) == 0
    memory_log.hold_appends(T, 0)
    txn = producer.begin_transaction()
    txn.produce(T, b"late", partition=0)
    time.sleep(0.1)
    memory_log.release_appends(T, 0)
    assert txn.commit().state is State.COMMITTED
    assert not producer._engine.sender._unseen_until_s


def test_trap_295_a_plain_record_may_be_reported_behind_its_time(
    memory_log: MemoryLog, make_memory_producer: MakeProducer
) -> None:
    memory_log.create_topic(T, partitions=2)
    producer = make_memory_producer(delivery__timeout__ms=100)
    memory_log.hold_appends(T, 1)
    producer.produce(T, b"plain", partition=1)
    left_s = producer._engine.sender._unseen_until_s - time.monotonic()
    assert left_s > 0.1 + 5


def test_trap_295_a_transaction_that_begins_while_a_plain_record_is_sent(
    producer: Producer, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds nothing under way, and the record goes unseen all the same."""
    begun: list[Transaction] = []
    sender = producer._engine.sender
    goes = sender._may_go_unseen

    def begins(until_s: float) -> bool:
        unseen = goes(until_s)
        if not begun:
            begun.append(producer.begin_transaction())
            assert begun[0].txid
        return unseen

    monkeypatch.setattr(sender, "_may_go_unseen", begins)
    memory_log.hold_appends(T, 1)
    producer.produce(T, b"refused", partition=1)
    memory_log.lose_answers(T, 0)
    begun[0].produce(T, b"there", partition=0)
    eventually(lambda: written(memory_log) == [b"there"])
    memory_log.fail_appends(T, 1, KafkaError.MSG_SIZE_TOO_LARGE)
    memory_log.release_appends(T, 1)
    check_refuses(begun[0])


@pytest.mark.parametrize("how", ["purged", "timed out"])
def test_trap_295_behind_what_fails_without_a_broker(
    memory_log: MemoryLog, make_memory_producer: MakeProducer, how: str
) -> None:
    """The next record of that partition brings a new epoch, and no report tells of it."""
    memory_log.create_topic(T, partitions=2)
    producer = make_memory_producer(delivery__timeout__ms=400)
    thread = producer._engine.sender.thread
    thread._producers._next_retirement_s = time.monotonic() + 600
    open_one = producer.begin_transaction()
    assert open_one.txid
    memory_log.unavailable()
    producer._engine.sender.produce_plainly(T, b"lost", None, 1, lambda *_: None, 0, None)
    if how == "purged":
        producer.purge()
    assert producer.flush(5) == 0
    memory_log.unavailable(False)
    for txn in (open_one, producer.begin_transaction()):
        values = [*written(memory_log), b"there"]
        memory_log.lose_answers(T, 0)
        txn.produce(T, b"there", partition=0)
        eventually(partial(is_written, memory_log, values))
        producer._engine.sender.produce_plainly(T, b"gap", None, 1, lambda *_: None, 0, None)
        check_refuses(txn)


def test_a_setting_says_how_long_librdkafka_waits(make_memory_producer: MakeProducer) -> None:
    producer = make_memory_producer(retry__backoff__ms="02000", retry__backoff__max__ms=400)
    assert producer._engine.sender.thread.refusals.failures._retried_s == 0.3
    # librdkafka would take it for an octal number.
    assert producer._engine.config.librdkafka["retry.backoff.ms"] == 2_000


# ---- real brokers --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Muted]]:
    """(bootstrap servers by the ways, and without, the way to the first one).

    Topic t is at that one, and topic small at the other.
    """
    with Muted() as way, Muted() as other:
        ports = {1: way.port, 2: other.port}
        folder: Path = tmp_path_factory.mktemp("brokers")
        with LocalCluster(folder, brokers=2, advertised_client_ports=ports) as cluster:
            way.broker_port = cluster.broker(1).client_port
            other.broker_port = cluster.broker(2).client_port
            servers = cluster.bootstrap_servers
            topics = [
                NewTopic(T, num_partitions=1, replica_assignment=[[1]]),
                NewTopic(
                    "small",
                    num_partitions=1,
                    replica_assignment=[[2]],
                    config={"max.message.bytes": "500"},
                ),
            ]
            admin = AdminClient({"bootstrap.servers": servers})
            for made in admin.create_topics(topics).values():
                made.result(30)
            yield servers, cluster.direct_servers, way


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.parametrize("is_counted", [False, True], ids=["python", "native"])
@pytest.mark.parametrize("fails", [False, True], ids=["known", "anew"])
def test_trap_295_on_real_brokers(
    two_brokers: tuple[str, str, Muted],
    coordinators: FakeCoordinators,
    monkeypatch: pytest.MonkeyPatch,
    is_counted: bool,
    fails: bool,
) -> None:
    servers, direct_servers, way = two_brokers
    if is_counted:
        count_in_c(monkeypatch)
    log, direct = (open_log({"bootstrap.servers": each}) for each in (servers, direct_servers))
    with Producer({"transactional.id": "p"}, log=log, coordinators=coordinators) as producer:
        with producer.begin_transaction() as first:
            for topic in (T, "small"):
                first.produce(topic, b"warm")
        begins = direct.end_offset(T, 0)
        txn = producer.begin_transaction()
        txn.produce(T, b"first")
        way.is_muted = True
        txn.produce(T, b"second")
        eventually(lambda: direct.end_offset(T, 0) == begins + 2)
        if fails:
            other = producer.begin_transaction()
            other.produce("small", b"x" * 1_000)
            with pytest.raises(TransactionAbortOnlyError):
                other.commit()
            other.abort()
        way.cut()
        if fails:
            check_refuses(txn)
        else:
            assert txn.commit().state is State.COMMITTED
    assert (direct.end_offset(T, 0) > begins + 2) == fails, "that is what happened"
    log.close()
    direct.close()
