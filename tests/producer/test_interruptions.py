"""An exception anywhere in the application's calls: no record is lost or added, nothing hangs.

`sys.settrace` raises it as a signal handler would: at the Nth point of the producer's modules where
CPython looks for signals on the application's thread, for each N.
"""

from __future__ import annotations

import dis
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from logtx.journal.errors import LogtxError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.state import State
from logtx.producer.producer import Producer

from .conftest import MakeProducer, eventually
from .fake import FakeCoordinators

RECORDS = 3
BOUND_S = 1.5
"""Longest that a block may take: the coordinator answers at once."""
KINDS = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "MemoryError": MemoryError,
    "KafkaException": lambda: KafkaException(KafkaError(KafkaError._TRANSPORT)),
}


@cache
def signal_points(code: CodeType) -> frozenset[int]:
    """Returns the offsets of instructions before which CPython may run a signal handler."""
    instructions = list(dis.get_instructions(code))
    behind_calls = (
        this.offset for before, this in pairwise(instructions) if before.opname.startswith("CALL")
    )
    own = (i.offset for i in instructions if i.opname in ("RESUME", "JUMP_BACKWARD"))
    return frozenset((*behind_calls, *own))


class Tracer:
    """Raises at one point of the producer's modules where a signal may come, and counts these."""

    def __init__(self, at: int, make: Callable[[], BaseException]) -> None:
        self.points = 0
        self.where = ""
        self._at = at
        self._make = make

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith("logtx.producer"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in signal_points(frame.f_code):
            self.points += 1
            if self.points == self._at:
                self.where = f"{module}:{frame.f_lineno}"
                raise self._make()
        return self._trace

    @contextmanager
    def on(self) -> Iterator[None]:
        """Traces this thread."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)


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
        tracer = Tracer(at, KINDS[kind])
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
        new = [t for txid, t in coordinators.transactions.items() if txid not in known]
        for transaction in new:
            eventually(lambda t=transaction: t.state is not State.COMMITTING)
            if transaction.state is State.COMMITTED:
                counted = sum(r.count for ranges in transaction.writes.values() for r in ranges)
                assert counted == RECORDS, tracer.where
    assert at > 50
    assert producer.close(2)
