"""Every scenario runs, at a tiny size. What it measures there is looked at by nobody."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from logtx.benchmarks import document
from logtx.benchmarks.cluster import cluster
from logtx.benchmarks.model import Context, Json
from logtx.benchmarks.report import circumstances, to_json
from logtx.benchmarks.runner import run, steps
from logtx.benchmarks.scenarios import SCENARIOS
from logtx.integration.pytest_plugin import ExistingKafka


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_every_scenario_runs(logtx_kafka: ExistingKafka) -> None:
    # Without warm-up it takes half as long.
    scenarios = [replace(s, warm_up_rounds=0) for s in SCENARIOS.values()]
    told: list[str] = []
    results = []
    with cluster(logtx_kafka.bootstrap_servers) as (servers, coordinator):
        context = Context(bootstrap_servers=servers, scale=0.001)
        for scenario in scenarios:
            # A look at where the time goes, for one of them.
            profile = scenario.name == "pipelined"
            results.append(
                run(scenario, context, coordinator, rounds=1, profile=profile, step=told.append)
            )
    assert len(told) == sum(steps(scenario, 1) for scenario in scenarios)
    for result in results:
        assert all(sample.value > 0 for side in result.samples.values() for sample in side)
    (profiled,) = (p for result in results for p in result.profiles)
    assert profiled.client
    assert profiled.coordinator
    found = to_json(results, rounds=1, scale=0.001, kafka="test")
    text = document.render(found)
    assert all(scenario.title in text for scenario in scenarios)


def test_the_document_names_every_line_and_what_was_missed() -> None:
    spread = {"median": 1.0, "least": 0.5, "most": 2.0}
    line: Json = {
        "title": "a line",
        "kafka": spread,
        "logtx": spread,
        "ratio": spread,
        "target": 5,
        "met": False,
    }
    thread: Json = {
        "name": "MainThread",
        "native": False,
        "share": 0.5,
        "lines": [["a.py:1 f", 0.25]],
        "functions": [],
    }
    text = document.render(
        {
            "measured": "2026-01-01",
            "rounds": 5,
            "machine": {"cores": 2, "architecture": "x86_64", "system": "Linux"},
            "versions": {"Kafka": "4.1.0"},
            "scenarios": [
                {
                    "title": "A scenario",
                    "unit": "ms",
                    "better": "higher",
                    "method": "How.",
                    "settings": ["acks=all"],
                    "lines": [line],
                    "profiles": [
                        {"side": "logtx", "value": 1.0, "processes": {"client": [thread]}}
                    ],
                }
            ],
        }
    )
    assert (
        "| a line | ms | 1 (0.5 to 2) | 1 (0.5 to 2) | 1.00 (0.50 to 2.00) | ≥ 5 | **missed** |\n"
    ) in text
    assert "Missed: a line." in text
    assert "| MainThread | 50% | 25% `a.py:1 f` |" in text


def test_chapters_of_other_benchmarks_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "RESULTS", tmp_path / "benchmarks.json")
    monkeypatch.setattr(document, "DOCUMENT", tmp_path / "benchmarks.md")
    monkeypatch.setattr(document, "PLOT", tmp_path / "benchmarks.png")
    scenarios = to_json([], rounds=1, scale=1.0, kafka="test")
    document.RESULTS.write_text(json.dumps(scenarios))
    tables = [{"columns": ["what", "ms"], "rows": [["kill -9", "240"]]}]
    for name in ("recovery", "failover"):
        chapter = {"title": name.title(), "method": "How.", "tables": tables}
        document.write_chapter(name, {**circumstances("test"), **chapter})
    spread = {"median": 1.0, "least": 0.5, "most": 2.0}
    line: Json = {
        "title": "a line",
        "kafka": None,
        "logtx": spread,
        "ratio": spread,
        "target": 0.5,
        "met": True,
    }
    measured: Json = {
        "title": "A scenario",
        "unit": "records/s",
        "better": "higher",
        "method": "How.",
        "settings": [],
        "lines": [line],
        "profiles": [],
    }
    document.write({**scenarios, "rounds": 7, "scenarios": [measured]})
    assert document.PLOT.read_bytes().startswith(b"\x89PNG")
    found = json.loads(document.RESULTS.read_text())
    assert list(found["chapters"]) == ["failover", "recovery"]
    assert found["rounds"] == 7
    text = document.DOCUMENT.read_text()
    # Kafka has no equal of it.
    assert "| a line | records/s |  | 1 (0.5 to 2) | 1.00 (0.50 to 2.00) | ≥ 0.5 | met |" in text
    assert text.index("# Failover") < text.index("| kill -9 | 240 |") < text.index("# Recovery")
