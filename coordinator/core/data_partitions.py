"""Checks the data partitions that requests name against what is known of their topics. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ...journal.control import BranchRange, TopicPartition
from ...journal.errors import RequestTooLargeError, UnknownTopicError
from ...journal.records.types import DataPartition, PartitionWrites
from .decision import TopicFacts
from .transactions import TransactionMetadata

BRANCH_MARKER_BYTES: Final = 40
"""Upper bound of what one branch adds to a marker.

Too low, and a commit would be decided whose marker the topic refuses; too high refuses good ones.
"""
MARKER_FIXED_BYTES: Final = 1536
"""Upper bound of a marker without its branches. Its partition list takes up to 1 KiB."""

Topics = Mapping[str, TopicFacts]
"""What is known of data topics, by topic name."""


def resolve(
    topics: Topics, partitions: Iterable[TopicPartition], began_ms: int
) -> tuple[DataPartition, ...]:
    """Ties partitions to the ids of the topics that had these names when a transaction began.

    If a topic was deleted and created anew since, the transaction's records may be in either: a
    marker that names the former one stops no reader that finds none (decision 0016).

    Args:
        topics: what is known of them.
        partitions: the data partitions that a request names.
        began_ms: when the transaction began, in monotonic ms.

    Raises:
        UnknownTopicError: there is no such partition.
    """
    resolved = []
    for topic, partition in partitions:
        if not exists(topics, (topic, partition)):
            raise UnknownTopicError(f"there is no partition {topic}[{partition}]")
        resolved.append(DataPartition(topic, partition, topics[topic].id_at(began_ms)))
    return tuple(resolved)


def exists(topics: Topics, partition: TopicPartition) -> bool:
    """Returns whether the partition exists, as far as is known."""
    facts = topics.get(partition[0])
    return facts is not None and 0 <= partition[1] < facts.partition_count


def added_to(
    topics: Topics,
    transaction: TransactionMetadata,
    named: Iterable[TopicPartition],
) -> tuple[DataPartition, ...]:
    """Returns those partitions of `named` that are not registered yet.

    Raises:
        UnknownTopicError: there is no such partition.
    """
    new = (p for p in named if p not in transaction.partitions)
    return resolve(topics, new, transaction.began_ms)


def writes_of(
    topics: Topics,
    transaction: TransactionMetadata,
    named: Mapping[TopicPartition, tuple[BranchRange, ...]],
) -> tuple[PartitionWrites, ...]:
    """Returns what a commit decides for each data partition.

    Covers the partitions registered before and those that the commit names (decision 0004).

    Raises:
        RequestTooLargeError: a marker would name too many branches.
        UnknownTopicError: there is no such partition.
    """
    check_markers_fit(topics, named)
    added = added_to(topics, transaction, named)
    partitions = (*transaction.partitions.values(), *added)
    return tuple(PartitionWrites(p, named.get(p.key, ())) for p in partitions)


def check_markers_fit(
    topics: Topics, writes: Mapping[TopicPartition, tuple[BranchRange, ...]]
) -> None:
    """Refuses a commit whose marker would be larger than its topic takes.

    Called before the decision, for the marker of a decided commit must be written.

    Raises:
        RequestTooLargeError: the marker would name too many branches.
    """
    for (topic, partition), branches in writes.items():
        facts = topics.get(topic)
        size = MARKER_FIXED_BYTES + BRANCH_MARKER_BYTES * len(branches)
        if facts is not None and size > facts.record_max_bytes:
            raise RequestTooLargeError(
                f"the marker of {topic}[{partition}] would name {len(branches)} branches, up"
                f" to {size} bytes; the topic takes {facts.record_max_bytes}"
                " (max.message.bytes)"
            )
