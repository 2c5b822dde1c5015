"""What a home places in a range of a partition, and the input of a range that ends it there. Pure.

The driver reads the homes (`places`). Each range carries what is to be delivered in it, so that
tasks read no journal, and a range that is read again gives the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...journal.control import TopicPartition
from ...journal.native.interface import HeaderRun
from ...journal.position import Journal, Passed
from ...journal.spans import MessageId, Span
from ..core.home_view import Due
from ..core.pending import Record, offset_of
from ..core.placed_buffer import PlacedBuffer
from .spot import Spot, Vector


@dataclass(frozen=True, slots=True)
class PlacedDue:
    """A committed transaction, and the offset before which it is delivered."""

    place: int
    due: Due

    @property
    def first(self) -> MessageId:
        """Name of its first message, as queues name them."""
        return MessageId(self.place, self.due.sequence)

    @property
    def behind(self) -> MessageId:
        """The bound behind its last message."""
        due = self.due
        ranges = (*due.branches, *(due.aside.branches if due.aside is not None else ()))
        return MessageId(self.place, due.sequence, sum(each.count for each in ranges))


@dataclass(frozen=True, slots=True)
class RangePlaces:
    """What a home places in a range; picklable."""

    home: Journal
    dues: tuple[PlacedDue, ...] = ()
    """In delivery order."""
    elsewhere: frozenset[int] = frozenset()
    """BEGINs of transactions whose records other tasks deliver, or were delivered before."""
    rest_at: int | None = None
    """Where in its sidecar that of the first one lies which was not delivered before; None: not
    known."""

    def records_below(self, offset: int) -> int:
        """Returns how many of the records that are placed here began below an offset."""
        branches = (b for each in self.dues for b in each.due.branches)
        return sum(b.count for b in branches if b.first_offset < offset)

    def has(self, name: MessageId) -> bool:
        """Returns whether the transaction is among it whose messages are named so."""
        return any(each.first[:2] == name[:2] for each in self.dues)

    def within(self, span: Span) -> RangePlaces:
        """Returns what of it has messages in a span. What lies before is read no more (trap 232),
        and what lies behind is another reader's."""
        before = {each.due.begin for each in self.dues if each.behind <= span.lo}
        left = [d for d in self.dues if d.behind > span.lo and d.first < span.hi]
        return replace(self, dues=tuple(left), elsewhere=self.elsewhere | before)


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a partition can be read whose home is followed."""

    home: Journal
    horizon: int
    """Nothing that is not known will be placed below."""
    begun_behind: int | None
    """What was placed up to this sequence was delivered before; None: not known yet."""
    dues: tuple[PlacedDue, ...]
    """All that is known to be placed behind where reading stands, in delivery order."""
    is_complete: bool = True
    """Whether all is known that is delivered up to where it was asked for."""
    holds: int | None = None
    """Commit sequence of the first transaction that is decided and not placed, if any."""

    def behind(self, spot: Spot) -> Reach:
        """Returns the same for a reader that stands further on."""
        return replace(self, dues=tuple(d for d in self.dues if is_behind(spot, self.home, d)))

    def passed(self, offset: int, start: Spot) -> Passed | None:
        """Returns what a reader has passed that comes from `start` to an offset, with all that is
        placed at it; None if nothing of the home is known."""
        reached = [d.due.sequence for d in self.dues if d.place <= offset]
        known = start.passed if _is_of(start.passed, self.home) else None
        if reached:
            return Passed(self.home, max(reached))
        if known is not None:
            return known
        return None if self.begun_behind is None else Passed(self.home, self.begun_behind)

    def until(self, end: Spot) -> RangePlaces:
        """Returns what is delivered up to an end.

        An end that does not say what was passed leaves out what is placed at it.
        """
        passed = end.passed
        if passed is None or not _is_of(passed, self.home):
            found = [d for d in self.dues if d.place < end.o2]
        else:
            found = [d for d in self.dues if d.due.sequence <= passed.sequence]
        return RangePlaces(self.home, tuple(found))


def settled(reach: Mapping[TopicPartition, Reach], starts: Vector, ends: Vector) -> Vector:
    """Returns ends that say what is passed there, no further than what is known.

    A partition without new offsets moves, too, if something is placed at its end. One in which
    nothing comes keeps its spot unchanged.
    """
    result: dict[TopicPartition, Spot] = dict(ends)
    for key, found in reach.items():
        start = starts.get(key, Spot(0, fresh=True))
        o2 = max(start.o2, min(ends[key].o2, found.horizon))
        passed = found.passed(o2, start)
        if o2 > start.o2:
            result[key] = Spot(o2, passed=passed)
        elif any(each.place <= o2 for each in found.dues):
            result[key] = replace(start, passed=passed, fresh=False, stood=None)
        else:
            result[key] = start
    return result


def is_behind(spot: Spot, home: Journal, each: PlacedDue) -> bool:
    """Returns whether a reader that stands at a spot has not delivered what is placed."""
    passed = spot.passed
    if passed is None or not _is_of(passed, home):
        return each.place >= spot.o2
    return each.due.sequence > passed.sequence


def _is_of(passed: Passed | None, home: Journal) -> bool:
    return passed is not None and passed.home == home


class PlacedRangeInput:
    """Feeds the records of a range to a buffer, and ends transactions at their places."""

    def __init__(self, buffer: PlacedBuffer, places: RangePlaces, ended: set[int]) -> None:
        """Begins where the buffer begins.

        Args:
            buffer: takes what is fed.
            places: what is placed in the range.
            ended: gets the BEGINs of what was ended: what comes of it later is late.
        """
        self._buffer = buffer
        self._dues = deque(places.dues)
        self._rest_at = places.rest_at
        self._ended = ended

    def feed(self, records: Sequence[Record], runs: Sequence[HeaderRun] | None = None) -> None:
        """Takes records in offset order, and the same by headers if these were compared."""
        done = 0
        while self._dues and records and self._dues[0].place <= records[-1].offset():
            place = self._dues[0].place
            stop = bisect_left(records, place, key=offset_of)
            if stop > done:
                self._buffer.feed(records[done:stop])
                done = stop
            self._buffer.skip_unseen(place)
            self._end()
        self._buffer.feed(records[done:], None if done else runs)

    def finish(self, end: int) -> None:
        """Notes that all records below an offset were fed; ends what is placed up to it."""
        while self._dues:
            self._buffer.skip_unseen(min(self._dues[0].place, end))
            self._end()
        self._buffer.skip_unseen(end)

    def _end(self) -> None:
        each, rest_at = self._dues.popleft(), self._rest_at
        self._rest_at = None
        self._buffer.end_at(each.due, each.place, rest_at)
        self._ended.add(each.due.begin)
