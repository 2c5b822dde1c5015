"""What people see: progress during the run, and one table at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..live import LiveDisplay
from .flights import CANCELLED_RULE
from .plan import Fault
from .verdict import Move, Outcome, Sharing

_LINE_EVERY_S: Final = 2.0
"""Without a terminal, a progress line is printed this often; more often only makes the output
longer."""
_REFRESH_PER_S: Final = 8
"""Refreshes of the bars per second; more of them cost processor time."""
_BARS: Final = ("flights published", "flights booked", "entries audited")
_PLURAL: Final = {
    Fault.WORKER_KILL: "workers killed",
    Fault.COORDINATOR_KILL: "coordinators killed",
    Fault.WORKER_PAUSE: "workers paused",
    Fault.COORDINATOR_PAUSE: "coordinators paused",
}
_SURVIVED: Final = {
    Fault.WORKER_KILL: ("worker kills survived", "each left an open transaction"),
    Fault.COORDINATOR_KILL: ("coordinator kills survived", "each left a committing transaction"),
    Fault.WORKER_PAUSE: (
        "worker zombies survived",
        "paused with an open transaction, replaced, woken, fenced",
    ),
    Fault.COORDINATOR_PAUSE: (
        "coordinator zombies survived",
        "paused with a committing transaction, replaced, woken",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The progress of a run."""

    flights: int
    published: int
    booked: int
    """Flights in committed transactions."""
    audited: int
    """Ledger entries that the read_committed auditor has read."""
    committed: int
    aborted: int
    open: int
    faults: Mapping[Fault, int]
    """Faults so far, by planned kind."""
    shares: tuple[str, ...]
    """Journal partitions of each coordinator, as text: a number, and a word if it is asleep. Empty
    with a single coordinator."""

    @staticmethod
    def totals(flights: int) -> dict[str, int]:
        """Returns each bar's final value."""
        return dict(zip(_BARS, (flights, flights, 2 * flights), strict=True))

    @property
    def bars(self) -> dict[str, int]:
        """Each bar's current value."""
        return dict(zip(_BARS, (self.published, self.booked, self.audited), strict=True))

    @property
    def sentence(self) -> str:
        """The bars in words."""
        return (
            f"flights: {self.published:,} of {self.flights:,} published, {self.booked:,} booked · "
            f"entries audited: {self.audited:,}"
        )

    @property
    def line(self) -> str:
        """Transactions, faults and owners as one short line."""
        faults = ", ".join(f"{count} {_PLURAL[fault]}" for fault, count in self.faults.items())
        line = f"transactions: {self.committed:,} committed, {self.aborted:,} aborted, "
        line += f"{self.open} open · {faults}"
        if self.shares:
            line += f" · journal partitions: {' + '.join(self.shares)}"
        return line


class Shown(Protocol):
    """Progress that `LiveProgress` can show."""

    @property
    def bars(self) -> Mapping[str, int]:
        """Each bar's current value."""

    @property
    def sentence(self) -> str:
        """The bars in words."""

    @property
    def line(self) -> str:
        """Everything else, as one line."""


class LiveProgress(LiveDisplay):
    """Shows progress: bars with a line below, or one line with the bars in words."""

    def __init__(self, console: Console, totals: Mapping[str, int]) -> None:
        """Prepares the bars.

        Args:
            console: where they are shown.
            totals: each bar's final value.
        """
        self._text = Text()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks = {
            name: self._progress.add_task(name, total=total) for name, total in totals.items()
        }
        self._picture = Group(self._progress, self._text)
        super().__init__(
            console,
            refresh_per_s=_REFRESH_PER_S,
            line_every_s=_LINE_EVERY_S,
            picture=self._picture,
        )

    def show(self, snapshot: Shown) -> None:
        """Shows the progress. It is cheap: call it often."""
        for name, completed in snapshot.bars.items():
            self._progress.update(self._tasks[name], completed=completed)
        self._text.plain = snapshot.line
        self._show(self._picture, f"{snapshot.sentence} · {snapshot.line}")


def print_outcome(console: Console, outcome: Outcome, reasons: Sequence[str]) -> None:
    """Prints the table, and below it the reasons for FALSE, if any."""
    if outcome.letters is None:
        print_verdict(console, "logtx demo", _rows(outcome), reasons)
    else:
        says = "every flight is booked or a dead letter, exactly once"
        print_verdict(console, "logtx demo --queue", _rows(outcome), reasons, says)


def print_verdict(
    console: Console,
    title: str,
    rows: Iterable[tuple[str, str, str]],
    reasons: Sequence[str],
    holds: str = "every flight is booked exactly once",
) -> None:
    """Prints a table that ends with the verdict, the reasons for FALSE, and the verdict once more.

    The last line is for programs.

    Args:
        console: where it is printed.
        title: of the table.
        rows: of each row what it counts, the number, and a remark.
        reasons: for the verdict FALSE; empty for TRUE.
        holds: what the verdict TRUE says.
    """
    table = Table(show_header=False, title=title, title_justify="left")
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column(justify="left", style="dim")
    for row in rows:
        table.add_row(*row)
    word, style = ("FALSE", "bold red") if reasons else ("TRUE", "bold green")
    says = "see below" if reasons else holds
    table.add_section()
    table.add_row("verdict", Text(word, style=style), says)
    console.print(table)
    for reason in reasons:
        console.print(f"✗ {reason}", style="red", highlight=False, markup=False, soft_wrap=True)
    console.print(f"verdict: {'FALSE' if reasons else 'TRUE'}", highlight=False)


