"""What filters leave to read, without Spark: never less than they let through."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from logtx.integration.spark.planning import Planner, SourceOptions
from logtx.integration.spark.pushdown import Selection
from logtx.integration.spark.source import BatchSource, Part
from logtx.integration.spark.vector import SourceOffset, Spot, to_offsets
from logtx.integration.testing import Cluster

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
WHEN_MS = round(WHEN.timestamp() * 1000)


def filter_of(name: str, column: str, value: Any = None) -> Any:
    """One of PySpark's filters."""

    @dataclass(frozen=True)
    class Filter:
        attribute: tuple[str, ...]
        value: Any

    Filter.__name__ = name
    return Filter((column,), value)


@pytest.mark.parametrize(
    ("name", "column", "value", "taken"),
    [
        ("EqualTo", "partition", 1, {("a", 1), ("b", 1)}),
        ("In", "partition", (0, 7), {("a", 0), ("b", 0)}),
        ("LessThan", "partition", 1, {("a", 0), ("b", 0)}),
        ("GreaterThanOrEqual", "partition", 1, {("a", 1), ("b", 1)}),
        ("EqualTo", "topic", "a", {("a", 0), ("a", 1)}),
        ("StringStartsWith", "topic", "b", {("b", 0), ("b", 1)}),
        ("Not", "topic", "a", None),
        ("IsNull", "partition", None, None),
        ("EqualTo", "partition", None, None),
        ("EqualTo", "key", b"a", None),
    ],
)
def test_partitions(name: str, column: str, value: Any, taken: set[Any] | None) -> None:
    everything = {(t, p) for t in "ab" for p in (0, 1)}
    selection = pickle.loads(pickle.dumps(Selection.of([filter_of(name, column, value)])))
    assert {k for k in everything if selection.takes(k)} == (everything if taken is None else taken)


@pytest.mark.parametrize(
    ("filters", "offset", "time_ms"),
    [
        ([("EqualTo", "offset", 5)], 5, None),
        ([("GreaterThan", "offset", 5), ("GreaterThanOrEqual", "offset", 9)], 9, None),
        ([("LessThan", "offset", 5), ("GreaterThan", "offset", None)], 0, None),
        ([("GreaterThan", "timestamp", WHEN)], 0, WHEN_MS - 1),
        ([("GreaterThan", "timestamp", WHEN.replace(tzinfo=None))], 0, None),
        ([("LessThan", "timestamp", WHEN)], 0, None),
    ],
)
def test_lower_bounds(filters: list[Any], offset: int, time_ms: int | None) -> None:
    selection = Selection.of(filter_of(*each) for each in filters)
    assert (selection.from_offset, selection.from_ms) == (offset, time_ms)


def test_where_reading_begins(logtx_memory_cluster: Cluster) -> None:
    cluster, topic = logtx_memory_cluster, logtx_memory_cluster.topic(2)
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}
    planner = Planner(cluster.log, SourceOptions.parse(options))
    with cluster.producer() as producer:
        for n in range(10):
            producer.produce(topic, b"x", partition=0, timestamp=WHEN_MS + n)
    start = {(topic, 0): Spot(3, 1), (topic, 1): Spot(0)}
    assert planner.selected(start, start, Selection()) == start
    assert planner.selected({}, start, Selection()) == dict.fromkeys(start, Spot(0))
    assert planner.selected(start, start, Selection(from_offset=2)) == {
        (topic, 0): start[topic, 0],
        (topic, 1): Spot(2),
    }
    since = Selection(from_ms=WHEN_MS + 6)
    assert planner.selected(start, start, since) == {(topic, 0): Spot(6)}, (
        "the other one has none so late"
    )


def test_spark_is_offered_filters_and_decides() -> None:
    reader = BatchSource(SourceOptions.parse({"bootstrap.servers": "a", "subscribe": "a"}))
    filters = [filter_of("EqualTo", "partition", 1), filter_of("EqualTo", "key", b"a")]
    assert reader.pushFilters(filters) == filters
    assert not reader._selection.takes(("a", 0))
    assert "pushFilters" not in reader.__getstate__()


def test_a_partition_that_came_after_the_start_is_read(logtx_memory_cluster: Cluster) -> None:
    cluster, topic = logtx_memory_cluster, logtx_memory_cluster.topic(2)
    with cluster.producer() as producer:
        for partition in (0, 1):
            producer.produce(topic, b"x", partition=partition)
    places = json.dumps(to_offsets(SourceOffset({(topic, 0): Spot(0)})))
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}
    reader = BatchSource(SourceOptions.parse({**given, "startingPlaces": places}))
    found = [part.range for part in reader.partitions() if isinstance(part, Part)]
    assert [(each.partition, each.start.o2, each.end) for each in found] == [(0, 0, 1), (1, 0, 1)]
