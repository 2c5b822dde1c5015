"""The topics of the simulated cluster, and what brokers tell of them that are behind.

Any broker may answer a look-up, from its own copy of the metadata. Most answer truthfully. For a
while one of them may be behind: it tells of no topic, of the topic's predecessor, or of fewer
partitions. For a longer while all of them may refuse to tell anything, as where the right to
describe topics was taken away: the topics go on all the same.

Some histories have a temporary topic beside the others. It is deleted while transactions write to
it, with all its records, and most often created anew, soon or late.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from logtx.coordinator.core.decision import TopicFacts
from logtx.journal.sidecar import sidecar_of

from .faults import Faults
from .history import Absence, History
from .schedule import Scheduler

INPUT: Final = "in"
"""Topic whose offsets are the input: they are numbers without records."""
OUTPUT: Final = "out"
SIDECAR: Final = sidecar_of(OUTPUT)
RESULTS: Final = "results"
"""What the workers of a queue write; only histories with queues have it."""
RESULTS_USED: Final = 2
"""Partitions of it that they write to."""
TEMPORARY: Final = "temporary"
"""A topic of one partition that is deleted; most histories do not have it."""
DELETED_MS: Final = (150, 600)
"""Least and most time until it is deleted."""
AWAY_MS: Final = ((5, 60), (5, 60), (300, 700), None)
"""Least and most time until it is created anew; None: never."""
UNHEARD_MS: Final = 40
"""How long producers write to it after it was deleted."""
PARTITIONS: Final = 8
"""Partitions of each topic; a history uses some."""
BEHIND_MS: Final = (10, 120)
"""Least and most time that a broker stays behind: less than `topics.CONFIRM_MS` is here."""
TRUTHFUL_MS: Final = 130
"""Time after which another one may be behind. Longer than a gap between look-ups may be."""
GROWS_MS: Final = (300, 690)
"""Least and most time until a topic that begins with one partition has all of them."""
OLD_MS: Final = 60
"""Before it has them, answers to look-ups take long for this time."""
OUTAGE_MS: Final = 600
"""How long no look-up is answered."""
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

    def __init__(
        self, scheduler: Scheduler, chance: Random, faults: Faults, history: History
    ) -> None:
        """Creates the topics that stay."""
        self._scheduler = scheduler
        self._history = history
        self._chance = chance
        self._faults = faults
        self.truth = {name: _created(name, PARTITIONS) for name in (INPUT, OUTPUT)}
        """Topics that exist."""
        self._former: dict[str, TopicFacts] = {}
        """Topic → its predecessor, where a history deleted one."""
        self._temporary_until_ms = 0
        """Until when producers write to the temporary topic."""
        self._behind: _Behind | None = None
        self._truthful_until_ms = 0
        self._partitions = PARTITIONS
        """Partitions of the output, in the end."""
        self._silent = range(0)
        """Virtual time in which nobody answers look-ups."""
        self._grows_ms = 0
        if faults.tries("topic grows"):
            self._grows_ms = faults.trials.randint(*GROWS_MS)
            self._resize(1)
            scheduler.after(self._grows_ms, lambda: self._resize(self._partitions))
        if faults.tries("no look-ups for long"):
            begins_ms = faults.trials.randint(0, OUTAGE_MS)
            scheduler.after(begins_ms, lambda: self.be_silent(OUTAGE_MS))

    def add_temporary(self, chance: Random, later_ms: int = 0) -> None:
        """Creates the temporary topic, and plans its end, which comes later by so much."""
        self.truth[TEMPORARY] = _created(TEMPORARY, 1)
        self._temporary_until_ms = 2**63
        after = self._scheduler.after
        deleted_ms, away_ms = chance.randint(*DELETED_MS) + later_ms, chance.choice(AWAY_MS)
        after(deleted_ms, self._delete_temporary)
        if away_ms is not None:
            after(deleted_ms + chance.randint(*away_ms), self._create_temporary_anew)

    def add_sidecar(self) -> None:
        """Creates the sidecar of the topic that stays, as a coordinator does at first use."""
        self.truth[SIDECAR] = _created(SIDECAR, PARTITIONS)

    def create(self, topic: str, partitions: int) -> None:
        """Creates a topic if there is none of that name."""
        self.truth.setdefault(topic, _created(topic, partitions))

    def make_queue(self, partitions: int) -> None:
        """Gives the output as many partitions as are used, for a queue looks at all; and creates
        the topic that its workers write to."""
        self._partitions = partitions
        self._resize(min(partitions, self.writable))
        self.truth[RESULTS] = _created(RESULTS, PARTITIONS)

    def _delete_temporary(self) -> None:
        now_ms, history = self._scheduler.now_ms, self._history
        self._former[TEMPORARY] = self.truth.pop(TEMPORARY)
        history.absent.append(Absence(TEMPORARY, history.tick(), now_ms))
        history.former[TEMPORARY, 0] = history.data.pop((TEMPORARY, 0), [])
        history.note(now_ms, "operator", f"deletes {TEMPORARY}")
        history.counts["topics deleted"] += 1
        self._temporary_until_ms = now_ms + UNHEARD_MS

    def _create_temporary_anew(self) -> None:
        now_ms, history = self._scheduler.now_ms, self._history
        self.truth[TEMPORARY] = replace(_created(TEMPORARY, 1), topic_id=f"new-id-{TEMPORARY}")
        history.absent[-1].until_at, history.absent[-1].until_ms = history.tick(), now_ms
        history.note(now_ms, "operator", f"creates {TEMPORARY} anew")
        history.counts["topics created anew"] += 1
        self._temporary_until_ms = 2**63

    @property
    def has_temporary(self) -> bool:
        """Whether there is a temporary topic, as far as producers know."""
        return self._scheduler.now_ms < self._temporary_until_ms

    @property
    def writable(self) -> int:
        """Number of partitions that producers write to: they hear of new ones before others do."""
        return self.truth[OUTPUT].partition_count

    @property
    def is_about_to_grow(self) -> bool:
        """Whether what brokers tell now is soon too little: their answers are on their way then."""
        return 0 < self._grows_ms - self._scheduler.now_ms < OLD_MS

    @property
    def is_silent(self) -> bool:
        """Whether nobody answers look-ups now."""
        return self._scheduler.now_ms in self._silent

    def be_silent(self, for_ms: int) -> None:
        """Lets nobody answer look-ups for some time."""
        now_ms = self._scheduler.now_ms
        self._silent = range(now_ms, now_ms + for_ms)
        self._history.note(now_ms, "brokers", "tell nothing of topics for", for_ms, "ms")

    def _resize(self, partitions: int) -> None:
        self.truth[OUTPUT] = replace(self.truth[OUTPUT], partition_count=partitions)
        self._history.note(self._scheduler.now_ms, "brokers", OUTPUT, "has", partitions)

    def answer(self, topic: str) -> TopicFacts | None:
        """Returns what a broker tells of a topic now; None: no such topic."""
        truth = self.truth.get(topic)
        behind = self._now_behind()
        if behind is None or self._chance.random() >= behind.share:
            return truth
        former = self._former.get(topic)
        self._faults.count(behind.kind)
        if behind.kind == "broker knows no topic":
            return None
        if behind.kind == "broker knows the topic's predecessor":
            return former or (truth and replace(truth, topic_id=f"former-{topic}"))
        return truth and replace(truth, partition_count=1)

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


def _created(name: str, partitions: int) -> TopicFacts:
    return TopicFacts(topic_id=f"id-{name}", partition_count=partitions, record_max_bytes=1_000_000)
