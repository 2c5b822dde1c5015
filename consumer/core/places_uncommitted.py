"""Uncommitted records where one home places: what lies in the sidecar comes at its place, or when
that is told.

Every record of the main partition is shown at its own offset, and waits for no place. So a place
may be told when reading has come past it. Then what lies in the sidecar comes at once, behind what
was read: nothing is promised of its order among records of the main partition. Among themselves
transactions come in the order of the home, as to every reader.

Positions say the commit sequence, as with every reader that follows a home (R10): up to there all
that is placed, and lies in the sidecar, is delivered. It is counted by what the home told and the
application got. Markers of the home don't count, as they do elsewhere: one that is read may stand
behind a place that is not told yet, and a position that passed that would lose it.

At its start a reader waits for one gate: before it is known what counts as delivered to it, no
position could say it, and a restart would leave out what is placed between (R11).

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...journal.control import Marker
from ...journal.position import Journal
from .entries import EndedTransaction, PlainRun
from .home_view import Due
from .pending import RawTxId
from .placed_buffer import PlacedBuffer, PlacedPointer, PlacedTransaction
from .uncommitted import UncommittedBuffer


class UncommittedPlacedBuffer(UncommittedBuffer, PlacedBuffer):
    """Shows each record at its offset, and what one home places, as far as it is in the sidecar."""

    holds_back = False

    def end_at(self, due: Due, place: int, rest_at: int | None = None) -> bool:
        """See `PlacedBuffer`. What has nothing in the sidecar was shown."""
        if due.aside is not None:
            return super().end_at(due, place, rest_at)
        self._passed_over = max(due.sequence, self._passed_over)
        return True

    def _placed(self, raw: RawTxId, end: Marker, offset: int) -> PlacedTransaction:
        entry = super()._placed(raw, replace(end, branches=()), offset)
        assert isinstance(entry, PlacedPointer), "something of it lies in the sidecar"
        entry.shown = sum(branch.count for branch in end.branches)
        entry.before = self._told
        return entry

    @property
    def _told(self) -> int:
        """Commit sequence up to which everything that is placed was told, or delivered before."""
        return max(self._passed_over, -1 if self.begun_behind is None else self.begun_behind)

    def _sequence(
        self, met: Mapping[Journal, int], queue: Iterable[PlainRun | EndedTransaction]
    ) -> int | None:
        del met
        if self.begun_behind is None:
            return None
        waiting = (entry.before for entry in queue if isinstance(entry, PlacedPointer))
        return min(waiting, default=self._told)
