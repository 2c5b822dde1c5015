"""The figures of the workers' part, and whether they are what was promised. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .ledger import LedgerFindings
from .letters import LetterFindings
from .plan import Fault


@dataclass(frozen=True, slots=True)
class Tally:
    """How often a kind of fault was a real test, and how often it had to be."""

    happened: int
    required: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How several coordinators shared the journal."""

    shares: tuple[int, ...]
    """Journal partitions that each owned in the end."""
    takeovers: int
    """Partitions taken over or given, from the first flight to the end."""
    returned: int
    """Coordinators that were started again after a kill, or woke from a pause."""
    served_again: int
    """Those of `returned` that were given a partition later."""
    void_entries: int
    """Journal entries that former owners appended after they were replaced."""


@dataclass(frozen=True, slots=True)
class Letters:
    """The dead letters of a queue."""

    findings: LetterFindings | None
    """None: they could not be read."""
    transactions_alone: int
    """Committed transactions with dead letters and no booking."""


@dataclass(frozen=True, slots=True)
class Move:
    """The cut-over of the ledger."""

    sealed_at: int | None
    """Booked flights when the old topic was sealed; None if it never was."""
    spanning: int
    """Committed transactions that wrote to the sealed topic and to the new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The figures of one run."""

    flights: int
    """Flights of the file that were to be booked."""
    flights_booked: int
    """Flights in committed transactions, from the journal's record counts."""
    cancelled: int
    without_tail_number: int
    transactions_committed: int
    transactions_aborted: int
    transactions_unfinished: int
    """Transactions not finished in the journal when all processes had ended."""
    faults: Mapping[Fault, Tally]
    sharing: Sharing | None
    """None with a single coordinator."""
    elapsed_s: float
    """Seconds from the first flight published to the last one booked."""
    commit_p50_ms: float
    commit_p99_ms: float
    commit_worst_ms: float
    findings: LedgerFindings | None
    """Findings of the read_committed auditor; None if it did not reach its end."""
    transactions_audited: int
    entries_uncommitted: int | None
    """Entries that the read_uncommitted auditor saw; None if it did not reach its end."""
    problems: tuple[str, ...] = ()
    """Sentences about what stalled or died."""
    move: Move | None = None
    """None in marker mode."""
    letters: Letters | None = None
    """None without a queue."""

    @property
    def records_per_s(self) -> float:
        """Flights consumed and ledger entries committed, per second."""
        return 3 * self.flights_booked / self.elapsed_s if self.elapsed_s > 0 else float("nan")

    @property
    def surplus(self) -> int | None:
        """Entries of aborted transactions: in the log, and not in the ledger."""
        if self.entries_uncommitted is None or self.findings is None:
            return None
        return self.entries_uncommitted - self.findings.entries


def reasons_against(outcome: Outcome) -> list[str]:
    """Returns why the verdict is FALSE, one sentence each; empty if it is TRUE."""
    return [
        *outcome.problems,
        *_against_ledger(outcome),
        *_against_transactions(outcome),
        *_against_faults(outcome),
        *_against_sharing(outcome),
        *against_move(outcome.move),
        *against_letters(outcome.letters),
    ]


def _against_ledger(outcome: Outcome) -> list[str]:
    if outcome.findings is None:
        return ["The read_committed auditor did not finish."]
    return against_ledger(outcome.findings)


def against_ledger(findings: LedgerFindings) -> list[str]:
    """Returns what is wrong with a ledger, one sentence each."""
    found: list[str] = []
    if findings.missing:
        found.append(f"{findings.missing:,} ledger entries are missing.")
    if findings.doubled:
        found.append(f"{findings.doubled:,} ledger entries are there twice.")
    if findings.foreign:
        found.append(f"{findings.foreign:,} ledger entries belong to no flight of the file.")
    if findings.unbalanced:
        found.append(f"{findings.unbalanced:,} transactions do not net to zero.")
    if findings.split:
        found.append(f"{findings.split:,} transactions hold only one side of a flight.")
    if findings.torn:
        found.append(f"{findings.torn:,} transactions were not delivered whole.")
    return found


def _against_transactions(outcome: Outcome) -> list[str]:
    found: list[str] = []
    booking = outcome.transactions_committed
    if outcome.letters is not None:
        booking -= outcome.letters.transactions_alone
    if outcome.findings and outcome.transactions_audited != booking:
        found.append(
            f"The auditor was given {outcome.transactions_audited:,} transactions, but the journal "
            f"has {booking:,} committed."
        )
    if outcome.transactions_unfinished:
        found.append(f"{outcome.transactions_unfinished:,} transactions were never finished.")
    return found


_PROMISED = {
    Fault.WORKER_KILL: "kills of workers left an open transaction",
    Fault.COORDINATOR_KILL: "kills of coordinators left a committing transaction",
    Fault.WORKER_PAUSE: "paused workers woke to be fenced, their open transaction aborted",
    Fault.COORDINATOR_PAUSE: "paused coordinators lost all their partitions before they woke",
}


def _against_faults(outcome: Outcome) -> list[str]:
    found = [
        f"Only {tally.happened} of {tally.required} {_PROMISED[fault]}."
        for fault, tally in outcome.faults.items()
        if tally.happened < tally.required
    ]
    surplus = outcome.surplus
    if outcome.entries_uncommitted is None:
        found.append("The read_uncommitted auditor did not finish.")
    elif surplus is not None and surplus < 0:
        found.append(f"The read_uncommitted auditor missed {-surplus:,} committed entries.")
    elif surplus == 0 and outcome.faults[Fault.WORKER_KILL].required:
        found.append("No record of an aborted transaction is in the log: nothing was put to test.")
    return found


def _against_sharing(outcome: Outcome) -> list[str]:
    sharing, found = outcome.sharing, list[str]()
    if sharing is None:
        return found
    if sharing.served_again < sharing.returned:
        found.append(
            f"Only {sharing.served_again} of {sharing.returned} coordinators that came back were "
            "given partitions again."
        )
    if 0 in sharing.shares:
        found.append("A coordinator owned no partition in the end.")
    return found


def against_move(move: Move | None) -> list[str]:
    """Returns what is wrong with a cut-over, one sentence each; nothing if none was asked for."""
    if move is None:
        return []
    if move.sealed_at is None:
        return ["The ledger was never sealed: it was not cut over."]
    if not move.spanning:
        return ["No committed transaction spans the sealed ledger and the new one."]
    return []


def against_letters(letters: Letters | None) -> list[str]:
    """Returns what is wrong with a queue's dead letters, one sentence each; nothing without one."""
    if letters is None:
        return []
    findings = letters.findings
    if findings is None:
        return ["The dead letters could not be read."]
    found = []
    if findings.missing:
        found.append(f"{findings.missing:,} dead letters are missing.")
    if findings.doubled:
        found.append(f"{findings.doubled:,} dead letters are there twice.")
    if findings.foreign:
        found.append(f"{findings.foreign:,} dead letters are of flights that were to be booked.")
    return found
