"""`python -m benchmarks.queue`: queues beside consumers, and beside Kafka's share groups."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer
from confluent_kafka import KafkaException
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from logtx.integration.local.errors import LocalKafkaError
from logtx.integration.local.jars import KAFKA_VERSION

from .. import document
from ..cluster import DELETED_AT_ONCE, Cluster, CoordinatorFailedError, started
from ..command import Rounds, Scale, WriteDocs, chosen, ended_by, some_of
from ..model import Context, Json
from ..remote import RemoteFailedError
from ..report import (
    chapter_rows,
    circumstances,
    judged,
    number,
    print_profiles,
    print_table,
    to_json,
)
from ..runner import Result, run, steps
from .acks import MESSAGES as BACKLOG
from .backlog import PER_TRANSACTION, FillError
from .block_worker import IN_FLIGHT
from .million import KILLS, MESSAGES, WORKERS, Outcome, Plan, worked_off
from .parts import COMPARED
from .queues import BATCH
from .redelivery import HELD, WAYS, Bench, Redelivered, RedeliveryError

ROUNDS: Final = 5
"""Rounds of each side that count."""
TIMES: Final = 5
"""Signals to workers, for each way of holding messages."""
REDELIVERY: Final = "redelivery"
MILLION: Final = "million"
PARTS: Final = (*COMPARED, REDELIVERY, MILLION)
_COLUMNS: Final = ("more is better, but of CPU", "unit", "beside it", "queue", "ratio", "goal")
_REDELIVERY_COLUMNS: Final = (
    "from the signal until others have a worker's messages",
    "times",
    "p50 ms",
    "worst ms",
    "goal ms",
)
_MILLION_COLUMNS: Final = ("{messages:,} messages, {workers} workers, {kills} kills", "", "goal")
_METHOD: Final = """\
`make bench-queue`: [queues](queues.md) beside logtx's consumers, and beside the share groups of
Kafka {kafka} (`confluent_kafka.ShareConsumer`): one broker, one coordinator, one run. Sides run in
turn, there and back, after a round that does not count; shown are medians of {rounds} rounds, with
the least and the most, and the ratio of the medians: the queue's figure over that beside it.
Messages have 100 bytes and lie in 4 partitions. Each round is a new group that begins with the
first message; its first poll makes connections and is not measured.

*Plain acknowledgements*: one process polls up to {batch}, reads each value, and acknowledges each
message; the next poll sends that. Beside it, one reads as many by `consume`, and commits after each
batch without waiting. Both wait for all answers in the end. The backlog of {backlog:,} is plain, or
in transactions of {per_transaction}. *Blocks* are those of [`logtx.process`](process.md), with an
output for each message. *Workers* are processes; on both sides they make the same calls, on the
same topic, and acknowledge each message (`explicit`). The clock starts when all have had their
first messages. More of them than cores show what sharing costs, and not what it gains.

*Redelivery*: a worker holds what a poll brought, up to {held} messages, or the block at hand of
`logtx.process`. Another one is at work beside it. The first is killed, or stopped; measured is the
time until the other one was given all of them. A block's messages wait for the abort of its
transaction, 3 s after its producer's socket closed, unless a successor of the same
`transactional.id` comes before. Kafka's lock has its default, 30 s from when the worker got its
messages; the broker does not wait for it when the worker's connection closes. What takes long is
not tried often.

*{messages:,} messages*, half of them plain and half in transactions, are worked off by {workers}
processes in blocks with an output for each message, {in_flight} in flight, while {kills} times one
of them is killed with -9 and started again. A `read_committed` consumer counts the outputs.

