"""Leases that border on each other: their reader goes on with what it has read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from logtx.consumer import topic_ids
from logtx.consumer.leased import BACKLOG_OFFSETS, LeaseReader
from logtx.consumer.range_reader.reading import RangeReader, ReadConfig
from logtx.coordinator.protocol.queues import Lease
from logtx.journal.control import BranchRange
from logtx.journal.errors import BrokerError, IntegrityError, TopicRecreatedError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.places import PartitionId
from logtx.journal.spans import MessageId, Span

from .logs import Transactions


@pytest.fixture
def log(memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    """Has a topic that was never switched."""
    monkeypatch.setattr(LeaseReader, "_hears_of_switch", lambda *_: False)
    memory_log.create_topic("t", partitions=2)
    return memory_log


@pytest.fixture
def reader(log: MemoryLog) -> Iterator[LeaseReader]:
    config = ReadConfig(kafka={}, fail_on_data_loss=False, subscription="q")
    with closing(LeaseReader(log, {}, config, timeout_s=5.0)) as made:
        yield made


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[RangeReader]:
    """The readers of ranges that were made."""
    made: list[RangeReader] = []
    init = RangeReader.__init__

    def count(self: RangeReader, *args: object, **more: object) -> None:
        made.append(self)
        init(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(RangeReader, "__init__", count)
    return made


def lease(log: MemoryLog, lo: int, hi: int, partition: int = 0) -> Lease:
    where = PartitionId("t", partition, log.topic_ids(["t"])["t"])
    span = Span(MessageId(lo), MessageId(hi))
    return Lease(number=1, partition=where, span=span, delivery_count=1, left_ms=9_000)


def leased(reader: LeaseReader, of: Lease) -> list[bytes | None]:
    return [message.value() for message, _ in reader.messages(of)]


def test_a_transaction_of_several_leases_comes_with_its_marker(
    log: MemoryLog, reader: LeaseReader, readers: list[RangeReader]
) -> None:
    written = Transactions(log)
    one, other, aborted = (written.begin() for _ in range(3))
    for number in range(3):
        for txid, letter in ((one, b"a"), (other, b"b"), (aborted, b"c")):
            written.write(txid, "t", [b"%s%d" % (letter, number)])
    written.mark(other, "t")
    written.mark(aborted, "t", commit=False)
    written.mark(one, "t")
    written.append("t", [b"p"])
    assert leased(reader, lease(log, 0, 4)) == []
    assert leased(reader, lease(log, 4, 5)) == []
    assert leased(reader, lease(log, 5, 11)) == [b"b0", b"b1", b"b2"]
    assert leased(reader, lease(log, 11, 13)) == [b"a0", b"a1", b"a2", b"p"]
    assert len(readers) == 1
    assert leased(reader, lease(log, 11, 13)) == [b"a0", b"a1", b"a2", b"p"], "given back"
    assert len(readers) == 2


@pytest.mark.parametrize(
    ("lo", "partition"), [(2, 0), (4, 0), (3, 1)], ids=["before", "behind", "elsewhere"]
)
def test_a_lease_that_does_not_border_has_a_reader_of_its_own(
    log: MemoryLog, reader: LeaseReader, readers: list[RangeReader], lo: int, partition: int
) -> None:
    written = Transactions(log)
    for number in range(2):
        txid = written.begin()
        written.write(txid, "t", [b"%d.%d" % (number, nth) for nth in range(4)], number)
        written.mark(txid, "t", number)
    assert leased(reader, lease(log, 0, 3)) == []
    of = lease(log, lo, 5, partition)
    assert leased(reader, of) == [b"%d.%d" % (partition, nth) for nth in range(4)]
    assert len(readers) == 2


def test_a_lease_that_is_not_read_to_its_end_is_left(
    log: MemoryLog, reader: LeaseReader, readers: list[RangeReader]
) -> None:
    Transactions(log).append("t", [b"%d" % number for number in range(3_000)])
    messages = reader.messages(lease(log, 0, 2_000))
    assert next(messages)[0].offset() == 0
    messages.close()
    assert len(leased(reader, lease(log, 2_000, 3_000))) == 1_000
    assert len(readers) == 2


def test_who_failed_begins_again(
    log: MemoryLog, reader: LeaseReader, readers: list[RangeReader]
) -> None:
    written = Transactions(log)
    txid = written.begin()
    written.write(txid, "t", [b"a"])
    written.append("t", [b"p", b"q"])
    written.mark(txid, "t", topic_id=log.topic_ids(["t"])["t"], ranges=(BranchRange(0, 0, 1, 2),))
    assert leased(reader, lease(log, 0, 3)) == [b"p", b"q"]
    for _ in range(2):
        with pytest.raises(IntegrityError):
            leased(reader, lease(log, 3, 4))
    assert len(readers) == 2


def created_anew(log: MemoryLog, reader: LeaseReader) -> Lease:
    """Reads a lease, and has the topic created anew. Returns a lease of the new one, with a marker
    of the former."""
    written, former = Transactions(log), log.topic_ids(["t"])["t"]
    txid = written.begin()
    written.write(txid, "t", [b"former"])
    assert leased(reader, lease(log, 0, 1)) == []
    log.delete_topic("t")
    log.create_topic("t", partitions=2)
    written.append("t", [b"p", b"q"])
    written.mark(txid, "t", topic_id=former)
    return lease(log, 1, 3)


def test_trap_290_what_was_read_of_a_topic_is_not_given_out_as_of_its_successor(
    log: MemoryLog, reader: LeaseReader
) -> None:
    assert leased(reader, created_anew(log, reader)) == [b"q"]


def test_trap_290_without_the_rule_it_is(log: MemoryLog, reader: LeaseReader) -> None:
    of = created_anew(log, reader)
    reader._read_id = of.partition.topic_id
    assert leased(reader, of) == [b"q", b"former"]


# ---- the topic's id, in a backlog ---------------------------------------------------------------


@pytest.fixture
def backlog(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> Lease:
    """A lease for which the id is asked in a thread."""
    monkeypatch.setattr(topic_ids, "CONFIRM_S", 0.1)
    Transactions(log).append("t", [b"p"] * BACKLOG_OFFSETS)
    return lease(log, 0, BACKLOG_OFFSETS)


def test_trap_120_in_a_backlog_the_id_is_asked_for_behind_each_fetch_too(
    log: MemoryLog, reader: LeaseReader, backlog: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(leased(reader, backlog)) == BACKLOG_OFFSETS
    monkeypatch.setattr(log, "topic_ids", lambda *_, **__: {"t": "another"})
    with pytest.raises(TopicRecreatedError):
        leased(reader, backlog)
    monkeypatch.undo()
    assert len(leased(reader, backlog)) == BACKLOG_OFFSETS


def test_a_question_for_the_id_that_fails_is_asked_again(
    log: MemoryLog, reader: LeaseReader, backlog: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks, asked = log.topic_ids, 0

    def fails_once(*args: Any, **more: Any) -> dict[str, str]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise BrokerError("no answer")
        return asks(*args, **more)

    monkeypatch.setattr(log, "topic_ids", fails_once)
    assert len(leased(reader, backlog)) == BACKLOG_OFFSETS
    assert asked >= 2
