"""Gives the messages of subscriptions out to consumers: leases, their ends, who waits. Pure.

The coordinator sees no message. It leases spans of places below a partition's end, and each
consumer reads what ends in its span, whole, wherever it begins to read. That is a function of the
logs alone: nothing below the end changes, so it does not matter who reads a span, or when.

A lease is cut out of what is AVAILABLE: neither deleted, nor pending in a transaction, nor leased,
nor held back by a delay. The first such span of a partition is taken, so what was returned comes
before what is new.

Partitions take turns. A consumer whose last lease ended within a partition's backlog stays there:
it stands at the next message already, and to go elsewhere costs it more than a question. It stays
for `STAY_MS`, counted from when it came, and then the turn decides. So each partition comes first
once in as many turns as there are partitions, and a turn takes one consumer no longer than that and
a lease. One whose lease reached the partition's end does not stay: the messages that come one by
one there must not keep it from the others.

A lease counts as a delivery of all its messages, for the owner does not see whether its consumer
reads them. A consumer that releases what no application got takes that back. What comes again comes
in ever smaller leases: a message that kills its consumers takes its neighbours along, and would
bring them to the limit of deliveries with it.

A consumer may ask for the next lease while it works on one. It is given only what was never given
out: so of all that it holds unseen, nothing counts more than once for that, and nothing comes to
the limit of deliveries by it. And only within a backlog: the last messages go to who has nothing.

Volatile: leases, counts and delays are lost with the process. Losing them makes messages come
again, to other consumers or with a lower count; it decides nothing. So that the consumers that are
at work keep what they have, a new owner gives out nothing for `HELD_MS`, and takes from each what
it holds.

A lease is told as it is when it is told, see `told`. An acknowledgement that was decided while the
answer waited for the journal's end has cut it: its message would be given out while it is pending.
And its time has gone on meanwhile.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...journal.acks import Acks, SubscriptionKind
from ...journal.errors import NotAttachedError
from ...journal.places import PartitionId
from ...journal.spans import AT_OFFSET, ORIGIN, MessageId, Span, SpanMap
from ..protocol.queues import Acquire, Attach, AttachedConsumer, Lease, Leases, most_at_once
from .decision import Instant, Ref
from .subscriptions import SubscribedPartition, Subscription, Subscriptions

LEASE_OFFSETS_MAX: Final = 5_000
"""Most offsets of one lease. More make a consumer's death costlier, fewer make more requests."""
WINDOW_OFFSETS: Final = 100_000
"""Most offsets between a partition's first message that is not deleted and its last leased one.
More let acknowledgements run further ahead of one that hangs; each may become a span of its own."""
WINDOW_SPANS: Final = 10_000
"""Most spans that a partition's acknowledgements may be in; then nothing new is leased there. More
take more memory, and longer snapshots."""
WAIT_MS: Final = 5_000
"""Longest wait of a consumer that asks for messages. A longer one holds room in its stream's window
for longer, a shorter one makes idle consumers ask more often."""
GONE_MS: Final = 1_000
"""How long after its stream broke a consumer may come back before its leases end. A longer one
delays what a dead consumer had, a shorter one takes work from one that reconnects."""
HELD_MS: Final = 500
"""How long a new owner gives out nothing, so that consumers say first what they hold. A longer one
delays every failover, a shorter one gives out again what living consumers work on."""
STAY_MS: Final = 500
"""How long a consumer is given messages of one partition before those of others. With a longer one
these wait longer, with a shorter one consumers go from partition to partition more often."""
TIMEOUT_MIN_MS: Final = 100
"""Shortest time of a lease: below, messages come again before their consumer has read them."""
TIMEOUT_MAX_MS: Final = 24 * 3_600_000
"""Longest time of a lease: a day."""
_DEADLINES_SPARE: Final = 64
"""Deadlines that count no more, and are kept beside as many as there are leases."""


@dataclass(slots=True)
class _Consumer:
    number: int
    topics: frozenset[str]
    timeout_ms: int
    until_ms: int
    """Up to when its partitions of a failover subscription stay its own though it says nothing."""
    gone_ms: int | None = None
    """When its grace ends, in monotonic ms; None while it is connected."""
    at: PartitionId | None = None
    """The partition within whose backlog its last lease ended; None: it reached the end."""
    came_ms: int = 0
    """When it came to the partition of its last lease, in monotonic ms."""


@dataclass(slots=True)
class _Held:
    """One lease, of which acknowledgements may have taken parts."""

    group: str
    consumer: int
    partition: PartitionId
    span: Span
    """What it began with."""
    until_ms: int


