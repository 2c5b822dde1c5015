"""Remembers where in sidecars the messages of pointers lie, as far as a reader came by. Pure.

A place that stands for a pointer counts as one. Several lie at one offset, so each is named as its
messages are: by offset and sequence (trap 217).

A pointer may name a million messages, and a queue's consumer is given some of them at a time. It
goes on where it was, and not at the first one. What it is given next may as well lie before, as a
message was given back; so it goes on at the last place that lies before that, or at the first
message if it knows none (trap 165).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import Final, NamedTuple, TypeAlias

from ...journal.places import PartitionId

POINTERS_MAX: Final = 64
"""Pointers that are remembered. With fewer, a consumer that works on many large transactions side
by side reads some of them from their first message again."""
SIDES_MAX: Final = 2_000
"""Most places of a pointer, of 200 bytes each. With fewer, a message that comes again is looked for
from further away."""


class Side(NamedTuple):
    """Where in a sidecar the rest of a pointer's messages begins."""

    nth: int
    """Number of the messages before, those in the main partition among them."""
    offset: int
    """Offset in the sidecar: none of the rest lies below."""


Pointer: TypeAlias = tuple[int, int]
"""(offset, sequence) of the names of its messages."""


class Sides:
    """Places in sidecars, by pointers."""

    def __init__(self) -> None:
        """Remembers nothing."""
        self._known: OrderedDict[tuple[PartitionId, Pointer], list[Side]] = OrderedDict()
        """Those of each pointer in order; the pointer that was met last at the end."""

    def note(self, partition: PartitionId, pointer: Pointer, side: Side) -> None:
        """Notes a place of a pointer in a main partition."""
        known = self._known.setdefault((partition, pointer), [])
        self._known.move_to_end((partition, pointer))
        at = bisect_left(known, (side.nth,))
        if at == len(known) or known[at].nth != side.nth:
            known.insert(at, side)
        if len(known) > SIDES_MAX:
            del known[1::2]
        while len(self._known) > POINTERS_MAX:
            self._known.popitem(last=False)

    def before(self, partition: PartitionId, pointer: Pointer, nth: int) -> Side | None:
        """Returns the last place that is known up to the n-th message of a pointer; None: none."""
        known = self._known.get((partition, pointer), [])
        at = bisect_right(known, (nth, 2**63))
        return known[at - 1] if at else None
