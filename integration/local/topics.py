"""Makes the few admin calls that the local Kafka, the CLI and the pytest plugin need."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, if not in its __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from confluent_kafka.admin._metadata import ClusterMetadata
from confluent_kafka.cimpl import NewTopic

from ...coordinator.transport.address import split
from .errors import TopicError
from .ports import accepts

_METADATA_TIMEOUT_S: Final = 5.0
"""Longest wait for a broker's answer. With less, a busy broker counts as silent; with more, a
paused one delays the caller longer."""
_POLL_S: Final = 0.02
"""Pause between two looks for the leaders of a new topic; a smaller value asks the broker more."""

_PAUSE_S: Final = 0.2
"""Pause until a topic is asked for again. Brokers tell that they live every two seconds."""


def _admin(bootstrap_servers: str) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,  # librdkafka prints refused connections to stderr, and some are normal
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
        }
    )


def live_brokers(server: str, cluster_id: str) -> frozenset[int]:
    """Returns the ids of the brokers that the one at `server` takes for alive.

    Returns none if no broker of this cluster answers there.
    """
    metadata = _metadata(server)
    if metadata is None or metadata.cluster_id != cluster_id:
        return frozenset()
    return frozenset(metadata.brokers)


def lagging_partitions(server: str, *, brokers: int) -> list[str]:
    """Returns a text for each partition that lacks a leader or has replicas out of sync.

    The broker at `server` is asked. It is named itself if it doesn't answer, or knows of fewer than
    `brokers` brokers.
    """
    metadata = _metadata(server)
    if metadata is None:
        return [f"{server}: no answer"]
    found = [
        f"{name}-{number}: leader {partition.leader}, in sync {sorted(partition.isrs)} "
        f"of {sorted(partition.replicas)}"
        for name, topic in metadata.topics.items()
        for number, partition in topic.partitions.items()
        if partition.leader < 0 or set(partition.isrs) != set(partition.replicas)
    ]
    if len(metadata.brokers) < brokers:
        found.append(f"{server}: knows of brokers {sorted(metadata.brokers)} alone")
    return found


def _metadata(server: str) -> ClusterMetadata | None:
    """Returns this broker's metadata of all topics; None if it doesn't answer."""
    if not accepts(split(server)[1]):
        return None
    try:
        return _admin(server).list_topics(timeout=_METADATA_TIMEOUT_S)
    except KafkaException:
        return None


def create_topic(
    bootstrap_servers: str,
    name: str,
    *,
    partitions: int = 1,
    replication_factor: int = -1,
    config: Mapping[str, str] | None = None,
    timeout_s: float = 30,
) -> bool:
    """Creates a topic, and waits until each partition has a leader.

    Returns False if the topic existed already. `replication_factor` -1 is the cluster's default;
    then it asks again while the controller knows of too few live brokers, as a slow one just began.
    Raises TopicError if the broker refuses, if the topic exists with another partition count, or if
    it is not ready after `timeout_s` seconds.
    """
    admin = _admin(bootstrap_servers)
    topic = NewTopic(
        name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        config=dict(config or {}),
    )
    created = True
    passing = KafkaError.INVALID_REPLICATION_FACTOR if replication_factor == -1 else None
    try:
        _create(admin, topic, passing, timeout_s)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise TopicError(f"Cannot create topic {name}: {error.args[0].str()}.") from error
        created = False
    except TimeoutError as error:
        raise TopicError(f"No broker at {bootstrap_servers} created topic {name}.") from error
    _await_leaders(admin, name, partitions, timeout_s)
    return created


def _create(admin: AdminClient, topic: NewTopic, passing: int | None, timeout_s: float) -> None:
    """Creates a topic, and asks again after the error `passing`, for so many seconds."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            asked = admin.create_topics([topic], operation_timeout=timeout_s)
            asked[topic.topic].result(timeout_s)
        except KafkaException as error:
            if error.args[0].code() != passing or time.monotonic() > deadline_s:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def delete_topic(bootstrap_servers: str, name: str, *, timeout_s: float = 30) -> None:
    """Deletes a topic. Raises TopicError if the broker refuses, or after `timeout_s` seconds."""
    admin = _admin(bootstrap_servers)  # a client that is garbage-collected abandons its requests
    try:
        admin.delete_topics([name])[name].result(timeout_s)
    except (KafkaException, TimeoutError) as error:
        raise TopicError(
            f"Cannot delete topic {name} ({type(error).__name__}: {error})."
        ) from error


def refuse_records(kafka: Mapping[str, str], name: str, *, timeout_s: float = 30) -> None:
    """Seals a topic: from then on its partitions take no record, and can still be read.

    Args:
        kafka: librdkafka's settings, with ``bootstrap.servers``.
        name: of the topic.
        timeout_s: longest wait, in seconds.

    Raises:
        TopicError: the broker refuses, or does not answer.
    """
    admin = AdminClient({**kafka, "log_level": 0})
    entry = ConfigEntry("max.message.bytes", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
    try:
        admin.incremental_alter_configs([resource])[resource].result(timeout_s)
    except (KafkaException, TimeoutError) as error:
        raise TopicError(f"Cannot seal topic {name} ({type(error).__name__}: {error}).") from error


def _await_leaders(admin: AdminClient, name: str, partitions: int, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            topic = admin.list_topics(name, timeout=_METADATA_TIMEOUT_S).topics[name]
        except KafkaException as error:
            raise TopicError(f"Cannot look at topic {name}: {error.args[0].str()}.") from error
        found = topic.partitions
        if topic.error is None and found and all(p.leader >= 0 for p in found.values()):
            if len(found) != partitions:
                raise TopicError(
                    f"Topic {name} exists with {len(found)} partitions, not {partitions}: "
                    "ask for that number, or use another name."
                )
            return
        time.sleep(_POLL_S)
    raise TopicError(f"Topic {name} has partitions without a leader after {timeout_s:g} s.")
