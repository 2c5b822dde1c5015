"""Producers of a process that share librdkafka's producer: nothing of one disturbs another."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import logtx
from logtx.journal.errors import (
    ConfigError,
    LogtxError,
    ProducerFencedError,
    QueueFullError,
    TransactionAbortOnlyError,
)
from logtx.journal.logs.lending import LOGS
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.logs.memory.producer import MemoryProducer
from logtx.journal.settings import agreed
from logtx.journal.state import State
from logtx.producer.branch import Branches
from logtx.producer.futures import _IDLE_S
from logtx.producer.producer import Producer
from logtx.producer.sender_thread import SenderThread
from logtx.producer.sharing import SHARED

from ..children import in_child
from ..collecting import at_each_collection
from ..conftest import MakeTopic
from ..signals import KINDS, Tracer
from ..waiting import eventually
from .conftest import MakeProducer, ReadAll, read_topic
from .fake import FakeCoordinators

BOUND_S = 1.5
"""Longest that a small transaction may take."""


@pytest.fixture
def pair(memory_log: MemoryLog, make_memory_producer: MakeProducer) -> tuple[Producer, Producer]:
    """Two producers that share."""
    for topic in ("t", "u"):
        memory_log.create_topic(topic, partitions=1)
    first, second = (make_memory_producer(transactional__id=name) for name in "ab")
    assert thread_of(first) is thread_of(second)
    return first, second


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = set(shared_threads())
    yield
    eventually(lambda: before.issuperset(shared_threads()) or gc.collect() < 0)


def shared_threads() -> list[SenderThread]:
    """Those of other tests, which were left to the collector of garbage, are among them."""
    return list(SHARED._threads.values())


def thread_of(producer: Producer) -> SenderThread:
    return producer._engine.sender.thread


def log_of(producer: Producer) -> object:
    coordinators: Any = producer._engine._coordinators
    return coordinators._log


def write(producer: Producer, topic: str = "u", **more: Any) -> None:
    began_s = time.monotonic()
    with producer.begin_transaction() as txn:
        txn.produce(topic, b"v", partition=0, **more)
    assert time.monotonic() - began_s < BOUND_S


def sender_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "logtx-sender"]


# ---- who shares ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        ({}, {}, True),
        ({"linger.ms": 5}, {"linger.ms": "5"}, True),
        ({"enable.idempotence": True}, {"enable.idempotence": "true"}, True),
        ({"transaction.group": "g"}, {"transaction.group": "h"}, True),
        ({"linger.ms": 5}, {"linger.ms": 6}, False),
        ({"compression.type": "lz4"}, {}, False),
        ({"client.id": "one"}, {"client.id": "other"}, False),
        ({"transaction.timeout.ms": 5_000}, {"transaction.timeout.ms": 6_000}, False),
        ({"producer.shared": False}, {"producer.shared": False}, False),
        ({"producer.shared": False}, {}, False),
        ({"stats_cb": print}, {"stats_cb": print}, False),
        ({"error_cb": print}, {"error_cb": print}, False),
        ({"on_delivery": print}, {"on_delivery": print}, False),
        ({"oauth_cb": print}, {"oauth_cb": print}, False),
    ],
)
def test_who_has_the_same_settings_shares(
    one: dict[str, Any], other: dict[str, Any], share: bool, make_memory_producer: MakeProducer
) -> None:
    first = make_memory_producer(transactional__id="a", **one)
    second = make_memory_producer(transactional__id="b", **other)
    assert (thread_of(first) is thread_of(second)) == share
    assert (first._engine.sender.producer is second._engine.sender.producer) == share


def test_an_object_is_never_agreed_on() -> None:
    assert agreed({"linger.ms": 5, "acks": "all"}) == agreed({"acks": "all", "linger.ms": "5"})
    assert agreed({"logger": object()}) is None


def test_who_comes_after_a_renewed_certificate_reads_it(
    tmp_path: Path, make_memory_producer: MakeProducer
) -> None:
    """One that joined those who were before would be known by the former one for ever."""
    ca = tmp_path / "ca.pem"
    ca.write_text("former")
    made = [make_memory_producer(ssl__ca__location=str(ca)) for _ in range(2)]
    assert thread_of(made[0]) is thread_of(made[1])
    servers = {"bootstrap.servers": "kafka:9092", "ssl.ca.location": str(ca)}
    former = LOGS.lend(servers)
    ca.write_text("renewed")
    made += [make_memory_producer(ssl__ca__location=str(ca)) for _ in range(2)]
    assert thread_of(made[1]) is not thread_of(made[2]) is thread_of(made[3])
    renewed = LOGS.lend(servers)
    assert former.log is not renewed.log
    for lease in (former, renewed):
        lease.close()


def test_producers_of_two_logs_do_not_share(coordinators: FakeCoordinators) -> None:
    logs = MemoryLog("one"), MemoryLog("other")
    made = [Producer({"transactional.id": "p"}, log=log, coordinators=coordinators) for log in logs]
    assert thread_of(made[0]) is not thread_of(made[1])
    for producer in made:
        producer.close()


def test_logs_are_told_apart_though_they_are_equal(coordinators: FakeCoordinators) -> None:
    class Equal(MemoryLog):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

        __hash__ = None  # type: ignore[assignment]

    logs = Equal("one"), Equal("other")
    made = [Producer({}, log=log, coordinators=coordinators) for log in (*logs, logs[0])]
    assert thread_of(made[0]) is not thread_of(made[1])
    assert thread_of(made[0]) is thread_of(made[2])
    for producer in made:
        producer.close()


def test_a_log_of_the_same_name_is_another_one(coordinators: FakeCoordinators) -> None:
    made = []
    for _ in range(2):
        config = {"bootstrap.servers": "memory://again", "transactional.id": "p"}
        made.append(Producer(config, coordinators=coordinators))
        MemoryLog.named("again").create_topic("t", partitions=1)
        write(made[-1], "t")
        assert len(read_topic(MemoryLog.named("again"), "t")) == 1
        MemoryLog.drop("again")
    for producer in made:
        producer.close()


def test_those_that_open_their_log_share(mock_cluster: str) -> None:
    servers = {"bootstrap.servers": mock_cluster}
    other = logtx.Producer({**servers, "producer.shared": False})
    made = [logtx.Producer({**servers, "transaction.group": group}) for group in "gh"]
    assert thread_of(made[0]) is thread_of(made[1])
    assert len({id(log_of(producer)) for producer in (*made, other)}) == 2
    log = log_of(made[0])
    other.close()
    for number, producer in enumerate(made):
        producer.produce("sharing", b"%d" % number)
        assert producer.flush(10) == 0
        # What the first one opened is closed by now.
        producer.close()
    assert log is not LOGS.lend(servers).log


def test_branches_share_too(pair: tuple[Producer, Producer], memory_log: MemoryLog) -> None:
    settings = {"coordinator.timeout.ms": 2_000}
    branches = Branches(settings, log=memory_log, coordinators=FakeCoordinators())
    assert branches._sender.thread is thread_of(pair[0])
    branches.close()
    write(pair[0])


def test_both_write_much_at_one_time(
    make_producer: MakeProducer, make_topic: MakeTopic, read_all: ReadAll
) -> None:
    topic, count = make_topic(partitions=2), 1_000
    pair = [make_producer(transactional__id=name) for name in "ab"]
    assert thread_of(pair[0]) is thread_of(pair[1])

    def work(producer: Producer, partition: int) -> None:
        with producer.begin_transaction() as txn:
            for _ in range(count):
                txn.produce(topic, b"v", partition=partition)
            assert producer.flush(10) == 0
            assert len(producer) == 0
        assert producer.poll(0) == 0, "flush has told of all"

    threads = [threading.Thread(target=work, args=(p, n)) for n, p in enumerate(pair)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(read_all(topic, 2)) >= 2 * count
    assert [producer.flush(5) for producer in pair] == [0, 0]


# ---- ends ----------------------------------------------------------------------------------------


def test_who_closes_fails_nothing_of_the_other(
    pair: tuple[Producer, Producer], memory_log: MemoryLog
) -> None:
    first, second = pair
    txn = second.begin_transaction()
    assert txn.txid
    memory_log.hold_appends("u", 0)
    txn.produce("u", b"kept", partition=0)
    began_s = time.monotonic()
    assert first.close(5)
    assert time.monotonic() - began_s < BOUND_S, "it waits for no record of the other"
    memory_log.release_appends("u", 0)
    assert txn.commit(5).state is State.COMMITTED
    assert len(read_topic(memory_log, "u")) == 1


def test_a_waiter_that_comes_during_a_tick_breaks_nothing(pair: tuple[Producer, Producer]) -> None:
    """Else the thread logs an error, and serves nobody for a while."""
    thread, came = thread_of(pair[0]), list(range(20))

    def come() -> None:
        if len(came) < 200:
            came.append(len(came))
            thread.hurry(came[-1], 0)

    for waiter in came:
        thread.hurry(waiter, 0)
    with at_each_collection(come):
        thread._tick(1)
    assert len(came) > 20
    for waiter in came:
        thread.done(waiter)


def test_the_last_close_ends_the_thread_and_the_handle(
    pair: tuple[Producer, Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    thread, inner = thread_of(pair[0]), pair[0]._engine.sender.producer
    closed: list[object] = []
    monkeypatch.setattr(inner, "close", lambda: closed.append(inner), raising=False)
    pair[0].close()
    assert thread._thread.is_alive()
    assert not closed
    pair[1].close()
    assert closed == [inner]
    assert not thread._thread.is_alive()
    assert thread not in shared_threads()


def test_a_thousand_opens_leave_nothing(
    memory_log: MemoryLog, coordinators: FakeCoordinators
) -> None:
    before = len(sender_threads())
    config = {"transactional.id": "p"}
    keeps = Producer(config, log=memory_log, coordinators=coordinators)
    thread = thread_of(keeps)
    for number in range(1_000):
        made = Producer(config, log=memory_log, coordinators=coordinators)
        assert thread_of(made) is thread
        if number % 3:
            made.close()
        del made  # A third is dropped.
    gc.collect()
    eventually(lambda: len(thread._members) == 1)
    assert thread.is_alone
    assert len(sender_threads()) <= before + 1
    keeps.close()
    eventually(lambda: len(sender_threads()) <= before)


def test_one_that_was_interrupted_while_it_was_made_keeps_no_thread(
    memory_log: MemoryLog, coordinators: FakeCoordinators
) -> None:
    before, at, done = len(sender_threads()), 0, False
    shared_before = set(shared_threads())
    while not done:
        at += 1
        tracer = Tracer("logtx.producer", at, KeyboardInterrupt)
        with suppress(KeyboardInterrupt), tracer.on():
            Producer({"transactional.id": "p"}, log=memory_log, coordinators=coordinators).close()
        done = tracer.points < at
    assert at > 50
    gc.collect()
    eventually(lambda: len(sender_threads()) <= before)
    assert shared_before.issuperset(shared_threads())


def test_who_is_alone_again_after_another_was_interrupted_while_it_was_made_knows(
    memory_log: MemoryLog, make_memory_producer: MakeProducer
) -> None:
    first = make_memory_producer(transactional__id="a")
    thread, at, done = thread_of(first), 0, False
    while not done and thread.is_alone:
        at += 1
        tracer = Tracer("logtx.producer.s", at, KeyboardInterrupt)
        with suppress(KeyboardInterrupt), tracer.on():
            Producer({"transactional.id": "b"}, log=memory_log, coordinators=FakeCoordinators())
        done = tracer.points < at
        gc.collect()
    assert not done
    eventually(lambda: thread.is_alone)
    first.purge()


def test_an_abort_takes_no_record_of_the_other(
    pair: tuple[Producer, Producer], memory_log: MemoryLog
) -> None:
    first, second = pair
    memory_log.hold_appends("u", 0)
    txn = second.begin_transaction()
    txn.produce("u", b"kept", partition=0)
    aborted = first.begin_transaction()
    aborted.produce("t", b"aborted", partition=0)
    aborted.abort(5)
    memory_log.release_appends("u", 0)
    assert txn.commit(5).state is State.COMMITTED


def test_the_other_is_not_fenced(
    pair: tuple[Producer, Producer], coordinators: FakeCoordinators
) -> None:
    first, second = pair
    write(first)
    write(second)
    coordinators.fence("a")
    with pytest.raises(ProducerFencedError):
        write(first)
    write(second)


def test_a_purge_is_refused_where_it_would_take_records_of_others(
    pair: tuple[Producer, Producer], memory_log: MemoryLog, make_memory_producer: MakeProducer
) -> None:
    first, second = pair
    told: list[KafkaError | None] = []
    memory_log.hold_appends("u", 0)
    second.produce("u", b"kept", partition=0, on_delivery=lambda error, _: told.append(error))
    with pytest.raises(ConfigError, match=r"producer\.shared"):
        first.purge()
    first.close()
    assert not told
    second.purge()
    third = make_memory_producer(transactional__id="c")
    assert thread_of(third) is not thread_of(second), "nobody joins one that may be purged"
    assert second.flush(5) == 0
    assert [error and error.code() for error in told] == [KafkaError._PURGE_INFLIGHT]
    memory_log.release_appends("u", 0)


def test_what_one_left_behind_is_nothing_of_the_other(
    pair: tuple[Producer, Producer], memory_log: MemoryLog
) -> None:
    first, second = pair
    memory_log.hold_appends("t", 0)
    first.produce("t", b"left behind", partition=0)
    first.close(0.1)
    began_s = time.monotonic()
    assert (len(second), second.flush(5)) == (0, 0)
    assert time.monotonic() - began_s < BOUND_S
    # Nor does the other one take it back, or count it as its own from now on.
    with pytest.raises(ConfigError, match=r"producer\.shared"):
        second.purge()
    second.produce("u", b"plain", partition=0)
    assert second.flush(5) == 0
    memory_log.release_appends("t", 0)
    eventually(lambda: len(read_topic(memory_log, "t")) == 1)
    eventually(lambda: not thread_of(second).queued)
    second.purge()


def test_who_wrote_plain_records_alone_stays_alone(
    make_memory_producer: MakeProducer, memory_log: MemoryLog
) -> None:
    """They are not counted, so nobody could tell them from others' records."""
    memory_log.create_topic("t", partitions=1)
    first = make_memory_producer(transactional__id="a")
    memory_log.hold_appends("t", 0)
    first.produce("t", b"plain", partition=0)
    others = [make_memory_producer(transactional__id=name) for name in "bc"]
    assert thread_of(others[0]) is thread_of(others[1]) is not thread_of(first)
    assert [others[0].flush(0), first.flush(0)] == [0, 1]
    assert first.poll(0) == 0
    memory_log.release_appends("t", 0)
    assert first.poll(5) == 1
    write(first, "t")
    assert first.poll(5) == 1


