"""A coordinator with a bug ends at once: it must not answer its peers and serve nothing."""

from __future__ import annotations

import asyncio
import threading

import pytest

from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.ownership import Ownership
from logtx.coordinator.runtime.partition import PartitionRuntime
from logtx.coordinator.service import CoordinatorConfig, serve
from logtx.coordinator.tasks import Failures
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


def test_what_grpc_had_left_for_another_loop_ends_no_coordinator() -> None:
    # A second coordinator of this process has just ended, and its loop is closed. gRPC's queue (of
    # etcd's client) is one for all loops: ours takes an event of the closed one, and hands it over
    # within a callback.
    ended = asyncio.new_event_loop()
    ended.close()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        failures = Failures(loop)
        loop.call_soon(ended.call_soon_threadsafe, print)
        await asyncio.sleep(0.01)
        assert not failures.first.done()
        loop.call_soon(int, "a bug")
        with pytest.raises(ValueError, match="a bug"):
            await failures.first

    asyncio.run(main())
