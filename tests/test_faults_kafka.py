"""Faults of a real broker and of a real coordinator process while transactions are open."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

import logtx
from logtx.coordinator.client.queries import CoordinatorQueries
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.integration.local.cluster import LocalKafka
from logtx.integration.local.processes import CoordinatorChild
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.reader import read_entries
from logtx.journal.records.types import Aborted, Committed
from logtx.journal.state import State

from .parameters import slow

pytestmark = pytest.mark.kafka
TIMEOUT_S = 30.0
EXPLICIT = {"share.acknowledgement.mode": "explicit"}


@pytest.fixture
def log(logtx_kafka: LocalKafka) -> Iterator[KafkaLog]:
    """The session's broker."""
    opened = KafkaLog({"bootstrap.servers": logtx_kafka.bootstrap_servers})
    yield opened
    opened.close()


@pytest.fixture
def topic(log: KafkaLog, unique: Callable[[str], str]) -> str:
    """A topic of one partition."""
    name = unique("faults")
    log.create_topic(name, partitions=1)
    return name


@pytest.fixture
def cluster(log: KafkaLog) -> Iterator[EmbeddedCoordinator]:
    """A coordinator in this process."""
    config = CoordinatorConfig(
        bootstrap_servers=log.bootstrap_servers, listen="127.0.0.1:0", journal_partitions=4
    )
    with EmbeddedCoordinator(config) as running:
        yield running


def read(servers: str, topic: str, count: int) -> list[bytes]:
    """Returns the first `count` committed values in partition 0, and any that come right after."""
    config = {"bootstrap.servers": servers, "group.id": "faults", "auto.offset.reset": "earliest"}
    found: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    with logtx.Consumer(config) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while time.monotonic() < deadline:
            message = consumer.poll(0.5 if len(found) >= count else 1.0)
            if message is None and len(found) >= count:
                break
            if message is not None:
                assert message.error() is None, message.error()
                value = message.value()
                assert isinstance(value, bytes)
                found.append(value)
    return found


@pytest.mark.usefixtures("cluster")
def test_a_broker_glitch_shorter_than_the_delivery_timeout_aborts_nothing(
    logtx_kafka: LocalKafka, topic: str, unique: Callable[[str], str]
) -> None:
    servers, count = logtx_kafka.bootstrap_servers, 40
    with logtx.Producer(
        {"bootstrap.servers": servers, "transactional.id": unique("producer")}
    ) as producer:
        futures = []
        for number in range(count):
            txn = producer.begin_transaction()
            txn.produce(topic, str(number), partition=0)
            if number == count // 2:
                assert txn.txid
                logtx_kafka.pause()
                threading.Timer(3, logtx_kafka.resume).start()
            futures.append(txn.commit_async())
        for future in futures:
            assert future.result(TIMEOUT_S * 2).state.commits
    assert sorted(read(servers, topic, count)) == sorted(str(n).encode() for n in range(count))


