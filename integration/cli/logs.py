"""`logtx audit` and `logtx export`: read whole logs, by processes of this machine or by Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import Progress

from ...journal.errors import ConfigError
from ...journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from ..spark.options import prefixed
from .asking import AsJson
from .cluster import open_cluster
from .connection import BOOTSTRAP, Kafka, with_kafka
from .text import print_json, print_rows

if TYPE_CHECKING:
    from ..inspect.checks import Report

EXIT_NOT_CLEAN: Final = 4
"""Exit status: the audit found a broken promise."""
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Environment variable of a Python that ``spark-submit`` has started."""

Memory = Annotated[str, typer.Option(help="Memory of the driver's JVM, with Spark.")]


@contextmanager
def _session(master: str | None, memory: str) -> Iterator[Any]:
    from ..spark.session import close_keeper, start_session

    session = start_session(master, memory)
    try:
        yield session
    finally:
        session.stop()
        close_keeper()


def add_commands(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("audit")(run_audit)
    app.command("export")(run_export)


@with_kafka
def run_audit(
    *,
    kafka: Kafka,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Check only this data topic; may be repeated. \\[default: all]"),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Processes to read with. \\[default: one for each CPU]"),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(
            help="Read with Spark instead, as an application of this master URL: for logs that one "
            "machine can't read. Without it a job of spark-submit reads with Spark, too."
        ),
    ] = None,
    driver_memory: Memory = "1g",
    as_json: AsJson = False,
) -> None:
    """Check whole logs: compare the journal's decisions with the records in data partitions.

    Others may write during the audit. Exit status 4 means that a promise was broken. Transactions
    below the start of a trimmed journal, and data that retention deleted, are reported as
    unverifiable.

    Examples:

    ```
    logtx audit --bootstrap-servers localhost:9092
    logtx audit --bootstrap-servers localhost:9092 --topic airport_ledger --json
    logtx audit --bootstrap-servers localhost:9092 --master 'local[*]'
    ```
    """
    if master is not None and processes is not None:
        raise ConfigError("--processes and --master exclude each other: Spark has executors")
    if master is not None or (processes is None and _SUBMITTED in os.environ):
        report = _audit_by_spark(kafka, topic, master, driver_memory)
    else:
        report = _audit_here(kafka, topic, processes)
    if as_json:
        print_json(report.as_dict())
    else:
        _print_report(report)
    if not report.clean:
        raise typer.Exit(EXIT_NOT_CLEAN)


def _audit_by_spark(
    kafka: Kafka, topics: list[str] | None, master: str | None, driver_memory: str
) -> Report:
    from ..spark import audit

    with open_cluster(kafka), _session(master, driver_memory) as session:
        return audit(
            session, bootstrap_servers=kafka[BOOTSTRAP], topics=topics or None, **prefixed(kafka)
        )


def _audit_here(kafka: Kafka, topics: list[str] | None, processes: int | None) -> Report:
    from ..inspect.processes import audit

    console = Console(stderr=True)
    with (
        open_cluster(kafka),
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        bar = progress.add_task("records", total=None)
        return audit(
            kafka,
            topics or None,
            processes=processes,
            begun=lambda total: progress.update(bar, total=total),
            advanced=lambda count: progress.advance(bar, count),
        )


def _print_report(report: Report) -> None:
    console = Console(highlight=False)
    counted = f"{report.transactions:,} transactions, {report.markers:,} markers"
    console.print(f"{counted}, {report.records:,} records of transactions")
    if report.counts:
        rows = [(str(s), c, n) for (s, c), n in sorted(report.counts.items())]
        print_rows(("severity", "check", "findings"), rows)
        console.print()
        details = [
            (str(f.severity), f.check, f.topic, f.partition, f.txid, f.count, f.detail)
            for f in report.findings
        ]
        columns = ("severity", "check", "topic", "partition", "txid", "count", "detail")
        print_rows(columns, details)
    console.print("clean" if report.clean else "not clean: a promise was broken")


@with_kafka
def run_export(
    *,
    kafka: Kafka,
    topic: Annotated[
        list[str], typer.Option(help="Topic to export; with --path, may be repeated.")
    ],
    path: Annotated[
        str | None,
        typer.Option(
            help="Export to Parquet in this directory, on any file system that Spark can write."
        ),
    ] = None,
    to_topic: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="Export to this compacted topic, which is made if there is none. Needs no Spark.",
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="With --to-topic: begin at the topic's start again.")
    ] = False,
    transaction_group: Annotated[
        str, typer.Option(help="With --path: transaction group whose transactions are exported.")
    ] = DEFAULT_TRANSACTION_GROUP,
    master: Annotated[
        str | None,
        typer.Option(
            help="With --path: Spark's master URL. \\[default: what spark-submit or"
            " spark-defaults.conf says, else local\\[*]]"
        ),
    ] = None,
    driver_memory: Memory = "1g",
    as_json: AsJson = False,
) -> None:
    """Export committed records, from where the last run ended: to Parquet, or a compacted topic.

    To Parquet go transactions in commit order; a run appears in the directory whole or not at all.
    To a compacted topic go the committed records of one topic in the order in which consumers get
    them, plain ones too, without logtx's headers: it keeps the latest committed value of each key.
    If a run fails, run it again.

    Examples:

    ```
    logtx export --bootstrap-servers localhost:9092 --topic airport_ledger --path ledger
    logtx export --bootstrap-servers localhost:9092 --topic balances --to-topic balances-latest
    ```
    """
    if to_topic is not None and path is None:
        _export_to_topic(kafka, topic, to_topic, restart=restart, as_json=as_json)
        return
    if path is None or to_topic is not None:
        raise ConfigError("give --path, or --to-topic")
    if restart:
        raise ConfigError("--restart belongs to --to-topic: export to another path instead")
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
        print_json(asdict(done))
    elif done.records or done.to_sequence > done.from_sequence:
        typer.echo(f"{done.records:,} records in {done.path}")
    else:
        typer.echo(f"nothing new since {done.path}")


def _export_to_topic(
    kafka: Kafka, topics: list[str], to_topic: str, *, restart: bool, as_json: bool
) -> None:
    from ..spark.compacting import export_to_topic

    if len(topics) != 1:
        raise ConfigError("a compacted topic takes one topic: give one --topic")
    with open_cluster(kafka):
        done = export_to_topic(
            topic=topics[0],
            to_topic=to_topic,
            bootstrap_servers=kafka[BOOTSTRAP],
            restart=restart,
            **prefixed(kafka),
        )
    if as_json:
        print_json(asdict(done))
    else:
        typer.echo(f"{done.records:,} records from {done.topic} to {done.to_topic}")
