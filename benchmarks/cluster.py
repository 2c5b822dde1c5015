"""The broker and the coordinator of one run, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from logtx.coordinator.ready import says_ready
from logtx.integration.kafka import LocalKafka
from logtx.integration.kafka.child import last_lines, spawn

from .profiling import ThreadProfile

HEAP_MIB: Final = 1024
BROKER_SETTINGS: Final = {
    # Bulk topics keep little; see `clients.BULK_TOPIC`.
    "log.retention.check.interval.ms": "5000",
    "log.initial.task.delay.ms": "1000",
}
_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 15.0
_PROFILE_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.05


class CoordinatorFailedError(Exception):
    """The coordinator did not start, or did not write its profile; with its last lines."""


class CoordinatorProcess:
    """A `logtx coordinator` of one journal partition per group, as a user would start it."""

    def __init__(self, directory: Path, servers: str) -> None:
        package = __package__ or "benchmarks"
        self._log = directory / "coordinator.log"
        self._profile = directory / "coordinator-profile.json"
        command = [sys.executable, "-m", f"{package}.coordinator_process", str(self._profile)]
        command += ["coordinator", "--bootstrap-servers", servers, "--listen", "127.0.0.1:0"]
        root = Path(__file__).resolve().parent.parent
        paths = [str(root), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self._process = spawn(command, output=self._log, env=environment)

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def await_ready(self) -> None:
        """Wait until it serves. Raises CoordinatorFailedError."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not says_ready(self._log):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise CoordinatorFailedError("\n".join(last_lines(self._log, 12)))
            time.sleep(_POLL_S)

    def start_profile(self) -> None:
        """Begin to sample."""
        self._profile.unlink(missing_ok=True)
        self._process.send_signal(signal.SIGUSR1)

    def stop_profile(self) -> list[ThreadProfile]:
        """What was sampled. Raises CoordinatorFailedError."""
        self._process.send_signal(signal.SIGUSR2)
        deadline_s = time.monotonic() + _PROFILE_TIMEOUT_S
        while not self._profile.exists():
            if time.monotonic() > deadline_s:
                raise CoordinatorFailedError("the coordinator wrote no profile")
            time.sleep(_POLL_S)
        return [ThreadProfile(**thread) for thread in json.loads(self._profile.read_text())]

    def stop(self) -> None:
        """SIGTERM, a bounded wait, then SIGKILL."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()


@dataclass(frozen=True, slots=True)
class Cluster:
    """What runs."""

    bootstrap_servers: str
    coordinator: CoordinatorProcess
    pids: dict[str, int]
    """Processes by name; without the broker if it was there before."""


@contextmanager
def cluster(existing: str | None = None) -> Iterator[tuple[str, CoordinatorProcess]]:
    """The broker's address and a coordinator on it; both are stopped at the end.

    Args:
        existing: a broker to use instead of starting one.
    """
    with started(existing) as found:
        yield found.bootstrap_servers, found.coordinator


@contextmanager
def started(existing: str | None = None) -> Iterator[Cluster]:
    """A broker and a coordinator on it; what was started is stopped at the end.

    Args:
        existing: a broker to use instead of starting one.
    """
    with TemporaryDirectory(prefix="logtx-bench-") as name:
        directory = Path(name)
        pids = {}
        kafka = None
        if existing is None:
            kafka = LocalKafka(directory / "kafka", heap_max_mib=HEAP_MIB, settings=BROKER_SETTINGS)
            kafka.start()
            existing, pids["broker"] = kafka.bootstrap_servers, kafka.pid
        try:
            coordinator = CoordinatorProcess(directory, existing)
            try:
                coordinator.await_ready()
                pids["coordinator"] = coordinator.pid
                yield Cluster(existing, coordinator, pids)
            finally:
                coordinator.stop()
        finally:
            if kafka is not None:
                kafka.stop()
