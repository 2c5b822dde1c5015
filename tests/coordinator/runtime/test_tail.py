"""Following journal partitions: in order, from an offset, each independently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from logtx.coordinator.runtime.tail import BATCH_MAX, Batch, Tail
from logtx.journal.errors import BrokerError, CorruptRecordError
from logtx.journal.logs.interface import LogConsumer
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.records.codec import encode_entry
from logtx.journal.records.types import Bind, Entry

from ..runtimes import loop_test

on_loop = loop_test(30)


class Reader:
    """Collects what a tail delivers, by token."""

    def __init__(self, log: MemoryLog) -> None:
        self.tail = Tail(log, self._take)
        self.offsets: dict[int, list[int]] = {}
        self.failures: dict[int, Exception] = {}
        self.largest = 0
        self._taken = asyncio.Event()

    def _take(self, batch: Batch) -> None:
        self.offsets.setdefault(batch.token, []).extend(o for o, _ in batch.entries)
        self.largest = max(self.largest, len(batch.entries))
        if batch.failure is not None:
            self.failures[batch.token] = batch.failure
        self._taken.set()

    def has_read(self, token: int, count: int) -> bool:
        """Returns whether `count` records were delivered; for 0, whether an empty batch was."""
        return token in self.offsets and len(self.offsets[token]) == count

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits until something holds; only the test's time-out bounds it."""
        while not holds():
            self._taken.clear()
            await self._taken.wait()


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """A journal of two partitions."""
    memory_log.create_topic(JOURNAL_TOPIC, partitions=2)
    return memory_log


def append(log: MemoryLog, partition: int, count: int = 1) -> None:
    """Appends `count` records."""
    for number in range(count):
        bind = Bind(group=f"g{number}", transaction_group="t")
        log.append_directly(JOURNAL_TOPIC, partition, encode_entry(Entry(0, 1, bind)))


@on_loop
async def test_it_delivers_in_order_from_an_offset_and_goes_on_at_the_end(
    log: MemoryLog,
) -> None:
    append(log, 0, 3 * BATCH_MAX)
    reader = Reader(log)
    token = reader.tail.follow(0, 5)
    await reader.until(lambda: reader.has_read(token, 3 * BATCH_MAX - 5))
    append(log, 0, 2)
    end = 3 * BATCH_MAX + 2
    await reader.until(lambda: reader.has_read(token, end - 5))
    assert reader.offsets[token] == list(range(5, end))
    assert reader.largest <= BATCH_MAX + 1
    await reader.tail.close()


@on_loop
async def test_partitions_come_and_go(log: MemoryLog) -> None:
    append(log, 0, 3)
    append(log, 1, 3)
    reader = Reader(log)
    one, two = reader.tail.follow(0, 0), reader.tail.follow(1, 3)
    await reader.until(lambda: reader.has_read(one, 3) and reader.has_read(two, 0))
    reader.tail.leave(0)
    again = reader.tail.follow(1, 1)
    await reader.until(lambda: reader.has_read(again, 2))
    append(log, 0)
    append(log, 1)
    await reader.until(lambda: reader.offsets[again] == [1, 2, 3])
    assert reader.offsets[one] == [0, 1, 2], "it was left"
    assert reader.offsets[two] == []
    await reader.tail.close()


@on_loop
async def test_a_record_that_does_not_decode_stops_its_partition_alone(log: MemoryLog) -> None:
    append(log, 0)
    log.append_directly(JOURNAL_TOPIC, 0, b"\x01\x01")
    append(log, 0)
    append(log, 1)
    reader = Reader(log)
    bad, good = reader.tail.follow(0, 0), reader.tail.follow(1, 0)
    await reader.until(lambda: bad in reader.failures and reader.has_read(good, 1))
    assert isinstance(reader.failures[bad], CorruptRecordError)
    assert f"{JOURNAL_TOPIC}-0 at offset 1" in str(reader.failures[bad])
    append(log, 0)
    append(log, 1)
    await reader.until(lambda: reader.offsets[good] == [0, 1])
    assert reader.offsets[bad] == [0]
    await reader.tail.close()


@on_loop
async def test_records_that_were_trimmed_are_not_passed_over(log: MemoryLog) -> None:
    append(log, 0, 5)
    log.delete_records(JOURNAL_TOPIC, 0, 3)
    reader = Reader(log)
    token = reader.tail.follow(0, 1)
    await reader.until(lambda: token in reader.failures)
    assert isinstance(reader.failures[token], BrokerError)
    assert reader.offsets[token] == []
    await reader.tail.close()


class _Breaking(MemoryLog):
    """A log whose first consumer breaks."""

    made = 0

    def consumer(self, config: Mapping[str, Any]) -> Any:
        """Returns a consumer; the first one breaks at its first poll."""
        self.made += 1
        inner: LogConsumer = super().consumer(config)
        if self.made > 1:
            return inner

        def poll(_timeout: float = -1) -> Message | None:
            raise KafkaException(KafkaError(KafkaError._FATAL))

        inner.poll = poll  # type: ignore[method-assign,assignment]
        return inner


@on_loop
async def test_a_broken_consumer_is_told_and_replaced() -> None:
    log = _Breaking("breaking")
    log.create_topic(JOURNAL_TOPIC, partitions=1)
    append(log, 0)
    reader = Reader(log)
    token = reader.tail.follow(0, 0)
    await reader.until(lambda: token in reader.failures)
    assert isinstance(reader.failures[token], BrokerError)
    again = reader.tail.follow(0, 0)
    await reader.until(lambda: reader.has_read(again, 1))
    assert reader.offsets[again] == [0]
    await reader.tail.close()
