"""What people see of the Spark demo: progress, the recovered offsets, and one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from ..display import print_verdict
from .verdict import SparkOutcome

_BARS: Final = ("flights published", "flights booked", "inspection")
STAGES: Final = ("restore", "rerun", "recover", "audit", "export", "compare")
_MISSING: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSnapshot:
    """The progress of a run."""

    flights: int
    published: int
    booked: int
    """Flights in committed transactions."""
    committed: int
    aborted: int
    open: int
    kills: int
    drivers: int
    """Drivers started so far."""
    inspected: int
    """Stages that the inspector has done."""
    doing: str
    """What the run does now."""

    @staticmethod
    def totals(flights: int) -> dict[str, int]:
        """Returns each bar's final value."""
        return dict(zip(_BARS, (flights, flights, len(STAGES)), strict=True))

    @property
    def bars(self) -> dict[str, int]:
        """Each bar's current value."""
        return dict(zip(_BARS, (self.published, self.booked, self.inspected), strict=True))

    @property
    def sentence(self) -> str:
        """The bars in words."""
        return (
            f"flights: {self.published:,} of {self.flights:,} published, {self.booked:,} booked · "
            f"inspection: {self.inspected} of {len(STAGES)}"
        )

    @property
    def line(self) -> str:
        """Transactions, kills, and what is done now, as one line."""
        return (
            f"micro-batches: {self.committed:,} committed, {self.aborted:,} aborted, "
            f"{self.open} open · driver {self.drivers}, {self.kills} killed · {self.doing}"
        )


def print_outcome(console: Console, outcome: SparkOutcome, reasons: Sequence[str]) -> None:
    """Prints the recovered offsets, the table, and below it the reasons for FALSE, if any."""
    if rows := outcome.inspection.get("iovs"):
        console.print(_iov_table(rows))
    print_verdict(console, "logtx demo --spark", _rows(outcome), reasons)


def _iov_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="committed input offsets, as recovered", title_justify="left")
    table.add_column("group", overflow="fold")
    table.add_column("topic", no_wrap=True)
    for name in ("partition", "offset", "lag"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("committed at", no_wrap=True)
    for row in rows:
        table.add_row(
            row["group"],
            row["topic"],
            f"{row['partition']}",
            f"{row['offset']:,}",
            _MISSING if row["lag"] is None else f"{row['lag']:,}",
            _time(row["committed_ms"]),
        )
    return table


def _time(wall_ms: int | None) -> str:
    if wall_ms is None:
        return _MISSING
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]


def _rows(outcome: SparkOutcome) -> list[tuple[str, str, str]]:
    kills = outcome.kills
    return [
        ("flights", f"{outcome.flights:,}", "of 2013, from New York; from the file"),
        ("  booked", f"{outcome.flights_booked:,}", "in committed transactions"),
        ("micro-batches committed", f"{outcome.committed:,}", "one transaction each"),
        ("transactions aborted", f"{outcome.aborted:,}", ""),
        ("driver kills survived", f"{kills.happened}", "each left an open transaction"),
        ("time", f"{outcome.elapsed_s:.1f} s", "kills and restarts included"),
        ("entries/s", f"{outcome.entries_per_s:,.0f}", "committed in the ledger"),
        *_repeated(outcome),
        *_recovered(outcome),
        *_audited(outcome),
        *_exported(outcome),
    ]


def _repeated(outcome: SparkOutcome) -> list[tuple[str, str, str]]:
    rows, restored = list[tuple[str, str, str]](), outcome.inspection.get("restored")
    if restored is not None:
        rows.append(("checkpoint restored", restored, "from the first kill; nothing was written"))
    if outcome.enriched is not None:
        rows.append(("  flights enriched", f"{outcome.enriched:,}", "with the ledger, or not"))
    if outcome.totals is not None:
        note = f"rows of {outcome.airports:,} airports, by a job that ran twice"
        rows.append(("job run again: totals", f"{outcome.totals:,}", note))
    return rows


def _recovered(outcome: SparkOutcome) -> list[tuple[str, str, str]]:
    left = outcome.inspection.get("left")
    if left is None:
        return []
    note = f"{left:,} flights left to read from there"
    return [("recover: flights consumed", f"{outcome.consumed:,}", note)]


def _audited(outcome: SparkOutcome) -> list[tuple[str, str, str]]:
    audit = outcome.inspection.get("audit")
    if audit is None:
        return []
    word = "clean" if outcome.is_clean else "not clean"
    note = f"{audit['transactions']:,} transactions, {audit['markers']:,} markers"
    return [("audit", word, f"{note}, {audit['records']:,} records")]


def _exported(outcome: SparkOutcome) -> list[tuple[str, str, str]]:
    findings, rows = outcome.exported, list[tuple[str, str, str]]()
    if findings is not None:
        note = f"missing {findings.missing:,}, twice {findings.doubled:,}"
        note += f", of no flight {findings.foreign:,}"
        rows.append(("export: ledger entries", f"{findings.entries:,}", note))
        net = f"{findings.unbalanced:,} do not net to zero"
        rows.append(("  in transactions", f"{outcome.inspection['transactions']:,}", net))
    if outcome.surplus is not None:
        rows.append(("  of aborted transactions", f"{outcome.surplus:,}", "in the log alone"))
    return rows
