"""What a producer does with a decision that it did not ask for, from the moment that it is told."""

from __future__ import annotations

from typing import Final

import pytest

from logtx.journal.errors import (
    RequestTooLargeError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionConflictError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Position
from logtx.journal.records.types import AbortReason, OffsetStep
from logtx.journal.state import State
from logtx.producer import open_transactions
from logtx.producer.producer import Producer
from logtx.producer.transaction import Transaction

from ..waiting import eventually
from .conftest import MakeProducer
from .fake import FakeCoordinators

TOPIC: Final = "t"
STEPS: Final = [OffsetStep("in", 0, None, Position.at(1))]


@pytest.fixture
def producer(make_memory_producer: MakeProducer, memory_log: MemoryLog) -> Producer:
    """A producer that registers partitions late: no answer tells it that a transaction ended."""
    memory_log.create_topic(TOPIC, partitions=1)
    return make_memory_producer(partition__registration__delay__ms=60_000)


def written(producer: Producer) -> Transaction:
    """Returns a transaction with a record."""
    txn = producer.begin_transaction()
    txn.produce(TOPIC, b"x", partition=0)
    assert txn.txid
    producer.flush(10)
    return txn


@pytest.mark.parametrize("reason", [AbortReason.EXPIRED, AbortReason.OPERATOR, AbortReason.CLAIMED])
def test_every_call_says_why_it_was_aborted(
    reason: AbortReason, producer: Producer, coordinators: FakeCoordinators
) -> None:
    txn = written(producer)
    coordinators.decide(txn.txid, State.ABORTING, reason)
    for call in (
        lambda: txn.produce(TOPIC, b"late", partition=0),
        lambda: txn.send_offsets("group", STEPS),
        txn.commit,
    ):
        with pytest.raises(TransactionAbortedError, match=f"{txn.txid} was aborted: "):
            call()
    assert txn.abort().state.aborts, "there is nothing left to abort"
    assert coordinators.count("commit") == coordinators.count("abort") == 0


def test_what_was_told_as_committed_stays(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    txn = written(producer)
    coordinators.decide(txn.txid, State.COMMITTING)
    with pytest.raises(TransactionConflictError) as refused:
        txn.produce(TOPIC, b"late", partition=0)
    assert isinstance(refused.value, TransactionCommittedError)
    assert txn.commit().state.commits
    with pytest.raises(TransactionCommittedError):
        txn.abort()


def test_the_block_ends_with_the_reason(producer: Producer, coordinators: FakeCoordinators) -> None:
    def block() -> None:
        with producer.begin_transaction() as txn:
            txn.produce(TOPIC, b"x", partition=0)
            coordinators.decide(txn.txid, State.ABORTING, AbortReason.OPERATOR)

    with pytest.raises(TransactionAbortedError, match="operator"):
        block()


def test_others_go_on(producer: Producer, coordinators: FakeCoordinators) -> None:
    aborted, other = written(producer), written(producer)
    coordinators.decide(aborted.txid, State.ABORTING, AbortReason.EXPIRED)
    other.produce(TOPIC, b"more", partition=0)
    assert other.commit().state.commits
    with producer.begin_transaction() as following:
        following.produce(TOPIC, b"y", partition=0)
    assert following.is_committed


def test_it_takes_no_place_any_more(
    make_memory_producer: MakeProducer, memory_log: MemoryLog, coordinators: FakeCoordinators
) -> None:
    memory_log.create_topic(TOPIC, partitions=1)
    producer = make_memory_producer(transactions__in__flight__max=1)
    aborted = written(producer)
    coordinators.decide(aborted.txid, State.ABORTING, AbortReason.EXPIRED)
    assert written(producer).commit().state.commits


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_expired_takes_no_place_though_nobody_was_told(
    make_memory_producer: MakeProducer,
    memory_log: MemoryLog,
    coordinators: FakeCoordinators,
    monkeypatch: pytest.MonkeyPatch,
    forgotten: bool,
) -> None:
    """Trap 145."""
    monkeypatch.setattr(open_transactions, "_ASK_AGAIN_S", 0.3)
    memory_log.create_topic(TOPIC, partitions=1)
    producer = make_memory_producer(
        transactions__in__flight__max=1,
        transaction__timeout__ms=300,
        partition__registration__delay__ms=60_000,
    )
    expired = written(producer)
    coordinators.lose_reply("outcome")
    coordinators.expire(expired.txid)
    if forgotten:
        del coordinators.transactions[expired.txid]
    assert written(producer).commit().state.commits
    with pytest.raises(TransactionAbortedError, match=str(expired.txid)) as raised:
        expired.produce(TOPIC, b"late", partition=0)
    why = "not ended in time" if forgotten else "longer than its transaction.timeout.ms"
    assert why in str(raised.value)


def test_what_a_commit_was_refused_for_takes_no_place_after_its_timeout(
    make_memory_producer: MakeProducer, memory_log: MemoryLog, coordinators: FakeCoordinators
) -> None:
    memory_log.create_topic(TOPIC, partitions=1)
    producer = make_memory_producer(
        transactions__in__flight__max=1,
        transaction__timeout__ms=300,
        partition__registration__delay__ms=60_000,
    )
    refused = written(producer)
    coordinators.lose_request("commit", error=RequestTooLargeError("no markers there"))
    with pytest.raises(RequestTooLargeError):
        refused.commit()
    coordinators.expire(refused.txid)
    assert written(producer).commit().state.commits


def test_what_is_open_after_its_timeout_goes_on(
    make_memory_producer: MakeProducer, memory_log: MemoryLog, coordinators: FakeCoordinators
) -> None:
    """The coordinator's clock decides; perhaps it was extended."""
    memory_log.create_topic(TOPIC, partitions=1)
    producer = make_memory_producer(transaction__timeout__ms=300)
    txn = written(producer)
    eventually(lambda: coordinators.count("outcome") > 0)
    txn.produce(TOPIC, b"more", partition=0)
    assert txn.commit().state.commits


def test_news_of_what_is_over_changes_nothing(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    # A new owner tells of all aborts again that may not be finished.
    txn = written(producer)
    assert txn.commit().state.commits
    coordinators.decide(txn.txid, State.ABORTING, AbortReason.EXPIRED)
    assert txn.is_committed
    aborted = written(producer)
    for _ in range(2):
        coordinators.decide(aborted.txid, State.ABORTING, AbortReason.EXPIRED)
    with pytest.raises(TransactionAbortedError):
        aborted.commit()
