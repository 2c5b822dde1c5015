"""Knows what the pointers of finished transactions need of sidecars: a staircase for each one.

A pointer lies in the main partition until that one's retention takes it, and until then readers
need what it names in the sidecar. So a finished transaction leaves a step: the offset of its
pointer, and the lowest offset that this names. A sidecar may be trimmed up to the lowest offset of
the steps whose pointers are still there. A step tells nothing that another one does not which has a
pointer at or above its own, and names an offset at or below. What is left rises in both: a
staircase.

A pointer may be there several times. The step has the offset of a copy that was acknowledged, and
no copy lies before the first. So it says of the first pointer that it is there for as long as it
is, and perhaps for longer. A copy behind it needs nothing: readers that can't tell it from the
first pass over it if the sidecar does not have its range (trap 93).

Steps come from COMMITTED records alone, so all that follow the journal have the same ones;
snapshots keep them. There is a bound to them, beyond which two neighbours become one that needs
what either does: more than needed, and never less. Nobody here knows which pointers are gone by
now. So the older two steps are, the sooner they become one, and what is kept too much is a part of
what is kept anyway, however long a partition has lived. Pure.

Source: PIP-31, "Transaction Index" (the reverse index by commit marker) and "Retention Cursor".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import pairwise
from operator import attrgetter
from typing import Final

from ...journal.control import TopicPartition
from ...journal.records.types import PointerStep

STEPS_MAX: Final = 64
"""Steps of one sidecar partition. More take more memory, and more room in snapshots. With fewer,
more of a sidecar is kept for longer than it is needed: where pointers are spread evenly, up to two
fifths of what is needed."""
_pointer_of: Final = attrgetter("pointer")


class Staircases:
    """The staircases of one journal partition."""

    def __init__(self) -> None:
        """Begins without a step."""
        self._steps: dict[TopicPartition, list[PointerStep]] = {}
        """Sidecar partition → its steps, rising in both offsets."""

    def replay(self, steps: Iterable[PointerStep]) -> None:
        """Adds the steps of a finished transaction, or those that a snapshot kept."""
        for step in steps:
            self._add(step)

    def _add(self, step: PointerStep) -> None:
        known = self._steps.setdefault(step.sidecar, [])
        at = bisect_left(known, step.pointer, key=_pointer_of)
        if at < len(known) and known[at].first <= step.first:
            return
        end = at + (at < len(known) and known[at].pointer == step.pointer)
        while at and known[at - 1].first >= step.first:
            at -= 1
        known[at:end] = [step]
        if len(known) > STEPS_MAX:
            known[:] = _thinned(known)

    def needed(self, sidecar: TopicPartition, main_start: int) -> PointerStep | None:
        """Returns the step that holds a sidecar partition: it is needed from its `first` on.

        Args:
            sidecar: the sidecar partition.
            main_start: offset of the main partition at which its log starts.

        Returns:
            The step, or None if no pointer at or above `main_start` needs anything.
        """
        known = self._steps.get(sidecar, [])
        at = bisect_left(known, main_start, key=_pointer_of)
        return known[at] if at < len(known) else None

    def rows(self) -> Iterator[tuple[PointerStep, ...]]:
        """Yields the steps of each sidecar partition, for a snapshot."""
        return map(tuple, self._steps.values())


def _thinned(steps: list[PointerStep]) -> list[PointerStep]:
    # Two become one where that costs little. Several do at once: all costs change with each pointer
    # that comes, and to count them takes time. Never three, whose cost nobody has counted.
    costs = [_cost(*pair, steps[-1]) for pair in pairwise(steps)]
    limit = sorted(costs)[len(costs) // 4]
    kept, joined = steps[:1], False
    for step, cost in zip(steps[1:], costs, strict=True):
        joined = cost <= limit and not joined
        if joined:
            kept[-1] = step._replace(first=kept[-1].first)
        else:
            kept.append(step)
    return kept


def _cost(lower: PointerStep, upper: PointerStep, latest: PointerStep) -> float:
    # How much more is kept if both become one, and while how much of the main partition passes:
    # each beside what is kept then, that is, what lies between here and the latest.
    more = (upper.first - lower.first) / (latest.first - lower.first)
    return more * (upper.pointer - lower.pointer) / (latest.pointer - lower.pointer)
