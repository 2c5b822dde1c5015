"""`logtx spark`: committed input offsets, recovery from them, audit and export.

`iov` reads only the log, `recover` also asks a coordinator; `audit` and `export` run a Spark
application.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from ...journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from ..spark.options import prefixed
from .cluster import open_cluster
from .connection import BOOTSTRAP, Kafka, with_kafka
from .text import printable

if TYPE_CHECKING:
    from ..inspect.checks import Report

EXIT_NOT_CLEAN: Final = 4
"""Exit status: the audit found a broken promise."""
_SHOWN_MAX: Final = 50
"""Most rows of a table; `--json` shows all."""

spark = typer.Typer(
    no_args_is_help=True,
    help="For Spark: show committed input offsets, audit logs, export to Parquet.",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Master = Annotated[
    str | None,
    typer.Option(
        help="Spark's master URL. \\[default: what spark-submit or spark-defaults.conf says, else"
        " local\\[*]]"
    ),
]
Memory = Annotated[str, typer.Option(help="Memory of the driver's JVM.")]
Group = Annotated[str | None, typer.Option(help="Show only this consumer group.")]


@contextmanager
def _session(master: str | None, memory: str) -> Iterator[Any]:
    from ..spark.session import close_keeper, start_session

    session = start_session(master, memory)
    try:
        yield session
    finally:
        session.stop()
        close_keeper()


def _print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows[:_SHOWN_MAX]:
        table.add_row(*("" if value is None else printable(str(value)) for value in row))
    console = Console(highlight=False)
    console.print(table)
    if len(rows) > _SHOWN_MAX:
        console.print(f"… and {len(rows) - _SHOWN_MAX} more; --json shows all")


def _time(wall_ms: int | None) -> str | None:
    if wall_ms is None:
        return None
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")


@spark.command("iov")
@with_kafka
def show_iovs(
    *,
    kafka: Kafka,
    group: Group = None,
    history: Annotated[
        bool,
        typer.Option(
            "--history", help="Show every committed step, as far as the journal goes back."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the committed input offsets of consumer groups, and how far they are behind.

    A streaming query appears as a group `spark-<query id>`, with `micro-batch` as its topic and the
    last committed batch as its offset.

    Examples:

    ```
    logtx spark iov --bootstrap-servers localhost:9092
    logtx spark iov --bootstrap-servers localhost:9092 --group ledger --history
    ```
    """
    from ..inspect.committed_offsets import iov_rows, step_rows
    from ..inspect.rows import IovRow, StepRow

    with open_cluster(kafka) as log:
        rows: list[IovRow] | list[StepRow]
        rows = list(step_rows(log, group)) if history else iov_rows(log, group)
    if as_json:
        _print_json([row._asdict() for row in rows])
        return
    fields = StepRow._fields if history else IovRow._fields
    shown = [row._replace(committed_ms=_time(row.committed_ms)) for row in rows]  # type: ignore[arg-type]
    _print_table([name.removesuffix("_ms") for name in fields], shown)


@spark.command("recover")
@with_kafka
def show_recovery(
    *,
    kafka: Kafka,
    group: Annotated[str, typer.Option(help="The consumer group to continue.")],
    topic: Annotated[list[str], typer.Option(help="Input topic of the group; may be repeated.")],
    as_json: AsJson = False,
) -> None:
    """Show the offsets at which logtx.spark.resume will continue a consumer group.

    Waits while an unfinished transaction may still move the group's offsets. Fails if that takes
    longer than 30 seconds: then either its producer is alive, or no coordinator is.

    Examples:

    ```
    logtx spark recover --bootstrap-servers localhost:9092 --group ledger --topic flights
    ```
    """
    from ..spark.planning import Planner, SourceOptions

    named = {
        "subscribe": ",".join(topic),
        "group": group,
        **prefixed(kafka),
    }
    with open_cluster(kafka) as log:
        planner = Planner(log, SourceOptions.parse(named))
        planner.require_group()
        start, ends = planner.start("earliest"), planner.end()
    rows = [
        (*key, None if spot.fresh else spot.o2, spot.o2, ends[key], max(ends[key] - spot.o2, 0))
        for key, spot in sorted(start.items())
    ]
    columns = ("topic", "partition", "committed", "from_offset", "to_offset", "lag")
    if as_json:
        _print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        _print_table(columns, rows)


@spark.command("audit")
@with_kafka
def run_audit_job(
    *,
    kafka: Kafka,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Check only this data topic; may be repeated. \\[default: all]"),
    ] = None,
    master: Master = None,
    driver_memory: Memory = "1g",
    as_json: AsJson = False,
) -> None:
    """Check whole logs: compare the journal's decisions with the records in data partitions.

    Others may write during the audit. Exit status 4 means that a promise was broken. Transactions
    below the start of a trimmed journal, and data that retention deleted, are reported as
    unverifiable.

    Examples:

    ```
    logtx spark audit --bootstrap-servers localhost:9092
    logtx spark audit --bootstrap-servers localhost:9092 --topic airport_ledger --json
    ```
    """
    from ..spark import audit

    with open_cluster(kafka), _session(master, driver_memory) as session:
        report = audit(
            session,
            bootstrap_servers=kafka[BOOTSTRAP],
            topics=topic or None,
            **prefixed(kafka),
        )
    if as_json:
        _print_json(report.as_dict())
    else:
        _print_report(report)
    if not report.clean:
        raise typer.Exit(EXIT_NOT_CLEAN)


def _print_report(report: Report) -> None:
    console = Console(highlight=False)
    counted = f"{report.transactions:,} transactions, {report.markers:,} markers"
    console.print(f"{counted}, {report.records:,} records of transactions")
    if report.counts:
        rows = [(str(s), c, n) for (s, c), n in sorted(report.counts.items())]
        _print_table(("severity", "check", "findings"), rows)
        console.print()
        details = [
            (str(f.severity), f.check, f.topic, f.partition, f.txid, f.count, f.detail)
            for f in report.findings
        ]
        columns = ("severity", "check", "topic", "partition", "txid", "count", "detail")
        _print_table(columns, details)
    console.print("clean" if report.clean else "not clean: a promise was broken")


@spark.command("export")
@with_kafka
def run_export(
    *,
    kafka: Kafka,
    topic: Annotated[list[str], typer.Option(help="Topic to export; may be repeated.")],
    path: Annotated[
        str, typer.Option(help="Directory to export to, on any file system that Spark can write.")
    ],
    transaction_group: Annotated[
        str, typer.Option(help="Transaction group whose transactions are exported.")
    ] = DEFAULT_TRANSACTION_GROUP,
    master: Master = None,
    driver_memory: Memory = "1g",
    as_json: AsJson = False,
) -> None:
    """Export committed transactions to Parquet in commit order, from where the last run ended.

    A run appears in the directory whole or not at all. If it fails, run it again.

    Examples:

    ```
    logtx spark export --bootstrap-servers localhost:9092 --topic airport_ledger --path ledger
    ```
    """
    from ..spark import export

    with open_cluster(kafka), _session(master, driver_memory) as session:
        done = export(
            session,
            subscribe=",".join(topic),
            bootstrap_servers=kafka[BOOTSTRAP],
            path=path,
            transaction_group=transaction_group,
            **prefixed(kafka),
        )
    if as_json:
        _print_json({name: getattr(done, name) for name in done.__dataclass_fields__})
    elif done.records or done.to_sequence > done.from_sequence:
        typer.echo(f"{done.records:,} records in {done.path}")
    else:
        typer.echo(f"nothing new since {done.path}")