def test_a_new_password_is_for_all_and_another_user_for_none(
    make_memory_producer: MakeProducer,
) -> None:
    user = {"sasl__username": "u", "sasl__password": "p"}
    first, second = (make_memory_producer(transactional__id=name, **user) for name in "ab")
    first.set_sasl_credentials("u", "new")
    with pytest.raises(ConfigError, match=r"producer\.shared"):
        first.set_sasl_credentials("another", "p")
    second.close()
    first.set_sasl_credentials("another", "p")
    third = make_memory_producer(transactional__id="c", **user)
    assert thread_of(third) is not thread_of(first)


def test_a_new_password_outlives_the_shared_producer(
    make_memory_producer: MakeProducer, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_log.create_topic("u", partitions=1)
    told: dict[object, str] = {}

    def take(inner: object, _username: str, password: str) -> None:
        told[inner] = password

    monkeypatch.setattr(MemoryProducer, "set_sasl_credentials", take)
    user = {"sasl__username": "u", "sasl__password": "p"}
    first, second = (make_memory_producer(transactional__id=name, **user) for name in "ab")
    first.set_sasl_credentials("u", "new")
    break_for_good((first, second))
    for producer in (first, second):
        assert told[producer._engine.sender.producer] == "new"


# ---- waits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
def test_a_flush_waits_for_its_own_records_alone(
    plain: bool, pair: tuple[Producer, Producer], memory_log: MemoryLog
) -> None:
    first, second = pair
    memory_log.hold_appends("u", 0)
    if plain:
        first.produce("u", b"held", partition=0)
    else:
        txn = first.begin_transaction()
        assert txn.txid
        txn.produce("u", b"held", partition=0)
    second.produce("t", b"quick", partition=0)
    began_s = time.monotonic()
    assert second.flush(5) == 0
    assert time.monotonic() - began_s < BOUND_S
    assert (len(first), len(second)) == (1, 0)
    assert first.flush(0.1) == 1
    memory_log.release_appends("u", 0)
    assert first.flush(5) == 0


def test_a_poll_tells_of_its_own_reports_alone(pair: tuple[Producer, Producer]) -> None:
    first, second = pair
    for _ in range(3):
        first.produce("t", b"v", partition=0)
    write(first)
    assert second.poll(0.2) == 0
    eventually(lambda: first.poll(0.1) > 0)
    assert second.poll(0) == 0


def test_who_finds_the_queue_full_of_others_records_waits_for_room(
    memory_log: MemoryLog, make_memory_producer: MakeProducer
) -> None:
    memory_log.create_topic("t", partitions=1)
    few = {"queue__buffering__max__messages": 3, "delivery__timeout__ms": 1_000}
    first, second = (make_memory_producer(transactional__id=name, **few) for name in "ab")
    memory_log.hold_appends("t", 0)
    for _ in range(3):
        first.produce("t", b"first", partition=0)
    threading.Timer(0.2, lambda: memory_log.release_appends("t", 0)).start()
    second.produce("t", b"second", partition=0)
    assert second.flush(5) == 0
    memory_log.hold_appends("t", 0)
    for _ in range(3):
        first.produce("t", b"first", partition=0)
    with pytest.raises(QueueFullError):
        second._engine.sender.make_room(time.monotonic())
    memory_log.release_appends("t", 0)


@pytest.mark.parametrize("alone", [False, True])
def test_callbacks_that_lag_behind_keep_further_records_waiting(
    alone: bool, memory_log: MemoryLog, make_memory_producer: MakeProducer
) -> None:
    """All that wait on a thread of their own would fill the memory, where records do not wait."""
    for topic in ("t", "u"):
        memory_log.create_topic(topic, partitions=1)
    few = {"queue__buffering__max__messages": 5, "delivery__timeout__ms": 500}
    made = [make_memory_producer(transactional__id=name, **few) for name in "ab"[alone:]]
    blocks = threading.Event()

    def block(*_: object) -> None:
        assert blocks.wait(10)

    def write_many() -> int:
        for number in range(20):
            try:
                made[0].produce("t", b"v", partition=0, on_delivery=block)
            except QueueFullError:
                return number
        return 20

    assert write_many() in (5, 6)
    txn = made[0].begin_transaction()
    assert txn.txid
    with pytest.raises(QueueFullError):
        txn.produce("t", b"v", partition=0, on_delivery=block)
    if not alone:
        write(made[1])
    threading.Timer(0.2, blocks.set).start()
    for _ in range(20):
        made[0].produce("t", b"v", partition=0, on_delivery=block)
    assert made[0].flush(5) == 0


def test_a_record_that_waits_for_callbacks_takes_no_time_of_the_cpu(
    memory_log: MemoryLog, make_memory_producer: MakeProducer, coordinators: FakeCoordinators
) -> None:
    memory_log.create_topic("t", partitions=1)
    few = {"queue__buffering__max__messages": 1}
    first, _second = (make_memory_producer(transactional__id=name, **few) for name in "ab")
    write(first, "t")
    blocks = threading.Event()
    begins = coordinators.hold("begin")
    txn = first.begin_transaction()
    for _ in range(3):
        txn.produce("t", b"kept", partition=0, on_delivery=lambda *_: blocks.wait(10))
    begins.set()
    eventually(lambda: first._engine.sender._postponed == 1)
    began_s = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - began_s < 0.25
    blocks.set()
    assert txn.commit(5).state is State.COMMITTED


# ---- callbacks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("of a callback"), SystemExit(3)])
def test_what_a_callback_raises_is_its_producers(
    error: BaseException, pair: tuple[Producer, Producer]
) -> None:
    first, second = pair

    def fail(*_: object) -> None:
        raise error

    write(first, on_delivery=fail)
    first.produce("t", b"plain", on_delivery=fail)
    write(second)
    assert second.flush(5) == 0
    eventually(lambda: first._engine.sender._raised is not None)
    with pytest.raises(type(error)):
        first.flush(5)
    assert second.poll(0) >= 0


def test_a_callback_that_blocks_holds_up_its_own_producer_alone(
    pair: tuple[Producer, Producer],
) -> None:
    first, second = pair
    blocks, called = threading.Event(), threading.Event()

    def block(*_: object) -> None:
        called.set()
        assert blocks.wait(10)

    txn = first.begin_transaction()
    txn.produce("t", b"v", partition=0, on_delivery=block)
    future = txn.commit_async()
    assert called.wait(5)
    for _ in range(3):
        write(second)
    assert not future.done(), "a commit comes behind the callbacks of its records"
    assert first.flush(0.1) == 1
    blocks.set()
    assert future.result(5).state is State.COMMITTED
    assert first.flush(5) == 0


def test_a_callback_of_one_that_was_closed_holds_up_nobody(
    pair: tuple[Producer, Producer], memory_log: MemoryLog
) -> None:
    first, second = pair
    blocks, called = threading.Event(), threading.Event()

    def block(*_: object) -> None:
        called.set()
        assert blocks.wait(10)

    memory_log.hold_appends("t", 0)
    first.produce("t", b"left behind", partition=0, on_delivery=block)
    first.close(0.1)
    memory_log.release_appends("t", 0)
    assert called.wait(5)
    threading.Timer(5, blocks.set).start()
    write(second)
    assert not blocks.is_set()
    blocks.set()


@pytest.mark.parametrize("alone", [False, True])
def test_a_callback_may_wait_for_another_producer(
    alone: bool, make_memory_producer: MakeProducer, memory_log: MemoryLog
) -> None:
    for topic in ("t", "u"):
        memory_log.create_topic(topic, partitions=1)
    first = make_memory_producer(transactional__id="a")
    second = None if alone else make_memory_producer(transactional__id="b")
    told: list[object] = []

    def forward(*_: object) -> None:
        try:
            # One that is made here must not wait for the end of this callback.
            write(second or make_memory_producer(transactional__id="b"))
            told.append("written")
        except BaseException as error:  # noqa: BLE001 - the test tells it
            told.append(error)

    write(first, "t", on_delivery=forward)
    assert told == ["written"]
    write(first)


def test_a_poll_hears_of_the_end_of_a_callback_at_once(pair: tuple[Producer, Producer]) -> None:
    first, _ = pair
    first.produce("t", b"v", partition=0, on_delivery=lambda *_: time.sleep(0.05))
    began_s = time.monotonic()
    assert first.poll(5) == 1
    assert time.monotonic() - began_s < 0.5


def test_a_record_that_was_kept_and_is_refused_holds_up_its_own_producer_alone(
    memory_log: MemoryLog, make_memory_producer: MakeProducer, coordinators: FakeCoordinators
) -> None:
    for topic in ("t", "u"):
        memory_log.create_topic(topic, partitions=1)
    few = {"queue__buffering__max__messages": 1, "message__max__bytes": 100}
    first, second = (make_memory_producer(transactional__id=name, **few) for name in "ab")
    write(first)
    blocks, called = threading.Event(), threading.Event()

    def block(*_: object) -> None:
        called.set()
        assert blocks.wait(10)

    begins = coordinators.hold("begin")
    txn = second.begin_transaction()
    txn.produce("u", b"v", partition=0)
    txn.produce("u", b"v" * 101, partition=0, on_delivery=block)
    memory_log.hold_appends("t", 0)
    first.produce("t", b"fills the queue", partition=0)
    # So the thread sends what was kept, once there is room.
    begins.set()
    eventually(lambda: bool(thread_of(second)._stalled))
    memory_log.release_appends("t", 0)
    assert called.wait(5)
    threading.Timer(5, blocks.set).start()
    write(first)
    assert not blocks.is_set()
    blocks.set()


def test_the_thread_of_callbacks_ends_with_its_producer(
    pair: tuple[Producer, Producer], make_memory_producer: MakeProducer
) -> None:
    """A service with a producer for each request would have one for each of the last second."""
    del pair  # It shares.
    for name in "cdef":
        producer = make_memory_producer(transactional__id=name)
        write(producer, "t", on_delivery=lambda *_: None)
        producer.close()
    began_s = time.monotonic()
    eventually(lambda: [t.name for t in threading.enumerate()].count("logtx-delivery") == 0)
    assert time.monotonic() - began_s < 0.5 * _IDLE_S


def test_callbacks_are_called_where_no_thread_can_be_had(
    pair: tuple[Producer, Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.12 starts none while functions of `atexit` run: one may flush a producer."""
    first, second = pair
    start = threading.Thread.start
    told: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        if thread.name in ("logtx-delivery", "logtx-callbacks"):
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for number in range(3):
        first.produce("t", b"v", partition=0, on_delivery=lambda *_, n=number: told.append(f"{n}"))
    assert first.flush(5) == 0
    with first.begin_transaction() as txn:
        txn.produce("t", b"v", partition=0, on_delivery=lambda *_: told.append("in a transaction"))
    txn.commit_async().add_done_callback(lambda _: told.append("committed"))
    assert told == ["0", "1", "2", "in a transaction", "committed"]
    write(second)
    monkeypatch.undo()
    write(first, "t", on_delivery=lambda *_: told.append(threading.current_thread().name))
    assert told[-1] == "logtx-delivery"


def test_callbacks_come_in_order_when_the_other_one_goes(pair: tuple[Producer, Producer]) -> None:
    first, second = pair
    found: list[int] = []
    may_go_on = threading.Event()

    def told(number: int) -> Callable[..., None]:
        def tell(*_: object) -> None:
            may_go_on.wait(5)
            found.append(number)

        return tell

    for number in range(10):
        first.produce("t", b"v", partition=0, on_delivery=told(number))
    second.close()
    for number in range(10, 20):
        first.produce("t", b"v", partition=0, on_delivery=told(number))
    may_go_on.set()
    assert first.flush(5) == 0
    assert found == list(range(20))


# ---- fatal errors --------------------------------------------------------------------------------


def until_written(producer: Producer, attempts: int = 4) -> int:
    """Redoes a transaction as applications do. Returns how often it was aborted."""
    for attempt in range(attempts):
        try:
            with producer.begin_transaction() as txn:
                assert txn.txid
                txn.produce("u", b"v", partition=0)
        except TransactionAbortOnlyError:
            continue
        return attempt
    raise AssertionError("no transaction commits any more")


def break_for_good(pair: tuple[Producer, Producer]) -> None:
    """Lets the producer that they share stop twice; each has its own then."""
    shared = thread_of(pair[0])
    for _ in range(2):
        inner: Any = pair[0]._engine.sender.producer
        inner.stopped = True
        until_written(pair[0])
    assert shared.is_broken
    for producer in pair:
        until_written(producer)


def test_after_a_fatal_error_both_go_on_with_another_one(
    pair: tuple[Producer, Producer],
) -> None:
    first, second = pair
    inner: Any = first._engine.sender.producer
    lost = second.begin_transaction()
    assert lost.txid
    lost.produce("u", b"lost", partition=0)
    second.flush(5)
    inner.stopped = True
    assert until_written(first) <= 2
    assert first._engine.sender.producer is second._engine.sender.producer is not inner
    eventually(lambda: not lost._direct)  # type: ignore[attr-defined]
    with pytest.raises(TransactionAbortOnlyError):
        lost.commit(5)
    lost.abort(5)
    assert until_written(second) == 0


def test_a_cause_that_lasts_stays_with_its_producer(pair: tuple[Producer, Producer]) -> None:
    first, second = pair
    shared = thread_of(first)
    for _ in range(2):
        inner: Any = first._engine.sender.producer
        inner.stopped = True
        assert until_written(first) <= 2
    assert shared.is_broken
    assert until_written(second) <= 1
    assert thread_of(first) is not thread_of(second)
    assert shared not in (thread_of(first), thread_of(second))
    eventually(lambda: not shared._thread.is_alive())
    # From now on it has the errors, and the limit of replacements, for itself.
    for _ in range(2):
        inner = first._engine.sender.producer
        inner.stopped = True
        with suppress(LogtxError, KafkaException, AssertionError):
            until_written(first, 2)
        for _ in range(3):
            write(second)
    assert second.flush(5) == 0


def test_who_did_nothing_since_may_purge_as_one_that_is_alone(
    pair: tuple[Producer, Producer], make_memory_producer: MakeProducer
) -> None:
    first, second = pair
    third = make_memory_producer(transactional__id="c")
    assert thread_of(third) is thread_of(first)
    for _ in range(2):
        inner: Any = first._engine.sender.producer
        inner.stopped = True
        until_written(first)
    second.purge()
    write(second)


def test_a_callback_may_end_long_after_its_thread_is_broken(
    pair: tuple[Producer, Producer],
) -> None:
    first, second = pair
    shared = thread_of(first)
    blocks, called = threading.Event(), threading.Event()

    def block(*_: object) -> None:
        called.set()
        assert blocks.wait(10)

    second.produce("t", b"v", partition=0, on_delivery=block)
    assert called.wait(5)
    break_for_good(pair)
    time.sleep(1.2)  # The thread looks once a second whether anybody needs it.
    blocks.set()
    assert second.flush(5) == 0
    eventually(lambda: not shared._thread.is_alive())


class Placeless:
    """The report of a record that is told to be written, and not where: of a duplicate's batch."""

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> None:
        return None


@pytest.mark.parametrize("plain", [False, True])
def test_what_lies_beside_a_record_of_another_one_without_an_offset_never_commits_trap_233(
    plain: bool, pair: tuple[Producer, Producer]
) -> None:
    first, second = pair
    refused: Any = first.begin_transaction()
    beside = second.begin_transaction()
    for txn in (refused, beside):
        assert txn.txid
        txn.produce("t", b"v", partition=0)
    assert [producer.flush(5) for producer in pair] == [0, 0]
    if plain:
        first._engine.sender.plain.admit()
        first._engine.sender.plain.delivered(None, Placeless())
    else:
        refused._own_receivers["t"](None, Placeless())
    for txn in (refused, beside):
        with pytest.raises(TransactionAbortOnlyError):
            txn.commit(5)
    write(second, "t")


def test_who_begins_after_a_topic_was_created_anew_writes_there(
    memory_log: MemoryLog, pair: tuple[Producer, Producer]
) -> None:
    first, second = pair
    write(first, "t")
    write(first, "t")
    memory_log.delete_topic("t")
    memory_log.create_topic("t", partitions=1)
    write(second, "t")


def test_what_has_written_nothing_goes_on_through_the_new_thread(
    pair: tuple[Producer, Producer],
) -> None:
    _, second = pair
    unused: Any = second.begin_transaction()
    assert unused.txid
    break_for_good(pair)
    sender = second._engine.sender
    eventually(lambda: unused._send is sender.send)
    assert unused._tally._floors is sender.floors
    assert sender.floors.refusals is sender.thread.refusals
    unused.produce("u", b"v", partition=0)
    assert unused.commit(5).state is State.COMMITTED


def test_what_librdkafka_raises_is_told_to_all(
    pair: tuple[Producer, Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner: Any = pair[0]._engine.sender.producer
    error = KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    raised: list[object] = []

    def poll(_timeout: float) -> int:
        if not raised:
            raised.append(error)
            raise error
        return 0

    monkeypatch.setattr(inner, "poll", poll, raising=False)
    senders = [producer._engine.sender for producer in pair]
    senders[0].poll(0.05)
    eventually(lambda: all(sender._raised is error for sender in senders))
    monkeypatch.undo()


# ---- Ctrl-C and forks ----------------------------------------------------------------------------


def everything(producer: Producer) -> None:
    """Calls what an application calls."""
    with producer.begin_transaction() as txn:
        txn.produce("t", b"v", partition=0, on_delivery=lambda *_: None)
    producer.produce("t", b"plain", partition=0)
    producer.poll(0)
    producer.flush(1)
    assert len(producer) >= 0


@pytest.mark.parametrize("modules", ["logtx.producer", "queue", "threading"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_at_any_line_of_one_disturbs_no_other(
    modules: str, kind: str, pair: tuple[Producer, Producer]
) -> None:
    first, second = pair
    everything(first)
    write(second)
    at, done, step = 0, False, 3
    while not done:
        at += step
        tracer = Tracer(modules, at, KINDS[kind])
        with suppress(LogtxError, KeyboardInterrupt, MemoryError, KafkaException), tracer.on():
            everything(first)
        done = tracer.points < at
        if at % 5 == 0:
            write(second)
            second.produce("u", b"plain", partition=0)
            began_s = time.monotonic()
            assert second.flush(5) == 0, tracer.where
            assert time.monotonic() - began_s < BOUND_S, tracer.where


@pytest.mark.parametrize("plain", [False, True])
def test_a_call_that_was_broken_off_delays_flushes_no_longer_than_a_delivery(
    plain: bool, memory_log: MemoryLog, make_memory_producer: MakeProducer
) -> None:
    memory_log.create_topic("t", partitions=1)
    short = {"delivery__timeout__ms": 500}
    first, second = (make_memory_producer(transactional__id=name, **short) for name in "ab")
    if plain:
        sender = first._engine.sender
        sender.plain.admit()
        sender._doubt()
    else:
        txn: Any = first.begin_transaction()
        assert txn.txid
        txn._admit()
        txn._interrupted(KeyboardInterrupt())
        txn.abort(5)
    memory_log.hold_appends("t", 0)
    second.produce("t", b"held", partition=0)
    assert first.flush(0.1) == 1
    memory_log.release_appends("t", 0)
    time.sleep(0.5)
    memory_log.hold_appends("t", 0)
    second.produce("t", b"held", partition=0)
    assert first.flush(0.1) == 0
    memory_log.release_appends("t", 0)


def test_a_child_shares_with_nobody_of_its_parent(
    pair: tuple[Producer, Producer], memory_log: MemoryLog
) -> None:
    write(pair[0])

    def work() -> str:
        made = [
            Producer(
                {"transactional.id": name, "coordinator.timeout.ms": 2_000},
                log=memory_log,
                coordinators=FakeCoordinators(),
            )
            for name in "cd"
        ]
        assert thread_of(made[0]) is thread_of(made[1])
        assert thread_of(made[0]) not in SHARED._parents
        shared = len(SHARED._threads)
        made[0].close()
        made[1].close()
        return f"{shared} {len(SHARED._threads)} {thread_of(pair[0]) in SHARED._parents}"

    with SHARED._guard:  # Of a thread that does not run in the child.
        assert in_child(work) == "1 0 True"
    for producer in pair:
        write(producer)
