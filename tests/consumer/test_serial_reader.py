"""`transactions()` delivers whole transactions in commit-sequence order, across partitions."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import TopicPartition

from logtx.consumer import serial_reader
from logtx.consumer.consumer import Consumer
from logtx.consumer.core import serial_order
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.core.serial_buffer import SerialBuffer
from logtx.consumer.journal_tail import JournalTail
from logtx.consumer.serial_reader import CommittedTransaction, SerialReader
from logtx.journal.control import TXCTL_HEADER, TXID_HEADER, BranchRange, Marker, encode_marker
from logtx.journal.errors import (
    BrokerError,
    LogtxError,
    MalformedHeaderError,
    NotSupportedError,
    UnknownRecordError,
    UnknownTopicError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Position
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.records.types import Committed, Owner
from logtx.journal.txid import TxId

from .conftest import LOOKS_APART_S, MakeConsumer
from .logs import Transactions
from .records import FakeRecord, data, malformed

pytestmark = pytest.mark.usefixtures("quick_looks")


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """A log in memory, so that each test has a journal of its own."""
    memory_log.create_topic("t", partitions=3)
    return memory_log


def everything(consumer: Consumer, timeout: float = 0.3) -> list[list[bytes | None]]:
    return [[r.value() for r in t.records] for t in consumer.transactions(timeout)]


def assigned(consumer: Consumer, *partitions: int) -> Consumer:
    consumer.assign([TopicPartition("t", p) for p in partitions or (0, 1, 2)])
    return consumer


def test_trap_23_markers_out_of_step_come_in_decision_order(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    first, second = written.begin(), written.begin()
    written.write(first, "t", [b"1a"], 0)
    written.write(first, "t", [b"1b"], 1)
    written.write(second, "t", [b"2a"], 0)
    written.decide(first)
    written.decide(second)
    consumer = assigned(make_consumer())
    # T2's marker is read long before T1's: T1 has none at all in partition 1 yet.
    written.mark(first, "t", 0)
    written.mark(second, "t", 0)
    written.append("t", [b"plain"], partition=2)
    assert everything(consumer) == []
    written.mark(first, "t", 1)
    found = list(consumer.transactions(0.3))
    assert [t.txid for t in found] == [first, second]
    assert [t.commit_sequence for t in found] == sorted(written.sequences.values())
    assert all(t.complete for t in found)
    assert found[0].partitions == (("t", 0), ("t", 1))
    assert found[0].timestamp == 2_000


def test_records_stream_partition_by_partition(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    txid = written.begin()
    written.write(txid, "t", [b"b1", b"b2"], 1)
    written.write(txid, "t", [b"a1", b"a2"], 0)
    written.mark(txid, "t", 0)
    written.mark(txid, "t", 1)
    aborted = written.begin()
    written.write(aborted, "t", [b"never"], 0)
    written.mark(aborted, "t", 0, commit=False)
    assert everything(assigned(make_consumer())) == [[b"a1", b"a2", b"b1", b"b2"]]


def test_a_part_of_the_partitions_is_said_to_be_incomplete(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    txid = written.begin()
    written.write(txid, "t", [b"a"], 0)
    written.write(txid, "t", [b"b"], 1)
    written.mark(txid, "t", 0)
    [found] = assigned(make_consumer(), 0, 2).transactions(0.3)
    assert not found.complete
    assert found.partitions == (("t", 0),)


def test_commit_counts_what_was_yielded_and_resume_goes_on_behind_it(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    hanging = written.begin()
    written.write(hanging, "t", [b"h"], 0)
    for number in range(4):
        txid = written.begin()
        written.write(txid, "t", [b"%d" % number], number % 2)
        written.mark(txid, "t", number % 2)
    for count in range(1, 5):
        consumer = assigned(make_consumer(enable_auto_commit=False))
        stream = consumer.transactions(0.3)
        given = [[r.value() for r in next(stream).records] for _ in range(count)]
        consumer.commit(asynchronous=False)
        consumer.close()
        again = assigned(make_consumer(group_id=consumer.group_id))
        assert given + everything(again) == [[b"0"], [b"1"], [b"2"], [b"3"]]
        again.close()
    written.mark(hanging, "t", 0)
    again = assigned(make_consumer(group_id=consumer.group_id))
    assert everything(again) == [[b"h"]]


def test_latest_begins_with_what_is_decided_from_now_on(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    before, across, after = written.begin(), written.begin(), written.begin()
    for number, txid in enumerate((before, across, after)):
        written.write(txid, "t", [b"%d" % number], 0)
    written.mark(before, "t", 0)
    written.decide(across)
    consumer = assigned(make_consumer(auto_offset_reset="latest"))
    assert everything(consumer, 0.1) == []
    written.mark(across, "t", 0)
    written.mark(after, "t", 0)
    # The data of b"2" lies before the start: a side read gets it.
    assert everything(consumer) == [[b"2"]]


def test_markers_below_the_start_are_passed_over_once_finished(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    old, new = written.begin(), written.begin()
    written.write(old, "t", [b"old"], 0)
    written.mark(old, "t", 0)
    written.write(new, "t", [b"new"], 1)
    written.mark(new, "t", 1)
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0, 2), TopicPartition("t", 1)])
    assert everything(consumer) == []
    written.finish(old)
    assert everything(consumer, 1.0) == [[b"new"]]
    assert consumer.counters.skipped_transactions == 1


def test_a_marker_below_that_of_a_later_decision_is_passed_over_at_once(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    old = written.begin()
    written.write(old, "t", [b"old"], 0)
    written.mark(old, "t", 0)
    written.transaction("t", [b"new"], 0)
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0, 2)])
    assert everything(consumer) == [[b"new"]]


class FormerLeader:
    """Tells the ends of data partitions as they are now, for a while."""

    def __init__(self, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.until_s = time.monotonic() + LOOKS_APART_S / 2
        ends = {("t", p): log.end_offset("t", p) for p in range(3)}
        real = log.end_offset

        def end_offset(topic: str, partition: int, *, timeout_s: float = 10) -> int:
            end = real(topic, partition, timeout_s=timeout_s)
            is_former = time.monotonic() < self.until_s
            return ends.get((topic, partition), end) if is_former else end

        monkeypatch.setattr(log, "end_offset", end_offset)
        tell_each(log, monkeypatch)


def tell_each(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the log tell ends of many partitions as it tells that of one."""

    def each_end_offset(
        partitions: Collection[tuple[str, int]], *, timeout_s: float = 10
    ) -> dict[tuple[str, int], int | LogtxError]:
        told: dict[tuple[str, int], int | LogtxError] = {}
        for key in partitions:
            try:
                told[key] = log.end_offset(*key, timeout_s=timeout_s)
            except LogtxError as error:
                told[key] = error
        return told

    monkeypatch.setattr(log, "each_end_offset", each_end_offset)


