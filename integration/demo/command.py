"""Defines `logtx demo`: shows logtx at work on a Kafka of its own, and proves what came out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from ...journal.modes import Mode


def demo(
    *,
    flights: Annotated[
        int | None, typer.Option(min=1, help="Number of flights to book. \\[default: all 336,776]")
    ] = None,
    coordinators: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=8,  # the journal has 8 partitions: each coordinator must get one
            help="Number of coordinators that share the journal. \\[default: 1, or 3 with --chaos]",
        ),
    ] = None,
    chaos: Annotated[
        bool,
        typer.Option(
            "--chaos", help="Also pause workers and coordinators, and wake them once replaced."
        ),
    ] = False,
    spark: Annotated[
        bool | None,
        typer.Option(
            "--spark/--no-spark",
            help="Book only with a streaming query of Spark, whose driver is killed twice; or only "
            "with workers. \\[default: workers first, then Spark]",
        ),
    ] = None,
    queue: Annotated[
        bool,
        typer.Option(
            "--queue",
            help="Let six workers take the flights of a queue, and give up those without a tail "
            "number. \\[default: 10,000 flights]",
        ),
    ] = False,
    mode: Annotated[
        Mode,
        typer.Option(
            help="How transactions end in the demo's topics. With `metadata` the ledger is also "
            "moved to another topic while it is written; without Spark's part."
        ),
    ] = Mode.MARKERS,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Leave Kafka and the coordinators running until Ctrl-C, to look around."
        ),
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Directory for records and logs. \\[default: a temporary one]"),
    ] = None,
    kafka: Mapping[str, str] | None = None,
) -> None:
    """Show logtx at work: a year of New York flights, booked while processes are killed.

    The demo starts its own Kafka and publishes the flights of 2013. Three workers book each flight
    in a double-entry airport ledger, in transactions that also commit the workers' input offsets.
    All the while, workers and the coordinator are killed with SIGKILL. At the end, auditors check
    whether the ledger holds every flight exactly once: that is the verdict, and the exit status.

    With several coordinators, the others take over from one that is killed. With --chaos, processes
    are also paused with SIGSTOP until others have replaced them, and then woken as zombies.

    A second part, on another Kafka, lets a streaming query of Spark book the same flights. Then a
    Spark job recovers, audits and exports the result, and the exported files are compared with the
    flights. This part needs PySpark and Java. It is skipped if these are missing, with
    several coordinators, with --chaos, and with --mode metadata.

    With --mode metadata nothing but records is written to the topics. In the middle of the run the
    ledger is sealed, with transactions in flight that wrote to it, and goes on in another topic.

    With --queue the flights are work orders: six workers take them from a queue, in any order, and
    acknowledge them in the transactions that book them. Flights without a tail number become dead
    letters. Each flight must be in the ledger or among the dead letters, exactly once.

    If brokers are named, the demo uses that cluster instead of starting a Kafka; no coordinator may
    be running on it.

    Cancelled flights count: the ledger books flights as scheduled. 20,000 flights are enough for
    every check; with fewer flights there are fewer kills.

    Examples:

    ```
    logtx demo
    logtx demo --flights 20000
    logtx demo --flights 20000 --no-spark --keep
    logtx demo --flights 20000 --coordinators 3 --chaos
    logtx demo --flights 20000 --spark
    logtx demo --flights 20000 --mode metadata
    logtx demo --queue
    ```
    """
    from .options import DemoOptions
    from .run import run_demo

    options = DemoOptions(
        flights=flights,
        coordinators=coordinators,
        chaos=chaos,
        spark=spark,
        queue=queue,
        mode=mode,
        keep=keep,
        data_dir=data_dir,
        kafka=kafka or {},
    )
    raise typer.Exit(run_demo(options))
