"""A log that refuses for a moment costs a moment; a thread or task that ends is noticed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection
from functools import partial
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from logtx.coordinator.protocol import commands
from logtx.coordinator.runtime import partition
from logtx.coordinator.runtime import serving as shell
from logtx.coordinator.runtime.appender import Appender
from logtx.coordinator.runtime.loading import load
from logtx.coordinator.runtime.partition import Role
from logtx.coordinator.runtime.questions import Questions
from logtx.coordinator.runtime.tail import Batch, Tail
from logtx.coordinator.tasks import Failures
from logtx.journal.errors import CoordinatorLoadingError, UnknownRecordError, UnknownTopicError
from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.records.fate import Fate
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ..runtimes import DATA, TIMEOUT_S, abort, loop_test, prepare, running


class BugError(Exception):
    """An error that no code expects."""


UNKNOWN = UnknownTopicError("there is no such partition")
KAFKA = KafkaException(KafkaError(KafkaError._FAIL))
passing = pytest.mark.parametrize("error", [UNKNOWN, KAFKA], ids=["unknown_topic", "kafka"])


on_loop = loop_test(30)


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """An empty log with the topics that a runtime needs."""
    prepare(memory_log)
    return memory_log


def fails(owner: object, method: str, error: Exception, count: int = 1) -> list[Exception]:
    """Lets the next `count` calls of a method fail; returns the list of errors still to come."""
    left, call = [error] * count, getattr(owner, method)

    def failing(*args: Any, **kwargs: Any) -> Any:
        if left:
            raise left.pop()
        return call(*args, **kwargs)

    setattr(owner, method, failing)
    return left


@pytest.mark.parametrize("method", ["start_offset", "end_offset"])
@pytest.mark.parametrize("count", [1, 2])
@passing
@on_loop
async def test_a_journal_that_is_unknown_for_a_moment_is_loaded_again(
    log: MemoryLog, method: str, count: int, error: Exception
) -> None:
    left = fails(log, method, error, count)
    async with running(log) as driver:
        assert not left
        assert driver.runtime.failure is None


@on_loop
async def test_finding_10_a_journal_that_cant_be_read_is_loaded_again(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "FAILED_PAUSE_S", 0.2)
    left = fails(partition, "load", UnknownRecordError("upgrade this program"))
    try:
        async with running(log, serve=False) as driver:
            await driver.until(lambda: driver.runtime.role is Role.FAILED)
            assert isinstance(driver.runtime.failure, UnknownRecordError)
            await driver.serving()
            assert driver.runtime.failure is None
    finally:
        monkeypatch.setattr(partition, "load", load)
    assert not left


@pytest.mark.parametrize("method", ["start_offset", "group_offset"])
@on_loop
async def test_finding_18_a_broker_that_does_not_answer_holds_no_loading_thread(
    log: MemoryLog, method: str
) -> None:
    go_on, asked, answer = threading.Event(), threading.Event(), getattr(log, method)

    def hangs(*args: Any, **named: Any) -> Any:
        asked.set()
        assert go_on.wait(TIMEOUT_S)
        return answer(*args, **named)

    setattr(log, method, hangs)
    async with running(log, serve=False) as driver:
        try:
            await driver.until(asked.is_set)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(TIMEOUT_S / 2):
                await loop.run_in_executor(driver.services.loading, time.monotonic)
            assert driver.runtime.role is Role.LOADING
        finally:
            go_on.set()
        await driver.serving()


@passing
@on_loop
async def test_a_bid_in_a_journal_that_is_unknown_for_a_moment_is_made_again(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    left: list[Exception] = []

    async with running(log, serve=False) as driver:
        turn = driver.runtime._candidate.turn

        async def turn_then_fail() -> None:
            await turn()
            monkeypatch.undo()
            left.extend(fails(log, "end_offset", error))

        monkeypatch.setattr(driver.runtime._candidate, "turn", turn_then_fail)
        await driver.serving()
        assert driver.runtime.failure is None


@passing
@on_loop
async def test_a_question_for_the_end_that_fails_is_told_and_the_next_is_asked(
    log: MemoryLog, error: Exception
) -> None:
    async with running(log) as driver:
        session = await driver.connect()
        txid = await driver.begun(session)
        for _ in range(10):
            left = fails(log, "end_offset", error)
            reply = await driver.ask(commands.GetOutcome(txid=txid))
            assert not left
            # On a busy machine the owner may have asked just then, and had the error.
            if isinstance(reply, CoordinatorLoadingError):
                break
        else:
            pytest.fail(f"got {reply}")
        assert isinstance(await driver.ask(commands.GetOutcome(txid=txid)), commands.Outcome)


@on_loop
async def test_a_leader_that_slept_and_tells_its_old_end_is_asked_again(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logtx.coordinator.runtime.loading.CONFIRM_S", TIMEOUT_S)
    async with running(log) as driver:
        session = await driver.connect()
        txid = await driver.begun(session)
        old, end_offset = [1, 1, 0], log.end_offset

        def told(topic: str, partition: int, *, timeout_s: float = 10) -> int:
            if topic == JOURNAL_TOPIC and old:
                return old.pop()
            return end_offset(topic, partition, timeout_s=timeout_s)

        monkeypatch.setattr(log, "end_offset", told)
        assert isinstance(await driver.ask(commands.GetOutcome(txid=txid)), commands.Outcome)
        assert not old
        assert driver.runtime.role is Role.SERVING
        assert driver.runtime.failure is None


@pytest.mark.parametrize(
    ("method", "error"), [("consumer", KAFKA), ("start_offset", UNKNOWN)], ids=["consumer", "start"]
)
@on_loop
async def test_a_look_up_that_fails_is_answered(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception
) -> None:
    monkeypatch.setattr("logtx.coordinator.core.transactions.OUTCOMES_MAX", 1)
    async with running(log) as driver:
        session = await driver.connect()
        txids = [await driver.begun(session) for _ in range(3)]
        for txid in txids:
            await driver.ask(abort(session, txid))
        left = fails(log, method, error)
        reply = await driver.ask(commands.GetOutcome(txid=txids[0]))
        assert not left
        assert isinstance(reply, CoordinatorLoadingError)
        assert isinstance(await driver.ask(commands.GetOutcome(txid=txids[0])), commands.Outcome)


@on_loop
async def test_trap_63_a_former_leader_of_the_journal_makes_nothing_unknown(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logtx.coordinator.core.transactions.OUTCOMES_MAX", 1)
    async with running(log) as driver:
        session = await driver.connect()
        txids = [await driver.begun(session) for _ in range(3)]
        for txid in txids:
            await driver.ask(abort(session, txid))
        find = shell.find_fates

        class FormerLeader:
            def __getattr__(self, name: str) -> Any:
                return getattr(log, name)

            def end_offset(self, *_: Any, **__: Any) -> int:
                return txids[0].offset

        def of_the_past(_: Log, *asked: Any, **more: Any) -> dict[TxId, Fate]:
            return find(cast(Log, FormerLeader()), *asked, **more)

        monkeypatch.setattr(shell, "find_fates", of_the_past)
        reply = await driver.ask(commands.GetOutcome(txid=txids[0]))
        assert isinstance(reply, CoordinatorLoadingError)
        monkeypatch.setattr(shell, "find_fates", find)
        reply = await driver.ask(commands.GetOutcome(txid=txids[0]))
        assert isinstance(reply, commands.Outcome)
        assert reply.state is State.ABORTED


@passing
@on_loop
async def test_a_publication_that_fails_is_made_again(log: MemoryLog, error: Exception) -> None:
    left = fails(log, "commit_group_offset", error)
    async with running(log) as driver:
        serving = driver.runtime._serving
        assert serving is not None
        await asyncio.wait_for(serving.housekeeping.published.wait(), TIMEOUT_S)
        assert not left
        assert driver.runtime.role is Role.SERVING


@on_loop
async def test_a_question_that_nobody_expects_to_fail_ends_the_process(log: MemoryLog) -> None:
    failures = Failures(asyncio.get_running_loop())
    async with running(log) as driver:
        session = await driver.connect()
        txid = await driver.begun(session)
        fails(log, "end_offset", BugError())
        driver.send(commands.GetOutcome(txid=txid))
        with pytest.raises(BugError):
            await asyncio.wait_for(failures.first, TIMEOUT_S)


@on_loop
async def test_look_ups_do_not_hold_up_the_loading(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logtx.coordinator.core.transactions.OUTCOMES_MAX", 1)
    find, go_on = shell.find_fates, threading.Event()
    scans: list[int] = []

    def slow(log: Log, txids: Collection[TxId], **kwargs: Any) -> dict[TxId, Fate]:
        scans.append(len(txids))
        assert go_on.wait(TIMEOUT_S)
        return find(log, txids, **kwargs)

    monkeypatch.setattr(shell, "find_fates", slow)
    async with running(log) as driver:
        session = await driver.connect()
        txids = [await driver.begun(session) for _ in range(4)]
        for txid in txids:
            await driver.ask(abort(session, txid))
        looking_up = [driver.send(commands.GetOutcome(txid=txids[0]))]
        await driver.until(lambda: scans == [1])
        looking_up += [
            driver.send(commands.GetOutcome(txid=txid)) for txid in (*txids[:3], txids[0])
        ]
        serving = driver.runtime._serving
        assert serving is not None
        await driver.until(lambda: len(serving._wanted) == len(looking_up) - 1)
        try:
            log.fail_appends(JOURNAL_TOPIC, 0, KafkaError.NOT_LEADER_FOR_PARTITION)
            assert isinstance(await driver.ask(driver.begin(session)), CoordinatorLoadingError)
            await driver.serving()
            assert not any(reply.done() for reply in looking_up)
        finally:
            go_on.set()
        for reply in looking_up:
            assert isinstance(await asyncio.wait_for(reply, TIMEOUT_S), commands.Outcome)
    assert scans == [1, 3], "one scan for all that came during the first"


@on_loop
async def test_a_broker_that_hangs_holds_up_no_other_question(log: MemoryLog) -> None:
    """One of two journal partitions has a leader that does not answer."""
    go_on = threading.Event()
    questions = Questions()
    try:
        stuck = [
            asyncio.ensure_future(questions.ask("end-0", go_on.wait, TIMEOUT_S)) for _ in range(64)
        ]
        async with asyncio.timeout(TIMEOUT_S / 2):
            assert await questions.ask("end-1", log.end_offset, JOURNAL_TOPIC, 0) == 0
        assert not any(question.done() for question in stuck)
    finally:
        go_on.set()
        questions.close()
    await asyncio.gather(*stuck, return_exceptions=True)


@on_loop
async def test_who_waits_for_threads_of_everybody_holds_up_no_answer(log: MemoryLog) -> None:
    go_on = threading.Event()
    async with running(log) as driver:
        session = await driver.connect()
        txid = await driver.begun(session)
        others = [asyncio.ensure_future(asyncio.to_thread(go_on.wait, 30)) for _ in range(64)]
        try:
            assert isinstance(await driver.ask(commands.GetOutcome(txid=txid)), commands.Outcome)
        finally:
            go_on.set()
            await asyncio.gather(*others)


# ---- threads ------------------------------------------------------------------------------------


@on_loop
async def test_a_tail_makes_its_consumer_again(log: MemoryLog) -> None:
    left = fails(log, "consumer", KAFKA)
    delivered = asyncio.Event()

    def take(_batch: Batch) -> None:
        delivered.set()

    tail = Tail(log, take)
    tail.follow(0, 0)
    await asyncio.wait_for(delivered.wait(), TIMEOUT_S)
    assert not left
    await tail.close()


@on_loop
async def test_a_tail_that_ends_by_a_bug_ends_the_process(log: MemoryLog) -> None:
    failures = Failures(asyncio.get_running_loop())
    fails(log, "consumer", BugError())
    tail = Tail(log, lambda _batch: None)
    with pytest.raises(BugError):
        await asyncio.wait_for(failures.first, TIMEOUT_S)
    await tail.close()


@on_loop
async def test_an_appender_that_ends_by_a_bug_ends_the_process(log: MemoryLog) -> None:
    failures = Failures(asyncio.get_running_loop())
    appender = Appender(log, {}, "appender")
    left = fails(appender._producer, "flush", BugError())
    with pytest.raises(BugError):
        await asyncio.wait_for(failures.first, TIMEOUT_S)
    assert not left
    await appender.close()


@on_loop
async def test_a_fatal_error_during_a_flush_is_not_forgotten(log: MemoryLog) -> None:
    appender = Appender(log, {}, "appender")
    former = appender._producer
    fatal = KafkaException(KafkaError(KafkaError._FATAL, fatal=True))
    refusals = fails(former, "produce", fatal)
    flush = former.flush

    def append_meanwhile(timeout: float = -1) -> int:
        if refusals:
            appender.append(DATA, 0, lambda *_: None, value=b"of another thread")
            appender._send()
        return flush(timeout)

    former.flush = append_meanwhile  # type: ignore[method-assign]
    appender._flush(0)
    appender.renew_if_broken()
    assert appender._producer is not former, "it goes on with a producer that takes nothing"
    await appender.close()


@on_loop
async def test_what_a_former_producer_says_late_breaks_no_other(log: MemoryLog) -> None:
    appender = Appender(log, {}, "appender")
    former = appender._producer
    fatal = KafkaException(KafkaError(KafkaError._FATAL, fatal=True))
    fails(former, "produce", fatal)
    flush = former.flush

    def renew_meanwhile(timeout: float = -1) -> int:
        former.flush = flush  # type: ignore[method-assign]
        appender.append(DATA, 0, lambda *_: None, value=b"refused")
        appender._send()
        appender.renew_if_broken()
        flush(timeout)
        raise fatal

    former.flush = renew_meanwhile  # type: ignore[method-assign]
    appender._flush(0)
    current = appender._producer
    assert current is not former
    appender.renew_if_broken()
    assert appender._producer is current
    await appender.close()


@on_loop
async def test_a_burst_of_a_broken_producer_is_not_given_to_its_successor(log: MemoryLog) -> None:
    appender = Appender(log, {}, "appender")
    former = appender._producer
    fatal = KafkaException(KafkaError(KafkaError._FATAL, fatal=True))
    left = fails(former, "produce", fatal, count=2)
    answers: list[tuple[int, int | None]] = []
    all_answered = asyncio.Event()

    def answer(number: int, offset: int | None, _error: KafkaError | None) -> None:
        answers.append((number, offset))
        if len(answers) == 3:
            all_answered.set()

    appender.append(DATA, 0, partial(answer, 0), value=b"0")
    appender._send()
    appender.append(DATA, 0, partial(answer, 1), value=b"1")
    appender.renew_if_broken()
    appender.append(DATA, 0, partial(answer, 2), value=b"2")
    await asyncio.wait_for(all_answered.wait(), TIMEOUT_S)
    assert sorted(answers) == [(0, None), (1, None), (2, 0)]
    assert not left
    assert appender._producer is not former
    await appender.close()


@on_loop
async def test_what_is_appended_in_one_turn_is_sent_at_its_end_in_order(log: MemoryLog) -> None:
    appender = Appender(log, {}, "appender")
    sent: list[Any] = []
    produce = appender._producer.produce

    def recorded(topic: str, value: bytes, *args: Any, **options: Any) -> None:
        sent.append(value)
        produce(topic, value, *args, **options)

    appender._producer.produce = recorded  # type: ignore[method-assign]
    offsets: list[int | None] = []
    all_answered = asyncio.Event()

    def answer(offset: int | None, _error: KafkaError | None) -> None:
        offsets.append(offset)
        if len(offsets) == 3:
            all_answered.set()

    for number in range(3):
        appender.append(DATA, 0, answer, value=b"%d" % number)
    assert not sent
    await asyncio.wait_for(all_answered.wait(), TIMEOUT_S)
    assert sent == [b"0", b"1", b"2"]
    assert offsets == [0, 1, 2]
    await appender.close()


@on_loop
async def test_what_is_appended_just_before_the_close_is_sent(log: MemoryLog) -> None:
    appender = Appender(log, {}, "appender")
    offsets: list[int | None] = []
    appender.append(DATA, 0, lambda offset, _error: offsets.append(offset), value=b"last")
    await appender.close()
    await asyncio.sleep(0)
    assert offsets == [0]
