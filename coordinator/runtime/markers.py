"""Writes markers: the end of each transaction, in each of its data partitions.

There is one lane per journal partition and data partition. Consumers rely on this rule: in every
data partition, the first markers of a journal partition stand in commit-sequence order. They take
a marker at or below the last commit sequence met for a duplicate. So a lane never lets a marker
overtake one that failed:

- The shared producer is idempotent with ``enable.gapless.guarantee``. When the broker refuses a
  batch, it enforces the sequence numbers of the batches behind it, and librdkafka stops for good
  instead of closing the gap. Nothing behind the refused marker is written. No marker times out.
- Then every lane waits until all its markers in flight are answered, puts those that were not
  acknowledged back in order, and goes on with a new producer. Markers whose acknowledgement was
  lost are written twice; consumers ignore the second.
- The lane that was refused goes on alone, with its own producer, one marker at a time and with
  growing pauses, until a marker is taken. So a partition that can't take its marker delays only
  itself.
- A topic that is gone (no such topic, or another topic id) gets no more markers: they count as
  written, and the journal says so. A marker in a topic that was created again would claim records
  that were never there (trap 12). Therefore the topic id is also compared where nothing failed,
  with what the coordinator knows about the topic; a commit makes it look that up when it is old.

Source: Transactional Messaging in Kafka, "Transaction flow", End phase, steps 4 to 6.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError

from ...journal.control import (
    TXCTL_HEADER,
    TXID_HEADER,
    Marker,
    PartitionList,
    TopicPartition,
    encode_marker,
)
from ...journal.errors import BrokerError, UnknownTopicError
from ...journal.logs.interface import Headers, Log
from ...journal.records.types import DataPartition
from ...journal.state import State
from ..core.decision import TopicFacts
from ..core.transactions import TransactionMetadata
from .appender import Appender

_LOG = logging.getLogger(__name__)

MARKER_CONFIG: Final = {
    "enable.gapless.guarantee": True,
    # No marker times out: it would leave a gap that the guarantee does not cover. While a
    # partition has no leader, librdkafka holds its markers back, in order.
    "message.timeout.ms": 0,
    # librdkafka believes after this time that a topic is gone; its default is 30 s.
    "topic.metadata.propagation.max.ms": 5_000,
    # Suppresses librdkafka's warning at every start that the guarantee is experimental.
    "log_level": 3,
}
IN_FLIGHT_MAX: Final = 1_000
"""Markers of one lane in flight at once. Fewer make a lane wait for the broker more often; more are
written a second time after a failure."""
RETRY_MIN_S: Final = 0.05
"""First pause after a lane was refused."""
RETRY_MAX_S: Final = 1.0
"""Longest pause: bounds how late a lane goes on once its partition takes markers again."""
_GONE: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
_NOT_THE_PARTITION: Final = frozenset(
    {
        KafkaError._FATAL,
        KafkaError._GAPLESS_GUARANTEE,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._QUEUE_FULL,
    }
)
"""Errors of a producer that stopped because of another partition's marker."""

EMPTY: Final[Mapping[str, TopicFacts]] = {}

Finished = Callable[[int, tuple[TopicPartition, ...]], None]
"""Called once all markers are written, with the BEGIN offset and the partitions that were gone."""


@dataclass(slots=True)
class _Ending:
    """A decided transaction whose markers are being written."""

    transaction: TransactionMetadata
    epoch: int
    listed: PartitionList
    missing: int
    hw: Callable[[], int]
    finished: Finished
    gone: list[TopicPartition] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Job:
    ending: _Ending
    partition: DataPartition


