"""The topics of the simulated cluster, and what brokers tell of them that are behind.

Any broker may answer a look-up, from its own copy of the metadata. Most answer truthfully. For a
while one of them may be behind: it tells of no topic, of the topic's predecessor (deleted long
ago), or of fewer partitions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from logtx.coordinator.core.decision import TopicFacts

from .faults import Faults
from .schedule import Scheduler

INPUT: Final = "in"
"""Topic whose offsets are the input: they are numbers without records."""
OUTPUT: Final = "out"
PARTITIONS: Final = 8
"""Partitions of each topic; a history uses some."""
BEHIND_MS: Final = (10, 120)
"""Least and most time that a broker stays behind: less than `topics.CONFIRM_MS` is here."""
TRUTHFUL_MS: Final = 130
"""Time after which another one may be behind. Longer than a gap between look-ups may be."""
BEHIND: Final = (
    "broker knows no topic",
    "broker knows the topic's predecessor",
    "broker knows fewer partitions",
)


@dataclass(slots=True)
class _Behind:
    kind: str
    until_ms: int
    share: float
    """Share of the look-ups that this broker answers."""


class Topology:
    """The truth about topics, and the brokers' versions of it."""

    def __init__(self, scheduler: Scheduler, chance: Random, faults: Faults) -> None:
        """Creates the topics."""
        self._scheduler = scheduler
        self._chance = chance
        self._faults = faults
        self.truth = {
            name: TopicFacts(
                topic_id=f"id-{name}", partition_count=PARTITIONS, record_max_bytes=1_000_000
            )
            for name in (INPUT, OUTPUT)
        }
        self._behind: _Behind | None = None
        self._truthful_until_ms = 0

    def answer(self, topic: str) -> TopicFacts | None:
        """Returns what a broker tells of a topic now; None: no such topic."""
        truth = self.truth[topic]
        behind = self._now_behind()
        if behind is None or self._chance.random() >= behind.share:
            return truth
        self._faults.count(behind.kind)
        if behind.kind == "broker knows no topic":
            return None
        if behind.kind == "broker knows the topic's predecessor":
            return replace(truth, topic_id=f"former-{topic}")
        return replace(truth, partition_count=1)

    def _now_behind(self) -> _Behind | None:
        now_ms = self._scheduler.now_ms
        if self._behind is not None and now_ms >= self._behind.until_ms:
            self._behind, self._truthful_until_ms = None, now_ms + TRUTHFUL_MS
        if self._behind is None and now_ms >= self._truthful_until_ms:
            kind = self._chance.choice(BEHIND)
            if self._faults.happens(kind, 0.3, counted=False):
                until_ms = now_ms + self._chance.randint(*BEHIND_MS)
                self._behind = _Behind(kind, until_ms, self._chance.choice((0.5, 0.9, 1.0)))
        return self._behind
