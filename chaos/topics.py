"""What is done to whole topics: one is deleted and made anew, the others grow or are sealed.

Kafka has no seal. A topic whose records may have one byte at most takes none: MSG_SIZE_TOO_LARGE.
It can be read, and asked for its ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from ..integration.local.errors import TopicError
from ..integration.local.topics import create_topic, delete_topic
from .errors import ChaosError
from .settings import (
    FLEETING_PARTITIONS,
    SPARK_PARTITIONS,
    Settings,
    partitions_now,
    tell_partitions,
)

TOPIC_SETTINGS: Final = {
    # Small, so that trimming deletes whole files.
    "segment.bytes": str(1024 * 1024),
    "retention.ms": "-1",
}
_SEAL: Final = "max.message.bytes"
PARTITIONS_MAX: Final = SPARK_PARTITIONS
"""Partitions of a topic that does not grow any more: more of them only take processor time."""
_LIMIT_S: Final = 90.0
"""Bounds each change of topics. Kafka refuses to make a topic of three replicas while one of three
brokers is down, and a broker that was killed on a busy machine takes half a minute to come back."""
_ANSWER_S: Final = 10.0
"""Bounds each request."""
_ADMIN: Final[Any] = kafka_admin
_SET: Final[Any] = _ADMIN.AlterConfigOpType.SET
_DELETE: Final[Any] = _ADMIN.AlterConfigOpType.DELETE
_PAUSE_S: Final = 0.5
"""Pause after a request that was refused."""


class Topics:
    """The topics of a run, changed past the proxies."""

    def __init__(self, servers: str, directory: Path, settings: Settings) -> None:
        """Prepares the changes.

        Args:
            servers: the brokers' own addresses.
            directory: of the run.
            settings: of the run.
        """
        self._servers = servers
        self._directory = directory
        self._settings = settings

    def create(self) -> None:
        """Creates all topics. Raises TopicError."""
        settings = self._settings
        for topic in settings.topics:
            fixed = {
                settings.fleeting_topic: FLEETING_PARTITIONS,
                settings.spark_topic: SPARK_PARTITIONS,
            }
            count = fixed.get(topic, settings.partitions)
            create_topic(self._servers, topic, partitions=count, config=TOPIC_SETTINGS)

    def delete(self) -> None:
        """Deletes the fleeting topic. Raises ChaosError if the brokers did not do it in time."""
        # The controller has deleted the topic when it answers. If its answers get lost, the topic
        # is deleted twice: that does no harm, nor does it that `make_anew` finds the topic.
        topic = self._fleeting
        self._repeated(topic, lambda: delete_topic(self._servers, topic, timeout_s=_ANSWER_S))

    @property
    def _fleeting(self) -> str:
        topic = self._settings.fleeting_topic
        assert topic is not None
        return topic

    def make_anew(self) -> None:
        """Makes the fleeting topic, which was deleted. Raises ChaosError as `delete`."""
        topic = self._fleeting
        self._repeated(
            topic,
            lambda: create_topic(
                self._servers,
                topic,
                partitions=FLEETING_PARTITIONS,
                config=TOPIC_SETTINGS,
                timeout_s=_ANSWER_S,
            ),
        )

    def _repeated(self, topic: str, change: Callable[[], object]) -> None:
        until_s = time.monotonic() + _LIMIT_S
        while True:
            try:
                change()
            except TopicError as error:
                if isinstance(error.__cause__, KafkaException) and _is_gone(error.__cause__):
                    return
                if time.monotonic() > until_s:
                    raise ChaosError(f"Topic {topic} was not made anew: {error}") from error
                time.sleep(_PAUSE_S)
            else:
                return

    def seal(self, topic: str) -> None:
        """Lets a topic take no records. Raises ChaosError as `delete`."""
        self._configure(topic, "1", _SET)

    def unseal(self, topic: str) -> None:
        """Lets it take records again. Raises ChaosError as `delete`."""
        self._configure(topic, None, _DELETE)

    def _configure(self, topic: str, value: str | None, operation: Any) -> None:
        entry = _ADMIN.ConfigEntry(_SEAL, value, incremental_operation=operation)
        until_s = time.monotonic() + _LIMIT_S
        while True:
            # A new one each time: one of librdkafka's that began while brokers were away has waited
            # for a controller to the end, beside others that found one at once.
            admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 0})
            resource = _ADMIN.ConfigResource(
                _ADMIN.ResourceType.TOPIC, topic, incremental_configs=[entry]
            )
            try:
                told: Any = admin.incremental_alter_configs([resource], request_timeout=_ANSWER_S)
                told[resource].result(_ANSWER_S)
            except (KafkaException, TimeoutError) as error:
                if time.monotonic() > until_s:
                    raise ChaosError(f"Topic {topic} was not configured: {error}") from error
                time.sleep(_PAUSE_S)
            else:
                return

    def grow(self) -> int | None:
        """Adds one partition to each topic that stays, and tells all processes.

        Returns how many there are; None if there are enough.

        Raises:
            ChaosError: the brokers did not do it in time.
        """
        count = partitions_now(self._directory, self._settings) + 1
        if count > PARTITIONS_MAX:
            return None
        admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 0})
        # The workers' topic first: they write the output of a key to the partition of its number.
        for topic in (self._settings.out_topic, self._settings.data_topic):
            self._grow_one(admin, topic, count)
        tell_partitions(self._directory, count)
        return count

    def _grow_one(self, admin: AdminClient, topic: str, count: int) -> None:
        until_s = time.monotonic() + _LIMIT_S
        while True:
            try:
                found = admin.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions
                if len(found) >= count and all(p.leader >= 0 for p in found.values()):
                    return
                if len(found) < count:
                    asked = [NewPartitions(topic, count)]
                    admin.create_partitions(asked, request_timeout=_ANSWER_S)[topic].result(
                        _ANSWER_S
                    )
            except (KafkaException, TimeoutError) as error:
                if time.monotonic() > until_s:
                    raise ChaosError(f"Topic {topic} got no partition {count}: {error}") from error
            if time.monotonic() > until_s:
                raise ChaosError(f"Topic {topic} has no leader for {count} partitions.")
            time.sleep(_PAUSE_S)


def _is_gone(error: KafkaException) -> bool:
    return bool(error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART)
