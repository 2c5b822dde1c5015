"""What people see of a run: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table

from ..integration.live import LiveDisplay

_LINE_EVERY_S: Final = 5.0
_REFRESH_PER_S: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How far it is."""

    phase: str
    elapsed_s: float
    seconds: float
    outcomes: Mapping[str, int]
    faults: Mapping[str, int]
    """Done so far, by kind."""
    active: Sequence[str]
    """Going on."""
    deaths: int
    """Processes that ended by themselves."""

    @property
    def rows(self) -> list[tuple[str, str]]:
        """What there is to say, by name."""
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
        """All of it in a line."""
        return " · ".join(f"{name}: {text}" for name, text in self.rows)


class Display(LiveDisplay):
    """Shows snapshots: a table, or a line as well when another phase begins."""

    def __init__(self, console: Console) -> None:
        """Nothing is shown yet."""
        super().__init__(console, refresh_per_s=_REFRESH_PER_S, line_every_s=_LINE_EVERY_S)
        self._phase = ""

    def show(self, snapshot: Snapshot) -> None:
        """Show how far it is; cheap, call it often."""
        table = Table(show_header=False, title="logtx chaos", title_justify="left")
        for name, text in snapshot.rows:
            table.add_row(name, text)
        self._show(table, snapshot.line, at_once=snapshot.phase != self._phase)
        self._phase = snapshot.phase
