"""`python -m benchmarks.spill`: measures transactions larger than memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import Progress

from logtx.integration.local.errors import LocalKafkaError
from logtx.integration.local.jars import KAFKA_VERSION
from logtx.journal.errors import LogtxError

from .. import document
from ..cluster import CoordinatorFailedError, cluster
from ..command import Repetitions, ended_by
from ..model import Json
from ..report import circumstances, judged, number, print_table, ratio_text, spread
from ..stats import Spread, ratio
from .measure import (
    GB,
    MEMORY_MAX_BYTES,
    UNLIMITED_BYTES,
    Bench,
    Large,
    NotEnoughDiskError,
    check_room,
)
from .payload import Payload
from .plot import MB, draw
from .process import ReaderFailedError

RECORD_BYTES: Final = 1_000
"""Size of a value of the large transaction."""
RATIO_RECORD_BYTES: Final = (100, 1_000)
"""Sizes of the values read in memory and spilled in turn."""
RSS_GOAL_BYTES: Final = 300 * MB
"""Most resident memory of the large transaction's consumer."""
RATIO_GOAL: Final = 0.5
"""Least rate when spilled, as a share of the rate in memory."""
ROUNDS: Final = 3
"""Rounds in memory and spilled."""
PLOT: Final = document.DOCS / "spill-memory.png"
_LARGE_COLUMNS: Final = ("one transaction", "measured", "goal")
_RATIO_COLUMNS: Final = ("records/s, median (least to most)", "memory", "spilled", "ratio", "goal")
_METHOD: Final = f"""\
`make bench-spill`: one transaction of {{gigabytes:g}} GB, in records of {RECORD_BYTES:,} bytes to
one partition, is written and left open. A consumer with the defaults, so with 64 MiB of
`pending.memory.max.bytes`, reads until all of it is pending; then it is committed and delivered.
The consumer is a process of its own, whose resident memory and spill directory are looked at ten
times a second; the peak is the kernel's count. What is delivered is compared with what was written
by a digest of all values, in order.

![Memory and disk over time](spill-memory.png)

Then a committed transaction of {{megabytes}} MB is read from the broker, each value and its
headers, by new processes in turn: one holds all of it in memory, the next spills what is beyond
64 MiB. Measured from the assignment to the last record, {{rounds}} rounds of each. Under that the
same for the buffer alone, without a broker and librdkafka: feeding it in batches of 1,000, and
taking all out."""
_FAILURES: Final = (
    LocalKafkaError,
    CoordinatorFailedError,
    NotEnoughDiskError,
    ReaderFailedError,
    LogtxError,
)


def _large_rows(large: Large) -> list[list[str]]:
    peak = large.peak_rss_bytes
    return [
        ["records", f"{large.records:,}", ""],
        ["payload, GB", f"{large.payload_bytes / GB:.2f}", ""],
        ["peak resident memory, MB", number(peak / MB), judged("< 300", peak < RSS_GOAL_BYTES)],
        ["spilled, GB", f"{large.spilled_bytes / GB:.2f}", ""],
        ["disk at most, GB", f"{large.most_disk_bytes / GB:.2f}", ""],
        [
            "disk left, bytes",
            f"{large.left_disk_bytes:,}",
            judged("0", not large.left_disk_bytes),
        ],
        ["whole and in order", "yes" if large.whole else "no", judged("yes", large.whole)],
        ["pending after, s", number(large.committed_s), ""],
        [
            "delivered in, s",
            number(large.samples.at_s[-1] - large.first_s),
            "",
        ],
    ]


def _ratio_row(pair: Pair) -> list[str]:
    memory, spilled = pair.rates()
    found = ratio(spilled, memory)
    goal = judged(f"≥ {RATIO_GOAL:g}", found.median >= RATIO_GOAL)
    rates = [spread(asdict(Spread.of(rates))) for rates in (memory, spilled)]
    return [pair.title, *rates, ratio_text(asdict(found)), goal]


