"""A real Apache Kafka on this machine: one KRaft node or several, started and stopped by us.

    from logtx.integration.kafka import LocalCluster, LocalKafka

    with LocalKafka(Path("data")) as kafka:
        print(kafka.bootstrap_servers)
    with LocalCluster(Path("data-of-three")) as kafka:
        kafka.broker(2).kill()

Names are loaded on first use: `python -m logtx.integration.kafka.jars` and the pytest plugin
import this package and must pay for nothing that they do not use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cluster import QUICK_TO_START, LocalCluster, LocalKafka
    from .errors import LocalKafkaError
    from .node import Broker
    from .topics import create_topic

__all__ = [
    "QUICK_TO_START",
    "Broker",
    "LocalCluster",
    "LocalKafka",
    "LocalKafkaError",
    "create_topic",
]

_HOMES = {
    "Broker": ".node",
    "LocalCluster": ".cluster",
    "LocalKafka": ".cluster",
    "LocalKafkaError": ".errors",
    "QUICK_TO_START": ".cluster",
    "create_topic": ".topics",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
