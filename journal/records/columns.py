"""Says in columns what a decision accepts: for each topic one array of partitions, one of offsets.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from ..control import RangeColumns
from .types import UNKNOWN_OFFSET, PartitionWrites


class TopicColumns(NamedTuple):
    """What was written to some partitions of a topic."""

    topic: str
    topic_id: str
    partitions: Sequence[int]
    registered: Sequence[int]
    """`DataPartition.first_offset` of each partition; empty where none is known."""
    ranges: RangeColumns


def columns_by_topic(writes: Sequence[PartitionWrites]) -> list[TopicColumns]:
    """Returns writes as columns, in runs of one topic."""
    partitions = [w.partition for w in writes]
    topics = [(p.topic, p.topic_id) for p in partitions]
    if topics.count(topics[0]) == len(topics):  # nearly always
        return [_columns(*topics[0], writes)]
    return [_columns(*topic, [*found]) for topic, found in groupby(writes, _topic_of)]


def _topic_of(writes: PartitionWrites) -> tuple[str, str]:
    return writes.partition.topic, writes.partition.topic_id


def _columns(topic: str, topic_id: str, writes: Sequence[PartitionWrites]) -> TopicColumns:
    partitions = [w.partition for w in writes]
    registered = [p.first_offset for p in partitions]
    return TopicColumns(
        topic,
        topic_id,
        [p.partition for p in partitions],
        registered if max(registered) != UNKNOWN_OFFSET else [],
        RangeColumns.of([w.branches for w in writes]),
    )
