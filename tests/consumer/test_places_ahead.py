"""What a consumer keeps of a home for partitions that do not follow it: `HomeView.collect`."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from logtx.consumer import homes, reading
from logtx.consumer.consumer import Consumer
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Phase
from logtx.journal.reader import JOURNAL_TOPIC

from .conftest import MakeConsumer
from .logs import Transactions, read
from .places import Places, expected, snapshot

T, U = TopicPartition("t", 0), TopicPartition("u", 0)


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """A log in memory, so that each test has a journal of its own."""
    memory_log.create_topic("t", partitions=1)
    memory_log.create_topic("u", partitions=1)
    return memory_log


def read_until_idle(consumer: Consumer, most: int, *, upto: int = 1) -> list[bytes | None]:
    """Reads a few at a time, until no home is followed any more."""
    found: list[bytes | None] = []
    followed = False
    until = time.monotonic() + 20
    while time.monotonic() < until and len(found) < most:
        found += [m.value() for m in consumer.consume(upto, 0.005)]
        follows = consumer._reading.following.homes.follows
        if followed and not follows:
            return found
        followed = follows
    raise AssertionError("a home is followed all the time")


@pytest.mark.parametrize("way", ["seek", "assign"])
def test_one_that_began_at_a_snapshot_may_go_back_below_it(
    written: Transactions, make_consumer: MakeConsumer, way: str
) -> None:
    home = Places(written, "t")
    home.switch(Phase.METADATA)
    for value in (b"a", b"b", b"c"):
        home.transaction([value])
    end = home.end()
    snapshot(home, last_places=((home.partition(), end),))
    written.append("t", [b"plain"])
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0, end + 1)])
    written.append("t", [b"behind"])
    assert read(consumer, 1) == [b"behind"]
    home.switch(Phase.MARKERS)
    written.transaction("t", [b"marked"])
    assert read(consumer, 1) == [b"marked"]
    wanted = expected(home.log, "t")
    start = TopicPartition("t", 0, 0)
    getattr(consumer, way)(start if way == "seek" else [start])
    assert read(consumer, len(wanted)) == wanted


def test_one_that_goes_on_and_one_that_begins_far_behind_at_once(
    log: MemoryLog,
    written: Transactions,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where reading stands, one resumes; the other one needs none of what lies between."""
    monkeypatch.setattr(reading, "FETCH_MAX_RECORDS", 2)
    t, u = Places(written, "t"), Places(written, "u")
    u.switch(Phase.METADATA)
    t.switch(Phase.METADATA)
    t.transaction([b"first"])
    t.switch(Phase.MARKERS)
    for n in range(30):
        written.transaction("t", [b"marked %d" % n])
    t.switch(Phase.METADATA)
    t.transaction([b"second"])
    consumer = make_consumer(group_id="g")
    consumer.assign([T])
    found = read_until_idle(consumer, 30)
    for n in range(400):
        u.transaction([b"u %d" % n])
    for n in range(3):
        t.transaction([b"late %d" % n])
    for n in range(5):
        u.transaction([b"u end %d" % n])
    other = make_consumer(group_id="g")
    other.assign([U])
    read(other, 405)
    other.commit(asynchronous=False)
    other.close()
    u.transaction([b"u new"])
    followed = consumer._reading.following.homes
    until = time.monotonic() + 20
    while not followed._waiting and time.monotonic() < until:
        found += [m.value() for m in consumer.consume(1, 0)]
    consumer.incremental_assign([TopicPartition("u", 0)])
    assert len(followed._waiting) == 2
    wanted = [*expected(log, "t"), b"u new"]
    found += read(consumer, len(wanted) - len(found))
    assert sorted(map(str, found)) == sorted(map(str, wanted))


def test_what_was_read_of_a_journal_that_lost_its_end_is_not_kept(
    log: MemoryLog, written: Transactions, make_consumer: MakeConsumer
) -> None:
    t, u = Places(written, "t"), Places(written, "u")
    u.switch(Phase.METADATA)
    written.append("t", [b"plain"])
    t.switch(Phase.METADATA)
    t.transaction([b"t kept"])
    u.transaction([b"u kept"])
    lost_from = log.end_offset(JOURNAL_TOPIC, 0)
    for _ in range(6):
        written.decide(written.begin(), commit=False)
    consumer = make_consumer()
    consumer.assign([TopicPartition("u", 0, 0), TopicPartition("t", 0, 0)])
    consumer.pause([T])
    assert read(consumer, 1) == [b"u kept"]
    (lane,) = next(iter(consumer._reading.following.homes._lanes.values()))
    wait_for(consumer, lambda: lane.view.next_offset == lost_from + 12)
    assert lane.view.keeps_ahead
    log.truncate(JOURNAL_TOPIC, 0, lost_from)
    wait_for(consumer, lambda: lane.is_idle)
    for n in range(5):
        t.transaction([b"t %d" % n])
    u.transaction([b"u new"])
    assert read(consumer, 1) == [b"u new"]
    consumer.resume([T])
    wanted = expected(log, "t")
    assert read(consumer, len(wanted)) == wanted


def wait_for(consumer: Consumer, done: Any) -> None:
    until = time.monotonic() + 20
    while not done():
        assert time.monotonic() < until
        assert consumer.poll(0.01) is None


def test_many_partitions_that_begin_together_ask_once_which_are_there(
    log: MemoryLog,
    written: Transactions,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To ask for each took 0.9 s of CPU with 1,000 partitions, in one call."""
    asked: list[str] = []
    collect = homes.Homes._collect

    def counted(self: homes.Homes, view: Any, topic: str, topic_id: str) -> None:
        asked.append(topic)
        collect(self, view, topic, topic_id)

    monkeypatch.setattr(homes.Homes, "_collect", counted)
    log.create_topic("many", partitions=30)
    home = Places(written, "many", partitions=30)
    home.switch(Phase.METADATA)
    for number in range(30):
        home.transaction([b"%d" % number], number)
    consumer = make_consumer()
    consumer.assign([TopicPartition("many", number) for number in range(30)])
    assert len(read(consumer, 30)) == 30
    assert len(asked) < 5


def test_trap_280_a_seek_over_a_mode_record_that_was_not_met(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    home = Places(written, "u")
    written.append("u", [b"plain"])
    consumer = make_consumer()
    consumer.assign([TopicPartition("u", 0, 0)])
    assert read(consumer, 1) == [b"plain"]
    consumer.pause([U])
    home.switch(Phase.METADATA)
    txid = written.begin()
    written.write(txid, "u", [b"placed"])
    consumer.seek(TopicPartition("u", 0, home.end()))
    consumer.resume([U])
    assert consumer.poll(0.2) is None
    home.decide(txid)
    home.place()
    assert read(consumer, 1) == [b"placed"]
