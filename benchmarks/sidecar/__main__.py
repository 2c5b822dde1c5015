"""`python -m benchmarks.sidecar`: transactions in sidecars beside transactions with markers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import typer
from rich.console import Console

from logtx.integration.local.errors import LocalKafkaError
from logtx.integration.local.jars import KAFKA_VERSION
from logtx.journal.errors import LogtxError

from .. import document
from ..cluster import DELETED_AT_ONCE, Cluster, CoordinatorFailedError, started
from ..command import Rounds, WriteDocs, ended_by
from ..report import circumstances, judged, number, print_table, ratio_text, spread
from ..spill.measure import GB, Large, NotEnoughDiskError, check_room
from ..spill.payload import Payload
from ..spill.process import ReaderFailedError
from ..stats import Spread, ratio
from .side import MARKERS, MIDDLING, SIDECAR, SIDES, SMALL, Side

MB: Final = 10**6
RECORD_BYTES: Final = 1_000
"""Size of a value of the large transaction."""
ROUNDS: Final = 3
FIRSTS: Final = 20
"""Transactions of a round whose first record is waited for."""
RSS_GOAL_MB: Final = 120
FIRST_GOAL_MS: Final = 50
RESTART_GOAL_MS: Final = 200
CATCH_UP_GOAL: Final = 1.5
POINTERS_GOAL: Final = 0.3
_COLUMNS: Final = ("one transaction of {gigabytes:g} GB", *SIDES, "goal")
_RATE_COLUMNS: Final = ("more is better", "unit", *SIDES, "ratio", "goal")
_METHOD: Final = """\
`make bench-sidecar`: transactions whose records lie in a [sidecar](sidecar.md) beside those with
markers: one build, one broker, one coordinator, one run. Sides run in turn, {rounds} rounds;
shown are medians with the least and the most, of memory and disk the most, and the ratio of the
medians.

