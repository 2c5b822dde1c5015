"""The runtime against a log that loses, delays and reorders: traps 1 to 6 and 13."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from confluent_kafka import KafkaError

from logtx.coordinator.core.decision import ShardConfig, TopicFacts
from logtx.coordinator.core.tenure import RECORD_MAX_BYTES
from logtx.coordinator.membership.balance import Member
from logtx.coordinator.protocol import commands
from logtx.coordinator.runtime.appender import WARM_S
from logtx.coordinator.runtime.candidate import IDLE_S
from logtx.coordinator.runtime.partition import Role
from logtx.coordinator.runtime.services import Services
from logtx.coordinator.runtime.serving import STILL_S
from logtx.coordinator.runtime.tail import Batch, Tail
from logtx.journal.control import TXCTL_HEADER, BranchRange, Marker, decode_control
from logtx.journal.errors import (
    CoordinatorLoadingError,
    JournalTruncatedError,
    NotCoordinatorError,
    OffsetsPendingError,
    ProducerFencedError,
    RequestTooLargeError,
    TransactionAbortedError,
    UnknownTransactionError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Place, Position
from logtx.journal.reader import (
    JOURNAL_TOPIC,
    OFFSETS_TOPIC,
    find_fates,
    read_entries,
    read_records,
)
from logtx.journal.records.codec import encode_entry
from logtx.journal.records.fate import NO_EPOCH
from logtx.journal.records.types import (
    AbortReason,
    Committed,
    Entry,
    OffsetStep,
    Owner,
    PrepareAbort,
)
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ..runtimes import DATA, TIMEOUT_S, Driver, abort, commit, loop_test, prepare, running

P0, P1 = (DATA, 0), (DATA, 1)


on_loop = loop_test(60)


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """An empty log with the topics that a runtime needs."""
    prepare(memory_log)
    return memory_log


def journal(log: MemoryLog) -> list[tuple[int, Entry]]:
    """Returns all records of journal partition 0 with their offsets."""
    end = log.end_offset(JOURNAL_TOPIC, 0)
    return list(read_entries(log, 0, 0, end, timeout_s=5))


def kinds(log: MemoryLog) -> list[str]:
    """Returns the record types in journal partition 0."""
    return [type(entry.record).__name__ for _, entry in journal(log)]


def markers(log: MemoryLog, partition: int = 0) -> list[Marker]:
    """Returns the markers in a data partition."""
    end = log.end_offset(DATA, partition)
    found = []
    for message in read_records(log, DATA, partition, 0, end, timeout_s=5):
        raw = dict(message.headers() or []).get(TXCTL_HEADER)
        control = decode_control(raw) if raw else None
        if isinstance(control, Marker):
            found.append(control)
    return found


async def outcome(driver: Driver, txid: TxId) -> State:
    """Returns a transaction's state, as a client is told."""
    reply = await driver.ask(commands.GetOutcome(txid=txid))
    assert isinstance(reply, commands.Outcome), reply
    return reply.state


@on_loop
async def test_straight_path_writes_markers_then_finishes(log: MemoryLog) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        txid = await driver.begun(session)
        reply = await driver.ask(commit(session, txid, P0, P1))
        assert isinstance(reply, commands.Outcome)
        assert reply.state is State.COMMITTING
        await driver.until(lambda: kinds(log)[-1] == "Committed")
        assert kinds(log) == ["Owner", "ProducerRecord", "Begin", "PrepareCommit", "Committed"]
        (marker,) = markers(log, 1)
        assert marker.committed
        assert marker.commit_sequence == reply.commit_sequence
        assert marker.hw == txid.offset
        assert set(marker.partitions) == {P0, P1}
        assert marker.branches == (BranchRange(0, 0, 0, 1),)
        assert await outcome(driver, txid) is State.COMMITTED


@on_loop
async def test_trap_1_a_retried_commit_waits_for_the_decision_in_flight(log: MemoryLog) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        txid = await driver.begun(session)
        log.hold_appends(JOURNAL_TOPIC, 0)
        first = driver.send(commit(session, txid, P0))
        again = driver.send(commit(session, txid, P0))
        await asyncio.sleep(0.1)
        assert not first.done()
        assert not again.done(), "told committed before the decision was durable"
        log.release_appends(JOURNAL_TOPIC, 0)
        for reply in await asyncio.wait_for(asyncio.gather(first, again), TIMEOUT_S):
            assert isinstance(reply, commands.Outcome)


