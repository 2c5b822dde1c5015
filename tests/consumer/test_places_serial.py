"""Serial order and `transactions()` where transactions are placed: a place counts as a marker."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition

from logtx.consumer import journal_tail
from logtx.consumer.consumer import Consumer
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.core.serial_buffer import SerialBuffer
from logtx.journal.control import BranchRange, Marker
from logtx.journal.errors import BrokerError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Phase
from logtx.journal.places import GONE
from logtx.journal.position import Passed, Position
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.records.types import (
    DataPartition,
    PartitionWrites,
    SnapshotMode,
    SnapshotPlaces,
    SnapshotTransaction,
)
from logtx.journal.state import State
from logtx.journal.txid import TxId

from .conftest import MakeConsumer
from .logs import Transactions, nothing_more, read
from .places import Places, snapshot
from .records import DATA, INCARNATION, data, malformed, plain, txid

pytestmark = pytest.mark.usefixtures("quick_looks")
ALL = [TopicPartition("t", number) for number in range(3)]


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


def serial(make_consumer: MakeConsumer, *places: TopicPartition, **settings: object) -> Consumer:
    consumer = make_consumer(isolation_level="serializable", **settings)
    consumer.assign(list(places or ALL))
    return consumer


def stopping_after_each(make_consumer: MakeConsumer, count: int) -> list[bytes | None]:
    """Reads so many records, each with a reader that goes on where the one before stopped."""
    got = []
    for _ in range(count):
        consumer = serial(make_consumer, group_id="stops", enable_auto_commit=False)
        got += read(consumer, 1)
        consumer.commit(asynchronous=False)
        consumer.close()
    return got


def across(home: Places, name: bytes, *counts: int) -> TxId:
    """Writes `counts` records to partitions 0, 1 and 2, and decides. Places nothing."""
    txid = home.written.begin()
    for number, count in enumerate(counts):
        if count:
            values = [b"%s%d%d" % (name, number, n) for n in range(count)]
            home.written.write(txid, "t", values, number)
    home.decide(txid)
    return txid


def marked(home: Places, value: bytes, number: int = 0) -> None:
    home.written.finish(home.written.transaction("t", [value], number))


def some(home: Places) -> list[bytes | None]:
    """Writes transactions by markers, by places, and by markers again. Returns what is due."""
    marked(home, b"m")
    home.switch(Phase.METADATA)
    across(home, b"a", 2, 1)
    across(home, b"b", 1, 0, 2)
    home.written.append("t", [b"plain"])
    home.place()
    across(home, b"c", 2)
    across(home, b"d", 1, 1)
    home.place()
    home.switch(Phase.MARKERS)
    marked(home, b"n")
    found = [b"m", b"a00", b"a01", b"a10", b"b00", b"b20", b"b21", b"c00", b"c01", b"d00", b"d10"]
    return [*found, b"n"]


def test_places_and_markers_come_in_the_order_of_the_decisions(
    home: Places, make_consumer: MakeConsumer
) -> None:
    consumer = serial(make_consumer)
    assert nothing_more(consumer, 0.1)
    wanted = some(home)
    assert read(consumer, len(wanted)) == wanted
    again = serial(make_consumer)
    assert read(again, len(wanted)) == wanted
    assert nothing_more(again, 0.1)
    assert again.counters.skipped_transactions == 0


def test_a_stop_after_every_record_goes_on_exactly(
    home: Places, make_consumer: MakeConsumer
) -> None:
    wanted = some(home)
    assert stopping_after_each(make_consumer, len(wanted)) == wanted


def test_trap_73_a_stop_within_the_first_transaction_of_all_goes_on_exactly(
    home: Places, make_consumer: MakeConsumer
) -> None:
    """No commit sequence was passed yet, that the position could name."""
    home.switch(Phase.METADATA)
    across(home, b"a", 3)
    home.place()
    assert stopping_after_each(make_consumer, 3) == [b"a00", b"a01", b"a02"]


def test_trap_77_a_position_says_what_came_of_a_part_until_its_place_is_read_again() -> None:
    journal, owner = (0, INCARNATION), txid(20)
    start = Position(o1=4, o2=9, passed=Passed(journal, 12, 2), met={journal: 12})
    pending = PendingTransactionMap(2**20)
    buffer = SerialBuffer(DATA, start, pending, journal_partition=0, malformed=malformed)
    assert buffer.position() == replace(start, delivered={journal: 12})
    buffer.feed([data(at, owner) for at in (4, 5, 6)])
    buffer.feed([plain(7), plain(8), plain(9)])
    assert buffer.position().passed == start.passed
    end = Marker(
        committed=True, commit_sequence=21, hw=0, epoch=0, branches=(BranchRange(0, 4, 6, 3),)
    )
    buffer.place(owner.to_bytes(), end, 9)
    assert buffer.position().passed == start.passed
    buffer.let_through(owner.to_bytes())
    assert [record.offset() for record in buffer.take(9)] == [6]
    assert buffer.position().passed is None


@pytest.mark.parametrize("is_handed", [False, True])
def test_trap_84_a_part_is_told_of_what_ends_below_where_an_earlier_life_had_read(
    is_handed: bool,
) -> None:
    journal, owner = (0, INCARNATION), txid(20)
    position = Position(o1=4, o2=9, delivered={journal: 12})
    end = Marker(
        committed=True, commit_sequence=21, hw=0, epoch=0, branches=(BranchRange(0, 4, 6, 3),)
    )
    got = []
    for _ in range(3):
        pending = PendingTransactionMap(2**20)
        buffer = SerialBuffer(DATA, position, pending, journal_partition=0, malformed=malformed)
        buffer.feed([data(4, owner), data(5, owner), data(6, owner), plain(7), plain(8), plain(9)])
        if is_handed:
            buffer.end_behind_last(owner.to_bytes(), end)
        else:
            buffer.place(owner.to_bytes(), end, 7)
        buffer.let_through(owner.to_bytes())
        got += [record.offset() for record in buffer.take(1)]
        position = buffer.position()
    assert got == [4, 5, 6]
    assert (position.o1, position.o3, position.passed) == (10, 0, None)


def test_a_transaction_waits_for_each_of_its_places(
    home: Places, make_consumer: MakeConsumer
) -> None:
    home.switch(Phase.METADATA)
    consumer = serial(make_consumer)
    across(home, b"a", 1, 1)
    home.place(0)
    assert nothing_more(consumer)
    home.place(1)
    assert read(consumer, 2) == [b"a00", b"a10"]


def test_what_is_placed_below_the_start_or_nowhere_is_passed_over(
    home: Places, make_consumer: MakeConsumer
) -> None:
    home.switch(Phase.METADATA)
    across(home, b"a", 1)
    home.place()
    across(home, b"b", 1, 1)
    home.place(0)
    home.place(1, at=GONE)
    consumer = serial(make_consumer, TopicPartition("t", 0, 3), TopicPartition("t", 1, 0))
    assert read(consumer, 1) == [b"b00"]
    assert nothing_more(consumer, 0.1)
    assert consumer.counters.side_reads == 1


def test_what_is_placed_in_a_topic_that_was_created_anew_is_passed_over(
    home: Places, log: MemoryLog, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its places lie behind all that the new topic has: one partition of it shows a transaction
    that was decided later, the other one nothing."""
    monkeypatch.setattr("logtx.consumer.core.serial_order.CONTRADICTED_APART_S", 0.5)
    home.switch(Phase.METADATA)
    txid = across(home, b"a", 5, 1)
    home.place()
    home.written.finish(txid)
    log.delete_topic("t")
    log.create_topic("t", partitions=3)
    marked(home, b"new")
    consumer = serial(make_consumer)
    assert read(consumer, 1) == [b"new"]


