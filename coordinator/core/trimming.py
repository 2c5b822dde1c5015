"""Decides up to where sidecars are trimmed: by logtx alone, and never what a reader may need. Pure.

What may the pointers name that are still in a main partition? Of finished transactions `staircases`
says it. Of a commit that is decided and not finished, the decision says what its pointers will name
(`sidecars.steps_to_come`); an abort has none. And what may an undecided transaction come to name?
Nobody needs to know what is open where, for a transaction begins before it writes. Therefore a
*checkpoint* is noted, in this order:

T1. the end of each sidecar partition, and where its main partition's log starts,
T2. then an end of each journal partition. All that was begun before T1 was answered lies below it.

It is used when in every journal partition all is decided that was begun below the noted end. What
that needs is known, then; all that was begun later wrote at or behind the sidecars' noted ends. So
a sidecar partition may be trimmed to the lowest of its noted end, of what each journal partition's
staircase needs at the main partition's noted start, and of what its unfinished commits need: their
pointers come in the end, wherever the main log starts (trap 157). The rest of the rules:

T3. A checkpoint is used when it is as old as the delay. A reader that is in the middle of a pointer
    when retention takes it has that long to come to its end.
T4. A broker that leads a journal partition no more, and does not know it yet, may tell an end of
    the past (decision 26), below a BEGIN whose transaction writes already. So two looks are taken
    at the ends, far enough apart, and the higher one counts. A sidecar's end or a main partition's
    start of the past are lower than the present ones: they keep more.
T5. A topic that was deleted and created anew has other offsets. The ids are asked for before T1,
    and again before records are deleted; where one differs the checkpoint says nothing.

A transaction that is not decided holds all sidecars back, whatever it writes to: checkpoints wait
for it. One whose marker can't be written, because a topic takes none, holds back the sidecar
partitions that it has records in.

The caller has the clock, asks the log, and deletes the records.

Source: PIP-31, "Retention Cursor"; here no message is marked as deleted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from ...journal.control import TopicPartition
from ...journal.errors import UnknownTopicError
from ...journal.records.types import PointerStep
from ...journal.sidecar import main_of
from ...journal.value import value
from .sidecars import steps_to_come

if TYPE_CHECKING:
    from .shard_state import ShardState

CHECKPOINTS_PER_DELAY: Final = 10
"""Checkpoints noted in the time of the delay. With fewer, records wait longer beyond it."""
CHECKPOINTS_MAX: Final = 2 * CHECKPOINTS_PER_DELAY
"""Checkpoints that may wait. While a transaction is not decided, more would all wait for it."""


@value(frozen=True, slots=True, kw_only=True)
class Noted:
    """What a checkpoint says of a sidecar partition."""

    end: int
    """Its end."""
    main_start: int
    """Offset at which its main partition's log starts."""
    topic_id: str
    """Id of the sidecar, asked for before; "" where the log has none."""
    main_id: str
    """Id of its topic."""

    def is_of(self, sidecar: str, ids: Mapping[str, str]) -> bool:
        """Returns whether it speaks of the topics that have the names now (T5).

        Args:
            sidecar: name of the sidecar.
            ids: topic → id of those that exist, and have one.
        """
        told = ids.get(sidecar, ""), ids.get(main_of(sidecar), "")
        return told == (self.topic_id, self.main_id)

    def check_is_of(self, sidecar: str, ids: Mapping[str, str]) -> None:
        """Checks the same, for who asks once.

        Raises:
            UnknownTopicError: one of them was created anew.
        """
        if not self.is_of(sidecar, ids):
            raise UnknownTopicError(
                f"{sidecar} or its topic was created anew meanwhile: call again"
            )


@dataclass(frozen=True, slots=True)
class JournalView:
    """A journal partition, as its records say it that are known to be durable."""

    undecided: int
    """All that was begun below is decided."""
    needed: Callable[[TopicPartition, int], PointerStep | None]
    """Returns the step that holds a sidecar partition, of those that pointers need at or above an
    offset of the main partition, and that will be written."""

    @classmethod
    def of(cls, shard: ShardState) -> Self:
        """Returns the view that a shard gives as it is now; it is no view of later."""
        to_come, needed = steps_to_come(shard.transactions), shard.staircases.needed

        def lowest(sidecar: TopicPartition, main_start: int) -> PointerStep | None:
            return _lowest((to_come.get(sidecar), needed(sidecar, main_start)))

        return cls(shard.undecided, lowest if to_come else needed)


@value(frozen=True, slots=True)
class Bound:
    """Up to where a sidecar partition may be trimmed."""

    offset: int
    held_by: PointerStep | None
    """What needs it from there on; None: the checkpoint reaches no further."""
    noted: Noted


@dataclass(slots=True, eq=False)
class _Checkpoint:
    noted_ms: int
    sidecars: Mapping[TopicPartition, Noted]
    journal_ends: dict[int, int] = field(default_factory=dict)
    told_ms: int | None = None
    """When the first look at the journals' ends was answered."""
    is_proved: bool = False
    """Whether a second look was taken (T4)."""

    def journals_told(
        self, ends: Mapping[int, int], asked_ms: int, now_ms: int, apart: int
    ) -> None:
        if asked_ms < self.noted_ms:
            return  # Such an end may lie below what wrote before the sidecar's (T2).
        for partition, end in ends.items():
            self.journal_ends[partition] = max(end, self.journal_ends.get(partition, 0))
        if self.told_ms is None:
            self.told_ms = now_ms
            self.is_proved = not apart
        elif asked_ms >= self.told_ms + apart:
            self.is_proved = True

    def is_passed(self, journals: Mapping[int, JournalView]) -> bool:
        """Returns whether all that was begun before it is decided."""
        return self.is_proved and all(
            partition in journals and journals[partition].undecided >= end
            for partition, end in self.journal_ends.items()
        )


