"""Which log a configuration opens, and what of it reaches the clients."""

from __future__ import annotations

import pytest

from logtx.journal.errors import ConfigError
from logtx.journal.kafka_log import KafkaLog, shared_settings
from logtx.journal.memory_log import MemoryLog
from logtx.journal.open import open_log


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
