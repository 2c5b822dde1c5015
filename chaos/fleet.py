"""The processes of a run: coordinators, producers, workers, consumers, last readers.

What a fault does to one and what the watch over all of them does to it must not cross: each
`Member` has a lock, and says whether it is meant to be up.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..integration.local.ports import HOST, pick_ports
from ..integration.local.processes import Child, CoordinatorChild
from .errors import ChaosError
from .options import ChaosOptions
from .plan import Role
from .proxy import Proxies

LOGS: Final = "processes"
"""What they print."""
JOURNAL_PARTITIONS: Final = 8
SNAPSHOT_INTERVAL_RECORDS: Final = 3_000
OUTCOME_RETENTION_MS: Final = 60_000
"""So the journal is trimmed while the run goes on; longer than anybody sleeps."""
_STOP_TIMEOUT_S: Final = 15.0
_WORKLOAD: Final = "logtx.chaos.workload"
_LOG_LINES: Final = 3
RESTARTS_MAX: Final = 20
"""Of processes that ended by themselves, all together: beyond it something is wrong."""


@dataclass(frozen=True, slots=True)
class Death:
    """A process that ended by itself."""

    process: str
    status: int
    said: str
    """Its last lines."""

    def __str__(self) -> str:
        """A sentence."""
        return f"{self.process} ended by itself (exit status {self.status}): {self.said}"


class Member:
    """One place in the fleet, and the processes that take it one after another."""

    def __init__(self, role: Role | None, number: int, child: Child) -> None:
        """Nothing is started."""
        self.role: Final = role
        self.number: Final = number
        self.child: Final = child
        self.zombies: list[Child] = []
        """Processes that were paused and replaced."""
        self._lock = threading.Lock()
        self._wanted = False

    @property
    def name(self) -> str:
        """Such as ``producer-1``."""
        return self.child.name

    @property
    def process_name(self) -> str:
        """With its incarnation, as the history has it."""
        return f"{self.name}.{max(self.child.starts - 1, 0)}"

    def start(self) -> None:
        """Start it, if it is not running."""
        with self._lock:
            self._wanted = True
            if not self.child.is_running:
                self.child.start()

    def kill(self) -> None:
        """SIGKILL; it stays down until `start`."""
        with self._lock:
            self._wanted = False
            self.child.kill()

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> bool:
        """SIGTERM and wait, then SIGKILL; whether it ended well and in time."""
        with self._lock:
            self._wanted = False
            self.child.ask_to_stop()
            return self.child.await_end(timeout_s)

    def ask_to_stop(self) -> None:
        """SIGTERM; it is not started again when it ends."""
        with self._lock:
            self._wanted = False
            self.child.ask_to_stop()

    def replace(self) -> Child:
        """Pause it, and start a successor beside it; the zombie."""
        with self._lock:
            self.child.pause()
            zombie = self.child.leave_behind()
            self.zombies.append(zombie)
            self.child.start()
            return zombie

    def revive(self) -> Death | None:
        """Start it again if it ended by itself. Never waits."""
        if not self._lock.acquire(blocking=False):
            return None  # somebody is at it
        try:
            status = self.child.exit_status
            if not self._wanted or status is None:
                return None
            said = " / ".join(self.child.last_lines(_LOG_LINES))
            death = Death(self.process_name, status, said)
            self.child.kill()
            self.child.start()
            return death
        finally:
            self._lock.release()


class ChaosChild(Child):
    """A process of the workload: each start is an incarnation with a history of its own."""

    def __init__(
        self, role: str, number: int, directory: Path, launcher: Sequence[str] = ()
    ) -> None:
        super().__init__(f"{role}-{number}", directory / LOGS / f"{role}-{number}.log", ())
        self._role = role
        self._number = number
        self._directory = directory
        self._launcher = launcher

    def _command(self) -> list[str]:
        own = [f"{_WORKLOAD}.{self._role}", str(self._directory), str(self._number)]
        return [*self._launcher, *own, str(self.starts - 1)]


class ChaosCoordinator(CoordinatorChild):
    """`logtx coordinator` behind a link: the address that it tells others is the proxy's."""

    def __init__(
        self,
        number: int,
        directory: Path,
        bootstrap_servers: str,
        proxies: Proxies,
        launcher: Sequence[str] = (),
    ) -> None:
        name = f"coordinator-{number}"
        super().__init__(
            name,
            directory / LOGS / f"{name}.log",
            bootstrap_servers,
            *("--advertise", f"{HOST}:{proxies.add(name)}"),
            *("--journal-partitions", str(JOURNAL_PARTITIONS)),
            *("--snapshot-interval-records", str(SNAPSHOT_INTERVAL_RECORDS)),
            *("--outcome-retention-ms", str(OUTCOME_RETENTION_MS)),
            launcher=launcher,
        )
        self._proxies = proxies

    def _listen_at(self) -> str:
        # The link leads to it before it listens, or its peers would be sent to its predecessor.
        port = pick_ports(1)[0]
        self._proxies.lead(self.name, (HOST, port))
        return f"{HOST}:{port}"


