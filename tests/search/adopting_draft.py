"""A step of the small world of adopting: the state after it, while it is being taken."""

from __future__ import annotations

from typing import Any

from .explore import State
from .machines import Machine
from .placed_cores import ForeignFacts, ReaderFacts
from .placed_logs import Item, Told, valid
from .places_draft import Cores, Draft
from .tenures import CORE_ERRORS


class AdoptingCores(Cores):
    """The cores of a search with another journal."""

    foreigners: Machine
    """Owners of the other journal."""


class AdoptingDraft(Draft):
    """The state after a step, while the step is being taken."""

    world: AdoptingCores

    def __init__(self, world: Any, state: State, spent: int | None = None) -> None:
        """Begins with the state before, and takes one off a budget."""
        super().__init__(world, state, spent)
        foreign, epoch, number, lane, late = state[9]
        self.foreign: int = foreign
        self.foreign_epoch: int = epoch
        self.foreigner: int = number
        self.foreign_lane: tuple[tuple[int, Item], ...] = lane
        self.late: tuple[Item, ...] = late
        """Markers of replaced owners that may still land."""

    def freeze(self) -> State:
        """Returns the state."""
        foreign = (
            *(self.foreign, self.foreign_epoch, self.foreigner),
            *(self.foreign_lane, self.late),
        )
        return (*super().freeze(), foreign)

    # ---- the other journal ----------------------------------------------------------------------

    def decide(self, item: Item) -> AdoptingDraft:
        """Lets a record of the other owner land and be acknowledged."""
        offset = self.world.foreign.lengths[self.foreign]
        record = self.foreign_epoch, item
        self.foreign = self.world.foreign.append(self.foreign, record)
        self._foreign_step(("record", offset, self.world.foreign.numbers(record)))
        if item[0] in ("commit", "abort") and not item[-1]:
            self._queue_foreign(item[1], offset)
        return self

    def _queue_foreign(self, begin: int, sequence: int) -> None:
        marker = marker_of(self.world.foreign, self.foreign, begin)
        self.foreign_lane = tuple(sorted((*self.foreign_lane, (sequence, marker))))

    def _foreign_step(self, key: tuple[Any, ...]) -> bool:
        before = self.foreigner
        try:
            self.foreigner, given = self.world.foreigners.step(self.foreigner, key)
        except CORE_ERRORS as error:
            self.problem = f"the owner of the other journal broke: {error!r}"
            return True
        for _, begin, sequence in given:
            self._queue_foreign(begin, sequence)
        return self.foreigner != before

    def read_home(self, chain: int) -> bool:
        """Lets the other owner read the home; returns whether that tells it anything."""
        return self._foreign_step(("home", chain))

    def land_foreign(self) -> AdoptingDraft:
        """Lets the first of the other owner's lane land."""
        (_, item), *rest = self.foreign_lane
        self.foreign_lane = tuple(rest)
        self.write((*item, self.hw()))
        return self

    def hw(self) -> int:
        """Returns the oldest unfinished BEGIN of the other journal."""
        told = [item for _, item in valid(self.world.foreign.items(self.foreign))]
        finished = {item[1] for item in told if item[0] == "finished"}
        records = self.world.foreign.items(self.foreign)
        begins = [at for at, (_, item) in enumerate(records) if item == ("begin",)]
        return min((b for b in begins if b not in finished), default=len(records))

    def crash_foreign(self, decision: Item | None) -> AdoptingDraft:
        """Replaces the other owner, with a marker on its way; or a decision, which is void."""
        world, old = self.world, self.foreign_epoch
        facts: ForeignFacts = world.foreigners.facts[self.foreigner]
        lane = self.foreign_lane
        if decision is None and lane and lane[0][0] in facts.may_mark:
            self.late = (*self.late, lane[0][1])
        self._bid_foreign()
        if decision is not None:
            self.foreign = world.foreign.append(self.foreign, (old, decision))
        return self

    def _bid_foreign(self) -> None:
        world = self.world
        owner = -1, ("owner", self.foreign_epoch)
        self.foreign_epoch = world.foreign.lengths[self.foreign]
        self.foreign = world.foreign.append(self.foreign, owner)
        try:
            self.foreigner, _ = world.foreigners.start(self.foreign)
        except CORE_ERRORS as error:
            self.problem = f"the owner of the other journal broke: {error!r}"
            return
        self.foreign_lane = ()
        facts: ForeignFacts = world.foreigners.facts[self.foreigner]
        for offset, item in valid(world.foreign.items(self.foreign)):
            if item[0] in ("commit", "abort") and item[1] in facts.unfinished and not item[-1]:
                self._queue_foreign(item[1], offset)

    def surprise(self) -> AdoptingDraft:
        """Lets the other owner find a record that is not its own: it begins anew."""
        self._bid_foreign()
        return self

    # ---- the home -------------------------------------------------------------------------------

    def adopt(self, chain: int) -> bool:
        """Lets the home's owner adopt, having read the other journal up to some record."""
        given = self._step(("adopt", chain))
        for _, item in given:
            self.record(item)
        return bool(given) or self.problem is not None

    def adopt_late(self, chain: int) -> AdoptingDraft:
        """Replaces the home's owner, whose ADOPT then lands, void. The next one is surprised."""
        epoch, number = self.owner[0], self.owner[1]
        _, given = self.world.owners.step(number, ("adopt", chain))
        self.crash()
        for _, item in given:
            self.journal = self.world.journals.append(self.journal, (epoch, item))
        self._bid()
        return self

    # ---- the reader -----------------------------------------------------------------------------

    def take(self, key: tuple[Any, ...]) -> Draft:
        """Lets the reader take an input, and read aside what it lacks."""
        super().take(key)
        facts: ReaderFacts = self.world.readers.facts[self.reader]
        if self.problem is None and facts.blocked and key[0] != "side read":
            self.take(("side read", self.data))
        return self


def marker_of(foreign: Told, chain: int, begin: int) -> Item:
    """Returns the marker of a transaction that the other journal decided."""
    for offset, item in valid(foreign.items(chain)):
        match item:
            case ("commit", each, first, last, count, _) if each == begin:
                return ("fm", begin, True, offset, first, last, count)
            case ("abort", each, _) if each == begin:
                return ("fm", begin, False, offset, 0, 0, 0)
            case _:
                pass
    raise AssertionError(begin)
