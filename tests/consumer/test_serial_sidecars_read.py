"""Serial order with sidecars, read from a log: what waits for what, and for how much."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from logtx.consumer import serial_reader, sidecar_read
from logtx.consumer.consumer import Consumer
from logtx.consumer.core.serial_buffer import SerialBuffer
from logtx.consumer.serial_reader import CommittedTransaction
from logtx.journal.errors import UnknownRecordError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.sidecar import sidecar_of

from .conftest import MakeConsumer
from .logs import Transactions

pytestmark = pytest.mark.usefixtures("quick_looks")
SIDE = sidecar_of("t")
PARTITIONS = 3


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """A topic with a sidecar."""
    for topic in ("t", SIDE):
        memory_log.create_topic(topic, partitions=PARTITIONS)
    return memory_log


def assigned(consumer: Consumer, *partitions: int) -> Consumer:
    consumer.assign([TopicPartition("t", p) for p in partitions or range(PARTITIONS)])
    return consumer


def values(found: CommittedTransaction) -> list[bytes | None]:
    return [record.value() for record in found.records]


def test_damage_in_the_journal_waits_for_what_waits_for_its_sidecar(
    log: MemoryLog, written: Transactions, make_consumer: MakeConsumer
) -> None:
    aside = written.begin()
    written.write(aside, SIDE, [b"a"], 0)
    written.mark(aside, "t", 0)
    written.append(JOURNAL_TOPIC, [b"\x7fnot a record of this version"])
    consumer = assigned(make_consumer(), 0)
    told = log.each_end_offset
    log.each_end_offset = lambda keys, **more: {  # type: ignore[method-assign]
        key: 0 if key[0] == SIDE else end for key, end in told(keys, **more).items()
    }  # A former leader tells an end of the past.
    assert list(consumer.transactions(0.6)) == []
    log.each_end_offset = told  # type: ignore[method-assign]
    found = consumer.transactions(5)
    assert values(next(found)) == [b"a"]
    with pytest.raises(UnknownRecordError):
        next(found)


def test_many_partitions_are_not_looked_at_each_time(
    written: Transactions, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(PARTITIONS):
        aside = written.begin()
        written.write(aside, SIDE, [b"%d" % number], number)
        written.mark(aside, "t", number)
        written.finish(aside)
    consumer = assigned(make_consumer(isolation_level="serializable"))
    for _ in range(PARTITIONS):
        assert consumer.poll(10) is not None
    looked = []
    blocked = SerialBuffer.blocked.fget
    assert blocked is not None

    def counted(buffer: SerialBuffer) -> Any:
        looked.append(buffer.partition)
        return blocked(buffer)

    monkeypatch.setattr(SerialBuffer, "blocked", property(counted))
    assert consumer.poll(0.2) is None
    assert looked == []


def long_one(written: Transactions, count: int, *, main: int = 0) -> list[bytes]:
    """Writes and commits a long transaction in partition 0. Returns its values."""
    wanted = [b"%06d" % n for n in range(main + count)]
    txid = written.begin()
    if main:
        written.write(txid, "t", wanted[:main], 0)
    written.write(txid, SIDE, wanted[main:], 0)
    written.mark(txid, "t", 0)
    written.finish(txid)
    return wanted


def test_the_group_is_polled_while_a_long_transaction_is_read(
    written: Transactions, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serial_reader, "FETCH_EVERY_S", 0.01)
    monkeypatch.setattr(sidecar_read, "SLICE_RECORDS", 20)
    monkeypatch.setattr(sidecar_read, "AHEAD_MAX_RECORDS", 20)
    wanted = long_one(written, 400)
    consumer = assigned(make_consumer(), 0)
    found = next(consumer.transactions(5))
    polled, got = set(), []
    for number, record in enumerate(found.records):
        got.append(record.value())
        polled.add(consumer._reading.fetched_s)
        if number % 40 == 0:
            time.sleep(0.011)
    assert got == wanted
    assert len(polled) >= 5


def test_a_partition_that_is_given_away_is_read_to_the_transactions_end(
    written: Transactions, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its positions are committed behind the transaction then: nobody else delivers the rest."""
    monkeypatch.setattr(serial_reader, "FETCH_EVERY_S", 0.0)
    monkeypatch.setattr(sidecar_read, "SLICE_RECORDS", 20)
    monkeypatch.setattr(sidecar_read, "AHEAD_MAX_RECORDS", 20)
    wanted = long_one(written, 3_000)
    consumer, other = make_consumer(group_id="g"), make_consumer(group_id="g")
    revoked: list[int] = []
    consumer.subscribe(["t"], on_revoke=lambda _, gone: revoked.extend(p.partition for p in gone))
    found: Iterator[CommittedTransaction] = consumer.transactions(20)
    given = next(found)
    got = [next(given.records).value() for _ in range(5)]
    other.subscribe(["t"])
    for record in given.records:
        got.append(record.value())
        other.poll(0)
        if len(got) % 100 == 0:
            time.sleep(0.01)
    assert got == wanted
    assert 0 in revoked
    until = time.monotonic() + 5
    while not other.assignment() and time.monotonic() < until:
        other.poll(0.05)
        consumer.commit()
    assert other.poll(0.5) is None


def test_a_spilled_part_in_the_topic_is_read_in_pieces(
    written: Transactions, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = long_one(written, 10, main=20_000)
    consumer = assigned(make_consumer(pending_memory_max_bytes=100_000), 0)
    found = next(consumer.transactions(10))
    pieces = []
    stream = SerialBuffer.stream

    def watched(buffer: SerialBuffer, entry: Any) -> Any:
        piece = stream(buffer, entry)
        pieces.append(len(piece))
        return piece

    monkeypatch.setattr(SerialBuffer, "stream", watched)
    assert values(found) == wanted
    assert max(pieces) <= 2_000
