"""Histories of the real consumer keep every promise, and each mend that is taken back shows."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from ..parameters import slow
from .consumer import CHECKERS, run
from .mutations import MUTATIONS
from .taken_back import Mutation

SEEDS = 100
"""Histories of each run."""
MORE_SEEDS = {
    "the_journal_is_not_read_on": (291, 477, 616),
    "a_transaction_broken_off_counts": (151, 168, 439, 1243, 1296),
    "a_rewind_that_failed_is_forgotten": (168, 494),
}
"""Further seeds of rare mutations."""
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("first", [0, *slow(range(20, SEEDS, 20))])
def test_histories_keep_every_promise(first: int) -> None:
    for seed in range(first, first + 20):
        violation, trace = run(seed)
        assert violation is None, "\n".join([*trace[-40:], f"seed {seed}: {violation}"])


def test_a_seed_gives_the_same_history_again() -> None:
    # In a process of its own: what other tests leave to be collected ends at any time.
    program = (
        "from tests.histories.consumer import run; assert all(run(s) == run(s) for s in range(5))"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()  # What other tests left would end within a history, and shift it.
    mutation.apply(monkeypatch.setattr)
    for seed in (mutation.seed, *MORE_SEEDS.get(mutation.name, ()), *range(SEEDS)):
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
