"""`python -m benchmarks`: measures, shows the results, and writes the document."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from logtx.integration.local.errors import LocalKafkaError
from logtx.integration.local.jars import KAFKA_VERSION

from . import document
from .cluster import CoordinatorFailedError, started
from .command import Rounds, chosen, ended_by, some_of
from .model import Context
from .remote import RemoteFailedError
from .report import print_comparisons, print_profiles, to_json
from .runner import Result, run, steps
from .scenarios import QUICK, SCENARIOS

ROUNDS: Final = 5
"""Rounds of each side. More make the medians steadier; the document takes no fewer."""
BROKER_WARM_UP_ROUNDS: Final = 2
"""More warm-up rounds of the first scenario. A broker that maps its classes from an archive answers
before its code is compiled: with fewer rounds, the first figures were a fifth lower than later
ones, Kafka's and logtx's alike."""
QUICK_SCALE: Final = 0.5
"""Length of a round of the quick run, as a share of the full run's."""
WIDTH: Final = 150
"""Characters in a line of the tables where the output is no terminal."""


def _measure(
    names: list[str], rounds: int, scale: float, profile: bool | None, console: Console
) -> list[Result]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )
    first, *others = (SCENARIOS[name] for name in names)
    warm_up_rounds = first.warm_up_rounds + BROKER_WARM_UP_ROUNDS
    scenarios = [replace(first, warm_up_rounds=warm_up_rounds), *others]
    total = sum(steps(scenario, rounds) for scenario in scenarios)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting Kafka and a coordinator", total=total)
        begun = False

        def step(what: str) -> None:
            nonlocal begun
            progress.update(task, description=what, advance=1 if begun else 0)
            begun = True

        with started() as cluster:
            context = Context(
                bootstrap_servers=cluster.bootstrap_servers, scale=scale, pids=cluster.pids
            )
            return [
                run(
                    scenario,
                    context,
                    cluster.coordinator,
                    rounds=rounds,
                    profile=profile,
                    step=step,
                )
                for scenario in scenarios
            ]


def benchmarks(
    *,
    scenario: Annotated[list[str] | None, some_of(SCENARIOS, ", ".join(QUICK))] = None,
    full: Annotated[
        bool, typer.Option("--full", help="All scenarios, in rounds of their whole length.")
    ] = False,
    rounds: Rounds = ROUNDS,
    scale: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=10,
            help=f"Size of a round. [default: 1 with --full, else {QUICK_SCALE:g}]",
        ),
    ] = None,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Show where the CPU of logtx's sides goes, per thread."),
    ] = False,
    write_docs: Annotated[
        bool,
        typer.Option(
            "--write-docs",
            help="Write what was measured into docs/benchmarks.json, .md and their pictures, with "
            "profiles of what missed its target.",
        ),
    ] = False,
    render_docs: Annotated[
        bool,
        typer.Option("--render-docs", help="Only make docs/benchmarks.md of its JSON again."),
    ] = False,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the results to this file too.")
    ] = None,
) -> None:
    """Measure logtx beside Kafka's own transactions, on a broker of its own, as ratios."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    if render_docs:
        document.render_again()
        return
    names = chosen(scenario, SCENARIOS, default=SCENARIOS if full else QUICK)
    if write_docs and (rounds < ROUNDS or scale is not None):
        raise typer.BadParameter(f"--write-docs takes {ROUNDS} rounds, and no --scale")
    size = scale or (1.0 if full else QUICK_SCALE)
    wanted = True if profile else (None if write_docs else False)
    with ended_by(console, LocalKafkaError, CoordinatorFailedError, RemoteFailedError):
        found = _measure(names, rounds, size, wanted, console)
    results = to_json(found, rounds=rounds, scale=size, kafka=KAFKA_VERSION)
    print_comparisons(console, results)
    if profile:
        print_profiles(console, results)
    if json_path is not None:
        json_path.write_text(json.dumps(results, indent=1), encoding="utf-8")
    if write_docs:
        document.write(results, list(SCENARIOS))


if __name__ == "__main__":
    typer.run(benchmarks)
