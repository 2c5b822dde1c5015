"""Spark's offsets: text and back, limits, and the IOV entries of a range."""

from __future__ import annotations

import json

import pytest

from logtx.consumer.range_reader.spot import Spot
from logtx.integration.spark.identity import input_end
from logtx.integration.spark.steps import steps_from_json, steps_to_json
from logtx.integration.spark.vector import (
    SourceOffset,
    from_offsets,
    moved,
    steps_between,
    to_offsets,
)
from logtx.journal.errors import ConfigError
from logtx.journal.position import Passed, Place, Position
from logtx.journal.records.types import OffsetStep

A, B = ("a", 0), ("b", 11)


def test_text_and_back() -> None:
    vector = {B: Spot(5, 2, 3), A: Spot(7), ("a", 1): Spot(0, fresh=True, stood=Place(4, 1))}
    ids = {"b": "2", "a": "1"}
    for began, gone in ((None, frozenset("b")), ({A: Spot(3)}, frozenset[str]())):
        offset = SourceOffset(vector, ids, began, gone)
        text = json.dumps(to_offsets(offset))
        assert from_offsets(json.loads(text)) == offset
        turned = dict(reversed(vector.items())), dict(reversed(ids.items()))
        assert json.dumps(to_offsets(SourceOffset(*turned, began, gone))) == text


@pytest.mark.parametrize("stood", [None, Place(4, 1), Place(4, 1, Passed((0, 7), 3))])
@pytest.mark.parametrize("passed", [None, Passed((2, 2**47), 2**40), Passed((0, 7), 5, 2)])
def test_what_was_passed_of_a_home(passed: Passed | None, stood: Place | None) -> None:
    spot = Spot(5, 0, 3, stood=stood, passed=passed)
    told = to_offsets(SourceOffset({A: Spot(7), B: spot}))
    says = passed is not None or (stood is not None and stood.passed is not None)
    assert told["version"] == (3 if says else 2), "an older program reads what it can read right"
    assert from_offsets(json.loads(json.dumps(told))).places == {A: Spot(7), B: spot}
    assert input_end("v1\n{}\n" + json.dumps(told)) == 12, "sequences are no offsets"


def test_steps_say_what_was_passed() -> None:
    before, after = Passed((0, 7), 5, 2), Passed((0, 7), 9)
    steps = steps_between({A: Spot(5, passed=before)}, {A: Spot(5, passed=after)})
    to = Position(o1=5, o2=5, passed=after)
    assert steps == [OffsetStep("a", 0, Place(5, 0, before), to)]
    assert steps_from_json(json.loads(json.dumps(steps_to_json(steps)))) == steps


def test_another_sources_offsets_are_refused() -> None:
    with pytest.raises(ConfigError, match="version 2"):
        from_offsets({"a": {"0": 1}})


def test_a_limit_is_shared_and_everybody_goes_on() -> None:
    start = {A: Spot(0), B: Spot(10)}
    assert moved(start, {A: 1_000, B: 20}, 100) == {A: Spot(99), B: Spot(11)}
    assert moved(start, {A: 1_000, B: 20}, None) == {A: Spot(1_000), B: Spot(20)}
    assert moved(start, {A: 1_000, B: 10}, 1) == {A: Spot(1), B: Spot(10)}


def test_what_did_not_move_keeps_its_spot() -> None:
    start = {A: Spot(5, 2, 1), B: Spot(0, fresh=True)}
    assert moved(start, {A: 5, B: 0}, None) == start
    assert steps_between(start, start) == []


def test_a_partition_that_came_later_begins_at_its_start() -> None:
    assert moved({A: Spot(5)}, {A: 5, B: 3}, None) == {A: Spot(5), B: Spot(3)}


def test_steps_of_a_range() -> None:
    steps = steps_between({A: Spot(5, 2), B: Spot(0, fresh=True)}, {A: Spot(9), B: Spot(4)})
    assert steps == [
        OffsetStep("a", 0, Place(5, 2), Position.at(9)),
        OffsetStep("b", 11, None, Position.at(4)),
    ]
    assert steps_from_json(json.loads(json.dumps(steps_to_json(steps)))) == steps
