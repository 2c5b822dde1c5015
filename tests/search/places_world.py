"""The small world of places: a data partition, its home journal, an owner, and a reader.

An owner decides, asks for the partition's end, and appends PLACED, in steps of their own. It may be
replaced at any moment. Then its question or its PLACED is on its way for ever: it may land, void,
and the owner of that time learns by its surprise that it must begin anew. The topic may be switched
to places and back, by mode records that stand in the lane with the markers. Appends of an owner land
and are acknowledged at once; `journal_world` takes that apart.

The reader's fetches, its questions for the journal's end and its reading of the journal are steps of
their own. Here they can't be put behind those of the writers, as `readers` does: what a gate says
depends on the moment. It delivers whatever it may after every step, for what it knows only grows. It
may be killed once, also in the middle of a transaction, and goes on from its position.

What it delivers is compared with what a reader gets who comes when all is over, by a naive reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from logtx.coordinator.core.modes import Phase, TopicModes
from logtx.journal.places import PartitionId

from .explore import Move, State
from .machines import Chains, Interner, Machine
from .placed_cores import (
    FROM_THE_START,
    MARKERS_FIRST,
    LiveOwner,
    LiveReader,
    OwnerFacts,
    ReaderFacts,
)
from .placed_logs import Decided, Item, Told, decided, expected
from .tenures import CORE_ERRORS


class Budget(NamedTuple):
    """How many of each event a scenario has."""

    plain: int = 0
    late: int = 0
    """Records of a transaction behind its decision."""
    crashes: int = 0
    restarts: int = 0
    switches: int = 0
    duplicates: int = 0
    """Second landings of a marker or mode record."""
    stale: int = 0
    """Ends that are told one too low."""
    aborts: int = 0
    foreign: int = 0
    """Transactions of another journal."""


PLAIN, LATE, CRASHES, RESTARTS, SWITCHES, DUPLICATES, STALE, ABORTS, FOREIGN = range(
    len(Budget._fields)
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


class _Cut(NamedTuple):
    """Where a reader may be killed: what it delivered so far, and its position then."""

    delivered: int
    origin: int


class PlacesWorld:
    """A scenario's states and steps.

    A state: (data, journal, owner, zombies, budget, reader, records known of the journal, what was
    delivered, where the reader may be killed).
    """

    def __init__(self, scenario: PlacesScenario) -> None:
        """Begins without any state visited."""
        self.name = scenario.name
        self.scenario = scenario
        self.data, self.journals = Told(), Told()
        self.owners = Machine(partial(LiveOwner, self.journals))
        self.readers = Machine(partial(LiveReader, self.data, self.journals))
        self.delivered = Chains()
        self.origins = Interner()
        self._expected: dict[tuple[int, int], list[int] | None] = {}
        self._decided: dict[int, dict[int, Decided]] = {}

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

    def decided(self, journal: int) -> dict[int, Decided]:
        """Returns what a journal says in the naive reading."""
        found = self._decided.get(journal)
        if found is None:
            found = self._decided[journal] = decided(self.journals.items(journal))
        return found

    def moves(self, state: State) -> list[tuple[Move, State | str]]:
        """Returns every step from a state."""
        found: list[tuple[Move, State | str]] = []

        def add(move: Move, draft: _Draft) -> None:
            found.append(((*move, False), draft.problem or draft.freeze()))

        self._moves_of_writers(state, add)
        self._moves_of_owner(state, add)
        self._moves_of_reader(state, add)
        return found

    def check(self, state: State) -> str | None:
        """Returns what a state breaks."""
        data, journal, owner, _, _, reader, known, delivered, _ = state
        told = self.decided(journal)
        due = {item[1] for _, item in owner[3] if item[0] == "m"}
        if due or any(t.committed and t.placed and t.place is None for t in told.values()):
            return None  # Not all is over yet.
        key = data, journal
        if key not in self._expected:
            self._expected[key] = expected(self.data.items(data), told)
        want = self._expected[key]
        assert want is not None
        return self._compare(list(self.delivered.items(delivered)), want, state, told, known, reader)

    def _compare(
        self,
        got: list[int],
        want: list[int],
        state: State,
        told: dict[int, Decided],
        known: int,
        reader: int,
    ) -> str | None:
        facts: ReaderFacts = self.readers.facts[reader]
        if len(set(got)) < len(got):
            return f"delivered twice: {got}"
        if set(got) - set(want):
            return f"delivered what nobody else gets: {got}, and {want} is due"
        if self.scenario.keeps_order and got != want[: len(got)]:
            return f"delivers {got}, and a reader that comes when all is over delivers {want}"
        if facts.next_offset < self.data.lengths[state[0]]:
            return None
        if facts.follows and (
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
            add(("plain", len(items)), _Draft(self, state, PLAIN).write(("x",)))
        for number, most in enumerate(self.scenario.records):
            begin = self.begin_of(number)
            if begin not in told and items.count(("d", begin)) < most:
                add(("write", begin, len(items)), _Draft(self, state).write(("d", begin)))
            elif begin in told and budget[LATE]:
                add(("late", begin, len(items)), _Draft(self, state, LATE).write(("d", begin)))
        if budget[FOREIGN] and ("fd",) not in items:
            add(("foreign write", len(items)), _Draft(self, state).write(("fd",)))
        elif budget[FOREIGN] and not TopicModes().is_placed(FOREIGN_PARTITION):
            # The owner of another journal, which knows of no MODE record: it marks.
            item = ("foreign", items.index(("fd",)))
            add(("foreign marker", len(items)), _Draft(self, state, FOREIGN).write(item))
        elif budget[FOREIGN]:
            # It places there, in its own journal, which no reader of this partition follows.
            draft = _Draft(self, state, FOREIGN)
            draft.problem = f"never delivers [{items.index(('fd',))}] (placed by another journal)"
            add(("foreign place", len(items)), draft)

    def _moves_of_owner(self, state: State, add: Any) -> None:
        _, number, asked, lane = state[2]
        budget, facts = state[4], self.owners.facts[number]
        before = len(budget)
        moved = self._decisions(state, add, facts)
        if asked is None and facts.waits:
            first = min((sequence for sequence, _ in lane), default=-1)
            draft = _Draft(self, state)
            if draft.ask(first):
                moved = True
                add(("ask",), draft)
        if asked == "asked":
            for lag in range(min(budget[STALE], self.data.lengths[state[0]]) + 1):
                draft = _Draft(self, state, STALE if lag else None)
                end = self.data.lengths[state[0]] - lag
                draft.owner[2] = end
                add(("end", end), draft)
        elif asked is not None:
            add(("place", asked), _Draft(self, state).answer(asked))
        if lane and self.data.lengths[state[0]] < self.scenario.length_max:
            sequence, item = lane[0]
            if sequence in facts.may_mark:
                moved = True
                add(("lane", item), _Draft(self, state).land(item))
        elif lane:
            moved = True
        if asked is None and (facts.waits or lane) and not moved:
            draft = _Draft(self, state)
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
            add(("commit", begin, facts.is_placed), _Draft(self, state).record(item))
            if budget[ABORTS]:
                draft = _Draft(self, state, ABORTS).record(("abort", begin))
                add(("abort", begin), draft)
        change = facts.change
        if budget[SWITCHES] and change is not None:
            draft = _Draft(self, state, SWITCHES).record(("mode", change.phase.value, ()))
            add(("switch", change.phase.value), draft)
        if budget[DUPLICATES] and len(items) < self.scenario.length_max:
            for item in sorted({i for i in items if i[0] in "ms"}):
                add(("again", item), _Draft(self, state, DUPLICATES).write(item))
        if budget[CRASHES]:
            add(("crash",), _Draft(self, state, CRASHES).crash())
        for place, (number, asked, at) in enumerate(zombies):
            draft = _Draft(self, state)
            if asked == "asked":
                draft.zombies[place] = (number, self.data.lengths[data], at)
                add(("zombie end", self.data.lengths[data]), draft)
            else:
                add(("zombie place", asked), draft.zombie(place))
        del epoch
        return False

    def _moves_of_reader(self, state: State, add: Any) -> None:
        data, journal, _, _, budget, number, known, _, cuts = state
        facts: ReaderFacts = self.readers.facts[number]
        end, length = self.data.lengths[data], self.journals.lengths[journal]
        if facts.next_offset < end:
            add(("fetch", end), _Draft(self, state).fetch())
        if facts.frontier >= 0:
            key = ("gate", facts.frontier, length)
            add(key, _Draft(self, state).take(key))
        if facts.follows:
            steps = range(known + 1, length + 1) if self.scenario.reads_in_steps else (length,)
            for upto in steps:
                if upto > known:
                    draft = _Draft(self, state)
                    key = ("journal", known, *self.journals.between(journal, known, upto))
                    draft.known = upto
                    add(("read", upto), draft.take(key))
        if budget[RESTARTS]:
            for cut in dict.fromkeys(cuts):
                if cut[0]:
                    add(("kill", cut[1]), _Draft(self, state, RESTARTS).restart(_Cut(*cut)))

    # ---- words ----------------------------------------------------------------------------------

    def tell(self, state: State, move: Move, traded: bool) -> str:  # noqa: ARG002, PLR0911, PLR0912
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
                return f"journal[{length}]: commit T{begin}, to be {'placed' if placed else 'marked'}"
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


class _Draft:
    """The state after a step, while the step is being taken."""

    def __init__(self, world: PlacesWorld, state: State, spent: int | None = None) -> None:
        """Begins with the state before; what the step spends is taken from the budget."""
        self.world = world
        self.data, self.journal = state[0], state[1]
        self.owner: list[Any] = [*state[2]]
        """Epoch; state; None, "asked" or the end that it was told; its lane."""
        self.zombies: list[tuple[int, Any, int]] = [*state[3]]
        self.budget = list(state[4])
        if spent is not None:
            self.budget[spent] -= 1
        self.reader, self.known, self.delivered = state[5], state[6], state[7]
        self.cuts: tuple[Any, ...] = state[8]
        self.problem: str | None = None

    def freeze(self) -> State:
        """Returns the state."""
        cuts = self.cuts if self.budget[RESTARTS] else ()
        return (
            *(self.data, self.journal, tuple(self.owner), tuple(sorted(self.zombies, key=str))),
            *(tuple(self.budget), self.reader, self.known, self.delivered),
            tuple(tuple(c) for c in cuts),
        )

    # ---- writers --------------------------------------------------------------------------------

    def write(self, item: Item) -> _Draft:
        """Lets a record land in the partition."""
        self.data = self.world.data.append(self.data, item)
        return self

    def record(self, item: Item) -> _Draft:
        """Lets a record of the owner land and be acknowledged."""
        offset = self.world.journals.lengths[self.journal]
        self.journal = self.world.journals.append(self.journal, (self.owner[0], item))
        self._step(("record", offset, self.world.journals.numbers((self.owner[0], item))))
        match item:
            case ("commit", begin, first, last, count, False):
                self._queue(offset, ("m", begin, offset, first, last, count))
            case ("mode", phase, ()):
                self._queue(offset, ("s", phase, offset))
            case _:
                pass
        return self

    def _queue(self, sequence: int, item: Item) -> None:
        self.owner[3] = (*self.owner[3], (sequence, item))

    def _step(self, key: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        try:
            self.owner[1], given = self.world.owners.step(self.owner[1], key)
        except CORE_ERRORS as error:
            self.problem = f"the owner broke: {error!r}"
            return []
        return list(given)

    def ask(self, first_marker: int) -> bool:
        """Lets the owner ask for the end; returns False if it asks nothing."""
        given = self._step(("ask", first_marker))
        self.owner[2] = "asked"
        return given == [("asked", True)]

    def answer(self, end: int) -> _Draft:
        """Lets the owner place at the end that it was told."""
        self.owner[2] = None
        for _, item in self._step(("answer", end)):
            self.record(item)
        return self

    def land(self, item: Item) -> _Draft:
        """Lets the first of the lane land."""
        offset = self.world.data.lengths[self.data]
        self.write(item)
        self.owner[3] = self.owner[3][1:]
        if item[0] == "s":
            for _, change in self._step(("recorded", offset)):
                self.record(change)
        return self

    def crash(self) -> _Draft:
        """Replaces the owner; what it does with its question is open."""
        epoch, number, asked, _ = self.owner
        if asked is not None:
            self.zombies.append((number, asked, epoch))
        return self._bid()

    def _bid(self) -> _Draft:
        world = self.world
        epoch = world.journals.lengths[self.journal]
        self.journal = world.journals.append(self.journal, (-1, ("owner", self.owner[0])))
        try:
            number, _ = world.owners.start(self.journal)
        except CORE_ERRORS as error:
            self.problem = f"the owner broke: {error!r}"
            return self
        self.owner = [epoch, number, None, ()]
        items = world.data.items(self.data)
        redo: list[tuple[int, Item]] = []
        for begin, told in world.decided(self.journal).items():
            item = ("m", begin, told.sequence, told.first, told.last, told.count)
            if told.committed and not told.placed and item not in items:
                redo.append((told.sequence, item))
        facts: OwnerFacts = world.owners.facts[number]
        if facts.mode_offset >= 0:
            redo.append((facts.mode_offset, ("s", facts.phase, facts.mode_offset)))
        self.owner[3] = tuple(sorted(redo))
        return self

    def zombie(self, place: int) -> _Draft:
        """Lets the PLACED record of a replaced owner land. The owner of now is surprised."""
        number, end, epoch = self.zombies.pop(place)
        _, given = self.world.owners.step(number, ("answer", end))
        for _, item in given:
            self.journal = self.world.journals.append(self.journal, (epoch, item))
        return self._bid()

    # ---- the reader -----------------------------------------------------------------------------

    def fetch(self) -> _Draft:
        """Lets the reader fetch all that there is."""
        facts: ReaderFacts = self.world.readers.facts[self.reader]
        return self._fetch_from(facts.next_offset)

    def _fetch_from(self, offset: int) -> _Draft:
        world = self.world
        end = world.data.lengths[self.data]
        return self.take(("fetch", offset, *world.data.between(self.data, offset, end)))

    def take(self, key: tuple[Any, ...]) -> _Draft:
        """Lets the reader take an input, and notes what it delivers."""
        world = self.world
        try:
            self.reader, given = world.readers.step(self.reader, key)
        except CORE_ERRORS as error:
            self.problem = f"the reader broke: {error!r}"
            return self
        for what in given:
            match what:
                case ("record", offset, origin):
                    self.delivered = world.delivered.append(self.delivered, offset)
                    if self.cuts:
                        self.cuts = (self.cuts[1], (self.delivered, world.origins(origin)))
                case ("anew", offset):
                    self.known = 0
                    self._fetch_from(offset)
        return self

    def restart(self, cut: _Cut) -> _Draft:
        """Kills the reader and lets it go on from its position."""
        origin = self.world.origins.values[cut.origin]
        self.reader, _ = self.world.readers.start(origin)
        self.known, self.delivered, self.cuts = 0, cut.delivered, (tuple(cut),) * 2
        return self._refetch(origin[2])

    def _refetch(self, offset: int) -> _Draft:
        # What lies below o2 is read again for what is pending; it delivers nothing.
        world = self.world
        o2 = world.origins.values[self.cuts[0][1]][3]
        if o2 > offset:
            return self.take(("fetch", offset, *world.data.between(self.data, offset, o2)))
        return self
