"""The processes of a run: coordinators, producers, workers, consumers, last readers.

A fault and the watch over all processes must not act on the same process at once. So each `Member`
has a lock, and knows whether its process is meant to be up.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..coordinator.ready import says_ready
from ..integration.local.ports import HOST, pick_ports
from ..integration.local.processes import Child, CoordinatorChild
from ..integration.local.spark_driver import SparkChild
from .errors import ChaosError
from .options import ChaosOptions, Metadata
from .plan import Role
from .previous import launcher_of
from .proxy import Proxies
from .settings import INTERRUPTED_STATUS

LOGS: Final = "processes"
"""Directory of what the processes print."""
STORES: Final = "stores"
"""Directory of the coordinators' metadata stores."""
JOURNAL_PARTITIONS: Final = 8
"""Partitions of the journal; enough that each of the coordinators owns some."""
SNAPSHOT_INTERVAL_RECORDS: Final = 3_000
"""Journal records between two snapshots of a partition. Far below the default, so that a run has
many."""
OUTCOME_RETENTION_MS: Final = 60_000
"""Short, so that the journal is trimmed during the run; but longer than any process is paused."""
_STOP_TIMEOUT_S: Final = 15.0
"""Bounds an orderly stop; then the process gets SIGKILL."""
_AGAIN_S: Final = 15.0
"""Pause between two SIGINT to the same process. A smaller one interrupts its orderly end."""
_POLL_S: Final = 0.05
"""Pause between two looks whether a process has ended."""
_WORKLOAD: Final = "logtx.chaos.workload"
_LOG_LINES: Final = 3
"""Last lines of a process's output that are kept when it ends by itself."""
RESTARTS_MAX: Final = 20
"""Restarts of processes that ended by themselves, in all. Beyond it the run fails, because
something is wrong."""


@dataclass(frozen=True, slots=True)
class Death:
    """A process that ended by itself."""

    process: str
    status: int
    said: str
    """The last lines of its output."""
    has_rival: bool = False
    """Whether a process runs that had been paused, and that it had replaced."""

    def __str__(self) -> str:
        """Returns a sentence for people."""
        return f"{self.process} ended by itself (exit status {self.status}): {self.said}"


