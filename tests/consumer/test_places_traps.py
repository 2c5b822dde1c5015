"""Traps of readers that follow a home, which histories of the simulation showed."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from logtx.consumer.core.known_modes import KnownModes
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.mode_registry import TopicModeRecord
from logtx.journal.modes import Phase
from logtx.journal.position import Position

from .conftest import MakeConsumer
from .logs import Transactions, nothing_more
from .places import HOME, Places, expected, read_upto

T = [TopicPartition("t", 0)]


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """A log in memory, so that each test has a journal of its own."""
    memory_log.create_topic("t", partitions=1)
    return memory_log


@pytest.fixture
def places(log: MemoryLog) -> Places:
    written = Transactions(log)
    written.with_journal()
    return Places(written, "t")


def test_trap_64_several_are_placed_at_the_mode_record_that_ends_the_stretch(
    places: Places, make_consumer: MakeConsumer
) -> None:
    places.switch(Phase.METADATA)
    begun = [places.written.begin() for _ in range(3)]
    for number, txid in enumerate(begun):
        places.written.write(txid, "t", [b"%d a" % number, b"%d b" % number])
    for txid in begun:
        places.decide(txid)
    places.place()
    places.switch(Phase.MARKERS)
    places.written.transaction("t", [b"marked"])
    wanted = expected(places.log, "t")
    assert len(wanted) == 7
    consumer = make_consumer()
    consumer.assign(T)
    # One at a time: the others wait for delivery when reading has come to the mode record.
    got = [m.value() for _ in wanted for m in consumer.consume(1, 5)]
    assert got == wanted
    assert nothing_more(consumer, 0.1)


def test_trap_65_a_reader_restarts_behind_a_mode_record_before_the_mode_is_published(
    places: Places, make_consumer: MakeConsumer
) -> None:
    places.switch(Phase.METADATA, publish=False)
    places.transaction([b"a"])
    consumer = make_consumer(group_id="g", enable_auto_commit=False)
    consumer.assign(T)
    wanted = expected(places.log, "t")
    assert read_upto(consumer, wanted) == wanted
    consumer.commit(asynchronous=False)
    consumer.close()
    places.transaction([b"b"])
    again = make_consumer(group_id="g", enable_auto_commit=False)
    again.assign(T)
    assert read_upto(again, [b"b"]) == [b"b"]
    assert nothing_more(again, 0.1)


def test_trap_67_no_mode_record_tells_where_a_topic_begins_to_place() -> None:
    modes = KnownModes()
    told = TopicModeRecord(
        topic="t",
        topic_id="id",
        phase=Phase.METADATA,
        home=HOME,
        mode_offset=7,
        offset=9,
        since={0: 5},
        with_records=False,
    )
    modes.publish(0, told)
    follows = modes.follows(Position.at(2))
    assert follows is not None
    assert follows.home == HOME
