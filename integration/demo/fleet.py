"""The processes of one run, and the files in which they report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...journal.producer_ids import producer_id_of
from ..local.processes import Child, CoordinatorChild
from .cluster import PARTITIONS, Cluster, Names, coordinator_options

ASSIGNMENT: Final = ("0,3", "1", "2")
"""Partitions of topic `flights` that each worker consumes, one entry per worker."""
QUEUE_WORKERS: Final = 6
"""Workers of a queue: more than `flights` has partitions, so a consumer group could not keep all of
them busy."""
ISOLATION_LEVELS: Final = ("read_committed", "read_uncommitted")


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process and its producer id."""

    child: Child
    producer_id: str
    zombies: list[Child] = field(default_factory=list)
    """Processes that were paused and replaced."""


class Fleet:
    """Coordinators, three workers and two auditors. The fleet starts none of them."""

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        names: Names,
        *,
        flights: int,
        coordinators: int,
        groups: Sequence[str],
        cuts_over: bool = False,
        queue: bool = False,
    ) -> None:
        """Prepares the processes.

        Args:
            cluster: what all connect to.
            directory: logs go here, reports below it.
            names: of the run.
            flights: how many of the file's flights are booked.
            coordinators: how many.
            groups: the transaction group of each worker.
            cuts_over: whether the ledger goes on in another topic in the middle of the run.
            queue: whether workers take flights of a queue; all are of the first group then.
        """
        self._queue = queue
        self._cuts_over = cuts_over
        self.names: Final = names
        self.flights: Final = flights
        self.directory: Final = directory
        self.reports: Final = directory / "reports" / names.run
        self.reports.mkdir(parents=True)
        self._cluster = cluster
        self.groups: Final = list(dict.fromkeys(groups))
        self.coordinators: Final = [
            self._coordinator(f"coordinator {number}" if coordinators > 1 else "coordinator")
            for number in range(coordinators)
        ]
        self.workers: Final = [
            self._worker(number, *given)
            for number, given in enumerate(zip(ASSIGNMENT, groups, strict=True))
            if not queue
        ] or [self._queue_worker(number, self.groups[0]) for number in range(QUEUE_WORKERS)]
        self.auditors: Final = {level: self._auditor(level) for level in ISOLATION_LEVELS}

    def _coordinator(self, name: str) -> CoordinatorChild:
        log, servers = self._log_path(name), self._cluster.bootstrap_servers
        return CoordinatorChild(name, log, servers, *coordinator_options(self._cluster))

    def _worker(self, number: int, partitions: str, group: str) -> Worker:
        transactional_id = f"{self.names.producer_prefix}{number}"
        arguments = ["logtx.integration.demo.worker", "--config", str(self._cluster.settings_file)]
        arguments += ["--transactional-id", transactional_id, "--transaction-group", group]
        arguments += ["--group", self.names.worker_group(group)]
        arguments += ["--flights-topic", self.names.flights, "--ledger-topic", self.names.ledger]
        arguments += ["--partitions", partitions]
        if self._cuts_over:
            arguments += ["--successor-topic", self.names.successor]
        arguments += ["--report", str(self.reports / f"worker-{number}.commits")]
        child = self._child(f"worker {number}", arguments)
        return Worker(child, producer_id_of(group, transactional_id))

    def _queue_worker(self, number: int, group: str) -> Worker:
        transactional_id = f"{self.names.producer_prefix}{number}"
        arguments = ["logtx.integration.demo.queue_worker"]
        arguments += ["--config", str(self._cluster.settings_file)]
        arguments += ["--transactional-id", transactional_id]
        arguments += ["--group", self.names.worker_group(group)]
        arguments += ["--flights-topic", self.names.flights, "--ledger-topic", self.names.ledger]
        arguments += ["--dead-letter-topic", self.names.dead]
        arguments += ["--report", str(self.reports / f"worker-{number}.commits")]
        child = self._child(f"worker {number}", arguments)
        return Worker(child, producer_id_of(group, transactional_id))

    def _auditor(self, level: str) -> Child:
        arguments = ["logtx.integration.demo.auditor", "--config", str(self._cluster.settings_file)]
        arguments += ["--isolation-level", level, "--group", self.names.auditor_group(level)]
        arguments += ["--transaction-groups", *self.groups]
        ledgers = [self.names.ledger, *([self.names.successor] if self._cuts_over else [])]
        arguments += ["--ledger-topics", *ledgers, "--partitions", str(PARTITIONS)]
        arguments += ["--flights", str(self.flights), "--report", str(self.status_path(level))]
        if self._queue:
            arguments.append("--of-queue")
        return self._child(f"{level} auditor", arguments)

    def _child(self, name: str, arguments: Sequence[str]) -> Child:
        return Child(name, self._log_path(name), arguments)

    def _log_path(self, name: str) -> Path:
        return self.directory / f"{name.replace(' ', '-')}.log"

    @property
    def children(self) -> list[Child]:
        """Workers and auditors."""
        return [*(worker.child for worker in self.workers), *self.auditors.values()]

    @property
    def zombies(self) -> list[Child]:
        """Paused and replaced processes of all workers."""
        return [zombie for worker in self.workers for zombie in worker.zombies]

    def status_path(self, isolation_level: str) -> Path:
        """Returns the path of an auditor's status file."""
        return self.reports / f"auditor-{isolation_level}.json"

    def commit_reports(self) -> list[Path]:
        """Returns the report files of all worker processes, killed ones included."""
        return sorted(self.reports.glob("worker-*.commits.*"))
