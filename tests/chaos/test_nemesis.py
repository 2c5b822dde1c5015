"""The plan of faults: drawn from the seed, bounded, and never too much at a time."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from logtx.chaos import nemesis, operator
from logtx.chaos.errors import ChaosError
from logtx.chaos.fleet import ChaosCoordinator, Death
from logtx.chaos.nemesis import Nemesis
from logtx.chaos.operator import Operator
from logtx.chaos.options import ChaosOptions, Metadata, System
from logtx.chaos.plan import (
    BROKER_REST_S,
    CALM_START_S,
    Fault,
    Role,
    What,
    plan_faults,
    plan_upgrades,
)
from logtx.journal.errors import LogtxError, RequestTimedOutError, TopicModeError
from logtx.journal.modes import Mode

from .test_run_parts import settings

COUNTS = ChaosOptions().counts()
SEEDS = range(1, 60)
CLIENTS = {Role.PRODUCER, Role.WORKER, Role.CONSUMER}


def of_role(plan: list[Fault], *roles: Role) -> list[Fault]:
    return [fault for fault in plan if fault.role in roles]


def test_a_seed_gives_the_same_plan_and_another_another() -> None:
    assert plan_faults(7, 300, COUNTS) == plan_faults(7, 300, COUNTS)
    assert plan_faults(7, 300, COUNTS) != plan_faults(8, 300, COUNTS)


@pytest.mark.parametrize("mild", [False, True])
@pytest.mark.parametrize("seconds", [8.0, 15.0, 60.0, 300.0])
def test_everything_is_over_before_the_end(seconds: float, *, mild: bool) -> None:
    for seed in SEEDS:
        for fault in plan_faults(seed, seconds, COUNTS, mild=mild):
            assert fault.at_s >= CALM_START_S
            assert fault.until_s < seconds
            assert 0 <= fault.number < COUNTS[fault.role]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_two_of_a_kind_are_hurt_at_a_time(seed: int) -> None:
    plan = plan_faults(seed, 300, COUNTS)
    brokers = of_role(plan, Role.BROKER)
    assert len(brokers) >= 8
    for one, next_one in pairwise(brokers):
        assert next_one.at_s >= one.until_s + BROKER_REST_S
    for track in ([Role.COORDINATOR], CLIENTS, [Role.TOPIC], [Role.FLEETING], [Role.TOPICS]):
        for one, next_one in pairwise(of_role(plan, *track)):
            assert next_one.at_s > one.until_s


def test_over_some_seeds_everything_happens_to_everybody() -> None:
    seen = {(f.role, f.what) for seed in SEEDS for f in plan_faults(seed, 300, COUNTS)}
    processes = {What.KILL, What.PAUSE, What.RESTART, What.CUT, What.STALL}
    for role in (Role.BROKER, Role.COORDINATOR, *CLIENTS):
        assert {what for r, what in seen if r is role} >= processes
    assert {(Role.PRODUCER, What.REPLACE), (Role.WORKER, What.REPLACE)} <= seen
    assert {(Role.BROKER, What.DELAY), (Role.TOPIC, What.TRIM)} <= seen
    assert {(Role.BROKER, What.FILL), (Role.COORDINATOR, What.MISLEAD)} <= seen
    assert {(Role.WORKER, What.INTERRUPT), (Role.FLEETING, What.RECREATE)} <= seen
    assert (Role.TOPICS, What.GROW) in seen
    hurt = {(f.role, f.number) for s in SEEDS for f in plan_faults(s, 300, COUNTS)}
    assert len(hurt) == sum(COUNTS.values())


def test_a_long_run_has_many_faults() -> None:
    for seed in SEEDS:
        plan = plan_faults(seed, 300, COUNTS)
        assert len(of_role(plan, *CLIENTS)) >= 20
        assert len(of_role(plan, Role.COORDINATOR)) >= 15
        assert len(of_role(plan, Role.TOPIC)) >= 8


def test_in_a_mild_plan_no_broker_dies() -> None:
    for seed in SEEDS:
        plan = plan_faults(seed, 15, COUNTS, mild=True)
        assert all(fault.what is What.DELAY for fault in of_role(plan, Role.BROKER))
        assert len(plan) >= 4


def test_what_is_not_there_is_not_hurt() -> None:
    counts = ChaosOptions(system=System.KAFKA).counts()
    assert counts[Role.COORDINATOR] == 0
    for seed in SEEDS:
        assert not of_role(plan_faults(seed, 120, counts), Role.COORDINATOR)


def test_topics_are_switched_and_sealed_if_some_begin_in_metadata_mode() -> None:
    for metadata, switched in ((Metadata.HALF, 2), (Metadata.ALL, 3)):
        counts = ChaosOptions(metadata=metadata).counts()
        plans = [plan_faults(seed, 300, counts) for seed in SEEDS]
        switches = [fault for plan in plans for fault in of_role(plan, Role.MODE)]
        assert {fault.number for fault in switches} == set(range(switched))
        seals = [fault for plan in plans for fault in of_role(plan, Role.SEAL)]
        assert {fault.number for fault in seals} == {0, 1}
        assert all(fault.for_s >= 1 for fault in seals)
        assert of_role(plan_faults(1, 15, counts, mild=True), Role.MODE)
    for seed in SEEDS:
        assert not of_role(plan_faults(seed, 300, COUNTS), Role.MODE, Role.SEAL)


def test_the_other_faults_are_as_without_switches() -> None:
    counts = ChaosOptions(metadata=Metadata.ALL).counts()
    for seed in SEEDS:
        more = {Role.MODE, Role.SEAL}
        plan = [fault for fault in plan_faults(seed, 300, counts) if fault.role not in more]
        assert plan == plan_faults(seed, 300, COUNTS)


def test_kafka_has_no_topic_that_is_made_anew() -> None:
    counts = ChaosOptions(system=System.KAFKA).counts()
    assert not of_role(plan_faults(1, 300, counts), Role.FLEETING)


@pytest.mark.parametrize("seconds", [15.0, 60.0, 300.0])
def test_each_coordinator_is_upgraded_once_and_in_the_middle(seconds: float) -> None:
    plan = plan_upgrades(seconds, 3)
    assert [fault.number for fault in plan] == [0, 1, 2]
    assert {(fault.role, fault.what) for fault in plan} == {(Role.COORDINATOR, What.UPGRADE)}
    assert 0.2 * seconds < plan[0].at_s < plan[1].at_s < plan[2].at_s < 0.7 * seconds
    assert [fault.number for fault in plan_upgrades(seconds, 1)] == [0]


# ---- what the nemesis does ----------------------------------------------------------------------


class Told:
    """In place of all that the nemesis acts on: what it was told, in order."""

    def __init__(self, *coordinators: str) -> None:
        self.told: list[tuple[object, ...]] = []
        self.coordinators = [SimpleNamespace(name=name) for name in coordinators]
        self.deaths: list[Death] = []
        self.death: Death | None = None
        self.child = SimpleNamespace(is_running=True)
        self.name, self.process_name = "worker-1", "worker-1.0"
        self.connected = {"worker-1.0"}
        self.open: list[frozenset[str] | None] = []
        self.outcomes: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: object, **more: object) -> None:
            self.told.append((name, *arguments, *more.values()))

        return call

    def unfinished(self, _topic: str) -> frozenset[str] | None:
        return self.open.pop(0)

    def member(self, _role: Role, number: int) -> Any:
        return self if not self.coordinators else self._coordinator(number)

    def _coordinator(self, number: int) -> Any:
        name = self.coordinators[number].name
        child = ChaosCoordinator.__new__(ChaosCoordinator)
        child.name = name
        return SimpleNamespace(name=name, process_name=f"{name}.0", child=child)

    def interrupt(self, _limit_s: float) -> Death | None:
        self.told.append(("interrupt",))
        return self.death


def done(world: Told, *faults: Fault) -> Nemesis:
    """A nemesis that did these faults on `world`."""
    everything: Any = dict.fromkeys(
        ("cluster", "fleet", "proxies", "trimmer", "topics", "inspector", "recorder", "progress"),
        world,
    )
    made = Nemesis(faults, seconds=60, operator=cast("Any", world), **everything)
    for fault in faults:
        made._do("track", fault)
    return made


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether coordinators have started; may be changed."""
    told = [True]
    monkeypatch.setattr(ChaosCoordinator, "is_running", property(lambda _self: True))
    monkeypatch.setattr(ChaosCoordinator, "has_started", property(lambda _self: told[0]))
    return told