class Member:
    """One place in the fleet, and the processes that take it one after the other."""

    def __init__(self, role: Role | None, number: int, child: Child) -> None:
        """Prepares the place; nothing is started."""
        self.role: Final = role
        self.number: Final = number
        self.child: Final = child
        self.zombies: list[Child] = []
        """Processes that were paused and replaced."""
        self._lock = threading.Lock()
        self._wanted = False

    @property
    def name(self) -> str:
        """The name of the place, such as ``producer-1``."""
        return self.child.name

    @property
    def process_name(self) -> str:
        """The name of the current process with its life, as in the history."""
        return f"{self.name}.{max(self.child.starts - 1, 0)}"

    def start(self) -> None:
        """Starts the process, if it is not running."""
        with self._lock:
            self._wanted = True
            if not self.child.is_running:
                self.child.start()

    def kill(self) -> None:
        """Kills the process; it stays down until `start`."""
        with self._lock:
            self._wanted = False
            self.child.kill()

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> bool:
        """Stops the process by SIGTERM, then SIGKILL. Returns whether it ended well and in time."""
        with self._lock:
            self._wanted = False
            self.child.ask_to_stop()
            return self.child.await_end(timeout_s)

    def interrupt(self, timeout_s: float) -> Death | None:
        """Sends SIGINT, waits for the end, and starts a successor.

        It is sent again every `_AGAIN_S` seconds.

        Returns:
            How the process ended, if it did not end as an interrupted one should, in time and with
            status `INTERRUPTED_STATUS`; else None.
        """
        with self._lock:
            process = self.process_name
            until_s = time.monotonic() + timeout_s
            again_s = 0.0
            while self.child.is_running and (now_s := time.monotonic()) < until_s:
                # Python drops the exception where it can't be raised (in a weak reference's
                # callback, say): a person would press Ctrl-C once more.
                if now_s >= again_s:
                    self.child.signal(signal.SIGINT)
                    again_s = now_s + _AGAIN_S
                time.sleep(_POLL_S)
            status = self.child.exit_status
            said = " / ".join(self.child.last_lines(_LOG_LINES))
            self.child.kill()
            self.child.start()
        if status == INTERRUPTED_STATUS:
            return None
        return Death(process, -1 if status is None else status, f"after SIGINT: {said}")

    def upgrade(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Stops a coordinator of an older commit in order, and starts one of today's."""
        assert isinstance(self.child, ChaosCoordinator)
        with self._lock:
            self.child.ask_to_stop()
            self.child.await_end(timeout_s)
            self.child.be_todays()
            self.child.start()

    def ask_to_stop(self) -> None:
        """Sends SIGTERM; the process is not started again when it ends."""
        with self._lock:
            self._wanted = False
            self.child.ask_to_stop()

    def replace(self) -> Child:
        """Pauses the process and starts a successor beside it. Returns the paused one."""
        with self._lock:
            self.child.pause()
            zombie = self.child.leave_behind()
            self.zombies.append(zombie)
            self.child.start()
            return zombie

    def revive(self) -> Death | None:
        """Starts the process again if it ended by itself. Never waits.

        Returns:
            How it ended; None if it is up or meant to be down, or if a fault is at work on it.
        """
        if not self._lock.acquire(blocking=False):
            return None  # another thread starts or stops it
        try:
            status = self.child.exit_status
            if not self._wanted or status is None:
                return None
            said = " / ".join(self.child.last_lines(_LOG_LINES))
            has_rival = any(zombie.is_running for zombie in self.zombies)
            death = Death(self.process_name, status, said, has_rival)
            self.child.kill()
            self.child.start()
            return death
        finally:
            self._lock.release()


class ChaosChild(Child):
    """A process of the workload. Each start is a life with a history of its own."""

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


class ChaosSpark(ChaosChild, SparkChild):
    """A Spark driver with its JVM."""


class ChaosCoordinator(CoordinatorChild):
    """`logtx coordinator` behind a link: it tells others the proxy's address."""

    def __init__(
        self,
        number: int,
        directory: Path,
        bootstrap_servers: str,
        proxies: Proxies,
        launcher: Sequence[str] = (),
        previous: Path | None = None,
        *,
        is_switched: bool = False,
    ) -> None:
        name = f"coordinator-{number}"
        more = ["--metadata-store", f"rocksdb:{directory / STORES / name}"] if is_switched else []
        self._todays_launcher = launcher
        self.advertised: Final = f"{HOST}:{proxies.add(name)}"
        """Where others reach it."""
        super().__init__(
            name,
            directory / LOGS / f"{name}.log",
            bootstrap_servers,
            *("--advertise", self.advertised),
            *("--journal-partitions", str(JOURNAL_PARTITIONS)),
            *("--snapshot-interval-records", str(SNAPSHOT_INTERVAL_RECORDS)),
            *("--outcome-retention-ms", str(OUTCOME_RETENTION_MS)),
            *more,
            launcher=launcher if previous is None else launcher_of(previous),
        )
        self._proxies = proxies

    @property
    def has_started(self) -> bool:
        """Whether the process serves or stands by."""
        return self.is_running and says_ready(self.log, from_byte=self._log_start)

    def be_todays(self) -> None:
        """Lets the next start be one of today's code."""
        self._launcher = self._todays_launcher

    def _listen_at(self) -> str:
        # The link must lead to the new process before it listens; or its peers would be sent to its
        # predecessor.
        port = pick_ports(1)[0]
        self._proxies.lead(self.name, (HOST, port))
        return f"{HOST}:{port}"


class Fleet:
    """All members. The fleet starts none of them; `close` ends every process."""

    def __init__(
        self,
        options: ChaosOptions,
        directory: Path,
        bootstrap_servers: str,
        proxies: Proxies,
        previous: Path | None = None,
    ) -> None:
        """Prepares all members.

        Args:
            options: of the run.
            directory: of the run.
            bootstrap_servers: addresses of the proxies in front of the brokers.
            proxies: get a link for each coordinator.
            previous: files of an older commit, whose coordinators are started first.
        """
        (directory / LOGS).mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._launcher = options.launcher
        counts = options.counts()
        is_switched = options.metadata is not Metadata.NONE
        self.coordinators: Final = [
            Member(
                Role.COORDINATOR,
                number,
                ChaosCoordinator(
                    number,
                    directory,
                    bootstrap_servers,
                    proxies,
                    options.launcher,
                    previous,
                    is_switched=is_switched,
                ),
            )
            for number in range(counts[Role.COORDINATOR])
        ]
        self.producers: Final = self._members(Role.PRODUCER, counts[Role.PRODUCER])
        self.workers: Final = self._members(Role.WORKER, counts[Role.WORKER])
        self.consumers: Final = self._members(Role.CONSUMER, counts[Role.CONSUMER])
        self.queue_workers: Final = self._members(Role.QUEUE, counts.get(Role.QUEUE, 0))
        self.sparks: Final = [
            Member(Role.SPARK, n, ChaosSpark("spark", n, directory, options.launcher))
            for n in range(counts.get(Role.SPARK, 0))
        ]
        self.finals: list[Member] = []
        self.deaths: list[Death] = []
        """Processes that ended by themselves and were started again."""

    def _members(self, role: Role, count: int) -> list[Member]:
        return [
            Member(role, number, ChaosChild(role, number, self._directory, self._launcher))
            for number in range(count)
        ]

    def add_finals(self, count: int) -> None:
        """Adds last readers, not started yet."""
        self.finals = [
            Member(None, number, ChaosChild("final", number, self._directory, self._launcher))
            for number in range(count)
        ]

    @property
    def clients(self) -> list[Member]:
        """Producers, workers, queue workers, consumers, Spark drivers."""
        workers = [*self.workers, *self.queue_workers]
        return [*self.producers, *workers, *self.consumers, *self.sparks]

    def member(self, role: Role, number: int) -> Member:
        """Returns the member at a place."""
        found = {
            Role.COORDINATOR: self.coordinators,
            Role.PRODUCER: self.producers,
            Role.WORKER: self.workers,
            Role.CONSUMER: self.consumers,
            Role.QUEUE: self.queue_workers,
            Role.SPARK: self.sparks,
        }
        return found[role][number]

    def watch(self) -> None:
        """Starts processes again that ended by themselves.

        Raises:
            ChaosError: it happened more than `RESTARTS_MAX` times.
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
        """Yields the paused processes that were replaced."""
        for member in self.clients:
            yield from member.zombies

    def close(self) -> None:
        """Ends every process, at whatever point the run is."""
        # One that can't be ended does not keep the others.
        with ExitStack() as stack:
            for zombie in self.zombies():
                stack.callback(zombie.kill)
            for member in (*self.clients, *self.finals, *self.coordinators):
                stack.callback(member.kill)


@contextmanager
def fleet(
    options: ChaosOptions,
    directory: Path,
    bootstrap_servers: str,
    proxies: Proxies,
    previous: Path | None = None,
) -> Iterator[Fleet]:
    """Provides a fleet whose processes end with the block. The arguments are those of `Fleet`."""
    made = Fleet(options, directory, bootstrap_servers, proxies, previous)
    try:
        yield made
    finally:
        made.close()
