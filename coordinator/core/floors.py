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

A topic that is deleted and created anew has another id. A transaction that began before, or was
decided by what a broker told that is behind, names the former id; its marker states it, and goes to
whatever topic has the name. So what lanes wrote to a partition *under other ids* may lie in the
topic of today, or in another one. As a floor it could lie far too high, so it never is one. But
where it may lie above what would become the place, only looks prove the end that were asked for
after it was acknowledged (trap 296). Mostly an end is told above it, and nothing waits.

What an earlier owner wrote under other ids, a new owner does not know, and it may lie above all
earlier places. So where the name had another topic, as far as this coordinator heard (`topic_ids`
remembers it for an hour at least), nothing is proved by an earlier place, nor because the partition
came later: the first place of each partition waits once an owner was replaced. Elsewhere that would
delay places for nothing. A coordinator that heard of the former topic from nobody does not wait:
others tell it soon, and a broker would have to be behind just then (`docs/topics.md`).

Pure: the caller has the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Protocol

from ...journal.places import GONE, PartitionId
from ...journal.value import value
from .shard_state import ShardState

LOOKS_APART_MS: Final = 5_000
"""Shortest time between the answer to a first look and the question of the second. A former leader
that runs again hears of its successor within a second or two. A longer time delays the first place
of a partition after its owner was replaced."""


@value(frozen=True, slots=True)
class WrittenBeside:
    """What a tenure has written to a partition under other topic ids of the same name."""

    behind: int | None
    """The offset behind the last of it, in whichever topic; None: it may lie anywhere."""
    at_ms: int
    """When the latest of it was acknowledged; monotonic."""


class KnownWrites(Protocol):
    """What a tenure's shell knows of writes to partitions."""

    def written_to(self, partition: PartitionId) -> int | None:
        """Returns the offset behind the last marker or mode record that this tenure has written
        to a data partition under its topic id; None if it has written none."""

    def written_beside(self, partition: PartitionId) -> WrittenBeside | None:
        """Returns what this tenure has written there under other topic ids; None if nothing."""

    def had_others(self, partition: PartitionId) -> bool:
        """Returns whether another topic had the name before, as far as is known."""

    def looks_apart_ms(self, topic: str) -> int:
        """Returns how far apart two looks at a topic's ends must be."""


@value(frozen=True, slots=True)
class _Look:
    asked_ms: int
    told_ms: int
    end: int


class Floors:
    """What one tenure knows of how far partitions reach."""

    def __init__(self, known: KnownWrites) -> None:
        """Begins without proof.

        Args:
            known: what is known of writes to partitions.
        """
        self._known = known
        self._firsts: dict[PartitionId, _Look] = {}
        """Partition → the first look at its end, with the highest end told since."""
        self._proved: dict[PartitionId, _Look] = {}
        """Partition → the first of two looks, with the higher end of both."""

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
            written = self._known.written_to(partition) or 0
            # Without a mode record of its own, a partition came later: nothing was marked there.
            by_past = last > since or not since
            if by_past and self._known.had_others(partition):
                by_past = False  # An earlier owner may have marked something there since.
            after_ms = self._counts_after(partition, max(end, since, last, written))
            is_proved = after_ms is None and (by_past or (written > 0 and written >= since))
            if is_proved or self._is_proved(partition, end, asked_ms, now_ms, after_ms):
                found[partition] = max(end, since, written, self._looked(partition))
        return found

    def proved(
        self, ends: Mapping[PartitionId, int], asked_ms: int, now_ms: int
    ) -> dict[PartitionId, int] | None:
        """Returns the higher of two looks at each end; None if they are to be asked for again.

        Args:
            ends: partition → its end as a broker told it. Each call must name the same ones.
            asked_ms, now_ms: see `raised`.
        """
        written = {p: self._known.written_to(p) or 0 for p in ends}
        looks = []  # Each is looked at, also behind one that is not proved.
        for partition, end in ends.items():
            after_ms = self._counts_after(partition, max(end, written[partition]))
            looks.append(self._is_proved(partition, end, asked_ms, now_ms, after_ms))
        if not all(looks):
            return None
        return {p: max(end, written[p], self._looked(p)) for p, end in ends.items()}

    def _looked(self, partition: PartitionId) -> int:
        """Returns the higher end of two looks; 0 if there were none."""
        looked = self._proved.get(partition)
        return 0 if looked is None else looked.end

    def _counts_after(self, partition: PartitionId, place: int) -> int | None:
        """Returns from when on looks count; None if they always do.

        If something was written under another id that may lie above what would become the place,
        only later looks count. Forgets earlier ones.
        """
        beside = self._known.written_beside(partition)
        if beside is None:
            return None
        if beside.behind is not None and beside.behind <= max(place, self._looked(partition)):
            return None
        for looks in (self._firsts, self._proved):
            if partition in looks and looks[partition].asked_ms <= beside.at_ms:
                del looks[partition]
        return beside.at_ms

    def _is_proved(
        self, partition: PartitionId, end: int, asked_ms: int, now_ms: int, after_ms: int | None
    ) -> bool:
        """Takes a look, which counts if it was asked for after a time. Returns whether two looks
        prove the end."""
        if partition in self._proved:
            return True
        if after_ms is not None and asked_ms <= after_ms:
            return False
        first = self._firsts.get(partition, _Look(asked_ms, now_ms, end))
        both = replace(first, end=max(first.end, end))
        apart_ms = self._known.looks_apart_ms(partition.topic)
        if apart_ms and asked_ms < first.told_ms + apart_ms:
            self._firsts[partition] = both
            return False
        self._firsts.pop(partition, None)
        self._proved[partition] = both
        return True
