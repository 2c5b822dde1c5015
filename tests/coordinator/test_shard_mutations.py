"""Proof that the checkers bite: break one rule on purpose, and the random histories must find it.

Each mutation is a rule that `shard.py` or `runtime.py` states and a plausible way to lose it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from logtx.coordinator.decision import WriteMarkers
from logtx.coordinator.offsets import CommittedOffsets, Verdict
from logtx.coordinator.shard import Shard
from logtx.journal.errors import TransactionStateError
from logtx.journal.fate import NO_EPOCH, EpochFilter
from logtx.journal.records import AbortReason, Entry, Owner, PrepareAbort
from logtx.journal.state import State

from .harness import Coordinator
from .test_shard_stateful import run_seed

SEEDS: Final = 600
"""Most mutations are caught by the first of them, the rarest by the 30th."""

Mutation = Callable[[pytest.MonkeyPatch], None]


def no_epoch_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers believe what a replaced coordinator appends (TRAPS 3)."""
    accept = EpochFilter.accept

    def mutant(self: EpochFilter, offset: int, entry: Entry) -> bool:
        if isinstance(entry.record, Owner):
            return accept(self, offset, entry)
        return accept(self, offset, replace(entry, epoch=self.epoch))

    monkeypatch.setattr(EpochFilter, "accept", mutant)


def no_prediction_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers believe a record that lies in the place of a lost one.

    Two commits that were pipelined on one input (TRAPS 26) lose the first and keep the second.
    """
    accept = EpochFilter.accept

    def mutant(self: EpochFilter, offset: int, entry: Entry) -> bool:
        return accept(self, offset, replace(entry, predicted=offset))

    monkeypatch.setattr(EpochFilter, "accept", mutant)


def strangers_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers believe an epoch again behind a record that was not its own (TRAPS 2)."""
    accept = EpochFilter.accept

    def mutant(self: EpochFilter, offset: int, entry: Entry) -> bool:
        accepted = accept(self, offset, entry)
        self._surprised = self.epoch == NO_EPOCH
        return accepted

    monkeypatch.setattr(EpochFilter, "accept", mutant)


def speculative_hw(monkeypatch: pytest.MonkeyPatch) -> None:
    """HW counts what is still in flight (TRAPS 4)."""

    def mutant(self: Shard) -> int:
        return min((t.begin for t in self.transactions), default=self.next_offset)

    monkeypatch.setattr(Shard, "hw", property(mutant))


def hw_of_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """HW passes a transaction that is decided, before its markers are written."""

    def mutant(self: Shard) -> int:
        opened = (t.begin for t in self.transactions if t.state is State.OPEN)
        return min(min(opened, default=self._acknowledged_end), self._acknowledged_end)

    monkeypatch.setattr(Shard, "hw", property(mutant))


def always_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Input offsets are not compared when the commit is decided (TRAPS 26)."""
    monkeypatch.setattr(CommittedOffsets, "evaluate", lambda *_: Verdict.EQUAL)


def waits_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit does not wait for the earlier transaction whose input it continues."""
    evaluate = CommittedOffsets.evaluate

    def mutant(self: CommittedOffsets, *args: Any) -> Verdict:
        verdict = evaluate(self, *args)
        return Verdict.EQUAL if verdict is Verdict.WAIT else verdict

    monkeypatch.setattr(CommittedOffsets, "evaluate", mutant)


def replies_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply does not wait for its record."""
    monkeypatch.setattr(Coordinator, "parks_replies", False)


def bare_replies_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retried commit has nothing to append, and is answered at once (TRAPS 1)."""
    monkeypatch.setattr(Coordinator, "parks_bare_replies", False)


def any_offset_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """An append is taken for durable wherever it was acknowledged (TRAPS 2 and 5)."""
    monkeypatch.setattr(Coordinator, "checks_offsets", False)


def stale_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that could be stale does not ask for the journal's end."""
    monkeypatch.setattr(Coordinator, "asks_for_the_end", False)


