"""The plan of faults: drawn from the seed, bounded, and never too much at a time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from logtx.chaos.options import ChaosOptions, System
from logtx.chaos.plan import (
    BROKER_REST_S,
    CALM_START_S,
    Fault,
    Role,
    What,
    plan_faults,
)

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
    for track in ([Role.COORDINATOR], CLIENTS, [Role.TOPIC]):
        for one, next_one in pairwise(of_role(plan, *track)):
            assert next_one.at_s > one.until_s


def test_over_some_seeds_everything_happens_to_everybody() -> None:
    seen = {(f.role, f.what) for seed in SEEDS for f in plan_faults(seed, 300, COUNTS)}
    processes = {What.KILL, What.PAUSE, What.RESTART, What.CUT, What.STALL}
    for role in (Role.BROKER, Role.COORDINATOR, *CLIENTS):
        assert {what for r, what in seen if r is role} >= processes
    assert {(Role.PRODUCER, What.REPLACE), (Role.WORKER, What.REPLACE)} <= seen
    assert {(Role.BROKER, What.DELAY), (Role.TOPIC, What.TRIM)} <= seen
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
