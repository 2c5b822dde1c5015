"""The small world of places: a data partition, its home journal, an owner, and a reader.

An owner decides, asks for the partition's end, and appends PLACED, in steps of their own. It may be
replaced at any moment. Then its question or its PLACED is on its way for ever: it may land, void,
and the owner of that time learns by its surprise that it must begin anew. The topic may be switched
to places and back, by mode records that stand in the lane with the markers. Appends of an owner
land and are acknowledged at once; `journal_world` takes that apart.

The reader's fetches, its questions for the journal's end and its reading of the journal are steps
of their own. Here they can't be put behind those of the writers, as `readers` does: what a gate
says depends on the moment. It delivers whatever it may after every step, for what it knows only
grows. It may be killed once, also in the middle of a transaction, and goes on from its position.

What it delivers is compared with what a reader gets who comes when all is over, by a naive reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from logtx.coordinator.core.modes import TopicModes
from logtx.journal.modes import Phase
from logtx.journal.places import PartitionId

from .explore import Move, State
from .placed_cores import (
    FROM_THE_START,
    MARKERS_FIRST,
    AheadReader,
    LiveReader,
    OwnerFacts,
    ReaderFacts,
)
from .placed_logs import Decided, Item, expected
from .places_draft import (
    ABORTS,
    CRASHES,
    DUPLICATES,
    FOREIGN,
    LATE,
    PLAIN,
    RESTARTS,
    STALE,
    SWITCHES,
    Budget,
    Cores,
    Cut,
    Draft,
)

FOREIGN_PARTITION: Final = PartitionId("a", 0, "id")


@dataclass(frozen=True)
class PlacesScenario:
    """A small configuration."""

    name: str
    what: str
    records: tuple[int, ...]
    """Records that each transaction may write, by transaction."""
    budget: Budget
    written: tuple[Item, ...] = ()
    """What lies in the partition from the start; ("d", n) is of transaction n."""
    length_max: int = 7
    """Length at which the partition is full."""
    marked: bool = False
    """Whether the topic begins with markers."""
    keeps_order: bool = True
    """False: an end that is too low may cost the order, but no record."""
    reads_in_steps: bool = True
    """Whether the reader may stop at every record of the journal."""
    reads_ahead: bool = False
    """Whether the reader reads the journal where it follows no home, too."""


class PlacesWorld(Cores):
    """A scenario's states and steps.

    A state: (data, journal, owner, zombies, budget, reader, records known of the journal, what was
    delivered, where the reader may be killed).
    """

    draft: type[Draft] = Draft

    def __init__(self, scenario: PlacesScenario) -> None:
        """Begins without any state visited."""
        self.name = scenario.name
        self.scenario = scenario
        super().__init__(AheadReader if scenario.reads_ahead else LiveReader)
        self._expected: dict[tuple[int, int], list[int]] = {}

    @property
    def steps_of_cores(self) -> int:
        """Number of distinct steps that a real core took."""
        return self.owners.steps_taken + self.readers.steps_taken

    def begin_of(self, number: int) -> int:
        """Returns the offset of a transaction's BEGIN: they follow the first OWNER record."""
        return 1 + number

    # ---- the search's questions -----------------------------------------------------------------

    def initial(self) -> State:
        """Returns the state with all transactions begun."""
        scenario = self.scenario
        data, journal = 0, self.journals.append(0, (-1, ("owner", -1)))
        for item in scenario.written:
            mine = ("d", self.begin_of(item[1])) if item[0] == "d" else item
            data = self.data.append(data, mine)
        for _ in scenario.records:
            journal = self.journals.append(journal, (0, ("begin",)))
        budget = tuple(scenario.budget)
        if not scenario.marked:
            # In metadata mode from the first offset on.
            for phase in (Phase.TO_METADATA, Phase.METADATA):
                journal = self.journals.append(journal, (0, ("mode", phase.value, ())))
        owner, _ = self.owners.start(journal)
        origin = MARKERS_FIRST if scenario.marked else FROM_THE_START
        reader, _ = self.readers.start(origin)
        first = (0, self.origins(origin))
        return data, journal, (0, owner, None, ()), (), budget, reader, 0, 0, (first, first)

    def moves(self, state: State) -> list[tuple[Move, State | str]]:
        """Returns every step from a state."""
        found: list[tuple[Move, State | str]] = []

        def add(move: Move, draft: Draft) -> None:
            found.append(((*move, False), draft.problem or draft.freeze()))

        self._moves_of_writers(state, add)
        self._moves_of_owner(state, add)
        self._moves_of_reader(state, add)
        return found

    def check(self, state: State) -> str | None:
        """Returns what a state breaks."""
        data, journal, owner, _, budget, *_ = state
        told = self.decided(journal)
        due = {item[1] for _, item in owner[3] if item[0] == "m"}
        if due or any(t.committed and t.placed and t.place is None for t in told.values()):
            return None  # Not all is over yet.
        key = data, journal
        if key not in self._expected:
            self._expected[key] = expected(self.data.items(data), told)
        want, items = self._expected[key], self.data.items(data)
        if self.scenario.budget.foreign and not budget[FOREIGN]:
            # It is committed, so it is due, even if nothing here says where.
            is_marked = any(item[0] == "foreign" for item in items)
            want = want if is_marked else [*want, items.index(("fd",))]
        return self._compare(want, state, told)

    def _compare(self, want: list[int], state: State, told: dict[int, Decided]) -> str | None:
        _, _, _, _, _, reader, known, delivered, _ = state
        got = list(self.delivered.items(delivered))
        facts: ReaderFacts = self.readers.facts[reader]
        if len(set(got)) < len(got):
            return f"delivered twice: {got}"
        if set(got) - set(want):
            return f"delivered what nobody else gets: {got}, and {want} is due"
        if self.scenario.keeps_order and got != want[: len(got)]:
            return f"delivers {got}, and a reader that comes when all is over delivers {want}"
        if facts.next_offset < self.data.lengths[state[0]]:
            return None
        if facts.reads and (
            known < self.journals.lengths[state[1]] or facts.frontier >= 0 or facts.waits
        ):
            return None
        if len(got) < len(want):
            return f"never delivers {sorted(set(want) - set(got))} ({facts.failure or 'it waits'})"
        held = [b for b in facts.pending if b in told]
        if facts.follows and held:
            return f"holds records of T{held} for ever, which have ended"
        return None

    # ---- steps ----------------------------------------------------------------------------------

    def _moves_of_writers(self, state: State, add: Any) -> None:
        data, journal, _, _, budget, *_ = state
        items, told = self.data.items(data), self.decided(journal)
        if len(items) >= self.scenario.length_max:
            return
        if budget[PLAIN]:
            add(("plain", len(items)), self.draft(self, state, PLAIN).write(("x",)))
        for number, most in enumerate(self.scenario.records):
            begin = self.begin_of(number)
            if begin not in told and items.count(("d", begin)) < most:
                add(("write", begin, len(items)), self.draft(self, state).write(("d", begin)))
            elif begin in told and budget[LATE]:
                add(("late", begin, len(items)), self.draft(self, state, LATE).write(("d", begin)))
        if budget[FOREIGN] and ("fd",) not in items:
            add(("foreign write", len(items)), self.draft(self, state).write(("fd",)))
        elif budget[FOREIGN] and not TopicModes().is_placed(FOREIGN_PARTITION):
            # The owner of another journal, which knows of no MODE record: it marks.
            item = ("foreign", items.index(("fd",)))
            add(("foreign marker", len(items)), self.draft(self, state, FOREIGN).write(item))
        elif budget[FOREIGN]:
            # It places there, in its own journal, which no reader of this partition follows.
            add(("foreign place", len(items)), self.draft(self, state, FOREIGN))

    def _moves_of_owner(self, state: State, add: Any) -> None:
        _, number, asked, lane = state[2]
        budget, facts = state[4], self.owners.facts[number]
        before = len(budget)
        moved = self._decisions(state, add, facts)
        if asked is None and facts.waits:
            first = min((sequence for sequence, _ in lane), default=-1)
            draft = self.draft(self, state)
            if draft.ask(first):
                moved = True
                add(("ask",), draft)
        if asked == "asked":
            for lag in range(min(budget[STALE], self.data.lengths[state[0]]) + 1):
                draft = self.draft(self, state, STALE if lag else None)
                end = self.data.lengths[state[0]] - lag
                draft.owner[2] = end
                add(("end", end), draft)
        elif asked is not None:
            add(("place", asked), self.draft(self, state).answer(asked))
        if lane and self.data.lengths[state[0]] < self.scenario.length_max:
            sequence, item = lane[0]
            if sequence in facts.may_mark:
                moved = True
                add(("lane", item), self.draft(self, state).land(item))
        elif lane:
            moved = True
        if asked is None and (facts.waits or lane) and not moved:
            draft = self.draft(self, state)
            draft.problem = "what is decided is never finished: each end waits for another"
            add(("stuck",), draft)
        assert before == len(budget)

    def _decisions(self, state: State, add: Any, facts: OwnerFacts) -> bool:
        data, journal, (epoch, *_), zombies, budget, *_ = state
        items, told = self.data.items(data), self.decided(journal)
        for number in range(len(self.scenario.records)):
            begin = self.begin_of(number)
            mine = [at for at, item in enumerate(items) if item == ("d", begin)]
            if begin in told or not mine:
                continue
            item = ("commit", begin, mine[0], mine[-1], len(mine), facts.is_placed)
            add(("commit", begin, facts.is_placed), self.draft(self, state).record(item))
            if budget[ABORTS]:
                draft = self.draft(self, state, ABORTS).record(("abort", begin))
                add(("abort", begin), draft)
        change = facts.change
        if budget[SWITCHES] and change is not None:
            draft = self.draft(self, state, SWITCHES).record(("mode", change.phase.value, ()))
            add(("switch", change.phase.value), draft)
        if budget[DUPLICATES] and len(items) < self.scenario.length_max:
            for item in sorted({i for i in items if i[0] in "ms"}):
                add(("again", item), self.draft(self, state, DUPLICATES).write(item))
        if budget[CRASHES]:
            add(("crash",), self.draft(self, state, CRASHES).crash())
        for place, (number, asked, at) in enumerate(zombies):
            draft = self.draft(self, state)
            if asked == "asked":
                draft.zombies[place] = (number, self.data.lengths[data], at)
                add(("zombie end", self.data.lengths[data]), draft)
            else:
                add(("zombie place", asked), draft.zombie(place))
        del epoch
        return False

    def _moves_of_reader(self, state: State, add: Any) -> None:
        data, journal, _, _, budget, number, known, _, cuts, *_ = state
        facts: ReaderFacts = self.readers.facts[number]
        end, length = self.data.lengths[data], self.journals.lengths[journal]
        if facts.next_offset < end:
            add(("fetch", end), self.draft(self, state).fetch())
        if facts.frontier >= 0:
            key = ("gate", facts.frontier, length)
            add(key, self.draft(self, state).take(key))
        if facts.reads:
            steps = range(known + 1, length + 1) if self.scenario.reads_in_steps else (length,)
            for upto in steps:
                if upto > known:
                    draft = self.draft(self, state)
                    key = ("journal", known, *self.journals.between(journal, known, upto))
                    draft.known = upto
                    add(("read", upto), draft.take(key))
        if budget[RESTARTS]:
            for cut in dict.fromkeys(cuts):
                if cut[0]:
                    add(("kill", cut[1]), self.draft(self, state, RESTARTS).restart(Cut(*cut)))

    # ---- words ----------------------------------------------------------------------------------

    def tell(self, state: State, move: Move, traded: bool) -> str:  # noqa: ARG002, PLR0912
        """Returns a step in words."""
        end, length = self.data.lengths[state[0]], self.journals.lengths[state[1]]
        match move[:-1]:
            case ("plain", offset):
                return f"partition[{offset}]: a plain record"
            case ("write", begin, offset):
                return f"partition[{offset}]: a record of T{begin}"
            case ("late", begin, offset):
                return f"partition[{offset}]: a late record of T{begin}"
            case ("foreign write", offset):
                return f"partition[{offset}]: a record of another journal's transaction"
            case ("foreign marker", offset):
                return f"partition[{offset}]: its marker"
            case ("foreign place", offset):
                return f"its owner places it at {offset}, in its own journal"
            case ("commit", begin, placed):
                return (
                    f"journal[{length}]: commit T{begin}, to be {'placed' if placed else 'marked'}"
                )
            case ("abort", begin):
                return f"journal[{length}]: abort T{begin}"
            case ("switch", phase):
                return f"journal[{length}]: MODE {phase}"
            case ("ask",):
                return "the owner asks for the partition's end"
            case ("end", offset):
                return f"it is told {offset}"
            case ("place", _):
                return f"journal[{length}]: PLACED"
            case ("lane", item):
                return f"partition[{end}]: {_words(item)}"
            case ("again", item):
                return f"partition[{end}]: {_words(item)} again"
            case ("stuck",):
                return "the owner can do nothing more"
            case ("crash",):
                return "the owner is replaced"
            case ("zombie end", offset):
                return f"the replaced owner is told the end {offset}"
            case ("zombie place", _):
                return f"journal[{length}]: PLACED of the replaced owner"
            case ("fetch", offset):
                return f"the reader has fetched everything below {offset}"
            case ("gate", frontier, offset):
                return f"the reader, at {frontier}, asks for the journal's end: {offset}"
            case ("read", offset):
                return f"the reader has read the journal below {offset}"
            case ("kill", number):
                origin = self.origins.values[number]
                return f"the reader is killed, and goes on from {origin[2:]}"
            case _:
                raise AssertionError(move)

    def tell_end(self, state: State) -> list[str]:
        """Returns what the reader delivered."""
        return [f"the reader has delivered {list(self.delivered.items(state[7]))}"]


def _words(item: Item) -> str:
    if item[0] == "s":
        return f"mode record, {item[1]}"
    return f"marker of T{item[1]}, sequence {item[2]}"
