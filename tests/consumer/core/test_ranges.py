"""`Numbers` tells sequence numbers that were met from new ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from logtx.consumer.core.ranges import Numbers


@given(st.lists(st.integers(0, 12), max_size=40))
def test_numbers_are_known_as_in_a_set(numbers: list[int]) -> None:
    known: set[int] = set()
    found = Numbers()
    for number in numbers:
        assert found.add(number) is (number not in known)
        known.add(number)


def test_numbers_in_a_row_take_no_room() -> None:
    found = Numbers()
    # Each batch of ten comes twice, as from a producer without idempotence that sends it again.
    for start in range(5, 10_005, 10):
        assert all(found.add(number) for number in range(start, start + 10))
        assert not any(found.add(number) for number in range(start, start + 10))
    assert not found._others
    assert found.add(20_000)
    assert all(found.add(number) for number in range(10_005, 20_000))
    assert not found._others
    assert not found.add(20_000)
