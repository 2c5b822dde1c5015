"""How many records of a home's journal a reader decodes: for a backlog, each of them once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from logtx.consumer import homes, reading
from logtx.consumer.core import home_journal
from logtx.consumer.core.home_journal import HomeJournal
from logtx.consumer.home_starts import HomeStart, HomeStarts
from logtx.consumer.lanes import Lane
from logtx.journal import reader
from logtx.journal.errors import BrokerError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Phase
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.records.fate import EpochFilter
from logtx.journal.records.types import (
    AddWrites,
    DataPartition,
    Entry,
    Owner,
    PartitionWrites,
    PrepareCommit,
)
from logtx.journal.txid import TxId

from .conftest import MakeConsumer
from .logs import Transactions, read
from .places import Places, expected, read_upto, snapshot

PARTITIONS = 3
STRETCHES = 6
"""In metadata mode; as many others lie between them."""
EACH = 8
"""Transactions of each partition in each stretch."""


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Offsets of the journal's records that were decoded, in that order."""
    found: list[int] = []
    real = reader._decoded

    def decode(message: Any, *how: Any) -> Any:
        found.append(message.offset())
        return real(message, *how)

    monkeypatch.setattr(reader, "_decoded", decode)
    return found


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """A log in memory, so that each test has a journal of its own."""
    memory_log.create_topic("t", partitions=PARTITIONS)
    memory_log.create_topic("u", partitions=1)
    return memory_log


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


@pytest.mark.parametrize("recent", [1, homes.RECENT_MAX])
@pytest.mark.parametrize("batch", [3, 1_000])
def test_a_backlog_with_many_switches_reads_the_journal_once(
    switched: Places,
    placed: Places,
    make_consumer: MakeConsumer,
    decoded: list[int],
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
    recent: int,
) -> None:
    """Each partition begins anew at each of its mode records, and by then all is read."""
    monkeypatch.setattr(homes, "RECENT_MAX", recent)
    monkeypatch.setattr(reading, "FETCH_MAX_RECORDS", batch)
    wanted = wanted_of(switched, placed)
    decoded.clear()
    consumer = make_consumer()
    consumer.assign([*partitions_of(switched), *partitions_of(placed)])
    found = read_upto(consumer, wanted)
    assert sorted(map(str, found)) == sorted(map(str, wanted))
    print(f"{len(decoded)} records decoded of a journal of {end_of(switched)}")
    assert len(decoded) < 1.1 * end_of(switched)


def test_a_reader_of_one_partition_reads_the_journal_once(
    switched: Places, make_consumer: MakeConsumer, decoded: list[int]
) -> None:
    """Between two stretches it follows no home at all."""
    wanted = expected(switched.log, "t", 0)
    decoded.clear()
    consumer = make_consumer()
    consumer.assign([TopicPartition("t", 0)])
    assert sorted(map(str, read_upto(consumer, wanted))) == sorted(map(str, wanted))
    assert len(decoded) < 1.1 * end_of(switched)


def test_partitions_that_are_assigned_one_by_one_read_the_journal_once(
    switched: Places, placed: Places, make_consumer: MakeConsumer, decoded: list[int]
) -> None:
    consumer = make_consumer()
    for partition in [*partitions_of(placed), *partitions_of(switched)]:
        wanted = expected(switched.log, str(partition.topic), partition.partition)
        decoded.clear()
        consumer.incremental_assign([partition])
        found = read_upto(consumer, wanted)
        assert sorted(map(str, found)) == sorted(map(str, wanted))
        is_first = partition.topic == "u"
        assert len(decoded) <= (1.1 * end_of(switched) if is_first else 0)


@pytest.mark.parametrize(("recent", "ahead"), [(1, 0), (60, 0), (1, 20)])
def test_reading_goes_back_for_what_is_kept_no_more(
    switched: Places,
    placed: Places,
    make_consumer: MakeConsumer,
    decoded: list[int],
    monkeypatch: pytest.MonkeyPatch,
    recent: int,
    ahead: int,
) -> None:
    """And nothing is delivered twice to those that had come further."""
    monkeypatch.setattr(homes, "RECENT_MAX", recent)
    monkeypatch.setattr(homes, "AHEAD_MAX", ahead)
    wanted = wanted_of(switched, placed)
    consumer = make_consumer()
    decoded.clear()
    consumer.assign([*partitions_of(placed), *partitions_of(switched)])
    found = read_upto(consumer, wanted)
    assert sorted(map(str, found)) == sorted(map(str, wanted))
    assert len(decoded) > (1 if ahead else 2) * end_of(switched)
    placed.transaction([b"more"])
    assert read(consumer, 1) == [b"more"]
    (journal,) = consumer._reading.following.homes._journals.values()
    assert len(list(journal.since(journal.first))) <= recent


def test_a_journal_that_was_trimmed_while_no_home_was_followed_is_read_anew(
    log: MemoryLog, placed: Places, make_consumer: MakeConsumer
) -> None:
    consumer = make_consumer()
    consumer.assign(partitions_of(placed))
    placed.transaction([b"a"])
    assert read(consumer, 1) == [b"a"]
    placed.switch(Phase.MARKERS)
    placed.written.transaction("u", [b"b"])
    assert read(consumer, 1) == [b"b"]
    assert not consumer._reading.following.homes.follows
    placed.written.transaction("u", [b"unread"])
    at = snapshot(placed)
    log.delete_records(JOURNAL_TOPIC, 0, at)
    placed.switch(Phase.METADATA)
    placed.transaction([b"c"])
    assert read(consumer, 2) == [b"unread", b"c"]


