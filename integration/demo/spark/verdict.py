"""The figures of Spark's part, and whether they are what was promised. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..ledger import LedgerFindings
from ..verdict import Tally, against_ledger

REFUSED: Final = "refused"
"""What becomes of a query whose checkpoint was restored: ReplayDiffersError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOutcome:
    """The figures of one run."""

    flights: int
    flights_booked: int
    """Flights in committed transactions, from the journal's record counts."""
    input_partitions: int
    committed: int
    """Committed micro-batches, one transaction each, from the journal."""
    aborted: int
    unfinished: int
    kills: Tally
    elapsed_s: float
    """Seconds from the start of the first driver to the last flight booked."""
    group: str
    """The consumer group that commits the input offsets."""
    inspection: Mapping[str, Any]
    """The inspector's last report."""
    problems: tuple[str, ...] = ()
    """Sentences about what stalled or died."""

    @property
    def entries_per_s(self) -> float:
        """Ledger entries committed, per second."""
        return 2 * self.flights_booked / self.elapsed_s if self.elapsed_s > 0 else float("nan")

    @property
    def input_iovs(self) -> list[Mapping[str, Any]]:
        """The group's committed offsets, one row per partition of `flights`."""
        return [row for row in self.inspection.get("iovs", []) if row["group"] == self.group]

    @property
    def consumed(self) -> int:
        """Flights consumed, from the committed offsets; `flights` has plain records only."""
        return sum(row["offset"] for row in self.input_iovs)

    @property
    def is_clean(self) -> bool:
        """Whether the audit found no broken promise."""
        return bool((self.inspection.get("audit") or {}).get("clean"))

    @property
    def exported(self) -> LedgerFindings | None:
        """How the exported ledger compares with the file's; None if that stage was not reached."""
        findings = self.inspection.get("findings")
        return None if findings is None else LedgerFindings(**findings)

    @property
    def enriched(self) -> int | None:
        """Committed enriched flights; None before they are counted."""
        return self.inspection.get("enriched")

    @property
    def totals(self) -> int | None:
        """Rows that the job wrote that ran twice, and airports; None before they are counted."""
        return self.inspection.get("totals")

    @property
    def airports(self) -> int:
        """Airports in the ledger."""
        return self.inspection.get("airports") or 0

    @property
    def surplus(self) -> int | None:
        """Entries of aborted transactions: in the log, and not exported."""
        audit, exported = self.inspection.get("audit"), self.inspection.get("exported")
        return None if audit is None or exported is None else audit["records"] - exported


def reasons_against(outcome: SparkOutcome) -> list[str]:
    """Returns why the verdict is FALSE, one sentence each; empty if it is TRUE."""
    found = list(outcome.problems)
    if outcome.unfinished:
        found.append(f"{outcome.unfinished:,} transactions were never finished.")
    if outcome.kills.happened < outcome.kills.required:
        found.append(
            f"Only {outcome.kills.happened} of {outcome.kills.required} kills of the driver left "
            "an open transaction."
        )
    if not outcome.inspection.get("final"):
        stage = outcome.inspection.get("stage", "its start")
        found.append(f"The inspector did not finish: it was at {stage}.")
    return [
        *found,
        *_against_repetition(outcome),
        *_against_recovery(outcome),
        *_against_audit(outcome),
        *_against_export(outcome),
    ]


def _against_repetition(outcome: SparkOutcome) -> list[str]:
    found = []
    restored = outcome.inspection.get("restored")
    if restored is not None and restored != REFUSED:
        found.append(f"The query with a restored checkpoint was not refused: {restored}.")
    if outcome.enriched != outcome.flights:
        found.append(f"{outcome.enriched} of {outcome.flights} flights are enriched.")
    if outcome.totals is None or outcome.totals != outcome.airports:
        found.append(f"{outcome.totals} totals were written of {outcome.airports} airports.")
    return found


def _against_recovery(outcome: SparkOutcome) -> list[str]:
    left = outcome.inspection.get("left")
    if left is None:
        return ["The committed input offsets were not recovered."]
    found = []
    count, wanted = len(outcome.input_iovs), outcome.input_partitions
    if count != wanted:
        found.append(f"Offsets are committed of {count} of {wanted} input partitions.")
    if outcome.consumed != outcome.flights:
        found.append(
            f"The committed offsets stand at {outcome.consumed:,} of {outcome.flights:,} flights."
        )
    if left:
        found.append(f"Going on from the committed offsets would read {left:,} flights again.")
    return found


def _against_audit(outcome: SparkOutcome) -> list[str]:
    audit = outcome.inspection.get("audit")
    if audit is None:
        return ["The audit did not finish."]
    found = [
        f"The audit found {each['check']} violated, {each['findings']:,} times."
        for each in audit["counts"]
        if each["severity"] == "violation"
    ]
    if not audit["clean"] and not found:
        found.append("The audit is not clean.")
    surplus = outcome.surplus
    if surplus is not None and surplus < 0:
        found.append(f"The audit missed {-surplus:,} committed entries.")
    elif surplus == 0 and outcome.kills.required:
        found.append("No record of an aborted transaction is in the log: nothing was put to test.")
    return found


def _against_export(outcome: SparkOutcome) -> list[str]:
    findings = outcome.exported
    if findings is None:
        return ["The exported ledger was not compared with the file."]
    found = against_ledger(findings)
    rows = outcome.inspection["exported"]
    if rows != findings.entries:
        found.append(f"The export counts {rows:,} rows, and its files hold {findings.entries:,}.")
    transactions = outcome.inspection["transactions"]
    if transactions != outcome.committed:
        found.append(
            f"The export has {transactions:,} transactions, and the journal {outcome.committed:,} "
            "committed."
        )
    return found
