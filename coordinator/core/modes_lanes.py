"""Decides when modes of topics are written to `__transaction_topics`. Pure: the shell writes.

There is one lane per topic and tenure (`offsets_lanes.ValueLanes`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ...journal.mode_registry import ModeKey, TopicModeRecord
from .offsets_lanes import Lane, ValueLanes, Written


@dataclass(slots=True, eq=False)
class _TopicLane(Lane[ModeKey]):
    mode: TopicModeRecord | None = None


class ModesLanes(ValueLanes[ModeKey, TopicModeRecord, _TopicLane]):
    """The writes of all topics whose homes one coordinator owns."""

    def write(self, key: ModeKey, mode: TopicModeRecord, written: Written, now_ms: int) -> None:
        """Writes a topic's mode.

        Args:
            key: key of the record.
            mode: the mode, which replaces one that waits.
            written: called when it, or a later one, is durable.
            now_ms: monotonic time in milliseconds.
        """
        lane = self._lane(key)
        lane.mode = mode
        lane.waiting.append(written)
        self._send(lane, now_ms)

    def _open(self, key: ModeKey) -> _TopicLane:
        return _TopicLane(key)

    def _value(self, lane: _TopicLane) -> TopicModeRecord | None:
        return lane.mode
