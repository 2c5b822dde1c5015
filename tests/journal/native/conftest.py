"""Producers that count, on a mock cluster whose faults a test can ask for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Producer, cimpl

from logtx.journal.native import loading
from logtx.journal.native.interface import Handle

from ...extension import look_again, use_extension

Counting = tuple[Any, Handle]
MakeCounting = Callable[..., Counting]
PRODUCE, FETCH = 0, 1
"""Kafka's numbers of these requests."""


class Mock:
    """A mock cluster of one broker, with four partitions in each topic."""

    def __init__(self) -> None:
        settings = {"bootstrap.servers": "", "test.mock.num.brokers": 1, "log_level": 0}
        self._holder = Producer(settings)
        broker = next(iter(self._holder.list_topics(timeout=10).brokers.values()))
        self.address = f"{broker.host}:{broker.port}"
        self._library = ctypes.CDLL(cimpl.__file__)
        cluster_of = self._library.rd_kafka_handle_mock_cluster
        cluster_of.restype = ctypes.c_void_p
        handle = ctypes.c_void_p.from_address(id(self._holder) + 16)
        self._cluster = ctypes.c_void_p(cluster_of(handle))

    def answer(self, *errors: int, request: int = PRODUCE) -> None:
        """Answers the next requests, to produce or another one, with these errors."""
        push = self._library.rd_kafka_mock_push_request_errors_array
        array = (ctypes.c_int * len(errors))(*errors)
        push(self._cluster, ctypes.c_int16(request), ctypes.c_size_t(len(errors)), array)

    def answer_well(self, request: int) -> None:
        """Gives up the errors that are left for requests."""
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, ctypes.c_int16(request))

    def delete(self, topic: str) -> None:
        """Deletes a topic."""
        assert not self._library.rd_kafka_mock_topic_delete(self._cluster, topic.encode())

    def delay(self, milliseconds: int) -> None:
        """Lets each answer take this long."""
        self._library.rd_kafka_mock_broker_set_rtt(self._cluster, 1, milliseconds)


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the process look for the extension again, and use it."""
    look_again(monkeypatch)


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The extension; skips where there is none."""
    return use_extension(monkeypatch)


@pytest.fixture(scope="module")
def mock() -> Mock:
    """A mock cluster, shared by the tests of a module."""
    return Mock()


@pytest.fixture
def make_counting(mock: Mock, extension: Any) -> Iterator[MakeCounting]:
    """`make_counting(**settings)`: (producer, handle)."""
    made: list[Counting] = []
    del extension

    def make(**settings: Any) -> Counting:
        named = {name.replace("__", "."): value for name, value in settings.items()}
        config = {"bootstrap.servers": mock.address, "linger.ms": 0, "log_level": 0, **named}
        producer, handle = loading.opened(Producer, config)
        assert handle is not None
        made.append((producer, handle))
        return producer, handle

    yield make
    mock.delay(0)
    for producer, handle in made:
        handle.detach()
        with suppress(RuntimeError):  # The test has closed it.
            producer.purge()
        producer.close()
