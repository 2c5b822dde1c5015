"""Random histories of the shard: two producers and their zombies, two coordinators, a bad log.

`World` has everything that can happen, `ShardMachine` lets Hypothesis choose, and the `Checker`
watches every step. `test_shard_mutations.py` shows that it finds what it should.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.protocol import commands
from logtx.journal.control import BranchRange, TopicPartition
from logtx.journal.records.types import (
    AbortReason,
    Claim,
    Committed,
    Entry,
    JournalRecord,
    Owner,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
)
from logtx.journal.txid import TxId

from ...parameters import slow
from ..harness import INCARNATION, Coordinator, Event, Journal, Replied, step, txid
from .test_shard_checkers import Checker

GROUPS: Final = ("g", "h")
INPUTS: Final[tuple[TopicPartition, ...]] = (("a", 0), ("a", 1))
CONFIG: Final = ShardConfig(
    session_grace_ms=300,
    reload_grace_ms=1_000,
    producer_retention_hours=2,
    group_retention_hours=3,
)
TIMEOUT_MS: Final = 2_000
T = TypeVar("T")


@dataclass(slots=True)
class Client:
    """One instance of a producer; it lives on as a zombie when another takes its place."""

    producer_id: str
    nonce: int
    session: commands.SessionId | None = None
    next_request: int = 1
    unanswered: set[int] = field(default_factory=set)
    """Request ids of its BEGINs without an answer."""
    transactions: list[TxId] = field(default_factory=list)
    cursors: dict[tuple[str, TopicPartition], int | None] = field(default_factory=dict)
    """Where its input stands, by group and partition, after the offsets that it sent."""
    claims: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    """Numbers of its claims; it goes on under them even if another claimed since."""


def pick(items: Sequence[T], index: int) -> T:
    return items[index % len(items)]


class World:
    """Everything that can happen. Arguments are small numbers, so that any generator may choose.

    `where` chooses the coordinator: 0 is the one that took over last; 1 is the other, which may
    believe that it still owns the journal.
    """

    def __init__(self) -> None:
        """Begins with one owner of the journal, and four client instances of two producers."""
        self.journal = Journal()
        self.checker = Checker(self.journal)
        self.coordinators = [
            Coordinator(self.journal, name=name, config=CONFIG, listen=self._listen)
            for name in ("c1", "c2")
        ]
        self.clients = [Client("p", 1), Client("p", 2), Client("q", 3), Client("q", 4)]
        self.sent: list[tuple[Client, commands.Command]] = []
        self._senders: dict[int, Client] = {}
        self._claimants = 0
        self.coordinators[0].take_over()

    def _listen(self, coordinator: Coordinator, event: Event) -> None:
        self.checker.listen(coordinator, event)
        if isinstance(event, Replied):
            command = coordinator.commands[event.ref]
            self._learn(self._senders[event.ref], command, event.reply)

    @staticmethod
    def _learn(client: Client, command: commands.Command, reply: commands.Reply) -> None:
        match reply:
            case commands.Connected() if isinstance(command, commands.Connect):
                session = commands.SessionId(client.producer_id, reply.generation, client.nonce)
                if client.session != session:
                    client.session, client.cursors = session, {}
            case commands.Began() if isinstance(command, commands.Begin):
                client.unanswered.discard(command.request_id)
                if reply.txid not in client.transactions:
                    client.transactions.append(reply.txid)
            case commands.Claimed() if isinstance(command, commands.ClaimOffsets):
                for partition in command.partitions:
                    key, place = (command.group, partition), reply.offsets.offsets.get(partition)
                    client.claims[key] = max(client.claims.get(key, -1), reply.number)
                    client.cursors[key] = None if place is None else place.o2
            case _:
                pass

    def at(self, where: int) -> Coordinator:
        """Returns the coordinator that `where` chooses."""
        return self.coordinators[where % 2]

    def send(self, client: Client, command: commands.Command, where: int = 0) -> None:
        """Sends a command of a client, for the first time or again."""
        ref = len(self._senders)
        self._senders[ref] = client
        self.checker.asked(ref, command)
        self.at(where).submit(command, ref)

    def ask(self, client: Client, command: commands.Command, where: int = 0) -> None:
        """Sends a command that the client may repeat."""
        self.sent.append((client, command))
        self.send(client, command, where)

    def check(self) -> None:
        """Checks what must hold between any two steps."""
        self.checker.after_step(self.coordinators)

    # ---- clients --------------------------------------------------------------------------------

    def connect(self, who: int, generation: int, where: int) -> None:
        """Connect; `generation`: 0 none given, 1 its own, 2 one above, 3 zero."""
        client = pick(self.clients, who)
        own = client.session.generation if client.session else 0
        given = pick((None, own, own + 1, 0), generation)
        command = commands.Connect(
            producer_id=client.producer_id, nonce=client.nonce, generation=given
        )
        self.ask(client, command, where)
        self.at(where).attach(client.producer_id)

    def begin(self, who: int, where: int) -> None:
        """Open a transaction."""
        client = pick(self.clients, who)
        if client.session is None:
            return
        request_id, client.next_request = client.next_request, client.next_request + 1
        client.unanswered.add(request_id)
        command = commands.Begin(
            session=client.session,
            request_id=request_id,
            answered_below=min(client.unanswered),
            timeout_ms=TIMEOUT_MS,
            partitions=INPUTS[: who % 3],
        )
        self.ask(client, command, where)

    def offsets(
        self, who: int, which: int, group: int, start: int, where: int, *, by_hand: bool = False
    ) -> None:
        """Send offsets; `start`: 0 go on, 1 from the committed, 2 from somewhere.

        Offsets `by_hand` don't say under which claim they were read.
        """
        client = pick(self.clients, who)
        if client.session is None or not client.transactions:
            return
        name, partition = pick(GROUPS, group), pick(INPUTS, group // 2)
        place = self.checker.reference.iov(name).get(partition)
        committed = None if place is None else place.o2
        key = name, partition
        begins = pick((client.cursors.get(key, committed), committed, which), start)
        ends = (begins or 0) + 1 + which % 2
        client.cursors[key] = ends
        command = commands.AddOffsets(
            session=client.session,
            txid=client.transactions[-1 - which % len(client.transactions)],
            group=name,
            steps=(step(partition, begins, ends, None if by_hand else client.claims.get(key)),),
        )
        self.ask(client, command, where)

    def claim(self, who: int, which: int, where: int) -> None:
        """Claims a partition or all: as assigned, or to go back if no other claimed since."""
        client = pick(self.clients, who)
        group, partitions = pick(GROUPS, which), INPUTS[which // 2 % 2 :]
        known = {p: client.claims[group, p] for p in partitions if (group, p) in client.claims}
        self._claimants += 1
        command = commands.ClaimOffsets(
            group=group,
            partitions=partitions,
            claimant=self._claimants,
            expected=known if which // 4 % 2 else None,
        )
        self.ask(client, command, where)

    def end(self, who: int, which: int, action: commands.Action, where: int) -> None:
        """Commit or abort one of its transactions, latest first."""
        client = pick(self.clients, who)
        if client.session is None or not client.transactions:
            return
        command = commands.End(
            session=client.session,
            txid=client.transactions[-1 - which % len(client.transactions)],
            action=action,
            writes={("b", which % 4): (BranchRange(0, 0, 0, 1),)},
        )
        self.ask(client, command, where)

    def partitions(self, who: int, which: int, where: int) -> None:
        """Register a partition, as the owner or as a branch."""
        client = pick(self.clients, who)
        if not client.transactions:
            return
        told = client.transactions[-1 - which % len(client.transactions)]
        session = client.session if which % 2 else None
        self.ask(
            client,
            commands.AddPartitions(txid=told, partitions=(("b", which % 4),), session=session),
            where,
        )

    def question(self, who: int, kind: int, which: int, where: int) -> None:
        """Ask: 0 an outcome, 1 that of any journal offset, 2 an IOV, 3 a binding, 4 a list."""
        client = pick(self.clients, who)
        told = client.transactions or [txid(0)]
        self.ask(
            client,
            pick(
                (
                    commands.GetOutcome(txid=pick(told, which)),
                    commands.GetOutcome(txid=txid(which)),
                    commands.FetchOffsets(group=pick(GROUPS, which)),
                    commands.BindGroup(group=pick(GROUPS, which), transaction_group=str(who)),
                    commands.ListTransactions(),
                ),
                kind,
            ),
            where,
        )

    def retry(self, back: int, where: int) -> None:
        """Sends a command again, or lets a duplicate of it arrive late."""
        if self.sent:
            self.send(*self.sent[-1 - back % len(self.sent)], where)

    def pipeline(self, who: int, group: int, *, in_order: bool) -> None:
        """Runs two transactions; the second goes on where the first one's input will end."""
        for _ in range(2):
            self.begin(who, 0)
        self.at(0).ack()
        for which in (1, 0):
            self.offsets(who, which, group, 0, 0)
        for which in (1, 0) if in_order else (0, 1):
            self.end(who, which, commands.Action.COMMIT, 0)

    def rebalance(self, who: int, which: int) -> None:
        """Gives a worker's input to another during its transaction; it goes on, or goes back."""
        group, unconditional = which % 4, which % 4
        self.claim(who, unconditional, 0)
        self.begin(who, 0)
        self.at(0).ack()
        self.offsets(who, 0, group, 0, 0)
        self.claim(who + 1, unconditional, 0)
        if which // 4 % 2:
            self.offsets(who, 0, group, 0, 0)
        self.end(who, 0, commands.Action.COMMIT, 0)
        if which // 8:
            self.claim(who, 4 + group, 0)

    def forget(self, who: int, kind: int, where: int) -> None:
        """Operators ask to forget: 0 a producer, 1 a group, 2 its binding."""
        client, group = pick(self.clients, who), pick(GROUPS, who)
        command: commands.Command = pick(
            (
                commands.ForgetProducer(producer_id=client.producer_id),
                commands.ForgetGroup(group=group),
                commands.UnbindGroup(group=group),
            ),
            kind,
        )
        self.ask(client, command, where)

    def end_hours(self, count: int, where: int) -> None:
        """Ends hours of service. Groups have no members."""
        for _ in range(count):
            self.at(where).end_hour(GROUPS, GROUPS)

    def retire(self, who: int, hours: int, where: int) -> None:
        """Lets a producer's instances go away for good, or for hours."""
        for each, client in enumerate(self.clients):
            if client.producer_id == pick(self.clients, who).producer_id:
                self.disconnect(each)
        self.pass_time(CONFIG.session_grace_ms)
        self.at(where).ack()
        self.end_hours(hours, where)

    def disconnect(self, who: int) -> None:
        """Breaks a client's stream."""
        client = pick(self.clients, who)
        for coordinator in self.coordinators:
            if coordinator.serving:
                coordinator.detach(client.producer_id, client.nonce)

    # ---- the coordinators and their log ---------------------------------------------------------

    def ack(self, count: int, where: int) -> None:
        """Lets appends land and acknowledges them."""
        self.at(where).ack(count)

    def lose(self, landed: int, late: bool, where: int, *, first: bool = True) -> None:
        """Lets an append time out; then the coordinator takes over again.

        Some appends in flight land all the same: if `first`, the first ones; else those in the bits
        of `landed`.
        """
        coordinator = self.at(where)
        flying = range(len(coordinator.in_flight))
        which = flying[:landed] if first else [i for i in flying if landed >> i % 4 & 1]
        coordinator.lose(which, late=late)
        if where % 2:
            self.coordinators.reverse()

    def usurp(self) -> None:
        """Lets the other coordinator take over without telling this one."""
        self.lose(0, True, 1)

    def land_late(self, count: int, where: int) -> None:
        """Lets appends land that were given up."""
        self.at(where).land_late(count)

    def intrude(self, kind: int, which: int) -> None:
        """Lets a record of a dead epoch land, or an OWNER that replaces one."""
        shard = self.at(0).shard
        if not shard.past_epochs:
            return
        epoch, begin = pick(shard.past_epochs, which), which
        client = pick(self.clients, which)
        record: JournalRecord = pick(
            (
                Owner(replaces=epoch, address="c3", process_nonce=3),
                PrepareCommit(begin=begin, writes=(), decided_ms=0),
                PrepareAbort(begin=begin, reason=AbortReason.EXPIRED, decided_ms=0),
                Committed(begin=begin),
                ProducerRecord(
                    producer_id=client.producer_id, generation=9, session_nonce=9, owner="default"
                ),
                Claim(group=pick(GROUPS, which), claimant=0, partitions=INPUTS),
            ),
            kind,
        )
        self.journal.append(Entry(epoch, INCARNATION, record, self.journal.end))

    def finish(self, which: int, where: int) -> None:
        """Reports all markers of a transaction as written."""
        coordinator = self.at(where)
        if coordinator.serving and coordinator.markers:
            coordinator.finish(pick(list(coordinator.markers), which))

    def pass_time(self, milliseconds: int) -> None:
        """Lets time pass for all."""
        for coordinator in self.coordinators:
            coordinator.pass_time(milliseconds)

    def settle(self) -> None:
        """Goes on without faults until everything has ended, and the journal says so."""
        owner = self.at(0)
        owner.lose()
        owner.pass_time(TIMEOUT_MS + CONFIG.reload_grace_ms)
        owner.ack()
        while owner.markers:
            owner.finish(next(iter(owner.markers)))
            owner.ack()
        self.check()
        assert all(t.state.finished for t in self.checker.reference.transactions.values())
        assert owner.shard.hw == self.journal.end
        for group in GROUPS:
            self.send(self.clients[0], commands.FetchOffsets(group=group))
            assert isinstance(owner.replies[len(self._senders) - 1], commands.GroupOffsets)

    def act(self, action: str, a: int, b: int, where: int) -> None:
        """Do something, by its name in `WEIGHTS`."""
        if not self.at(0).serving:
            # After a surprise it takes over at once; what it had in flight may land before that.
            self.lose(b, a % 2 == 0, 0, first=a < 2)
        self.acts(a, b, where)[action]()

    def acts(self, a: int, b: int, where: int) -> dict[str, Callable[[], None]]:
        """Returns what can be done, by its name in `WEIGHTS`."""
        return {
            "connect": lambda: self.connect(a, b, where),
            "begin": lambda: self.begin(a, where),
            "offsets": lambda: self.offsets(
                a, b, b // 4, pick((0, 0, 1, 2), b), where, by_hand=b % 3 == 0
            ),
            "commit": lambda: self.end(a, b, commands.Action.COMMIT, where),
            "abort": lambda: self.end(a, b, commands.Action.ABORT, where),
            "partitions": lambda: self.partitions(a, b, where),
            "claim": lambda: self.claim(a, b, where),
            "question": lambda: self.question(a, b, b // 5, where),
            "retry": lambda: self.retry(b, where),
            "pipeline": lambda: self.pipeline(a, b // 4, in_order=b % 3 == 0),
            "rebalance": lambda: self.rebalance(a, b),
            "disconnect": lambda: self.disconnect(a),
            "forget": lambda: self.forget(a, b, where),
            "end_hour": lambda: self.end_hours(1, where),
            "retire": lambda: self.retire(a, 1 + b % 3, where),
            "ack": lambda: self.ack(1 + b % 4, where),
            "ack_all": lambda: self.ack(99, where),
            "lose": lambda: self.lose(b, a % 2 == 0, where, first=a < 2),
            "usurp": self.usurp,
            "land_late": lambda: self.land_late(1 + b % 4, where),
            "intrude": lambda: self.intrude(a, b),
            "finish": lambda: self.finish(a, where),
            "pass_time": lambda: self.pass_time(pick((1, 50, 300, 1_000), a)),
        }


WEIGHTS: Final = {
    "begin": 8,
    "offsets": 8,
    "commit": 10,
    "pipeline": 7,
    "retry": 7,
    "ack": 6,
    "ack_all": 10,
    "finish": 7,
    "question": 5,
    "claim": 3,
    "rebalance": 3,
    "connect": 4,
    "lose": 5,
    "abort": 3,
    "partitions": 2,
    "land_late": 4,
    "pass_time": 2,
    "disconnect": 1,
    "usurp": 1,
    "forget": 1,
    "end_hour": 1,
    "retire": 1,
    "intrude": 1,
}
"""Action → how often it happens: most steps get something done, few break something."""
ACTIONS: Final = tuple(name for name, weight in WEIGHTS.items() for _ in range(weight))


class ShardMachine(RuleBasedStateMachine):
    """Hypothesis chooses what happens in a `World`."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @initialize(connected=st.booleans())
    def start(self, connected: bool) -> None:
        """Most histories start with a connected instance of each producer."""
        if connected:
            for who in (0, 2):
                self.world.connect(who, 0, 0)
            self.world.ack(9, 0)

    # One rule for all actions, for Hypothesis chooses rules evenly.
    @rule(
        action=st.sampled_from(ACTIONS),
        a=st.sampled_from((0, 0, 0, 2, 2, 1, 3)),
        b=st.integers(0, 15),
        where=st.sampled_from((0, 0, 0, 0, 0, 1)),
    )
    def act(self, action: str, a: int, b: int, where: int) -> None:
        """Does any action."""
        self.world.act(action, a, b, where)

    @invariant()
    def checked(self) -> None:
        """Runs every checker, after every step."""
        self.world.check()

    def teardown(self) -> None:
        """Checks that everything ends well without further faults."""
        self.world.settle()


def run_seed(
    seed: int,
    steps: int = 80,
    make: Callable[[], World] = World,
    weights_of: Mapping[str, int] = WEIGHTS,
) -> World:
    """Runs one history drawn from a seed: denser than Hypothesis draws them, and not shrunk.

    The same seed gives the same history. To shrink a failure, lower `steps` first.
    """
    chance = Random(seed)
    world = make()
    for who in (0, 2):
        world.connect(who, 0, 0)
    world.ack(9, 0)
    names, weights = list(weights_of), list(weights_of.values())
    for _ in range(steps):
        [action] = chance.choices(names, weights)
        a, b = chance.choice((0, 0, 0, 2, 2, 1, 3)), chance.randrange(16)
        world.act(action, a, b, int(chance.random() < 0.1))
        world.check()
    world.settle()
    return world


QUICK: Final = settings(
    max_examples=100,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("examples", [40, *slow([100])])
def test_random_histories(examples: int) -> None:
    run_state_machine_as_test(ShardMachine, settings=settings(QUICK, max_examples=examples))


@pytest.mark.parametrize("seed", [*range(40), *slow(range(40, 60))])
def test_history_of_seed(seed: int) -> None:
    run_seed(seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_histories_of_many_seeds() -> None:
    for seed in range(1_000, 6_000):
        run_seed(seed, 120)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_random_histories() -> None:
    many = settings(QUICK, max_examples=3_000, stateful_step_count=60, phases=[Phase.generate])
    run_state_machine_as_test(ShardMachine, settings=many)
