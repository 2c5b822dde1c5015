"""Names messages of a partition, and keeps sets of them as spans. Pure.

A message's name is its place in the order of delivery, and that is one order in both modes of
topics. At an offset, readers deliver first what the topic's home places there, in the order of its
commit sequences (`journal.places`), and then what stands at the offset itself: a plain record, or
the transaction whose first marker lies there. So a message is (offset, sequence, nth), compared
from left to right. Nothing that a reader does, and no reader's start, has a part in it.

A span is half-open. It may begin or end at places that no message has: those of aborted records,
of markers, and of what compaction removed. So a set of messages that were worked off in order is
one span, whatever lies between them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

AT_OFFSET: Final = 2**62
"""Stands for the sequence of what stands at an offset itself: above every commit sequence, for what
is placed at an offset is delivered before."""


class MessageId(NamedTuple):
    """A message's place in a partition's order of delivery, or a bound between two of them."""

    offset: int
    """Of a plain record, or of the marker of its transaction; or the place of that."""
    sequence: int = 0
    """Commit sequence in the home that placed the message's transaction, or `AT_OFFSET`."""
    nth: int = 0
    """Number of the message within its transaction; 0 for a plain record."""

    @property
    def behind(self) -> MessageId:
        """The bound behind this message and before the next one."""
        return MessageId(self.offset, self.sequence, self.nth + 1)


ORIGIN: Final = MessageId(0)
"""The bound before every message."""


class Span(NamedTuple):
    """All messages from `lo` on, and before `hi`."""

    lo: MessageId
    hi: MessageId

    def check(self) -> Span:
        """Returns the span.

        Raises:
            ValueError: it is empty, or one of its numbers is out of range.
        """
        for offset, sequence, nth in self:
            if not (0 <= offset < 2**62 and 0 <= sequence <= AT_OFFSET and 0 <= nth < 2**62):
                raise ValueError(f"no message has the place {offset}, {sequence}, {nth}")
        if self.lo >= self.hi:
            raise ValueError(f"a span from {tuple(self.lo)} to {tuple(self.hi)} is empty")
        return self

    @property
    def offset_count(self) -> int:
        """Number of offsets whose own message, or its first one, lies in the span.

        Offsets of markers, of aborted records and of what compaction removed count as well, as in
        the lag of a consumer group. What is placed at an offset counts with that.
        """
        return _offsets_before(self.hi) - _offsets_before(self.lo)


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Returns the same messages in as few spans as possible, in order."""
    found: list[Span] = []
    ordered = iter(sorted(spans))
    lo, hi = next(ordered, (ORIGIN, ORIGIN))
    for each in ordered:
        if each.lo <= hi:
            hi = max(hi, each.hi)
        else:
            found.append(Span(lo, hi))
            lo, hi = each
    return (*found, Span(lo, hi)) if lo < hi else ()


def _offsets_before(bound: MessageId) -> int:
    return bound.offset + (bound > MessageId(bound.offset, AT_OFFSET))


V = TypeVar("V")


class SpanMap(Generic[V]):
    """Gives values to messages, by disjoint spans. Neighbours of one value are one span.

    A step takes the logarithm of the number of spans, and the length of a copy of the lists.
    """

    __slots__ = ("_hi", "_lo", "_values")

    def __init__(self) -> None:
        self._lo: list[MessageId] = []
        self._hi: list[MessageId] = []
        self._values: list[V] = []

    def __len__(self) -> int:
        """Returns the number of spans."""
        return len(self._lo)

    def rows(self) -> Iterator[tuple[Span, V]]:
        """Yields the spans in order, with their values."""
        for lo, hi, value in zip(self._lo, self._hi, self._values, strict=True):
            yield Span(lo, hi), value

    @property
    def end(self) -> MessageId:
        """The bound behind the last span; `ORIGIN` without spans."""
        return self._hi[-1] if self._hi else ORIGIN

    def put(self, span: Span, value: V) -> None:
        """Gives a value to all messages of a span, in place of those that they had."""
        self.remove(span)
        lo, hi = span
        first = last = bisect_left(self._lo, lo)
        if first and self._hi[first - 1] == lo and self._values[first - 1] == value:
            first -= 1
            lo = self._lo[first]
        if last < len(self._lo) and self._lo[last] == hi and self._values[last] == value:
            hi = self._hi[last]
            last += 1
        self._lo[first:last], self._hi[first:last] = [lo], [hi]
        self._values[first:last] = [value]

    def remove(self, span: Span) -> list[tuple[Span, V]]:
        """Takes the values from all messages of a span. Returns those that had one."""
        first, last = self._overlapping(span)
        if first == last:
            return []
        removed = list(self._clipped(span, first, last))
        left, right = self._lo[first], self._hi[last - 1]
        kept: list[tuple[MessageId, MessageId, V]] = []
        if left < span.lo:
            kept.append((left, span.lo, self._values[first]))
        if span.hi < right:
            kept.append((span.hi, right, self._values[last - 1]))
        self._lo[first:last] = [lo for lo, _, _ in kept]
        self._hi[first:last] = [hi for _, hi, _ in kept]
        self._values[first:last] = [value for _, _, value in kept]
        return removed

    def within(self, span: Span) -> list[tuple[Span, V]]:
        """Returns what of a span has values, in order."""
        return list(self._clipped(span, *self._overlapping(span)))

    def touches(self, span: Span) -> bool:
        """Returns whether a message of the span has a value."""
        first, last = self._overlapping(span)
        return first < last

    def has(self, span: Span, value: V) -> bool:
        """Returns whether a message of the span has this value."""
        first, last = self._overlapping(span)
        return any(self._values[index] == value for index in range(first, last))

    def free(self, span: Span) -> list[Span]:
        """Returns what of a span has no value, in order."""
        found, lo = [], span.lo
        for taken, _ in self.within(span):
            if lo < taken.lo:
                found.append(Span(lo, taken.lo))
            lo = taken.hi
        if lo < span.hi:
            found.append(Span(lo, span.hi))
        return found

    def at(self, place: MessageId) -> V | None:
        """Returns the value of a message, or None."""
        index = bisect_right(self._hi, place)
        return self._values[index] if index < len(self._lo) and self._lo[index] <= place else None

    def skip(self, place: MessageId) -> MessageId:
        """Returns the end of the span that a message is in; the place itself if it has no value."""
        index = bisect_right(self._hi, place)
        return self._hi[index] if index < len(self._lo) and self._lo[index] <= place else place

    def next_after(self, place: MessageId) -> MessageId | None:
        """Returns where the first span begins that begins behind a place, or None."""
        index = bisect_right(self._lo, place)
        return self._lo[index] if index < len(self._lo) else None

    def _overlapping(self, span: Span) -> tuple[int, int]:
        return bisect_right(self._hi, span.lo), bisect_left(self._lo, span.hi)

    def _clipped(self, span: Span, first: int, last: int) -> Iterator[tuple[Span, V]]:
        for index in range(first, last):
            lo, hi = max(self._lo[index], span.lo), min(self._hi[index], span.hi)
            yield Span(lo, hi), self._values[index]
