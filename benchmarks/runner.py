"""Runs scenarios: every side once a round, in turn, after warm-up rounds that do not count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from statistics import median

from .cluster import ProfiledCoordinator
from .model import Better, Comparison, Context, Sample, Scenario, Sides
from .profiling import ThreadProfile
from .stats import Spread, ratio
from .worker import Worker

Step = Callable[[str], None]
"""Called before every round of every side, with a text that says what runs next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A comparison's outcome."""

    comparison: Comparison
    better: Better
    kafka: Spread | None
    logtx: Spread
    ratio: Spread | None
    """None where there is nothing to compare with."""
    met: bool | None
    """None where there is no target."""
    kafka_side: str | None
    logtx_side: str
    """Side that the figures are of: the best, if the comparison names several."""


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
        """Returns the outcomes of the scenario's comparisons."""
        return [self._line(c) for c in self.scenario.comparisons]

    def values(self, side: str, note: str | None = None) -> list[float]:
        """Returns a figure of a side for each round: the value, or the note of that name."""
        samples = self.samples[side]
        return [s.value if note is None else s.notes[note] for s in samples]

    def _line(self, comparison: Comparison) -> Line:
        note, better = comparison.note, comparison.better or self.scenario.better
        logtx_side = self._best(comparison.logtx, note, better)
        logtx = self.values(logtx_side, note)
        kafka_side = kafka = None
        if comparison.kafka is not None:
            kafka_side = self._best(comparison.kafka, note, better)
            kafka = self.values(kafka_side, note)
        beside = kafka if comparison.baseline is None else self.values(comparison.baseline, note)
        found = None if beside is None else ratio(logtx, beside)
        shown = Spread.of(logtx)
        met = [
            None if found is None else is_met(found.median, comparison.target, better),
            is_met(shown.median, comparison.floor, better),
        ]
        return Line(
            comparison=comparison,
            better=better,
            kafka=None if kafka is None else Spread.of(kafka),
            logtx=shown,
            ratio=found,
            met=False if False in met else (True if True in met else None),
            kafka_side=kafka_side,
            logtx_side=logtx_side,
        )

    def _best(self, sides: Sides, note: str | None, better: Better) -> str:
        if isinstance(sides, str):
            return sides
        choose = max if better is Better.HIGHER else min
        return choose(sides, key=lambda side: median(self.values(side, note)))


def is_met(found: float, target: float | None, better: Better) -> bool | None:
    """Returns whether a figure meets its target; None without a target."""
    if target is None:
        return None
    return found >= target if better is Better.HIGHER else found <= target


def steps(scenario: Scenario, rounds: int) -> int:
    """Returns how often `run` calls `step`."""
    return (rounds + scenario.warm_up_rounds) * len(scenario.sides) + 1


def run(
    scenario: Scenario,
    context: Context,
    coordinator: ProfiledCoordinator,
    *,
    rounds: int,
    profile: bool | None,
    step: Step,
) -> Result:
    """Measures a scenario.

    Args:
        scenario: what to measure.
        context: where, and at which size.
        coordinator: the one that is profiled with a side.
        rounds: rounds of each side that count.
        profile: profile one more round of logtx's sides; None: only of those that missed a target.
        step: told what runs next.

    Raises:
        RemoteFailedError: a side failed.
    """
    step(f"{scenario.name}: topics")
    scenario.prepare(context)
    try:
        with ExitStack() as stack:
            workers = {
                name: stack.enter_context(closing(Worker(name, make, context)))
                for name, make in scenario.sides.items()
            }
            for worker in workers.values():
                worker.await_open()
            samples: dict[str, list[Sample]] = {name: [] for name in workers}
            for number in range(-scenario.warm_up_rounds, rounds):
                shown = "warm-up" if number < 0 else f"round {number + 1}"
                # There and back, so that a side's after-effects don't always hit the same one.
                order = list(workers.items())[:: -1 if number % 2 else 1]
                for name, worker in order:
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
    return dict.fromkeys(line.logtx_side for line in lines if wanted or line.met is False)


def _profile(side: str, worker: Worker, coordinator: ProfiledCoordinator) -> Profile:
    coordinator.start_profile()
    sample, client = worker.profile()
    return Profile(side=side, sample=sample, client=client, coordinator=coordinator.stop_profile())
