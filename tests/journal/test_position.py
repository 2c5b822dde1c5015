"""Positions: what survives the metadata of a Kafka group offset, and what a stranger's means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.journal.errors import ConsumerError
from logtx.journal.position import _ENTRY, POSITION_MAX_CHARS, Passed, Place, Position

OFFSET = st.integers(0, 2**63 - 1)
JOURNAL = st.tuples(st.integers(0, 2**16 - 1), st.integers(0, 2**48 - 1))
PASSED = st.builds(Passed, JOURNAL, OFFSET, OFFSET)


@st.composite
def positions(draw: st.DrawFn) -> Position:
    o1 = draw(st.integers(0, 2**62))
    return Position(
        o1=o1,
        o2=o1 + draw(st.integers(0, 2**62)),
        o3=draw(OFFSET),
        met=draw(st.dictionaries(JOURNAL, OFFSET, max_size=5)),
        delivered=draw(st.dictionaries(JOURNAL, OFFSET, max_size=5)),
        passed=draw(st.none() | PASSED),
    )


def test_golden() -> None:
    position = Position(
        o1=7,
        o2=12,
        o3=2,
        met={(0, 0x9F3AC1D2E4B7): 17042, (3, 1): 5},
        delivered={(3, 1): 4},
    )
    text = "logtx/1 12 2 !3-000000000001=4 0-9f3ac1d2e4b7=17042 3-000000000001=5"
    assert position.to_metadata() == text
    assert Position.from_metadata(7, text) == position
    assert position.place == Place(12, 2)


@pytest.mark.parametrize(("taken", "counted"), [(0, ""), (5, "+5")])
def test_golden_of_what_was_passed(taken: int, counted: str) -> None:
    passed = Passed((3, 0x9F3AC1D2E4B7), 1234, taken)
    position = Position(o1=7, o2=12, met={(3, 1): 5}, delivered={(3, 1): 4}, passed=passed)
    entry = f"@3-9f3ac1d2e4b7=1234{counted}"
    text = f"logtx/1 12 0 {entry} !3-000000000001=4 3-000000000001=5"
    assert position.to_metadata() == text
    assert Position.from_metadata(7, text) == position
    assert position.place == Place(12, 0, passed)
    # This pattern is the version's before: it must take the entry for none that it knows.
    assert not _ENTRY.fullmatch(entry)


@pytest.mark.parametrize("entry", ["@3-1=4", "@3-000000000001=4+", "@3-000000000001=-1", "@", "@x"])
def test_an_entry_that_nobody_writes_says_nothing(entry: str) -> None:
    assert Position.from_metadata(7, f"logtx/1 12 2 {entry}") == Position(o1=7, o2=12, o3=2)


@given(positions())
def test_round_trip(position: Position) -> None:
    assert Position.from_metadata(position.o1, position.to_metadata()) == position


def test_metadata_is_ascii_and_bounded_and_keeps_the_highest_sequences() -> None:
    met = {(n, 2**48 - 1): 2**62 + n for n in range(1000)}
    position = Position(o1=1, o2=2**63 - 1, o3=2**63 - 1, met=met)
    text = position.to_metadata()
    assert POSITION_MAX_CHARS - 50 < len(text) <= POSITION_MAX_CHARS
    assert text.isascii()
    back = Position.from_metadata(1, text)
    assert back.place == position.place
    assert back.met == dict(sorted(met.items())[-len(back.met) :])


@pytest.mark.parametrize(
    "metadata",
    [None, "", "text", "logtx/1", "logtx/1 5", "logtx/1 x y", "logtx/2 5 0", "logtx/1 ² 0"],
)
def test_an_offset_of_a_plain_consumer_has_nothing_pending(metadata: str | None) -> None:
    assert Position.from_metadata(9, metadata) == Position.at(9)


@given(st.text(max_size=60))
def test_no_text_crashes(text: str) -> None:
    for metadata in (text, f"logtx/1 {text}", f"logtx/1 5 0 {text}"):
        position = Position.from_metadata(3, metadata)
        assert position.o1 == 3
        assert position.o2 >= 3


def test_o2_never_lies_below_o1() -> None:
    # Kafka's own tools may reset o1 and leave the metadata, or drop it.
    assert Position.from_metadata(50, "logtx/1 12 2").o2 == 50


def test_what_was_delivered_is_never_left_out_of_the_metadata() -> None:
    full = {(n, 1 << 40): 2**62 + n for n in range(500)}
    some = {(n, 2 << 40): n for n in range(60)}
    passed = Passed((1, 2), 2**62, 2**62)
    position = Position(o1=1, o2=2, met=full, delivered=some, passed=passed)
    text = position.to_metadata()
    assert POSITION_MAX_CHARS - 40 < len(text) <= POSITION_MAX_CHARS
    back = Position.from_metadata(1, text)
    assert (back.delivered, back.passed) == (some, passed)
    assert 0 < len(back.met) < 500
    with pytest.raises(ConsumerError, match="500 journals"):
        Position(o1=1, o2=2, delivered=full).to_metadata()