@dataclass(slots=True)
class _Partition:
    leased: SpanMap[int] = field(default_factory=SpanMap)
    """What is leased, by the numbers of the leases."""
    delayed: SpanMap[int] = field(default_factory=SpanMap)
    """What was released, and until when nobody gets it, in monotonic ms."""
    counts: SpanMap[int] = field(default_factory=SpanMap)
    """How often what is not deleted was leased."""
    pauses: SpanMap[int] = field(default_factory=SpanMap)
    """How long, in ms, what is pending is held back if its transaction aborts."""
    next: MessageId = ORIGIN
    """The bound behind all that was ever leased."""
    active: int | None = None
    """The consumer that has the partition, of a failover subscription."""
    heir: int | None = None
    """The consumer that has it next, when nothing of it is worked on any more; None: none yet."""


@dataclass(slots=True)
class _Queue:
    consumers: dict[int, _Consumer] = field(default_factory=dict)
    """In the order in which they attached."""
    partitions: dict[PartitionId, _Partition] = field(default_factory=dict)
    turn: int = 0
    """Number of times that a consumer came to a partition: partitions take turns."""
    redelivered: int = 0
    """Offsets that were leased again."""
    rejected: int = 0
    """Offsets that were rejected."""


class Figures(NamedTuple):
    """What is leased of one partition of a subscription."""

    leased: int
    """Offsets."""
    next: MessageId
    """The bound behind all that was ever leased, as far as this owner knows."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    command: Acquire
    ref: Ref
    until_ms: int


class Dispatch:
    """The leases of one journal partition's subscriptions, under one owner."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        """Begins without leases.

        Args:
            subscriptions: what the journal says of them; the shard's own.
        """
        self._subscriptions = subscriptions
        self._queues: dict[str, _Queue] = {}
        self._leases: dict[int, _Held] = {}
        self._numbers = 0
        self._deadlines: list[tuple[int, int]] = []
        """Heap of (monotonic ms, number of a lease). An entry counts only if the lease agrees: see
        `_end_at`."""
        self._waiting: dict[tuple[str, int], _Waiting] = {}
        """Requests that wait, by subscription and consumer, oldest first."""
        self._ends: dict[PartitionId, int] = {}
        self._wanted: dict[PartitionId, None] = {}
        """Partitions whose ends are wanted, though nobody waits for messages of them."""
        self._topic_ids: dict[str, str | None] = {}
        """Topic → id of the topic that has the name, as a consumer that attached was told last;
        None: no topic has it."""
        self._serving = False
        self._opens_ms = 0
        """When a new owner begins to give out messages, in monotonic ms."""
        self._stirred = True
        """Whether there may be something for a request that waits, which was not looked for yet.
        With a thousand idle consumers, to look each time would take longer than the work."""
        self._look_ms: int | None = None
        """When there may be something though nothing happens: a delay is over. None: never."""
        self._aborted: list[tuple[_Partition, Span, int]] = []
        """What aborts have freed, and for how many ms it is held back: from when the time is told
        next, which is before any lease."""

    # ---- consumers ------------------------------------------------------------------------------

    def loaded(self, now: Instant) -> None:
        """Begins to serve. What consumers hold is not known yet."""
        self._opens_ms = now.monotonic_ms + HELD_MS
        self._serving = True

    def topics_told(self, topic_ids: Mapping[str, str | None]) -> None:
        """Takes which topics have their names now: topic → id, or None if there is none.

        Nothing is given out of others: nobody can read it. A broker that is behind may have told
        the id of a former topic. Then its successor waits until a consumer attaches again.
        """
        self._topic_ids.update(topic_ids)

    def is_former(self, partition: PartitionId) -> bool:
        """Returns whether a partition's topic is no more, as far as is known."""
        told = self._topic_ids.get(partition.topic, partition.topic_id)
        return told != partition.topic_id

    def is_opening(self, now: Instant) -> bool:
        """Returns whether consumers of a former owner may still say what they hold."""
        return now.monotonic_ms < self._opens_ms

    def attach(self, command: Attach, now: Instant) -> tuple[Lease, ...]:
        """Lets a consumer join, or again. Returns leases of what it holds.

        One that is known has what is leased to it and it names, for the time that it had: each
        attaches time and again. What it does not name it has let go of. One that is not known, as
        the owner is new or thought it gone, gets what is free. Neither is a delivery: the messages
        are with it (trap 113).
        """
        self.expire(now)
        queue = self._queues.setdefault(command.group, _Queue())
        is_known = command.consumer in queue.consumers
        self._stirred = True
        self._begin_pauses(now)
        timeout_ms = min(max(command.ack_timeout_ms, TIMEOUT_MIN_MS), TIMEOUT_MAX_MS)
        until_ms = now.monotonic_ms + timeout_ms
        queue.consumers[command.consumer] = _Consumer(
            command.consumer, frozenset(command.topics), timeout_ms, until_ms
        )
        if is_known:
            return tuple(self._kept(command, now))
        return tuple(self._lease_again(command, now))

    def _kept(self, command: Attach, now: Instant) -> Iterator[Lease]:
        named: dict[PartitionId, SpanMap[bool]] = {}
        for each in command.held:
            for span in each.spans:
                named.setdefault(each.partition, SpanMap()).put(span, True)
        nothing: SpanMap[bool] = SpanMap()
        queue = self._queues[command.group]
        for number in self._of(command.group, command.consumer):
            held = self._leases[number]
            here = queue.partitions[held.partition]
            for span in self._parts_of(number):
                for let_go in named.get(held.partition, nothing).free(span):
                    self._take_back(here, let_go)
        for each in command.held:
            here = queue.partitions.setdefault(each.partition, _Partition())
            for span in each.spans:
                for part, number in here.leased.within(span):
                    held = self._leases[number]
                    if held.consumer == command.consumer:
                        yield Lease(
                            number=number,
                            partition=each.partition,
                            span=part,
                            delivery_count=here.counts.at(part.lo) or 1,
                            left_ms=held.until_ms - now.monotonic_ms,
                        )

    def _lease_again(self, command: Attach, now: Instant) -> Iterator[Lease]:
        subscription = self._subscriptions.get(command.group)
        if subscription is None:
            return
        queue = self._queues[command.group]
        consumer = queue.consumers[command.consumer]
        for each in command.held:
            known = subscription.partitions.get(each.partition)
            here = queue.partitions.setdefault(each.partition, _Partition())
            if known is None:
                continue
            if subscription.kind is SubscriptionKind.FAILOVER and not self._is_free_for(
                queue, each.partition, consumer, now
            ):
                continue
            self.want(each.partition)  # What is held may lie above the end that is known here.
            for span in each.spans:
                for free in _available(known, here, span):
                    here.active = consumer.number
                    # It has them already: that is no delivery. What is not known begins with 1.
                    for gap in here.counts.free(free):
                        here.counts.put(gap, 1)
                    yield self._lease(command.group, consumer.number, each, free, now)

    def heard(self, group: str, consumer: int, now: Instant) -> None:
        """Notes that a consumer asked for messages, or said something of them.

        That its stream stands does not show that its application works. One that says nothing for
        the time of a lease keeps no partition from others (trap 151).
        """
        known = self._consumer(group, consumer)
        if known is not None:
            known.until_ms = now.monotonic_ms + known.timeout_ms

    def detach(self, group: str, consumer: int, now: Instant) -> None:
        """Notes that a consumer's stream broke. It has `GONE_MS` to attach again."""
        known = self._consumer(group, consumer)
        if known is not None:
            known.gone_ms = now.monotonic_ms + GONE_MS

    def require(self, group: str, consumer: int) -> None:
        """Checks that a consumer is attached.

        Raises:
            NotAttachedError: it is not.
        """
        known = self._consumer(group, consumer)
        if known is None or known.gone_ms is not None:
            raise NotAttachedError(f"this consumer of subscription {group!r} is not attached here")

    # ---- giving out -----------------------------------------------------------------------------

    def acquire(self, command: Acquire, now: Instant) -> Lease | None:
        """Leases the next span to a consumer that is attached; None if there is nothing for it."""
        subscription = self._subscriptions.get(command.group)
        queue = self._queues.get(command.group)
        if subscription is None or queue is None or self.is_opening(now):
            return None
        if command.ahead and command.delivery_limit == 1:
            return None  # The only delivery of a message is not to be one that nobody may see.
        self._begin_pauses(now)
        consumer = queue.consumers[command.consumer]
        keys = self._readable(subscription, consumer)
        if subscription.kind is SubscriptionKind.FAILOVER:
            _inherit(queue, keys, consumer, now)
        stays = consumer.at if now.monotonic_ms - consumer.came_ms < STAY_MS else None
        for partition in _in_turn(keys, queue.turn, stays):
            known = subscription.partitions[partition]
            here = queue.partitions.setdefault(partition, _Partition())
            if not self._may_have(subscription, queue, partition, consumer, now):
                continue
            span = self._next_span(partition, known, here, command, now)
            if span is not None and command.ahead and not self._is_ahead(partition, here, span):
                # To lease elsewhere would keep it there as long as that goes on, and what comes
                # again or is the last here would wait as long (trap 229).
                return None
            if span is not None:
                if partition != stays:
                    queue.turn, consumer.came_ms = queue.turn + 1, now.monotonic_ms
                is_within = span.hi < MessageId(self._ends[partition])
                consumer.at = partition if is_within else None
                here.active, here.heir = consumer.number, None
                self._want_more(queue, keys)
                before = here.counts.at(span.lo) or 0
                here.counts.put(span, before + 1)
                queue.redelivered += span.offset_count if before else 0
                acks = Acks(partition, (span,))
                return self._lease(command.group, consumer.number, acks, span, now)
        return None

    def _is_ahead(self, partition: PartitionId, here: _Partition, span: Span) -> bool:
        """Returns whether a span may go to a consumer that has something to work on."""
        return here.counts.at(span.lo) is None and span.hi < MessageId(self._ends[partition])

    def _readable(self, subscription: Subscription, consumer: _Consumer) -> list[PartitionId]:
        named = (p for p in subscription.partitions if p.topic in consumer.topics)
        return [p for p in named if not self.is_former(p)]

    def _want_more(self, queue: _Queue, keys: Iterable[PartitionId]) -> None:
        """Asks for ends of what is leased up to the end that is known.

        Nobody waits while one partition has messages for all: the others would stand still.
        """
        for partition in keys:
            here, end = queue.partitions.get(partition), self._ends.get(partition)
            if end is None or (here is not None and here.next.offset >= end):
                self.want(partition)

    def _may_have(
        self,
        subscription: Subscription,
        queue: _Queue,
        partition: PartitionId,
        asks: _Consumer,
        now: Instant,
    ) -> bool:
        """Returns whether a consumer may get messages of a partition.

        Of a failover subscription one consumer has each. Another one gets nothing of it while that
        one works on what it got. What it acknowledged in a transaction is part of that: the
        transaction may abort, and the message would come behind what was given out meanwhile
        (trap 140).
        """
        if subscription.kind is SubscriptionKind.SHARED:
            return True
        here = queue.partitions[partition]
        if not self._is_free_for(queue, partition, asks, now):
            return False
        return here.active == asks.number or not subscription.partitions[partition].pending

    def _is_free_for(
        self, queue: _Queue, partition: PartitionId, asks: _Consumer, now: Instant
    ) -> bool:
        """Returns whether nobody else has a partition, or a lease in it."""
        here = queue.partitions[partition]
        holders = {self._leases[number].consumer for _, number in here.leased.rows()}
        return holders <= {asks.number} and _owner(queue, partition, now) in (None, asks.number)

    def _next_span(
        self,
        partition: PartitionId,
        known: SubscribedPartition,
        here: _Partition,
        command: Acquire,
        now: Instant,
    ) -> Span | None:
        end = self._ends.get(partition)
        if end is None:
            return None
        here.next = max(here.next, known.end)
        start, behind = known.start, MessageId(end, AT_OFFSET if command.at_ends else 0)
        spans = len(known.deleted) + len(known.pending) + len(here.leased)
        if here.next.offset - start.offset >= WINDOW_OFFSETS or spans >= WINDOW_SPANS:
            behind = min(behind, here.next)
        if start >= behind:
            return None
        self._end_delays(here, now)
        found = next(iter(_available(known, here, Span(start, behind))), None)
        if found is None:
            return None
        lo, hi = found
        hi = min(hi, MessageId(lo.offset + _most_offsets(command, here.counts.at(lo) or 0)))
        # One count for all of a lease: what was given out before, and what was not, part here.
        bound = here.counts.skip(lo)
        if bound == lo:
            bound = here.counts.next_after(lo) or hi
        return Span(lo, min(hi, bound))

    def _end_delays(self, here: _Partition, now: Instant) -> None:
        over = [span for span, until_ms in here.delayed.rows() if until_ms <= now.monotonic_ms]
        for span in over:
            here.delayed.remove(span)

    def _lease(self, group: str, consumer: int, acks: Acks, span: Span, now: Instant) -> Lease:
        queue, partition = self._queues[group], acks.partition
        here, timeout_ms = queue.partitions[partition], queue.consumers[consumer].timeout_ms
        self._numbers += 1
        number, until_ms = self._numbers, now.monotonic_ms + timeout_ms
        queue.consumers[consumer].until_ms = until_ms
        self._leases[number] = _Held(group, consumer, partition, span, until_ms)
        self._end_at(until_ms, number)
        here.leased.put(span, number)
        here.next = max(here.next, span.hi)
        return Lease(
            number=number,
            partition=partition,
            span=span,
            delivery_count=here.counts.at(span.lo) or 1,
            left_ms=timeout_ms,
        )

    def _end_at(self, until_ms: int, number: int) -> None:
        self._leases[number].until_ms = until_ms
        heapq.heappush(self._deadlines, (until_ms, number))
        if len(self._deadlines) > 2 * len(self._leases) + _DEADLINES_SPARE:
            # Of leases that are over, or were renewed. Their time may be a day.
            self._deadlines = [(held.until_ms, n) for n, held in self._leases.items()]
            heapq.heapify(self._deadlines)

    def told(self, leases: Iterable[Lease], now_ms: int) -> tuple[Lease, ...]:
        """Returns leases as they are now: without what was acknowledged, or ended, meanwhile, and
        with the time that is left.

        What is left of a lease may be several spans: each is told as a lease of the same number.

        Args:
            leases: as they were cut.
            now_ms: monotonic time.
        """
        return tuple(part for lease in leases for part in self._parts(lease, now_ms))

    def _parts(self, lease: Lease, now_ms: int) -> Iterator[Lease]:
        held = self._leases.get(lease.number)
        # An owner that stood still may tell it before it looks what is due: the lease would begin
        # with its consumer when it ends here, and its messages go to another one, too (trap 269).
        if held is None or held.until_ms <= now_ms:
            return
        here = self._queues[held.group].partitions[held.partition]
        for span, number in here.leased.within(lease.span):
            if number == lease.number:
                yield Lease(
                    number=number,
                    partition=lease.partition,
                    span=span,
                    delivery_count=lease.delivery_count,
                    left_ms=held.until_ms - now_ms,
                )

    def untold(self, leases: Iterable[Lease]) -> None:
        """Ends leases that their consumer was never told of. They don't count as deliveries."""
        for lease in leases:
            held = self._leases.get(lease.number)
            if held is None:
                continue
            here = self._queues[held.group].partitions[held.partition]
            for span, number in list(here.leased.within(lease.span)):
                if number == lease.number:
                    _uncount(here, span)
            self._end(lease.number)

    def wait(self, command: Acquire, ref: Ref, now: Instant) -> Ref | None:
        """Lets a request wait until there is something for its consumer.

        Returns:
            The consumer's request that waited before, which waits no more; None if none did.
        """
        key = command.group, command.consumer
        before = self._waiting.pop(key, None)
        self._waiting[key] = _Waiting(command, ref, now.monotonic_ms + WAIT_MS)
        # It says nothing while it waits, and the time of a lease may be shorter than that.
        consumer = self._queues[command.group].consumers[command.consumer]
        consumer.until_ms = now.monotonic_ms + WAIT_MS + consumer.timeout_ms
        return None if before is None else before.ref

    def forget(self, refs: Iterable[Ref]) -> None:
        """Drops the requests of clients that went away."""
        gone = set(map(id, refs))
        for key in [k for k, each in self._waiting.items() if id(each.ref) in gone]:
            del self._waiting[key]

    @property
    def wants_ends(self) -> bool:
        """Whether any partition's end may be wanted; False is certain."""
        return bool(self._waiting or self._wanted)

    def wanted(self) -> list[PartitionId]:
        """Returns the partitions whose ends are to be asked for now."""
        # Nobody can tell where a topic ended that is no more.
        self._wanted = {p: None for p in self._wanted if not self.is_former(p)}
        found = dict(self._wanted)
        for each in self._waiting.values():
            subscription = self._subscriptions.get(each.command.group)
            consumer = self._consumer(each.command.group, each.command.consumer)
            if subscription is not None and consumer is not None:
                found.update(dict.fromkeys(self._readable(subscription, consumer)))
        return list(found)

    def ends_told(self, ends: Iterable[tuple[PartitionId, int]]) -> None:
        """Takes ends of partitions. A lower one than was told before is of a broker behind."""
        for partition, end in ends:
            before = self._ends.get(partition, 0)
            self._stirred = self._stirred or end > before
            self._ends[partition] = max(end, before)
            self._wanted.pop(partition, None)

    def end_of(self, partition: PartitionId) -> int | None:
        """Returns an end that a partition has reached, or None."""
        return self._ends.get(partition)

    def want(self, partition: PartitionId) -> None:
        """Asks for a partition's end, though nobody waits for messages of it."""
        self._wanted[partition] = None

    # ---- what ends leases -----------------------------------------------------------------------

    def taken(self, group: str, acks: Acks, *, deleted: bool) -> None:
        """Ends the leases of messages that are acknowledged. Deleted ones have no count more."""
        here = self._partition(group, acks.partition)
        if here is None:
            return
        self._stirred = True  # The window may have opened.
        for span in acks.spans:
            self._take_back(here, span)
            here.delayed.remove(span)
            if deleted:
                here.counts.remove(span)
                here.pauses.remove(span)

    def pause_if_aborted(self, group: str, acks: Acks, delay_ms: int) -> None:
        """Notes how long messages that a transaction acknowledges are held back if it aborts."""
        queue = self._queues.setdefault(group, _Queue())
        here = queue.partitions.setdefault(acks.partition, _Partition())
        for span in acks.spans:
            here.pauses.remove(span)
            if delay_ms > 0:
                here.pauses.put(span, min(delay_ms, TIMEOUT_MAX_MS))

    def aborted(self, group: str, acks: Acks) -> None:
        """Takes back messages of a transaction that was aborted."""
        self._stirred = True
        here = self._partition(group, acks.partition)
        if here is None:
            return
        for span in acks.spans:
            self._aborted += [(here, part, ms) for part, ms in here.pauses.remove(span)]

    def _begin_pauses(self, now: Instant) -> None:
        aborted, self._aborted = self._aborted, []
        for here, span, delay_ms in aborted:
            here.delayed.put(span, now.monotonic_ms + delay_ms)

    def release(
        self,
        group: str,
        consumer: int,
        acks: Acks,
        now: Instant,
        *,
        delay_ms: int = 0,
        unseen: bool = False,
    ) -> tuple[Span, ...]:
        """Ends a consumer's own leases. Returns what of the messages was not leased to it.

        What is another's, deleted, or pending in a transaction stays as it is.

        Args:
            group: the subscription.
            consumer: whose leases end.
            acks: messages of a partition.
            now: the time.
            delay_ms: how long nobody gets them.
            unseen: whether no application got them, so that this delivery does not count.
        """
        lost: list[Span] = []
        for span in acks.spans:
            own = self._own(group, consumer, acks.partition, span)
            here = self._queues[group].partitions.get(acks.partition)
            lost += _without(span, own)
            for part in own:
                assert here is not None, "something is leased there"
                self._take_back(here, part)
                if unseen:
                    _uncount(here, part)
                here.counts.remove(_behind_all(part))
                self._stirred = True
                if delay_ms > 0:
                    here.delayed.put(part, now.monotonic_ms + min(delay_ms, TIMEOUT_MAX_MS))
        return tuple(lost)

    def renew(self, group: str, consumer: int, acks: Acks, now: Instant) -> tuple[Span, ...]:
        """Begins the time of a consumer's own leases anew. Returns the same as `release`."""
        lost: list[Span] = []
        for span in acks.spans:
            own = self._own(group, consumer, acks.partition, span)
            here = self._queues[group].partitions.get(acks.partition)
            lost += _without(span, own)
            for part in own:
                assert here is not None, "something is leased there"
                for _, number in here.leased.within(part):
                    timeout_ms = self._queues[group].consumers[consumer].timeout_ms
                    self._end_at(now.monotonic_ms + timeout_ms, number)
        return tuple(lost)

    def begin_anew(self, group: str, partitions: Iterable[PartitionId]) -> None:
        """Forgets leases, counts and delays of partitions whose messages are others from now on."""
        queue = self._queues.get(group)
        if queue is None:
            return
        for partition in partitions:
            here = queue.partitions.pop(partition, _Partition())
            for _, number in here.leased.rows():
                self._leases.pop(number, None)

    def end(self, group: str) -> None:
        """Forgets all of a subscription that is no more."""
        queue = self._queues.get(group)
        if queue is not None:
            self.begin_anew(group, list(queue.partitions))
            del self._queues[group]

    def _consumer(self, group: str, consumer: int) -> _Consumer | None:
        queue = self._queues.get(group)
        return None if queue is None else queue.consumers.get(consumer)

    def _partition(self, group: str, partition: PartitionId) -> _Partition | None:
        queue = self._queues.get(group)
        return None if queue is None else queue.partitions.get(partition)

    def _own(self, group: str, consumer: int, partition: PartitionId, span: Span) -> list[Span]:
        here = self._queues[group].partitions.get(partition)
        if here is None:
            return []
        rows = here.leased.within(span)
        return [part for part, number in rows if self._leases[number].consumer == consumer]

    def _of(self, group: str, consumer: int) -> list[int]:
        """Returns the leases of a consumer."""
        return [
            number
            for number, held in self._leases.items()
            if held.group == group and held.consumer == consumer
        ]

    def _parts_of(self, number: int) -> list[Span]:
        """Returns what is left of a lease."""
        held = self._leases[number]
        here = self._queues[held.group].partitions[held.partition]
        return [span for span, lease in here.leased.within(held.span) if lease == number]

    def _end(self, number: int) -> None:
        self._stirred = True
        held = self._leases[number]
        here = self._queues[held.group].partitions[held.partition]
        for span in self._parts_of(number):
            self._take_back(here, span)

    def _take_back(self, here: _Partition, span: Span) -> None:
        """Ends the leases of messages. One of which nothing is left is forgotten."""
        for number in {number for _, number in here.leased.remove(span)}:
            if not here.leased.has(self._leases[number].span, number):
                del self._leases[number]

    # ---- what is due ----------------------------------------------------------------------------

    def expire(self, now: Instant) -> None:
        """Ends leases whose time is up, and those of consumers that are gone."""
        while self._deadlines and self._deadlines[0][0] <= now.monotonic_ms:
            until_ms, number = heapq.heappop(self._deadlines)
            held = self._leases.get(number)
            if held is not None and held.until_ms == until_ms:
                self._end(number)
        for group, queue in self._queues.items():
            gone = [
                each.number
                for each in queue.consumers.values()
                if each.gone_ms is not None and each.gone_ms <= now.monotonic_ms
            ]
            for consumer in gone:
                for number in self._of(group, consumer):
                    self._end(number)
                del queue.consumers[consumer]
                self._stirred = True

    def due(self, now: Instant) -> tuple[Ref, Leases] | None:
        """Returns the answer to a request that waited: messages, or none because its time is up."""
        if not (self._queues or self._waiting or self._leases):
            return None  # Asked after each command, and most journal partitions have no queue.
        self.expire(now)
        self._begin_pauses(now)
        if not self._is_stirred(now):
            return None
        for key, each in list(self._waiting.items()):
            is_known = self._consumer(each.command.group, each.command.consumer) is not None
            lease = self.acquire(each.command, now) if is_known else None
            if lease is not None or not is_known or each.until_ms <= now.monotonic_ms:
                del self._waiting[key]
                return each.ref, Leases(() if lease is None else (lease,))
        self._stirred, self._look_ms = False, self._next_look_ms(now)
        return None

    def stir(self) -> None:
        """Notes that messages became available: a partition joined."""
        self._stirred = True

    def _is_stirred(self, now: Instant) -> bool:
        # The oldest request waits for the shortest time.
        oldest = next(iter(self._waiting.values()), None)
        is_late = oldest is not None and oldest.until_ms <= now.monotonic_ms
        is_due = self._look_ms is not None and self._look_ms <= now.monotonic_ms
        return self._stirred or is_late or is_due

    def _next_look_ms(self, now: Instant) -> int | None:
        # One that is over was looked at just now. Perhaps nobody ever asks for its messages: then
        # all who wait for others would be looked at each time.
        delayed = (
            until_ms
            for queue in self._queues.values()
            for here in queue.partitions.values()
            for _, until_ms in here.delayed.rows()
            if until_ms > now.monotonic_ms
        )
        opens = (self._opens_ms,) if self._opens_ms > now.monotonic_ms else ()
        return min((*opens, *delayed), default=None)

    # ---- what operators are told ----------------------------------------------------------------

    def rejected(self, group: str, acks: Acks) -> None:
        """Counts what was rejected. What the journal says of it while it is loaded, a former owner
        has counted."""
        if self._serving:
            queue = self._queues.setdefault(group, _Queue())
            queue.rejected += sum(span.offset_count for span in acks.spans)

    def redelivered_and_rejected(self, group: str) -> tuple[int, int]:
        """Returns how many offsets this owner has leased again, and how many were rejected."""
        queue = self._queues.get(group)
        return (0, 0) if queue is None else (queue.redelivered, queue.rejected)

    def figures(self, group: str, partition: PartitionId) -> Figures:
        """Returns what is leased of a partition."""
        here = self._partition(group, partition)
        if here is None:
            return Figures(0, ORIGIN)
        return Figures(sum(span.offset_count for span, _ in here.leased.rows()), here.next)

    def available(
        self, group: str, partition: PartitionId, known: SubscribedPartition, bound: MessageId
    ) -> Iterator[Span]:
        """Yields the spans of a partition before a bound that may be given out, in order.

        What a delay holds back is not among them, though it may have ended a moment ago.
        """
        here = self._partition(group, partition)
        if known.start < bound:
            yield from _available(known, here or _Partition(), Span(known.start, bound))

    def consumers(self, group: str) -> tuple[AttachedConsumer, ...]:
        """Returns the consumers of a subscription, in the order in which they attached."""
        queue = self._queues.get(group)
        if queue is None:
            return ()
        leased = dict.fromkeys(queue.consumers, 0)
        for here in queue.partitions.values():
            for span, number in here.leased.rows():
                leased[self._leases[number].consumer] += span.offset_count
        return tuple(
            AttachedConsumer(
                consumer=each.number,
                topics=tuple(sorted(each.topics)),
                leased=leased[each.number],
                gone=each.gone_ms is not None,
            )
            for each in queue.consumers.values()
        )

    def holder(self, group: str, partition: PartitionId, message: MessageId) -> int | None:
        """Returns the consumer that a message is leased to, or None."""
        here = self._partition(group, partition)
        number = None if here is None else here.leased.at(message)
        return None if number is None else self._leases[number].consumer


