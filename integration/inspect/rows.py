"""Row types of committed input offsets, for tables, JSON and DataFrames. Pure."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from ...journal.control import TopicPartition

BATCH_TOPIC: Final = "micro-batch"
"""Stands for the topic in the IOV of a streaming query; the offset is the last committed batch."""


def offsets_of_json(text: str) -> dict[TopicPartition, int]:
    """Reads offsets in the form of Kafka's connector: ``{"topic": {"0": 23, "1": -2}}``.

    Raises:
        ValueError, AttributeError, TypeError: the text does not have this form.
    """
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in json.loads(text).items()
        for partition, offset in partitions.items()
    }


class IovRow(NamedTuple):
    """A consumer group's committed position in one partition."""

    group: str
    topic: str
    partition: int
    offset: int
    """o2: every transaction and plain record that ends below it is consumed."""
    records: int
    """o3: number of records consumed of the transaction whose marker is at `offset`."""
    txid: str
    """The transaction that committed the group's IOV last."""
    commit_sequence: int
    committed_ms: int | None
    """Time of the decision, in milliseconds since 1970; None if the journal was trimmed since."""
    lag: int | None
    """Offsets behind the partition's end; None for a streaming query or a deleted topic."""


class PlaceRow(NamedTuple):
    """Where a consumer group stands in one partition of a topic."""

    topic: str
    partition: int
    offset: int | None
    """o2; None if nothing is committed there."""
    records: int
    """o3, see `IovRow`."""
    end: int | None
    """The partition's end; None for a streaming query or a deleted topic."""
    lag: int | None
    """Offsets from `offset`, or from the partition's start, to its end."""


class StepRow(NamedTuple):
    """One committed step of a group in one partition."""

    group: str
    topic: str
    partition: int
    from_offset: int | None
    """Offset before the step; None if it was the first one."""
    to_offset: int
    txid: str
    commit_sequence: int
    committed_ms: int | None
    producer_id: str


IOV_SCHEMA: Final = (
    "group string, topic string, partition int, offset bigint, records bigint, txid string, "
    "commit_sequence bigint, committed_ms bigint, lag bigint"
)
STEP_SCHEMA: Final = (
    "group string, topic string, partition int, from_offset bigint, to_offset bigint, txid string, "
    "commit_sequence bigint, committed_ms bigint, producer_id string"
)
