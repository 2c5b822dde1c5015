"""Whom the demo kills and pauses by what the journal shows, and which of it counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from logtx.integration.demo.deeds import (
    PAUSE_LIMIT_S,
    PAUSE_S,
    CoordinatorKill,
    CoordinatorPause,
    WorkerKill,
    WorkerPause,
)
from logtx.integration.demo.errors import DemoError
from logtx.integration.demo.fleet import Worker
from logtx.integration.demo.flights import TOTAL_FLIGHTS
from logtx.integration.demo.journal_view import JournalView
from logtx.integration.demo.monkey import Monkey
from logtx.integration.demo.options import DemoOptions
from logtx.integration.demo.plan import CHAOS_FLIGHTS_MIN, Fault, Plan
from logtx.integration.demo.reports import FENCED_STATUS
from logtx.journal.records import types as r

from .journals import Journal

# ---- the plan -----------------------------------------------------------------------------------


def test_20_000_flights_have_all_the_kills() -> None:
    plan = Plan.of(20_000)
    assert set(plan.faults) == {Fault.WORKER_KILL, Fault.COORDINATOR_KILL}
    assert plan.faults.count(Fault.WORKER_KILL) > plan.required[Fault.WORKER_KILL] == 5
    assert plan.faults.count(Fault.COORDINATOR_KILL) > plan.required[Fault.COORDINATOR_KILL] == 1


@pytest.mark.parametrize("flights", [1, 100, 2_500, 20_000, TOTAL_FLIGHTS])
@pytest.mark.parametrize("coordinators", [1, 3])
@pytest.mark.parametrize("chaos", [False, True])
def test_faults_spread_over_the_run(flights: int, coordinators: int, chaos: bool) -> None:
    plan = Plan.of(flights, coordinators=coordinators, chaos=chaos)
    starts = [plan.slice_start(number) for number in range(len(plan.faults) + 1)]
    assert starts[0] == 0
    assert all(after > before for before, after in pairwise(starts))
    assert starts[-1] < flights
    planned = Counter(plan.faults)
    assert all(required <= planned[fault] for fault, required in plan.required.items())
    # No kind comes all at once: between two of it there are others, if it is not the most common.
    most = max(planned.values(), default=0)
    for fault, count in planned.items():
        if count < most:
            assert (fault, fault) not in pairwise(plan.faults)


def test_few_flights_are_not_worth_a_kill() -> None:
    assert Plan.of(1_000).faults == ()
    assert not any(Plan.of(1_000).required.values())


@pytest.mark.parametrize("flights", [CHAOS_FLIGHTS_MIN, 20_000, TOTAL_FLIGHTS])
def test_chaos_requires_every_kind(flights: int) -> None:
    plan = Plan.of(flights, coordinators=3, chaos=True)
    assert set(plan.faults) == set(plan.required) == set(Fault)
    assert min(plan.required.values()) >= 1


def test_chaos_has_three_coordinators_if_nothing_else_is_said() -> None:
    assert DemoOptions(chaos=True).coordinator_count == 3
    assert DemoOptions().coordinator_count == 1
    DemoOptions(chaos=True).check()
    DemoOptions(coordinators=8, flights=1).check()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (DemoOptions(chaos=True, coordinators=1), "--coordinators 2"),
        (DemoOptions(chaos=True, flights=CHAOS_FLIGHTS_MIN - 1), "--flights 8000"),
    ],
)
def test_chaos_that_could_not_be_shown_is_refused(options: DemoOptions, says: str) -> None:
    with pytest.raises(DemoError, match=says):
        options.check()


# ---- a monkey among fakes -----------------------------------------------------------------------


@dataclass(eq=False)
class FakeChild:
    """A process that notes what is done to it."""

    name: str = "worker 0"
    starts: int = 1
    address: str = "a:1"
    is_ready: bool = True
    exit_status: int | None = None
    done: list[str] = field(default_factory=list)
    left_behind: list[FakeChild] = field(default_factory=list)

    def pause(self) -> None:
        self.done.append("pause")

    def resume(self) -> None:
        self.done.append("resume")

    def kill(self) -> None:
        self.done.append("kill")

    def start(self) -> None:
        self.done.append("start")
        self.starts += 1
        self.address = f"{self.address[0]}:{self.starts}"

    def leave_behind(self) -> FakeChild:
        self.left_behind.append(FakeChild(f"zombie of {self.name}"))
        return self.left_behind[-1]


@dataclass
class FakeTail:
    """A tail whose next reads are told beforehand."""

    view: JournalView
    reads: list[Callable[[], None]] = field(default_factory=list)

    def read_to_end(self, partition: int, *, timeout_s: float) -> None:
        assert partition in self.view.owners
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
    faults: tuple[Fault, ...]
    worker: FakeChild = field(default_factory=FakeChild)
    coordinators: tuple[FakeChild, ...] = field(
        default_factory=lambda: (FakeChild("coordinator", address="a:1"),)
    )

    def __post_init__(self) -> None:
        self.tail = FakeTail(self.journal.view)
        self.publisher = FakePublisher()
        parts: Any = (self.coordinators, self.tail, self.publisher)
        child: Any = self.worker
        plan = Plan(flights=300, faults=self.faults, required=dict.fromkeys(self.faults, 1))
        self.monkey = Monkey(plan, [Worker(child, "ledger-0")], *parts)
        self.monkey.start()

    @property
    def coordinator(self) -> FakeChild:
        return self.coordinators[0]


@pytest.fixture
def journal() -> Journal:
    made = Journal(JournalView("ledger-"))
    made.own()
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [100.0]
    monkeypatch.setattr("logtx.integration.demo.monkey.time.monotonic", lambda: now_s[0])
    return now_s


# ---- workers ------------------------------------------------------------------------------------


def test_a_worker_is_killed_with_its_transaction_open(journal: Journal) -> None:
    stage = Stage(journal, (Fault.WORKER_KILL,))
    assert stage.publisher.allowed == 150
    stage.monkey.step()
    assert stage.worker.done == []  # nothing is open
    begin = journal.begin()
    journal.write(begin)
    stage.monkey.step()
    assert stage.worker.done == ["pause", "kill", "start"]
    assert stage.monkey.deeds == [WorkerKill("worker 0", begin)]
    assert stage.publisher.allowed == 300
    journal.abort(begin)
    assert stage.monkey.deeds[0].counts(journal.view)
    stage.monkey.step()
    assert len(stage.worker.done) == 3  # that was all


@pytest.mark.parametrize("second", [Fault.WORKER_KILL, Fault.WORKER_PAUSE])
@pytest.mark.parametrize("first", [Fault.WORKER_KILL, Fault.WORKER_PAUSE])
def test_a_transaction_left_open_is_not_hit_twice(
    first: Fault, second: Fault, journal: Journal
) -> None:
    stage = Stage(journal, (first, second))
    begin = journal.begin()
    journal.write(begin)
    booked = journal.begin("ledger-1")
    journal.commit(booked, count=2 * 299)
    for _ in range(3):
        stage.monkey.step()  # the successor has not fenced the transaction yet
    assert len(stage.monkey.deeds) == 1
    journal.abort(begin)
    begin = journal.begin()
    journal.write(begin)
    stage.monkey.step()
    hit = [deed.key for deed in stage.monkey.deeds if isinstance(deed, WorkerKill | WorkerPause)]
    assert hit[1:] == [begin]


@pytest.mark.parametrize("fault", [Fault.WORKER_KILL, Fault.WORKER_PAUSE])
def test_a_worker_that_ended_its_transaction_in_time_goes_on(
    fault: Fault, journal: Journal
) -> None:
    stage = Stage(journal, (fault,))
    begin = journal.begin()
    journal.write(begin)
    stage.tail.reads = [lambda: journal.commit(begin)]
    stage.monkey.step()
    assert stage.worker.done == ["pause", "resume"]
    assert stage.monkey.deeds == []


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


def test_a_paused_worker_wakes_when_its_successor_has_fenced_it(journal: Journal) -> None:
    """Trap 24, the producer's side: SIGSTOP, another takes over, SIGCONT."""
    stage = Stage(journal, (Fault.WORKER_PAUSE,))
    begin = journal.begin()
    journal.write(begin)
    stage.monkey.step()
    assert stage.worker.done == ["pause", "start"]
    (zombie,) = stage.worker.left_behind
    assert stage.monkey.workers[0].zombies == [zombie]
    assert stage.monkey.counts == {Fault.WORKER_PAUSE: 1}
    journal.abort(begin)
    stage.monkey.step()
    assert zombie.done == []
    assert len(stage.monkey.pauses) == 1
    journal.finish(begin, committed=False)
    stage.monkey.step()
    assert zombie.done == ["resume"]
    assert stage.monkey.pauses == []
    (pause,) = stage.monkey.deeds
    assert not pause.counts(journal.view)  # it has not noticed yet
    zombie.exit_status = 1
    assert not pause.counts(journal.view)
    zombie.exit_status = FENCED_STATUS
    assert pause.counts(journal.view)


