"""The results: as JSON, and as tables made from that JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from logtx.journal.native.loading import find_reader

from .model import Better, Json, Picture, Scenario
from .profiling import ThreadProfile
from .runner import Line, Profile, Result
from .stats import Spread

_PACKAGES: Final = ("confluent-kafka", "protobuf", "uvloop", "fastavro")
_LINES: Final = 8
"""Lines, and functions, that a thread's profile keeps: the busiest."""


def to_json(results: Sequence[Result], *, rounds: int, scale: float, kafka: str) -> list[Json]:
    """Returns a run's results as plain data, one dict for each scenario.

    Args:
        results: one for each scenario that ran.
        rounds: rounds of each side that count.
        scale: size of a round; 1 is the full run's.
        kafka: the broker's version.
    """
    run = {**circumstances(kafka), "rounds": rounds, "scale": scale}
    return [{**_scenario(result), **run} for result in results]


def circumstances(kafka: str) -> Json:
    """Returns date, machine and versions of a measurement; `kafka` is the broker's version."""
    return {
        "measured": datetime.now(UTC).date().isoformat(),
        "machine": {
            "cores": os.cpu_count(),
            "architecture": platform.machine(),
            "system": platform.system(),
        },
        "versions": {
            "Kafka": kafka,
            "Python": platform.python_version(),
            **{name: version(name) for name in _PACKAGES},
            "the C extension": "not in use" if find_reader().extension is None else "in use",
        },
    }


