"""Transactions on every transport: what they write, state and refuse."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import Counter
from concurrent.futures import wait

import pytest
from confluent_kafka import Message

from logtx.journal.control import BranchRange
from logtx.journal.errors import (
    ConfigError,
    OffsetsConflictError,
    TransactionAbortedError,
    TransactionAbortOnlyError,
    TransactionCommittedError,
    TransactionStateError,
)
from logtx.journal.logs.interface import Log
from logtx.journal.state import State
from logtx.journal.txid import TxId
from logtx.producer.transaction import Transaction

from ..conftest import MakeTopic
from ..waiting import eventually
from .conftest import MakeProducer, ReadAll, read_topic
from .fake import FakeCoordinators


def txid_of(message: Message) -> TxId | None:
    name, raw = (message.headers() or [("", None)])[0]
    return TxId.from_bytes(raw) if name == "TxId" else None


def _produce_and_divide(txn: Transaction, topic: str) -> None:
    txn.produce(topic, b"x", partition=0)
    raise ZeroDivisionError


def test_a_commit_states_what_was_written(
    make_producer: MakeProducer,
    make_topic: MakeTopic,
    coordinators: FakeCoordinators,
    read_all: ReadAll,
) -> None:
    topic = make_topic(partitions=2)
    producer = make_producer()
    with producer.begin_transaction() as txn:
        for i in range(10):
            txn.produce(topic, f"v{i}", partition=i % 2)
    known = coordinators.transactions[txn.txid]
    assert known.state is State.COMMITTED
    assert known.writes == {
        (topic, 0): (BranchRange(0, 0, 4, 5),),
        (topic, 1): (BranchRange(0, 0, 4, 5),),
    }
    messages = read_all(topic, 2)
    assert [m.value() for m in messages] == [b"v%d" % i for i in (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)]
    assert {txid_of(m) for m in messages} == {txn.txid}
    # An ordinary record carries this one header and nothing else.
    assert all(len(m.headers()) == 1 for m in messages)


def test_the_users_headers_follow_ours(
    make_producer: MakeProducer, make_topic: MakeTopic, read_all: ReadAll
) -> None:
    topic = make_topic()
    with make_producer().begin_transaction() as txn:
        txn.produce(topic, b"list", headers=[("a", b"1"), ("a", b"2")], partition=0)
        txn.produce(topic, b"dict", headers={"b": "text", "c": None}, partition=0)
        txn.produce(topic, b"none", headers=[], partition=0)
    ours = ("TxId", txn.txid.to_bytes())
    assert [m.headers() for m in read_all(topic)] == [
        [ours, ("a", b"1"), ("a", b"2")],
        [ours, ("b", b"text"), ("c", None)],
        [ours],
    ]


@pytest.mark.parametrize("name", ["TxId", "TxCtl"])
def test_our_headers_are_refused_from_the_user(
    make_memory_producer: MakeProducer, memory_log: object, name: str
) -> None:
    memory_log.create_topic("t", partitions=1)  # type: ignore[attr-defined]
    producer = make_memory_producer()
    txn = producer.begin_transaction()
    with pytest.raises(ConfigError, match=name):
        txn.produce("t", headers=[(name, b"x")])
    with pytest.raises(ConfigError, match=name):
        producer.produce("t", headers={name: b"x"})
    txn.produce("t", b"fine")
    assert txn.commit().state is State.COMMITTED


def test_an_abort_names_the_partitions(
    make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    topic = make_topic()
    txn = make_producer().begin_transaction()
    txn.produce(topic, b"x", partition=0)
    assert txn.abort().state.aborts
    assert coordinators.transactions[txn.txid].writes == {(topic, 0): ()}


def test_an_exception_aborts_and_stays(
    make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    topic = make_topic()
    producer = make_producer()
    txn = producer.begin_transaction()
    with pytest.raises(ZeroDivisionError), txn:
        _produce_and_divide(txn, topic)
    assert coordinators.transactions[txn.txid].state is State.ABORTED


def test_an_exception_stays_when_the_abort_fails(
    make_memory_producer: MakeProducer, coordinators: FakeCoordinators
) -> None:
    coordinators.lose_request("abort", 100)
    producer = make_memory_producer(coordinator__timeout__ms=200)
    with pytest.raises(ZeroDivisionError) as caught, producer.begin_transaction():
        raise ZeroDivisionError
    assert "abort was not confirmed" in caught.value.__notes__[0]


def test_a_block_that_ended_its_transaction_does_nothing_at_its_end(
    make_producer: MakeProducer, coordinators: FakeCoordinators
) -> None:
    with make_producer().begin_transaction() as txn:
        txn.abort()
    assert coordinators.count("commit") == 0


def test_repeats_and_contradictions(make_producer: MakeProducer, make_topic: MakeTopic) -> None:
    topic = make_topic()
    producer = make_producer()
    txn = producer.begin_transaction()
    txn.produce(topic, b"x", partition=0)
    outcome = txn.commit()
    assert txn.commit() == outcome
    assert txn.commit_async().result() == outcome
    with pytest.raises(TransactionCommittedError):
        txn.abort()
    with pytest.raises(TransactionStateError):
        txn.produce(topic, b"late", partition=0)

    txn = producer.begin_transaction()
    outcome = txn.abort()
    assert txn.abort() == outcome
    with pytest.raises(TransactionAbortedError):
        txn.commit()
    with pytest.raises(TransactionStateError):
        txn.produce(topic, b"late", partition=0)


def test_an_empty_transaction_commits(
    make_producer: MakeProducer, coordinators: FakeCoordinators
) -> None:
    with make_producer().begin_transaction() as txn:
        pass
    assert coordinators.transactions[txn.txid].writes == {}


@pytest.mark.parametrize("after_begun", [False, True])
def test_a_value_too_large_makes_abort_only_and_the_next_works(
    make_producer: MakeProducer,
    make_topic: MakeTopic,
    coordinators: FakeCoordinators,
    after_begun: bool,
) -> None:
    topic = make_topic()
    producer = make_producer(message__max__bytes=2_000)
    txn = producer.begin_transaction()
    if after_begun:
        assert txn.txid
        txn.produce(topic, b"first", partition=0)
        with pytest.raises(TransactionAbortOnlyError):
            txn.produce(topic, b"x" * 5_000, partition=0)
    else:
        held = coordinators.hold("begin")
        txn = producer.begin_transaction()
        txn.produce(topic, b"x" * 5_000, partition=0)  # Kept, as the TxId is not there yet.
        held.set()
    with pytest.raises(TransactionAbortOnlyError, match="too large"):
        txn.commit()
    assert txn.abort().state.aborts
    with producer.begin_transaction() as txn:
        txn.produce(topic, b"fine", partition=0)
    assert coordinators.transactions[txn.txid].state is State.COMMITTED


def test_a_bad_argument_is_the_callers_and_harms_nothing(
    make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    topic = make_topic()
    txn = make_producer().begin_transaction()
    assert txn.txid
    txn.produce(topic, b"one", partition=0)
    with pytest.raises((TypeError, AttributeError)):
        txn.produce(topic, 7)  # type: ignore[arg-type]
    txn.produce(topic, b"two", partition=0)
    txn.commit()
    assert coordinators.transactions[txn.txid].writes == {(topic, 0): (BranchRange(0, 0, 1, 2),)}


def test_hundreds_in_flight_from_one_thread(
    make_producer: MakeProducer,
    make_topic: MakeTopic,
    coordinators: FakeCoordinators,
    read_all: ReadAll,
) -> None:
    topic = make_topic(partitions=2)
    producer = make_producer()
    transactions = []
    for i in range(200):
        txn = producer.begin_transaction()
        txn.produce(topic, b"%d" % i, partition=0)
        txn.produce(topic, b"%d" % i, partition=1)
        transactions.append(txn)
    futures = [txn.commit_async() for txn in transactions]
    assert not wait(futures, timeout=20).not_done
    sequences = [f.result().commit_sequence for f in futures]
    assert len(set(sequences)) == 200
    counts = Counter(txid_of(m) for m in read_all(topic, 2))
    assert counts == {txn.txid: 2 for txn in transactions}
    for txn in transactions:
        writes = coordinators.transactions[txn.txid].writes
        assert {k: r[0].count for k, r in writes.items()} == {(topic, 0): 1, (topic, 1): 1}


def test_beginning_and_producing_do_not_wait_for_the_coordinator(
    make_producer: MakeProducer,
    make_topic: MakeTopic,
    coordinators: FakeCoordinators,
    read_all: ReadAll,
) -> None:
    topic = make_topic()
    producer = make_producer()
    held = coordinators.hold("begin")
    futures = []
    for i in range(50):
        txn = producer.begin_transaction()
        txn.produce(topic, b"%d" % i, partition=0)
        futures.append(txn.commit_async())
    assert not any(f.done() for f in futures)
    held.set()
    assert not wait(futures, timeout=10).not_done
    assert [m.value() for m in read_all(topic)] == [b"%d" % i for i in range(50)]


def test_more_than_is_kept_waits_for_the_txid(
    make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    topic = make_topic()
    producer = make_producer()
    held = coordinators.hold("begin")
    threading.Timer(0.2, held.set).start()
    with producer.begin_transaction() as txn:
        for i in range(3_000):
            txn.produce(topic, b"%d" % i, partition=0)
    assert coordinators.transactions[txn.txid].writes == {
        (topic, 0): (BranchRange(0, 0, 2_999, 3_000),)
    }


def test_order_is_kept_from_the_kept_records_to_the_direct_ones(
    make_producer: MakeProducer, make_topic: MakeTopic, read_all: ReadAll
) -> None:
    topic = make_topic()
    with make_producer().begin_transaction() as txn:
        for i in range(20_000):
            headers = [("h", b"")] if i % 7 == 0 else None
            txn.produce(topic, b"%d" % i, headers=headers, partition=0)
    assert [m.value() for m in read_all(topic)] == [b"%d" % i for i in range(20_000)]


def test_a_full_queue_is_waited_for(
    make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    topic = make_topic()
    producer = make_producer(queue__buffering__max__messages=50)
    with producer.begin_transaction() as txn:
        for i in range(1_000):
            txn.produce(topic, b"%d" % i, partition=0)
    (written,) = coordinators.transactions[txn.txid].writes[topic, 0]
    assert written.count == 1_000


def test_several_threads_write_into_one_transaction(
    make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    topic = make_topic(partitions=3)
    txn = make_producer().begin_transaction()
    threads = [
        threading.Thread(
            target=lambda: [txn.produce(topic, b"x", partition=i % 3) for i in range(3_000)]
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    txn.commit()
    writes = coordinators.transactions[txn.txid].writes
    assert {k: r[0].count for k, r in writes.items()} == {(topic, p): 4_000 for p in range(3)}


def test_a_produce_that_races_the_commit_is_in_it_or_refused(
    make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    topic = make_topic()
    producer = make_producer()
    for _ in range(20):
        txn = producer.begin_transaction()
        assert txn.txid
        taken = 0

        def work() -> None:
            nonlocal taken
            try:
                while True:
                    txn.produce(topic, b"x", partition=0)  # noqa: B023
                    taken += 1
            except TransactionStateError:
                return

        thread = threading.Thread(target=work)
        thread.start()
        eventually(lambda: taken > 50)  # noqa: B023
        txn.commit()
        thread.join()
        (written,) = coordinators.transactions[txn.txid].writes[topic, 0]
        assert written.count == taken


def test_partitions_of_a_long_transaction_are_registered_while_it_is_open(
    make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    topic = make_topic(partitions=2)
    txn = make_producer().begin_transaction()
    txn.produce(topic, b"x", partition=1)
    eventually(lambda: coordinators.transactions[txn.txid].partitions == {(topic, 1)})
    txn.produce(topic, b"x", partition=0)
    eventually(lambda: len(coordinators.transactions[txn.txid].partitions) == 2)
    txn.commit()
    assert coordinators.count("add_partitions") == 2


def test_a_registration_that_was_not_answered_is_sent_again(
    make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    topic = make_topic()
    coordinators.lose_request("add_partitions", 2)
    txn = make_producer().begin_transaction()
    txn.produce(topic, b"x", partition=0)
    eventually(lambda: coordinators.transactions[txn.txid].partitions == {(topic, 0)})
    assert coordinators.count("add_partitions") == 3
    txn.commit()


@pytest.mark.parametrize("delay_ms", [0, 20])
def test_each_of_many_open_transactions_registers_its_partitions_and_its_branches(
    make_producer: MakeProducer,
    make_topic: MakeTopic,
    coordinators: FakeCoordinators,
    delay_ms: int,
) -> None:
    topic = make_topic(partitions=3)
    producer = make_producer(partition__registration__delay__ms=delay_ms)
    opened = [producer.begin_transaction() for _ in range(20)]
    for number, txn in enumerate(opened):
        txn.produce(topic, b"x", partition=number % 2)
        txn.branch().produce(topic, b"x", partition=2)
    for number, txn in enumerate(opened):
        written = {(topic, number % 2), (topic, 2)}
        known = coordinators.transactions[txn.txid]
        eventually(lambda: known.partitions == written)  # noqa: B023
        txn.abort()


def test_a_commit_that_failed_leaves_a_transaction_that_registers_its_partitions(
    make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    topic = make_topic()
    # Past the first look at it, which comes while the commit waits for an answer.
    producer = make_producer(partition__registration__delay__ms=20)
    txn = producer.begin_transaction()
    held = coordinators.hold("commit")
    coordinators.lose_request("commit", error=OffsetsConflictError("not what was committed"))
    txn.produce(topic, b"x", partition=0)
    committed = txn.commit_async()
    time.sleep(0.2)
    assert coordinators.count("add_partitions") == 0, "the commit names them"
    held.set()
    with pytest.raises(OffsetsConflictError):
        committed.result(10)
    eventually(lambda: coordinators.transactions[txn.txid].partitions == {(topic, 0)})
    txn.abort()


def test_a_transaction_that_ended_is_not_kept_until_its_partitions_were_due(
    make_producer: MakeProducer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    producer = make_producer(partition__registration__delay__ms=600_000)

    def transact() -> weakref.ref[Transaction]:
        with producer.begin_transaction() as txn:
            txn.produce(topic, b"x", partition=0)
        return weakref.ref(txn)

    ended = [transact() for _ in range(5)]

    def kept() -> int:
        gc.collect()
        return sum(each() is not None for each in ended)

    # The producer remembers the one begun last.
    eventually(lambda: kept() <= 1)


def test_partitions_of_a_short_transaction_are_named_at_its_end_alone(
    make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    topic = make_topic()
    producer = make_producer(partition__registration__delay__ms=5_000)
    with producer.begin_transaction() as txn:
        txn.produce(topic, b"x", partition=0)
    assert coordinators.count("add_partitions") == 0
    assert coordinators.transactions[txn.txid].partitions == set()


def test_partitions_up_front_are_in_the_begin(
    make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    topic = make_topic(partitions=2)
    producer = make_producer(partition__registration__delay__ms=5_000)
    with producer.begin_transaction(timeout=1.5, partitions=[(topic, 1)]) as txn:
        known = coordinators.transactions[txn.txid]
        assert (known.timeout_ms, known.partitions) == (1_500, {(topic, 1)})
        txn.produce(topic, b"x", partition=1)
    assert coordinators.count("add_partitions") == 0


def test_first_offsets_are_told_of_partitions_named_up_front_too(
    make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    topic = make_topic(partitions=2)
    producer = make_producer(partition__registration__delay__ms=0)
    with producer.begin_transaction(partitions=[(topic, 1)]) as first:
        first.produce(topic, b"x", partition=1)
    with producer.begin_transaction(partitions=[(topic, 1)]) as second:
        second.produce(topic, b"x", partition=1)
        # Behind the record and the marker of the first.
        eventually(lambda: coordinators.transactions[second.txid].first_offsets != {})
        assert coordinators.transactions[second.txid].first_offsets[topic, 1] >= 1


def test_on_delivery_is_called_and_its_errors_harm_nothing(
    make_producer: MakeProducer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    seen: list[tuple[object, int]] = []

    def on_delivery(error: object, message: Message) -> None:
        seen.append((error, message.offset()))
        raise ZeroDivisionError

    with make_producer().begin_transaction() as txn:
        txn.produce(topic, b"a", partition=0, on_delivery=on_delivery)
        txn.produce(topic, b"b", partition=0, on_delivery=on_delivery)
    assert seen == [(None, 0), (None, 1)]


def test_a_delivery_callback_may_produce_and_waits_for_nothing(
    make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    topic = make_topic()
    producer = make_producer()
    txn = producer.begin_transaction()
    done = threading.Event()

    def on_delivery(error: object, message: Message) -> None:
        assert (error, producer.poll(5)) == (None, 0)
        producer.flush(5)
        if message.value() == b"first":
            txn.produce(topic, b"second", partition=0, on_delivery=on_delivery)
        else:
            done.set()

    txn.produce(topic, b"first", partition=0, on_delivery=on_delivery)
    assert done.wait(3)
    txn.commit()
    assert coordinators.transactions[txn.txid].writes == {(topic, 0): (BranchRange(0, 0, 1, 2),)}


def test_flush_waits_for_records_whose_txid_is_still_to_come(
    log: Log, make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    topic = make_topic()
    producer = make_producer()
    producer.begin_transaction().commit()
    may_begin = coordinators.hold("begin")
    txn = producer.begin_transaction()
    txn.produce(topic, b"x", partition=0)
    assert producer.flush(0.05) == len(producer) == 1
    threading.Timer(0.1, may_begin.set).start()
    assert producer.flush(5) == len(producer) == 0
    assert [m.value() for m in read_topic(log, topic)] == [b"x"]
    txn.abort()


def test_a_commit_does_not_wait_for_linger(
    make_producer: MakeProducer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    producer = make_producer(linger__ms=3_000)
    txn = producer.begin_transaction()
    txn.produce(topic, b"x", partition=0)
    assert txn.commit(timeout=2.5).state.commits


def test_a_long_poll_keeps_no_commit_waiting(
    make_producer: MakeProducer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    producer = make_producer(linger__ms=3_000)
    producer.begin_transaction().commit()
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            producer.poll(1.0)

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        txn = producer.begin_transaction()
        txn.produce(topic, b"x", partition=0)
        assert txn.commit(timeout=2.5).state.commits
    finally:
        stop.set()
        polling.join()


def test_a_transaction_is_extended_while_it_is_open(
    make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    txn = make_producer().begin_transaction()
    txid = txn.txid
    for _ in range(3):
        txn.extend()
    txn.produce(make_topic(), b"x")
    txn.commit()
    txn.extend()
    assert coordinators.transactions[txid].extended == 3
