"""The versions of Kafka that logtx is known to work with. All other tests use the newest."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

import logtx
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.integration.local.cluster import QUICK_TO_START, LocalKafka
from logtx.integration.local.jars import KAFKA_VERSION, LOCK_PATH, ensure_jars, read_lock
from logtx.integration.local.topics import create_topic

LOCKS = {"4.1.0": Path(__file__).with_name("kafka-4.1.lock"), "4.3.1": LOCK_PATH}
PARTITIONS = range(2)


def test_the_newest_known_version_is_the_one_in_use() -> None:
    assert list(LOCKS)[-1] == KAFKA_VERSION


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("version", LOCKS)
def test_a_transaction_with_its_input_offsets(tmp_path: Path, version: str) -> None:
    jars = ensure_jars(lock=LOCKS[version])
    assert f"org.apache.kafka:kafka_2.13:{version}" in {
        jar.coordinate for jar in read_lock(LOCKS[version])
    }
    with LocalKafka(tmp_path / "kafka", java_options=QUICK_TO_START, jars=jars) as kafka:
        servers = kafka.bootstrap_servers
        for topic in ("inputs", "outputs"):
            create_topic(servers, topic, partitions=2)
        config = CoordinatorConfig(
            bootstrap_servers=servers, listen="127.0.0.1:0", journal_partitions=2
        )
        with EmbeddedCoordinator(config):
            _copy(servers)


def _copy(servers: str) -> None:
    """Aborts a transaction, commits one, and copies what is committed with its input offsets."""
    client = {"bootstrap.servers": servers}
    with logtx.Producer({**client, "transactional.id": "first"}) as producer:
        for outcome in (b"aborted", b"committed"):
            txn = producer.begin_transaction()
            for partition in PARTITIONS:
                txn.produce("inputs", outcome, partition=partition)
            if outcome == b"committed":
                txn.commit()
            else:
                txn.abort()
    group = {**client, "group.id": "copies", "auto.offset.reset": "earliest"}
    inputs = [TopicPartition("inputs", p) for p in PARTITIONS]
    with (
        logtx.Producer({**client, "transactional.id": "second"}) as producer,
        logtx.Consumer({**group, "offsets.storage": "transactions"}) as source,
    ):
        source.assign(inputs)
        values = _values(source, 2)
        txn = producer.begin_transaction()
        for value in values:
            txn.produce("outputs", value)
        txn.send_offsets(source)
        txn.commit()
        assert all(each.offset > 0 for each in source.committed(inputs))
    with logtx.Consumer({**group, "group.id": "readers"}) as reader:
        reader.assign([TopicPartition("outputs", p) for p in PARTITIONS])
        assert _values(reader, 2) == values == [b"committed", b"committed"]


def _values(consumer: logtx.Consumer, count: int) -> list[bytes | None]:
    """Values of the next `count` records; fewer after 30 s."""
    deadline = time.monotonic() + 30
    found: list[bytes | None] = []
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message.value())
    return found
