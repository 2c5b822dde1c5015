"""Topics in metadata mode, over the log in memory: commits write nothing to their partitions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError

from logtx.coordinator.core import lanes, topics
from logtx.coordinator.protocol import commands
from logtx.coordinator.runtime import housekeeping as housekeeping_module
from logtx.coordinator.runtime import placing
from logtx.coordinator.runtime.housekeeping import HousekeepingConfig
from logtx.journal.control import (
    TXCTL_HEADER,
    TXID_HEADER,
    BranchRange,
    Marker,
    ModeRecord,
    TopicPartition,
    decode_control,
)
from logtx.journal.errors import BrokerError, LogtxError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.mode_registry import Published, TopicModeRecord, latest
from logtx.journal.modes import MODES_TOPIC, Mode, ModeChange, Phase
from logtx.journal.places import GONE, PartitionId, Placed
from logtx.journal.reader import JOURNAL_TOPIC, read_entries, read_records
from logtx.journal.records.types import Committed, PrepareCommit
from logtx.journal.sidecar import sidecar_of
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ..runtimes import DATA, Driver, abort, loop_test, prepare, running

P0, P1 = (DATA, 0), (DATA, 1)

on_loop = loop_test(60)


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """A log with the topics that a runtime needs, and some records in the first partition."""
    prepare(memory_log)
    for _ in range(5):
        memory_log.append_directly(*P0, b"plain")
    return memory_log


def journal(log: MemoryLog, kind: type) -> list[tuple[int, Any]]:
    """Returns the records of a kind in the journal, with their offsets."""
    start, end = log.start_offset(JOURNAL_TOPIC, 0), log.end_offset(JOURNAL_TOPIC, 0)
    entries = read_entries(log, 0, start, end, timeout_s=5)
    return [(offset, e.record) for offset, e in entries if isinstance(e.record, kind)]


def controls(log: MemoryLog, partition: TopicPartition) -> list[tuple[int, TxId, Any]]:
    """Returns the markers and mode records of a data partition: offset, TxId, what it says."""
    found = []
    end = log.end_offset(*partition)
    for message in read_records(log, *partition, 0, end, timeout_s=5):
        headers = dict(message.headers() or [])
        if raw := headers.get(TXCTL_HEADER):
            txid = TxId.from_bytes(headers[TXID_HEADER])
            found.append((message.offset(), txid, decode_control(raw)))
    return found


def id_of(log: MemoryLog, partition: TopicPartition) -> PartitionId:
    """Returns a data partition with its topic's id."""
    return PartitionId(*partition, log.topic_info(partition[0]).topic_id)


def registry(log: MemoryLog) -> dict[str, TopicModeRecord]:
    """Returns what consumers read of modes."""
    return latest(rows(log))


def rows(log: MemoryLog) -> list[Published]:
    """Returns the records of the registry."""
    end = log.end_offset(MODES_TOPIC, 0)
    messages = read_records(log, MODES_TOPIC, 0, 0, end, timeout_s=5)
    return [Published(m.key(), m.value(), m.timestamp()[1]) for m in messages]


async def switch(
    driver: Driver, mode: Mode = Mode.METADATA, *, topic: str = DATA, without_records: bool = False
) -> commands.TopicModeInfo:
    """Switches a topic, as an operator's client does: it asks until the mode is published."""
    command = commands.SetTopicMode(topic=topic, mode=mode, without_records=without_records)
    deadline = time.monotonic() + 10
    while True:
        reply = await driver.ask(command)
        assert isinstance(reply, commands.TopicModes), reply
        (info,) = reply.topics
        if info.phase.value == mode.value and info.published:
            return info
        assert time.monotonic() < deadline, info
        await asyncio.sleep(0.01)


async def committed(driver: Driver, *partitions: TopicPartition) -> TxId:
    """Begins and commits a transaction that claims one record in each partition."""
    session = await driver.connect(f"p{driver.requests}", driver.requests + 1)
    txid = await driver.begun(session)
    ends = {p: driver.log.end_offset(*p) for p in partitions}
    for partition in partitions:
        driver.log.append_directly(*partition, b"value", headers=[(TXID_HEADER, txid.to_bytes())])
    writes = {p: (BranchRange(0, ends[p], ends[p], 1),) for p in partitions}
    end = commands.End(session=session, txid=txid, action=commands.Action.COMMIT, writes=writes)
    reply = await driver.ask(end)
    assert isinstance(reply, commands.Outcome), reply
    return txid


