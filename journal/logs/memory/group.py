"""Consumer groups of a log in memory: committed offsets, members, and who reads which partition.

The state of one group is changed only under the log's lock. Rebalancing is eager, behind a barrier,
as in Kafka's classic protocol: every member gives its partitions back before any member gets new
ones, and a member that does not come to the barrier in time is expelled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..interface import GroupOffset

Partition = tuple[str, int]


@dataclass(slots=True)
class Member:
    """One subscribed consumer."""

    id: str
    topics: tuple[str, ...]
    """Names, or regular expressions that begin with ``^``."""
    poll_interval_max_s: float
    """Longest time between two polls in seconds; beyond it the group expels this member."""
    last_poll_s: float
    """Time of the last poll, monotonic clock."""
    generation: int = -1
    granted: list[Partition] | None = None
    """An assignment that the member has not taken over yet."""
    expelled: bool = False

    def wants(self, topic: str) -> bool:
        """Returns whether the subscription covers a topic."""
        return any(re.match(t, topic) if t[0] == "^" else t == topic for t in self.topics)


@dataclass(slots=True)
class Group:
    """One consumer group."""

    offsets: dict[Partition, GroupOffset] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    generation: int = 0
    awaited: set[str] = field(default_factory=set)
    """Members that have not come yet to the barrier of the rebalance under way."""

    def join(self, member: Member) -> None:
        """Adds a member, which starts a rebalance."""
        self.members[member.id] = member
        self.begin_rebalance()

    def leave(self, member: Member) -> None:
        """Removes a member; the others share all partitions again."""
        if self.members.pop(member.id, None) is not None:
            self.begin_rebalance()

    def expel(self, member: Member) -> None:
        """Goes on without a member that has fallen silent."""
        member.expelled = True
        self.leave(member)

    def begin_rebalance(self) -> None:
        """Calls every member to the barrier."""
        self.generation += 1
        self.awaited = set(self.members)
        for member in self.members.values():
            member.granted = None

    def expel_silent(self, now_s: float) -> None:
        """Expels the members whose last poll is longer ago than they promised."""
        for member in list(self.members.values()):
            if now_s - member.last_poll_s > member.poll_interval_max_s:
                self.expel(member)

    def arrive(self, member: Member, topics: Mapping[str, int]) -> None:
        """Lets a member without partitions wait at the barrier; the last member to come opens it.

        Args:
            member: the member that comes.
            topics: partition count of every topic of the log.
        """
        self.awaited.discard(member.id)
        if self.awaited:
            return
        shares = self._ranges(topics)
        for each in self.members.values():
            each.generation = self.generation
            each.granted = shares[each.id]

    def _ranges(self, topics: Mapping[str, int]) -> dict[str, list[Partition]]:
        # Follows Kafka's range assignor: per topic, contiguous shares in the order of member ids;
        # the first ones are larger by one if the division leaves a rest.
        shares: dict[str, list[Partition]] = {member_id: [] for member_id in self.members}
        for topic, count in sorted(topics.items()):
            readers = sorted(m.id for m in self.members.values() if m.wants(topic))
            first = 0
            for index, member_id in enumerate(readers):
                size = count // len(readers) + (index < count % len(readers))
                shares[member_id] += [(topic, p) for p in range(first, first + size)]
                first += size
        return shares

    def topics_changed(self, topics: Iterable[str]) -> None:
        """Rebalances if a topic that was created, changed or deleted is subscribed to."""
        names = list(topics)
        if any(m.wants(t) for m in self.members.values() for t in names):
            self.begin_rebalance()
