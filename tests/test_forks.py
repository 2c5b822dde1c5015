"""A forked child that inherits clients: their calls raise ForkedError, and nothing disturbs it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import logtx
from logtx.coordinator.client.connection import Calls
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol import coordinator_pb2 as pb
from logtx.coordinator.service import CoordinatorConfig
from logtx.journal.errors import NotCoordinatorError
from logtx.journal.logs.memory.log import MemoryLog

from .children import in_child
from .coordinator.streams import calls_to
from .producer import conftest
from .producer.conftest import MakeProducer

coordinators, make_memory_producer = conftest.coordinators, conftest.make_memory_producer

TIMEOUT_S = 30
PROGRAM = """
import gc, os, sys
from confluent_kafka import TopicPartition
import logtx
from logtx.journal.control import BranchRange, Marker, TXCTL_HEADER, TXID_HEADER, encode_marker
from logtx.journal.txid import TxId
import confluent_kafka

servers = {"bootstrap.servers": sys.argv[1], "log_level": 0}
reading = {**servers, "auto.offset.reset": "earliest", "pending.memory.max.bytes": 0}

def read(consumer):
    while (message := consumer.poll(1)) is None:
        pass
    return message.value()

consumer = logtx.Consumer({**reading, "group.id": "parent"})
consumer.assign([TopicPartition("t", 0, 0)])
producer = logtx.Producer(servers)
producer.produce("t", b"parent", partition=0)
producer.flush()
read(consumer)

def write(value, headers):
    # Not kept: confluent's producer does not survive in the child.
    plain = confluent_kafka.Producer(servers)
    plain.produce("t", value, partition=0, headers=headers)
    plain.flush()

txid = {TXID_HEADER: TxId(0, 1, 1).to_bytes()}
write(b"spilled", txid)
while not consumer.counters.spilled_bytes:
    assert consumer.poll(0.1) is None
child = os.fork()
if child == 0:
    with producer, consumer:
        for call in (consumer.poll, consumer.commit, producer.flush, producer.begin_transaction):
            try:
                call()
            except logtx.ForkedError:
                print("refused", flush=True)
    del consumer, producer
    gc.collect()
    with logtx.Consumer({**reading, "group.id": "child"}) as own:
        own.assign([TopicPartition("t", 0, 0)])
        print(read(own), flush=True)
        try:
            while not own.counters.spilled_bytes:
                own.poll(0.1)
        except logtx.SpillError as error:
            print(str(error)[:26], flush=True)
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
producer.produce("t", b"again", partition=0)
producer.flush()
print(read(consumer), flush=True)
branches = (BranchRange(0, 1, 1, 1),)
marker = Marker(
    committed=True, commit_sequence=2, hw=0, epoch=1, partition_count=1, branches=branches
)
write(None, {**txid, TXCTL_HEADER: encode_marker(marker)})
print(read(consumer), flush=True)
producer.close()
consumer.close()
"""


def test_a_child_that_inherits_clients_works_and_ends(mock_cluster: str) -> None:
    command = [sys.executable, "-c", PROGRAM, mock_cluster]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    want = [
        *["refused"] * 4,
        "b'parent'",
        "a forked child can't spill",
        "7",
        "b'again'",
        "b'spilled'",
    ]
    assert done.stdout.split("\n")[:-1] == want, done.stderr


@pytest.mark.parametrize(
    "call",
    [
        lambda txn: txn.produce("t", b"v"),
        lambda txn: txn.commit(),
        lambda txn: txn.abort(),
        lambda txn: txn.commit_async(),
        lambda txn: txn.send_offsets("g", []),
        lambda txn: txn.txid,
        lambda txn: txn.branch(),
        lambda txn: txn.__exit__(None, None, None),
    ],
)
def test_a_transaction_of_the_parent_is_refused(
    make_memory_producer: MakeProducer, call: Callable[[logtx.Transaction], Any]
) -> None:
    txn = make_memory_producer().begin_transaction()
    with txn._lock:  # type: ignore[attr-defined]
        # Of a thread that does not run in the child.
        assert in_child(lambda: call(txn)) == "ForkedError"
    assert txn.commit().commit_sequence is not None


def test_an_exception_leaves_the_block_of_a_transaction_as_it_is(
    make_memory_producer: MakeProducer,
) -> None:
    txn = make_memory_producer().begin_transaction()
    error = KeyError("k")

    def leave() -> list[str]:
        txn.__exit__(KeyError, error, None)
        return getattr(error, "__notes__", [])

    assert in_child(leave) == "[]"
    txn.abort()


def test_a_future_of_the_parent_is_refused(make_memory_producer: MakeProducer) -> None:
    txn = make_memory_producer().begin_transaction()
    sent: list[Any] = []
    futures: list[Any] = []
    session = txn._engine.session  # type: ignore[attr-defined]
    end = session.end
    session.end = lambda *given, **more: sent.append((given, more))
    futures += [txn.commit_async(), txn.commit_async(finished=True)]
    # Not `futures[0].result`: that would be looked up before the fork.
    assert in_child(lambda: futures[0].result(TIMEOUT_S)) == "ForkedError"
    assert in_child(lambda: futures[1].result(TIMEOUT_S)) == "ForkedError"
    while not sent:
        time.sleep(0.01)
    end(*sent[0][0], **sent[0][1])
    assert futures[0].result(10).commit_sequence is not None


def test_a_branch_of_the_parent_is_refused(make_memory_producer: MakeProducer) -> None:
    txn = make_memory_producer().begin_transaction()
    branch = txn.branch()
    assert in_child(lambda: branch.produce("t", b"v")) == "ForkedError"
    assert in_child(branch.close) == "None"
    txn.abort()


def test_a_saved_method_and_an_iterator_are_refused(memory_log: MemoryLog) -> None:
    memory_log.create_topic("t", partitions=1)
    with logtx.Consumer({"group.id": "g"}, log=memory_log) as consumer:
        poll, iterator = consumer.poll, iter(consumer)
        assert in_child(lambda: poll(0)) == "ForkedError"
        assert in_child(lambda: next(iterator)) == "ForkedError"
        assert in_child(consumer.close) == "None"
        assert consumer.poll(0) is None


def test_a_child_reaches_a_coordinator_by_a_connection_of_its_own(memory_log: MemoryLog) -> None:
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers, listen="127.0.0.1:0", journal_partitions=1
    )

    def ask(calls: Calls) -> int:
        return calls.call(pb.CallRequest(partition=99), TIMEOUT_S).error.code

    with EmbeddedCoordinator(config) as running, calls_to(running.address) as calls:
        assert ask(calls) == NotCoordinatorError.code
        assert in_child(lambda: ask(calls)) == "ForkedError"
        assert in_child(lambda: ask(Calls(running.address))) == str(NotCoordinatorError.code)
        assert ask(calls) == NotCoordinatorError.code
