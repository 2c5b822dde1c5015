"""Every scenario runs, at a tiny size. What it measures there is looked at by nobody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from logtx.benchmarks import document
from logtx.benchmarks.cluster import Cluster, started
from logtx.benchmarks.model import Comparison, Context, Scenario
from logtx.benchmarks.report import to_json
from logtx.benchmarks.runner import Result, run, steps
from logtx.benchmarks.scenarios import QUICK, SCENARIOS, growth
from logtx.integration.pytest_plugin import ExistingKafka

SCALE = 0.001
FEW: dict[str, tuple[str, ...]] = {
    "pipelined": ("kafka-8", "logtx-two"),
    "sequential": ("kafka", "logtx"),
    "consumption-100": ("logtx",),
    "columns-100": ("kafka", "logtx"),
    "latency": ("logtx-beside-open",),
    "open": ("open-10",),
}
"""The kinds, and the sides that differ by more than a number; the slow test has all."""


def few(scenario: Scenario, kept: Sequence[str]) -> Scenario:
    """A scenario with some of its sides, and the comparisons that are left of it."""

    def of(sides: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        if sides is None or isinstance(sides, str):
            return sides
        return tuple(side for side in sides if side in kept)

    def left(comparison: Comparison) -> bool:
        named = (comparison.logtx, comparison.kafka, comparison.baseline)
        return all(n in kept if isinstance(n, str) else n is None or n for n in named)

    narrowed = (
        replace(each, logtx=of(each.logtx), kafka=of(each.kafka)) for each in scenario.comparisons
    )
    return replace(
        scenario,
        sides={name: scenario.sides[name] for name in kept},
        comparisons=tuple(each for each in narrowed if left(each)),
        picture=None,
        # Without warm-up it takes half as long.
        warm_up_rounds=0,
    )


@pytest.fixture
def cluster(logtx_kafka: ExistingKafka) -> Iterator[Cluster]:
    """A coordinator of its own, on the session's broker."""
    with started(logtx_kafka.bootstrap_servers) as found:
        yield found


def run_all(
    cluster: Cluster, scenarios: Sequence[Scenario], told: list[str], profiled: str = ""
) -> list[Result]:
    servers, pids = cluster.bootstrap_servers, cluster.pids
    context = Context(bootstrap_servers=servers, scale=SCALE, pids=pids)
    return [
        run(
            *(scenario, context, cluster.coordinator),
            rounds=1,
            profile=scenario.name == profiled,
            step=told.append,
        )
        for scenario in scenarios
    ]


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_kind_of_scenario_runs(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "OPEN", growth.OPEN[:1])
    scenarios = [few(SCENARIOS[name], sides) for name, sides in FEW.items()]
    told: list[str] = []
    # A look at where the time goes, for one of them.
    results = run_all(cluster, scenarios, told, profiled="sequential")
    assert len(told) == sum(steps(scenario, 1) for scenario in scenarios)
    for result in results:
        for samples in result.samples.values():
            assert all(sample.value > 0 for sample in samples)
            assert all(sample.notes["coordinator CPU s"] >= 0 for sample in samples)
    (profiled,) = (p for result in results for p in result.profiles)
    assert profiled.client
    assert profiled.coordinator
    text = document.render({"scenarios": to_json(results, rounds=1, scale=SCALE, kafka="test")})
    assert all(scenario.title in text for scenario in scenarios)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_runs_with_all_its_sides(cluster: Cluster, name: str) -> None:
    (result,) = run_all(cluster, [replace(SCENARIOS[name], warm_up_rounds=0)], [])
    (shown,) = to_json([result], rounds=1, scale=SCALE, kafka="test")
    assert len(shown["lines"]) == len(SCENARIOS[name].comparisons)
    assert (shown["picture"] is None) == (SCENARIOS[name].picture is None)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_compares_and_draws_what_it_measures(name: str) -> None:
    scenario = SCENARIOS[name]
    for each in scenario.comparisons:
        for sides in (each.logtx, each.kafka, each.baseline):
            named = (sides,) if isinstance(sides, str) else sides or ()
            assert set(named) <= scenario.sides.keys()
        if each.target is not None:
            assert each.kafka or each.baseline, "a ratio is to something"
        assert (each.note is None) <= (each.unit is None), "a unit is of a note"
    if scenario.picture is not None:
        for curve in scenario.picture.curves:
            assert {point.side for point in curve.points} <= scenario.sides.keys()


def test_all_figures_that_the_quick_run_is_asked_for_have_a_target() -> None:
    assert 5 < len(QUICK) < len(SCENARIOS)
    for name in QUICK:
        asked = SCENARIOS[name].comparisons
        assert any(c.target is not None or c.floor is not None for c in asked), name
