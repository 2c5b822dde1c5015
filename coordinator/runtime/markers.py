"""Writes markers: the end of each transaction, in each of its data partitions.

`MarkerLanes` decides which marker goes out next and when it counts as written. Here are the two
producers that it sends by, the clock, and the look-ups of topics. Nothing here may end a lane:
whatever a producer can't take is reported as not written, and the lane tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from ...journal.control import TopicPartition
from ...journal.logs.interface import Log
from ..core.lanes import Failure, Finished, Flow, Headers, Job, MarkerLanes, Producer
from ..core.transactions import TransactionMetadata
from .appender import Appender
from .topics import TopicLookUps, monotonic_ms

_LOG = logging.getLogger(__name__)

MARKER_CONFIG: Final[Mapping[str, Any]] = {
    # No marker times out: in a lane that flows it would leave a gap that the guarantee of the
    # shared producer does not cover. While a partition has no leader, librdkafka holds its markers
    # back, in order.
    "message.timeout.ms": 0,
    # librdkafka believes after this time that a topic is gone; its default is 30 s.
    "topic.metadata.propagation.max.ms": 5_000,
    # Suppresses librdkafka's warning at every start that the guarantee is experimental.
    "log_level": 3,
}
SHARED_CONFIG: Final = {**MARKER_CONFIG, "enable.gapless.guarantee": True}
CAREFUL_CONFIG: Final = {
    **MARKER_CONFIG,
    # One marker of a lane at a time needs no order. An idempotent producer would hold up all other
    # lanes after each refusal, to begin a new epoch.
    "enable.idempotence": False,
}
SWEEP_S: Final = 60.0
"""How often lanes without work, and the careful producer if nothing needs it, are given up. A
shorter time makes busy ones anew more often; a longer one keeps idle ones in memory."""
_FAILURES: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: Failure.NO_TOPIC,
    KafkaError.UNKNOWN_TOPIC_ID: Failure.NO_TOPIC,
    KafkaError._UNKNOWN_TOPIC: Failure.NO_TOPIC,
    KafkaError._UNKNOWN_PARTITION: Failure.NO_TOPIC,
    KafkaError.MSG_SIZE_TOO_LARGE: Failure.TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE: Failure.TOO_LARGE,
    KafkaError._FATAL: Failure.STOPPED,
    KafkaError._GAPLESS_GUARANTEE: Failure.STOPPED,
    KafkaError._PURGE_QUEUE: Failure.STOPPED,
    KafkaError._PURGE_INFLIGHT: Failure.STOPPED,
    KafkaError._QUEUE_FULL: Failure.FULL,
}
"""Kafka's error → what it says of the partition; any other one is a refusal."""


