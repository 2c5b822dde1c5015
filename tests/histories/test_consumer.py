"""Histories of the real consumer keep every promise, and each mend that is taken back shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from .consumer import CHECKERS, run
from .mutations import MUTATIONS, Mutation

SEEDS = 100
"""Histories of each run."""
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_histories_keep_every_promise(first: int) -> None:
    for seed in range(first, first + 20):
        violation, trace = run(seed)
        assert violation is None, "\n".join([*trace[-40:], f"seed {seed}: {violation}"])


def test_a_seed_gives_the_same_history_again() -> None:
    for seed in range(5):
        assert run(seed) == run(seed)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.apply(monkeypatch.setattr)
    for seed in (mutation.seed, *range(SEEDS)):
        violation, _ = run(seed)
        if violation is not None and violation.checker == mutation.checker:
            return
    pytest.fail(f"{mutation.checker} found nothing in {SEEDS} histories")


def test_every_checker_has_a_mutation() -> None:
    assert {mutation.checker for mutation in MUTATIONS} == set(CHECKERS)


def test_docs_name_every_mutation_with_its_seed() -> None:
    clients = (ROOT / "docs/faults.md").read_text("utf-8").split("## Clients")[1]
    for mutation in MUTATIONS:
        row = next(
            line for line in clients.splitlines() if line.startswith(f"| {mutation.finding} |")
        )
        assert f"`{mutation.name}` {mutation.seed}" in row
