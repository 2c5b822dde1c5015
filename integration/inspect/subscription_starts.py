"""Finds where the partitions of a subscription are to begin anew: what a reset would do."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ...journal.control import TopicPartition
from ...journal.errors import ConfigError, UnknownSubscriptionError
from ...journal.logs.interface import Log
from ...journal.places import PartitionId
from ...journal.spans import MessageId
from .subscriptions import PartitionRow, SubscriptionRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a reset asks for. One of these is given."""

    earliest: bool = False
    """Where the log starts."""
    latest: bool = False
    """Where it ends."""
    time_ms: int | None = None
    """The first record that was stamped then or later, in ms since 1970."""
    offset: int | None = None
    """This offset, or where the log starts, if that is behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStart:
    """Where one partition begins anew."""

    partition: PartitionId
    now: MessageId
    """All before it is deleted by now."""
    then: int
    depth: int
    """Offsets that are not acknowledged by now."""
    depth_then: int


def new_starts(
    log: Log,
    row: SubscriptionRow,
    target: Target,
    where: Sequence[tuple[str, int | None]] = (),
    *,
    timeout_s: float,
) -> list[NewStart]:
    """Returns where partitions of a subscription would begin, in their order.

    Partitions whose topic is no more are left out: nobody can read them.

    Args:
        log: the log that holds the topics.
        row: the subscription.
        target: what is asked for.
        where: (topic, partition, or None for all that the topic has); empty: all partitions.
        timeout_s: bound of the question to the brokers, in seconds.

    Raises:
        UnknownSubscriptionError: the subscription has no such topic or partition.
        ConfigError: an offset lies beyond a partition's end, or no broker tells that.
    """
    parts = list(_selected(row, where))
    if not parts:
        raise ConfigError(
            f"subscription {row.info.group!r} has no partition of a topic that exists: delete it"
            f" (logtx subscription delete {row.info.group}), or wait for a consumer"
        )
    unknown = [part for part in parts if part.log_start is None or part.end is None]
    if unknown:
        raise ConfigError(f"no broker tells where {_name(unknown[0])} starts and ends: try again")
    at: dict[TopicPartition, int | None] = {}
    if target.time_ms is not None:
        keys = {part.info.partition.key: target.time_ms for part in parts}
        at = log.offsets_for_times(keys, timeout_s=timeout_s)
    return [_new_start(part, target, at.get(part.info.partition.key)) for part in parts]


def _selected(
    row: SubscriptionRow, where: Collection[tuple[str, int | None]]
) -> Iterator[PartitionRow]:
    parts = [part for part in row.partitions if not part.info.former]
    keys = {part.info.partition.key for part in parts}
    for topic, number in where:
        if not any(topic == t and number in (None, p) for t, p in keys):
            named = topic if number is None else f"{topic}[{number}]"
            raise UnknownSubscriptionError(
                f"subscription {row.info.group!r} has no {named}: logtx subscription show"
                f" {row.info.group} lists what it has"
            )
    for part in parts:
        topic, number = part.info.partition.key
        if not where or (topic, None) in where or (topic, number) in where:
            yield part


def _new_start(part: PartitionRow, target: Target, at_time: int | None) -> NewStart:
    start, end = part.log_start, part.end
    assert start is not None, "its log is known"
    assert end is not None, "its log is known"
    if target.earliest:
        then = start
    elif target.offset is not None:
        if target.offset > end:
            raise ConfigError(
                f"{_name(part)} ends at {end}, and has no offset {target.offset} yet: name an"
                " offset up to its end, or single partitions with --topic"
            )
        then = target.offset
    else:
        then = end if target.latest or at_time is None else at_time
    then = max(then, start)
    return NewStart(
        partition=part.info.partition,
        now=part.info.start,
        then=then,
        depth=part.info.depth(end),
        depth_then=max(0, end - then),
    )


def _name(part: PartitionRow) -> str:
    topic, number = part.info.partition.key
    return f"{topic}[{number}]"
