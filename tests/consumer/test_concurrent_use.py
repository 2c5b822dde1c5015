"""A consumer that two threads, or a signal handler, use at one time."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer, TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.journal.errors import ConcurrentUseError
from logtx.journal.logs.memory.log import MemoryLog

from ..waiting import eventually
from .conftest import use_transport
from .logs import Transactions

CALLS: list[Callable[[Consumer], object]] = [
    lambda consumer: consumer.poll(0),
    lambda consumer: consumer.consume(2, 0),
    lambda consumer: consumer.consume_arrow(2, 0),
    lambda consumer: consumer.seek(TopicPartition("t", 0, 0)),
    lambda consumer: consumer.assign([TopicPartition("t", 0, 0)]),
    lambda consumer: consumer.incremental_assign([TopicPartition("t", 0, 0)]),
    lambda consumer: consumer.rewind(),
]


@pytest.fixture
def consumer(memory_log: MemoryLog) -> Iterator[Consumer]:
    memory_log.create_topic("t", partitions=1)
    with Consumer({"group.id": "g", "auto.offset.reset": "earliest"}, log=memory_log) as made:
        made.assign([TopicPartition("t", 0, 0)])
        yield made


def test_a_second_thread_is_refused_while_one_takes(
    consumer: Consumer, memory_log: MemoryLog
) -> None:
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(consumer.poll(20)))
    thread.start()
    while not consumer._in_call:
        time.sleep(0.001)
    for call in CALLS:
        with pytest.raises(ConcurrentUseError, match="give each thread its own"):
            call(consumer)
    # These are not refused: they only look, or end.
    assert consumer.assignment() == [TopicPartition("t", 0)]
    consumer.commit()
    consumer.pause([TopicPartition("t", 0)])
    consumer.resume([TopicPartition("t", 0)])
    consumer.rewind(wait=False)
    Transactions(memory_log).append("t", [b"v"], partition=0)
    thread.join(20)
    assert [message.value() for message in got] == [b"v"]
    for call in CALLS:
        call(consumer)


@pytest.mark.parametrize("transport", ["native", "mock"])
def test_a_thread_may_close_what_another_one_polls(
    mock_cluster: str, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    """With confluent-kafka alone, the commit in `close` would wait for ever."""
    use_transport(transport, monkeypatch)
    topic, told = f"closed-{uuid.uuid4().hex}", []
    plain = Producer({"bootstrap.servers": mock_cluster, "log_level": 0})
    plain.produce(topic, b"v", partition=0)
    assert plain.flush(20) == 0
    config = {"bootstrap.servers": mock_cluster, "group.id": topic, "log_level": 0}
    consumer = Consumer({**config, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    assert consumer.poll(30) is not None

    def poll() -> None:
        with pytest.raises(RuntimeError, match=r"closed|closes") as raised:
            consumer.poll(60)
        told.append(raised.value)

    polls, closes = (threading.Thread(target=call, daemon=True) for call in (poll, consumer.close))
    polls.start()
    eventually(lambda: consumer._in_call)
    closes.start()
    closes.join(20)
    assert not closes.is_alive()
    polls.join(20)
    assert told
    committed = ConfluentConsumer(config)
    (place,) = committed.committed([TopicPartition(topic, 0)], 20)
    committed.close()
    assert place.offset == 1


def test_a_signal_handler_is_refused_and_nothing_is_lost(
    consumer: Consumer, memory_log: MemoryLog
) -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: consumer.poll(0))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(ConcurrentUseError, match="set a flag"):
            consumer.poll(20)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert consumer._reading.interrupted
    Transactions(memory_log).append("t", [b"v"], partition=0)
    message = consumer.poll(20)
    assert message is not None
    assert message.value() == b"v"


def test_a_rebalance_callback_may_move_partitions(memory_log: MemoryLog) -> None:
    memory_log.create_topic("t", partitions=1)
    Transactions(memory_log).append("t", [b"0", b"1"], partition=0)
    moved: list[object] = []

    def on_assign(consumer: Consumer, _: object) -> None:
        moved.append(consumer.seek(TopicPartition("t", 0, 1)))

    config = {"group.id": "g", "auto.offset.reset": "earliest"}
    with Consumer(config, log=memory_log) as consumer:
        consumer.subscribe(["t"], on_assign=on_assign)
        message = consumer.poll(20)
        assert message is not None
        assert message.value() == b"1"
        assert moved