def _rows(outcome: Outcome) -> list[tuple[str, str, str]]:
    findings, surplus = outcome.findings, outcome.surplus
    rows = [
        ("flights", f"{outcome.flights:,}", "of 2013, from New York; from the file"),
        ("  cancelled", f"{outcome.cancelled:,}", CANCELLED_RULE),
        (
            "  without tail number",
            f"{outcome.without_tail_number:,}",
            "null; booked too" if outcome.letters is None else "given up: dead letters",
        ),
        ("  booked", f"{outcome.flights_booked:,}", "in committed transactions"),
        ("transactions committed", f"{outcome.transactions_committed:,}", ""),
        ("transactions aborted", f"{outcome.transactions_aborted:,}", ""),
        *(
            (_SURVIVED[fault][0], f"{tally.happened}", _SURVIVED[fault][1])
            for fault, tally in outcome.faults.items()
        ),
        *(_sharing_rows(outcome.sharing) if outcome.sharing else ()),
        *(_move_rows(outcome.move) if outcome.move else ()),
        ("time", f"{outcome.elapsed_s:.1f} s", "kills and restarts included"),
        ("records/s", f"{outcome.records_per_s:,.0f}", "flights read and entries written"),
        ("commit latency p50", f"{outcome.commit_p50_ms:.1f} ms", "until the decision is durable"),
        ("commit latency p99", f"{outcome.commit_p99_ms:.1f} ms", "kills and restarts included"),
        (
            "commit latency worst",
            f"{outcome.commit_worst_ms:.1f} ms",
            "the longest that a worker waited",
        ),
    ]
    if findings is not None:
        note = f"missing {findings.missing:,}, twice {findings.doubled:,}"
        note += f", of no flight {findings.foreign:,}"
        rows.append(("ledger entries", f"{findings.entries:,}", note))
        net = f"{findings.unbalanced:,} do not net to zero"
        rows.append(("  in transactions", f"{outcome.transactions_audited:,}", net))
    if outcome.letters is not None and (letters := outcome.letters.findings) is not None:
        note = f"missing {letters.missing:,}, twice {letters.doubled:,}"
        rows.append(("dead letters", f"{letters.letters:,}", f"{note}, wrong {letters.foreign:,}"))
    if surplus is not None:
        rows.append(("  of aborted transactions", f"{surplus:,}", "seen by read_uncommitted alone"))
    return rows


def _sharing_rows(sharing: Sharing) -> list[tuple[str, str, str]]:
    return [
        (
            "coordinators given work again",
            f"{sharing.served_again} of {sharing.returned}",
            "started again, or woken",
        ),
        ("journal partitions of each", " + ".join(map(str, sharing.shares)), "in the end"),
        ("  changes of owner", f"{sharing.takeovers:,}", "while flights were booked"),
        ("  entries of former owners", f"{sharing.void_entries:,}", "void for every reader"),
    ]


def _move_rows(move: Move) -> list[tuple[str, str, str]]:
    at = "never" if move.sealed_at is None else f"{move.sealed_at:,}"
    return [
        ("ledger sealed at flight", at, "from then on it goes on in another topic"),
        (
            "  transactions across",
            f"{move.spanning:,}",
            "open when it was sealed; committed behind",
        ),
    ]


def print_keep(
    console: Console,
    *,
    servers: str,
    coordinators: Sequence[str],
    topics: tuple[str, str],
    groups: Sequence[str],
    directory: Path,
) -> None:
    """Prints where everything is, and how to look at it."""
    console.print(f"\nKafka goes on: bootstrap.servers = {servers}.", soft_wrap=True)
    console.print(f"Coordinators go on: {', '.join(coordinators)}.", soft_wrap=True)
    console.print(f"Topics: {', '.join(topics)}.", soft_wrap=True)
    console.print(f"Transaction groups: {', '.join(groups)}.", soft_wrap=True)
    console.print(f"Logs are in {directory}. To read the ledger by whole transactions:\n")
    console.print(
        "    import logtx\n"
        "    from confluent_kafka import TopicPartition\n"
        "    from logtx.integration.demo.flights import decode_entry\n"
        f'    consumer = logtx.Consumer({{"bootstrap.servers": "{servers}", "group.id": "me",\n'
        f'                               "transaction.group": "{groups[0]}",\n'
        '                               "auto.offset.reset": "earliest"})\n'
        f'    consumer.assign([TopicPartition("{topics[1]}", number) for number in range(4)])\n'
        "    for transaction in consumer.transactions():\n"
        "        print(transaction.txid, [decode_entry(m.value()) for m in transaction.records])\n",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    console.print("Ctrl-C stops everything.")