@pytest.mark.usefixtures("cluster")
def test_a_deleted_topic_ends_the_transactions_open_on_it(
    logtx_kafka: LocalKafka, log: KafkaLog, topic: str, unique: Callable[[str], str]
) -> None:
    servers, doomed = logtx_kafka.bootstrap_servers, unique("doomed")
    log.create_topic(doomed, partitions=1)
    with logtx.Producer(
        {"bootstrap.servers": servers, "transactional.id": unique("producer")}
    ) as producer:
        txn = producer.begin_transaction(partitions=[(doomed, 0), (topic, 0)])
        txn.produce(topic, "kept", partition=0)
        txid = txn.txid
        producer.flush(TIMEOUT_S)
        log.delete_topic(doomed)
        assert txn.commit().state.commits
    queries = CoordinatorQueries(log, timeout_s=TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while queries.outcome(txid).state is not State.COMMITTED:
        assert time.monotonic() < deadline, "a deleted topic holds its transaction for ever"
        time.sleep(0.2)
    queries.close()
    end = log.end_offset("__transaction_control", txid.partition)
    finished = [
        entry.record
        for _, entry in read_entries(log, txid.partition, txid.offset, end, timeout_s=10)
        if isinstance(entry.record, Committed | Aborted) and entry.record.begin == txid.offset
    ]
    assert [record.gone for record in finished] == [((doomed, 0),)]
    assert read(servers, topic, 1) == [b"kept"]


def start_coordinator(servers: str, log: Path) -> CoordinatorChild:
    """Starts a coordinator process; returns it when it serves."""
    child = CoordinatorChild("coordinator", log, servers)
    child.start()
    child.await_ready()
    return child


@pytest.mark.parametrize("signum", [signal.SIGKILL, *slow([signal.SIGTERM])])
def test_open_transactions_outlive_the_coordinator_process(
    logtx_kafka: LocalKafka,
    topic: str,
    unique: Callable[[str], str],
    signum: signal.Signals,
    tmp_path: Path,
) -> None:
    servers, path = logtx_kafka.bootstrap_servers, tmp_path / "coordinator.log"
    first = start_coordinator(servers, path)
    second = None
    try:
        with logtx.Producer(
            {"bootstrap.servers": servers, "transactional.id": unique("producer")}
        ) as producer:
            txns = [producer.begin_transaction() for _ in range(5)]
            for number, txn in enumerate(txns):
                txn.produce(topic, str(number), partition=0)
                assert txn.txid
            first.signal(signum)
            assert first.await_end(TIMEOUT_S) == (signum == signal.SIGTERM)
            futures = [txn.commit_async() for txn in txns]
            second = start_coordinator(servers, path)
            for future in futures:
                assert future.result(TIMEOUT_S).state.commits
        assert sorted(read(servers, topic, 5)) == [str(n).encode() for n in range(5)]
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()


def test_a_coordinator_that_is_to_end_does_although_its_broker_stands_still(
    logtx_kafka: LocalKafka, topic: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """A commit of group offsets is under way then, whose answer librdkafka's `close` awaits."""
    servers = logtx_kafka.bootstrap_servers
    child = start_coordinator(servers, tmp_path / "coordinator.log")
    try:
        with logtx.Producer(
            {"bootstrap.servers": servers, "transactional.id": unique("producer")}
        ) as producer:
            with producer.begin_transaction() as txn:
                txn.produce(topic, b"before", partition=0)
            left = producer.begin_transaction()
            left.produce(topic, b"after", partition=0)
            assert producer.flush(TIMEOUT_S) == 0
            logtx_kafka.pause()
            try:
                told = left.commit_async()
                time.sleep(0.3)
                child.signal(signal.SIGTERM)
                assert child.await_end(40)
            finally:
                logtx_kafka.resume()
            child.start()
            child.await_ready()
            assert told.result(TIMEOUT_S * 2).state.commits
        assert read(servers, topic, 2) == [b"before", b"after"]
    finally:
        child.kill()


PRODUCER = """
import sys, time, logtx
producer = logtx.Producer({"bootstrap.servers": sys.argv[1], "transactional.id": sys.argv[3]})
txn = producer.begin_transaction()
txn.produce(sys.argv[2], "left open", partition=0)
producer.flush(10)
print(txn.txid, flush=True)
time.sleep(60)
"""


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("signum", [signal.SIGKILL, *slow([signal.SIGTERM])])
def test_a_killed_producer_leaves_nothing_open(
    logtx_kafka: LocalKafka,
    log: KafkaLog,
    topic: str,
    unique: Callable[[str], str],
    signum: signal.Signals,
    tmp_path: Path,
) -> None:
    script = tmp_path / "producer.py"
    script.write_text(PRODUCER)
    command: list[Any] = [sys.executable, script, logtx_kafka.bootstrap_servers, topic]
    process = subprocess.Popen([*command, unique("killed")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    txid = logtx.TxId.parse(process.stdout.readline().strip())
    process.send_signal(signum)
    process.wait(TIMEOUT_S)
    process.stdout.close()
    queries = CoordinatorQueries(log, timeout_s=TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while queries.outcome(txid).state is not State.ABORTED:
        assert time.monotonic() < deadline, "its socket closed and the grace passed"
        time.sleep(0.1)
    queries.close()


WORKER = """
import sys, time, logtx
queue = logtx.ShareConsumer({
    "bootstrap.servers": sys.argv[1], "group.id": sys.argv[3], "auto.offset.reset": "earliest",
    "share.acknowledgement.mode": "explicit", "max.poll.records": 40,
})
queue.subscribe([sys.argv[2]])
found = []
while len(found) < 80:
    found += queue.poll(1.0)
for message in found[:50]:
    queue.acknowledge(message)
queue.commit_sync()
print(len(found), flush=True)
time.sleep(60)
"""


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_is_killed_within_transactions_of_a_sidecar_leaves_the_rest(
    logtx_kafka: LocalKafka,
    log: KafkaLog,
    topic: str,
    unique: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """Two of them lie one between the other. Of the first one the worker had 80 of 100 messages,
    and acknowledged 50. What is left is worked off in blocks, once, and so is what lies behind."""
    servers, group, outputs = logtx_kafka.bootstrap_servers, unique("queue"), unique("outputs")
    log.create_topic(outputs, partitions=1)
    settings = {"bootstrap.servers": servers}
    with logtx.Producer({**settings, "transactional.id": unique("producer")}) as producer:
        first, second = (producer.begin_transaction(sidecar=True) for _ in range(2))
        for number in range(100):
            first.produce(topic, b"%d" % number, partition=0)
            second.produce(topic, b"%d" % (100 + number), partition=0)
        first.commit(finished=True)
        second.commit(finished=True)
        producer.produce(topic, b"200", partition=0)
        producer.flush(TIMEOUT_S)
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    command: list[Any] = [sys.executable, script, servers, topic, group]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == "80"
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
        process.stdout.close()
    worked_off: dict[bytes, int] = {}
    with (
        logtx.ShareConsumer({**settings, "group.id": group, **EXPLICIT}) as queue,
        logtx.Producer({**settings, "transactional.id": unique("worker")}) as own,
    ):
        queue.subscribe([topic])
        for block in logtx.process(queue, own, max_records=30, timeout=5.0):
            for message in block:
                worked_off[message.value()] = block.redone
                block.produce(outputs, message.value(), partition=0)
    expected = [b"%d" % number for number in range(50, 201)]
    assert sorted(worked_off, key=int) == expected
    assert {int(value) for value, redone in worked_off.items() if redone} == {*range(50, 80)}
    assert sorted(read(servers, outputs, len(expected)), key=int) == expected