def _scenario(result: Result) -> Json:
    scenario = result.scenario
    return {
        "name": scenario.name,
        "title": scenario.title,
        "unit": scenario.unit,
        "better": scenario.better.value,
        "method": scenario.method,
        "settings": list(scenario.settings),
        "sides": {
            side: [
                {name: _short(x) for name, x in {"value": s.value, **s.notes}.items()}
                for s in samples
            ]
            for side, samples in result.samples.items()
        },
        "lines": [_line(line, scenario) for line in result.lines()],
        "picture": None if scenario.picture is None else _picture(result, scenario.picture),
        "profiles": [_profile(profile) for profile in result.profiles],
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _line(line: Line, scenario: Scenario) -> Json:
    comparison = line.comparison
    several = not isinstance(comparison.kafka, str | None)
    return {
        "title": comparison.title,
        "unit": comparison.unit or scenario.unit,
        "better": line.better.value,
        "kafka": None if line.kafka is None else asdict(line.kafka),
        "kafka_side": line.kafka_side if several else None,
        "logtx": asdict(line.logtx),
        "logtx_side": None if isinstance(comparison.logtx, str) else line.logtx_side,
        "ratio": None if line.ratio is None else asdict(line.ratio),
        "target": comparison.target,
        "floor": comparison.floor,
        "met": line.met,
    }


def _picture(result: Result, picture: Picture) -> Json:
    curves = []
    for curve in picture.curves:
        spreads = [Spread.of(result.values(p.side, p.note)) for p in curve.points]
        curves.append(
            {
                "label": curve.label,
                "x": [p.x for p in curve.points],
                "values": [asdict(found) for found in spreads],
            }
        )
    return {"x": picture.x, "y": picture.y, "curves": curves}


def _profile(profile: Profile) -> Json:
    processes = {"client": profile.client, "coordinator": profile.coordinator}
    return {
        "side": profile.side,
        "value": profile.sample.value,
        "processes": {name: [_thread(t) for t in threads] for name, threads in processes.items()},
    }


def _thread(thread: ThreadProfile) -> Json:
    return {
        "name": thread.name,
        "native": thread.native,
        "share": round(thread.share, 4),
        "lines": _top(thread, thread.lines),
        "functions": _top(thread, thread.functions),
    }


def _top(thread: ThreadProfile, seconds: Mapping[str, float]) -> list[list[Any]]:
    ordered = sorted(seconds.items(), key=lambda item: item[1], reverse=True)
    total = thread.cpu_s or 1.0
    return [[name, round(used / total, 3)] for name, used in ordered[:_LINES]]


def number(value: float) -> str:
    """Formats a number for a table: large ones in thousands (k) or millions (M)."""
    if value >= 1_000_000:
        return f"{value / 1e6:.2f}M"
    if value >= 10_000:
        return f"{value / 1e3:,.0f}k"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread(values: Mapping[str, float] | None) -> str:
    """Formats a median with the rounds' least and most; "" for None."""
    if values is None:
        return ""
    shown = Spread(**values)
    return f"{number(shown.median)} ({number(shown.least)} to {number(shown.most)})"


def ratio_text(values: Mapping[str, float] | None) -> str:
    """Formats a ratio with the rounds' least and most; "" for None."""
    if values is None:
        return ""
    shown = Spread(**values)
    return f"{shown.median:.2f} ({shown.least:.2f} to {shown.most:.2f})"


def target_text(target: float | None, better: str) -> str:
    """Formats a target as "≥ 5" or "≤ 1.2"; "" for None."""
    if target is None:
        return ""
    return f"{'≥' if better == Better.HIGHER else '≤'} {target:,g}"


def met_text(is_met: bool | None) -> str:
    """Says whether a goal is met, in Markdown; "" for None: there is none."""
    return {True: "met", False: "**missed**", None: ""}[is_met]


def judged(goal: str, is_met: bool | None) -> str:
    """Returns a goal with whether it is met, as in "≤ 5, met"; alone if that is None."""
    return goal if is_met is None else f"{goal}, {met_text(is_met)}"


def cells(line: Json) -> tuple[str, ...]:
    """Returns the cells of a comparison's line, without the last: whether its target was met."""
    asked = target_text(line["target"], line["better"])
    if line["floor"] is not None:
        asked = f"{target_text(line['floor'], line['better'])} {line['unit']}"
    return (
        line["title"],
        line["unit"],
        _of(spread(line["kafka"]), line["kafka_side"]),
        _of(spread(line["logtx"]), line["logtx_side"]),
        ratio_text(line["ratio"]),
        asked,
    )


def chapter_rows(results: Sequence[Json]) -> list[list[str]]:
    """Returns the rows of a chapter that compares two sides: one for each comparison.

    Args:
        results: of scenarios, as `to_json` tells them.

    Returns:
        Rows of title, unit, the side beside, logtx's or the newer one's, their ratio, and the goal
        with whether it was met.
    """
    found = []
    for line in (line for result in results for line in result["lines"]):
        goal = judged(target_text(line["target"], line["better"]), line["met"])
        figures = (spread(line["kafka"]), spread(line["logtx"]), ratio_text(line["ratio"]))
        found.append([line["title"], line["unit"], *figures, goal])
    return found


def _of(text: str, side: str | None) -> str:
    return text if side is None else f"{text}: {side}"


def print_comparisons(console: Console, scenarios: Sequence[Json]) -> None:
    """Prints a table with one line for each comparison."""
    rounds = scenarios[0]["rounds"]
    table = Table(title=f"Medians of {rounds} interleaved rounds (least to most)")
    for heading in ("scenario", "unit"):
        table.add_column(heading)
    for heading in ("Kafka", "logtx", "ratio", "target", ""):
        table.add_column(heading, justify="right")
    styles = {True: "green", False: "red", None: ""}
    for scenario in scenarios:
        for line in scenario["lines"]:
            met = Text(_plain(met_text(line["met"])), style=styles[line["met"]])
            table.add_row(*cells(line), met)
        table.add_section()
    console.print(table)


def _plain(text: str) -> str:
    """Returns a text without the asterisks of Markdown's bold."""
    return text.replace("**", "")


def print_table(
    console: Console,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str | None = None,
) -> None:
    """Prints a table of a chapter, without the asterisks of its bold text."""
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*map(_plain, row))
    console.print(table)


def print_profiles(console: Console, scenarios: Sequence[Json]) -> None:
    """Prints the threads of each profiled process, and which lines and functions use their CPU."""
    for scenario in scenarios:
        for profile in scenario["profiles"]:
            for process, threads in profile["processes"].items():
                for thread in threads:
                    _print_thread(console, f"{profile['side']}, {process}", thread)


def _print_thread(console: Console, where: str, thread: Json) -> None:
    kind = "native thread(s)" if thread["native"] else "thread"
    console.print(
        f"[bold]{where}[/bold]: {kind} {thread['name']}, {thread['share']:.0%} of a core",
        highlight=False,
    )
    if thread["native"]:
        return
    table = Table(box=None, pad_edge=True)
    for heading in ("CPU", "line", "CPU", "function with what it calls"):
        table.add_column(heading, justify="right" if heading == "CPU" else "left", no_wrap=True)
    pairs = zip(thread["lines"], thread["functions"], strict=False)
    for (line, line_share), (function, function_share) in pairs:
        table.add_row(f"{line_share:.0%}", line, f"{function_share:.0%}", function)
    console.print(table)