def test_a_paused_worker_whose_commit_was_under_way_does_not_count(journal: Journal) -> None:
    stage = Stage(journal, (Fault.WORKER_PAUSE,))
    begin = journal.begin()
    journal.write(begin)
    stage.monkey.step()
    journal.commit(begin)
    stage.worker.left_behind[0].exit_status = FENCED_STATUS
    assert not stage.monkey.deeds[0].counts(journal.view)


def test_a_worker_is_woken_in_the_end_even_if_nobody_fenced_it(
    journal: Journal, clock: list[float]
) -> None:
    stage = Stage(journal, (Fault.WORKER_PAUSE,))
    journal.write(journal.begin())
    stage.monkey.step()
    clock[0] += PAUSE_LIMIT_S + 0.1
    stage.monkey.step()
    assert stage.worker.left_behind[0].done == ["resume"]


# ---- coordinators -------------------------------------------------------------------------------


def test_a_coordinator_is_killed_with_a_transaction_committing(journal: Journal) -> None:
    stage = Stage(journal, (Fault.COORDINATOR_KILL,))
    begin = journal.begin()
    stage.monkey.step()
    assert stage.coordinator.done == []
    journal.commit(begin)
    stage.monkey.step()
    assert stage.coordinator.done == ["pause", "kill", "start"]
    (kill,) = stage.monkey.deeds
    assert kill == CoordinatorKill((begin,), "a:2")
    assert not kill.counts(journal.view)  # nobody has finished it yet
    assert not kill.served_again(journal.view)
    journal.own(address="a:2")
    journal.finish(begin)
    assert kill.counts(journal.view)
    assert kill.served_again(journal.view)


