"""`python -m benchmarks.failover`: stalls of committing clients when coordinators come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer
from rich.console import Console

from logtx.integration.local.cluster import LocalKafka
from logtx.integration.local.errors import LocalKafkaError
from logtx.integration.local.jars import KAFKA_VERSION
from logtx.journal.logs.kafka import KafkaLog

from .. import document
from ..command import WriteDocs, chosen, ended_by, some_of
from ..model import Json
from ..report import circumstances, judged, number, print_table
from .cases import Bench, Outcome
from .fleet import CoordinatorFailedError

# How often each case happens, per variant. More find rarer stalls, and take seconds each.
KILLS: Final = 20
MOVES: Final = 10
PAUSES: Final = 3
ALONE: Final = 5
IN_FLIGHT: Final = 64
"""Transactions in flight in the second variant; the first has 1."""
CASES: Final = ("kill", "move", "pause", "alone")
_COLUMNS: Final = ("what happens", "times", "median ms", "worst ms", "goal ms", "commits told")
_METHOD: Final = """\
`make bench-failover`: one broker, three `logtx coordinator` processes, and one client that commits
transactions of 2 records in 2 partitions, one after another or with 64 in flight. A stall is the
longest time between two acknowledged commits around an event. After each case every commit that was
acknowledged is looked up in the journal, and all records are read by a consumer: none was lost,
none delivered twice, none of a transaction that was not committed; nothing was aborted.

For joins the journal has two partitions and a client commits in each, half of the transactions in
flight each: the one whose partition moves is measured. A stopped process is noticed by pings alone:
half a second, on both sides. A coordinator that is alone must be started again first; most of that
is Python's start."""


def _measure(
    cases: Sequence[str], kills: int, moves: int, pauses: int, console: Console
) -> list[Outcome]:
    found: list[Outcome] = []
    with _bench(8, console) as bench:
        for in_flight in (1, IN_FLIGHT):
            if "kill" in cases:
                found.append(bench.killed(kills, in_flight))
            if "move" in cases:
                found.append(bench.left(moves, in_flight))
            if "pause" in cases:
                found.append(bench.paused(pauses, in_flight))
        if "alone" in cases:
            found.append(bench.alone(min(ALONE, kills), 1))
    if "move" in cases:
        with _bench(2, console) as bench:
            found += [bench.joined(moves, in_flight) for in_flight in (1, IN_FLIGHT)]
    return found


@contextmanager
def _bench(journal_partitions: int, console: Console) -> Iterator[Bench]:
    with (
        TemporaryDirectory(prefix="logtx-failover-") as name,
        LocalKafka(Path(name) / "kafka") as kafka,
    ):
        log = KafkaLog({"bootstrap.servers": kafka.bootstrap_servers})
        step = partial(console.print, style="dim")
        try:
            yield Bench(log, Path(name), step, journal_partitions=journal_partitions)
        finally:
            log.close()


def _row(outcome: Outcome) -> list[str]:
    goal = "" if outcome.goal_ms is None else f"< {outcome.goal_ms:,.0f}"
    truth = outcome.truth
    told = "" if truth is None else f"{truth.told:,}"
    if truth is not None and (not truth.holds or truth.raised or outcome.aborted):
        told += f", **{truth.lost} lost, {truth.doubled} doubled, {truth.strange} strange,"
        told += f" {truth.raised} raised, {outcome.aborted} aborted**"
    return [
        outcome.title,
        f"{len(outcome.stalls_ms)}",
        number(median(outcome.stalls_ms)),
        number(max(outcome.stalls_ms)),
        judged(goal, outcome.met),
        told,
    ]


def _chapter(outcomes: Sequence[Outcome]) -> Json:
    return {
        **circumstances(KAFKA_VERSION),
        "title": "Coordinators that come and go",
        "method": _METHOD,
        "tables": [{"columns": list(_COLUMNS), "rows": [_row(o) for o in outcomes]}],
        "stalls_ms": {o.title: [round(ms, 1) for ms in o.stalls_ms] for o in outcomes},
    }


def failover(
    *,
    case: Annotated[list[str] | None, some_of(CASES)] = None,
    kills: Annotated[int, typer.Option(min=1, help="Kills of the owner, per variant.")] = KILLS,
    moves: Annotated[int, typer.Option(min=1, help="Planned moves, per variant.")] = MOVES,
    pauses: Annotated[int, typer.Option(min=1, help="Pauses of 10 s, per variant.")] = PAUSES,
    write_docs: WriteDocs = False,
) -> None:
    """Measure how long commits stall when coordinators are killed, moved and paused."""
    console = Console()
    cases = chosen(case, CASES)
    if write_docs and case:
        raise typer.BadParameter("--write-docs takes a whole run: without --case")
    with ended_by(console, LocalKafkaError, CoordinatorFailedError):
        outcomes = _measure(cases, kills, moves, pauses, console)
    for outcome in outcomes:
        shown = " ".join(f"{ms:,.0f}" for ms in sorted(outcome.stalls_ms))
        console.print(f"{outcome.title}: {shown}", style="dim", highlight=False)
    title = "Stalls: longest time between two acknowledged commits"
    print_table(console, _COLUMNS, map(_row, outcomes), title=title)
    if not all(o.truth is not None and o.truth.holds for o in outcomes):
        console.print("an acknowledged commit is not what was delivered", style="red")
        raise typer.Exit(1)
    if write_docs:
        document.write_chapter("failover", _chapter(outcomes))


if __name__ == "__main__":
    typer.run(failover)
