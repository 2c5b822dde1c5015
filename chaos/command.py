"""`logtx chaos`: attack a cluster of its own, and judge what its clients saw."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import SECONDS_MIN, Metadata, System


def chaos(
    *,
    seconds: Annotated[float, typer.Option(min=SECONDS_MIN, help="How long the load lasts.")] = 300,
    commits: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The load ends at so many commits; if there are fewer after --seconds, the run "
            "fails. \\[default: it lasts for --seconds]",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="What the faults are drawn from.")] = 1,
    system: Annotated[
        System, typer.Option(help="Whose transactions: logtx's, or Kafka's own as a comparison.")
    ] = System.LOGTX,
    rate: Annotated[
        float, typer.Option(min=1, help="Transactions a second, of all producers together.")
    ] = 200,
    mild: Annotated[
        bool, typer.Option("--mild", help="Few and short faults: for a run of seconds.")
    ] = False,
    upgrade_from: Annotated[
        str | None,
        typer.Option(
            metavar="REF",
            help="Start coordinators of this commit or tag, and replace them by today's under "
            "load. \\[default: all are today's]",
        ),
    ] = None,
    spark: Annotated[
        bool,
        typer.Option(
            "--spark",
            help="One more worker is a Spark query, whose driver is killed and replaced, and whose "
            "checkpoint is restored. Takes a gigabyte of memory and a core.",
        ),
    ] = False,
    metadata: Annotated[
        Metadata,
        typer.Option(
            help="Topics that begin in metadata mode; unless it is none, an operator switches them "
            "back and forth, and topics are sealed for a while.",
        ),
    ] = Metadata.NONE,
    sidecar: Annotated[
        bool,
        typer.Option(
            "--sidecar",
            help="Some transactions write to sidecars. With --metadata, they are placed, too.",
        ),
    ] = False,
    queue: Annotated[
        bool,
        typer.Option("--queue", help="Workers of a queue work off the workers' input, too."),
    ] = False,
    native: Annotated[
        bool,
        typer.Option(
            "--native",
            help="Half of the clients take the C extension: each process in every second life. "
            "By default all do, unless LOGTX_NATIVE is 0.",
        ),
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Run directory. \\[default: a temporary one, kept if there is a find]"),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run nothing; check this run directory again."),
    ] = None,
) -> None:
    """Attack a cluster of three brokers, and check what its clients were told and given.

    Starts three brokers and three coordinators. Producers append unique values in transactions,
    workers process them exactly once, consumers read along, while processes are killed, paused,
    interrupted, restarted and replaced, connections cut, stalled and delayed, a broker's disk is
    full, old records are trimmed, topics grow, and one is deleted and made anew: by a plan drawn
    from the seed. Everything that happened is written down, and a checker that shares
    no code with logtx looks for every anomaly that it has a name for.

    The exit status is the verdict: 0 if nothing was found. Starting, draining, reading everything
    and checking take a minute or more on top of the load.

    Examples:

    ```
    logtx chaos
    logtx chaos --seconds 60 --seed 7
    logtx chaos --seconds 1200 --commits 20000
    logtx chaos --seconds 60 --system kafka
    logtx chaos --seconds 60 --upgrade-from HEAD~10
    logtx chaos --seconds 120 --rate 50 --spark
    logtx chaos --seconds 120 --metadata half
    logtx chaos --seconds 60 --sidecar
    logtx chaos --seconds 60 --queue
    logtx chaos --seconds 60 --native
    logtx chaos --check /tmp/logtx-chaos-x1y2
    ```
    """
    from .options import ChaosOptions
    from .run import check_again, run_chaos

    if check is not None:
        raise typer.Exit(check_again(check))
    options = ChaosOptions(
        seconds=seconds,
        commits=commits,
        seed=seed,
        system=system,
        rate=rate,
        mild=mild,
        data_dir=data_dir,
        upgrade_from=upgrade_from,
        spark=spark,
        metadata=metadata,
        sidecar=sidecar,
        queue=queue,
        native=native,
    )
    raise typer.Exit(run_chaos(options))
