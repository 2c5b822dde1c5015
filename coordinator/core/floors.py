"""Knows below which offset nothing may be placed, whatever end a broker tells.

A broker that was replaced as a partition's leader, and does not know it yet, tells an end of the
past (decision 26). As a place it costs order, and no record, with one exception: a place below a
marker of the same journal. Readers take a marker at or below the last commit sequence met for a
duplicate. So a reader that delivers the later transaction at its place would drop the earlier one
at its marker.

Such markers lie below the mode record of the topic, or behind it if they were decided while the
topic was being switched. So a place is never below the mode record, nor below what lanes have
written since. But what an earlier owner's lanes have written, a new owner does not know. Therefore
the first end that it takes in a partition is *proved*: by one of these,

- a place was given behind the mode record before. Places rise (R3).
- a marker or mode record of this tenure was acknowledged. It lies above all earlier ones.
- two looks at the end, the second `LOOKS_APART_MS` after the answer to the first. One at least is
  true, and no look tells more than the true end.

So the third, which takes time, is needed only for the first place of a switched partition, and only
if the owner was replaced since the switch.

Pure: the caller has the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ...journal.places import GONE, PartitionId
from ...journal.value import value
from .shard_state import ShardState

LOOKS_APART_MS: Final = 5_000
"""Shortest time between the answer to a first look and the question of the second. A former leader
that runs again hears of its successor within a second or two. A longer time delays the first place
of a partition after its owner was replaced."""


@value(frozen=True, slots=True)
class _Look:
    told_ms: int
    end: int


class Floors:
    """What one tenure knows of how far partitions reach."""

    def __init__(
        self, written: Callable[[PartitionId], int | None], apart_ms: Callable[[str], int]
    ) -> None:
        """Begins without proof.

        Args:
            written: tells the offset behind the last marker or mode record that the lanes of this
                tenure have written to a partition; None if there is none.
            apart_ms: tells how far apart two looks at a topic's ends must be.
        """
        self._written = written
        self._apart_ms = apart_ms
        self._firsts: dict[PartitionId, _Look] = {}
        """Partition → the first look at its end, and the highest end told since."""
        self._proved: dict[PartitionId, int] = {}
        """Partition → the higher end of two looks."""

    def raised(
        self, ends: Mapping[PartitionId, int], shard: ShardState, asked_ms: int, now_ms: int
    ) -> dict[PartitionId, int]:
        """Returns the ends of partitions as they may become places. Those that are missing are to
        be asked for again.

        Args:
            ends: partition → its end as a broker told it, or `GONE`.
            shard: the state of the journal partition.
            asked_ms: when the ends were asked for; monotonic.
            now_ms: when they were told.
        """
        found = {}
        for partition, end in ends.items():
            if end == GONE:
                found[partition] = GONE
                continue
            since, last = shard.modes.floor(partition), shard.places.last.get(partition, 0)
            written = self._written(partition) or 0
            # Without a mode record of its own, a partition came later: nothing was marked there.
            is_proved = not since or last > since or written >= since
            if is_proved or self._is_proved(partition, end, asked_ms, now_ms):
                found[partition] = max(end, since, written, self._proved.get(partition, 0))
        return found

    def proved(
        self, ends: Mapping[PartitionId, int], asked_ms: int, now_ms: int
    ) -> dict[PartitionId, int] | None:
        """Returns the higher of two looks at each end; None if they are to be asked for again.

        Args:
            ends: partition → its end as a broker told it. Each call must name the same ones.
            asked_ms, now_ms: see `raised`.
        """
        # Each is looked at, also behind one that is not proved.
        looks = [self._is_proved(p, end, asked_ms, now_ms) for p, end in ends.items()]
        if not all(looks):
            return None
        return {p: max(end, self._proved[p], self._written(p) or 0) for p, end in ends.items()}

    def _is_proved(self, partition: PartitionId, end: int, asked_ms: int, now_ms: int) -> bool:
        if partition in self._proved:
            return True
        first = self._firsts.get(partition, _Look(now_ms, end))
        highest = max(first.end, end)
        apart_ms = self._apart_ms(partition.topic)
        if apart_ms and asked_ms < first.told_ms + apart_ms:
            self._firsts[partition] = _Look(first.told_ms, highest)
            return False
        self._firsts.pop(partition, None)
        self._proved[partition] = highest
        return True