def test_an_address_leads_to_another_coordinator_and_back(started: list[bool]) -> None:
    world = Told("coordinator-0", "coordinator-1")
    did = done(world, Fault(1.0, What.MISLEAD, Role.COORDINATOR, 1, 0.01))
    assert [each for each in world.told if "lead" in str(each[0])] == [
        ("mislead", "coordinator-1", "coordinator-0"),
        ("heal_lead", "coordinator-1"),
    ]
    assert did.counts[What.MISLEAD] == 1
    alone = Told("coordinator-0")
    assert not done(alone, Fault(1.0, What.MISLEAD, Role.COORDINATOR, 0, 0.01)).counts
    started[0] = False  # it would refuse its address, and end
    again = done(world, Fault(1.0, What.MISLEAD, Role.COORDINATOR, 1, 0.01))
    assert not again.counts


def test_a_worker_that_does_not_end_cleanly_after_ctrl_c_is_found() -> None:
    interrupted = Fault(1.0, What.INTERRUPT, Role.WORKER, 1)
    fine, bad = Told(), Told()
    bad.death = Death("worker-1.0", 1, "after SIGINT: a traceback")
    assert done(fine, interrupted).counts[What.INTERRUPT] == 1
    assert ("interrupt",) in fine.told
    assert not fine.deaths
    done(bad, interrupted)
    assert [str(death) for death in bad.deaths] == [
        "worker-1.0 ended by itself (exit status 1): after SIGINT: a traceback"
    ]


