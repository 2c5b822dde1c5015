"""An idempotent producer of librdkafka that stops for good: another takes its place."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from logtx.journal.errors import BrokerError, TransactionAbortOnlyError
from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.state import State
from logtx.producer.branch import Branch, Branches
from logtx.producer.producer import Producer
from logtx.producer.sender import Sender
from logtx.producer.transaction import Transaction

from ..conftest import MakeTopic
from ..waiting import eventually
from .conftest import MakeProducer, read_topic, use_transport
from .fake import FakeCoordinators

Stop = Callable[[Producer | Branches], None]


def sender_of(client: Producer | Branches) -> Sender:
    return client._sender if isinstance(client, Branches) else client._engine.sender


@pytest.fixture(params=["memory", "mock", "native"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a producer can be made to stop: a real broker has no reason to."""
    return use_transport(request.param, monkeypatch)


@pytest.fixture
def stop(log: Log) -> Stop:
    """Makes the librdkafka producer of a producer stop, with a fatal error."""

    def stop_memory(client: Producer | Branches) -> None:
        inner: Any = sender_of(client).producer
        inner.stopped = True

    def stop_librdkafka(client: Producer | Branches) -> None:
        folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
        library = ctypes.CDLL(str(next(folder.glob("librdkafka-*.so*"))))
        fail = library.rd_kafka_test_fatal_error
        fail.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
        # Of the C struct behind the object, librdkafka's handle is what follows Python's header.
        handle = ctypes.c_void_p.from_address(id(sender_of(client).producer) + 16)
        assert fail(handle, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, b"injected by a test") == 0

    return stop_memory if isinstance(log, MemoryLog) else stop_librdkafka


def until_committed(producer: Producer, topic: str, value: bytes) -> int:
    """Redoes a transaction as applications do. Returns how often it was aborted."""
    for attempt in range(10):
        try:
            with producer.begin_transaction() as txn:
                assert txn.txid
                txn.produce(topic, value, partition=0)
        except TransactionAbortOnlyError:
            continue
        return attempt
    raise AssertionError("no transaction commits any more")


def test_finding_25_a_producer_goes_on_after_a_fatal_error(
    make_producer: MakeProducer, make_topic: MakeTopic, log: Log, stop: Stop
) -> None:
    topic = make_topic()
    producer = make_producer()
    first = producer._engine.sender.producer
    assert until_committed(producer, topic, b"before") == 0
    with_a_record = producer.begin_transaction()
    with_a_record.produce(topic, b"aborted", partition=0)
    producer.flush(10)
    stop(producer)
    assert until_committed(producer, topic, b"after") <= 2
    with pytest.raises(TransactionAbortOnlyError, match="redo"):
        with_a_record.produce(topic, b"x", partition=0)
    with pytest.raises(TransactionAbortOnlyError, match="redo"):
        with_a_record.commit(10)
    with_a_record.abort(10)
    assert until_committed(producer, topic, b"later") == 0
    assert producer._engine.sender.producer is not first
    eventually(lambda: not producer._engine.sender.thread._producers.stopped)
    values = [m.value() for m in read_topic(log, topic)]
    assert [v for v in values if v in (b"before", b"after", b"later")] == [
        b"before",
        b"after",
        b"later",
    ]


@pytest.mark.parametrize("transport", ["native"], indirect=True)
def test_what_has_no_records_yet_is_watched_by_the_next_one(
    make_producer: MakeProducer, make_topic: MakeTopic, stop: Stop
) -> None:
    topic = make_topic()
    producer = make_producer(transaction__begin__ahead=False)
    sender = producer._engine.sender
    former = sender.thread._producers.present.handle
    assert former is not None
    unused = producer.begin_transaction(current=False)
    assert unused.txid
    assert former.size == 1
    stop(producer)
    assert until_committed(producer, topic, b"after") <= 2
    eventually(lambda: not sender.thread._producers.stopped)
    assert sender.thread._producers.present.handle is not None
    assert sender.thread._producers.present.handle is not former
    assert (former.size, sender.thread._producers.present.handle.size) == (0, 1)
    for _ in range(200):
        unused.produce(topic, b"v", partition=0)
    assert sender.thread._producers.present.handle.busy == 1
    assert unused.commit(10).state is State.COMMITTED


def test_plain_records_go_on_after_a_fatal_error(
    make_producer: MakeProducer, make_topic: MakeTopic, log: Log, stop: Stop
) -> None:
    topic = make_topic()
    producer = make_producer()
    producer.produce(topic, b"before", partition=0)
    producer.flush(10)
    stop(producer)
    for value in (b"after", b"later"):
        producer.produce(topic, value, partition=0)
    assert producer.flush(10) == 0
    assert [m.value() for m in read_topic(log, topic)] == [b"before", b"after", b"later"]
    assert producer.poll(0) >= 0, "what was mended is not raised"


