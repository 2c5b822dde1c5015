"""Checks whether a commit counted although the journal had fenced its writer before."""

from __future__ import annotations

from bisect import bisect_left

from .facts import Facts
from .findings import Findings, decided, in_journal
from .journal import Fate, Journal, Partition


def check_fencing(facts: Facts, found: Findings) -> None:
    """Finds zombie-write in the journal: commits of replaced producers, and of lost input."""
    for journal in facts.journals.values():
        claims = _Claims(journal)
        for fate in journal.decisions:
            if fate.committed and fate.producer_id:
                _check_generation(journal, fate, found)
                claims.check(fate, found)


def _check_generation(journal: Journal, fate: Fate, found: Findings) -> None:
    assert fate.decided is not None
    known = journal.generations.get(fate.producer_id, [])
    before = bisect_left(known, fate.decided, key=lambda generation: generation.offset)
    if before == 0:
        return
    latest = known[before - 1]
    if latest.number == fate.generation and not latest.voided:
        return
    how = "was voided" if latest.number == fate.generation else f"gave way to {latest.number}"
    found.add(
        "zombie-write",
        f"{fate.txid} of producer {fate.producer_id!r} was committed after its generation"
        f" {fate.generation} {how}",
        in_journal(journal.number, latest.offset, f"PRODUCER {fate.producer_id!r}"),
        decided(fate),
    )


class _Claims:
    """The claims of each partition; finds those between a step and its decision."""

    def __init__(self, journal: Journal) -> None:
        self._number = journal.number
        self._offsets: dict[tuple[str, Partition], list[int]] = {}
        for claim in journal.claims:
            for partition in claim.partitions:
                self._offsets.setdefault((claim.group, partition), []).append(claim.offset)

    def check(self, fate: Fate, found: Findings) -> None:
        assert fate.decided is not None
        for key, step in fate.steps.items():
            between = [
                offset
                for offset in self._offsets.get(key, ())
                if step.offset < offset < fate.decided
            ]
            if between:
                group, (topic, number) = key
                what = f"CLAIM of {topic}[{number}] by group {group}"
                found.add(
                    "zombie-write",
                    f"{fate.txid} was committed after {topic}[{number}], which it had consumed for"
                    f" group {group}, was claimed",
                    in_journal(self._number, step.offset, f"ADD_OFFSETS of {fate.txid}"),
                    in_journal(self._number, between[0], what),
                    decided(fate),
                )
