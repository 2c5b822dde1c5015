"""Kills the driver while the journal shows its transaction open and the ledger has records of it.

Then the killer pauses the driver's Python process, without which nothing is committed, and makes
sure of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from ....journal.logs.interface import Log
from ....journal.records.scan import SeenTransaction
from ...local.spark_driver import SparkChild
from ..deeds import WorkerKill
from ..journal_view import JournalTail, Key, key_of

KILLS_MAX: Final = 2
"""Kills of the driver at most; each costs the start of another driver."""
FLIGHTS_PER_KILL: Final = 500
"""One kill is planned per this many flights. Fewer flights are for a quick look, since each driver
takes a while to start."""
_SPOILT_MAX: Final = 4
"""Kills that may fail to count: a commit may be on its way when the driver dies. Beyond it there
are no more kills, and the verdict is FALSE."""
_READ_TIMEOUT_S: Final = 20.0
"""Bounds reading a journal partition to its end; beyond it the run fails with BrokerError."""


def kills_for(flights: int) -> int:
    """Returns how many kills this many flights have room for."""
    return min(KILLS_MAX, flights // FLIGHTS_PER_KILL)


@dataclass(slots=True, kw_only=True)
class DriverKiller:
    """Kills and restarts the driver, first at a quarter of the flights (with one kill: a third)."""

    driver: SparkChild
    producer_id: str
    tail: JournalTail
    log: Log
    ledger: str
    partitions: int
    """Partitions of the ledger."""
    flights: int
    """Flights to be booked."""
    kills: int
    """Kills that must count."""
    killed: Callable[[], None]
    """Called while the driver is dead."""
    deeds: list[WorkerKill] = field(default_factory=list)
    _passed_over: Key | None = None
    _spare: float = inf
    """Records in the ledger beyond those that the journal accounts for, markers of all partitions
    included, while nothing is open: records of aborted transactions."""

    @property
    def counted(self) -> int:
        """Kills that left a transaction for others to abort."""
        return sum(deed.counts(self.tail.view) for deed in self.deeds)

    def step(self) -> None:
        """Kills and restarts the driver, if it is time and the moment is right.

        Raises:
            BrokerError: journal or ledger can't be read.
        """
        if self._spare == inf or self._is_due():
            self._note_spare()
        seen = self._victim()
        if seen is None or not self._is_due() or key_of(seen) == self._passed_over:
            return
        if self._surplus() <= self._spare:
            return  # It has written nothing to the ledger yet.
        self.driver.pause()
        self.tail.read_to_end(seen.txid.partition, timeout_s=_READ_TIMEOUT_S)
        if self._victim() is not seen or self._surplus() <= self._spare:
            self._passed_over = key_of(seen)
            self.driver.resume()
            return
        self.driver.kill()
        self.killed()
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
        seen = self.tail.view.open_of(self.producer_id, idle=True)
        # A killed driver's transaction stays open until it is aborted: it is hit only once.
        return None if seen is None or any(d.key == key_of(seen) for d in self.deeds) else seen

    def _note_spare(self) -> None:
        # The view may be behind: the ledger's end may include a transaction that the view does not
        # know yet. So the smallest value is right.
        if not self.tail.view.unfinished:
            self._spare = min(self._spare, self._surplus())

    def _surplus(self) -> int:
        view = self.tail.view
        end = sum(self.log.end_offset(self.ledger, p) for p in range(self.partitions))
        return end - view.records_committed - self.partitions * view.committed
