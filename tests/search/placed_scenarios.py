"""Small configurations of metadata mode, and its rules, each with a way to drop it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from logtx.consumer.core import home_view
from logtx.consumer.core.home_view import HomeView
from logtx.consumer.core.placed_buffer import PlacedBuffer
from logtx.consumer.core.placed_input import PlacedInput
from logtx.coordinator.core.modes import TopicModes
from logtx.coordinator.core.places import Fence, Places
from logtx.coordinator.core.placing import Placer
from logtx.coordinator.core.staircases import Staircases
from logtx.journal.modes import Phase
from logtx.journal.places import GONE, PartitionId, Placed
from logtx.journal.position import Position
from logtx.journal.records.fate import EpochFilter
from logtx.journal.records.types import Entry

from ..simulation.mutations import Patch
from . import fences_world, lives_world, placed_cores
from .fences_world import FencesScenario
from .lives_world import LivesScenario
from .places_world import Budget, PlacesScenario

BOTH_WRITTEN: Final = (("d", 0), ("d", 1))
SWITCHED: Final[dict[str, Any]] = {
    "written": BOTH_WRITTEN,
    "marked": True,
    "reads_in_steps": False,
}

PLACES: Final = PlacesScenario(
    "places", "two placed transactions, plain records, a reader that is killed",
    (1, 1), Budget(plain=2, restarts=1),
)  # fmt: skip
HALVES: Final = PlacesScenario(
    "halves", "the same, killed in the middle of a transaction", (2, 1), Budget(plain=1, restarts=1)
)
PLACED_BY_TWO: Final = PlacesScenario(
    "replaced", "the owner is replaced, its question or its PLACED is late", (1, 1),
    Budget(plain=1, crashes=1), written=BOTH_WRITTEN, reads_in_steps=False,
)  # fmt: skip
LATE: Final = PlacesScenario(
    "late data", "records behind the decision, an abort", (1, 1), Budget(plain=1, late=1, aborts=1)
)
TO_PLACES: Final = PlacesScenario(
    "to places", "markers, then places; a marker or mode record lands twice", (1, 1),
    Budget(plain=1, switches=1, duplicates=1), **SWITCHED,
)  # fmt: skip
SWITCH_REPLACED: Final = PlacesScenario(
    "switch, replaced", "markers, places, markers; the owner is replaced", (1, 1),
    Budget(crashes=1, switches=2), **SWITCHED,
)  # fmt: skip
AND_BACK: Final = PlacesScenario(
    "and back", "markers, places, markers", (1, 1), Budget(plain=1, switches=2), **SWITCHED
)
AHEAD: Final = PlacesScenario(
    "ahead", "markers, places, markers; the journal is read ahead of the partition", (1, 1),
    Budget(plain=1, switches=2), reads_ahead=True, **SWITCHED,
)  # fmt: skip
AHEAD_AGAIN: Final = PlacesScenario(
    "ahead again", "places, markers, places; the journal is read ahead of the partition", (1, 1),
    Budget(switches=2), reads_ahead=True, written=BOTH_WRITTEN,
)  # fmt: skip
FOREIGN: Final = PlacesScenario(
    "foreign", "a transaction of another journal, which marks; a reader that is killed", (1,),
    Budget(plain=1, foreign=1, restarts=1),
)  # fmt: skip
TOO_LOW: Final = PlacesScenario(
    "too low", "an end is told too low: order may differ, no record may", (1, 1),
    Budget(plain=1, stale=1, restarts=1), keeps_order=False,
)  # fmt: skip
FENCES: Final = FencesScenario("fences", "every log start, trim and start offset of every history")
FENCES_TOO_LOW: Final = FencesScenario(
    "fences, too low", "the same, ends are told too low", plain=1, stale=2, snapshots=1
)
FENCES_SWITCHED: Final = FencesScenario(
    "fences, switched", "the same of a topic that goes over to places", records=(1, 1), plain=1,
    switched=True,
)  # fmt: skip
BOTH_DECIDED: Final = (("write", 1), ("write", 2), ("commit", 1), ("commit", 2))
LIVES: Final = LivesScenario(
    "lives", "readers that follow the home and are restarted, what is placed is held up",
    records=(1, 1), plain=1, snapshots=1, length_max=3, held_up=True, first=BOTH_DECIDED[:2],
)  # fmt: skip
FINISHED_FIRST: Final = (("write", 1), ("commit", 1), ("place", 1), ("finish", 1), ("snapshot",))
LIVES_TOO_LOW: Final = replace(
    LIVES, name="lives, too low", what="the same, ends are told too low; a trimmed journal",
    snapshots=2, stale=1, first=FINISHED_FIRST,
)  # fmt: skip
LIVES_SWITCHED: Final = replace(
    LIVES, name="lives, switched", what="the same of a topic that goes over to places", plain=0,
    length_max=4, switched=True,
)  # fmt: skip

ASIDES: Final = LivesScenario(
    "lives, sidecar", "the same of transactions whose records lie in the sidecar, or in both",
    records=(0, 1), asides=(2, 0), plain=0, snapshots=1, length_max=2,
)  # fmt: skip
ASIDES_IN_BOTH: Final = replace(
    ASIDES, name="lives, in both", records=(1, 0), asides=(1, 1), plain=1, snapshots=0,
)  # fmt: skip
ASIDES_HELD_UP: Final = replace(
    ASIDES, name="lives, sidecar, held up", asides=(1, 0), snapshots=1, plain=0, held_up=True,
)  # fmt: skip

PLACED_SEARCHES: Final[tuple[tuple[Any, Any], ...]] = (
    # In full, and as every test run visits it.
    (LATE, replace(LATE, records=(1,), budget=Budget(plain=1, late=1, aborts=1))),
    (PLACES, replace(PLACES, budget=Budget(plain=1, restarts=1), written=BOTH_WRITTEN,
                     length_max=3, reads_in_steps=False)),
    (HALVES, replace(HALVES, records=(2,))),
    (AND_BACK, replace(AND_BACK, records=(1,), written=(("d", 0),))),
    (AHEAD, replace(AHEAD, records=(1,), written=(("d", 0),))),
    (AHEAD_AGAIN, replace(AHEAD_AGAIN, records=(1,), written=(("d", 0),), reads_in_steps=False)),
    (TO_PLACES, replace(TO_PLACES, budget=Budget(switches=1, duplicates=1))),
    (PLACED_BY_TWO, replace(PLACED_BY_TWO, budget=Budget(crashes=1), length_max=3)),
    (SWITCH_REPLACED, replace(SWITCH_REPLACED, budget=Budget(crashes=1, switches=1))),
    (FOREIGN, replace(FOREIGN, budget=Budget(foreign=1, restarts=1))),
    (TOO_LOW, replace(TOO_LOW, budget=Budget(plain=1, stale=1), written=BOTH_WRITTEN,
                      length_max=3, reads_in_steps=False)),
    (FENCES, replace(FENCES, records=(2, 1), length_max=3, plain=1, snapshots=1)),
    (FENCES_TOO_LOW, replace(FENCES_TOO_LOW, records=(1, 1), length_max=3)),
    (FENCES_SWITCHED, replace(FENCES_SWITCHED, plain=0, snapshots=1)),
    (LIVES, replace(LIVES, first=(*BOTH_DECIDED, ("place",)))),
    (LIVES_TOO_LOW, replace(LIVES_TOO_LOW, first=(*FINISHED_FIRST, ("write", 2), ("plain",)))),
    (LIVES_SWITCHED, replace(LIVES_SWITCHED, first=(*BOTH_DECIDED[:3], ("mode",)))),
    (ASIDES, replace(ASIDES, asides=(1, 0))),
    (ASIDES_IN_BOTH, ASIDES_IN_BOTH),
    (ASIDES_HELD_UP, replace(ASIDES_HELD_UP, first=(("commit", 1), ("place", 0)))),
)  # fmt: skip


# ---- rules dropped ------------------------------------------------------------------------------


def any_journal_places(patch: Patch) -> None:
    """A journal places wherever it decides, bound to the topic or not (R1)."""
    patch(TopicModes, "is_placed", lambda *_: True)


def end_before_decision(patch: Patch) -> None:
    """An owner places at the end that it was told in an earlier round (R2)."""
    place = Places.place

    def mutant(self: Places, upto: int, ends: Any) -> Placed | None:
        told = self.__dict__.setdefault("_told", dict(ends))
        return place(self, upto, told)

    patch(Places, "place", mutant)


def places_fall(patch: Patch) -> None:
    """A place may lie below the partition's last one (R3)."""
    place = Places.place

    def mutant(self: Places, upto: int, ends: Any) -> Placed | None:
        last, self.last = self.last, {}
        found = place(self, upto, ends)
        self.last = last
        return found

    patch(Places, "place", mutant)


