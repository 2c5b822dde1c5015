"""The small world of a queue: two consumers, two messages, a transaction each, one coordinator.

Where a subscription may be reset, there is one message: in each era all are worked on anew.

The coordinator is a real `Tenure` over a real `Shard`, with the real subscriptions and leases. Its
appends land and are acknowledged at once, unless one stays on its way: then all behind it do, until
they land or its owner crashes and they are lost. A question for the journal's end may stay on its
way, too. Another coordinator may take over at any time: the former one does not know it and serves
on, or is gone. Consumers attach to the new one with what they hold.

A consumer asks for messages, acknowledges what it was given (plainly, in its transaction, one by
one or cumulatively), releases it, lets its lease run out and goes on, or crashes. A request may
come late, or once more. A transaction may commit when all its acknowledgements were answered; it
may be aborted at any time.

All consumers may leave, and an operator reset the subscription, or delete it, and ask for that once
more. Consumers come back with what they held, and what they and the transactions have said may come
only then.

What the journal says is read naively: every acknowledgement that a decision or an ACK makes counts
as a consumption, whatever was before. So a message that is consumed twice shows; and one that is
acknowledged in an era in which it was given to nobody.

Not modelled: how a lease is read, which is the searched property of consumers; delays, limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final

from logtx.coordinator.core.dispatch import GONE_MS
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.queues import AcknowledgeType, AckResult
from logtx.journal.acks import Ack, Acks, AddAcks, Subscribe, SubscribeEffect
from logtx.journal.errors import AckConflictError, SubscriptionResetError
from logtx.journal.places import PartitionId
from logtx.journal.records.fate import EpochFilter
from logtx.journal.records.types import Owner, PrepareAbort, PrepareCommit
from logtx.journal.spans import AT_OFFSET, MessageId, Span

from ..coordinator.harness import TOPICS
from .explore import Move, State
from .machines import Interner, Machine
from .tenures import Journal, LiveTenure, txid_of

GROUP: Final = "q"
P0: Final = PartitionId("a", 0, "id-a")
MESSAGES: Final = (0, 1)
BEGINS: Final = (3, 4)
"""Offsets: OWNER 0, PRODUCERs 1 and 2, BEGINs 3 and 4, SUBSCRIBE 5."""
LEASE_MS: Final = 100
HELD_MS: Final = 500
TIMEOUT_MS: Final = 900_000
SESSIONS: Final = tuple(commands.SessionId(f"p{n}", 0, n + 1) for n in (0, 1))
OPEN, BAD, COMMITTED, ABORTED = "open", "bad", "committed", "aborted"


@dataclass(frozen=True)
class QueueBudget:
    """How often each may happen."""

    plain: int = 0
    late: int = 0
    again: int = 0
    expire: int = 0
    release: int = 0
    consumer_crash: int = 0
    take_over: int = 0
    zombie: int = 0
    slow_append: int = 0
    slow_ask: int = 0
    reset: int = 0
    delete: int = 0
    order_again: int = 0
    leave: int = 1
    """Of all consumers together, where an operator has something to order. Time passes each time:
    without a limit there would be no end of states."""


BUDGETS: Final = tuple(QueueBudget.__dataclass_fields__)


@dataclass(frozen=True)
class QueueScenario:
    """A small configuration."""

    name: str
    what: str
    budget: QueueBudget
    cumulative: bool = False
    waits: bool = True
    """Whether a commit waits for the answers to its acknowledgements."""
    drops: bool = True
    """Whether a consumer that is told of another era drops what it held."""
    messages: int = len(MESSAGES)
    """How many there are: with each era all of them are worked on anew."""


class Commands(Interner):
    """Numbers commands, some of which have mappings."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, int] = {}

    def __call__(self, value: Any) -> int:
        """Returns the number of a command."""
        number = self._known.setdefault(repr(value), len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class LiveQueueTenure(LiveTenure):
    """A real tenure whose queue's partition has its messages."""

    def __init__(self, journal: Journal, commands_: Interner, messages: int, origin: int) -> None:
        super().__init__(journal, commands_, origin)
        self.tenure.queue_ends_told({P0: messages}, self._now)

    def apply(self, key: Hashable) -> None:
        """Takes an input."""
        match key:
            case ("pass", ms):
                self._now_ms += ms
                self.tenure.tick(self._now, TOPICS)
            case ("leave",):
                for c in (0, 1):
                    self.tenure.consumer_gone(GROUP, c, self._now)
                self._now_ms += GONE_MS
                self.tenure.tick(self._now, TOPICS)
            case ("forget", ref):
                waiting = self.tenure.shard.queues.dispatch._waiting
                self.tenure.forget([each.ref for each in waiting.values() if each.ref == ref])
            case _:
                super().apply(key)


def named(messages: tuple[int, ...]) -> tuple[Acks, ...]:
    """Returns messages as a request names them, each with what stands before the next one."""
    spans = tuple(Span(MessageId(m), MessageId(m + 1)) for m in messages)
    return (Acks(P0, spans),)


def messages_of(spans: tuple[Span, ...]) -> tuple[int, ...]:
    """Returns the messages of spans."""
    ids = {m: MessageId(m, AT_OFFSET) for m in MESSAGES}
    return tuple(m for m, at in ids.items() if any(s.lo <= at < s.hi for s in spans))


class QueueFacts:
    """What a journal says of the messages, read naively."""

    def __init__(self, journal: Journal, number: int) -> None:
        self.consumed: dict[int, list[Any]] = {m: [] for m in MESSAGES}
        """In the era that is now."""
        self.consumed_by: dict[int, set[int]] = {b: set() for b in BEGINS}
        """By the transaction of a BEGIN, in any era."""
        self.era = 0
        self.eras_ended = 0
        self.pending: dict[int, set[int]] = {b: set() for b in BEGINS}
        self.decided: dict[int, bool] = {}
        self.violation: str | None = None
        epochs = EpochFilter()
        for offset, entry in enumerate(journal.entries(number)):
            record = entry.record
            if epochs.accept(offset, entry) and not isinstance(record, Owner):
                self._take(offset, record)

    def _take(self, offset: int, record: Any) -> None:
        match record:
            case Subscribe() if record.effect is not SubscribeEffect.JOINS:
                self.era, self.eras_ended = offset, self.eras_ended + 1
                self.consumed = {m: [] for m in MESSAGES}
                if any(self.pending.values()):
                    self.violation = "an era ends while a transaction acknowledges a message"
            case AddAcks():
                found = {m for each in record.acks for m in messages_of(each.spans)}
                if record.begin in self.decided:
                    self.violation = "pending for ever: its transaction had ended"
                self.pending[record.begin] |= found
            case Ack():
                for m in (m for each in record.acks for m in messages_of(each.spans)):
                    self._consume(m, "plain")
            case PrepareCommit():
                self.decided[record.begin] = True
                for m in sorted(self.pending[record.begin]):
                    self._consume(m, record.begin)
                    self.consumed_by[record.begin].add(m)
                self.pending[record.begin] = set()
            case PrepareAbort():
                self.decided[record.begin] = False
                self.pending[record.begin] = set()

    def _consume(self, m: int, who: Any) -> None:
        self.consumed[m].append(who)
        if len(self.consumed[m]) > 1:
            self.violation = f"message {m} is consumed twice, by {self.consumed[m]}"

    def held_by(self, m: int) -> str | None:
        """Returns why a message may not be given out, or None."""
        if self.consumed[m]:
            return "deleted"
        return "pending" if any(m in each for each in self.pending.values()) else None


@dataclass
class _Draft:
    """A state that is being made."""

    journal: int
    owner: int
    zombie: int
    flying: tuple[tuple[int, int], ...]
    asked: bool
    hands: tuple[tuple[int, ...], ...]
    work: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    """By transaction: its phase, the messages it works on, those whose answers came."""
    bag: tuple[int, ...]
    out: tuple[Any, ...]
    budget: tuple[int, ...]
    eras: tuple[int | None, ...] = (None, None)
    """What each consumer was told; None: to make the subscription, if there is none."""
    work_eras: tuple[int, ...] = (0, 0)
    """In which each transaction's messages were given out."""
    away: tuple[bool, ...] = (False, False)
    given: tuple[int, ...] = ()
    """Messages that were given out in this era."""
    order: int | None = None
    """What the operator has asked for."""
    violation: str | None = field(default=None, compare=False)

    def state(self) -> State:
        return (
            *(self.journal, self.owner, self.zombie, self.flying, self.asked, self.hands),
            *(self.work, self.bag, self.out, self.budget),
            *(self.eras, self.work_eras, self.away, self.given, self.order),
        )

    def left(self, what: str) -> int:
        return self.budget[BUDGETS.index(what)]

    def spend(self, what: str) -> None:
        at = BUDGETS.index(what)
        self.budget = (*self.budget[:at], self.budget[at] - 1, *self.budget[at + 1 :])

    def hold(self, c: int, messages: tuple[int, ...]) -> None:
        kept = tuple(sorted(messages))
        self.hands = (kept, self.hands[1]) if c == 0 else (self.hands[0], kept)

    def let_go(self, c: int, messages: tuple[int, ...]) -> None:
        self.hold(c, tuple(m for m in self.hands[c] if m not in messages))

    def told(self, c: int, era: int | None) -> None:
        self.eras = (era, self.eras[1]) if c == 0 else (self.eras[0], era)

    def is_away(self, c: int, away: bool) -> None:
        self.away = (away, self.away[1]) if c == 0 else (self.away[0], away)

    def turn(self, t: int, phase: str, work: tuple[int, ...], acked: tuple[int, ...]) -> None:
        new = (phase, tuple(sorted(work)), tuple(sorted(acked)))
        self.work = (new, self.work[1]) if t == 0 else (self.work[0], new)


class QueueWorld:
    """A scenario's states and steps."""

    def __init__(self, scenario: QueueScenario) -> None:
        """Begins without any state visited."""
        self.scenario, self.name = scenario, scenario.name
        self.commands = Commands()
        self.journals = Journal(keeps_void_records=True)
        known = self.journals, self.commands, scenario.messages
        self.tenures = Machine(lambda origin: LiveQueueTenure(*known, origin))
        self._facts: dict[int, QueueFacts] = {}

    def facts(self, journal: int) -> QueueFacts:
        """Returns what a journal says, read naively."""
        found = self._facts.get(journal)
        if found is None:
            found = self._facts[journal] = QueueFacts(self.journals, journal)
        return found

    # ---- the coordinator ------------------------------------------------------------------------

    def initial(self) -> State:
        """Returns the state with both transactions open, both consumers attached."""
        budget = self.scenario.budget
        draft = _Draft(
            *(0, -1, -1, (), False, ((), ()), ((OPEN, (), ()),) * 2, (), ()),
            tuple(getattr(budget, name) for name in BUDGETS),
        )
        self._own(draft)
        for n, session in enumerate(SESSIONS):
            connect = commands.Connect(producer_id=session.producer_id, nonce=n + 1)
            self._submit(draft, ("setup",), connect)
        for session in SESSIONS:
            begin = commands.Begin(
                session=session, request_id=1, answered_below=0, timeout_ms=TIMEOUT_MS
            )
            self._submit(draft, ("setup",), begin)
        self._attach(draft)
        return draft.state()

    def _own(self, draft: _Draft) -> None:
        draft.journal = self.journals.append(draft.journal, self.journals.bid(draft.journal))
        draft.flying, draft.asked, draft.out = (), False, ()
        draft.owner, given = self.tenures.start(draft.journal)
        self._take(draft, given)

    def _attach(self, draft: _Draft) -> None:
        for c in (0, 1):
            if not draft.away[c]:
                self._attach_one(draft, c)
        self._step(draft, ("pass", HELD_MS))

    def _attach_one(self, draft: _Draft, c: int) -> None:
        attach = commands.Attach(
            group=GROUP,
            consumer=c,
            topics=("a",),
            held=named(draft.hands[c]) if draft.hands[c] else (),
            ack_timeout_ms=LEASE_MS,
            era=draft.eras[c],
        )
        self._submit(draft, ("attach", c), attach)

    def _submit(self, draft: _Draft, ref: Any, command: commands.Command, **how: bool) -> None:
        self._step(draft, ("submit", ref, self.commands(command)), **how)

    def _step(
        self, draft: _Draft, key: Any, *, slow_append: bool = False, slow_ask: bool = False
    ) -> None:
        draft.owner, given = self.tenures.step(draft.owner, key)
        self._take(draft, given, slow_append=slow_append, slow_ask=slow_ask)

    def _take(
        self, draft: _Draft, given: Any, *, slow_append: bool = False, slow_ask: bool = False
    ) -> None:
        todo = deque(given)
        while todo:
            match todo.popleft():
                case ("append", predicted, record) if slow_append or draft.flying:
                    draft.flying = (*draft.flying, (predicted, record))
                case ("append", predicted, record):
                    todo.extend(self._land(draft, predicted, record))
                case ("ask",) if slow_ask:
                    draft.asked = True
                case ("ask",):
                    todo.extend(self._tell_end(draft))
                case ("answer", ref, reply):
                    self._answer(draft, ref, reply)
                case ("surprised",):
                    draft.violation = draft.violation or "the only owner is surprised"

    def _land(self, draft: _Draft, predicted: int, record: int) -> Any:
        offset = self.journals.lengths[draft.journal]
        before = self.facts(draft.journal)
        draft.journal = self.journals.append(draft.journal, record)
        facts = self.facts(draft.journal)
        if facts.eras_ended > before.eras_ended:
            draft.given = ()
        draft.violation = draft.violation or facts.violation or self._unasked(draft, facts)
        draft.owner, given = self.tenures.step(draft.owner, ("ack", predicted, offset))
        return given

    def _unasked(self, draft: _Draft, facts: QueueFacts) -> str | None:
        """Returns what the journal has that nobody has asked for, or None."""
        orders = self.scenario.budget.reset + self.scenario.budget.delete
        if facts.eras_ended > orders - draft.left("reset") - draft.left("delete"):
            return "an era ended by a request whose first sending has ended one"
        said = {m for m in MESSAGES if facts.held_by(m) is not None}
        if said - {*draft.given}:
            return f"acknowledged in an era in which nobody was given it: {sorted(said)}"
        return None

    def _tell_end(self, draft: _Draft) -> Any:
        end = self.journals.lengths[draft.journal]
        draft.owner, given = self.tenures.step(draft.owner, ("end", end))
        return given

    def _answer(self, draft: _Draft, ref: Any, reply: commands.Reply) -> None:
        draft.out = tuple(each for each in draft.out if each != ref)
        facts = self.facts(draft.journal)
        match ref, reply:
            case ("acquire", c), commands.Leases(leases):
                for m in messages_of(tuple(lease.span for lease in leases)):
                    why = facts.held_by(m)
                    if why is not None:
                        draft.violation = f"message {m} is given out, and the journal has it {why}"
                    draft.hold(c, tuple({*draft.hands[c], m}))
                    draft.given = tuple(sorted({*draft.given, m}))
            case ("attach", c), _:
                self._answer_attached(draft, c, reply)
            case ("plain", messages), commands.AckResults():
                for m in messages:
                    result = reply.of(P0, Span(MessageId(m), MessageId(m + 1)))
                    if result is AckResult.DONE and not facts.consumed[m]:
                        draft.violation = f"told that message {m} is deleted, and it is not"
            case ("add" | "end", *_), _:
                self._answer_of_transaction(draft, ref, reply)

    def _answer_attached(self, draft: _Draft, c: int, reply: commands.Reply) -> None:
        known = draft.eras[c]
        match reply:
            case commands.Attached(leases, era):
                draft.is_away(c, False)
                draft.told(c, era)
                if era in (known, 0):
                    return
                if leases and known is not None:
                    draft.violation = "who comes back in another era has messages of it at once"
                if self.scenario.drops:
                    draft.hold(c, ())
            case SubscriptionResetError():
                # It comes back once more, to make the subscription anew.
                draft.told(c, None)
                draft.hold(c, ())

    def _answer_of_transaction(self, draft: _Draft, ref: Any, reply: commands.Reply) -> None:
        t = ref[1]
        phase, work, acked = draft.work[t]
        match ref[0], reply:
            case "add", commands.Done() if phase == OPEN:
                draft.turn(t, phase, work, tuple({*acked, *ref[2]}))
                if not self.facts(draft.journal).pending[BEGINS[t]] >= set(ref[2]):
                    draft.violation = f"told that {ref[2]} are pending, and they are not"
            case "add", AckConflictError() if phase == OPEN:
                draft.turn(t, BAD, work, acked)
            case "end", commands.Outcome(_, state):
                draft.let_go(t, work)
                if state.commits:
                    draft.turn(t, COMMITTED, work, acked)
                else:
                    draft.turn(t, ABORTED, (), ())

    # ---- what may happen ------------------------------------------------------------------------

    def moves(self, state: State) -> list[tuple[Move, State | str]]:
        """Returns every step from a state and where it leads."""
        found: list[tuple[Move, State | str]] = []
        for move in self._possible(_Draft(*state)):
            draft = _Draft(*state)
            self._do(draft, move)
            found.append(((*move, False), draft.violation or draft.state()))
        return found

    def _possible(self, at: _Draft) -> list[Move]:
        moves: list[Move] = []
        for c in (0, 1):
            moves += self._of_consumer(at, c)
            moves += self._of_transaction(at, c)
        moves += [("late", index) for index in range(len(at.bag))]
        if at.flying:
            moves.append(("land",))
        if at.asked:
            moves.append(("tell",))
        if at.left("expire"):
            moves.append(("expire",))
        moves += self._of_operator(at)
        if at.left("take_over"):
            moves.append(("take_over",))
            if at.left("zombie") and at.zombie < 0 and not at.flying and not at.asked:
                moves.append(("zombie",))
        return moves

    def _of_operator(self, at: _Draft) -> list[Move]:
        moves: list[Move] = []
        may_order = at.left("reset") or at.left("delete")
        if may_order and at.left("leave") and not any(at.away):
            moves.append(("leave",))
        if all(at.away):
            moves += [(how,) for how in ("reset", "delete") if at.left(how)]
        if at.order is not None and at.left("order_again"):
            moves.append(("order_again",))
        return moves

    def _of_consumer(self, at: _Draft, c: int) -> list[Move]:
        moves: list[Move] = []
        if at.away[c]:
            late = at.hands[c] if at.left("plain") and at.left("late") else ()
            return [("return", c), *(("plain_late", c, m) for m in late)]
        if ("acquire", c) not in at.out:
            moves.append(("acquire", c))
            if at.left("slow_ask") and not at.asked:
                moves.append(("acquire_slowly", c))
            if at.zombie >= 0:
                moves.append(("acquire_of_zombie", c))
        for m in at.hands[c]:
            if at.left("plain"):
                moves.append(("plain", c, m))
                if at.left("late"):
                    moves.append(("plain_late", c, m))
            if at.left("release"):
                moves.append(("release", c, m))
        if at.hands[c] and at.left("consumer_crash"):
            moves.append(("crash", c))
        return moves

    def _of_transaction(self, at: _Draft, t: int) -> list[Move]:
        phase, work, acked = at.work[t]
        moves: list[Move] = []
        if phase == OPEN:
            is_of_era = not work or at.work_eras[t] == (at.eras[t] or 0)
            # A client that has asked to end its transaction adds nothing more to it.
            is_ending = ("end", t) in at.out
            for m in at.hands[t] if is_of_era and not is_ending else ():
                if m not in work:
                    moves.append(("add", t, m))
                    moves += [("add_again", t, m)] if at.left("again") else []
                    moves += [("add_late", t, m)] if at.left("late") else []
            missing = tuple(m for m in work if m not in acked)
            waits = any(each[:2] == ("add", t) for each in at.out)
            if missing and not waits and not at.bag:
                moves.append(("resend", t))
            if work and ("end", t) not in at.out and not (missing and self.scenario.waits):
                moves.append(("commit", t))
        if phase in (OPEN, BAD) and (work or phase == BAD) and ("end", t) not in at.out:
            moves.append(("abort", t))
            if at.left("slow_append") and not at.flying:
                moves.append(("abort_slowly", t))
        return moves

    def _do(self, draft: _Draft, move: Move) -> None:
        if move[0] in (
            "acquire",
            "acquire_slowly",
            "acquire_of_zombie",
            "plain",
            "plain_late",
        ) or move[0] in ("release", "crash", "return"):
            self._do_of_consumer(draft, move)
        elif move[0] in ("leave", "reset", "delete", "order_again"):
            self._do_of_operator(draft, move)
        elif move[0] in ("late", "land", "tell", "expire", "take_over", "zombie"):
            self._do_of_world(draft, move)
        else:
            self._do_of_transaction(draft, move)

    def _do_of_consumer(self, draft: _Draft, move: Move) -> None:
        match move:
            case ("acquire", c):
                self._acquire(draft, c)
            case ("acquire_slowly", c):
                draft.spend("slow_ask")
                self._acquire(draft, c, slow_ask=True)
            case ("acquire_of_zombie", c):
                self._acquire_of_zombie(draft, c)
            case ("plain", c, m):
                draft.spend("plain")
                draft.let_go(c, (m,))
                command = _plain(c, m, AcknowledgeType.ACCEPT, draft.eras[c])
                self._ask(draft, ("plain", (m,)), command)
            case ("plain_late", c, m):
                draft.spend("plain")
                draft.spend("late")
                draft.let_go(c, (m,))
                command = _plain(c, m, AcknowledgeType.ACCEPT, draft.eras[c])
                draft.bag = (*draft.bag, self.commands(command))
            case ("return", c):
                self._attach_one(draft, c)
            case ("release", c, m):
                draft.spend("release")
                draft.let_go(c, (m,))
                command = _plain(c, m, AcknowledgeType.RELEASE, draft.eras[c])
                self._submit(draft, ("setup",), command)
            case ("crash", c):
                draft.spend("consumer_crash")
                draft.hold(c, ())
                self._attach_one(draft, c)

    def _do_of_operator(self, draft: _Draft, move: Move) -> None:
        match move:
            case ("leave",):
                draft.spend("leave")
                draft.away = (True, True)
                draft.out = tuple(each for each in draft.out if each[0] != "acquire")
                for c in (0, 1):
                    self._step(draft, ("forget", ("acquire", c)))
                self._step(draft, ("leave",))
            case ("reset" | "delete" as how,):
                draft.spend(how)
                facts = self.facts(draft.journal)
                command: commands.Command = (
                    commands.ResetSubscription(group=GROUP, era=facts.era, starts={P0: 0})
                    if how == "reset"
                    else commands.DeleteSubscription(group=GROUP, era=facts.era)
                )
                draft.order = self.commands(command)
                self._submit(draft, ("setup",), command)
            case ("order_again",):
                draft.spend("order_again")
                assert draft.order is not None, "one was given"
                self._submit(draft, ("setup",), self.commands.values[draft.order])

    def _do_of_transaction(self, draft: _Draft, move: Move) -> None:
        match move:
            case ("add" | "add_again" | "add_late" as how, t, m):
                self._add(draft, how, t, m)
            case ("resend", t):
                _, work, acked = draft.work[t]
                left = tuple(m for m in work if m not in acked)
                self._ask(draft, ("add", t, left), _add_acks(t, left, draft.work_eras[t]))
            case ("commit", t):
                self._ask(draft, ("end", t), _end(t, commands.Action.COMMIT))
            case ("abort", t):
                self._ask(draft, ("end", t), _end(t, commands.Action.ABORT))
            case ("abort_slowly", t):
                draft.spend("slow_append")
                ref = ("end", t)
                draft.out = (*draft.out, ref)
                self._submit(draft, ref, _end(t, commands.Action.ABORT), slow_append=True)

    def _do_of_world(self, draft: _Draft, move: Move) -> None:
        match move:
            case ("late", index):
                command = draft.bag[index]
                draft.bag = (*draft.bag[:index], *draft.bag[index + 1 :])
                self._submit(draft, ("setup",), self.commands.values[command])
            case ("land",):
                self._land_all(draft)
            case ("tell",):
                draft.asked = False
                self._take(draft, self._tell_end(draft))
            case ("expire",):
                draft.spend("expire")
                self._step(draft, ("pass", LEASE_MS))
            case ("take_over" | "zombie" as how,):
                draft.spend("take_over")
                if how == "zombie":
                    draft.spend("zombie")
                    draft.zombie = draft.owner
                self._own(draft)
                self._attach(draft)

    def _ask(self, draft: _Draft, ref: Any, command: commands.Command) -> None:
        draft.out = (*draft.out, ref)
        self._submit(draft, ref, command)

    def _acquire(self, draft: _Draft, c: int, *, slow_ask: bool = False) -> None:
        ref = ("acquire", c)
        draft.out = (*draft.out, ref)
        parked = self.tenures.facts[draft.owner].parked
        self._submit(draft, ref, _acquire(c), slow_ask=slow_ask)
        is_parked = draft.asked or self.tenures.facts[draft.owner].parked > parked
        if ref in draft.out and not is_parked:
            # There is nothing for it: one that waits asks again, for here time stands still.
            self._step(draft, ("forget", ref))
            draft.out = tuple(each for each in draft.out if each != ref)

    def _acquire_of_zombie(self, draft: _Draft, c: int) -> None:
        """The former owner is asked, and asks for the journal's end before it answers."""
        key = ("submit", ("acquire", c), self.commands(_acquire(c)))
        draft.zombie, given = self.tenures.step(draft.zombie, key)
        todo = deque(given)
        while todo:
            match todo.popleft():
                case ("ask",):
                    end = self.journals.lengths[draft.journal]
                    draft.zombie, more = self.tenures.step(draft.zombie, ("end", end))
                    todo.extend(more)
                case ("answer", ref, reply):
                    self._answer(draft, ref, reply)
        if self.tenures.facts[draft.zombie].over:
            draft.zombie = -1
        else:
            draft.zombie, _ = self.tenures.step(draft.zombie, ("forget", ("acquire", c)))

    def _add(self, draft: _Draft, how: str, t: int, m: int) -> None:
        phase, work, acked = draft.work[t]
        cumulative = self.scenario.cumulative and m == MESSAGES[-1]
        given = tuple(x for x in draft.hands[t] if x not in work)
        names = tuple(x for x in given if x <= m) if cumulative else (m,)
        draft.turn(t, phase, (*work, *names), acked)
        era = draft.eras[t] or 0
        draft.work_eras = (era, draft.work_eras[1]) if t == 0 else (draft.work_eras[0], era)
        command = _add_acks(t, names, era)
        if how != "add":
            draft.spend("again" if how == "add_again" else "late")
            draft.bag = (*draft.bag, self.commands(command))
        if how != "add_late":
            self._ask(draft, ("add", t, names), command)

    def _land_all(self, draft: _Draft) -> None:
        while draft.flying:
            (predicted, record), *rest = draft.flying
            draft.flying = tuple(rest)
            # Each is answered before the next one lands: what is told is compared with the journal.
            self._take(draft, self._land(draft, predicted, record))

    def check(self, state: State) -> str | None:
        """Returns which invariant a state breaks, if any."""
        facts = self.facts(state[0])
        for t, (phase, work, _) in enumerate(state[6]):
            lacking = [m for m in work if m not in facts.consumed_by[BEGINS[t]]]
            if phase == COMMITTED and lacking:
                return f"transaction {t} is committed, and {lacking} that it consumed are not its"
        return facts.violation

    def tell(self, state: State, move: Move, traded: bool) -> str:  # noqa: ARG002
        """Returns a step as a line."""
        words = " ".join(str(each) for each in move[:-1])
        return f"{words}   (given: {state[5]}, working: {state[6]})"

    def tell_end(self, state: State) -> list[str]:  # noqa: ARG002
        """Returns no further steps: each check is of one state."""
        return []


def _acquire(c: int) -> commands.Acquire:
    return commands.Acquire(group=GROUP, consumer=c, max_offsets=1)


def _plain(c: int, m: int, type_: AcknowledgeType, era: int | None) -> commands.Acknowledge:
    return commands.Acknowledge(group=GROUP, consumer=c, type=type_, acks=named((m,)), era=era or 0)


def _add_acks(t: int, messages: tuple[int, ...], era: int) -> commands.AddAcks:
    txid, acks = txid_of(BEGINS[t]), named(messages)
    return commands.AddAcks(session=SESSIONS[t], txid=txid, group=GROUP, acks=acks, era=era)


def _end(t: int, action: commands.Action) -> commands.End:
    return commands.End(session=SESSIONS[t], txid=txid_of(BEGINS[t]), action=action, writes={})
