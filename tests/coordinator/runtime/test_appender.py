"""What an appender takes for an acknowledgement."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from logtx.coordinator.core import offsets_lanes
from logtx.coordinator.core.offsets_lanes import OffsetsKey
from logtx.coordinator.protocol.commands import GroupOffsets
from logtx.coordinator.runtime.appender import Appender
from logtx.coordinator.runtime.modes_topic import ModesWriter
from logtx.coordinator.runtime.offsets_topic import OffsetsWriter
from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import OFFSETS_TOPIC
from logtx.journal.txid import TxId

Told = int | KafkaError | None
REFUSED = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


class Reporting:
    """A producer whose reports say what they are told to say."""

    def __init__(self, told: Sequence[Told]) -> None:
        self._told = deque(told)
        self._queue: deque[Callable[[KafkaError | None, Any], None]] = deque()

    def produce(self, *_: object, on_delivery: Any, **__: object) -> None:
        self._queue.append(on_delivery)

    def flush(self, _: float) -> int:
        while self._queue:
            told = self._told.popleft()
            error = told if isinstance(told, KafkaError) else None
            offset = None if error else told
            self._queue.popleft()(error, SimpleNamespace(offset=lambda offset=offset: offset))
        return 0

    def __len__(self) -> int:
        return len(self._queue)

    def purge(self) -> None:
        """Has nothing."""

    def close(self) -> None:
        """Does nothing."""


async def _acknowledged(told: Sequence[Told], partitions: Sequence[int]) -> list[Told]:
    """Appends records to partitions; returns what is acknowledged."""
    log = SimpleNamespace(producer=lambda _: Reporting(told))
    appender = Appender(cast(Log, log), {}, "test")
    found: list[Told] = []
    for partition in partitions:
        appender.append("t", partition, lambda o, e: found.append(o if e is None else e))
    await appender.close()  # It waits for the reports.
    await asyncio.sleep(0)
    return found


def acknowledged(told: Sequence[Told], partitions: Sequence[int]) -> list[Told]:
    return asyncio.run(_acknowledged(told, partitions))


def test_trap_291_offsets_that_librdkafka_made_up_are_none() -> None:
    told = [7, None, 0, 1, 2, 9, 0, 1]
    expected = [7, None, None, None, None, 9, 0, 1]
    assert acknowledged(told, [0] * len(told)) == expected


def test_each_batch_without_offsets_begins_anew() -> None:
    assert acknowledged([None, 0, None, 0, 1], [0] * 5) == [None] * 5
    assert acknowledged([None, 1, 0], [0] * 3) == [None, 1, 0]


def test_other_partitions_and_refusals_have_no_part_in_it() -> None:
    assert acknowledged([None, 0, 0, 1], [0, 1, 0, 1]) == [None, 0, 0, 1]
    assert acknowledged([None, REFUSED, 0], [0] * 3) == [None, REFUSED, 0]


def test_what_is_appended_behind_a_batch_without_offsets_is_not_of_it() -> None:
    """Else values that are repeated for that batch would be repeated for ever."""

    async def repeated() -> list[Told]:
        log = SimpleNamespace(producer=lambda _: Reporting([None, 0, 1, 2]))
        appender = Appender(cast(Log, log), {}, "test")
        found: list[Told] = []

        def acknowledge(offset: int | None, error: KafkaError | None) -> None:
            found.append(offset if error is None else error)
            if offset is None:
                appender.append("t", 0, acknowledge)

        for _ in range(2):
            appender.append("t", 0, acknowledge)
        async with asyncio.timeout(20):
            while len(found) < 4:  # noqa: ASYNC110 - an appender tells nobody else
                await asyncio.sleep(0.01)
        await appender.close()
        return found

    assert asyncio.run(repeated()) == [None, None, 1, 2]


# ---- values in compacted topics -----------------------------------------------------------------


@pytest.fixture
def doubted(memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    """A log of which the first record of each key has an acknowledgement without an offset, and is
    not written."""
    append, seen = Appender.append, set()

    def doubting(self: Appender, topic: str, partition: int, acknowledge: Any, **more: Any) -> None:
        if more["key"] in seen:
            append(self, topic, partition, acknowledge, **more)
            return
        seen.add(more["key"])
        asyncio.get_running_loop().call_soon(acknowledge, None, None)

    monkeypatch.setattr(Appender, "append", doubting)
    monkeypatch.setattr(offsets_lanes, "RETRY_MS", 10)
    return memory_log


def test_an_iov_without_an_offset_is_written_again(doubted: MemoryLog) -> None:
    async def write() -> None:
        writer = OffsetsWriter(doubted, 1)
        written = asyncio.Event()
        steps = GroupOffsets({}, TxId(0, 1, 2), 3)
        writer.write(OffsetsKey("g", 0, 1, 2), steps, written.set)
        async with asyncio.timeout(20):
            await written.wait()
        await writer.close()

    doubted.create_topic(OFFSETS_TOPIC, partitions=1)
    asyncio.run(write())
    assert doubted.end_offset(OFFSETS_TOPIC, 0) == 1


def test_a_rule_without_an_offset_is_not_called_durable(doubted: MemoryLog) -> None:
    async def write() -> list[bool]:
        writer = ModesWriter(doubted, -1)
        told = [await writer.write_rule(b"a key", b"a rule") for _ in range(2)]
        await writer.close()
        return told

    assert asyncio.run(write()) == [False, True]
