"""Who is killed and when: decided by what the journal shows, and counted by what it shows after.

1. The flights are let through in slices, one per kill, so that the kills spread over the run.
2. A victim is chosen when the journal shows what the kill is to interrupt: a worker's OPEN
   transaction that has written, or, for the coordinator, a COMMITTING one.
3. Such a moment is over within milliseconds. So the victim is paused (SIGSTOP), what it had on
   its way is given time to land, and the journal is read to its end. Only if the transaction is
   still there is the victim killed (SIGKILL); otherwise it goes on, and the next moment is tried.
4. A killed worker counts when the journal says in the end that its open transaction was aborted,
   and not at its own request. A killed coordinator counts if after its death the journal still
   has a COMMITTING transaction; its successor finishes it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ...journal.records import AbortReason
from ...journal.state import State
from .fleet import Worker
from .journal_view import JournalTail, JournalView, Seen
from .processes import CoordinatorChild
from .publisher import Publisher

FLIGHTS_PER_WORKER_KILL: Final = 2_500
FLIGHTS_PER_COORDINATOR_KILL: Final = 8_000
WORKER_KILLS_MAX: Final = 12
COORDINATOR_KILLS_MAX: Final = 3
WORKER_KILLS_REQUIRED: Final = 5
COORDINATOR_KILLS_REQUIRED: Final = 1
_LANDING_S: Final = 0.02
_READ_TIMEOUT_S: Final = 20.0
_DRY_S: Final = 0.3


class Target(Enum):
    """What a kill hits."""

    WORKER = "worker"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The kills of a run: as many as its flights leave room for."""

    flights: int
    kills: tuple[Target, ...]
    worker_kills_required: int
    coordinator_kills_required: int

    @classmethod
    def of(cls, flights: int) -> Plan:
        """20,000 flights and more have the full number; fewer have fewer, down to none."""
        workers = min(WORKER_KILLS_MAX, flights // FLIGHTS_PER_WORKER_KILL)
        coordinators = min(COORDINATOR_KILLS_MAX, flights // FLIGHTS_PER_COORDINATOR_KILL)
        kills = [Target.WORKER] * workers
        for number in range(coordinators):
            place = (2 * number + 1) * len(kills) // (2 * coordinators)
            kills.insert(place, Target.COORDINATOR)
        return cls(
            flights=flights,
            kills=tuple(kills),
            worker_kills_required=min(WORKER_KILLS_REQUIRED, workers),
            coordinator_kills_required=min(COORDINATOR_KILLS_REQUIRED, coordinators),
        )

    def slice_start(self, number: int) -> int:
        """Flights before the slice in which kill `number` (from 0) happens."""
        return self.flights * number // (len(self.kills) + 1)


@dataclass(frozen=True, slots=True)
class WorkerKill:
    """A worker was killed while this transaction of its was OPEN in the journal."""

    worker: str
    begin: int

    def counts(self, view: JournalView) -> bool:
        """Whether the kill left the transaction open: somebody else had to abort it."""
        seen = view[self.begin]
        return seen.state.aborts and seen.reason is not AbortReason.REQUESTED


@dataclass(frozen=True, slots=True)
class CoordinatorKill:
    """The coordinator was killed; these transactions were COMMITTING in the journal after it."""

    begins: tuple[int, ...]

    def counts(self, view: JournalView) -> bool:
        """Whether one of them was left to the successor, which then committed it."""
        return any(view[b].state is State.COMMITTED for b in self.begins)


@dataclass(slots=True)
class Monkey:
    """Kills by plan; `step` is called all the time."""

    plan: Plan
    workers: Sequence[Worker]
    coordinator: CoordinatorChild
    tail: JournalTail
    publisher: Publisher
    worker_kills: list[WorkerKill] = field(default_factory=list)
    coordinator_kills: list[CoordinatorKill] = field(default_factory=list)
    _done: int = 0
    _dry_since_s: float | None = None

    def start(self) -> None:
        """Let the first slice through."""
        self._allow()

    def step(self) -> None:
        """Kill somebody if it is time and the moment is right.

        Raises:
            BrokerError: the journal can't be read.
            ProcessDiedError: the restarted coordinator did not come up.
        """
        if self._done == len(self.plan.kills) or not self.coordinator.is_ready:
            return
        booked = self.tail.view.records_committed // 2
        if booked >= self.plan.slice_start(self._done):
            if self._try(self.plan.kills[self._done]):
                self._done += 1
                self._allow()
            else:
                self._feed(booked)

    def _allow(self) -> None:
        last = self._done == len(self.plan.kills)
        self.publisher.allow(self.plan.flights if last else self.plan.slice_start(self._done + 1))

    def _feed(self, booked: int) -> None:
        """Let some of the next slice through when this one is used up without a kill."""
        now_s = time.monotonic()
        if booked < self.publisher.allowed:
            self._dry_since_s = None
        elif self._dry_since_s is None:
            self._dry_since_s = now_s
        elif now_s - self._dry_since_s > _DRY_S:
            self._dry_since_s = None
            self.publisher.allow(booked + max(self.plan.slice_start(1) // 4, 1))

    def _try(self, target: Target) -> bool:
        if target is Target.COORDINATOR:
            return self._try_coordinator()
        for worker in sorted(self.workers, key=lambda w: w.child.starts):
            if self._victim(worker) is not None:
                return self._try_worker(worker)
        return False

    def _victim(self, worker: Worker) -> Seen | None:
        seen = self.tail.view.open_of(worker.producer_id)
        # A killed worker's transaction stays open until its successor is up: it counts once.
        hit = seen is not None and any(kill.begin == seen.begin for kill in self.worker_kills)
        return None if hit else seen

    def _try_worker(self, worker: Worker) -> bool:
        worker.child.pause()
        time.sleep(_LANDING_S)
        self.tail.read_to_end(timeout_s=_READ_TIMEOUT_S)
        seen = self._victim(worker)
        if seen is None:
            worker.child.resume()
            return False
        worker.child.kill()
        self.worker_kills.append(WorkerKill(worker.child.name, seen.begin))
        worker.child.start()
        return True

    def _try_coordinator(self) -> bool:
        view = self.tail.view
        if not view.in_state(State.COMMITTING):
            return False
        self.coordinator.pause()
        self.tail.read_to_end(timeout_s=_READ_TIMEOUT_S)
        if not view.in_state(State.COMMITTING):
            self.coordinator.resume()
            return False
        self.coordinator.kill()
        time.sleep(_LANDING_S)
        self.tail.read_to_end(timeout_s=_READ_TIMEOUT_S)
        left = tuple(seen.begin for seen in view.in_state(State.COMMITTING))
        self.coordinator.start()
        if left:
            self.coordinator_kills.append(CoordinatorKill(left))
        return bool(left)
