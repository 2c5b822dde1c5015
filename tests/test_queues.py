"""Queues over each transport: producers, a coordinator, and consumers that share the work."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import logtx
from logtx.integration.cli import main as cli
from logtx.journal.errors import UnknownSubscriptionError

from .test_end_to_end import MakeTopic, cluster, producer, servers, transport

__all__ = ["cluster", "producer", "servers", "transport"]
TIMEOUT_S = 30.0
MakeQueue = Callable[..., logtx.ShareConsumer]


@pytest.fixture
def queue(cluster: Any, servers: Any, unique: Any) -> Iterator[MakeQueue]:
    """`queue(topic, …)` makes a consumer of the test's subscription."""
    made: list[logtx.ShareConsumer] = []
    group = unique("queue")
    assert cluster is not None

    def make(topic: str, producer: Any = None, **settings: Any) -> logtx.ShareConsumer:
        given = {"group.id": group, "auto.offset.reset": "earliest", **settings}
        given.setdefault("share.acknowledgement.mode", "explicit")
        consumer = logtx.ShareConsumer({**servers, **given}, producer=producer)
        made.append(consumer)
        consumer.subscribe([topic])
        return consumer

    yield make
    for each in made:
        each.close()


def take(queue: logtx.ShareConsumer, count: int, timeout_s: float = TIMEOUT_S) -> list[Any]:
    found: list[Any] = []
    deadline_s = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline_s:
        found += queue.poll(0.2)
    return found


def values(messages: list[Any]) -> list[bytes]:
    return [message.value() for message in messages]


def test_plain_records_and_transactions_are_worked_off_once(
    producer: logtx.Producer, queue: MakeQueue, make_topic: MakeTopic
) -> None:
    topic, outputs = make_topic(), make_topic()
    for number in range(5):
        producer.produce(topic, b"%d" % number, partition=0)
    producer.flush()
    with producer.begin_transaction() as txn:
        for number in range(5, 10):
            txn.produce(topic, b"%d" % number, partition=0)
    aborted = producer.begin_transaction()
    aborted.produce(topic, b"never", partition=0)
    producer.flush()
    aborted.abort()
    one, other = queue(topic, **{"max.poll.records": 4}), queue(topic)
    found = take(one, 4)
    assert values(found) == [b"%d" % n for n in range(4)]
    rest = take(other, 6)
    assert values(rest) == [b"%d" % n for n in range(4, 10)]
    with producer.begin_transaction() as txn:
        txn.produce(outputs, b"out", partition=0)
        for message in found:
            one.acknowledge(message, txn=txn)
    failed = producer.begin_transaction()
    other.acknowledge_cumulative(rest[2], txn=failed)
    failed.abort()
    for message in rest[3:]:
        other.acknowledge(message)
    assert set(other.commit_sync().values()) == {None}
    one.close()
    other.close()
    again = take(queue(topic), 3)
    assert values(again) == [b"4", b"5", b"6"]


LETTERS = "errors.deadletterqueue.topic.name"


def committed(servers: Any, unique: Any, topic: str, count: int) -> list[Any]:
    """Returns what is committed in partition 0 of a topic, which is `count` records."""
    settings = {"group.id": unique("audit"), "auto.offset.reset": "earliest"}
    found: list[Any] = []
    with logtx.Consumer({**servers, **settings}) as audit:
        audit.subscribe([topic])
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline_s:
            found += audit.consume(500, 0.2)
        found += audit.consume(500, 0.3)
    assert len(found) == count, values(found)
    return found


