"""The shells of metadata mode one by one: modes that are known, gates, lanes of a home, the IOV."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from logtx.consumer import delivery, homes, reading
from logtx.consumer.consumer import Consumer
from logtx.consumer.core import home_view
from logtx.consumer.core.home_view import Start
from logtx.consumer.core.known_modes import KnownModes
from logtx.consumer.gates import Frontier, Gates, tell_ends
from logtx.consumer.home_starts import Attachment, HomeStarts
from logtx.journal.errors import BrokerError, UnknownRecordError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.mode_registry import TopicModeRecord
from logtx.journal.modes import MODES_TOPIC, EndedSwitch, Phase
from logtx.journal.position import Passed, Position
from logtx.journal.reader import JOURNAL_TOPIC, RecordsTrimmedError
from logtx.journal.records.types import (
    AddWrites,
    DataPartition,
    PartitionWrites,
    PrepareCommit,
    SnapshotPlaces,
    SnapshotTransaction,
)
from logtx.journal.state import State
from logtx.journal.txid import TxId

from .conftest import MakeConsumer
from .logs import Transactions, nothing_more, read, refuse_reading, wait_for
from .places import HOME, Places, expected, read_upto, snapshot
from .test_offset_steps import FakeQueries


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """A log in memory, so that each test has a journal of its own."""
    memory_log.create_topic("t", partitions=3)
    return memory_log


@pytest.fixture
def home(log: MemoryLog) -> Places:
    written = Transactions(log)
    written.with_journal()
    return Places(written, "t", partitions=3)


# ---- modes that are known -----------------------------------------------------------------------


def published(
    phase: Phase, mode_offset: int, since: dict[int, int], *earlier: EndedSwitch
) -> TopicModeRecord:
    return TopicModeRecord(
        topic="t",
        topic_id="id",
        phase=phase,
        home=HOME,
        mode_offset=mode_offset,
        offset=mode_offset,
        since=since,
        earlier=earlier,
    )


def followed(modes: KnownModes, offsets: Iterable[int]) -> list[tuple[int, int | None] | None]:
    """Returns for a start at each offset (MODE record, what is passed), or None for markers."""
    found = [modes.follows(Position.at(offset)) for offset in offsets]
    return [f and (f.mode_offset, f.passed and f.passed.sequence) for f in found]


def test_a_topic_of_which_nothing_is_known_is_marked() -> None:
    assert followed(KnownModes(), [0, 9]) == [None, None]
    assert KnownModes().latest(9) == -1


def test_below_its_mode_record_a_partition_is_marked() -> None:
    modes = KnownModes()
    modes.publish(0, published(Phase.METADATA, 7, {0: 5}))
    assert followed(modes, [4, 5, 6, 7]) == [None, (7, 7), (7, 7), (7, None)]
    assert [modes.latest(o) for o in (4, 5)] == [-1, 7]


def test_a_partition_that_came_later_is_in_the_mode_from_its_start() -> None:
    modes = KnownModes()
    modes.publish(1, published(Phase.METADATA, 7, {0: 5}))
    assert followed(modes, [0, 1, 2]) == [(7, 7), (7, 7), (7, None)]


def test_a_topic_that_was_switched_back_is_followed_up_to_the_mode_record() -> None:
    modes = KnownModes()
    modes.publish(0, published(Phase.MARKERS, 9, {0: 5}))
    assert followed(modes, [0, 5, 6]) == [(-1, None), (-1, None), None]
    assert [modes.latest(o) for o in (5, 6)] == [-1, 9]


def test_trap_82_of_several_mode_records_of_a_switch_the_first_that_was_met_counts() -> None:
    """Owners that follow each other write one each, and publish the last one."""
    modes = KnownModes()
    modes.meet(5, 9, HOME, "id", places=False)
    modes.publish(0, published(Phase.MARKERS, 9, {0: 8}))
    modes.meet(6, 9, HOME, "id", places=False)
    assert followed(modes, [5, 6, 8, 9]) == [(-1, None), None, None, None]
    assert modes.is_marked_again(6)
    assert not modes.is_marked_again(5)


@pytest.mark.parametrize("phase", [Phase.TO_METADATA, Phase.TO_MARKERS])
def test_a_topic_that_is_being_switched_is_followed(phase: Phase) -> None:
    modes = KnownModes()
    modes.publish(0, published(phase, 9, {}))
    # A reader may begin in a stretch of an earlier switch (trap 83).
    assert followed(modes, [4]) == [(-1, None)]
    assert modes.latest(4) == -1


TO_PLACES = EndedSwitch(7, Phase.METADATA, {0: 5}, with_records=True)
BACK = EndedSwitch(9, Phase.MARKERS, {0: 8, 1: 3}, with_records=True)


def test_each_stretch_is_known_by_the_switches_before_the_latest() -> None:
    modes = KnownModes()
    modes.publish(0, published(Phase.METADATA, 11, {0: 12}, TO_PLACES, BACK))
    assert followed(modes, [4, 5, 8]) == [None, (7, 7), (7, None)]
    assert followed(modes, [9, 11, 12, 20]) == [None, None, (11, 11), (11, None)]


def test_a_partition_that_came_between_two_switches_was_in_that_mode_from_its_start() -> None:
    modes = KnownModes()
    modes.publish(1, published(Phase.METADATA, 11, {0: 12, 1: 6}, TO_PLACES, BACK))
    assert followed(modes, [0, 3, 4, 6]) == [(7, 7), (7, None), None, (11, 11)]
    modes.publish(2, published(Phase.METADATA, 11, {0: 12}, TO_PLACES, BACK))
    assert followed(modes, [0, 9]) == [(11, 11), (11, None)]
    later = KnownModes()
    later.publish(2, published(Phase.MARKERS, 13, {0: 14}, TO_PLACES, BACK, TO_PLACES))
    assert followed(later, [0, 9]) == [None, None]


def test_while_a_topic_is_being_switched_its_earlier_stretches_are_known() -> None:
    modes = KnownModes()
    modes.publish(0, published(Phase.TO_METADATA, 11, {0: 8}, TO_PLACES, BACK))
    assert followed(modes, [4, 5, 8, 9]) == [None, (7, 7), (7, None), (9, 9)]
    assert modes.latest(9) == 9  # so that its mode record, met again, is no news
    modes.publish(0, published(Phase.TO_MARKERS, 9, {0: 5}, TO_PLACES))
    assert followed(modes, [4, 5, 9]) == [None, (7, 7), (7, None)]


def test_without_mode_records_a_topic_is_followed_from_the_stretch_before() -> None:
    modes = KnownModes()
    told = published(Phase.METADATA, 11, {0: 12}, TO_PLACES, BACK)
    modes.publish(0, replace(told, with_records=False))
    assert followed(modes, [4, 8, 9, 20]) == [None, (7, None), (11, 11), (11, None)]


def test_a_position_that_passed_something_is_followed_where_nothing_is_published() -> None:
    start = Position(o1=3, o2=4, passed=Passed(HOME, 8))
    found = KnownModes().follows(start)
    assert found is not None
    assert (found.home, found.passed) == (HOME, start.passed)
    modes = KnownModes()
    modes.meet(2, 9, HOME, "id", places=False)
    assert modes.follows(start) is None


def test_what_is_published_of_a_newer_version_stops_an_assignment(
    home: Places, make_consumer: MakeConsumer
) -> None:
    home.log.create_topic(MODES_TOPIC, partitions=1)
    home.written.append(MODES_TOPIC, [b"\x63"], key=b"\x63")
    consumer = make_consumer()
    with pytest.raises(UnknownRecordError, match="upgrade"):
        consumer.assign([TopicPartition("t", 0)])


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_who_may_describe_what_is_published_and_not_read_it_reads_topics_with_markers(
    home: Places, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    home.log.create_topic(MODES_TOPIC, partitions=1)
    home.written.append(MODES_TOPIC, [b"\x63"], key=b"\x63")
    refuse_reading(monkeypatch, MODES_TOPIC)
    home.written.transaction("t", [b"a"])
    consumer = make_consumer(isolation_level=isolation)
    consumer.assign([TopicPartition("t", 0, 0)])
    assert read(consumer, 1) == [b"a"]


def test_a_topic_that_was_created_anew_begins_with_markers(
    home: Places, log: MemoryLog, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logtx.consumer.topic_ids.CONFIRM_S", 0.2)
    home.switch(Phase.METADATA)
    log.delete_topic("t")
    log.create_topic("t", partitions=3)
    home.written.transaction("t", [b"a"])
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0)])
    assert read(consumer, 1) == [b"a"]
    assert not consumer._reading.following.homes.follows


@pytest.mark.usefixtures("quick_looks")
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("phase", [Phase.METADATA, Phase.TO_MARKERS])
def test_a_topic_that_is_created_anew_while_it_is_read_begins_with_markers(
    home: Places,
    log: MemoryLog,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
    phase: Phase,
    is_known: bool,
) -> None:
    """Also if brokers do not agree on it at first, and its former home is followed on."""
    monkeypatch.setattr("logtx.consumer.topic_ids.CONFIRM_S", 0.2)
    monkeypatch.setattr("logtx.consumer.side_read.TOPIC_CONFIRM_S", 0.2)
    home.switch(Phase.METADATA)
    home.publish(phase, {})
    for value in (b"a", b"b", b"c", b"d"):
        home.transaction([value])
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0)])
    assert read(consumer, 4) == [b"a", b"b", b"c", b"d"]
    log.delete_topic("t")
    log.create_topic("t", partitions=3)
    if not is_known:
        monkeypatch.setattr(consumer._reading.topic_ids, "is_another", lambda *_: False)
    home.written.transaction("t", [b"new"])
    home.written.transaction("t", [b"newer"])
    # What is placed at 2 and 3 is of the former topic.
    assert read(consumer, 2) == [b"new", b"newer"]
    assert consumer._reading.following.homes.follows is not is_known


# ---- gates --------------------------------------------------------------------------------------


class Ends:
    """A log that tells ends, or does not."""

    def __init__(self, *told: int | BrokerError) -> None:
        self.told = list(told)
        self.asked: list[list[tuple[str, int]]] = []

    def each_end_offset(self, partitions: Any, *, timeout_s: float) -> dict[Any, Any]:
        assert 0 < timeout_s <= 5
        self.asked.append(list(partitions))
        told = self.told.pop(0)
        return dict.fromkeys(partitions, told)


def answered(gates: Gates[str, int, int]) -> list[tuple[str, int, int]]:
    until = time.monotonic() + 5
    while not gates.is_free:
        found = gates.answers()
        if gates.is_free:
            return [(p.frontier.who, p.frontier.offset, p.told) for p in found]
        assert time.monotonic() < until
        time.sleep(0.002)
    raise AssertionError("nothing was asked")


def test_one_question_serves_all_homes_and_no_second_one_is_on_its_way() -> None:
    log: Any = Ends(7, 8)
    gates: Gates[str, int, int] = Gates(partial(tell_ends, log))
    assert gates.ask([Frontier("a", 1, 5), Frontier("b", 2, 6), Frontier("c", 1, 9)])
    assert not gates.ask([Frontier("a", 1, 5)])
    assert answered(gates) == [("a", 5, 7), ("b", 6, 7), ("c", 9, 7)]
    assert [sorted(p for _, p in asked) for asked in log.asked] == [[1, 2]]
    assert gates.last_ms > 0
    assert gates.ask([Frontier("a", 1, 6)])
    assert answered(gates) == [("a", 6, 8)]
    gates.close()


def test_a_home_that_does_not_answer_is_asked_again_after_a_pause() -> None:
    log: Any = Ends(BrokerError("away"), 3)
    now = [100.0]
    gates: Gates[str, int, int] = Gates(partial(tell_ends, log), lambda: now[0])
    assert gates.ask([Frontier("a", 1, 5)])
    assert answered(gates) == []
    assert not gates.ask([Frontier("a", 1, 5)])
    now[0] += 1
    assert gates.ask([Frontier("a", 1, 5)])
    assert answered(gates) == [("a", 5, 3)]
    gates.close()


def test_the_answer_ends_the_wait_for_it() -> None:
    log: Any = Ends(7)
    gates: Gates[str, int, int] = Gates(partial(tell_ends, log))
    assert not gates.is_asking
    assert gates.ask([Frontier("a", 1, 5)])
    gates.wait(10)
    # Else who waits again before it takes the answer would not wait at all.
    assert not gates.is_asking
    assert answered(gates) == [("a", 5, 7)]
    gates.close()


def follower_of(home: Places, make_consumer: MakeConsumer) -> Consumer:
    """Returns a consumer of a topic that goes over to metadata mode."""
    home.switch(Phase.METADATA)
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0)])
    return consumer


def test_a_plain_record_comes_with_the_answer_of_its_gate(
    home: Places, log: MemoryLog, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = follower_of(home, make_consumer)
    home.transaction([b"a"])
    assert read(consumer, 1) == [b"a"]
    monkeypatch.setattr(homes, "EAGER_WAIT_S", 5.0)
    monkeypatch.setattr(delivery, "POLL_SLICE_S", 5.0)
    tell = log.each_end_offset

    def slowly(keys: Any, **more: Any) -> Any:
        time.sleep(0.2)
        return tell(keys, **more)

    monkeypatch.setattr(log, "each_end_offset", slowly)
    home.written.append("t", [b"p"])
    began_s = time.monotonic()
    message = consumer.poll(20)
    assert message is not None
    assert message.value() == b"p"
    assert time.monotonic() - began_s < 4.0


def test_a_consumer_is_eager_only_while_something_waits_for_the_journal(
    home: Places, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "EAGER_S", 600.0)
    consumer = follower_of(home, make_consumer)
    followed_homes = consumer._reading.following.homes
    home.written.append("t", [b"p"])
    assert read(consumer, 1) == [b"p"]
    wait_for(lambda: followed_homes.wait_s == homes.WAIT_S, consumer)
    txid = home.written.begin()
    home.written.write(txid, "t", [b"a"])
    wait_for(lambda: consumer.stats()["pending_transactions"] == 1, consumer)
    assert followed_homes.wait_s == homes.EAGER_WAIT_S
    home.decide(txid)
    home.place()
    assert read(consumer, 1) == [b"a"]
    wait_for(lambda: followed_homes.wait_s == homes.WAIT_S, consumer)


def test_an_end_below_what_was_told_before_counts_for_the_higher_one(
    home: Places, log: MemoryLog, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = follower_of(home, make_consumer)
    home.transaction([b"a"])
    home.written.append("t", [b"p1"])
    assert read(consumer, 2) == [b"a", b"p1"]
    wait_for(lambda: consumer.stats()["gate_ms"] > 0, consumer)
    txid = home.written.begin()
    home.written.write(txid, "t", [b"b"])
    home.decide(txid)
    followed_one = consumer._reading.assigned["t", 0].home
    assert followed_one is not None
    wait_for(followed_one.placing, consumer)
    monkeypatch.setattr(log, "each_end_offset", lambda keys, **_: dict.fromkeys(keys, 1))
    at = home.end()
    home.written.append("t", [b"p2"])
    assert nothing_more(consumer)  # it was read that a transaction is decided and not placed
    home.place(at=at)
    assert read(consumer, 2) == [b"b", b"p2"]


def test_one_question_serves_a_backlog(
    home: Places, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "FETCH_MAX_RECORDS", 10)
    home.switch(Phase.METADATA)
    values = [b"%d" % n for n in range(1_000)]
    home.written.append("t", values)
    asked: list[object] = []
    real = home.log.each_end_offset

    def each_end_offset(keys: Any, **more: Any) -> Any:
        asked.append(keys)
        return real(keys, **more)

    monkeypatch.setattr(home.log, "each_end_offset", each_end_offset)
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0)])
    assert read(consumer, 1_000) == values
    assert len(asked) < 10


# ---- homes --------------------------------------------------------------------------------------


def test_a_partition_that_begins_later_joins_the_others(
    home: Places, make_consumer: MakeConsumer
) -> None:
    home.switch(Phase.METADATA)
    for number in (0, 1, 2, 0, 1, 2):
        home.transaction([b"t%d" % number], number)
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0)])
    wanted = expected(home.log, "t", 0)
    assert read_upto(consumer, wanted) == wanted
    consumer.incremental_assign([TopicPartition("t", 1), TopicPartition("t", 2)])
    wanted = [*expected(home.log, "t", 1), *expected(home.log, "t", 2)]
    assert sorted(map(str, read_upto(consumer, wanted))) == sorted(map(str, wanted))
    for number in range(3):
        home.transaction([b"more"], number)
    assert read(consumer, 3) == [b"more"] * 3
    [lanes] = consumer._reading.following.homes._lanes.values()
    assert len(lanes) == 1
    consumer.incremental_unassign([TopicPartition("t", 0)])
    home.transaction([b"last"], 1)
    assert read(consumer, 1) == [b"last"]
    consumer.unassign()
    assert not consumer._reading.following.homes.follows


def test_partitions_turn_one_by_one(home: Places, make_consumer: MakeConsumer) -> None:
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", n) for n in range(3)])
    assert nothing_more(consumer, 0.1)
    home.switch(Phase.METADATA)
    txid = home.written.begin()
    for number in range(3):
        home.written.write(txid, "t", [b"a%d" % number], number)
    home.decide(txid)
    home.place(0)
    assert read(consumer, 1) == [b"a0"]
    home.place(1, 2)
    assert sorted(map(str, read(consumer, 2))) == ["b'a1'", "b'a2'"]
    home.switch(Phase.MARKERS)
    for number in range(3):
        home.written.transaction("t", [b"m"], number)
    assert read(consumer, 3) == [b"m"] * 3


def test_a_partition_that_came_while_its_topic_was_switched_is_found_without_a_mode_record(
    home: Places, make_consumer: MakeConsumer
) -> None:
    # It was assigned before the mode is published, so nothing tells this reader of it.
    early = make_consumer(pending_lookup_age_ms=50)
    early.assign([TopicPartition("t", 2)])
    assert nothing_more(early, 0.1)
    home.partitions = 2
    since = home.switch(Phase.METADATA)
    home.partitions = 3
    assert sorted(since) == [0, 1]
    home.transaction([b"a1", b"a2"], 2)
    assert read(early, 2) == [b"a1", b"a2"]
    home.written.append("t", [b"p1"], partition=2)
    second = home.written.begin()
    home.written.write(second, "t", [b"b"], 2)
    home.written.append("t", [b"p2"], partition=2)
    assert read(early, 2) == [b"p1", b"p2"]
    home.decide(second)
    home.written.append("t", [b"p3"], partition=2)
    assert nothing_more(early, 0.2), "it asks the home by now"
    home.place(2)
    assert read(early, 2) == [b"p3", b"b"]
    # One that is assigned it later follows the home from the partition's first offset on.
    late = make_consumer()
    late.assign([TopicPartition("t", 2, 0)])
    assert read(late, 6) == [b"a1", b"a2", b"p1", b"p2", b"p3", b"b"]


def test_trap_75_a_fence_behind_what_was_missed_is_not_enough(
    home: Places, log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    # As above, and the journal was trimmed to its first fence, which lies behind the switch.
    early = make_consumer(pending_lookup_age_ms=1_000)
    early.assign([TopicPartition("t", 2)])
    assert nothing_more(early, 0.1)
    home.partitions = 2
    home.switch(Phase.METADATA)
    home.partitions = 3
    first = snapshot(home)
    home.transaction([b"a"], 2)
    home.written.append("t", [b"p1", b"p2"], partition=2)
    assert read(early, 2) == [b"p1", b"p2"]
    snapshot(home, last_places=((home.partition(2), 1),))
    log.delete_records(JOURNAL_TOPIC, 0, first)
    assert read(early, 1) == [b"a"]


def test_the_epoch_behind_a_trimmed_mode_record_is_that_of_a_snapshot_behind_it(
    home: Places, log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    home.begin_switch(Phase.TO_METADATA)
    behind = home.written.begin().offset
    home.publish(Phase.METADATA, {0: home.mode_record(0, places=True)})
    home.written.append("t", [b"p0", b"p1", b"p2"], partition=2)
    snapshot(home, last_places=())
    home.transaction([b"a"], 2)
    home.written.append("t", [b"p3"], partition=2)
    snapshot(home, last_places=((home.partition(2), 4),))
    log.delete_records(JOURNAL_TOPIC, 0, behind)  # What is open keeps it, and no fence is there.
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 2, 2)])
    assert read(consumer, 3) == [b"p2", b"a", b"p3"]


def test_trap_267_behind_a_trimmed_mode_record_a_reader_goes_on_behind_its_sequence(
    home: Places, log: MemoryLog
) -> None:
    home.begin_switch(Phase.TO_METADATA)
    behind = home.written.begin().offset
    home.publish(Phase.METADATA, {})
    pending = home.end()
    home.transaction([b"a"])
    passed = max(home.written.sequences.values())
    snapshot(home, last_places=((home.partition(), home.end()),))
    log.delete_records(JOURNAL_TOPIC, 0, behind)  # What is open keeps it, and no fence is there.
    start = Start(home.end(), passed, pending, 0, home.mode_offset)
    found = HomeStarts(log).find(HOME, {home.partition(): start})
    assert found.attachments[home.partition()] == Attachment(passed + 1)


@pytest.mark.parametrize("trimmed", [False, True])
def test_trap_76_what_was_pending_for_a_reader_that_missed_the_switch_comes_after_a_restart(
    home: Places, log: MemoryLog, make_consumer: MakeConsumer, trimmed: bool
) -> None:
    home.written.append("t", [b"p0"], partition=2)
    early = make_consumer(enable_auto_commit=False)
    early.assign([TopicPartition("t", 2)])
    assert read(early, 1) == [b"p0"]
    home.partitions = 2
    home.switch(Phase.METADATA)
    home.partitions = 3
    first = snapshot(home)
    home.transaction([b"a"], 2)
    home.written.append("t", [b"p1"], partition=2)
    home.transaction([b"b"], 2)
    home.written.append("t", [b"p2"], partition=2)
    assert read(early, 2) == [b"p1", b"p2"]
    early.commit(asynchronous=False)
    early.close()
    if trimmed:
        snapshot(home, last_places=((home.partition(2), 4),))
        log.delete_records(JOURNAL_TOPIC, 0, first)
    home.transaction([b"c"], 2)
    again = make_consumer(group_id=early.group_id, enable_auto_commit=False)
    again.assign([TopicPartition("t", 2)])
    assert read(again, 2) == [b"a", b"b"]
    again.commit(asynchronous=False)
    again.close()
    last = make_consumer(group_id=early.group_id)
    last.assign([TopicPartition("t", 2)])
    assert read(last, 1) == [b"c"]
    assert nothing_more(last, 0.1)


def test_reading_the_journal_pauses_while_many_places_wait_for_data(
    home: Places, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_view, "KEPT_MAX", 5)
    consumer = follower_of(home, make_consumer)
    values = [b"%d" % n for n in range(40)]
    for value in values:
        home.transaction([value])
    assert read(consumer, 40) == values


def test_a_paused_partition_with_many_places_holds_up_no_other(
    home: Places, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_view, "KEPT_MAX", 5)
    home.switch(Phase.METADATA)
    consumer = make_consumer()
    both = [TopicPartition("t", 0), TopicPartition("t", 1)]
    consumer.assign(both)
    home.transaction([b"a"], 0)
    home.transaction([b"b"], 1)
    assert sorted(map(str, read(consumer, 2))) == ["b'a'", "b'b'"]
    consumer.pause(both[:1])
    assert nothing_more(consumer, 0.1)
    values = [b"%d" % n for n in range(20)]
    for value in values:
        home.transaction([value], 0)
    home.transaction([b"c"], 1)
    assert read(consumer, 1) == [b"c"]
    assert nothing_more(consumer, 0.1)
    consumer.resume(both[:1])
    assert read(consumer, 20) == values


def test_a_journal_that_was_trimmed_under_a_reader_is_read_again(
    home: Places, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = follower_of(home, make_consumer)
    home.transaction([b"a"])
    assert read(consumer, 1) == [b"a"]
    following = consumer._reading.following.homes
    real, raised = following._follower.poll, []  # type: ignore[union-attr]

    def poll(timeout_s: float = 0) -> Any:
        if not raised:
            raised.append(1)
            raise RecordsTrimmedError("trimmed")
        return real(timeout_s)

    monkeypatch.setattr(following._follower, "poll", poll)
    home.transaction([b"b"])
    home.written.append("t", [b"p"])
    assert read(consumer, 2) == [b"b", b"p"]
    assert raised == [1]


# ---- the IOV ------------------------------------------------------------------------------------


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> FakeQueries:
    fake = FakeQueries()
    monkeypatch.setattr(
        "logtx.coordinator.client.queries.CoordinatorQueries", lambda *_, **__: fake
    )
    return fake


def test_a_step_says_what_was_passed_and_a_restart_goes_on_from_it(
    home: Places, queries: FakeQueries, make_consumer: MakeConsumer
) -> None:
    home.switch(Phase.METADATA)
    first, second = home.written.begin(), home.written.begin()
    home.written.write(first, "t", [b"a1", b"a2"])
    home.written.write(second, "t", [b"b1", b"b2"])
    home.decide(first)
    home.decide(second)
    home.place()
    wanted = [b"a1", b"a2", b"b1", b"b2"]

    def opened() -> Consumer:
        consumer = make_consumer(group_id="g", offsets_storage="transactions")
        consumer.assign([TopicPartition("t", 0)])
        return consumer

    for value in wanted:
        consumer = opened()
        assert read(consumer, 1) == [value]
        assert queries.commit(consumer.offset_steps())
        consumer.close()
    passed = queries.committed["t", 0].passed
    assert passed == Passed(HOME, home.written.sequences[second])
    home.transaction([b"c"])
    consumer = opened()
    assert read(consumer, 1) == [b"c"]
    consumer.rewind()
    assert read(consumer, 1) == [b"c"]
    assert queries.commit(consumer.offset_steps())


# ---- very large transactions --------------------------------------------------------------------


def large(home: Places) -> tuple[TxId, PartitionWrites]:
    """Writes records of a transaction, and says so in a part of its own. Returns what it said."""
    txid = home.written.begin()
    home.written.write(txid, "t", [b"a1", b"a2"])
    ranges = home.written.ranges(txid, "t")
    writes = PartitionWrites(DataPartition("t", 0, home.topic_id), ranges)
    home.written.journal(AddWrites(begin=txid.offset, part=0, writes=(writes,)))
    return txid, writes


def decide_large(home: Places, txid: TxId, writes: PartitionWrites) -> int:
    """Decides it, and places it. Returns its commit sequence."""
    record = PrepareCommit(
        begin=txid.offset,
        writes=(),
        decided_ms=1,
        added=(writes.partition,),
        placed=(writes.partition.key,),
    )
    sequence = home.written.sequences[txid] = home.written.journal(record)
    home.place(0)
    return sequence


def test_what_a_decision_does_not_name_is_read_in_the_parts(
    home: Places, make_consumer: MakeConsumer
) -> None:
    home.switch(Phase.METADATA)
    txid, writes = large(home)
    at = home.end()
    home.transaction([b"b"])
    consumer = make_consumer(enable_auto_commit=False)
    consumer.assign([TopicPartition("t", 0)])
    assert read(consumer, 1) == [b"b"]
    consumer.commit(asynchronous=False)
    decide_large(home, txid, writes)
    assert read(consumer, 2) == [b"a1", b"a2"]
    again = make_consumer(group_id=consumer.group_id)
    again.assign([TopicPartition("t", 0)])
    assert read(again, 2) == [b"a1", b"a2"]
    assert again.position([TopicPartition("t", 0)])[0].offset > at


def test_parts_that_were_trimmed_are_read_in_the_snapshot(
    home: Places, log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    home.switch(Phase.METADATA)
    txid, writes = large(home)
    row = SnapshotTransaction(txid.offset, "p", 0, 1, 1, State.OPEN, None, None)
    at = snapshot(home, transactions=(row._replace(writes=(writes,), parts=1),))
    log.delete_records(JOURNAL_TOPIC, 0, at)
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0, home.end())])
    assert nothing_more(consumer)
    decide_large(home, txid, writes)
    assert read(consumer, 2) == [b"a1", b"a2"]


def test_trap_264_parts_that_were_trimmed_are_read_in_a_snapshot_behind_the_decision(
    home: Places, log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    home.switch(Phase.METADATA)
    txid, writes = large(home)
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0)])
    assert nothing_more(consumer)
    kept_longer = home.written.begin()
    sequence = decide_large(home, txid, writes)
    row = SnapshotTransaction(txid.offset, "p", 0, 1, 1, State.COMMITTING, sequence, None)
    places = SnapshotPlaces(txid.offset, sequence, ((home.partition(), home.end(), home.end()),))
    snapshot(home, transactions=(row._replace(writes=(writes,), parts=1),), places=(places,))
    # The fence is behind the decision, and an older transaction keeps the journal longer.
    log.delete_records(JOURNAL_TOPIC, 0, kept_longer.offset)
    assert read(consumer, 2) == [b"a1", b"a2"]


def test_trap_74_where_a_large_transaction_is_marked_its_parts_need_not_be_there(
    home: Places, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trimmed(*_: object) -> None:
        pytest.fail("the marker says what there is")

    monkeypatch.setattr(HomeStarts, "writes", trimmed)
    home.begin_switch(Phase.TO_METADATA)
    home.publish(Phase.TO_METADATA, {})
    txid, writes = large(home)
    record = PrepareCommit(begin=txid.offset, writes=(), decided_ms=1, added=(writes.partition,))
    home.written.sequences[txid] = home.written.journal(record)
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0)])
    assert nothing_more(consumer)
    home.written.mark(txid, "t")
    assert read(consumer, 2) == [b"a1", b"a2"]
