"""Where in sidecars the messages of pointers lie, as far as a reader came by."""

from __future__ import annotations

import random

from logtx.consumer.core import sides
from logtx.consumer.core.sides import Side, Sides
from logtx.journal.places import PartitionId
from logtx.journal.spans import AT_OFFSET

P0, P1 = (PartitionId("a", number, "id-a") for number in (0, 1))
AT5 = 5, AT_OFFSET


def test_the_last_place_before_a_message_is_told() -> None:
    known = Sides()
    for nth, offset in ((10, 40), (0, 7), (20, 90), (10, 41)):
        known.note(P0, AT5, Side(nth, offset))
    assert known.before(P0, AT5, 0) == (0, 7)
    assert known.before(P0, AT5, 9) == (0, 7)
    assert known.before(P0, AT5, 10) == (10, 40), "the first one that was noted is as good"
    assert known.before(P0, AT5, 99) == (20, 90)


def test_each_pointer_has_its_own() -> None:
    known = Sides()
    known.note(P0, AT5, Side(3, 30))
    assert known.before(P0, AT5, 2) is None
    assert known.before(P0, (6, AT_OFFSET), 3) is None
    assert known.before(P1, AT5, 3) is None
    assert known.before(P0, (5, 12), 3) is None, "placed at that offset (trap 217)"
    assert known.before(PartitionId("a", 0, "new"), AT5, 3) is None, "another topic of that name"


def test_little_is_remembered() -> None:
    known, draw = Sides(), random.Random(1)
    numbers = [*range(0, 20_000, 7)]
    draw.shuffle(numbers)
    for nth in numbers:
        known.note(P0, AT5, Side(nth, 3 * nth))
    (held,) = known._known.values()
    assert len(held) <= sides.SIDES_MAX
    assert held == sorted(held)
    for nth in range(0, 20_000, 99):
        found = known.before(P0, AT5, nth)
        assert found is not None, "the first one is kept"
        assert found == (found.nth, 3 * found.nth)
        assert nth - 100 < found.nth <= nth, "what is kept lies all over it"
    for pointer in range(2 * sides.POINTERS_MAX):
        known.note(P1, (pointer, AT_OFFSET), Side(1, 1))
    assert len(known._known) == sides.POINTERS_MAX
    assert known.before(P0, AT5, 99) is None
    assert known.before(P1, (2 * sides.POINTERS_MAX - 1, AT_OFFSET), 1) == (1, 1)
