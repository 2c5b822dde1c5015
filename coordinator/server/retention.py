"""The retention guard: aborts open transactions before the broker's retention deletes their data.

Producers of transactions that stay open report the first offset that they wrote in each partition.
Every few seconds the guard asks the log about those partitions. It warns when the data comes near
to its deletion, and aborts the transaction when it comes nearer. Atomicity does not depend on the
guard: consumers notice a torn transaction by its marker. The guard turns the loss into an abort
that the producer learns about.

Kafka deletes whole segments, the oldest first:

- by time, when the highest timestamp in a segment is older than ``retention.ms``. By default the
  clients set the timestamps (CreateTime), so the age of a transaction says nothing. Instead the
  guard asks the broker for the first record that is younger than a share of ``retention.ms``. That
  record protects its segment, and all segments behind, for the rest of ``retention.ms``. Data
  before that record may lie in the same segment and be as safe, but no client can tell: it counts
  as threatened.
- by size, when the segments behind it hold ``retention.bytes``. Kafka does not report segment sizes
  to clients, so the bytes behind the data are estimated from some records, uncompressed: too many
  rather than too few. Data is also safe while much of the log lies before it. Therefore the
  share by size is the lower of two: the estimated bytes behind the data as a share of
  ``retention.bytes``, and the part of the log that lies behind the data.

Thresholds are shares of the retention. They are measured by the coordinator's clock, but the
timestamps are not: ``retention.ms`` times (1 - threshold) must be larger than the difference of
the clocks.

Source: Transactional Messaging in Kafka, "Failure cases" (data retention).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Final

from confluent_kafka import KafkaException, Message

from ...journal.control import TopicPartition
from ...journal.errors import ConfigError, LogtxError, UnknownTopicError
from ...journal.headers import headers_of
from ...journal.logs.interface import Log
from ...journal.reader import read_records
from ...journal.records.types import UNKNOWN_OFFSET, AbortReason
from ...journal.state import State
from ...journal.txid import TxId
from ..core.shard import Shard
from ..protocol import commands

_LOG = logging.getLogger(__name__)

ASK_TIMEOUT_S: Final = 2.0
"""Bound of one question about a partition; a look asks up to six. A longer one lets a broker that
does not answer delay the look at other partitions more."""
LIMITS_MAX_AGE_S: Final = 60.0
"""How long a topic's retention settings are believed; bounds how late a change is noticed."""
UNANSWERED_PAUSE_S: Final = 60.0
"""How long a partition that did not answer is not asked again, as it would hold up the others."""
SAMPLE_RECORDS: Final = 100
"""Records read to estimate the mean size; more read more of the log at each look."""
RECORD_OVERHEAD_BYTES: Final = 70
"""Upper bound of what Kafka adds to a record that is alone in its batch."""
SLICE: Final = 1_000
"""Transactions looked at in one turn of the event loop; more stall clients longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """When the guard warns and acts."""

    warn_share: float = 0.5
    """The guard warns when data is this far on the way to its deletion, as a part of 1."""
    abort_share: float = 0.8
    """The guard aborts the transaction when its data is this far on the way."""
    interval_s: float = 5.0
    """Seconds between two looks."""

    def __post_init__(self) -> None:
        """Raises `ConfigError` for shares that make no sense."""
        if not 0 < self.warn_share <= self.abort_share <= 1:
            raise ConfigError(
                f"retention shares of {self.warn_share} (warn) and {self.abort_share} (abort):"
                " they are parts of 1, and the warning comes first"
            )


class Threat(IntEnum):
    """How near a transaction's data in one partition is to its deletion."""

    NONE = 0
    NEAR = 1
    """At or beyond the share to warn at."""
    DUE = 2
    """At or beyond the share to abort at."""
    GONE = 3
    """Some of the data is already deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A topic's retention; -1 means no limit."""

    retention_ms: int = -1
    retention_bytes: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """What the log says about a data partition."""

    start: int
    """Offset of the first record that is still there."""
    end: int
    """Offset that the next record gets."""
    warn_keeps: int | None
    """First offset with a timestamp younger than `warn_share` of the retention; None: no record has
    one."""
    abort_keeps: int | None
    """The same for `abort_share`."""
    limits: Limits
    record_bytes: float = 0.0
    """Mean size in bytes of some records from the data on; 0.0 if it was not needed."""


