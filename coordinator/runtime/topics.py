"""Looks up data topics: for commands that are about to be decided, and for markers in doubt.

`TopicKnowledge` decides what is asked and what is believed. Here is the asking: many topics in one
request, one look-up per topic at a time for all who wait, never on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from ...journal.control import TopicPartition
from ...journal.errors import (
    BrokerError,
    LogtxError,
    UnknownTopicError,
    UnsupportedTopicError,
)
from ...journal.logs.interface import Log, TopicInfo
from ...journal.reader import RESERVED
from ...journal.rights import coordinator_may_not, lacking
from ..core.decision import TopicFacts
from ..core.topics import AGAIN_MS, CONFIRM_MS, Existence, TopicKnowledge
from ..tasks import essential_task
from .alarm import monotonic_ms

_LOG = logging.getLogger(__name__)
_Told = TypeVar("_Told")

WAIT_MAX_S: Final = 5.0
"""Longest wait for look-ups before a command goes on without them. A longer one holds up the other
commands of its stream when the brokers do not answer."""
SETTLE_MAX_MS: Final = 2 * CONFIRM_MS
"""Longest wait for look-ups to agree whether a topic is there. A longer one delays who asks; with a
shorter one they can't agree in time."""
BATCH_MAX: Final = 200
"""Topics in one request; more make its answer late for all of them."""
REQUESTS_MAX: Final = 2
"""Requests at one time. A broker that does not answer holds one for 10 s."""
TIMEOUT_S: Final = 10.0
"""Bound of one request."""
DEFAULT_RECORD_MAX_BYTES: Final = 1_048_588
"""Kafka's default of ``max.message.bytes``, for a log that does not tell it."""
NEEDED: Final = ("DESCRIBE_CONFIGS",)
"""What a coordinator must be allowed to do with a data topic: to see whether it takes transactions.
Brokers that tell of a topic at all allow DESCRIBE, and so to ask for its ends."""
NEEDED_FOR_MARKERS: Final = ("WRITE", *NEEDED)
"""The same, if it writes markers there. Kafka includes DESCRIBE in WRITE."""
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Kafka's rule for names of topics. A name that breaks it could fail the request for all others."""


