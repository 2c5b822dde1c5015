"""A consumer that is dropped without `close()` ends its threads, and leaves its group.

Finding 18 of the clients, for consumers.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.txid import TxId

from .logs import INCARNATION, Transactions, read

MakeTopic = Callable[..., str]


def wait_until(condition: Callable[[], Any], timeout_s: float = 20) -> None:
    """Waits for a condition."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def threads_of_librdkafka() -> int:
    """Returns how many threads librdkafka has in this process."""
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith("rdk:") for name in names)


def names_of_threads() -> set[str]:
    """Returns the names of Python's threads."""
    return {thread.name for thread in threading.enumerate()}


class Worker:
    """An application whose callbacks refer to its consumer."""

    def __init__(self, log: Log, group: str, **settings: Any) -> None:
        self.consumer = Consumer(
            {
                "group.id": group,
                "auto.offset.reset": "earliest",
                "pending.lookup.age.ms": 20,
                "error_cb": self.on_error,
                "stats_cb": lambda _: self.consumer,
                "on_commit": self.on_commit,
                **settings,
            },
            log=log,
        )
        self.errors = 0

    def on_error(self, _: object) -> None:
        """Counts."""
        self.errors += 1

    def on_commit(self, *_: object) -> None:
        """Reads a position."""
        self.consumer.assignment()

    def on_assign(self, consumer: Consumer, _: object) -> None:
        """Knows its consumer."""
        assert consumer is self.consumer


def work_and_drop(worker: Worker, topic: str) -> None:
    """Uses all that has threads."""
    worker.consumer.subscribe([topic], on_assign=worker.on_assign)
    assert read(worker.consumer, 2) == [b"a", b"b"]
    wait_until(lambda: worker.consumer.poll(0.05) or worker.consumer.counters.look_ups)
    assert "logtx-look-up" in names_of_threads()


@pytest.mark.parametrize("isolation", ["read_committed", "serializable"])
def test_finding_18_a_dropped_consumer_leaves_nothing(
    isolation: str,
    transport: str,
    log: Log,
    make_topic: MakeTopic,
    unique: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topic, group = make_topic(), unique("group")
    written = Transactions(log)
    if isolation == "serializable":
        if not isinstance(log, MemoryLog):
            pytest.skip("the journal of a shared log is not this test's")
        written.with_journal()
    written.write(TxId(0, INCARNATION, 10**6), topic, [b"pending"] * 3)
    written.transaction(topic, [b"a", b"b"])
    del written
    gc.collect()
    before = threads_of_librdkafka()
    spilling = {"pending.dir": str(tmp_path), "pending.memory.max.bytes": 0}
    work_and_drop(Worker(log, group, **{"isolation.level": isolation, **spilling}), topic)
    gc.collect()
    wait_until(lambda: not {"logtx-look-up", "logtx-dropped"} & names_of_threads())
    wait_until(lambda: threads_of_librdkafka() <= before)
    assert not [path for path in tmp_path.rglob("*") if path.is_dir() and path.name != "logtx"]
    if transport in ("mock", "native"):
        return  # librdkafka's mock gives a member that comes later nothing
    # It has left the group, without a word about what was delivered and maybe not processed.
    with Worker(log, group).consumer as other:
        other.subscribe([topic])
        began_s = time.monotonic()
        assert read(other, 2) == [b"a", b"b"]
        assert time.monotonic() - began_s < 15


def test_finding_18_a_consumer_is_dropped_with_its_last_reference(
    log: Log, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    consumer = Consumer({"group.id": "g", "auto.offset.reset": "earliest"}, log=log)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.poll(0.1)
    gone: list[int] = []
    inner = consumer._inner
    gc.disable()
    try:
        weakref.finalize(consumer, gone.append, 1)
        del consumer
        assert gone
    finally:
        gc.enable()

    def is_closed() -> bool:
        try:
            inner.assignment()
        except RuntimeError:
            return True
        return False

    wait_until(is_closed)


def test_a_consumer_that_was_closed_is_not_closed_again(
    memory_log: MemoryLog, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    consumer = Consumer({"group.id": "g"}, log=memory_log)
    consumer.close()
    del consumer
    gc.collect()
    assert "consumer_dropped" not in caplog.text
    assert "logtx-dropped" not in names_of_threads()