*One transaction of {gigabytes:g} GB*, in records of 1,000 bytes to one partition, is written and
left open. A consumer with the defaults, in a process of its own, reads what it finds, and waits;
then the transaction is committed. *Commit to first record* is from the call of commit until the
consumer has told. What is delivered is compared with what was written by a digest of all values,
in order. *1 MB* are transactions of {middling:,} such records one after another, of which
{firsts} make a round: its p50. *A restart* is a consumer that has delivered and committed half of
it and is closed: from the assignment of the next one, which knows brokers and topic, to its first
record. *The log after an abort* is all files of the topic's log. *Caught up* is a new process,
from the assignment to the last of the records that were committed before. *A backlog* is
{pointers:,} transactions of {small} records of 100 bytes in one partition, each with a marker or
a pointer of its own, from the first record that a new consumer gets to the last one. The
machine's load average of 15 minutes was {load:.0f} at the end: above the number of cores, others
were at work too, and times and rates tell little beside memory, disk and ratios."""
_FAILURES: Final = (
    LocalKafkaError,
    CoordinatorFailedError,
    NotEnoughDiskError,
    ReaderFailedError,
    LogtxError,
    TimeoutError,
)


@dataclass(slots=True)
class Figures:
    """What was measured of one side, by round."""

    large: list[Large] = field(default_factory=list)
    caught_up: list[float] = field(default_factory=list)
    """Records per second."""
    restart_ms: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    """Of transactions of `MIDDLING`."""
    transactions_per_s: list[float] = field(default_factory=list)
    aborted_bytes: int = 0

    @property
    def peak_mb(self) -> float:
        """Most resident memory of a consumer."""
        return max(large.peak_rss_bytes for large in self.large) / MB

    @property
    def disk_mb(self) -> float:
        """Most that a consumer had on its disk."""
        return max(large.most_disk_bytes for large in self.large) / MB

    @property
    def large_first_ms(self) -> list[float]:
        """From the call of commit to the first record of the large transaction."""
        return [(large.first_s - large.committed_s) * 1_000 for large in self.large]

    @property
    def whole(self) -> bool:
        """Whether all values came in order, in all rounds."""
        return all(large.whole for large in self.large)


def rows(found: Mapping[str, Figures]) -> list[list[str]]:
    """Returns the rows on the large transaction."""
    markers, sidecar = found[MARKERS], found[SIDECAR]

    def row(
        what: str, show: Callable[[Figures], str], goal: str = "", is_met: bool | None = None
    ) -> list[str]:
        return [what, show(markers), show(sidecar), judged(goal, is_met)]

    first_ms, restart_ms = median(sidecar.large_first_ms), median(sidecar.restart_ms)
    return [
        row(
            "peak resident memory of its consumer, MB",
            lambda side: number(side.peak_mb),
            f"≤ {RSS_GOAL_MB}",
            sidecar.peak_mb <= RSS_GOAL_MB,
        ),
        row(
            "local disk of its consumer, MB",
            lambda side: number(side.disk_mb),
            "0",
            sidecar.disk_mb == 0,
        ),
        row("whole and in order", lambda side: "yes" if side.whole else "no", "yes", sidecar.whole),
        row(
            "commit to first record, ms",
            lambda side: _spread(side.large_first_ms),
            f"≤ {FIRST_GOAL_MS}",
            first_ms <= FIRST_GOAL_MS,
        ),
        row("commit to first record of 1 MB, p50 ms", lambda side: _spread(side.first_ms)),
        row(
            "restart in the middle to the next record, ms",
            lambda side: _spread(side.restart_ms),
            f"≤ {RESTART_GOAL_MS}",
            restart_ms <= RESTART_GOAL_MS,
        ),
        row(
            "the topic's log after an abort, bytes",
            lambda side: f"{side.aborted_bytes:,}",
            "0",
            sidecar.aborted_bytes == 0,
        ),
    ]


def rate_rows(found: Mapping[str, Figures]) -> list[list[str]]:
    """Returns the rows on rates."""
    markers, sidecar = found[MARKERS], found[SIDECAR]

    def row(
        what: str, unit: str, rates: tuple[Sequence[float], Sequence[float]], goal: float
    ) -> list[str]:
        of_markers, of_sidecar = rates
        beside = ratio(of_sidecar, of_markers)
        figures = _spread(of_markers), _spread(of_sidecar), ratio_text(asdict(beside))
        return [what, unit, *figures, judged(f"≥ {goal:g}", beside.median >= goal)]

    return [
        row(
            "caught up with it by a consumer that comes later",
            "records/s",
            (markers.caught_up, sidecar.caught_up),
            CATCH_UP_GOAL,
        ),
        row(
            f"a backlog of transactions of {SMALL.count} records",
            "transactions/s",
            (markers.transactions_per_s, sidecar.transactions_per_s),
            POINTERS_GOAL,
        ),
    ]


def _spread(values: Sequence[float]) -> str:
    return spread(asdict(Spread.of(values)))


def measured(
    sides: Sequence[Side],
    payload: Payload,
    *,
    rounds: int,
    pointers: int,
    step: Callable[[str], None],
) -> dict[str, Figures]:
    """Measures everything.

    Args:
        sides: which ones.
        payload: of the large transaction.
        rounds: how often.
        pointers: transactions of the backlog.
        step: called with what is measured next.

    Returns:
        Name of the side → its figures.
    """
    found = {side.name: Figures() for side in sides}
    for _ in range(rounds):
        for side in sides:
            figures = found[side.name]
            large, seconds, restart_s = side.round(payload, step)
            figures.large.append(large)
            figures.caught_up.append(payload.count / seconds)
            figures.restart_ms.append(restart_s * 1_000)
            step(f"{side.name}: the first record of 1 MB")
            figures.first_ms.append(side.first_ms(FIRSTS))
    for side in sides:
        step(f"{side.name}: aborted")
        found[side.name].aborted_bytes = side.bytes_of_an_abort(payload)
    with ExitStack() as stack:
        step("backlogs are written")
        reads = {side.name: stack.enter_context(side.backlog(pointers)) for side in sides}
        for _ in range(rounds):
            for name, read in reads.items():
                step(f"{name}: a backlog")
                found[name].transactions_per_s.append(read())
    return found


def _sides(cluster: Cluster, directory: Path) -> list[Side]:
    assert cluster.data_dir is not None, "the broker is our own"
    return [Side(name, cluster.bootstrap_servers, cluster.data_dir, directory) for name in SIDES]


def sidecar(
    *,
    gigabytes: Annotated[float, typer.Option(min=0.1, help="Of the large transaction.")] = 1.0,
    pointers: Annotated[int, typer.Option(min=100, help="Transactions of the backlog.")] = 3_000,
    rounds: Rounds = ROUNDS,
    write_docs: WriteDocs = False,
) -> None:
    """Measure transactions in sidecars beside transactions with markers."""
    console = Console(width=150)
    payload = Payload(RECORD_BYTES, int(gigabytes * GB) // RECORD_BYTES)
    with (
        ended_by(console, *_FAILURES),
        tempfile.TemporaryDirectory(prefix="logtx-sidecar-") as name,
    ):
        # A log that is being deleted, the next one, and what a consumer spills.
        check_room(Path(name), 2 * gigabytes)
        with started(settings=DELETED_AT_ONCE) as cluster:
            found = measured(
                _sides(cluster, Path(name)),
                payload,
                rounds=rounds,
                pointers=pointers,
                step=lambda what: console.print(what, style="dim"),
            )
    columns = [column.format(gigabytes=gigabytes) for column in _COLUMNS]
    tables = [
        {"columns": columns, "rows": rows(found)},
        {"columns": list(_RATE_COLUMNS), "rows": rate_rows(found)},
    ]
    for table in tables:
        print_table(console, table["columns"], table["rows"])
    if write_docs:
        method = _METHOD.format(
            rounds=rounds,
            gigabytes=gigabytes,
            middling=MIDDLING.count,
            firsts=FIRSTS,
            pointers=pointers,
            small=SMALL.count,
            load=os.getloadavg()[2],
        )
        chapter = {"title": "Sidecars", "method": method, "tables": tables}
        document.write_chapter("sidecar", {**circumstances(KAFKA_VERSION), **chapter})


if __name__ == "__main__":
    typer.run(sidecar)
