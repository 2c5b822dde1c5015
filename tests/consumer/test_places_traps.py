"""Traps of readers that follow a home, which histories of the simulation showed."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import TopicPartition

from logtx.consumer.core.home_view import HomeView, HomeWrites, Start
from logtx.consumer.core.known_modes import Follows, KnownModes
from logtx.consumer.core.placed_buffer import PlacedBuffer
from logtx.consumer.core.placed_input import PlacedInput
from logtx.consumer.followed import Followed, ModeEnd
from logtx.consumer.home_starts import HomeStarts
from logtx.journal.control import BranchRange
from logtx.journal.errors import TornTransactionError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.mode_registry import TopicModeRecord
from logtx.journal.modes import Phase
from logtx.journal.places import PartitionId, Placed
from logtx.journal.position import Position
from logtx.journal.reader import JOURNAL_TOPIC, RecordsTrimmedError
from logtx.journal.records.types import (
    AddWrites,
    DataPartition,
    PartitionWrites,
    PrepareCommit,
    SnapshotMode,
    SnapshotPlaces,
    SnapshotTransaction,
)
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ..waiting import eventually
from .conftest import MakeConsumer
from .logs import Transactions, nothing_more
from .places import HOME, Places, expected, read_upto, snapshot

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


def test_trap_66_the_fence_that_nothing_names_is_found(
    places: Places, log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    places.switch(Phase.METADATA)
    hangs = places.written.begin()
    unfinished = (SnapshotTransaction(hangs.offset, "p", 0, 1, 1, State.OPEN, None, None),)
    places.transaction([b"a"])
    start = places.end()
    snapshot(places, transactions=unfinished, last_places=((places.partition(), start),))
    places.transaction([b"b"])
    # It is the next fence, and states none: to the one before the journal may be trimmed.
    snapshot(places, transactions=unfinished, last_places=((places.partition(), places.end()),))
    log.delete_records("t", 0, start)
    log.delete_records(JOURNAL_TOPIC, 0, hangs.offset)
    places.transaction([b"c"])
    consumer = make_consumer(auto_offset_reset="earliest")
    consumer.assign(T)
    assert read_upto(consumer, [b"b", b"c"]) == [b"b", b"c"]
    assert nothing_more(consumer, 0.1)


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


@pytest.mark.parametrize("is_pending", [False, True], ids=["from its records on", "from before"])
def test_trap_68_parts_and_decision_name_one_partition(
    places: Places, make_consumer: MakeConsumer, is_pending: bool
) -> None:
    places.switch(Phase.METADATA)
    consumer = make_consumer(auto_offset_reset="earliest")
    if is_pending:
        consumer.assign(T)
        assert nothing_more(consumer, 0.1)
    written, partition = places.written, DataPartition("t", 0, places.topic_id)
    txid = written.begin()
    written.write(txid, "t", [b"part 1", b"part 2"], branch=7)
    written.write(txid, "t", [b"own"])
    own, of_branch = written.ranges(txid, "t")
    part = PartitionWrites(partition, (of_branch,))
    written.journal(AddWrites(begin=txid.offset, part=0, writes=(part,)))
    record = PrepareCommit(
        begin=txid.offset,
        writes=(PartitionWrites(partition, (own,)),),
        decided_ms=1,
        added=(partition,),
        placed=(partition.key,),
    )
    written.sequences[txid] = written.journal(record)
    places.place()
    if not is_pending:
        consumer.assign(T)
    wanted = [b"part 1", b"part 2", b"own"]
    assert read_upto(consumer, wanted) == wanted
    assert nothing_more(consumer, 0.1)


def test_a_fence_lists_a_transaction_that_has_named_nothing_so_far(
    places: Places, log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    places.switch(Phase.METADATA)
    written, partition = places.written, DataPartition("t", 0, places.topic_id)
    txid = written.begin()
    row = SnapshotTransaction(txid.offset, "p", 0, 1, 1, State.OPEN, None, None)
    fence = snapshot(places, transactions=(row,))
    written.write(txid, "t", [b"a", b"b"], branch=7)
    (of_branch,) = written.ranges(txid, "t")
    part = PartitionWrites(partition, (of_branch,))
    written.journal(AddWrites(begin=txid.offset, part=0, writes=(part,)))
    record = PrepareCommit(
        begin=txid.offset, writes=(), decided_ms=1, added=(partition,), placed=(partition.key,)
    )
    written.sequences[txid] = written.journal(record)
    places.place()
    log.delete_records(JOURNAL_TOPIC, 0, fence)
    consumer = make_consumer(auto_offset_reset="earliest")
    consumer.assign(T)
    assert read_upto(consumer, [b"a", b"b"]) == [b"a", b"b"]
    assert nothing_more(consumer, 0.1)


def test_trap_70_a_reader_hears_of_a_stretch_where_it_ends(
    places: Places, make_consumer: MakeConsumer
) -> None:
    places.written.append("t", [b"before"], [], 0)
    places.switch(Phase.METADATA, publish=False)
    start = places.end()
    places.transaction([b"a"])
    places.transaction([b"b"])
    places.switch(Phase.MARKERS, publish=False)
    places.written.transaction("t", [b"marked"])
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0, start)])
    wanted = [b"a", b"b", b"marked"]
    assert read_upto(consumer, wanted) == wanted
    assert nothing_more(consumer, 0.1)


def test_trap_69_a_gate_of_the_past_turns_no_reader_to_markers() -> None:
    partition = PartitionId("t", 0, "id")
    view = HomeView(HOME, 0)
    start = Start(x=0, passed=9, o1=0)
    view.attach(partition, start)
    followed = Followed(partition.key, Follows(HOME, "id", 9, None), start)
    followed.back = ModeEnd(offset=5, mode_offset=30)
    at_the_record = SimpleNamespace(ready=0, blocked=False, position=lambda: Position.at(5))
    followed.buffer = cast(PlacedBuffer, at_the_record)
    followed.input = cast(PlacedInput, SimpleNamespace(is_over=True))
    followed._view = view
    view.read_to(20)  # What lies above was not told: a place of the stretch may be there.
    assert not followed.is_over
    view.committed(21, 25, [HomeWrites(partition, (BranchRange(0, 1, 1, 1),), True)])
    view.read_to(31)
    assert not followed.is_over
    view.placed(Placed(25, {partition: 5}))
    assert followed.is_over


@pytest.mark.usefixtures("quick_looks")
def test_trap_78_what_was_placed_is_not_held_behind_the_stretch(
    places: Places, make_consumer: MakeConsumer
) -> None:
    places.switch(Phase.METADATA)
    waits, placed = places.written.begin(), places.written.begin()
    for number in range(2):
        places.written.write(placed, "t", [b"a%d" % number])
        places.written.write(waits, "t", [b"w%d" % number])
    places.written.write(placed, "t", [b"a2"])
    places.decide(placed)
    places.place()
    places.written.finish(placed)
    places.switch(Phase.MARKERS)
    places.written.finish(places.written.transaction("t", [b"m"]))
    first = make_consumer(enable_auto_commit=False)
    first.assign([TopicPartition("t", 0, 0)])
    wanted = [b"a0", b"a1", b"a2", b"m"]
    assert read_upto(first, wanted) == wanted
    first.commit(asynchronous=False)
    first.close()
    # It begins at the first record that waits, and so in the middle of what was placed.
    consumer = make_consumer(
        group_id=first.group_id, enable_auto_commit=False, pending_lookup_age_ms=1
    )
    consumer.assign(T)
    until_s, held = time.monotonic() + 10, set[bytes]()
    while held != {waits.to_bytes()} and time.monotonic() < until_s:
        assert nothing_more(consumer, 0.1)
        held = {p.txid for p in consumer._reading.assigned["t", 0].buffer.pending()}
    assert held == {waits.to_bytes()}


def test_trap_81_a_reader_goes_on_just_below_the_first_that_was_due_to_it(
    places: Places, log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    places.switch(Phase.METADATA)
    written = places.written
    snapshot(places)
    written.append("t", [b"p0", b"p1", b"p2"])
    txid = written.begin()
    written.write(txid, "t", [b"a"])
    begun = written.begin()
    assert places.decide(txid) == begun.offset + 1
    places.place()
    consumer = make_consumer(enable_auto_commit=False)
    consumer.assign([TopicPartition("t", 0, 2)])
    assert read_upto(consumer, [b"p1"]) == [b"p1"]
    consumer.commit(asynchronous=False)
    consumer.close()
    snapshot(places, last_places=((places.partition(), 5),))
    log.delete_records(JOURNAL_TOPIC, 0, begun.offset)
    again = make_consumer(group_id=consumer.group_id)
    again.assign(T)
    assert read_upto(again, [b"p2", b"a"]) == [b"p2", b"a"]


def test_trap_83_a_stretch_before_another_switch_is_read(
    places: Places, make_consumer: MakeConsumer
) -> None:
    places.switch(Phase.METADATA)
    start = places.end()
    places.transaction([b"a"])
    places.switch(Phase.MARKERS)
    places.written.finish(places.written.transaction("t", [b"m"]))
    places.begin_switch(Phase.TO_METADATA)
    places.publish(Phase.TO_METADATA, {})
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0, start)])
    assert read_upto(consumer, [b"a", b"m"]) == [b"a", b"m"]


def test_trap_85_a_reader_begins_in_a_stretch_before_the_latest_switches(
    places: Places, make_consumer: MakeConsumer
) -> None:
    places.switch(Phase.METADATA)
    start = places.end()
    places.transaction([b"a"])
    places.written.append("t", [b"p"])
    places.switch(Phase.MARKERS)
    places.written.append("t", [b"q"])
    places.switch(Phase.METADATA)
    places.transaction([b"b"])
    places.written.append("t", [b"r"])
    wanted = [b"a", b"p", b"q", b"b", b"r"]
    assert wanted == expected(places.log, "t", start=start)
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0, start)])
    assert read_upto(consumer, wanted) == wanted


def test_trap_87_the_journal_has_no_more_what_a_reader_that_heard_of_no_switch_holds(
    places: Places, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logtx.consumer.lookup.LOOKS_APART_S", 0.2)
    log, written = places.log, places.written
    begun = written.begin()
    written.write(begun, "t", [b"a"])
    consumer = make_consumer(pending_lookup_age_ms=300)
    consumer.assign(T)
    assert nothing_more(consumer, 0.1)
    places.switch(Phase.METADATA, records=False)
    held = SnapshotTransaction(begun.offset, "p", 0, 1, 1, State.OPEN, None, None)
    modes = (SnapshotMode("t", places.topic_id, Phase.METADATA, places.mode_offset),)
    fence = snapshot(places, transactions=(held,), modes=modes)
    places.decide(begun)
    places.place()
    written.finish(begun)
    log.delete_records(JOURNAL_TOPIC, 0, fence)
    assert read_upto(consumer, [b"a"]) == [b"a"]


@pytest.mark.parametrize("hw", [0, 1_000], ids=["216", "215"])
def test_traps_215_216_a_marker_lies_behind_a_place_that_a_reader_did_not_hear_of(
    places: Places, make_consumer: MakeConsumer, hw: int
) -> None:
    written = places.written
    consumer = make_consumer(group_id="g", enable_auto_commit=False, pending_lookup_age_ms=300)
    consumer.assign(T)
    assert nothing_more(consumer, 0.1)
    places.switch(Phase.METADATA, records=False)
    written.finish(places.transaction([b"a"]))
    # It named a former topic of that name, so it is marked.
    marked = written.begin()
    written.write(marked, "t", [b"b"])
    written.mark(marked, "t", hw=hw)
    assert read_upto(consumer, [b"b"]) == [b"b"]
    assert read_upto(consumer, [b"a"]) == [b"a"]
    consumer.commit(asynchronous=False)
    consumer.close()
    again = make_consumer(group_id="g")
    again.assign(T)
    assert nothing_more(again, 0.3)


def first_of_two_is_unfinished(places: Places) -> None:
    """Two transactions are placed at one offset. A snapshot lists the first: it waits for another
    partition."""
    written = places.written
    places.switch(Phase.METADATA)
    first, second = written.begin(), written.begin()
    written.write(first, "t", [b"a"])
    written.write(second, "t", [b"b"])
    sequence = places.decide(first)
    places.decide(second)
    places.place()
    key, end = places.partition(), places.end()
    accepted = (PartitionWrites(DataPartition(*key), written.ranges(first, "t", 0)),)
    row = SnapshotTransaction(
        first.offset, "p", 0, 1, 1, State.COMMITTING, sequence, None, writes=accepted
    )
    listed = SnapshotPlaces(first.offset, sequence, ((key, end, end),))
    snapshot(places, transactions=(row,), places=(listed,), last_places=((key, end),))


def test_trap_173_a_fence_lists_an_older_decision_than_the_last_that_is_placed(
    places: Places, make_consumer: MakeConsumer
) -> None:
    first_of_two_is_unfinished(places)
    places.written.append("t", [b"p"])
    start = places.end()
    places.written.append("t", [b"q"])
    consumer = make_consumer(enable_auto_commit=False)
    consumer.assign([TopicPartition("t", 0, start)])
    assert read_upto(consumer, [b"q"]) == [b"q"]
    consumer.commit(asynchronous=False)
    consumer.close()
    again = make_consumer(group_id=consumer.group_id)
    again.assign(T)
    places.written.append("t", [b"r"])
    assert read_upto(again, [b"r"]) == [b"r"]


@pytest.mark.parametrize("start", ["the beginning", "that offset"])
def test_trap_174_an_older_decision_is_listed_that_is_placed_where_the_log_starts(
    places: Places, log: MemoryLog, make_consumer: MakeConsumer, start: str
) -> None:
    first_of_two_is_unfinished(places)
    log.delete_records("t", 0, places.end())
    places.written.append("t", [b"p"])
    consumer = make_consumer(enable_auto_commit=False, auto_offset_reset="earliest")
    offset = log.start_offset("t", 0, timeout_s=10)
    consumer.assign(T if start == "the beginning" else [TopicPartition("t", 0, offset)])
    assert read_upto(consumer, [b"p"]) == [b"p"]
    consumer.commit(asynchronous=False)
    consumer.close()
    again = make_consumer(group_id=consumer.group_id)
    again.assign(T)
    places.written.append("t", [b"q"])
    assert read_upto(again, [b"q"]) == [b"q"]


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "not named"])
def test_trap_175_what_is_placed_too_low_is_finished_before_the_newest_fence(
    places: Places, log: MemoryLog, make_consumer: MakeConsumer, is_named: bool
) -> None:
    places.switch(Phase.METADATA)
    written, key = places.written, places.partition()
    consumer = make_consumer(enable_auto_commit=False)
    consumer.assign(T)
    places.transaction([b"a"])
    assert read_upto(consumer, [b"a"]) == [b"a"]
    last = places.end()
    hangs = written.begin()
    open_there = (SnapshotTransaction(hangs.offset, "p", 0, 1, 1, State.OPEN, None, None),)
    first = snapshot(places, transactions=open_there, last_places=((key, last),))
    late = written.begin()
    written.write(late, "t", [b"b"])
    written.append("t", [b"p"])
    assert read_upto(consumer, [b"p"]) == [b"p"]
    consumer.commit(asynchronous=False)
    consumer.close()
    places.decide(late)
    places.place(at=last + 1)
    named = {"fence": first, "fence_places": ((key, last),)} if is_named else {}
    snapshot(places, transactions=open_there, last_places=((key, last + 1),), **named)
    log.delete_records(JOURNAL_TOPIC, 0, hangs.offset)
    again = make_consumer(group_id=consumer.group_id)
    again.assign(T)
    assert read_upto(again, [b"b"]) == [b"b"]
    assert nothing_more(again, 0.1)


@pytest.mark.parametrize("goes_back", [False, True], ids=["stays placed", "has markers again"])
def test_what_was_delivered_and_is_read_again_is_not_kept(
    places: Places, make_consumer: MakeConsumer, goes_back: bool
) -> None:
    """A transaction was open, so a restart reads what came behind its records once more."""
    written = places.written
    places.switch(Phase.METADATA)
    slow = written.begin()
    written.write(slow, "t", [b"slow"])
    values = [b"%d" % number for number in range(20)]
    for value in values:
        written.finish(places.transaction([value]))
    first = make_consumer(group_id="g", isolation_level="serializable", enable_auto_commit=False)
    first.assign(T)
    assert read_upto(first, values) == values
    first.commit(asynchronous=False)
    first.close()
    if goes_back:
        places.switch(Phase.MARKERS)
        written.mark(slow, "t")
    else:
        places.decide(slow)
        places.place()
    written.finish(slow)
    again = make_consumer(group_id="g", isolation_level="serializable", pending_lookup_age_ms=20)
    again.assign(T)
    assert read_upto(again, [b"slow"]) == [b"slow"]
    buffer = again._delivery._reading.assigned["t", 0].buffer

    def is_settled() -> bool:
        assert nothing_more(again, 0.05)
        return not list(buffer.pending())

    eventually(is_settled)


def test_trap_243_the_journal_is_trimmed_between_two_questions(
    places: Places, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.switch(Phase.METADATA)
    passed = places.decide(write(places, b"a"))
    places.place()
    delivered = places.end() + 1
    log.delete_records(JOURNAL_TOPIC, 0, passed)
    at = snapshot(places, last_places=((places.partition(), delivered - 1),))
    real, clock = log.start_offset, [0.0]

    def trims_behind_its_answer(topic: str, partition: int, *, timeout_s: float = 10) -> int:
        start = real(topic, partition, timeout_s=timeout_s)
        if topic == JOURNAL_TOPIC:
            log.delete_records(JOURNAL_TOPIC, 0, at)
        return start

    monkeypatch.setattr(log, "start_offset", trims_behind_its_answer)
    starts = HomeStarts(log, lambda: clock[0])
    wanted = {places.partition(): Start(delivered, passed, delivered, 0, places.mode_offset)}
    with pytest.raises(RecordsTrimmedError, match=r"its epoch .* can't be told"):
        starts.find(HOME, wanted)
    assert starts.find(HOME, wanted).attachments[places.partition()].offset == at
    behind = {places.partition(): Start(0, None, 0, 0, places.mode_offset)}
    for clock[0] in (10.0, 14.9):
        with pytest.raises(RecordsTrimmedError):
            starts.find(HOME, behind)
    clock[0] = 15.0
    with pytest.raises(TornTransactionError):
        starts.find(HOME, behind)


def write(places: Places, value: bytes) -> TxId:
    txid = places.written.begin()
    places.written.write(txid, "t", [value])
    return txid