@pytest.mark.parametrize("fault", [Fault.COORDINATOR_KILL, Fault.COORDINATOR_PAUSE])
def test_a_coordinator_that_finished_in_time_goes_on(fault: Fault, journal: Journal) -> None:
    stage = Stage(journal, (fault,))
    begin = journal.begin()
    journal.commit(begin)
    stage.tail.reads = [lambda: journal.finish(begin)]
    stage.monkey.step()
    assert stage.coordinator.done == ["pause", "resume"]
    assert stage.monkey.deeds == []


def test_a_kill_whose_transaction_was_finished_all_the_same_does_not_count(
    journal: Journal,
) -> None:
    stage = Stage(journal, (Fault.COORDINATOR_KILL,))
    begin = journal.begin()
    journal.commit(begin)
    stage.monkey.step()
    journal.finish(begin)  # was on its way
    assert not stage.monkey.deeds[0].counts(journal.view)


def test_what_a_predecessor_decided_is_no_reason_to_kill(journal: Journal) -> None:
    stage = Stage(journal, (Fault.COORDINATOR_KILL,))
    begin = journal.begin()
    journal.commit(begin)
    journal.own()  # finishes it at once
    stage.monkey.step()
    assert stage.coordinator.done == []


def test_nobody_is_hit_while_the_only_coordinator_starts(journal: Journal) -> None:
    stage = Stage(journal, (Fault.WORKER_KILL,))
    stage.coordinator.is_ready = False
    journal.write(journal.begin())
    stage.monkey.step()
    assert stage.worker.done == []


def sharing(journal: Journal, *faults: Fault) -> tuple[Stage, Journal]:
    """A stage where coordinator b owns partition 1."""
    coordinators = (
        FakeChild("coordinator 0", address="a:1"),
        FakeChild("coordinator 1", address="b:1"),
    )
    other = Journal(journal.view, partition=1)
    other.own(address="b:1")
    return Stage(journal, faults, coordinators=coordinators), other


def test_the_owner_of_the_committing_transaction_is_hit(journal: Journal) -> None:
    stage, other = sharing(journal, Fault.COORDINATOR_KILL)
    begin = other.begin()
    other.commit(begin)
    stage.monkey.step()
    assert [c.done for c in stage.coordinators] == [[], ["pause", "kill", "start"]]
    assert stage.monkey.deeds == [CoordinatorKill((begin,), "b:2")]


def test_coordinators_are_hit_in_turn(journal: Journal) -> None:
    stage, other = sharing(journal, Fault.COORDINATOR_KILL)
    stage.monkey._harmed[0] = 1
    journal.commit(journal.begin())
    other.commit(other.begin())
    stage.monkey.step()
    assert stage.coordinators[0].done == []


