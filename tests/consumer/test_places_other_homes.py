"""A reader in serial order whose topic has its home in another journal: what it can't know."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from logtx.consumer.core.counters import ConsumerCounters
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.core.serial_order import SerialBuffer, SerialOrder
from logtx.consumer.journal_tail import JournalTail
from logtx.journal.errors import HandedOverError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Position
from logtx.journal.records.types import DataPartition, PartitionWrites, PrepareCommit

from .logs import Transactions
from .places import HOME, Places, snapshot
from .records import malformed

KEY = ("t", 0)
SETTINGS = {"group.id": "serial"}


def buffers_of(position: Position) -> Any:
    made = SerialBuffer(
        KEY, position, PendingTransactionMap(2**20), journal_partition=0, malformed=malformed
    )
    return MappingProxyType({KEY: made})


def tail_of(log: MemoryLog, homes: dict[str, int]) -> JournalTail:
    order = SerialOrder(ConsumerCounters())
    return JournalTail(
        log, 0, SETTINGS, order, lambda topics: {t: homes[t] for t in topics if t in homes}
    )


@pytest.fixture
def written(memory_log: MemoryLog) -> Transactions:
    memory_log.create_topic("t", partitions=1)
    transactions = Transactions(memory_log)
    transactions.with_journal()
    return transactions


def handed_over(written: Transactions) -> int:
    """Decides a transaction whose records another home places. Returns its sequence."""
    txid = written.begin()
    written.write(txid, "t", [b"x"])
    writes = (PartitionWrites(DataPartition("t", 0), written.ranges(txid, "t", 0)),)
    return written.journal(
        PrepareCommit(begin=txid.offset, writes=writes, decided_ms=1, handed=((KEY, 1),))
    )


def poll_on(tail: JournalTail) -> None:
    for _ in range(100):
        tail.poll()


def test_it_stops_before_a_transaction_that_is_handed_over(
    written: Transactions, memory_log: MemoryLog
) -> None:
    sequence = handed_over(written)
    buffers, tail = buffers_of(Position.at(0)), tail_of(memory_log, {})
    tail.begin({KEY: buffers[KEY].delivered}, buffers)
    for _ in range(2):
        with pytest.raises(HandedOverError, match=f"at offset {sequence}: .*read_committed"):
            poll_on(tail)
    tail.close()


def test_one_that_has_delivered_it_by_another_home_goes_on(
    written: Transactions, memory_log: MemoryLog
) -> None:
    sequence = handed_over(written)
    buffers, tail = buffers_of(Position.at(0)), tail_of(memory_log, {})
    buffers[KEY].skip_to(HOME, sequence)
    tail.begin({}, buffers)
    poll_on(tail)
    tail.close()


@pytest.mark.parametrize(("home", "stops"), [(1, True), (0, False)])
def test_one_that_begins_at_a_floor_can_not_know_what_another_home_placed(
    written: Transactions, memory_log: MemoryLog, home: int, stops: bool
) -> None:
    written.transaction("t", [b"x"])
    first = snapshot(Places(written, "t"))
    memory_log.delete_records("__transaction_control", 0, first)
    buffers, tail = buffers_of(Position.at(0)), tail_of(memory_log, {"t": home})
    tail.begin({KEY: buffers[KEY].delivered}, buffers)
    if stops:
        with pytest.raises(
            HandedOverError, match=r"was trimmed, and the home of topic t is .*\[1\]"
        ):
            poll_on(tail)
    else:
        poll_on(tail)
    tail.close()
