"""The Log: what logtx needs of a Kafka-compatible log, and nothing more.

A log's producers and consumers are confluent-kafka's own, or objects with the same methods
(`LogProducer`, `LogConsumer`): nothing stands between a client and librdkafka on the hot path.
`Log` adds the few administrative requests, which behave alike on every kind of log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

from ..control import TopicPartition
from ..errors import LogtxError

Headers = list[tuple[str, bytes | None]]
DeliveryCallback = Callable[[KafkaError | None, Message], None]
RebalanceCallback = Callable[["LogConsumer", list[KafkaPartition]], None]


class LogProducer(Protocol):
    """The part of `confluent_kafka.Producer` that logtx calls."""

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: Headers | None = None,
    ) -> None:
        """Queues a record. Raises `BufferError` if the local queue is full."""

    def poll(self, timeout: float = -1) -> int:
        """Serves delivery callbacks for up to `timeout` seconds. Returns how many it served."""

    def flush(self, timeout: float = -1) -> int:
        """Sends what is queued without linger, and serves callbacks. Returns how many are left."""

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Fails queued records, so that a producer that will not be used again closes at once."""

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Replaces the SASL credentials of connections from now on."""

    def close(self) -> bool:
        """Flushes, and releases threads and connections; must not be called from a callback."""

    def __len__(self) -> int:
        """Returns the number of records and callbacks not served yet."""


class LogConsumer(Protocol):
    """The part of `confluent_kafka.Consumer` that logtx calls."""

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None: ...

    def unsubscribe(self) -> None: ...
    def assign(self, partitions: list[KafkaPartition]) -> None: ...
    def unassign(self) -> None: ...
    def incremental_assign(self, partitions: list[KafkaPartition]) -> None: ...
    def incremental_unassign(self, partitions: list[KafkaPartition]) -> None: ...
    def assignment(self) -> list[KafkaPartition]: ...
    def poll(self, timeout: float = -1) -> Message | None: ...
    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]: ...
    def seek(self, partition: KafkaPartition) -> None: ...
    def pause(self, partitions: list[KafkaPartition]) -> None: ...
    def resume(self, partitions: list[KafkaPartition]) -> None: ...
    def commit(
        self,
        message: Message | None = None,
        offsets: list[KafkaPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[KafkaPartition] | None: ...
    def committed(
        self, partitions: list[KafkaPartition], timeout: float = -1
    ) -> list[KafkaPartition]: ...
    def position(self, partitions: list[KafkaPartition]) -> list[KafkaPartition]: ...
    def get_watermark_offsets(
        self, partition: KafkaPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]: ...
    def offsets_for_times(
        self, partitions: list[KafkaPartition], timeout: float = -1
    ) -> list[KafkaPartition]: ...
    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any: ...
    def memberid(self) -> str | None: ...
    def set_sasl_credentials(self, username: str, password: str) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """What the log says about a topic."""

    topic: str
    topic_id: str
    """Kafka's topic id as text; "" where the log has none."""
    partition_count: int
    settings: Mapping[str, str] | None
    """Effective topic settings; None where the log does not tell them (librdkafka's mock)."""
    replication_factor: int
    """Replicas of each partition; the lowest, if they differ."""
    certain: bool = False
    """Whether the answer can't be old: the log has one copy of its metadata."""
    operations: frozenset[str] | None = None
    """What this client may do with the topic, by Kafka's names, such as WRITE; None: not told."""

    @property
    def compacted(self) -> bool:
        """Whether the topic is compacted: it refuses or removes records without a key (markers)."""
        return self.settings is not None and "compact" in self.settings.get("cleanup.policy", "")


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A consumer group's committed offset in one partition."""

    offset: int
    metadata: str


