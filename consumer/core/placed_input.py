"""PlacedInput: holds a partition's records back until it is known what is placed before them.

It stands in front of a `PlacedBuffer`. The shell gives it the records that it fetched and the
answers of gates; `HomeView` has what the home's journal says.

Why every reader passes the same on in the same order. Take a record at offset *o* that is no
transaction's of the home, and a transaction T that is placed in the partition. The record is passed
on only below the *horizon* (R7), which rises

- to each place that is read, for places only rise; and
- to *f*, when, **after** everything below *f* was known to exist, the home's end *e* was asked for,
  the journal was read up to *e*, and all that is decided below *e* with writes here is placed.

Either T was decided below *e*: then its place is known. Or it was decided later; then its owner
asked for the partition's end later still, when *o* existed, so its place is above *o*, whatever
owner it is. So the reader knows on which side of *o* each transaction stands. Those at one place
come in commit-sequence order (R8), in which places rise. The order is a function of the two logs,
and a reader from the middle sees the same suffix.

If a broker told an end that was too low, T may be placed below what was passed on. Then it comes at
once, and is counted: it is neither lost nor repeated, for positions say the sequence.

Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from ...journal.places import PartitionId
from .home_view import Due, Fate, HomeView
from .pending import Record, from_offset, offset_of
from .placed_buffer import PlacedBuffer


class Gate(NamedTuple):
    """An end of the home's journal, and what was known to exist before it was asked for."""

    frontier: int
    """Everything below this offset of the partition existed."""
    end: int
    """The home's end, asked for afterwards."""


class PlacedInput:
    """The input of one partition whose topic is in metadata mode."""

    def __init__(
        self, partition: PartitionId, view: HomeView, buffer: PlacedBuffer, ends_at: int | None
    ) -> None:
        """Begins where the buffer begins.

        Args:
            partition: the partition, which is attached to the view.
            view: what is known of the home.
            buffer: takes what is passed on.
            ends_at: offset of the mode record from which on the home writes markers again; None if
                none is known. `end_with` says so later.
        """
        self._partition = partition
        self._view = view
        self._buffer = buffer
        self._ends_at = ends_at
        self._held: list[Record] = []
        self.next_offset = buffer.next_offset
        """Offset of the next record to feed."""
        self.horizon = buffer.position().o2
        """Nothing will be placed below it."""
        self._gate: Gate | None = None
        self._looked = -1
        """What the view had read when ended transactions were dropped last."""
        self.misplaced = 0
        """Transactions delivered behind their place."""

    # ---- in -------------------------------------------------------------------------------------

    def move(self, view: HomeView) -> None:
        """Goes on with another view, which has taken over the partition of the former one."""
        self._view = view

    def feed(self, batch: Sequence[Record]) -> None:
        """Takes in records in offset order. Ignores those below `next_offset`."""
        fresh = from_offset(batch, self.next_offset)
        if fresh:
            self._held.extend(fresh)
            self.next_offset = fresh[-1].offset() + 1
        self.advance()

    def skip_unseen(self, offset: int) -> None:
        """Counts everything below an offset as read: no further record there will be fed."""
        self.next_offset = max(self.next_offset, offset)
        self.advance()

    def end_with(self, offset: int) -> None:
        """Notes the offset of a mode record from which on the home writes markers again."""
        self._ends_at = offset

    def frontier(self) -> int | None:
        """Returns what a gate is to be asked for: the offset up to which records exist and wait.

        None if none wait, or a gate was asked already. The shell asks for the home's end *after*
        this call, and calls `gate` with both. It may ask for a higher frontier that it knows, such
        as the high watermark of a fetch.
        """
        if self._gate is not None:
            return None
        waits = self.next_offset > self.horizon or self._buffer.begun_behind is None
        return max(self.next_offset, self.horizon) if waits else None

    def gate(self, frontier: int, end: int) -> None:
        """Takes the home's end, asked for after everything below `frontier` was known to exist."""
        self._gate = Gate(frontier, end)
        self.advance()

    def advance(self) -> None:
        """Passes on what may be. To be called when the view has read on, too."""
        view, buffer, partition = self._view, self._buffer, self._partition
        gate = self._gate
        if gate is not None and view.is_settled(partition, gate.end):
            self.horizon = max(self.horizon, gate.frontier)
            view.settle_start(partition, gate.end)
            self._gate = None
        self.horizon = max(self.horizon, view.last_place(partition))
        if buffer.begun_behind is None:
            buffer.begun_behind = view.passed(partition)
        if not buffer.holds_back and buffer.begun_behind is not None:
            self.horizon = max(self.horizon, self.next_offset)
        for txid in view.take_aborted(partition):
            buffer.drop(txid)
        if view.next_offset != self._looked:
            self._looked = view.next_offset
            buffer.drop_ended()
        while True:
            following = view.next_place(partition)
            if following is not None and self._is_behind_end(following[0]):
                following = None
            stop = self.horizon if following is None else min(self.horizon, following[0])
            self._feed_below(stop)
            if following is None or self.next_offset < following[0]:
                return
            place, due = following
            is_met = buffer.is_met(due)
            if not is_met:
                self.misplaced += not buffer.end_at(due, place) and buffer.holds_back
            view.pass_over(partition)
            if is_met:
                buffer.drop_ended()

    def _is_behind_end(self, place: int) -> bool:
        # The topic was switched again since: that place is for who comes to the next mode record.
        return self._ends_at is not None and place > self._ends_at

    def _feed_below(self, stop: int) -> None:
        if self._ends_at is not None:
            stop = min(stop, self._ends_at)
        held = self._held
        count = bisect_left(held, stop, key=offset_of)
        if count:
            self._buffer.feed(held[:count])
            del held[:count]
        self._buffer.skip_unseen(min(stop, self.next_offset))

    # ---- what the shell asks --------------------------------------------------------------------

    @property
    def held_records(self) -> int:
        """Number of records that wait for the horizon."""
        return len(self._held)

    @property
    def fills_up(self) -> bool:
        """Whether so many places wait for data that reading the journal should pause."""
        return self._view.is_full(self._partition)

    @property
    def lacks_place(self) -> bool:
        """Whether a place is known that reading has not come to."""
        following = self._view.next_place(self._partition)
        if following is None or self._is_behind_end(following[0]):
            return False
        return self.next_offset < following[0]

    @property
    def is_over(self) -> bool:
        """Whether everything before the mode record is passed on. The reader then goes on behind it
        without a home, from the buffer's position, when that comes to the mode record."""
        return self._ends_at is not None and self._ends_at < min(self.horizon, self.next_offset)

    @property
    def has_gate(self) -> bool:
        """Whether a gate was asked that is not passed yet."""
        return self._gate is not None

    def waits_for_place(self) -> bool:
        """Returns whether a gate waits for a transaction that is decided and not placed."""
        gate = self._gate
        return (
            gate is not None
            and self._view.next_offset >= gate.end
            and not self._view.is_settled(self._partition, gate.end)
        )

    def placing(self) -> Due | None:
        """Returns the first transaction that is decided here and not placed, if any."""
        return self._view.first_waiting(self._partition)

    def fate(self, begin: int) -> Fate:
        """Returns what is known here of a TxId of the home, by the offset of its BEGIN."""
        return self._view.fate(self._partition, begin)


def has_ended(view: HomeView, partition: PartitionId, begin: int) -> bool:
    """Returns whether nothing of a TxId of the home is to be delivered in the partition any more
    (R9, R13): what `PlacedBuffer` asks."""
    return view.fate(partition, begin) is Fate.ENDED
