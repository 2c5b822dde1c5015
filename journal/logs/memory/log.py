"""A log in this process: Kafka's behaviour as far as logtx depends on it, and faults on demand.

``memory://name`` names a log; everybody in the process who uses the name shares it. Offsets are
contiguous, an append is seen by all readers at once, and producers and consumers have the manners
of confluent-kafka's, so that a client can't tell the difference except by speed. What it leaves
out: batches (a refused record fails alone), replication, compaction and retention by time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from confluent_kafka import KafkaError

from ...errors import BrokerError
from ..interface import GroupOffset, TopicInfo
from .broker import METADATA_MAX_CHARS, SCHEME, MemoryBroker, MemoryTopic
from .consumer import MemoryConsumer
from .producer import MemoryProducer


class MemoryLog(MemoryBroker):
    """`Log` in this process; safe from any thread. Its faults: see `MemoryBroker`."""

    _registry: ClassVar[dict[str, Self]] = {}
    _registry_lock: ClassVar = threading.Lock()

    @classmethod
    def named(cls, name: str) -> Self:
        """The log of that name, begun at its first mention; ``memory://`` may stand before."""
        name = name.removeprefix(SCHEME)
        with cls._registry_lock:
            if name not in cls._registry:
                cls._registry[name] = cls(name)
            return cls._registry[name]

    @classmethod
    def drop(cls, name: str) -> None:
        """Forget a log; the next mention of its name begins an empty one."""
        with cls._registry_lock:
            cls._registry.pop(name.removeprefix(SCHEME), None)

    # ---- Log

    def producer(self, config: Mapping[str, Any]) -> MemoryProducer:
        """A producer; see `MemoryProducer` for the settings it heeds."""
        return MemoryProducer(self, config)

    def consumer(self, config: Mapping[str, Any]) -> MemoryConsumer:
        """A consumer; see `MemoryConsumer` for the settings it heeds."""
        return MemoryConsumer(self, config)

    def topic_info(self, topic: str, *, timeout_s: float = 10) -> TopicInfo:
        """Describe a topic; `UnknownTopicError` if there is none."""
        with self._asked(timeout_s):
            found = self._topic(topic)
            return TopicInfo(
                topic=topic,
                topic_id=found.id,
                partition_count=len(found.partitions),
                settings=dict(found.settings),
                replication_factor=1,
            )

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int,
        replication_factor: int = -1,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = 30,
    ) -> bool:
        """Create a topic; False if it was there already. The replication factor means nothing."""
        del replication_factor
        if partitions < 1:
            raise BrokerError(f"topic {topic!r} can't have {partitions} partitions")
        with self._asked(timeout_s):
            if topic in self._topics:
                return False
            self._topics[topic] = MemoryTopic(partitions, settings or {})
            self._topics_changed(topic)
            return True

    def delete_topic(self, topic: str, *, timeout_s: float = 30) -> None:
        """Delete a topic and its records; `UnknownTopicError` if there is none."""
        with self._asked(timeout_s):
            gone = self._topic(topic)
            del self._topics[topic]
            for partition in gone.partitions:
                for pending in partition.held:
                    pending.producer.report(pending, KafkaError.UNKNOWN_TOPIC_OR_PART, -1001)
            for group in self._groups.values():
                for key in [k for k in group.offsets if k[0] == topic]:
                    del group.offsets[key]
            self._topics_changed(topic)

    def start_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        """Offset of the first record that is still there."""
        with self._asked(timeout_s):
            return self._partition(topic, partition).start

    def end_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        """Offset that the next record will get."""
        with self._asked(timeout_s):
            return self._partition(topic, partition).end

    def offset_for_time(
        self, topic: str, partition: int, wall_ms: int, *, timeout_s: float = 10
    ) -> int | None:
        """Offset of the first record stamped at `wall_ms` or later; None if there is none."""
        with self._asked(timeout_s):
            return self._partition(topic, partition).offset_at(wall_ms)

    def delete_records(
        self, topic: str, partition: int, before_offset: int, *, timeout_s: float = 10
    ) -> None:
        """Trim a partition's start; `BrokerError` beyond its end or on a compacted topic."""
        with self._asked(timeout_s):
            found = self._partition(topic, partition)
            if self._topic(topic).settings["cleanup.policy"] == "compact":
                raise BrokerError(f"can't trim {topic}-{partition}: the topic is compacted")
            if before_offset > found.end:
                raise BrokerError(
                    f"can't trim {topic}-{partition} to {before_offset}: it ends at {found.end}"
                )
            found.trim(before_offset)
            self.changed.notify_all()

    def group_offset(
        self, group: str, topic: str, partition: int, *, timeout_s: float = 10
    ) -> GroupOffset | None:
        """A group's committed offset and its metadata, or None."""
        with self._asked(timeout_s):
            return self.group(group).offsets.get((topic, partition))

    def commit_group_offset(
        self,
        group: str,
        topic: str,
        partition: int,
        value: GroupOffset,
        *,
        timeout_s: float = 10,
    ) -> None:
        """Commit for a group without members; `BrokerError` if it has any."""
        with self._asked(timeout_s):
            self._partition(topic, partition)
            if self.group(group).members:
                raise BrokerError(f"the group {group!r} has members: only they may commit")
            if len(value.metadata) > METADATA_MAX_CHARS:
                raise BrokerError(f"commit metadata of {len(value.metadata)} characters")
            self.group(group).offsets[topic, partition] = value

    def close(self) -> None:
        """Nothing to release; the records stay until `drop`."""

    @contextmanager
    def _asked(self, timeout_s: float) -> Iterator[None]:
        with self.changed:
            if not self.wait_available(timeout_s):
                raise BrokerError(f"no answer from {self.bootstrap_servers} in {timeout_s} s")
            yield
