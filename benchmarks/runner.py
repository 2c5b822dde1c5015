"""Runs scenarios: every side once a round, in turn, after rounds that do not count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from .cluster import CoordinatorProcess
from .model import Better, Comparison, Context, Sample, Scenario
from .profiling import ThreadProfile
from .stats import Spread, ratio
from .worker import Worker

Step = Callable[[str], None]
"""Called before every round of every side, with what is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A comparison's outcome."""

    comparison: Comparison
    kafka: Spread | None
    logtx: Spread
    ratio: Spread
    met: bool | None
    """None where nothing was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Where the CPU of a round of one side went."""

    side: str
    sample: Sample
    client: list[ThreadProfile]
    coordinator: list[ThreadProfile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A scenario's rounds."""

    scenario: Scenario
    samples: dict[str, list[Sample]]
    """By side, in the order of the rounds."""
    profiles: list[Profile]

    def lines(self) -> list[Line]:
        """The comparisons."""
        return [self._line(c) for c in self.scenario.comparisons]

    def values(self, side: str) -> list[float]:
        """A side's rounds."""
        return [s.value for s in self.samples[side]]

    def _line(self, comparison: Comparison) -> Line:
        found = ratio(self.values(comparison.logtx), self.values(comparison.divisor))
        kafka = comparison.kafka
        return Line(
            comparison=comparison,
            kafka=None if kafka is None else Spread.of(self.values(kafka)),
            logtx=Spread.of(self.values(comparison.logtx)),
            ratio=found,
            met=is_met(found.median, comparison.target, self.scenario.better),
        )


def is_met(found: float, target: float | None, better: Better) -> bool | None:
    """Whether a ratio is what was asked for; None where nothing was."""
    if target is None:
        return None
    return found >= target if better is Better.HIGHER else found <= target


def steps(scenario: Scenario, rounds: int) -> int:
    """How often `run` calls `step`, profiles left out."""
    return (rounds + scenario.warm_up_rounds) * len(scenario.sides) + 1


def run(
    scenario: Scenario,
    context: Context,
    coordinator: CoordinatorProcess,
    *,
    rounds: int,
    profile: bool | None,
    step: Step,
) -> Result:
    """Measure a scenario.

    Args:
        scenario: what to measure.
        context: where, and at which size.
        coordinator: to be profiled.
        rounds: that count, of each side.
        profile: profile a further round of logtx's sides; None: of those that missed a target.
        step: told what is going on.

    Raises:
        SideFailedError: a side failed.
    """
    step(f"{scenario.name}: topics")
    scenario.prepare(context)
    try:
        with ExitStack() as stack:
            workers = {
                name: stack.enter_context(Worker(name, make, context))
                for name, make in scenario.sides.items()
            }
            for worker in workers.values():
                worker.await_open()
            samples: dict[str, list[Sample]] = {name: [] for name in workers}
            for number in range(-scenario.warm_up_rounds, rounds):
                shown = "warm-up" if number < 0 else f"round {number + 1}"
                for name, worker in workers.items():
                    step(f"{scenario.name}: {shown}, {name}")
                    sample = worker.measure()
                    if number >= 0:
                        samples[name].append(sample)
            result = Result(scenario=scenario, samples=samples, profiles=[])
            for name in _to_profile(result, profile):
                result.profiles.append(_profile(name, workers[name], coordinator))
            return result
    finally:
        scenario.finish(context)


def _to_profile(result: Result, wanted: bool | None) -> Iterable[str]:
    lines = result.lines() if wanted is not False else []
    return dict.fromkeys(line.comparison.logtx for line in lines if wanted or line.met is False)


def _profile(side: str, worker: Worker, coordinator: CoordinatorProcess) -> Profile:
    coordinator.start_profile()
    sample, client = worker.profile()
    return Profile(side=side, sample=sample, client=client, coordinator=coordinator.stop_profile())
