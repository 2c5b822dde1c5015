"""Side reads: an error interrupts them (finding 20 of the clients), or records are missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from logtx.consumer import side_read
from logtx.consumer.consumer import Consumer
from logtx.consumer.side_read import SideReader
from logtx.journal.control import BranchRange
from logtx.journal.errors import BrokerError, IntegrityError
from logtx.journal.logs.interface import TopicInfo
from logtx.journal.logs.memory.log import MemoryLog

from .logs import Transactions, nothing_more, read


@pytest.fixture
def written(memory_log: MemoryLog) -> Transactions:
    """A transaction of ten records and its marker, and plain records behind it."""
    memory_log.create_topic("t", partitions=1)
    transactions = Transactions(memory_log)
    transactions.transaction("t", [b"t%d" % number for number in range(10)])
    transactions.append("t", [b"after0", b"after1"])
    return transactions


def start_within(log: MemoryLog, **settings: Any) -> Consumer:
    """Returns a consumer that begins within the transaction, and so reads its begin on the side."""
    consumer = Consumer({"group.id": "g", **settings}, log=log)
    consumer.assign([TopicPartition("t", 0, 8)])
    return consumer


@pytest.mark.usefixtures("written")
def test_finding_20_retention_while_the_log_does_not_answer(
    memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assign, start_offset = SideReader._assign, MemoryLog.start_offset
    trimmed: list[int] = []

    def trim_once(self: SideReader, current: Any) -> None:
        if not trimmed:
            memory_log.delete_records("t", 0, 4)
            trimmed.append(2)
        assign(self, current)

    def fail_twice(*args: Any, **named: Any) -> int:
        if trimmed and trimmed[0]:
            trimmed[0] -= 1
            raise BrokerError("no answer")
        return start_offset(*args, **named)

    monkeypatch.setattr(SideReader, "_assign", trim_once)
    monkeypatch.setattr(MemoryLog, "start_offset", fail_twice)
    with start_within(memory_log, **{"torn.reset": "skip"}) as consumer:
        assert read(consumer, 2) == [b"after0", b"after1"]
        assert trimmed == [0]
        assert consumer.counters.torn_transactions == 1


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize("kind", [BrokerError, KafkaException])
def test_finding_20_an_error_while_records_are_sorted_out_loses_none(
    kind: type[KafkaException], memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = SideReader._record
    failures = [kind(KafkaError(KafkaError._TRANSPORT)) if kind is KafkaException else kind("no")]

    def fail_once(self: SideReader, current: Any, message: Any) -> None:
        if failures and message.offset() == 5:
            raise failures.pop()
        record(self, current, message)

    monkeypatch.setattr(SideReader, "_record", fail_once)
    with start_within(memory_log) as consumer:
        values = [b"t%d" % number for number in range(10)]
        assert read(consumer, 12) == [*values, b"after0", b"after1"]
        assert nothing_more(consumer)
        assert consumer._reading.pending_map.memory_bytes == 0


def made_anew(log: MemoryLog) -> Transactions:
    """Returns the writer of a topic that is going to get a marker of its predecessor."""
    log.create_topic("t", partitions=1)
    transactions = Transactions(log)
    transactions.append("t", [b"a", b"b", b"c"])
    return transactions


def mark(written: Transactions, topic_id: str) -> None:
    """Writes a marker that claims a record where another one stands, and a plain record."""
    written.mark(written.begin(), "t", ranges=(BranchRange(0, 1, 1, 1),), topic_id=topic_id)
    written.append("t", [b"d"])


def test_trap_12_the_records_of_a_deleted_topic_are_not_missed(memory_log: MemoryLog) -> None:
    mark(made_anew(memory_log), "id of its predecessor")
    with Consumer({"group.id": "g"}, log=memory_log) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        assert read(consumer, 4) == [b"a", b"b", b"c", b"d"]
        assert consumer.counters.foreign_markers == 1


@pytest.mark.parametrize("named", [True, False], ids=["its own id", "no id"])
def test_records_that_this_topic_lost_are_missed(memory_log: MemoryLog, *, named: bool) -> None:
    written = made_anew(memory_log)
    mark(written, memory_log.topic_info("t").topic_id if named else "")
    with Consumer({"group.id": "g"}, log=memory_log) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        assert read(consumer, 3) == [b"a", b"b", b"c"]
        with pytest.raises(IntegrityError):
            read(consumer, 1)


def test_records_that_are_there_are_delivered_whatever_their_marker_names(
    memory_log: MemoryLog,
) -> None:
    written = made_anew(memory_log)
    txid = written.begin()
    written.write(txid, "t", [b"x"])
    written.mark(txid, "t", topic_id="what its coordinator knew last")
    with Consumer({"group.id": "g"}, log=memory_log) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        assert read(consumer, 4) == [b"a", b"b", b"c", b"x"]


@pytest.mark.parametrize("behind", [2, 10**9], ids=["for a moment", "for good"])
def test_a_broker_that_does_not_know_the_new_topic_yet(
    memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    mark(made_anew(memory_log), "id of its predecessor")
    info, asked = MemoryLog.topic_info, 0

    def old_answers(self: MemoryLog, topic: str, *, timeout_s: float = 10) -> TopicInfo:
        nonlocal asked
        asked += 1
        told = info(self, topic, timeout_s=timeout_s)
        topic_id = "id of its predecessor" if asked <= behind else told.topic_id
        return replace(told, topic_id=topic_id, certain=False)

    monkeypatch.setattr(MemoryLog, "topic_info", old_answers)
    monkeypatch.setattr(side_read, "TOPIC_CONFIRM_S", 1.0)
    with Consumer({"group.id": "g"}, log=memory_log) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        assert read(consumer, 3) == [b"a", b"b", b"c"]
        if behind == 2:
            assert read(consumer, 1) == [b"d"]
            assert asked == 3
        else:
            with pytest.raises(IntegrityError):
                read(consumer, 1)
