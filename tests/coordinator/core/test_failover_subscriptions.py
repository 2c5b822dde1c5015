"""Failover subscriptions: a partition, and so a key, is worked on by one consumer at a time.

Every order of what can happen in a small queue is tried: two consumers, two partitions of two
messages, a transaction of each consumer. It is judged by what consumers know, and not by leases.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from logtx.consumer.core.share_work import ShareWork
from logtx.coordinator.core import dispatch
from logtx.coordinator.core.decision import Instant
from logtx.coordinator.core.dispatch import Dispatch
from logtx.coordinator.core.subscriptions import Subscriptions
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.queues import AcknowledgeType
from logtx.journal.acks import Ack, Acks, AddAcks, Subscribe, SubscriptionKind
from logtx.journal.places import PartitionId
from logtx.journal.spans import AT_OFFSET, MessageId, Span

from ...parameters import slow
from .queue_harness import END, GROUP, Queue, offsets

CONSUMERS: Final = (1, 2)
PARTITIONS: Final = tuple(PartitionId("a", n, "id-a") for n in range(2))
MESSAGES: Final = 2
NOW: Final = Instant(1_000_000, 1_000_000)
DEPTH: Final = 5
Held = tuple[PartitionId, int]


def span(held: Held) -> Span:
    """Returns the span of a message, up to the next one."""
    return offsets(held[1], held[1] + 1)


@dataclass
class World:
    """The real subscriptions and leases, and what the consumers have in their hands."""

    subscriptions: Subscriptions = field(default_factory=Subscriptions)
    dispatch: Dispatch = field(init=False)
    hands: dict[int, set[Held]] = field(default_factory=lambda: {c: set() for c in CONSUMERS})
    pending: dict[int, set[Held]] = field(default_factory=lambda: {c: set() for c in CONSUMERS})
    """What the open transaction of each consumer acknowledges."""
    attached: set[int] = field(default_factory=set)
    fails: bool = True
    """Whether the coordinator may still fail."""

    def __post_init__(self) -> None:
        starts = tuple((p, 0) for p in PARTITIONS)
        kind = SubscriptionKind.FAILOVER
        self.subscriptions.replay_subscribe(0, Subscribe(group=GROUP, kind=kind, starts=starts))
        self._begin_dispatch()

    def _begin_dispatch(self) -> None:
        self.dispatch = Dispatch(self.subscriptions)
        self.dispatch.topics_told({"a": "id-a"})
        self.dispatch.ends_told((p, MESSAGES) for p in PARTITIONS)

    # ---- what happens ---------------------------------------------------------------------------

    def moves(self) -> Iterator[tuple[Any, ...]]:
        for c in CONSUMERS:
            if c not in self.attached:
                yield ("attach", c)
                continue
            yield ("acquire", c)
            yield ("leave", c)
            for held in sorted(self.hands[c]):
                yield ("accept", c, held)
                yield ("add", c, held)
                yield ("release", c, held)
        if self.fails:
            yield ("fail_over",)
        for c in CONSUMERS:
            if self.pending[c]:
                yield ("end", c, True)
                yield ("end", c, False)

    def do(self, move: tuple[Any, ...]) -> None:
        name, *arguments = move
        getattr(self, name)(*arguments)

    def attach(self, c: int) -> None:
        self.attached.add(c)
        held = tuple(Acks(each[0], (span(each),)) for each in sorted(self.hands[c]))
        attach = commands.Attach(
            group=GROUP, consumer=c, topics=("a",), held=held, ack_timeout_ms=30_000
        )
        self.dispatch.attach(attach, NOW)

    def fail_over(self) -> None:
        """Another coordinator knows what the journal says, and what consumers tell it."""
        self.fails = False
        self._begin_dispatch()
        for c in sorted(self.attached):
            self.attach(c)

    def leave(self, c: int) -> None:
        """It is gone: what it has is given out again. Its transaction is still to be ended."""
        self.attached.remove(c)
        self.hands[c].clear()
        self.dispatch.detach(GROUP, c, NOW)
        self.dispatch.expire(Instant(NOW.monotonic_ms + dispatch.GONE_MS, NOW.wall_ms))

    def acquire(self, c: int, stays: int = 0) -> bool:
        """Asks for a message.

        Args:
            c: the consumer.
            stays: so many times as long as it stays in a partition have passed.
        """
        ask = commands.Acquire(group=GROUP, consumer=c, max_offsets=1)
        now = Instant(NOW.monotonic_ms + stays * dispatch.STAY_MS, NOW.wall_ms)
        lease = self.dispatch.acquire(ask, now)
        if lease is None:
            return False
        self.hands[c].add((lease.partition, lease.span.lo.offset))
        return True

    def accept(self, c: int, held: Held) -> None:
        self.hands[c].remove(held)
        acks = Acks(held[0], (span(held),))
        self.subscriptions.replay_ack(Ack(group=GROUP, acks=(acks,), rejected=False))
        self.dispatch.taken(GROUP, acks, deleted=True)

    def add(self, c: int, held: Held) -> None:
        self.hands[c].remove(held)
        self.pending[c].add(held)
        acks = Acks(held[0], (span(held),))
        self.subscriptions.replay_add_acks(AddAcks(begin=c, group=GROUP, acks=(acks,)))
        self.dispatch.taken(GROUP, acks, deleted=False)

    def release(self, c: int, held: Held) -> None:
        self.hands[c].remove(held)
        self.dispatch.release(GROUP, c, Acks(held[0], (span(held),)), NOW, unseen=True)

    def end(self, c: int, commit: bool) -> None:
        self.pending[c].clear()
        for group, acks in self.subscriptions.replay_decided(c, committed=commit):
            if commit:
                self.dispatch.taken(group, acks, deleted=True)
            else:
                self.dispatch.aborted(group, acks)

    # ---- what is judged -------------------------------------------------------------------------

    def check(self) -> None:
        for partition in PARTITIONS:
            at_work = {
                c for c in CONSUMERS for p, _ in self.hands[c] | self.pending[c] if p == partition
            }
            assert len(at_work) < 2, f"both work on messages of partition {partition.partition}"

    def settle(self) -> None:
        """When all is given back and both ask, each gets messages of a partition of its own."""
        for c in CONSUMERS:
            if c not in self.attached:
                self.attach(c)
            if self.pending[c]:
                self.end(c, False)
            for held in sorted(self.hands[c]):
                self.release(c, held)
        left = {
            p
            for p in PARTITIONS
            if self.subscriptions.partition(GROUP, p).deleted.free(offsets(0, MESSAGES))
        }
        for stays in (1, 2, 3):
            for c in CONSUMERS:
                self.acquire(c, stays)
                self.check()
                for held in () if stays == 3 else sorted(self.hands[c]):
                    self.release(c, held)
        for c in CONSUMERS:
            self.acquire(c, 4)
        given = {p for c in CONSUMERS for p, _ in self.hands[c]}
        assert given == left, "somebody gets what is there"
        if len(left) == len(CONSUMERS):
            assert all(self.hands.values()), "each has one of them"

    def key(self) -> tuple[Any, ...]:
        """Returns what decides over the future, for states that were visited."""
        queue = self.dispatch._queues.get(GROUP)
        known = queue.partitions if queue else {}
        rows = tuple(self.subscriptions.rows())
        of = tuple(
            (p, here.active, here.heir, tuple(here.leased.rows())) for p, here in known.items()
        )
        numbers = {n: i for i, n in enumerate(sorted(self.dispatch._leases))}
        leases = tuple(
            (p, a, h, tuple((s, numbers[n]) for s, n in leased)) for p, a, h, leased in of
        )
        at = tuple((n, c.at) for n, c in queue.consumers.items()) if queue else ()
        turn = (queue.turn % 2 if queue else 0), at
        hands = tuple(tuple(sorted(self.hands[c])) for c in CONSUMERS)
        pending = tuple(tuple(sorted(self.pending[c])) for c in CONSUMERS)
        return (rows, leases, turn, hands, pending, self.fails)


def search(depth: int) -> int:
    """Tries all orders of so many moves. Returns how many states there are."""
    first = World()
    for c in CONSUMERS:
        first.attach(c)
    seen, layer = {first.key()}, [pickle.dumps(first)]
    for _ in range(depth):
        after = []
        for state in layer:
            for move in list(pickle.loads(state).moves()):
                world: World = pickle.loads(state)
                world.do(move)
                world.check()
                if world.key() in seen:
                    continue
                seen.add(world.key())
                after.append(pickle.dumps(world))
                world.settle()
        layer = after
    return len(seen)


@pytest.mark.parametrize("depth", [DEPTH, *slow([DEPTH + 1])])
def test_one_consumer_at_a_time_works_on_a_partition(depth: int) -> None:
    assert search(depth) > 1_000


def test_trap_140_what_is_pending_is_worked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule the search finds it: the messages behind go to another consumer."""
    monkeypatch.setattr(
        Dispatch,
        "_may_have",
        lambda self, _, *asked: self._is_free_for(*asked),
    )
    with pytest.raises(AssertionError, match="both work on"):
        search(DEPTH)


