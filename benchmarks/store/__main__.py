"""`python -m benchmarks.store`: what the metadata store takes in RocksDB, and in etcd."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.console import Console

from logtx.journal.collector import collect_seldom

from ..report import print_table
from .rows import TRANSACTIONS, measured

_COLUMNS: Final = ("what", "unit", "figure", "goal")


def main(
    transactions: Annotated[
        int, typer.Option(min=1_000, help="Transactions that are projected.")
    ] = TRANSACTIONS,
) -> None:
    """Measure projecting, ranges and watches of the metadata store.

    The load of the machine changes times, and processor times less.
    """
    collect_seldom()  # as a coordinator does
    console = Console(width=150)
    print_table(console, _COLUMNS, measured(transactions, console.print), "The metadata store")


if __name__ == "__main__":
    typer.run(main)