@pytest.mark.parametrize("met", [False, True])
def test_trap_63_a_former_leaders_end_passes_nothing_over(
    log: MemoryLog,
    written: Transactions,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
    met: bool,
) -> None:
    if met:
        written.finish(written.transaction("t", [b"met"], 0))
    consumer = assigned(make_consumer())
    assert everything(consumer) == [[b"met"]] * met
    # The partition's leader stands still: its records are not read, and the end is of before.
    consumer.pause([TopicPartition("t", 0)])
    former = FormerLeader(log, monkeypatch)
    txid = written.begin()
    written.write(txid, "t", [b"0"], 0)
    written.write(txid, "t", [b"1"], 1)
    written.mark(txid, "t", 0)
    written.mark(txid, "t", 1)
    written.finish(txid)
    # What lies ahead is waited for, however long the former leader believes that it leads.
    former.until_s = time.monotonic() + (10 if met else LOOKS_APART_S / 2)
    assert everything(consumer, 2 * LOOKS_APART_S if met else LOOKS_APART_S) == []
    consumer.resume([TopicPartition("t", 0)])
    assert everything(consumer) == [[b"0", b"1"]]


def test_trap_63_true_ends_for_long_do_not_prove_an_end_of_the_past(
    log: MemoryLog,
    written: Transactions,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serial_order, "CONTRADICTED_APART_S", 1.0)
    written.finish(written.transaction("t", [b"met"], 0))
    consumer = assigned(make_consumer())
    assert everything(consumer) == [[b"met"]]
    consumer.pause([TopicPartition("t", 0)])
    former = FormerLeader(log, monkeypatch)
    former.until_s = 0
    txid = written.begin()
    written.write(txid, "t", [b"0"], 0)
    written.write(txid, "t", [b"1"], 1)
    written.mark(txid, "t", 0)
    written.mark(txid, "t", 1)
    written.finish(txid)
    assert everything(consumer, 2.0) == []
    former.until_s = time.monotonic() + LOOKS_APART_S
    assert everything(consumer, 2 * LOOKS_APART_S) == []
    consumer.resume([TopicPartition("t", 0)])
    assert everything(consumer) == [[b"0", b"1"]]


