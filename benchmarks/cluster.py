"""The broker and the coordinator of one run, each in a process of its own."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from logtx.integration.local.cluster import LocalKafka
from logtx.integration.local.processes import CoordinatorChild

from .profiling import ThreadProfile

HEAP_MIB: Final = 1024
"""Largest heap of the broker. The clients' memory and the page cache share the rest."""
BROKER_SETTINGS: Final = {
    # `clients.BULK_TOPIC` keeps little: Kafka must look often for what it may delete.
    "log.retention.check.interval.ms": "5000",
    "log.initial.task.delay.ms": "1000",
}
DELETED_AT_ONCE: Final = {"log.segment.delete.delay.ms": "1000"}
"""For `started`: deleted topics leave the disk at once, else only after a minute. It need not hold
all rounds of a benchmark that writes much."""
_PROFILE_TIMEOUT_S: Final = 10.0
"""How long the coordinator may take to write its profile."""
_POLL_S: Final = 0.05
"""Time between two looks for it."""


class CoordinatorFailedError(Exception):
    """The coordinator did not write its profile."""


class ProfiledCoordinator(CoordinatorChild):
    """`logtx coordinator`, started as a user would start it, that can be sampled."""

    def __init__(self, directory: Path, servers: str) -> None:
        """Puts logs and profiles into `directory`; `start` starts the process."""
        self._profile = directory / "coordinator-profile.json"
        super().__init__(
            "coordinator",
            directory / "coordinator.log",
            servers,
            launcher=("logtx.benchmarks.coordinator_process", str(self._profile)),
        )

    def start_profile(self) -> None:
        """Begins to sample."""
        self._profile.unlink(missing_ok=True)
        self.signal(signal.SIGUSR1)

    def stop_profile(self) -> list[ThreadProfile]:
        """Returns a profile of each thread since `start_profile`. Raises CoordinatorFailedError."""
        self.signal(signal.SIGUSR2)
        deadline_s = time.monotonic() + _PROFILE_TIMEOUT_S
        while not self._profile.exists():
            if time.monotonic() > deadline_s:
                raise CoordinatorFailedError("the coordinator wrote no profile")
            time.sleep(_POLL_S)
        return [ThreadProfile(**thread) for thread in json.loads(self._profile.read_text())]

    def stop(self) -> None:
        """Sends SIGTERM, waits for a bounded time, then sends SIGKILL."""
        self.ask_to_stop()
        self.await_end()


@dataclass(frozen=True, slots=True)
class Cluster:
    """What runs, and where."""

    bootstrap_servers: str
    coordinator: ProfiledCoordinator
    pids: dict[str, int]
    """Process ids by name; without the broker's if it ran before."""
    data_dir: Path | None = None
    """Where the broker has its logs; None if it ran before."""


@contextmanager
def cluster(existing: str | None = None) -> Iterator[tuple[str, ProfiledCoordinator]]:
    """Yields the broker's address and a coordinator on it; stops in the end what it started.

    Args:
        existing: a broker to use instead of starting one.
    """
    with started(existing) as found:
        yield found.bootstrap_servers, found.coordinator


@contextmanager
def started(
    existing: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Yields a broker and a coordinator on it; stops in the end what it started.

    Args:
        existing: a broker to use instead of starting one.
        settings: of the broker that is started, beyond `BROKER_SETTINGS`.
    """
    with TemporaryDirectory(prefix="logtx-bench-") as name:
        directory = Path(name)
        pids = {}
        kafka = None
        if existing is None:
            kafka = LocalKafka(
                directory / "kafka",
                heap_max_mib=HEAP_MIB,
                settings={**BROKER_SETTINGS, **(settings or {})},
            )
            kafka.start()
            existing, pids["broker"] = kafka.bootstrap_servers, kafka.pid
        try:
            coordinator = ProfiledCoordinator(directory, existing)
            coordinator.start()
            try:
                coordinator.await_ready()
                pids["coordinator"] = coordinator.pid
                yield Cluster(
                    existing, coordinator, pids, None if kafka is None else kafka.data_dir
                )
            finally:
                coordinator.stop()
        finally:
            if kafka is not None:
                kafka.stop()
