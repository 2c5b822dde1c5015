"""The parts of a benchmark: sides that run in turn, and comparisons of their rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every side needs to know of its run."""

    bootstrap_servers: str
    scale: float = 1.0
    """Size of a round; 1 is the full run's."""
    pids: Mapping[str, int] = field(default_factory=dict)
    """Process ids by name (broker, coordinator): every round notes their CPU time."""

    def sized(self, full: float, least: float) -> float:
        """Returns the duration or amount `full`, scaled to this run, but at least `least`."""
        return max(full * self.scale, least)


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one side."""

    value: float
    """Its result, in the scenario's unit."""
    notes: Mapping[str, float] = field(default_factory=dict)
    """Further figures by name: percentiles, amounts, CPU time."""


class Side(Protocol):
    """One way to do the scenario's work. It lives through all rounds, in a process of its own."""

    def open(self) -> None:
        """Connects; not measured."""
        ...

    def measure(self) -> Sample:
        """Runs one round."""
        ...

    def close(self) -> None:
        """Disconnects; not measured."""
        ...


class Better(StrEnum):
    """Whether higher or lower figures are better."""

    HIGHER = "higher"
    LOWER = "lower"


Sides = str | tuple[str, ...]
"""A side, or several of which the one with the best median counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One line of the result: two sides beside each other, and the target, if there is one."""

    title: str
    logtx: Sides
    """Side shown as logtx's."""
    kafka: Sides | None = None
    """Side shown as Kafka's; None where Kafka has nothing like it."""
    baseline: str | None = None
    """Side that logtx's figure is divided by, if not Kafka's. Without either there is no ratio."""
    target: float | None = None
    """The ratio to reach: at least this where higher is better, at most this where lower is."""
    floor: float | None = None
    """The same for logtx's own figure, in the line's unit."""
    note: str | None = None
    """Name of the note that is compared, instead of the samples' values."""
    unit: str | None = None
    """Unit of that note."""
    better: Better | None = None
    """Whether higher or lower notes are better, if not as for the scenario's values."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place on a curve."""

    x: int | str
    side: str
    note: str | None = None
    """Name of the note that is drawn; None: the samples' values."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A line in a scenario's picture."""

    label: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A scenario's curves over one axis."""

    x: str
    y: str
    curves: Sequence[Curve]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A benchmark."""

    name: str
    """The name that `--scenario` takes."""
    title: str
    unit: str
    better: Better
    method: str
    """A paragraph of the document: what is done, what is measured, over which interval."""
    settings: Sequence[str]
    """Settings of the clients, the same on both sides unless they say otherwise."""
    sides: Mapping[str, Callable[[Context], Side]]
    """Factories by the side's name, in the order of every other round; the rounds between run
    backwards. Module-level classes, or partials of them, for they are pickled."""
    comparisons: Sequence[Comparison]
    prepare: Callable[[Context], None]
    """Creates topics and fills them; called once, in the parent process."""
    finish: Callable[[Context], None]
    """Deletes the topics."""
    warm_up_rounds: int = 1
    """Rounds before those that count."""
    quick: bool = False
    """Whether it is part of the quick run."""
    picture: Picture | None = None


def _nothing(_: Context) -> None:
    """Topics that nobody deletes go with their broker."""


def part(
    name: str,
    unit: str,
    better: Better,
    sides: Mapping[str, Callable[[Context], Any]],
    comparisons: Sequence[Comparison],
    *,
    prepare: Callable[[Context], None] = _nothing,
    finish: Callable[[Context], None] = _nothing,
) -> Scenario:
    """Returns a scenario of a benchmark that writes a chapter of its own, and says there what was
    done."""
    return Scenario(
        name=name,
        title=name,
        unit=unit,
        better=better,
        method="",
        settings=(),
        sides=sides,
        comparisons=comparisons,
        prepare=prepare,
        finish=finish,
    )


Json = dict[str, Any]
