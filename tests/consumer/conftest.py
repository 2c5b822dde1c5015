"""Fixtures of the consumer's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from logtx.consumer import lookup, out_of_range
from logtx.consumer.consumer import Consumer
from logtx.consumer.core import looks
from logtx.journal.logs.interface import Log
from logtx.journal.native import loading

from ..extension import go_without_extension, use_extension
from .logs import Transactions

MakeConsumer = Callable[..., Consumer]
LOOKS_APART_S = 0.2
"""Time between two looks at a partition's end, so that tests don't wait for seconds."""


@pytest.fixture(params=["memory", "mock", "native", pytest.param("kafka", marks=pytest.mark.kafka)])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of the transport; "native": the mock, and the C extension reads."""
    return use_transport(request.param, monkeypatch)


def use_transport(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Lets the mock do without the extension, and "native" read with it. Returns the name."""
    if name == "native":
        use_extension(monkeypatch)
        found = loading.find_reader()
        assert found.extension is not None, found.reason
    elif name == "mock":
        go_without_extension(monkeypatch)
    return name


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (lookup, looks, out_of_range):
        monkeypatch.setattr(module, "LOOKS_APART_S", LOOKS_APART_S)


@pytest.fixture
def transactions(log: Log) -> Transactions:
    return Transactions(log)


@pytest.fixture
def written(log: Log) -> Transactions:
    """Transactions of a log with a journal, which a test then has to itself: see its `log`."""
    transactions = Transactions(log)
    transactions.with_journal()
    return transactions


@pytest.fixture
def make_consumer(log: Log, unique: Callable[[str], str]) -> Iterator[MakeConsumer]:
    """Makes consumers: `make_consumer(**settings)`, with `_` for `.` in the names of settings.

    By default each has a group of its own and begins at the earliest offset.
    """
    made: list[Consumer] = []

    def make(**settings: Any) -> Consumer:
        config = {"group.id": unique("group"), "auto.offset.reset": "earliest"}
        config |= {name.replace("_", "."): value for name, value in settings.items()}
        consumer = Consumer(config, log=log)
        made.append(consumer)
        return consumer

    yield make
    for consumer in made:
        consumer.close()
