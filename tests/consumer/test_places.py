"""A consumer of a topic in metadata mode, on a log in memory: everything between cores and user."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, TopicPartition

from logtx.consumer import home_starts, reading
from logtx.consumer.consumer import Consumer
from logtx.journal.control import TXID_HEADER
from logtx.journal.errors import BrokerError, TornTransactionError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Phase
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.records.types import (
    DataPartition,
    PartitionWrites,
    SnapshotPlaces,
    SnapshotTransaction,
)
from logtx.journal.state import State

from .conftest import MakeConsumer
from .logs import Transactions, nothing_more, read, wait_for
from .places import Places, expected, read_upto, snapshot

T = [TopicPartition("t", 0)]


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """A log in memory, so that each test has a journal of its own."""
    memory_log.create_topic("t", partitions=1)
    return memory_log


@pytest.fixture
def places(written: Transactions) -> Places:
    return Places(written, "t")


def plain(written: Transactions, *values: bytes) -> None:
    written.append("t", values)


def assign(make_consumer: MakeConsumer, offset: int | None = None, **settings: object) -> Consumer:
    consumer = make_consumer(**settings)
    consumer.assign(T if offset is None else [TopicPartition("t", 0, offset)])
    return consumer


def poll_on(consumer: Consumer) -> None:
    """Polls for some time, in which nothing may be delivered."""
    for _ in range(20):
        assert consumer.consume(1, 0.2) == []


def some_of_everything(places: Places) -> None:
    """Writes plain records, transactions by markers and by places, late data, one aborted, two at
    one place, and one that stays open."""
    written = places.written
    written.transaction("t", [b"m1", b"m2"])
    plain(written, b"p1")
    hanging = written.begin()
    written.write(hanging, "t", [b"never"])
    places.switch(Phase.METADATA)
    plain(written, b"p2")
    first, second, third = written.begin(), written.begin(), written.begin()
    written.write(first, "t", [b"a1", b"a2"])
    written.write(second, "t", [b"b1"])
    written.write(third, "t", [b"c1", b"c2", b"c3"])
    plain(written, b"p3")
    places.decide(second)
    places.decide(third)
    places.place()
    plain(written, b"p4")
    written.write(second, "t", [b"late"], accepted=False)
    written.decide(first, commit=False)
    places.transaction([b"d1", b"d2"])
    plain(written, b"p5")
    places.transaction([b"e1"])


def test_what_is_placed_comes_at_its_place(places: Places, make_consumer: MakeConsumer) -> None:
    some_of_everything(places)
    wanted = expected(places.log, "t")
    assert wanted[:4] == [b"m1", b"m2", b"p1", b"p2"]
    consumer = assign(make_consumer)
    assert read_upto(consumer, wanted) == wanted
    assert nothing_more(consumer)
    assert consumer.counters.late_records == 3  # with those that were aborted by then
    assert consumer.stats()["misplaced_transactions"] == 0
    assert consumer.stats()["journal_lag_records"] == 0


def test_a_reader_that_runs_while_all_of_it_happens(
    places: Places, make_consumer: MakeConsumer
) -> None:
    consumer = assign(make_consumer)
    assert nothing_more(consumer, 0.1)
    some_of_everything(places)
    wanted = expected(places.log, "t")
    assert read_upto(consumer, wanted) == wanted
    assert nothing_more(consumer, 0.1)
    places.switch(Phase.MARKERS)
    places.written.transaction("t", [b"m3"])
    plain(places.written, b"p6")
    places.switch(Phase.METADATA)
    places.transaction([b"f1"])
    more = expected(places.log, "t")[len(wanted) :]
    assert more == [b"m3", b"p6", b"f1"]
    assert read_upto(consumer, more) == more
    assert nothing_more(consumer, 0.1)


def test_a_stop_after_every_record_goes_on_exactly(
    places: Places, make_consumer: MakeConsumer
) -> None:
    some_of_everything(places)
    wanted = expected(places.log, "t")
    for count in range(len(wanted) + 1):
        consumer = assign(make_consumer, enable_auto_commit=False)
        assert read(consumer, count) == wanted[:count]
        consumer.commit(asynchronous=False)
        consumer.close()
        again = assign(make_consumer, group_id=consumer.group_id, enable_auto_commit=False)
        assert read_upto(again, wanted[count:]) == wanted[count:], count
        assert nothing_more(again, 0.05)
        again.close()


def test_one_group_that_stops_after_every_record(
    places: Places, make_consumer: MakeConsumer
) -> None:
    some_of_everything(places)
    places.switch(Phase.MARKERS)
    places.written.transaction("t", [b"m3", b"m4"])
    plain(places.written, b"p6")
    wanted = expected(places.log, "t")
    got: list[bytes | None] = []
    for _ in wanted:
        consumer = assign(make_consumer, group_id="stops", enable_auto_commit=False)
        got += read(consumer, 1)
        consumer.commit(asynchronous=False)
        consumer.close()
    assert got == wanted


def test_a_new_reader_from_every_offset(places: Places, make_consumer: MakeConsumer) -> None:
    some_of_everything(places)
    for start in range(places.end() + 1):
        wanted = expected(places.log, "t", start=start)
        consumer = assign(make_consumer, start)
        assert read_upto(consumer, wanted) == wanted, start
        assert nothing_more(consumer, 0.05), start
        consumer.close()


def test_a_new_reader_from_every_offset_of_a_topic_that_was_switched_back(
    places: Places, make_consumer: MakeConsumer
) -> None:
    some_of_everything(places)
    places.switch(Phase.MARKERS)
    places.written.transaction("t", [b"m3", b"m4"])
    for start in range(places.end() + 1):
        wanted = expected(places.log, "t", start=start)
        consumer = assign(make_consumer, start)
        assert read_upto(consumer, wanted) == wanted, start
        assert nothing_more(consumer, 0.05), start
        consumer.close()


def test_a_reader_from_the_end_delivers_what_is_placed_from_now_on(
    places: Places, make_consumer: MakeConsumer
) -> None:
    places.switch(Phase.METADATA)
    places.transaction([b"before"])
    hanging = places.written.begin()
    places.written.write(hanging, "t", [b"h1"])
    consumer = assign(make_consumer, auto_offset_reset="latest")
    assert nothing_more(consumer)
    places.decide(hanging)
    places.place()
    plain(places.written, b"p")
    assert read(consumer, 2) == [b"h1", b"p"]
    assert consumer.counters.side_reads == 1
    assert nothing_more(consumer, 0.05)


def test_a_plain_record_waits_for_what_is_decided_and_not_placed(
    places: Places, make_consumer: MakeConsumer
) -> None:
    places.switch(Phase.METADATA)
    consumer = assign(make_consumer)
    txid = places.written.begin()
    places.written.write(txid, "t", [b"a"])
    places.decide(txid)
    at = places.end()
    plain(places.written, b"p")
    assert nothing_more(consumer)
    assert consumer.stats()["held_for_horizon_records"] == 3  # with the mode record
    [held] = consumer.held_back()
    assert (held.txid, held.held_by) == (txid, "placing")
    [lag] = consumer.lag()
    assert lag.lag > 0
    places.place(at=at)
    assert read(consumer, 2) == [b"a", b"p"]
    assert consumer.stats()["held_for_horizon_records"] == 0
    assert consumer.held_back() == []


def test_an_open_transaction_holds_up_nothing(places: Places, make_consumer: MakeConsumer) -> None:
    places.switch(Phase.METADATA)
    consumer = assign(make_consumer)
    hanging = places.written.begin()
    places.written.write(hanging, "t", [b"h"])
    plain(places.written, b"p")
    places.transaction([b"a"])
    assert read(consumer, 2) == [b"p", b"a"]
    [held] = consumer.held_back()
    assert (held.txid, held.held_by) == (hanging, "marker")


def test_a_topic_of_no_home_costs_one_question(
    written: Transactions, log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    written.transaction("t", [b"a"])
    asked: list[str] = []
    for name in ("partition_count", "start_offset", "end_offset", "each_end_offset", "topic_ids"):
        real = getattr(log, name)

        def spy(*args: object, real: object = real, name: str = name, **more: object) -> object:
            asked.append(name)
            assert callable(real)
            return real(*args, **more)

        setattr(log, name, spy)
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0, 0)])
    assert read(consumer, 1) == [b"a"]
    assert nothing_more(consumer)
    assert asked == ["partition_count"]


def test_a_journal_that_does_not_answer_holds_plain_records_and_loses_none(
    places: Places, log: MemoryLog, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.switch(Phase.METADATA)
    consumer = assign(make_consumer)
    places.transaction([b"a"])
    assert read(consumer, 1) == [b"a"]
    real, answers = log.each_end_offset, False

    def each_end_offset(partitions: object, *, timeout_s: float = 10) -> object:
        assert timeout_s <= 5
        if not answers:
            raise BrokerError("no answer")
        return real(partitions, timeout_s=timeout_s)  # type: ignore[arg-type]

    monkeypatch.setattr(log, "each_end_offset", each_end_offset)
    plain(places.written, b"p1")
    assert nothing_more(consumer)
    places.transaction([b"b"])  # its place passes what lies below
    assert read(consumer, 2) == [b"p1", b"b"]
    plain(places.written, b"p2")
    assert nothing_more(consumer)
    answers = True
    assert read(consumer, 1) == [b"p2"]


def test_an_end_of_the_past_costs_the_order_of_plain_records_alone(
    places: Places, make_consumer: MakeConsumer
) -> None:
    places.switch(Phase.METADATA)
    consumer = assign(make_consumer, enable_auto_commit=False)
    txid = places.written.begin()
    places.written.write(txid, "t", [b"a"])
    plain(places.written, b"p")
    assert read(consumer, 1) == [b"p"]
    places.decide(txid)
    places.place(at=1)  # its owner was told an end of before
    assert read(consumer, 1) == [b"a"]
    assert consumer.stats()["misplaced_transactions"] == 1
    consumer.commit(asynchronous=False)
    again = assign(make_consumer, group_id=consumer.group_id)
    assert nothing_more(again)


def test_a_paused_partition_goes_on_where_it_was(
    places: Places, make_consumer: MakeConsumer
) -> None:
    places.switch(Phase.METADATA)
    consumer = assign(make_consumer)
    places.transaction([b"a"])
    assert read(consumer, 1) == [b"a"]
    consumer.pause(T)
    places.transaction([b"b"])
    plain(places.written, b"p")
    places.transaction([b"c"])
    assert nothing_more(consumer)
    consumer.resume(T)
    assert read(consumer, 3) == [b"b", b"p", b"c"]


def test_seek_back_over_the_switch(places: Places, make_consumer: MakeConsumer) -> None:
    some_of_everything(places)
    places.switch(Phase.MARKERS)
    plain(places.written, b"p6")
    wanted = expected(places.log, "t")
    consumer = assign(make_consumer)
    assert read_upto(consumer, wanted) == wanted
    for start in (0, 5, 9, 14, places.end() - 1):
        consumer.seek(TopicPartition("t", 0, start))
        wanted = expected(places.log, "t", start=start)
        assert read_upto(consumer, wanted) == wanted, start
    assert nothing_more(consumer, 0.05)


def test_kafkas_event_comes_when_all_below_it_is_delivered(
    places: Places, make_consumer: MakeConsumer
) -> None:
    places.switch(Phase.METADATA)
    txid = places.written.begin()
    places.written.write(txid, "t", [b"a"])
    places.decide(txid)
    plain(places.written, b"p")
    consumer = assign(make_consumer, enable_partition_eof=True)
    assert nothing_more(consumer)
    places.place(at=places.end() - 1)
    assert read(consumer, 2) == [b"a", b"p"]
    event = consumer.poll(5)
    assert event is not None
    error = event.error()
    assert error is not None
    assert error.code() == KafkaError._PARTITION_EOF


def test_read_uncommitted_sees_no_mode_record(places: Places, make_consumer: MakeConsumer) -> None:
    places.switch(Phase.METADATA)
    places.transaction([b"a"])
    consumer = assign(make_consumer, isolation_level="read_uncommitted")
    assert read(consumer, 1) == [b"a"]
    assert nothing_more(consumer, 0.1)


def test_a_topic_that_was_switched_without_mode_records_is_found_by_a_look_up(
    places: Places, make_consumer: MakeConsumer
) -> None:
    consumer = assign(make_consumer, pending_lookup_age_ms=50)
    places.written.transaction("t", [b"m"])
    hanging = places.written.begin()
    places.written.write(hanging, "t", [b"h1", b"h2"])
    assert read(consumer, 1) == [b"m"]
    places.switch(Phase.METADATA, records=False)
    places.decide(hanging)
    places.place()
    assert read(consumer, 2) == [b"h1", b"h2"]
    plain(places.written, b"p")
    places.transaction([b"a"])
    assert read(consumer, 2) == [b"p", b"a"]


def test_a_mode_record_that_is_written_again_changes_nothing(
    places: Places, make_consumer: MakeConsumer
) -> None:
    consumer = assign(make_consumer)
    places.switch(Phase.METADATA)
    first = places.mode_offset
    places.mode_record(places=True)
    places.transaction([b"a"])
    places.switch(Phase.MARKERS)
    places.mode_record(places=True, mode_offset=first)  # of a replaced owner
    places.mode_record(places=False)
    places.written.transaction("t", [b"m"])
    plain(places.written, b"p")
    assert read(consumer, 3) == [b"a", b"m", b"p"]
    assert not consumer._reading.following.homes.follows


def test_records_that_are_spilled_come_back(places: Places, make_consumer: MakeConsumer) -> None:
    places.switch(Phase.METADATA)
    consumer = assign(make_consumer, pending_memory_max_bytes=20_000)
    txid = places.written.begin()
    values = [b"%d" % n for n in range(500)]
    places.written.write(txid, "t", values)
    plain(places.written, b"p")
    assert read(consumer, 1) == [b"p"]
    wait_for(lambda: consumer.stats()["spilled_bytes"], consumer)
    places.decide(txid)
    places.place()
    assert read(consumer, 500) == values


def test_a_backlog_that_waits_is_read_ahead_only_so_far(
    places: Places, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And librdkafka, which drops what it has fetched of a partition that is paused, goes on."""
    monkeypatch.setattr(reading, "AHEAD_MAX_RECORDS", 1_500)
    values = a_backlog(places)
    consumer = assign(make_consumer)
    assert nothing_more(consumer, 1)
    assert 750 < consumer.stats()["held_for_horizon_records"] < 1_500
    assert not any(a.throttled for a in consumer._reading.assigned.values())
    places.place(at=places.end() - len(values))
    assert read(consumer, 3_001) == [b"a", *values]


