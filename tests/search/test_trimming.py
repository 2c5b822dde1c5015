"""Trimming of sidecars, searched, and the proof that the search bites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from logtx.coordinator.core import shard as shards
from logtx.coordinator.core import snapshot, staircases, trimming
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.core.staircases import Staircases
from logtx.coordinator.core.trimming import JournalView, Noted, Trimming

from ..parameters import slow
from .explore import explore
from .test_sidecars import Patch, told
from .trimming_world import Left, Scenario, TrimmingWorld, _shard

pytestmark = pytest.mark.timeout(900)
"""They take seconds on an idle machine, and minutes beside other work."""

TWO = Scenario(name="two in one journal", left=Left(plain=0, copies=0), length_max=2)
OF_TWO_JOURNALS = replace(TWO, name="of two journals", journals=(0, 1))
COPIES = Scenario(name="copies", sizes=(1, 0), left=Left(plain=1, copies=2), length_max=3)
LARGER = replace(TWO, name="with records between", sizes=(2, 1))
ANEW = Scenario(name="anew", sizes=(1, 0), left=Left(plain=0, copies=1, anew=1), length_max=2)
STALE = Scenario(name="ends of the past", sizes=(1, 0), left=Left(stale=1), length_max=2)
LATE = Scenario(name="late records", sizes=(1, 0), left=Left(plain=1, late=1), length_max=2)
FROM_SNAPSHOTS = replace(TWO, name="from snapshots", from_snapshots=True)
REDUCED = (
    *(COPIES, STALE),
    *slow((TWO, OF_TWO_JOURNALS, LARGER, ANEW, LATE, FROM_SNAPSHOTS)),
)
FULL = (
    replace(TWO, left=Left(), length_max=4),
    replace(OF_TWO_JOURNALS, left=Left(), length_max=4),
    replace(COPIES, sizes=(1, 1), left=Left(plain=0)),
    replace(LARGER, left=Left(plain=0), length_max=3),
    replace(ANEW, sizes=(1, 1)),
    replace(STALE, sizes=(1, 1), length_max=3),
    replace(LATE, sizes=(1, 1)),
    replace(FROM_SNAPSHOTS, left=Left(plain=0), length_max=3),
)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    # A mutation makes other shards of the same records.
    _shard.cache_clear()


def visit(scenario: Scenario) -> None:
    world = TrimmingWorld(scenario)
    report = explore(world)
    assert report.violation is None, told(report)
    assert report.complete
    assert world.trims, "nothing was trimmed in any state"
    print(f"{world.name}: {report.states} states, {world.trims} trims, {report.seconds:.0f} s")


@pytest.mark.parametrize("scenario", REDUCED, ids=lambda each: each.name)
def test_nothing_that_a_reader_may_need_is_trimmed(scenario: Scenario) -> None:
    visit(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", FULL, ids=lambda each: each.name)
def test_nor_in_larger_worlds(scenario: Scenario) -> None:
    visit(scenario)


@pytest.mark.slow
def test_one_that_is_never_finished_holds_back_what_its_pointer_names_alone() -> None:
    world = TrimmingWorld(TWO)
    assert explore(world).violation is None
    assert world.beside_unfinished


@pytest.mark.slow
def test_nor_where_steps_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staircases, "STEPS_MAX", 1)
    visit(TWO)


# ---- rules, dropped one at a time ---------------------------------------------------------------


def nothing(_: Patch) -> None:
    """Drops a rule of the world, not of a core."""


def earlier_looks_count(patch: Patch) -> None:
    """Takes journals' ends that were asked for before the sidecars' (T2)."""
    told_of = trimming._Checkpoint.journals_told

    def mutant(self: Any, ends: Any, asked_ms: int, now_ms: int, apart: int) -> None:
        self.noted_ms, noted_ms = asked_ms, self.noted_ms
        told_of(self, ends, asked_ms, now_ms, apart)
        self.noted_ms = noted_ms

    patch(trimming._Checkpoint, "journals_told", mutant)


def nobody_waits(patch: Patch) -> None:
    """Trims though transactions from before the checkpoint are not decided."""
    patch(trimming._Checkpoint, "is_passed", lambda self, _: self.is_proved)


def a_commit_needs_nothing_before_it_is_finished(patch: Patch) -> None:
    """Forgets what pointers need that will be written."""
    patch(trimming, "steps_to_come", lambda _: {})


def a_pointer_to_come_counts_from_since_on(patch: Patch) -> None:
    """Takes a pointer that will be written for one where the main partition ended."""

    def mutant(cls: type[JournalView], shard: Shard) -> JournalView:
        to_come, needed = trimming.steps_to_come(shard.transactions), shard.staircases.needed

        def there(key: Any, main_start: int) -> Any:
            step = to_come.get(key)
            is_there = step is not None and step.pointer >= main_start
            return trimming._lowest((step if is_there else None, needed(key, main_start)))

        return cls(shard.undecided, there)

    patch(JournalView, "of", classmethod(mutant))


def one_journal_is_waited_for(patch: Patch) -> None:
    """Looks at what is undecided in the first journal partition alone."""
    passed = trimming._Checkpoint.is_passed

    def mutant(self: Any, journals: Any) -> bool:
        ends, self.journal_ends = self.journal_ends, {0: self.journal_ends.get(0, 0)}
        result = passed(self, journals)
        self.journal_ends = ends
        return result

    patch(trimming._Checkpoint, "is_passed", mutant)


def one_journal_is_asked(patch: Patch) -> None:
    """Asks the staircase of the first journal partition alone."""
    bound = trimming._bound
    patch(trimming, "_bound", lambda key, noted, journals: bound(key, noted, journals[:1]))


def one_look(patch: Patch) -> None:
    """Believes the first look at the journals' ends (T4)."""
    init = Trimming.__init__

    def mutant(self: Trimming, *, delay_ms: int, looks_apart_ms: int) -> None:
        del looks_apart_ms
        init(self, delay_ms=delay_ms, looks_apart_ms=0)

    patch(Trimming, "__init__", mutant)


