"""Defines the command `logtx`: local cluster, coordinator, demo, and the other modules' commands.

An expected error ends as one red sentence on stderr and exit status 1. Each command imports what it
runs when it is first used, so that `logtx --help` is quick.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer
from rich.console import Console

from ...journal.errors import LogtxError
from . import admin as cli_admin
from . import checkout as cli_checkout
from . import coordinator as cli_coordinator
from . import group as cli_group
from . import journal as cli_journal
from . import logs as cli_logs
from . import metadata as cli_metadata
from . import sidecar as cli_sidecar
from . import subscription as cli_subscription
from . import topics as cli_topics
from .text import printable

_EXIT_INTERRUPTED: Final = 130
"""Exit status after SIGINT or SIGTERM, as shells report it: 128 + 2."""
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
app.add_typer(cli_sidecar.sidecar, name="sidecar")
app.add_typer(cli_subscription.subscription, name="subscription")
cli_metadata.add_commands(cli_admin.txn)
cli_logs.add_commands(app)
cli_checkout.add_commands(app)


def data_home() -> Path:
    """Returns the commands' data directory: `$XDG_DATA_HOME/logtx`, else ~/.local/share/logtx."""
    base = os.environ.get("XDG_DATA_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "share"
    return root / "logtx"


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        from ...journal.native.loading import described

        typer.echo(f"logtx {version('logtx')} ({described()})")
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


_DataDir = Annotated[
    Path | None,
    typer.Option(help="Directory for records and logs. \\[default: ~/.local/share/logtx]"),
]
_Brokers = Annotated[
    int,
    typer.Option(min=1, help="Number of brokers, at consecutive ports. Of 3, any one may die."),
]
_Port = Annotated[int, typer.Option(min=1, max=65535, help="Port of the (first) broker.")]
_CoordinatorPort = Annotated[
    int, typer.Option(min=1, max=65535, help="Port of the (first) coordinator.")
]
_Topic = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME:PARTITIONS", help="Create this topic; may be repeated."),
]
_Coordinators = Annotated[
    int,
    typer.Option(min=1, help="Number of coordinators, at consecutive ports."),
]
_NoCoordinator = Annotated[bool, typer.Option("--no-coordinator", help="Start Kafka only.")]
_MetadataStore = Annotated[
    str,
    typer.Option(
        metavar="none|rocksdb|etcd",
        help="Where coordinators keep what became of transactions: rocksdb in the data "
        "directory, or etcd, which is started if none is named (etcd:HOST:PORT).",
    ),
]


@app.command()
def up(
    *,
    data_dir: _DataDir = None,
    brokers: _Brokers = 1,
    port: _Port = 9092,
    coordinator_port: _CoordinatorPort = 9095,
    topic: _Topic = None,
    coordinators: _Coordinators = 1,
    no_coordinator: _NoCoordinator = False,
    metadata_store: _MetadataStore = "none",
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


cli_coordinator.add_commands(app)


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
