"""The Spark benchmark: its rows, and the memory that it counts."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from logtx.benchmarks.spark import __main__ as command
from logtx.benchmarks.spark.measure import Audited, Compared, Overhead
from logtx.benchmarks.spark.session import PeakMemory

COMPARED = Compared(
    title="sink",
    unit="records/s",
    baseline=[100_000, 120_000, 80_000],
    candidate=[70_000, 60_000, 80_000],
    goal=0.6,
)


def test_a_ratio_is_that_of_the_medians() -> None:
    row = command.ratio_row(COMPARED)
    assert row[-2:] == ["0.70 (0.50 to 1.00)", "≥ 0.6, met"]
    assert len(row) == len(command._RATIO_COLUMNS)
    worse = Compared(title="", unit="", baseline=[2.0], candidate=[1.0], goal=0.6)
    assert command.ratio_row(worse)[-1] == "≥ 0.6, **missed**"


@pytest.mark.parametrize(("logtx_ms", "word"), [(400.0, "met"), (420.0, "**missed**")])
def test_overhead_is_beside_sparks_own_sink(logtx_ms: float, word: str) -> None:
    overhead = Overhead(kafka_ms=[100, 120, 110], logtx_ms=[logtx_ms, 1_000, logtx_ms])
    rows = command.batch_rows(overhead)
    assert [row[2] for row in rows] == ["", f"{logtx_ms - 110:.0f}"]
    assert [row[3] for row in rows] == ["", f"≤ 300, {word}"]
    assert {len(row) for row in rows} == {len(command._BATCH_COLUMNS)}


@pytest.mark.parametrize(("times_ms", "word"), [([400, 9_000], "**missed**"), ([1, 2], "met")])
def test_planning_has_a_goal(times_ms: list[float], word: str) -> None:
    row = command.planning_row(times_ms)
    assert row[0] == "planning a micro-batch of 1,000 partitions"
    assert row[2] == f"≤ 2,000, {word}"
    assert len(row) == len(command._PLANNING_COLUMNS)


def test_an_audit_has_two_goals() -> None:
    row = command.audit_row(Audited(by="Spark", records=1_000_000, seconds=5, peak_bytes=5 * 10**9))
    assert row[0] == "audit of 1,000,000 records, by Spark"
    assert row[3:] == ["≥ 1,000,000, **missed**", "5.00", "≤ 4, **missed**"]
    assert len(row) == len(command._AUDIT_COLUMNS)


def test_memory_of_children_counts() -> None:
    script = "x = b'x' * 200_000_000; import time; time.sleep(30)"
    child = subprocess.Popen([sys.executable, "-c", script])
    try:
        with PeakMemory() as memory:
            deadline_s = time.monotonic() + 20
            while memory.peak_bytes < 200_000_000:
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