def the_last_look_counts(patch: Patch) -> None:
    """Takes the second look for the truth, and not the higher one."""
    told_of = trimming._Checkpoint.journals_told

    def mutant(self: Any, ends: Any, asked_ms: int, now_ms: int, apart: int) -> None:
        self.journal_ends = {}
        told_of(self, ends, asked_ms, now_ms, apart)

    patch(trimming._Checkpoint, "journals_told", mutant)


def ids_are_not_compared(patch: Patch) -> None:
    """Takes any topic of the name for the one that was noted (T5)."""
    patch(Noted, "is_of", lambda *_: True)


def the_end_does_not_bound(patch: Patch) -> None:
    """Trims to what staircases need, beyond the noted end."""
    bound = trimming._bound
    patch(
        trimming,
        "_bound",
        lambda key, noted, journals: bound(key, replace(noted, end=noted.end + 1), journals),
    )


def pointers_need_nothing(patch: Patch) -> None:
    """Forgets what the pointers of finished transactions need."""
    patch(Staircases, "needed", lambda *_: None)


def pointers_at_the_start_need_nothing(patch: Patch) -> None:
    """Takes a pointer at the main log's start for one that is gone."""
    needed = Staircases.needed
    patch(Staircases, "needed", lambda self, key, start: needed(self, key, start + 1))


def a_commit_tells_no_pointer(patch: Patch) -> None:
    """Finishes a transaction without a word of its pointer."""
    finish = Shard.finish
    patch(Shard, "finish", lambda self, begin, gone, _: finish(self, begin, gone))


def the_last_record_is_needed(patch: Patch) -> None:
    """Says of a pointer that it needs the sidecar from its last record on."""

    def mutant(transaction: Any, pointers: Any) -> Any:
        steps = steps_of(transaction, pointers)
        return tuple(step._replace(first=step.first + 1) for step in steps)

    steps_of = shards.steps_of
    patch(shards, "steps_of", mutant)


def joined_steps_need_less(patch: Patch) -> None:
    """Joins two steps to one that needs what the later one does."""
    patch(staircases, "STEPS_MAX", 1)
    add = Staircases._add

    def mutant(self: Staircases, step: Any) -> None:
        add(self, step)
        known = self._steps[step.sidecar]
        self._steps[step.sidecar] = [known[-1]._replace(first=max(known[-1].first, step.first))]

    patch(Staircases, "_add", mutant)