def assess(first_offset: int, view: PartitionView, config: RetentionConfig) -> Threat:
    """Returns how near data that begins at `first_offset` is to its deletion."""
    if first_offset < view.start:
        return Threat.GONE
    share = _size_share(first_offset, view)
    timed = view.limits.retention_ms >= 0
    if share >= config.abort_share or (timed and not _kept(first_offset, view.abort_keeps)):
        return Threat.DUE
    if share >= config.warn_share or (timed and not _kept(first_offset, view.warn_keeps)):
        return Threat.NEAR
    return Threat.NONE


def _kept(first_offset: int, keeps: int | None) -> bool:
    return keeps is not None and keeps <= first_offset


def _size_share(first_offset: int, view: PartitionView) -> float:
    limit = view.limits.retention_bytes
    if limit < 0:
        return 0.0
    by_bytes = (view.end - first_offset) * view.record_bytes / max(limit, 1)
    return min(by_bytes, _place_share(first_offset, view))


def _place_share(first_offset: int, view: PartitionView) -> float:
    """Returns which part of the log lies behind `first_offset`; 1 if the data begins the log."""
    return (view.end - first_offset) / max(view.end - view.start, 1)


@dataclass(frozen=True, slots=True)
class _Watched:
    txid: TxId
    first_offset: int


