"""Implements `Log` for a Kafka cluster, through confluent-kafka.

Requests go through one `AdminClient`, which needs no lock and no consumer group. Measured warm on
one broker, p50: `end_offset` 0.3 ms (always from the leader, never cached), `group_offset` 0.5 ms,
`commit_group_offset` 11 ms.

librdkafka's mock cluster (``test.mock.num.brokers``) is supported within its limits: it creates
topics by itself, returns no topic settings and cannot trim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from .asking import Asking, Promise
from .group_clients import GroupCommitter, GroupReader, close_all
from .interface import GroupOffset
from .kafka_offsets import KafkaOffsets


class KafkaLog(KafkaOffsets):
    """The `Log` of a Kafka-compatible cluster; safe from any thread.

    Args:
        config: the user's whole configuration, see `KafkaCluster`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._group_readers: dict[str, GroupReader] = {}
        self._group_committers: dict[str, GroupCommitter] = {}

    def group_offset(
        self, group: str, topic: str, partition: int, *, timeout_s: float = 10
    ) -> GroupOffset | None:
        """Returns a group's committed offset and its metadata, or None if there is none.

        It asks through a consumer that never joins the group. The admin client's own request
        crashes the process (librdkafka 2.12 to 2.14, at least) while the group's coordinator is
        starting: its handler refreshes a consumer group that an admin client does not have.

        Raises:
            BrokerError: no answer, or refused.
        """
        asking = self._asking(f"offset of group {group!r}", timeout_s, "DESCRIBE", group=group)

        place = KafkaPartition(topic, partition)

        def ask(_left_s: float) -> KafkaPartition:
            while (found := self._group_reader(group).read(place, asking)) is None:
                pass  # `close` came between; the next reader is a new one.
            return found

        found = asking.answer(ask)
        return GroupOffset(found.offset, found.metadata or "") if found.offset >= 0 else None

    def groups_with_members(self, groups: Iterable[str], *, timeout_s: float = 10) -> set[str]:
        """Returns those of some consumer groups that have a member at present, or may not be seen.

        Raises:
            BrokerError: no answer, or refused.
        """
        names = list(groups)
        asking = self._asking(f"members of {len(names)} consumer groups", timeout_s)
        self._refuse_mock(asking)

        def ask(left_s: float) -> set[str]:
            futures = self._admin().describe_consumer_groups(names, request_timeout=left_s)
            return {name for name, f in futures.items() if _has_members(asking, f)}

        return asking.answer(ask) if names else set()

    def group_members(self, group: str, *, timeout_s: float = 10) -> list[str]:
        """Returns client id and host of each member of a consumer group at present.

        Raises:
            BrokerError: no answer, or refused.
        """
        asking = self._asking(f"the members of consumer group {group!r}", timeout_s)
        self._refuse_mock(asking)

        def ask(left_s: float) -> list[str]:
            futures = self._admin().describe_consumer_groups([group], request_timeout=left_s)
            found = _described_group(asking, futures[group])
            members = () if found is None else found.members
            return sorted(f"{m.client_id} at {m.host.lstrip('/')}" for m in members)

        return asking.answer(ask)

    def _group_reader(self, group: str) -> GroupReader:
        with self._lock:
            if group not in self._group_readers:
                self._group_readers[group] = GroupReader(self.consumer, group)
            return self._group_readers[group]

    def commit_group_offset(
        self,
        group: str,
        topic: str,
        partition: int,
        value: GroupOffset,
        *,
        timeout_s: float = 10,
    ) -> None:
        """Commits an offset for a group without members; the last write wins.

        It commits through a consumer that never joins, as `group_offset` does: the admin client's
        own request crashes the process when the group's coordinator breaks the connection
        (confluentinc/librdkafka #5397: an assertion on ``eonce->refcnt``).

        Raises:
            UnknownTopicError: no such topic or partition.
            BrokerError: the group has members, no answer, or refused.
        """
        asking = self._asking(f"commit of group {group!r}", timeout_s, "READ", group=group)
        place = KafkaPartition(topic, partition, value.offset, metadata=value.metadata)
        with self._lock:
            if group not in self._group_committers:
                self._group_committers[group] = GroupCommitter(self.consumer, group)
            committer = self._group_committers[group]
        asking.answer(lambda _left_s: committer.commit(place, asking))

    def close(self) -> None:
        """Releases all clients of this log's own; the next request makes new ones."""
        with self._lock:
            self._admin_client = None
            clients = [*self._group_readers.values(), *self._group_committers.values()]
            self._group_readers.clear()
            self._group_committers.clear()
        if self._ends is not None:
            self._ends.close()
        close_all(clients)


def _described_group(asking: Asking, future: Promise[Any]) -> Any:
    """Returns what the brokers say of a consumer group, or None if they don't know it."""
    try:
        return asking.result(future)
    except KafkaException as exception:
        if exception.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return None
        raise


def _has_members(asking: Asking, future: Promise[Any]) -> bool:
    try:
        found = _described_group(asking, future)
    except KafkaException as exception:
        if exception.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return True  # One group that may not be seen must not hide all others.
        raise
    return found is not None and (bool(found.members) or found.state.name not in ("EMPTY", "DEAD"))