def test_a_backlog_that_waits_holds_up_no_other_partition(
    places: Places, log: MemoryLog, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "AHEAD_MAX_RECORDS", 1_500)
    log.create_topic("other", partitions=1)
    values = a_backlog(places)
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0, 0), TopicPartition("other", 0, 0)])
    assert nothing_more(consumer, 1)
    assert consumer._reading.assigned["t", 0].throttled
    assert consumer.stats()["held_for_horizon_records"] < 3_000
    fresh = [b"%d" % n for n in range(1_000)]
    places.written.append("other", fresh)
    assert read(consumer, 1_000) == fresh
    places.place(at=places.end() - len(values))
    assert read(consumer, 3_001) == [b"a", *values]


def a_backlog(places: Places) -> list[bytes]:
    """Writes what is decided and not placed, and 3,000 records behind it. Returns those."""
    places.switch(Phase.METADATA)
    txid = places.written.begin()
    places.written.write(txid, "t", [b"a"])
    places.decide(txid)
    values = [b"%d" % n for n in range(3_000)]
    plain(places.written, *values)
    return values


def test_a_malformed_header_is_an_event_in_its_place(
    places: Places, make_consumer: MakeConsumer
) -> None:
    places.switch(Phase.METADATA)
    plain(places.written, b"p1")
    places.written.append("t", [b"bad"], [(TXID_HEADER, b"short")])
    places.transaction([b"a"])
    consumer = assign(make_consumer)
    found = [m for _ in range(30) for m in consumer.consume(10, 0.1)]
    assert [m.value() for m in found] == [b"p1", b"bad", b"a"]
    assert [m.error() is None for m in found] == [True, False, True]