def below_what_was_written(patch: Patch) -> None:
    """A place may lie below the transaction's own records (R3)."""

    def mutant(self: Places, upto: int, ends: Any) -> Placed | None:
        found = {p: max(e, self.last.get(p, 0)) for p, e in ends.items() if self.unplaced.of(p)}
        return Placed(upto, found) if found else None

    patch(Places, "place", mutant)


def places_overtake_markers(patch: Patch) -> None:
    """A transaction is placed while an earlier marker of its journal waits (R4)."""
    ask = Placer.ask

    def mutant(self: Placer, now_ms: int) -> Any:
        first, self._first_marker = self._first_marker, lambda _: None
        found = ask(self, now_ms)
        self._first_marker = first
        return found

    patch(Placer, "ask", mutant)


def markers_overtake_places(patch: Patch) -> None:
    """A marker goes out while an earlier transaction waits for its place (R4)."""
    patch(Placer, "may_mark", lambda *_: True)


def all_markers_block(patch: Patch) -> None:
    """Nothing is placed while any marker waits, of whatever sequence."""
    ask = Placer.ask

    def mutant(self: Placer, now_ms: int) -> Any:
        key = next((p.key for p in self._unplaced.partitions()), None)
        return None if key and self._first_marker(key) is not None else ask(self, now_ms)

    patch(Placer, "ask", mutant)


