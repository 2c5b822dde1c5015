"""Commits that name what branches wrote in parts: what the producer sends, and when."""

from __future__ import annotations

import pytest

from logtx.coordinator.protocol.commands import Action
from logtx.journal.control import OWN_BRANCH, BranchRange, TopicPartition
from logtx.journal.errors import (
    LogtxError,
    NotSupportedError,
    RequestTimedOutError,
    TransactionAbortedError,
    TransactionAbortOnlyError,
    TransactionStateError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.records.codec import encode_entry
from logtx.journal.records.types import AddWrites, DataPartition, Entry, PartitionWrites
from logtx.journal.state import State
from logtx.journal.txid import TxId
from logtx.producer.core import accepted
from logtx.producer.core.accepted import COMMIT_BYTES, PART_BYTES, AcceptedWrites
from logtx.producer.core.bookkeeping import Phase, TransactionBook
from logtx.producer.core.summary import BranchSummary
from logtx.producer.core.tally import BranchTally, Floors
from logtx.producer.transaction import Transaction

from ..parameters import slow
from .conftest import MakeProducer
from .core.test_tally import Observed
from .fake import FakeCoordinators

TXID = TxId(0, 0xABC, 7)
Part = dict[TopicPartition, tuple[BranchRange, ...]]
Ranges = dict[TopicPartition, list[BranchRange]]


def summary(branch: int, partitions: int, *, first: int = 0, topic: str = "t") -> BranchSummary:
    written = BranchRange(branch, first, first + 9, 10)
    return BranchSummary(TXID, branch, {(topic, p): written for p in range(partitions)})


def book(collected: AcceptedWrites | None = None) -> TransactionBook:
    own = BranchTally(OWN_BRANCH, Floors(), on_settled=lambda: None, on_failure=lambda _: None)
    return TransactionBook(own, (), collected)


def drained(
    collected: AcceptedWrites,
) -> tuple[list[dict[TopicPartition, tuple[BranchRange, ...]]], Ranges]:
    """The parts, and all ranges of them and of the rest."""
    parts = []
    while collected.parts_left:
        parts.append(collected.next_part())
    found: Ranges = {}
    for part in (*parts, collected.rest()):
        for key, ranges in part.items():
            found.setdefault(key, []).extend(ranges)
    return parts, found


@pytest.mark.parametrize(("branches", "partitions"), [(3, 7), (1, 20), (40, 1)])
@pytest.mark.parametrize("part_bytes", [1, 100, 1_000])
def test_parts_and_rest_name_everything_once(
    branches: int, partitions: int, part_bytes: int
) -> None:
    collected = AcceptedWrites(0, part_bytes)
    for branch in range(1, branches + 1):
        collected.accept(summary(branch, partitions))
    parts, found = drained(collected)
    assert len(parts) == collected.parts
    assert parts
    assert all(parts)
    wanted = [BranchRange(b, 0, 9, 10) for b in range(1, branches + 1)]
    assert found == {("t", p): wanted for p in range(partitions)}


def test_parts_may_go_while_summaries_come() -> None:
    collected = AcceptedWrites(0, 1)
    parts = []
    for branch in (1, 2):
        collected.accept(summary(branch, 2))
        parts.append(collected.next_part())
    more, _ = drained(collected)
    every = [r for part in (*parts, *more) for ranges in part.values() for r in ranges]
    assert sorted(r.branch for r in every) == [1, 1, 2, 2]


@pytest.mark.parametrize("first", [2**62, *slow([0, 2**20])])
@pytest.mark.parametrize("topic", ["t", "ü" * 249])
def test_a_part_is_not_larger_than_it_is_taken_for(first: int, topic: str) -> None:
    collected = AcceptedWrites()
    for branch in range(3):
        collected.accept(summary(2**63 + branch, 20_000, first=first, topic=topic))
    largest = 0
    while collected.parts_left:
        writes = tuple(
            PartitionWrites(DataPartition(*key, "W2ifJDqPQsqSLJHrGjYeEQ"), ranges)
            for key, ranges in collected.next_part().items()
        )
        entry = Entry(2**40, 2**47, AddWrites(begin=2**40, part=9, writes=writes), 2**40)
        largest = max(largest, len(encode_entry(entry)))
    assert PART_BYTES / 3 < largest < PART_BYTES + 2_000


def test_what_one_record_takes_needs_no_parts() -> None:
    collected = AcceptedWrites()
    for branch in range(1, 300):
        collected.accept(summary(branch, 100))
    assert collected.parts_left == 0
    assert sum(map(len, collected.rest().values())) == 29_900
    assert COMMIT_BYTES < 900_000, "with room for the owner's own records"


def test_a_summary_that_comes_again_counts_once() -> None:
    collected = AcceptedWrites(0, 1)
    collected.accept(summary(1, 2))
    drained(collected)
    collected.accept(summary(1, 2))
    assert collected.parts_left == 0, "also when its part has gone"
    with pytest.raises(TransactionStateError, match="other records"):
        collected.accept(summary(1, 3))


def test_one_part_is_under_way_and_the_commit_waits_for_all() -> None:
    transaction = book(AcceptedWrites(0, 1))
    transaction.accept(TXID, summary(1, 2))
    first = transaction.next_part()
    assert first is not None
    assert first[0] == 0
    assert transaction.next_part() is None
    transaction.ask(Action.COMMIT)
    assert not transaction.ready
    transaction.part_answered()
    assert not transaction.ready, "one is left"
    second = transaction.next_part()
    assert second is not None
    assert second[0] == 1
    transaction.part_answered()
    assert transaction.ready
    assert (transaction.writes(), transaction.parts) == ({}, 2)


def test_an_abort_waits_for_no_part() -> None:
    transaction = book(AcceptedWrites(0, 1))
    transaction.accept(TXID, summary(1, 3))
    assert transaction.next_part() is not None
    transaction.ask(Action.ABORT)
    assert transaction.ready
    assert transaction.next_part() is None
    assert transaction.writes() == {("t", p): () for p in range(3)}
    transaction.sent()
    transaction.part_answered()
    assert transaction.phase is Phase.SENT


# ---- the shell ----------------------------------------------------------------------------------


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part for each range."""
    made = AcceptedWrites.__init__

    def init(self: AcceptedWrites) -> None:
        made(self, 0, 1)

    monkeypatch.setattr(accepted.AcceptedWrites, "__init__", init)


def topic_of(log: MemoryLog) -> str:
    assert log.create_topic("wide", partitions=3)
    return "wide"


def with_branch(txn: Transaction, topic: str) -> BranchSummary:
    branch = txn.branch()
    for partition in range(3):
        branch.produce(topic, b"of a branch", partition=partition)
    return branch.finish()


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("lost", [None, "commit"])
def test_a_commit_sends_its_parts_first(
    make_memory_producer: MakeProducer,
    memory_log: MemoryLog,
    coordinators: FakeCoordinators,
    lost: str | None,
) -> None:
    topic = topic_of(memory_log)
    txn = make_memory_producer().begin_transaction()
    txn.produce(topic, b"own", partition=1)
    summary_of = with_branch(txn, topic)
    txn.accept(summary_of)
    if lost is not None:
        coordinators.lose_request(lost)
    txn.commit(10)
    known = coordinators.transactions[txn.txid]
    assert len(known.parts) == 4, "three of the branch, and the owner's own"
    kinds = [kind for kind, _ in coordinators.requests if kind in ("add_writes", "commit")]
    assert kinds == ["add_writes"] * 4 + ["commit"] * (1 if lost is None else 2)
    assert {key: len(ranges) for key, ranges in known.writes.items()} == {
        (topic, 0): 1,
        (topic, 1): 2,
        (topic, 2): 1,
    }


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotSupportedError("an older coordinator"), NotSupportedError),
        (RequestTimedOutError("no answer"), TransactionAbortOnlyError),
    ],
)
def test_a_part_that_fails_makes_it_abort_only(
    make_memory_producer: MakeProducer,
    memory_log: MemoryLog,
    coordinators: FakeCoordinators,
    error: LogtxError,
    expected: type[LogtxError],
) -> None:
    topic = topic_of(memory_log)
    txn = make_memory_producer().begin_transaction()
    summary_of = with_branch(txn, topic)
    coordinators.lose_request("add_writes", error=error)
    txn.accept(summary_of)
    with pytest.raises(expected):
        txn.commit(10)
    txn.abort(10)
    assert coordinators.count("commit") == 0
    assert coordinators.transactions[txn.txid].state is State.ABORTED


@pytest.mark.usefixtures("small_parts")
def test_a_transaction_that_expires_between_its_parts_is_aborted(
    make_memory_producer: MakeProducer,
    memory_log: MemoryLog,
    coordinators: FakeCoordinators,
) -> None:
    topic = topic_of(memory_log)
    txn = make_memory_producer().begin_transaction()
    summary_of = with_branch(txn, topic)
    release = coordinators.hold("add_writes")
    txn.accept(summary_of)
    coordinators.expire(txn.txid)
    future = txn.commit_async()
    release.set()
    with pytest.raises(TransactionAbortedError):
        future.result(10)


def test_own_records_that_settle_behind_the_last_look_for_a_part_go_in_one() -> None:
    seen = Observed()
    made = TransactionBook(seen.tally, (), AcceptedWrites(0, 1))
    made.own.admit()
    made.ask(Action.COMMIT)
    assert made.next_part() is None, "its own record is under way"
    seen.deliver("t", 0, 5)
    assert not made.ready
    assert made.next_part() == (0, {("t", 0): (BranchRange(OWN_BRANCH, 5, 5, 1),)})
    made.part_answered()
    assert made.ready
    assert made.writes() == {}


@pytest.mark.usefixtures("small_parts")
def test_what_the_owner_wrote_goes_in_parts_too(
    make_memory_producer: MakeProducer,
    memory_log: MemoryLog,
    coordinators: FakeCoordinators,
) -> None:
    topic = topic_of(memory_log)
    with make_memory_producer().begin_transaction() as txn:
        for partition in range(3):
            txn.produce(topic, b"own", partition=partition)
    known = coordinators.transactions[txn.txid]
    assert len(known.parts) == 3
    assert {key: len(ranges) for key, ranges in known.writes.items()} == {
        (topic, partition): 1 for partition in range(3)
    }


def test_what_the_owner_wrote_to_many_partitions_fits() -> None:
    collected = AcceptedWrites()
    few = {("t", p): BranchRange(0, 0, 9, 10) for p in range(5_000)}
    assert not collected.add_own(few)
    many = {("t", p): BranchRange(0, 2**40, 2**40 + 9, 10) for p in range(20_000)}
    assert collected.add_own(many)
    _, found = drained(collected)
    assert found == {key: [written] for key, written in many.items()}
