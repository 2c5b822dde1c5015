"""Messages that are given out together are acknowledged as each alone would be."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from logtx.consumer.core.runs import Given, GivenRun, Run, by_partition
from logtx.journal.acks import joined
from logtx.journal.places import PartitionId
from logtx.journal.spans import AT_OFFSET, MessageId, Span

P0 = PartitionId("a", 0, "id-a")
LO = MessageId(2)


def each_of(of: GivenRun) -> list[Given]:
    """Returns the messages of a run, in order."""
    return [Given(of, n) for n in range(len(of.run))]


def run_of(offsets: list[int], first: MessageId | None = None) -> Run:
    records: list[Any] = [object() for _ in offsets]
    return Run("a", 0, records, offsets, first)


RUNS = [
    run_of([3, 4, 7, 8, 9, 20]),
    run_of([3, 4, 5, 6, 9, 10], MessageId(30, AT_OFFSET, 4)),
    run_of([3], MessageId(30, 17)),
]


@pytest.mark.parametrize("run", RUNS)
def test_some_of_a_run_are_named_as_each_alone_would_be(run: Run) -> None:
    chance = Random(1)
    given = each_of(GivenRun(P0, 1, 0, LO, run))
    for _ in range(100):
        some = [each for each in given if chance.random() < 0.6]
        chance.shuffle(some)
        assert by_partition(some) == list(joined(each.acks for each in some))
    (whole,) = by_partition(given)
    assert whole.spans == (Span(LO, run.name(len(run) - 1).behind),), "one span for all"


@pytest.mark.parametrize("run", RUNS)
def test_a_message_of_a_run_is_what_was_given(run: Run) -> None:
    lo = LO
    of = GivenRun(P0, 3, 8, LO, run)
    for number, each in enumerate(each_of(of)):
        assert isinstance(each, Given)
        assert (each.partition, each.delivery_count, each.era) == (P0, 3, 8)
        assert of.at(run.offsets[number]) == each
        assert each.record is run.records[number]
        assert each.span == Span(lo, run.name(number).behind)
        assert each.own_span == Span(run.name(number), run.name(number).behind)
        lo = each.span.hi


@pytest.mark.parametrize("run", RUNS)
def test_a_part_of_a_run_has_the_same_names(run: Run) -> None:
    names = [run.name(n) for n in range(len(run))]
    for start in range(len(run)):
        for stop in range(start + 1, len(run) + 1):
            part = run.part(start, stop)
            assert [part.name(n) for n in range(len(part))] == names[start:stop]
            assert list(part.records) == list(run.records[start:stop])
            leased = run.within(Span(names[start], names[stop - 1].behind))
            assert leased.offsets == part.offsets
    assert not run.within(Span(names[-1].behind, MessageId(1_000)))
    assert not run.within(Span(MessageId(0), names[0]))
