"""Looks up facts of data topics before a command that names them is decided."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from typing import Final

from ...journal.control import TopicPartition
from ...journal.errors import UnknownTopicError, UnsupportedTopicError
from ...journal.logs.interface import Log, TopicInfo
from ..core.decision import TopicFacts

FACTS_MAX_AGE_S: Final = 10.0
"""Facts older than this are looked up again before they are used. With a larger value it takes
longer until commits notice that a topic was deleted and created again (trap 12)."""
LOOK_UPS_MAX: Final = 2
"""Look-ups at one time: clients that name topics at random must not take every thread."""
DEFAULT_RECORD_MAX_BYTES: Final = 1_048_588
"""Kafka's default of ``max.message.bytes``, for a log that does not tell it."""
RESERVED: Final = frozenset({"__transaction_control", "__transaction_offsets"})


class TopicRegistry:
    """Facts of data topics, shared by all shards of a coordinator."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.facts: dict[str, TopicFacts] = {}
        self._looked_up_s: dict[str, float] = {}
        self._looking = asyncio.Semaphore(LOOK_UPS_MAX)

    def missing(self, partitions: Iterable[TopicPartition]) -> set[str]:
        """Returns the topics of `partitions` whose facts must be looked up before they are used."""
        oldest = time.monotonic() - FACTS_MAX_AGE_S
        return {t for t, _ in partitions if self._looked_up_s.get(t, -math.inf) < oldest}

    async def look_up(self, topics: Iterable[str]) -> None:
        """Asks the log about data topics.

        Raises:
            UnknownTopicError: a topic does not exist.
            UnsupportedTopicError: a topic can't take markers, or is internal to logtx.
            BrokerError: the log did not answer.
        """
        for topic in topics:
            if topic in RESERVED:
                raise UnsupportedTopicError(f"topic {topic} is logtx's own")
            try:
                async with self._looking:
                    info = await asyncio.to_thread(self._log.topic_info, topic)
            except UnknownTopicError:
                self.facts.pop(topic, None)
                self._looked_up_s.pop(topic, None)
                raise
            self.facts[topic] = _facts(info)
            self._looked_up_s[topic] = time.monotonic()


def _facts(info: TopicInfo) -> TopicFacts:
    if info.compacted:
        raise UnsupportedTopicError(
            f"topic {info.topic} is compacted (cleanup.policy): Kafka refuses markers there, which"
            " have no key, and would drop committed values under aborted ones; write to a topic"
            " with cleanup.policy=delete and export from it to the compacted one"
        )
    settings = info.settings or {}
    return TopicFacts(
        topic_id=info.topic_id,
        partition_count=info.partition_count,
        record_max_bytes=int(settings.get("max.message.bytes", DEFAULT_RECORD_MAX_BYTES)),
    )
