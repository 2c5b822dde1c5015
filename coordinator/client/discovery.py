"""Finds the coordinator of a journal partition from `bootstrap.servers`, using only the log."""

from __future__ import annotations

import time
from typing import Final

from ...journal.errors import (
    BrokerError,
    CoordinatorNotAvailableError,
    UnknownTopicError,
)
from ...journal.logs.interface import Log
from ...journal.reader import COORDINATORS_GROUP, JOURNAL_TOPIC, journal_partition_of
from ..protocol.checkpoint import Checkpoint

PAUSE_S: Final = 0.1
"""Pause before the journal is asked for again; shorter loads the brokers more."""
LOOK_TIMEOUT_S: Final = 1.0
"""Longest wait for one answer with the hint: a slow broker is asked again rather than waited
for."""
DESCRIBE_TIMEOUT_S: Final = 5.0
"""Longest wait for one description of the journal topic; past it Kafka is asked again."""
NOT_PUBLISHED: Final = "no coordinator has published itself; start one with: logtx coordinator"


class Discovery:
    """Finds journal partitions and the hints at their owners. Every wait is bounded."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._partition_count: int | None = None

    def partition_of(self, name: str, deadline_s: float) -> int:
        """Returns the journal partition that a transaction group or consumer group hashes to.

        Raises:
            CoordinatorNotAvailableError: no journal was found by `deadline_s` (monotonic).
        """
        return journal_partition_of(name, self.partition_count(deadline_s))

    def partition_count(self, deadline_s: float) -> int:
        """Returns the journal's partition count, which is fixed at its creation.

        Raises:
            CoordinatorNotAvailableError: no journal was found by `deadline_s` (monotonic).
        """
        while self._partition_count is None:
            left_s = deadline_s - time.monotonic()
            try:
                self._partition_count = self._log.partition_count(
                    JOURNAL_TOPIC, timeout_s=max(0.1, min(DESCRIBE_TIMEOUT_S, left_s))
                )
            except (UnknownTopicError, BrokerError) as error:
                if time.monotonic() + PAUSE_S > deadline_s:
                    raise CoordinatorNotAvailableError(
                        f"no journal at {self._log.bootstrap_servers}: {error}"
                    ) from error
                time.sleep(PAUSE_S)
        return self._partition_count

    def look_up(self, partition: int, timeout_s: float = LOOK_TIMEOUT_S) -> Checkpoint:
        """Returns the owner of a journal partition that published itself last: a hint, maybe stale.

        Raises:
            CoordinatorNotAvailableError: no owner has published itself, or Kafka did not answer in
                time.
        """
        try:
            committed = self._log.group_offset(
                COORDINATORS_GROUP,
                JOURNAL_TOPIC,
                partition,
                timeout_s=max(0.01, min(LOOK_TIMEOUT_S, timeout_s)),
            )
        except (UnknownTopicError, BrokerError) as error:
            raise CoordinatorNotAvailableError(str(error)) from error
        checkpoint = Checkpoint.from_group_offset(committed)
        if checkpoint is None:
            raise CoordinatorNotAvailableError(f"journal partition {partition}: {NOT_PUBLISHED}")
        return checkpoint
