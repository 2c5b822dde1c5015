"""The small world of markers: two coordinators, two producers, two data partitions, consumers.

Here an append to the journal lands and is acknowledged at once (`journal_world` takes the two
apart); markers and records are what is on its way. Each owner has a lane for each data partition,
whose markers land in the order of the decisions, at any time. When its tenure ends, what is left in
the lanes was sent or not: each marker may land later, in order, or never. So a zombie's markers
stand between its successor's, and again behind them.

Producers write their records, ask any coordinator that serves to commit or abort, and know nothing
of an expiry. A record may land once more behind everything. For consumers see `readers`.

What a state leaves out, besides what `journal_world` says: when a marker of a lane was sent (it
states the HW of the moment at which it lands; a stray one states that of its tenure's end); and
what consumers do, which `Readers` visits for each log.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from logtx.coordinator.protocol import commands
from logtx.journal.control import BranchRange
from logtx.journal.errors import TransactionError

from ..coordinator.harness import fates
from . import invariants
from .buffers import Data, Item, Logs, MarkerItem, Plain
from .clients import PARTITIONS
from .explore import Move, State
from .journal_world import DOWN, SERVING
from .machines import Interner, Machine
from .readers import LookUp, Readers
from .tenures import (
    CORE_ERRORS,
    TIMEOUT_MS,
    Journal,
    JournalFacts,
    LiveTenure,
    Markers,
    txid_of,
)


class Budget(NamedTuple):
    """How many of each fault a scenario has."""

    crashes: int = 0
    bids: int = 0
    """OWNER records after the first, by a coordinator that does not serve."""
    duplicates: int = 0
    """Second landings of a marker or of a record."""
    expiries: int = 0
    look_ups: int = 0
    plain: int = 0
    """Records without a transaction."""


CRASHES, BIDS, DUPLICATES, EXPIRIES, LOOK_UPS, PLAIN = range(len(Budget._fields))
NO_LOOK_UP: Final = ((), ())


@dataclass(frozen=True)
class MarkerScenario:
    """A small configuration."""

    name: str
    what: str
    scripts: tuple[tuple[Any, ...], ...]
    """Steps of each producer: "begin", data partitions that it writes a record to, then "commit" or
    "end" (commit or abort)."""
    budget: Budget
    ends_first: bool = False
    """A mutation of the look-up: it asks for the ends before the fates."""
    keeps_void_records: bool = False


class MarkerWorld:
    """A scenario's states and steps."""

    def __init__(self, scenario: MarkerScenario) -> None:
        """Begins without any state visited."""
        self.name = scenario.name
        self.scenario = scenario
        self.journal = Journal(keeps_void_records=scenario.keeps_void_records)
        self.commands = Interner()
        self.markers = Interner()
        self.tenures = Machine(partial(LiveTenure, self.journal, self.commands))
        self.logs = Logs()
        self.readers = Readers(self.logs)
        self.with_consumers = 0
        """Number of states if both consumers, which were visited apart, were interleaved."""
        self._fates: dict[int, tuple[int, ...]] = {}
        self._judged: dict[tuple[int, ...], str | None] = {}

    # ---- the search's questions -----------------------------------------------------------------

    def initial(self) -> State:
        """Returns the state in which the first owner serves and both producers have connected."""
        journal = self.journal.append(0, self.journal.bid(0))
        tenure, _ = self.tenures.start(journal)
        for number in range(len(self.scenario.scripts)):
            connect = commands.Connect(producer_id=f"p{number}", nonce=number + 1)
            key = ("submit", ("preamble",), self.commands(connect))
            tenure, given = self.tenures.step(tenure, key)
            for _, predicted, record in [g for g in given if g[0] == "append"]:
                journal = self.journal.append(journal, record)
                tenure, _ = self.tenures.step(tenure, ("ack", predicted, predicted))
        serving = (SERVING, tenure, ((), ()), ())
        producers = tuple((0, -1) for _ in self.scenario.scripts)
        budget = tuple(self.scenario.budget)
        return journal, ((DOWN,), serving), (), producers, (0, 0), NO_LOOK_UP, budget

    def moves(self, state: State) -> list[tuple[Move, State | str]]:
        """Returns every step of the writers from a state."""
        found: list[tuple[Move, State | str]] = []

        def add(move: Move, draft: _Draft) -> None:
            after = draft.problem or draft.freeze()
            found.append(((*move, draft.traded), after))

        _, coordinators, strays, producers, _, look_up, budget = state
        for place, coordinator in enumerate(coordinators):
            if coordinator[0] == DOWN:
                if budget[BIDS]:
                    draft = _Draft(self, state, BIDS)
                    draft.bid(place)
                    add(("bid", place), draft)
                continue
            self._moves_serving(state, place, add)
        for number in range(len(strays)):
            draft = _Draft(self, state)
            partition, (item, *rest) = draft.strays[number]
            draft.strays[number] = partition, tuple(rest)
            draft.write(partition, item)
            add(("stray", partition, item), draft)
        for place, (step, _) in enumerate(producers):
            if step < len(self.scenario.scripts[place]):
                self._moves_producer(state, place, add)
        self._moves_others(state, add)
        if budget[LOOK_UPS] or (look_up != NO_LOOK_UP and () in look_up):
            draft = _Draft(self, state, LOOK_UPS if look_up == NO_LOOK_UP else None)
            what = draft.look_up()
            if what:
                add(("look-up", what), draft)
        return found

    def check(self, state: State) -> str | None:
        """Returns what a state breaks, or what a consumer of its logs may break."""
        journal, coordinators, _, _, logs, look_up, _ = state
        facts = self.journal.facts(journal)
        if isinstance(facts, str):
            return facts
        for coordinator in coordinators:
            if coordinator[0] == SERVING:
                problem = invariants.high_watermark(facts, self.tenures.facts[coordinator[1]])
                if problem is not None:
                    return problem
        key = (journal, *logs)
        if key not in self._judged:
            self._judged[key] = self._finished(facts, logs)
        if self._judged[key] is not None:
            return self._judged[key]
        counts = 1
        for place, log in enumerate(logs):
            found = self._found(look_up, place)
            problem = self.logs.problem(log) or self.readers.problem(log, found)
            if problem is not None:
                return f"{problem}, in partition {place}"
            counts *= self.readers.count(log, found)
        self.with_consumers += counts
        return None

    def _finished(self, facts: JournalFacts, logs: tuple[int, ...]) -> str | None:
        """Checks that a finished commit has its marker wherever it has records (3)."""
        for place, log in enumerate(logs):
            items = self.logs.items(log)
            ended = {x.begin for x in items if isinstance(x, MarkerItem)}
            for item in items:
                if not isinstance(item, Data) or item.begin in ended:
                    continue
                if item.begin in facts.ended and facts.decided[item.begin][0]:
                    return f"T{item.begin} is finished without a marker in partition {place}"
        return None

    @staticmethod
    def _found(look_up: Any, place: int) -> LookUp | None:
        fates_, ends = look_up
        return (fates_[1:], ends[place]) if fates_ and ends and len(fates_) > 1 else None

    # ---- steps ----------------------------------------------------------------------------------

    def _moves_serving(self, state: State, place: int, add: Any) -> None:
        budget = state[-1]
        _, _, lanes, owed = state[1][place]
        for partition, lane in enumerate(lanes):
            if lane:
                draft = _Draft(self, state)
                item = draft.land_marker(place, partition)
                add(("marker", place, partition, item), draft)
                if budget[DUPLICATES]:
                    draft = _Draft(self, state, DUPLICATES)
                    item = draft.land_marker(place, partition)
                    draft.strays.append((partition, (item,)))
                    add(("marker, and again later", place, partition, item), draft)
        for begin, missing in owed:
            if not missing:
                draft = _Draft(self, state)
                draft.written(place, begin)
                add(("written", place, begin), draft)
        if budget[EXPIRIES]:
            draft = _Draft(self, state, EXPIRIES)
            draft.take(place, ("expire",))
            add(("expire", place), draft)
        if budget[CRASHES]:
            draft = _Draft(self, state, CRASHES)
            draft.leave(place)
            add(("crash", place), draft)

    def _moves_producer(self, state: State, place: int, add: Any) -> None:
        step, begin = state[3][place]
        what = self.scenario.scripts[place][step]
        if isinstance(what, int):
            draft = _Draft(self, state)
            draft.write(what, Data(begin))
            draft.producers[place] = step + 1, begin
            add(("write", place, what), draft)
            return
        actions = ("commit", "abort") if what == "end" else (what,)
        for action in actions:
            number = self._request(state, place, action)
            for at, coordinator in enumerate(state[1]):
                if coordinator[0] == SERVING:
                    draft = _Draft(self, state)
                    draft.ask(at, place, number)
                    add(("ask", place, action, at), draft)

    def _moves_others(self, state: State, add: Any) -> None:
        budget = state[-1]
        for partition in range(len(PARTITIONS)):
            if budget[PLAIN]:
                draft = _Draft(self, state, PLAIN)
                draft.write(partition, Plain())
                add(("plain", partition), draft)
            if budget[DUPLICATES]:
                for place, (step, begin) in enumerate(state[3]):
                    script = self.scenario.scripts[place]
                    if step == len(script) and partition in script:
                        draft = _Draft(self, state, DUPLICATES)
                        draft.write(partition, Data(begin))
                        add(("late record", place, partition), draft)

    def _request(self, state: State, place: int, action: str) -> int:
        session = commands.SessionId(f"p{place}", 0, place + 1)
        if action == "begin":
            command: commands.Command = commands.Begin(
                session=session, request_id=1, answered_below=0, timeout_ms=TIMEOUT_MS
            )
            return self._number((place,), command)
        begin, logs = state[3][place][1], state[4]
        writes = {}
        for key, log in zip(PARTITIONS, logs, strict=True):
            items = self.logs.items(log)
            mine = [at for at, x in enumerate(items) if isinstance(x, Data) and x.begin == begin]
            if mine:
                writes[key] = (BranchRange(0, mine[0], mine[-1], len(mine)),)
        command = commands.End(
            session=session, txid=txid_of(begin), action=commands.Action(action), writes=writes
        )
        return self._number((place, begin, action, tuple(writes.items())), command)

    def _number(self, key: Any, command: commands.Command) -> int:
        number = self.commands(key)
        self.commands.values[number] = command
        return number

    def ended(self, journal: int) -> tuple[int, ...]:
        """Returns a 0, which says that it looked, and the BEGINs that a look-up finds ended."""
        if journal not in self._fates:
            facts = self.journal.facts(journal)
            assert isinstance(facts, JournalFacts), facts
            begins = list(facts.requests)
            entries = self.journal.entries(journal)
            told = fates(entries, map(txid_of, begins)) if begins else {}
            found = [b for b in begins if told[txid_of(b)].state.finished]
            self._fates[journal] = (0, *found)
        return self._fates[journal]

    # ---- words ----------------------------------------------------------------------------------

    def tell(self, state: State, move: Move, traded: bool) -> str:
        """Returns a step in words."""

        def name(place: int) -> str:
            return f"c{place ^ traded}"

        ends = [self.logs.lengths[log] for log in state[4]]
        match move[:-1]:
            case ("bid", place):
                return f"{name(place)} reads the journal, wins a new epoch and serves"
            case ("stray", partition, item):
                return f"partition {partition}[{ends[partition]}]: a stray {_words(item)}"
            case ("marker" | "marker, and again later" as how, place, partition, item):
                later = how.removeprefix("marker")
                where = f"partition {partition}[{ends[partition]}]"
                return f"{where}: {_words(item)} of {name(place)}{later}"
            case ("written", place, begin):
                return f"{name(place)} knows all markers of T{begin} written"
            case ("expire", place):
                return f"every timeout passes at {name(place)}"
            case ("crash", place):
                return f"{name(place)} crashes"
            case ("write", place, partition):
                begin = state[3][place][1]
                return f"partition {partition}[{ends[partition]}]: a record of T{begin}"
            case ("ask", place, action, at):
                return f"producer {place} asks {name(at)}: {action}"
            case ("plain", partition):
                return f"partition {partition}[{ends[partition]}]: a record of no transaction"
            case ("late record", place, partition):
                begin = state[3][place][1]
                return f"partition {partition}[{ends[partition]}]: a late record of T{begin}"
            case ("look-up", what):
                return f"the consumers' look-up reads the {what}"
            case _:
                raise AssertionError(move)

    def tell_end(self, state: State) -> list[str]:
        """Returns the steps, in words, of a consumer that does wrong in this state."""
        _, _, _, _, logs, look_up, _ = state
        for place, log in enumerate(logs):
            found = self._found(look_up, place)
            if self.readers.problem(log, found):
                return [f"consumer of {place}: {x}" for x in self.readers.way(log, found)]
        return []


