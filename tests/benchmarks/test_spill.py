"""The benchmark of large transactions: its data, its room, its results as rows and a picture."""

from __future__ import annotations

import struct
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import pytest

from logtx.benchmarks.spill import __main__ as command
from logtx.benchmarks.spill.buffer import seconds
from logtx.benchmarks.spill.measure import Large, NotEnoughDiskError, check_room
from logtx.benchmarks.spill.payload import Payload
from logtx.benchmarks.spill.plot import draw
from logtx.benchmarks.spill.process import Samples, disk_bytes

LARGE = Large(
    payload_bytes=5 * 10**9,
    records=5 * 10**6,
    samples=Samples([0.0, 1.0, 2.0], [50 * 10**6, 150 * 10**6, 90 * 10**6], [0, 5 * 10**9, 0]),
    committed_s=1.0,
    first_s=1.1,
    seconds=1.9,
    peak_rss_bytes=150 * 10**6,
    spilled_bytes=5 * 10**9,
    most_disk_bytes=5 * 10**9,
    left_disk_bytes=0,
    whole=True,
)


@pytest.mark.parametrize("size", [8, 100, 1_000])
def test_values_are_of_one_size_and_all_different(size: int) -> None:
    payload = Payload(size, 5_000)
    values = [payload.value(number) for number in range(payload.count)]
    assert {len(value) for value in values} == {size}
    assert len(set(values)) == payload.count
    assert values[7].startswith(struct.pack(">Q", 7))
    assert payload.digest() == blake2b(b"".join(values)).hexdigest()


def test_too_little_room_is_told_before_anything_is_written(tmp_path: Path) -> None:
    check_room(tmp_path, 0.001)
    with pytest.raises(NotEnoughDiskError, match="--gigabytes"):
        check_room(tmp_path, 10**6)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("memory", [0, 100_000, 10**9])
def test_the_buffer_alone_gives_everything_back(tmp_path: Path, memory: int) -> None:
    assert seconds(Payload(100, 3_500), memory, tmp_path) > 0
    assert disk_bytes(tmp_path) == 0


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, None),
        ({"peak_rss_bytes": 300 * 10**6}, "peak resident memory, MB"),
        ({"left_disk_bytes": 4096}, "disk left, bytes"),
        ({"whole": False}, "whole and in order"),
    ],
)
def test_a_missed_goal_is_shown(changed: dict[str, int], missed: str | None) -> None:
    rows = command._large_rows(replace(LARGE, **changed))  # type: ignore[arg-type]
    assert [row[0] for row in rows if "missed" in row[2]] == ([missed] if missed else [])


def test_ratios_are_of_medians() -> None:
    times = iter([1.0, 2.0, 1.0, 4.0, 1.0, 8.0])
    pair = command.Pair("100 B", Payload(100, 10), lambda _: next(times))
    for _ in range(3):
        pair.round()
    title, memory, spilled, ratio, goal = command._ratio_row(pair)
    assert title == "100 B"
    assert memory.startswith("10 (")
    assert spilled.startswith("2.5 (1.25 to 5")
    assert ratio == "0.25 (0.12 to 0.50)"
    assert "missed" in goal


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    draw(LARGE, command.RSS_GOAL_BYTES, path)
    assert path.read_bytes().startswith(b"\x89PNG")