def _in_turn(keys: list[PartitionId], turn: int, stays: PartitionId | None) -> list[PartitionId]:
    """Returns partitions in the order in which they are looked at: one where the consumer stays,
    and the others from the one whose turn it is."""
    first = turn % len(keys) if keys else 0
    in_turn = keys[first:] + keys[:first]
    return sorted(in_turn, key=lambda partition: partition != stays)


def _most_offsets(command: Acquire, deliveries: int) -> int:
    """Returns the most offsets of a lease of messages that were given out so often before."""
    most = command.max_offsets
    # The only delivery of a message is not to be one that its consumer may never come to.
    if not deliveries and command.delivery_limit != 1:
        most = max(most, command.max_new_offsets)
    most = min(most, LEASE_OFFSETS_MAX)
    return most_at_once(most, deliveries, command.delivery_limit)


def _without(span: Span, parts: Iterable[Span]) -> list[Span]:
    """Returns what of a span lies in none of its parts, in order."""
    found: SpanMap[bool] = SpanMap()
    for part in parts:
        found.put(part, True)
    return found.free(span)


def _uncount(here: _Partition, span: Span) -> None:
    for part, count in here.counts.remove(span):
        if count > 1:
            here.counts.put(part, count - 1)


def _behind_all(span: Span) -> Span:
    """Returns what of a released span was at the very end of a partition: no message yet, so that
    what is placed there later was not given out before. No message ends there."""
    lo, hi = span
    is_end = hi == MessageId(hi.offset, AT_OFFSET)
    return Span(max(lo, MessageId(hi.offset)), hi) if is_end else Span(hi, hi)


