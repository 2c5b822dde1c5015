"""What a request costs does not depend on what waits, what is open, or what was ended before.

Findings 8, 12, 13, 15 and 16 of the coordinator: counted in what is looked at, not in time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from logtx.coordinator.core import tenure
from logtx.coordinator.core.clocks import STALE_MIN, Clocks
from logtx.coordinator.core.decision import Instant, ShardConfig
from logtx.coordinator.core.producers import ProducerMetadata, Producers
from logtx.coordinator.core.waiting import WaitingCommits
from logtx.coordinator.protocol import commands
from logtx.journal.records.types import Begin
from logtx.journal.txid import TxId

from ..harness import WALL_MS, step
from .test_clocks import transaction
from .test_shard_limits import Stage

SESSION = commands.SessionId("p", 0, 1)


class Counted(dict[int, int]):
    """Counts the keys that are looked at."""

    looked_at = 0

    def __iter__(self) -> Iterator[int]:
        for key in super().__iter__():
            self.looked_at += 1
            yield key


def begin_record(request_id: int, answered_below: int) -> Begin:
    """Returns a BEGIN."""
    return Begin(
        producer_id="p",
        generation=0,
        session_nonce=1,
        request_id=request_id,
        answered_below=answered_below,
        timeout_ms=1,
        started_ms=0,
        partitions=(),
    )


def test_finding_8_a_begin_costs_the_same_whatever_is_unanswered() -> None:
    producers, begins = Producers(), Counted()
    producers["p"] = ProducerMetadata(generation=0, nonce=1, owner="", begins=begins)
    for request_id in range(2, 10_000):
        producers.replay_begin(begin_record(request_id, 1), transaction(request_id, 1), 0)
    assert begins.looked_at < 10_000
    assert len(begins) == 9_998
    for request_id in range(10_000, 10_100):
        producers.replay_begin(begin_record(request_id, request_id), transaction(request_id, 1), 0)
    assert begins.looked_at < 3 * 10_000
    assert len(begins) == 1


def test_finding_8_a_begin_that_comes_again_late_is_known_until_its_answer_is() -> None:
    producers = Producers()
    producers["p"] = ProducerMetadata(generation=0, nonce=1, owner="")
    for request_id in (5, 6, 3, 7):
        producers.replay_begin(begin_record(request_id, 3), transaction(request_id, 1), 0)
    assert set(producers["p"].begins) == {3, 5, 6, 7}
    producers.replay_begin(begin_record(8, 7), transaction(8, 1), 0)
    assert set(producers["p"].begins) == {7, 8}


def end(begin: int) -> commands.End:
    """Returns a commit."""
    txid = TxId(0, 1, begin)
    return commands.End(session=SESSION, txid=txid, action=commands.Action.COMMIT, writes={})


def test_finding_13_a_decision_looks_only_at_commits_that_wait_for_it() -> None:
    waiting = WaitingCommits()
    for begin in range(1, 10_001):
        assert waiting.join(begin, end(begin), (begin,), [begin - 1], 10**9)
    waiting.wake(20_000)
    assert waiting.next_woken() is None
    waiting.wake(4_999)
    woken = waiting.next_woken()
    assert woken is not None
    assert woken[0] == 5_000
    assert waiting.next_woken() is None


def test_a_commit_that_waits_for_two_is_looked_at_after_each() -> None:
    waiting = WaitingCommits()
    waiting.join(5, end(5), ("ref",), [1, 2], 10**9)
    for decided in (2, 1):
        waiting.wake(decided)
        woken = waiting.next_woken()
        assert woken is not None
        assert woken[0] == 5
    assert waiting.pop(5) == ("ref",)
    waiting.wake(1)
    assert waiting.next_woken() is None


def test_finding_15_deadlines_of_ended_transactions_are_not_kept() -> None:
    clocks = Clocks(ShardConfig())
    for begin in range(50_000):
        clocks.begin(transaction(begin, 900_000))
        clocks.start(Instant(begin, WALL_MS))
        if begin >= 100:
            clocks.stop(begin - 100)
    assert len(clocks._deadlines) <= 2 * 101 + STALE_MIN
    assert clocks.expired(Instant(10**9, WALL_MS)) == 49_900


def test_a_transaction_that_ends_before_its_clock_starts_never_expires() -> None:
    clocks = Clocks(ShardConfig())
    clocks.begin(transaction(1, 5))
    clocks.stop(1)
    clocks.start(Instant(0, WALL_MS))
    assert clocks.expired(Instant(100, WALL_MS)) is None


@pytest.fixture
def few_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a turn have 50 decisions that no client asks for."""
    monkeypatch.setattr(tenure, "DUE_MAX", 50)


