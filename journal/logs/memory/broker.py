"""The broker of a log in memory: topics, groups, appends, and the faults that a test asks for.

Knows producers only as `Reporter`s. Does not know consumers: they take the lock and look.
"""

from __future__ import annotations

import base64
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from confluent_kafka import KafkaError
from confluent_kafka.admin._metadata import ClusterMetadata, PartitionMetadata, TopicMetadata

from ...errors import UnknownTopicError
from ..interface import DeliveryCallback, Headers
from .group import Group

Record = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...] | None, int]
"""(key, value, headers or None, timestamp in ms): a record as a log in memory keeps it."""

SCHEME: Final = "memory://"
METADATA_MAX_CHARS: Final = 4095
"""Kafka's limit for the metadata beside a committed offset."""
_RECORD_OVERHEAD_BYTES: Final = 70
"""Roughly what Kafka's format adds to a record's size, which ``max.message.bytes`` limits."""
_DEFAULT_SETTINGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "max.message.bytes": "1048588",
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "false",
    "message.timestamp.type": "CreateTime",
}


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Reporter(Protocol):
    """A producer as the broker sees it; the broker calls it under its lock."""

    @property
    def stopped(self) -> bool:
        """Whether no record of this producer may be placed any more."""

    @property
    def epoch(self) -> int:
        """Of the producer id: a record that is sent again in the same one is not written again."""

    def keeps_back(self, pending: Pending) -> bool:
        """Keeps a record behind those of its partition that wait to be sent again, if any do."""

    def fills_gap(self, pending: Pending) -> None:
        """Learns that a record is the next one of its partition which reaches a broker."""

    def hears_nothing(self, pending: Pending, offset: int) -> None:
        """Takes back a written record without an answer, to send it again after a pause."""

    def report(self, pending: Pending, error: int | None, offset: int) -> None:
        """Queues the delivery report of a record, once."""

    def wait_for_place(self, pending: Pending) -> None:
        """Notes that a record has no place yet and may time out."""

    def hears_of(self, pending: Pending, leader_epoch: int | None) -> bool:
        """Tells the leader epoch of a record's partition; None: there is no such partition.

        Returns:
            Whether the producer goes by that, and does not take it for outdated (trap 294).
        """


