"""Commits that wait until the transaction is finished."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from logtx.coordinator.protocol.commands import Outcome
from logtx.journal.errors import (
    ClosedError,
    NotFinishedError,
    RequestTimedOutError,
    RequestTooLargeError,
    RetriableError,
    TransactionCommittedError,
    TransactionStateError,
    UnknownOutcomeError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Position
from logtx.journal.records.types import OffsetStep
from logtx.journal.state import State
from logtx.journal.txid import TxId
from logtx.producer import finishing

from ..waiting import eventually
from .conftest import MakeProducer
from .fake import FakeCoordinators

ASKED = "outcome_until_finished"


@pytest.fixture
def unfinished(coordinators: FakeCoordinators, memory_log: MemoryLog) -> FakeCoordinators:
    """Coordinators whose transactions stay decided, until `finish`."""
    memory_log.create_topic("t", partitions=1)
    coordinators.finishes = False
    return coordinators


def finish(coordinators: FakeCoordinators, txid: TxId) -> None:
    coordinators.transactions[txid].state = State.COMMITTED


def test_a_commit_ends_when_it_is_decided_or_finished(
    make_memory_producer: MakeProducer, unfinished: FakeCoordinators
) -> None:
    txn = make_memory_producer().begin_transaction()
    txn.produce("t", b"x")
    assert txn.commit().state is State.COMMITTING
    future: Future[Outcome] = txn.commit_async(finished=True)
    eventually(lambda: unfinished.count(ASKED) >= 2)
    assert not future.done()
    finish(unfinished, txn.txid)
    assert future.result(10).state is State.COMMITTED
    asked = unfinished.count(ASKED)
    assert asked < 10, "one that does not wait with its answer is not asked all the time"
    assert txn.commit(finished=True).state is State.COMMITTED


def test_of_a_finished_one_nobody_is_asked(
    make_memory_producer: MakeProducer, unfinished: FakeCoordinators
) -> None:
    unfinished.finishes = True
    txn = make_memory_producer().begin_transaction()
    txn.produce("t", b"x")
    assert txn.commit(finished=True).state is State.COMMITTED
    assert unfinished.count(ASKED) == 0


def test_a_commit_that_is_not_finished_in_time_is_told_as_committed(
    make_memory_producer: MakeProducer,
    unfinished: FakeCoordinators,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finishing, "_PAUSE_S", 0.01)
    producer = make_memory_producer(coordinator__timeout__ms=300)
    txn = producer.begin_transaction()
    txn.produce("t", b"x")
    with pytest.raises(NotFinishedError, match="is committed, and it is not known") as told:
        txn.commit(finished=True)
    assert not isinstance(told.value, RequestTimedOutError | RetriableError | UnknownOutcomeError)
    assert txn.commit().state is State.COMMITTING
    with pytest.raises(NotFinishedError, match="time to wait is over"):
        txn.commit(0.05, finished=True)
    finish(unfinished, txn.txid)
    assert txn.commit(finished=True).state is State.COMMITTED


def test_whatever_fails_the_question_does_not_fail_the_commit(
    make_memory_producer: MakeProducer, unfinished: FakeCoordinators
) -> None:
    producer = make_memory_producer()
    txn = producer.begin_transaction()
    txn.produce("t", b"x")
    unfinished.lose_request(ASKED, error=ClosedError("gone"))
    with pytest.raises(NotFinishedError, match=r"committed.*gone"):
        txn.commit(finished=True)


def test_one_that_is_not_decided_in_time_is_not_told_as_committed(
    make_memory_producer: MakeProducer, unfinished: FakeCoordinators
) -> None:
    txn = make_memory_producer(coordinator__timeout__ms=5_000).begin_transaction()
    txn.produce("t", b"x")
    held = unfinished.hold("commit")
    with pytest.raises(RequestTimedOutError, match="not decided yet"):
        txn.commit(0.05, finished=True)
    assert unfinished.count(ASKED) == 0
    held.set()
    finish(unfinished, txn.commit().txid)
    assert txn.commit(finished=True).state is State.COMMITTED


def test_trap_139_a_decision_told_by_the_way_says_nothing_of_markers(
    make_memory_producer: MakeProducer, unfinished: FakeCoordinators
) -> None:
    """An answer to another request tells it: a connection broke, and both were sent once more."""
    producer = make_memory_producer()
    asked = producer.begin_transaction()
    asked.produce("t", b"x")
    unfinished.lose_reply("commit", error=TransactionCommittedError("committed already"))
    assert asked.commit().state is State.COMMITTING
    unasked = producer.begin_transaction()
    unasked.produce("t", b"y")
    unfinished.transactions[unasked.txid].state = State.COMMITTING
    unasked.send_offsets("g", [OffsetStep("in", 0, None, Position.at(1))])
    eventually(lambda: unasked.is_committed)
    for txn in (asked, unasked):
        with pytest.raises(NotFinishedError):
            txn.commit(0.3, finished=True)
        finish(unfinished, txn.txid)
        assert txn.commit(finished=True).state is State.COMMITTED


def test_the_producers_own_call_waits_on(
    make_memory_producer: MakeProducer, unfinished: FakeCoordinators
) -> None:
    producer = make_memory_producer()
    txn = producer.begin_transaction()
    producer.produce("t", b"x")
    with pytest.raises(NotFinishedError):
        producer.commit_transaction(0.3, finished=True)
    finish(unfinished, txn.txid)
    assert producer.commit_transaction(finished=True).state is State.COMMITTED
    with pytest.raises(TransactionStateError):
        producer.commit_transaction()


def test_a_commit_that_fails_is_told_so(
    make_memory_producer: MakeProducer, unfinished: FakeCoordinators
) -> None:
    txn = make_memory_producer().begin_transaction()
    txn.produce("t", b"x")
    unfinished.lose_request("commit", error=RequestTooLargeError("no"))
    with pytest.raises(RequestTooLargeError):
        txn.commit(finished=True)
    assert unfinished.count(ASKED) == 0
