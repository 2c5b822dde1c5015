"""Asks the cluster past the proxies what is unfinished, and how far the clients are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka import admin as kafka_admin

from ..coordinator.client.admin import AdminQueries
from ..journal.errors import LogtxError
from ..journal.logs.interface import Log
from ..journal.position import Position
from .options import System
from .settings import QUEUE, SPARK_GROUP, Settings, partitions_now
from .workload.readers import consumer_readers

_TIMEOUT_S: Final = 5.0
"""Bounds each question. A smaller value gets no answer while a leader changes, a larger one delays
the run's progress."""
_OFFSET_SPEC: Final[Any] = kafka_admin.OffsetSpec  # type: ignore[attr-defined]


class Inspector(Protocol):
    """Asks the cluster. Every question is bounded; None means no answer in time."""

    def unfinished(self, topic: str = "") -> frozenset[str] | None:
        """Returns names of unfinished transactions; of Kafka's, the oldest of each partition.

        `topic`: only those that list this topic; "": all. Kafka's are all.
        """

    def worked_off(self) -> dict[int, int] | None:
        """Returns partition of the data topic → offset below which the workers are done."""

    def needed_from(self, topic: str, partition: int) -> int | None:
        """Returns the first offset that a consumer or worker may still read."""

    def close(self) -> None:
        """Closes the inspector."""


class _Readers:
    """The consumers' positions, which both systems keep in Kafka."""

    def __init__(self, log: Log, settings: Settings) -> None:
        self._log = log
        self._groups = sorted({reader.group for reader in consumer_readers(settings)})

    def needed_from(self, topic: str, partition: int) -> int | None:
        """Returns the lowest offset that the groups have committed; None if one has none."""
        try:
            found = [self._log.group_offset(group, topic, partition) for group in self._groups]
        except LogtxError:
            return None
        offsets = [offset.offset for offset in found if offset is not None]
        return min(offsets) if len(offsets) == len(found) else None


class QueueNeeds:
    """What the queue needs of each partition, of which only the end of what is deleted is told.

    A message that is left may lie far below that end: its transaction may have written long before
    it committed. How far, the workers' positions told when they were there.
    """

    def __init__(self) -> None:
        self._positions: dict[int, list[tuple[int, int]]] = {}
        """Partition → (o2, o1) of a worker's positions, in order."""

    def note(self, partition: int, position: Position) -> None:
        """Notes a position of the workers."""
        noted = self._positions.setdefault(partition, [])
        if not noted or noted[-1][0] < position.o2:
            noted.append((position.o2, position.o1))

    def needed_from(self, partition: int, start: int) -> int | None:
        """Returns the first offset that the queue needs; None if it is not known.

        Args:
            partition: of the data topic.
            start: everything that was committed below this offset is deleted from the queue.
        """
        below = [o1 for o2, o1 in self._positions.get(partition, ()) if o2 <= start]
        return below[-1] if below else None