def ticks_until_quiet(stage: Stage) -> list[int]:
    """Lets the tenure tick until nothing is due. Returns how many records each tick appended."""
    coordinator, counts = stage.coordinator, []
    while True:
        before = coordinator.shard.next_offset
        coordinator.tenure.tick(coordinator.now, coordinator.topics)
        counts.append(coordinator.shard.next_offset - before)
        if not coordinator.tenure.more_due:
            return counts


@pytest.mark.usefixtures("few_in_a_turn")
def test_finding_16_what_is_due_at_once_is_done_in_many_turns() -> None:
    stage = Stage()
    session = stage.connect("p")
    for request_id in range(1, 211):
        stage.begun(session, request_id)
    stage.coordinator.now = Instant(10**6, WALL_MS)
    counts = ticks_until_quiet(stage)
    assert counts == [50] * 4 + [10]


@pytest.mark.usefixtures("few_in_a_turn")
def test_finding_16_a_producer_that_went_away_is_cleaned_up_in_many_turns() -> None:
    stage = Stage(max_timeout_ms=10**9)
    session = stage.connect("p")
    for request_id in range(1, 121):
        begin = commands.Begin(
            session=session, request_id=request_id, answered_below=request_id, timeout_ms=10**8
        )
        stage.ask(begin)
    stage.coordinator.tenure.detach("p", 1, stage.coordinator.now)
    stage.coordinator.now = Instant(10**6, WALL_MS)
    assert ticks_until_quiet(stage) == [50] * 2 + [20]


@pytest.mark.usefixtures("few_in_a_turn")
def test_finding_13_a_chain_of_commits_is_decided_in_many_turns() -> None:
    stage = Stage()
    session = stage.connect("p")
    txids = [stage.begun(session, 1 + at) for at in range(110)]
    for at, txid in enumerate(txids):
        steps = (step(("a", 0), at or None, at + 1),)
        stage.ask(commands.AddOffsets(session=session, txid=txid, group="g", steps=steps))
    for txid in txids[1:]:
        stage.ask(end_of(session, txid))
    before = stage.coordinator.shard.next_offset
    stage.ask(end_of(session, txids[0]))
    decided = [stage.coordinator.shard.next_offset - before]
    decided += ticks_until_quiet(stage)
    assert sum(decided) >= 110
    assert max(decided) <= 2 * (50 + 1)


def end_of(session: commands.SessionId, txid: TxId) -> commands.End:
    """Returns a commit of this transaction."""
    return commands.End(session=session, txid=txid, action=commands.Action.COMMIT, writes={})


def test_finding_14_an_acknowledgement_proves_nothing_of_those_before_it() -> None:
    stage = Stage()
    session = stage.connect("p")
    first, second = stage.begun(session, 1), stage.begun(session, 2)
    coordinator = stage.coordinator
    told: list[Any] = []
    for txid in (first, second):
        told.append(len(coordinator.replies))
        coordinator.submit(end_of(session, txid), f"end of {txid}")
    serving, offset = coordinator.tenure, coordinator.shard.next_offset - 1
    serving.acknowledged(offset, offset, coordinator.now.monotonic_ms)
    assert serving.over
    assert not any(
        isinstance(coordinator.replies.get(f"end of {txid}"), commands.Outcome)
        for txid in (first, second)
    )
