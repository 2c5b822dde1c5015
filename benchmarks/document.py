"""`docs/benchmarks.md`, made of the JSON beside it.

`make bench` measures all that stands beside Kafka's own transactions. Other benchmarks measure
what Kafka has no equal of; each writes a chapter of its own, and leaves the rest as it is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from .model import Json
from .report import MET, ratio_text, spread, target_text

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
RESULTS: Final = DOCS / "benchmarks.json"
DOCUMENT: Final = DOCS / "benchmarks.md"
PLOT: Final = DOCS / "benchmarks.png"

_HEAD: Final = """\
<!-- Generated from benchmarks.json by `python -m benchmarks --write-docs`; do not edit. -->

# Benchmarks

logtx beside Kafka's own transactions (confluent-kafka, on librdkafka), by `make bench`: one
broker, one coordinator process, one run. Every side has a process of its own. The sides run in
turn, a round each, {rounds} times, after some rounds that do not count; shown are medians, with
the least and the most of the rounds, and the ratio of the medians. All records are acknowledged by
all replicas (`acks=all`), by idempotent producers.

Measured {measured} on {cores} cores ({architecture}, {system}), shared by the broker, the
coordinator and the clients of both sides. {versions}.

| scenario | unit | Kafka | logtx | ratio | target | |
|---|---|---:|---:|---:|---:|---|
"""


_PICTURE: Final = f"""
![The ratios]({PLOT.name})

The ratios again, on a scale of powers: green met its target (the upright stroke), red missed it,
blue had none; the thin line is between what the rounds lay. The dotted line is 1: as Kafka.
"""


def write(results: Json) -> None:
    """Write the results, the picture and the document; chapters of other benchmarks stay."""
    from .plot import draw  # whoever writes a chapter needs no picture

    draw(results["scenarios"], PLOT)
    _write({**results, "chapters": _read().get("chapters", {})})


def write_chapter(name: str, chapter: Json) -> None:
    """Write one benchmark's chapter, new or again.

    Args:
        name: of the benchmark; the order of the names is that of the document.
        chapter: `title`, `measured` (a date), `machine` and `versions` (as `report` has them),
            `method` (paragraphs), and `tables`: each `columns`, of which all but the first are
            numbers, and `rows` of texts.
    """
    results = _read()
    chapters = {**results.get("chapters", {}), name: chapter}
    _write({**results, "chapters": dict(sorted(chapters.items()))})


def _read() -> Json:
    found: Json = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def _write(results: Json) -> None:
    text = json.dumps(results, indent=1, ensure_ascii=False)
    RESULTS.write_text(text + "\n", encoding="utf-8")
    DOCUMENT.write_text(render(results), encoding="utf-8")


def render(results: Json) -> str:
    """The document."""
    machine = results["machine"]
    versions = ", ".join(f"{name} {v}" for name, v in results["versions"].items())
    parts = [
        _HEAD.format(
            rounds=results["rounds"],
            measured=results["measured"],
            versions=versions,
            cores=machine["cores"],
            architecture=machine["architecture"],
            system=machine["system"],
        )
    ]
    for scenario in results["scenarios"]:
        parts += [_row(line, scenario) for line in scenario["lines"]]
    parts.append(_PICTURE)
    for scenario in results["scenarios"]:
        parts.append(_section(scenario))
    parts += map(_chapter, results.get("chapters", {}).values())
    return "".join(parts)


def _chapter(chapter: Json) -> str:
    machine = chapter["machine"]
    versions = ", ".join(f"{name} {v}" for name, v in chapter["versions"].items())
    text = f"\n# {chapter['title']}\n\n{chapter['method']}\n\n"
    text += f"Measured {chapter['measured']} on {machine['cores']} cores "
    text += f"({machine['architecture']}, {machine['system']}). {versions}.\n"
    for table in chapter["tables"]:
        numbers = "---:|" * (len(table["columns"]) - 1)
        text += f"\n| {' | '.join(table['columns'])} |\n|---|{numbers}\n"
        text += "".join(f"| {' | '.join(row)} |\n" for row in table["rows"])
    return text


def _row(line: Json, scenario: Json) -> str:
    cells = (
        line["title"],
        scenario["unit"],
        spread(line["kafka"]),
        spread(line["logtx"]),
        ratio_text(line["ratio"]),
        target_text(line["target"], scenario["better"]),
        f"**{MET[False]}**" if line["met"] is False else MET[line["met"]],
    )
    return f"| {' | '.join(cells)} |\n"


def _section(scenario: Json) -> str:
    settings = "".join(f"- {text}\n" for text in scenario["settings"])
    text = f"\n## {scenario['title']}\n\n{scenario['method']}\n\n{settings}"
    missed = [line["title"] for line in scenario["lines"] if line["met"] is False]
    if missed:
        text += f"\nMissed: {'; '.join(missed)}. "
        text += "Where the time goes, by one more round under a sampler:\n"
    for profile in scenario["profiles"]:
        for process, threads in profile["processes"].items():
            text += _threads(f"`{profile['side']}`, {process}", threads)
    return text


def _threads(where: str, threads: list[Json]) -> str:
    text = f"\n{where}:\n\n| thread | of a core | of that, by line |\n|---|---:|---|\n"
    for thread in threads:
        name = f"{thread['name']} (native)" if thread["native"] else thread["name"]
        lines = ", ".join(f"{share:.0%} `{line}`" for line, share in thread["lines"][:5])
        text += f"| {name} | {thread['share']:.0%} | {lines} |\n"
    return text
