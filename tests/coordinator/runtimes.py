"""Runtimes of a journal partition over a log in memory, whose faults a test can use."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.membership.members import Members
from logtx.coordinator.protocol import commands
from logtx.coordinator.runtime.appender import Appender
from logtx.coordinator.runtime.housekeeping import HousekeepingConfig
from logtx.coordinator.runtime.markers import MarkerWriter
from logtx.coordinator.runtime.modes_topic import ModesWriter
from logtx.coordinator.runtime.offsets_topic import OffsetsWriter
from logtx.coordinator.runtime.partition import PartitionRuntime, Role
from logtx.coordinator.runtime.services import Services
from logtx.coordinator.runtime.tail import Batch, Tail
from logtx.coordinator.runtime.topics import TopicLookUps
from logtx.journal.control import BranchRange, TopicPartition
from logtx.journal.errors import LogtxError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC, OFFSETS_TOPIC
from logtx.journal.txid import TxId

TIMEOUT_S = 10.0
DATA = "data"
AsyncTest = Callable[..., Coroutine[Any, Any, None]]


def loop_test(timeout_s: float) -> Callable[[AsyncTest], Callable[..., None]]:
    """Returns a decorator that runs a coroutine test to its end, within `timeout_s` seconds."""

    def on_loop(test: AsyncTest) -> Callable[..., None]:
        @wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            asyncio.run(asyncio.wait_for(test(*args, **kwargs), timeout_s))

        return run

    return on_loop


@dataclass
class Driver:
    """One runtime of journal partition 0, and a client of it."""

    log: MemoryLog
    runtime: PartitionRuntime
    services: Services
    closed: list[tuple[str, LogtxError]] = field(default_factory=list)
    requests: int = 0

    def send(self, command: commands.Command) -> asyncio.Future[commands.Reply]:
        """Submits a command; returns a future of the reply."""
        future: asyncio.Future[commands.Reply] = asyncio.get_running_loop().create_future()
        self.runtime.submit(command, future.set_result)
        return future

    async def ask(self, command: commands.Command) -> commands.Reply:
        """Submits a command and waits for its reply."""
        return await asyncio.wait_for(self.send(command), TIMEOUT_S)

    async def connect(self, producer_id: str = "p", nonce: int = 1) -> commands.SessionId:
        """Connects a producer that brings no generation."""
        reply = await self.ask(commands.Connect(producer_id=producer_id, nonce=nonce))
        assert isinstance(reply, commands.Connected), reply
        return commands.SessionId(producer_id, reply.generation, nonce)

    def begin(self, session: commands.SessionId, timeout_ms: int = 60_000) -> commands.Begin:
        """Returns a BEGIN with a new request id."""
        self.requests += 1
        return commands.Begin(
            session=session, request_id=self.requests, answered_below=0, timeout_ms=timeout_ms
        )

    async def begun(self, session: commands.SessionId, timeout_ms: int = 60_000) -> TxId:
        """Begins; returns the open transaction."""
        reply = await self.ask(self.begin(session, timeout_ms))
        assert isinstance(reply, commands.Began), reply
        return reply.txid

    async def until(self, what: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
        """Waits until something holds, for a bounded time."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            held = what()
            if held if isinstance(held, bool) else await held:
                return
            assert time.monotonic() < deadline, "it never came to hold"
            await asyncio.sleep(0.005)

    async def serving(self) -> None:
        """Waits until the partition is served."""
        await self.until(lambda: self.runtime.role is Role.SERVING)


def commit(
    session: commands.SessionId,
    txid: TxId,
    *partitions: TopicPartition,
    first: int = 0,
    last: int = 0,
) -> commands.End:
    """Returns a commit that states one range of the owner's records per partition."""
    writes = {p: (BranchRange(0, first, last, 1),) for p in partitions}
    return commands.End(session=session, txid=txid, action=commands.Action.COMMIT, writes=writes)


def abort(session: commands.SessionId, txid: TxId, *partitions: TopicPartition) -> commands.End:
    """Returns an abort that names partitions."""
    writes: dict[TopicPartition, tuple[BranchRange, ...]] = dict.fromkeys(partitions, ())
    return commands.End(session=session, txid=txid, action=commands.Action.ABORT, writes=writes)


def prepare(log: MemoryLog, data_partitions: int = 2) -> None:
    """Creates the topics that a runtime needs."""
    log.create_topic(JOURNAL_TOPIC, partitions=1)
    log.create_topic(OFFSETS_TOPIC, partitions=1)
    log.create_topic(DATA, partitions=data_partitions)


@asynccontextmanager
async def running(
    log: MemoryLog,
    config: ShardConfig | None = None,
    *,
    serve: bool = True,
    address: str = "127.0.0.1:1",
    housekeeping: HousekeepingConfig | None = None,
) -> AsyncIterator[Driver]:
    """Yields a runtime that owns journal partition 0; stops it at the end of the block."""
    closed: list[tuple[str, LogtxError]] = []
    nonce = random.getrandbits(63)

    look_ups = TopicLookUps(log)

    def deliver(batch: Batch) -> None:
        runtime.feed(batch)

    assert await look_ups.learn([(DATA, 0)]) is None
    services = Services(
        log=log,
        journal=Appender(log, {"message.timeout.ms": 2_000}, "journal"),
        markers=MarkerWriter(log, look_ups),
        offsets=OffsetsWriter(log, 1),
        modes=ModesWriter(log, -1),
        tail=Tail(log, deliver),
        members=Members(nonce, address),
        reading=ThreadPoolExecutor(1),
        loading=ThreadPoolExecutor(1),
        address=address,
        process_nonce=nonce,
        partition_count=1,
        look_ups=look_ups,
        housekeeping=housekeeping or HousekeepingConfig(),
        membership_changed=lambda: None,
        close_session=lambda _p, producer, _n, error: closed.append((producer, error)),
        close_sessions=lambda _p, error: closed.append(("*", error)),
    )
    runtime = PartitionRuntime(0, services, config or ShardConfig())
    driver = Driver(log, runtime, services, closed)
    ticking = asyncio.create_task(_tick(runtime))
    runtime.start()
    try:
        if serve:
            await driver.serving()
        yield driver
    finally:
        ticking.cancel()
        await runtime.stop()
        await asyncio.gather(
            services.journal.close(0.2),
            services.markers.close(0.2),
            services.offsets.close(),
            services.modes.close(),
            services.tail.close(),
        )
        look_ups.close()
        services.reading.shutdown()
        services.loading.shutdown()


async def _tick(runtime: PartitionRuntime) -> None:
    while True:
        await asyncio.sleep(0.01)
        runtime.tick()
