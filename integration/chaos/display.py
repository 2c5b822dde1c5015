"""What people see of a run: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

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


class Display:
    """Shows snapshots. A context manager."""

    def __init__(self, console: Console) -> None:
        """Nothing is shown yet."""
        self._console = console
        self._next_line_s = 0.0
        self._phase = ""
        self._live = (
            Live(console=console, refresh_per_second=_REFRESH_PER_S, transient=True)
            if console.is_terminal
            else None
        )

    def show(self, snapshot: Snapshot) -> None:
        """Show how far it is; cheap, call it often."""
        if self._live is not None:
            table = Table(show_header=False, title="logtx chaos", title_justify="left")
            for name, text in snapshot.rows:
                table.add_row(name, text)
            self._live.update(table)
        elif time.monotonic() >= self._next_line_s or snapshot.phase != self._phase:
            self._next_line_s = time.monotonic() + _LINE_EVERY_S
            self._console.print(snapshot.line, highlight=False, markup=False, soft_wrap=True)
        self._phase = snapshot.phase

    def __enter__(self) -> Self:
        """Begin."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take it away."""
        if self._live is not None:
            self._live.stop()
