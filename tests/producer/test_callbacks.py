"""What the callbacks of an application may do: no wait of theirs stops the producer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing

import pytest

from logtx.coordinator.protocol.commands import Outcome
from logtx.journal.errors import LogtxError, TransactionStateError
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.state import State
from logtx.producer.producer import Producer
from logtx.producer.transaction import Transaction

from ..waiting import eventually
from .conftest import MakeProducer, read_topic
from .fake import FakeCoordinators


@pytest.fixture
def producer(memory_log: MemoryLog, make_memory_producer: MakeProducer) -> Producer:
    memory_log.create_topic("t", partitions=1)
    return make_memory_producer(transaction__begin__ahead=False)


def write(producer: Producer, value: bytes) -> None:
    with producer.begin_transaction() as txn:
        txn.produce("t", value)


def test_finding_13_a_futures_callback_may_do_a_transaction(
    producer: Producer, memory_log: MemoryLog
) -> None:
    in_callback, may_go_on, told = threading.Event(), threading.Event(), Future[None]()

    def next_one(_: Future[Outcome]) -> None:
        try:
            in_callback.set()
            assert may_go_on.wait(10)
            write(producer, b"in the callback")
            told.set_result(None)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test tells it
            told.set_exception(error)

    first = producer.begin_transaction()
    first.produce("t", b"first")
    first.commit_async().add_done_callback(next_one)
    assert in_callback.wait(10)
    write(producer, b"meanwhile")
    may_go_on.set()
    told.result(10)
    assert [m.value() for m in read_topic(memory_log, "t")] == [
        b"first",
        b"meanwhile",
        b"in the callback",
    ]


def test_callbacks_of_futures_come_in_order_whatever_they_raise(
    producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[object] = []

    def callback(future: Future[Outcome]) -> None:
        called.append(future.exception() or future.result().txid)
        raise SystemExit("the application's mistake")

    transactions = [producer.begin_transaction() for _ in range(5)]
    for transaction in transactions:
        transaction.commit_async().add_done_callback(callback)
    eventually(lambda: len(called) == 5)
    assert called == [t.txid for t in transactions]
    # Done already, or refused: a callback is called all the same, on the same thread.
    transactions[0].commit_async().add_done_callback(callback)
    transactions[0].abort_async().add_done_callback(callback)
    eventually(lambda: len(called) == 7)
    assert isinstance(called[-1], LogtxError)
    assert "the application's mistake" in caplog.text


def test_the_thread_of_callbacks_ends(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logtx.producer.futures._IDLE_S", 0.01)
    for _ in range(2):
        called = threading.Event()
        txn = producer.begin_transaction()
        txn.commit_async().add_done_callback(lambda _, c=called: c.set())  # type: ignore[misc]
        assert called.wait(10)
        eventually(lambda: "logtx-callbacks" not in {t.name for t in threading.enumerate()})


def commit_another(producer: Producer, _: Transaction) -> None:
    write(producer, b"another")


def commit_its_own(_: Producer, txn: Transaction) -> None:
    txn.commit()


def abort_its_own(_: Producer, txn: Transaction) -> None:
    txn.abort()


def finish_a_branch(_: Producer, txn: Transaction) -> None:
    with txn.branch() as branch:
        branch.produce("t", b"of a branch")
        branch.finish()


def close(producer: Producer, _: Transaction) -> None:
    producer.close()


@pytest.mark.parametrize(
    "call", [commit_another, commit_its_own, abort_its_own, finish_a_branch, close]
)
def test_finding_13_a_delivery_callback_is_refused_what_would_wait_for_its_own_thread(
    call: Callable[[Producer, Transaction], None], producer: Producer
) -> None:
    told: list[object] = []

    def on_delivery(_: object, __: object) -> None:
        began_s = time.monotonic()
        try:
            call(producer, txn)
        except LogtxError as error:
            told.append(error)
        told.append(time.monotonic() - began_s)

    txn = producer.begin_transaction()
    assert txn.txid
    txn.produce("t", b"x", on_delivery=on_delivery)
    producer.flush(10)
    error, took_s = told
    assert isinstance(error, TransactionStateError)
    assert "delivery callback" in str(error)
    assert isinstance(took_s, float)
    assert took_s < 0.5
    write(producer, b"the producer goes on")
    if call in (abort_its_own, finish_a_branch):
        assert txn.abort()
    else:
        assert txn.commit()


def test_a_delivery_callback_may_ask_for_the_commit(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    asked = Future[Future[Outcome]]()
    txn = producer.begin_transaction()
    assert txn.txid
    txn.produce("t", b"x", on_delivery=lambda _, __: asked.set_result(txn.commit_async()))
    assert asked.result(10).result(10).txid == txn.txid
    assert coordinators.transactions[txn.txid].state is State.COMMITTED


def test_a_delivery_callback_does_not_wait_for_a_place(
    memory_log: MemoryLog, make_memory_producer: MakeProducer
) -> None:
    memory_log.create_topic("t", partitions=1)
    producer = make_memory_producer(transactions__in__flight__max=1)
    told: list[object] = []

    def on_delivery(_: object, __: object) -> None:
        with pytest.raises(TransactionStateError, match=r"in\.flight"):
            producer.begin_transaction()
        told.append(None)

    txn = producer.begin_transaction()
    txn.produce("t", b"x", on_delivery=on_delivery)
    producer.flush(10)
    txn.commit()
    assert told == [None]


def test_what_other_callbacks_raise_breaks_no_report(
    mock_cluster: str, coordinators: FakeCoordinators
) -> None:
    called: list[str] = []

    def stats_cb(told: str) -> None:
        called.append(told)
        raise ZeroDivisionError

    config = {"transactional.id": "p", "statistics.interval.ms": 20, "stats_cb": stats_cb}
    with closing(KafkaLog({"bootstrap.servers": mock_cluster})) as log:
        log.create_topic("statistics", partitions=1)
        with Producer(config, log=log, coordinators=coordinators) as producer:
            for _ in range(50):
                with producer.begin_transaction() as txn:
                    txn.produce("statistics", b"x")
            with pytest.raises(ZeroDivisionError):
                producer.poll(1)
    assert called