@dataclass(slots=True)
class _Lane:
    """The markers of one journal partition for one data partition, in commit-sequence order."""

    topic: str
    partition: int
    queue: deque[_Job] = field(default_factory=deque)
    in_flight: deque[_Job] = field(default_factory=deque)
    appender: Appender | None = None
    """Has everything that is in flight. Never two at once: a marker could overtake another."""
    own: Appender | None = None
    """The lane's own producer while the partition refuses markers; else None."""
    error: KafkaError | None = None
    """The first failure of a marker; nothing is sent until the lane is in order again."""
    answered: int = 0
    """Number of markers in flight that were answered since that failure."""
    pause_s: float = 0.0
    """Latest pause after a refusal."""


class MarkerWriter:
    """Writes the markers of all journal partitions that one coordinator owns."""

    def __init__(self, log: Log, topics: Mapping[str, TopicFacts] = EMPTY) -> None:
        """Starts the shared producer.

        Args:
            log: the log that holds the data partitions.
            topics: data topic → its facts; grows and changes as topics are looked up.
        """
        self._log = log
        self._topics = topics
        self._shared = Appender(log, MARKER_CONFIG, "markers")
        self._lanes: dict[tuple[int, TopicPartition], _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def write(
        self,
        transaction: TransactionMetadata,
        epoch: int,
        hw: Callable[[], int],
        finished: Finished,
    ) -> None:
        """Writes a decided transaction's markers. Call it in commit-sequence order.

        Args:
            transaction: a transaction whose decision is acknowledged.
            epoch: the owner's epoch.
            hw: returns the journal partition's high watermark; called when a marker goes out.
            finished: called once, when every partition has its marker or is gone.
        """
        partitions = transaction.partitions
        if not partitions:
            finished(transaction.begin, ())
        listed = PartitionList.of(partitions)
        ending = _Ending(transaction, epoch, listed, len(partitions), hw, finished)
        for key, partition in partitions.items():
            lane_key = transaction.txid.partition, key
            lane = self._lanes.get(lane_key)
            if lane is None:
                lane = self._lanes[lane_key] = _Lane(*key)
            lane.queue.append(_Job(ending, partition))
            self._send(lane)

    def backlog(self, journal_partition: int, partition: TopicPartition) -> int:
        """Returns the number of markers of a journal partition that a data partition lacks."""
        lane = self._lanes.get((journal_partition, partition))
        return 0 if lane is None else len(lane.queue) + len(lane.in_flight)

    def backlogs(self) -> dict[int, tuple[int, int]]:
        """Returns journal partition → (markers not written, most of one data partition)."""
        found: dict[int, tuple[int, int]] = {}
        for (journal_partition, _), lane in self._lanes.items():
            total, longest = found.get(journal_partition, (0, 0))
            waiting = len(lane.queue) + len(lane.in_flight)
            found[journal_partition] = total + waiting, max(longest, waiting)
        return found

    def forget(self, journal_partition: int) -> None:
        """Drops the queued markers of a journal partition that this coordinator must load again.

        Markers in flight stay: their decisions are durable, and the lane keeps its order.
        """
        for key, lane in self._lanes.items():
            if key[0] == journal_partition:
                lane.queue.clear()
                for job in lane.in_flight:
                    job.ending.finished = _ignore

    async def close(self, timeout_s: float = 5) -> None:
        """Stops. The next owner of the journal partition writes the markers that are left."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        own = [lane.own for lane in self._lanes.values() if lane.own is not None]
        await asyncio.gather(*(a.close(timeout_s) for a in (self._shared, *own)))

    def _send(self, lane: _Lane) -> None:
        if not lane.in_flight:
            lane.appender = lane.own or self._shared
        elif lane.appender is not (lane.own or self._shared):
            return
        limit = 1 if lane.own is not None else IN_FLIGHT_MAX
        while lane.queue and len(lane.in_flight) < limit and not lane.error and not self._closed:
            job = lane.queue.popleft()
            if self._is_replaced(job.partition):
                _count(job, gone=True)
                continue
            lane.in_flight.append(job)

            def acknowledge(_at: int | None, error: KafkaError | None, job: _Job = job) -> None:
                self._acknowledged(lane, job, error)

            assert lane.appender is not None
            lane.appender.append(lane.topic, lane.partition, acknowledge, headers=_headers(job))

    def _is_replaced(self, partition: DataPartition) -> bool:
        facts = self._topics.get(partition.topic)
        return facts is not None and partition.topic_id not in ("", facts.topic_id)

    def _acknowledged(self, lane: _Lane, job: _Job, error: KafkaError | None) -> None:
        if error is None and lane.error is None:
            assert lane.in_flight[0] is job, "acknowledgements of one partition come in order"
            lane.in_flight.popleft()
            lane.pause_s = 0.0
            if lane.own is not None:
                own, lane.own = lane.own, None
                self._spawn(own.close())
            _count(job, gone=False)
            self._send(lane)
            return
        # From the first error on, no marker of this lane counts as written until it is written
        # again in order: an acknowledgement behind a failure would be out of order.
        # The error kept is the one that says most about the partition: a stopped producer refuses
        # new records at once, before it reports the refusal that stopped it.
        if lane.error is None or (error and lane.error.code() in _NOT_THE_PARTITION):
            lane.error = error
        lane.answered += 1
        if lane.answered == len(lane.in_flight):
            lane.queue.extendleft(reversed(lane.in_flight))
            lane.in_flight.clear()
            lane.answered = 0
            self._spawn(self._retry(lane))

    async def _retry(self, lane: _Lane) -> None:
        error = lane.error
        assert error is not None
        _LOG.warning(
            "marker_refused topic=%s partition=%d error=%s",
            *(lane.topic, lane.partition, error.name()),
        )
        if lane.appender is self._shared:
            # A gapless producer takes nothing more after an error.
            self._shared = Appender(self._log, MARKER_CONFIG, "markers")
        if lane.appender is not None:
            self._spawn(lane.appender.close())
        lane.own = None
        if error.code() not in _NOT_THE_PARTITION:
            lane.own = Appender(self._log, MARKER_CONFIG, f"markers-{lane.topic}-{lane.partition}")
        if error.code() in _GONE:
            await self._give_up_if_gone(lane)
        lane.pause_s = min(max(lane.pause_s * 2, RETRY_MIN_S), RETRY_MAX_S)
        await asyncio.sleep(lane.pause_s)
        lane.error = None
        self._send(lane)

    async def _give_up_if_gone(self, lane: _Lane) -> None:
        topic_id: str | None
        try:
            info = await asyncio.to_thread(self._log.topic_info, lane.topic)
            topic_id = info.topic_id if lane.partition < info.partition_count else None
        except UnknownTopicError:
            topic_id = None
        except BrokerError as error:
            _LOG.warning("topic_not_described topic=%s error=%s", lane.topic, error)
            return
        jobs, lane.queue = lane.queue, deque()
        for job in jobs:
            if topic_id is None or job.partition.topic_id not in ("", topic_id):
                _count(job, gone=True)
            else:
                lane.queue.append(job)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _headers(job: _Job) -> Headers:
    transaction = job.ending.transaction
    assert transaction.commit_sequence is not None
    marker = Marker(
        committed=transaction.state in (State.COMMITTING, State.COMMITTED),
        commit_sequence=transaction.commit_sequence,
        hw=job.ending.hw(),
        epoch=job.ending.epoch,
        branches=tuple(transaction.branches.get(job.partition.key, ())),
    )
    control = encode_marker(marker, job.ending.listed)
    return [(TXID_HEADER, transaction.txid.to_bytes()), (TXCTL_HEADER, control)]


def _count(job: _Job, *, gone: bool) -> None:
    ending = job.ending
    ending.missing -= 1
    if gone:
        ending.gone.append(job.partition.key)
    if ending.missing == 0:
        ending.finished(ending.transaction.begin, tuple(ending.gone))


def _ignore(_begin: int, _gone: tuple[TopicPartition, ...]) -> None:
    """Ignores the end of a transaction whose shard is gone: the next owner writes it again."""
