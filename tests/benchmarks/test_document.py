"""The document of the benchmarks: its table, chapters of other benchmarks, pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from logtx.benchmarks import document
from logtx.benchmarks.model import Json
from logtx.benchmarks.report import circumstances

PNG = b"\x89PNG"
SPREAD = {"median": 1.0, "least": 0.5, "most": 2.0}


def line(title: str = "a line", **fields: object) -> Json:
    return {
        "title": title,
        "unit": "records/s",
        "better": "higher",
        "kafka": SPREAD,
        "kafka_side": None,
        "logtx": SPREAD,
        "logtx_side": None,
        "ratio": SPREAD,
        "target": None,
        "floor": None,
        "met": None,
        **fields,
    }


def scenario(name: str, *lines: Json, **fields: object) -> Json:
    return {
        **circumstances("test"),
        "name": name,
        "title": f"Scenario {name}",
        "method": "How.",
        "settings": ["acks=all"],
        "rounds": 5,
        "scale": 1.0,
        "lines": list(lines),
        "picture": None,
        "profiles": [],
        **fields,
    }


PICTURE: Json = {
    "x": "producers",
    "y": "transactions/s",
    "curves": [{"label": "logtx", "x": [1, 8, "p99"], "values": [SPREAD, SPREAD, SPREAD]}],
}


@pytest.fixture(autouse=True)
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place without results."""
    monkeypatch.setattr(document, "RESULTS", tmp_path / "benchmarks.json")
    monkeypatch.setattr(document, "DOCUMENT", tmp_path / "benchmarks.md")
    monkeypatch.setattr(document, "PLOT", tmp_path / "benchmarks.png")
    return tmp_path


def test_every_line_and_what_was_missed() -> None:
    thread: Json = {
        "name": "MainThread",
        "native": False,
        "share": 0.5,
        "lines": [["a.py:1 f", 0.25]],
        "functions": [],
    }
    profile = {"side": "logtx", "value": 1.0, "processes": {"client": [thread]}}
    missed = line(target=5, met=False)
    text = document.render({"scenarios": [scenario("s", missed, profiles=[profile])]})
    beside = "1 (0.5 to 2) | 1 (0.5 to 2) | 1.00 (0.50 to 2.00)"
    assert f"| a line | records/s | {beside} | ≥ 5 | **missed** |\n" in text
    assert "Missed: a line." in text
    assert "| MainThread | 50% | 25% `a.py:1 f` |" in text


def test_a_line_without_kafka_a_figure_of_its_own_and_the_best_side() -> None:
    alone = line(kafka=None, ratio=None, floor=8000, met=True, unit="tx/s", logtx_side="two")
    best = line(kafka_side="kafka-64", target=1.2, better="lower", met=True)
    text = document.render({"scenarios": [scenario("s", alone, best)]})
    assert "| tx/s |  | 1 (0.5 to 2): two |  | ≥ 8,000 tx/s | met |\n" in text
    assert "| 1 (0.5 to 2): kafka-64 | 1 (0.5 to 2) | 1.00 (0.50 to 2.00) | ≤ 1.2 | met |" in text


def test_what_was_not_measured_now_stays(docs: Path) -> None:
    order = ["a", "b", "c"]
    asked = line("of c", target=0.5, met=True)
    document.write([scenario("c", asked), scenario("a", line("old"))], order)
    tables = [{"columns": ["what", "ms"], "rows": [["kill -9", "240"]]}]
    for name in ("recovery", "failover"):
        chapter = {"title": name.title(), "method": "How.", "tables": tables}
        document.write_chapter(name, {**circumstances("test"), **chapter})
    document.write([scenario("a", line("new"), picture=PICTURE, scale=0.5)], order)
    found = json.loads((docs / "benchmarks.json").read_text())
    assert [s["name"] for s in found["scenarios"]] == ["a", "c"]
    assert list(found["chapters"]) == ["failover", "recovery"]
    text = (docs / "benchmarks.md").read_text()
    assert "old" not in text
    assert text.index("| new |") < text.index("| of c |")
    assert "![Scenario a](benchmarks-a.png)" in text
    assert "5 rounds of 0.5 times the length" in text
    assert text.index("# Failover") < text.index("| kill -9 | 240 |") < text.index("# Recovery")
    for name in ("benchmarks.png", "benchmarks-a.png"):
        assert (docs / name).read_bytes().startswith(PNG)
    document.write([scenario("b", line("of b"))], ["b"])
    assert "of c" not in (docs / "benchmarks.md").read_text(), "there is no such scenario any more"
    document.render_again()


def test_the_goals_of_chapters_join_the_table() -> None:
    tables = [
        {
            "columns": ["stall", "worst ms", "goal ms", "told"],
            "rows": [["kill -9", "142", "< 1,000, met", "7"], ["pause", "900", "", "8"]],
        },
        {"columns": ["sink", "ratio", "goal"], "rows": [["sink", "0.50", "≥ 0.6, **missed**"]]},
    ]
    chapter = {**circumstances("test"), "title": "Failover", "method": "How.", "tables": tables}
    text = document.render({"scenarios": [scenario("s", line())], "chapters": {"f": chapter}})
    head = text[: text.index("![The ratios]")]
    assert "| Failover: kill -9 | worst ms |  | 142 |  | < 1,000 | met |\n" in head
    assert "| Failover: sink |  |  |  | 0.50 | ≥ 0.6 | **missed** |\n" in head
    assert "pause" not in head, "nothing was asked of it"


def test_a_picture_of_curves(tmp_path: Path) -> None:
    from logtx.benchmarks.plot import draw_picture  # here: all who collect would load matplotlib

    draw_picture(PICTURE, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG)
