"""Broken builds are caught, by the anomaly that the bug is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from logtx.chaos.checker import MEANINGS
from logtx.chaos.run import VERDICT, run_chaos

from .broken import BROKEN, options_of


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_build_is_caught(name: str, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with (tmp_path / "console.txt").open("w") as file:
        assert run_chaos(options_of(name, directory), Console(file=file, width=200)) == 1
    found = json.loads((directory / VERDICT).read_text())["counts"]
    assert BROKEN[name].anomalies <= found.keys(), found


def test_every_broken_build_says_what_is_broken() -> None:
    for name, broken in BROKEN.items():
        assert broken.apply.__doc__, name
        assert broken.apply.__name__ == name
        assert broken.anomalies, name
        assert broken.anomalies <= MEANINGS.keys(), name