def test_topics_are_made_anew_and_grow_and_the_history_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nemesis, "_AWAY_S", 0.0)
    monkeypatch.setattr(nemesis, "_LOOK_S", 0.0)
    world = Told()
    world.open = [frozenset({"a"}), None, frozenset()]
    faults = Fault(1.0, What.RECREATE, Role.FLEETING, 0), Fault(2.0, What.GROW, Role.TOPICS, 0)
    did = done(world, *faults)
    assert world.open == [], "it is made anew only when no transaction lists it"
    assert [each if each[0] == "made_anew" else (each[0], *each[2:]) for each in world.told] == [
        ("write", "recreate", "chaos-fleeting"),
        ("delete",),
        ("made_anew", "chaos-fleeting"),
        ("make_anew",),
        ("write", "recreated", "chaos-fleeting"),
        ("write", "grow", "topics"),
        ("grow",),
    ]
    assert did.counts[What.GROW] == 0, "there are enough"


def test_a_topic_is_sealed_and_takes_records_again() -> None:
    world = Told()
    did = done(world, Fault(1.0, What.SEAL, Role.SEAL, 1, 0.01))
    assert world.told == [
        ("write", "fault", "seal", "chaos-out"),
        ("seal", "chaos-out"),
        ("unseal", "chaos-out"),
        ("write", "fault", "unseal", "chaos-out"),
    ]
    assert did.counts[What.SEAL] == 1


def test_whatever_ends_a_track_early_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_self: Told, _limit_s: float) -> Death | None:
        raise subprocess.TimeoutExpired("worker-1.0", 60.0)

    monkeypatch.setattr(Told, "interrupt", never)
    did = done(Told())
    did._started_s = time.monotonic()
    did._run_track("worker", [Fault(0.0, What.INTERRUPT, Role.WORKER, 1)])
    assert isinstance(did.failure, subprocess.TimeoutExpired)


def test_a_track_waits_for_commits_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemesis, "_LOOK_S", 0.01)
    monkeypatch.setattr(nemesis, "_COMMITS_S", 0.2)
    faults = [Fault(0.0, What.INTERRUPT, Role.WORKER, 1)] * 3
    world = Told()
    did = done(world)
    did._started_s = time.monotonic()
    threading.Timer(0.05, world.outcomes.update, ({"committed": nemesis._COMMITS},)).start()
    did._run_track("worker", faults)
    assert did.counts[What.INTERRUPT] == 3
    assert 0.25 <= time.monotonic() - did._started_s < 10, "one wait is cut short, one is not"


# ---- the operator -------------------------------------------------------------------------------


class Coordinators:
    """In place of `AdminQueries`: what was asked, and what fails."""

    def __init__(self, *failures: LogtxError | None) -> None:
        self.failures = list(failures)
        self.asked: list[tuple[str, str, str]] = []

    def set_topic_mode(
        self, topic: str, mode: Mode, *, transaction_group: str, timeout_s: float
    ) -> None:
        assert 0 < timeout_s <= 60
        self.asked.append((topic, str(mode), transaction_group))
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure


def operator_of(
    monkeypatch: pytest.MonkeyPatch, coordinators: Coordinators, **changes: object
) -> Operator:
    monkeypatch.setattr(operator, "AdminQueries", lambda *_, **__: coordinators)
    monkeypatch.setattr(operator, "_PAUSE_S", 0.0)
    told: Any = Told()
    return Operator(told, settings(metadata=Metadata.HALF, **changes), told)


def test_half_of_the_topics_begin_in_metadata_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, topic in ((1, "chaos-out"), (2, "chaos")):
        coordinators = Coordinators()
        operator_of(monkeypatch, coordinators, seed=seed).begin()
        assert [asked[:2] for asked in coordinators.asked] == [(topic, "metadata")]


def test_topics_are_switched_back_and_forth(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinators = Coordinators()
    made = operator_of(monkeypatch, coordinators)
    assert [made.switch(0), made.switch(1), made.switch(0)] == [True] * 3
    assert coordinators.asked == [
        ("chaos", "metadata", "default"),
        ("chaos-out", "metadata", "chaos-workers"),
        ("chaos", "markers", "default"),
    ]
    made.settle()
    assert len(coordinators.asked) == 3


def test_a_switch_that_is_not_made_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinators = Coordinators(TopicModeError("not yet"), RequestTimedOutError("no answer"))
    made = operator_of(monkeypatch, coordinators)
    assert not made.switch(0)
    made.settle()
    assert [asked[1] for asked in coordinators.asked] == ["metadata"] * 3
    assert made.switch(0)
    assert coordinators.asked[-1][1] == "markers"


def test_a_switch_that_is_never_made_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinators = Coordinators(*(TopicModeError("never") for _ in range(10_000)))
    monkeypatch.setattr(operator, "_SETTLED_S", 0.05)
    made = operator_of(monkeypatch, coordinators)
    assert not made.switch(1)
    with pytest.raises(ChaosError, match="chaos-out is not switched to metadata"):
        made.settle()


def test_a_topic_that_is_made_anew_begins_with_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinators = Coordinators()
    made = operator_of(monkeypatch, coordinators)
    made.switch(0)
    made.made_anew("chaos")
    made.made_anew("another")
    made.switch(0)
    assert [asked[1] for asked in coordinators.asked] == ["metadata"] * 2
