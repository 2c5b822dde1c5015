"""Which snapshot a journal may be trimmed to, so that readers of what is left of the data find all.

A reader of data needs the places of all transactions whose records it may meet. One in serial order
needs the decisions that hand something over, too: no marker tells of them, and only the home's
journal tells of their places. So the journal is trimmed to a snapshot only when the log of each
partition starts at or behind its last place there, and behind what was handed over there (R14).
Data may be kept for weeks, and a snapshot is taken every few minutes. So one snapshot at a time
waits, the *fence*. When the data has passed it, the journal is trimmed to it, and the newest
snapshot waits in its place. That keeps at most twice what is needed, and a snapshot says two
numbers of each partition: its last place, and the one at the fence. Where something in the sidecar
is placed at the last place, the log must start behind it: see `snapshots.last_needed`.

Each snapshot states the fence that waited when it was taken. One that states none is the fence
itself, from its last chunk on. So a new owner knows the fence from the newest snapshot. Where
nothing was ever placed no snapshot waits, and none states a fence.

Pure: the caller asks for the starts of the partitions' logs.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...journal.places import PartitionId
from ...journal.records.snapshots import LastNeeded
from ...journal.records.types import NO_FENCE, Snapshot
from .places import Fence


class Fences:
    """The fence of one journal partition, as its snapshots say it."""

    def __init__(self) -> None:
        """Begins before the first snapshot."""
        self.trim_to = 0
        """As far as places go, the journal may be trimmed to this offset, and never further. Only
        what an owner has seen of the data's logs raises it while a fence waits."""
        self.waiting: Fence | None = None
        """The snapshot to which the journal is trimmed next; None: none waits for data."""
        self._newest: Fence | None = None
        self._first = -1
        """First chunk of the snapshot that is being read."""
        self._last = LastNeeded()
        self._stated: dict[PartitionId, int] = {}

    def replay(self, chunk: Snapshot) -> None:
        """Takes a valid chunk of a snapshot. The snapshot counts from its last chunk on."""
        if chunk.first != self._first:
            self._first, self._last, self._stated = chunk.first, LastNeeded(), {}
        self._last.add(chunk)
        self._stated.update(chunk.fence_places)
        if not chunk.last:
            return
        self._newest = Fence(chunk.first, self._last.found())
        self.waiting = self._newest if chunk.fence == NO_FENCE else Fence(chunk.fence, self._stated)
        self._first, self._last, self._stated = -1, LastNeeded(), {}
        self.advance({})

    def partitions(self) -> list[PartitionId]:
        """Returns the partitions for whose log start the fence waits: what to ask for."""
        return [] if self.waiting is None else list(self.waiting.last)

    def advance(self, log_starts: Mapping[PartitionId, int]) -> None:
        """Moves on to the newest snapshot if the data has passed the fence.

        Args:
            log_starts: first offset of each partition's log; `GONE` if its topic was deleted. One
                that is not known must be left out.
        """
        while self.waiting is not None and self.waiting.passed(log_starts):
            passed, newest = self.waiting.offset, self._newest
            self.trim_to = max(self.trim_to, passed)
            self.waiting = newest if newest is not None and newest.offset > passed else None
