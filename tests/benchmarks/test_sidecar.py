"""The benchmark of sidecars: its rows, and what counts as a missed goal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logtx.benchmarks.document import headlines
from logtx.benchmarks.metadata.disk import Disk
from logtx.benchmarks.sidecar import __main__ as command
from logtx.benchmarks.sidecar.side import MARKERS, SIDECAR

from .test_spill import LARGE

GOOD = replace(LARGE, peak_rss_bytes=90 * 10**6, most_disk_bytes=0, committed_s=1.0, first_s=1.04)


def figures(**changed: Any) -> dict[str, command.Figures]:
    """Of both sides, over two rounds; `changed` are those of the sidecar."""
    markers = command.Figures([LARGE, LARGE], [100.0, 200.0], [900.0, 800.0], [10.0, 12.0])
    markers.transactions_per_s, markers.aborted_bytes = [1_000.0, 1_000.0], 5 * 10**9
    sidecar = command.Figures([GOOD, GOOD], [200.0, 300.0], [90.0, 80.0], [11.0, 13.0])
    sidecar.transactions_per_s = [400.0, 500.0]
    for name, value in changed.items():
        setattr(sidecar, name, value)
    return {MARKERS: markers, SIDECAR: sidecar}


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, []),
        ({"large": [GOOD, replace(GOOD, peak_rss_bytes=121 * 10**6)]}, ["peak resident memory"]),
        ({"large": [replace(GOOD, most_disk_bytes=4096), GOOD]}, ["local disk"]),
        ({"large": [replace(GOOD, whole=False), GOOD]}, ["whole and in order"]),
        ({"large": [replace(GOOD, first_s=1.06)] * 2}, ["commit to first record, ms"]),
        ({"restart_ms": [201.0, 201.0]}, ["restart in the middle"]),
        ({"aborted_bytes": 70}, ["the topic's log after an abort"]),
        ({"caught_up": [140.0, 290.0]}, ["caught up"]),
        ({"transactions_per_s": [299.0, 290.0]}, ["a backlog"]),
    ],
)
def test_a_missed_goal_is_shown(changed: dict[str, Any], missed: list[str]) -> None:
    found = figures(**changed)
    told = [*command.rows(found), *command.rate_rows(found)]
    shown = [row[0] for row in told if "missed" in row[-1]]
    assert len(shown) == len(missed)
    assert all(row.startswith(begin) for row, begin in zip(shown, missed, strict=True))


def test_goals_join_the_table_with_the_figures_of_the_sidecar() -> None:
    found = figures()
    columns = [column.format(gigabytes=1) for column in command._COLUMNS]
    tables = [
        {"columns": columns, "rows": command.rows(found)},
        {"columns": list(command._RATE_COLUMNS), "rows": command.rate_rows(found)},
    ]
    assert all(len(row) == len(t["columns"]) for t in tables for row in t["rows"])
    lines = {row[0]: row[1:] for row in headlines({"title": "Sidecars", "tables": tables})}
    peak = lines["Sidecars: peak resident memory of its consumer, MB"]
    assert peak == ("sidecar", "90", "", "≤ 120", "met")
    caught_up = lines["Sidecars: caught up with it by a consumer that comes later"]
    assert caught_up == ("records/s", "", "1.67 (1.50 to 2.00)", "≥ 1.5", "met")


def test_a_topics_log_is_all_of_its_partitions_and_not_its_sidecars(tmp_path: Path) -> None:
    for name, size in (("a-0", 3), ("a-1", 4), ("a._txnlog-0", 50), ("a-b-0", 60)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "00000000000000000000.log").write_bytes(bytes(size))
    assert Disk(tmp_path).of("a") == 7
