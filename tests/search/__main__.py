"""`make search`: every scenario in full, each in a process of its own, and a table at the end.

With `--mutations` the table says, for each dropped rule, what the search found. A violation prints
its trace, one line for each step, and the command that prints it again.
"""

from __future__ import annotations

import argparse
import os
import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import runs
from .explore import Report, retrace
from .mutations import MUTATIONS


def main(arguments: list[str]) -> int:
    """Searches; returns 1 if an invariant was broken or a mutation was not noticed, else 0."""
    parser = argparse.ArgumentParser(prog="make search ARGS=", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="one scenario or mutation")
    parser.add_argument("--reduced", action="store_true", help="the form that tests visit")
    parser.add_argument("--mutations", action="store_true", help="drop rules, one at a time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seconds", type=float, default=3600, help="CPU time for each, at most")
    parser.add_argument("--replay", metavar="N,N,…", help="print the trace of these choices")
    options = parser.parse_args(arguments)
    tasks = (
        runs.mutations()
        if options.mutations
        else runs.searches(reduced=options.reduced, seconds=options.seconds, jobs=options.jobs)
    )
    if options.only is not None:
        tasks = {name: task for name, task in tasks.items() if name == options.only}
        if not tasks:
            parser.error(f"there is no {options.only!r}")
    console = Console()
    if options.replay is not None:
        choices = [int(number) for number in options.replay.split(",") if number]
        for name in tasks:
            with runs.world(name, mutated=options.mutations, reduced=options.reduced) as world:
                _print_trace(retrace(world, choices), console)
        return 0
    reports = _run(tasks, options.jobs, console)
    for report in reports.values():
        if report.violation is not None and (options.only or not options.mutations):
            _explain(report, options, console)
    if options.mutations:
        console.print(_mutation_table(reports))
        return int(any(r.violation is None for r in reports.values()))
    console.print(_table(reports))
    return int(any(r.violation is not None or not r.complete for r in reports.values()))


def _run(tasks: dict[str, runs.Task], jobs: int, console: Console) -> dict[str, Report]:
    columns = (
        *(TextColumn("{task.description:32}"), BarColumn(20), TimeElapsedColumn()),
        TextColumn("{task.fields[what]}"),
    )
    with Progress(*columns, console=console) as progress:
        bars = {name: progress.add_task(name, total=None, start=False, what="") for name in tasks}

        def told(name: str, report: Report, last: bool) -> None:
            # The number of states is known only when all are visited.
            progress.start_task(bars[name])
            what = f"{report.states:>12,} states, depth {report.depth}, {report.rate:,.0f}/s"
            progress.update(bars[name], what=what)
            if last:
                progress.update(bars[name], total=1, completed=1)
                # Where no bars are drawn, a run that is ended early still tells what it visited.
                if not console.is_terminal:
                    console.print(f"{name}: {what.strip()}, {_held(report)}", soft_wrap=True)

        return runs.run(tasks, jobs, told)


# ---- words --------------------------------------------------------------------------------------


def _held(report: Report) -> str:
    return report.violation or ("yes" if report.complete else "not finished")


def _table(reports: dict[str, Report]) -> Table:
    table = Table(title="Every state of every scenario", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("scenario", no_wrap=True)
    numbers = ("states", "steps", "depth", "of cores", "CPU s", "readers'")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("holds", min_width=5)
    for name, report in reports.items():
        product = report.notes.get("with consumers")
        table.add_row(
            name,
            f"{report.states:,}",
            f"{report.transitions:,}",
            str(report.depth),
            f"{report.notes.get('steps of cores', 0):,}",
            f"{report.seconds:.0f}",
            "" if product is None else f"{product:.2g}",
            _held(report),
        )
    total = sum(r.states for r in reports.values())
    steps = sum(r.transitions for r in reports.values())
    table.caption = (
        f"{total:,} states, {steps / total:.2f} steps from each. Of cores: steps that a real core"
        " took. Readers': states with every interleaving of consumers."
    )
    return table


def _mutation_table(reports: dict[str, Report]) -> Table:
    table = Table(title="Rules dropped, one at a time")
    for heading in ("rule dropped", "trap", "trace", "states", "found"):
        table.add_column(heading, justify="right" if heading in ("trace", "states") else "left")
    by_name = {m.name: m for m in MUTATIONS}
    for name, report in reports.items():
        mutation = by_name[name]
        found = report.violation or "NOTHING"
        length = str(len(report.trace))
        table.add_row(mutation.what, mutation.traps, length, f"{report.states:,}", found)
    return table


def _print_trace(trace: list[str], console: Console) -> None:
    for number, line in enumerate(trace, 1):
        console.print(f"{number:3} {line}", highlight=False, markup=False)


def _explain(report: Report, options: argparse.Namespace, console: Console) -> None:
    if report.violation is None:
        return
    console.print(f"\n{report.world}: {report.violation}", style="bold red", markup=False)
    _print_trace(report.trace, console)
    choices = ",".join(map(str, report.choices))
    mode = " --mutations" * options.mutations + " --reduced" * options.reduced
    name = options.only or report.world
    console.print(
        f"replay: make search ARGS='--only \"{name}\"{mode} --replay {choices}'",
        markup=False,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
