"""`python -m benchmarks.recovery`: how long a coordinator takes to load a long journal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer
from rich.console import Console

from logtx.integration.local.cluster import LocalKafka
from logtx.integration.local.errors import LocalKafkaError
from logtx.integration.local.jars import KAFKA_VERSION
from logtx.journal.logs.kafka import KafkaLog

from .. import document
from ..command import Repetitions, WriteDocs, ended_by
from ..failover.fleet import CoordinatorFailedError
from ..model import Json
from ..report import circumstances, judged, number, print_table
from .history import OPEN, PRODUCERS, RECORDS, History
from .measure import Bench, Loads, Stall

ROUNDS: Final = 5
"""Repetitions of each load and of the snapshot."""
GOALS_S: Final = (5.0, 0.5)
"""Longest load from the journal's start, and from a snapshot on."""
STALL_GOAL_MS: Final = 100.0
"""Longest time for which a chunk of a snapshot may hold the event loop."""
_LOAD_COLUMNS: Final = (
    "load",
    "records",
    "read s",
    "and decoded s",
    "and replayed s (worst)",
    "goal s",
    "CPU s",
    "`logtx coordinator` s",
)
_STALL_COLUMNS: Final = ("taking a snapshot", "times", "median ms", "worst ms", "goal ms")
_METHOD: Final = """\
`make bench-recovery`: a journal partition of {records} records on one broker, by {producers}
producer ids: BEGIN with a partition, ADD_PARTITIONS, for each second transaction ADD_OFFSETS,
PREPARE_COMMIT with two partitions, COMMITTED; {open} transactions are open at its end. It is
loaded by `coordinator/runtime/loading.py` from its start, then behind the snapshot that a `logtx
coordinator` has taken of it; and by that coordinator as its log says, once each. The parts are
passes of their own: reading alone, reading and decoding, all of it.

A coordinator that serves takes a snapshot in chunks, with a turn of its event loop for each. The
first holds it longest, for the rows of all transactions are copied in it; those of producers are
copied as their chunks go out."""


def _load_row(loads: Loads, goal_s: float) -> list[str]:
    return [
        loads.title,
        f"{loads.records:,}",
        number(median(loads.read_s)),
        number(median(loads.decoded_s)),
        f"{number(median(loads.loaded_s))} ({number(max(loads.loaded_s))})",
        judged(f"≤ {goal_s:g}", max(loads.loaded_s) <= goal_s),
        number(median(loads.cpu_s)),
        number(loads.process_s),
    ]


def _stall_rows(stall: Stall) -> list[list[str]]:
    rows = []
    for title, times_ms in (
        ("first chunk", stall.rows_ms),
        (f"each of the other {stall.chunks - 1}", stall.chunk_ms),
    ):
        goal = judged(f"< {STALL_GOAL_MS:g}", max(times_ms) < STALL_GOAL_MS)
        cells = (f"{len(times_ms):,}", number(median(times_ms)), number(max(times_ms)))
        rows.append([title, *cells, goal])
    return rows


def _chapter(loads: Sequence[list[str]], stalls: Sequence[list[str]], history: str) -> Json:
    return {
        **circumstances(KAFKA_VERSION),
        "title": "Recovery",
        "method": history,
        "tables": [
            {"columns": list(_LOAD_COLUMNS), "rows": list(loads)},
            {"columns": list(_STALL_COLUMNS), "rows": list(stalls)},
        ],
    }


def recovery(
    *,
    records: Annotated[int, typer.Option(min=10_000, help="Of the journal.")] = RECORDS,
    producers: Annotated[int, typer.Option(min=1, help="Producer ids.")] = PRODUCERS,
    rounds: Repetitions = ROUNDS,
    write_docs: WriteDocs = False,
) -> None:
    """Measure how long a coordinator takes to load a long journal."""
    console = Console()
    with (
        ended_by(console, LocalKafkaError, CoordinatorFailedError),
        TemporaryDirectory(prefix="logtx-recovery-") as name,
    ):
        directory = Path(name)
        with LocalKafka(directory / "kafka") as kafka:
            log = KafkaLog({"bootstrap.servers": kafka.bootstrap_servers})
            bench = Bench(log, directory, lambda what: console.print(what, style="dim"))
            bench.append(History(records, producers).values())
            cold = bench.cold(rounds)
            behind = bench.behind_snapshot(rounds)
            stall = bench.stall(rounds)
            log.close()
    loads = [_load_row(*pair) for pair in zip((cold, behind), GOALS_S, strict=True)]
    stalls = _stall_rows(stall)
    print_table(console, _LOAD_COLUMNS, loads)
    print_table(console, _STALL_COLUMNS, stalls)
    if write_docs:
        method = _METHOD.format(
            records=f"{cold.records:,}", producers=f"{producers:,}", open=f"{OPEN:,}"
        )
        document.write_chapter("recovery", _chapter(loads, stalls, method))


if __name__ == "__main__":
    typer.run(recovery)
