"""The small world of one journal partition: two coordinators, two clients, every interleaving.

The coordinators are real `Tenure`s over real `Shard`s. The world models what the runtime and the
log do around them. An append is on its way, lands, and is acknowledged; or it is given up (its
outcome is not known), and lands late or never, in any order. A coordinator that does not serve may
read the journal to its end and bid for OWNER; others may write before its bid lands. A coordinator
that was replaced does not know it, and serves on until an append or the journal's end tells it.

A client asks any coordinator that serves, the right one or not; it may lose patience and ask again;
a former request may arrive twice. The scenario's budget bounds the faults.

What a state leaves out:

- which coordinator is which: they are alike except in what they do, so of two states that differ
  only in that, one is kept;
- what clients were told: it was checked against the journal when it was told, and decisions in the
  journal never change (`Reference` checks that too);
- the order of late appends on their way: they land in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from logtx.coordinator.protocol import commands
from logtx.journal.errors import LogtxError, RetriableError

from . import invariants
from .clients import INPUT, TRANSACTIONAL, Client, Script, request
from .explore import Move, State
from .machines import Interner, Machine
from .tenures import CORE_ERRORS, Journal, JournalFacts, LiveTenure, look_up

DOWN, BIDDING, SERVING = 0, 1, 2


class Budget(NamedTuple):
    """How many of each fault a scenario has."""

    crashes: int = 0
    duplicates: int = 0
    """Second arrivals of a former request or of an append."""
    losses: int = 0
    """Appends whose outcome the coordinator does not learn."""
    bids: int = 0
    """OWNER records after the first."""
    expiries: int = 0
    retries: int = 0
    """Requests sent again before an answer came."""
    queries: int = 0
    """Questions by another client: an outcome, an IOV."""


CRASHES, DUPLICATES, LOSSES, BIDS, EXPIRIES, RETRIES, QUERIES = range(len(Budget._fields))


@dataclass(frozen=True)
class Scenario:
    """A small configuration."""

    name: str
    what: str
    """Description in one line, for the report."""
    clients: tuple[Script, ...]
    preamble: tuple[commands.Command, ...] = ()
    """Commands that the first owner carries out before anything goes wrong."""
    budget: Budget = field(default_factory=Budget)
    same_epoch_again: bool = False
    """A mutation of the runtime: after a surprise it serves on under its old epoch."""
    queries: tuple[commands.Command, ...] = ()
    keeps_void_records: bool = False
    acknowledged_at_once: bool = False
    """Whether an append is acknowledged in the step in which it lands, unless late or lost."""


class JournalWorld:
    """A scenario's states and steps."""

    def __init__(self, scenario: Scenario) -> None:
        """Begins without any state visited."""
        self.name = scenario.name
        self.scenario = scenario
        self.journal = Journal(keeps_void_records=scenario.keeps_void_records)
        self.commands = Interner()
        self.tenures = Machine(partial(LiveTenure, self.journal, self.commands))
        self._command_numbers: dict[tuple[Any, ...], int] = {}
        self._judged: dict[tuple[int, int, bool], str | None] = {}

    # ---- the search's questions -----------------------------------------------------------------

    def initial(self) -> State:
        """Returns the state in which the first owner serves and has carried out the preamble."""
        journal = self.journal.append(0, self.journal.bid(0))
        tenure, _ = self.tenures.start(journal)
        for command in self.scenario.preamble:
            key = ("submit", ("preamble",), self._number(repr(command), command))
            tenure, given = self.tenures.step(tenure, key)
            for _, predicted, record in [g for g in given if g[0] == "append"]:
                journal = self.journal.append(journal, record)
                tenure, _ = self.tenures.step(tenure, ("ack", predicted, predicted))
        coordinators = ((DOWN,), (SERVING, tenure, (), 0, ()))
        clients = tuple(tuple(s.start) for s in self.scenario.clients)
        return journal, coordinators, (), clients, tuple(self.scenario.budget)

    def moves(self, state: State) -> list[tuple[Move, State | str]]:
        """Returns every step from a state."""
        found: list[tuple[Move, State | str]] = []

        def add(move: Move, draft: Draft) -> None:
            after = draft.problem or draft.freeze()
            found.append(((*move, draft.traded), after))

        for place, coordinator in enumerate(state[1]):
            if coordinator[0] == DOWN:
                self._moves_down(state, place, add)
            elif coordinator[0] == BIDDING:
                draft = Draft(self, state)
                draft.land_bid(place)
                add(("bid lands", place), draft)
            else:
                self._moves_serving(state, place, add)
            if coordinator[0] != DOWN and state[4][CRASHES]:
                draft = Draft(self, state, CRASHES)
                draft.leave(place)
                add(("crash", place), draft)
        for record in dict.fromkeys(state[2]):
            draft = Draft(self, state)
            draft.land_late(record)
            add(("late", record), draft)
        for place in range(len(state[3])):
            self._moves_client(state, place, add)
        if state[4][QUERIES]:
            for number, command in enumerate(self.scenario.queries):
                for at in _serving(state):
                    draft = Draft(self, state, QUERIES)
                    draft.ask(at, ("query", number), self._number(("query", number), command))
                    add(("query", number, at), draft)
        return found

    def check(self, state: State) -> str | None:
        """Returns what a state breaks, apart from what its last step broke."""
        journal = state[0]
        facts = self.journal.facts(journal)
        if isinstance(facts, str):
            return facts
        for coordinator in state[1]:
            if coordinator[0] != SERVING:
                continue
            _, tenure, flight, asked, effects = coordinator
            key = (journal, tenure, not (flight or asked or effects))
            try:
                problem = self._judged[key]
            except KeyError:
                problem = self._judged[key] = self._judge(facts, *key[1:])
            if problem is not None:
                return problem
        return None

    def _judge(self, facts: JournalFacts, tenure: int, quiet: bool) -> str | None:
        told = self.tenures.facts[tenure]
        problem = invariants.high_watermark(facts, told)
        return invariants.quiet(facts, told) if quiet and problem is None else problem

    # ---- steps ----------------------------------------------------------------------------------

    def _moves_down(self, state: State, place: int, add: Any) -> None:
        coordinator = state[1][place]
        if state[4][BIDS]:
            draft = Draft(self, state, BIDS)
            draft.coordinators[place] = BIDDING, self.journal.bid(state[0])
            add(("bid", place), draft)
        if len(coordinator) > 1:
            facts = self.journal.facts(state[0])
            if isinstance(facts, JournalFacts) and coordinator[1] == facts.epoch:
                draft = Draft(self, state)
                draft.serve(place)
                add(("serve on", place), draft)

    def _moves_serving(self, state: State, place: int, add: Any) -> None:
        _, _, flight, asked, effects = state[1][place]
        budget = state[4]
        unlanded = next((n for n, (_, at) in enumerate(flight) if at < 0), None)
        if unlanded is not None:
            record = flight[unlanded][0]
            draft = Draft(self, state)
            draft.land(place, unlanded)
            if self.scenario.acknowledged_at_once:
                draft.answered(place, known=True)
            add(("land", place, record), draft)
            if budget[DUPLICATES]:
                draft = Draft(self, state, DUPLICATES)
                draft.late = (*draft.late, record)
                draft.land(place, unlanded)
                if self.scenario.acknowledged_at_once:
                    draft.answered(place, known=True)
                add(("land, and again later", place, record), draft)
        if flight and flight[0][1] >= 0:
            draft = Draft(self, state)
            draft.answered(place, known=True)
            add(("acknowledge", place, *flight[0]), draft)
        if flight and budget[LOSSES]:
            draft = Draft(self, state, LOSSES)
            draft.answered(place, known=False)
            add(("lose", place, *flight[0]), draft)
        if asked:
            draft = Draft(self, state)
            draft.coordinators[place] = (*state[1][place][:3], 0, effects)
            draft.take(place, ("end", self.journal.lengths[state[0]]))
            add(("end told", place), draft)
        for number, begin in enumerate(effects):
            if begin not in effects[:number]:
                draft = Draft(self, state)
                rest = (*effects[:number], *effects[number + 1 :])
                draft.coordinators[place] = (*state[1][place][:4], rest)
                draft.take(place, ("written", begin))
                add(("written", place, begin), draft)
        if budget[EXPIRIES]:
            draft = Draft(self, state, EXPIRIES)
            draft.take(place, ("expire",))
            add(("expire", place), draft)

    def _moves_client(self, state: State, place: int, add: Any) -> None:
        raw, script = state[3][place], self.scenario.clients[place]
        step, at_now = raw[0], raw[1]
        if at_now < 0 and step < len(script.steps):
            client = Client(*raw)
            for action, number in self._choices(place, client):
                for at in _serving(state):
                    draft = Draft(self, state)
                    draft.clients[place] = (step, at, *raw[2:5], action, *raw[6:])
                    draft.ask(at, ("client", place, client.attempt), number)
                    add(("ask", place, number, at), draft)
        if at_now >= 0 and state[4][RETRIES]:
            draft = Draft(self, state, RETRIES)
            draft.clients[place] = (step, -1, raw[2] + 1, *raw[3:])
            add(("lose patience", place), draft)
        if state[4][DUPLICATES]:
            for sent in range(script.start.step, step + (at_now >= 0)):
                before = Client(*raw)._replace(step=sent)
                if before.begin < 0 and script.steps[sent] in TRANSACTIONAL:
                    continue  # Its BEGIN was refused.
                for _, number in self._choices(place, before):
                    for at in _serving(state):
                        draft = Draft(self, state, DUPLICATES)
                        draft.ask(at, ("duplicate", place), number)
                        add(("ask again", place, number, at), draft)

    def _choices(self, place: int, client: Client) -> list[tuple[int, int]]:
        """Returns the requests that a client may send now: (its choice, number of the command)."""
        step = self.scenario.clients[place].steps[client.step]
        if step == "end":
            actions = (client.action,) if client.action else (1, 2)
        else:
            actions = ({"commit": 1, "commit in parts": 1, "abort": 2}.get(step, client.action),)
        return [(action, self._request(place, step, client, action)) for action in actions]

    def _request(self, place: int, step: str, client: Client, action: int) -> int:
        key = (place, step, client.begin, client.generation, action, client.claim, client.place)
        found = self._command_numbers.get(key)
        if found is None:
            command = request(self.scenario.clients[place], step, client, action)
            found = self._command_numbers[key] = self._number(key, command)
        return found

    def _number(self, key: Any, command: commands.Command) -> int:
        number = self.commands((key,))
        self.commands.values[number] = command
        return number

    # ---- words ----------------------------------------------------------------------------------

    def tell(self, state: State, move: Move, traded: bool) -> str:  # noqa: PLR0912
        """Returns a step in words."""

        def name(place: int) -> str:
            return f"c{place ^ traded}"

        end = self.journal.lengths[state[0]]
        match move[:-1]:
            case ("ask" | "ask again" as how, place, number, at):
                what = _words(self.commands.values[number])
                again = "'s request arrives once more" if how == "ask again" else " asks"
                return f"client {place}{again} at {name(at)}: {what}"
            case ("query", number, at):
                return f"somebody asks {name(at)}: {_words(self.scenario.queries[number])}"
            case ("lose patience", place):
                return f"client {place} gives up waiting"
            case ("late", record):
                return f"a late append lands: {self._record(record)} at {end}"
            case ("land" | "land, and again later" as how, place, record):
                later = how.removeprefix("land")
                return f"an append of {name(place)} lands: {self._record(record)} at {end}{later}"
            case ("acknowledge", place, record, offset):
                return f"{name(place)} is told: {self._record(record)} lies at {offset}"
            case ("lose", place, record, offset):
                where = f"lies at {offset}" if offset >= 0 else "has not landed"
                return f"{name(place)} is told nothing of {self._record(record)}, which {where}"
            case ("bid", place):
                return f"{name(place)} reads the journal to its end, {end}, and bids"
            case ("bid lands", place):
                return f"the OWNER record of {name(place)} lands at {end}"
            case ("end told", place):
                return f"{name(place)} is told that the journal ends at {end}"
            case ("written", place, begin):
                return f"all markers of T{begin} are written for {name(place)}"
            case ("expire", place):
                return f"every timeout passes at {name(place)}"
            case ("crash", place):
                return f"{name(place)} crashes"
            case ("serve on", place):
                return f"{name(place)} serves on under its old epoch"
            case _:
                raise AssertionError(move)

    def tell_end(self, state: State) -> list[str]:  # noqa: ARG002
        """Returns nothing more: the last step says it all."""
        return []

    def _record(self, number: int) -> str:
        entry = self.journal.entry(number)
        record = entry.record
        begin = getattr(record, "begin", None)
        about = "" if begin is None else f"(T{begin})"
        return f"{type(record).__name__}{about}#{entry.predicted}/epoch {entry.epoch}"


