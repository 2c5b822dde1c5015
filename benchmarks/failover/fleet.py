"""Several `logtx coordinator` processes on one Kafka, started as a user would start them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

from logtx.coordinator.checkpoint import Checkpoint
from logtx.coordinator.ready import says_ready
from logtx.integration.kafka.child import last_lines, spawn
from logtx.journal.log import Log
from logtx.journal.reader import COORDINATORS_GROUP, JOURNAL_TOPIC

_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.02


class CoordinatorFailedError(Exception):
    """A coordinator did not start, or ended by itself; with its last lines."""


def free_address() -> str:
    """host:port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


class CoordinatorProcess:
    """One coordinator at an address of its own, that may be started again and again."""

    def __init__(self, servers: str, directory: Path, *options: str) -> None:
        self.address = free_address()
        self.output = directory / f"coordinator-{self.address.rpartition(':')[2]}.log"
        self._command = [sys.executable, "-m", "logtx", "coordinator"]
        self._command += ["--bootstrap-servers", servers, "--listen", self.address, *options]
        self._process: subprocess.Popen[bytes] | None = None
        self._read_from = 0

    def start(self) -> None:
        """Start it; `await_ready` waits."""
        self._read_from = self.output.stat().st_size if self.output.exists() else 0
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self._process = spawn(self._command, output=self.output, env=environment)

    def await_ready(self) -> None:
        """Wait until it says that it is. Raises CoordinatorFailedError."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not says_ready(self.output, from_byte=self._read_from):
            if not self.is_running or time.monotonic() > deadline_s:
                lines = last_lines(self.output, 12, from_byte=self._read_from)
                raise CoordinatorFailedError(f"{self.address} did not start:\n" + "\n".join(lines))
            time.sleep(_POLL_S)

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(signum)

    def wait(self) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired."""
        assert self._process is not None
        return self._process.wait(_STOP_TIMEOUT_S)

    def kill(self) -> None:
        """End it, in whatever state it is."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Fleet:
    """Coordinators of one cluster, and who of them owns what; a context manager."""

    def __init__(self, log: Log, directory: Path, count: int, *options: str) -> None:
        servers = log.bootstrap_servers
        self._log = log
        self._epochs: dict[int, int] = {}
        """The newest that each journal partition was seen with."""
        self.members = [CoordinatorProcess(servers, directory, *options) for _ in range(count)]

    def __enter__(self) -> Fleet:
        """Start all of them; the first creates the topics."""
        try:
            for member in self.members:
                member.start()
                member.await_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        """Kill what is left."""
        for member in self.members:
            member.kill()

    def owner(self, partition: int) -> CoordinatorProcess:
        """Who published that it owns a journal partition, among those that run."""
        checkpoint = self.published(partition)
        address = checkpoint.address if checkpoint else ""
        for member in self.members:
            if member.address == address:
                return member
        raise CoordinatorFailedError(f"journal partition {partition} is owned by {address!r}")

    def published(self, partition: int) -> Checkpoint | None:
        """The hint that clients go by."""
        committed = self._log.group_offset(COORDINATORS_GROUP, JOURNAL_TOPIC, partition)
        return Checkpoint.from_group_offset(committed)

    def await_settled(self, partitions: int, quiet_s: float, timeout_s: float) -> dict[int, str]:
        """Wait until no partition has changed its owner for a while, all alive, evenly spread.

        Returns:
            Journal partition → address.

        Raises:
            CoordinatorFailedError: not within `timeout_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        owners: dict[int, tuple[str, int]] = {}
        since_s = time.monotonic()
        running = {m.address for m in self.members if m.is_running}
        while time.monotonic() - since_s < quiet_s:
            if time.monotonic() > deadline_s:
                raise CoordinatorFailedError(f"owners still change: {owners}")
            published = {p: self.published(p) for p in range(partitions)}
            found = {
                p: (c.address, c.epoch)
                for p, c in published.items()
                # A stopped owner that wakes up publishes late, until the owner does so again.
                if c is not None and c.epoch >= self._epochs.get(p, -1)
            }
            self._epochs.update({p: epoch for p, (_, epoch) in found.items()})
            load = Counter(address for address, _ in found.values())
            alive = load.keys() <= running
            even = max(load.values(), default=0) - min((load[a] for a in running), default=0) <= 1
            if found != owners or len(found) < partitions or not alive or not even:
                owners, since_s = found, time.monotonic()
            time.sleep(_POLL_S)
        return {p: address for p, (address, _) in owners.items()}
