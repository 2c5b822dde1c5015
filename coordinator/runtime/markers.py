"""Markers: the end of each transaction, written to each of its data partitions.

One lane per data partition and journal. The rule that consumers rely on: the first markers of a
journal stand in every data partition in commit-sequence order, for a marker at or below the last
commit sequence met is taken for a duplicate. So a lane never lets a marker overtake one that
failed:

- The shared producer is idempotent with ``enable.gapless.guarantee``: when the broker refuses a
  batch, it enforces the sequence numbers of what follows, and librdkafka stops for good instead
  of closing the gap. Nothing behind the refused marker is written. No marker times out.
- Then every lane waits until all it had in flight is answered, puts those not acknowledged back
  in order, and goes on with a new producer. Markers whose acknowledgement was lost are written
  twice, which consumers ignore.
- The lane that was refused goes on alone, with a producer of its own, one marker at a time and
  with growing pauses, until one is taken: a partition that can't take its marker delays only
  itself. A topic that is gone (no such topic, or another topic id) takes no more: its markers
  count as written, and the journal says so. A marker in a topic that was created anew would claim
  records that were never there, so the id is compared also where nothing failed: with what the
  coordinator knows of the topic, which a commit lets it look up when that is old.

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
    # A marker that timed out would leave a gap that the guarantee does not cover, so none does:
    # a partition without a leader holds its markers back in librdkafka, in order.
    "message.timeout.ms": 0,
    # A topic that is gone is believed to be so after this time; the default is 30 s.
    "topic.metadata.propagation.max.ms": 5_000,
    # Without librdkafka's warning at every start that the guarantee is experimental.
    "log_level": 3,
}
IN_FLIGHT_MAX: Final = 1_000
"""Markers of one lane on their way at once."""
RETRY_MIN_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
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
"""Errors of a producer that stopped over another partition's marker."""

EMPTY: Final[Mapping[str, TopicFacts]] = {}

Finished = Callable[[int, tuple[TopicPartition, ...]], None]
"""Called with a BEGIN offset and the partitions that were gone, when all markers are written."""


@dataclass(slots=True)
class _Ending:
    """One decided transaction on its way to its partitions."""

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
    """The markers of one journal for one data partition, in commit-sequence order."""

    topic: str
    partition: int
    queue: deque[_Job] = field(default_factory=deque)
    in_flight: deque[_Job] = field(default_factory=deque)
    appender: Appender | None = None
    """What everything in flight was given to: never two at once, or they could overtake."""
    own: Appender | None = None
    """A producer of its own while the partition refuses markers."""
    error: KafkaError | None = None
    """Why the lane is out of order; nothing is sent while it stands."""
    answered: int = 0
    """Of those in flight, since that error."""
    pause_s: float = 0.0


class MarkerWriter:
    """Writes the markers of all journal partitions that one coordinator owns."""

    def __init__(self, log: Log, topics: Mapping[str, TopicFacts] = EMPTY) -> None:
        """Start the shared producer.

        Args:
            log: where to write.
            topics: what is known of data topics; grows and changes as they are looked up.
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
        """Write a decided transaction's markers; call in commit-sequence order.

        Args:
            transaction: decided, and its decision acknowledged.
            epoch: of the coordinator.
            hw: the journal partition's high watermark at the time a marker goes out.
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
        """Markers of a journal that wait for a data partition or are on their way there."""
        lane = self._lanes.get((journal_partition, partition))
        return 0 if lane is None else len(lane.queue) + len(lane.in_flight)

    def backlogs(self) -> dict[int, tuple[int, int]]:
        """Journal partition → markers not taken yet, and the most of one data partition."""
        found: dict[int, tuple[int, int]] = {}
        for (journal_partition, _), lane in self._lanes.items():
            total, longest = found.get(journal_partition, (0, 0))
            waiting = len(lane.queue) + len(lane.in_flight)
            found[journal_partition] = total + waiting, max(longest, waiting)
        return found

    def forget(self, journal_partition: int) -> None:
        """Drop what is queued for a journal partition that this coordinator must load again.

        What is in flight stays: its decisions are durable, and a lane keeps its order.
        """
        for key, lane in self._lanes.items():
            if key[0] == journal_partition:
                lane.queue.clear()
                for job in lane.in_flight:
                    job.ending.finished = _ignore

    async def close(self, timeout_s: float = 5) -> None:
        """Stop; markers not written are written by whoever owns the journal next."""
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
        # From the first error on, nothing of this lane counts as written until it is written
        # again in order: an acknowledgement behind a failure would be out of its place.
        # What says most of the partition is kept: a producer that stopped refuses what is given to
        # it at once, before it reports the refusal that it stopped over.
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
            # A gapless producer that met an error takes nothing more.
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
    """The shard that asked is gone; its successor writes these markers again."""