class LogtxInspector:
    """Asks logtx's coordinators, reached as clients reach them."""

    def __init__(self, log: Log, clients_log: Log, settings: Settings, directory: Path) -> None:
        """Opens the queries to the coordinators.

        Args:
            log: past the proxies.
            clients_log: through the proxies.
            settings: of the run.
            directory: of the run.
        """
        self._settings = settings
        self._directory = directory
        self._readers = _Readers(log, settings)
        self._groups = [settings.workers_group]
        self._queue_needs = QueueNeeds()
        if settings.spark_topic is not None:
            self._groups.append(SPARK_GROUP)
        self._queries = AdminQueries(clients_log, timeout_s=_TIMEOUT_S)

    def unfinished(self, topic: str = "") -> frozenset[str] | None:
        """Returns the transactions that the coordinators list."""
        try:
            return frozenset(
                str(transaction.txid)
                for partition in range(self._queries.partition_count())
                for transaction in self._queries.list_transactions(partition, topic=topic)
            )
        except LogtxError:
            return None

    def worked_off(self) -> dict[int, int] | None:
        """Returns how far the workers are, of the group or the queue that is behind: o2 of each."""
        partitions = range(partitions_now(self._directory, self._settings))
        found: list[Mapping[int, int] | None] = []
        for group in self._groups:
            positions = self._positions(group, partitions)
            found.append(None if positions is None else {p: o.o2 for p, o in positions.items()})
        if self._settings.queue:
            found.append(self._queue_starts())
        known = [offsets for offsets in found if offsets is not None]
        if len(known) < len(found):
            return None
        return {
            p: min(offsets[p] for offsets in known)
            for p in partitions
            if all(p in offsets for offsets in known)
        }

    def needed_from(self, topic: str, partition: int) -> int | None:
        """Returns the lowest position of the consumers and, for their input, of the workers."""
        least = self._readers.needed_from(topic, partition)
        if least is None or topic != self._settings.data_topic:
            return least
        # Asks for this partition alone: an answer waits until no transaction holds its offset.
        for group in self._groups:
            position = (self._positions(group, [partition]) or {}).get(partition)
            if position is None:
                return None
            least = min(least, position.o1)
            if group == self._settings.workers_group:
                self._queue_needs.note(partition, position)
        if self._settings.queue:
            start = (self._queue_starts() or {}).get(partition)
            needed = None if start is None else self._queue_needs.needed_from(partition, start)
            return None if needed is None else min(least, needed)
        return least

    def _queue_starts(self) -> dict[int, int] | None:
        """Returns partition of the data topic → offset below which all of the queue is deleted."""
        try:
            _, found = self._queries.subscription(QUEUE)
        except LogtxError:
            return None
        return {each.partition.partition: each.start.offset for each in found.partitions}

    def _positions(self, group: str, partitions: Iterable[int]) -> dict[int, Position] | None:
        keys = [(self._settings.data_topic, partition) for partition in partitions]
        try:
            found = self._queries.fetch_offsets(group, keys).offsets
        except LogtxError:
            return None
        return {partition: position for (_, partition), position in found.items()}

    def close(self) -> None:
        """Closes the queries."""
        self._queries.close()


class KafkaInspector:
    """Asks Kafka for its own offsets."""

    def __init__(self, log: Log, settings: Settings, directory: Path) -> None:
        """Opens an admin client.

        Args:
            log: past the proxies.
            settings: of the run.
            directory: of the run.
        """
        self._directory = directory
        self._log = log
        self._settings = settings
        self._readers = _Readers(log, settings)
        self._admin: Any = kafka_admin.AdminClient(
            {"bootstrap.servers": log.bootstrap_servers, "log_level": 2}
        )

    def unfinished(self, topic: str = "") -> frozenset[str] | None:  # noqa: ARG002
        """Returns the last stable offsets that are below the partition's end."""
        try:
            stable = self._ends(IsolationLevel.READ_COMMITTED)
            ends = self._ends(IsolationLevel.READ_UNCOMMITTED)
        except (KafkaException, TimeoutError):
            return None
        return frozenset(
            f"{place.topic}[{place.partition}]@{offset}"
            for place, offset in stable.items()
            if offset < ends[place]
        )

    def _ends(self, isolation: Any) -> dict[KafkaPartition, int]:
        latest: Any = _OFFSET_SPEC.latest()
        asked = {
            KafkaPartition(topic, number): latest
            for topic in (self._settings.data_topic, self._settings.out_topic)
            for number in range(partitions_now(self._directory, self._settings))
        }
        told = self._admin.list_offsets(
            asked, isolation_level=isolation, request_timeout=_TIMEOUT_S
        )
        return {place: told[place].result(_TIMEOUT_S).offset for place in asked}

    def worked_off(self) -> dict[int, int] | None:
        """Returns the committed offsets of the workers' group."""
        found = {}
        try:
            for partition in range(partitions_now(self._directory, self._settings)):
                at = self._log.group_offset(
                    self._settings.workers_group, self._settings.data_topic, partition
                )
                if at is not None:
                    found[partition] = at.offset
        except LogtxError:
            return None
        return found

    def needed_from(self, topic: str, partition: int) -> int | None:
        """Returns the lowest position of the consumers and, for their input, of the workers."""
        least = self._readers.needed_from(topic, partition)
        if least is None or topic != self._settings.data_topic:
            return least
        at = (self.worked_off() or {}).get(partition)
        return None if at is None else min(least, at)

    def close(self) -> None:
        """Does nothing."""


def open_inspector(log: Log, clients_log: Log, settings: Settings, directory: Path) -> Inspector:
    """Returns an inspector for the run's system."""
    if settings.system is System.LOGTX:
        return LogtxInspector(log, clients_log, settings, directory)
    return KafkaInspector(log, settings, directory)
