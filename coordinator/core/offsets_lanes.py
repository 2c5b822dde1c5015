"""Decides when values are written to compacted topics: IOVs to `__transaction_offsets`, modes to
`__transaction_topics`.

`ValueLanes` has one lane per key. A newer value replaces those before it, and at most one write of
a lane is in flight: so no value overtakes a newer one. One that fails is repeated.

`OffsetsLanes` has one lane per consumer group and tenure. A record holds the whole IOV, so one
write may stand for many commits. The larger the IOV, the longer the pause to the next write. So a
busy group of thousands of partitions takes neither the owner's time nor the brokers', and a commit
costs what its own steps cost. A transaction is finished when a write that contains its steps is
durable.

The removal of a group's record is a write of the same lane. So it never overtakes an IOV that is
still on its way, and is repeated until it is durable.

Pure: the shell encodes, writes, and has the clock.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from ...journal.control import TopicPartition
from ...journal.position import Position
from ...journal.txid import TxId
from ..protocol.commands import GroupOffsets

PAUSE_US_PER_PARTITION: Final = 100
"""Microseconds between two writes of a group, for each partition of its IOV: 10 writes a second for
1,000 partitions. Less takes more of the owner's time; more makes transactions with input offsets
finish later."""
PAUSE_MAX_MS: Final = 500
"""Longest such pause."""
RETRY_MS: Final = 500
"""Pause before a failed write is repeated; a longer one lets more commits wait for theirs."""


@dataclass(frozen=True, slots=True)
class OffsetsKey:
    """Key of a record: a consumer group, and the owner that wrote its IOV."""

    group: str
    partition: int
    """Journal partition."""
    incarnation: int
    epoch: int
    """Epoch of the owner that wrote it."""


Written = Callable[[], None]
"""Called when a write that contains the steps is durable."""


class Key(Protocol):
    """Key of a record: what it is about, and the owner that wrote it."""

    @property
    def partition(self) -> int:
        """Journal partition of the owner."""

    def __hash__(self) -> int: ...


K = TypeVar("K", bound=Key)
K_contra = TypeVar("K_contra", bound=Key, contravariant=True)
V = TypeVar("V")
V_contra = TypeVar("V_contra", contravariant=True)


@dataclass(slots=True, eq=False)
class Lane(Generic[K]):
    """The writes of one key."""

    key: K
    waiting: list[Written] = field(default_factory=list)
    """Whom to tell of what no write contains yet."""
    writing: list[Written] | None = None
    """Whom to tell of the write in flight; None: none is in flight."""
    due_ms: int = 0
    """When the next write may go out."""
    sleeping: bool = False
    """Whether it waits for that time."""


L = TypeVar("L", bound=Lane)  # type: ignore[type-arg]


class Shell(Protocol[K_contra, V_contra]):
    """What the lanes need of the outside world. Every call returns at once; answers come later."""

    def append(self, key: K_contra, value: V_contra | None) -> None:
        """Writes a value; None removes the record. Calls `ValueLanes.answered` later, once."""

    def wake_at(self, at_ms: int) -> None:
        """Calls `ValueLanes.tick` at this monotonic time, or soon after.

        Only the earliest time counts: `tick` asks for the next one.
        """


class ValueLanes(ABC, Generic[K, V, L]):
    """The writes of one coordinator to a compacted topic."""

    def __init__(self, shell: Shell[K, V]) -> None:
        self._shell = shell
        self._lanes: dict[K, L] = {}
        self._asleep: list[tuple[int, int, L]] = []
        """Heap of (monotonic ms, order of entry, lane)."""
        self._entered = 0

    @abstractmethod
    def _open(self, key: K) -> L:
        """Returns a new lane."""

    @abstractmethod
    def _value(self, lane: L) -> V | None:
        """Returns what to write now; None removes the record."""

    def _pause_ms(self, _lane: L) -> int:
        """Returns the pause between two writes."""
        return 0

    def _is_over(self, _lane: L) -> bool:
        """Returns whether a lane without anything to write may be dropped."""
        return True

    def _lane(self, key: K) -> L:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = self._open(key)
        return lane

    def backlog(self, key: K) -> int:
        """Returns the number of values of a key that are not durable yet."""
        lane = self._lanes.get(key)
        return 0 if lane is None else len(lane.waiting) + len(lane.writing or ())

    def answered(self, key: K, now_ms: int, *, durable: bool) -> None:
        """Takes the answer to a write."""
        lane = self._lanes.get(key)
        if lane is None or lane.writing is None:
            return
        contained, lane.writing = lane.writing, None
        if durable:
            for written in contained:
                written()
            if not lane.waiting and self._is_over(lane):
                self._lanes.pop(key, None)
        else:
            lane.waiting[:0] = contained
            lane.due_ms = max(lane.due_ms, now_ms + RETRY_MS)
        self._send(lane, now_ms)

    def tick(self, now_ms: int) -> None:
        """Sends what has become due with time."""
        while self._asleep and self._asleep[0][0] <= now_ms:
            lane = heapq.heappop(self._asleep)[2]
            lane.sleeping = False
            self._send(lane, now_ms)
        if self._asleep:
            self._shell.wake_at(self._asleep[0][0])

    def forget(self, partition: int) -> None:
        """Drops what is queued for a journal partition that must be loaded again."""
        for key in [k for k in self._lanes if k.partition == partition]:
            lane = self._lanes.pop(key)
            lane.waiting.clear()

    def _send(self, lane: L, now_ms: int) -> None:
        if lane.writing is not None or lane.sleeping or not lane.waiting:
            return
        if now_ms < lane.due_ms:
            lane.sleeping = True
            self._entered += 1
            heapq.heappush(self._asleep, (lane.due_ms, self._entered, lane))
            self._shell.wake_at(lane.due_ms)
            return
        lane.writing, lane.waiting = lane.waiting, []
        lane.due_ms = now_ms + self._pause_ms(lane)
        self._shell.append(lane.key, self._value(lane))


@dataclass(slots=True, eq=False)
class _GroupLane(Lane[OffsetsKey]):
    offsets: dict[TopicPartition, Position] = field(default_factory=dict)
    """The whole IOV, as of the newest commit."""
    cleared: bool = False
    """Whether the group was forgotten: its record is removed."""
    last_commit: TxId | None = None
    commit_sequence: int | None = None


class OffsetsLanes(ValueLanes[OffsetsKey, GroupOffsets, _GroupLane]):
    """The writes of all consumer groups bound to the journal partitions of one coordinator."""

    def write(self, key: OffsetsKey, steps: GroupOffsets, written: Written, now_ms: int) -> None:
        """Writes a group's IOV.

        Args:
            key: key of the record.
            steps: the positions that a commit moved. In a tenure's first call for a group: all.
            written: called when they are durable.
            now_ms: monotonic time in milliseconds.
        """
        lane = self._lane(key)
        lane.cleared = False
        lane.offsets.update(steps.offsets)
        lane.last_commit, lane.commit_sequence = steps.last_commit, steps.commit_sequence
        lane.waiting.append(written)
        self._send(lane, now_ms)

    def clear(self, key: OffsetsKey, written: Written, now_ms: int) -> None:
        """Removes the record of a group that was forgotten.

        Args:
            key: key of the record.
            written: called when the removal is durable, or an IOV that was written since.
            now_ms: monotonic time in milliseconds.
        """
        lane = self._lane(key)
        lane.offsets.clear()
        lane.cleared = True
        lane.waiting.append(written)
        self._send(lane, now_ms)

    def _open(self, key: OffsetsKey) -> _GroupLane:
        return _GroupLane(key)

    def _is_over(self, lane: _GroupLane) -> bool:
        # The others keep the whole IOV, of which a commit tells only what it moved.
        return lane.cleared

    def _pause_ms(self, lane: _GroupLane) -> int:
        return min(len(lane.offsets) * PAUSE_US_PER_PARTITION // 1_000, PAUSE_MAX_MS)

    def _value(self, lane: _GroupLane) -> GroupOffsets | None:
        if lane.cleared:
            return None
        return GroupOffsets(dict(lane.offsets), lane.last_commit, lane.commit_sequence)
