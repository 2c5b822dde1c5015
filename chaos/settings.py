"""The settings of a run, for all its processes: `chaos.json` in the run directory."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from .options import Metadata, System

FILE: Final = "chaos.json"
HISTORY: Final = "history"
DATA_TOPIC: Final = "chaos"
OUT_TOPIC: Final = "chaos-out"
PARTITIONS: Final = 4
"""Partitions of each of the two topics at the start; see `partitions_now`."""
KEYS_PER_PARTITION: Final = 3
"""Record keys of each partition. Keys are numbers from 0, and each lies in one partition."""
FLEETING_TOPIC: Final = "chaos-fleeting"
"""The topic that is deleted and made anew. Some transactions write to it too."""
FLEETING_PARTITIONS: Final = 2
"""Its partitions: each time it is made they cost the brokers files and leaders."""
_GROWN: Final = "partitions"
"""File with the number of partitions once it has grown, so that all processes see it."""
WORKERS_GROUP: Final = "chaos-workers"
"""Consumer group of the workers, and also their transaction group."""
SPARK_TOPIC: Final = "chaos-spark"
"""Topic that the Spark query writes."""
SPARK_GROUP: Final = "chaos-spark"
"""Its consumer group."""
SPARK_PARTITIONS: Final = 8
"""Partitions of its topic: as many as the others can grow to."""
QUEUE: Final = "chaos-queue"
"""Subscription of the queue workers, to the workers' input. Its transactions are of the workers'
transaction group."""
READERS_GROUP: Final = "chaos-readers"
PRODUCERS_GROUP: Final = "default"
"""Transaction group of the producers without a transaction key."""
KEYED_PRODUCERS: Final = 2
"""Producers with transaction keys: the last of all, and half of them at most. With two of them,
keys change hands."""
TRANSACTION_KEYS: Final = ("chaos-key-0", "chaos-key-1")
"""Transaction keys, which change hands between processes all the time."""
REBALANCES: Final = ("eager", "cooperative", "consumer")
"""Kafka's three ways to share partitions; the seed chooses the one of a run."""
METADATA_MS: Final = 3_000
"""How often clients ask for metadata unasked. By default they would learn after five minutes that a
topic has grown."""
SESSION_TIMEOUT_MS: Final = 6_000
"""Session timeout of consumer groups: the least that Kafka allows by default. A larger one delays
rebalances after a death."""
TRANSACTION_TIMEOUT_MS: Final = 20_000
"""Transaction timeout: longer than a broker's death stalls any client, so that such a stall aborts
nothing. A larger one delays the end of what a dead producer left open."""
STACKS_SIGNAL: Final = signal.SIGUSR2
"""At this signal a process of the workload writes to its log what each thread is at."""
INTERRUPTED_STATUS: Final = 130
"""Exit status of a process that SIGINT ended, once it has closed its clients."""
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
    fleeting_topic: str | None = None
    """The topic that is deleted and made anew; None: there is none."""
    spark_topic: str | None = None
    """The topic that the Spark query writes; None: there is no query."""
    metadata: Metadata = Metadata.NONE
    """Which topics begin in metadata mode."""
    sidecar: bool = False
    """Whether a share of the transactions writes to sidecars."""
    queue: bool = False
    """Whether queue workers work off the workers' input, too."""
    native: bool = False
    """Whether every second life of a client takes the C extension."""
    partitions: int = PARTITIONS
    """Partitions of the other two topics, each, at the start."""
    workers_group: str = WORKERS_GROUP
    readers_group: str = READERS_GROUP

    def save(self, directory: Path) -> None:
        """Writes the file."""
        (directory / FILE).write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Reads the file. Raises OSError, ValueError, KeyError."""
        told: dict[str, Any] = json.loads((directory / FILE).read_text())
        own = {field.name: told[field.name] for field in fields(cls)}
        chosen = {"system": System(told["system"]), "metadata": Metadata(told["metadata"])}
        return cls(**{**own, **chosen})

    @property
    def topics(self) -> list[str]:
        """All topics with data."""
        others = [self.fleeting_topic, self.spark_topic]
        return [self.data_topic, self.out_topic, *filter(None, others)]

    @property
    def switched_topics(self) -> dict[str, str]:
        """Topics that are switched back and forth → the transaction group that places there."""
        if self.metadata is Metadata.NONE:
            return {}
        found = {self.data_topic: PRODUCERS_GROUP, self.out_topic: self.workers_group}
        if self.metadata is Metadata.ALL and self.fleeting_topic is not None:
            found[self.fleeting_topic] = PRODUCERS_GROUP
        return found

    @property
    def places_sidecars(self) -> bool:
        """Whether transactions with records in sidecars may be placed."""
        return self.sidecar and self.metadata is not Metadata.NONE

    @property
    def first_in_metadata(self) -> list[str]:
        """Topics that begin in metadata mode."""
        topics = list(self.switched_topics)
        return topics if self.metadata is not Metadata.HALF else [topics[self.seed % len(topics)]]

    def partition_of(self, key: int) -> int:
        """Returns the partition of a key's records. It stays the same when topics grow."""
        if key < KEYS_PER_PARTITION * self.partitions:
            return key % self.partitions
        return key // KEYS_PER_PARTITION

    def fleeting_partition_of(self, key: int) -> int:
        """Returns the partition of a key's records in the topic that is made anew."""
        return key % FLEETING_PARTITIONS

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


def partitions_now(directory: Path, settings: Settings) -> int:
    """Returns how many partitions the data topic and the workers' topic have by now, each."""
    try:
        return int((directory / _GROWN).read_text())
    except FileNotFoundError:
        return settings.partitions


def tell_partitions(directory: Path, count: int) -> None:
    """Tells all processes of the run how many partitions there are."""
    made = directory / f"{_GROWN}.new"
    made.write_text(str(count))
    made.replace(directory / _GROWN)  # no process reads a half of it
