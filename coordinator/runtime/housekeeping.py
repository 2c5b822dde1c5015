"""Keeps a served journal partition short and easy to find: snapshots, checkpoint, trimming; and
ends its hours of service, with which what nobody uses is forgotten.

The order makes it safe at any crash. A snapshot is appended. When all of it is acknowledged, it is
committed as the checkpoint. When that is durable, the journal is trimmed: below the snapshot, the
high watermark, the age at which outcomes are forgotten, and what readers of placed data need
(`core.fences`). So wherever an owner dies, a snapshot
that counts lies at or behind the journal's start (trap 9). An owner that was replaced may do each
step once more when it wakes up. That does no harm: its snapshot is one of the epoch that it was
made in, and what it trims lies below that. (Its checkpoint may hide a later one; see `loading.py`.)

Ages are measured by the broker's clock, because a coordinator's clock may jump by a week. The
broker stamps records when they are appended (``message.timestamp.type=LogAppendTime``). They are
compared with the snapshot's stamp plus the time that has passed since.

Source: Transactional Messaging in Kafka, "Transaction coordinator" (the checkpointed high
watermark).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaException

from ...journal.errors import BrokerError, LogtxError, RequestTooLargeError
from ...journal.logs.interface import Log
from ...journal.places import GONE, PartitionId
from ...journal.reader import COORDINATORS_GROUP, JOURNAL_TOPIC, read_records
from ..core.tenure import Tenure
from ..core.topics import Existence
from ..protocol.checkpoint import Checkpoint
from .questions import Questions
from .topics import TopicLookUps

_LOG = logging.getLogger(__name__)

LOOK_S: Final = 0.2
"""Pause between two checks whether anything is due; bounds how late it is done."""
CHUNK_PAUSE_S: Final = 0.005
"""Pause between two chunks of a snapshot, in which clients are served. It is about as long as a
chunk takes; a shorter one stalls clients, a longer one makes the snapshot late."""
PUBLISH_AGAIN_S: Final = (1.0, 10.0)
"""Seconds after which the checkpoint is committed again at first: a former owner's late commit may
have replaced it."""
PUBLISH_S: Final = 3_600.0
"""Seconds after which it is committed again from then on. It must be less than 7 days: by then
Kafka forgets the offsets of a group without members."""
HOUR_S: Final = 3_600.0
"""An hour of service, see `core.ages`. A new owner begins a new one."""
ASKED_MAX: Final = 500
"""Consumer groups about which Kafka is asked at the end of an hour; the others wait for the next
one. More make one large request."""
ASK_S: Final = 30.0
"""Bound of asking for the offsets of groups at the end of an hour, but for the last answer; the
others wait for the next one. A longer one delays snapshots while an owner does not answer."""
READ_TIMEOUT_S: Final = 10.0
"""Bound of reading a snapshot's stamp; past it the journal is trimmed at the next checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HousekeepingConfig:
    """When snapshots are taken, and what trimming leaves."""

    snapshot_interval_records: int = 100_000
    """Number of journal records after which the next snapshot is taken. With a larger one loading
    takes longer; a smaller one writes more snapshots."""
    outcome_retention_ms: int = 7 * 24 * 3_600_000
    """Least time, from its BEGIN on, for which a transaction's outcome can be looked up."""


