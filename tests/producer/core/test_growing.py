"""What a writer's topics still take before it goes over to their sidecars."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.producer.core.growing import Growing, size_of

SIZES = st.lists(st.integers(0, 9), max_size=30)


def test_a_topic_takes_what_fits_and_nothing_from_there_on() -> None:
    growing = Growing(10)
    assert growing.take("a", [4, 6]) == 2
    assert not growing.is_grown("a"), "no record went to the sidecar yet"
    assert growing.take("a", [0]) == 1
    assert growing.take("a", [1]) == 0
    assert growing.is_grown("a")


def test_a_small_record_does_not_go_back_to_the_topic() -> None:
    # Trap 135.
    growing = Growing(10)
    assert growing.take("a", [3, 8, 1]) == 1
    assert growing.take("a", [1]) == 0
    assert growing.take("a", [0, 0]) == 0


def test_each_topic_counts_for_itself() -> None:
    growing = Growing(10)
    assert growing.take("a", [11]) == 0
    assert growing.take("b", [10]) == 1
    assert growing.is_grown("a")
    assert not growing.is_grown("b")
    assert not growing.is_grown("c")


@given(SIZES, st.integers(1, 60), st.lists(st.integers(1, 5), min_size=30, max_size=30))
def test_it_does_not_matter_how_many_records_are_counted_at_once(
    sizes: list[int], min_bytes: int, shares: list[int]
) -> None:
    whole, parts = Growing(min_bytes), Growing(min_bytes)
    taken, left = 0, iter(sizes)
    for share in shares:
        some = list(islice(left, share))
        found = parts.take("a", some)
        assert found in (0, len(some)) or parts.is_grown("a")
        taken += found
    assert taken == whole.take("a", sizes)
    assert parts.is_grown("a") == whole.is_grown("a") == (sum(sizes) > min_bytes)
    assert sum(sizes[:taken]) <= min_bytes


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 9)), max_size=40),
    st.integers(1, 40),
)
def test_topic_and_then_sidecar_is_the_order_of_produce(
    written: list[tuple[str, int, int]], min_bytes: int
) -> None:
    growing = Growing(min_bytes)
    main: dict[tuple[str, int], list[int]] = {}
    aside: dict[tuple[str, int], list[int]] = {}
    for number, (topic, partition, size) in enumerate(written):
        log = main if growing.take(topic, [size]) else aside
        log.setdefault((topic, partition), []).append(number)
    for key in main.keys() | aside.keys():
        delivered = main.get(key, []) + aside.get(key, [])
        assert delivered == [n for n, (t, p, _) in enumerate(written) if (t, p) == key]
    for name in "ab":
        there = [n for (topic, _), found in main.items() if topic == name for n in found]
        assert sum(written[n][2] for n in there) <= min_bytes


@pytest.mark.parametrize(
    ("value", "key", "size"),
    [
        (None, None, 0),
        (b"", "", 0),
        (b"abc", b"k", 4),
        ("abc", "k", 4),
        ("bär", "ü", 6),
        (memoryview(b"abc"), None, 3),
        (5, object(), 0),
    ],
)
def test_sizes(value: object, key: object, size: int) -> None:
    assert size_of(value, key) == size


def test_what_is_no_utf_8_is_refused_as_librdkafka_does() -> None:
    with pytest.raises(UnicodeEncodeError):
        size_of("\ud800", None)
