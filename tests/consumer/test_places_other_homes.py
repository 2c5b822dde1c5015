"""Readers in serial order of topics that have their home in another journal."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from logtx.consumer.core.counters import ConsumerCounters
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.core.serial_buffer import SerialBuffer
from logtx.consumer.core.serial_order import SerialOrder
from logtx.consumer.journal_tail import JournalTail
from logtx.journal.control import BranchRange, TopicPartition
from logtx.journal.errors import HandedOverError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.places import PartitionId
from logtx.journal.position import Passed, Position
from logtx.journal.reader import read_records
from logtx.journal.records.types import (
    DataPartition,
    PartitionWrites,
    PrepareCommit,
    SnapshotHanded,
    SnapshotTransaction,
)
from logtx.journal.state import State
from logtx.journal.txid import TxId

from .logs import Transactions
from .places import HOME, Places, snapshot
from .records import malformed

KEY = ("t", 0)
SETTINGS = {"group.id": "serial"}


def buffer_of(key: TopicPartition, position: Position) -> SerialBuffer:
    pending = PendingTransactionMap(2**20)
    return SerialBuffer(key, position, pending, journal_partition=0, malformed=malformed)


def buffers_of(position: Position) -> Any:
    return MappingProxyType({KEY: buffer_of(KEY, position)})


def homes_of(_topics: object) -> dict[str, tuple[int, str]]:
    """The home of the topic is another journal partition."""
    return {"t": (1, "id")}


@pytest.fixture
def written(memory_log: MemoryLog) -> Transactions:
    memory_log.create_topic("t", partitions=1)
    transactions = Transactions(memory_log)
    transactions.with_journal()
    return transactions


def handed_over(written: Transactions, *values: bytes) -> tuple[TxId, int]:
    """Decides a transaction whose records another home places. Returns its sequence, too."""
    txid = written.begin()
    written.write(txid, "t", values)
    return txid, decide_handed(written, txid)


def decide_handed(written: Transactions, txid: TxId) -> int:
    writes = (PartitionWrites(DataPartition("t", 0), written.ranges(txid, "t", 0)),)
    return written.journal(
        PrepareCommit(begin=txid.offset, writes=writes, decided_ms=1, handed=((KEY, 1),))
    )


def trimmed(written: Transactions, **said: Any) -> None:
    """Takes a snapshot, and trims the journal to it."""
    first = snapshot(Places(written, "t"), **said)
    written.log.delete_records("__transaction_control", 0, first)


def poll_on(tail: JournalTail) -> None:
    for _ in range(100):
        tail.poll()


class Reader:
    """Reads everything that is there, and delivers what is due."""

    def __init__(self, log: MemoryLog, positions: dict[Any, Position]) -> None:
        self.log = log
        self.buffers = MappingProxyType({k: buffer_of(k, p) for k, p in positions.items()})
        self.order = SerialOrder(ConsumerCounters())
        self.tail = JournalTail(log, 0, SETTINGS, self.order, homes_of)
        self.tail.begin({k: b.delivered for k, b in self.buffers.items()}, self.buffers)

    def read(self, most: int = 1_000) -> list[bytes]:
        """Returns the next values, in serial order; stops in the middle of a transaction."""
        poll_on(self.tail)
        found: list[bytes] = []
        for key, buffer in self.buffers.items():
            topic, partition = key
            start, end = buffer.next_offset, self.log.end_offset(topic, partition)
            buffer.feed(list(read_records(self.log, topic, partition, start, end, timeout_s=10)))
        while len(found) < most and (whole := self.order.take(self.buffers)) is not None:
            for key in sorted(whole.entries):
                buffer = self.buffers[key]
                buffer.let_through(whole.entries[key].txid)
                while len(found) < most and (taken := buffer.take(1, more=True)):
                    found += [bytes(record.value()) for record in taken]
        return found

    def positions(self) -> dict[Any, Position]:
        """Returns what it would commit, and ends."""
        self.tail.close()
        found = {key: buffer.position() for key, buffer in self.buffers.items()}
        return {k: Position.from_metadata(p.o1, p.to_metadata()) for k, p in found.items()}


def reader_of(log: MemoryLog, offset: int = 0) -> Reader:
    return Reader(log, {KEY: Position.at(offset)})


def test_what_is_handed_over_comes_in_serial_order(
    written: Transactions, memory_log: MemoryLog
) -> None:
    first = written.transaction("t", [b"a"])
    handed_over(written, b"b", b"c")
    handed_over(written, b"d")
    written.transaction("t", [b"e"])
    reader = reader_of(memory_log)
    assert reader.read() == [b"a", b"b", b"c", b"d", b"e"]
    assert reader.positions()[KEY].met[first.journal] >= written.sequences[first]


def test_the_marker_of_a_lower_sequence_may_lie_behind_its_records(
    written: Transactions, memory_log: MemoryLog
) -> None:
    # The home places behind that marker, and this reader does not know it.
    marked = written.begin()
    written.write(marked, "t", [b"a"])
    written.decide(marked)
    handed_over(written, b"b")
    reader = reader_of(memory_log)
    assert reader.read() == []
    written.mark(marked, "t")
    assert reader.read() == [b"a", b"b"]


def test_one_that_its_home_refuses_is_delivered_once(
    written: Transactions, memory_log: MemoryLog
) -> None:
    txid, sequence = handed_over(written, b"a")
    early, late = reader_of(memory_log), reader_of(memory_log)
    assert early.read() == [b"a"]
    written.sequences[txid] = sequence
    written.mark(txid, "t")
    written.finish(txid)
    written.transaction("t", [b"b"])
    assert early.read() == [b"b"]
    assert late.read() == [b"a", b"b"]


@pytest.mark.parametrize("taken", [1, 2, 3, 4, 5])
def test_a_reader_that_is_replaced_anywhere_goes_on_there(
    written: Transactions, memory_log: MemoryLog, taken: int
) -> None:
    # Two overlap: the second one's last record lies before that of the first.
    first, second = written.begin(), written.begin()
    written.write(first, "t", [b"a", b"b"])
    written.write(second, "t", [b"d"])
    written.write(first, "t", [b"c"])
    decide_handed(written, first)
    decide_handed(written, second)
    handed_over(written, b"e", b"f")
    reader = reader_of(memory_log)
    before = reader.read(taken)
    after = Reader(memory_log, reader.positions()).read()
    assert before + after == [b"a", b"b", b"c", b"d", b"e", b"f"]


@pytest.mark.parametrize("taken", [1, 2, 3, 4])
def test_a_marker_behind_the_last_record_is_not_taken_for_half_delivered(
    written: Transactions, memory_log: MemoryLog, taken: int
) -> None:
    other = written.begin()
    written.write(other, "t", [b"c", b"d"])
    handed_over(written, b"a", b"b")
    written.mark(other, "t")
    reader = reader_of(memory_log)
    before = reader.read(taken)
    after = Reader(memory_log, reader.positions()).read()
    assert before + after == [b"a", b"b", b"c", b"d"]


def test_one_whose_records_lie_below_the_start_does_not_come(
    written: Transactions, memory_log: MemoryLog
) -> None:
    handed_over(written, b"a")
    start = memory_log.end_offset(*KEY)
    handed_over(written, b"b")
    assert reader_of(memory_log, start).read() == [b"b"]


def test_a_group_that_read_in_the_homes_order_is_stopped(
    written: Transactions, memory_log: MemoryLog
) -> None:
    _, sequence = handed_over(written, b"a")
    passed = Passed((1, HOME[1]), 7)
    reader = Reader(memory_log, {KEY: Position(o1=0, o2=0, passed=passed)})
    for _ in range(2):
        with pytest.raises(HandedOverError, match=f"at offset {sequence}: .*only the home knows"):
            reader.read()


def test_one_that_has_delivered_it_goes_on(written: Transactions, memory_log: MemoryLog) -> None:
    _, sequence = handed_over(written, b"a")
    passed = Passed((1, HOME[1]), 7)
    position = Position(o1=0, o2=0, passed=passed, delivered={HOME: sequence})
    assert Reader(memory_log, {KEY: position}).read() == []


def unfinished(written: Transactions, txid: TxId, sequence: int) -> dict[str, Any]:
    """What a snapshot says of one that is decided, handed over and not placed."""
    writes = (PartitionWrites(DataPartition("t", 0, "id"), written.ranges(txid, "t", 0)),)
    row = SnapshotTransaction(
        txid.offset, "p", 0, 1, 1, State.COMMITTING, sequence, None, writes=writes
    )
    handed = SnapshotHanded(txid.offset, ((KEY, 1),))
    return {"transactions": (row,), "handed": (handed,)}


HANDED = PartitionId("t", 0, "id")


def test_one_that_begins_at_a_floor_goes_on_where_all_that_was_handed_over_lies_below(
    written: Transactions, memory_log: MemoryLog
) -> None:
    handed_over(written, b"a")
    written.transaction("t", [b"b"])  # Its marker is at 2.
    written.transaction("t", [b"c"])
    memory_log.delete_records(*KEY, 1)
    trimmed(written, last_places=((HANDED, 1),))
    handed_over(written, b"d")
    assert reader_of(memory_log, 1).read() == [b"b", b"c", b"d"]


@pytest.mark.parametrize(("topic_id", "stops"), [("id", True), ("former", False)])
def test_one_that_begins_at_a_floor_stops_if_something_handed_over_may_be_due(
    written: Transactions, memory_log: MemoryLog, topic_id: str, stops: bool
) -> None:
    handed_over(written, b"a")
    trimmed(written, last_places=((HANDED._replace(topic_id=topic_id), 1),))
    assert reader_of(memory_log, 1).read() == []
    reader = reader_of(memory_log)
    if stops:
        with pytest.raises(
            HandedOverError, match=r"handed over transactions in t\[0\] below offset 1"
        ):
            reader.read()
    else:
        assert reader.read() == []


def test_trap_95_behind_what_is_handed_over_may_lie_a_marker_below_the_floor(
    written: Transactions, memory_log: MemoryLog
) -> None:
    marked = written.begin()
    written.write(marked, "t", [b"a"])
    written.decide(marked)
    txid = written.begin()
    written.write(txid, "t", [b"b"])
    written.mark(marked, "t")  # Behind the records of the later one.
    written.finish(marked)
    sequence = decide_handed(written, txid)
    trimmed(written, **unfinished(written, txid, sequence))
    reader = reader_of(memory_log)
    buffer = reader.buffers[KEY]
    buffer.feed(list(read_records(memory_log, *KEY, 0, 2, timeout_s=10)))
    poll_on(reader.tail)
    # Its records are all read, and the marker is not.
    assert reader.order.take(reader.buffers) is None
    assert reader.order.missing(reader.buffers) == [KEY]
    assert reader.read() == [b"a"]
    look(reader)
    assert reader.read() == [b"b"]


def test_at_a_floor_one_with_records_in_a_sidecar_is_due_in_the_main_partition(
    written: Transactions, memory_log: MemoryLog
) -> None:
    txid = written.begin()
    there = PartitionWrites(DataPartition("t._txnlog", 0, "id"), (BranchRange(0, 0, 0, 1),))
    row = SnapshotTransaction(
        txid.offset, "p", 0, 1, 1, State.COMMITTING, txid.offset, None, writes=(there,)
    )
    trimmed(written, transactions=(row,))
    reader = reader_of(memory_log)
    assert reader.read() == []
    look(reader)
    head = reader.order.head(reader.buffers)
    assert head is not None, "its pointer is waited for"
    assert head.txid == txid


def look(reader: Reader) -> None:
    """Looks at the partition's end twice, far enough apart."""
    for now_s in (0.0, 10.0):
        assert reader.order.wants_ends(reader.buffers, now_s) == [KEY]
        ends = {KEY: reader.log.end_offset(*KEY)}
        reader.order.set_ends(ends, reader.tail.next_offset, now_s, now_s)
