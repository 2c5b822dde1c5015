"""Proof that the checkers bite: break one rule on purpose, and the random histories must find it.

The mutations are those of the simulation that concern one shard and its tenures: here they are
found without producers, consumers and a network, and in fewer steps.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from logtx.coordinator.shard import Shard
from logtx.journal.errors import TransactionStateError

from ..simulation.mutations import MUTATIONS, Mutation, Patch
from .test_shard_stateful import run_seed

SEEDS: Final = 600
"""Most mutations are caught by the first of them, the rarest by the 30th."""


def fenced_live_on_after_reload(patch: Patch) -> None:
    """A new owner does not go on aborting what a fenced generation began."""
    loaded = Shard.loaded

    def mutant(self: Shard, *args: Any) -> Any:
        effects = loaded(self, *args)
        self._to_abort.clear()
        return effects

    patch(Shard, "loaded", mutant)


BROKEN: Final = [
    *(mutation for mutation in MUTATIONS if mutation.of == "shard"),
    # Only the time-out ends such a transaction, which the simulation can't tell from a hang.
    Mutation("fenced", "shard", fenced_live_on_after_reload),
]


def run_seeds() -> None:
    for seed in range(SEEDS):
        run_seed(seed)


@pytest.mark.parametrize("mutation", BROKEN, ids=lambda mutation: mutation.name)
def test_mutation_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.apply(monkeypatch.setattr)
    # A shard that can't replay its own journal is caught too.
    with pytest.raises((AssertionError, KeyError, TransactionStateError)) as caught:
        run_seeds()
    print(caught.value)
