"""Shows the progress of a run: redraws a table on a terminal, else prints a line now and then."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live


class LiveDisplay:
    """Shows the picture or the line that a subclass makes. A context manager."""

    def __init__(
        self,
        console: Console,
        *,
        refresh_per_s: int,
        line_every_s: float,
        picture: RenderableType = "",
    ) -> None:
        """Prepares the display; entering the context shows it.

        Args:
            console: where to show it.
            refresh_per_s: drawings of the picture per second.
            line_every_s: least seconds between two lines.
            picture: the first picture.
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
        """Shows the picture on a terminal, elsewhere the line. Cheap enough to call often.

        Args:
            picture: replaces the former picture.
            line: dropped if the last line is less than `line_every_s` ago.
            at_once: print the line in any case.
        """
        if self._live is not None:
            self._live.update(picture)
        elif at_once or time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + self._line_every_s
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        """Shows the first picture."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Removes the picture."""
        if self._live is not None:
            self._live.stop()
