"""The cases: what is done to the coordinators, and how long a committing client stalls."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final
from uuid import uuid4

from logtx.integration.local.processes import CoordinatorChild
from logtx.journal.errors import TransactionAbortedError
from logtx.journal.logs.interface import Log
from logtx.journal.reader import JOURNAL_TOPIC, journal_partition_of

from .committer import PARTITIONS, Committer
from .fleet import CoordinatorFailedError, Fleet
from .truth import Truth, find_truth

GROUP: Final = "default"
WATCH_S: Final = 1.5
"""A stall that begins within this time after an event counts as the event's."""
STALL_MAX_S: Final = 30.0
"""How long to wait for commits after an event; the next event then comes without them."""
SETTLE_S: Final = 1.0
"""Owners have settled when none has changed for this long."""
SETTLE_TIMEOUT_S: Final = 60.0
"""How long owners may take to settle before the benchmark fails."""
PAUSE_S: Final = 10.0
"""How long an owner is stopped."""

Step = Callable[[str], None]
"""Called with a text that says what is going on."""


@dataclass(slots=True)
class Outcome:
    """One case: its stalls, and whether everything the clients were told is true."""

    title: str
    goal_ms: float | None
    in_flight: int
    stalls_ms: list[float] = field(default_factory=list)
    truth: Truth | None = None
    aborted: int = 0

    @property
    def met(self) -> bool | None:
        """Whether the worst stall is below the goal; None without a goal."""
        return None if self.goal_ms is None else max(self.stalls_ms) < self.goal_ms