@on_loop
async def test_trap_1_a_lost_decision_is_told_to_nobody(log: MemoryLog) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        txid = await driver.begun(session)
        log.fail_appends(JOURNAL_TOPIC, 0, KafkaError.NOT_LEADER_FOR_PARTITION)
        first = driver.send(commit(session, txid, P0))
        again = driver.send(commit(session, txid, P0))
        for reply in await asyncio.wait_for(asyncio.gather(first, again), TIMEOUT_S):
            assert isinstance(reply, CoordinatorLoadingError)
        await driver.serving()
        assert await outcome(driver, txid) is State.OPEN
        assert markers(log) == []
        reply = await driver.ask(commit(session, txid, P0))
        assert isinstance(reply, commands.Outcome)


@on_loop
async def test_trap_2_an_acknowledgement_behind_a_surprise_is_void(log: MemoryLog) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        one, two = await driver.begun(session), await driver.begun(session)
        log.hold_appends(JOURNAL_TOPIC, 0)
        first = driver.send(commit(session, one, P0))
        second = driver.send(commit(session, two, P0))
        # Another coordinator's OWNER takes the first commit's predicted place. The second commit
        # then lands where it was predicted, but in a dead epoch.
        epoch, incarnation = driver.runtime.shard.epoch, driver.runtime.shard.incarnation
        owner = Owner(replaces=epoch, address="127.0.0.1:2", process_nonce=2)
        log.append_directly(JOURNAL_TOPIC, 0, encode_entry(Entry(epoch, incarnation, owner)))
        log.release_appends(JOURNAL_TOPIC, 0)
        for reply in await asyncio.wait_for(asyncio.gather(first, second), TIMEOUT_S):
            assert isinstance(reply, CoordinatorLoadingError)
        fates = find_fates(log, [one, two], timeout_s=5)
        assert {f.state for f in fates.values()} == {State.OPEN}, "void commits count"


@on_loop
async def test_a_replaced_owner_stands_by_until_its_successor_is_presumed_dead(
    log: MemoryLog,
) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        txid = await driver.begun(session)
        shard = driver.runtime.shard
        owner = Owner(replaces=shard.epoch, address="127.0.0.1:2", process_nonce=2)
        entry = Entry(shard.epoch, shard.incarnation, owner)
        log.append_directly(JOURNAL_TOPIC, 0, encode_entry(entry))
        # An idle owner can't know; but an answer that could be stale asks for the journal's end.
        reply = await driver.ask(commands.GetOutcome(txid=txid))
        assert isinstance(reply, CoordinatorLoadingError)
        await driver.until(lambda: driver.runtime.role is Role.STANDBY)
        await asyncio.sleep(0.3)
        reply = await driver.ask(commands.GetOutcome(txid=txid))
        assert isinstance(reply, NotCoordinatorError)
        assert reply.hint == "127.0.0.1:2"
        driver.services.members.missed("127.0.0.1:2")
        await driver.serving()
        assert await outcome(driver, txid) is State.OPEN


