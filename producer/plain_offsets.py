"""Turns offsets, as in confluent-kafka's `send_offsets_to_transaction`, into IOV steps.

A step says *from → to*, an offset only *to*. *From* is first what the group has committed, which is
asked for once, and then what this producer sent last. After an abort the group is asked again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ..journal.control import TopicPartition
from ..journal.position import Place, Position
from ..journal.records.types import OffsetStep

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition as KafkaPartition

    from ..coordinator.protocol.commands import GroupOffsets


class PlainOffsets:
    """Remembers the last known place of each group and partition; safe from any thread."""

    def __init__(self, fetch: Callable[[str, Iterable[TopicPartition]], GroupOffsets]) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._known: dict[str, dict[TopicPartition, Place | None]] = {}

    def steps(self, group: str, places: Sequence[KafkaPartition]) -> list[OffsetStep]:
        """Returns steps to these places; asks for the committed place of partitions not known yet.

        A place that `Consumer.position` returned leads exactly there, also within a transaction.
        Offsets below 0, such as Kafka's "no offset" -1001, don't count.

        Raises:
            OffsetsPendingError: another transaction holds one of them; retry once it has ended.
        """
        ends = {
            (place.topic, place.partition): Position.from_metadata(place.offset, place.metadata)
            for place in places
            if place.offset >= 0
        }
        with self._lock:
            known = self._known.setdefault(group, {})
            missing = [key for key in ends if key not in known]
        if missing:
            committed = self._fetch(group, missing).offsets
            with self._lock:
                for key in missing:
                    position = committed.get(key)
                    known[key] = position.place if position is not None else None
        with self._lock:
            return [OffsetStep(*key, known[key], end) for key, end in ends.items()]

    def sent(self, group: str, steps: Iterable[OffsetStep]) -> None:
        """Notes that these steps are part of a transaction: the next ones go on from there."""
        with self._lock:
            known = self._known.setdefault(group, {})
            for step in steps:
                known[step.topic, step.partition] = step.to.place

    def forget(self, group: str) -> None:
        """Forgets the group's places: a transaction with offsets of this group did not commit."""
        with self._lock:
            self._known.pop(group, None)