def _words(command: commands.Command) -> str:
    match command:
        case commands.End():
            return f"{command.action} T{command.txid.offset}"
        case commands.Begin():
            return f"begin (request {command.request_id})"
        case commands.ClaimOffsets():
            how = "" if command.expected is None else f" again if claim {command.expected[INPUT]}"
            return f"claim the input{how}"
        case commands.Connect():
            return f"connect {command.producer_id!r} as {command.generation}"
        case _:
            txid = getattr(command, "txid", None)
            return type(command).__name__ + (f" T{txid.offset}" if txid else "")


def _serving(state: State) -> Iterable[int]:
    return [n for n, coordinator in enumerate(state[1]) if coordinator[0] == SERVING]


class Draft:
    """The state after a step, while the step is being taken."""

    __slots__ = (
        *("budget", "clients", "coordinators", "journal", "late"),
        *("problem", "traded", "world"),
    )

    def __init__(self, world: JournalWorld, state: State, fault: int | None = None) -> None:
        """Begins with the state before; a fault, if the step is one, is taken from the budget."""
        self.world = world
        coordinators, clients = state[1], state[3]
        self.journal: int = state[0]
        self.coordinators: list[tuple[Any, ...]] = [*coordinators]
        self.late: tuple[int, ...] = state[2]
        self.clients: list[tuple[int, ...]] = [*clients]
        budget = state[4]
        if fault is not None:
            budget = (*budget[:fault], budget[fault] - 1, *budget[fault + 1 :])
        self.budget: tuple[int, ...] = budget
        self.problem: str | None = None
        self.traded = False
        """Whether the coordinators have changed places."""

    def freeze(self) -> State:
        """Returns the canonical state."""
        first, second = self.coordinators
        clients = self.clients
        late = self.late
        if len(late) > 1:
            late = tuple(sorted(late))
        if first > second:
            first, second = second, first
            self.traded = True
            clients = [x if x[1] < 0 else (x[0], 1 - x[1], *x[2:]) for x in clients]
        return self.journal, (first, second), late, tuple(clients), self.budget

    @property
    def facts(self) -> JournalFacts:
        """Returns what the journal says now.

        Raises:
            AssertionError: the journal breaks an invariant.
        """
        facts = self.world.journal.facts(self.journal)
        assert isinstance(facts, JournalFacts), facts
        return facts

    # ---- the log --------------------------------------------------------------------------------

    def land(self, place: int, number: int) -> None:
        """Lets an append land at the journal's end."""
        kind, tenure, flight, asked, effects = self.coordinators[place]
        record = flight[number][0]
        landed = record, self.world.journal.lengths[self.journal]
        flight = (*flight[:number], landed, *flight[number + 1 :])
        self.coordinators[place] = kind, tenure, flight, asked, effects
        self.journal = self.world.journal.append(self.journal, record)

    def answered(self, place: int, *, known: bool) -> None:
        """Acknowledges the first append in flight, or hides what became of it."""
        kind, tenure, flight, asked, effects = self.coordinators[place]
        record, offset = flight[0]
        self.coordinators[place] = kind, tenure, flight[1:], asked, effects
        if offset < 0:
            self.late = (*self.late, record)
        predicted = self.world.journal.entry(record).predicted
        self.take(place, ("ack", predicted, offset if known else None))

    def land_bid(self, place: int) -> None:
        """Lets an OWNER record land; if it wins, its coordinator serves."""
        journal = self.world.journal
        self.journal = journal.append(self.journal, self.coordinators[place][1])
        try:
            won = self.facts.epoch == journal.lengths[self.journal] - 1
        except CORE_ERRORS as error:
            self._broke(error)
            return
        self.coordinators[place] = (DOWN,)
        if won:
            self.serve(place)

    def serve(self, place: int) -> None:
        """Begins a tenure on the journal as it is."""
        try:
            tenure, given = self.world.tenures.start(self.journal)
            self.coordinators[place] = SERVING, tenure, (), 0, ()
            self._process(place, given)
        except CORE_ERRORS as error:
            self._broke(error)

    def leave(self, place: int) -> None:
        """Ends a tenure; what it had in flight may have landed or not."""
        coordinator = self.coordinators[place]
        kept: tuple[Any, ...] = (DOWN,)
        if coordinator[0] == SERVING:
            self.late += tuple(record for record, offset in coordinator[2] if offset < 0)
            if self.world.scenario.same_epoch_again:
                kept = DOWN, self.world.tenures.facts[coordinator[1]].epoch
        else:
            self.late += (coordinator[1],)
        self.coordinators[place] = kept
        self.clients = [(x[0], -1, *x[2:]) if x[1] == place else x for x in self.clients]

    def land_late(self, record: int) -> None:
        """Lets an append land that was given up."""
        place = self.late.index(record)
        self.late = (*self.late[:place], *self.late[place + 1 :])
        self.journal = self.world.journal.append(self.journal, record)

    # ---- the core -------------------------------------------------------------------------------

    def ask(self, place: int, who: tuple[Any, ...], number: int) -> None:
        """Lets a request arrive."""
        try:
            floor = invariants.floor_of(self.facts, self.world.commands.values[number])
        except AssertionError as error:
            self._broke(error)
            return
        self.take(place, ("submit", (who, number, floor), number))

    def take(self, place: int, key: tuple[Any, ...]) -> None:
        """Lets a tenure take an input, and carries out what it gives out."""
        kind, tenure, *rest = self.coordinators[place]
        try:
            tenure, given = self.world.tenures.step(tenure, key)
            self.coordinators[place] = (kind, tenure, *rest)
            if given:
                self._process(place, given)
        except CORE_ERRORS as error:
            self._broke(error)

    def _broke(self, error: Exception) -> None:
        text = str(error).partition("\n")[0]
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        self.problem = self.problem or f"{kind}{text}"

    def _process(self, place: int, given: tuple[Any, ...]) -> None:
        world = self.world
        kind, tenure, flight, asked, effects = self.coordinators[place]
        at_once = []
        over = False
        for what in given:
            problem = None
            match what:
                case ("append", _, record):
                    flight = (*flight, (record, -1))
                case ("ask",):
                    asked = 1
                case ("answer", ref, reply):
                    problem = self._answer(ref, reply)
                case ("look_up", ref, command, txid):
                    reply = look_up(world.journal, self.journal, command, txid)
                    problem = self._answer(ref, reply)
                case ("markers", markers):
                    problem = invariants.emitted(self.facts, markers, world.tenures.facts[tenure])
                    effects = tuple(sorted((*effects, markers.begin)))
                case ("offsets", begin, group, offsets):
                    problem = invariants.published_iov(self.facts, group, offsets, whole=False)
                    at_once.append(begin)
                case ("surprised",):
                    over = True
            self.problem = self.problem or problem
        self.coordinators[place] = kind, tenure, flight, asked, effects
        if over:
            self.leave(place)
            return
        for begin in at_once:
            self.take(place, ("written", begin))

    def _answer(self, ref: Any, reply: commands.Reply) -> str | None:
        who, number, floor = ref
        command = self.world.commands.values[number]
        problem = invariants.told(self.facts, command, floor, reply)
        if who[0] == "client":
            client = Client(*self.clients[who[1]])
            if client.at >= 0 and client.attempt == who[2]:
                self.clients[who[1]] = tuple(self._after(who[1], client, reply))
        return problem

    def _after(self, place: int, client: Client, reply: commands.Reply) -> Client:
        client = client._replace(at=-1)
        match reply:
            case RetriableError():
                return client
            case commands.Connected(generation=generation):
                return client._replace(step=client.step + 1, generation=generation)
            case commands.Began(txid):
                return client._replace(step=client.step + 1, begin=txid.offset)
            case commands.Claimed(number, iov):
                position = iov.offsets.get(INPUT)
                client = client._replace(step=client.step + 1)
                if client.claim >= 0:
                    return client  # It went back, and stops; its request may arrive once more.
                read = -1 if position is None else position.o2
                return client._replace(claim=number, place=read)
            case LogtxError():
                return client._replace(step=len(self.world.scenario.clients[place].steps))
            case _:
                return client._replace(step=client.step + 1)
