"""Asks whether topics have sidecars by now, for readers of uncommitted records.

Why a reader must ask, and when: `core.before_sidecar`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from confluent_kafka import KafkaException

from ..journal.control import TopicPartition
from ..journal.errors import LogtxError
from ..journal.logs.interface import Log
from .core.before_sidecar import BeforeSidecar
from .gates import GATE_TIMEOUT_S, Frontier, Gates
from .topic_ids import with_sidecars

_LOG = logging.getLogger(__name__)
IDLE_S: Final = 1.0
"""Pause between two questions while no record waits. A longer one delays the first transactions of
a sidecar where nothing is written to the topic; a shorter one asks brokers more often."""
WAIT_S: Final = 0.005
"""Longest wait for data while a record waits for an answer. A longer one delays it, a shorter one
costs CPU."""
IDLE_WAIT_S: Final = 0.25
"""The same while none waits. A longer one delays the first records of a sidecar."""


class SidecarWatch:
    """Watches the partitions of one consumer. One thread at a time may use it."""

    def __init__(
        self,
        log: Log,
        high_of: Callable[[TopicPartition], int],
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Asks nothing yet. `high_of` and `clock` are `Homes`' arguments of that name."""
        self._high_of = high_of
        self._clock = clock or time.monotonic
        self._gates: Gates[BeforeSidecar, str, bool] = Gates(partial(tell_sidecars, log))
        self._watched: dict[TopicPartition, BeforeSidecar] = {}
        self._asked_s: float | None = None
        """When it was asked last; None: not since the latest partition was begun."""
        self._seen: set[str] = set()

    def has_sidecar(self, topic: str) -> bool:
        """Returns whether a sidecar of a topic was ever seen."""
        return topic in self._seen

    # ---- partitions -----------------------------------------------------------------------------

    @property
    def watches(self) -> bool:
        """Whether there is anything to ask for."""
        return bool(self._watched)

    def begin(self, key: TopicPartition, before: BeforeSidecar) -> None:
        """Watches a partition, in the place of what was watched of it."""
        self._watched[key] = before
        self._asked_s = None

    def forget(self, key: TopicPartition, before: BeforeSidecar) -> None:
        """Stops watching a partition, if it is this one still."""
        if self._watched.get(key) is before:
            del self._watched[key]

    def drop_all(self) -> None:
        """Watches nothing more."""
        self._watched.clear()

    # ---- questions ------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Takes in what was answered, and asks again if it is time, without waiting. Returns
        whether anything was answered."""
        answers = self._gates.answers()
        for (before, topic, below), has_sidecar in answers:
            if has_sidecar:
                self._seen.add(topic)
            if before in self._watched.values():
                before.told(below, has_sidecar=has_sidecar)
        if self._gates.is_free and self._is_due():
            self._asked_s = self._clock()
            self._gates.ask(self._frontiers())
        return bool(answers)

    def _is_due(self) -> bool:
        if self._asked_s is None or self._holds:
            return self.watches
        return self.watches and self._clock() - self._asked_s >= IDLE_S

    def _frontiers(self) -> list[Frontier[BeforeSidecar, str]]:
        # In a backlog one answer so lets all pass that exists, and not one batch.
        return [
            Frontier(before, before.topic, max(before.next_offset, self._high_of(key)))
            for key, before in self._watched.items()
        ]

    @property
    def _holds(self) -> bool:
        return any(before.held_records for before in self._watched.values())

    @property
    def wait_s(self) -> float:
        """How long to wait for data, at most, before `poll` is called again."""
        return WAIT_S if self._holds or self._asked_s is None else IDLE_WAIT_S

    def close(self) -> None:
        """Ends the thread of the questions."""
        self._gates.close()


def tell_sidecars(log: Log, topics: set[str]) -> Mapping[str, bool]:
    """Returns topic → whether it has a sidecar that this client may see; nothing if no broker
    answers."""
    try:
        having = with_sidecars(log, topics, timeout_s=GATE_TIMEOUT_S)
    except (LogtxError, KafkaException) as error:
        _LOG.warning("sidecars_not_told topics=%s error=%s", sorted(topics), error)
        return {}
    return {topic: topic in having for topic in topics}
