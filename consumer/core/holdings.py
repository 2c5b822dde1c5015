"""What one consumer of a queue holds: leases that it has not read, and messages that it gave out.

A consumer acknowledges spans, and not messages: a message has what lies between it and the one
before. So markers, aborted records and removed offsets need no word. What is left of a lease behind
its last message is a gap that no message has: the consumer acknowledges it by itself.

Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ...coordinator.protocol.queues import Lease
from ...journal.acks import Acks, joined
from ...journal.control import TopicPartition
from ...journal.places import PartitionId
from ...journal.spans import MessageId, Span, SpanMap
from .pending import Record
from .runs import ByRun, Given, GivenRun, RecordKey, Run, acks_of, grouped

LOST_MAX: Final = 10_000
"""Most messages that are not leased any more, and that may be acknowledged all the same. More take
more memory where an application leaves messages to their time; of fewer, one that takes long is
told sooner that it does not hold its message."""


class Holdings:
    """The leases of one consumer, and the messages that it gave out of them."""

    def __init__(self) -> None:
        """Holds nothing."""
        self._unread: deque[tuple[Lease, float]] = deque()
        """(lease, until when it is this consumer's), the caller's time in seconds."""
        self._lease: Lease | None = None
        self.until_s = 0.0
        """Until when the lease that is read is this consumer's."""
        self._at = MessageId(0)
        self._given: dict[TopicPartition, dict[int, GivenRun]] = {}
        """Partition → offset → the messages that one was given out with. So nothing is made for
        each."""
        self._order = 0
        """How often messages were given out."""
        self._lost: set[RecordKey] = set()
        """Those of them that are not leased to it any more, as far as it was told."""
        self._ids: dict[str, set[str]] = {}
        """Topic → the ids of the topics of this name of which messages were given out."""
        self.era = 0
        """The era in which all that is held was given out."""
        self._dropped: set[RecordKey] = set()
        """What the application had when eras ended."""
        self._is_ambiguous = False
        """Whether one name may be that of two messages."""
        self._twice: set[RecordKey] = set()
        """Names that two messages had: a sidecar was created anew, and its offsets began again."""

    def leased(self, leases: Iterable[Lease], now_s: float = 0.0) -> None:
        """Takes leases. Each is this consumer's for the time that is left of it from `now_s` on."""
        self._unread.extend((lease, now_s + lease.left_ms / 1000) for lease in leases)

    def begin(self, now_s: float = 0.0) -> Lease | None:
        """Returns the next lease to read; None if there is none. The one before must be ended.

        Passes over those that are over: others have their messages, or are asked for them.
        """
        assert self._lease is None, "one lease at a time is read"
        while self._lease is None and self._unread:
            lease, until_s = self._unread.popleft()
            if until_s > now_s:
                self._lease, self._at, self.until_s = lease, lease.span.lo, until_s
        return self._lease

    @property
    def has_unread(self) -> bool:
        """Whether there are leases that were not begun."""
        return bool(self._unread)

    @property
    def lease(self) -> Lease | None:
        """The lease that is being read."""
        return self._lease

    def give(self, key: RecordKey, message: MessageId, record: Record | None = None) -> Given:
        """Notes that a message of the lease is given out."""
        topic, partition, offset = key
        run = Run(topic, partition, (record,), (offset,), message)
        return self.give_run(run).at(offset)

    def give_run(self, run: Run) -> GivenRun:
        """Notes that messages of the lease are given out, one at least."""
        lease = self._lease
        assert lease is not None, "they are of a lease"
        self._order += 1
        of = GivenRun(lease.partition, lease.delivery_count, self.era, self._at, run, self._order)
        place = run.topic, run.partition
        given = self._given.setdefault(place, {})
        if not given.keys().isdisjoint(run.offsets):
            both = [offset for offset in run.offsets if offset in given]
            self._twice |= {
                (*place, offset)
                for offset in both
                if given[offset].at(offset).own_span != of.at(offset).own_span
            }
        given.update(dict.fromkeys(run.offsets, of))
        self._at = run.name(len(run) - 1).behind
        if self._lost:
            self._lost.difference_update(run.known_by())
        ids = self._ids.setdefault(lease.partition.topic, set())
        ids.add(lease.partition.topic_id)
        if len(ids) > 1 or self._twice:
            self._is_ambiguous = True
        return of

    def end(self) -> Acks | None:
        """Ends reading the lease. Returns what of it was not given out; None if nothing is left."""
        rest, self._lease = self._rest(), None
        return rest

    def _rest(self) -> Acks | None:
        lease = self._lease
        if lease is None or self._at >= lease.span.hi:
            return None
        return Acks(lease.partition, (Span(self._at, lease.span.hi),))

    def pass_gap(self, bound: MessageId) -> Acks | None:
        """Passes over what of the lease holds no message, up to a bound.

        Returns that; None if it is nothing.
        """
        lease = self._lease
        assert lease is not None, "it is read"
        start, self._at = self._at, max(self._at, min(bound, lease.span.hi))
        return Acks(lease.partition, (Span(start, self._at),)) if start < self._at else None

    # ---- acknowledgements -----------------------------------------------------------------------

    def is_another(self, key: RecordKey, record: Record) -> bool:
        """Returns whether the message that has this name is another one than the application's: the
        topic was created anew, and that may be a message of the former one (trap 111); or a sidecar
        was (trap 164); or it was given out again in another era, and that may be its work of before
        (trap 146).

        While nothing of this happens, a copy of a message is as good.
        """
        if not self._is_ambiguous:
            return False
        given = self.look(key)
        is_twice = key in self._dropped or key in self._twice
        is_ambiguous = len(self._ids.get(key[0], ())) > 1 or is_twice
        return given is not None and is_ambiguous and given.record is not record

    def look(self, key: RecordKey) -> Given | None:
        """Returns a message that was given out and is not acknowledged; None if it is."""
        of = self._given.get(key[:2], {}).get(key[2])
        return None if of is None else of.at(key[2])

    def take(self, key: RecordKey) -> Given | None:
        """Returns the same, and holds it no more."""
        of = self._pop(*key)
        return None if of is None else of.at(key[2])

    def take_own(self, topic: str, partition: int, offset: int, record: Record) -> GivenRun | None:
        """Holds a message no more that the application has.

        Returns:
            The messages that it was given out with; None if it is not held, or is another one (see
            `is_another`).
        """
        if self._is_ambiguous and self.is_another((topic, partition, offset), record):
            return None
        return self._pop(topic, partition, offset)

    def _pop(self, topic: str, partition: int, offset: int) -> GivenRun | None:
        given = self._given.get((topic, partition))
        return None if given is None else given.pop(offset, None)

    def up_to(self, key: RecordKey) -> dict[RecordKey, Given]:
        """Returns a message and all before it in its partition; none if it is not held."""
        last = self.look(key)
        if last is None:
            return {}
        topic, partition, _ = key
        held = ((n, of.at(n)) for n, of in self._given[topic, partition].items())
        return {
            (topic, partition, n): given
            for n, given in held
            if given.partition == last.partition and given.span.lo <= last.span.lo
        }

    def take_some(self, keys: Iterable[RecordKey]) -> ByRun:
        """Returns those of some messages that are held, and holds them no more."""
        taken = ((self._pop(*key), key[2]) for key in keys)
        return grouped((of, offset) for of, offset in taken if of is not None)

    def take_all(self) -> ByRun:
        """Returns all messages that were given out, and holds them no more."""
        return self.take_some([key for key, _ in self.each()])

    def each(self) -> Iterator[tuple[RecordKey, GivenRun]]:
        """Yields all messages that were given out, by partition, with those of each lease."""
        for (topic, partition), given in self._given.items():
            for offset, of in given.items():
                yield (topic, partition, offset), of

    def take_unread(self) -> list[Acks]:
        """Returns what was not given out, and holds it no more. Ends the lease that is read."""
        rest = self.end()
        found = [Acks(lease.partition, (lease.span,)) for lease, _ in self._unread]
        self._unread.clear()
        return ([] if rest is None else [rest]) + found

    def begin_anew(self, era: int) -> None:
        """Holds nothing more: what was given out before another era is nobody's. Nothing is left of
        the lease that is read."""
        self._dropped.update(key for key, _ in self.each())
        self._is_ambiguous = self._is_ambiguous or bool(self._dropped)
        self._given.clear()
        self._unread.clear()
        if self._lease is not None:
            self._at = self._lease.span.hi
        self.era = era

    def was_dropped(self, key: RecordKey) -> bool:
        """Returns whether the application had a message when an era ended."""
        return key in self._dropped

    # ---- another owner, or another stream -------------------------------------------------------

    def held(self) -> tuple[Acks, ...]:
        """Returns all that it works on, given out or not, by partition.

        What it has lost is not part of that. The application may have left it to its time, and does
        not work on it. A new owner would take it for this consumer's again, and the partition with
        it, though another one works there.
        """
        named = acks_of(grouped((of, k[2]) for k, of in self.each() if k not in self._lost))
        named += [Acks(lease.partition, (lease.span,)) for lease, _ in self._unread]
        rest = self._rest()
        return joined(named if rest is None else [*named, rest])

    def attached(self, leases: Iterable[Lease], now_s: float = 0.0) -> bool:
        """Takes what it still has, after it attached with what it held.

        Messages that it gave out may be acknowledged still: whoever does so first has it. What it
        has not read is read only where it has it still.

        Returns:
            Whether it may go on with the lease that it reads.
        """
        granted: dict[PartitionId, SpanMap[tuple[int, float]]] = {}
        for lease in leases:
            own = lease.number, now_s + lease.left_ms / 1000
            granted.setdefault(lease.partition, SpanMap()).put(lease.span, own)
        nothing: SpanMap[tuple[int, float]] = SpanMap()
        lost = [
            (of.order, key)
            for key, of in self.each()
            if not granted.get(of.partition, nothing).touches(of.at(key[2]).span)
        ]
        lost.sort()
        for _, key in lost[:-LOST_MAX]:
            self._pop(*key)  # The oldest: else they would be kept for ever.
        self._lost = {key for _, key in lost[-LOST_MAX:]}
        unread, self._unread = self._unread, deque()
        for lease, _ in unread:
            here = granted.get(lease.partition, SpanMap())
            for span, (number, until_s) in here.within(lease.span):
                self._unread.append((replace(lease, number=number, span=span), until_s))
        reading = self._lease
        if reading is None or self._at >= reading.span.hi:
            return True
        here, rest = granted.get(reading.partition, SpanMap()), Span(self._at, reading.span.hi)
        self.until_s = min((until_s for _, (_, until_s) in here.within(rest)), default=self.until_s)
        return not here.free(rest)
