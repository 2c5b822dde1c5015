"""A record times out: new transactions have another producer of librdkafka (trap 294)."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from confluent_kafka import KafkaError

from logtx.journal.errors import TransactionAbortOnlyError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.state import State
from logtx.producer import succession
from logtx.producer.producer import Producer
from logtx.producer.sender_thread import SenderThread
from logtx.producer.transaction import Transaction

from ..waiting import eventually
from .conftest import MakeProducer

T, OTHER = "t", "other"
SETTINGS = {"delivery__timeout__ms": 300, "transaction__begin__ahead": False}


@pytest.fixture
def producer(memory_log: MemoryLog, make_memory_producer: MakeProducer) -> Producer:
    """One that knows topic t, of which the leader has changed, and topic other."""
    for topic in (T, OTHER):
        memory_log.create_topic(topic, partitions=1)
    memory_log.elect(T, 0)
    made = make_memory_producer(**SETTINGS)
    commit(made, T)
    return made


def thread_of(producer: Producer) -> SenderThread:
    return producer._engine.sender.thread


def is_dropped(producer: Producer) -> bool:
    """Whether nothing writes through a retired one any more."""
    gc.collect()  # Errors and the frames that raised them hold transactions.
    return not thread_of(producer)._producers.retired


def commit(producer: Producer, topic: str, *, attempts: int = 1) -> None:
    for attempt in range(attempts):
        txn = producer.begin_transaction()
        txn.produce(topic, b"committed", partition=0)
        try:
            assert txn.commit().state is State.COMMITTED
        except TransactionAbortOnlyError:
            assert attempt + 1 < attempts
            txn.abort()
        else:
            return


def commit_in_the_new_topic(producer: Producer) -> None:
    """Does so at the second attempt: offsets that begin anew are refused once (trap 241)."""
    commit(producer, T, attempts=2)


def create_anew(log: MemoryLog) -> None:
    log.delete_topic(T)
    log.create_topic(T, partitions=1)


def time_out(producer: Producer) -> None:
    """Begins a transaction with a record for topic t, which times out."""
    txn = producer.begin_transaction()
    txn.produce(T, b"nowhere", partition=0)
    with pytest.raises(TransactionAbortOnlyError) as caught:
        txn.commit()
    assert "_MSG_TIMED_OUT" in str(caught.value.__cause__)
    txn.abort()


def retired(producer: Producer, log: MemoryLog) -> tuple[Any, Transaction]:
    """Lets a record time out while a transaction is open that has a record in topic other.

    Returns:
        The producer of librdkafka that was retired, and the transaction.
    """
    first = thread_of(producer).producer
    open_one = producer.begin_transaction()
    open_one.produce(OTHER, b"before", partition=0)
    create_anew(log)
    time_out(producer)
    eventually(lambda: thread_of(producer).producer is not first)
    return first, open_one


def written(log: MemoryLog, topic: str) -> list[bytes | None]:
    found = log.find_partition(topic, 0)
    assert found is not None
    return [value for _, value, *_ in found.records]


def test_trap_294_a_topic_that_is_created_anew_is_written_to_again(
    producer: Producer, memory_log: MemoryLog
) -> None:
    first = thread_of(producer).producer
    create_anew(memory_log)
    time_out(producer)
    eventually(lambda: thread_of(producer).producer is not first)
    commit_in_the_new_topic(producer)
    assert written(memory_log, T) == [b"committed"] * 2
    eventually(lambda: is_dropped(producer))


def test_trap_294_plain_records_go_there_again(producer: Producer, memory_log: MemoryLog) -> None:
    first = thread_of(producer).producer
    create_anew(memory_log)
    told: list[Any] = []
    sender = producer._engine.sender
    sender.produce_plainly(T, b"lost", None, 0, lambda *report: told.append(report), 0, None)
    assert producer.flush(5) == 0
    assert [error.code() for error, _ in told] == [KafkaError._MSG_TIMED_OUT]
    eventually(lambda: thread_of(producer).producer is not first)
    sender.produce_plainly(T, b"there", None, 0, None, 0, None)
    assert producer.flush(5) == 0
    assert written(memory_log, T) == [b"there"]


def test_transactions_that_are_open_go_on_through_the_retired_one(
    producer: Producer, memory_log: MemoryLog
) -> None:
    first, open_one = retired(producer, memory_log)
    commit_in_the_new_topic(producer)
    open_one.produce(OTHER, b"behind", partition=0)
    assert [each.producer for each in thread_of(producer)._producers.retired] == [first]
    assert open_one.commit().state is State.COMMITTED
    assert written(memory_log, OTHER) == [b"before", b"behind"]
    del open_one
    eventually(lambda: is_dropped(producer))


def test_plain_records_overtake_none_that_is_under_way(
    producer: Producer, memory_log: MemoryLog
) -> None:
    first, open_one = retired(producer, memory_log)
    sender = producer._engine.sender
    memory_log.hold_appends(OTHER, 0)
    open_one.produce(OTHER, b"held", partition=0)
    sender.produce_plainly(OTHER, b"plain", None, 0, None, 0, None)
    assert len(first) == 2
    memory_log.release_appends(OTHER, 0)
    eventually(lambda: not len(first))
    sender.produce_plainly(OTHER, b"later", None, 0, None, 0, None)
    assert producer.flush(5) == 0
    assert written(memory_log, OTHER) == [b"before", b"held", b"plain", b"later"]
    open_one.abort()


def test_a_retired_one_that_stops_aborts_what_writes_through_it(
    producer: Producer, memory_log: MemoryLog
) -> None:
    first, open_one = retired(producer, memory_log)
    first.stopped = True
    with pytest.raises(TransactionAbortOnlyError):
        open_one.produce(OTHER, b"behind", partition=0)
    open_one.abort()
    eventually(
        lambda: (
            not (thread_of(producer)._producers.retired or thread_of(producer)._producers.stopped)
        )
    )
    commit_in_the_new_topic(producer)


def test_other_causes_make_no_producers_without_end(
    producer: Producer, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as transactions are open, three are kept, and one is retired in ten seconds."""
    made = [thread_of(producer).producer]
    kept = []
    memory_log.lose_acknowledgements(T, 0, 100)
    for _ in range(3):
        kept.append(producer.begin_transaction())
        kept[-1].produce(OTHER, b"open", partition=0)
        time_out(producer)
        eventually(lambda: not thread_of(producer)._hurried)
    eventually(lambda: thread_of(producer).producer is not made[0])
    assert len(thread_of(producer)._producers.retired) == 1
    monkeypatch.setattr(succession, "_RETIRE_EVERY_S", 0.0)
    thread_of(producer)._producers._next_retirement_s = 0.0
    for _ in range(6):
        kept.append(producer.begin_transaction())
        kept[-1].produce(OTHER, b"open", partition=0)
        time_out(producer)
    eventually(lambda: len(thread_of(producer)._producers.retired) == 3)
    for each in kept:
        assert each.commit().state is State.COMMITTED


def test_a_close_gives_up_what_a_retired_one_has(producer: Producer, memory_log: MemoryLog) -> None:
    _, open_one = retired(producer, memory_log)
    memory_log.hold_appends(OTHER, 0)
    told: list[Any] = []
    open_one.produce(OTHER, b"held", partition=0, on_delivery=lambda *report: told.append(report))
    assert len(producer) == 1
    producer.close(0)
    assert [error.code() for error, _ in told] == [KafkaError._PURGE_INFLIGHT]