class Log(Protocol):
    """A Kafka-compatible log: an Apache Kafka cluster, librdkafka's mock, or one in memory.

    Every call that asks the log ends within its `timeout_s` and raises `BrokerError` when that
    passes or the broker refuses. Apart from `create_topic`, calls about a topic raise
    `UnknownTopicError` if it, or the partition, does not exist; `group_offset` may return None
    instead. Calls block and are safe from any thread.
    """

    bootstrap_servers: str
    principal: str
    """Name by which the brokers know this client; "" where it does not give them one by itself."""

    def producer(self, config: Mapping[str, Any]) -> LogProducer:
        """Returns a new producer; `config` is librdkafka's, without ``bootstrap.servers``."""

    def consumer(self, config: Mapping[str, Any]) -> LogConsumer:
        """Returns a new consumer; `config` is librdkafka's, without ``bootstrap.servers``."""

    def topic_info(self, topic: str, *, timeout_s: float = 10) -> TopicInfo:
        """Describes a topic.

        Raises:
            UnknownTopicError: no topic has that name.
        """

    def partition_count(self, topic: str, *, timeout_s: float = 10) -> int:
        """Returns a topic's number of partitions. Needs no right but to see the topic.

        Raises:
            UnknownTopicError: no topic has that name.
        """

    def topic_ids(self, topics: Sequence[str], *, timeout_s: float = 10) -> dict[str, str]:
        """Returns the ids of those topics that exist and have one, with one request.

        Needs no right but to see the topics; one that may not be seen is left out.
        """

    def topic_infos(
        self, topics: Sequence[str], *, timeout_s: float = 10
    ) -> dict[str, TopicInfo | LogtxError]:
        """Describes several topics at once.

        Returns:
            Topic → what the log says about it, or the error: `UnknownTopicError` if no topic has
            that name, `BrokerError` if the log refused to describe it.
        """

    def topics(self, *, timeout_s: float = 10) -> set[str]:
        """Returns the names of all topics that this client may see.

        A broker that is behind may leave out a new topic, or name one that was deleted.
        """

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int,
        replication_factor: int = -1,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = 30,
    ) -> bool:
        """Creates a topic and waits until it can be used. Returns False if it existed already."""

    def raise_partitions(self, topic: str, partitions: int, *, timeout_s: float = 30) -> None:
        """Raises a topic's number of partitions, and waits until they can be used.

        Does nothing if it has as many.
        """

    def delete_topic(self, topic: str, *, timeout_s: float = 30) -> None:
        """Deletes a topic and its records."""

    def start_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        """Returns the offset of the first record that is still there."""

    def end_offset(self, topic: str, partition: int, *, timeout_s: float = 10) -> int:
        """Returns the offset that the next record will get."""

    def start_offsets(
        self, partitions: Collection[TopicPartition], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int]:
        """Returns what `start_offset` returns of each partition, by one request for all."""

    def end_offsets(
        self, partitions: Collection[TopicPartition], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int]:
        """Returns what `end_offset` returns of each partition, by one request for all."""

    def each_start_offset(
        self, partitions: Collection[TopicPartition], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int | LogtxError]:
        """Works like `each_end_offset`, for `start_offset`."""

    def each_end_offset(
        self, partitions: Collection[TopicPartition], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int | LogtxError]:
        """Asks once for the end of each partition, and repeats nothing.

        A broker that does not answer holds back the answer of the others until most of the time is
        up, and spoils only its own. The next question goes to who leads by then.

        Returns:
            Partition → its end, or the error: `UnknownTopicError` if it does not exist, as far as
            the broker that was asked knows; `BrokerError` if nobody answered for it.
        """

    def offset_for_time(
        self, topic: str, partition: int, wall_ms: int, *, timeout_s: float = 10
    ) -> int | None:
        """Returns the offset of the first record stamped at `wall_ms` or later, or None.

        The topic's ``message.timestamp.type`` says by whose clock the records are stamped.

        Args:
            topic: the topic.
            partition: its number.
            wall_ms: milliseconds since 1970.
            timeout_s: longest wait in seconds.
        """

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], *, timeout_s: float = 10
    ) -> dict[TopicPartition, int | None]:
        """Returns what `offset_for_time` returns of each partition, by one request for all."""

    def delete_records(
        self, topic: str, partition: int, before_offset: int, *, timeout_s: float = 10
    ) -> None:
        """Deletes the records of a partition below `before_offset`."""

    def group_offset(
        self, group: str, topic: str, partition: int, *, timeout_s: float = 10
    ) -> GroupOffset | None:
        """Returns a group's committed offset and its metadata, or None if there is none."""

    def commit_group_offset(
        self,
        group: str,
        topic: str,
        partition: int,
        value: GroupOffset,
        *,
        timeout_s: float = 10,
    ) -> None:
        """Commits an offset for a group without members."""

    def groups_with_members(self, groups: Iterable[str], *, timeout_s: float = 10) -> set[str]:
        """Returns those of some consumer groups that have a member at present."""

    def group_members(self, group: str, *, timeout_s: float = 10) -> list[str]:
        """Returns who is in a consumer group at present, in words: client id and host, or the
        member's id."""

    def close(self) -> None:
        """Releases what the log holds; the owner of a client that it made closes that client."""
