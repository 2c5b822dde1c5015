"""Proof that the checkers bite: each broken rule is caught by the checker named for it."""

from __future__ import annotations

from typing import Final

import pytest

from .checkers import CHECKERS, violations
from .mutations import MUTATIONS, Mutation
from .registry import described_in_docs
from .test_simulation import SEEDS
from .world import simulate

SEEN_AT: Final = {
    "acknowledged_in_any_order": 12,
    "deleted_key_begins_anew": 281,
    "delivered_part_forgotten": 60,
    "full_queue_is_passed_over": 98,
    "new_partitions_are_refused": 1,
    "old_answers_refuse": 1317,
    "serial_part_forgotten": 80,
    "snapshot_forgets_generations": 64,
    "stale_answers": 279,
    "topics_before_the_outcome": 357,
}
"""Mutation → first seed that catches it. The rare ones would take half a minute otherwise."""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.apply(monkeypatch.setattr)
    for seed in (SEEN_AT.get(mutation.name, 0), *range(SEEDS)):
        found = violations(simulate(seed))
        if mutation.checker in found:
            print(f"seed {seed}: {found}")
            return
    pytest.fail(f"{mutation.checker} found nothing in {SEEDS} histories")


def test_docs_name_every_mutation_and_who_catches_it() -> None:
    described = described_in_docs()
    assert {(mutation.name, mutation.checker) for mutation in MUTATIONS} <= described
    assert set(CHECKERS) <= {name for name, _ in described}


def test_every_checker_has_a_mutation() -> None:
    assert {mutation.checker for mutation in MUTATIONS} == set(CHECKERS)