def test_what_nobody_can_work_off_becomes_a_dead_letter(
    producer: logtx.Producer, queue: MakeQueue, make_topic: MakeTopic, servers: Any, unique: Any
) -> None:
    topic, letters = make_topic(), make_topic()
    for number in range(4):
        producer.produce(topic, b"%d" % number, b"k", partition=0, headers={"own": b"h"})
    producer.flush()
    settings = {LETTERS: letters, "share.delivery.count.limit": 2, "redelivery.delay.ms": 0}
    one = queue(topic, producer=producer, **settings)
    found = take(one, 4)
    one.acknowledge(found[0])
    one.acknowledge(found[1], logtx.AcknowledgeType.REJECT, reason="no such customer")
    failed = producer.begin_transaction()
    one.acknowledge(found[2], txn=failed)
    failed.abort()
    one.acknowledge(found[3], logtx.AcknowledgeType.RELEASE)
    for message in take(one, 2):
        assert one.delivery_count(message) == 2
        one.acknowledge_offset(topic, 0, message.offset(), 2)
    told: list[Any] = []
    one.set_acknowledgement_commit_callback(lambda offsets, error: told.append((offsets, error)))
    assert take(one, 1, 3.0) == []
    written = committed(servers, unique, letters, 3)
    assert sorted(values(written)) == [b"1", b"2", b"3"]
    headers = {m.value(): dict(m.headers()) for m in written}
    assert headers[b"1"]["__dlq.errors.message"] == b"no such customer"
    for value, count in ((b"1", b"1"), (b"2", b"2"), (b"3", b"2")):
        assert headers[value]["__dlq.errors.topic"] == topic.encode()
        assert headers[value]["__dlq.errors.offset"] == value
        assert headers[value]["__dlq.errors.delivery.count"] == count
        assert headers[value]["own"] == b"h"
    assert {error for _, error in told} == {None}
    one.close()
    assert take(queue(topic, producer=producer, **settings), 1, 2.0) == []