def same_epoch_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A surprised owner serves on under its old epoch (TRAPS 3)."""
    monkeypatch.setattr(Coordinator, "wins_new_epochs", False)


def begins_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retried BEGIN opens another transaction."""
    replay = Shard._replay_begin

    def mutant(self: Shard, offset: int, record: Any) -> None:
        replay(self, offset, record)
        self.producers[record.producer_id].begins.clear()

    monkeypatch.setattr(Shard, "_replay_begin", mutant)


def fenced_live_on_after_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new owner does not go on aborting what a fenced generation began."""
    loaded = Shard.loaded

    def mutant(self: Shard, *args: Any) -> Any:
        effects = loaded(self, *args)
        self._to_abort.clear()
        return effects

    monkeypatch.setattr(Shard, "loaded", mutant)


def zombies_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session of a command is not looked at, and fenced transactions stay open."""
    monkeypatch.setattr(Shard, "_require_session", lambda self, s: self.producers[s.producer_id])
    monkeypatch.setattr(Shard, "_due_fenced", lambda *_: None)


def expiry_ignores_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time-out aborts what is being committed, and the last decision counts (TRAPS 13)."""
    replay = Shard._replay_abort

    def replay_abort(self: Shard, offset: int, record: PrepareAbort) -> Any:
        transaction = self.transactions.get(record.begin)
        if transaction is not None and transaction.state is State.COMMITTING:
            transaction.state = State.ABORTING
            transaction.commit_sequence = offset
            return ()
        return replay(self, offset, record)

    def due_expired(self: Shard, now: Any) -> Any:
        for transaction in self.transactions:
            late = transaction.started_ms + transaction.timeout_ms <= now.wall_ms
            if late and not transaction.state.aborts:
                return self._abort(transaction, AbortReason.EXPIRED, now)
        return None

    monkeypatch.setattr(Shard, "_replay_abort", replay_abort)
    monkeypatch.setattr(Shard, "_due_expired", due_expired)


def bindings_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last to bind a consumer group wins, not the first (TRAPS 28)."""
    handle = Shard._handle_bind

    def mutant(self: Shard, *args: Any) -> Any:
        bound, self.bindings = self.bindings, {}
        try:
            return handle(self, *args)
        finally:
            self.bindings = bound

    monkeypatch.setattr(Shard, "_handle_bind", mutant)


def redone_in_order_of_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new owner writes markers in the order of the TxIds, not of the decisions."""
    loaded = Shard.loaded

    def mutant(self: Shard, *args: Any) -> Any:
        effects = loaded(self, *args)
        markers = [e for e in effects if isinstance(e, WriteMarkers)]
        others = [e for e in effects if not isinstance(e, WriteMarkers)]
        return [*others, *sorted(markers, key=lambda e: e.transaction.begin)]

    monkeypatch.setattr(Shard, "loaded", mutant)


def offsets_not_asserted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new owner leaves the copy of the IOVs to the old one (TRAPS 27)."""
    loaded = Shard.loaded

    def mutant(self: Shard, *args: Any) -> Any:
        return [e for e in loaded(self, *args) if isinstance(e, WriteMarkers)]

    monkeypatch.setattr(Shard, "loaded", mutant)


def nothing_redone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new owner does not write the markers that its predecessor may not have written."""
    loaded = Shard.loaded

    def mutant(self: Shard, *args: Any) -> Any:
        return [e for e in loaded(self, *args) if not isinstance(e, WriteMarkers)]

    monkeypatch.setattr(Shard, "loaded", mutant)


MUTATIONS: Final[tuple[Mutation, ...]] = (
    no_epoch_check,
    no_prediction_check,
    strangers_are_passed_over,
    speculative_hw,
    hw_of_decided,
    always_equal,
    waits_are_equal,
    replies_at_once,
    bare_replies_at_once,
    any_offset_will_do,
    stale_answers,
    same_epoch_again,
    begins_forgotten,
    fenced_live_on_after_reload,
    zombies_commit,
    expiry_ignores_the_decision,
    bindings_change,
    redone_in_order_of_begin,
    offsets_not_asserted_again,
    nothing_redone,
)


def run_seeds() -> None:
    for seed in range(SEEDS):
        run_seed(seed)


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_mutation_is_caught(mutate: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    # A shard that can't replay its own journal is caught too.
    with pytest.raises((AssertionError, KeyError, TransactionStateError)) as caught:
        run_seeds()
    print(caught.value)
