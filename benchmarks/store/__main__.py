"""`python -m benchmarks.store`: what the metadata store takes in RocksDB, and in etcd."""

from __future__ import annotations

import asyncio
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer
from rich.console import Console

from logtx.coordinator.store.rocks import RocksStore
from logtx.integration.local.etcd import INSTALL, LocalEtcd, find_etcd
from logtx.journal.collector import collect_seldom

from ..report import number, print_table
from .measure import RANGE, WRITES, Figures, measure

TRANSACTIONS: Final = 100_000
ETCD_SHARE: Final = 20
"""How many times fewer transactions go into etcd."""
ROUNDS: Final = 50
_COLUMNS: Final = ("store", "figure", "median", "goal")


def _rows(
    name: str, figures: Figures, count: int, *, goals: tuple[str, str, str]
) -> list[list[str]]:
    per_s = count / figures.projected_s
    cpu_us = figures.cpu_s / count * 1e6
    projected = f"{per_s:,.0f}/s, {number(cpu_us)} µs of CPU each"
    decoded = (
        f"{number(median(figures.range_ms))} ms ({number(median(figures.decoded_ms))} decoded)"
    )
    return [
        [name, f"transactions of {WRITES} writes projected", projected, goals[0]],
        [name, f"a range of {RANGE:,}", decoded, goals[1]],
        [name, "from a write to its watcher", f"{number(median(figures.watch_ms))} ms", goals[2]],
    ]


async def _rocks(directory: Path, count: int) -> Figures:
    store = RocksStore(directory)
    try:
        return await measure(store, count, ROUNDS)
    finally:
        await store.close()


async def _etcd(endpoint: str, count: int) -> Figures:
    from logtx.coordinator.store.etcd import EtcdStore

    store = EtcdStore([endpoint])
    try:
        return await measure(store, count, ROUNDS)
    finally:
        await store.close()


def main(
    transactions: Annotated[
        int, typer.Option(min=1_000, help="Transactions that are projected.")
    ] = TRANSACTIONS,
) -> None:
    """Measure projecting, ranges and watches of the metadata store."""
    collect_seldom()  # as a coordinator does
    console = Console()
    rows: list[list[str]] = []
    with TemporaryDirectory(prefix="logtx-bench-store-") as directory:
        figures = asyncio.run(_rocks(Path(directory), transactions))
        goals = ("≥ 50,000/s", "≤ 2 ms", "≤ 2 ms")
        rows += _rows("RocksDB", figures, transactions, goals=goals)
        if find_etcd() is None:
            console.print(f"etcd is left out: {INSTALL}")
        else:
            etcd = LocalEtcd(Path(directory))
            etcd.start()
            try:
                etcd.await_ready()
                count = transactions // ETCD_SHARE
                figures = asyncio.run(_etcd(etcd.endpoint, count))
                rows += _rows("etcd", figures, count, goals=("none", "none", "≤ 5 ms"))
            finally:
                etcd.kill()
    print_table(console, _COLUMNS, rows, "The metadata store")


if __name__ == "__main__":
    typer.run(main)
