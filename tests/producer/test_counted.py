"""Transactions whose records are counted in C from a certain number on, on the mock cluster."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from confluent_kafka import KafkaError

from logtx.journal.control import BranchRange
from logtx.journal.errors import (
    ClosedError,
    LogtxError,
    TransactionAbortOnlyError,
    TransactionStateError,
)
from logtx.journal.logs.interface import Log
from logtx.journal.state import State
from logtx.producer.producer import Producer
from logtx.producer.writer import Writer

from ..conftest import MakeTopic
from ..extension import use_extension
from ..waiting import eventually
from .conftest import MakeProducer, read_topic
from .fake import FakeCoordinators


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> str:
    """The mock; transactions begin in Python, as they do for applications."""
    use_extension(monkeypatch)
    return "mock"


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    return make_topic()


@pytest.fixture
def producer(make_producer: MakeProducer) -> Producer:
    return make_producer()


class OwnBytes(bytes):
    """What only confluent-kafka takes."""


def count_of(writer: Any) -> Any:
    """What counts a transaction's or a branch's records in C, or None."""
    assert isinstance(writer, Writer)
    return writer._count


def written(log: Log, topic: str, partitions: int = 4) -> dict[int, list[Any]]:
    """Records by partition."""
    found: dict[int, list[Any]] = {}
    for message in read_topic(log, topic, partitions):
        partition = message.partition()
        assert partition is not None
        found.setdefault(partition, []).append(message)
    return found


def check_ranges(
    coordinators: FakeCoordinators, txn: Any, log: Log, topic: str, number: int
) -> None:
    """Checks that the commit named what lies in the topic."""
    writes = coordinators.transactions[txn.txid].writes
    lie = written(log, topic)
    assert writes == {
        (topic, p): (BranchRange(0, m[0].offset(), m[-1].offset(), len(m)),) for p, m in lie.items()
    }
    assert sum(map(len, lie.values())) == number
    assert all(dict(m.headers())["TxId"] == txn.txid.to_bytes() for ms in lie.values() for m in ms)


def test_small_transactions_need_no_count(producer: Producer, topic: str) -> None:
    with producer.begin_transaction() as txn:
        assert txn.txid
        for _ in range(60):
            txn.produce(topic, b"v")
    assert count_of(txn) is None


def test_records_of_all_kinds_in_one_transaction(
    producer: Producer, topic: str, coordinators: FakeCoordinators, log: Log
) -> None:
    told: list[object] = []
    with producer.begin_transaction() as txn:
        for i in range(1_000):
            if i % 10 == 7:
                txn.produce(topic, b"h", partition=i % 3, headers=[("mine", b"1")])
            elif i % 10 == 8:
                txn.produce(topic, b"c", partition=i % 3, on_delivery=lambda e, _: told.append(e))
            elif i % 10 == 9:
                txn.produce(topic, OwnBytes(b"a"), partition=i % 3)
            else:
                txn.produce(topic, "v", b"k", i % 3)
    assert sum(s[4] for s in count_of(txn).spans()) > 600
    assert told == [None] * 100
    check_ranges(coordinators, txn, log, topic, 1_000)


def test_columns_are_counted(
    producer: Producer, topic: str, coordinators: FakeCoordinators, log: Log
) -> None:
    with producer.begin_transaction() as txn:
        branch = txn.branch()
        for _ in range(3):
            values: list[Any] = [b"v"] * 700
            values[650] = OwnBytes(b"v")
            branch.produce_columns(topic, values, ["k"] * 700, [1] * 700, [0] * 700)
        txn.accept(branch.finish())
    spans = count_of(branch).spans()
    assert sum(s[4] for s in spans) > 1_000
    records = written(log, topic)[1]
    nonce = branch.tally.branch
    assert coordinators.transactions[txn.txid].writes == {
        (topic, 1): (BranchRange(nonce, records[0].offset(), records[-1].offset(), 2_100),)
    }
    assert {m.headers()[1][0] for m in records} == {"TxCtl"}


def test_a_wrong_column_is_refused_and_what_came_before_is_sent(
    producer: Producer, topic: str
) -> None:
    with producer.begin_transaction() as txn:
        branch = txn.branch()
        branch.produce_columns(topic, [b"v"] * 300, [None] * 300, [0] * 300, [0] * 300)
        assert count_of(branch) is not None
        values: list[Any] = [b"v"] * 10 + [object()] + [b"v"] * 10
        with pytest.raises(TypeError):
            branch.produce_columns(topic, values, [None] * 21, [0] * 21, [0] * 21)
        summary = branch.finish()
        assert [r.count for r in summary.writes.values()] == [310]
        txn.accept(summary)


def test_several_transactions_and_threads(
    make_producer: MakeProducer, topic: str, coordinators: FakeCoordinators, log: Log
) -> None:
    producers = [make_producer(transactional__id=f"p{n}") for n in range(2)]
    committed: list[Any] = []
    shared = producers[0].begin_transaction(current=False)

    def work(producer: Producer) -> None:
        for _ in range(3):
            with producer.begin_transaction(current=False) as txn:
                for i in range(500):
                    txn.produce(topic, b"own", partition=i % 4)
                    if i % 2:
                        shared.produce(topic, b"shared", partition=i % 4)
            committed.append(txn)

    threads = [threading.Thread(target=work, args=(p,)) for p in producers * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    shared.commit(20)
    assert len(committed) == 12
    lie: dict[tuple[bytes, int], list[int]] = {}
    for partition, messages in written(log, topic).items():
        for message in messages:
            lie.setdefault((message.headers()[0][1], partition), []).append(message.offset())
    for txn in (*committed, shared):
        assert coordinators.transactions[txn.txid].writes == {
            (topic, p): (BranchRange(0, o[0], o[-1], len(o)),)
            for (txid, p), o in lie.items()
            if txid == txn.txid.to_bytes()
        }
    for producer in producers:
        handle = producer._engine.sender.thread._producers.present.handle
        assert handle is not None
        # One that was begun ahead is aborted soon.
        eventually(lambda handle=handle: handle.size == 0)  # type: ignore[misc]


def test_partitions_are_registered_while_it_is_open(
    make_producer: MakeProducer, topic: str, coordinators: FakeCoordinators
) -> None:
    producer = make_producer(partition__registration__delay__ms=10)
    txn = producer.begin_transaction()
    for _ in range(70):
        txn.produce(topic, b"v", partition=0)
    txn.produce(topic, b"v", partition=2)
    assert count_of(txn) is not None
    known = coordinators.transactions[txn.txid]
    eventually(lambda: known.partitions == {(topic, 0), (topic, 2)})
    assert known.first_offsets == {(topic, 0): 0, (topic, 2): 0}
    txn.abort(10)


def test_a_record_that_fails_makes_it_abort_only(producer: Producer, topic: str) -> None:
    txn = producer.begin_transaction()
    for _ in range(70):
        txn.produce(topic, b"v", partition=0)
    producer.flush(10)
    for _ in range(70):
        txn.produce(topic, b"v", partition=0)
    assert count_of(txn) is not None
    producer.purge()
    eventually(lambda: not txn._takes_records)  # type: ignore[attr-defined]
    with pytest.raises(TransactionAbortOnlyError, match="_PURGE"):
        txn.produce(topic, b"v", partition=0)
    with pytest.raises(TransactionAbortOnlyError):
        txn.commit(10)
    assert txn.abort(10).state is State.ABORTED
    with producer.begin_transaction() as later:
        for _ in range(100):
            later.produce(topic, b"v", partition=0)
    assert count_of(later) is not None


def test_an_unknown_partition_is_refused_as_in_python(producer: Producer, topic: str) -> None:
    txn = producer.begin_transaction()
    for _ in range(70):
        txn.produce(topic, b"v", partition=0)
    producer.flush(10)
    with pytest.raises(TransactionAbortOnlyError, match="was refused"):
        txn.produce(topic, b"v", partition=99)
    assert txn.abort(10).state is State.ABORTED


def test_nothing_is_taken_behind_the_end(producer: Producer, topic: str) -> None:
    txn = producer.begin_transaction()
    for _ in range(100):
        txn.produce(topic, b"v", partition=0)
    future = txn.commit_async()
    with pytest.raises(TransactionStateError):
        txn.produce(topic, b"v", partition=0)
    assert future.result(20).state is State.COMMITTED
    assert count_of(txn).produce(topic, b"v", None, 0, 0) == 0


def test_a_full_queue_is_waited_for(
    make_producer: MakeProducer, topic: str, coordinators: FakeCoordinators, log: Log
) -> None:
    producer = make_producer(queue__buffering__max__messages=100)
    with producer.begin_transaction() as txn:
        for _ in range(1_000):
            txn.produce(topic, b"v", partition=0)
    assert count_of(txn) is not None
    check_ranges(coordinators, txn, log, topic, 1_000)


def test_an_applications_callback_for_all_records_is_called_for_all(
    make_producer: MakeProducer, topic: str
) -> None:
    told: list[KafkaError | None] = []
    producer = make_producer(on_delivery=lambda error, _message: told.append(error))
    with producer.begin_transaction() as txn:
        for _ in range(200):
            txn.produce(topic, b"v", partition=0)
    assert count_of(txn) is None
    assert told == [None] * 200


def test_a_callback_may_produce_and_is_called_before_the_end(
    producer: Producer, topic: str, coordinators: FakeCoordinators, log: Log
) -> None:
    order: list[str] = []
    txn = producer.begin_transaction()

    def told(_error: object, _message: object) -> None:
        txn.produce(topic, b"more", partition=0)
        order.append("told")

    for _ in range(100):
        txn.produce(topic, b"v", partition=0)
    txn.produce(topic, b"v", partition=0, on_delivery=told)
    eventually(lambda: bool(order))
    slow = threading.Event()
    txn.produce(topic, b"v", partition=0, on_delivery=lambda *_: order.append(f"{slow.wait(5)}"))
    future = txn.commit_async()
    time.sleep(0.1)
    assert not future.done()
    slow.set()
    assert future.result(20).state is State.COMMITTED
    assert order == ["told", "True"]
    check_ranges(coordinators, txn, log, topic, 103)


class Gate:
    """Once it is closed, keeps reports from being served until what follows from a count that
    settled is done."""

    def __init__(self, producer: Any, handle: Any) -> None:
        self.producer, self.handle = producer, handle
        self.told = self.closed = False
        self._serving = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle if hasattr(self.handle, name) else self.producer, name)

    def __len__(self) -> int:
        return len(self.producer)

    def close_it(self) -> None:
        """Closes it, once no report is being served."""
        with self._serving:
            self.closed = True

    def _is_closed(self) -> bool:
        closed = self.closed
        self.closed = closed and not self.told
        return closed

    def poll(self, timeout: float) -> int:
        with self._serving:
            return 0 if self._is_closed() else int(self.producer.poll(timeout))

    def flush(self, timeout: float) -> int:
        with self._serving:
            if not self._is_closed():
                return int(self.producer.flush(timeout))
        time.sleep(timeout)
        return len(self)

    def changed(self) -> list[Any]:
        if not self.closed:
            return list(self.handle.changed())
        found: list[Any] = [] if len(self) < 2 else self.handle.changed()
        settled = [count for count in found if count.is_settled]
        self.told = self.told or bool(settled)
        return settled


def test_what_c_counted_refuses_no_report_that_is_served_later_trap_226(
    producer: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = producer._engine.sender.thread
    made = thread._producers.present
    gate: Any = Gate(made.producer, made.handle)
    monkeypatch.setattr(thread._producers, "present", made._replace(producer=gate, handle=gate))
    first, second = (producer.begin_transaction(current=False) for _ in range(2))
    for _ in range(70):
        first.produce(topic, b"v", partition=1)
    assert count_of(first) is not None
    producer.flush(10)
    gate.close_it()
    # The report of the second's record waits, while the first settles with the record behind it.
    second.produce(topic, b"second", partition=0)
    first.produce(topic, b"first", partition=0)
    futures = [first.commit_async(), second.commit_async()]
    assert [future.result(20).state for future in futures] == [State.COMMITTED] * 2
    assert not gate.closed
    monkeypatch.undo()


def test_a_closed_producer_takes_nothing(producer: Producer, topic: str) -> None:
    txn = producer.begin_transaction()
    for _ in range(100):
        txn.produce(topic, b"v", partition=0)
    count = count_of(txn)
    producer.close(10)
    assert count.produce(topic, b"v", None, 0, 0) == 0
    with pytest.raises((ClosedError, LogtxError)):
        txn.produce(topic, b"v", partition=0)


def test_a_count_goes_with_its_transaction(producer: Producer, topic: str) -> None:
    handle = producer._engine.sender.thread._producers.present.handle
    assert handle is not None
    kept = []
    for n in range(30):
        txn = producer.begin_transaction()
        for _ in range(70):
            txn.produce(topic, b"v", partition=0)
        assert handle.size <= 2
        txn.commit(10) if n % 2 else txn.abort(10)
        kept.append(txn)
    eventually(lambda: handle.size == handle.busy == 0)
    assert handle.changed() == []
