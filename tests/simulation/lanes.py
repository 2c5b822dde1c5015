"""Lanes of a simulated coordinator: markers in commit-sequence order, and offsets.

They keep what `coordinator/runtime/markers.py` and `coordinator/runtime/offsets_topic.py` promise:
in a lane no marker overtakes one that failed, and each consumer group has one write of its offsets
in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from logtx.coordinator.core.decision import WriteOffsets
from logtx.coordinator.core.tenure import Tenure
from logtx.coordinator.core.transactions import TransactionMetadata
from logtx.coordinator.protocol import commands
from logtx.coordinator.runtime.offsets_topic import OffsetsKey
from logtx.journal.control import (
    TXCTL_HEADER,
    TXID_HEADER,
    Marker,
    PartitionList,
    TopicPartition,
    encode_marker,
)
from logtx.journal.state import State

from .history import OffsetsRecord
from .logs import Pipe
from .schedule import Party
from .setting import Setting

MARKERS_IN_FLIGHT: Final = 3
"""Markers of a lane on their way at once. With 1 none could overtake a failed one."""
RETRY_MS: Final = 25
"""Pause before a lane repeats what failed."""


@dataclass(slots=True, eq=False)
class _Ending:
    transaction: TransactionMetadata
    tenure: Tenure
    listed: PartitionList
    missing: int
    told: bool = True
    """Whether the tenure still exists, and is to be told of the end."""


@dataclass(slots=True)
class _Lane:
    """The markers of one journal for one data partition, in commit-sequence order."""

    partition: TopicPartition
    pipe: Pipe
    queue: deque[_Ending] = field(default_factory=deque)
    in_flight: deque[_Ending] = field(default_factory=deque)
    answers: int = 0
    refused: bool = False
    """Whether the broker refused a marker when it arrived."""
    failed: bool = False


@dataclass(slots=True)
class _OffsetsLane:
    """One consumer group's writes: at most one is in flight, and only the newest one waits."""

    tenure: Tenure
    newest: commands.GroupOffsets | None = None
    waiting: list[int] = field(default_factory=list)
    in_flight: bool = False


