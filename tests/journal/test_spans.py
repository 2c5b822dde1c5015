"""Spans compared with a naive set of places."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.journal.spans import AT_OFFSET, ORIGIN, MessageId, Span, SpanMap

PLACES = [
    MessageId(offset, sequence, index)
    for offset in range(4)
    for sequence in (3, 7, AT_OFFSET)
    for index in range(2)
]
"""All places of a small partition, in order."""
BOUNDS = [*PLACES, MessageId(4)]
SPANS = st.tuples(st.integers(0, len(PLACES) - 1), st.integers(1, 5)).map(
    lambda t: Span(BOUNDS[t[0]], BOUNDS[min(t[0] + t[1], len(PLACES))])
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "remove"]), SPANS, st.sampled_from("xy")), max_size=12
)
Naive = dict[MessageId, str]


def places(span: Span) -> list[MessageId]:
    return [p for p in PLACES if span.lo <= p < span.hi]


def told(rows: list[tuple[Span, str]]) -> Naive:
    return {p: value for span, value in rows for p in places(span)}


def build(steps: list[tuple[str, Span, str]]) -> tuple[SpanMap[str], Naive]:
    spans: SpanMap[str] = SpanMap()
    naive: Naive = {}
    for what, span, value in steps:
        if what == "put":
            spans.put(span, value)
            naive.update(dict.fromkeys(places(span), value))
        else:
            gone = {p: naive.pop(p) for p in places(span) if p in naive}
            assert told(spans.remove(span)) == gone
    return spans, naive


def test_the_order_is_that_of_delivery() -> None:
    """What is placed at an offset comes before what stands at it, by sequence, then by index."""
    assert sorted(set(PLACES)) == PLACES
    assert PLACES[0] >= ORIGIN
    assert all(a.behind <= b for a, b in pairwise(PLACES))


@given(STEPS)
def test_a_map_holds_what_a_naive_one_holds(steps: list[tuple[str, Span, str]]) -> None:
    spans, naive = build(steps)
    rows = list(spans.rows())
    assert told(rows) == naive
    assert len(rows) == len(spans)
    assert spans.end == (rows[-1][0].hi if rows else ORIGIN)


@given(STEPS)
def test_rows_are_disjoint_and_neighbours_of_one_value_are_one(
    steps: list[tuple[str, Span, str]],
) -> None:
    rows = list(build(steps)[0].rows())
    for (before, value), (after, other) in pairwise(rows):
        assert before.lo < before.hi <= after.lo < after.hi
        assert before.hi < after.lo or value != other


@given(STEPS, SPANS)
def test_what_a_span_holds_and_what_it_lacks(
    steps: list[tuple[str, Span, str]], span: Span
) -> None:
    spans, naive = build(steps)
    assert told(spans.within(span)) == {p: naive[p] for p in places(span) if p in naive}
    lacks = [p for free in spans.free(span) for p in places(free)]
    assert lacks == [p for p in places(span) if p not in naive]
    assert spans.touches(span) == any(p in naive for p in places(span))


@given(STEPS, st.sampled_from(PLACES))
def test_what_one_place_holds(steps: list[tuple[str, Span, str]], place: MessageId) -> None:
    spans, naive = build(steps)
    assert spans.at(place) == naive.get(place)
    holding = [span for span, _ in spans.rows() if span.lo <= place < span.hi]
    assert spans.skip(place) == (holding[0].hi if holding else place)
    behind = [span.lo for span, _ in spans.rows() if span.lo > place]
    assert spans.next_after(place) == min(behind, default=None)


@pytest.mark.parametrize(
    "span",
    [
        Span(ORIGIN, ORIGIN),
        Span(MessageId(2), MessageId(1)),
        Span(MessageId(-1), MessageId(1)),
        Span(ORIGIN, MessageId(1, AT_OFFSET + 1)),
        Span(ORIGIN, MessageId(1, 0, -1)),
        Span(ORIGIN, MessageId(2**62)),
    ],
)
def test_a_span_that_nobody_could_mean_is_refused(span: Span) -> None:
    with pytest.raises(ValueError, match=r"place|empty"):
        span.check()


def test_work_in_order_is_one_span() -> None:
    spans: SpanMap[bool] = SpanMap()
    at = ORIGIN
    for offset in range(0, 1_000, 3):  # gaps: what a message stands behind is its own
        behind = MessageId(offset, AT_OFFSET).behind
        spans.put(Span(at, behind), True)
        at = behind
    assert len(spans) == 1
