"""What all parties of a simulated world share."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from logtx.consumer.core.counters import ConsumerCounters
from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.protocol.queues import Lease
from logtx.journal.control import TopicPartition
from logtx.journal.modes import MODES_TOPIC
from logtx.journal.reader import JOURNAL_TOPIC, journal_partition_of
from logtx.journal.relocation import RELOCATIONS_TOPIC

from .faults import Faults
from .history import History, PastEnd
from .logs import Broker, Pipe
from .schedule import Party, Scheduler
from .topology import OUTPUT, TEMPORARY, Topology

WALL_MS: Final = 1_700_000_000_000
READERS_MS: Final = 100
"""Virtual milliseconds of a second of the readers' clocks, so that two looks fit into a history."""
FORMER_LEADER_MS: Final = (100, 450)
"""Least and most time for which a partition's former leader answers; less than what lies between
two looks."""
RELOCATIONS_PAST_MS: Final = FORMER_LEADER_MS[1]
"""How old what it tells of relocations is at most: decision 39 takes no older one into account."""
LEADER_MS: Final = (50, 1_500)
"""Least and most time for which the leader answers before a former one does again."""
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
    modes: Random | None = None
    """What histories draw from in which topics are switched; None: all topics keep to markers."""
    sidecars: Random | None = None
    """What histories draw from in which transactions use sidecars; None: none does."""
    opens_sidecars: Callable[[], bool] = lambda: True
    """Whether transactions use them by now."""
    retains_sidecars: bool = False
    """Whether retention takes the start of topics with sidecars, and these are trimmed."""
    compactions: Random | None = None
    """What histories draw from in which sidecars are compacted; None: none is."""
    queues: Random | None = None
    """What histories draw from in which a topic is worked off as a queue; None: none is."""
    queue_is_failover: bool = False
    """Whether each partition of the queue is one worker's at a time."""
    queue_begins_late: bool = False
    """Whether the queue begins at the ends of its topics' partitions."""
    queue_has_temporary: bool = False
    """Whether the temporary topic is one of the queue's."""
    dawdling: Random | None = None
    """What histories draw from whose workers keep messages of the temporary topic for long; None:
    they don't."""
    resting: Random | None = None
    """What histories draw from whose workers leave their queue alone for a while, and go on; None:
    they don't."""
    leasing_ahead: Random | None = None
    """What histories draw from whose workers ask for a lease while they work on one; None: they
    don't."""
    unreadable: Callable[[str, int, Lease, Exception], None] | None = None
    """Is told by a worker of a queue what nobody can ever read: subscription, era, lease of the
    smallest size, and why."""
    workers_leave: bool = False
    """Whether workers of the queue are to leave it: an operator wants to reset it."""
    together: Random | None = None
    """What histories draw from in which consumers have several partitions; None: each has one."""
    processes: list[Any] = field(default_factory=list)
    """Those consumers, each a `PlayedFollowing`."""
    places_at: int | None = None
    """Journal partition that places in the topics which are switched."""
    counters: ConsumerCounters = field(default_factory=ConsumerCounters)
    _former: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """From when until when a former leader answers for a partition, now or next."""
    _told_ms: dict[TopicPartition, int] = field(default_factory=dict)
    """Since when that one has heard nothing: it stood still before it answered."""

    @property
    def now_ms(self) -> int:
        """Virtual time."""
        return self.scheduler.now_ms

    @property
    def readers_s(self) -> float:
        """Time on the readers' clocks."""
        return self.now_ms / READERS_MS

    def told_end(self, topic: str, partition: int, to: str = "") -> int:
        """Returns the end of a partition as a broker tells it, which may be one of the past.

        Args:
            topic, partition: the partition.
            to: who asked, to place something or to pass a gate. Then the checkers must know.
        """
        end, true = self._told_end(topic, partition), self.broker.end(topic, partition)
        if to and end < true:
            past = PastEnd(to, (topic, partition), end, self.history.tick())
            self.history.past_ends.append(past)
        return end

    def told_start(self, journal: int) -> int:
        """Returns the start of a journal partition as a broker tells it, which may be one of the
        past: or it is trimmed while the answer is under way."""
        since_ms = self._former_since((JOURNAL_TOPIC, journal))
        if since_ms is None:
            return self.broker.starts[journal]
        trims = self.history.trims[journal]
        return max((t.before for t in trims if t.time_ms <= since_ms), default=0)

    def _told_end(self, topic: str, partition: int) -> int:
        broker = self.broker
        since_ms = self._former_since((topic, partition))
        if since_ms is None:
            return broker.end(topic, partition)
        if topic == MODES_TOPIC:
            return bisect_right(self.history.modes_log, since_ms, key=lambda r: r.time_ms)
        if topic == JOURNAL_TOPIC:
            return bisect_right(broker.journal(partition), since_ms, key=lambda r: r.time_ms)
        if topic == RELOCATIONS_TOPIC:
            since_ms = max(since_ms, self.now_ms - RELOCATIONS_PAST_MS)
        return bisect_right(broker.log_of((topic, partition)), since_ms, key=lambda r: r.time_ms)

    def _former_since(self, key: TopicPartition) -> int | None:
        """Returns since when a former leader that answers now has heard nothing, or None."""
        ends = self.faults.ends
        if ends is None:
            return None
        since_ms, until_ms = self._former.get(key, (0, 0))
        while until_ms < self.now_ms:
            before_ms, since_ms = until_ms, until_ms + ends.randint(*LEADER_MS)
            until_ms = since_ms + ends.randint(*FORMER_LEADER_MS)
            self._told_ms[key] = ends.randint(before_ms, since_ms)
        self._former[key] = since_ms, until_ms
        if not since_ms <= self.now_ms < until_ms:
            return None
        self.faults.count("former leader answered")
        return self._told_ms[key]

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