def test_what_a_look_up_finds_placed_leads_no_serial_reader_to_the_home(
    home: Places, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal tells it all places. To begin anew for each would keep it from everything."""
    home.switch(Phase.METADATA)
    across(home, b"a", 1, 1)
    across(home, b"b", 1)
    home.place(0)
    led: list[object] = []
    consumer = serial(make_consumer, pending_lookup_age_ms=20)
    monkeypatch.setattr(consumer._reading.following, "found_placed", led.append)
    until_s = time.monotonic() + 10
    while consumer.counters.look_ups < 3 and time.monotonic() < until_s:
        assert nothing_more(consumer, 0.1)
    assert consumer.counters.look_ups >= 3
    assert not led
    home.place(1)
    assert read(consumer, 3) == [b"a00", b"a10", b"b00"]


def test_whole_transactions(home: Places, make_consumer: MakeConsumer) -> None:
    some(home)
    consumer = make_consumer()
    consumer.assign(ALL)
    found = [(t.complete, [m.value() for m in t.records]) for t in consumer.transactions(timeout=1)]
    assert found == [
        (True, [b"m"]),
        (True, [b"a00", b"a01", b"a10"]),
        (True, [b"b00", b"b20", b"b21"]),
        (True, [b"c00", b"c01"]),
        (True, [b"d00", b"d10"]),
        (True, [b"n"]),
    ]


def with_fence(home: Places, log: MemoryLog, *, kept: int = 0) -> int:
    """Places three records, of which one is due from a fence on. Returns where the fence lies.

    Args:
        home: writes them.
        log: its log, which is trimmed.
        kept: number of journal records that are kept below the fence.
    """
    home.switch(Phase.METADATA)
    waits = across(home, b"w", 1)
    sequence = home.written.sequences[waits]
    writes = (
        PartitionWrites(DataPartition("t", 0, home.topic_id), home.written.ranges(waits, "t")),
    )
    row = SnapshotTransaction(waits.offset, "p", 0, 1, 1, State.COMMITTING, sequence, None)
    modes = (SnapshotMode("t", home.topic_id, Phase.METADATA, home.mode_offset),)
    fence = snapshot(
        home,
        transactions=(row._replace(writes=writes),),
        places=(SnapshotPlaces(waits.offset, sequence, ((home.partition(), 2, None),)),),
        modes=modes,
    )
    log.delete_records(JOURNAL_TOPIC, 0, fence - kept)
    home.place()
    across(home, b"a", 1)
    home.place()
    snapshot(home, last_places=((home.partition(), 3),), fence=fence, modes=modes)
    across(home, b"b", 1)
    home.place()
    return fence


@pytest.mark.parametrize("is_of_the_past", [False, True])
def test_a_trimmed_journal_is_read_from_its_fence_trap_250(
    home: Places,
    log: MemoryLog,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_of_the_past: bool,
) -> None:
    fence = with_fence(home, log)
    if is_of_the_past:

        def end_offset(topic: str, partition: int, *, timeout_s: float) -> int:
            is_tails = topic == JOURNAL_TOPIC and timeout_s == journal_tail.OFFSET_TIMEOUT_S
            return fence if is_tails else true_end(topic, partition, timeout_s=timeout_s)

        true_end = log.end_offset
        # Told apart by it: who else asks refuses an end of the past.
        monkeypatch.setattr(journal_tail, "OFFSET_TIMEOUT_S", 9.0)
        monkeypatch.setattr(log, "end_offset", end_offset)
    consumer = serial(make_consumer)
    assert read(consumer, 3) == [b"w00", b"a00", b"b00"]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_trap_305_a_journal_that_is_trimmed_while_it_is_asked_is_asked_again(
    home: Places,
    log: MemoryLog,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
    times: int,
) -> None:
    fence = with_fence(home, log, kept=3)
    told, trims = log.start_offset, iter(range(fence - times + 1, fence + 1))

    def start_offset(topic: str, partition: int, *, timeout_s: float) -> int:
        start = told(topic, partition, timeout_s=timeout_s)
        is_tails = topic == JOURNAL_TOPIC and timeout_s == journal_tail.OFFSET_TIMEOUT_S
        trimmed = next(trims, None) if is_tails else None
        if trimmed is not None:
            log.delete_records(JOURNAL_TOPIC, 0, trimmed)
        return start

    monkeypatch.setattr(journal_tail, "OFFSET_TIMEOUT_S", 9.0)
    monkeypatch.setattr(log, "start_offset", start_offset)
    consumer = serial(make_consumer)
    if times == 3:
        with pytest.raises(BrokerError, match="trimmed faster than it can be read"):
            consumer.consume(1, 1)
    assert read(consumer, 3) == [b"w00", b"a00", b"b00"]
