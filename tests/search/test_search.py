"""The search in a reduced form, and the proof that it bites. `make search` runs it in full."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from .explore import Move, Report, State, explore
from .lives_world import LivesWorld
from .mutations import MUTATIONS, Mutation, search
from .scenarios import SEARCHES, Search

STATES_MAX = 60_000
LARGE = {
    *("claims", "duel", "expiry", "fencing", "look-ups", "markers", "offsets", "parts"),
    *("one partition", "questions", "and back", "replaced", "switch, replaced", "to places"),
    *("too low", "adopted, in order", "adopted, replaced", "fences, switched", "fences, too low"),
    *("queue: crashes", "queue: cumulative", "queue: deleted", "queue: repeated", "queue: reset"),
    "queue: slow",
    *("a sequence of the other", "aborts free all", "an end before the adoption"),
    *("an end before the decision", "cumulative over deleted", "cumulative over pending"),
    *("ends before fates", "placed beside refusals", "places below records", "places fall"),
    *("redone in order of BEGIN", "replaced owners are believed", "void decisions adopted"),
    *("adopted, again", "eras of one's own", "fences", "foreign", "halves", "kept behind a reset"),
    *("late data", "leases as they were", "markers overtake places", "places", "plain of before"),
    *("queue: expiry", "queue: owners", "unknown outcome"),
    *("adopted, aborts", "adopted, back", "adopted, halves", "adopted, two", "lives"),
    *("lives, switched", "ownership"),
    *("a look-up drops at once", "acks of before", "adopted twice", "adopted without a gate"),
    *("eras end while pending", "handed over beside markers", "held of before"),
    *("markers before answers", "places in any mode", "places overtake markers"),
    *("readers believe all", "readers ignore aborts", "stale leases", "the decision alone"),
    "the last fence for all",
}
"""Names of searches, and of dropped rules, that take more than half a second. Each kind of world
has others, which every run of the tests visits."""


def parameters(some: Iterable[Search | Mutation]) -> list[Any]:
    """Returns a parameter for each, of its name; the large ones are slow."""
    named = [(each.full.name if isinstance(each, Search) else each.name, each) for each in some]
    return [
        pytest.param(each, id=name, marks=[pytest.mark.slow] * (name in LARGE))
        for name, each in named
    ]


def told(report: Report) -> str:
    return f"{report.world}: {report.violation}\n" + "\n".join(report.trace)


@pytest.mark.parametrize("each", parameters(SEARCHES))
def test_no_state_breaks_an_invariant(each: Search) -> None:
    world = each.world(reduced=True)
    report = explore(world, states_max=STATES_MAX)
    assert report.violation is None, told(report)
    assert report.complete, f"{report.states} states, and no end"
    # Where readers live through whole histories, they are what there is much of.
    assert report.states > 100 or (isinstance(world, LivesWorld) and world.starts > 1_000)


@pytest.mark.parametrize("mutation", parameters(MUTATIONS))
def test_search_finds_what_a_dropped_rule_breaks(mutation: Mutation) -> None:
    report = search(mutation, states_max=STATES_MAX)
    assert report.violation is not None, f"{mutation.what}: not found in {report.states} states"
    assert report.trace
    print(told(report))


class Stairs:
    """A world of two counters that go up to `top`; one place in it breaks an invariant."""

    name = "stairs"

    def __init__(self, top: int, broken: State | None) -> None:
        self.top, self.broken = top, broken

    def initial(self) -> State:
        return 0, 0

    def moves(self, state: State) -> list[tuple[Move, State | str]]:
        a, b = state
        found: list[tuple[Move, State | str]] = []
        if a < self.top:
            found.append((("a", False), (a + 1, b)))
        if b < self.top:
            found.append((("b", False), (a, b + 1)))
        return found

    def check(self, state: State) -> str | None:
        return "it broke" if state == self.broken else None

    def tell(self, state: State, move: Move, traded: bool) -> str:  # noqa: ARG002
        return f"{move[0]} from {state}"

    def tell_end(self, state: State) -> list[str]:  # noqa: ARG002
        return []


def test_the_large_ones_are_there() -> None:
    names = {each.full.name for each in SEARCHES} | {each.name for each in MUTATIONS}
    assert names >= LARGE


def test_every_state_is_visited_once() -> None:
    report = explore(Stairs(9, None))
    assert (report.states, report.transitions, report.depth) == (100, 180, 18)
    assert report.complete
    assert sum(report.levels) == 100


def test_a_trace_is_a_shortest() -> None:
    report = explore(Stairs(9, (2, 1)))
    assert report.violation == "it broke"
    assert not report.complete
    assert len(report.trace) == 3
    assert report.trace[0] in ("a from (0, 0)", "b from (0, 0)")


def test_a_limit_ends_a_search_that_would_not() -> None:
    report = explore(Stairs(10**9, None), states_max=1_000)
    assert not report.complete
    assert report.violation is None