def test_a_record_that_cannot_be_taken_in_is_tried_again_and_not_read_again(
    placed: Places,
    make_consumer: MakeConsumer,
    decoded: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(homes, "BEGIN_RETRY_S", 0.01)
    real, failed = HomeStarts.writes, []

    def writes(self: HomeStarts, home: Any, begin: int, decided: int) -> Any:
        if len(failed) < 3:
            failed.append(begin)
            raise BrokerError("it is away")
        decoded.clear()
        return real(self, home, begin, decided)

    monkeypatch.setattr(HomeStarts, "writes", writes)
    consumer = make_consumer()
    consumer.assign(partitions_of(placed))
    placed.transaction([b"a"])
    assert read(consumer, 1) == [b"a"]
    txid = large_transaction(placed, b"b", 0)
    placed.transaction([b"c"])
    assert read(consumer, 2) == [b"b", b"c"]
    assert len(failed) == 3
    # What it wrote, from its BEGIN to the decision, and nothing else: the rest was read before.
    assert decoded == [txid.offset, txid.offset + 1, txid.offset + 2]


def test_another_home_that_begins_takes_nothing_from_one_that_is_stuck(log: MemoryLog) -> None:
    """What could not be taken in is to be told again, however much that is."""
    stuck, other = (0, 1), (1, 1)
    following = homes.Homes(log, {}, lambda _: -1)
    following._recent_max = 4
    journal = HomeJournal(0, EpochFilter())
    owner = Owner(replaces=-1, address="nowhere:1", process_nonce=1)
    records = [owner, *[PrepareCommit(begin=1, writes=(), decided_ms=1)] * 20]
    epochs = [-1, *[0] * 20]
    entries = [Entry(e, 1, r, at) for at, (e, r) in enumerate(zip(epochs, records, strict=True))]
    journal.feed(list(enumerate(entries)), len(entries))
    following._journals = {stuck: journal}
    following._lanes = {stuck: [Lane(stuck, 3)]}
    following._read_from(other, HomeStart((0, EpochFilter()), {}))
    assert [offset for offset, _ in journal.since(3)] == list(range(3, 21))
    assert journal.first == 3, "the rest is dropped"


def test_what_only_a_partition_that_has_not_come_there_needs_fails_nobody(
    written: Transactions, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A very large transaction, which has to be read again, is placed in a paused partition."""
    real, is_away = HomeStarts.writes, [True]

    def writes(self: HomeStarts, home: Any, begin: int, decided: int) -> Any:
        if is_away[0]:
            raise BrokerError("it is away")
        return real(self, home, begin, decided)

    monkeypatch.setattr(HomeStarts, "writes", writes)
    home = Places(written, "t", partitions=PARTITIONS)
    written.transaction("t", [b"marked"], 1)
    home.switch(Phase.METADATA)
    home.transaction([b"a"], 0)
    large_transaction(home, b"b", 1)
    home.transaction([b"c"], 0)
    consumer = make_consumer()
    consumer.assign(partitions_of(home))
    consumer.pause([TopicPartition("t", 1)])
    assert read(consumer, 2) == [b"a", b"c"]
    is_away[0] = False
    consumer.resume([TopicPartition("t", 1)])
    assert read(consumer, 2) == [b"marked", b"b"]


def large_transaction(home: Places, value: bytes, number: int) -> TxId:
    """Writes, decides and places one of which the decision does not say all."""
    written = home.written
    txid = written.begin()
    written.write(txid, home.topic, [value], number)
    partition = DataPartition(home.topic, number, home.topic_id)
    said = PartitionWrites(partition, written.ranges(txid, home.topic, number))
    written.journal(AddWrites(begin=txid.offset, part=0, writes=(said,)))
    written.sequences[txid] = written.journal(
        PrepareCommit(
            begin=txid.offset,
            writes=(),
            decided_ms=1,
            added=(partition,),
            placed=(partition.key,),
        )
    )
    home.place(number)
    return txid


def test_what_an_interruption_left_half_read_is_read_again(
    written: Transactions,
    placed: Places,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An OWNER record that was taken in twice would be a surprise, which voids all behind it."""
    placed.transaction([b"before"])
    assert written.epoch is not None
    owner = Owner(replaces=written.epoch, address="nowhere:1", process_nonce=2)
    written.epoch = written.journal(owner)
    placed.transaction([b"behind"])
    accept, asked = EpochFilter.accept, 0

    def interrupted(self: EpochFilter, offset: int, entry: Entry) -> bool:
        nonlocal asked
        counts = accept(self, offset, entry)
        asked += offset == written.epoch
        if offset == written.epoch and asked == 1:
            raise KeyboardInterrupt
        return counts

    monkeypatch.setattr(home_journal.EpochFilter, "accept", interrupted)
    consumer = make_consumer()
    consumer.assign(partitions_of(placed))
    with pytest.raises(KeyboardInterrupt):
        read(consumer, 2)
    assert read(consumer, 2) == [b"before", b"behind"]
    assert asked == 2
