"""The settings of a run, for all its processes: `chaos.json` in the run directory."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from .options import System

FILE: Final = "chaos.json"
HISTORY: Final = "history"
DATA_TOPIC: Final = "chaos"
OUT_TOPIC: Final = "chaos-out"
PARTITIONS: Final = 4
"""Partitions of each of the two topics."""
KEYS: Final = 12
"""Number of record keys. Keys are numbers from 0; key k is in partition k % PARTITIONS."""
WORKERS_GROUP: Final = "chaos-workers"
"""Consumer group of the workers, and also their transaction group."""
READERS_GROUP: Final = "chaos-readers"
KEYED_PRODUCERS: Final = 2
"""Producers with transaction keys: the last of all, and half of them at most. With two of them,
keys change hands."""
TRANSACTION_KEYS: Final = ("chaos-key-0", "chaos-key-1")
"""Transaction keys, which change hands between processes all the time."""
REBALANCES: Final = ("eager", "cooperative", "consumer")
"""Kafka's three ways to share partitions; the seed chooses the one of a run."""
SESSION_TIMEOUT_MS: Final = 6_000
"""Session timeout of consumer groups: the least that Kafka allows by default. A larger one delays
rebalances after a death."""
TRANSACTION_TIMEOUT_MS: Final = 20_000
"""Transaction timeout: longer than a broker's death stalls any client, so that such a stall aborts
nothing. A larger one delays the end of what a dead producer left open."""
FENCED_STATUS: Final = 3
"""Exit status of a process whose name another process took over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one run."""

    system: System
    seed: int
    seconds: float
    rate: float
    """Transactions per second that one producer aims at."""
    bootstrap_servers: str
    """Addresses of the proxies in front of the brokers."""
    rebalance: str
    producers: int
    """Number of all producers; those with a transactional.id of their own come first."""
    keyed_producers: int
    """Number of producers with transaction keys: the last of `producers`."""
    data_topic: str = DATA_TOPIC
    out_topic: str = OUT_TOPIC
    partitions: int = PARTITIONS
    keys: int = KEYS
    workers_group: str = WORKERS_GROUP
    readers_group: str = READERS_GROUP

    def save(self, directory: Path) -> None:
        """Writes the file."""
        # The checker reads names of its own, because it imports nothing from here.
        told = {"topics": [self.data_topic, self.out_topic], "input": self.data_topic}
        (directory / FILE).write_text(json.dumps({**asdict(self), **told}, indent=1) + "\n")

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Reads the file. Raises OSError, ValueError, KeyError."""
        told: dict[str, Any] = json.loads((directory / FILE).read_text())
        own = {field.name: told[field.name] for field in fields(cls)}
        return cls(**{**own, "system": System(told["system"])})

    def partition_of(self, key: int) -> int:
        """Returns the partition of a key's records."""
        return key % self.partitions

    def group_settings(self) -> dict[str, Any]:
        """Returns librdkafka's settings for a member of a consumer group."""
        if self.rebalance == "consumer":
            return {"group.protocol": "consumer"}
        strategy = "range" if self.rebalance == "eager" else "cooperative-sticky"
        return {
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": SESSION_TIMEOUT_MS // 6,
        }