def _words(item: MarkerItem) -> str:
    kind = "COMMITTED" if item.committed else "ABORTED"
    return f"{kind}(T{item.begin}) sequence {item.sequence} HW {item.hw}"


class _Draft:
    """The state after a step, while the step is being taken."""

    def __init__(self, world: MarkerWorld, state: State, fault: int | None = None) -> None:
        """Begins with the state before; a fault, if the step is one, is taken from the budget."""
        self.world = world
        self.journal: int = state[0]
        self.coordinators: list[tuple[Any, ...]] = [*state[1]]
        self.strays: list[tuple[int, tuple[Any, ...]]] = [
            (partition, tuple(world.markers.values[n] for n in numbers))
            for partition, numbers in state[2]
        ]
        self.producers: list[tuple[int, int]] = [*state[3]]
        self.logs: list[int] = [*state[4]]
        self.found: tuple[Any, Any] = state[5]
        self.budget = list(state[6])
        if fault is not None:
            self.budget[fault] -= 1
        self.problem: str | None = None
        self.traded = False
        """Whether the coordinators have changed places."""

    def freeze(self) -> State:
        """Returns the canonical state."""
        markers = self.world.markers
        strays = sorted(
            (partition, tuple(markers(item) for item in items))
            for partition, items in self.strays
            if items
        )
        first, second = self.coordinators
        if first > second:
            first, second = second, first
            self.traded = True
        return (
            *(self.journal, (first, second), tuple(strays), tuple(self.producers)),
            *(tuple(self.logs), self.found, tuple(self.budget)),
        )

    def write(self, partition: int, item: Item) -> None:
        """Lets a record or marker land in a data partition."""
        self.logs[partition] = self.world.logs.append(self.logs[partition], item)

    def look_up(self) -> str:
        """Takes the look-up's next step; returns which, or "" if there is none."""
        fates_, ends = self.found
        ends_due = not ends and (bool(fates_) or self.world.scenario.ends_first)
        if ends_due:
            self.found = fates_, tuple(self.world.logs.lengths[log] for log in self.logs)
            return "ends"
        if fates_:
            return ""
        self.found = self.world.ended(self.journal), ends
        return "fates"

    # ---- coordinators ---------------------------------------------------------------------------

    def bid(self, place: int) -> None:
        """Lets a coordinator win the next epoch, with no other record in between."""
        journal = self.world.journal
        self.journal = journal.append(self.journal, journal.bid(self.journal))
        try:
            tenure, given = self.world.tenures.start(self.journal)
            self.coordinators[place] = SERVING, tenure, ((), ()), ()
            self._process(place, given, None)
        except CORE_ERRORS as error:
            self._broke(error)

    def leave(self, place: int) -> None:
        """Ends a tenure; any of its markers may be on their way."""
        _, tenure, lanes, _ = self.coordinators[place]
        for partition, lane in enumerate(lanes):
            items = tuple(self._item(tenure, number, partition) for number in lane)
            self.strays.append((partition, items))
        self.coordinators[place] = (DOWN,)

    def _item(self, tenure: int, number: int, partition: int) -> MarkerItem:
        world = self.world
        markers: Markers = world.markers.values[number]
        ranges = dict(markers.branches).get(PARTITIONS[partition], ())
        hw = world.tenures.facts[tenure].hw
        return MarkerItem(markers.begin, markers.committed, markers.sequence, hw, ranges)

    def land_marker(self, place: int, partition: int) -> MarkerItem:
        """Lets the first marker of a lane land."""
        kind, tenure, lanes, owed = self.coordinators[place]
        number, *rest = lanes[partition]
        item = self._item(tenure, number, partition)
        self.write(partition, item)
        lanes = tuple(tuple(rest) if n == partition else lane for n, lane in enumerate(lanes))
        owed = tuple((b, missing - (b == item.begin)) for b, missing in owed)
        self.coordinators[place] = kind, tenure, lanes, owed
        return item

    def written(self, place: int, begin: int) -> None:
        """Tells a coordinator that all markers of a transaction are written."""
        kind, tenure, lanes, owed = self.coordinators[place]
        rest = tuple((b, missing) for b, missing in owed if b != begin)
        self.coordinators[place] = kind, tenure, lanes, rest
        self.take(place, ("written", begin))

    def ask(self, at: int, place: int, number: int) -> None:
        """Lets a producer ask; it is answered at once or not at all."""
        self.take(at, ("submit", (place, number), number), place)

    def take(self, place: int, key: tuple[Any, ...], asking: int | None = None) -> None:
        """Lets a tenure take an input, and carries out what it gives out."""
        kind, tenure, lanes, owed = self.coordinators[place]
        try:
            tenure, given = self.world.tenures.step(tenure, key)
            self.coordinators[place] = kind, tenure, lanes, owed
            self._process(place, given, asking)
        except CORE_ERRORS as error:
            self._broke(error)

    def _broke(self, error: Exception) -> None:
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        self.problem = self.problem or kind + str(error).partition("\n")[0]

    def _process(self, place: int, given: tuple[Any, ...], asking: int | None) -> None:
        world = self.world
        appended = []
        for what in given:
            match what:
                case ("append", predicted, record):
                    offset = world.journal.lengths[self.journal]
                    self.journal = world.journal.append(self.journal, record)
                    appended.append((predicted, offset))
                case ("answer", ref, reply):
                    self._answer(ref, reply, asking)
                case ("markers", markers):
                    self._emit(place, markers)
                case ("ask",):
                    appended.append((None, world.journal.lengths[self.journal]))
                case ("surprised",):
                    self.leave(place)
                    return
        for predicted, offset in appended:
            if self.coordinators[place][0] == SERVING:
                key = ("end", offset) if predicted is None else ("ack", predicted, offset)
                self.take(place, key, asking)

    def _emit(self, place: int, markers: Markers) -> None:
        kind, tenure, lanes, owed = self.coordinators[place]
        facts = self.world.journal.facts(self.journal)
        assert isinstance(facts, JournalFacts), facts
        told = self.world.tenures.facts[tenure]
        self.problem = self.problem or invariants.emitted(facts, markers, told)
        number = self.world.markers(markers)
        mine = [key in markers.partitions for key in PARTITIONS]
        lanes = tuple((*x, number) if own else x for x, own in zip(lanes, mine, strict=True))
        owed = tuple(sorted((*owed, (markers.begin, sum(mine)))))
        self.coordinators[place] = kind, tenure, lanes, owed

    def _answer(self, ref: Any, reply: commands.Reply, asking: int | None) -> None:
        place, number = ref
        facts = self.world.journal.facts(self.journal)
        assert isinstance(facts, JournalFacts), facts
        command = self.world.commands.values[number]
        self.problem = self.problem or invariants.told(facts, command, None, reply)
        step, begin = self.producers[place]
        if asking != place:
            return
        match reply:
            case commands.Began(txid):
                self.producers[place] = step + 1, txid.offset
            case commands.Outcome():
                self.producers[place] = step + 1, begin
            case TransactionError():
                self.producers[place] = len(self.world.scenario.scripts[place]), begin
            case _:
                pass  # That coordinator does not serve it any more: it asks again.
