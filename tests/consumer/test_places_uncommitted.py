"""Readers of uncommitted records, where transactions in sidecars are placed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

import pytest

from logtx.consumer import sidecar_watch
from logtx.consumer.config import IsolationLevel
from logtx.consumer.consumer import Consumer
from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Phase
from logtx.journal.sidecar import sidecar_of

from .conftest import MakeConsumer
from .logs import Transactions, nothing_more, read, wait_for
from .places import Places, read_upto
from .test_places_sidecars import T, aside, some

SIDE = sidecar_of("t")
WAIT_S: Final = 20.0
"""Bounds what a test waits for."""


@pytest.fixture(name="log")
def log_without_sidecar(memory_log: MemoryLog) -> MemoryLog:
    memory_log.create_topic("t", partitions=1)
    return memory_log


@pytest.fixture
def places(written: Transactions) -> Places:
    found = Places(written, "t")
    found.switch(Phase.METADATA)
    return found


def opened(places: Places) -> None:
    """Creates the sidecar."""
    places.log.create_topic(SIDE, partitions=1)


def assign(make_consumer: MakeConsumer, **settings: object) -> Consumer:
    consumer = make_consumer(isolation_level="read_uncommitted", **settings)
    consumer.assign(T)
    return consumer


def follows(consumer: Consumer) -> bool:
    return consumer._reading.following.homes.follows


def test_what_lies_in_the_sidecar_comes(places: Places, make_consumer: MakeConsumer) -> None:
    opened(places)
    wanted = some(places)
    consumer = assign(make_consumer)
    found = read_upto(consumer, wanted)
    assert sorted(found) == sorted(wanted)
    assert nothing_more(consumer)
    # Among themselves in the order of the home; what lies in the topic at its own offset.
    aside_ones = [b"b2", b"a1", b"a2", b"a3", b"c1"]
    assert [value for value in found if value in aside_ones] == aside_ones
    assert [value for value in found if value not in aside_ones] == [b"p1", b"b1", b"p2"]
    assert consumer.counters.misplaced_transactions == 0


def test_a_stop_after_every_record_goes_on_exactly(
    places: Places, make_consumer: MakeConsumer
) -> None:
    opened(places)
    wanted = some(places)
    for count in range(len(wanted) + 1):
        consumer = assign(make_consumer, enable_auto_commit=False)
        before = read(consumer, count)
        consumer.commit(asynchronous=False)
        consumer.close()
        again = assign(make_consumer, group_id=consumer.group_id, enable_auto_commit=False)
        rest = read_upto(again, wanted[count:])
        assert sorted([*before, *rest]) == sorted(wanted), count
        assert nothing_more(again, 0.05)
        again.close()


def test_no_record_waits_for_a_place(places: Places, make_consumer: MakeConsumer) -> None:
    opened(places)
    consumer = assign(make_consumer)
    places.written.append("t", [b"p1"])
    assert read(consumer, 1) == [b"p1"]
    txid = aside(places, b"a1", b"a2", main=(b"m1",))
    places.decide(txid)
    at = places.end()
    places.written.append("t", [b"p2"])
    assert read(consumer, 2) == [b"m1", b"p2"]
    places.place(at=at)
    assert read(consumer, 2) == [b"a1", b"a2"]
    assert consumer.counters.misplaced_transactions == 0


def test_who_stopped_between_record_and_place_gets_what_is_placed_below(
    places: Places, make_consumer: MakeConsumer
) -> None:
    opened(places)
    consumer = assign(make_consumer, enable_auto_commit=False)
    txid = aside(places, b"a1", b"a2")
    at = places.end()
    places.written.append("t", [b"p1"])
    assert read(consumer, 1) == [b"p1"]
    places.decide(txid)
    consumer.commit(asynchronous=False)
    consumer.close()
    places.place(at=at)
    again = assign(make_consumer, group_id=consumer.group_id)
    assert read_upto(again, [b"a1", b"a2"]) == [b"a1", b"a2"]
    assert nothing_more(again)


def test_a_pointer_says_nothing_of_places_that_are_not_told(
    places: Places, make_consumer: MakeConsumer
) -> None:
    """The topic is being switched back: what is decided later gets a pointer, which is read before
    the place of what was decided earlier."""
    opened(places)
    consumer = assign(make_consumer, enable_auto_commit=False)
    early, at = aside(places, b"a1", b"a2"), places.end()
    sequence = places.decide(early)
    places.begin_switch(Phase.TO_MARKERS)
    late = aside(places, b"b1")
    places.written.mark(late, "t")
    assert read(consumer, 1) == [b"b1"]
    consumer.commit(asynchronous=False)
    consumer.close()
    places.place(upto=sequence, at=at)
    again = assign(make_consumer, group_id=consumer.group_id)
    assert read_upto(again, [b"a1", b"a2"]) == [b"a1", b"a2"]
    assert nothing_more(again)


def test_no_home_is_followed_without_a_sidecar(places: Places, make_consumer: MakeConsumer) -> None:
    places.transaction([b"a"])
    places.written.append("t", [b"p1"])
    consumer = assign(make_consumer)
    assert read(consumer, 2) == [b"a", b"p1"]
    assert nothing_more(consumer, 0.1)
    assert not follows(consumer)


def test_what_comes_during_a_question_shares_the_next_one(
    places: Places, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One question is under way at most, and its answer lets nothing pass that came behind it."""
    asked, may_answer = list[set[str]](), threading.Event()
    tell = sidecar_watch.tell_sidecars

    def gated(log: Log, topics: set[str]) -> Mapping[str, bool]:
        asked.append(topics)
        assert may_answer.wait(WAIT_S)
        return tell(log, topics)

    monkeypatch.setattr(sidecar_watch, "tell_sidecars", gated)
    monkeypatch.setattr(sidecar_watch, "IDLE_S", 10 * WAIT_S)
    may_answer.set()
    consumer = assign(make_consumer)
    places.written.append("t", [b"p"])
    assert read(consumer, 1) == [b"p"]
    may_answer.clear()
    before = len(asked)
    places.written.append("t", [b"a"])
    wait_for(lambda: len(asked) > before, consumer)
    for value in (b"b", b"c", b"d"):
        places.written.append("t", [value])
        assert nothing_more(consumer, 0.05)
    may_answer.set()
    assert [message.value() for message in consumer.consume(4, WAIT_S)] == [b"a"]
    assert read(consumer, 3) == [b"b", b"c", b"d"]
    assert len(asked) == before + 2


