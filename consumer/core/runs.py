"""Messages of a queue that follow each other, and what is known of all of them at once. Pure.

A queue's consumer gives thousands of messages out in a second. What it knows of a message is mostly
true of its neighbours, too: so it is kept once for all of them, and names and spans are made when
somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, repeat
from typing import TypeAlias

from ...journal.acks import Acks, joined
from ...journal.places import PartitionId
from ...journal.spans import AT_OFFSET, MessageId, Span
from .pending import Record

RecordKey: TypeAlias = tuple[str, int, int]
"""(topic, partition, offset)."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Consecutive messages of one transaction, or plain ones."""

    topic: str
    partition: int
    records: Sequence[Record | None]
    offsets: Sequence[int]
    """What the application knows them by, in order."""
    first: MessageId | None = None
    """Name of the first message, from which those of the others follow; None for plain records,
    whose offsets name them."""

    def __len__(self) -> int:
        """Returns the number of messages."""
        return len(self.offsets)

    def name(self, n: int) -> MessageId:
        """Returns the name of the n-th message."""
        if self.first is None:
            return MessageId(self.offsets[n], AT_OFFSET)
        offset, sequence, nth = self.first
        return MessageId(offset, sequence, nth + n)

    def known_by(self) -> Iterator[RecordKey]:
        """Yields what the messages are known by."""
        return zip(repeat(self.topic), repeat(self.partition), self.offsets, strict=False)

    def part(self, start: int, stop: int) -> Run:
        """Returns the messages from the one number on, and before the other."""
        if start == 0 and stop >= len(self):
            return self
        return replace(
            self,
            records=self.records[start:stop],
            offsets=self.offsets[start:stop],
            first=None if self.first is None else self.name(start),
        )

    def within(self, span: Span) -> Run:
        """Returns the messages that lie in a span."""
        numbers = range(len(self))
        start = bisect_left(numbers, span.lo, key=self.name)
        return self.part(start, bisect_left(numbers, span.hi, key=self.name))


@dataclass(frozen=True, slots=True, eq=False)
class GivenRun:
    """Messages of one lease that were given to the application together."""

    partition: PartitionId
    delivery_count: int
    era: int
    """The era of the subscription in which they were given out."""
    lo: MessageId
    """The bound behind the message before the first one. What lies between goes with that."""
    run: Run
    order: int = 0
    """How often messages had been given out, this time included."""

    def number(self, offset: int) -> int:
        """Returns the number of the message that the application knows by an offset."""
        offsets = self.run.offsets
        if offsets[-1] - offsets[0] == len(offsets) - 1:
            return offset - offsets[0]
        return bisect_left(offsets, offset)

    def at(self, offset: int) -> Given:
        """Returns the message that the application knows by an offset."""
        return Given(self, self.number(offset))

    def span(self, first: int, last: int) -> Span:
        """Returns the messages from one number up to another."""
        lo = self.run.name(first - 1).behind if first else self.lo
        return Span(lo, self.run.name(last).behind)

    def spans(self, offsets: Iterable[int]) -> Iterator[Span]:
        """Yields the messages at some offsets, neighbours as one span."""
        # One that is renewed twice is there twice.
        some = set(offsets)
        if len(some) == len(self.run):
            yield self.span(0, len(some) - 1)
            return
        numbers = sorted(map(self.number, some))
        if numbers[-1] - numbers[0] == len(numbers) - 1:
            yield self.span(numbers[0], numbers[-1])
            return
        for _, found in groupby(enumerate(numbers), lambda each: each[1] - each[0]):
            neighbours = [number for _, number in found]
            yield self.span(neighbours[0], neighbours[-1])


@dataclass(frozen=True, slots=True)
class Given:
    """A message that was given to the application."""

    of: GivenRun
    n: int
    """Its number among those that were given out with it."""

    @property
    def key(self) -> RecordKey:
        """What the application knows it by."""
        run = self.of.run
        return run.topic, run.partition, run.offsets[self.n]

    @property
    def partition(self) -> PartitionId:
        """Its partition."""
        return self.of.partition

    @property
    def span(self) -> Span:
        """The message, and what lies between it and the one before."""
        return self.of.span(self.n, self.n)

    @property
    def own_span(self) -> Span:
        """The message alone."""
        name = self.of.run.name(self.n)
        return Span(name, name.behind)

    @property
    def delivery_count(self) -> int:
        """How often it was given out, this time included."""
        return self.of.delivery_count

    @property
    def record(self) -> Record | None:
        """The message itself, as the application has it."""
        return self.of.run.records[self.n]

    @property
    def era(self) -> int:
        """The era of the subscription in which it was given out."""
        return self.of.era

    @property
    def acks(self) -> Acks:
        """The message as a request names it."""
        return Acks(self.partition, (self.span,))


ByRun: TypeAlias = dict[GivenRun, list[int]]
"""Some of the messages that were given out: of those that were given out together, the offsets by
which the application knows them. So there is no object for each."""


def grouped(messages: Iterable[tuple[GivenRun, int]]) -> ByRun:
    """Returns messages by those that were given out together, from these and their offsets."""
    some: ByRun = {}
    for of, offset in messages:
        some.setdefault(of, []).append(offset)
    return some


def by_run(given: Iterable[Given]) -> ByRun:
    """Returns the same of messages one by one."""
    return grouped((each.of, each.of.run.offsets[each.n]) for each in given)


def each_of(some: ByRun) -> Iterator[Given]:
    """Yields the messages one by one."""
    return (of.at(offset) for of, offsets in some.items() for offset in offsets)


def acks_of(some: ByRun) -> list[Acks]:
    """Returns the spans of messages, by partition; neighbours as one span."""
    spans = (Acks(of.partition, tuple(of.spans(offsets))) for of, offsets in some.items())
    return list(joined(spans))


def by_partition(given: Iterable[Given]) -> list[Acks]:
    """Returns the same of messages one by one."""
    return acks_of(by_run(given))
