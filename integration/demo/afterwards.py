"""What comes after the verdict: the logs of what went wrong, or a cluster to look around in."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from ..kafka.child import last_lines
from .cluster import Cluster, Names
from .display import print_keep
from .processes import CoordinatorChild

_KEEP_POLL_S: Final = 0.2
_LOG_LINES: Final = 8


def print_logs(console: Console, directory: Path) -> None:
    """Show the last lines of every process's log: a temporary directory goes at the end."""
    for path in sorted(directory.glob("*.log")):
        if lines := last_lines(path, _LOG_LINES):
            text = "\n    ".join((f"{path.name}:", *lines))
            console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


def keep(
    console: Console,
    cluster: Cluster,
    coordinators: Sequence[CoordinatorChild],
    *,
    names: Names,
    groups: Sequence[str],
    directory: Path,
) -> None:
    """Leave Kafka and the coordinators running until Ctrl-C.

    Raises:
        ProcessDiedError: one of them ended by itself.
    """
    print_keep(
        console,
        servers=cluster.bootstrap_servers,
        coordinators=[coordinator.address for coordinator in coordinators],
        topics=(names.flights, names.ledger),
        groups=groups,
        directory=directory,
    )
    try:
        while True:
            cluster.check()
            for coordinator in coordinators:
                coordinator.check()
            time.sleep(_KEEP_POLL_S)
    except KeyboardInterrupt:
        console.print("Stopping.")
