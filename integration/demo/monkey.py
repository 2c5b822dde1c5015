"""Kills and pauses processes at moments that the journal shows.

1. The monkey picks a victim when the journal shows work that the fault is to interrupt: a worker's
   OPEN transaction that has written, or, for a coordinator, a COMMITTING one of a partition that it
   owns.
2. Such a moment is over within milliseconds. So the monkey pauses the victim (SIGSTOP), lets the
   messages land that were on their way, and reads the journal to its end. Only if the transaction
   is still there does the victim stay paused or get SIGKILL. Otherwise it goes on, and the monkey
   tries the next moment.
3. A killed process is started again at once. The successor of a paused worker is started beside it,
   and the worker wakes when its transaction is aborted. A paused coordinator wakes when the others
   have taken its partitions over. Only one coordinator at a time is down or asleep.
4. On a busy machine the victim's messages may still land later. Then the fault interrupted nothing,
   and is repeated.

The deeds themselves decide what counts in the end (`deeds.py`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ...journal.records.scan import SeenTransaction
from ...journal.state import State
from ..local.processes import CoordinatorChild
from .deeds import CoordinatorKill, CoordinatorPause, Deed, WorkerKill, WorkerPause
from .fleet import Worker
from .journal_view import JournalTail, Key, key_of
from .plan import Fault, Plan
from .publisher import Publisher

_LANDING_S: Final = 0.02
"""How long messages that a paused victim sent get to land. A smaller value spoils more faults, a
larger one holds up the run at every attempt."""
_READ_TIMEOUT_S: Final = 20.0
"""Bounds reading a journal partition to its end; beyond it the run fails with BrokerError."""
_DRY_S: Final = 0.3
"""How long all allowed flights may be booked before more are let through without a fault. A smaller
value gives up moments too early, a larger one makes the run stand still."""


@dataclass(slots=True)
class Monkey:
    """Kills and pauses by plan; the run calls `step` all the time."""

    plan: Plan
    workers: Sequence[Worker]
    coordinators: Sequence[CoordinatorChild]
    tail: JournalTail
    publisher: Publisher
    deeds: list[Deed] = field(default_factory=list)
    _done: int = 0
    _repeats: Counter[Fault] = field(default_factory=Counter)
    _dry_since_s: float | None = None
    _harmed: Counter[int] = field(default_factory=Counter)
    """Kills and pauses so far, by the coordinator's index in `coordinators`."""

    def start(self) -> None:
        """Lets the first slice of flights through."""
        self._allow()

    @property
    def pauses(self) -> list[WorkerPause | CoordinatorPause]:
        """The pauses under way."""
        pauses = [d for d in self.deeds if isinstance(d, WorkerPause | CoordinatorPause)]
        return [pause for pause in pauses if not pause.is_over]

    @property
    def counts(self) -> dict[Fault, int]:
        """Deeds so far, by planned kind of fault."""
        done = Counter(deed.fault for deed in self.deeds)
        return {fault: done[fault] for fault in self.plan.required}

    def step(self) -> None:
        """Wakes processes that slept long enough, and does the next fault at the right moment.

        Raises:
            BrokerError: the journal can't be read.
            ProcessDiedError: a restarted coordinator did not come up.
        """
        for pause in self.pauses:
            if pause.may_end(self.tail.view, time.monotonic()):
                pause.end(self.tail.view)
        ready = [coordinator.is_ready for coordinator in self.coordinators]
        booked = self.tail.view.records_committed // 2 + self.tail.view.letters
        if not any(ready) or booked < self.plan.slice_start(self._done):
            return
        repeat = self._to_repeat()
        if repeat is None and self._done == len(self.plan.faults):
            return
        if not self._try(repeat or self.plan.faults[self._done], all(ready)):
            self._feed(booked)
        elif repeat is not None:
            self._repeats[repeat] += 1
        else:
            self._done += 1
            self._allow()

    def _to_repeat(self) -> Fault | None:
        """Returns a kind of fault that was spoilt more often than repeated, or None."""
        spoilt = Counter(deed.fault for deed in self.deeds if deed.is_spoilt(self.tail.view))
        if self._repeats.total() < len(self.plan.faults):
            for fault in self.plan.required:
                if spoilt[fault] > self._repeats[fault]:
                    return fault
        return None

    def _allow(self) -> None:
        last = self._done == len(self.plan.faults)
        self.publisher.allow(self.plan.flights if last else self.plan.slice_start(self._done + 1))

    def _feed(self, booked: int) -> None:
        """Lets some of the next slice through when the current one is used up without a fault."""
        now_s = time.monotonic()
        if booked < self.publisher.allowed:
            self._dry_since_s = None
        elif self._dry_since_s is None:
            self._dry_since_s = now_s
        elif now_s - self._dry_since_s > _DRY_S:
            self._dry_since_s = None
            self.publisher.allow(booked + max(self.plan.slice_start(1) // 4, 1))

    def _try(self, fault: Fault, all_ready: bool) -> bool:
        if fault in (Fault.COORDINATOR_KILL, Fault.COORDINATOR_PAUSE):
            asleep = any(isinstance(pause, CoordinatorPause) for pause in self.pauses)
            return all_ready and not asleep and self._try_coordinators(fault)
        for worker in sorted(self.workers, key=lambda w: w.child.starts):
            if self._victim(worker) is not None:
                return self._try_worker(worker, fault)
        return False

    # ---- workers --------------------------------------------------------------------------------

    def _victim(self, worker: Worker) -> SeenTransaction | None:
        seen = self.tail.view.open_of(worker.producer_id)
        # The transaction of a killed or paused worker stays open until its successor is up. It
        # counts once.
        hit = seen is not None and any(
            isinstance(deed, WorkerKill | WorkerPause) and deed.key == key_of(seen)
            for deed in self.deeds
        )
        return None if hit else seen

    def _try_worker(self, worker: Worker, fault: Fault) -> bool:
        before = self._victim(worker)
        assert before is not None
        worker.child.pause()
        time.sleep(_LANDING_S)
        self.tail.read_to_end(before.txid.partition, timeout_s=_READ_TIMEOUT_S)
        seen = self._victim(worker)
        if seen is None:
            worker.child.resume()
            return False
        if fault is Fault.WORKER_KILL:
            worker.child.kill()
            self.deeds.append(WorkerKill(worker.child.name, key_of(seen)))
        else:
            zombie = worker.child.leave_behind()
            worker.zombies.append(zombie)
            self.deeds.append(
                WorkerPause(zombie=zombie, key=key_of(seen), since_s=time.monotonic())
            )
        worker.child.start()
        return True

    # ---- coordinators ---------------------------------------------------------------------------

    def _committing(self, coordinator: CoordinatorChild) -> tuple[Key, ...]:
        """Returns COMMITTING transactions that this coordinator decided itself and must finish."""
        owned = self.tail.view.partitions_of(coordinator.address)
        return tuple(
            key_of(seen)
            for seen in self.tail.view.in_state(State.COMMITTING)
            if seen.decided_in == owned.get(seen.txid.partition)
        )

    def _try_coordinators(self, fault: Fault) -> bool:
        for number in sorted(range(len(self.coordinators)), key=lambda n: self._harmed[n]):
            if keys := self._committing(self.coordinators[number]):
                done = self._try_coordinator(self.coordinators[number], keys, fault)
                self._harmed[number] += done
                return done
        return False

    def _try_coordinator(
        self, coordinator: CoordinatorChild, before: tuple[Key, ...], fault: Fault
    ) -> bool:
        coordinator.pause()
        time.sleep(_LANDING_S)
        for partition in {key[0] for key in before}:
            self.tail.read_to_end(partition, timeout_s=_READ_TIMEOUT_S)
        keys = self._committing(coordinator)
        if not keys:
            coordinator.resume()
            return False
        if fault is Fault.COORDINATOR_KILL:
            coordinator.kill()
            coordinator.start()
            self.deeds.append(CoordinatorKill(keys, coordinator.address))
        else:
            self.deeds.append(
                CoordinatorPause(
                    zombie=coordinator,
                    address=coordinator.address,
                    owned=self.tail.view.partitions_of(coordinator.address),
                    keys=keys,
                    since_s=time.monotonic(),
                )
            )
        return True
