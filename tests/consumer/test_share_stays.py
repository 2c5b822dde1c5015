"""How often a queue's consumer assigns partitions while it works off backlogs, end to end."""

from __future__ import annotations

from typing import Any, cast

import pytest
from confluent_kafka import TopicPartition as KafkaPartition

from logtx.consumer import leased
from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.settling import SideRead
from logtx.consumer.range_reader.staying import Assigned, Staying
from logtx.consumer.side_read import SideReader
from logtx.coordinator.core import dispatch
from logtx.coordinator.protocol.queues import AcknowledgeType
from logtx.journal.logs.memory.log import MemoryLog
from logtx.producer.producer import Producer

from .test_share_consumer import Queues, coordinator, fill, producer, queues, take, values

__all__ = ["coordinator", "producer", "queues"]
ONE_BY_ONE = {"max.poll.records": 1, "max.prefetch.records": 0}
LONG_MS = 60_000
Places = list[tuple[int, int]]


@pytest.fixture
def assigned(monkeypatch: pytest.MonkeyPatch) -> Places:
    """(partition, offset) of each assignment of a reader of leases, in order.

    Consumers stay for as long as the test takes, however busy the machine is.
    """
    monkeypatch.setattr(dispatch, "STAY_MS", LONG_MS)
    found: Places = []

    class Counting:
        """The consumer of a reader of leases."""

        def __init__(self, consumer: Assigned) -> None:
            self._consumer = consumer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._consumer, name)

        def assign(self, partitions: list[KafkaPartition]) -> None:
            found.extend((p.partition, p.offset) for p in partitions)
            self._consumer.assign(partitions)

    monkeypatch.setattr(
        leased, "Staying", lambda make: Staying(lambda: cast(Assigned, Counting(make())))
    )
    return found


def test_a_backlog_is_worked_off_by_one_assignment_of_each_partition(
    queues: Queues, producer: Producer, assigned: Places
) -> None:
    for partition in (0, 1):
        fill(producer, 5, partition=partition, first=10 * partition)
    found = values(take(queues(**ONE_BY_ONE), 10))
    assert sorted(assigned) == [(0, 0), (1, 0)]
    # In a partition's last message its lease reaches the end, and the turn decides.
    assert sorted(found) == sorted(b"%d" % n for n in (*range(5), *range(10, 15)))


def test_without_the_stay_each_lease_is_assigned(
    queues: Queues, producer: Producer, assigned: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "STAY_MS", 0)
    for partition in (0, 1):
        fill(producer, 5, partition=partition, first=10 * partition)
    take(queues(**ONE_BY_ONE), 10)
    assert len(assigned) == 10


def test_what_comes_one_by_one_needs_no_assignment(
    queues: Queues, producer: Producer, assigned: Places
) -> None:
    queue = queues(**ONE_BY_ONE)
    for number in range(4):
        fill(producer, 1, first=number)
        assert values(take(queue, 1)) == [b"%d" % number]
    assert assigned == [(0, 0)], "it stands where the next one comes"


def test_transactions_and_their_markers_need_no_assignment(
    queues: Queues, producer: Producer, assigned: Places
) -> None:
    expected = []
    for number in range(6):
        with producer.begin_transaction() as txn:
            txn.produce("orders", b"%d" % number, partition=0)
        expected.append(b"%d" % number)
    assert values(take(queues(**ONE_BY_ONE), 6)) == expected
    assert assigned == [(0, 0)]


@pytest.fixture
def side_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Offsets of the markers whose records were read on the side, in order."""
    found: list[int] = []
    begin = SideReader._begin

    def count(self: SideReader, buffer: PartitionBuffer, requests: list[SideRead]) -> None:
        found.extend(request.marker_offset for request in requests)
        begin(self, buffer, requests)

    monkeypatch.setattr(SideReader, "_begin", count)
    return found


def interleaved(producer: Producer, count: int) -> list[bytes]:
    """Commits transactions, each with a record before the one that ends first; returns their
    records as they are due."""
    transactions = [producer.begin_transaction() for _ in range(count)]
    for nth in (0, 1):
        for number, txn in enumerate(transactions):
            txn.produce("orders", b"%d.%d" % (number, nth), partition=0)
        producer.flush()
    for txn in transactions:
        txn.commit(finished=True)
    return [b"%d.%d" % (number, nth) for number in range(count) for nth in (0, 1)]


def test_what_was_read_of_a_transaction_is_kept_for_the_lease_that_it_ends_in(
    queues: Queues, producer: Producer, assigned: Places, side_reads: list[int]
) -> None:
    expected = interleaved(producer, 3)
    queue = queues(**ONE_BY_ONE)
    assert values(take(queue, 6)) == expected
    assert (assigned, side_reads) == ([(0, 0)], [])


def test_who_begins_behind_its_records_reads_them_on_the_side(
    queues: Queues, producer: Producer, side_reads: list[int]
) -> None:
    expected = interleaved(producer, 3)
    one, other = queues(**ONE_BY_ONE), queues(**ONE_BY_ONE)
    first = take(one, 2)
    assert values(first) == expected[:2]
    assert values(take(other, 2)) == expected[2:4]
    assert side_reads == [7], "its lease has the marker alone"
    for message in first:
        one.acknowledge(message, AcknowledgeType.RELEASE)
    assert values(take(one, 2)) == expected[:2]
    assert side_reads == [7, 6], "it stood behind that"
    assert values(take(one, 2)) == expected[4:]
    assert side_reads == [7, 6, 8]


def test_what_was_given_back_and_what_others_hold_is_assigned(
    queues: Queues, producer: Producer, assigned: Places
) -> None:
    fill(producer, 4)
    one, other = queues(**ONE_BY_ONE), queues(**ONE_BY_ONE)
    (first,) = take(one, 1)
    assert values(take(other, 1)) == [b"1"]
    one.acknowledge(first, AcknowledgeType.RELEASE)
    assert values(take(one, 3)) == [b"0", b"2", b"3"]
    assert assigned == [(0, 0), (0, 1), (0, 0), (0, 2)]


def test_what_retention_takes_where_it_stands_is_passed_over(
    queues: Queues, producer: Producer, memory_log: MemoryLog, assigned: Places
) -> None:
    fill(producer, 6)
    queue = queues(**ONE_BY_ONE)
    assert values(take(queue, 2)) == [b"0", b"1"]
    memory_log.delete_records("orders", 0, 4)
    assert values(take(queue, 2)) == [b"4", b"5"]
    assert assigned[0] == (0, 0)
