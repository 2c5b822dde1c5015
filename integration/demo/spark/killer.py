"""Kills the driver in the middle of its work: the journal shows a transaction open, and the ledger
has got records of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from ....journal.log import Log
from ..deeds import WorkerKill
from ..journal_view import JournalTail, Key, Seen
from .processes import SparkChild

KILLS: Final = 2
_TRIES_MAX: Final = 6
"""A commit may be on its way when the driver dies; then the kill does not count."""
_LANDING_S: Final = 0.05
_READ_TIMEOUT_S: Final = 20.0


@dataclass(slots=True, kw_only=True)
class DriverKiller:
    """Kills and restarts the driver, at a quarter and at half of the flights."""

    driver: SparkChild
    producer_id: str
    tail: JournalTail
    log: Log
    ledger: str
    partitions: int
    """Of the ledger."""
    flights: int
    deeds: list[WorkerKill] = field(default_factory=list)
    _watched: Key | None = None
    _end_before: int = 0

    @property
    def counted(self) -> int:
        """Kills that left a transaction to be aborted by others."""
        return sum(deed.counts(self.tail.view) for deed in self.deeds)

    @property
    def is_done(self) -> bool:
        """Whether all kills have counted, or there were too many that did not."""
        return self.counted >= KILLS or (
            len(self.deeds) >= _TRIES_MAX
            and all(d.counts(self.tail.view) or d.is_spoilt(self.tail.view) for d in self.deeds)
        )

    def step(self) -> None:
        """Kill and restart the driver, if it is time and the moment is right.

        Raises:
            BrokerError: journal or ledger can't be read.
        """
        seen = self._victim()
        if seen is None or not self._is_due() or not self._has_written(seen):
            return
        self.driver.pause()
        time.sleep(_LANDING_S)
        self.tail.read_to_end(seen.key[0], timeout_s=_READ_TIMEOUT_S)
        if self._victim() is not seen:
            self.driver.resume()
            return
        self.driver.kill()
        self.deeds.append(WorkerKill(self.driver.name, seen.key))
        self.driver.start()

    def _is_due(self) -> bool:
        view = self.tail.view
        done = sum(not deed.is_spoilt(view) for deed in self.deeds)
        share = self.flights * (done + 1) // (KILLS + 2)
        return (
            done < KILLS and len(self.deeds) < _TRIES_MAX and view.records_committed // 2 >= share
        )

    def _victim(self) -> Seen | None:
        seen = self.tail.view.open_of(self.producer_id)
        # What a killed driver had open stays so until it is aborted: it is hit once.
        return None if seen is None or any(d.key == seen.key for d in self.deeds) else seen

    def _has_written(self, seen: Seen) -> bool:
        """Whether the ledger has grown since the transaction was first seen, by more than the
        markers of the one before, which come late."""
        end = sum(self.log.end_offset(self.ledger, p) for p in range(self.partitions))
        if self._watched != seen.key:
            self._watched, self._end_before = seen.key, end
        return end > self._end_before + self.partitions
