"""Reads the state of queues: what the coordinator tells, joined with what the brokers tell.

The coordinator knows what is acknowledged, and the brokers know where partitions end and how old a
record is. Each is asked at another moment, so a queue at work may show a few offsets more than it
has.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from ...coordinator.protocol.queues import SubscribedPartitionInfo, SubscriptionInfo
from ...journal.errors import LogtxError
from ...journal.logs.interface import Log
from ...journal.reader import read_records

READ_OFFSETS: Final = 1_000
"""Most offsets that are looked through for the oldest record, for compaction leaves gaps. More take
longer where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition of a subscription."""

    info: SubscribedPartitionInfo
    log_start: int | None
    """Where the log starts by now; None if nobody tells."""
    end: int | None
    oldest_ms: int | None
    """When the first record that is not acknowledged was written, in ms since 1970; None if there
    is none, or nobody tells."""

    @property
    def depth(self) -> int | None:
        """Offsets that are not acknowledged; None if the end is not known."""
        return None if self.end is None else self.info.depth(self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionRow:
    """One subscription."""

    info: SubscriptionInfo
    transaction_group: str | None
    partitions: tuple[PartitionRow, ...]

    @property
    def depth(self) -> int | None:
        """Offsets that are not acknowledged, in the partitions whose ends are known."""
        known = [row.depth for row in self.partitions if row.depth is not None]
        return sum(known) if known else None

    @property
    def oldest_ms(self) -> int | None:
        """When the first record that is not acknowledged was written."""
        return min((r.oldest_ms for r in self.partitions if r.oldest_ms is not None), default=None)

    @property
    def topics(self) -> list[str]:
        """Its topics, by name."""
        return sorted({row.info.partition.topic for row in self.partitions})


def subscription_rows(
    log: Log, found: Sequence[tuple[str | None, SubscriptionInfo]], *, timeout_s: float
) -> list[SubscriptionRow]:
    """Returns subscriptions as they are now, by name.

    Args:
        log: the log that holds their topics.
        found: (transaction group, what the coordinator knows).
        timeout_s: bound of each question to the brokers, and of all reading together, in seconds.

    Raises:
        BrokerError: no broker tells which topics there are.
    """
    keys = {part.partition.key for _, info in found for part in info.partitions if not part.former}
    starts = log.each_start_offset(keys, timeout_s=timeout_s) if keys else {}
    ends = log.each_end_offset(keys, timeout_s=timeout_s) if keys else {}
    # Asked behind: an end of a topic that was created anew is not taken for the former one's.
    topics = sorted({topic for topic, _ in keys})
    ids = log.topic_ids(topics, timeout_s=timeout_s) if topics else {}
    deadline_s = time.monotonic() + timeout_s

    def row(info: SubscribedPartitionInfo) -> PartitionRow:
        start, end = starts.get(info.partition.key), ends.get(info.partition.key)
        if not isinstance(start, int) or not isinstance(end, int) or info.former:
            return PartitionRow(info=info, log_start=None, end=None, oldest_ms=None)
        oldest_ms = None
        if info.depth(end) > 0:
            oldest_ms = _written_ms(log, info, start, end, deadline_s)
        return PartitionRow(info=info, log_start=start, end=end, oldest_ms=oldest_ms)

    return [
        SubscriptionRow(
            info=info, transaction_group=bound, partitions=tuple(map(row, info.partitions))
        )
        for bound, told in sorted(found, key=lambda each: each[1].group)
        for info in (told.as_named_now(ids),)
    ]


def _written_ms(
    log: Log, info: SubscribedPartitionInfo, log_start: int, end: int, deadline_s: float
) -> int | None:
    first = max(info.start.offset, log_start)
    left_s = deadline_s - time.monotonic()
    behind = min(end, first + READ_OFFSETS)
    if first >= behind or left_s <= 0:
        return None
    topic, partition = info.partition.key
    records = read_records(log, topic, partition, first, behind, timeout_s=left_s)
    try:
        with closing(records):
            oldest = next(records, None)
    except LogtxError:
        return None  # Retention has just taken it, or no broker tells: its age is not known.
    kind, written_ms = (TIMESTAMP_NOT_AVAILABLE, 0) if oldest is None else oldest.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE else written_ms
