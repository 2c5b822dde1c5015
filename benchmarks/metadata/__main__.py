"""`python -m benchmarks.metadata`: topics in metadata mode beside topics with markers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import median
from typing import Annotated, Final

import typer
from rich.console import Console

from logtx.integration.local.errors import LocalKafkaError
from logtx.integration.local.jars import KAFKA_VERSION
from logtx.journal.collector import collect_seldom

from .. import document
from ..cluster import CoordinatorFailedError, started
from ..command import Rounds, Scale, WriteDocs, chosen, ended_by, some_of
from ..model import Better, Context, Json
from ..remote import RemoteFailedError
from ..report import (
    chapter_rows,
    circumstances,
    judged,
    number,
    print_profiles,
    print_table,
    target_text,
    to_json,
)
from ..runner import Result, run
from ..store.rows import TRANSACTIONS, Row, measured
from .parts import PARTS, PLAIN_GOAL_MS, TOPICS
from .topics import make_topics

ROUNDS: Final = 5
"""Rounds of each side that count."""
STORE: Final = "store"
"""The part that measures the metadata store, beside those that compare modes."""
_COLUMNS: Final = ("what", "unit", "markers", "metadata", "ratio", "goal")
_PLAIN_COLUMNS: Final = ("what", "markers ms", "metadata ms", "later by ms", "goal ms")
_METHOD: Final = """\
`make bench-metadata`: topics in [metadata mode](topics.md) beside topics with markers: one build,
one broker, one coordinator, one run. Sides run in turn, there and back, after a round that does not
count; shown are medians of {rounds} rounds, with the least and the most, and the ratio of the
medians: metadata mode's figure over that of markers, so of a rate more is better, and of a time,
of CPU and of bytes less. Transactions have a record of 100 bytes in each of their partitions.

*Decision to finished* is the time from the answered commit until a reader of the journal meets
COMMITTED; *commit to finished* begins at the call of commit, when all records are acknowledged. One
transaction at a time. *64 in flight* is one producer; the coordinator's CPU, and the bytes, are
counted until all is finished. Each partition got a few plain records before, as the first entries
of a partition's index files cost the broker more than all else. *Bytes beside the records* are what
all logs of the broker grew by, the journal's and Kafka's own too, less the batches that hold
records. *Commit to delivery* is as in the scenario `latency`. On the *sealed topic*
(`max.message.bytes=1`) transactions were written before it was sealed; with markers they would wait
until it takes records again. The *backlog* is {backlog} records in 4 partitions, in transactions of
1,000. *Plain records* come every 25 ms, with nothing beside them. The machine's load average of 15
minutes was {load:.0f} at the end: above the number of cores, others were at work too, and times
tell little beside the CPU and the bytes. The rows on the *metadata store*
([metadata](metadata.md)) compare nothing: they are what it takes by itself, in one process, of a
made-up journal of transactions that are placed."""


def _measure(
    names: Sequence[str], rounds: int, scale: float, console: Console, *, profile: bool
) -> dict[str, Result]:
    with started() as cluster:
        assert cluster.data_dir is not None, "the broker is our own"
        context = Context(
            bootstrap_servers=cluster.bootstrap_servers, scale=scale, pids=cluster.pids
        )
        console.print("topics are made and switched", style="dim")
        make_topics(cluster.bootstrap_servers, dict(TOPICS))
        return {
            name: run(
                *(PARTS[name](cluster.data_dir), context, cluster.coordinator),
                rounds=rounds,
                profile=profile,
                step=lambda what: console.print(what, style="dim"),
            )
            for name in names
        }


def plain_row(markers_ms: Sequence[float], metadata_ms: Sequence[float]) -> list[str]:
    """Returns the row on plain records, whose goal is a difference."""
    later_ms = median(metadata_ms) - median(markers_ms)
    return [
        "plain record, produced to delivered, p50",
        number(median(markers_ms)),
        number(median(metadata_ms)),
        number(later_ms),
        judged(target_text(PLAIN_GOAL_MS, Better.LOWER), later_ms <= PLAIN_GOAL_MS),
    ]


def store_row(row: Row) -> list[str]:
    """Returns the row of a figure of the metadata store, which has no side with markers."""
    return [f"metadata store, {row.what}", row.unit, "", row.value, "", row.goal]


def metadata(
    *,
    part: Annotated[list[str] | None, some_of((*PARTS, STORE))] = None,
    rounds: Rounds = ROUNDS,
    scale: Scale = 1.0,
    profile: Annotated[
        bool, typer.Option("--profile", help="Show where the CPU of metadata mode goes.")
    ] = False,
    write_docs: WriteDocs = False,
) -> None:
    """Measure topics in metadata mode beside topics with markers."""
    console = Console(width=150)
    names = chosen(part, (*PARTS, STORE))
    if write_docs and (part or scale != 1.0):
        raise typer.BadParameter("--write-docs takes a whole run: without --part and --scale")
    with ended_by(console, LocalKafkaError, CoordinatorFailedError, RemoteFailedError):
        compared = [name for name in names if name != STORE]
        found = _measure(compared, rounds, scale, console, profile=profile) if compared else {}
    plain = found.pop("plain", None)
    results = to_json(list(found.values()), rounds=rounds, scale=scale, kafka=KAFKA_VERSION)
    tables: list[Json] = []
    lines = chapter_rows(results)
    if STORE in names:
        collect_seldom()  # as a coordinator does
        count = max(1_000, int(TRANSACTIONS * scale))
        lines += [store_row(row) for row in measured(count, console.print)]
    if lines:
        tables.append({"columns": list(_COLUMNS), "rows": lines})
    if plain is not None:
        row = plain_row(*(plain.values(side) for side in plain.samples))
        tables.append({"columns": list(_PLAIN_COLUMNS), "rows": [row]})
    for table in tables:
        print_table(console, table["columns"], table["rows"])
    if profile:
        print_profiles(console, results)
    if write_docs:
        method = _METHOD.format(rounds=rounds, backlog="400,000", load=os.getloadavg()[2])
        chapter = {"title": "Metadata mode", "method": method, "tables": tables}
        document.write_chapter("metadata", {**circumstances(KAFKA_VERSION), **chapter})


if __name__ == "__main__":
    typer.run(metadata)
