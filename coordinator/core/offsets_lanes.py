"""Decides when consumer groups' IOVs are written to `__transaction_offsets`.

There is one lane per consumer group and tenure. A record holds the whole IOV, so a newer one
replaces those before it, and one write may stand for many commits. At most one write of a lane is
in flight. The larger the IOV, the longer the pause to the next write: so a busy group of thousands
of partitions takes neither the owner's time nor the brokers', and a commit costs what its own steps
cost. A transaction is finished when a write that contains its steps is durable.

The removal of a group's record is a write of the same lane. So it never overtakes an IOV that is
still on its way, and is repeated until it is durable.

Pure: the shell encodes, writes, and has the clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

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


@dataclass(slots=True, eq=False)
class _Lane:
    key: OffsetsKey
    offsets: dict[TopicPartition, Position] = field(default_factory=dict)
    """The whole IOV, as of the newest commit."""
    cleared: bool = False
    """Whether the group was forgotten: its record is removed."""
    last_commit: TxId | None = None
    commit_sequence: int | None = None
    waiting: list[Written] = field(default_factory=list)
    """Commits and removals that no write contains yet."""
    writing: list[Written] | None = None
    """Those that the write in flight contains; None: none is in flight."""
    due_ms: int = 0
    """When the next write may go out."""
    sleeping: bool = False
    """Whether it waits for that time."""


class Shell(Protocol):
    """What the lanes need of the outside world. Every call returns at once."""

    def append(self, key: OffsetsKey, offsets: GroupOffsets | None) -> None:
        """Writes an IOV; None removes the record. Calls `OffsetsLanes.answered` later, once."""

    def wake_at(self, at_ms: int) -> None:
        """Calls `OffsetsLanes.tick` at this monotonic time, or soon after.

        Only the earliest time counts: `tick` asks for the next one.
        """


class OffsetsLanes:
    """The writes of all consumer groups bound to the journal partitions of one coordinator."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._lanes: dict[OffsetsKey, _Lane] = {}
        self._asleep: list[tuple[int, int, _Lane]] = []
        """Heap of (monotonic ms, order of entry, lane)."""
        self._entered = 0

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

    def _lane(self, key: OffsetsKey) -> _Lane:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key)
        return lane

    def backlog(self, key: OffsetsKey) -> int:
        """Returns the number of commits of a group whose IOV is not durable yet."""
        lane = self._lanes.get(key)
        return 0 if lane is None else len(lane.waiting) + len(lane.writing or ())

    def answered(self, key: OffsetsKey, now_ms: int, *, durable: bool) -> None:
        """Takes the answer to a write."""
        lane = self._lanes.get(key)
        if lane is None or lane.writing is None:
            return
        contained, lane.writing = lane.writing, None
        if durable:
            for written in contained:
                written()
            if lane.cleared and not lane.waiting:
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

    def _send(self, lane: _Lane, now_ms: int) -> None:
        if lane.writing is not None or lane.sleeping or not lane.waiting:
            return
        if now_ms < lane.due_ms:
            lane.sleeping = True
            self._entered += 1
            heapq.heappush(self._asleep, (lane.due_ms, self._entered, lane))
            self._shell.wake_at(lane.due_ms)
            return
        lane.writing, lane.waiting = lane.waiting, []
        pause_ms = len(lane.offsets) * PAUSE_US_PER_PARTITION // 1_000
        lane.due_ms = now_ms + min(pause_ms, PAUSE_MAX_MS)
        if lane.cleared:
            self._shell.append(lane.key, None)
            return
        offsets = GroupOffsets(dict(lane.offsets), lane.last_commit, lane.commit_sequence)
        self._shell.append(lane.key, offsets)