def test_messages_of_a_sidecar_are_worked_off_once_by_many(
    producer: logtx.Producer, queue: MakeQueue, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    txn = producer.begin_transaction(sidecar=True)
    for number in range(120):
        txn.produce(topic, b"%d" % number, partition=0)
    txn.commit(finished=True)
    producer.produce(topic, b"120", partition=0)
    producer.flush()
    workers = [queue(topic, **{"max.poll.records": 25}) for _ in range(2)]
    found: list[bytes] = []
    deadline_s = time.monotonic() + TIMEOUT_S
    while len(found) < 121 and time.monotonic() < deadline_s:
        for worker in workers:
            messages = worker.poll(0.5)
            assert {worker.delivery_count(message) for message in messages} <= {1}
            with producer.begin_transaction() as txn:
                for message in messages:
                    worker.acknowledge(message, txn=txn)
            found += values(messages)
    assert sorted(found, key=int) == [b"%d" % number for number in range(121)]
    for worker in workers:
        worker.close()
    assert take(queue(topic), 1, 2.0) == []


def test_what_a_worker_leaves_of_a_sidecar_is_worked_off_in_blocks(
    producer: logtx.Producer,
    queue: MakeQueue,
    make_topic: MakeTopic,
    servers: Any,
    unique: Any,
) -> None:
    """Other records lie between those of the transaction, in the topic and in the sidecar."""
    topic, outputs = make_topic(), make_topic()
    txn, aborted = (producer.begin_transaction(sidecar=True) for _ in range(2))
    for number in range(60):
        txn.produce(topic, b"%d" % number, partition=0)
        aborted.produce(topic, b"never", partition=0)
    aborted.abort()
    txn.commit(finished=True)
    producer.produce(topic, b"60", partition=0)
    producer.flush()
    leaves = queue(topic, **{"max.poll.records": 20})
    for message in take(leaves, 20)[:10]:
        leaves.acknowledge(message)
    leaves.close()
    one = queue(topic)
    with logtx.Producer({**servers, "transactional.id": unique("worker")}) as worker:
        for block in logtx.process(one, worker, max_records=16, in_flight=2, timeout=5.0):
            for message in block:
                block.produce(outputs, message.value(), partition=0)
    found = values(committed(servers, unique, outputs, 51))
    assert sorted(found, key=int) == [b"%d" % number for number in range(10, 61)]


def test_blocks_of_a_queue_commit_outputs_acknowledgements_and_letters(
    producer: logtx.Producer,
    queue: MakeQueue,
    make_topic: MakeTopic,
    servers: Any,
    unique: Any,
) -> None:
    topic, outputs, letters = make_topic(), make_topic(), make_topic()
    for number in range(30):
        producer.produce(topic, b"%d" % number, partition=0)
    producer.flush()
    settings = {LETTERS: letters, "share.delivery.count.limit": 3, "redelivery.delay.ms": 50}
    one = queue(topic, producer=producer, **settings)
    with logtx.Producer({**servers, "transactional.id": unique("worker")}) as worker:
        for block in logtx.process(one, worker, max_records=8, in_flight=2, timeout=5.0):
            numbers = [int(message.value()) for message in block]
            for message in block:
                if int(message.value()) == 4:
                    block.reject(message, "four")
                else:
                    block.produce(outputs, message.value(), partition=0)
            if 17 in numbers:
                block.release()
    expected = sorted(b"%d" % n for n in range(30) if n not in (4, 17))
    assert sorted(values(committed(servers, unique, outputs, 28))) == expected
    assert sorted(values(committed(servers, unique, letters, 2))) == [b"17", b"4"]


def run(servers: Any, *arguments: str) -> Result:
    """Runs `logtx subscription`."""
    environment = {"LOGTX_BOOTSTRAP_SERVERS": servers["bootstrap.servers"], "COLUMNS": "200"}
    return CliRunner().invoke(cli.app, ["subscription", *arguments], env=environment)


def operate(servers: Any, *arguments: str) -> Any:
    """Returns what a command prints as JSON."""
    result = run(servers, *arguments)
    assert result.exit_code == 0, (result.exception, result.output)
    return json.loads(result.stdout)


def worked_off(servers: Any, queue: MakeQueue, topic: str, count: int) -> str:
    """Works so many messages off, and leaves. Returns the subscription, which nobody consumes."""
    one = queue(topic)
    for message in take(one, count):
        one.acknowledge(message)
    assert set(one.commit_sync().values()) == {None}
    one.close()
    deadline_s = time.monotonic() + TIMEOUT_S
    while operate(servers, "show", one.group_id, "--json")["consumers"]:
        assert time.monotonic() < deadline_s
    assert operate(servers, "peek", one.group_id, "--json") == []
    return one.group_id


def test_a_queue_begins_anew(
    producer: logtx.Producer, queue: MakeQueue, make_topic: MakeTopic, servers: Any, transport: str
) -> None:
    topic = make_topic()
    for number in range(3):
        producer.produce(topic, b"%d" % number, partition=0)
    producer.flush()
    time.sleep(0.05)
    since = datetime.now(UTC).isoformat()
    time.sleep(0.05)
    with producer.begin_transaction() as txn:
        txn.produce(topic, b"3", b"k", partition=0)
    txn.commit(finished=True)
    group = worked_off(servers, queue, topic, 4)
    to = ("--to-datetime", since)
    if transport == "mock":  # It knows no offsets by time.
        to = ("--to-offset", "3", "--topic", f"{topic}[0]")
    reset = operate(servers, "reset", group, *to, "--execute", "--json")
    assert [part["new_start"] for part in reset["partitions"] if part["partition"] == 0] == [3]
    (found,) = operate(servers, "peek", group, "--json")
    assert (found["value"], found["key"], found["transaction"]) == ("3", "k", str(txn.txid))
    assert values(take(queue(topic), 2, 5.0)) == [b"3"]


def test_a_queue_is_deleted_and_made_anew(
    producer: logtx.Producer, queue: MakeQueue, make_topic: MakeTopic, servers: Any
) -> None:
    topic = make_topic()
    for number in range(2):
        producer.produce(topic, b"%d" % number, partition=0)
    producer.flush()
    group = worked_off(servers, queue, topic, 2)
    assert "add --execute" in run(servers, "delete", group).stdout
    deleted = run(servers, "delete", group, "--execute")
    assert "is forgotten" in deleted.stdout, (deleted.exception, deleted.output)
    gone = run(servers, "peek", group)
    assert isinstance(gone.exception, UnknownSubscriptionError)
    again = queue(topic)
    assert sorted(values(take(again, 2))) == [b"0", b"1"]
    assert run(servers, "delete", group, "--execute").exit_code == 1, "a consumer is there"
