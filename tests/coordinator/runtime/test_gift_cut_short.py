"""A gift that is cut short leaves no client waiting, and SIGTERM cuts none short."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from logtx.coordinator import ownership
from logtx.coordinator.membership.balance import Member
from logtx.coordinator.ownership import Ownership
from logtx.coordinator.protocol import commands
from logtx.coordinator.runtime import appender
from logtx.coordinator.runtime.partition import PartitionRuntime, Role
from logtx.journal.errors import CoordinatorLoadingError, LogtxError, NotCoordinatorError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC

from ..clusters import Cluster, Committer, cluster_of, until
from ..runtimes import DATA, TIMEOUT_S, Driver, loop_test, prepare, running

SLOW_S = 1.0
RECEIVER = Member(nonce=2, address="127.0.0.1:2")


on_loop = loop_test(30)


async def cut_short(driver: Driver, command: commands.Command) -> commands.Reply:
    """Cancels a gift whose receiver is silent; returns the reply to a request made meanwhile."""

    async def ask(_epoch: int, _end: int) -> None:
        await asyncio.Event().wait()

    giving = asyncio.create_task(driver.runtime.give(RECEIVER, ask))
    await driver.until(lambda: driver.runtime.role is Role.GIVING)
    kept = driver.send(command)
    await asyncio.sleep(0.05)
    assert not kept.done()
    giving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await giving
    return await asyncio.wait_for(kept, TIMEOUT_S)


@on_loop
async def test_whoever_asked_is_sent_away_and_finds_an_owner(memory_log: MemoryLog) -> None:
    prepare(memory_log)
    async with running(memory_log) as driver:
        session = await driver.connect()
        begin = driver.begin(session)
        assert isinstance(await cut_short(driver, begin), NotCoordinatorError)
        await driver.serving()
        assert isinstance(await driver.ask(begin), commands.Began)


@on_loop
async def test_what_was_in_flight_is_read_again(memory_log: MemoryLog) -> None:
    prepare(memory_log)
    async with running(memory_log) as driver:
        session = await driver.connect()
        memory_log.hold_appends(JOURNAL_TOPIC, 0)
        begin = driver.begin(session)
        in_flight = driver.send(begin)
        reply = await cut_short(driver, driver.begin(session))
        assert isinstance(reply, CoordinatorLoadingError)
        assert isinstance(await in_flight, LogtxError)
        memory_log.release_appends(JOURNAL_TOPIC, 0)
        await driver.serving()
        assert isinstance(await driver.ask(begin), commands.Began)


@pytest.fixture
def cluster(memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """No coordinator yet. Producers of a log in memory need no warm-up."""
    monkeypatch.setattr(appender, "WARM_S", 0.0)
    memory_log.create_topic(DATA, partitions=1)
    with cluster_of(memory_log) as made:
        yield made


def test_who_leaves_in_the_middle_of_a_move_lets_it_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_over, give = Ownership._take_over, PartitionRuntime.give
    given: dict[int, bool] = {}

    async def slow(self: Ownership, partition: int, epoch: int, end: int) -> str:
        await asyncio.sleep(SLOW_S)
        return await take_over(self, partition, epoch, end)

    async def noted(self: PartitionRuntime, *args: Any) -> bool:
        outcome = await give(self, *args)
        given[self.partition] = given.get(self.partition, False) or outcome
        return outcome

    (giver,) = cluster.joined(1)
    steady = Committer(cluster.log, DATA)
    steady.progress()
    monkeypatch.setattr(Ownership, "_take_over", slow)
    monkeypatch.setattr(PartitionRuntime, "give", noted)
    cluster.join()
    runtimes = giver.runtimes.values()
    moving: list[int] = []

    def one_moves() -> bool:
        moving[:] = [r.partition for r in runtimes if r.role is Role.GIVING]
        return bool(moving)

    until(one_moves)
    assert SLOW_S < ownership.LEAVE_S
    giver.leave()
    assert given[moving[0]], "it was settled, and then given to nobody"
    assert all(given.values())
    steady.progress()
    steady.stop()
    assert steady.refused == []
