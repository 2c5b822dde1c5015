"""Where the partitions of a queue end, as a simulated tenure is told: late, too low, or not at all.

Plays `coordinator/runtime/queue_ends.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from logtx.coordinator.core.decision import Instant
from logtx.coordinator.core.tenure import Tenure
from logtx.journal.places import PartitionId

from .schedule import Party
from .setting import Setting

PAUSE_MS: Final = (3, 24)
"""Shortest and longest pause between two questions: it doubles while no end moves."""
FAILS_SHARE: Final = 0.05
"""Share of the questions without an answer."""
LATE_SHARE: Final = 0.05
"""Share of the questions that are answered late."""


class QueueEnds:
    """The questions of one tenure."""

    def __init__(
        self, setting: Setting, coordinator: Party, tenure: Tenure, now: Callable[[], Instant]
    ) -> None:
        """Asks nothing before `soon`."""
        assert setting.queues is not None
        self._setting, self._draw = setting, setting.queues
        self._coordinator = coordinator
        self._tenure = tenure
        self._now = now
        self._asking = False
        self._pause_ms = PAUSE_MS[0]

    def soon(self) -> None:
        """Begins to ask if somebody waits, and nothing is asked yet."""
        if not self._asking and self._tenure.shard.queues.dispatch.wants_ends:
            self._asking = True
            self._ask()

    def _ask(self) -> None:
        setting, draw, dispatch = self._setting, self._draw, self._tenure.shard.queues.dispatch
        wanted = dispatch.wanted()
        over = self._tenure.over or self._tenure.quiescing
        if over or not (wanted or dispatch.wants_ends):
            self._asking = False
            return
        setting.history.counts["questions for ends of queues"] += 1
        asked_ms, told_ms = draw.randint(0, 4), draw.randint(1, 4)
        fails = setting.faults.on and draw.random() < FAILS_SHARE
        if setting.faults.on and draw.random() < LATE_SHARE:
            told_ms += draw.randint(20, 200)
        ends: dict[PartitionId, int] = {}

        def answered() -> None:
            if not fails:
                # The id is asked for behind the end, and truth[topic] is what it is by then.
                ends.update({p: setting.told_end(*p.key) for p in self._there(wanted)})

        # Taken when the brokers answer, and not by the party: they go on while it stands still.
        setting.scheduler.after(asked_ms, answered)
        self._coordinator.later(asked_ms + told_ms, lambda: self._tell(ends))

    def _there(self, wanted: Collection[PartitionId]) -> list[PartitionId]:
        truth = self._setting.topology.truth
        return [p for p in wanted if p.topic in truth and truth[p.topic].topic_id == p.topic_id]

    def _tell(self, ends: dict[PartitionId, int]) -> None:
        if self._tenure.over:
            self._asking = False
            return
        known = self._tenure.shard.queues.dispatch.end_of
        moves = any(known(partition) != end for partition, end in ends.items())
        self._pause_ms = PAUSE_MS[0] if moves else min(self._pause_ms * 2, PAUSE_MS[1])
        self._tenure.queue_ends_told(ends, self._now())
        self._coordinator.later(self._pause_ms, self._ask)