def test_what_was_passed_over_says_nothing_of_what_lies_ahead(
    log: MemoryLog, written: Transactions, make_consumer: MakeConsumer
) -> None:
    # Retention took the markers of partitions 0 and 2. A consumer that goes on in the middle, with
    # a further partition, waits no longer than the first one.
    for number in range(5):
        txid = written.begin()
        for partition in range(3):
            written.write(txid, "t", [b"%d" % number], partition)
        for partition in range(3):
            written.mark(txid, "t", partition)
        written.finish(txid)
    for partition in (0, 2):
        log.delete_records("t", partition, log.end_offset("t", partition))
    first = assigned(make_consumer(enable_auto_commit=False), 0, 1)
    transactions = first.transactions(10)
    for number in range(2):
        assert [r.value() for r in next(transactions).records] == [b"%d" % number]
    first.commit(asynchronous=False)
    first.close()
    again = assigned(make_consumer(group_id=first.group_id), 0, 1, 2)
    assert everything(again, 2.0) == [[b"2"], [b"3"], [b"4"]]


@pytest.mark.parametrize("error", [UnknownTopicError, BrokerError])
def test_a_partition_that_tells_no_end_holds_up_nothing_else(
    log: MemoryLog,
    written: Transactions,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
    error: type[LogtxError],
) -> None:
    log.create_topic("u", partitions=1)
    for value in (b"0", b"1"):
        txid = written.begin()
        written.write(txid, "t", [b"below"], 0)
        written.write(txid, "t", [value], 1)
        written.mark(txid, "t", 0)
        written.mark(txid, "t", 1)
        written.finish(txid)
    consumer = make_consumer()
    end = log.end_offset("t", 0)
    consumer.assign([TopicPartition("t", 0, end), TopicPartition("t", 1), TopicPartition("u", 0)])
    real = log.end_offset

    def end_offset(topic: str, partition: int, *, timeout_s: float = 10) -> int:
        if topic == "u":
            raise error("it tells no end")
        return real(topic, partition, timeout_s=timeout_s)

    monkeypatch.setattr(log, "end_offset", end_offset)
    tell_each(log, monkeypatch)
    assert everything(consumer, 2.0) == [[b"0"], [b"1"]]


