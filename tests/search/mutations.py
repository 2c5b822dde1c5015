"""Proof that the search bites: drop one rule of a real core, and it finds what that breaks.

Each mutation is a plausible way to lose a rule, with the number of the trap that it opens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.ranges import ControlCache, Match
from logtx.consumer.side_read import SideReader
from logtx.coordinator.core.tenure import Tenure
from logtx.journal.errors import CoordinatorLoadingError
from logtx.journal.position import Position

from ..simulation import mutations as shared
from ..simulation.mutations import Patch
from . import scenarios as s
from .adopting_scenarios import ADOPTING_MUTATIONS
from .explore import Report, explore
from .journal_world import Budget
from .marker_world import Budget as MarkerBudget
from .placed_scenarios import PLACED_MUTATIONS
from .queue_scenarios import QUEUE_MUTATIONS


@dataclass(frozen=True)
class Mutation:
    """A rule that is dropped."""

    name: str
    traps: str
    """Numbers of the traps; "" if no trap describes it."""
    what: str
    scenario: s.Scenario
    apply: Callable[[Patch], None]


def late_acknowledgements_count(patch: Patch) -> None:
    """An append that times out fails its own reply, and the next acknowledgement counts."""
    acknowledged = Tenure.acknowledged

    def mutant(
        self: Tenure, predicted: int, offset: int | None, now_ms: int, why: str = ""
    ) -> None:
        if offset is not None:
            self.acknowledged_end = predicted
            acknowledged(self, predicted, offset, now_ms, why)
            return
        for parked in [p for p in self._parked if p.behind == predicted + 1]:
            self._parked.remove(parked)
            self._fail(parked.item, CoordinatorLoadingError(why))

    patch(Tenure, "acknowledged", mutant)


def side_read_misses_markers(patch: Patch) -> None:
    """A side read that meets an earlier marker does not take the later one for a duplicate."""
    settle = SideReader._settle

    def mutant(self: SideReader, current: Any, request: Any, *, duplicate: bool) -> None:  # noqa: ARG001
        settle(self, current, request, duplicate=False)

    patch(SideReader, "_settle", mutant)


def ranges_ignored(patch: Patch) -> None:
    """All records that the buffer holds are counted, not those that the marker states."""

    judge = ControlCache.judge

    def mutant(self: ControlCache, records: Any, ranges: Any) -> Any:
        held = list(records)
        verdict = judge(self, held, ranges)
        total = sum(r.count for r in ranges)
        return replace(verdict, match=Match.MORE) if len(held) > total else verdict

    patch(ControlCache, "judge", mutant)
    patch(ControlCache, "judge_without_duplicates", lambda *args: args[-1])


def look_up_drops_at_once(patch: Patch) -> None:
    """A look-up that finds a transaction ended drops it, without reading up to the end."""
    resolve = PartitionBuffer.resolve

    def mutant(self: PartitionBuffer, raw: bytes, *, end_offset: int, ended: bool) -> None:  # noqa: ARG001
        resolve(self, raw, end_offset=0, ended=ended)

    patch(PartitionBuffer, "resolve", mutant)


def _position(change: Callable[[Position], Position]) -> Callable[[Patch], None]:
    def apply(patch: Patch) -> None:
        position = PartitionBuffer.position
        patch(PartitionBuffer, "position", lambda self: change(position(self)))

    return apply


def nothing(_: Patch) -> None:
    """Patches nothing: the scenario itself breaks the rule."""


JOURNAL: Final = replace(
    s.UNKNOWN.full, budget=Budget(losses=1, bids=1, retries=1), keeps_void_records=True
)
COMMITTING: Final = replace(JOURNAL, **s.BEGUN)
"""Begins with both transactions open: it is a commit that breaks."""
OFFSETS: Final = replace(s.QUESTIONS.full, keeps_void_records=True)
CLAIMS: Final = replace(s.CLAIMS.full, keeps_void_records=True)
ONE: Final = replace(
    s.DUPLICATES.full,
    budget=MarkerBudget(crashes=1, bids=1, duplicates=1, look_ups=1),
    keeps_void_records=True,
)

SHORT: Final = replace(
    s.MARKERS.full,
    scripts=(("begin", 0, "commit"), ("begin", 0, "commit")),
    budget=MarkerBudget(crashes=1, bids=1),
)

MUTATIONS: Final = (
    Mutation("bare replies at once", "1", "a retried commit is answered before the first is"
             " durable", COMMITTING, shared.bare_reply_at_once),
    Mutation("late acknowledgements count", "2", "an acknowledgement behind a lost append counts",
             COMMITTING, late_acknowledgements_count),
    Mutation("the same epoch again", "3", "after a surprise the owner serves on under its old"
             " epoch", replace(JOURNAL, same_epoch_again=True), nothing),
    Mutation("speculative HW", "4", "HW counts what is still in flight", JOURNAL,
             shared.speculative_hw),
    Mutation("any offset will do", "5", "an append counts wherever it was acknowledged",
             JOURNAL, shared.any_offset_will_do),
    Mutation("replies before their records", "", "a reply does not wait for its own record",
             COMMITTING, shared.reply_before_acknowledgement),
    Mutation("markers at once", "", "markers go out before the decision is durable",
             COMMITTING, shared.marker_before_the_decision),
    Mutation("stale answers", "", "an answer that could be stale does not ask for the journal's"
             " end", OFFSETS, shared.stale_answers),
    Mutation("no compare-and-set", "26", "input offsets are not compared when a commit is decided",
             OFFSETS, shared.no_compare_and_set),
    Mutation("claims doom nothing", "24", "what is open when its input is claimed may still be"
             " committed", CLAIMS, shared.claims_doom_nothing),
    Mutation("conditions of claims", "29", "a conditional claim holds whoever claimed since",
             CLAIMS, shared.condition_not_looked_at),
    Mutation("replaced owners are believed", "2, 3", "readers take what lies behind a surprise",
             OFFSETS, shared.no_prediction_check),
    Mutation("redone in order of BEGIN", "", "a new owner writes markers in the order of TxIds",
             SHORT,
             shared.redone_in_order_of_begin),
    Mutation("nothing redone", "", "a new owner writes no markers for what it finds decided",
             COMMITTING, shared.nothing_redone),
    Mutation("HW of the decided", "", "HW passes a transaction before its markers are written",
             JOURNAL, shared.hw_too_early),
    Mutation("repeated parts", "", "a part that is sent again is taken for another one",
             s.PARTS.full, shared.repeated_parts_count_again),
    Mutation("the decision alone", "", "what parts name is not part of the commit",
             s.PARTS.full, shared.the_decision_alone_counts),
    Mutation("a side read misses markers", "14", "an earlier marker on the way is passed over",
             ONE, side_read_misses_markers),
    Mutation("ranges ignored", "15", "all records held are counted, not those that the marker"
             " states", ONE, ranges_ignored),
    Mutation("a look-up drops at once", "16", "what the journal shows ended is dropped before the"
             " partition is read up to its end", ONE, look_up_drops_at_once),
    Mutation("ends before fates", "17", "a look-up asks for the end first, then for the fate",
             replace(ONE, ends_first=True), nothing),
    Mutation("o2 past the marker", "18", "the position in the middle of a delivery lies behind it",
             ONE, _position(lambda p: replace(p, o2=p.o2 + 1, o3=0) if p.o3 else p)),
    Mutation("o3 forgotten", "18", "the position says nothing of the records delivered",
             ONE, _position(lambda p: replace(p, o3=0))),
    *(Mutation(name, "", *rest) for name, *rest in PLACED_MUTATIONS),
    *(Mutation(name, "", *rest) for name, *rest in ADOPTING_MUTATIONS),
    *(Mutation(name, traps, *rest) for name, traps, *rest in QUEUE_MUTATIONS),
)  # fmt: skip


def search(mutation: Mutation, *, states_max: int = 2_000_000) -> Report:
    """Searches with a rule dropped."""
    with pytest.MonkeyPatch.context() as patch:
        mutation.apply(patch.setattr)
        return explore(s.world_of(mutation.scenario), states_max=states_max)