def test_trap_141_who_comes_first_does_not_keep_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_inherit", lambda *_: None)
    with pytest.raises(AssertionError, match="each has one"):
        search(DEPTH)


def test_partitions_of_one_that_works_are_handed_over_when_it_is_done() -> None:
    world = World()
    world.attach(1)
    assert world.acquire(1)
    assert world.acquire(1, stays=1)
    assert {p for p, _ in world.hands[1]} == set(PARTITIONS)
    world.attach(2)
    assert not world.acquire(2), "the other one works on both"
    heirs = [p for p in PARTITIONS if world.dispatch._queues[GROUP].partitions[p].heir == 2]
    assert len(heirs) == 1
    (mine,) = [held for held in world.hands[1] if held[0] in heirs]
    assert world.acquire(1)
    assert not world.acquire(1), "it gets no more of what the other one is to have"
    assert [held for held in world.hands[1] if held[0] in heirs] == [mine]
    world.add(1, mine)
    assert not world.acquire(2), "its transaction may abort"
    world.end(1, False)
    assert world.acquire(2)
    assert world.hands[2] == {mine}, "what comes again comes first"


def test_with_as_many_as_it_should_have_nothing_moves() -> None:
    world = World()
    for c in CONSUMERS:
        world.attach(c)
        assert world.acquire(c)
    before = {c: set(world.hands[c]) for c in CONSUMERS}
    for _ in range(3):
        for c in CONSUMERS:
            for held in sorted(world.hands[c]):
                world.release(c, held)
            assert world.acquire(c)
    assert world.hands == before


