"""What the worker and auditor processes tell the supervisor: small files, whole at every instant.

- a worker appends a line for each commit it asked for, to a file per incarnation, so that a
  SIGKILL loses nothing that was reported;
- an auditor replaces its status file with every report, the last of which is final.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

FENCED_STATUS: Final = 3
"""Exit status of a worker that was fenced: another one took its place."""


def write_status(path: Path, status: dict[str, Any]) -> None:
    """Replace the status; a reader sees the old or the new one."""
    partial = path.with_suffix(".new")
    partial.write_text(json.dumps(status))
    partial.replace(path)


def read_status(path: Path) -> dict[str, Any]:
    """The last status; empty before the first."""
    try:
        status: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return status


def read_commit_ms(paths: Iterable[Path]) -> list[float]:
    """Commit latencies of all incarnations, milliseconds; a line cut off by a kill is left out."""
    found: list[float] = []
    for path in paths:
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                found.append(float(json.loads(line)["commit_ms"]))
    return found


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed; NaN of none."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[max(int(rank), 1) - 1]
