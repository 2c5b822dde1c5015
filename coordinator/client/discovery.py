"""From `bootstrap.servers` to the coordinator of a journal partition, through the log alone."""

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
LOOK_TIMEOUT_S: Final = 1.0
"""Longest wait for one answer of Kafka; a slow broker is asked again rather than waited for."""
DESCRIBE_TIMEOUT_S: Final = 5.0
NOT_PUBLISHED: Final = "no coordinator has published itself; start one with: logtx coordinator"


class Discovery:
    """Finds journal partitions and the hints at their owners; every wait is bounded."""

    def __init__(self, log: Log) -> None:
        """Ask `log`."""
        self._log = log
        self._partition_count: int | None = None

    def partition_of(self, name: str, deadline_s: float) -> int:
        """Journal partition that a transaction group or consumer group hashes to.

        Raises:
            CoordinatorNotAvailableError: no journal exists until `deadline_s` (monotonic).
        """
        return journal_partition_of(name, self.partition_count(deadline_s))

    def partition_count(self, deadline_s: float) -> int:
        """Partitions of the journal, fixed at its creation.

        Raises:
            CoordinatorNotAvailableError: no journal exists until `deadline_s` (monotonic).
        """
        while self._partition_count is None:
            left_s = deadline_s - time.monotonic()
            try:
                info = self._log.topic_info(
                    JOURNAL_TOPIC, timeout_s=max(0.1, min(DESCRIBE_TIMEOUT_S, left_s))
                )
            except (UnknownTopicError, BrokerError) as error:
                if time.monotonic() + PAUSE_S > deadline_s:
                    raise CoordinatorNotAvailableError(
                        f"no journal at {self._log.bootstrap_servers}: {error}"
                    ) from error
                time.sleep(PAUSE_S)
            else:
                self._partition_count = info.partition_count
        return self._partition_count

    def look_up(self, partition: int, timeout_s: float = LOOK_TIMEOUT_S) -> Checkpoint:
        """The owner of a journal partition that published itself last: a hint, maybe stale.

        Raises:
            CoordinatorNotAvailableError: none has, or Kafka did not answer in time.
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
