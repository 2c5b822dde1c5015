"""What is made of rounds: which side counts, which note, whether a target was met."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from logtx.benchmarks.cpu import CpuTimes
from logtx.benchmarks.model import Better, Comparison, Sample, Scenario
from logtx.benchmarks.runner import Line, Result

SAMPLES = {
    "kafka-1": [Sample(100, {"p99 ms": 8}), Sample(300, {"p99 ms": 8}), Sample(200, {"p99 ms": 8})],
    "kafka-8": [Sample(x, {"p99 ms": 40}) for x in (400, 300, 500)],
    "logtx": [Sample(x, {"p99 ms": 4}) for x in (1_200, 1_000, 1_100)],
}


def only(**fields: object) -> Line:
    """The line of one comparison."""
    comparison = Comparison(title="", logtx="logtx", **fields)  # type: ignore[arg-type]
    scenario = Scenario(
        name="s",
        title="S",
        unit="x/s",
        better=Better.HIGHER,
        method="",
        settings=(),
        sides={},
        comparisons=(comparison,),
        prepare=lambda _: None,
        finish=lambda _: None,
    )
    (line,) = Result(scenario=scenario, samples=SAMPLES, profiles=[]).lines()
    return line


def test_of_several_sides_the_best_median_counts() -> None:
    line = only(kafka=("kafka-1", "kafka-8"), target=2.75)
    assert line.kafka_side == "kafka-8"
    assert line.ratio is not None
    assert line.ratio.median == 1_100 / 400
    assert line.met is True
    assert only(kafka=("kafka-1", "kafka-8"), target=2.76).met is False


def test_of_a_note_the_best_is_read_its_own_way() -> None:
    fields = {"note": "p99 ms", "better": Better.LOWER, "target": 0.5}
    line = only(kafka=("kafka-1", "kafka-8"), **fields)
    assert line.kafka_side == "kafka-1"
    assert line.ratio is not None
    assert (line.logtx.median, line.ratio.median, line.met) == (4, 0.5, True)


@pytest.mark.parametrize(("floor", "met"), [(1_100, True), (1_101, False), (None, None)])
def test_a_figure_alone_has_no_ratio(floor: float | None, met: bool | None) -> None:
    line = only(floor=floor)
    assert line.kafka is None
    assert line.ratio is None
    assert line.met is met


@pytest.mark.parametrize(
    ("target", "floor", "met"), [(2, 1_000, True), (2, 2_000, False), (3, 1_000, False)]
)
def test_with_two_targets_both_must_be_met(target: float, floor: float, met: bool) -> None:
    assert only(kafka="kafka-8", target=target, floor=floor).met is met


def test_the_cpu_of_children_and_others_counts() -> None:
    busy = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(busy) as child:
        try:
            cpu = CpuTimes({"coordinator": child.pid})
            before, deadline_s = cpu.now(), time.monotonic() + 20
            while (found := cpu.since(before, 500))["coordinator CPU s"] < 0.1:
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
        finally:
            child.kill()
    assert found["client CPU s"] >= 0.1, "it is a child of this process"
    assert found["coordinator CPU s per 1,000"] == pytest.approx(2 * found["coordinator CPU s"])
    both = found["client CPU s"] + found["coordinator CPU s"]
    assert found["all CPU s per 1,000"] == pytest.approx(2 * both)
    assert "all CPU s per 1,000" not in cpu.since(before, 0)