The machine's load average of 15 minutes was {load:.0f} at the end: above the number of cores,
others were at work too, and rates and times tell little beside CPU, ratios and counts."""
_FAILURES: Final = (
    LocalKafkaError,
    CoordinatorFailedError,
    RemoteFailedError,
    RedeliveryError,
    FillError,
    KafkaException,
    TimeoutError,
)


def redelivery_row(found: Redelivered) -> list[str]:
    """Returns the row of one way of holding messages."""
    goal = "" if found.goal_ms is None else f"≤ {found.goal_ms:,.0f}"
    times_ms = found.times_ms
    figures = number(median(times_ms)), number(max(times_ms))
    return [found.title, f"{len(times_ms)}", *figures, judged(goal, found.met)]


def million_rows(outcome: Outcome) -> list[list[str]]:
    """Returns the rows on what was worked off while workers were killed."""

    def none(found: int) -> list[str]:
        return [f"{found:,}", judged("0", not found)]

    rate = (outcome.plan.messages - outcome.lost) / outcome.seconds
    return [
        ["lost: messages without an output", *none(outcome.lost)],
        ["doubled: outputs too many", *none(outcome.doubled)],
        ["messages/s, with the kills", number(rate), ""],
    ]


class _Measuring:
    """Runs the parts on one cluster, and shows how far they are."""

    def __init__(self, cluster: Cluster, progress: Progress, rounds: int, scale: float) -> None:
        self._cluster, self._progress, self._rounds = cluster, progress, rounds
        self._context = Context(
            bootstrap_servers=cluster.bootstrap_servers, scale=scale, pids=cluster.pids
        )

    def compared(self, names: Sequence[str], *, profile: bool) -> list[Result]:
        """Runs the parts that compare sides."""
        scenarios = [scenario for name in names for scenario in COMPARED[name]()]
        step = self._steps("comparisons", sum(steps(each, self._rounds) for each in scenarios))
        return [
            run(
                *(scenario, self._context, self._cluster.coordinator),
                rounds=self._rounds,
                profile=profile,
                step=step,
            )
            for scenario in scenarios
        ]

    def redelivered(self, times: int) -> list[Redelivered]:
        """Sends signals to workers that hold messages."""
        step = self._steps(REDELIVERY, len(WAYS) * times)
        bench = Bench(self._cluster.bootstrap_servers, step)
        return [bench.measured(way, times) for way in WAYS]

    def worked_off(self, plan: Plan) -> Outcome:
        """Works messages off while workers are killed."""
        task = self._progress.add_task("messages, while workers are killed", total=plan.messages)
        with TemporaryDirectory(prefix="logtx-queue-") as name:
            return worked_off(
                self._cluster.bootstrap_servers,
                Path(name),
                plan,
                lambda count: self._progress.update(task, completed=count),
            )

    def _steps(self, what: str, total: int) -> Callable[[str], None]:
        task, begun = self._progress.add_task(what, total=total), 0

        def step(text: str) -> None:
            nonlocal begun
            self._progress.update(task, description=text, completed=begun)
            begun += 1

        return step


@dataclass(frozen=True, slots=True)
class Found:
    """What a run measured: nothing of the parts that it leaves out."""

    compared: Sequence[Json]
    killed: Sequence[Redelivered]
    outcome: Outcome | None


def _measure(
    names: Sequence[str],
    rounds: int,
    scale: float,
    times: int,
    plan: Plan,
    console: Console,
    *,
    profile: bool,
) -> Found:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with (
        started(settings=DELETED_AT_ONCE) as cluster,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        measuring = _Measuring(cluster, progress, rounds, scale)
        compared = measuring.compared([name for name in names if name in COMPARED], profile=profile)
        return Found(
            to_json(compared, rounds=rounds, scale=scale, kafka=KAFKA_VERSION),
            measuring.redelivered(times) if REDELIVERY in names else [],
            measuring.worked_off(plan) if MILLION in names else None,
        )


def queue(
    *,
    part: Annotated[list[str] | None, some_of(PARTS)] = None,
    rounds: Rounds = ROUNDS,
    scale: Scale = 1.0,
    times: Annotated[
        int, typer.Option(min=1, help="Signals to workers, for each way of holding messages.")
    ] = TIMES,
    messages: Annotated[
        int, typer.Option(min=100, help="Messages that are worked off while workers are killed.")
    ] = MESSAGES,
    workers: Annotated[int, typer.Option(min=1, help="Workers of these.")] = WORKERS,
    kills: Annotated[int, typer.Option(min=0, help="Kills of these.")] = KILLS,
    profile: Annotated[
        bool, typer.Option("--profile", help="Show where the CPU of the queues' sides goes.")
    ] = False,
    write_docs: WriteDocs = False,
) -> None:
    """Measure queues beside consumers, and beside Kafka's share groups."""
    console = Console(width=150)
    names = chosen(part, PARTS)
    if write_docs and (part or scale != 1.0 or messages < MESSAGES or kills < KILLS):
        raise typer.BadParameter(
            "--write-docs takes a whole run: without --part, --scale, --messages and --kills"
        )
    plan = Plan(messages=messages, workers=workers, kills=kills)
    with ended_by(console, *_FAILURES):
        found = _measure(names, rounds, scale, times, plan, console, profile=profile)
    tables = _tables(found)
    for table in tables:
        print_table(console, table["columns"], table["rows"])
    if profile:
        print_profiles(console, found.compared)
    if found.outcome is not None and not found.outcome.holds:
        console.print("a message has not one output", style="red")
        raise typer.Exit(1)
    if write_docs:
        chapter = {"title": "Queues", "method": _method(rounds, plan), "tables": tables}
        document.write_chapter("queue", {**circumstances(KAFKA_VERSION), **chapter})


def _tables(found: Found) -> list[Json]:
    tables: list[Json] = []
    if found.compared:
        tables.append({"columns": list(_COLUMNS), "rows": chapter_rows(found.compared)})
    if found.killed:
        rows = [redelivery_row(each) for each in found.killed]
        tables.append({"columns": list(_REDELIVERY_COLUMNS), "rows": rows})
    if found.outcome is not None:
        plan = found.outcome.plan
        first, *others = _MILLION_COLUMNS
        heading = first.format(
            messages=plan.messages, workers=plan.workers, kills=found.outcome.kills
        )
        tables.append({"columns": [heading, *others], "rows": million_rows(found.outcome)})
    return tables


def _method(rounds: int, plan: Plan) -> str:
    return _METHOD.format(
        kafka=KAFKA_VERSION,
        rounds=rounds,
        batch=BATCH,
        backlog=BACKLOG,
        per_transaction=PER_TRANSACTION,
        held=HELD,
        messages=plan.messages,
        workers=plan.workers,
        kills=plan.kills,
        in_flight=IN_FLIGHT,
        load=os.getloadavg()[2],
    )


if __name__ == "__main__":
    typer.run(queue)
