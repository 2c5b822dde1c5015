"""What people see of a run: a live table on a terminal, elsewhere a line now and then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table

from ..integration.live import LiveDisplay

_LINE_EVERY_S: Final = 5.0
"""Without a terminal, a line is printed this often; more often only makes the output longer."""
_REFRESH_PER_S: Final = 4
"""Refreshes of the table per second; more of them take processor time from the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The progress of a run."""

    phase: str
    elapsed_s: float
    seconds: float
    outcomes: Mapping[str, int]
    faults: Mapping[str, int]
    """Faults done so far, by kind."""
    active: Sequence[str]
    """Faults under way, in words."""
    deaths: int
    """Processes that ended by themselves."""

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The lines of the table: name and text."""
        outcomes = ", ".join(f"{count:,} {name}" for name, count in sorted(self.outcomes.items()))
        faults = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        rows = [
            ("time", f"{self.elapsed_s:.0f} s of {self.seconds:.0f} s · {self.phase}"),
            ("transactions", outcomes or "none"),
            ("faults", faults or "none"),
            ("now", ", ".join(self.active) or "calm"),
        ]
        return [*rows, ("ended by themselves", f"{self.deaths}")] if self.deaths else rows

    @property
    def line(self) -> str:
        """The whole table as one line."""
        return " · ".join(f"{name}: {text}" for name, text in self.rows)


class Display(LiveDisplay):
    """Shows snapshots: a table, or a line, which also comes at once when a new phase begins."""

    def __init__(self, console: Console) -> None:
        """Prepares the display."""
        super().__init__(console, refresh_per_s=_REFRESH_PER_S, line_every_s=_LINE_EVERY_S)
        self._phase = ""

    def show(self, snapshot: Snapshot) -> None:
        """Shows the progress. It is cheap: call it often."""
        table = Table(show_header=False, title="logtx chaos", title_justify="left")
        for name, text in snapshot.rows:
            table.add_row(name, text)
        self._show(table, snapshot.line, at_once=snapshot.phase != self._phase)
        self._phase = snapshot.phase
