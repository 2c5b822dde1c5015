"""Generates `docs/benchmarks.md` from the JSON beside it.

`make bench` and `make bench-full` measure logtx beside Kafka's own transactions; the document keeps
the last measurement of each scenario, with its date. Other benchmarks measure what Kafka has
nothing like. Each of them writes a chapter of its own, whose goals join the table, and leaves the
rest as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from .model import Json
from .report import cells, met_text

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
RESULTS: Final = DOCS / "benchmarks.json"
DOCUMENT: Final = DOCS / "benchmarks.md"
PLOT: Final = DOCS / "benchmarks.png"

_HEAD: Final = """\
<!-- Generated from benchmarks.json by `python -m benchmarks --render-docs`; do not edit. -->

# Benchmarks

logtx beside Kafka's own transactions (confluent-kafka, on librdkafka): one broker, one coordinator
process, one run. Every side has a process of its own. The sides run in turn, a round each, there
and back, after some rounds that do not count; shown are medians of the rounds, with the least and
the most, and the ratio of the medians. Where several sides could count, the one with the best
median does, and is named. All records are acknowledged by all replicas (`acks=all`), by idempotent
producers.

`make bench ARGS=--write-docs` measures the main scenarios in less than three minutes, in rounds of
half the length that is given below; `make bench-full ARGS=--write-docs` measures all, in less than
25. Failover, metadata mode, queues, recovery, sidecars, spill and Spark are measured by commands of
their own (`make help`); their goals stand at the table's end.

Measured on {cores} cores ({architecture}, {system}), shared by the broker, the
coordinator and the clients of both sides. {versions}.

| scenario | unit | Kafka | logtx | ratio | target | |
|---|---|---:|---:|---:|---:|---|
"""
_PICTURE: Final = f"""
![The ratios]({PLOT.name})

The ratios that have a target, on a scale of powers: green met it (the upright stroke), red missed
it; the thin line is between what the rounds lay. The dotted line is 1: as Kafka.
"""
_GOAL: Final = "goal"
_RATIO: Final = "ratio"
_UNIT: Final = "unit"


def write(scenarios: Sequence[Json], order: Sequence[str]) -> None:
    """Writes results, pictures and the document; keeps the scenarios that were not measured now.

    Args:
        scenarios: as `report.to_json` returns them.
        order: names of all scenarios that exist, in the document's order; others are dropped.
    """
    from .plot import draw, draw_picture  # here: a chapter is written without matplotlib

    results = _read()
    known = {s["name"]: s for s in [*results["scenarios"], *scenarios]}
    kept = [known[name] for name in order if name in known]
    draw(kept, PLOT)
    for scenario in scenarios:
        if scenario["picture"] is not None:
            draw_picture(scenario["picture"], _picture_path(scenario))
    _write({**results, "scenarios": kept})


def write_chapter(name: str, chapter: Json) -> None:
    """Writes one benchmark's chapter, or replaces it.

    Args:
        name: the benchmark's; the document has the chapters in the order of their names.
        chapter: `title`, `measured` (a date), `machine` and `versions` (as in `circumstances`),
            `method` (paragraphs), and `tables`: each `columns`, of which all but the first are
            numbers, and `rows` of texts. If a column's heading begins with "goal", its texts have
            the form "< 300, met", the column before it has the figure, and the row joins the
            table at the head of the document.
    """
    results = _read()
    chapters = {**results.get("chapters", {}), name: chapter}
    _write({**results, "chapters": dict(sorted(chapters.items()))})


def render_again() -> None:
    """Generates the document from the JSON, without measuring."""
    _write(_read())


def _read() -> Json:
    if not RESULTS.exists():
        return {"scenarios": [], "chapters": {}}
    found: Json = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def _write(results: Json) -> None:
    text = json.dumps(results, indent=1, ensure_ascii=False)
    RESULTS.write_text(text + "\n", encoding="utf-8")
    DOCUMENT.write_text(render(results), encoding="utf-8")


def _picture_path(scenario: Json) -> Path:
    return PLOT.with_name(f"{PLOT.stem}-{scenario['name']}.png")


def render(results: Json) -> str:
    """Returns the document's text."""
    chapters = results.get("chapters", {}).values()
    newest = max([*results["scenarios"], *chapters], key=lambda found: found["measured"])
    parts = [_HEAD.format(**newest["machine"], versions=_versions(newest))]
    for scenario in results["scenarios"]:
        parts += [_row(line) for line in scenario["lines"]]
    parts += [_joined(row) for chapter in chapters for row in headlines(chapter)]
    parts.append(_PICTURE)
    for scenario in results["scenarios"]:
        parts.append(_section(scenario, newest))
    parts += map(_chapter, chapters)
    return "".join(parts)


def _versions(found: Json) -> str:
    return ", ".join(f"{name} {version}" for name, version in found["versions"].items())


def headlines(chapter: Json) -> Iterator[tuple[str, ...]]:
    """Yields a row for each goal of a chapter: title, unit, figure, ratio, goal, met or missed."""
    for table in chapter["tables"]:
        columns = table["columns"]
        for place, heading in enumerate(columns):
            if not heading.startswith(_GOAL):
                continue
            for row in table["rows"]:
                goal, _, met = row[place].rpartition(", ")
                if not goal:
                    continue
                unit, figure = columns[place - 1], row[place - 1]
                ratio = figure if unit == _RATIO else ""
                figure = "" if ratio else figure
                if ratio:
                    # Of times less is better, of rates more.
                    unit = row[columns.index(_UNIT)] if _UNIT in columns else ""
                yield f"{chapter['title']}: {row[0]}", unit, figure, ratio, goal, met


def _joined(row: tuple[str, ...]) -> str:
    title, unit, figure, ratio, goal, met = row
    return f"| {title} | {unit} |  | {figure} | {ratio} | {goal} | {met} |\n"


def _chapter(chapter: Json) -> str:
    text = f"\n# {chapter['title']}\n\n{chapter['method']}\n\n{_circumstances(chapter)}"
    for table in chapter["tables"]:
        numbers = "---:|" * (len(table["columns"]) - 1)
        text += f"\n| {' | '.join(table['columns'])} |\n|---|{numbers}\n"
        text += "".join(f"| {' | '.join(row)} |\n" for row in table["rows"])
    return text


def _circumstances(found: Json) -> str:
    machine = found["machine"]
    text = f"Measured {found['measured']} on {machine['cores']} cores "
    return text + f"({machine['architecture']}, {machine['system']}). {_versions(found)}.\n"


def _row(line: Json) -> str:
    return f"| {' | '.join([*cells(line), met_text(line['met'])])} |\n"


def _section(scenario: Json, newest: Json) -> str:
    settings = "".join(f"- {text}\n" for text in scenario["settings"])
    text = f"\n## {scenario['title']}\n\n{scenario['method']}\n\n{settings}"
    text += f"- measured {scenario['measured']}, {scenario['rounds']} rounds"
    text += "" if scenario["scale"] == 1 else f" of {scenario['scale']:g} times the length"
    same = scenario["versions"] == newest["versions"]
    text += "\n" if same else f", with {_versions(scenario)}\n"
    if scenario.get("picture") is not None:
        text += f"\n![{scenario['title']}]({_picture_path(scenario).name})\n"
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
