"""IOV entries that a Spark job commits with its output. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...journal.position import Place, Position
from ...journal.records.types import OffsetStep


def query_group(query_id: str | None) -> str | None:
    """The consumer group, and transactional id, that stands for a streaming query."""
    return None if query_id is None else f"spark-{query_id}"


def steps_to_json(steps: Iterable[OffsetStep]) -> list[Any]:
    """For another process."""
    return [
        [
            s.topic,
            s.partition,
            s.from_place and [s.from_place.o2, s.from_place.o3],
            s.to.o1,
            s.to.o2,
        ]
        for s in steps
    ]


def steps_from_json(steps: Iterable[Any]) -> list[OffsetStep]:
    """What `steps_to_json` gave."""
    return [
        OffsetStep(topic, partition, place and Place(*place), Position(o1=o1, o2=o2))
        for topic, partition, place, o1, o2 in steps
    ]