def test_a_paused_coordinator_wakes_as_a_former_owner(journal: Journal, clock: list[float]) -> None:
    stage, other = sharing(journal, Fault.COORDINATOR_PAUSE, Fault.COORDINATOR_KILL)
    begin = other.begin()
    other.commit(begin, count=2 * 299)
    stage.monkey.step()
    sleeper = stage.coordinators[1]
    assert sleeper.done == ["pause"]
    clock[0] += PAUSE_S + 0.1
    journal.commit(journal.begin())
    stage.monkey.step()
    assert sleeper.done == ["pause"]  # nobody has taken over yet
    assert stage.coordinators[0].done == []  # one at a time
    other.own(address="a:1")
    other.finish(begin)
    stage.monkey.step()
    assert sleeper.done == ["pause", "resume"]
    pause = stage.monkey.deeds[0]
    assert isinstance(pause, CoordinatorPause)
    assert pause.counts(journal.view)
    assert not pause.served_again(journal.view)
    other.own(address="b:1")
    assert pause.served_again(journal.view)


def test_a_coordinator_sleeps_for_a_while_even_if_it_is_replaced_at_once(
    journal: Journal, clock: list[float]
) -> None:
    stage, other = sharing(journal, Fault.COORDINATOR_PAUSE)
    begin = other.begin()
    other.commit(begin)
    stage.monkey.step()
    other.own(address="a:1")
    clock[0] += PAUSE_S - 0.1
    stage.monkey.step()
    assert stage.coordinators[1].done == ["pause"]
    clock[0] += 0.2
    stage.monkey.step()
    assert stage.coordinators[1].done == ["pause", "resume"]


def test_a_coordinator_that_nobody_replaced_is_woken_and_does_not_count(
    journal: Journal, clock: list[float]
) -> None:
    stage, other = sharing(journal, Fault.COORDINATOR_PAUSE)
    begin = other.begin()
    other.commit(begin)
    stage.monkey.step()
    clock[0] += PAUSE_LIMIT_S + 0.1
    stage.monkey.step()
    assert stage.coordinators[1].done == ["pause", "resume"]
    other.own(address="a:1")  # too late
    other.finish(begin)
    assert not stage.monkey.deeds[0].counts(journal.view)


def test_workers_are_hit_while_a_coordinator_sleeps_or_starts(journal: Journal) -> None:
    stage, other = sharing(journal, Fault.COORDINATOR_PAUSE, Fault.WORKER_KILL)
    begin = other.begin("ledger-1")
    other.commit(begin, count=2 * 299)
    stage.monkey.step()
    stage.coordinators[0].is_ready = False
    journal.write(journal.begin())
    stage.monkey.step()
    assert stage.worker.done == ["pause", "kill", "start"]


# ---- once more ----------------------------------------------------------------------------------


def test_a_fault_that_interrupted_nothing_is_repeated(journal: Journal) -> None:
    stage = Stage(journal, (Fault.WORKER_KILL,))
    begin = journal.begin()
    journal.write(begin)
    stage.monkey.step()
    journal.commit(begin, count=2 * 299)  # was on its way
    assert stage.monkey.deeds[0].is_spoilt(journal.view)
    stage.monkey.step()
    assert len(stage.monkey.deeds) == 1  # nothing is open
    for _ in range(2):
        begin = journal.begin()
        journal.write(begin)
        stage.monkey.step()
        journal.abort(begin)
    assert len(stage.monkey.deeds) == 2
    assert stage.monkey.deeds[1].counts(journal.view)
    assert not stage.monkey.deeds[1].is_spoilt(journal.view)


@pytest.mark.parametrize("fault", [Fault.COORDINATOR_KILL, Fault.COORDINATOR_PAUSE])
def test_a_coordinators_fault_is_spoilt_if_its_own_last_word_landed(
    fault: Fault, journal: Journal
) -> None:
    stage = Stage(journal, (fault,))
    first, second = journal.begin("ledger-0"), journal.begin("ledger-1")
    journal.commit(first)
    journal.commit(second)
    stage.monkey.step()
    (deed,) = stage.monkey.deeds
    journal.finish(first)
    assert not deed.is_spoilt(journal.view)
    journal.finish(second)
    assert deed.is_spoilt(journal.view)
    assert not deed.counts(journal.view)


def test_repeats_have_an_end(journal: Journal) -> None:
    stage = Stage(journal, (Fault.WORKER_KILL,))
    for _ in range(5):
        begin = journal.begin()
        journal.write(begin)
        stage.monkey.step()
        journal.commit(begin, count=2 * 299)
    assert len(stage.monkey.deeds) == 2


# ---- letting flights through --------------------------------------------------------------------


def test_a_slice_used_up_without_a_fault_is_followed_by_more(
    journal: Journal, clock: list[float]
) -> None:
    stage = Stage(journal, (Fault.WORKER_KILL,))
    journal.commit(journal.begin(), count=300)
    assert journal.view.records_committed // 2 == stage.publisher.allowed == 150
    stage.monkey.step()
    assert stage.publisher.allowed == 150
    clock[0] += 1
    stage.monkey.step()
    assert 150 < stage.publisher.allowed < 300
