"""Histories of the real producer, of many seeds; and proof that their checkers bite."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Final

import pytest

from ..parameters import slow
from ..simulation.registry import DOCS, described_in_docs
from .producer import run
from .producer_checkers import CHECKERS, judge
from .producer_mutations import MUTATIONS
from .taken_back import Mutation

SEEDS: Final = 40
"""Each run of the tests has these."""
MANY: Final = 100
"""What `make test-all` runs."""
TRIES: Final = range(200)
"""Seeds that a mutation may need beside its own, if threads hide it there."""


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Histories raise in callbacks, and mutations end threads; thousands of lines would say so."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seeds", [range(SEEDS), *slow([range(SEEDS, MANY)])])
def test_histories(seeds: range) -> None:
    for seed in seeds:
        found = judge(seed)
        if found:
            trace = "\n".join(run(seed).lines)
            pytest.fail(f"{trace}\n\nseed {seed}: {found}\n(the trace is of another run)")


def test_histories_contain_every_kind_of_fault_and_end() -> None:
    lines = "\n".join(line for seed in range(60) for line in run(seed).lines)
    for kind in (
        *("lost", "refused", "expired", "held", "failed", "unacknowledged", "outage", "purged"),
        *("stopped", "ended", "slow", "unanswered"),
    ):
        assert f"fault {kind}" in lines
    for what in ("interrupted by KeyboardInterrupt at logtx", "CallbackError", "batch -> 3"):
        assert what in lines
    for told in ("COMMITTED", "TransactionAbortedError", "TransactionAbortOnlyError"):
        assert told in lines


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mend_that_is_taken_back_is_noticed(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation.apply(monkeypatch.setattr)
    for seed in (mutation.seed, *mutation.further_seeds, *TRIES):
        found = judge(seed, mutation.checker)
        if mutation.checker in found:
            print(f"seed {seed}: {found}")
            return
    pytest.fail(f"{mutation.checker} found nothing in {len(TRIES)} histories")


def test_docs_name_every_mutation_and_who_catches_it() -> None:
    described = described_in_docs()
    assert {(mutation.name, mutation.checker) for mutation in MUTATIONS} <= described
    assert set(CHECKERS) <= {name for name, _ in described}
    faults = (DOCS / "faults.md").read_text("utf-8")
    for mutation in MUTATIONS:
        assert f"`{mutation.name}`" in faults, mutation.name
