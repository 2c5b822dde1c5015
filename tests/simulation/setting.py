"""What all parties of a simulated world share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from logtx.consumer.core.counters import ConsumerCounters
from logtx.coordinator.core.decision import ShardConfig
from logtx.journal.control import TopicPartition
from logtx.journal.reader import journal_partition_of

from .faults import Faults
from .history import History
from .logs import Broker, Pipe
from .schedule import Party, Scheduler
from .topology import OUTPUT, TEMPORARY, Topology

WALL_MS: Final = 1_700_000_000_000
TEMPORARY_SHARE: Final = 0.3
"""Share of the records that go to the temporary topic, where there is one."""


@dataclass(slots=True)
class Setting:
    """The world without its parties."""

    scheduler: Scheduler
    chance: Random
    faults: Faults
    history: History
    broker: Broker
    topology: Topology
    shard_config: ShardConfig
    journals: int
    outputs: int
    snapshot_every: int
    """Journal records between two snapshots."""
    hour_ms: int
    """An hour of service, after which what nobody used is forgotten."""
    outcome_retention_ms: int
    is_dead: Callable[[str], bool]
    """Whether no coordinator answers at this address."""
    extends: bool
    """Whether producers begin the timeouts of their transactions anew."""
    counters: ConsumerCounters = field(default_factory=ConsumerCounters)

    @property
    def now_ms(self) -> int:
        """Virtual time."""
        return self.scheduler.now_ms

    def home(self, name: str) -> int:
        """Returns the home of a transaction group or consumer group."""
        return journal_partition_of(name, self.journals)

    def owner(self, journal: int) -> str | None:
        """Returns the address that was published last as a journal partition's owner."""
        checkpoint = self.broker.checkpoints[journal]
        return None if checkpoint is None else checkpoint.address

    @property
    def output_keys(self) -> list[TopicPartition]:
        """All data partitions of the topic that stays."""
        return [(OUTPUT, partition) for partition in range(self.outputs)]

    @property
    def partition_max(self) -> int:
        """Number of data partitions that exist."""
        return min(self.outputs, self.topology.writable)

    def partition(self) -> TopicPartition:
        """Draws a data partition that exists, as far as producers know."""
        is_there = self.topology.has_temporary and self.faults.on
        if is_there and self.chance.random() < TEMPORARY_SHARE:
            return TEMPORARY, 0
        return OUTPUT, self.chance.randrange(self.outputs) % self.topology.writable

    def pipe(self, party: Party, channel: str) -> Pipe:
        """Returns a way to one partition, for one life of a party."""
        return Pipe(self.scheduler, self.chance, self.faults, party, channel)

    def note(self, who: str, what: str, *about: object) -> None:
        """Adds a line to the trace."""
        self.history.note(self.scheduler.now_ms, who, what, *about)