def _owner(queue: _Queue, partition: PartitionId, now: Instant) -> int | None:
    """Returns the consumer that gets what is given out of a partition next; None: whoever asks."""
    here = queue.partitions.get(partition)
    for number in (None, None) if here is None else (here.heir, here.active):
        consumer = None if number is None else queue.consumers.get(number)
        if consumer is None or consumer.until_ms <= now.monotonic_ms:
            continue
        if partition.topic in consumer.topics:
            return number
    return None


def _inherit(
    queue: _Queue, partitions: Iterable[PartitionId], asks: _Consumer, now: Instant
) -> None:
    """Makes a consumer the heir of a partition of another one that has at least two more.

    Who came first would have all, as long as it is there (trap 141). With a difference of one,
    partitions would go back and forth.
    """
    owners = {partition: _owner(queue, partition, now) for partition in partitions}
    shares = Counter(owners.values())
    taken = [p for p, owner in owners.items() if owner is not None]
    if not taken:
        return
    partition = max(taken, key=lambda p: shares[owners[p]])
    if shares[owners[partition]] >= shares[asks.number] + 2:
        queue.partitions[partition].heir = asks.number


def _available(known: SubscribedPartition, here: _Partition, span: Span) -> Iterator[Span]:
    """Yields what of a span is neither deleted, pending, leased, nor held back, in order."""
    maps = (known.deleted, known.pending, here.leased, here.delayed)
    lo = span.lo
    while lo < span.hi:
        taken = max(each.skip(lo) for each in maps)
        if taken > lo:
            lo = taken
            continue
        ends = [at for each in maps if (at := each.next_after(lo)) is not None]
        hi = min([span.hi, *ends])
        yield Span(lo, hi)
        lo = hi
