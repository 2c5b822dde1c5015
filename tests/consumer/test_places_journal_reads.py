"""How many records of a home's journal a reader decodes for a backlog: about as many as there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from logtx.consumer import reading
from logtx.journal import follower, reader
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Phase
from logtx.journal.reader import JOURNAL_TOPIC

from .conftest import MakeConsumer
from .logs import Transactions
from .places import Places, expected, read_upto

PARTITIONS = 3
STRETCHES = 6
"""In metadata mode; as many others lie between them."""
EACH = 8
"""Transactions of each partition in each stretch."""


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Offsets of the journal's records that were decoded, in that order."""
    found: list[int] = []
    real = reader.decode_message

    def decode_message(message: Any, **more: Any) -> Any:
        found.append(message.offset())
        return real(message, **more)

    for module in (reader, follower):
        monkeypatch.setattr(module, "decode_message", decode_message)
    yield found


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """A log in memory, so that each test has a journal of its own."""
    memory_log.create_topic("t", partitions=PARTITIONS)
    memory_log.create_topic("u", partitions=1)
    return memory_log


@pytest.fixture
def written(log: MemoryLog) -> Transactions:
    transactions = Transactions(log)
    transactions.with_journal()
    return transactions


@pytest.fixture
def placed(written: Transactions) -> Places:
    """The home of a topic in metadata mode that nobody switches back."""
    home = Places(written, "u")
    home.switch(Phase.METADATA)
    return home


@pytest.fixture
def switched(written: Transactions, placed: Places) -> Places:
    """The home of a topic that was switched many times; some transactions end behind a switch."""
    home = Places(written, "t", partitions=PARTITIONS)
    for _ in range(STRETCHES):
        home.switch(Phase.METADATA)
        for n in range(EACH * PARTITIONS):
            home.transaction([b"%d" % n], n % PARTITIONS)
        open_still = written.begin()
        for number in range(PARTITIONS):
            written.write(open_still, "t", [b"late"], number)
        home.switch(Phase.MARKERS)
        for number in range(PARTITIONS):
            written.mark(open_still, "t", number)
        for n in range(EACH * PARTITIONS):
            written.transaction("t", [b"%d" % n], n % PARTITIONS)
        placed.transaction([b"u"])
    return home


def partitions_of(home: Places) -> list[TopicPartition]:
    return [TopicPartition(home.topic, n) for n in range(home.partitions)]


def wanted_of(*topics: Places) -> list[bytes | None]:
    return [
        value
        for home in topics
        for n in range(home.partitions)
        for value in expected(home.log, home.topic, n)
    ]


def end_of(home: Places) -> int:
    return home.log.end_offset(JOURNAL_TOPIC, 0)


@pytest.mark.parametrize("batch", [3, 1_000])
def test_a_backlog_with_many_switches_reads_the_journal_once(
    switched: Places,
    placed: Places,
    make_consumer: MakeConsumer,
    decoded: list[int],
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
) -> None:
    """Each partition begins anew at each of its mode records, and by then all is read."""
    monkeypatch.setattr(reading, "FETCH_MAX_RECORDS", batch)
    wanted = wanted_of(switched, placed)
    decoded.clear()
    consumer = make_consumer()
    consumer.assign([*partitions_of(switched), *partitions_of(placed)])
    found = read_upto(consumer, wanted)
    assert sorted(map(str, found)) == sorted(map(str, wanted))
    print(f"{len(decoded)} records decoded of a journal of {end_of(switched)}")
    assert len(decoded) < 1.1 * end_of(switched)
