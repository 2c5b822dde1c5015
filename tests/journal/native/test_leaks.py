"""What `make leaks` measures, with fewer records."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from . import leaks
from .conftest import Mock

ROOT = Path(__file__).parents[3]


def growth(records: int, *megabytes: float) -> leaks.Growth:
    """Memory at equal distances."""
    made = leaks.Growth(records)
    for number, size in enumerate(megabytes, 1):
        made.note(leaks.Size(records * number // len(megabytes), size))
    return made


def test_growth_counts_behind_a_warm_up() -> None:
    assert growth(10**7, 50, 80, 80, 80, 80, 80, 80, 80, 80, 85).grown == 35
    assert growth(10**6, 10, 20, 30, 40, 41, 41, 41, 41, 41, 43).grown == 3
    assert growth(1_000, 10, 90).grown == 0
    assert growth(10**6, 10, 20).at(0.01) == (500_000, 10)


def test_what_grows_is_told(
    extension: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del extension
    kept: list[bytes] = []

    def leaking(_mock: Mock) -> Iterator[int]:
        while True:
            kept.append(b"x" * 3_000_000)
            yield 100_000

    monkeypatch.setattr(leaks, "WAYS", {"leak": leaking})
    assert leaks.main(["--records", "5e5"]) == 0
    assert leaks.main(["--records", "2e6"]) == 1
    assert "grew by more than 20 MB: leak" in capsys.readouterr().out


def test_records_go_both_ways(extension: Any) -> None:
    del extension
    with Progress(disable=True) as progress:
        for way in leaks.WAYS:
            assert leaks.measure(way, 50_000, progress).sizes[-1].records >= 50_000


@pytest.mark.slow
def test_nothing_is_left_of_a_million_records_each_way(extension: Any) -> None:
    del extension
    command = [sys.executable, "-m", "tests.journal.native.leaks", "--records", "1e6"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