class _Believing(EpochFilter):
    def accept(self, offset: int, entry: Entry) -> bool:
        super().accept(offset, entry)
        return True


def readers_believe_all(patch: Patch) -> None:
    """Readers count what a replaced owner placed (R6)."""

    def reads(self: placed_cores.LiveReader, *args: Any) -> None:
        begin(self, *args)
        self._epochs = _Believing()

    begin = placed_cores.LiveReader._begin
    patch(placed_cores.LiveReader, "_begin", reads)


def no_gate(patch: Patch) -> None:
    """Whatever was fetched is passed on (R7)."""
    advance = PlacedInput.advance

    def mutant(self: PlacedInput) -> None:
        self.horizon = max(self.horizon, self.next_offset)
        advance(self)

    patch(PlacedInput, "advance", mutant)


def asked_before_the_fetch(patch: Patch) -> None:
    """A gate passes on what was fetched after the home's end was asked for, too (R7)."""
    advance = PlacedInput.advance

    def mutant(self: PlacedInput) -> None:
        gate = self._gate
        if gate is not None:
            self._gate = gate._replace(frontier=self.next_offset)
        advance(self)

    def frontier(self: PlacedInput) -> int | None:
        return self.next_offset if self._gate is None else None

    patch(PlacedInput, "advance", mutant)
    patch(PlacedInput, "frontier", frontier)


def not_waited_for(patch: Patch) -> None:
    """A gate does not wait for what is decided and not placed (R7)."""
    patch(HomeView, "is_settled", lambda self, _, end: self.next_offset >= end)


def ties_turned_round(patch: Patch) -> None:
    """What is placed at one offset comes in the wrong order (R8)."""
    place = HomeView._place

    def mutant(self: HomeView, part: Any, at: int, due: Any) -> None:
        place(self, part, at, due)
        placed = part.placed
        if len(placed) > 1 and placed[-1][0] == placed[-2][0]:
            placed[-1], placed[-2] = placed[-2], placed[-1]

    patch(HomeView, "_place", mutant)


def late_data_counts(patch: Patch) -> None:
    """What has ended is not told from what is open (R9, R13)."""
    patch(placed_cores, "has_ended", lambda *_: False)


def position_without_sequence(patch: Patch) -> None:
    """A position says (o2, o3) alone (R10)."""
    position = PlacedBuffer.position

    def mutant(self: PlacedBuffer) -> Position:
        found = position(self)
        if found.passed is None:
            return found
        met = {journal: s for journal, s in found.met.items() if journal != found.passed.home}
        return replace(found, o3=found.o3 or found.passed.taken, met=met, passed=None)

    patch(PlacedBuffer, "position", mutant)


