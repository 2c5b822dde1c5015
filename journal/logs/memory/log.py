"""A log within this process: Kafka's behaviour as far as logtx depends on it, and faults on demand.

``memory://name`` names a log; all code in the process that uses the name shares it. Offsets are
contiguous, all readers see an append at once, and producers and consumers behave like
confluent-kafka's: a client can tell the difference only by speed. It has no batches (a refused
record fails alone), no replication, no compaction and no retention by time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from confluent_kafka import KafkaError

from ...control import TopicPartition
from ...errors import BrokerError, LogtxError, UnknownTopicError
from ..interface import GroupOffset, TopicInfo
from .broker import METADATA_MAX_CHARS, SCHEME, MemoryBroker, MemoryPartition, MemoryTopic
from .consumer import MemoryConsumer
from .producer import MemoryProducer


class MemoryLog(MemoryBroker):
    """The `Log` within this process; safe from any thread. Its faults: see `MemoryBroker`."""

    _registry: ClassVar[dict[str, Self]] = {}
    _registry_lock: ClassVar = threading.Lock()

    @classmethod
    def named(cls, name: str) -> Self:
        """Returns the log of that name, which it creates at first; ``memory://`` may precede it."""
        name = name.removeprefix(SCHEME)
        with cls._registry_lock:
            if name not in cls._registry:
                cls._registry[name] = cls(name)
            return cls._registry[name]

    @classmethod
    def drop(cls, name: str) -> None:
        """Forgets a log; the next use of its name creates an empty one."""
        with cls._registry_lock:
            cls._registry.pop(name.removeprefix(SCHEME), None)

    # ---- Log

    def producer(self, config: Mapping[str, Any]) -> MemoryProducer:
        """Returns a new producer; see `MemoryProducer` for the settings it heeds."""
        return MemoryProducer(self, config)

    def consumer(self, config: Mapping[str, Any]) -> MemoryConsumer:
        """Returns a new consumer; see `MemoryConsumer` for the settings it heeds."""
        return MemoryConsumer(self, config)

    def topic_info(self, topic: str, *, timeout_s: float = 10) -> TopicInfo:
        """Describes a topic; raises `UnknownTopicError` if it does not exist."""
        with self._asked(timeout_s):
            found = self._topic(topic)
            return TopicInfo(
                topic=topic,
                topic_id=found.id,
                partition_count=len(found.partitions),
                settings=dict(found.settings),
                replication_factor=1,
                certain=True,
            )

    def partition_count(self, topic: str, *, timeout_s: float = 10) -> int:
        """Returns a topic's number of partitions; raises `UnknownTopicError` without one."""
        return self.topic_info(topic, timeout_s=timeout_s).partition_count

    def topic_ids(self, topics: Sequence[str], *, timeout_s: float = 10) -> dict[str, str]:
        """Returns the ids of those topics that exist."""
        infos = self.topic_infos(topics, timeout_s=timeout_s)
        return {t: info.topic_id for t, info in infos.items() if isinstance(info, TopicInfo)}

    def topic_infos(
        self, topics: Sequence[str], *, timeout_s: float = 10
    ) -> dict[str, TopicInfo | LogtxError]:
        """Describes several topics at once."""
        found: dict[str, TopicInfo | LogtxError] = {}
        for topic in topics:
            try:
                found[topic] = self.topic_info(topic, timeout_s=timeout_s)
            except UnknownTopicError as error:
                found[topic] = error
        return found

    def topics(self, *, timeout_s: float = 10) -> set[str]:
        """Returns the names of all topics."""
        with self._asked(timeout_s):
            return set(self._topics)

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int,
        replication_factor: int = -1,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = 30,
    ) -> bool:
        """Creates a topic. Returns False if it existed already. Ignores the replication factor."""
        del replication_factor
        if partitions < 1:
            raise BrokerError(f"topic {topic!r} can't have {partitions} partitions")
        with self._asked(timeout_s):
            if topic in self._topics:
                return False
            self._topics[topic] = MemoryTopic(partitions, settings or {})
            self._topics_changed(topic)
            return True

    def raise_partitions(self, topic: str, partitions: int, *, timeout_s: float = 30) -> None:
        """Raises a topic's number of partitions; raises `UnknownTopicError` if it does not
        exist."""
        with self._asked(timeout_s):
            self.add_partitions(topic, partitions)

    def delete_topic(self, topic: str, *, timeout_s: float = 30) -> None:
        """Deletes a topic and its records; raises `UnknownTopicError` if it does not exist."""
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
        """Returns the offset of the first record that is still there."""
        with self._asked(timeout_s):
            return self._partition(topic, partition).start

    def end_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        """Returns the offset that the next record will get."""
        with self._asked(timeout_s):
            return self._partition(topic, partition).end

    def start_offsets(
        self, partitions: Collection[TopicPartition], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int]:
        """Returns the first offset of each partition."""
        return {key: self.start_offset(*key, timeout_s=timeout_s) for key in partitions}

    def end_offsets(
        self, partitions: Collection[TopicPartition], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int]:
        """Returns the end offset of each partition."""
        return {key: self.end_offset(*key, timeout_s=timeout_s) for key in partitions}

    def each_start_offset(
        self, partitions: Collection[TopicPartition], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int | LogtxError]:
        """Returns the first offset of each partition, or why it is not told."""
        return self._each(partitions, lambda found: found.start, timeout_s)

    def each_end_offset(
        self, partitions: Collection[TopicPartition], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int | LogtxError]:
        """Returns the end offset of each partition, or why it is not told."""
        return self._each(partitions, lambda found: found.end, timeout_s)

    def _each(
        self,
        partitions: Collection[TopicPartition],
        offset_of: Callable[[MemoryPartition], int],
        timeout_s: float,
    ) -> dict[TopicPartition, int | LogtxError]:
        found: dict[TopicPartition, int | LogtxError] = {}
        try:
            with self._asked(timeout_s):
                for key in partitions:
                    try:
                        found[key] = offset_of(self._partition(*key))
                    except UnknownTopicError as error:
                        found[key] = error
        except BrokerError as error:
            return dict.fromkeys(partitions, error)
        return found

    def offset_for_time(
        self, topic: str, partition: int, wall_ms: int, *, timeout_s: float = 10
    ) -> int | None:
        """Returns the offset of the first record stamped at `wall_ms` or later, or None."""
        with self._asked(timeout_s):
            return self._partition(topic, partition).offset_at(wall_ms)

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int | None]:
        """Returns what `offset_for_time` returns of each partition."""
        return {
            key: self.offset_for_time(*key, wall_ms, timeout_s=timeout_s)
            for key, wall_ms in times_ms.items()
        }

    def delete_records(
        self, topic: str, partition: int, before_offset: int, *, timeout_s: float = 10
    ) -> None:
        """Deletes the records below `before_offset`.

        Raises:
            BrokerError: beyond the end, or the topic is compacted.
        """
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
        """Returns a group's committed offset and its metadata, or None if there is none."""
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
        """Commits for a group without members; raises `BrokerError` if it has any."""
        with self._asked(timeout_s):
            self._partition(topic, partition)
            if self.group(group).members:
                raise BrokerError(f"the group {group!r} has members: only they may commit")
            if len(value.metadata) > METADATA_MAX_CHARS:
                raise BrokerError(f"commit metadata of {len(value.metadata)} characters")
            self.group(group).offsets[topic, partition] = value

    def groups_with_members(self, groups: Iterable[str], *, timeout_s: float = 10) -> set[str]:
        """Returns those of some consumer groups that have a member at present."""
        with self._asked(timeout_s):
            return {name for name in groups if self.group(name).members}

    def group_members(self, group: str, *, timeout_s: float = 10) -> list[str]:
        """Returns the ids of a consumer group's members."""
        with self._asked(timeout_s):
            return sorted(map(str, self.group(group).members))

    def close(self) -> None:
        """Does nothing: the records stay until `drop`."""

    @contextmanager
    def _asked(self, timeout_s: float) -> Iterator[None]:
        with self.changed:
            if not self.wait_available(timeout_s):
                raise BrokerError(f"no answer from {self.bootstrap_servers} in {timeout_s} s")
            yield
