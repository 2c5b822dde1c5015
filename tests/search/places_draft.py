"""A step of the small world of places: the state after it, while it is being taken."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from .explore import State
from .machines import Chains, Interner, Machine
from .placed_cores import LiveOwner, LiveReader, OwnerFacts, ReaderFacts
from .placed_logs import Decided, Item, Told, decided, high_watermark
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
    foreign_crashes: int = 0
    look_ups: int = 0


PLAIN, LATE, CRASHES, RESTARTS, SWITCHES, DUPLICATES, STALE, ABORTS, FOREIGN = range(9)
FOREIGN_CRASHES, LOOK_UPS = 9, 10


class Cut(NamedTuple):
    """Where a reader may be killed: what it delivered so far, and its position then."""

    delivered: int
    origin: int


class Cores:
    """All cores and logs that a search met, by the numbers that its states hold."""

    def __init__(self, reader: type[LiveReader] = LiveReader) -> None:
        """Begins without any."""
        self.data, self.journals, self.foreign = Told(), Told(), Told()
        """The partition, its home, and the journal of another one's transactions."""
        self.owners = Machine(partial(LiveOwner, self.journals, foreign=self.foreign))
        self.readers = Machine(partial(reader, self.data, self.journals))
        self.delivered = Chains()
        self.origins = Interner()
        self._decided: dict[int, dict[int, Decided]] = {}

    def decided(self, journal: int) -> dict[int, Decided]:
        """Returns what a journal says in the naive reading."""
        found = self._decided.get(journal)
        if found is None:
            found = self._decided[journal] = decided(self.journals.items(journal))
        return found


class Draft:
    """The state after a step, while the step is being taken."""

    def __init__(self, world: Cores, state: State, spent: int | None = None) -> None:
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

    def write(self, item: Item) -> Draft:
        """Lets a record land in the partition."""
        self.data = self.world.data.append(self.data, item)
        return self

    def record(self, item: Item) -> Draft:
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

    def answer(self, end: int) -> Draft:
        """Lets the owner place at the end that it was told."""
        self.owner[2] = None
        for _, item in self._step(("answer", end)):
            self.record(item)
        return self

    def land(self, item: Item) -> Draft:
        """Lets the first of the lane land."""
        offset = self.world.data.lengths[self.data]
        if item[0] == "m":
            records = self.world.journals.items(self.journal)
            begins = [o for o, (_, each) in enumerate(records) if each == ("begin",)]
            data, told = self.world.data.items(self.data), self.world.decided(self.journal)
            # Its transaction is not finished, unless another marker of it has landed.
            hw = high_watermark(data, begins, told | {item[1]: Decided(0, True)})
            item = (*item, hw)
        self.write(item)
        self.owner[3] = self.owner[3][1:]
        if item[0] == "s":
            for _, change in self._step(("recorded", offset)):
                self.record(change)
        return self

    def crash(self) -> Draft:
        """Replaces the owner; what it does with its question is open."""
        epoch, number, asked, _ = self.owner
        if asked is not None:
            self.zombies.append((number, asked, epoch))
        return self._bid()

    def _bid(self) -> Draft:
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
            landed = any(each[:6] == item for each in items)
            if told.committed and not told.placed and not landed:
                redo.append((told.sequence, item))
        facts: OwnerFacts = world.owners.facts[number]
        if facts.mode_offset >= 0:
            redo.append((facts.mode_offset, ("s", facts.phase, facts.mode_offset)))
        self.owner[3] = tuple(sorted(redo))
        return self

    def zombie(self, place: int) -> Draft:
        """Lets the PLACED record of a replaced owner land. The owner of now is surprised."""
        number, end, epoch = self.zombies.pop(place)
        _, given = self.world.owners.step(number, ("answer", end))
        for _, item in given:
            self.journal = self.world.journals.append(self.journal, (epoch, item))
        return self._bid()

    # ---- the reader -----------------------------------------------------------------------------

    def fetch(self) -> Draft:
        """Lets the reader fetch all that there is."""
        facts: ReaderFacts = self.world.readers.facts[self.reader]
        return self._fetch_from(facts.next_offset)

    def _fetch_from(self, offset: int) -> Draft:
        world = self.world
        end = world.data.lengths[self.data]
        return self.take(("fetch", offset, *world.data.between(self.data, offset, end)))

    def take(self, key: tuple[Any, ...]) -> Draft:
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
                case ("again", offset):
                    self._fetch_from(offset)
        return self

    def restart(self, cut: Cut) -> Draft:
        """Kills the reader and lets it go on from its position."""
        origin = self.world.origins.values[cut.origin]
        self.reader, _ = self.world.readers.start(origin)
        self.known, self.delivered, self.cuts = 0, cut.delivered, (tuple(cut),) * 2
        return self._refetch(origin[2])

    def _refetch(self, offset: int) -> Draft:
        # What lies below o2 is read again for what is pending; it delivers nothing.
        world = self.world
        o2 = world.origins.values[self.cuts[0][1]][3]
        if o2 > offset:
            return self.take(("fetch", offset, *world.data.between(self.data, offset, o2)))
        return self