def fence_for_sequence(patch: Patch) -> None:
    """A new reader takes its fence for the last transaction delivered (R11)."""
    attach = HomeView.attach

    def mutant(self: HomeView, partition: PartitionId, start: Any, listed: Any = None) -> None:
        if listed is not None:
            start = replace(start, passed=self.next_offset - 1)
        attach(self, partition, start, listed)

    patch(HomeView, "attach", mutant)


def fence_at_the_start(patch: Patch) -> None:
    """A fence whose last place is the start offset itself is taken (R12)."""
    where_to_begin = home_view.where_to_begin

    def mutant(partition: PartitionId, start: Any, *rest: Any) -> Any:
        return where_to_begin(partition, replace(start, log_start=start.x), *rest)

    patch(fences_world, "where_to_begin", mutant)


def fence_forgets(patch: Patch) -> None:
    """A snapshot does not list what is decided and not placed (R13)."""
    patch(Places, "rows", lambda _: [])


def older_decisions_lower_the_bound(patch: Patch) -> None:
    """What a fence lists lowers what is known to be placed below the start (trap 173)."""
    place = HomeView._place

    def mutant(self: HomeView, part: Any, at: int, due: Any) -> None:
        place(self, part, at, due)
        if at != GONE and part.passed is None:
            part.below = due.sequence

    patch(HomeView, "_place", mutant)


def placed_at_the_logs_start_is_due(patch: Patch) -> None:
    """What is placed where the log starts is due to a new reader (trap 174)."""
    is_behind = home_view._Part.is_behind

    def mutant(self: Any, place: int, due: Any) -> bool:
        return place < self.x and is_behind(self, place, due)

    patch(home_view._Part, "is_behind", mutant)


def aside_at_the_logs_start_is_gone(patch: Patch) -> None:
    """What lies in the sidecar alone counts as delivered where the log starts (trap 166)."""
    is_behind = home_view._Part.is_behind

    def mutant(self: Any, place: int, due: Any) -> bool:
        return is_behind(self, place, due) or (not due.branches and place <= self.log_start)

    patch(home_view._Part, "is_behind", mutant)


def asides_are_due_at_once(patch: Patch) -> None:
    """What lies in the sidecar alone is due where the log starts, whatever comes behind it."""
    place = HomeView._place

    def mutant(self: HomeView, part: Any, at: int, due: Any) -> None:
        place(self, part, at, due)
        if part.passed is None and part.placed:
            part.passed = due.sequence - 1

    patch(HomeView, "_place", mutant)


def fences_forget_asides(patch: Patch) -> None:
    """A fence's last place is that of what lies in the sidecar, too (trap 167)."""
    patch(fences_world, "last_needed", lambda last, _: last)


def places_are_no_steps(patch: Patch) -> None:
    """A sidecar is trimmed as if nothing placed where the main log starts needed it (trap 169)."""
    needed = Staircases.needed
    patch(Staircases, "needed", lambda self, key, start: needed(self, key, start + 1))


def last_fence_for_all(patch: Patch) -> None:
    """A reader whose sequence is trimmed begins at the last fence, as new ones do (trap 175)."""

    def mutant(
        partition: PartitionId, start: Any, journal_start: int, candidates: Any
    ) -> tuple[int, bool] | None:
        for candidate in sorted(candidates, key=lambda c: -c.offset):
            found = home_view.where_to_begin(partition, start, journal_start, [candidate])
            if found is not None:
                return found
        return home_view.where_to_begin(partition, start, journal_start, ())

    patch(lives_world, "where_to_begin", mutant)


def trimmed_at_once(patch: Patch) -> None:
    """The journal is trimmed to a fence as soon as all is placed (R14)."""
    patch(Fence, "passed", lambda *_: True)


def places_before_mode_records(patch: Patch) -> None:
    """Decisions are placed from the first MODE record on, and no mode record waited for (R15)."""
    places_overtake_markers(patch)

    def mutant(self: TopicModes, partition: PartitionId) -> bool:
        return self.phase(*partition[::2]) in (Phase.TO_METADATA, Phase.METADATA)

    patch(TopicModes, "is_placed", mutant)


