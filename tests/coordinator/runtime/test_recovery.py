"""Recovery from a snapshot: what a coordinator finds, and what it must not believe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any, Final

import pytest

from logtx.coordinator.core import snapshot
from logtx.coordinator.core.decision import Decision, Instant, ShardConfig, WriteMarkers
from logtx.coordinator.core.replica import Replica
from logtx.coordinator.core.snapshot import SnapshotTaker
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.checkpoint import Checkpoint
from logtx.coordinator.runtime.housekeeping import HousekeepingConfig
from logtx.coordinator.runtime.loading import load
from logtx.coordinator.runtime.partition import Role
from logtx.journal.errors import (
    JournalTruncatedError,
    ProducerFencedError,
    UnknownTransactionError,
)
from logtx.journal.logs.interface import GroupOffset
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import COORDINATORS_GROUP, JOURNAL_TOPIC, read_entries
from logtx.journal.records.codec import encode_entry
from logtx.journal.records.types import Owner, Snapshot
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ..harness import PARTITION, WALL_MS, Coordinator, Journal
from ..runtimes import DATA, Driver, commit, loop_test, prepare, running

P0, P1 = (DATA, 0), (DATA, 1)
DAY_MS: Final = 24 * 3_600_000
EAGER: Final = HousekeepingConfig(snapshot_interval_records=20, outcome_retention_ms=0)
"""Takes a snapshot every few records, and keeps no outcomes for their age."""
LOAD: Final = partial(load, partition=0, config=ShardConfig(), timeout_s=10)


on_loop = loop_test(60)


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """An empty log with the topics that a runtime needs."""
    prepare(memory_log)
    return memory_log


def eager(log: MemoryLog) -> Any:
    """A coordinator that takes snapshots every few records."""
    return running(log, housekeeping=EAGER)


def checkpoint(log: MemoryLog) -> int:
    """Returns the offset at which the checkpoint tells loaders to begin."""
    committed = log.group_offset(COORDINATORS_GROUP, JOURNAL_TOPIC, 0)
    return committed.offset if committed is not None else 0


def start(log: MemoryLog) -> int:
    """Returns the journal's first offset."""
    return log.start_offset(JOURNAL_TOPIC, 0)


async def fill(driver: Driver, session: commands.SessionId, transactions: int = 12) -> list[TxId]:
    """Commits transactions, so that a snapshot becomes due."""
    txids = []
    for _ in range(transactions):
        txids.append(await driver.begun(session))
        assert isinstance(await driver.ask(commit(session, txids[-1], P0)), commands.Outcome)
    return txids


async def snapshotted(driver: Driver, beyond: int = 0) -> int:
    """Waits until the checkpoint is a snapshot behind `beyond`; returns its offset."""
    await driver.until(lambda: checkpoint(driver.log) > beyond)
    return checkpoint(driver.log)


@asynccontextmanager
async def with_snapshot(log: MemoryLog) -> AsyncIterator[tuple[Driver, commands.SessionId]]:
    """Yields a coordinator with a checkpointed snapshot, up to which the journal is trimmed."""
    async with eager(log) as driver:
        session = await driver.connect()
        await fill(driver, session)
        await snapshotted(driver)
        await driver.until(lambda: start(log) > 0)
        yield driver, session


@on_loop
async def test_the_journal_is_trimmed_below_the_snapshot_and_the_oldest_open(
    log: MemoryLog,
) -> None:
    async with eager(log) as driver:
        session = await driver.connect()
        await fill(driver, session)
        first = await snapshotted(driver)
        await driver.until(lambda: start(log) == first)
        open_one = await driver.begun(session)
        await fill(driver, session)
        second = await snapshotted(driver, first)
        assert second > open_one.offset
        await driver.until(lambda: start(log) == open_one.offset)


@on_loop
async def test_a_snapshot_is_not_due_because_of_its_own_chunks(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "CHUNK_BYTES", 300)
    keeping = HousekeepingConfig(snapshot_interval_records=10, outcome_retention_ms=0)
    async with running(log, housekeeping=keeping) as driver:
        for number in range(40):
            connect = commands.Connect(producer_id=f"p{number}", nonce=1, generation=None)
            assert isinstance(await driver.ask(connect), commands.Connected)
        await snapshotted(driver)
        # One that was begun while producers connected may be followed by one for the rest of them.
        await asyncio.sleep(0.5)
        end = log.end_offset(JOURNAL_TOPIC, 0, timeout_s=1)
        await asyncio.sleep(0.5)
        assert log.end_offset(JOURNAL_TOPIC, 0, timeout_s=1) == end


