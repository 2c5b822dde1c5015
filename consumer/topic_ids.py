"""Which topics have the names that are read, as far as brokers agree.

A broker that slept, or was cut off, tells the id of a topic that was deleted. So one answer proves
nothing: what would stop a consumer, or move it, must be told for some time (decision 0023).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from ..journal.logs.interface import Log
from ..journal.sidecar import sidecar_of

CONFIRM_S: Final = 5.0
"""How long brokers must tell another id before it is believed. Longer than they usually need to
learn of a change; meanwhile the consumer waits."""
AGAIN_S: Final = 0.25
"""Pause between two such questions; a shorter one asks the brokers more."""
ANSWER_S: Final = 10.0
"""Bound of one question."""


def with_sidecars(log: Log, topics: Collection[str], *, timeout_s: float = ANSWER_S) -> set[str]:
    """Returns those topics that have a sidecar which this client may see.

    Raises:
        BrokerError: no answer in time.
    """
    if not topics:
        return set()
    found = log.topic_ids([sidecar_of(topic) for topic in sorted(topics)], timeout_s=timeout_s)
    return {topic for topic in topics if sidecar_of(topic) in found}


class TopicIds:
    """Asks a log for the ids of topics."""

    def __init__(self, log: Log) -> None:
        """Asks nothing yet."""
        self._log = log

    def of(self, topics: Iterable[str]) -> Mapping[str, str]:
        """Returns topic → id as some broker tells it; a topic without one is left out.

        Raises:
            BrokerError: no answer in time.
        """
        return self._log.topic_ids(sorted(set(topics)), timeout_s=ANSWER_S)

    def is_another(self, topic: str, known: str, told: Mapping[str, str] | None = None) -> bool:
        """Returns whether another topic has the name: for a while brokers tell nothing else.

        Args:
            topic: the name.
            known: the id of the topic that had it; "" if it is not known, which no other one is.
            told: what `of` has returned a moment ago; None: it is asked first.

        Raises:
            BrokerError: no answer in time.
        """
        return bool(known) and not self._comes(topic, lambda id_: id_ in ("", known), told)

    def becomes_another(self, topic: str, known: str) -> bool:
        """Returns whether a broker tells, within a while, that another topic has the name."""
        return bool(known) and self._comes(topic, lambda id_: id_ not in ("", known))

    def _comes(
        self, topic: str, is_it: Callable[[str], bool], told: Mapping[str, str] | None = None
    ) -> bool:
        """Returns whether an id for which `is_it` holds is told within a while."""
        until_s = time.monotonic() + CONFIRM_S
        told = self.of([topic]) if told is None else told
        while not is_it(told.get(topic, "")):
            if time.monotonic() >= until_s:
                return False
            time.sleep(AGAIN_S)
            told = self.of([topic])
        return True