TIES: Final = replace(
    PLACES, budget=Budget(plain=1), written=BOTH_WRITTEN, reads_in_steps=False, length_max=3
)
ZOMBIE: Final = replace(
    PLACED_BY_TWO,
    records=(1,),
    written=(("d", 0),),
    length_max=2,
    budget=Budget(plain=1, crashes=1),
)
SWITCH: Final = replace(TO_PLACES, budget=Budget(plain=1, switches=1))
ASIDES_SMALL: Final = replace(ASIDES, asides=(1, 0))
SMALL_FENCES: Final = replace(FENCES, length_max=4)
PLACED_MUTATIONS: Final[tuple[tuple[str, str, Any, Any], ...]] = (
    ("any journal places", "two journals place in one partition (R1)", FOREIGN, any_journal_places),
    ("an end before the decision", "the end was asked for before the decision (R2)", TIES,
     end_before_decision),
    ("places fall", "a place lies below the partition's last (R3)", FENCES_TOO_LOW, places_fall),
    ("places below records", "a place lies below what it places (R3)", TOO_LOW,
     below_what_was_written),
    ("places overtake markers", "a place overtakes a marker of the same journal (R4)", SWITCH,
     places_overtake_markers),
    ("markers overtake places", "a marker overtakes a place of the same journal (R4)",
     replace(AND_BACK, budget=Budget(switches=2)),
     markers_overtake_places),
    ("all markers block", "a place waits for markers of higher sequences too (R4)", AND_BACK,
     all_markers_block),
    ("readers believe all", "a replaced owner's PLACED counts for readers (R6)", ZOMBIE,
     readers_believe_all),
    ("no gate", "whatever was fetched is passed on (R7)", TIES, no_gate),
    ("asked before the fetch", "the home's end is asked for before the fetch (R7)", TIES,
     asked_before_the_fetch),
    ("not waited for", "what is decided and not placed is not waited for (R7)", TIES,
     not_waited_for),
    ("ties turned round", "what is placed at one offset is turned round (R8)", TIES,
     ties_turned_round),
    ("late data counts", "what ended is not told from what is open (R9)", LATE, late_data_counts),
    ("position without sequence", "a position says (o2, o3) alone (R10)",
     replace(TIES, budget=Budget(restarts=1)),
     position_without_sequence),
    ("fence for sequence", "a fence is taken for the last sequence (R11)", SMALL_FENCES,
     fence_for_sequence),
    ("fence at the start", "a fence at the start offset is taken (R12)", SMALL_FENCES,
     fence_at_the_start),
    ("fence forgets", "a fence forgets what is decided and not placed (R13)", SMALL_FENCES,
     fence_forgets),
    ("the bound goes down", "a fence lists what is older than the bound (trap 173)",
     replace(LIVES, first=(*BOTH_DECIDED, ("place",))), older_decisions_lower_the_bound),
    ("due at the log's start", "what is placed at the log's start is due (trap 174)",
     replace(LIVES, first=(*BOTH_DECIDED, ("place",)), plain=0, length_max=2),
     placed_at_the_logs_start_is_due),
    ("gone at the log's start", "what lies in the sidecar is gone at the log's start (trap 166)",
     ASIDES_SMALL, aside_at_the_logs_start_is_gone),
    ("sidecars at once", "what lies in the sidecar is due before what is gone (trap 166)",
     ASIDES_SMALL, asides_are_due_at_once),
    ("fences forget sidecars", "a fence forgets what is placed at its last place (trap 167)",
     ASIDES_SMALL, fences_forget_asides),
    ("places are no steps", "a sidecar is trimmed at a place where the log starts (trap 169)",
     ASIDES_SMALL, places_are_no_steps),
    ("the last fence for all", "who was trimmed begins at the last fence (trap 175)",
     replace(LIVES_TOO_LOW, first=(*FINISHED_FIRST, ("write", 2), ("plain",))), last_fence_for_all),
    ("trimmed at once", "the journal is trimmed as soon as all is placed (R14)", SMALL_FENCES,
     trimmed_at_once),
    ("places before mode records", "decisions are placed before the mode records are written (R15)",
     SWITCH, places_before_mode_records),
)  # fmt: skip
