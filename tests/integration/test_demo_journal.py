"""What the demo sees in the journal, whom it kills by that, and which kills count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from logtx.integration.demo.fleet import Worker
from logtx.integration.demo.flights import (
    TOTAL_FLIGHTS,
)
from logtx.integration.demo.journal_view import JournalTail, JournalView
from logtx.integration.demo.monkey import CoordinatorKill, Monkey, Plan, Target, WorkerKill
from logtx.journal import records as r
from logtx.journal.control import BranchRange
from logtx.journal.memory_log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.record_codec import encode_entry as encode_journal_entry
from logtx.journal.state import State

# ---- what the journal shows ----------------------------------------------------------------

INCARNATION = 7
LEDGER = r.DataPartition("airport_ledger", 0)


class Journal:
    """Writes a journal into a view."""

    def __init__(self, view: JournalView, start: int = 0) -> None:
        self.view = view
        self.offset = start
        self.epoch = -1

    def append(self, record: r.JournalRecord, epoch: int | None = None) -> int:
        offset, self.offset = self.offset, self.offset + 1
        at = self.epoch if epoch is None else epoch
        self.view.feed(offset, r.Entry(at, INCARNATION, record, offset))
        return offset

    def own(self, replaces: int | None = None) -> None:
        replaced = self.epoch if replaces is None else replaces
        owner = r.Owner(replaces=replaced, address="h:1", process_nonce=1)
        self.epoch = self.append(owner, replaced)

    def begin(self, producer_id: str = "ledger-0", epoch: int | None = None) -> int:
        return self.append(begin_record(producer_id), epoch)

    def write(self, begin: int) -> None:
        self.append(r.AddOffsets(begin=begin, group="g", steps=()))

    def commit(self, begin: int, epoch: int | None = None) -> None:
        self.append(commit_record(begin), epoch)

    def abort(self, begin: int, reason: r.AbortReason = r.AbortReason.FENCED) -> None:
        self.append(r.PrepareAbort(begin=begin, reason=reason, decided_ms=0))

    def finish(self, begin: int, committed: bool = True) -> None:
        self.append(r.Committed(begin=begin) if committed else r.Aborted(begin=begin))


def begin_record(producer_id: str) -> r.Begin:
    return r.Begin(
        producer_id=producer_id,
        generation=0,
        session_nonce=1,
        request_id=1,
        answered_below=1,
        timeout_ms=60_000,
        started_ms=0,
    )


def commit_record(begin: int, count: int = 4) -> r.PrepareCommit:
    writes = r.PartitionWrites(LEDGER, (BranchRange(0, 0, count - 1, count),))
    return r.PrepareCommit(begin=begin, writes=(writes,), decided_ms=0)


@pytest.fixture
def journal() -> Journal:
    made = Journal(JournalView("ledger-"))
    made.own()
    return made


def test_a_transaction_from_begin_to_committed(journal: Journal) -> None:
    view, begin = journal.view, journal.begin()
    assert view.open_of("ledger-0") is None  # it has written nothing
    journal.write(begin)
    seen = view.open_of("ledger-0")
    assert seen is not None
    assert (seen.begin, seen.state) == (begin, State.OPEN)
    assert view.open_of("ledger-1") is None
    journal.commit(begin)
    assert view.open_of("ledger-0") is None
    assert [s.begin for s in view.in_state(State.COMMITTING)] == [begin]
    assert (view.committed, view.records_committed) == (1, 4)
    journal.finish(begin)
    assert view.unfinished == []
    assert view[begin].state is State.COMMITTED
    assert not view[begin].outlived_coordinator


def test_the_first_decision_counts(journal: Journal) -> None:
    begin = journal.begin()
    journal.abort(begin)
    journal.commit(begin)
    journal.finish(begin, committed=True)
    assert journal.view[begin].state is State.ABORTING
    journal.finish(begin, committed=False)
    assert journal.view[begin].state is State.ABORTED
    assert (journal.view.committed, journal.view.aborted) == (0, 1)


def test_what_a_replaced_coordinator_appends_is_void(journal: Journal) -> None:
    begin, old = journal.begin(), journal.epoch
    journal.own()
    journal.own(replaces=old)  # lost the race: its epoch never begins
    journal.epoch -= 1
    journal.commit(begin, epoch=old)
    assert journal.view[begin].state is State.OPEN
    journal.own()
    journal.commit(begin)
    assert journal.view[begin].state is State.COMMITTING


def test_a_transaction_that_outlived_its_coordinator(journal: Journal) -> None:
    begin = journal.begin()
    journal.commit(begin)
    journal.own()
    journal.finish(begin)
    assert journal.view[begin].outlived_coordinator


def test_other_producers_are_not_ours(journal: Journal) -> None:
    begin = journal.begin("somebody")
    journal.commit(begin)
    assert list(journal.view) == []
    assert journal.view.committed == 0


def test_reading_may_begin_before_any_owner() -> None:
    journal = Journal(JournalView("ledger-"), start=500)
    journal.epoch = 3
    journal.begin()  # of an epoch that began before we read
    assert list(journal.view) == []
    journal.own()
    begin = journal.begin()
    assert [seen.begin for seen in journal.view] == [begin]


def test_the_tail_reads_to_the_end(memory_log: MemoryLog) -> None:
    memory_log.create_topic(JOURNAL_TOPIC, partitions=1)
    producer = memory_log.producer({})

    def append(record: r.JournalRecord, epoch: int) -> None:
        at = memory_log.end_offset(JOURNAL_TOPIC, 0)
        value = encode_journal_entry(r.Entry(epoch, INCARNATION, record, at))
        producer.produce(JOURNAL_TOPIC, value, partition=0)
        producer.flush(10)

    append(r.Owner(replaces=-1, address="h:1", process_nonce=1), -1)
    for number in range(20):
        append(begin_record(f"ledger-{number % 3}"), 0)
    tail = JournalTail(memory_log, 0, 0, JournalView("ledger-"))
    tail.read_to_end(timeout_s=10)
    assert len(tail.view.unfinished) == 20
    append(commit_record(5), 0)
    assert tail.read_until(lambda: tail.view.committed == 1, timeout_s=10)
    assert not tail.read_until(lambda: tail.view.committed == 2, timeout_s=0.1)
    tail.close()


# ---- kills ---------------------------------------------------------------------------------


def test_20_000_flights_have_all_the_kills() -> None:
    plan = Plan.of(20_000)
    assert plan.kills.count(Target.WORKER) > plan.worker_kills_required == 5
    assert plan.kills.count(Target.COORDINATOR) > plan.coordinator_kills_required == 1


@pytest.mark.parametrize("flights", [1, 100, 2_500, 20_000, TOTAL_FLIGHTS])
def test_kills_spread_over_the_run(flights: int) -> None:
    plan = Plan.of(flights)
    starts = [plan.slice_start(number) for number in range(len(plan.kills) + 1)]
    assert starts[0] == 0
    assert all(after > before for before, after in pairwise(starts))
    assert starts[-1] < flights
    assert plan.worker_kills_required <= plan.kills.count(Target.WORKER)


def test_few_flights_are_not_worth_a_kill() -> None:
    assert Plan.of(1_000).kills == ()
    assert Plan.of(1_000).worker_kills_required == 0


@dataclass
class FakeChild:
    """A process that notes what is done to it."""

    name: str = "worker 0"
    starts: int = 1
    is_ready: bool = True
    done: list[str] = field(default_factory=list)

    def pause(self) -> None:
        self.done.append("pause")

    def resume(self) -> None:
        self.done.append("resume")

    def kill(self) -> None:
        self.done.append("kill")

    def start(self) -> None:
        self.done.append("start")
        self.starts += 1


@dataclass
class FakeTail:
    """A tail whose next reads are told beforehand."""

    view: JournalView
    reads: list[Callable[[], None]] = field(default_factory=list)

    def read_to_end(self, *, timeout_s: float) -> None:
        assert timeout_s > 0
        if self.reads:
            self.reads.pop(0)()


@dataclass
class FakePublisher:
    allowed: int = 0

    def allow(self, flights: int) -> None:
        self.allowed = max(self.allowed, flights)


@dataclass
class Stage:
    """A monkey among fakes."""

    journal: Journal
    kills: tuple[Target, ...]
    worker: FakeChild = field(default_factory=FakeChild)
    coordinator: FakeChild = field(default_factory=FakeChild)

    def __post_init__(self) -> None:
        self.tail = FakeTail(self.journal.view)
        self.publisher = FakePublisher()
        parts: Any = (self.coordinator, self.tail, self.publisher)
        child: Any = self.worker
        plan = Plan(
            flights=300,
            kills=self.kills,
            worker_kills_required=1,
            coordinator_kills_required=1,
        )
        self.monkey = Monkey(plan, [Worker(child, "ledger-0")], *parts)
        self.monkey.start()


def test_a_worker_is_killed_with_its_transaction_open(journal: Journal) -> None:
    stage = Stage(journal, (Target.WORKER,))
    assert stage.publisher.allowed == 150
    stage.monkey.step()
    assert stage.worker.done == []  # nothing is open
    begin = journal.begin()
    journal.write(begin)
    stage.monkey.step()
    assert stage.worker.done == ["pause", "kill", "start"]
    assert stage.monkey.worker_kills == [WorkerKill("worker 0", begin)]
    assert stage.publisher.allowed == 300
    journal.abort(begin)
    assert stage.monkey.worker_kills[0].counts(journal.view)
    stage.monkey.step()
    assert len(stage.worker.done) == 3  # that was all


def test_a_transaction_left_open_is_not_killed_for_twice(journal: Journal) -> None:
    stage = Stage(journal, (Target.WORKER, Target.WORKER))
    begin = journal.begin()
    journal.write(begin)
    booked = journal.begin("ledger-1")
    journal.append(commit_record(booked, count=2 * 299))
    for _ in range(3):
        stage.monkey.step()  # the successor has not fenced the transaction yet
    assert stage.worker.done == ["pause", "kill", "start"]
    journal.abort(begin)
    begin = journal.begin()
    journal.write(begin)
    stage.monkey.step()
    assert [kill.begin for kill in stage.monkey.worker_kills][1:] == [begin]


def test_a_worker_that_ended_its_transaction_in_time_lives(journal: Journal) -> None:
    stage = Stage(journal, (Target.WORKER,))
    begin = journal.begin()
    journal.write(begin)
    stage.tail.reads = [lambda: journal.commit(begin)]
    stage.monkey.step()
    assert stage.worker.done == ["pause", "resume"]
    assert stage.monkey.worker_kills == []


@pytest.mark.parametrize("reason", list(r.AbortReason))
def test_only_a_transaction_left_to_others_counts(journal: Journal, reason: r.AbortReason) -> None:
    begin = journal.begin()
    kill = WorkerKill("worker 0", begin)
    assert not kill.counts(journal.view)  # open for ever
    journal.abort(begin, reason)
    assert kill.counts(journal.view) == (reason is not r.AbortReason.REQUESTED)


def test_a_commit_that_was_under_way_does_not_count(journal: Journal) -> None:
    begin = journal.begin()
    journal.commit(begin)
    assert not WorkerKill("worker 0", begin).counts(journal.view)


def test_the_coordinator_is_killed_with_a_transaction_committing(journal: Journal) -> None:
    stage = Stage(journal, (Target.COORDINATOR,))
    begin = journal.begin()
    stage.monkey.step()
    assert stage.coordinator.done == []
    journal.commit(begin)
    stage.monkey.step()
    assert stage.coordinator.done == ["pause", "kill", "start"]
    (kill,) = stage.monkey.coordinator_kills
    assert kill == CoordinatorKill((begin,))
    assert not kill.counts(journal.view)  # nobody has finished it yet
    journal.own()
    journal.finish(begin)
    assert kill.counts(journal.view)


def test_a_coordinator_that_finished_in_time_lives(journal: Journal) -> None:
    stage = Stage(journal, (Target.COORDINATOR,))
    begin = journal.begin()
    journal.commit(begin)
    stage.tail.reads = [lambda: journal.finish(begin)]
    stage.monkey.step()
    assert stage.coordinator.done == ["pause", "resume"]


def test_what_landed_after_the_kill_is_not_counted(journal: Journal) -> None:
    stage = Stage(journal, (Target.COORDINATOR,))
    begin = journal.begin()
    journal.commit(begin)
    stage.tail.reads = [lambda: None, lambda: journal.finish(begin)]
    stage.monkey.step()
    assert stage.coordinator.done == ["pause", "kill", "start"]
    assert stage.monkey.coordinator_kills == []


def test_nobody_is_killed_while_the_coordinator_starts(journal: Journal) -> None:
    stage = Stage(journal, (Target.WORKER,))
    stage.coordinator.is_ready = False
    journal.write(journal.begin())
    stage.monkey.step()
    assert stage.worker.done == []


def test_a_slice_used_up_without_a_kill_is_followed_by_more(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(journal, (Target.WORKER,))
    begin = journal.begin()
    journal.append(commit_record(begin, count=300))
    assert journal.view.records_committed // 2 == stage.publisher.allowed == 150
    now_s = [100.0]
    monkeypatch.setattr("logtx.integration.demo.monkey.time.monotonic", lambda: now_s[0])
    stage.monkey.step()
    assert stage.publisher.allowed == 150
    now_s[0] += 1
    stage.monkey.step()
    assert 150 < stage.publisher.allowed < 300
