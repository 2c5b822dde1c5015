"""Transactions begun before they are asked for: when, for how long, and that nobody notices."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from logtx.journal.errors import ProducerFencedError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.state import State
from logtx.producer.core import ahead as module
from logtx.producer.core.ahead import IN_A_ROW_S, KEPT_S, TIMEOUT_MIN_MS, Ahead
from logtx.producer.producer import Producer
from logtx.producer.transaction import Transaction

from ..coordinator.scripted import later
from ..waiting import eventually
from .conftest import MakeProducer
from .fake import FakeCoordinators

MINUTE = 60_000


class Fake:
    def __init__(self) -> None:
        self.is_untouched = True


def fake() -> Transaction:
    return cast(Transaction, Fake())


def in_a_row(ahead: Ahead, at_s: float, **changed: Any) -> None:
    """One transaction ended, and another was begun soon after."""
    ahead.begun(MINUTE, alone=True, now_s=at_s)
    ahead.ended(fake(), at_s)
    told = {"timeout_ms": MINUTE, "alone": True, "now_s": at_s + IN_A_ROW_S / 2, **changed}
    ahead.begun(told.pop("timeout_ms"), **told)


def test_one_that_follows_another_makes_the_habit() -> None:
    ahead = Ahead(allowed=True)
    assert ahead.wanted is None
    in_a_row(ahead, 10.0)
    assert ahead.wanted == MINUTE
    following = fake()
    ahead.keep(following, 11.0)
    assert ahead.wanted is None, "one at a time"
    assert ahead.take(MINUTE, now_s=11.1) is following
    assert ahead.transaction is None


@pytest.mark.parametrize(
    "changed",
    [
        {"now_s": 10.0 + IN_A_ROW_S * 2},
        {"alone": False},
        {"timeout_ms": TIMEOUT_MIN_MS - 1},
    ],
    ids=["late", "beside others", "short timeout"],
)
def test_others_make_no_habit(changed: dict[str, Any]) -> None:
    ahead = Ahead(allowed=True)
    in_a_row(ahead, 10.0, **changed)
    assert ahead.wanted is None


def test_nothing_is_begun_ahead_where_that_is_off() -> None:
    ahead = Ahead(allowed=False)
    in_a_row(ahead, 10.0)
    assert ahead.wanted is None


@pytest.mark.parametrize(
    ("asked", "untouched"),
    [
        ({"timeout_ms": MINUTE + 1, "now_s": 11.0}, True),
        ({"timeout_ms": MINUTE, "now_s": 11.0 + KEPT_S}, True),
        ({"timeout_ms": MINUTE, "now_s": 11.0}, False),
    ],
    ids=["other timeout", "too old", "failed"],
)
def test_what_does_not_fit_is_not_handed_out_but_aborted(
    asked: dict[str, Any], untouched: bool
) -> None:
    ahead = Ahead(allowed=True)
    in_a_row(ahead, 10.0)
    following = fake()
    ahead.keep(following, 11.0)
    cast(Fake, following).is_untouched = untouched
    assert ahead.take(asked.pop("timeout_ms"), **asked) is None
    assert ahead.expired(11.0 + KEPT_S * 0.99) is None
    assert ahead.expired(11.0 + KEPT_S) is following
    assert ahead.transaction is None
    assert ahead.wanted is None, "the habit is forgotten"


def test_one_that_ended_by_itself_is_forgotten() -> None:
    ahead = Ahead(allowed=True)
    in_a_row(ahead, 10.0)
    following = fake()
    ahead.keep(following, 11.0)
    ahead.ended(following, 11.0)
    assert ahead.take(MINUTE, now_s=11.0) is None
    assert ahead.expired(99.0) is None


# ---- a producer ---------------------------------------------------------------------------------


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, transactions of a test follow each other."""
    monkeypatch.setattr(module, "IN_A_ROW_S", 60.0)
    monkeypatch.setattr(module, "KEPT_S", 60.0)


def run(producer: Producer, count: int) -> list[Transaction]:
    """Transactions one after another."""
    done = []
    for _ in range(count):
        done.append(producer.begin_transaction())
        done[-1].commit()
    return done


def states(coordinators: FakeCoordinators) -> list[State]:
    with coordinators.lock:
        return [t.state for t in coordinators.transactions.values()]


@pytest.mark.usefixtures("patient")
def test_the_next_is_begun_while_one_ends_and_used(
    make_memory_producer: MakeProducer, coordinators: FakeCoordinators
) -> None:
    done = run(make_memory_producer(), 5)
    assert len({t.txid for t in done}) == 5
    # The second follows the first, so the third is begun when the second's end is asked for.
    eventually(lambda: coordinators.count("begin") == 6)
    assert states(coordinators) == [State.COMMITTED] * 5 + [State.OPEN]


