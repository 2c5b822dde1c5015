"""`python -m benchmarks.spark`: what exactly-once costs in Spark, and how quick an audit is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer
from rich.console import Console

from logtx.integration.local.errors import LocalKafkaError
from logtx.integration.local.jars import KAFKA_VERSION
from logtx.journal.errors import LogtxError

from .. import document
from ..cluster import CoordinatorFailedError, cluster
from ..command import Repetitions, WriteDocs, ended_by
from ..model import Json
from ..report import circumstances, judged, number, print_table, ratio_text
from .measure import (
    BATCH_RECORDS,
    BATCHES,
    PARTITIONS,
    PLANNED_PARTITIONS,
    TRANSACTION_RECORDS,
    VALUE_BYTES,
    Audited,
    Bench,
    Compared,
    NotMeasuredError,
    Overhead,
)
from .session import MASTER, MEMORY, session_at

RECORDS: Final = 1_000_000
"""Records of each sink and source round. Fewer show the start of the tasks instead."""
AUDIT_RECORDS: Final = 10_000_000
"""Records that the audit reads. More show better whether its memory is bounded."""
ROUNDS: Final = 3
"""Rounds of each side that count."""
OVERHEAD_GOAL_MS: Final = 300.0
"""Most that a micro-batch into logtx may take longer than into Spark's own sink."""
PLANNING_GOAL_MS: Final = 2_000.0
"""Most that planning a micro-batch may take."""
AUDIT_GOAL: Final = 1_000_000.0
"""Least records per second of the audit."""
AUDIT_GOAL_GB: Final = 4.0
"""Most memory of the audit, in all processes together."""
_RATIO_COLUMNS: Final = ("what", "unit", "beside", "logtx", "ratio", "goal")
_BATCH_COLUMNS: Final = (
    "micro-batch",
    "median ms",
    "more than Spark's own sink ms",
    "goal ms",
)
_PLANNING_COLUMNS: Final = ("planning", "median ms", "goal ms")
_AUDIT_COLUMNS: Final = (
    "audit",
    "s",
    "records/s",
    "goal",
    "all processes GB",
    "goal GB",
)
_METHOD: Final = """\
`make bench-spark`: one session ({master}, {memory} for the JVM), one broker, one coordinator, all
on this machine. Sides run in turn, {rounds} times; shown are medians, and the ratio of the medians
with the least and the most of the rounds. Values of {value} bytes, {partitions} partitions.

Sinks write a batch of {partitions} tasks into a new topic, after a smaller round that does not
count; Spark's Kafka sink has its defaults. Sources read one log of committed transactions of
{transaction} records, all columns, into Spark's `noop` sink; the plain connectors deliver markers
too. The bare Python source (`benchmarks/spark/bare.py`) is what is left without transactions: a
consumer, and Arrow. Micro-batches have {batch:,} records in 2 tasks; the median of the last
{counted} of {batches} counts. Planning is `latestOffset` and `partitions` of a stream, with a
record in each partition. The audit's memory is that of this process, the JVM and all workers at
once, without the broker. The machine's load average of 15 minutes was {load:.0f} at the end: above
the number of cores, others were at work too, and only ratios tell something."""


class Part(StrEnum):
    """A part that can be measured alone."""

    SINK = "sink"
    SOURCES = "sources"
    SPREAD = "spread"
    BATCHES = "micro-batches"
    PLANNING = "planning"
    AUDIT = "audit"


def ratio_row(compared: Compared) -> list[str]:
    """Returns the table row of two compared sides."""
    return [
        compared.title,
        compared.unit,
        number(median(compared.baseline)),
        number(median(compared.candidate)),
        ratio_text(asdict(compared.ratio)),
        judged(f"≥ {compared.goal:g}", compared.ratio.median >= compared.goal),
    ]


def batch_rows(overhead: Overhead) -> list[list[str]]:
    """Returns a table row for each sink of the micro-batches."""
    kafka_ms, logtx_ms = median(overhead.kafka_ms), median(overhead.logtx_ms)
    more_ms = logtx_ms - kafka_ms
    goal = judged(f"≤ {OVERHEAD_GOAL_MS:g}", more_ms <= OVERHEAD_GOAL_MS)
    return [
        ["a micro-batch into Spark's own Kafka sink", number(kafka_ms), "", ""],
        ["a micro-batch into logtx", number(logtx_ms), f"{more_ms:.0f}", goal],
    ]


