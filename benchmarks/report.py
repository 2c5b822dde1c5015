"""The results: as JSON, and as a table made of that JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .model import Better, Json
from .profiling import ThreadProfile
from .runner import Line, Profile, Result
from .stats import Spread

_PACKAGES: Final = ("confluent-kafka", "grpcio", "protobuf", "uvloop", "fastavro")
_LINES: Final = 8
MET: Final[Mapping[bool | None, str]] = {True: "met", False: "missed", None: ""}


def to_json(results: Sequence[Result], *, rounds: int, scale: float, kafka: str) -> Json:
    """A run's results as plain data.

    Args:
        results: of the scenarios that ran.
        rounds: of each side.
        scale: size of a round; 1 = the default run's.
        kafka: the broker's version.
    """
    return {
        **circumstances(kafka),
        "rounds": rounds,
        "scale": scale,
        "scenarios": [_scenario(result) for result in results],
    }


def circumstances(kafka: str) -> Json:
    """When, where and with what it is measured; `kafka` is the broker's version."""
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
            side: [{"value": s.value, **s.notes} for s in samples]
            for side, samples in result.samples.items()
        },
        "lines": [_line(line) for line in result.lines()],
        "profiles": [_profile(profile) for profile in result.profiles],
    }


def _line(line: Line) -> Json:
    return {
        "title": line.comparison.title,
        "kafka": None if line.kafka is None else asdict(line.kafka),
        "logtx": asdict(line.logtx),
        "ratio": asdict(line.ratio),
        "target": line.comparison.target,
        "met": line.met,
    }


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
    """Three digits that count, with thousands set apart."""
    if value >= 1_000_000:
        return f"{value / 1e6:.2f}M"
    if value >= 10_000:
        return f"{value / 1e3:,.0f}k"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread(values: Mapping[str, float] | None) -> str:
    """Median, and between what the rounds lay; nothing of nothing."""
    if values is None:
        return ""
    shown = Spread(**values)
    return f"{number(shown.median)} ({number(shown.least)} to {number(shown.most)})"


def ratio_text(values: Mapping[str, float]) -> str:
    """A ratio with the rounds' least and most."""
    shown = Spread(**values)
    return f"{shown.median:.2f} ({shown.least:.2f} to {shown.most:.2f})"


def target_text(target: float | None, better: str) -> str:
    """What was asked for."""
    if target is None:
        return ""
    return f"{'≥' if better == Better.HIGHER else '≤'} {target:g}"


def print_table(console: Console, results: Json) -> None:
    """One line per comparison."""
    table = Table(title=f"Medians of {results['rounds']} interleaved rounds (least to most)")
    for heading in ("scenario", "unit"):
        table.add_column(heading)
    for heading in ("Kafka", "logtx", "ratio", "target", ""):
        table.add_column(heading, justify="right")
    styles = {True: "green", False: "red", None: ""}
    for scenario in results["scenarios"]:
        for line in scenario["lines"]:
            table.add_row(
                line["title"],
                scenario["unit"],
                spread(line["kafka"]),
                spread(line["logtx"]),
                ratio_text(line["ratio"]),
                target_text(line["target"], scenario["better"]),
                Text(MET[line["met"]], style=styles[line["met"]]),
            )
        table.add_section()
    console.print(table)


def print_profiles(console: Console, results: Json) -> None:
    """Per profiled side and process: threads, and the lines and functions that use their CPU."""
    for scenario in results["scenarios"]:
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