async def finished(driver: Driver, txid: TxId) -> Committed:
    """Waits until a commit is finished; returns the record that says so."""

    def found() -> list[Committed]:
        return [r for _, r in journal(driver.log, Committed) if r.begin == txid.offset]

    await driver.until(lambda: bool(found()))
    return found()[0]


def without_leader(
    log: MemoryLog,
    monkeypatch: pytest.MonkeyPatch,
    held: Collection[TopicPartition],
    *,
    slow_s: float = 0,
) -> list[Collection[TopicPartition]]:
    """Lets nobody answer for the ends of partitions; returns the questions that are asked."""
    asked: list[Collection[TopicPartition]] = []
    each = log.each_end_offset

    def mutant(
        partitions: Collection[TopicPartition], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int | LogtxError]:
        asked.append(tuple(partitions))
        found = each(partitions, timeout_s=timeout_s)
        missing = [p for p in partitions if p in held]
        if missing and slow_s:
            time.sleep(min(slow_s, timeout_s))
        found.update((p, BrokerError("no leader", kafka_code=5)) for p in missing)
        return found

    monkeypatch.setattr(log, "each_end_offset", mutant)
    return asked


# ---- commits ------------------------------------------------------------------------------------


@on_loop
async def test_a_commit_writes_nothing_to_the_partitions_of_a_topic_in_metadata_mode(
    log: MemoryLog,
) -> None:
    async with running(log) as driver:
        info = await switch(driver)
        assert info.since == {0: 5, 1: 0}
        [(at, txid, record)] = controls(log, P0)
        assert (at, record) == (5, ModeRecord(True, id_of(log, P0).topic_id))
        assert txid.offset == info.mode_offset
        first = await committed(driver, P0, P1)
        assert (await finished(driver, first)).gone == ()
        assert [len(controls(log, p)) for p in (P0, P1)] == [1, 1], "the mode records"
        [(offset, placed)] = journal(log, Placed)
        assert placed.ends == {id_of(log, P0): 7, id_of(log, P1): 2}
        [(decided, decision)] = journal(log, PrepareCommit)
        assert set(decision.placed) == {P0, P1}
        assert placed.upto == decided < offset
        await finished(driver, await committed(driver, P1))
        assert log.end_offset(*P1) == 3


@on_loop
async def test_the_last_marker_the_mode_record_and_the_first_place_come_in_this_order(
    log: MemoryLog,
) -> None:
    async with running(log) as driver:
        log.hold_appends(*P0)
        before = await committed(driver, P0)
        switching = asyncio.create_task(switch(driver))
        await driver.until(lambda: bool(journal(log, ModeChange)))
        during = await committed(driver, P0)
        log.release_appends(*P0)
        await switching
        for txid in (before, during):
            await finished(driver, txid)
        kinds = [type(c).__name__ for _, _, c in controls(log, P0)]
        assert kinds == ["Marker", "ModeRecord", "Marker"]
        after = await committed(driver, P0)
        await finished(driver, after)
        [(_, placed)] = journal(log, Placed)
        assert placed.ends[id_of(log, P0)] > controls(log, P0)[-1][0]


@on_loop
async def test_back_to_markers(log: MemoryLog) -> None:
    async with running(log) as driver:
        await switch(driver)
        placed = await committed(driver, P0)
        info = await switch(driver, Mode.MARKERS)
        await finished(driver, placed)
        marked = await committed(driver, P0)
        await finished(driver, marked)
        said = [(txid, type(c), getattr(c, "places", None)) for _, txid, c in controls(log, P0)]
        assert [s[1:] for s in said] == [
            (ModeRecord, True),
            (ModeRecord, False),
            (Marker, None),
        ]
        assert said[1][0].offset == info.mode_offset
        assert said[2][0] == marked
        assert registry(log)[DATA].phase is Phase.MARKERS