class MarkerWriter:
    """Writes the markers of all journal partitions that one coordinator owns."""

    def __init__(self, log: Log, topics: TopicLookUps) -> None:
        """Starts the shared producer.

        Args:
            log: the log that holds the data partitions.
            topics: looks up data topics.
        """
        self._log = log
        self._topics = topics
        self._lanes = MarkerLanes(self, topics.known)
        self._shared: Appender | None = Appender(log, SHARED_CONFIG, "markers")
        self._careful: Appender | None = None
        self._careful_used_ms = 0
        self._wake: asyncio.TimerHandle | None = None
        self._wake_at_ms = 0
        self._sweep_at_ms = monotonic_ms() + int(SWEEP_S * 1000)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        topics.listen(self._looked_up)

    # ---- what the coordinator asks --------------------------------------------------------------

    def write(
        self,
        transaction: TransactionMetadata,
        epoch: int,
        hw: Callable[[], int],
        finished: Finished,
    ) -> None:
        """Writes a decided transaction's markers. See `MarkerLanes.write`."""
        self._lanes.write(transaction, epoch, hw, finished)

    def backlog(self, journal_partition: int, partition: TopicPartition) -> int:
        """Returns the number of markers of a journal partition that a data partition lacks."""
        return self._lanes.backlog(journal_partition, partition)

    def backlogs(self) -> dict[int, tuple[int, int]]:
        """Returns journal partition → (markers not written, most of one data partition)."""
        return self._lanes.backlogs()

    def forget(self, journal_partition: int) -> None:
        """Drops the queued markers of a journal partition that this coordinator must load again."""
        self._lanes.forget(journal_partition)

    def tick(self) -> None:
        """Gives up what nothing needs any more; called now and then."""
        now_ms = monotonic_ms()
        if now_ms < self._sweep_at_ms or self._closed:
            return
        self._sweep_at_ms = now_ms + int(SWEEP_S * 1000)
        self._lanes.sweep()
        careful, idle_ms = self._careful, now_ms - self._careful_used_ms
        if careful is not None and idle_ms > SWEEP_S * 1000 and careful.is_idle:
            self._careful = None
            self._spawn(careful.close())

    async def close(self, timeout_s: float = 5) -> None:
        """Stops. The next owner of the journal partition writes the markers that are left."""
        self._closed = True
        if self._wake is not None:
            self._wake.cancel()
        for task in self._tasks:
            task.cancel()
        open_now = [a for a in (self._shared, self._careful) if a is not None]
        await asyncio.gather(*(appender.close(timeout_s) for appender in open_now))

    # ---- what the lanes ask: see `core.lanes.Shell` ---------------------------------------------

    def append(self, job: Job, headers: Headers, producer: Producer, flow: Flow) -> None:
        """Sends a marker."""
        if self._closed:
            return

        def acknowledge(_offset: int | None, error: KafkaError | None) -> None:
            self._answered(job, error)

        try:
            appender = self._appender(producer)
        except (KafkaException, OSError, RuntimeError) as error:
            # No thread or no file handle is left. The lane pauses, and tries again.
            _LOG.warning("marker_producer_not_made error=%r", error)
            stopped = KafkaError(KafkaError._FATAL)
            asyncio.get_running_loop().call_soon(acknowledge, None, stopped)
            return
        topic, partition = job.partition.key
        appender.append(topic, partition, acknowledge, headers=headers, flow=flow)

    def _appender(self, producer: Producer) -> Appender:
        if producer is Producer.SHARED:
            if self._shared is None:
                self._shared = Appender(self._log, SHARED_CONFIG, "markers")
            return self._shared
        if self._careful is None:
            self._careful = Appender(self._log, CAREFUL_CONFIG, "markers-careful")
        self._careful_used_ms = monotonic_ms()
        return self._careful

    def renew(self) -> None:
        """Gives up the shared producer. The next marker makes another."""
        stopped, self._shared = self._shared, None
        if stopped is not None:
            self._spawn(stopped.close())

    def look_up(self, topic: str) -> None:
        """Looks a topic up."""
        self._topics.look_up(topic)

    def wake_at(self, at_ms: int) -> None:
        """Calls `MarkerLanes.tick` at `at_ms`."""
        if self._wake is not None and self._wake_at_ms <= at_ms:
            return
        if self._wake is not None:
            self._wake.cancel()
        self._wake_at_ms = at_ms
        loop = asyncio.get_running_loop()
        self._wake = loop.call_later(max(0, at_ms - monotonic_ms()) / 1000, self._woken)

    def _woken(self) -> None:
        self._wake = None
        if not self._closed:
            self._lanes.tick(monotonic_ms())

    def _looked_up(self, topic: str) -> None:
        if not self._closed:
            self._lanes.looked_up(topic, monotonic_ms())

    def _answered(self, job: Job, error: KafkaError | None) -> None:
        if error is None:
            self._lanes.written(job, monotonic_ms())
            return
        failure = _FAILURES.get(error.code(), Failure.REFUSED)
        if failure.value >= Failure.REFUSED.value:
            where = job.partition.key
            _LOG.warning("marker_refused topic=%s partition=%d error=%s", *where, error.name())
        self._lanes.not_written(job, failure, monotonic_ms())

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