def test_trap_63_a_partition_that_was_gone_holds_nothing_up(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    written.finish(written.transaction("t", [b"met"], 0))
    consumer = assigned(make_consumer())
    assert everything(consumer) == [[b"met"]]
    txid = written.begin()
    written.write(txid, "t", [b"gone"], 0)
    written.write(txid, "t", [b"1"], 1)
    written.mark(txid, "t", 1)
    assert everything(consumer) == []
    written.journal(Committed(begin=txid.offset, gone=(("t", 0),)))
    assert everything(consumer) == [[b"1"]]


def test_a_replaced_coordinators_decision_does_not_count(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    txid, other = written.begin(), written.begin()
    written.write(txid, "t", [b"void"], 0)
    written.write(other, "t", [b"valid"], 0)
    current = written.epoch
    written.epoch = 10_000
    written.decide(txid)
    written.epoch = current
    owner = Owner(replaces=current, address="nowhere:1", process_nonce=1)
    written.epoch = written.journal(owner)
    written.mark(other, "t", 0)
    assert everything(assigned(make_consumer())) == [[b"valid"]]


def test_malformed_headers_raise_once_each(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    written.append("t", [b"bad"], [(TXID_HEADER, b"x")])
    written.transaction("t", [b"good"])
    consumer = assigned(make_consumer())
    with pytest.raises(MalformedHeaderError, match=r"t\[0\] offset 0"):
        everything(consumer)
    assert everything(consumer) == [[b"good"]]


def test_poll_and_transactions_do_not_mix(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    del written
    consumer = assigned(make_consumer())
    consumer.poll(0)
    with pytest.raises(NotSupportedError, match="don't mix"):
        consumer.transactions()
    other = assigned(make_consumer())
    other.transactions(0)
    with pytest.raises(NotSupportedError, match="don't mix"):
        other.consume(1, 0)


def test_a_transaction_given_up_half_way_does_not_disturb_the_next(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    for number in range(3):
        written.transaction("t", [b"%d-%d" % (number, n) for n in range(3)])
    stream: Iterator[CommittedTransaction] = assigned(make_consumer()).transactions(0.3)
    first = next(stream)
    assert next(first.records).value() == b"0-0"
    second = next(stream)
    assert list(first.records) == []
    assert [r.value() for r in second.records] == [b"1-0", b"1-1", b"1-2"]


def test_a_failed_first_call_leaves_the_consumer_as_it_was(
    written: Transactions, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = JournalTail.last_decision, itertools.count()

    def flaky(tail: JournalTail) -> object:
        if next(calls) == 1:  # for the second of two partitions
            raise BrokerError("no answer")
        return real(tail)

    monkeypatch.setattr(JournalTail, "last_decision", flaky)
    written.finish(written.transaction("t", [b"before"], 0))
    consumer = assigned(make_consumer(auto_offset_reset="latest"), 0, 1)
    with pytest.raises(BrokerError):
        everything(consumer)
    assert everything(consumer) == []
    written.finish(written.transaction("t", [b"after"], 1))
    assert everything(consumer) == [[b"after"]]


def test_what_was_decided_before_damage_in_the_journal_is_delivered(
    written: Transactions, make_consumer: MakeConsumer
) -> None:
    for value in (b"a", b"b"):
        written.finish(written.transaction("t", [value], 0))
    unmarked = written.begin()
    written.write(unmarked, "t", [b"its marker comes late"], 0)
    written.decide(unmarked)
    written.append(JOURNAL_TOPIC, [b"\x7fnot a record of this version"])
    consumer = assigned(make_consumer(), 0)
    found = consumer.transactions(0.3)
    assert [[r.value() for r in next(found).records] for _ in range(2)] == [[b"a"], [b"b"]]
    for _ in range(2):
        with pytest.raises(UnknownRecordError):
            list(consumer.transactions(0.3))
    written.mark(unmarked, "t", 0)
    assert [r.value() for r in next(consumer.transactions(0.3)).records] == [
        b"its marker comes late"
    ]


def test_others_records_in_a_sidecar_count_as_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, last = [0.0], 1_000
    monkeypatch.setattr(serial_reader, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    txid = TxId(0, 0xABC, 1)
    ranges = (BranchRange(0, 0, last, 2),)
    pointer = Marker(
        committed=True, commit_sequence=2, hw=0, epoch=1, branches=(), sidecar=ranges, since=0
    )
    headers = [(TXID_HEADER, txid.to_bytes()), (TXCTL_HEADER, encode_marker(pointer))]
    buffer = SerialBuffer(
        ("t", 0),
        Position.at(0),
        PendingTransactionMap(10**6),
        journal_partition=0,
        malformed=malformed,
    )
    buffer.feed([FakeRecord(0, headers, payload=None)])
    request = buffer.stream_wanted()
    assert request is not None
    buffer.open_stream(request, 0, last + 1)
    entry = buffer.hand_over(txid.to_bytes())

    def read_sidecar(_: object) -> bool:  # An offset a second, all but two others'.
        wanted = buffer.stream_wanted()
        assert wanted is not None
        at = wanted.next_offset
        buffer.push_stream(wanted, [data(at, txid)] if at in (0, last) else [], at + 1)
        now_s[0] += 1
        return True

    share = SimpleNamespace(buffer=buffer, entry=entry)
    given: list[Any] = [(share, None)]
    reader = SimpleNamespace(
        _reading=SimpleNamespace(
            read_sidecar=read_sidecar, fetch=lambda _: None, fetched_s=now_s[0]
        ),
        _given=given,
    )
    assert len(list(SerialReader._read(cast(Any, reader), cast(Any, share), given))) == 2