class Trimming:
    """The checkpoints of one process, and what they allow."""

    def __init__(self, *, delay_ms: int, looks_apart_ms: int) -> None:
        """Begins without a checkpoint.

        Args:
            delay_ms: how old a checkpoint must be (T3).
            looks_apart_ms: least time between the answer to a first look at the journals' ends and
                the question of the second; 0: one is enough, as a log has but one leader.
        """
        self._delay_ms, self._apart_ms = delay_ms, looks_apart_ms
        self._waiting: deque[_Checkpoint] = deque()
        """Oldest first."""
        self._passed: _Checkpoint | None = None
        """The newest that was passed."""

    def is_due(self, now_ms: int) -> bool:
        """Returns whether to note another checkpoint.

        Args:
            now_ms: monotonic time; the same in the calls below.
        """
        if len(self._waiting) >= CHECKPOINTS_MAX:
            return False
        newest = self._waiting[-1] if self._waiting else self._passed
        return newest is None or now_ms >= newest.noted_ms + self._delay_ms / CHECKPOINTS_PER_DELAY

    def note(self, sidecars: Mapping[TopicPartition, Noted], now_ms: int) -> None:
        """Notes a checkpoint (T1). Ask for the journals' ends from now on.

        Args:
            sidecars: what was told of each sidecar partition. Those that did not answer are
                missing; they are not trimmed by this checkpoint.
            now_ms: when it was told.
        """
        self._waiting.append(_Checkpoint(now_ms, sidecars))

    @property
    def wants_journal_ends(self) -> bool:
        """Whether to ask for the ends of all journal partitions."""
        return any(not each.is_proved for each in self._waiting)

    def journals_told(self, ends: Mapping[int, int], asked_ms: int, now_ms: int) -> None:
        """Takes the ends of all journal partitions (T2, T4).

        Args:
            ends: journal partition → its end. None may be missing.
            asked_ms: when they were asked for.
            now_ms: when they were told.
        """
        for each in self._waiting:
            if not each.is_proved:
                each.journals_told(ends, asked_ms, now_ms, self._apart_ms)

    def bounds(
        self, journals: Mapping[int, JournalView], now_ms: int
    ) -> dict[TopicPartition, Bound]:
        """Returns up to where sidecar partitions may be trimmed now, by the newest checkpoint that
        is passed.

        Args:
            journals: all journal partitions of which something is known.
            now_ms: the time.
        """
        of_age = [c for c in self._waiting if now_ms >= c.noted_ms + self._delay_ms]
        newest = next((c for c in reversed(of_age) if c.is_passed(journals)), None)
        while newest is not None and self._passed is not newest:
            self._passed = self._waiting.popleft()
        passed = self._passed
        if passed is None or not passed.is_passed(journals):
            return {}
        views = [journals[partition] for partition in passed.journal_ends]
        return {key: _bound(key, noted, views) for key, noted in passed.sidecars.items()}

    def held_ms(self, now_ms: int) -> int:
        """Returns for how long the oldest checkpoint has been old enough, and is not passed."""
        if not self._waiting:
            return 0
        return max(now_ms - self._waiting[0].noted_ms - self._delay_ms, 0)


class Unaging:
    """Which sidecar partitions can't age.

    What is placed where the topic's log ends stands for a pointer (decision 40), and retention
    never takes it: it takes records, and none lies there or behind. So it needs the sidecar until
    somebody writes to the topic. A pointer is a record itself, and lies below the end.
    """

    def __init__(self, *, told_after_ms: int) -> None:
        """Begins without a partition.

        Args:
            told_after_ms: for how long a partition must have stood so until it is told.
        """
        self._told_after_ms = told_after_ms
        self._since_ms: dict[TopicPartition, tuple[int, int]] = {}
        """Partition → (place that needs it, when that was first seen)."""
        self._told: set[TopicPartition] = set()

    def look(
        self,
        bounds: Mapping[TopicPartition, Bound],
        main_ends: Mapping[TopicPartition, int],
        now_ms: int,
    ) -> list[tuple[TopicPartition, int]]:
        """Takes what holds the partitions now.

        Args:
            bounds: of `Trimming.bounds`.
            main_ends: sidecar partition → the end of its main partition, as it was told last.
            now_ms: the time.

        Returns:
            (partition, place) of those that have stood so for as long as is told; each once, until
            it ages again.
        """
        found: dict[TopicPartition, tuple[int, int]] = {}
        for key, bound in bounds.items():
            place = None if bound.held_by is None else bound.held_by.pointer
            if place is None or place < main_ends.get(key, place + 1):
                continue
            known = self._since_ms.get(key)
            found[key] = known if known is not None and known[0] == place else (place, now_ms)
        self._since_ms = found
        self._told &= found.keys()
        due = {k for k, (_, since) in found.items() if now_ms >= since + self._told_after_ms}
        fresh = sorted(due - self._told)
        self._told |= due
        return [(key, found[key][0]) for key in fresh]

    def longest_ms(self, now_ms: int) -> int:
        """Returns for how long the first of them has stood so; 0 without one."""
        return max((now_ms - since for _, since in self._since_ms.values()), default=0)


def _bound(key: TopicPartition, noted: Noted, journals: list[JournalView]) -> Bound:
    lowest = _lowest(journal.needed(key, noted.main_start) for journal in journals)
    if lowest is None or lowest.first >= noted.end:
        return Bound(noted.end, None, noted)
    return Bound(lowest.first, lowest, noted)


def _lowest(steps: Iterable[PointerStep | None]) -> PointerStep | None:
    there = (step for step in steps if step is not None)
    return min(there, key=lambda step: step.first, default=None)
