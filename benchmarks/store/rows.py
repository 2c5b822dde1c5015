"""Measures the metadata store in each back end that is here, and says it in rows of a table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from logtx.coordinator.store.base import MetadataStore
from logtx.coordinator.store.rocks import RocksStore
from logtx.integration.local.etcd import INSTALL, LocalEtcd, find_etcd

from ..model import Better
from ..report import judged, number, target_text
from .measure import RANGE, WRITES, Figures, measure

TRANSACTIONS: Final = 100_000
ETCD_SHARE: Final = 20
"""How many times fewer transactions go into etcd."""
ROUNDS: Final = 50
PROJECTED_US: Final = 20.0
"""Goal: processor time for each transaction, of which one core makes 50,000 a second."""
RANGE_MS: Final = 2.0
WATCH_MS: Final = {"RocksDB": 2.0, "etcd": 5.0}


class Row(NamedTuple):
    """One figure."""

    what: str
    unit: str
    value: str
    goal: str
    """With whether it is met; "" if there is none."""


def rows_of(name: str, figures: Figures) -> list[Row]:
    """Returns the rows of one back end."""
    count = figures.transactions
    cpu_us, wall_us = median(figures.cpu_us), figures.projected_s / count * 1e6
    calm_us = quantiles(figures.cpu_us, n=10)[0] if len(figures.cpu_us) > 1 else cpu_us
    is_rocks = name == "RocksDB"
    range_cpu_ms, watch_ms = median(figures.range_cpu_ms), median(figures.watch_ms)
    projected, page = f"transactions of {WRITES} writes projected", f"a range of {RANGE:,}"
    return [
        Row(
            f"{name}: {projected}, processor time each; beside: of the calmest tenth of batches",
            "µs",
            f"{number(cpu_us)}, {1e6 / cpu_us:,.0f}/s of a core"
            f" ({number(calm_us)}, {1e6 / calm_us:,.0f}/s)",
            _goal(cpu_us, PROJECTED_US if is_rocks else None),
        ),
        Row(
            f"{name}: the same, time as it passed; beside: to decode the records",
            "µs",
            f"{number(wall_us)} (+ {number(median(figures.decoding_us))})",
            "",
        ),
        Row(
            f"{name}: {page}, processor time; beside: time, and with all of it decoded",
            "ms",
            f"{number(range_cpu_ms)} ({number(median(figures.range_ms))},"
            f" {number(median(figures.decoded_ms))})",
            _goal(range_cpu_ms, RANGE_MS if is_rocks else None),
        ),
        Row(
            f"{name}: from a write to its watcher, p50",
            "ms",
            number(watch_ms),
            _goal(watch_ms, WATCH_MS[name]),
        ),
    ]


def _goal(value: float, goal: float | None) -> str:
    if goal is None:
        return ""
    return judged(target_text(goal, Better.LOWER), value <= goal)


def measured(transactions: int, told: Callable[[str], None]) -> list[Row]:
    """Returns the figures of RocksDB, and of etcd if there is one.

    Args:
        transactions: how many are projected.
        told: is told of what is left out.
    """
    with TemporaryDirectory(prefix="logtx-bench-store-") as directory:
        rocks = asyncio.run(_measured(lambda: RocksStore(Path(directory)), transactions))
        rows = rows_of("RocksDB", rocks)
        if find_etcd() is None:
            told(f"etcd is left out: {INSTALL}")
            return rows
        etcd = LocalEtcd(Path(directory))
        etcd.start()
        try:
            etcd.await_ready()
            return [*rows, *rows_of("etcd", _of_etcd(etcd.endpoint, transactions // ETCD_SHARE))]
        finally:
            etcd.kill()


def _of_etcd(endpoint: str, transactions: int) -> Figures:
    from logtx.coordinator.store.etcd import EtcdStore

    return asyncio.run(_measured(lambda: EtcdStore([endpoint], b"bench/"), transactions))


async def _measured(make: Callable[[], MetadataStore], transactions: int) -> Figures:
    store = make()
    try:
        return await measure(store, transactions, ROUNDS)
    finally:
        await store.close()
