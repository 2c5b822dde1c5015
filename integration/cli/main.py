"""The command `logtx`: a local cluster, a coordinator, the demo.

Expected errors end in one red sentence on stderr and status 1. Commands import what they run on
first use, so that `logtx --help` is quick.
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
from rich.console import Console

from ...journal.errors import LogtxError
from ..local.errors import LocalKafkaError
from . import admin as cli_admin
from . import checkout as cli_checkout
from . import journal as cli_journal
from . import spark as cli_spark

_EXIT_INTERRUPTED: Final = 130
_PORT_MAX: Final = 65_535

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
app.add_typer(cli_spark.spark, name="spark")
app.add_typer(cli_journal.journal, name="journal")
cli_checkout.add_chaos(app)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that were given: the others keep the defaults of their config."""
    return {name: value for name, value in options.items() if value is not None}


def data_home() -> Path:
    """Where commands keep their data: `$XDG_DATA_HOME/logtx`, by default ~/.local/share/logtx."""
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

    Start with **logtx demo**, which shows what it does on a Kafka of its own, or with
    **logtx up**, which gives you a local cluster to try your own code on. With a cluster
    of your own, all that logtx needs is **logtx coordinator**, once or several times.
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
        typer.Option(min=1, help="How many, at ports that follow each other. Of 3 any may die."),
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
        typer.Option(min=1, help="How many, at ports that follow each other; they share the work."),
    ] = 1,
    no_coordinator: Annotated[
        bool, typer.Option("--no-coordinator", help="Start Kafka only.")
    ] = False,
) -> None:
    """Run a local Kafka and a coordinator, or several of each, until Ctrl-C.

    The first start downloads Apache Kafka (44 MB, verified by hash); it needs Java 17 or later.
    Records are kept in the data directory and are there again at the next start.

    With 3 brokers each partition has 3 replicas. A broker that dies (try `kill -9`) is reported,
    and started again after 10 s; the others go on meanwhile.

    Examples:

    ```
    logtx up
    logtx up --topic orders:6 --topic payments:6
    logtx up --coordinators 3
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
def coordinator(
    *,
    bootstrap_servers: Annotated[
        str, typer.Option(help="The Kafka cluster that holds the journal, as host:port,host:port.")
    ],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where clients and other coordinators connect.")
    ] = "127.0.0.1:9095",
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="The address to tell clients. \\[default: that of --listen]"
        ),
    ] = None,
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Serve /metrics for Prometheus. \\[default: nowhere]"
        ),
    ] = None,
    journal_partitions: Annotated[
        int | None,
        typer.Option(min=1, help="Partitions of the journal, if this start creates it."),
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="Replicas of the journal, if this start creates it.")
    ] = None,
    session_grace_ms: Annotated[
        int | None,
        typer.Option(min=0, help="How long a producer may be gone before its transactions abort."),
    ] = None,
    max_timeout_ms: Annotated[
        int | None, typer.Option(min=1, help="The longest timeout that a producer may ask for.")
    ] = None,
    max_open_transactions_per_producer: Annotated[
        int | None, typer.Option(min=1, help="Transactions that one producer may have open.")
    ] = None,
    max_open_transactions: Annotated[
        int | None,
        typer.Option(min=1, help="Transactions that may be open in a partition of the journal."),
    ] = None,
    snapshot_interval_records: Annotated[
        int | None,
        typer.Option(min=1, help="Journal records from one snapshot of the state to the next."),
    ] = None,
    outcome_retention_ms: Annotated[
        int | None,
        typer.Option(min=0, help="How long transactions' outcomes can be looked up."),
    ] = None,
    retention_warn_share: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Warn when an open transaction's data is so near to its deletion."
        ),
    ] = None,
    retention_abort_share: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Abort an open transaction whose data is so near to it."),
    ] = None,
) -> None:
    """Run one coordinator until Ctrl-C or SIGTERM.

    Start as many as you like against one cluster, each with an address of its own: they share the
    partitions of the journal evenly, and each stands by for all others. When one is killed another
    goes on within a fraction of a second; on SIGTERM one gives away what it serves first, and no
    transaction is aborted. All state is in the journal, a topic of the cluster; a coordinator has
    no disk and can be replaced at any time.

    Examples:

    ```
    logtx coordinator --bootstrap-servers localhost:9092
    logtx coordinator --bootstrap-servers kafka-1:9092,kafka-2:9092 \\
        --listen 0.0.0.0:9095 --advertise coordinator-1:9095
    ```
    """
    from ...coordinator.core.decision import ShardConfig
    from ...coordinator.runtime.housekeeping import HousekeepingConfig
    from ...coordinator.server.retention import RetentionConfig
    from ...coordinator.service import CoordinatorConfig, run

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
    }
    housekeeping: dict[str, Any] = {
        "snapshot_interval_records": snapshot_interval_records,
        "outcome_retention_ms": outcome_retention_ms,
    }
    retention: dict[str, Any] = {
        "warn_share": retention_warn_share,
        "abort_share": retention_abort_share,
    }
    run(
        CoordinatorConfig(
            bootstrap_servers=bootstrap_servers,
            listen=listen,
            limits=ShardConfig(**_given(limits)),
            housekeeping=HousekeepingConfig(**_given(housekeeping)),
            retention=RetentionConfig(**_given(retention)),
            **_given(optional),
        )
    )


@app.command()
def demo(
    *,
    flights: Annotated[
        int | None, typer.Option(min=1, help="How many flights. \\[default: all 336,776]")
    ] = None,
    coordinators: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=8,  # as many as the journal has partitions: each is to get one
            help="How many coordinators share the journal. \\[default: 1, or 3 with --chaos]",
        ),
    ] = None,
    chaos: Annotated[
        bool,
        typer.Option(
            "--chaos", help="Pause workers and coordinators too, and wake them when replaced."
        ),
    ] = False,
    spark: Annotated[
        bool | None,
        typer.Option(
            "--spark/--no-spark",
            help="Book by a streaming query of Spark alone, whose driver is killed twice; or by "
            "workers alone. \\[default: by one after the other]",
        ),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Leave it running until Ctrl-C, to look around."),
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Directory for records and logs. \\[default: a temporary one]"),
    ] = None,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(help="Use this cluster; no coordinator may be running on it."),
    ] = None,
) -> None:
    """Show logtx at work: a year of New York flights, booked while processes are killed.

    Starts a Kafka of its own and publishes the flights of 2013. Three workers book each in a
    double-entry airport ledger, in transactions together with their input offsets; workers and
    the coordinator are killed with SIGKILL all along. Auditors tell whether the ledger holds
    every flight exactly once: that is the verdict, and the exit status.

    With several coordinators, what a killed one did goes on at the others. With --chaos processes
    are also paused with SIGSTOP until others have replaced them, and woken as zombies.

    Then, on another Kafka, a streaming query of Spark books the same flights, and a Spark job
    recovers, audits and exports what it left behind; the exported files are held to the flights'.
    It needs `logtx[demo,spark]` and Java, and is left out where these are missing, with several
    coordinators, and with --chaos.

    Cancelled flights count: the ledger books flights as scheduled. 20,000 flights are enough for
    every check; with fewer there are fewer kills.

    Examples:

    ```
    logtx demo
    logtx demo --flights 20000
    logtx demo --flights 20000 --no-spark --keep
    logtx demo --flights 20000 --coordinators 3 --chaos
    logtx demo --flights 20000 --spark
    ```
    """
    from ..demo.options import DemoOptions
    from ..demo.run import run_demo

    options = DemoOptions(
        flights=flights,
        coordinators=coordinators,
        chaos=chaos,
        spark=spark,
        keep=keep,
        data_dir=data_dir,
        bootstrap_servers=bootstrap_servers,
    )
    raise typer.Exit(run_demo(options))


def _on_sigterm(_signal: int, _frame: FrameType | None) -> None:
    # As Ctrl-C, so that both unwind through the same `with` blocks.
    raise KeyboardInterrupt


def main() -> None:
    """Entry point of the command; exits with its status."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    # A shell starts background jobs with SIGINT ignored, and Python leaves it so; whoever sends it
    # all the same wants a clean stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    except (LogtxError, LocalKafkaError) as error:
        sentence, *details = str(error).splitlines() or [type(error).__name__]
        console = Console(stderr=True, highlight=False)
        console.print(sentence, style="red", markup=False, soft_wrap=True)
        for line in details:
            console.print(line, style="dim", markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
