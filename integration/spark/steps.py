"""Steps that a Spark job commits with its output, and their form as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...journal.position import Place, Position
from ...journal.records.types import OffsetStep
from .vector import passed_from_json, passed_to_json


def query_group(query_id: str | None) -> str | None:
    """Returns the name of a streaming query as consumer group and ``transactional.id``, or None."""
    return None if query_id is None else f"spark-{query_id}"


def steps_to_json(steps: Iterable[OffsetStep]) -> list[Any]:
    """Returns the steps in types for JSON, for another process."""
    return [
        [
            s.topic,
            s.partition,
            s.from_place
            and [s.from_place.o2, s.from_place.o3, passed_to_json(s.from_place.passed)],
            [s.to.o1, s.to.o2, s.to.o3, passed_to_json(s.to.passed), s.to.topic_id],
        ]
        for s in steps
    ]


def steps_from_json(steps: Iterable[Any]) -> list[OffsetStep]:
    """Restores the result of `steps_to_json`."""
    return [
        OffsetStep(topic, partition, place and _place(*place), _position(*to))
        for topic, partition, place, to in steps
    ]


def _place(o2: int, o3: int, passed: list[int] | None) -> Place:
    return Place(o2, o3, passed_from_json(passed))


def _position(o1: int, o2: int, o3: int, passed: list[int] | None, topic_id: str) -> Position:
    return Position(o1=o1, o2=o2, o3=o3, passed=passed_from_json(passed), topic_id=topic_id)
