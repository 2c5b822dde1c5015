"""What a run came to, and whether that is what was promised. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .ledger import LedgerFindings


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The figures of one run."""

    flights: int
    """Flights of the file that were to be booked."""
    flights_booked: int
    """Those in committed transactions, as the journal counts records."""
    cancelled: int
    without_tail_number: int
    transactions_committed: int
    transactions_aborted: int
    transactions_unfinished: int
    """Not finished in the journal when everything had ended."""
    worker_kills: int
    """Those that left an OPEN transaction in the journal."""
    worker_kills_required: int
    coordinator_kills: int
    """Those that left a COMMITTING transaction in the journal."""
    coordinator_kills_required: int
    elapsed_s: float
    """From the first flight published to the last one booked."""
    commit_p50_ms: float
    commit_p99_ms: float
    findings: LedgerFindings | None
    """Of the read_committed auditor; None if it did not get to its end."""
    transactions_audited: int
    entries_uncommitted: int | None
    """Entries that the read_uncommitted auditor saw; None if it did not get to its end."""
    problems: tuple[str, ...] = ()
    """Sentences about what stalled or died."""

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
    """Why the verdict is FALSE, a sentence each; empty if it is TRUE."""
    return [
        *outcome.problems,
        *_against_ledger(outcome),
        *_against_transactions(outcome),
        *_against_kills(outcome),
    ]


def _against_ledger(outcome: Outcome) -> list[str]:
    findings = outcome.findings
    if findings is None:
        return ["The read_committed auditor did not finish."]
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
        found.append(f"{findings.split:,} transactions hold a flight by half.")
    if findings.torn:
        found.append(f"{findings.torn:,} transactions were not delivered whole.")
    return found


def _against_transactions(outcome: Outcome) -> list[str]:
    found: list[str] = []
    if outcome.findings and outcome.transactions_audited != outcome.transactions_committed:
        found.append(
            f"The auditor was given {outcome.transactions_audited:,} transactions, but the journal "
            f"has {outcome.transactions_committed:,} committed."
        )
    if outcome.transactions_unfinished:
        found.append(f"{outcome.transactions_unfinished:,} transactions were never finished.")
    return found


def _against_kills(outcome: Outcome) -> list[str]:
    found: list[str] = []
    if outcome.worker_kills < outcome.worker_kills_required:
        found.append(
            f"Only {outcome.worker_kills} of {outcome.worker_kills_required} kills left an open "
            "transaction."
        )
    if outcome.coordinator_kills < outcome.coordinator_kills_required:
        found.append("The coordinator was not killed with a transaction committing.")
    surplus = outcome.surplus
    if outcome.entries_uncommitted is None:
        found.append("The read_uncommitted auditor did not finish.")
    elif surplus is not None and surplus < 0:
        found.append(f"The read_uncommitted auditor missed {-surplus:,} committed entries.")
    elif surplus == 0 and outcome.worker_kills_required:
        found.append("No record of an aborted transaction is in the log: nothing was put to test.")
    return found
