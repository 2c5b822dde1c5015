"""The topics of the benchmark: the same ones in either mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from confluent_kafka import KafkaError, Message
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from logtx.coordinator.client.admin import AdminQueries
from logtx.integration.local.topics import create_topic
from logtx.journal.logs.interface import Log
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.modes import Mode
from logtx.journal.producer_ids import DEFAULT_TRANSACTION_GROUP

from ..clients import CONNECT_TIMEOUT_S

WIDE: Final = "wide-"
"""What the topics with many partitions are for begins so."""
MODES: Final = (Mode.MARKERS, Mode.METADATA)
_SEALED_MAX_BYTES: Final = "1"
"""A topic that takes records of at most one byte takes none."""
_OPEN_MAX_BYTES: Final = "1048588"
WARM_TIMEOUT_S: Final = 120.0
"""Longest wait for the broker's indexes; beyond it the run fails."""
INDEX_INTERVAL_BYTES: Final = 4_096
"""Kafka's default of ``log.index.interval.bytes``: the first batch behind so many bytes makes the
first entries of a segment's two indexes."""


def topic_of(what: str, mode: Mode) -> str:
    """Returns the name of a topic."""
    return f"bench-{what}-{mode}"


def make_topics(servers: str, partition_counts: dict[str, int]) -> None:
    """Creates each topic in both modes. All are switched at the same time.

    Args:
        servers: of a cluster that has none of them.
        partition_counts: what each one is for → its number of partitions.
    """
    for what, partitions in partition_counts.items():
        for mode in MODES:
            create_topic(servers, topic_of(what, mode), partitions=partitions)
    log = KafkaLog({"bootstrap.servers": servers})
    wide = {what: n for what, n in partition_counts.items() if what.startswith(WIDE)}
    try:
        warm(log, {topic_of(what, mode): n for what, n in wide.items() for mode in MODES})
        with ThreadPoolExecutor(len(partition_counts)) as at_once:
            switched = (topic_of(what, Mode.METADATA) for what in partition_counts)
            list(at_once.map(lambda topic: _switch(log, topic), switched))
    finally:
        log.close()


def warm(log: Log, topics: Mapping[str, int]) -> None:
    """Makes the first entries of the broker's indexes of all partitions, by plain records.

    An index is a sparse file of 10 MB that is mapped into memory. Its first entry makes the file
    system find a block: 10 to 40 ms of CPU on ext4, where all partitions of a topic come to it in
    the same round. With 256 partitions that was a round of 15 s, in either mode.

    Args:
        log: the log.
        topics: topic → its number of partitions.

    Raises:
        TimeoutError: a record was not acknowledged.
    """
    producer = log.producer({"enable.idempotence": True, "linger.ms": 0})
    # The second batch comes behind the bytes of the first.
    for _ in range(2):
        for topic, partitions in topics.items():
            for partition in range(partitions):
                producer.produce(topic, b"x" * INDEX_INTERVAL_BYTES, None, partition)
        if producer.flush(WARM_TIMEOUT_S):
            raise TimeoutError("topics take no records")


def _switch(log: Log, topic: str) -> None:
    admin = AdminQueries(log, timeout_s=CONNECT_TIMEOUT_S)
    group = DEFAULT_TRANSACTION_GROUP
    try:
        admin.set_topic_mode(topic, Mode.METADATA, transaction_group=group)
    finally:
        admin.close()


class Seal:
    """Lets a topic refuse all records, and take them again."""

    def __init__(self, servers: str, topic: str, probe: bytes) -> None:
        """Connects.

        Args:
            servers: of the cluster.
            topic: the topic.
            probe: value of records by which it is tried; some may be written.
        """
        self._topic, self._probe = topic, probe
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self._log = KafkaLog({"bootstrap.servers": servers})
        self._producer = self._log.producer({"enable.idempotence": True, "linger.ms": 0})

    def close(self) -> None:
        """Disconnects."""
        self._log.close()

    def set(self, *, sealed: bool) -> None:
        """Seals the topic, or ends it; returns when it is so. Raises TimeoutError."""
        entry = ConfigEntry(
            "max.message.bytes",
            _SEALED_MAX_BYTES if sealed else _OPEN_MAX_BYTES,
            incremental_operation=AlterConfigOpType.SET,
        )
        resource = ConfigResource(
            ConfigResource.Type.TOPIC, self._topic, incremental_configs=[entry]
        )
        for future in self._admin.incremental_alter_configs([resource]).values():
            future.result(CONNECT_TIMEOUT_S)
        wanted = KafkaError.MSG_SIZE_TOO_LARGE if sealed else None
        if wanted not in self._tries():
            raise TimeoutError(f"topic {self._topic} is not sealed={sealed}")

    def _tries(self) -> Iterator[int | None]:
        """Yields what the broker says to one write after another."""
        for _ in range(1_000):
            told: list[KafkaError | None] = []

            def delivered(
                error: KafkaError | None, _: Message, told: list[KafkaError | None] = told
            ) -> None:
                told.append(error)

            self._producer.produce(self._topic, self._probe, None, 0, on_delivery=delivered)
            if self._producer.flush(CONNECT_TIMEOUT_S) or not told:
                raise TimeoutError(f"topic {self._topic} does not answer")
            yield None if told[0] is None else told[0].code()
