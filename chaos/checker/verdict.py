"""The result of a check, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .core.findings import MEANINGS, Anomaly

SHOWN = 3
"""Anomalies of each name that are printed with their evidence; the others are only counted."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a check."""

    system: str
    anomalies: tuple[Anomaly, ...]
    """At most 20 of each name, those with the least evidence; `counts` counts all."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How often each anomaly was found."""
    observations: tuple[Anomaly, ...] = ()
    """Anomalies that the tested system does not promise to exclude."""
    observed: Mapping[str, int] = field(default_factory=dict)
    """How often each observation was found."""
    stats: Mapping[str, int] = field(default_factory=dict)
    """What was looked at: a count by name."""
    unverifiable: Mapping[str, int] = field(default_factory=dict)
    """Reason → number of things that can't be judged: neither fine nor an anomaly."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found that must not happen."""
        return not self.counts

    def print(self, console: Console) -> None:
        """Prints a table of what was found, the evidence, and what was looked at."""
        looked_at = ", ".join(f"{count:,} {what}" for what, count in self.stats.items())
        console.print(f"Looked at: {looked_at}", highlight=False)
        for reason, count in self.unverifiable.items():
            console.print(f"Unverifiable: {count:,} of {reason}", highlight=False)
        if self.counts or self.observed:
            console.print(self._table())
        for anomaly in _some((*self.anomalies, *self.observations)):
            console.print(f"\n[bold]{anomaly.name}[/bold]: {escape(anomaly.sentence)}")
            width = max((len(e.where) for e in anomaly.evidence), default=0)
            for evidence in anomaly.evidence:
                line = f"  {evidence.where:{width}}  {evidence.what}"
                console.print(escape(line), highlight=False, soft_wrap=True)
        found = sum(self.counts.values())
        said = "[green]no anomaly[/green]" if self.ok else f"[red]{found:,} anomalies[/red]"
        console.print(f"{self.system}: {said}")

    def _table(self) -> Table:
        table = Table("anomaly", "found", "what it is", title=None)
        for name, meaning in MEANINGS.items():
            if name in self.counts:
                table.add_row(f"[red]{name}[/red]", f"{self.counts[name]:,}", meaning)
            if name in self.observed:
                note = f"{meaning} (not promised by {self.system})"
                table.add_row(name, f"{self.observed[name]:,}", note)
        return table

    def as_json(self) -> dict[str, Any]:
        """Returns the same for programs, as values that JSON has."""
        return {
            "system": self.system,
            "ok": self.ok,
            "counts": dict(self.counts),
            "anomalies": [_as_json(anomaly) for anomaly in self.anomalies],
            "observed": dict(self.observed),
            "observations": [_as_json(anomaly) for anomaly in self.observations],
            "stats": dict(self.stats),
            "unverifiable": dict(self.unverifiable),
        }


def _some(anomalies: tuple[Anomaly, ...]) -> list[Anomaly]:
    shown: dict[str, list[Anomaly]] = {}
    for anomaly in anomalies:
        shown.setdefault(anomaly.name, []).append(anomaly)
    return [anomaly for each in shown.values() for anomaly in each[:SHOWN]]


def _as_json(anomaly: Anomaly) -> dict[str, Any]:
    return {
        "name": anomaly.name,
        "sentence": anomaly.sentence,
        "evidence": [{"where": e.where, "what": e.what} for e in anomaly.evidence],
    }
