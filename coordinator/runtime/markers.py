"""Writes markers: the end of each transaction, in each of its data partitions; and mode records.

`MarkerLanes` decides which marker goes out next and when it counts as written. Here are the two
producers that it sends by, the clock, and the look-ups of topics. Nothing here may end a lane:
whatever a producer can't take is reported as not written, and the lane tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from ...journal.logs.interface import Log
from ..core.lane import Failure, Flow, Headers, Job, Producer
from ..core.lanes import MarkerLanes
from ..tasks import essential_task
from .alarm import Alarm, monotonic_ms
from .appender import Appender
from .topics import TopicLookUps

_LOG = logging.getLogger(__name__)

MARKER_CONFIG: Final[Mapping[str, Any]] = {
    # No marker times out: in a lane that flows it would leave a gap that the guarantee of the
    # shared producer does not cover. While a partition has no leader, librdkafka holds its markers
    # back, in order; `MarkerLanes.watch` ends that.
    "message.timeout.ms": 0,
    # librdkafka believes after this time that a topic is gone; its default is 30 s.
    "topic.metadata.propagation.max.ms": 5_000,
    # When a topic has grown, a producer refuses the new partition until it asks again: by default
    # for up to five minutes, in which no transaction with records there finishes.
    "topic.metadata.refresh.interval.ms": 5_000,
    # Suppresses librdkafka's warning at every start that the guarantee is experimental.
    "log_level": 3,
}
SHARED_CONFIG: Final = {**MARKER_CONFIG, "enable.gapless.guarantee": True}
CAREFUL_CONFIG: Final = {
    **MARKER_CONFIG,
    # One marker of a lane at a time needs no order. An idempotent producer would hold up all other
    # lanes after each refusal, to begin a new epoch.
    "enable.idempotence": False,
    "message.timeout.ms": 30_000,
}
SWEEP_S: Final = 10.0
"""How often lanes are watched, and those without work dropped. A marker without an answer for one
to two of these periods costs the shared producer of all lanes; a longer one lets it wait longer."""
CAREFUL_IDLE_S: Final = 60.0
"""When an unused careful producer is closed. A shorter time makes it anew more often."""
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


class _Sent:
    """A marker on its way by one producer. One that failed is sent again by another."""

    __slots__ = ("job",)

    def __init__(self, job: Job) -> None:
        self.job = job


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
        self.lanes: Final = MarkerLanes(self, topics.known)
        """Takes the markers of decided transactions."""
        self._shared: Appender | None = Appender(log, SHARED_CONFIG, "markers")
        self._careful: Appender | None = None
        self._careful_used_ms = 0
        self._unanswered: dict[Appender, set[_Sent]] = {}
        """Producer → markers that it has not reported yet."""
        self._alarm = Alarm(self.lanes.tick)
        self._sweep_at_ms = monotonic_ms() + int(SWEEP_S * 1000)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        topics.listen(self._looked_up)

    # ---- what the coordinator asks --------------------------------------------------------------

    def tick(self) -> None:
        """Gives up what nothing needs any more, or what gives no answer; called now and then."""
        now_ms = monotonic_ms()
        if now_ms < self._sweep_at_ms or self._closed:
            return
        self._sweep_at_ms = now_ms + int(SWEEP_S * 1000)
        self.lanes.watch()
        self.lanes.sweep()
        careful, idle_ms = self._careful, now_ms - self._careful_used_ms
        if careful is not None and idle_ms > CAREFUL_IDLE_S * 1000 and careful.is_idle:
            self._careful = None
            self._spawn(self._close(careful))

    async def close(self, timeout_s: float = 5) -> None:
        """Stops. The next owner of the journal partition writes the markers that are left."""
        self._closed = True
        self._alarm.cancel()
        for task in self._tasks:
            task.cancel()
        open_now = [a for a in (self._shared, self._careful) if a is not None]
        await asyncio.gather(*(appender.close(timeout_s) for appender in open_now))

    # ---- what the lanes ask: see `core.lanes.Shell` ---------------------------------------------

    def append(self, job: Job, headers: Headers, producer: Producer, flow: Flow) -> None:
        """Sends a marker."""
        if self._closed:
            return

        sent = _Sent(job)
        try:
            appender = self._appender(producer)
        except (KafkaException, OSError, RuntimeError) as error:
            # No thread or no file handle is left. The lane pauses, and tries again.
            _LOG.warning("marker_producer_not_made error=%r", error)
            stopped = KafkaError(KafkaError._FATAL)
            asyncio.get_running_loop().call_soon(self._answered, job, None, stopped)
            return
        topic, partition = job.partition.key
        unanswered = self._unanswered.setdefault(appender, set())
        unanswered.add(sent)

        def acknowledge(offset: int | None, error: KafkaError | None) -> None:
            # Once: what a closed producer did not report was reported for it.
            if sent in unanswered:
                unanswered.discard(sent)
                if appender is self._careful and _timed_out(error):
                    # It may believe in the leader of a topic that is no more (trap 294).
                    self._careful = None
                    self._spawn(self._close(appender))
                self._answered(job, offset, error)

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
        """Gives up the shared producer: what it still has is reported. The next marker makes
        another."""
        stopped, self._shared = self._shared, None
        if stopped is not None:
            _LOG.info("marker_producer_renewed")
            self._spawn(self._close(stopped))

    async def _close(self, stopped: Appender) -> None:
        """Closes a producer, and reports the markers for which it has not done so itself."""
        await stopped.close()
        lost = KafkaError(KafkaError._PURGE_QUEUE)
        left = self._unanswered.pop(stopped, set())
        while left:
            sent = left.pop()
            # A callback that breaks off takes its report with it. A lane would wait for that for
            # ever: it does not ask how long a producer takes that is being closed.
            _LOG.warning("marker_not_reported topic=%s partition=%d", *sent.job.partition.key)
            self._answered(sent.job, None, lost)

    def look_up(self, topic: str) -> None:
        """Looks a topic up."""
        self._topics.look_up(topic)

    def wake_at(self, at_ms: int) -> None:
        """Calls `MarkerLanes.tick` at `at_ms`."""
        if not self._closed:
            self._alarm.set(at_ms)

    def _looked_up(self, topic: str) -> None:
        if not self._closed:
            self.lanes.looked_up(topic, monotonic_ms())

    def _answered(self, job: Job, offset: int | None, error: KafkaError | None) -> None:
        if error is None:
            self.lanes.written(job, monotonic_ms(), offset)
            return
        failure = _FAILURES.get(error.code(), Failure.REFUSED)
        if failure.is_of_the_partition:
            where = job.partition.key
            _LOG.warning("marker_refused topic=%s partition=%d error=%s", *where, error.name())
        self.lanes.not_written(job, failure, monotonic_ms())

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        # If a producer is never closed, what it lost is never reported, and lanes wait for that.
        task = essential_task(coroutine, "marker-producer")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _timed_out(error: KafkaError | None) -> bool:
    return error is not None and error.code() == KafkaError._MSG_TIMED_OUT