class LeaderEpochs:
    """What a client was told of the leaders of partitions, as librdkafka keeps it.

    It takes a lower leader epoch than one that it knows for outdated, whatever topic had the name
    then (traps 293, 294).
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], int] = {}

    def hear(self, key: tuple[str, int], leader_epoch: int) -> bool:
        """Takes what it is told of a partition. Returns whether it goes by that."""
        known = self._known.get(key, 0)
        self._known[key] = max(known, leader_epoch)
        return leader_epoch >= known

    def forget(self, key: tuple[str, int]) -> None:
        """Learns that there is no such partition."""
        self._known.pop(key, None)


class Pending:
    """A record on its way from `produce` to its delivery report."""

    __slots__ = (
        *("callback", "deadline_s", "partition", "producer", "queued_s", "record", "reported"),
        *("topic", "written"),
    )

    def __init__(
        self,
        producer: Reporter,
        topic: str,
        partition: int,
        record: Record,
        callback: DeliveryCallback | None,
    ) -> None:
        self.producer = producer
        self.topic = topic
        self.partition = partition
        self.record = record
        self.callback = callback
        self.deadline_s = 0.0
        """Time of its time-out, monotonic clock; set only when the record waits for its place."""
        self.reported = False
        self.queued_s = time.monotonic()
        """When the application gave it, monotonic clock."""
        self.written: tuple[int, int] | None = None
        """(epoch, offset) in which an idempotent producer wrote it without an answer."""


class MemoryPartition:
    """The records of one partition, and the faults that a test asked for."""

    __slots__ = (
        *("failures", "held", "holding", "leader_epoch", "lost_acknowledgements", "lost_answers"),
        *("records", "start"),
    )

    def __init__(self) -> None:
        self.start = 0
        self.leader_epoch = 0
        """How often another leader was elected."""
        self.records: list[Record] = []
        self.holding = False
        self.held: deque[Pending] = deque()
        self.failures: deque[int] = deque()
        self.lost_acknowledgements = 0
        self.lost_answers = 0

    @property
    def end(self) -> int:
        """Offset that the next record will get."""
        return self.start + len(self.records)

    def offset_at(self, timestamp_ms: int) -> int | None:
        """Returns the offset of the first record stamped then or later; stamps need not ascend."""
        for offset, record in enumerate(self.records, self.start):
            if record[3] >= timestamp_ms:
                return offset
        return None

    def trim(self, before: int) -> None:
        """Deletes the records below `before`."""
        if before > self.start:
            del self.records[: before - self.start]
            self.start = before


class MemoryTopic:
    """One topic."""

    __slots__ = ("append_time", "compacted", "id", "max_bytes", "partitions", "settings")

    def __init__(self, partitions: int, settings: Mapping[str, str]) -> None:
        self.id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.partitions = [MemoryPartition() for _ in range(partitions)]
        self.settings = {**_DEFAULT_SETTINGS, **settings}
        self.compacted = "compact" in self.settings["cleanup.policy"]
        self.append_time = self.settings["message.timestamp.type"] == "LogAppendTime"
        self.max_bytes = int(self.settings["max.message.bytes"])


class MemoryBroker:
    """The topics and groups of one log; safe from any thread.

    Args:
        name: the part behind ``memory://``.
        now_ms: wall clock for record timestamps, milliseconds since 1970.
    """

    def __init__(self, name: str, *, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self.bootstrap_servers = SCHEME + name
        self.principal = ""
        self.now_ms = now_ms
        self.changed = threading.Condition()
        """Guards everything below; notified whenever a waiting client may be able to go on."""
        self._topics: dict[str, MemoryTopic] = {}
        self._groups: dict[str, Group] = {}
        self._down = False
        self.holds_answers = False
        """Whether answers to asynchronous commits are on their way."""
        self._queued: dict[int, Pending] = {}
        # Records produced during an outage, in order, by id(): their producers have them still.

    # ---- for tests: faults and a foreign writer

    def fail_appends(self, topic: str, partition: int, error_code: int, count: int = 1) -> None:
        """For tests: refuses the next `count` appends with this `KafkaError` code."""
        with self.changed:
            self._partition(topic, partition).failures.extend([error_code] * count)

    def hold_appends(self, topic: str, partition: int) -> None:
        """For tests: holds every record from now on; places and acknowledges it on release.

        A held record is in flight: its producer may report a time-out meanwhile, and the record is
        placed on release all the same.
        """
        with self.changed:
            self._partition(topic, partition).holding = True

    def release_appends(self, topic: str, partition: int, count: int | None = None) -> None:
        """For tests: places held records in order; with `count`, only that many, and holds on."""
        with self.changed:
            found = self._partition(topic, partition)
            for _ in range(len(found.held) if count is None else min(count, len(found.held))):
                self._append(self._topic(topic), found, found.held.popleft())
            found.holding = count is not None
            self.changed.notify_all()

    def held_appends(self, topic: str, partition: int) -> int:
        """For tests: returns the number of held records."""
        with self.changed:
            return len(self._partition(topic, partition).held)

    def let_overtake(self, topic: str, partition: int) -> None:
        """For tests: moves the record held last to the front, as if sent by another connection."""
        with self.changed:
            self._partition(topic, partition).held.rotate(1)

    def lose_acknowledgements(self, topic: str, partition: int, count: int = 1) -> None:
        """For tests: appends the next `count` records and reports them as _MSG_TIMED_OUT."""
        with self.changed:
            self._partition(topic, partition).lost_acknowledgements += count

    def lose_answers(self, topic: str, partition: int, count: int = 1) -> None:
        """For tests: appends the next `count` records, and lets their producers send them again.

        As when a leader ends before it has answered. Its successor knows what it has written by the
        producer's epoch, and answers. If the producer has taken another epoch meanwhile, for some
        other record failed, it is written again (trap 295).
        """
        with self.changed:
            self._partition(topic, partition).lost_answers += count

    def hold_answers(self, held: bool = True) -> None:
        """For tests: begins or ends a time in which no consumer hears what became of its commits.

        They take effect all the same.
        """
        self.holds_answers = held

    def append_directly(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
    ) -> int:
        """For tests: appends as a foreign writer, past faults and holds. Returns the offset."""
        with self.changed:
            found = self._partition(topic, partition)
            stamp = self.now_ms() if timestamp_ms is None else timestamp_ms
            found.records.append((key, value, tuple(headers) if headers else None, stamp))
            self.changed.notify_all()
            return found.end - 1

    def truncate(self, topic: str, partition: int, end: int) -> None:
        """For tests: loses the records from `end` on, as an unclean leader election does."""
        with self.changed:
            found = self._partition(topic, partition)
            del found.records[max(end - found.start, 0) :]

    def unavailable(self, down: bool = True) -> None:
        """For tests: begins or ends an outage, in which every request times out.

        Records stay with their producers, which place them if the outage ends before their
        ``message.timeout.ms``.
        """
        with self.changed:
            self._down = down
            if not down:
                waiting, self._queued = self._queued, {}
                for pending in waiting.values():
                    self.submit(pending)
            self.changed.notify_all()

    def add_partitions(self, topic: str, count: int) -> None:
        """For tests: raises the number of a topic's partitions to `count`."""
        with self.changed:
            partitions = self._topic(topic).partitions
            partitions += [MemoryPartition() for _ in range(count - len(partitions))]
            self._topics_changed(topic)

    def elect(self, topic: str, partition: int) -> None:
        """For tests: gives a partition another leader."""
        with self.changed:
            self._partition(topic, partition).leader_epoch += 1
            self.changed.notify_all()

    def expel_member(self, group: str, member_id: str) -> None:
        """For tests: lets a member's session expire, as after a long SIGSTOP."""
        with self.changed:
            found = self.group(group)
            found.expel(found.members[member_id])
            self.changed.notify_all()

    # ---- for the clients; all but `wait_available` are called under the lock

    @property
    def down(self) -> bool:
        """Whether an outage is under way."""
        return self._down

    def wait_available(self, timeout_s: float) -> bool:
        """Waits for the end of an outage, under the lock. Returns False if the time is up."""
        until = None if timeout_s < 0 else timeout_s
        return not self._down or self.changed.wait_for(lambda: not self._down, until)

    def find_partition(self, topic: str, partition: int) -> MemoryPartition | None:
        """Returns a partition, or None if it does not exist."""
        found = self._topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def count_partitions(self, topic: str) -> int:
        """Returns the number of a topic's partitions; 0 for an unknown topic."""
        found = self._topics.get(topic)
        return len(found.partitions) if found else 0

    def partition_counts(self) -> dict[str, int]:
        """Returns the number of partitions of every topic."""
        return {name: len(t.partitions) for name, t in self._topics.items()}

    def group(self, name: str) -> Group:
        """Returns a consumer group; creates it at its first use."""
        found = self._groups.get(name)
        if found is None:
            found = self._groups[name] = Group()
        return found

    def metadata(self, topic: str | None) -> ClusterMetadata:
        """Returns the answer to `list_topics`, for one topic or all."""
        cluster = ClusterMetadata()
        for name in [topic] if topic else list(self._topics):
            described = TopicMetadata()
            described.topic = name
            if name not in self._topics:
                described.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            for number in range(self.count_partitions(name)):
                described.partitions[number] = PartitionMetadata()
                described.partitions[number].id = number
            cluster.topics[name] = described
        return cluster

    def submit(self, pending: Pending) -> None:
        """Takes a record in: places it, holds it back, or fails it."""
        topic = self._topics.get(pending.topic)
        if pending.producer.keeps_back(pending):
            return
        if self._down:
            self._queued[id(pending)] = pending
            pending.producer.wait_for_place(pending)
        elif topic is None or pending.partition >= len(topic.partitions):
            pending.producer.hears_of(pending, None)
            pending.producer.report(pending, KafkaError.UNKNOWN_TOPIC_OR_PART, -1001)
            self.changed.notify_all()
        elif not pending.producer.hears_of(
            pending, topic.partitions[pending.partition].leader_epoch
        ):
            self._queued[id(pending)] = pending
            pending.producer.wait_for_place(pending)
        elif topic.partitions[pending.partition].holding:
            topic.partitions[pending.partition].held.append(pending)
            pending.producer.wait_for_place(pending)
        else:
            self._append(topic, topic.partitions[pending.partition], pending)
            self.changed.notify_all()

    def is_queued(self, pending: Pending) -> bool:
        """Returns whether a record is still with its producer, because of an outage."""
        return id(pending) in self._queued

    def give_up(self, pending: Pending) -> None:
        """Drops a record that timed out: it is never sent, unless it is in flight already."""
        self._queued.pop(id(pending), None)

    # ---- own

    def _append(self, topic: MemoryTopic, partition: MemoryPartition, pending: Pending) -> None:
        if pending.producer.keeps_back(pending):
            return
        pending.producer.fills_gap(pending)
        if pending.written is not None and pending.written[0] == pending.producer.epoch:
            pending.producer.report(pending, None, pending.written[1])
            return
        error = self._refusal(topic, partition, pending)
        if error is not None:
            pending.producer.report(pending, error, -1001)
            return
        record = pending.record
        if topic.append_time:
            record = (*record[:3], self.now_ms())
        partition.records.append(record)
        if partition.lost_acknowledgements:
            partition.lost_acknowledgements -= 1
            pending.producer.report(pending, KafkaError._MSG_TIMED_OUT, -1001)
        elif partition.lost_answers:
            partition.lost_answers -= 1
            pending.producer.hears_nothing(pending, partition.end - 1)
        else:
            pending.producer.report(pending, None, partition.end - 1)

    def _refusal(
        self, topic: MemoryTopic, partition: MemoryPartition, pending: Pending
    ) -> int | None:
        """Returns the code of the error with which a record is refused; None: it is not."""
        key, value, headers, _ = pending.record
        if pending.producer.stopped:
            return KafkaError._FATAL
        if partition.failures:
            return partition.failures.popleft()
        if topic.compacted and key is None:
            return KafkaError.INVALID_RECORD
        size = len(value or b"") + len(key or b"") + _RECORD_OVERHEAD_BYTES
        if headers:
            size += sum(len(name) + len(v or b"") + 2 for name, v in headers)
        return KafkaError.MSG_SIZE_TOO_LARGE if size > topic.max_bytes else None

    def _topic(self, topic: str) -> MemoryTopic:
        found = self._topics.get(topic)
        if found is None:
            raise UnknownTopicError(f"there is no topic {topic!r}")
        return found

    def _partition(self, topic: str, partition: int) -> MemoryPartition:
        self._topic(topic)
        found = self.find_partition(topic, partition)
        if found is None:
            raise UnknownTopicError(f"topic {topic!r} has no partition {partition}")
        return found

    def _topics_changed(self, topic: str) -> None:
        for group in self._groups.values():
            group.topics_changed([topic])
        self.changed.notify_all()