class MarkerLanes:
    """One coordinator's lanes for the markers of one journal partition."""

    def __init__(self, setting: Setting, coordinator: Party) -> None:
        """Begins with nothing on its way."""
        self._setting = setting
        self._coordinator = coordinator
        self._lanes: dict[TopicPartition, _Lane] = {}

    def write(self, tenure: Tenure, transaction: TransactionMetadata) -> None:
        """Writes a decided transaction's markers; must be called in commit-sequence order."""
        partitions = transaction.partitions
        if not partitions:
            tenure.written(transaction.begin)
            return
        ending = _Ending(transaction, tenure, PartitionList.of(partitions), len(partitions))
        for key in partitions:
            lane = self._lanes.get(key)
            if lane is None:
                pipe = self._setting.pipe(self._coordinator, "marker append")
                lane = self._lanes[key] = _Lane(key, pipe)
            lane.queue.append(ending)
            self._send(lane)

    def _send(self, lane: _Lane) -> None:
        while lane.queue and len(lane.in_flight) < MARKERS_IN_FLIGHT and not lane.failed:
            ending = lane.queue.popleft()
            lane.in_flight.append(ending)
            self._send_one(lane, ending)

    def _send_one(self, lane: _Lane, ending: _Ending) -> None:
        setting, transaction, shard = self._setting, ending.transaction, ending.tenure.shard
        assert transaction.commit_sequence is not None
        marker = Marker(
            committed=transaction.state in (State.COMMITTING, State.COMMITTED),
            commit_sequence=transaction.commit_sequence,
            hw=shard.hw,
            epoch=shard.epoch,
            branches=tuple(transaction.branches.get(lane.partition, ())),
        )
        headers: list[tuple[str, bytes | None]] = [
            (TXID_HEADER, transaction.txid.to_bytes()),
            (TXCTL_HEADER, encode_marker(marker, ending.listed)),
        ]
        handed_at = setting.history.tick()

        def land() -> int | None:
            # The gapless guarantee: nothing lands behind a marker that was refused.
            if lane.refused:
                return None
            what = "COMMITTED" if marker.committed else "ABORTED"
            offset = setting.broker.append_data(
                lane.partition, headers, None, self._coordinator.name, handed_at
            )
            setting.note(
                self._coordinator.name,
                f"{lane.partition} offset {offset}: {what}",
                f"{transaction.txid} hw={marker.hw} epoch={marker.epoch}",
            )
            return offset

        def refuse() -> None:
            lane.refused = True

        lane.pipe.append(land, lambda offset: self._marked(lane, ending, offset), refuse)

    def _marked(self, lane: _Lane, ending: _Ending, offset: int | None) -> None:
        if offset is not None and not lane.failed:
            assert lane.in_flight[0] is ending
            lane.in_flight.popleft()
            self._count(ending)
            self._send(lane)
            return
        # After the first failure nothing counts as written until it is written again.
        lane.failed = True
        lane.answers += 1
        if lane.answers == len(lane.in_flight):
            lane.queue.extendleft(reversed(lane.in_flight))
            lane.in_flight.clear()
            lane.answers = 0
            self._coordinator.later(RETRY_MS, lambda: self._retry(lane))

    def _retry(self, lane: _Lane) -> None:
        lane.failed = lane.refused = False
        self._send(lane)

    @staticmethod
    def _count(ending: _Ending) -> None:
        ending.missing -= 1
        if ending.missing == 0 and ending.told:
            ending.tenure.written(ending.transaction.begin)

    def forget(self) -> None:
        """Ends with the tenure. What is in flight stays, for its decisions are durable."""
        for lane in self._lanes.values():
            lane.queue.clear()
            for ending in lane.in_flight:
                ending.told = False


class OffsetsLanes:
    """One coordinator's writes of the input offsets committed in one journal partition."""

    def __init__(self, setting: Setting, coordinator: Party) -> None:
        """Begins with nothing on its way."""
        self._setting = setting
        self._coordinator = coordinator
        self._pipe = setting.pipe(coordinator, "marker append")
        self._lanes: dict[OffsetsKey, _OffsetsLane] = {}

    def write(self, tenure: Tenure, effect: WriteOffsets) -> None:
        """Publishes a consumer group's IOV."""
        shard = tenure.shard
        key = OffsetsKey(effect.group, tenure.shard.partition, shard.incarnation, shard.epoch)
        lane = self._lanes.setdefault(key, _OffsetsLane(tenure))
        lane.newest = effect.offsets
        lane.waiting.append(effect.begin)
        self._send(key, lane)

    def _send(self, key: OffsetsKey, lane: _OffsetsLane) -> None:
        if lane.in_flight or lane.newest is None or lane.tenure.over:
            return
        offsets, lane.newest = lane.newest, None
        waiting, lane.waiting = lane.waiting, []
        lane.in_flight = True

        def acknowledge(offset: int | None) -> None:
            lane.in_flight = False
            if offset is not None:
                for begin in waiting:
                    lane.tenure.written(begin)
                self._send(key, lane)
            else:
                lane.newest = lane.newest or offsets
                lane.waiting[:0] = waiting
                self._coordinator.later(RETRY_MS, lambda: self._send(key, lane))

        self._append(OffsetsRecord(key, offsets), acknowledge)

    def _append(self, record: OffsetsRecord, acknowledge: Callable[[int | None], None]) -> None:
        log = self._setting.history.offsets_log

        def land() -> int:
            log.append(record)
            return len(log) - 1

        self._pipe.append(land, acknowledge)

    def clear(self, key: OffsetsKey) -> None:
        """Removes what an earlier owner wrote."""
        self._append(OffsetsRecord(key, None), lambda _: None)