def planning_row(times_ms: Sequence[float]) -> list[str]:
    """Returns the table row of planning."""
    found_ms = median(times_ms)
    goal = judged(f"≤ {PLANNING_GOAL_MS:,.0f}", found_ms <= PLANNING_GOAL_MS)
    return [f"planning a micro-batch of {PLANNED_PARTITIONS:,} partitions", number(found_ms), goal]


def audit_row(audited: Audited) -> list[str]:
    """Returns the table row of an audit."""
    gigabytes = audited.peak_bytes / 1e9
    return [
        f"audit of {audited.records:,} records, by {audited.by}",
        number(audited.seconds),
        number(audited.records_per_s),
        judged(f"≥ {AUDIT_GOAL:,.0f}", audited.records_per_s >= AUDIT_GOAL),
        f"{gigabytes:.2f}",
        judged(f"≤ {AUDIT_GOAL_GB:g}", gigabytes <= AUDIT_GOAL_GB),
    ]


Tables = list[tuple[Sequence[str], list[list[str]]]]


def _measure(bench: Bench, parts: Sequence[Part], sizes: tuple[int, int], rounds: int) -> Tables:
    records, audit_records = sizes
    tables: Tables = []
    ratios: list[list[str]] = []
    if Part.SINK in parts:
        ratios.append(ratio_row(bench.sink(records, rounds)))
    if Part.SOURCES in parts:
        ratios += map(ratio_row, bench.sources(records, rounds))
    if Part.SPREAD in parts:
        ratios.append(ratio_row(bench.spread(records, rounds)))
    if ratios:
        tables.append((_RATIO_COLUMNS, ratios))
    if Part.BATCHES in parts:
        tables.append((_BATCH_COLUMNS, batch_rows(bench.overhead(rounds))))
    if Part.PLANNING in parts:
        tables.append((_PLANNING_COLUMNS, [planning_row(bench.planning(rounds))]))
    if Part.AUDIT in parts:
        tables.append((_AUDIT_COLUMNS, [audit_row(a) for a in bench.audits(audit_records)]))
    return tables


def _chapter(tables: Tables, rounds: int) -> Json:
    found = circumstances(KAFKA_VERSION)
    found["versions"]["PySpark"] = version("pyspark")
    return {
        **found,
        "title": "Spark",
        "method": _METHOD.format(
            master=MASTER,
            memory=MEMORY,
            rounds=rounds,
            value=VALUE_BYTES,
            partitions=PARTITIONS,
            transaction=f"{TRANSACTION_RECORDS:,}",
            batch=BATCH_RECORDS,
            batches=BATCHES,
            counted=BATCHES - BATCHES // 3,
            load=os.getloadavg()[2],
        ),
        "tables": [{"columns": list(columns), "rows": rows} for columns, rows in tables],
    }


def spark(
    *,
    only: Annotated[list[Part] | None, typer.Option(help="Measure this; may be repeated.")] = None,
    records: Annotated[int, typer.Option(min=1_000, help="Of sinks and sources.")] = RECORDS,
    audit_records: Annotated[int, typer.Option(min=1_000, help="Of the audit.")] = AUDIT_RECORDS,
    rounds: Repetitions = ROUNDS,
    write_docs: WriteDocs = False,
) -> None:
    """Measure what exactly-once costs in Spark, and how quick an audit is."""
    console = Console()
    with (
        ended_by(console, LocalKafkaError, LogtxError, CoordinatorFailedError, NotMeasuredError),
        TemporaryDirectory(prefix="logtx-spark-") as name,
        cluster() as (servers, _),
    ):
        directory = Path(name)
        with session_at(directory) as session:
            bench = Bench(
                session, servers, directory, lambda what: console.print(what, style="dim")
            )
            tables = _measure(bench, only or list(Part), (records, audit_records), rounds)
            bench.close()
    for columns, rows in tables:
        print_table(console, columns, rows)
    if write_docs:
        document.write_chapter("spark", _chapter(tables, rounds))


if __name__ == "__main__":
    typer.run(spark)
