"""Compaction of sidecars, searched, and the proof that the search bites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from logtx.coordinator.core import compacting
from logtx.coordinator.core.compacting import Compaction, Scan
from logtx.journal.relocation import Relocation, Relocations

from ..parameters import slow
from .compacting_world import CompactingWorld, Left, Scenario, _plan
from .explore import explore
from .test_sidecars import Patch, told

pytestmark = pytest.mark.timeout(900)
"""They take seconds on an idle machine, and minutes beside other work."""

ONE = Scenario(name="one range, a copier that dies", sizes=(2,), commits=(True,))
BESIDE = Scenario(
    name="another transaction beside it",
    sizes=(1, 1),
    commits=(True, True),
    left=Left(retention=1, trims=1, runs=1, kills=0),
    length_max=7,
)
TWO_COPIERS = Scenario(
    name="two copiers",
    sizes=(1, 0),
    commits=(True, False),
    copiers=2,
    left=Left(trims=0, kills=0),
    length_max=7,
)
AGAIN = replace(ONE, name="a copy is copied", sizes=(1,), left=Left(runs=3, kills=0))
ANEW = Scenario(
    name="the sidecar is created anew",
    sizes=(1, 1),
    commits=(True, True),
    left=Left(retention=0, trims=0, anew=1, runs=1, kills=0),
    length_max=5,
)
STALE = replace(ONE, name="relocations of the past", left=Left(runs=2, kills=0, stale=1))
REDUCED = (ONE, TWO_COPIERS, AGAIN, STALE, *slow((BESIDE, ANEW)))
FULL = (
    replace(ONE, sizes=(2, 1), commits=(True, False), left=Left(runs=2)),
    replace(TWO_COPIERS, sizes=(2, 0), left=Left(trims=0, kills=1, runs=2), length_max=9),
    replace(STALE, copiers=2),
)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    # A mutation makes other plans of the same logs.
    _plan.cache_clear()


def visit(scenario: Scenario) -> None:
    world = CompactingWorld(scenario)
    report = explore(world)
    assert report.violation is None, told(report)
    assert report.complete
    assert world.trims, "no run trimmed in any state"
    assert world.read_copies, "no copy was read in any state"
    print(f"{world.name}: {report.states} states, {world.trims} trims, {report.seconds:.0f} s")


@pytest.mark.parametrize("scenario", REDUCED, ids=lambda each: each.name)
def test_nothing_that_a_pointer_needs_is_lost(scenario: Scenario) -> None:
    visit(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", FULL, ids=lambda each: each.name)
def test_nor_in_larger_worlds(scenario: Scenario) -> None:
    visit(scenario)


# ---- rules, dropped one at a time ---------------------------------------------------------------


def nothing(_: Patch) -> None:
    """Drops a rule of the world, not of a core."""


def unmarked_hold_nothing(patch: Patch) -> None:
    """Goes up to the noted end, whatever has no marker yet (K4)."""
    patch(Scan, "_limit", lambda self: (self._noted.end, None))


def the_noted_end_does_not_bound(patch: Patch) -> None:
    """Counts records behind the noted end to what may go (K1)."""
    limit = Scan._limit

    def mutant(self: Any) -> Any:
        found, held_by = limit(self)
        return (found + 1, held_by) if held_by is None else (found, held_by)

    patch(Scan, "_limit", mutant)


def pointers_at_the_start_need_nothing(patch: Patch) -> None:
    """Takes a pointer at the main log's start for one that is gone (K5)."""
    needed = Scan._needed

    def mutant(self: Any) -> Any:
        return [each for each in needed(self) if each.pointer > self._noted.main_start]

    patch(Scan, "_needed", mutant)


def copies_are_not_needed(patch: Patch) -> None:
    """Forgets what has moved before (K5)."""
    needed = Scan._needed

    def mutant(self: Any) -> Any:
        return [each for each in needed(self) if each.copy_id is None]

    patch(Scan, "_needed", mutant)


def a_moved_range_lies_where_it_lay(patch: Patch) -> None:
    """Takes any relocation for one of a copy that is there."""

    def mutant(self: Any, sidecar: Any, topic_id: str, txid: bytes, start: int) -> Any:
        del start
        return find(self, sidecar, topic_id, txid, 0)

    find = Relocations.find
    patch(Relocations, "find", lambda *given: _first(mutant(*given), given))


def _first(found: Relocation | None, given: Any) -> Relocation | None:
    relocations, sidecar, _, txid, _ = given
    those = (
        [each for each in relocations.of(sidecar, found.topic_id) if each.txid == txid]
        if (found)
        else []
    )
    return min(those, key=lambda each: each.first, default=None)


def only_the_bound_counts(patch: Patch) -> None:
    """Copies no range, though it trims what they name (K6)."""
    plan = Scan.plan

    def mutant(self: Any, share: float) -> Any:
        found = plan(self, share)
        return compacting.Plan(found.start, found.bound, found.copies[1:], found.held_by)

    patch(Scan, "plan", mutant)


def a_copy_is_said_to_lie_one_further(patch: Patch) -> None:
    """Says that a copy begins behind its first record."""
    copied = Compaction.copied

    def mutant(self: Any, needed: Any, offsets: Any) -> Relocation:
        found = copied(self, needed, offsets)
        found.first += 1
        return found

    patch(Compaction, "copied", mutant)


@dataclass(frozen=True)
class Mutation:
    """A rule that is dropped, and where that shows."""

    name: str
    apply: Callable[[Patch], None]
    scenario: Scenario


def _without(rule: str, scenario: Scenario) -> Scenario:
    return replace(scenario, dropped=rule)


MUTATIONS = (
    Mutation("K1: beyond the noted end", the_noted_end_does_not_bound, BESIDE),
    Mutation(
        "K2, trap 189: relocations before the start", nothing, _without("facts first", TWO_COPIERS)
    ),
    Mutation(
        "K3, trap 192: trimmed meanwhile", nothing, _without("trimmed meanwhile", TWO_COPIERS)
    ),
    Mutation("K4, trap 193: what has no marker holds nothing", unmarked_hold_nothing, ONE),
    Mutation("K5: a pointer at the start needs nothing", pointers_at_the_start_need_nothing, ONE),
    Mutation("K5: copies are not needed", copies_are_not_needed, AGAIN),
    Mutation("trap 190: the first copy counts", a_moved_range_lies_where_it_lay, AGAIN),
    Mutation("K6: one range is not copied", only_the_bound_counts, ONE),
    Mutation(
        "K7: the relocation before the last record", nothing, _without("relocation first", ONE)
    ),
    Mutation("K8: trims before it is copied", nothing, _without("trims first", ONE)),
    Mutation("K8, trap 195: no grace period", nothing, _without("grace", STALE)),
    Mutation(
        "K8, trap 195: no grace period of another's relocations",
        nothing,
        _without("grace of others", replace(STALE, copiers=2)),
    ),
    Mutation("K9: ids are not compared", nothing, _without("ids", ANEW)),
    Mutation("trap 194: coordinators go by what lies there", nothing, _without("copies", ONE)),
    Mutation("a copy lies one further", a_copy_is_said_to_lie_one_further, ONE),
    Mutation(
        "trap 189: a reader reads relocations first",
        nothing,
        _without("reader's facts first", ONE),
    ),
)


LATE_FOUND = {"K8, trap 195: no grace period of another's relocations"}
"""Found in seconds. Without any grace period, the same is found in every run of the tests."""


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
    report = explore(CompactingWorld(mutation.scenario), states_max=400_000)
    assert report.violation is not None, f"not found in {report.states} states"
    assert report.trace
    print(told(report))
