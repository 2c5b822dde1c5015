"""Makes clients of both sides, with the same settings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import confluent_kafka
from confluent_kafka.admin import AdminClient

import logtx
from logtx.integration.local.topics import create_topic

PRODUCER: Final[Mapping[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,
    # librdkafka's default, and better for Kafka's side than 0: small transactions were as quick,
    # for both sides flush to commit, and bulk of 100 B was twice as fast.
    "linger.ms": 5,
}
CONSUMER: Final[Mapping[str, Any]] = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    # At librdkafka's default of 1,000 ms Kafka's side would stall in a backlog.
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 10,
    "queued.max.messages.kbytes": 65_536,
    "queued.min.messages": 100_000,
}
BULK_TOPIC: Final = {
    "retention.bytes": str(128 * 1024 * 1024),
    "segment.bytes": str(64 * 1024 * 1024),
    "file.delete.delay.ms": "1000",
}
"""Old records are deleted while the benchmark runs, on both sides: it does not measure a disk."""
TRANSACTION_TIMEOUT_MS: Final = 60_000
"""Longer than any transaction of a round, so that no time-out aborts one on a slow machine."""
CONNECT_TIMEOUT_S: Final = 30.0
"""Bounds each wait for the broker or the coordinator, commits too; beyond it the run fails."""


def shown(settings: Mapping[str, Any]) -> str:
    """Formats settings as text."""
    return ", ".join(f"{k}={str(v).lower()}" for k, v in settings.items())


def kafka_producer(
    servers: str, transactional_id: str | None, settings: Mapping[str, Any] | None = None
) -> confluent_kafka.Producer:
    """Returns confluent-kafka's producer; with a transactional id, ready to begin transactions."""
    config: dict[str, Any] = {**PRODUCER, "bootstrap.servers": servers, **(settings or {})}
    if transactional_id is None:
        return confluent_kafka.Producer(config)
    config["transactional.id"] = transactional_id
    config["transaction.timeout.ms"] = TRANSACTION_TIMEOUT_MS
    producer = confluent_kafka.Producer(config)
    producer.init_transactions(CONNECT_TIMEOUT_S)
    return producer


def logtx_producer(
    servers: str, transactional_id: str, settings: Mapping[str, Any] | None = None
) -> logtx.Producer:
    """Returns logtx's producer, connected to its coordinator."""
    producer = logtx.Producer(
        {
            **PRODUCER,
            "bootstrap.servers": servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            **(settings or {}),
        }
    )
    producer.init_transactions()
    return producer


def consumer_config(servers: str, group: str) -> dict[str, Any]:
    """Returns the settings of a consumer of either kind."""
    return {**CONSUMER, "bootstrap.servers": servers, "group.id": group}


def from_start(topic: str, partitions: int) -> list[confluent_kafka.TopicPartition]:
    """Returns all partitions of a topic, each from its first record."""
    beginning = confluent_kafka.OFFSET_BEGINNING
    return [confluent_kafka.TopicPartition(topic, p, beginning) for p in range(partitions)]


def make_topic(
    servers: str, name: str, partitions: int, config: Mapping[str, str] | None = None
) -> None:
    """Creates a topic. Deletes that of an earlier run; raises TimeoutError if it does not go."""
    delete_topics(servers, [name])
    deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
    while not create_topic(servers, name, partitions=partitions, config=config):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"topic {name} is not deleted yet")
        time.sleep(0.1)
        delete_topics(servers, [name])


def delete_topics(servers: str, names: list[str]) -> None:
    """Deletes those of the topics that exist."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    existing = set(admin.list_topics(timeout=CONNECT_TIMEOUT_S).topics)
    found = [name for name in names if name in existing]
    if found:
        for future in admin.delete_topics(found, operation_timeout=CONNECT_TIMEOUT_S).values():
            future.result(CONNECT_TIMEOUT_S)
