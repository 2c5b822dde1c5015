"""Kills the driver in the middle of its work: the journal shows a transaction open, and the ledger
has got records of it.

Of the driver only Python is paused for that, without which nothing is committed; the tasks of its
JVM write on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import inf
from typing import Final

from ....journal.logs.interface import Log
from ....journal.records.scan import SeenTransaction
from ..deeds import WorkerKill
from ..journal_view import JournalTail, Key, key_of
from .processes import SparkChild

KILLS_MAX: Final = 2
FLIGHTS_PER_KILL: Final = 500
"""Fewer flights are for a quick look: each driver takes its time to start."""
_SPOILT_MAX: Final = 4
"""A commit may be on its way when the driver dies; then the kill does not count."""
_WRITE_S: Final = 2.0
"""A paused driver's transaction is aborted after three seconds, as its session is silent."""
_POLL_S: Final = 0.02
_READ_TIMEOUT_S: Final = 20.0


def kills_for(flights: int) -> int:
    """How many kills so many flights have room for."""
    return min(KILLS_MAX, flights // FLIGHTS_PER_KILL)


@dataclass(slots=True, kw_only=True)
class DriverKiller:
    """Kills and restarts the driver, for the first time at a quarter of the flights or a third."""

    driver: SparkChild
    producer_id: str
    tail: JournalTail
    log: Log
    ledger: str
    partitions: int
    """Of the ledger."""
    flights: int
    """To be booked."""
    kills: int
    """That are to count."""
    deeds: list[WorkerKill] = field(default_factory=list)
    _passed_over: Key | None = None
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
        if seen is None or not self._is_due() or key_of(seen) == self._passed_over:
            return
        self.driver.pause()
        wrote = self._await_records()
        self.tail.read_to_end(seen.txid.partition, timeout_s=_READ_TIMEOUT_S)
        if not wrote or self._victim() is not seen:
            self._passed_over = key_of(seen)
            self.driver.resume()
            return
        self.driver.kill()
        self._spare = inf
        self.deeds.append(WorkerKill(self.driver.name, key_of(seen)))
        self.driver.start()

    def _is_due(self) -> bool:
        view = self.tail.view
        done = sum(not deed.is_spoilt(view) for deed in self.deeds)
        if done >= self.kills or len(self.deeds) - done > _SPOILT_MAX:
            return False
        share = self.flights * (done + 1) // (self.kills + 2)
        return view.records_committed // 2 >= share

    def _victim(self) -> SeenTransaction | None:
        seen = self.tail.view.open_of(self.producer_id)
        # What a killed driver had open stays so until it is aborted: it is hit once.
        return None if seen is None or any(d.key == key_of(seen) for d in self.deeds) else seen

    def _await_records(self) -> bool:
        """Whether the ledger has records of what is open, or gets them soon."""
        deadline_s = time.monotonic() + _WRITE_S
        while self._surplus() <= self._spare:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_POLL_S)
        return True

    def _note_spare(self) -> None:
        # What the view shows may be late, so that the end is beyond a transaction that it does not
        # know yet: the smallest is right.
        if not self.tail.view.unfinished:
            self._spare = min(self._spare, self._surplus())

    def _surplus(self) -> int:
        view = self.tail.view
        end = sum(self.log.end_offset(self.ledger, p) for p in range(self.partitions))
        return end - view.records_committed - self.partitions * view.committed
