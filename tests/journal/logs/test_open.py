"""Which log a configuration opens, and what of it reaches the clients."""

from __future__ import annotations

import logging
import time

import pytest

from logtx.journal.errors import BrokerError, ConfigError
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.logs.kafka_cluster import shared_settings
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.logs.open import open_log
from logtx.journal.tls import OWN


def test_memory_and_kafka_by_address() -> None:
    assert open_log({"bootstrap.servers": "memory://opened"}) is MemoryLog.named("opened")
    MemoryLog.drop("opened")
    log = open_log({"bootstrap.servers": "localhost:1", "group.id": "g"})
    assert isinstance(log, KafkaLog)
    assert log.bootstrap_servers == "localhost:1"


@pytest.mark.parametrize("config", [{}, {"bootstrap.servers": ""}, {"bootstrap.servers": None}])
def test_an_address_is_needed(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        open_log(config)


def test_only_what_concerns_the_connection_is_shared() -> None:
    connection = {
        "client.id": "me",
        "enable.ssl.certificate.verification": True,
        "sasl.mechanisms": "PLAIN",
        "sasl.password": "p",
        "security.protocol": "SASL_SSL",
        "socket.keepalive.enable": True,
        "ssl.ca.location": "ca.pem",
    }
    own = {
        "bootstrap.servers": "b:1",
        "enable.idempotence": True,
        "group.id": "g",
        "isolation.level": "serializable",
        "linger.ms": 5,
        "transactional.id": "t",
    }
    assert shared_settings({**connection, **own}) == connection


def test_settings_of_coordinators_are_none_of_librdkafkas() -> None:
    log = KafkaLog({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    given = dict.fromkeys(OWN, "x")
    log.producer(given).close()
    log.consumer({"group.id": "g", **given}).close()
    log.close()


def test_librdkafka_logs_through_logging(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    log = KafkaLog({"bootstrap.servers": "127.0.0.1:1"})
    producer = log.producer({})
    consumer = log.consumer({"group.id": "g"})

    def clients() -> set[str]:
        return {record.getMessage().split("]")[0] for record in caplog.records}

    until_s = time.monotonic() + 10
    while len(clients()) < 2 and time.monotonic() < until_s:
        producer.poll(0.05)
        consumer.poll(0.05)
    with pytest.raises(BrokerError):
        log.end_offset("t", 0, timeout_s=0.5)
    with pytest.raises(BrokerError):
        log.group_offset("g", "t", 0, timeout_s=0.5)
    consumer.close()
    log.close()
    assert {record.name for record in caplog.records} == {"logtx.librdkafka"}
    assert all("Connection refused" in record.getMessage() for record in caplog.records)
    assert capfd.readouterr().err == ""


def test_a_logger_of_the_users_gets_what_librdkafka_logs(caplog: pytest.LogCaptureFixture) -> None:
    mine = logging.getLogger("mine")
    producer = KafkaLog({"bootstrap.servers": "127.0.0.1:1", "logger": mine}).producer({})
    until_s = time.monotonic() + 10
    while not caplog.records and time.monotonic() < until_s:
        producer.poll(0.05)
    assert {record.name for record in caplog.records} == {"mine"}


def test_librdkafkas_own_name_of_the_brokers_is_taken() -> None:
    assert open_log({"metadata.broker.list": "memory://opened"}) is MemoryLog.named("opened")
    both = {"bootstrap.servers": "memory://opened", "metadata.broker.list": "b:1"}
    assert open_log(both) is MemoryLog.named("opened")
    MemoryLog.drop("opened")
    log = open_log({"metadata.broker.list": "b:1", "default.topic.config": {"acks": "all"}})
    assert isinstance(log, KafkaLog)
    assert log.bootstrap_servers == "b:1"
    assert "metadata.broker.list" not in log._settings({})
