"""A producer that nobody closes ends its threads and its session once nobody has it any more."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition

from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Position
from logtx.journal.state import State
from logtx.producer.producer import Producer

from ..conftest import MakeTopic
from ..waiting import eventually
from .conftest import read_topic
from .fake import FakeCoordinators

Make = Callable[..., Producer]
CONFIG = {"coordinator.timeout.ms": 2_000, "transaction.begin.ahead": False}


@pytest.fixture
def make(memory_log: MemoryLog, coordinators: FakeCoordinators) -> Make:
    """Makes producers that nobody else holds."""
    memory_log.create_topic("t", partitions=1)
    return lambda **more: Producer(
        {**CONFIG, "transactional.id": "p", **more}, log=memory_log, coordinators=coordinators
    )


def our_threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("logtx-")}


def all_ended(known: set[threading.Thread]) -> bool:
    gc.collect()  # The program's own callbacks refer to its producer.
    return our_threads() <= known


def native_threads() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
def test_finding_18_a_dropped_producer_leaves_no_thread_and_no_session(
    log: Log, coordinators: FakeCoordinators, make_topic: MakeTopic
) -> None:
    topic = make_topic()

    def work(name: str) -> weakref.ref[Producer]:
        config = {**CONFIG, "transactional.id": name}
        producer = Producer(config, log=log, coordinators=coordinators)
        with producer.begin_transaction() as txn:
            txn.produce(topic, b"x", partition=0)
        producer.outcome(txn.txid)
        producer.produce(topic, b"plain", partition=0)
        return weakref.ref(producer)

    gc.collect()
    known, before = our_threads(), native_threads()
    dropped = [work(f"p{n}") for n in range(3)]
    assert all(each() is None for each in dropped)
    eventually(lambda: our_threads() <= known, 20)
    eventually(lambda: native_threads() <= before, 20)
    assert all(session.closed for session in coordinators.sessions)
    values = [m.value() for m in read_topic(log, topic)]
    assert sorted(values) == [b"plain"] * 3 + [b"x"] * 3, "what was queued is sent"


def test_finding_18_an_open_transaction_keeps_its_producer(
    make: Make, coordinators: FakeCoordinators
) -> None:
    known = our_threads()
    txn = make().begin_transaction()
    gc.collect()
    txn.produce("t", b"x")
    future = txn.commit_async()
    assert future.result(5).state is State.COMMITTED
    eventually(lambda: our_threads() <= known)
    assert coordinators.sessions[0].closed


def test_a_transaction_keeps_its_producer_no_longer_than_its_timeout(
    make: Make, coordinators: FakeCoordinators
) -> None:
    known = our_threads()
    txn = make().begin_transaction(timeout=0.4)
    txid = txn.txid
    assert our_threads() - known
    eventually(lambda: our_threads() <= known)
    assert coordinators.transactions[txid].state is State.ABORTED


@pytest.mark.parametrize("ends", ["commit", "abort", "fence"])
def test_what_a_program_did_before_keeps_nothing(
    ends: str, make: Make, coordinators: FakeCoordinators
) -> None:
    known = our_threads()

    def program() -> None:
        coordinators.committed["g"] = {("in", 0): Position.at(3)}
        producer = make()
        producer.init_transactions()
        transaction = producer.begin_transaction(timeout=1)
        producer.produce("t", b"x", on_delivery=lambda _, __: producer.poll(0))
        producer.send_offsets_to_transaction([TopicPartition("in", 0, 5)], "g")
        transaction.commit_async().add_done_callback(lambda _: producer.poll(0))
        if ends == "commit":
            producer.commit_transaction()
        elif ends == "fence":
            coordinators.fence("p")

    program()
    eventually(lambda: all_ended(known))
    assert all(session.closed for session in coordinators.sessions)


def test_a_closed_producer_is_not_closed_again(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    make().close()
    make()
    gc.collect()
    assert caplog.text.count("producer_dropped") == 1


@pytest.mark.parametrize("dropped", [True, False])
def test_a_program_ends_though_its_producer_is_not_closed(dropped: bool) -> None:
    program = f"""
import logtx
config = {{"bootstrap.servers": "127.0.0.1:9", "transactional.id": "p", "log_level": 0}}
producer = logtx.Producer(config)
producer.produce("t", b"for nobody")
if {dropped}:
    del producer
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], timeout=20, check=True, capture_output=True, text=True
    )
    assert ended.stderr == ""
