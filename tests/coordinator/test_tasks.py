"""A coordinator with a bug ends at once: it must not answer its peers and serve nothing."""

from __future__ import annotations

import asyncio
import threading

import pytest

from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.ownership import Ownership
from logtx.coordinator.runtime.partition import PartitionRuntime
from logtx.coordinator.service import CoordinatorConfig, serve
from logtx.journal.logs.memory.log import MemoryLog

CONFIG = CoordinatorConfig(bootstrap_servers="memory", listen="127.0.0.1:0", journal_partitions=1)


class BugError(Exception):
    """An error that no code expects."""


def run(log: MemoryLog) -> None:
    """Serves until the coordinator ends by itself."""

    async def main() -> None:
        async with asyncio.timeout(20):
            await serve(CONFIG, asyncio.Event(), lambda *_: None, log)

    asyncio.run(main())


def test_an_essential_task_that_fails_ends_the_coordinator(
    monkeypatch: pytest.MonkeyPatch, memory_log: MemoryLog
) -> None:
    def broken(*_: object) -> None:
        raise BugError

    monkeypatch.setattr(PartitionRuntime, "tick", broken)
    with pytest.raises(BugError):
        run(memory_log)


def test_a_callback_that_fails_ends_the_coordinator(
    monkeypatch: pytest.MonkeyPatch, memory_log: MemoryLog
) -> None:
    def broken(*_: object) -> None:
        raise BugError

    monkeypatch.setattr(Ownership, "_react", broken)
    with pytest.raises(BugError):
        run(memory_log)


def test_an_embedded_one_tells_whoever_stops_it(
    monkeypatch: pytest.MonkeyPatch, memory_log: MemoryLog
) -> None:
    embedded, ticked = EmbeddedCoordinator(CONFIG, memory_log).start(), threading.Event()

    def broken(*_: object) -> None:
        ticked.set()
        raise BugError

    monkeypatch.setattr(PartitionRuntime, "tick", broken)
    assert ticked.wait(20)
    with pytest.raises(BugError):
        embedded.stop()