# ---- consumers that say nothing -----------------------------------------------------------------

LEASE_MS: Final = 30_000


def hanging() -> Queue:
    """A queue whose first consumer has messages, and hangs: its stream stands. Another one came."""
    queue = Queue(SubscriptionKind.FAILOVER)
    queue.attach(1)
    assert queue.acquire(1, 3) is not None
    queue.attach(2)
    return queue


def test_trap_151_who_says_nothing_keeps_no_partition() -> None:
    queue = hanging()
    queue.coordinator.pass_time(LEASE_MS - 1_000)
    waiting = queue.send(commands.Acquire(group=GROUP, consumer=2, max_offsets=100))
    queue.coordinator.pass_time(999)
    assert waiting not in queue.coordinator.replies, "the other one has its time"
    queue.coordinator.pass_time(1)
    (lease,) = queue.coordinator.replies[waiting].leases
    assert lease.span == offsets(0, 3)
    assert lease.delivery_count == 2
    assert queue.acquire(1) is None, "it is another one's by now"


def test_trap_151_without_the_rule_nobody_gets_the_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That its stream stands counts for a consumer that works."""
    owner, never = dispatch._owner, Instant(0, 0)
    monkeypatch.setattr(
        dispatch, "_owner", lambda queue, partition, _: owner(queue, partition, never)
    )
    queue = hanging()
    queue.coordinator.pass_time(10 * LEASE_MS)
    assert queue.acquire(2) is None


def test_who_says_something_keeps_its_partitions() -> None:
    """Of which it has no lease any more: the next one would work on what it is still at."""
    queue = hanging()
    for n in range(3):
        queue.coordinator.pass_time(LEASE_MS - 1)
        assert queue.acknowledge(1, AcknowledgeType.ACCEPT, offsets(n, n + 1))
        assert queue.acquire(2) is None
    queue.coordinator.pass_time(LEASE_MS - 1)
    lease = queue.acquire(1, 2)
    assert lease is not None
    assert lease.span == offsets(3, 5)


def test_who_waits_for_messages_keeps_its_partitions() -> None:
    """However short the time of its leases is."""
    queue = Queue(SubscriptionKind.FAILOVER)
    queue.attach(1, timeout_ms=500)
    assert queue.acquire(1) is not None
    assert queue.acknowledge(1, AcknowledgeType.ACCEPT, offsets(0, END))
    queue.attach(2)
    for _ in range(3):
        waiting = queue.send(commands.Acquire(group=GROUP, consumer=1, max_offsets=100))
        queue.coordinator.pass_time(dispatch.WAIT_MS - 1)
        other = queue.send(commands.Acquire(group=GROUP, consumer=2, max_offsets=100))
        queue.coordinator.pass_time(1)
        assert queue.coordinator.replies[waiting] == commands.Leases()
    waiting = queue.send(commands.Acquire(group=GROUP, consumer=1, max_offsets=100))
    queue.tell_ends(END + 1)
    assert queue.coordinator.replies[waiting].leases
    assert queue.coordinator.replies.get(other) in (None, commands.Leases())


def test_an_heir_that_says_nothing_does_not_inherit() -> None:
    world = World()
    world.attach(1)
    assert world.acquire(1)
    assert world.acquire(1, stays=1)
    world.attach(2)
    assert not world.acquire(2), "it is to have one of them"
    later = Instant(NOW.monotonic_ms + LEASE_MS, NOW.wall_ms)
    ask = commands.Acquire(group=GROUP, consumer=1, max_offsets=1)
    for held in sorted(world.hands[1]):
        world.accept(1, held)
    found = [world.dispatch.acquire(ask, later) for _ in PARTITIONS]
    assert {lease.partition for lease in found if lease is not None} == set(PARTITIONS)


def test_what_was_left_to_its_time_takes_no_partition_back() -> None:
    """A new owner believes what consumers say that they hold."""
    queue, works = Queue(SubscriptionKind.FAILOVER), {1: ShareWork(), 2: ShareWork()}

    def attach(consumer: int) -> None:
        held = works[consumer].held()
        command = commands.Attach(group=GROUP, consumer=consumer, topics=("a",), held=held)
        works[consumer].attached(queue.ask(command).leases)

    def takes_one(consumer: int) -> bool:
        lease, work = queue.acquire(consumer, 1), works[consumer]
        if lease is not None:
            work.leased([lease])
            assert work.begin() is not None
            at = lease.span.lo.offset
            assert work.give(("a", 0, at), MessageId(at, AT_OFFSET)) is not None
            work.finish(lease.span.hi)
            for how, said in work.outgoing().items():
                for each in said.acks:
                    queue.acknowledge(consumer, how.type, *each.spans)
        return lease is not None

    queue.attach(1)
    assert takes_one(1)
    queue.coordinator.pass_time(LEASE_MS)
    queue.attach(2)
    assert takes_one(2), "the other one left the same message to its time"
    attach(1)  # As each does once a minute.
    queue.fail_over()
    queue.tell_ends()
    for consumer in (1, 2):
        attach(consumer)
    queue.coordinator.pass_time(dispatch.HELD_MS)
    assert not takes_one(1), "the other one works there"
    assert takes_one(2)