@dataclass(slots=True)
class Pair:
    """Rounds of one transaction, read in memory and spilled in turn."""

    title: str
    payload: Payload
    measure: Callable[[int], float]
    """Returns how many seconds it takes with a memory limit in bytes."""
    memory_s: list[float] = field(default_factory=list)
    spilled_s: list[float] = field(default_factory=list)

    def round(self) -> None:
        """Runs once in memory and once spilled."""
        self.memory_s.append(self.measure(UNLIMITED_BYTES))
        self.spilled_s.append(self.measure(MEMORY_MAX_BYTES))

    def rates(self) -> tuple[list[float], list[float]]:
        """Returns records per second by round: in memory, and spilled."""
        count = self.payload.count
        return [count / s for s in self.memory_s], [count / s for s in self.spilled_s]


def _pairs(bench: Bench, megabytes: int) -> list[Pair]:
    found = []
    for size in RATIO_RECORD_BYTES:
        payload = Payload(size, megabytes * MB // size)
        topic = f"spill-{size}"
        read = partial(bench.seconds, topic, payload)
        found.append(Pair(f"{size:,} B, from the broker", payload, read))
        alone = partial(bench.buffer_seconds, payload)
        found.append(Pair(f"{size:,} B, the buffer alone", payload, alone))
    return found


def _large(bench: Bench, progress: Progress, gigabytes: float) -> Large:
    task = progress.add_task(f"one transaction of {gigabytes:g} GB", total=1.0)
    payload = Payload(RECORD_BYTES, int(gigabytes * GB) // RECORD_BYTES)
    return bench.large("spill-large", payload, lambda share: progress.update(task, completed=share))


def _ratios(bench: Bench, progress: Progress, megabytes: int, rounds: int) -> list[Pair]:
    pairs = _pairs(bench, megabytes)
    steps = len(RATIO_RECORD_BYTES) + len(pairs) * rounds
    task = progress.add_task(f"{megabytes} MB, in memory and spilled", total=steps)
    for size in RATIO_RECORD_BYTES:
        bench.write(f"spill-{size}", Payload(size, megabytes * MB // size))
        progress.advance(task)
    for _ in range(rounds):
        for pair in pairs:
            pair.round()
            progress.advance(task)
    return pairs


def _chapter(large_rows: list[list[str]], ratio_rows: list[list[str]], method: str) -> Json:
    return {
        **circumstances(KAFKA_VERSION),
        "title": "Spill",
        "method": method,
        "tables": [
            {"columns": list(_LARGE_COLUMNS), "rows": large_rows},
            {"columns": list(_RATIO_COLUMNS), "rows": ratio_rows},
        ],
    }


def spill(
    *,
    gigabytes: Annotated[float, typer.Option(min=0.2, help="Of the large transaction.")] = 5.0,
    megabytes: Annotated[int, typer.Option(min=200, help="Of those read in turn.")] = 500,
    rounds: Repetitions = ROUNDS,
    plot: Annotated[Path | None, typer.Option(help="Draw memory over time into this PNG.")] = None,
    write_docs: Annotated[
        bool,
        typer.Option("--write-docs", help="Write the chapter of docs/benchmarks.md, and its plot."),
    ] = False,
) -> None:
    """Measure memory, disk and time of transactions larger than memory."""
    console = Console()
    with (
        ended_by(console, *_FAILURES),
        tempfile.TemporaryDirectory(prefix="logtx-spill-") as name,
    ):
        directory = Path(name)
        check_room(directory, gigabytes + len(RATIO_RECORD_BYTES) * megabytes / 1000)
        with cluster() as (servers, _), Progress(console=console) as progress:
            bench = Bench(servers, directory)
            large = _large(bench, progress, gigabytes)
            large_rows = _large_rows(large)
            print_table(progress.console, _LARGE_COLUMNS, large_rows)
            if plot is not None:
                draw(large, RSS_GOAL_BYTES, plot)
            ratio_rows = list(map(_ratio_row, _ratios(bench, progress, megabytes, rounds)))
    print_table(console, _RATIO_COLUMNS, ratio_rows)
    if write_docs:
        draw(large, RSS_GOAL_BYTES, PLOT)
        method = _METHOD.format(gigabytes=gigabytes, megabytes=megabytes, rounds=rounds)
        document.write_chapter("spill", _chapter(large_rows, ratio_rows, method))


if __name__ == "__main__":
    typer.run(spill)