def test_records_of_the_one_that_stopped_are_told(
    memory_log: MemoryLog, make_memory_producer: MakeProducer
) -> None:
    memory_log.create_topic("t", partitions=1)
    memory_log.create_topic("held", partitions=1)
    producer = make_memory_producer()
    told: list[KafkaError | None] = []
    txn = producer.begin_transaction()
    assert txn.txid
    memory_log.hold_appends("held", 0)
    txn.produce("held", b"x", on_delivery=lambda error, _: told.append(error))
    future = txn.commit_async()
    memory_log.fail_appends("t", 0, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert until_committed(producer, "t", b"y") <= 2
    with pytest.raises(TransactionAbortOnlyError):
        future.result(5)
    assert producer.flush(5) == 0
    assert [error and error.code() for error in told] == [KafkaError._PURGE_INFLIGHT]


def test_a_lost_report_keeps_no_commit_waiting(
    memory_log: MemoryLog, make_memory_producer: MakeProducer
) -> None:
    """confluent-kafka calls us with its exception pending, so that anything in a report fails."""
    memory_log.create_topic("t", partitions=1)
    producer = make_memory_producer()
    txn = producer.begin_transaction()
    assert txn.txid
    memory_log.hold_appends("t", 0)
    txn.produce("t", b"x")
    inner: Any = producer._engine.sender.producer
    for pending in inner._unplaced.values():
        pending.callback = None
    future = txn.commit_async()
    inner.stopped = True
    memory_log.create_topic("other", partitions=1)
    assert until_committed(producer, "other", b"y") <= 2
    with pytest.raises(TransactionAbortOnlyError, match="stopped for good"):
        future.result(5)
    txn.abort(5)


def test_branches_go_on_after_a_fatal_error(
    log: Log,
    coordinators: FakeCoordinators,
    make_producer: MakeProducer,
    make_topic: MakeTopic,
    stop: Stop,
) -> None:
    topic = make_topic()
    settings = {"coordinator.timeout.ms": 2_000}
    producer = make_producer()
    txn = producer.begin_transaction()
    assert txn.txid
    stop(producer)
    branches = Branches(settings, log=log, coordinators=coordinators)
    assert one_finishes(txn, topic, txn.branch) <= 1
    stop(branches)
    assert one_finishes(txn, topic, lambda: branches.join(txn.branch_token())) <= 1
    branches.close()
    txn.commit(10)
    records = coordinators.transactions[txn.txid].writes[topic, 0]
    assert [written.count for written in records] == [1, 1]


def one_finishes(txn: Transaction, topic: str, make: Callable[[], Branch]) -> int:
    """Does a task again until it succeeds. Returns how often it failed."""
    for attempt in range(10):
        try:
            with make() as branch:
                branch.produce(topic, b"x", partition=0)
                txn.accept(branch.finish(5))
        except (TransactionAbortOnlyError, BrokerError):
            continue
        return attempt
    raise AssertionError("no branch finishes any more")


def test_credentials_and_callbacks_are_those_of_the_one_before(
    memory_log: MemoryLog, make_memory_producer: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_log.create_topic("t", partitions=1)
    given: list[tuple[object, str, str]] = []
    monkeypatch.setattr(
        "logtx.journal.logs.memory.producer.MemoryProducer.set_sasl_credentials",
        lambda inner, user, password: given.append((inner, user, password)),
    )
    producer = make_memory_producer()
    inner: Any = producer._engine.sender.producer
    producer.set_sasl_credentials("u", "p")
    inner.stopped = True
    producer.produce("t", b"x")
    other = producer._engine.sender.producer
    assert given == [(inner, "u", "p"), (other, "u", "p")]


def test_one_that_can_not_be_replaced_says_so(
    memory_log: MemoryLog, make_memory_producer: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_log.create_topic("t", partitions=1)
    producer = make_memory_producer()
    inner: Any = producer._engine.sender.producer

    def refuse(_: object) -> object:
        raise BrokerError("no more threads")

    monkeypatch.setattr(producer._engine.sender.thread._producers, "_make", refuse)
    inner.stopped = True
    with pytest.raises(confluent_kafka.KafkaException, match="Fatal"):
        producer.produce("t", b"x")
    monkeypatch.undo()
    producer.produce("t", b"x")
    assert producer.flush(5) == 0


def test_a_cause_that_lasts_is_told_and_makes_no_producers_without_end(
    make_producer: MakeProducer,
    make_topic: MakeTopic,
    stop: Stop,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic()
    producer = make_producer()
    stop(producer)
    assert until_committed(producer, topic, b"x") <= 2
    another = producer._engine.sender.producer
    stop(producer)

    def write() -> None:
        for _ in range(3):
            producer.produce(topic, b"plain", partition=0)
            producer.flush(1)

    with pytest.raises(confluent_kafka.KafkaException) as caught:
        write()
    code = caught.value.args[0].code()
    assert code in (KafkaError._FATAL, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert producer._engine.sender.producer is another
    monkeypatch.setattr(producer._engine.sender.thread._producers, "_next_replacement_s", 0.0)
    assert until_committed(producer, topic, b"y") <= 2
