"""An exception anywhere in the application's calls: no record is lost or added, nothing hangs.

It is raised at each point in turn where CPython looks for signals on the application's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException

from logtx.journal.errors import LogtxError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.state import State
from logtx.producer.producer import Producer

from ..signals import KINDS, Tracer
from ..waiting import eventually
from .conftest import MakeProducer
from .fake import FakeCoordinators

RECORDS = 3
BOUND_S = 1.5
"""Longest that a block may take: the coordinator answers at once."""


def block(producer: Producer) -> None:
    """Writes some records in a transaction."""
    with producer.begin_transaction() as txn:
        for number in range(RECORDS):
            txn.produce("t", b"%d" % number, partition=0)


def calls(producer: Producer) -> None:
    """Does the same by confluent-kafka's calls."""
    producer.begin_transaction()
    try:
        for number in range(RECORDS):
            producer.produce("t", b"%d" % number, partition=0)
        producer.commit_transaction()
    except BaseException:
        producer.abort_transaction()
        raise


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", [block, calls])
def test_finding_7_an_exception_at_any_line(
    program: Callable[[Producer], None],
    kind: str,
    memory_log: MemoryLog,
    coordinators: FakeCoordinators,
    make_memory_producer: MakeProducer,
) -> None:
    memory_log.create_topic("t", partitions=1)
    producer = make_memory_producer(transaction__begin__ahead=False)
    program(producer)  # Connects, and loads what is loaded late.
    at, finished = 0, False
    while not finished:
        at += 1
        tracer = Tracer("logtx.producer", at, KINDS[kind])
        began_s = time.monotonic()
        known = set(coordinators.transactions)
        try:
            with tracer.on():
                program(producer)
        except (LogtxError, KeyboardInterrupt, MemoryError, KafkaException):
            finished = False
        else:
            finished = tracer.points < at
        assert time.monotonic() - began_s < BOUND_S, tracer.where
        # Copied at once: threads of the producer that was interrupted still call them.
        now = dict(coordinators.transactions)
        new = [t for txid, t in now.items() if txid not in known]
        for transaction in new:
            eventually(lambda t=transaction: t.state is not State.COMMITTING)
            if transaction.state is State.COMMITTED:
                counted = sum(r.count for ranges in transaction.writes.values() for r in ranges)
                assert counted == RECORDS, tracer.where
    assert at > 50
    assert producer.close(2)


def flushed_and_aborted(producer: Producer) -> None:
    """Aborts when the reports of all records are there, whatever the last `produce` raised."""
    txn = producer.begin_transaction()
    assert txn.txid
    txn.produce("t", b"0", partition=0)
    try:
        txn.produce("t", b"1", partition=0, headers={"h": b"1"})
    finally:
        producer.flush(1)
        txn.abort()


@pytest.mark.parametrize("kind", KINDS)
def test_an_abort_does_not_wait_for_a_report_that_came(
    kind: str, memory_log: MemoryLog, make_memory_producer: MakeProducer
) -> None:
    """An exception that looks like librdkafka's refusal may come when it has taken the record."""
    memory_log.create_topic("t", partitions=1)
    producer = make_memory_producer(transaction__begin__ahead=False, delivery__timeout__ms=1_000)
    flushed_and_aborted(producer)
    for at in range(1, 40):
        tracer = Tracer("logtx.producer.writer", at, KINDS[kind])
        began_s = time.monotonic()
        raised = (LogtxError, KeyboardInterrupt, MemoryError, KafkaException)
        with suppress(*raised), tracer.on():
            flushed_and_aborted(producer)
        assert time.monotonic() - began_s < BOUND_S, tracer.where


@pytest.mark.parametrize("ahead", [False, True])
def test_an_interrupted_call_leaves_no_transaction_that_nobody_has(
    ahead: bool, memory_log: MemoryLog, make_memory_producer: MakeProducer
) -> None:
    """The only place is free again, and the transaction begun ahead has its BEGIN."""
    memory_log.create_topic("t", partitions=1)
    producer = make_memory_producer(
        transactions__in__flight__max=2 if ahead else 1, transaction__begin__ahead=ahead
    )
    block(producer)
    block(producer)
    at, fired = 0, True
    while fired:
        at += 1
        tracer = Tracer("logtx.producer.open_transactions", at, KINDS["KeyboardInterrupt"])
        began_s = time.monotonic()
        with suppress(LogtxError, KeyboardInterrupt), tracer.on():
            block(producer)
        fired = tracer.points >= at
        for _ in range(3):
            block(producer)
        assert time.monotonic() - began_s < BOUND_S, tracer.where
    assert at > 10
