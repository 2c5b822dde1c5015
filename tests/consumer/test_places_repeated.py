"""A switch back to markers that takes long: new owners write its mode records again."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Phase

from .conftest import MakeConsumer
from .logs import Transactions, nothing_more
from .places import Places, expected, read_upto

pytestmark = pytest.mark.usefixtures("quick_looks")


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """A log in memory, so that each test has a journal of its own."""
    memory_log.create_topic("t", partitions=1)
    return memory_log


@pytest.fixture
def home(log: MemoryLog) -> Places:
    written = Transactions(log)
    written.with_journal()
    return Places(written, "t")


def switching_back(home: Places) -> None:
    """Mode records of one switch, with markers between them, while the switch is under way."""
    home.switch(Phase.METADATA)
    for value in (b"a", b"b"):
        home.transaction([value])
    home.written.append("t", [b"p0"])
    # It stays open, so every reader begins to read there, below all mode records.
    home.written.write(home.written.begin(), "t", [b"open"])
    early = home.written.begin()
    home.written.write(early, "t", [b"early"])
    home.begin_switch(Phase.TO_MARKERS)
    home.publish(Phase.TO_MARKERS, {})
    for number in range(4):
        home.mode_record(places=False)
        late = home.written.begin()
        home.written.write(late, "t", [b"late%d" % number])
        home.written.finish(home.written.transaction("t", [b"m%d" % number, b"n%d" % number]))
        home.written.append("t", [b"p%d" % (number + 1)])
        home.written.finish(home.written.transaction("t", [b"o%d" % number]))
        home.written.mark(late, "t")
        home.written.finish(late)
    home.written.mark(early, "t")
    home.written.finish(early)
    home.written.append("t", [b"end"])


def test_a_stop_after_every_record_goes_on_exactly(
    home: Places, log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    switching_back(home)
    wanted = expected(log, "t")
    got: list[bytes | None] = []
    for number in range(len(wanted)):
        consumer = make_consumer(group_id="stops", enable_auto_commit=False)
        consumer.assign([TopicPartition("t", 0)])
        got += read_upto(consumer, wanted[number : number + 1])
        assert got == wanted[: len(got)], number
        consumer.commit(asynchronous=False)
        consumer.close()
    assert got == wanted


def test_a_reader_from_anywhere_misses_nothing(
    home: Places, log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    switching_back(home)
    wanted = expected(log, "t")
    for count in range(len(wanted)):
        group = f"from-{count}"
        first = make_consumer(group_id=group, enable_auto_commit=False)
        first.assign([TopicPartition("t", 0)])
        got = read_upto(first, wanted[:count])
        first.commit(asynchronous=False)
        first.close()
        second = make_consumer(group_id=group, enable_auto_commit=False)
        second.assign([TopicPartition("t", 0)])
        got += read_upto(second, wanted[count:])
        assert got == wanted, count
        assert nothing_more(second, 0.05)
        second.close()
