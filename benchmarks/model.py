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
    """Size of a round; 1 is the default run's."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One line of the result: two sides beside each other, and a ratio that was asked for."""

    title: str
    logtx: str
    """Side shown as logtx's."""
    kafka: str | None = None
    """Side shown as Kafka's; None where Kafka has no equal of it."""
    baseline: str | None = None
    """What logtx's is divided by, where that is not Kafka's."""
    target: float | None = None
    """The ratio asked for: at least it where higher is better, at most it where lower is."""

    @property
    def divisor(self) -> str:
        """The side that logtx's is divided by."""
        found = self.baseline or self.kafka
        assert found is not None, self.title
        return found


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


Json = dict[str, Any]
