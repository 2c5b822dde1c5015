"""The extension and the tally refuse and believe the same reports, in any order and mixture.

The extension is a copy of its own, whose librdkafka is one that reports what a test wants.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from confluent_kafka import KafkaError
from hypothesis import example, given
from hypothesis import strategies as st

from logtx.journal.native.interface import SENT_ANEW, Count, Handle
from logtx.producer.core.tally import BranchTally, Failures, Floors, Refusals

from ...children import in_child
from ...producer.core.test_tally import Report
from .librdkafka import Librdkafka

ERROR = -192
"""A record timed out."""
REFUSED = 10
"""A broker refused one."""


@pytest.fixture(scope="module")
def librdkafka(tmp_path_factory: pytest.TempPathFactory) -> Librdkafka:
    """One for all tests: a process never unloads an extension."""
    extension = pytest.importorskip("logtx.journal.native._extension")
    return Librdkafka(extension, tmp_path_factory.mktemp("fake"))


@pytest.fixture
def producer(librdkafka: Librdkafka) -> Iterator[tuple[int, Handle]]:
    """A producer and its handle."""
    made, handle = librdkafka.producer()
    yield made, handle
    handle.detach()
    librdkafka.destroy(made)


class Pair:
    """A branch twice: counted in Python alone, and watched by the extension."""

    _numbers = count(1)

    def __init__(self, alone: Floors, beside: Floors, handle: Handle) -> None:
        self.txid = next(self._numbers).to_bytes(16, "big")
        self.alone = BranchTally(0, alone, on_settled=_nothing, on_failure=_nothing)
        # The extension goes by when the branch began, and not by its first record.
        assert self.alone.receivers()["a"]
        self.watched = BranchTally(0, beside, on_settled=_nothing, on_failure=_nothing)
        self.count: Count = handle.count(self.txid, b"", {"a": None}, self.watched)
        self.watched.watch_by(self.count)
        self.watched.count_by_watcher()

    def check(self) -> None:
        """Checks that both have failed, or neither."""
        assert (self.alone.failure is None) == (self.watched.failure is None)

    def end(self) -> None:
        """Checks that both believe the same, and may commit or may not."""
        self.alone.close()
        self.watched.close()
        self.watched.counted(str)
        assert self.alone.settled
        assert self.watched.settled
        failures = self.alone.verified(), self.watched.verified()
        if None in failures:
            assert failures == (None, None)
            assert self.alone.ranges() == self.watched.ranges()
        self.alone.raise_floors()
        self.watched.raise_floors()
        self.watched.drop_callbacks()


def _nothing(*_: object) -> None:
    pass


WRITERS = 3
AFTER_MS = st.sampled_from([1, 1, 74, 75])
"""What is reported later than 74 ms may have been sent again."""
REPORTS = st.tuples(
    st.sampled_from(["python", "counted", "counted"]),
    st.integers(0, WRITERS - 1),
    st.sampled_from([0, 0, 0, 1, -1]),
    # Offsets that rise, are missing, are reported again, or begin anew.
    st.one_of(st.integers(-2, 8), st.sampled_from([-1001, -1, 0, 50, 51, 2**40])),
    st.sampled_from([0, 0, 0, 0, 0, ERROR, REFUSED]),
    AFTER_MS,
)
BATCHES = st.tuples(
    st.just("batch"),
    st.lists(st.tuples(st.booleans(), st.integers(0, WRITERS - 1)), min_size=1, max_size=6),
    st.integers(0, 1),
    st.sampled_from([-1001, -1, 0, 5, 9, 100]),
    st.just(0),
    AFTER_MS,
)
ENDS = st.tuples(st.just("end"), st.integers(0, WRITERS - 1), *[st.just(0)] * 4)
STEPS = st.lists(st.one_of(REPORTS, REPORTS, BATCHES, ENDS), max_size=40)
"""(way, whose, partition, offset, error, ms); batches are reported at offsets from one on."""


@given(STEPS)
@example([("batch", [(False, 0), (False, 1), (True, 1)], 0, -1, 0, 1), ("end", 1, 0, 0, 0, 1)])
@example([("counted", 0, 0, 9, ERROR, 1), ("counted", 1, 0, 9, 0, 75)])
@example([("counted", 0, 0, 9, REFUSED, 1), ("counted", 1, 0, 9, 0, 75)])
@example([("counted", 0, 0, 9, REFUSED, 1), ("end", 1, 0, 0, 0, 1), ("counted", 1, 0, 9, 0, 75)])
@example([("counted", 0, 0, 9, ERROR, 1), ("end", 1, 0, 0, 0, 1), ("counted", 1, 0, 9, 0, 75)])
@example([("python", 1, 0, 9, ERROR, 1), ("python", 0, 0, 9, 0, 75), ("end", 0, 0, 0, 0, 1)])
@example([("python", 1, 0, 9, 0, 1), ("counted", 0, 0, -1, 0, 1), ("counted", 1, 0, 0, 0, 1)])
@example([("python", 0, 0, 9, 0, 1), ("counted", 1, 0, 0, 0, 1), ("counted", 0, 0, 1, 0, 1)])
@example([("counted", 0, 0, -1, 0, 1), ("end", 0, 0, 0, 0, 1), ("counted", 0, 0, 3, 0, 1)])
@example([("python", 0, 0, -1, 0, 1), ("end", 0, 0, 0, 0, 1), ("python", 0, 0, 3, 0, 1)])
@example(
    [
        ("counted", 0, 0, 9, 0, 1),
        ("counted", 0, 0, 10, 0, 1),
        ("end", 0, 0, 0, 0, 1),
        ("counted", 1, 0, 10, 0, 1),
    ]
)
def test_both_believe_the_same(librdkafka: Librdkafka, steps: list[tuple[Any, ...]]) -> None:
    made, handle = librdkafka.producer()
    alone, beside = (Floors(Refusals(Failures(clock=time.monotonic))) for _ in range(2))
    pairs = [Pair(alone, beside, handle) for _ in range(WRITERS)]

    def report(
        at: int, partition: int, offset: int, code: int, after_ms: int, *, is_pythons: bool
    ) -> None:
        pair = pairs[at]
        message = Report(
            None if partition < 0 else partition,
            None if offset < 0 or code else offset,
            after_ms / 1000,
        )
        error = KafkaError(code) if code else None
        pair.alone.admit()
        if is_pythons:
            pair.watched.admit()
        else:
            assert pair.count.produce("a", b"v", None, 0, 0)
        key = "a", partition
        librdkafka.report(
            made, key, offset, code, pair.txid, is_pythons=is_pythons, after_ms=after_ms
        )
        pair.alone.receivers()["a"](error, message)
        if is_pythons:
            pair.watched.receivers()["a"](error, message)
        for changed in handle.changed():
            changed.owner.counted(str)
        for each in pairs:
            each.check()

    for way, whose, partition, offset, code, after_ms in steps:
        if way == "end":
            pairs[whose].end()
            pairs[whose] = Pair(alone, beside, handle)
        elif way == "batch":
            for number, (is_pythons, at) in enumerate(whose):
                report(at, partition, offset + number, code, after_ms, is_pythons=is_pythons)
        else:
            report(whose, partition, offset, code, after_ms, is_pythons=way == "python")
    for pair in pairs:
        pair.end()
    assert handle.size == handle.busy == 0
    # What is watched leaves the floors of Python as they are.
    assert all(beside.at(("a", partition)) == -1 for partition in range(2))
    handle.detach()
    librdkafka.destroy(made)


def test_a_branch_is_compared_with_itself_whoever_was_refused(
    librdkafka: Librdkafka, producer: tuple[int, Handle]
) -> None:
    made, handle = producer
    first, second = (handle.count(bytes([n]) * 16, b"", {"a": None}, None) for n in range(2))
    for count_, offset in ((second, 10), (first, -1), (second, 0), (second, 1)):
        txid = b"\0" * 16 if count_ is first else b"\1" * 16
        librdkafka.report(made, ("a", 0), offset, 0, txid)
    failure = second.failure()
    assert failure is not None
    assert failure[3] == 0
    assert second.spans() == [("a", 0, 10, 10, 1)]


def test_records_of_nobody_are_refused_for_all_and_raise_no_floor_trap_233(
    librdkafka: Librdkafka, producer: tuple[int, Handle]
) -> None:
    made, handle = producer
    watched = handle.count(bytes(16), b"", {"a": None}, None)
    librdkafka.report(made, ("a", 0), 50, 0, None)
    librdkafka.report(made, ("a", 0), 7, 0, bytes(16))
    assert watched.failure() is None
    assert watched.doubted() is None
    # A batch whose first record is of a transaction that has ended.
    librdkafka.report(made, ("a", 0), -1, 0, b"\1" * 16)
    assert watched.failure() is None
    assert watched.doubted() == ("a", 0)


@pytest.mark.parametrize("txid", [None, bytes(16)])
def test_what_fails_without_a_broker_leaves_gaps_whoever_counts_it(
    librdkafka: Librdkafka, producer: tuple[int, Handle], txid: bytes | None
) -> None:
    made, handle = producer
    librdkafka.report(made, ("a", 0), -1001, REFUSED, txid)
    assert not handle.leaves_gaps
    librdkafka.report(made, ("a", 0), -1001, ERROR, txid)
    assert handle.leaves_gaps


def test_trap_295_what_is_sent_behind_a_refusal_is_not_in_doubt(
    librdkafka: Librdkafka, producer: tuple[int, Handle]
) -> None:
    made, handle = producer
    watched = handle.count(bytes(16), b"", {"a": None}, None)
    librdkafka.report(made, ("a", 1), -1001, REFUSED, None)
    time.sleep(0.2)
    librdkafka.report(made, ("a", 0), 1, 0, bytes(16), after_ms=100)
    assert watched.failure() is None
    librdkafka.report(made, ("a", 0), 2, 0, bytes(16), after_ms=1_000)
    assert watched.failure() == (SENT_ANEW, "a", 0, 2)


def test_only_what_took_records_is_busy(
    librdkafka: Librdkafka, producer: tuple[int, Handle]
) -> None:
    made, handle = producer
    watched = handle.count(bytes(16), b"", {"a": None}, None)
    librdkafka.report(made, ("a", 0), 1, 0, bytes(16), is_pythons=True)
    assert (handle.size, handle.busy) == (1, 0)
    assert watched.spans() == []
    assert handle.changed() == []
    for _ in range(2):
        assert watched.produce("a", b"v", None, 0, 0)
    assert handle.busy == 1
    watched.retire()
    assert (handle.size, handle.busy) == (0, 0)


def test_a_child_that_is_forked_within_a_report_waits_for_no_lock(
    librdkafka: Librdkafka, producer: tuple[int, Handle]
) -> None:
    made, handle = producer
    watched = handle.count(bytes(16), b"", {"a": None}, None)
    told: list[str] = []

    def fork() -> None:
        librdkafka.hook.value = None
        # librdkafka reports in a child, too, what is purged there.
        told.append(in_child(lambda: librdkafka.report(made, ("a", 0), 2, 0, bytes(16))))

    called = ctypes.PYFUNCTYPE(None)(fork)
    librdkafka.hook.value = ctypes.cast(called, ctypes.c_void_p).value
    librdkafka.report(made, ("a", 0), 1, 0, bytes(16))
    assert told == ["None"]
    assert watched.spans() == [("a", 0, 1, 1, 1)]
