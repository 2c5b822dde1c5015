"""The progress of a run, read from its history while it is written."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

_OUTCOMES: Final = ("committed", "aborted", "unknown")
_END: Final = b'"event":"end"'
_MARKS: Final = {name: f'"outcome":"{name}"'.encode() for name in _OUTCOMES}
_READ_MAX_BYTES: Final = 4 * 1024 * 1024
"""Bytes read of one file at once, which bounds memory and the time of one `read`."""


class Progress:
    """Counts the outcomes in the files of producers, workers and Spark drivers as they grow."""

    def __init__(self, history: Path) -> None:
        """Starts empty."""
        self._history = history
        self._places: dict[Path, int] = {}
        self.outcomes: Counter[str] = Counter()
        self.connected: set[str] = set()
        """Lives of processes that know the outcome of at least one transaction."""

    def read(self) -> None:
        """Reads what was written since the last call, up to a limit for each file."""
        for role in ("producer", "worker", "queue", "spark"):
            for path in self._history.glob(f"{role}-*.jsonl"):
                self._read(path)

    def _read(self, path: Path) -> None:
        place = self._places.get(path, 0)
        with path.open("rb") as file:
            file.seek(place)
            text = file.read(_READ_MAX_BYTES)
        whole = text[: text.rfind(b"\n") + 1]
        self._places[path] = place + len(whole)
        for line in whole.splitlines():
            if _END in line:
                self.outcomes.update(name for name, mark in _MARKS.items() if mark in line)
                self.connected.add(path.stem)

    @property
    def transactions(self) -> int:
        """Transactions that have ended, as far as their writers know."""
        return sum(self.outcomes.values())
