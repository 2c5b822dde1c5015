"""What every process of a run is told: `chaos.json` in the run directory."""

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
"""Of both topics."""
KEYS: Final = 12
"""Of records, numbers from 0; each is in partition key % PARTITIONS."""
WORKERS_GROUP: Final = "chaos-workers"
"""Consumer group of the workers, and their transaction group."""
READERS_GROUP: Final = "chaos-readers"
KEYED_PRODUCERS: Final = 2
"""Of the producers, the last, and half of them at most: with two, keys change hands."""
TRANSACTION_KEYS: Final = ("chaos-key-0", "chaos-key-1")
"""Change hands between processes all the time."""
REBALANCES: Final = ("eager", "cooperative", "consumer")
"""Kafka's three ways to share partitions; the seed says which one a run has."""
SESSION_TIMEOUT_MS: Final = 6_000
"""Of consumer groups; the least that Kafka takes by default."""
TRANSACTION_TIMEOUT_MS: Final = 20_000
"""Longer than a broker's death stalls anybody."""
FENCED_STATUS: Final = 3
"""Exit status of a process whose name was taken over by another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of one run."""

    system: System
    seed: int
    seconds: float
    rate: float
    """Transactions per second that one producer is to begin."""
    bootstrap_servers: str
    """Through the proxies."""
    rebalance: str
    producers: int
    """Those with a transactional.id of their own come first."""
    keyed_producers: int
    """Those with transaction keys, the last of `producers`."""
    data_topic: str = DATA_TOPIC
    out_topic: str = OUT_TOPIC
    partitions: int = PARTITIONS
    keys: int = KEYS
    workers_group: str = WORKERS_GROUP
    readers_group: str = READERS_GROUP

    def save(self, directory: Path) -> None:
        """Write the file."""
        # What the checker reads has names of its own: it imports nothing of this.
        told = {"topics": [self.data_topic, self.out_topic], "input": self.data_topic}
        (directory / FILE).write_text(json.dumps({**asdict(self), **told}, indent=1) + "\n")

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the file. Raises OSError, ValueError, KeyError."""
        told: dict[str, Any] = json.loads((directory / FILE).read_text())
        own = {field.name: told[field.name] for field in fields(cls)}
        return cls(**{**own, "system": System(told["system"])})

    def partition_of(self, key: int) -> int:
        """Where a key's records go."""
        return key % self.partitions

    def group_settings(self) -> dict[str, Any]:
        """librdkafka's, of a member of a consumer group."""
        if self.rebalance == "consumer":
            return {"group.protocol": "consumer"}
        strategy = "range" if self.rebalance == "eager" else "cooperative-sticky"
        return {
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": SESSION_TIMEOUT_MS // 6,
        }
