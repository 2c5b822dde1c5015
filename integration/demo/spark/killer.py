"""Kills the driver in the middle of its work: the journal shows a transaction open, and the ledger
has got records of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import inf
from typing import Final

from ....journal.log import Log
from ..deeds import WorkerKill
from ..journal_view import JournalTail, Seen
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
    _spare: float = inf
    """How far the ledger's end is beyond what the journal knows to be there, markers of all
    partitions included, while nothing is open: records of aborted transactions."""

    @property
    def counted(self) -> int:
        """Kills that left a transaction to be aborted by others."""
        return sum(deed.counts(self.tail.view) for deed in self.deeds)

    def step(self) -> None:
        """Kill and restart the driver, if it is time and the moment is right.

        Raises:
            BrokerError: journal or ledger can't be read.
        """
        if self._spare == inf or self._is_due():
            self._note_spare()
        seen = self._victim()
        if seen is None or not self._is_due() or self._surplus() <= self._spare:
            return
        self.driver.pause()
        time.sleep(_LANDING_S)
        self.tail.read_to_end(seen.key[0], timeout_s=_READ_TIMEOUT_S)
        if self._victim() is not seen:
            self.driver.resume()
            return
        self.driver.kill()
        self._spare = inf
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

    def _note_spare(self) -> None:
        # What the view shows may be late, so that the end is beyond a transaction that it does not
        # know yet: the smallest is right.
        if not self.tail.view.unfinished:
            self._spare = min(self._spare, self._surplus())

    def _surplus(self) -> int:
        view = self.tail.view
        end = sum(self.log.end_offset(self.ledger, p) for p in range(self.partitions))
        return end - view.records_committed - self.partitions * view.committed
