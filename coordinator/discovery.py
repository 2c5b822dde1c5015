"""From `bootstrap.servers` to the coordinator of a journal partition, through the log alone."""

from __future__ import annotations

import time
from typing import Final

from ..journal.errors import (
    BrokerError,
    CoordinatorNotAvailableError,
    UnknownTopicError,
)
from ..journal.log import Log
from ..journal.reader import COORDINATORS_GROUP, JOURNAL_TOPIC, journal_partition_of
from .checkpoint import Checkpoint

PAUSE_S: Final = 0.1


class Discovery:
    """Finds journal partitions and their owners; every wait is bounded by a deadline."""

    def __init__(self, log: Log) -> None:
        """Ask `log`."""
        self._log = log
        self._partition_count: int | None = None

    def partition_of(self, name: str, deadline_s: float) -> int:
        """Journal partition that a transaction group or consumer group hashes to.

        Raises:
            CoordinatorNotAvailableError: no journal exists until `deadline_s` (monotonic).
        """
        while self._partition_count is None:
            try:
                info = self._log.topic_info(JOURNAL_TOPIC, timeout_s=_left(deadline_s))
            except (UnknownTopicError, BrokerError) as error:
                self._pause(deadline_s, f"no journal at {self._log.bootstrap_servers}: {error}")
            else:
                self._partition_count = info.partition_count
        return journal_partition_of(name, self._partition_count)

    def owner_of(self, partition: int, deadline_s: float) -> Checkpoint:
        """The last known owner of a journal partition.

        Raises:
            CoordinatorNotAvailableError: none has published itself until `deadline_s`.
        """
        while True:
            why = "no coordinator has published itself; start one with: logtx coordinator"
            try:
                committed = self._log.group_offset(
                    COORDINATORS_GROUP, JOURNAL_TOPIC, partition, timeout_s=_left(deadline_s)
                )
            except (UnknownTopicError, BrokerError) as error:
                why = str(error)
            else:
                checkpoint = Checkpoint.from_group_offset(committed)
                if checkpoint is not None:
                    return checkpoint
            self._pause(deadline_s, f"journal partition {partition}: {why}")

    @staticmethod
    def _pause(deadline_s: float, why: str) -> None:
        if time.monotonic() + PAUSE_S > deadline_s:
            raise CoordinatorNotAvailableError(why)
        time.sleep(PAUSE_S)


def _left(deadline_s: float) -> float:
    return max(0.1, min(10.0, deadline_s - time.monotonic()))