@on_loop
async def test_trap_205_who_has_only_just_won_is_not_outbid(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def owned(replaces: int, nonce: int) -> int:
        owner = Owner(replaces=replaces, address=f"127.0.0.1:{nonce}", process_nonce=nonce)
        entry = Entry(replaces, driver.runtime.shard.incarnation, owner)
        return log.append_directly(JOURNAL_TOPIC, 0, encode_entry(entry))

    asked = Services.journal_end
    won: list[int] = []

    async def overtaken(services: Services, partition: int, known_end: int = 0) -> int:
        # Another candidate's OWNER lands while we ask. It is alive, and its news is under way.
        if not won and driver.runtime.epoch == dead:
            won.append(owned(dead, 3))
        return await asked(services, partition, known_end)

    async with running(log) as driver:
        await driver.connect()
        members = driver.services.members
        members.link(Member(nonce=3, address="127.0.0.1:3"))
        dead = owned(driver.runtime.epoch, 2)
        driver.runtime.doubt()
        await driver.until(lambda: driver.runtime.role is Role.STANDBY)
        monkeypatch.setattr(Services, "journal_end", overtaken)
        members.missed("127.0.0.1:2")
        await driver.until(lambda: driver.runtime.epoch == (won or [None])[0])
        members.tell(Member(nonce=3, address="127.0.0.1:3", owned={0: won[0]}))
        await asyncio.sleep(2 * IDLE_S)
        assert kinds(log)[-1] == "Owner"
        assert driver.runtime.epoch == won[0], "it was outbid"


@on_loop
async def test_a_stranger_right_behind_owner_spoils_the_epoch_before_it_is_served(
    log: MemoryLog,
) -> None:
    async with running(log, serve=False) as driver:
        journal = driver.services.journal
        append = journal.append
        tasks = []

        def delayed(topic: str, partition: int, acknowledge: Any, **record: Any) -> None:
            def told(offset: int | None, error: KafkaError | None) -> None:
                tasks.append(asyncio.ensure_future(read_on(offset, error)))

            async def read_on(offset: int | None, error: KafkaError | None) -> None:
                # A zombie's record lands, and is read before OWNER's acknowledgement is.
                late = PrepareAbort(begin=0, reason=AbortReason.REQUESTED, decided_ms=0)
                value = encode_entry(Entry(NO_EPOCH, 0, late))
                end = log.append_directly(JOURNAL_TOPIC, 0, value) + 1
                await driver.until(lambda: driver.runtime.shard.next_offset == end)
                acknowledge(offset, error)

            journal.append = append  # type: ignore[method-assign]
            append(topic, partition, told, **record)

        journal.append = delayed  # type: ignore[method-assign]
        await driver.serving()
        assert tasks
        assert driver.runtime.epoch == 2, "served under a spoilt epoch"
        session = await driver.connect()
        txid = await driver.begun(session)
        assert isinstance(await driver.ask(commit(session, txid, P0)), commands.Outcome)
        assert find_fates(log, [txid], timeout_s=5)[txid].state.commits


@on_loop
async def test_who_stood_still_appends_nothing_before_it_knows_that_it_is_the_owner(
    log: MemoryLog,
) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        txid = await driver.begun(session, timeout_ms=200)
        shard = driver.runtime.shard
        owner = Owner(replaces=shard.epoch, address="127.0.0.1:2", process_nonce=2)
        entry = Entry(shard.epoch, shard.incarnation, owner)
        log.append_directly(JOURNAL_TOPIC, 0, encode_entry(entry))
        time.sleep(2 * STILL_S)  # noqa: ASYNC251 - the whole process stands still
        replies = [driver.send(driver.begin(session)), driver.send(commit(session, txid, P0))]
        for reply in await asyncio.wait_for(asyncio.gather(*replies), TIMEOUT_S):
            assert isinstance(reply, CoordinatorLoadingError)
        await driver.until(lambda: driver.runtime.role is Role.STANDBY)
        assert kinds(log) == ["Owner", "ProducerRecord", "Begin", "Owner"]


@on_loop
async def test_who_stood_still_and_still_is_the_owner_goes_on(log: MemoryLog) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        txid = await driver.begun(session)
        log.hold_appends(DATA, 0)
        await driver.ask(commit(session, txid, P0))
        epoch = driver.runtime.epoch
        time.sleep(2 * STILL_S)  # noqa: ASYNC251 - the whole process stands still
        begun = driver.send(driver.begin(session))
        log.release_appends(DATA, 0)
        assert isinstance(await asyncio.wait_for(begun, TIMEOUT_S), commands.Began)
        await driver.until(lambda: "Committed" in kinds(log))
        assert driver.runtime.epoch == epoch


@on_loop
async def test_a_standby_takes_nothing_before_it_reads_the_journal_closely(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A consumer's first fetch takes up to half a second, which would be part of the move.
    log.append_directly(
        JOURNAL_TOPIC,
        0,
        encode_entry(
            Entry(NO_EPOCH, 7, Owner(replaces=NO_EPOCH, address="127.0.0.1:2", process_nonce=2))
        ),
    )
    read_on, hand_over = asyncio.Event(), Tail._hand_over

    def late(self: Tail, batches: list[Batch]) -> None:
        if read_on.is_set():
            hand_over(self, batches)

    monkeypatch.setattr(Tail, "_hand_over", late)
    async with running(log, serve=False) as driver:
        await driver.until(lambda: driver.runtime.role is Role.STANDBY)
        await asyncio.sleep(WARM_S)
        assert not driver.runtime.is_ready
        read_on.set()
        log.append_directly(JOURNAL_TOPIC, 0, encode_entry(Entry(NO_EPOCH, 7, Committed(begin=0))))
        await driver.until(lambda: driver.runtime.is_ready)


@on_loop
async def test_trap_3_a_delayed_abort_of_a_dead_epoch_harms_nobody(log: MemoryLog) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        old_epoch, incarnation = driver.runtime.shard.epoch, driver.runtime.shard.incarnation
        log.fail_appends(JOURNAL_TOPIC, 0, KafkaError.NOT_LEADER_FOR_PARTITION)
        reply = await driver.ask(driver.begin(session))
        assert isinstance(reply, CoordinatorLoadingError)
        await driver.serving()
        txid = await driver.begun(session)
        late = PrepareAbort(begin=txid.offset, reason=AbortReason.REQUESTED, decided_ms=0)
        log.append_directly(JOURNAL_TOPIC, 0, encode_entry(Entry(old_epoch, incarnation, late)))
        reply = await driver.ask(commands.GetOutcome(txid=txid))
        assert isinstance(reply, CoordinatorLoadingError), "a foreign record is a surprise"
        await driver.serving()
        reply = await driver.ask(commit(session, txid, P0))
        assert isinstance(reply, commands.Outcome)
        assert find_fates(log, [txid], timeout_s=5)[txid].state.commits


@on_loop
async def test_trap_4_hw_counts_acknowledged_records_only(log: MemoryLog) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        txid = await driver.begun(session)
        await driver.ask(commit(session, txid, P0))
        await driver.until(lambda: kinds(log)[-1] == "Committed")
        log.hold_appends(JOURNAL_TOPIC, 0)
        begun = driver.send(driver.begin(session))
        next_begin = driver.runtime.shard.next_offset - 1
        assert driver.runtime.shard.hw <= next_begin
        log.release_appends(JOURNAL_TOPIC, 0)
        reply = await begun
        assert isinstance(reply, commands.Began)
        assert driver.runtime.shard.hw <= reply.txid.offset


@on_loop
async def test_trap_5_an_append_at_another_offset_is_a_surprise(log: MemoryLog) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        log.append_directly(JOURNAL_TOPIC, 0, b"\x01\x05")  # a foreign writer, not even decodable
        reply = await driver.ask(driver.begin(session))
        assert isinstance(reply, CoordinatorLoadingError), "two TxIds alike"


@on_loop
async def test_an_undecodable_record_stops_the_partition_and_says_where(log: MemoryLog) -> None:
    log.append_directly(JOURNAL_TOPIC, 0, b"\x01\x03nonsense")
    async with running(log, serve=False) as driver:
        await driver.until(lambda: driver.runtime.role is Role.FAILED)
        reply = await driver.ask(commands.ListTransactions())
        assert "at offset 0" in str(reply)


@on_loop
async def test_trap_6_a_command_too_large_fails_its_client_alone(log: MemoryLog) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        txid, other = await driver.begun(session), await driver.begun(session)
        ranges = tuple(BranchRange(n, 0, 0, 1) for n in range(RECORD_MAX_BYTES // 4))
        driver.services.topics[DATA] = TopicFacts(
            topic_id="", partition_count=2, record_max_bytes=2**31
        )
        huge = commands.End(
            session=session, txid=txid, action=commands.Action.COMMIT, writes={P0: ranges}
        )
        for _ in range(2):
            assert isinstance(await driver.ask(huge), RequestTooLargeError)
        assert driver.runtime.role is Role.SERVING
        assert isinstance(await driver.ask(commit(session, other, P0)), commands.Outcome)
        assert isinstance(await driver.ask(abort(session, txid)), commands.Outcome)


@on_loop
async def test_trap_10_a_journal_that_lost_its_tail_is_refused(log: MemoryLog) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        txid = await driver.begun(session)
        log.truncate(JOURNAL_TOPIC, 0, txid.offset)
        reply = await driver.ask(driver.begin(session))
        assert isinstance(reply, CoordinatorLoadingError)
        await driver.until(lambda: driver.runtime.role is Role.FAILED)
        reply = await driver.ask(commands.ListTransactions())
        assert isinstance(reply, JournalTruncatedError)


@on_loop
async def test_trap_13_expiry_races_the_commit_and_one_decides(log: MemoryLog) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        txid = await driver.begun(session, timeout_ms=50)
        await driver.until(lambda: "PrepareAbort" in kinds(log))
        reply = await driver.ask(commit(session, txid, P0))
        assert isinstance(reply, TransactionAbortedError)
        assert [k for k in kinds(log) if k.startswith("Prepare")] == ["PrepareAbort"]


@on_loop
async def test_trap_13_a_newer_generation_fences_and_aborts(log: MemoryLog) -> None:
    async with running(log) as driver:
        old = await driver.connect(nonce=1)
        txid = await driver.begun(old)
        await driver.ask(commands.AddPartitions(txid=txid, partitions=(P0,), session=old))
        new = await driver.connect(nonce=2)
        assert new.generation == old.generation + 1
        assert driver.closed[0][0] == "p"
        assert isinstance(await driver.ask(commit(old, txid, P0)), TransactionAbortedError)
        assert isinstance(await driver.ask(driver.begin(old)), ProducerFencedError)
        await driver.until(lambda: bool(markers(log)))
        assert not markers(log)[0].committed


@on_loop
async def test_markers_stand_in_commit_sequence_order_whatever_the_partition_refuses(
    log: MemoryLog,
) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        txids = [await driver.begun(session) for _ in range(30)]
        for count, txid in enumerate(reversed(txids)):
            if count % 7 == 3:
                log.fail_appends(DATA, 0, KafkaError.INVALID_RECORD)
            if count % 5 == 2:
                log.lose_acknowledgements(DATA, 0)
            await driver.ask(commit(session, txid, P0, P1))
        await driver.until(lambda: kinds(log).count("Committed") == len(txids))
        for partition in (0, 1):
            found = [m.commit_sequence for m in markers(log, partition)]
            firsts = list(dict.fromkeys(found))
            assert firsts == sorted(firsts)
            assert len(firsts) == len(txids)


@on_loop
async def test_trap_12_a_deleted_topic_finishes_and_the_journal_says_so(log: MemoryLog) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        txid = await driver.begun(session)
        await driver.ask(commands.AddPartitions(txid=txid, partitions=(P0,), session=session))
        log.delete_topic(DATA)
        assert isinstance(await driver.ask(abort(session, txid)), commands.Outcome)
        await driver.until(lambda: kinds(log)[-1] == "Aborted")
        assert journal(log)[-1][1].record.gone == (P0,)


@on_loop
async def test_restart_redoes_markers_and_keeps_what_is_open(log: MemoryLog) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        decided, still_open = await driver.begun(session), await driver.begun(session)
        log.hold_appends(DATA, 0)
        await driver.ask(commit(session, decided, P0))
    log.release_appends(DATA, 0)
    async with running(log) as driver:
        await driver.until(lambda: kinds(log)[-1] == "Committed")
        again = await driver.connect(nonce=1)
        assert again.generation == session.generation, "an honest re-attach"
        reply = await driver.ask(commit(again, still_open, P0))
        assert isinstance(reply, commands.Outcome)
        assert await outcome(driver, decided) is State.COMMITTED


@on_loop
async def test_a_retried_begin_gets_the_same_txid_across_a_restart(log: MemoryLog) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        request = driver.begin(session)
        first = await driver.ask(request)
        assert await driver.ask(request) == first
    async with running(log) as driver:
        await driver.connect(nonce=1)
        assert await driver.ask(request) == first


def step(group_from: int | None, to: int) -> OffsetStep:
    """Returns a step of the input partition in[0]."""
    from_place = None if group_from is None else Place(group_from)
    return OffsetStep("in", 0, from_place, Position.at(to))


@on_loop
async def test_trap_26_a_pipelined_commit_behind_an_aborted_one_conflicts(log: MemoryLog) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        t0, t1 = await driver.begun(session), await driver.begun(session)
        for txid, moved in ((t0, step(None, 1)), (t1, step(1, 2))):
            add = commands.AddOffsets(session=session, txid=txid, group="g", steps=(moved,))
            assert await driver.ask(add) == commands.Done()
        waiting = driver.send(commit(session, t1, P0))
        await asyncio.sleep(0.05)
        assert not waiting.done(), "decided before the offsets it continues were"
        assert isinstance(await driver.ask(commands.FetchOffsets(group="g")), OffsetsPendingError)
        await driver.ask(abort(session, t0))
        assert "continue" in str(await asyncio.wait_for(waiting, TIMEOUT_S))
        await driver.ask(abort(session, t1))
        assert await driver.ask(commands.FetchOffsets(group="g")) == commands.GroupOffsets({})


@on_loop
async def test_one_decision_releases_every_commit_that_waited(log: MemoryLog) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        txids = [await driver.begun(session) for _ in range(4)]
        for n, txid in enumerate(txids):
            moved = step(n or None, n + 1)
            await driver.ask(
                commands.AddOffsets(session=session, txid=txid, group="g", steps=(moved,))
            )
        later = [driver.send(commit(session, txid, P0)) for txid in txids[:0:-1]]
        await driver.ask(commit(session, txids[0], P0))
        replies = await asyncio.wait_for(asyncio.gather(*later), TIMEOUT_S)
        assert all(isinstance(reply, commands.Outcome) for reply in replies), replies
        reply = await driver.ask(commands.FetchOffsets(group="g"))
        assert isinstance(reply, commands.GroupOffsets)
        assert reply.offsets == {("in", 0): Position.at(4)}
        assert reply.last_commit == txids[-1]
        await driver.until(lambda: log.end_offset(OFFSETS_TOPIC, 0) > 0)


@on_loop
async def test_old_outcomes_are_found_in_the_journal(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logtx.coordinator.core.transactions.OUTCOMES_MAX", 1)
    async with running(log) as driver:
        session = await driver.connect()
        txids = [await driver.begun(session) for _ in range(3)]
        await driver.ask(abort(session, txids[0]))
        for txid in txids[1:]:
            await driver.ask(commit(session, txid, P0))
        await driver.until(lambda: kinds(log).count("Committed") == 2)
        assert await outcome(driver, txids[0]) is State.ABORTED
        assert await outcome(driver, txids[1]) is State.COMMITTED
        assert isinstance(await driver.ask(commit(session, txids[1], P0)), commands.Outcome)
        assert isinstance(await driver.ask(commit(session, txids[0])), TransactionAbortedError)
        never = TxId(0, txids[0].incarnation, txids[0].offset - 1)
        assert await outcome(driver, never) is State.UNKNOWN
        assert isinstance(await driver.ask(commit(session, never)), UnknownTransactionError)


@on_loop
async def test_a_client_that_went_away_is_aborted_after_the_grace(log: MemoryLog) -> None:
    async with running(log, ShardConfig(session_grace_ms=50)) as driver:
        session = await driver.connect()
        first, second = await driver.begun(session), await driver.begun(session)
        driver.runtime.detach("p", 1)
        await driver.until(lambda: kinds(log).count("PrepareAbort") == 2)
        fates = find_fates(log, [first, second], timeout_s=5)
        assert {f.reason for f in fates.values()} == {AbortReason.DISCONNECTED}


@on_loop
async def test_a_client_that_comes_back_in_time_loses_nothing(log: MemoryLog) -> None:
    async with running(log, ShardConfig(session_grace_ms=100)) as driver:
        session = await driver.connect()
        txid = await driver.begun(session)
        driver.runtime.detach("p", 1)
        driver.runtime.attach("p")
        await asyncio.sleep(0.2)
        assert await outcome(driver, txid) is State.OPEN