def a_lower_pointer_replaces_a_higher_one(patch: Patch) -> None:
    """Drops a step for one that has no lower need, and a pointer below its own."""

    def mutant(self: Staircases, step: Any) -> None:
        self._steps[step.sidecar] = [step]

    patch(Staircases, "_add", mutant)


def a_snapshot_forgets(patch: Patch) -> None:
    """Leaves the staircases out of snapshots."""
    patch(snapshot.SnapshotTaker, "__init__", _without_staircases(snapshot.SnapshotTaker.__init__))


def _without_staircases(init: Callable[..., None]) -> Callable[..., None]:
    def mutant(self: Any, shard: Shard) -> None:
        kept, shard.staircases = shard.staircases, Staircases()
        init(self, shard)
        shard.staircases = kept

    return mutant


@dataclass(frozen=True)
class Mutation:
    """A rule that is dropped, and where that shows."""

    name: str
    apply: Callable[[Patch], None]
    scenario: Scenario


MUTATIONS = (
    Mutation(
        "T2, trap 125: journals' ends from before the sidecars'",
        earlier_looks_count,
        replace(TWO, journals_first=True),
    ),
    Mutation("T2, trap 128: what is undecided is not waited for", nobody_waits, TWO),
    Mutation(
        "trap 128: a commit needs nothing before it is finished",
        a_commit_needs_nothing_before_it_is_finished,
        TWO,
    ),
    Mutation(
        "trap 157: a pointer to come counts as one at since",
        a_pointer_to_come_counts_from_since_on,
        TWO,
    ),
    Mutation("T2: one journal is waited for", one_journal_is_waited_for, OF_TWO_JOURNALS),
    Mutation("one journal's staircase is asked", one_journal_is_asked, OF_TWO_JOURNALS),
    Mutation("T4, trap 126: one look", one_look, STALE),
    Mutation("T4: the last look counts", the_last_look_counts, STALE),
    Mutation("T5, trap 127: ids are not compared", ids_are_not_compared, ANEW),
    Mutation("T1: beyond the noted end", the_end_does_not_bound, TWO),
    Mutation("pointers need nothing", pointers_need_nothing, TWO),
    Mutation("a pointer at the start needs nothing", pointers_at_the_start_need_nothing, TWO),
    Mutation("a commit tells no pointer", a_commit_tells_no_pointer, TWO),
    Mutation("a pointer needs its last record", the_last_record_is_needed, LARGER),
    Mutation("joined steps need less", joined_steps_need_less, TWO),
    Mutation("a step replaces all others", a_lower_pointer_replaces_a_higher_one, TWO),
    Mutation("a snapshot forgets the staircases", a_snapshot_forgets, FROM_SNAPSHOTS),
)


LATE_FOUND = {
    "T5, trap 127: ids are not compared",
    "a pointer needs its last record",
    "a step replaces all others",
    "joined steps need less",
}
"""Found in seconds. Other rules of the staircases are dropped in every run of the tests, and trap
127 has a test of its own."""


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(each, marks=[pytest.mark.slow] * (each.name in LATE_FOUND), id=each.name)
        for each in MUTATIONS
    ],
)
def test_search_finds_what_a_dropped_rule_breaks(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation.apply(monkeypatch.setattr)
    report = explore(TrimmingWorld(mutation.scenario), states_max=400_000)
    assert report.violation is not None, f"not found in {report.states} states"
    assert report.trace
    print(told(report))


@pytest.mark.slow
def test_ends_asked_for_too_early_trim_nothing() -> None:
    world = TrimmingWorld(replace(TWO, journals_first=True))
    report = explore(world, states_max=100_000)
    assert report.violation is None, told(report)
    assert not world.trims


def test_a_checkpoint_is_used_when_it_is_as_old_as_the_delay() -> None:
    key = ("a._txnlog", 0)
    core = Trimming(delay_ms=1_000, looks_apart_ms=0)
    noted = Noted(end=7, main_start=0, topic_id="", main_id="")
    assert core.is_due(0)
    core.note({key: noted}, 0)
    assert not core.is_due(99)
    assert core.is_due(100)
    core.journals_told({0: 5}, 0, 1)
    at_rest = {0: JournalView(5, lambda *_: None)}
    assert core.bounds(at_rest, 999) == {}
    assert core.bounds(at_rest, 1_000)[key].offset == 7
    assert core.held_ms(5_000) == 0
