"""Opens the log that ``bootstrap.servers`` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ..settings import plain
from .interface import Log
from .memory.broker import SCHEME
from .memory.log import MemoryLog


def open_log(config: Mapping[str, Any]) -> Log:
    """Opens the log of a client's configuration: ``memory://name``, or a Kafka-compatible cluster.

    Args:
        config: the user's whole configuration; besides ``bootstrap.servers`` its connection
            settings (``security.*``, ``sasl.*``, ``ssl.*``, …) are used for every client.

    Raises:
        ConfigError: ``bootstrap.servers`` is missing.
    """
    config = plain(config)
    servers = config.get("bootstrap.servers")
    if not servers or not isinstance(servers, str):
        raise ConfigError(
            "bootstrap.servers is missing: set it to the brokers' addresses, such as localhost:9092"
        )
    if servers.startswith(SCHEME):
        return MemoryLog.named(servers)
    # Spares programs that only use a log in memory the import of the admin client.
    from .kafka import KafkaLog

    return KafkaLog(config)
