"""Turns plain offsets, as in confluent-kafka's `send_offsets_to_transaction`, into IOV steps.

A step says *from → to*, a plain offset only *to*. *From* is first what the group has committed,
which is asked for once, and then what this producer sent last. After an abort the group is asked
again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..journal.control import TopicPartition
from ..journal.errors import ConfigError
from ..journal.position import Place, Position
from ..journal.records.types import OffsetStep

if TYPE_CHECKING:
    from ..coordinator.protocol.commands import GroupOffsets

PlainOffset = tuple[str, int, int]
"""(topic, partition, next offset to read)."""


class PlainOffsets:
    """Remembers the last known place of each group and partition; safe from any thread."""

    def __init__(self, fetch: Callable[[str, Iterable[TopicPartition]], GroupOffsets]) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._known: dict[str, dict[TopicPartition, Place | None]] = {}

    def steps(self, group: str, offsets: Iterable[PlainOffset]) -> list[OffsetStep]:
        """Returns the offsets as steps; asks for the committed place of partitions not known yet.

        Raises:
            OffsetsPendingError: another transaction holds one of them; retry once it has ended.
            ConfigError: an offset is negative, such as Kafka's "no offset" -1001.
        """
        wanted = list(offsets)
        for topic, partition, offset in wanted:
            if offset < 0:
                raise ConfigError(f"{topic}[{partition}] has no offset to send: {offset}")
        with self._lock:
            known = self._known.setdefault(group, {})
            missing = [(t, p) for t, p, _ in wanted if (t, p) not in known]
        if missing:
            committed = self._fetch(group, missing).offsets
            with self._lock:
                for key in missing:
                    position = committed.get(key)
                    known[key] = position.place if position is not None else None
        with self._lock:
            return [OffsetStep(t, p, known[t, p], Position.at(o)) for t, p, o in wanted]

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


def check_positions(steps: Iterable[OffsetStep], offsets: Iterable[PlainOffset]) -> None:
    """Refuses positions that differ from a logtx consumer's own steps.

    Raises:
        ConfigError: they differ; sending either of the two could lose or repeat input.
    """
    named = {(topic, partition): offset for topic, partition, offset in offsets}
    for step in steps:
        offset = named.get((step.topic, step.partition))
        if offset != step.to.o2:
            raise ConfigError(
                f"the consumer delivered {step.topic}[{step.partition}] up to {step.to.o2}, the "
                f"position given is {offset}: give its own, or use Transaction.send_offsets"
            )