class Fleet:
    """All members. Nothing is started here; everything is ended by `close`."""

    def __init__(
        self, options: ChaosOptions, directory: Path, bootstrap_servers: str, proxies: Proxies
    ) -> None:
        (directory / LOGS).mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._launcher = options.launcher
        counts = options.counts()
        self.coordinators: Final = [
            Member(
                Role.COORDINATOR,
                number,
                ChaosCoordinator(number, directory, bootstrap_servers, proxies, options.launcher),
            )
            for number in range(counts[Role.COORDINATOR])
        ]
        self.producers: Final = self._members(Role.PRODUCER, counts[Role.PRODUCER])
        self.workers: Final = self._members(Role.WORKER, counts[Role.WORKER])
        self.consumers: Final = self._members(Role.CONSUMER, counts[Role.CONSUMER])
        self.finals: list[Member] = []
        self.deaths: list[Death] = []
        """What ended by itself, and was started again."""

    def _members(self, role: Role, count: int) -> list[Member]:
        return [
            Member(role, number, ChaosChild(role, number, self._directory, self._launcher))
            for number in range(count)
        ]

    def add_finals(self, count: int) -> None:
        """Last readers, not started yet."""
        self.finals = [
            Member(None, number, ChaosChild("final", number, self._directory, self._launcher))
            for number in range(count)
        ]

    @property
    def clients(self) -> list[Member]:
        """Producers, workers, consumers."""
        return [*self.producers, *self.workers, *self.consumers]

    def member(self, role: Role, number: int) -> Member:
        """The one at a place."""
        found = {
            Role.COORDINATOR: self.coordinators,
            Role.PRODUCER: self.producers,
            Role.WORKER: self.workers,
            Role.CONSUMER: self.consumers,
        }
        return found[role][number]

    def watch(self) -> None:
        """Start again what ended by itself.

        Raises:
            ChaosError: that happens all the time.
        """
        for member in (*self.coordinators, *self.clients):
            death = member.revive()
            if death is not None:
                self.deaths.append(death)
        if len(self.deaths) > RESTARTS_MAX:
            raise ChaosError(
                f"{len(self.deaths)} times a process ended by itself. The last: {self.deaths[-1]}"
            )

    def zombies(self) -> Iterator[Child]:
        """Processes that were replaced."""
        for member in self.clients:
            yield from member.zombies

    def close(self) -> None:
        """End every process, at whatever point of the run."""
        for zombie in self.zombies():
            zombie.kill()
        for member in (*self.clients, *self.finals, *self.coordinators):
            member.kill()


@contextmanager
def fleet(
    options: ChaosOptions, directory: Path, bootstrap_servers: str, proxies: Proxies
) -> Iterator[Fleet]:
    """A fleet that ends with the block."""
    made = Fleet(options, directory, bootstrap_servers, proxies)
    try:
        yield made
    finally:
        made.close()
