"""Proof that the checkers bite: break one rule on purpose, and the random histories must find it.

The mutations are those of the simulation that concern one shard and its tenures. Here they are
found in fewer steps, without producers, consumers and a network.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from logtx.coordinator.core import shard
from logtx.coordinator.core.ages import Ages
from logtx.coordinator.core.claims import Claims
from logtx.coordinator.core.committed_offsets import CommittedOffsets
from logtx.coordinator.core.shard import Shard
from logtx.journal.errors import TransactionStateError
from logtx.journal.position import Position
from logtx.journal.records.types import AbortReason

from ...simulation.mutations import (
    MUTATIONS,
    Mutation,
    Patch,
    adopting_mutations,
    place_mutations,
    sidecar_mutations,
)
from .test_shard_stateful import run_seed

OTHERS: Final = tuple(
    each.__name__ for each in (place_mutations, adopting_mutations, sidecar_mutations)
)
"""These histories switch no topic, and write to no sidecar."""
SEEDS: Final = 600
"""Seeds tried for each mutation. The first catches most of them; the rarest needs the 120th."""
LATE: Final = {
    "doomed_live_on_after_reload",
    "fenced_live_on_after_reload",
    "forget_what_is_held",
    "strangers_are_passed_over",
    "what_is_open_is_forgotten",
}
"""Mutations that are caught late, which takes as long as all others together."""


def fenced_live_on_after_reload(patch: Patch) -> None:
    """A new owner does not go on aborting what a fenced generation began."""
    loaded = Shard.loaded

    def mutant(self: Shard, *args: Any) -> Any:
        effects = loaded(self, *args)
        self._to_abort.clear()
        return effects

    patch(Shard, "loaded", mutant)


def claims_doom_nobody(patch: Patch) -> None:
    """What was open when its input was claimed may be committed."""
    patch(CommittedOffsets, "holders", lambda *_: set())


def doomed_live_on_after_reload(patch: Patch) -> None:
    """A new owner does not go on aborting what was open when its input was claimed."""
    loaded = Shard.loaded

    def mutant(self: Shard, *args: Any) -> Any:
        effects = loaded(self, *args)
        doomed = [each for each in self._to_abort if each[1] is AbortReason.CLAIMED]
        for each in doomed:
            self._to_abort.remove(each)
        return effects

    patch(Shard, "loaded", mutant)


def doomed_transactions_commit(patch: Patch) -> None:
    """Only the abort of what is doomed is written, and a commit may come before it."""
    patch(shard, "_check_not_doomed", lambda _: None)
    patch(Shard, "_due_to_abort", lambda *_: None)


def older_claims_go_on(patch: Patch) -> None:
    """Input of a consumer whose partitions were given to another is taken (trap 24)."""
    patch(Claims, "check", lambda *_: None)


def conditional_claims_win(patch: Patch) -> None:
    """Whoever goes back takes the partitions from their new consumer (trap 29)."""
    decide = Claims.decide
    patch(Claims, "decide", lambda self, asked: decide(self, replace(asked, expected=None)))


def claims_tell_pending_offsets(patch: Patch) -> None:
    """A claimant is told where a pending transaction would leave off."""
    committed = CommittedOffsets.committed

    def mutant(self: CommittedOffsets, group: str, partitions: Any = None) -> Any:
        told = committed(self, group, partitions)
        if partitions is None or group not in self._groups:
            return told
        to_come = {p: Position.at(o2) for p, o2, *_ in self._groups[group].to_come}
        return replace(told, offsets={**told.offsets, **to_come})

    patch(CommittedOffsets, "committed", mutant)


def forget_what_is_held(patch: Patch) -> None:
    """Offsets are forgotten while a transaction that moves them is not finished."""
    patch(Ages, "_held", lambda _: set())


BROKEN: Final = [
    # No topic is switched here, so nothing is placed.
    *(
        mutation
        for mutation in MUTATIONS
        if mutation.of == "shard" and mutation.apply.__module__ not in OTHERS
    ),
    # Then only the time-out ends such a transaction, and the simulation can't tell it from a hang.
    Mutation("fenced", "shard", fenced_live_on_after_reload),
    Mutation("offsets", "shard", claims_doom_nobody),
    Mutation("offsets", "shard", doomed_live_on_after_reload),
    Mutation("offsets", "shard", doomed_transactions_commit),
    Mutation("offsets", "shard", older_claims_go_on),
    Mutation("offsets", "shard", conditional_claims_win),
    Mutation("offsets", "shard", claims_tell_pending_offsets),
    Mutation("offsets", "shard", forget_what_is_held),
]


def run_seeds() -> None:
    for seed in range(SEEDS):
        run_seed(seed)


@pytest.mark.timeout(600)  # Seconds each, where nothing else runs.
@pytest.mark.parametrize(
    "mutation",
    [pytest.param(each, marks=[pytest.mark.slow] * (each.name in LATE)) for each in BROKEN],
    ids=lambda mutation: mutation.name,
)
def test_mutation_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.apply(monkeypatch.setattr)
    # A shard that can't replay its own journal is caught too.
    with pytest.raises((AssertionError, KeyError, TransactionStateError)) as caught:
        run_seeds()
    print(caught.value)