@on_loop
async def test_outcomes_are_kept_by_the_age_that_the_broker_gives_them(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker_ms = WALL_MS
    monkeypatch.setattr(log, "now_ms", lambda: broker_ms)
    keeping = HousekeepingConfig(snapshot_interval_records=20, outcome_retention_ms=7 * DAY_MS)
    async with running(log, housekeeping=keeping) as driver:
        session = await driver.connect()
        old = (await fill(driver, session))[-1]
        first = await snapshotted(driver)
        await asyncio.sleep(0.3)
        assert start(log) == 0, "all are young, whatever the coordinator's own clock says"
        broker_ms += 6 * DAY_MS
        young = (await fill(driver, session))[0]
        second = await snapshotted(driver, first)
        broker_ms += 2 * DAY_MS
        await fill(driver, session)
        await snapshotted(driver, second)
        await driver.until(lambda: old.offset < start(log) <= young.offset)


@on_loop
async def test_an_outcome_past_its_retention_is_unknown_and_never_aborted(log: MemoryLog) -> None:
    async with eager(log) as driver:
        session = await driver.connect()
        old = (await fill(driver, session))[0]
        await driver.until(lambda: start(log) > old.offset)
    async with eager(log) as driver:
        session = await driver.connect(nonce=2)
        outcome = await driver.ask(commands.GetOutcome(txid=old))
        assert outcome == commands.Outcome(old, State.UNKNOWN)
        assert isinstance(await driver.ask(commit(session, old, P0)), UnknownTransactionError)


@on_loop
async def test_a_retried_begin_gets_the_same_txid_behind_a_snapshot(log: MemoryLog) -> None:
    async with eager(log) as driver:
        session = await driver.connect()
        begin = driver.begin(session)
        told = await driver.ask(begin)
        assert isinstance(told, commands.Began)
        await fill(driver, session)
        await snapshotted(driver, told.txid.offset)
    async with eager(log) as driver:
        await driver.ask(commands.Connect(producer_id="p", nonce=1, generation=session.generation))
        assert await driver.ask(begin) == told
        assert isinstance(await driver.ask(commit(session, told.txid, P1)), commands.Outcome)


@on_loop
async def test_trap_8_what_lies_below_the_snapshot_is_not_forgotten(log: MemoryLog) -> None:
    async with eager(log) as driver:
        zombie = await driver.connect(nonce=1)
        session = await driver.connect(nonce=2)
        assert await driver.ask(commands.BindGroup(group="g", transaction_group="mine"))
        await fill(driver, session)
        await driver.until(lambda: start(log) > 10)
    async with eager(log) as driver:
        assert isinstance(await driver.ask(driver.begin(zombie)), ProducerFencedError)
        reconnect = commands.Connect(producer_id="p", nonce=1, generation=zombie.generation)
        assert isinstance(await driver.ask(reconnect), ProducerFencedError)
        bound = await driver.ask(commands.BindGroup(group="g", transaction_group="other"))
        assert bound == commands.Binding("mine")


@on_loop
async def test_trap_9_an_unacknowledged_snapshot_is_no_checkpoint(log: MemoryLog) -> None:
    async with with_snapshot(log) as (driver, session):
        former = checkpoint(log)
        log.hold_appends(JOURNAL_TOPIC, 0)
        for _ in range(25):
            driver.send(driver.begin(session))
        tenure = driver.runtime.tenure
        assert tenure is not None
        await driver.until(lambda: (driver.runtime.shard.snapshot_offset or 0) > former)
        await asyncio.sleep(0.5)
        assert (tenure.snapshot_offset, checkpoint(log)) == (former, former)
        log.release_appends(JOURNAL_TOPIC, 0)
        assert await snapshotted(driver, former) == driver.runtime.shard.snapshot_offset


@on_loop
async def test_trap_10_a_journal_that_ends_below_its_checkpoint_is_refused(log: MemoryLog) -> None:
    async with with_snapshot(log):
        pass
    log.truncate(JOURNAL_TOPIC, 0, checkpoint(log))
    async with running(log, serve=False) as driver:
        await driver.until(lambda: driver.runtime.role is Role.FAILED)
        assert isinstance(await driver.ask(commands.ListTransactions()), JournalTruncatedError)


@on_loop
async def test_trap_11_a_snapshot_keeps_the_incarnation_and_the_hw(log: MemoryLog) -> None:
    async with with_snapshot(log) as (driver, session):
        open_one = await driver.begun(session)
        before = checkpoint(log)
        await fill(driver, session)
        await snapshotted(driver, before)
        shard = driver.runtime.shard
        incarnation = shard.incarnation
        assert shard.hw == open_one.offset
    found = LOAD(log).shard
    assert (found.incarnation, found.hw) == (incarnation, open_one.offset)


@on_loop
async def test_a_checkpoint_that_leads_nowhere_costs_time_alone(log: MemoryLog) -> None:
    """Kafka forgot it after 7 days, or a former owner that woke up overwrote it."""
    async with with_snapshot(log) as (driver, session):
        open_one = await driver.begun(session)
        before = checkpoint(log)
        await fill(driver, session)
        await snapshotted(driver, before)
    known = LOAD(log)
    owner = next(e for _, e in read_all(log) if isinstance(e.record, Snapshot)).epoch
    below, no_chunk = start(log) - 1, start(log)
    for offset in (0, below, no_chunk):
        hint = Checkpoint(offset=offset, epoch=owner, address="zombie:1").to_group_offset()
        log.commit_group_offset(COORDINATORS_GROUP, JOURNAL_TOPIC, 0, hint)
        found = LOAD(log)
        assert found.next_offset == known.next_offset
        assert found.shard.transactions.get(open_one.offset) is not None
        assert found.shard.producers == known.shard.producers
    log.commit_group_offset(COORDINATORS_GROUP, JOURNAL_TOPIC, 0, GroupOffset(0, "?"))
    async with running(log) as driver:
        assert isinstance(await driver.ask(commit(session, open_one, P1)), commands.Outcome)


def read_all(log: MemoryLog) -> list[Any]:
    """Returns every record that is left."""
    end = log.end_offset(JOURNAL_TOPIC, 0)
    return list(read_entries(log, 0, start(log), end, timeout_s=5))


@on_loop
async def test_a_journal_that_somebody_else_trimmed_is_refused(log: MemoryLog) -> None:
    async with running(log) as driver:
        await fill(driver, await driver.connect())
    log.delete_records(JOURNAL_TOPIC, 0, 5)
    with pytest.raises(JournalTruncatedError, match=r"begins at 5 .* retention\.ms"):
        LOAD(log)


def test_an_empty_journal_is_ready(log: MemoryLog) -> None:
    found = LOAD(log)
    assert (found.ready, found.next_offset) == (True, 0)


def test_decided_transactions_are_redone_in_commit_sequence_order() -> None:
    """After a load from a snapshot, too; and open transactions live on."""
    journal = Journal()
    owner, serial = Coordinator(journal), count()
    owner.take_over()
    owner.submit(commands.Connect(producer_id="p", nonce=1, generation=None), "connect")
    session, begun = commands.SessionId("p", 0, 1), []
    for number in range(6):
        ref = next(serial)
        owner.submit(
            commands.Begin(session=session, request_id=number, answered_below=0, timeout_ms=9_000),
            ref,
        )
        owner.ack()
        begun.append(owner.replies[ref].txid)  # type: ignore[union-attr]

    def end(which: int, action: commands.Action) -> None:
        command = commands.End(
            session=session, txid=begun[which], action=action, writes={("a", 0): ()}
        )
        owner.submit(command, next(serial))

    end(3, commands.Action.COMMIT)
    end(1, commands.Action.ABORT)
    end(5, commands.Action.COMMIT)
    taker = SnapshotTaker(owner.shard)
    while not taker.done:
        owner.apply(Decision(records=(taker.chunk(),)))
    end(0, commands.Action.COMMIT)
    owner.ack()
    owner.finish(begun[5].offset)
    owner.ack()
    found = Replica(PARTITION, ShardConfig(), taker.first, certain=True)
    for offset in range(taker.first, journal.end):
        found.feed(offset, journal.entries[offset])
    shard = found.shard
    redone = [e for e in shard.loaded(Instant(0, WALL_MS)) if isinstance(e, WriteMarkers)]
    assert [e.transaction.txid for e in redone] == [begun[3], begun[1], begun[0]]
    still_open = [t.txid for t in shard.transactions if t.state is State.OPEN]
    assert still_open == [begun[2], begun[4]]


@on_loop
async def test_a_snapshot_without_its_last_chunk_is_passed_over(log: MemoryLog) -> None:
    """Its owner died; a loader uses the snapshot before it: trap 9."""
    async with with_snapshot(log) as (driver, session):
        before = checkpoint(log)
        await driver.begun(session)
    known = LOAD(log).shard
    end = log.end_offset(JOURNAL_TOPIC, 0)
    owner = Owner(replaces=known.epoch, address="c9", process_nonce=9)
    log.append_directly(JOURNAL_TOPIC, 0, encode_entry(known.entry(owner)))
    torn = LOAD(log).shard
    taker = SnapshotTaker(torn)
    chunk = taker.chunk()
    half = Snapshot(**{**{n: getattr(chunk, n) for n in chunk.__slots__}, "last": False})
    log.append_directly(JOURNAL_TOPIC, 0, encode_entry(torn.entry(half)))
    found = LOAD(log)
    assert found.shard.snapshot_offset == before
    assert (found.next_offset, len(found.shard.transactions)) == (end + 2, 1)