@on_loop
async def test_an_abort_writes_nothing_there_either(log: MemoryLog) -> None:
    async with running(log) as driver:
        await switch(driver)
        session = await driver.connect()
        txid = await driver.begun(session)
        await driver.ask(abort(session, txid, P0, P1))

        async def is_over() -> bool:
            reply = await driver.ask(commands.GetOutcome(txid=txid))
            return isinstance(reply, commands.Outcome) and reply.state is State.ABORTED

        await driver.until(is_over)
        assert [len(controls(log, p)) for p in (P0, P1)] == [1, 1]
        assert not journal(log, Placed)


def asked_of(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, held: asyncio.Event | None = None
) -> list[str]:
    """Returns the purposes of the questions that are asked.

    Args:
        driver: whose questions.
        monkeypatch: changes them.
        held: those for ends are answered when it is set.
    """
    asked: list[str] = []
    ask = driver.services.questions.ask

    async def mutant(purpose: str, question: Callable[..., Any], *args: object) -> Any:
        asked.append(purpose)
        found = await ask(purpose, question, *args)
        if held is not None and purpose.startswith("places-"):
            await held.wait()
        return found

    monkeypatch.setattr(driver.services.questions, "ask", mutant)
    return asked


@on_loop
async def test_one_record_places_what_was_decided_during_a_question(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(log) as driver:
        await switch(driver)
        release = asyncio.Event()
        asked_of(driver, monkeypatch, release)
        txids = [await committed(driver, P0) for _ in range(4)]
        release.set()
        for txid in txids:
            await finished(driver, txid)
        uptos = [placed.upto for _, placed in journal(log, Placed)]
        decided = [offset for offset, _ in journal(log, PrepareCommit)]
        assert uptos == [decided[0], decided[-1]]


async def to_commit(
    driver: Driver, number: int, where: TopicPartition = P0, **more: Any
) -> tuple[TxId, commands.End]:
    """Begins a transaction that writes a record. Returns it, and the request that commits it."""
    session = await driver.connect(f"c{number}", 500 + number)
    txid, at = await driver.begun(session), driver.log.end_offset(*where)
    driver.log.append_directly(*where, b"value", headers=[(TXID_HEADER, txid.to_bytes())])
    writes = {where: (BranchRange(0, at, at, 1),)}
    action = commands.Action.COMMIT
    return txid, commands.End(session=session, txid=txid, action=action, writes=writes, **more)


@on_loop
async def test_ids_are_asked_for_while_the_decision_of_a_commit_that_is_alone_is_written(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(log) as driver:
        await switch(driver)
        asked = asked_of(driver, monkeypatch)
        for _ in range(3):
            await finished(driver, await committed(driver, P0))
        assert asked == ["ids-ahead-0", "places-0"] * 3


@on_loop
async def test_ids_that_were_told_before_another_one_wrote_are_asked_for_again(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(log) as driver:
        await switch(driver)
        release = asyncio.Event()
        asked = asked_of(driver, monkeypatch, release)
        txids = [await committed(driver, P0) for _ in range(3)]
        release.set()
        for txid in txids:
            await finished(driver, txid)
        assert asked == ["ids-ahead-0", "places-0", "places-0", "ids-0"]


def has_asked(asked: list[str], count: int) -> bool:
    return len(asked) >= count


@on_loop
@pytest.mark.parametrize(("are_together", "questions"), [(True, 1), (False, 3)])
async def test_commits_of_one_turn_of_the_loop_are_asked_about_once(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, *, are_together: bool, questions: int
) -> None:
    async with running(log) as driver:
        await switch(driver)
        commits = [await to_commit(driver, number) for number in range(3)]
        asked = asked_of(driver, monkeypatch)
        log.hold_appends(JOURNAL_TOPIC, 0)
        for number, (_, end) in enumerate(commits, 1):
            driver.send(end)
            if not are_together:
                await driver.until(partial(has_asked, asked, number))
        await driver.until(partial(has_asked, asked, questions))
        await asyncio.sleep(0.05)
        log.release_appends(JOURNAL_TOPIC, 0)
        for txid, _ in commits:
            await finished(driver, txid)
        assert asked == ["ids-ahead-0"] * questions + ["places-0"]


@on_loop
async def test_trap_281_ids_for_what_lies_in_a_sidecar_are_told_behind_the_decision(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "CONFIRM_MS", 300)
    monkeypatch.setattr(lanes, "LOOK_PAUSE_MS", 50)
    side = (sidecar_of(DATA), 0)
    log.create_topic(side[0], partitions=2)
    async with running(log) as driver:
        await switch(driver)
        await finished(driver, await committed(driver, P0))
        assert await driver.services.look_ups.learn([side, P0], [DATA]) is None
        txid, end = await to_commit(driver, 0, side, main_ends={P0: log.end_offset(*P0)})
        log.hold_appends(JOURNAL_TOPIC, 0)
        told = driver.send(end)
        await asyncio.sleep(0.2)
        assert not told.done()
        log.delete_topic(DATA)
        log.create_topic(DATA, partitions=2)
        for _ in range(12):  # An end below the last place would not be believed.
            log.append_directly(*P0, b"plain")
        log.release_appends(JOURNAL_TOPIC, 0)
        await finished(driver, txid)
        pointers = [marker for _, of, marker in controls(log, P0) if of == txid]
        assert [len(marker.sidecar) for marker in pointers] == [1]


# ---- what fails ---------------------------------------------------------------------------------


@on_loop
async def test_a_partition_without_a_leader_delays_only_itself(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {P0}
    async with running(log) as driver:
        await switch(driver)
        without_leader(log, monkeypatch, held)
        both, other = await committed(driver, P0, P1), await committed(driver, P1)
        await finished(driver, other)
        placed = {p for _, record in journal(log, Placed) for p in record.ends}
        assert placed == {id_of(log, P1)}
        held.clear()
        await finished(driver, both)


@on_loop
async def test_a_broker_that_is_silent_holds_a_round_up_once(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "ENDS_TIMEOUT_S", 0.4)
    held = {P0}
    async with running(log) as driver:
        await switch(driver)
        asked = without_leader(log, monkeypatch, held, slow_s=1.0)
        first = await committed(driver, P0, P1)
        await driver.until(lambda: len(journal(log, Placed)) == 1)
        began_s = time.monotonic()
        for _ in range(3):
            await finished(driver, await committed(driver, P1))
        assert time.monotonic() - began_s < 1.0
        rounds = [p for p in asked if P1 in p]
        assert sum(P0 in p for p in rounds) == 1, "then it is asked apart"
        held.clear()
        await finished(driver, first)


@on_loop
async def test_an_owner_that_dies_between_decision_and_place_leaves_it_to_the_next(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {P0}
    async with running(log) as driver:
        await switch(driver)
        without_leader(log, monkeypatch, held)
        txid = await committed(driver, P0, P1)
        await driver.until(lambda: len(journal(log, Placed)) == 1)
    # Records that came after the former owner looked: the place is asked for again.
    log.append_directly(*P0, b"plain")
    held.clear()
    async with running(log) as driver:
        await finished(driver, txid)
        places = {
            p.key: end for _, record in journal(log, Placed) for p, end in record.ends.items()
        }
        assert places == {P0: 8, P1: 2}
        assert [len(controls(log, p)) for p in (P0, P1)] == [1, 1]


@on_loop
async def test_an_owner_that_dies_while_a_topic_is_switched_leaves_it_to_the_next(
    log: MemoryLog,
) -> None:
    async with running(log) as driver:
        log.hold_appends(*P1)
        reply = await driver.ask(commands.SetTopicMode(topic=DATA, mode=Mode.METADATA))
        assert isinstance(reply, commands.TopicModes)
        await driver.until(lambda: len(controls(log, P0)) == 1)
    log.release_appends(*P1)
    async with running(log) as driver:
        info = await switch(driver)
        assert [c.phase for _, c in journal(log, ModeChange)] == [Phase.TO_METADATA, Phase.METADATA]
        assert info.mode_offset == reply.topics[0].mode_offset
        for partition in (P0, P1):
            found = controls(log, partition)
            assert {txid.offset for _, txid, _ in found} == {info.mode_offset}
            assert info.since[partition[1]] in [at for at, _, _ in found]


@on_loop
async def test_a_topic_that_is_deleted_does_not_hold_its_transactions_up(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "CONFIRM_MS", 400)
    monkeypatch.setattr(lanes, "LOOK_PAUSE_MS", 50)
    monkeypatch.setattr("logtx.coordinator.core.placing.RETRY_MAX_MS", 100)
    async with running(log) as driver:
        await switch(driver)
        held = {P0, P1}
        without_leader(log, monkeypatch, held)
        txid = await committed(driver, P0, P1)
        partitions = {id_of(log, P0), id_of(log, P1)}
        log.delete_topic(DATA)
        held.clear()
        await finished(driver, txid)
        (_, placed) = journal(log, Placed)[-1]
        assert dict(placed.ends) == dict.fromkeys(partitions, GONE)


@on_loop
@pytest.mark.parametrize("is_shorter", [True, False], ids=["a shorter one", "a longer one"])
@pytest.mark.parametrize("mode", Mode)
async def test_trap_12_and_71_what_a_topic_of_the_name_has_gets_a_marker_there(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, mode: Mode, *, is_shorter: bool
) -> None:
    monkeypatch.setattr(topics, "CONFIRM_MS", 300)
    monkeypatch.setattr(lanes, "LOOK_PAUSE_MS", 50)
    async with running(log) as driver:
        await switch(driver)
        await finished(driver, await committed(driver, P0))
        former = id_of(log, P0)
        log.delete_topic(DATA)
        log.create_topic(DATA, partitions=2)
        for _ in range(0 if is_shorter else 9):
            log.append_directly(*P0, b"plain")
        # What is known is old: this is decided as if it had written to the former topic.
        txid = await committed(driver, P0)
        (_, decision) = journal(log, PrepareCommit)[-1]
        assert decision.placed == (P0,)
        done = await finished(driver, txid)
        assert not done.gone
        assert journal(log, Placed)[-1][1].ends == {former: GONE}
        ((_, ended, marker),) = controls(log, P0)
        assert ended == txid
        assert isinstance(marker, Marker)
        assert (marker.committed, marker.topic_id) == (True, former.topic_id)
        assert marker.branches
        # And the next one is ended as the topic of the name has it.
        if mode is Mode.METADATA:
            await switch(driver)
        later = await committed(driver, P0)
        await finished(driver, later)
        markers = [t for _, t, control in controls(log, P0) if isinstance(control, Marker)]
        assert markers == [txid] + [later] * (mode is Mode.MARKERS)


# ---- the switch ---------------------------------------------------------------------------------


@on_loop
async def test_partitions_that_are_added_meanwhile_get_their_mode_record(log: MemoryLog) -> None:
    async with running(log) as driver:
        log.hold_appends(*P1)
        switching = asyncio.create_task(switch(driver))
        await driver.until(lambda: len(controls(log, P0)) == 1)
        log.add_partitions(DATA, 3)
        log.release_appends(*P1)
        info = await switching
        assert sorted(info.since) == [0, 1, 2]
        assert len(controls(log, (DATA, 2))) == 1


@on_loop
async def test_a_switch_without_mode_records_states_the_ends(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {P1}
    without_leader(log, monkeypatch, held)
    async with running(log) as driver:
        switching = asyncio.create_task(switch(driver, without_records=True))
        await driver.until(lambda: bool(journal(log, ModeChange)))
        await asyncio.sleep(0.1)
        assert len(journal(log, ModeChange)) == 1, "a partition did not tell its end"
        held.clear()
        info = await switching
        assert info.since == {0: 5, 1: 0}
        assert not controls(log, P0)
        txid = await committed(driver, P0)
        await finished(driver, txid)
        assert not controls(log, P0)


@on_loop
@pytest.mark.parametrize("dies", [False, True])
async def test_a_switch_that_a_partition_holds_up_goes_on_without_mode_records(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    monkeypatch.setattr(lanes, "RETRY_MAX_MS", 50)
    async with running(log) as driver:
        refused = KafkaError.TOPIC_AUTHORIZATION_FAILED
        log.fail_appends(*P1, refused, 1_000_000)
        command = commands.SetTopicMode(topic=DATA, mode=Mode.METADATA)
        reply = await driver.ask(command)
        assert isinstance(reply, commands.TopicModes)
        await driver.until(lambda: len(controls(log, P0)) == 1)
        ((at, _, record),) = controls(log, P0)
        assert isinstance(record, ModeRecord)
        log.append_directly(*P0, b"plain")
        if not dies:
            info = await switch(driver, without_records=True)
    if dies:
        async with running(log) as driver:
            info = await switch(driver, without_records=True)
    assert info.mode_offset == reply.topics[0].mode_offset
    assert info.since[1] == 0
    assert info.since[0] > at
    async with running(log) as driver:
        # The partition takes nothing, and its transactions are placed.
        txid = await committed(driver, P0)
        await finished(driver, txid)
        assert len(journal(log, Placed)) == 1
    assert {txid.offset for _, txid, _ in controls(log, P0)} == {info.mode_offset}
    assert not controls(log, P1)


@on_loop
async def test_a_mode_is_published_and_a_new_owner_publishes_it_again(log: MemoryLog) -> None:
    async with running(log) as driver:
        assert MODES_TOPIC not in log.topics(), "before a topic is switched there is none"
        info = await switch(driver)
        first = registry(log)[DATA]
        assert first.phase is Phase.METADATA
        assert (first.mode_offset, first.since) == (info.mode_offset, info.since)
        assert first.home == (0, driver.runtime.shard.incarnation)
        assert log.topic_info(MODES_TOPIC).partition_count == 1
        assert log.topic_info(MODES_TOPIC).compacted
    async with running(log) as driver:
        await driver.until(lambda: len(rows(log)) == 4)
        begun, ended, again, removal = rows(log)
        assert begun.key == ended.key
        assert again.value == ended.value
        assert again.key != ended.key, "of its own epoch"
        assert (removal.key, removal.value) == (ended.key, None)
        assert registry(log)[DATA] == first


@on_loop
async def test_readers_are_told_of_a_switch_before_its_mode_records(log: MemoryLog) -> None:
    async with running(log) as driver:
        before = log.end_offset(DATA, 0)
        switching = asyncio.create_task(switch(driver))
        is_told = False
        while not is_told:
            await asyncio.sleep(0)
            is_recorded = log.end_offset(DATA, 0) > before
            is_told = MODES_TOPIC in log.topics() and bool(rows(log))
            assert is_told or not is_recorded
        assert Phase.TO_METADATA.value.encode() in (rows(log)[0].value or b"")
        await switching
        assert registry(log)[DATA].phase is Phase.METADATA


@on_loop
async def test_a_mode_that_is_not_written_is_written_again(log: MemoryLog) -> None:
    async with running(log) as driver:
        await switch(driver)
        log.fail_appends(MODES_TOPIC, 0, KafkaError.NOT_ENOUGH_REPLICAS)
        await switch(driver, Mode.MARKERS)
        assert registry(log)[DATA].phase is Phase.MARKERS


# ---- trimming -----------------------------------------------------------------------------------


def keeping_house(log: MemoryLog) -> AbstractAsyncContextManager[Driver]:
    """Returns a runtime that takes a snapshot every few records, and keeps no outcome."""
    config = HousekeepingConfig(snapshot_interval_records=10, outcome_retention_ms=0)
    return running(log, housekeeping=config)


@on_loop
async def test_the_journal_is_trimmed_when_the_data_passed_the_places(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping_module, "PUBLISH_AGAIN_S", (0.05,) * 500)
    monkeypatch.setattr(housekeeping_module, "LOOK_S", 0.02)
    async with keeping_house(log) as driver:
        await switch(driver)
        # In both, for on a busy machine the first fence may be written before the others are there.
        first = await committed(driver, P0, P1)
        await finished(driver, first)
        for _ in range(10):
            await finished(driver, await committed(driver, P1))
        fences = driver.runtime.shard.fences
        await driver.until(lambda: driver.runtime.tenure is not None and fences.waiting is not None)
        fence = fences.waiting
        assert fence is not None
        await asyncio.sleep(0.4)
        assert log.start_offset(JOURNAL_TOPIC, 0) <= first.offset, "its records are there"
        assert fences.waiting == fence
        log.delete_records(*P0, fence.last[id_of(log, P0)])
        await asyncio.sleep(0.2)
        assert log.start_offset(JOURNAL_TOPIC, 0) <= first.offset, "the other partition's too"
        log.delete_records(*P1, fence.last[id_of(log, P1)])
        await driver.until(lambda: log.start_offset(JOURNAL_TOPIC, 0) > first.offset)
        assert log.start_offset(JOURNAL_TOPIC, 0) <= fence.offset