def test_one_that_nobody_asks_for_is_aborted_and_no_other_begun(
    make_memory_producer: MakeProducer,
    coordinators: FakeCoordinators,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "IN_A_ROW_S", 60.0)
    producer = make_memory_producer()
    run(producer, 2)
    eventually(lambda: states(coordinators) == [State.COMMITTED] * 2 + [State.ABORTED])
    monkeypatch.setattr(module, "IN_A_ROW_S", 0.0)
    run(producer, 1)
    assert states(coordinators)[3:] == [State.COMMITTED]


@pytest.mark.usefixtures("patient")
def test_one_begun_ahead_is_used_beside_others_and_named_partitions_are_begun_anew(
    make_memory_producer: MakeProducer, coordinators: FakeCoordinators
) -> None:
    producer = make_memory_producer()
    run(producer, 2)
    eventually(lambda: coordinators.count("begin") == 3)
    named = producer.begin_transaction(partitions=[("t", 0)])
    taken = producer.begin_transaction()
    assert taken.txid.offset < named.txid.offset
    assert coordinators.count("begin") == 4


@pytest.mark.usefixtures("patient")
def test_none_is_begun_ahead_beside_others(
    make_memory_producer: MakeProducer, coordinators: FakeCoordinators
) -> None:
    producer = make_memory_producer()
    transactions = [producer.begin_transaction() for _ in range(10)]
    for future in [t.commit_async() for t in transactions]:
        future.result(5)
    assert coordinators.count("begin") == 10


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    "settings",
    [
        {"transaction__begin__ahead": False},
        {"transactions__in__flight__max": 1},
        {"transaction__timeout__ms": TIMEOUT_MIN_MS - 1},
    ],
)
def test_none_is_begun_ahead_where_it_must_not(
    make_memory_producer: MakeProducer, coordinators: FakeCoordinators, settings: dict[str, Any]
) -> None:
    run(make_memory_producer(**settings), 4)
    assert coordinators.count("begin") == 4


@pytest.mark.usefixtures("patient")
def test_a_key_has_one_open_transaction_alone(
    memory_log: MemoryLog, coordinators: FakeCoordinators
) -> None:
    config = {"transaction.key": "task"}
    with Producer(config, log=memory_log, coordinators=coordinators) as producer:
        run(producer, 4)
    assert coordinators.count("begin") == 4


@pytest.mark.usefixtures("patient")
def test_a_begin_that_failed_ahead_fails_nobody(
    make_memory_producer: MakeProducer, coordinators: FakeCoordinators
) -> None:
    producer = make_memory_producer()
    run(producer, 1)
    second = producer.begin_transaction()
    _ = second.txid  # So that the next BEGIN is the one to be lost.
    coordinators.lose_request("begin")
    second.commit()
    eventually(lambda: coordinators.count("begin") == 3)
    eventually(lambda: producer._transactions._ahead.transaction is None)
    run(producer, 1)
    assert states(coordinators)[:3] == [State.COMMITTED] * 3


@pytest.mark.usefixtures("patient")
def test_closing_aborts_it(
    make_memory_producer: MakeProducer, coordinators: FakeCoordinators
) -> None:
    producer = make_memory_producer()
    run(producer, 3)
    producer.close(5)
    assert states(coordinators) == [State.COMMITTED] * 3 + [State.ABORTED]


@pytest.mark.usefixtures("patient")
def test_closing_waits_for_no_coordinator_that_is_gone(
    make_memory_producer: MakeProducer, coordinators: FakeCoordinators
) -> None:
    producer = make_memory_producer()
    run(producer, 3)
    eventually(lambda: coordinators.count("begin") == 4)
    gone = coordinators.hold("abort")
    later(15, gone.set)
    began_s = time.monotonic()
    producer.close(15)
    assert not gone.is_set(), "it waited"
    assert time.monotonic() - began_s < 15
    gone.set()


@pytest.mark.usefixtures("patient")
def test_whoever_is_fenced_is_told_by_the_next_begin(
    make_memory_producer: MakeProducer, coordinators: FakeCoordinators
) -> None:
    producer = make_memory_producer()
    run(producer, 3)
    coordinators.fence("p")
    eventually(lambda: producer._engine.fatal is not None)
    with pytest.raises(ProducerFencedError):
        producer.begin_transaction()
