"""Producers on any log, with a coordinator that decides in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Message, TopicPartition

from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.log import MemoryLog
from logtx.producer import writer
from logtx.producer.producer import Producer

from ..extension import go_without_extension, use_extension
from .fake import FakeCoordinators

MakeProducer = Callable[..., Producer]
ReadAll = Callable[..., list[Message]]


@pytest.fixture(params=["memory", "mock", "native", pytest.param("kafka", marks=pytest.mark.kafka)])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of the transport; "native": the mock with all records but a topic's first in C."""
    return use_transport(request.param, monkeypatch)


def use_transport(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Lets the mock do without the extension, and "native" use it. Returns the name."""
    if name == "native":
        count_in_c(monkeypatch)
    elif name == "mock":
        go_without_extension(monkeypatch)
    return name


def count_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the extension take records as early as it can; skips the test if there is none."""
    use_extension(monkeypatch)
    monkeypatch.setattr(writer, "_FEW", 0)


@pytest.fixture
def coordinators() -> FakeCoordinators:
    """A coordinator that decides in memory."""
    return FakeCoordinators()


@pytest.fixture
def make_memory_producer(
    memory_log: MemoryLog, coordinators: FakeCoordinators
) -> Iterator[MakeProducer]:
    """`make_memory_producer(**settings)`: dots are written as double underscores."""
    yield from _makes(memory_log, coordinators)


@pytest.fixture
def make_producer(log: Log, coordinators: FakeCoordinators) -> Iterator[MakeProducer]:
    """The same on each transport."""
    yield from _makes(log, coordinators)


def _makes(log: Log, coordinators: FakeCoordinators) -> Iterator[MakeProducer]:
    made: list[Producer] = []

    def make(**settings: Any) -> Producer:
        config = {
            "transactional.id": "p",
            "coordinator.timeout.ms": 2_000,
            **{name.replace("__", "."): value for name, value in settings.items()},
        }
        producer = Producer(config, log=log, coordinators=coordinators)
        made.append(producer)
        return producer

    yield make
    for producer in made:
        producer.close(2)


@pytest.fixture
def read_all(log: Log) -> ReadAll:
    """`read_all(topic, partitions=1)`: every record of a topic, by partition and offset."""
    return lambda topic, partitions=1: read_topic(log, topic, partitions)


def read_topic(log: Log, topic: str, partitions: int = 1) -> list[Message]:
    """Every record of a topic as it is now, by partition and offset."""
    consumer = log.consumer({"group.id": "reader", "enable.auto.commit": False})
    ends = {p: log.end_offset(topic, p) for p in range(partitions)}
    consumer.assign([TopicPartition(topic, p, log.start_offset(topic, p)) for p in ends])
    wanted = sum(end - log.start_offset(topic, p) for p, end in ends.items())
    found: list[Message] = []
    deadline_s = time.monotonic() + 15
    while len(found) < wanted and time.monotonic() < deadline_s:
        message = consumer.poll(0.1)
        if message is None or message.error() is not None:
            continue
        # A marker that was written after `ends` were asked must not count in place of a record
        # below them.
        if message.offset() < ends[message.partition()]:
            found.append(message)
    consumer.close()
    assert len(found) == wanted
    return sorted(found, key=lambda m: (m.partition(), m.offset()))
