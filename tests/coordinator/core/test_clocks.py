"""Deadlines go by a clock that never jumps; a wall clock that jumps aborts nothing early."""

from __future__ import annotations

import pytest

from logtx.coordinator.core.clocks import STALE_MIN, Clocks
from logtx.coordinator.core.decision import Instant, ShardConfig
from logtx.coordinator.core.transactions import TransactionMetadata
from logtx.journal.txid import TxId

NOON_MS = 1_700_000_000_000


def transaction(begin: int, timeout_ms: int) -> TransactionMetadata:
    """Returns a transaction that began at noon."""
    return TransactionMetadata(
        txid=TxId(0, 1, begin),
        producer_id=f"p{begin}",
        generation=0,
        timeout_ms=timeout_ms,
        started_ms=NOON_MS,
    )


def expired(clocks: Clocks, monotonic_ms: int, wall_ms: int = NOON_MS) -> list[int]:
    """Takes all transactions that are past their deadline, in order; returns their BEGINs."""
    found = []
    while (begin := clocks.expired(Instant(monotonic_ms, wall_ms))) is not None:
        found.append(begin)
    return found


def test_expiry_goes_by_deadline_not_by_age() -> None:
    clocks = Clocks(ShardConfig())
    for begin, timeout_ms in ((1, 300), (2, 100), (3, 200), (4, 900)):
        clocks.begin(transaction(begin, timeout_ms))
    clocks.start(Instant(1_000, NOON_MS))
    assert expired(clocks, 1_099) == []
    assert expired(clocks, 1_300) == [2, 3, 1]
    assert expired(clocks, 1_300) == [], "each once"


@pytest.mark.parametrize("jump_ms", [-(10**10), -1, 0, 1, 10**10])
def test_a_wall_clock_that_jumps_while_serving_changes_nothing(jump_ms: int) -> None:
    clocks = Clocks(ShardConfig())
    clocks.begin(transaction(1, 500))
    clocks.start(Instant(0, NOON_MS))
    assert expired(clocks, 499, NOON_MS + jump_ms) == []
    assert expired(clocks, 500, NOON_MS + jump_ms) == [1]


@pytest.mark.parametrize("jump_ms", [-(10**10), -30_000, 0, 30_000, 10**10])
def test_a_new_owners_wall_clock_aborts_nothing_early(jump_ms: int) -> None:
    clocks = Clocks(ShardConfig(reload_grace_ms=10_000))
    clocks.reload([transaction(1, 60_000)], Instant(5, NOON_MS + jump_ms))
    assert expired(clocks, 5 + 59_999) == []
    assert expired(clocks, 5 + 60_000) == [1]


def test_a_new_owner_gives_producers_the_grace_alone() -> None:
    clocks = Clocks(ShardConfig(reload_grace_ms=10_000))
    clocks.reload([transaction(1, 60_000), transaction(2, 60_000)], Instant(0, NOON_MS))
    clocks.attach("p2")
    assert clocks.given_up(Instant(9_999, NOON_MS)) is None
    assert clocks.given_up(Instant(10_000, NOON_MS)) == "p1"
    clocks.forget_given_up()
    assert clocks.given_up(Instant(10_000, NOON_MS)) is None


def test_an_extended_timeout_begins_anew() -> None:
    clocks, open_now = Clocks(ShardConfig()), transaction(1, 100)
    clocks.begin(open_now)
    clocks.extend(open_now, Instant(0, NOON_MS))
    clocks.start(Instant(0, NOON_MS))
    for at_ms in range(90, 900, 90):
        assert expired(clocks, at_ms) == []
        clocks.extend(open_now, Instant(at_ms, NOON_MS))
    assert expired(clocks, 810 + 99) == []
    assert expired(clocks, 810 + 100) == [1]
    clocks.extend(open_now, Instant(911, NOON_MS))
    assert expired(clocks, 10**9) == [], "it was named: its abort is being decided"


def test_what_is_decided_is_not_extended() -> None:
    clocks, decided = Clocks(ShardConfig()), transaction(1, 100)
    clocks.begin(decided)
    clocks.start(Instant(0, NOON_MS))
    clocks.stop(1)
    clocks.extend(decided, Instant(50, NOON_MS))
    assert expired(clocks, 10**9) == []


def test_many_extensions_leave_nothing_behind() -> None:
    clocks = Clocks(ShardConfig())
    some = [transaction(begin, 100) for begin in range(10)]
    for one in some:
        clocks.begin(one)
    clocks.start(Instant(0, NOON_MS))
    for now_ms in range(5_000):
        clocks.extend(some[now_ms % 10], Instant(now_ms, NOON_MS))
    assert len(clocks._deadlines) <= 2 * 10 + STALE_MIN + 1
    assert expired(clocks, 10**9) == list(range(10))