def test_a_new_reader_begins_at_a_fence_and_one_before_it_is_told(
    places: Places,
    log: MemoryLog,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places.switch(Phase.METADATA)
    places.transaction([b"old"])
    waits, hangs = places.written.begin(), places.written.begin()
    places.written.write(waits, "t", [b"w1"])
    places.written.write(hangs, "t", [b"h1"])
    sequence = places.decide(waits)
    end = places.end()
    row = SnapshotTransaction(waits.offset, "p", 0, 1, 1, State.COMMITTING, sequence, None)
    ranges = places.written.ranges(waits, "t")
    writes = (PartitionWrites(DataPartition("t", 0, places.topic_id), ranges),)
    at = snapshot(
        places,
        transactions=(
            row._replace(writes=writes),
            SnapshotTransaction(hangs.offset, "p", 0, 1, 1, State.OPEN, None, None),
        ),
        last_places=((places.partition(), 2),),
        places=(SnapshotPlaces(waits.offset, sequence, ((places.partition(), 3, None),)),),
    )
    log.delete_records(JOURNAL_TOPIC, 0, at)
    plain(places.written, b"p1")
    places.place(at=end)
    places.decide(hangs)
    places.place()
    plain(places.written, b"p2")
    consumer = assign(make_consumer, 3)
    assert read(consumer, 4) == [b"w1", b"p1", b"h1", b"p2"]
    assert nothing_more(consumer, 0.1)
    # What is placed from 1 on was trimmed.
    monkeypatch.setattr(home_starts, "LOOKS_APART_S", 0.1)
    before = assign(make_consumer, 1)
    with pytest.raises(TornTransactionError, match="trimmed"):
        poll_on(before)
