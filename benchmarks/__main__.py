"""`python -m benchmarks`: measure, show, and write the document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from logtx.integration.kafka import LocalKafkaError
from logtx.integration.kafka.jars import KAFKA_VERSION

from . import document
from .cluster import CoordinatorFailedError, cluster
from .model import Context
from .report import print_profiles, print_table, to_json
from .runner import Result, run, steps
from .scenarios import SCENARIOS
from .worker import SideFailedError

ROUNDS: Final = 5
QUICK_ROUNDS: Final = 3
QUICK_SCALE: Final = 0.25
WIDTH: Final = 150
"""Columns of the tables, where there is no terminal to ask."""


def _measure(
    names: list[str], rounds: int, scale: float, profile: bool | None, console: Console
) -> list[Result]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )
    total = sum(steps(SCENARIOS[name], rounds) for name in names)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting Kafka and a coordinator", total=total)
        begun = False

        def step(what: str) -> None:
            nonlocal begun
            progress.update(task, description=what, advance=1 if begun else 0)
            begun = True

        with cluster() as (servers, coordinator):
            context = Context(bootstrap_servers=servers, scale=scale)
            return [
                run(
                    SCENARIOS[name],
                    context,
                    coordinator,
                    rounds=rounds,
                    profile=profile,
                    step=step,
                )
                for name in names
            ]


def benchmarks(
    *,
    scenario: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(SCENARIOS)}; may be repeated. [default: all]"),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help=f"Rounds of each side. [default: {ROUNDS}]")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few and short rounds: a look, not a measurement.")
    ] = False,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Show where the CPU of logtx's sides goes, per thread."),
    ] = False,
    write_docs: Annotated[
        bool,
        typer.Option(
            "--write-docs",
            help="Write docs/benchmarks.json and .md, with profiles of what missed its target.",
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
        document.write(json.loads(document.RESULTS.read_text(encoding="utf-8")))
        return
    unknown = [name for name in scenario or () if name not in SCENARIOS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(SCENARIOS)}")
    if write_docs and (quick or scenario):
        raise typer.BadParameter("--write-docs takes a whole run: without --quick and --scenario")
    rounds = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    scale = QUICK_SCALE if quick else 1.0
    wanted = True if profile else (None if write_docs else False)
    try:
        found = _measure(scenario or list(SCENARIOS), rounds, scale, wanted, console)
    except (LocalKafkaError, CoordinatorFailedError, SideFailedError) as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(1) from error
    results = to_json(found, rounds=rounds, scale=scale, kafka=KAFKA_VERSION)
    print_table(console, results)
    if profile:
        print_profiles(console, results)
    if json_path is not None:
        json_path.write_text(json.dumps(results, indent=1), encoding="utf-8")
    if write_docs:
        document.write(results)


if __name__ == "__main__":
    typer.run(benchmarks)
