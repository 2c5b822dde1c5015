"""Defines the command `logtx`: local cluster, coordinator, demo, and the other modules' commands.

An expected error ends as one red sentence on stderr and exit status 1. Each command imports what it
runs when it is first used, so that `logtx --help` is quick.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer
from confluent_kafka import KafkaError
from rich.console import Console

from ...journal.errors import BrokerError, LogtxError
from . import admin as cli_admin
from . import checkout as cli_checkout
from . import group as cli_group
from . import journal as cli_journal
from . import logs as cli_logs
from . import metadata as cli_metadata
from . import topics as cli_topics
from .cluster import no_kafka
from .connection import BOOTSTRAP, Kafka, name_unused, with_kafka
from .text import printable

_EXIT_INTERRUPTED: Final = 130
"""Exit status after SIGINT or SIGTERM, as shells report it: 128 + 2."""
_NO_BROKER: Final = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)
"""librdkafka's codes when no broker answers."""
_PORT_MAX: Final = 65_535
"""Highest TCP port."""

app = typer.Typer(
    name="logtx",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.add_typer(cli_admin.txn, name="txn")
app.add_typer(cli_admin.keys, name="keys")
app.add_typer(cli_topics.topics, name="topics")
app.add_typer(cli_group.group, name="group")
app.add_typer(cli_journal.journal, name="journal")
app.add_typer(cli_metadata.metadata, name="metadata")
cli_metadata.add_commands(cli_admin.txn)
cli_logs.add_commands(app)
cli_checkout.add_commands(app)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that were given. The config classes have defaults for the others."""
    return {name: value for name, value in options.items() if value is not None}


def data_home() -> Path:
    """Returns the commands' data directory: `$XDG_DATA_HOME/logtx`, else ~/.local/share/logtx."""
    base = os.environ.get("XDG_DATA_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "share"
    return root / "logtx"


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"logtx {version('logtx')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Transactions on any Kafka-compatible log.

    Start with **logtx up**, which runs a local cluster for your own code, or, in a checkout of the
    repository, with **logtx demo**, which shows logtx at work. If you have a Kafka cluster, the
    only thing to add is **logtx coordinator**, started once or several times.
    """


@app.command()
def up(
    *,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Directory for records and logs. \\[default: ~/.local/share/logtx]"),
    ] = None,
    brokers: Annotated[
        int,
        typer.Option(min=1, help="Number of brokers, at consecutive ports. Of 3, any one may die."),
    ] = 1,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the (first) broker.")] = 9092,
    coordinator_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the (first) coordinator.")
    ] = 9095,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:PARTITIONS", help="Create this topic; may be repeated."),
    ] = None,
    coordinators: Annotated[
        int,
        typer.Option(min=1, help="Number of coordinators, at consecutive ports."),
    ] = 1,
    no_coordinator: Annotated[
        bool, typer.Option("--no-coordinator", help="Start Kafka only.")
    ] = False,
    metadata_store: Annotated[
        str,
        typer.Option(
            metavar="none|rocksdb|etcd",
            help="Where coordinators keep what became of transactions: rocksdb in the data "
            "directory, or etcd, which is started if none is named (etcd:HOST:PORT).",
        ),
    ] = "none",
) -> None:
    """Run a local Kafka and a coordinator, or several of each, until Ctrl-C.

    The first start downloads Apache Kafka (44 MB, verified by hash). Kafka needs Java 17 or later.
    The data directory keeps all records, so the next start finds them again.

    With 3 brokers, each partition has 3 replicas. If a broker dies (try `kill -9`), the others go
    on; the command reports it and starts the broker again after 10 s. It starts a coordinator again
    after 2 s, but if one dies six times in a minute, the command ends.

    Examples:

    ```
    logtx up
    logtx up --topic orders:6 --topic payments:6
    logtx up --coordinators 3
    logtx up --metadata-store rocksdb
    logtx up --brokers 3 --data-dir /tmp/three
    logtx up --data-dir /tmp/try --port 19092 --coordinator-port 19095
    ```
    """
    from .up import UpOptions, parse_topic, run_up

    broker_ports = _ports(port, brokers, "--port")
    coordinator_ports = _ports(
        coordinator_port, 0 if no_coordinator else coordinators, "--coordinator-port"
    )
    if both := sorted(set(broker_ports) & set(coordinator_ports)):
        raise typer.BadParameter(
            f"port {both[0]} is that of a broker, too: brokers take {port} to {broker_ports[-1]}",
            param_hint="--coordinator-port",
        )
    run_up(
        UpOptions(
            data_dir=data_dir or data_home(),
            brokers=brokers,
            port=port,
            coordinator_ports=tuple(coordinator_ports),
            topics=tuple(parse_topic(text) for text in topic or ()),
            metadata_store=metadata_store,
        ),
        console=Console(),
    )


def _ports(first: int, count: int, option: str) -> range:
    if first + count - 1 > _PORT_MAX:
        raise typer.BadParameter(
            f"{count} ports from {first} on go beyond {_PORT_MAX}", param_hint=option
        )
    return range(first, first + count)


@app.command()
@with_kafka
def coordinator(
    *,
    kafka: Kafka,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Address to listen on, for clients and other coordinators."
        ),
    ] = "127.0.0.1:9095",
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address that clients and other coordinators reach this one at. "
            "\\[default: that of --listen]",
        ),
    ] = None,
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address to serve Prometheus metrics on, at /metrics. \\[default: nowhere]",
        ),
    ] = None,
    journal_partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Partitions of the journal, if this start creates it; fixed from then on. "
            "\\[default: 8]",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Replicas of logtx's own topics, if this start creates them; existing topics must "
            "have at least as many. \\[default: the brokers' default]",
        ),
    ] = None,
    session_grace_ms: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="How long a producer may be disconnected before its open transactions are "
            "aborted. \\[default: 3000]",
        ),
    ] = None,
    max_timeout_ms: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Longest transaction.timeout.ms that a producer may ask for. "
            "\\[default: 900000, 15 minutes]",
        ),
    ] = None,
    max_open_transactions_per_producer: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Transactions that one producer may have open. Beyond that its attempts to begin "
            "another are refused until one ends. \\[default: 10000]",
        ),
    ] = None,
    max_open_transactions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Transactions that all producers of a journal partition together may have open. "
            "\\[default: 100000]",
        ),
    ] = None,
    max_added_ranges: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Ranges (one branch in one data partition) that the unfinished transactions of a "
            "journal partition may name before their commits, 32 bytes of memory each. Only "
            "commits that one journal record can't take need them. \\[default: 4000000]",
        ),
    ] = None,
    producer_retention_hours: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Hours of service after which a producer that nobody used is forgotten; one "
            r"without a transactional.id after an hour. \[default: 168, 7 days]",
        ),
    ] = None,
    group_retention_hours: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Hours of service after which the offsets of a consumer group without members, "
            r"which nobody moved or claimed, are forgotten. \[default: 720, 30 days]",
        ),
    ] = None,
    snapshot_interval_records: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Journal records between two snapshots of a journal partition. A coordinator that "
            "starts has to replay about as many. \\[default: 100000]",
        ),
    ] = None,
    outcome_retention_ms: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="How long after its BEGIN a transaction's outcome can be looked up, at least. "
            "\\[default: 604800000, 7 days]",
        ),
    ] = None,
    retention_warn_share: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Log a warning when an open transaction's data has come this share of the way to "
            "its deletion by the topic's retention. \\[default: 0.5]",
        ),
    ] = None,
    retention_abort_share: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Abort an open transaction when its data has come this share of the way to its "
            "deletion by the topic's retention. \\[default: 0.8]",
        ),
    ] = None,
    metadata_store: Annotated[
        str | None,
        typer.Option(
            metavar="none|rocksdb:DIR|etcd:HOST:PORT,…",
            help="Where to keep what became of each transaction, so that it can be asked for: a "
            "directory of this coordinator's own, or an etcd for all. \\[default: none]",
        ),
    ] = None,
    metadata_history_ms: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How long after its decision a finished transaction is kept there at most. "
            "\\[default: in a directory, as long as its data may be read; in etcd 600000]",
        ),
    ] = None,
    metadata_header_retention_ms: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="How long after its decision a finished transaction is kept there at least. "
            "\\[default: 60000]",
        ),
    ] = None,
    metadata_sweep_interval_ms: Annotated[
        int | None,
        typer.Option(
            min=100, help="Pause between two searches for what can go there. \\[default: 60000]"
        ),
    ] = None,
) -> None:
    """Run one coordinator until Ctrl-C or SIGTERM.

    Start as many as you like on one cluster, each with its own address. They share the partitions
    of the journal evenly, and each stands by for all others. When one is killed, the others take
    over within a fraction of a second. On SIGTERM a coordinator first gives its partitions to the
    others, so that no transaction is aborted. All state is in the journal, a topic of the cluster:
    a coordinator needs no disk and can be replaced at any time.

    Examples:

    ```
    logtx coordinator --bootstrap-servers localhost:9092
    logtx coordinator --bootstrap-servers kafka-1:9092,kafka-2:9092 \\
        --listen 0.0.0.0:9095 --advertise coordinator-1:9095
    logtx coordinator --config /etc/logtx.toml
    ```
    """
    from ...coordinator.core.decision import ShardConfig
    from ...coordinator.runtime.housekeeping import HousekeepingConfig
    from ...coordinator.server.retention import RetentionConfig
    from ...coordinator.service import CoordinatorConfig, run
    from ...coordinator.store.opening import MetadataConfig

    optional: dict[str, Any] = {
        "advertised": advertise,
        "metrics_listen": metrics_listen,
        "journal_partitions": journal_partitions,
        "replication_factor": replication_factor,
    }
    limits: dict[str, Any] = {
        "session_grace_ms": session_grace_ms,
        "max_timeout_ms": max_timeout_ms,
        "max_open_transactions_per_producer": max_open_transactions_per_producer,
        "max_open_transactions": max_open_transactions,
        "max_added_ranges": max_added_ranges,
        "producer_retention_hours": producer_retention_hours,
        "group_retention_hours": group_retention_hours,
    }
    housekeeping: dict[str, Any] = {
        "snapshot_interval_records": snapshot_interval_records,
        "outcome_retention_ms": outcome_retention_ms,
    }
    retention: dict[str, Any] = {
        "warn_share": retention_warn_share,
        "abort_share": retention_abort_share,
    }
    metadata: dict[str, Any] = {
        "store": metadata_store,
        "history_ms": metadata_history_ms,
        "header_retention_ms": metadata_header_retention_ms,
        "sweep_interval_ms": metadata_sweep_interval_ms,
    }
    name_unused(kafka)
    config = CoordinatorConfig(
        bootstrap_servers=kafka[BOOTSTRAP],
        client={name: value for name, value in kafka.items() if name != BOOTSTRAP},
        listen=listen,
        limits=ShardConfig(**_given(limits)),
        housekeeping=HousekeepingConfig(**_given(housekeeping)),
        retention=RetentionConfig(**_given(retention)),
        metadata=MetadataConfig(**_given(metadata)),
        **_given(optional),
    )
    try:
        run(config)
    except BrokerError as error:
        if error.args[0].code() in _NO_BROKER:
            raise no_kafka(kafka[BOOTSTRAP], error) from error
        raise


def _on_sigterm(_signal: int, _frame: FrameType | None) -> None:
    # Same as Ctrl-C, so that both unwind through the same `with` blocks.
    raise KeyboardInterrupt


def main() -> None:
    """Runs the command, and exits with its status."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    # A shell starts background jobs with SIGINT ignored, and Python keeps that. A SIGINT that is
    # sent all the same asks for a clean stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    except LogtxError as error:
        sentence, *details = str(error).splitlines() or [type(error).__name__]
        console = Console(stderr=True, highlight=False)
        console.print(printable(sentence), style="red", markup=False, soft_wrap=True)
        for line in details:
            console.print(printable(line), style="dim", markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