class RetentionGuard:
    """Watches the open transactions of the partitions that one coordinator serves."""

    def __init__(
        self,
        log: Log,
        shards: Callable[[], Iterable[Shard]],
        abort: Callable[[commands.AbortTransaction], None],
        config: RetentionConfig,
    ) -> None:
        """Does nothing before `run`.

        Args:
            log: the log that holds the data partitions.
            shards: returns the shards that are served now.
            abort: submits the command to its journal partition.
            config: thresholds and interval.
        """
        self._log = log
        self._shards = shards
        self._abort = abort
        self._config = config
        # Own thread: a broker that does not answer must not hold up anything else.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="retention")
        self._limits: dict[str, tuple[float, Limits]] = {}
        """Topic → until when (monotonic s) its limits are believed, and the limits."""
        self._unanswered: dict[TopicPartition, float] = {}
        """Partition that did not answer → when (monotonic s) to ask it again."""
        self._warned: set[tuple[TxId, TopicPartition]] = set()

    async def run(self) -> None:
        """Checks all open transactions every `interval_s` seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._config.interval_s)
            await self.check()

    async def check(self) -> None:
        """Checks all open transactions once."""
        watched = await self._collect()
        still = {(w.txid, key) for key, found in watched.items() for w in found}
        self._warned &= still
        self._unanswered = {k: until for k, until in self._unanswered.items() if k in watched}
        topics = {topic for topic, _ in watched}
        self._limits = {t: limits for t, limits in self._limits.items() if t in topics}
        loop = asyncio.get_running_loop()
        for key, found in watched.items():
            if time.monotonic() < self._unanswered.get(key, 0.0):
                continue
            lowest = min(w.first_offset for w in found)
            try:
                view = await loop.run_in_executor(self._thread, partial(self._look, key, lowest))
            except UnknownTopicError:
                # A deleted topic's records are gone for everybody. The transaction may commit or
                # abort; its marker for this partition counts as written.
                continue
            except (LogtxError, KafkaException) as error:
                _LOG.warning("retention_not_known topic=%s partition=%d error=%s", *key, error)
                self._unanswered[key] = time.monotonic() + UNANSWERED_PAUSE_S
                continue
            self._unanswered.pop(key, None)
            for each in found:
                self._act(key, each, view)

    def close(self) -> None:
        """Stops the thread, without waiting for a question under way."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _collect(self) -> Mapping[TopicPartition, list[_Watched]]:
        watched: dict[TopicPartition, list[_Watched]] = {}
        for shard in list(self._shards()):
            for number, transaction in enumerate(list(shard.transactions)):
                if number % SLICE == SLICE - 1:
                    await asyncio.sleep(0)
                if transaction.state is not State.OPEN:
                    continue
                for key, partition in transaction.partitions.items():
                    if partition.first_offset != UNKNOWN_OFFSET:
                        entry = _Watched(transaction.txid, partition.first_offset)
                        watched.setdefault(key, []).append(entry)
        return watched

    def _look(self, key: TopicPartition, first_offset: int) -> PartitionView:
        """Asks the log about a partition; runs in the guard's thread."""
        log = self._log
        limits = self._limits_of(key[0])
        view = PartitionView(
            start=log.start_offset(*key, timeout_s=ASK_TIMEOUT_S),
            end=log.end_offset(*key, timeout_s=ASK_TIMEOUT_S),
            warn_keeps=self._keeps(key, limits.retention_ms, self._config.warn_share),
            abort_keeps=self._keeps(key, limits.retention_ms, self._config.abort_share),
            limits=limits,
        )
        if limits.retention_bytes < 0 or _place_share(first_offset, view) < self._config.warn_share:
            return view
        return replace(view, record_bytes=self._record_bytes(key, first_offset, view))

    def _limits_of(self, topic: str) -> Limits:
        until_s, limits = self._limits.get(topic, (0.0, None))
        if limits is None or until_s < time.monotonic():
            settings = self._log.topic_info(topic, timeout_s=ASK_TIMEOUT_S).settings or {}
            limits = Limits(
                retention_ms=int(settings.get("retention.ms", -1)),
                retention_bytes=int(settings.get("retention.bytes", -1)),
            )
            self._limits[topic] = time.monotonic() + LIMITS_MAX_AGE_S, limits
        return limits

    def _keeps(self, key: TopicPartition, retention_ms: int, share: float) -> int | None:
        if retention_ms < 0:
            return None
        younger_ms = time.time_ns() // 1_000_000 - int(retention_ms * share)
        return self._log.offset_for_time(*key, max(younger_ms, 0), timeout_s=ASK_TIMEOUT_S)

    def _record_bytes(self, key: TopicPartition, first_offset: int, view: PartitionView) -> float:
        start = max(first_offset, view.start)
        end = min(view.end, start + SAMPLE_RECORDS)
        records = read_records(self._log, *key, start, end, timeout_s=ASK_TIMEOUT_S)
        sizes = [_size(record) for record in records]
        return sum(sizes) / max(len(sizes), 1)

    def _act(self, key: TopicPartition, watched: _Watched, view: PartitionView) -> None:
        threat = assess(watched.first_offset, view, self._config)
        where = f"txid={watched.txid} topic={key[0]} partition={key[1]}"
        where = f"{where} first_offset={watched.first_offset} log_start={view.start}"
        if threat is Threat.NEAR and (watched.txid, key) not in self._warned:
            self._warned.add((watched.txid, key))
            _LOG.warning("retention_near %s", where)
        if threat >= Threat.DUE:
            event = "retention_abort" if threat is Threat.DUE else "retention_lost"
            _LOG.error("%s %s", event, where)
            self._abort(commands.AbortTransaction(txid=watched.txid, reason=AbortReason.RETENTION))


def _size(record: Message) -> int:
    try:
        headers = headers_of(record) or ()
    except SystemError:  # The name of one is not UTF-8. This is an estimate.
        headers = ()
    parts = (record.key(), record.value(), *(part for header in headers for part in header))
    return sum(len(part) for part in parts if part is not None) + RECORD_OVERHEAD_BYTES
