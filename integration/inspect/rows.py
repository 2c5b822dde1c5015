"""Committed input offsets as rows, for tables, JSON and DataFrames. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

BATCH_TOPIC: Final = "micro-batch"
"""Stands for a topic in the IOV of a streaming query; its offset is the last committed batch."""


class IovRow(NamedTuple):
    """A consumer group's committed place in one partition."""

    group: str
    topic: str
    partition: int
    offset: int
    """Everything that ended below is consumed."""
    records: int
    """And as many records of the transaction that ends at `offset`."""
    txid: str
    """The transaction that committed the group's IOV last."""
    commit_sequence: int
    committed_ms: int | None
    """When that was decided; None where the journal was trimmed since."""
    lag: int | None
    """Offsets behind the partition's end; None where there is no such topic any more."""


class StepRow(NamedTuple):
    """One step of a group in one partition, as a transaction committed it."""

    group: str
    topic: str
    partition: int
    from_offset: int | None
    """None: nothing was committed before."""
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
