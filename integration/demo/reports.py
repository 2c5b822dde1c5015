"""Files in which workers and auditors report to the supervisor. A reader always finds them whole.

- A worker appends a line for each commit it requested, to a file per process, so that SIGKILL loses
  nothing that was reported.
- An auditor replaces its status file with each report. The last report is marked as final.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

FENCED_STATUS: Final = 3
"""Exit status of a worker that was fenced: a successor took its place."""


def write_status(path: Path, status: dict[str, Any]) -> None:
    """Replaces the status; a reader sees the old or the new one, never a part."""
    partial = path.with_suffix(".new")
    partial.write_text(json.dumps(status))
    partial.replace(path)


def read_status(path: Path) -> dict[str, Any]:
    """Returns the last status; empty before the first."""
    try:
        status: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return status


def read_commit_ms(paths: Iterable[Path]) -> list[float]:
    """Returns the commit latencies of all worker processes, in milliseconds.

    A line that a kill cut off is left out.
    """
    found: list[float] = []
    for path in paths:
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                found.append(float(json.loads(line)["commit_ms"]))
    return found


def percentile(values: Iterable[float], percent: float) -> float:
    """Returns the smallest value that at least `percent` % of the values do not exceed.

    NaN if there are no values.
    """
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[max(int(rank), 1) - 1]