def test_a_sidecar_that_is_opened_later_is_met(places: Places, make_consumer: MakeConsumer) -> None:
    consumer = assign(make_consumer)
    places.written.append("t", [b"p1"])
    assert read(consumer, 1) == [b"p1"]
    opened(places)
    places.decide(aside(places, b"a1"))
    places.place()
    assert read_upto(consumer, [b"a1"]) == [b"a1"]
    assert follows(consumer)
    places.decide(aside(places, b"b1"))
    places.place()
    places.written.append("t", [b"p2"])
    assert sorted(read_upto(consumer, [b"b1", b"p2"])) == [b"b1", b"p2"]


def test_no_position_passes_what_is_placed_before_the_sidecar_is_met(
    places: Places, make_consumer: MakeConsumer
) -> None:
    consumer = assign(make_consumer, enable_auto_commit=False)
    places.written.append("t", [b"p1"])
    assert read(consumer, 1) == [b"p1"]
    opened(places)
    places.decide(aside(places, b"a1"))
    places.place()
    places.written.append("t", [b"p2"])
    # It comes while the reader does not know of the sidecar yet. So it must not be delivered.
    first = read(consumer, 1)
    consumer.commit(asynchronous=False)
    consumer.close()
    again = assign(make_consumer, group_id=consumer.group_id)
    assert sorted([*first, *read_upto(again, [b"x"])]) == [b"a1", b"p2"]


def test_a_topic_that_is_switched_while_it_is_read(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    home = Places(written, "t")
    opened(home)
    consumer = assign(make_consumer)
    written.append("t", [b"p1"])
    assert read(consumer, 1) == [b"p1"]
    home.switch(Phase.METADATA)
    home.decide(aside(home, b"a1"))
    home.place()
    written.append("t", [b"p2"])
    assert sorted(read_upto(consumer, [b"a1", b"p2"])) == [b"a1", b"p2"]
    home.decide(aside(home, b"b1"))
    home.place()
    home.switch(Phase.MARKERS)
    written.append("t", [b"p3"])
    assert sorted(read_upto(consumer, [b"b1", b"p3"])) == [b"b1", b"p3"]
    assert nothing_more(consumer, 0.1)
    assert not follows(consumer)


def test_a_topic_without_sidecar_is_switched_to_and_fro(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    home = Places(written, "t")
    consumer = assign(make_consumer)
    for number in range(3):
        home.switch(Phase.METADATA)
        home.transaction([b"a%d" % number])
        home.switch(Phase.MARKERS)
        written.append("t", [b"p%d" % number])
        assert read(consumer, 2) == [b"a%d" % number, b"p%d" % number]
    assert nothing_more(consumer, 0.1)
    assert not follows(consumer)


def test_who_changes_to_committed_records_goes_on(
    places: Places, make_consumer: MakeConsumer
) -> None:
    opened(places)
    wanted = some(places)
    consumer = assign(make_consumer, enable_auto_commit=False)
    assert sorted(read_upto(consumer, wanted)) == sorted(wanted)
    consumer.commit(asynchronous=False)
    consumer.close()
    places.decide(aside(places, b"d1"))
    places.place()
    level = IsolationLevel.READ_COMMITTED.value
    again = make_consumer(isolation_level=level, group_id=consumer.group_id)
    again.assign(T)
    assert read_upto(again, [b"d1"]) == [b"d1"]
    assert nothing_more(again)
