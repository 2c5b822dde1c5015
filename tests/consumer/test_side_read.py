"""A side read that an error interrupts begins again.

Finding 20 of the clients.
"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.consumer.side_read import SideReader
from logtx.journal.errors import BrokerError
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
