"""What a benchmark is: sides that are measured in turn, and what is compared of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every side of a run is told."""

    bootstrap_servers: str
    scale: float = 1.0
    """Size of a round; 1 is the full run's."""
    pids: Mapping[str, int] = field(default_factory=dict)
    """Processes whose CPU time is noted with every round, by name: broker, coordinator."""

    def sized(self, full: float, least: float) -> float:
        """A duration or amount in this run's size, but no less than `least`."""
        return max(full * self.scale, least)


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one side."""

    value: float
    """In the scenario's unit."""
    notes: Mapping[str, float] = field(default_factory=dict)
    """Beside it, by name: further percentiles, amounts."""


class Side(Protocol):
    """One way to do the scenario's work; lives in a process of its own, through all rounds."""

    def open(self) -> None:
        """Connect; not measured."""
        ...

    def measure(self) -> Sample:
        """Run one round."""
        ...

    def close(self) -> None:
        """Disconnect; not measured."""
        ...


class Better(StrEnum):
    """Which way a unit is to be read."""

    HIGHER = "higher"
    LOWER = "lower"


Sides = str | tuple[str, ...]
"""A side, or several of which the best counts, by the median of its rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One line of the result: two sides beside each other, and a figure that was asked for."""

    title: str
    logtx: Sides
    """Side shown as logtx's."""
    kafka: Sides | None = None
    """Side shown as Kafka's; None where Kafka has no equal of it."""
    baseline: str | None = None
    """What logtx's is divided by, where that is not Kafka's; without both there is no ratio."""
    target: float | None = None
    """The ratio asked for: at least it where higher is better, at most it where lower is."""
    floor: float | None = None
    """The same for logtx's figure itself, in the line's unit."""
    note: str | None = None
    """Which of the samples' notes is compared, instead of their values."""
    unit: str | None = None
    """Of that note."""
    better: Better | None = None
    """Which way that note is to be read, if not as the scenario's values."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place on a curve."""

    x: int | str
    side: str
    note: str | None = None
    """Which of the samples' notes; None: their values."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A line in a scenario's picture."""

    label: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What is drawn of a scenario: its curves over an axis."""

    x: str
    y: str
    curves: Sequence[Curve]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A benchmark."""

    name: str
    """As `--scenario` takes it."""
    title: str
    unit: str
    better: Better
    method: str
    """What is done and measured, over what interval; a paragraph of the document."""
    settings: Sequence[str]
    """Settings of the clients, the same on both sides where nothing else is said."""
    sides: Mapping[str, Callable[[Context], Side]]
    """Measured in this order, in every round. Module-level classes: they are pickled."""
    comparisons: Sequence[Comparison]
    prepare: Callable[[Context], None]
    """Create topics and fill them; called once, in the parent."""
    finish: Callable[[Context], None]
    """Delete them."""
    warm_up_rounds: int = 1
    quick: bool = False
    """Whether it is part of the quick run."""
    picture: Picture | None = None


Json = dict[str, Any]
