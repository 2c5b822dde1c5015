"""How far a run is, for people: a picture on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live


class LiveDisplay:
    """Where a subclass shows its picture or its line. A context manager."""

    def __init__(
        self,
        console: Console,
        *,
        refresh_per_s: int,
        line_every_s: float,
        picture: RenderableType = "",
    ) -> None:
        """Nothing is shown yet.

        Args:
            console: where.
            refresh_per_s: how often the picture is drawn.
            line_every_s: least time between two lines.
            picture: the first one.
        """
        self._console = console
        self._line_every_s = line_every_s
        self._next_line_s = 0.0
        self._live = (
            Live(picture, console=console, refresh_per_second=refresh_per_s, transient=True)
            if console.is_terminal
            else None
        )

    def _show(self, picture: RenderableType, line: str, *, at_once: bool = False) -> None:
        """Show the one or the other; cheap, call it often.

        Args:
            picture: instead of the one before.
            line: dropped if it is not yet time for one.
            at_once: it is time in any case.
        """
        if self._live is not None:
            self._live.update(picture)
        elif at_once or time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + self._line_every_s
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

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
        """Take the picture away."""
        if self._live is not None:
            self._live.stop()