class TopicLookUps:
    """Looks up data topics for all journal partitions of a coordinator; lives on its event loop."""

    def __init__(self, log: Log) -> None:
        """Asks nothing before the first question."""
        self.known: Final = TopicKnowledge()
        """What is known of data topics."""
        self._log = log
        self._wanted: dict[str, None] = {}
        """Topics to look up next, in the order in which they were asked for."""
        self._requests: set[asyncio.Task[None]] = set()
        self._answered = asyncio.Event()
        """Set, and replaced, whenever an answer has come."""
        self._listeners: list[Callable[[str], None]] = []
        self._threads = ThreadPoolExecutor(REQUESTS_MAX, thread_name_prefix="topics")
        self._closed = False

    def listen(self, listener: Callable[[str], None]) -> None:
        """Calls `listener` with each topic that was looked up, also if no answer came."""
        self._listeners.append(listener)

    def look_up(self, topic: str) -> None:
        """Looks up a topic. Does nothing if that is under way."""
        if self.known.is_looking(topic) or self._closed:
            return
        self.known.began(topic, monotonic_ms())
        self._wanted[topic] = None
        self._ask()

    def _ask(self) -> None:
        if self._wanted and len(self._requests) < REQUESTS_MAX:
            # At the end of this turn of the loop: one request for all that are asked for in it.
            task = essential_task(self._request(), "topics")
            self._requests.add(task)
            task.add_done_callback(self._requested)

    def _requested(self, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        if not self._closed:
            self._ask()

    async def _request(self) -> None:
        topics = list(self._wanted)[:BATCH_MAX]
        if not topics:
            return  # Another request of this turn took them all.
        for topic in topics:
            del self._wanted[topic]
        found = await asyncio.get_running_loop().run_in_executor(self._threads, self._find, topics)
        for topic in topics:
            self._take(topic, found[topic])
        answered, self._answered = self._answered, asyncio.Event()
        answered.set()
        for topic in topics:
            for listener in self._listeners:
                listener(topic)

    def _find(self, topics: list[str]) -> Mapping[str, TopicInfo | LogtxError]:
        """Asks the log; runs in a thread. Whatever goes wrong is an answer, so that no one waits
        for ever."""
        try:
            return self._log.topic_infos(topics, timeout_s=TIMEOUT_S)
        except LogtxError as error:
            return dict.fromkeys(topics, error)
        except (KafkaException, OSError, RuntimeError, ValueError) as error:
            # What librdkafka raises by itself, for example when there are no file handles left.
            return dict.fromkeys(topics, BrokerError(f"describe topics: {error!r}"))

    def _take(self, topic: str, answer: TopicInfo | LogtxError) -> None:
        now_ms = monotonic_ms()
        if isinstance(answer, TopicInfo):
            refused = _unsupported(answer)
            may, needed = answer.operations, NEEDED_FOR_MARKERS
            unsupported = refused or self._not_allowed(topic, may, NEEDED)
            unwritable = refused or self._not_allowed(topic, may, needed)
            facts, certain = _facts(answer), answer.certain
            self.known.told(topic, facts, now_ms, unsupported, unwritable, certain=certain)
        elif isinstance(answer, UnknownTopicError):
            self.known.told(topic, None, now_ms)
        else:
            _LOG.warning("topic_not_described topic=%s error=%s", topic, answer)
            is_denied = answer.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            refusal = None
            if is_denied:
                refusal = self._not_allowed(topic, frozenset(), NEEDED_FOR_MARKERS)
            self.known.failed(topic, refusal or answer, now_ms)

    def _not_allowed(
        self, topic: str, operations: frozenset[str] | None, needed: Collection[str]
    ) -> UnsupportedTopicError | None:
        """Returns the error that names the rights which the coordinator lacks; None if it has all.

        Without them a commit could be decided whose markers are refused for ever.
        """
        lack = lacking(operations, needed)
        if not lack:
            return None
        return UnsupportedTopicError(
            coordinator_may_not(self._log.bootstrap_servers, self._log.principal, lack, topic),
            kafka_code=KafkaError.TOPIC_AUTHORIZATION_FAILED,
        )

    async def learn(
        self, partitions: Collection[TopicPartition], unwritten: Collection[str] = ()
    ) -> LogtxError | None:
        """Looks up what commands that name `partitions` need.

        Args:
            partitions: the data partitions that a command names.
            unwritten: topics to which nothing will be written for the command: they may refuse
                writes.

        Returns:
            Why such a command can't be decided; None if it can. A retriable error says that nothing
            is certain and nothing was done. The wait is bounded by `WAIT_MAX_S`.
        """
        since_ms = now_ms = monotonic_ms()
        if self.known.are_fresh(partitions, now_ms, unwritten):
            return None
        for topic, _ in partitions:
            if topic in RESERVED:
                return UnsupportedTopicError(f"topic {topic} is {RESERVED[topic]}")
            if not _LEGAL.fullmatch(topic):
                return UnknownTopicError(f"there is no topic {topic!r}: Kafka allows no such name")
        while now_ms - since_ms < WAIT_MAX_S * 1000:
            needs = self.known.needs(partitions, now_ms, since_ms, unwritten)
            for topic in sorted(needs.look_up):
                self.look_up(topic)
            if not needs.wait_for:
                break
            await self._next_answer()
            now_ms = monotonic_ms()
        return self.known.refusal(partitions, now_ms, unwritten)

    async def settle(self, topic: str, topic_id: str) -> Existence:
        """Looks a topic up until it is certain whether it is there, for a bounded time.

        Args:
            topic: its name.
            topic_id: its id; "" if any topic of the name counts.

        Returns:
            DOUBTFUL if there was no answer, or answers did not agree for long enough.
        """

        def told(since_ms: int, now_ms: int) -> Existence | None:
            existence = self.known.existence(topic, now_ms, topic_id)
            if existence is Existence.ALIVE and not self.known.is_told_since(topic, since_ms):
                return None
            return None if existence is Existence.DOUBTFUL else existence

        return await self._until(topic, told) or Existence.DOUBTFUL

    async def agree(self, topic: str) -> bool:
        """Looks a topic up until look-ups agree on which one has the name, for a bounded time.

        Returns:
            Whether they do.
        """

        def agreed(since_ms: int, _now_ms: int) -> bool:
            return self.known.is_told_since(topic, since_ms) and self.known.is_agreed(topic)

        return bool(await self._until(topic, agreed))

    async def _until(self, topic: str, told: Callable[[int, int], _Told]) -> _Told | None:
        """Looks a topic up until `told(since_ms, now_ms)` says something, for a bounded time."""
        since_ms = now_ms = monotonic_ms()
        while now_ms - since_ms < SETTLE_MAX_MS and not self._closed:
            self.look_up(topic)
            await self._next_answer()
            now_ms = monotonic_ms()
            if found := told(since_ms, now_ms):
                return found
            await asyncio.sleep(AGAIN_MS / 1000)
        return None

    async def _next_answer(self) -> None:
        """Waits for any answer, or until a look-up may be repeated."""
        try:
            async with asyncio.timeout(AGAIN_MS / 1000):
                await self._answered.wait()
        except TimeoutError:
            return

    def close(self) -> None:
        """Stops asking, without waiting for requests under way."""
        self._closed = True
        for request in self._requests:
            request.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _facts(info: TopicInfo) -> TopicFacts:
    settings = info.settings or {}
    return TopicFacts(
        topic_id=info.topic_id,
        partition_count=info.partition_count,
        record_max_bytes=int(settings.get("max.message.bytes", DEFAULT_RECORD_MAX_BYTES)),
    )


def _unsupported(info: TopicInfo) -> UnsupportedTopicError | None:
    if not info.compacted:
        return None
    return UnsupportedTopicError(
        f"topic {info.topic} is compacted (cleanup.policy): Kafka refuses markers there, which"
        " have no key, and would drop committed values under aborted ones; write to a topic"
        " with cleanup.policy=delete and export from it to the compacted one"
    )
