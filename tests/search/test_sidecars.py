"""Sidecars, searched in a reduced form, and the proof that the search bites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from logtx.consumer.core import buffer as buffers
from logtx.consumer.core import pointers
from logtx.consumer.core.entries import EntryState
from logtx.consumer.core.pointers import PointedTransaction
from logtx.consumer.core.settling import SettlingQueue
from logtx.journal.sidecar import in_sidecar, is_delivered_from_sidecar

from .explore import Report, explore
from .scenarios import Search
from .sidecar_scenarios import SIDECAR_SEARCHES
from .sidecar_world import Left, Scenario, SidecarWorld

Patch = Callable[[object, str, object], None]
pytestmark = pytest.mark.timeout(900)
"""They take seconds on an idle machine, and minutes beside other work."""


def told(report: Report) -> str:
    return f"{report.world}: {report.violation}\n" + "\n".join(report.trace)


@pytest.mark.parametrize(
    "each",
    [
        # The others take seconds.
        pytest.param(each, marks=[pytest.mark.slow] * (each.full.name != "trimmed"))
        for each in SIDECAR_SEARCHES
    ],
    ids=lambda each: each.full.name,
)
def test_no_state_breaks_an_invariant(each: Search) -> None:
    assert isinstance(each.reduced, Scenario)
    world = SidecarWorld(each.reduced)
    report = explore(world)
    assert report.violation is None, told(report)
    assert report.complete
    print(f"{world.name}: {report.states} states, {world.logs} logs, {report.seconds:.0f} s")


@pytest.mark.slow
@pytest.mark.parametrize("each", SIDECAR_SEARCHES, ids=lambda each: each.full.name)
def test_no_state_of_larger_worlds_does(each: Search) -> None:
    assert isinstance(each.full, Scenario)
    world = SidecarWorld(each.full)
    report = explore(world)
    assert report.violation is None, told(report)
    assert report.complete
    print(f"{world.name}: {report.states} states, {world.logs} logs, {report.seconds:.0f} s")


# ---- rules, dropped one at a time ---------------------------------------------------------------


def nothing(_: Patch) -> None:
    """Drops a rule of the world, not of a core."""


def whoever_meets_one(patch: Patch) -> None:
    """Takes any pointer for the first."""
    patch(PointedTransaction, "read_from", property(lambda self: self.marker_offset))


def unsure_is_passed_over(patch: Patch) -> None:
    """Passes over a pointer whose first copy retention may have taken."""
    begin = PointedTransaction.begin

    def mutant(self: PointedTransaction, taken: int, side: int | None) -> None:
        begin(self, taken, side)
        if self.unsure:
            self.taken = self.total = self.available = 0
            self.state = EntryState.READY

    patch(PointedTransaction, "begin", mutant)


def a_copy_without_its_data_is_an_error(patch: Patch) -> None:
    """Raises at a copy whose sidecar was trimmed."""
    trimmed = SettlingQueue._settle_trimmed

    def mutant(self: SettlingQueue, entry: PointedTransaction, start: int) -> None:
        entry.unsure = False
        self.torn_skip_below = 0
        trimmed(self, entry, start)

    patch(SettlingQueue, "_settle_trimmed", mutant)


def side_is_the_last_record(patch: Patch) -> None:
    """Goes on at the last record delivered."""

    def mutant(offset: int) -> int | None:
        return in_sidecar(offset) if is_delivered_from_sidecar(offset) else None

    patch(pointers, "side_behind", mutant)
    patch(buffers, "side_behind", mutant)


def what_was_delivered_is_forgotten(patch: Patch) -> None:
    """Begins a pointer anew after a restart in its middle."""
    begin = PointedTransaction.begin
    patch(PointedTransaction, "begin", lambda self, _taken, _side: begin(self, 0, None))


def all_in_between_counts(patch: Patch) -> None:
    """Takes in what other transactions wrote between."""

    def mutant(self: PointedTransaction, records: Any, upto: int, _c: Any, deliver: Any) -> int:
        self.next_side = upto
        self._add([*records], deliver)
        return 0

    patch(PointedTransaction, "push", mutant)


@dataclass(frozen=True)
class Mutation:
    """A rule that is dropped, and where that shows."""

    name: str
    apply: Callable[[Patch], None]
    scenario: Scenario
    found: str


PLAIN = Scenario(name="", left=Left(1, 1, 0, 1, 1), length_max=3, plans=("S", "S"))
MUTATIONS = (
    Mutation("rule 2: whoever meets a pointer takes it", whoever_meets_one, PLAIN, "have it not"),
    Mutation(
        "rule 3, trap 91: each copy has a `since` of its own",
        nothing,
        replace(PLAIN, since_of_each_copy=True),
        "have it not",
    ),
    Mutation(
        "rule 1, trap 90: pointers beside the marker lane",
        nothing,
        replace(PLAIN, in_lane=False),
        "lost|order",
    ),
    Mutation("rule 4, trap 92: unsure is passed over", unsure_is_passed_over, PLAIN, "lost"),
    Mutation(
        "rule 4, trap 93: a copy without data is an error",
        a_copy_without_its_data_is_an_error,
        PLAIN,
        "stops",
    ),
    Mutation(
        "trap 94: a reset forgets the sequences met",
        nothing,
        replace(PLAIN, keeps_met=False),
        "twice",
    ),
    Mutation(
        "rule 7: `side` is the last record, not behind it",
        side_is_the_last_record,
        replace(PLAIN, plans=("SS", "S")),
        "twice|stops",
    ),
    Mutation(
        "rule 7: o3 is forgotten",
        what_was_delivered_is_forgotten,
        replace(PLAIN, plans=("SS", "S")),
        "twice",
    ),
    Mutation(
        "rule 6: what lies between is taken in",
        all_in_between_counts,
        replace(PLAIN, plans=("SS", "S")),
        "lost",
    ),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_search_finds_what_a_dropped_rule_breaks(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation.apply(monkeypatch.setattr)
    report = explore(SidecarWorld(mutation.scenario), states_max=60_000)
    assert report.violation is not None, f"not found in {report.states} states"
    assert any(word in report.violation for word in mutation.found.split("|")), told(report)
    assert report.trace
    print(told(report))


def test_a_restart_without_the_sidecars_offset_is_right_and_reads_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pointers, "side_behind", lambda _: None)
    monkeypatch.setattr(buffers, "side_behind", lambda _: None)
    report = explore(SidecarWorld(replace(PLAIN, plans=("SS", "S"), left=Left(0, 1, 0, 0, 0))))
    assert report.violation is None, told(report)
    assert report.complete
