"""BeforeSidecar: holds uncommitted records back until it is known that there was no sidecar then.

Readers of uncommitted records need no home, but for what lies in a sidecar and is placed: nothing
in the topic tells of that. So they follow the home where the topic has a sidecar. It may get one at
any time, and a reader that hears of it too late must not have passed a place:

The sidecar is created, then something is written to it, then that is decided, and *then* the owner
asks for the main partition's end, which becomes the place. So a record that was fetched before a
broker is asked, and told that there is no sidecar, lies below all places of what any sidecar will
have. It may be delivered, and a position behind it loses nothing. A record that was fetched after
the question waits for the next one.

Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from .buffer import PartitionBuffer
from .pending import Record, from_offset, offset_of


class BeforeSidecar:
    """The input of one partition in metadata mode whose topic has no sidecar that is known."""

    lacks_place = False
    """Whether a place is known that reading has not come to."""

    def __init__(self, topic: str, buffer: PartitionBuffer) -> None:
        """Begins where the buffer begins."""
        self.topic = topic
        self.has_sidecar = False
        """Whether a sidecar was seen: the partition is to begin anew, and to follow its home."""
        self._buffer = buffer
        self._held: list[Record] = []
        self._passes_below = 0
        self.next_offset = buffer.next_offset
        """Offset of the next record to feed."""

    def feed(self, batch: Sequence[Record]) -> None:
        """Takes in records in offset order. Ignores those below `next_offset`."""
        fresh = from_offset(batch, self.next_offset)
        if fresh:
            self._held += fresh
            self.next_offset = fresh[-1].offset() + 1
        self._pass_on()

    def skip_unseen(self, offset: int) -> None:
        """Counts everything below an offset as read: no further record there will be fed."""
        self.next_offset = max(self.next_offset, offset)
        self._pass_on()

    def told(self, below: int, *, has_sidecar: bool) -> None:
        """Takes an answer.

        Args:
            below: everything below this offset existed when it was asked.
            has_sidecar: whether there is a sidecar.
        """
        self.has_sidecar = self.has_sidecar or has_sidecar
        if not self.has_sidecar:
            self._passes_below = max(self._passes_below, below)
            self._pass_on()

    def _pass_on(self) -> None:
        count = bisect_left(self._held, self._passes_below, key=offset_of)
        if count:
            self._buffer.feed(self._held[:count])
            del self._held[:count]
        self._buffer.skip_unseen(min(self._passes_below, self.next_offset))

    @property
    def held_records(self) -> int:
        """Number of records that wait for an answer."""
        return len(self._held)