class Bench:
    """Runs cases, each with coordinators of its own, on one Kafka."""

    def __init__(
        self, log: Log, directory: Path, step: Step, *, journal_partitions: int = 8
    ) -> None:
        self._log = log
        self._journal_partitions = journal_partitions
        self._directory = directory
        self._step = step

    def killed(self, times: int, in_flight: int) -> Outcome:
        """(a) Kills the owner with SIGKILL; starts it again, as a standby, before the next."""
        outcome = Outcome(f"kill -9 of the owner{_shown(in_flight)}", 1_000, in_flight)
        with self._running(3, outcome) as (fleet, committer):
            for _ in range(times):
                owner = self._settled(fleet)
                stall_ms = self._stall_ms(committer, partial(owner.signal, signal.SIGKILL))
                outcome.stalls_ms.append(stall_ms)
                owner.await_end()
                owner.start()
                owner.await_ready()
        return outcome

    def left(self, times: int, in_flight: int) -> Outcome:
        """(b) Stops the owner with SIGTERM; starts it again, as a standby, before the next."""
        outcome = Outcome(f"SIGTERM of the owner{_shown(in_flight)}", 200, in_flight)
        with self._running(3, outcome) as (fleet, committer):
            for _ in range(times):
                owner = self._settled(fleet)
                stall_ms = self._stall_ms(committer, partial(owner.signal, signal.SIGTERM))
                outcome.stalls_ms.append(stall_ms)
                owner.await_end()
                owner.start()
                owner.await_ready()
        return outcome

    def joined(self, times: int, in_flight: int) -> Outcome:
        """(b) Starts a second coordinator, which gets one of the two journal partitions.

        A client commits in each partition, so that one of them stalls. Together they have
        `in_flight` transactions in flight.
        """
        outcome = Outcome(f"a coordinator joins{_shown(in_flight)}", 200, in_flight)
        groups = tuple(_name_in(partition, 2) for partition in range(2))
        with self._fleet_of(2, outcome, groups) as (fleet, committers):
            for _ in range(times):
                before = fleet.await_settled(2, SETTLE_S, SETTLE_TIMEOUT_S)
                joiner = next(m for m in fleet.members if m.address == before[0])
                joiner.signal(signal.SIGTERM)
                joiner.await_end()
                before = fleet.await_settled(2, SETTLE_S, SETTLE_TIMEOUT_S)
                joiner.start()
                joiner.await_ready()
                # The clock starts here: Python's start takes one of the machine's few cores.
                began_s = time.monotonic()
                (moved,) = self._moved(fleet, before)
                gap_s = committers[moved].longest_gap_s(began_s, time.monotonic())
                outcome.stalls_ms.append(gap_s * 1e3)
                self._step(f"stall: {gap_s * 1e3:,.0f} ms")
        return outcome

    def paused(self, times: int, in_flight: int) -> Outcome:
        """(c) Stops the owner with SIGSTOP for 10 s, then wakes it with SIGCONT."""
        title = f"SIGSTOP of the owner for {PAUSE_S:g} s, and SIGCONT{_shown(in_flight)}"
        outcome = Outcome(title, None, in_flight)
        with self._running(3, outcome) as (fleet, committer):
            for _ in range(times):
                owner = self._settled(fleet)
                began_s = time.monotonic()
                owner.pause()
                try:
                    time.sleep(PAUSE_S)
                finally:
                    owner.resume()
                self._stall_ms(committer, lambda: None)
                gap_s = committer.longest_gap_s(began_s, time.monotonic())
                outcome.stalls_ms.append(gap_s * 1e3)
        return outcome

    def alone(self, times: int, in_flight: int) -> Outcome:
        """(d) Kills the only coordinator with SIGKILL, and starts it again at once."""
        title = f"for comparison: one alone, killed and started again{_shown(in_flight)}"
        outcome = Outcome(title, None, in_flight)
        with self._running(1, outcome) as (fleet, committer):
            (only,) = fleet.members
            for _ in range(times):
                self._settled(fleet)

                def restart() -> None:
                    only.kill()
                    only.start()

                outcome.stalls_ms.append(self._stall_ms(committer, restart))
        return outcome

    @contextmanager
    def _running(self, coordinators: int, outcome: Outcome) -> Iterator[tuple[Fleet, Committer]]:
        """Runs a fleet and one client that commits."""
        with self._fleet_of(coordinators, outcome, (GROUP,)) as (fleet, (committer,)):
            yield fleet, committer

    @contextmanager
    def _fleet_of(
        self, coordinators: int, outcome: Outcome, groups: Sequence[str]
    ) -> Iterator[tuple[Fleet, Sequence[Committer]]]:
        """Runs a fleet and a client per transaction group; then checks what they were told."""
        self._step(f"{outcome.title}: {coordinators} coordinators start")
        options = ("--journal-partitions", str(self._journal_partitions))
        with Fleet(self._log, self._directory, coordinators, *options) as fleet:
            each = max(1, outcome.in_flight // len(groups))
            committers = [self._committer(group, each) for group in groups]
            with ExitStack() as running:
                for committer in committers:
                    running.enter_context(committer)
                self._step(outcome.title)
                yield fleet, committers
            self._step(f"{outcome.title}: is all true?")
            for committer in committers:
                truth = find_truth(self._log, committer)
                outcome.truth = truth if outcome.truth is None else outcome.truth + truth
                outcome.aborted += sum(
                    isinstance(error, TransactionAbortedError) for _, error in committer.failed
                )
        for committer in committers:
            self._log.delete_topic(committer.topic)

    def _committer(self, group: str, in_flight: int) -> Committer:
        topic = f"bench-failover-{uuid4().hex[:8]}"
        self._log.create_topic(topic, partitions=PARTITIONS)
        return Committer(self._log.bootstrap_servers, topic, group=group, in_flight=in_flight)

    @staticmethod
    def _moved(fleet: Fleet, before: Mapping[int, str]) -> list[int]:
        """Waits until partitions have another owner than before; returns these partitions."""
        deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
        while time.monotonic() < deadline_s:
            after = fleet.await_settled(len(before), SETTLE_S, SETTLE_TIMEOUT_S)
            if moved := [p for p, address in after.items() if address != before[p]]:
                return moved
        raise CoordinatorFailedError(f"no partition moved within {SETTLE_TIMEOUT_S:g} s")

    def _settled(self, fleet: Fleet) -> CoordinatorChild:
        """Waits until the owners have settled; returns that of the client's journal partition."""
        partitions = self._log.topic_info(JOURNAL_TOPIC).partition_count
        owners = fleet.await_settled(partitions, SETTLE_S, SETTLE_TIMEOUT_S)
        address = owners[journal_partition_of(GROUP, partitions)]
        return next(m for m in fleet.members if m.address == address)

    def _stall_ms(self, committer: Committer, event: Callable[[], object]) -> float:
        """Causes an event; returns the longest gap between acknowledged commits around it."""
        began_s = time.monotonic()
        event()
        time.sleep(WATCH_S)
        committer.await_told(10 * committer.in_flight, STALL_MAX_S)
        stall_ms = committer.longest_gap_s(began_s, time.monotonic()) * 1e3
        self._step(f"stall: {stall_ms:,.0f} ms")
        return stall_ms


def _name_in(partition: int, partitions: int) -> str:
    """Returns the name of a transaction group whose home is `partition`."""
    names = (f"group-{number}" for number in count())
    return next(name for name in names if journal_partition_of(name, partitions) == partition)


def _shown(in_flight: int) -> str:
    return "" if in_flight == 1 else f", {in_flight} in flight"
