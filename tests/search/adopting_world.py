"""The small world of places with a second journal, whose transactions the home adopts.

Each owner reads the other's journal up to any record, at any time; a new one may have read less
than the one before it. Both may be replaced. A replaced owner of the other journal may have a
marker on its way, or a decision, which lands void; one of the home, a question or a PLACED, as in
`places_world`.

The reader follows the home alone, and may look up what it holds of the other journal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from logtx.journal.modes import Phase

from .adopting_draft import AdoptingDraft
from .explore import Move, State
from .machines import Machine
from .placed_cores import ForeignFacts, LiveForeign, ReaderFacts
from .placed_logs import IN_SHARES, Item, decided, valid
from .places_draft import (
    ABORTS,
    CRASHES,
    FOREIGN_CRASHES,
    LATE,
    LOOK_UPS,
    Draft,
)
from .places_world import PlacesScenario, PlacesWorld

AT_PLACE: Final = 0
AT_RECORD: Final = 1
"""Behind what is placed at an offset comes the record at it."""


@dataclass(frozen=True)
class AdoptingScenario(PlacesScenario):
    """A small configuration. `budget.aborts` is for the other journal."""

    foreign: tuple[int, ...] = (1,)
    """Records that each transaction of the other journal may write."""
    knows_modes: bool = False
    """Whether the other journal hands over as soon as it may; else it may be behind about modes."""
    is_read: bool = True
    """Whether there is a reader."""
    in_shares: bool = False
    """Whether the home adopts in three records, with a partition before and behind this one."""


@dataclass
class _End:
    """How a transaction of the other journal ended in the partition."""

    sequence: int
    committed: bool
    offsets: list[int]
    adopted: int | None = None
    """Offset of ADOPT, if the home places it."""
    place: int | None = None
    marker: int | None = None
    finished: bool = False
    records: int = 0


class AdoptingWorld(PlacesWorld):
    """A scenario's states and steps: those of `PlacesWorld`, and what the other journal does.

    A state has one item more: (journal, epoch, owner, lane, markers that may still land).
    """

    draft: type[Draft] = AdoptingDraft
    scenario: AdoptingScenario

    def __init__(self, scenario: AdoptingScenario) -> None:
        """Begins without any state visited."""
        super().__init__(scenario)
        self.foreigners = Machine(partial(LiveForeign, self.foreign, self.journals))
        self._naive: dict[tuple[int, int, int], tuple[str | None, bool, list[int]]] = {}

    # ---- the search's questions -----------------------------------------------------------------

    def initial(self) -> State:
        """Returns the state with all transactions begun, in both journals."""
        chain = self.foreign.append(0, (-1, ("owner", -1)))
        for _ in self.scenario.foreign:
            chain = self.foreign.append(chain, (0, ("begin",)))
        owner, _ = self.foreigners.start(chain)
        data, *rest = super().initial()
        return (data, *rest, (chain, 0, owner, (), ()))

    def moves(self, state: State) -> list[tuple[Move, State | str]]:
        """Returns every step from a state."""
        found: list[tuple[Move, State | str]] = []

        def add(move: Move, draft: Draft) -> None:
            found.append(((*move, False), draft.problem or draft.freeze()))

        self._moves_of_writers(state, add)
        self._moves_of_foreign_writers(state, add)
        self._moves_of_owner(state, add)
        before = len(found)
        if self._is_surprised(state):
            add(("surprise",), AdoptingDraft(self, state).surprise())
        else:
            self._moves_of_foreigner(state, add)
        self._moves_of_adopting(state, add)
        self._check_progress(state, add, len(found) > before)
        if self.scenario.is_read:
            self._moves_of_reader(state, add)
            self._look_ups(state, add)
        return found

    def _decisions(self, state: State, add: Any, facts: Any) -> bool:
        # Aborts are the other journal's here.
        *head, budget, a, b, c, d, foreign = state
        budget = tuple(0 if n == ABORTS else each for n, each in enumerate(budget))
        if not state[4][ABORTS]:
            return super()._decisions(state, add, facts)

        def with_aborts(move: Move, draft: Draft) -> None:
            draft.budget[ABORTS] = state[4][ABORTS]
            add(move, draft)

        return super()._decisions((*head, budget, a, b, c, d, foreign), with_aborts, facts)

    # ---- steps ----------------------------------------------------------------------------------

    def _begins(self) -> range:
        return range(1, 1 + len(self.scenario.foreign))

    def _foreign_told(self, state: State) -> dict[int, tuple[int, Item]]:
        return {
            item[1]: (offset, item)
            for offset, item in valid(self.foreign.items(state[9][0]))
            if item[0] in ("commit", "abort")
        }

    def _finished(self, state: State) -> set[int]:
        records = valid(self.foreign.items(state[9][0]))
        return {item[1] for _, item in records if item[0] == "finished"}

    def _moves_of_foreign_writers(self, state: State, add: Any) -> None:
        items, told = self.data.items(state[0]), self._foreign_told(state)
        if len(items) >= self.scenario.length_max:
            return
        for begin, most in zip(self._begins(), self.scenario.foreign, strict=True):
            if begin not in told and items.count(("f", begin)) < most:
                add(("f write", begin), AdoptingDraft(self, state).write(("f", begin)))
            elif begin in told and state[4][LATE]:
                add(("f late", begin), AdoptingDraft(self, state, LATE).write(("f", begin)))
        for at, item in enumerate(state[9][4]):
            draft = AdoptingDraft(self, state)
            draft.late = (*draft.late[:at], *draft.late[at + 1 :])
            add(("f late marker", item[1]), draft.write((*item, draft.hw())))

    def _possible(self, state: State) -> list[Item]:
        """Returns the decisions that the other owner may make now."""
        items, told = self.data.items(state[0]), self._foreign_told(state)
        facts: ForeignFacts = self.foreigners.facts[state[9][2]]
        # What the home publishes is read late, or never.
        modes = [i[1] for _, i in valid(self.journals.items(state[1])) if i[0] == "mode"]
        may_hand = Phase.METADATA.value in modes and facts.may_hand
        always = self.scenario.knows_modes
        found: list[Item] = []
        for begin in self._begins():
            mine = [at for at, item in enumerate(items) if item == ("f", begin)]
            if begin in told or not mine:
                continue
            for handed in (IN_SHARES if self.scenario.in_shares else True, False):
                if (handed and not may_hand) or (not handed and always and may_hand):
                    continue
                found.append(("commit", begin, mine[0], mine[-1], len(mine), handed))
                if state[4][ABORTS]:
                    found.append(("abort", begin, handed))
        return found

    def _is_surprised(self, state: State) -> bool:
        chain, epoch, *_ = state[9]
        return any(
            written not in (-1, epoch) for written, _ in self.foreign.items(chain)[epoch + 1 :]
        )

    def _moves_of_foreigner(self, state: State, add: Any) -> None:
        _, _, owner, lane, _ = state[9]
        facts: ForeignFacts = self.foreigners.facts[owner]
        for item in self._possible(state):
            spent = ABORTS if item[0] == "abort" else None
            add(("f decides", item), AdoptingDraft(self, state, spent).decide(item))
            if state[4][FOREIGN_CRASHES]:
                draft = AdoptingDraft(self, state, FOREIGN_CRASHES).crash_foreign(item)
                add(("f crash", item), draft)
        if state[4][FOREIGN_CRASHES]:
            draft = AdoptingDraft(self, state, FOREIGN_CRASHES).crash_foreign(None)
            add(("f crash", None), draft)
        if facts.waiting:
            for chain in self.journals.prefixes(state[1]):
                draft = AdoptingDraft(self, state)
                if draft.read_home(chain):
                    add(("f reads", self.journals.lengths[chain]), draft)
                if not self.scenario.reads_in_steps:
                    break
        full = self.data.lengths[state[0]] >= self.scenario.length_max
        if lane and lane[0][0] in facts.may_mark and not full:
            add(("f marker", lane[0][1][1]), AdoptingDraft(self, state).land_foreign())
        marking = {item[1] for _, item in lane}
        for begin in facts.unfinished:
            if begin not in marking and begin not in facts.waiting:
                add(("f finishes", begin), AdoptingDraft(self, state).decide(("finished", begin)))

    def _moves_of_adopting(self, state: State, add: Any) -> None:
        for chain in self.foreign.prefixes(state[9][0]):
            draft = AdoptingDraft(self, state)
            if draft.adopt(chain):
                add(("adopt", self.foreign.lengths[chain]), draft)
                if state[4][CRASHES]:
                    late = AdoptingDraft(self, state, CRASHES).adopt_late(chain)
                    add(("late adopt", self.foreign.lengths[chain]), late)
            if not self.scenario.reads_in_steps:
                break

    def _check_progress(self, state: State, add: Any, moved: bool) -> None:
        """Finds a state in which a decision of the other journal is finished by nobody."""
        facts: ForeignFacts = self.foreigners.facts[state[9][2]]
        home = self.owners.facts[state[2][1]]
        full = self.data.lengths[state[0]] >= self.scenario.length_max
        # What the home has to do is checked by `PlacesWorld`.
        waits = home.waits or state[2][2] is not None or state[2][3]
        if facts.unfinished and not moved and not waits and not (full and state[9][3]):
            draft = AdoptingDraft(self, state)
            draft.problem = "a decision of the other journal is never finished"
            add(("stuck",), draft)

    def _look_ups(self, state: State, add: Any) -> None:
        if not state[4][LOOK_UPS]:
            return
        facts: ReaderFacts = self.readers.facts[state[5]]
        for begin in set(facts.foreign) & self._finished(state):
            key = "look up", begin, self.data.lengths[state[0]]
            add(key, AdoptingDraft(self, state, LOOK_UPS).take(key))

    # ---- what must hold -------------------------------------------------------------------------

    def check(self, state: State) -> str | None:
        """Returns what a state breaks."""
        key = state[0], state[1], state[9][0]
        if key not in self._naive:
            self._naive[key] = self._read_all(state)
        problem, is_over, want = self._naive[key]
        if problem is not None or not is_over:
            return problem
        due = {item[1] for _, item in state[2][3] if item[0] == "m"}
        if due or state[9][3] or not self.scenario.is_read:
            return None
        return self._compare(want, state[:9], self.decided(state[1])) or self._held(state)

    def _held(self, state: State) -> str | None:
        # Who goes on below its o2, killed or at a mode record, meets records of what it delivered,
        # or knew as aborted. Then a look-up tells.
        facts: ReaderFacts = self.readers.facts[state[5]]
        is_behind = facts.next_offset < self.data.lengths[state[0]] or (
            facts.follows and (facts.frontier >= 0 or state[6] < self.journals.lengths[state[1]])
        )
        held = sorted(set(facts.foreign) & self._finished(state))
        budget = self.scenario.budget
        goes_on = budget.restarts or budget.switches
        if held and not is_behind and not facts.waits and not goes_on:
            return f"holds records of F{held} until a look-up, which have ended"
        return None

    def _read_all(self, state: State) -> tuple[str | None, bool, list[int]]:
        """Reads all three logs, and returns (what they break, whether all is over, the order)."""
        data, ends = self.data.items(state[0]), self._ends(state)
        told = decided(self.journals.items(state[1]))
        due: list[tuple[int, int, int, list[int]]] = []
        for begin, each in told.items():
            mine = [o for o in range(each.first, each.last + 1) if data[o] == ("d", begin)]
            if each.place is not None:
                due.append((each.place, AT_PLACE, each.sequence, mine))
            marker = next((o for o, i in enumerate(data) if i[:2] == ("m", begin)), None)
            if marker is not None:
                due.append((marker, AT_RECORD, 0, mine))
        for offset, item in enumerate(data):
            if item == ("x",):
                due.append((offset, AT_RECORD, 0, [offset]))
        order: list[tuple[tuple[int, int, int], int]] = []
        for begin, end in ends.items():
            if end.place is not None and end.marker is not None:
                return f"T{begin} of the other journal is placed and marked", False, []
            if end.finished and end.place is None and end.marker is None and end.committed:
                return f"T{begin} of the other journal is finished, and ended nowhere", False, []
            at = None
            if end.place is not None and end.adopted is not None:
                at = end.place, AT_PLACE, end.adopted
            elif end.marker is not None:
                at = end.marker, AT_RECORD, 0
            if at is not None and end.committed:
                due.append((*at, end.offsets))
                order.append((at, end.sequence))
        sequences = [sequence for _, sequence in sorted(order)]
        if sequences != sorted(sequences):
            return f"commits of the other journal stand out of their order: {sequences}", False, []
        is_over = all(end.finished for end in ends.values()) and all(
            t.place is not None for t in told.values() if t.committed and t.placed
        )
        return None, is_over, [o for *_, offsets in sorted(due) for o in offsets]

    def _ends(self, state: State) -> dict[int, _End]:
        data, finished, ends = self.data.items(state[0]), self._finished(state), {}
        for begin, (offset, item) in self._foreign_told(state).items():
            mine = [at for at, each in enumerate(data) if each == ("f", begin)]
            committed = item[0] == "commit"
            mine = [at for at in mine if item[2] <= at <= item[3]] if committed else []
            end = ends[begin] = _End(offset, committed, mine, finished=begin in finished)
            found = (o for o, i in enumerate(data) if i[:2] == ("fm", begin))
            end.marker = next(found, None)
        waiting: list[_End] = []
        for offset, item in valid(self.journals.items(state[1])):
            if item[0] == "adopt" and item[3] and item[4] and item[1] in ends:
                ends[item[1]].adopted = offset
                waiting.append(ends[item[1]])
            elif item[0] == "placed":
                for end in [w for w in waiting if w.adopted <= item[1]]:  # type: ignore[operator]
                    end.place = item[2]
                    waiting.remove(end)
        return ends

    # ---- words ----------------------------------------------------------------------------------

    def tell(self, state: State, move: Move, traded: bool) -> str:  # noqa: PLR0912
        """Returns a step in words."""
        end, length = self.data.lengths[state[0]], self.foreign.lengths[state[9][0]]
        match move[:-1]:
            case ("f write", begin):
                return f"partition[{end}]: a record of F{begin}"
            case ("f late", begin):
                return f"partition[{end}]: a late record of F{begin}"
            case ("f marker", begin):
                return f"partition[{end}]: the marker of F{begin}"
            case ("f late marker", begin):
                return f"partition[{end}]: a marker of F{begin}, of a replaced owner"
            case ("f decides", item):
                how = "handed over" if item[-1] else "marked"
                return f"other journal[{length}]: {item[0]} F{item[1]}, to be {how}"
            case ("f crash", item):
                return f"the other owner is replaced; on its way: {item}"
            case ("surprise",):
                return "the other owner finds a void record, and begins anew"
            case ("f reads", upto):
                return f"the other owner has read the home's journal below {upto}"
            case ("f finishes", begin):
                return f"other journal[{length}]: F{begin} is finished"
            case ("adopt", upto):
                at = self.journals.lengths[state[1]]
                return f"journal[{at}]: ADOPT, by what the other says below {upto}"
            case ("late adopt", upto):
                at = self.journals.lengths[state[1]]
                return f"journal[{at + 1}]: ADOPT of a replaced owner, by what lies below {upto}"
            case ("look up", begin, offset):
                return f"the reader looks F{begin} up: finished; the partition's end is {offset}"
            case _:
                return super().tell(state, move, traded)