class Housekeeping:
    """Keeps the journal partition of one tenure; lives on the event loop."""

    def __init__(
        self,
        log: Log,
        tenure: Tenure,
        address: str,
        config: HousekeepingConfig,
        *,
        reading: Executor,
        questions: Questions,
        look_ups: TopicLookUps,
        is_free: Callable[[str], Awaitable[bool]],
    ) -> None:
        """Does nothing before `run`.

        Args:
            log: the log that holds the journal.
            tenure: the partition's tenure.
            address: host:port at which clients reach the owner.
            config: when to take snapshots, and what to keep.
            reading: runs the calls that read the journal.
            questions: runs the quick calls.
            look_ups: looks up data topics.
            is_free: returns whether a consumer group has no offsets, wherever it is bound.
        """
        self.published = asyncio.Event()
        """Set when clients can find the owner."""
        self._log, self._tenure, self._address = log, tenure, address
        self._config, self._reading, self._questions = config, reading, questions
        self._look_ups, self._is_free = look_ups, is_free
        self._partition = tenure.shard.partition
        self._since = tenure.snapshot_offset or 0
        """Offset from which the records count towards the next snapshot."""
        self._checkpoint: int | None = None
        """Offset of the snapshot that the committed checkpoint names; 0: no snapshot."""
        self._trimmed = 0
        """Offset below which this tenure has trimmed the journal."""
        self._stamp: tuple[int, int, float] | None = None
        """A snapshot's offset, the broker's stamp of it (ms), and the monotonic time (s) after
        that stamp was read."""

    async def run(self) -> None:
        """Runs until it is cancelled, or until the tenure decides nothing any more."""
        pauses_s, publish_s = list(PUBLISH_AGAIN_S), time.monotonic()
        hour_ends_s = time.monotonic() + HOUR_S
        tenure, more = self._tenure, False
        while not (tenure.over or tenure.quiescing):
            if time.monotonic() >= hour_ends_s:
                hour_ends_s += HOUR_S
                await self._end_hour()
                more = True
            elif more:
                # A turn for each record: thousands of names at once would hold up all clients.
                more = tenure.forget_rest()
            if tenure.shard.next_offset - self._since >= self._config.snapshot_interval_records:
                await self._take_snapshot()
            snapshot = tenure.snapshot_offset or 0
            due = snapshot != self._checkpoint or time.monotonic() >= publish_s
            if due and await self._publish(snapshot):
                publish_s = time.monotonic() + (pauses_s.pop(0) if pauses_s else PUBLISH_S)
                await self._trim(snapshot)
            await asyncio.sleep(LOOK_S)

    async def _end_hour(self) -> None:
        ages = self._tenure.shard.ages
        groups, bindings = ages.idle_groups()[:ASKED_MAX], ages.idle_bindings()
        free = await self._without_offsets(bindings[:ASKED_MAX])
        self._tenure.end_hour(await self._without_members(groups), free)

    async def _without_offsets(self, groups: Sequence[str]) -> list[str]:
        found = []
        until_s = time.monotonic() + ASK_S
        for group in groups:
            if time.monotonic() >= until_s:
                break  # An owner that is silent would hold up snapshots and checkpoints.
            try:
                if await self._is_free(group):
                    found.append(group)
            except LogtxError as error:
                _LOG.warning("offsets_unknown group=%s error=%s", group, error)
        return found

    async def _without_members(self, groups: Sequence[str]) -> list[str]:
        question = f"members-{self._partition}"
        try:
            present = await self._questions.ask(question, self._log.groups_with_members, groups)
        except (LogtxError, KafkaException) as error:
            _LOG.warning("members_unknown partition=%d error=%s", self._partition, error)
            return []
        return [group for group in groups if group not in present]

    async def _take_snapshot(self) -> None:
        tenure, started_s = self._tenure, time.monotonic()
        first = tenure.shard.next_offset
        try:
            while tenure.snapshot():  # noqa: ASYNC110 - it is the pause that is wanted
                await asyncio.sleep(CHUNK_PAUSE_S)
        except RequestTooLargeError as error:
            # The only cost is that the journal grows until the next attempt.
            _LOG.error("snapshot_failed partition=%d error=%s", self._partition, error)
            return
        finally:
            # Behind its chunks: where a snapshot has as many as records are to lie between two, one
            # would follow the other for ever.
            self._since = tenure.shard.next_offset
        _LOG.info(
            "snapshot_appended partition=%d first=%d chunks_ms=%d",
            self._partition, first, (time.monotonic() - started_s) * 1000,
        )  # fmt: skip

    async def _publish(self, snapshot: int) -> bool:
        """Tells clients where the partition is served, and loaders where to begin.

        Returns whether Kafka took the checkpoint.
        """
        shard = self._tenure.shard
        value = Checkpoint(offset=snapshot, epoch=shard.epoch, address=self._address)
        try:
            await self._questions.ask(
                f"publish-{self._partition}",
                self._log.commit_group_offset,
                COORDINATORS_GROUP,
                JOURNAL_TOPIC,
                self._partition,
                value.to_group_offset(),
            )
        except (LogtxError, KafkaException) as error:
            _LOG.warning("publish_failed partition=%d error=%s", self._partition, error)
            return False
        self._checkpoint = snapshot
        self.published.set()
        return True

    # ---- trimming -------------------------------------------------------------------------------

    async def _trim(self, snapshot: int) -> None:
        shard = self._tenure.shard
        await self._advance_fence()
        bound = min(snapshot, shard.hw, shard.fences.trim_to)
        if bound <= self._trimmed:
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._reading, self._delete_records, snapshot, bound)
        except (LogtxError, KafkaException) as error:
            # The next checkpoint tries again.
            _LOG.warning("trim_failed partition=%d error=%s", self._partition, error)

    async def _advance_fence(self) -> None:
        """Asks whether the data passed the fence, which then may be trimmed to (R14)."""
        fences = self._tenure.shard.fences
        if asked := fences.partitions():
            fences.advance(await self._log_starts(asked))

    async def _log_starts(self, partitions: Sequence[PartitionId]) -> dict[PartitionId, int]:
        """Returns the first offsets of partitions, or `GONE`; without those that are not known."""
        topics = sorted({(p.topic, p.topic_id) for p in partitions})
        settled = await asyncio.gather(*(self._look_ups.settle(*topic) for topic in topics))
        existence = dict(zip(topics, settled, strict=True))
        states = {p: existence[p.topic, p.topic_id] for p in partitions}
        starts = {p: GONE for p, state in states.items() if state is Existence.GONE}
        alive = [p for p, state in states.items() if state is Existence.ALIVE]
        question = f"starts-{self._partition}"
        try:
            answers = await self._questions.ask(
                question, self._log.each_start_offset, [p.key for p in alive]
            )
        except (LogtxError, KafkaException) as error:
            _LOG.warning("log_starts_unknown partition=%d error=%s", self._partition, error)
            return starts
        for partition in alive:
            start = answers.get(partition.key)
            if isinstance(start, int):
                starts[partition] = start
        return starts

    def _delete_records(self, snapshot: int, bound: int) -> None:
        oldest_ms = self._broker_ms(snapshot) - self._config.outcome_retention_ms
        kept = self._log.offset_for_time(JOURNAL_TOPIC, self._partition, max(oldest_ms, 0))
        bound = bound if kept is None else min(bound, kept)
        if bound > self._trimmed:
            self._log.delete_records(JOURNAL_TOPIC, self._partition, bound)
            self._trimmed = bound
            _LOG.info("journal_trimmed partition=%d start=%d", self._partition, bound)

    def _broker_ms(self, snapshot: int) -> int:
        """Returns the broker's wall clock (ms), or less: a snapshot's stamp plus the time since."""
        if self._stamp is None or self._stamp[0] != snapshot:
            messages = read_records(
                self._log,
                JOURNAL_TOPIC,
                self._partition,
                snapshot,
                snapshot + 1,
                timeout_s=READ_TIMEOUT_S,
            )
            with closing(messages):
                stamps = [message.timestamp()[1] for message in messages]
            if not stamps:
                raise BrokerError(f"the record at {snapshot} was not read: nothing is trimmed now")
            self._stamp = snapshot, stamps[0], time.monotonic()
        _, stamp_ms, read_s = self._stamp
        return stamp_ms + int((time.monotonic() - read_s) * 1000)
