"""Runs the demo: starts its processes, follows the journal, and says the verdict.

Every wait is bounded: a run without progress for `STALL_S` ends with the verdict FALSE and
a sentence that says what stood still.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console

from ...journal.errors import LogtxError
from ...journal.log import Log
from ...journal.open import open_log
from ...journal.reader import JOURNAL_TOPIC, journal_partition_of
from ..kafka.child import last_lines
from .cluster import (
    TRANSACTION_GROUP,
    StallWatch,
    create_topics,
    delete_topics,
    directory_of,
    journal_end,
    kafka_at,
)
from .display import LiveProgress, Snapshot, print_keep, print_outcome
from .errors import DemoError, ProcessDiedError
from .fleet import Fleet
from .flights import TOTAL_FLIGHTS, flights_file
from .journal_view import JournalTail, JournalView
from .ledger import LedgerFindings
from .monkey import Monkey, Plan
from .publisher import Publisher
from .reports import percentile, read_commit_ms, read_status
from .verdict import Outcome, reasons_against

STALL_S: Final = 60.0
_TICK_S: Final = 0.005
_STATUS_EVERY_S: Final = 0.25
_END_TIMEOUT_S: Final = 30.0
_KEEP_POLL_S: Final = 0.2
_LOG_LINES: Final = 8


def run_demo(
    flights: int | None, keep: bool, data_dir: Path | None, bootstrap_servers: str | None
) -> int:
    """Run the demo; the exit status: 0 for the verdict TRUE, 1 for FALSE.

    Args:
        flights: how many of the file's flights; None for all.
        keep: leave Kafka and the coordinator running until Ctrl-C.
        data_dir: for records and logs; None for a temporary directory.
        bootstrap_servers: a cluster to use instead of starting one.

    Raises:
        DemoError, LocalKafkaError: it can't start; the message says why.
        KeyboardInterrupt: Ctrl-C or SIGTERM; every process is stopped first.
    """
    console = Console()
    flights_file()  # before the seconds that Kafka takes
    with ExitStack() as stack:
        directory = stack.enter_context(directory_of(data_dir))
        with console.status("Starting Kafka …"):
            servers = stack.enter_context(kafka_at(directory, bootstrap_servers))
        # librdkafka prints every lost connection; what matters here is raised.
        log = open_log({"bootstrap.servers": servers, "log_level": 0})
        stack.callback(log.close)
        journal_start = journal_end(log)
        names = create_topics(log)
        if bootstrap_servers is not None and not keep:
            stack.callback(delete_topics, log, names)
        fleet = Fleet(servers, directory, names, min(flights or TOTAL_FLIGHTS, TOTAL_FLIGHTS))
        stack.callback(fleet.stop)
        with console.status("Starting the coordinator …"):
            fleet.coordinator.start()
            fleet.coordinator.await_ready()
        demo = stack.enter_context(Demo(console, log, fleet, journal_start))
        outcome = demo.run()
        reasons = reasons_against(outcome)
        print_outcome(console, outcome, reasons)
        if reasons:
            demo.print_logs()
        if keep:
            demo.keep()
        return 1 if reasons else 0


class Demo:
    """One run of the demo, on a Kafka and a coordinator that serve; a context manager."""

    def __init__(self, console: Console, log: Log, fleet: Fleet, journal_start: int) -> None:
        """No process is started before `run`.

        Args:
            console: where progress is shown.
            log: the cluster.
            fleet: the processes.
            journal_start: the journal's end before the coordinator was started.
        """
        self._console = console
        self._log = log
        self._fleet = fleet
        self._flights = fleet.flights
        self._plan = Plan.of(fleet.flights)
        self._view = JournalView(fleet.names.producer_prefix)
        partitions = log.topic_info(JOURNAL_TOPIC).partition_count
        partition = journal_partition_of(TRANSACTION_GROUP, partitions)
        self._tail = JournalTail(log, partition, journal_start, self._view)
        self._publisher = Publisher(log, fleet.names.flights, fleet.flights)
        self._monkey = Monkey(
            self._plan, fleet.workers, fleet.coordinator, self._tail, self._publisher
        )
        self._started_s = 0.0
        self._booked_all_s: float | None = None
        self._statuses: dict[str, dict[str, Any]] = {}
        self._statuses_due_s = 0.0

    def __enter__(self) -> Self:
        """Nothing to do."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop publishing and reading."""
        self._publisher.stop()
        self._tail.close()

    @property
    def _booked(self) -> int:
        return self._view.records_committed // 2

    # ---- from start to end -----------------------------------------------------------------

    def run(self) -> Outcome:
        """Run it all. What goes wrong on the way is told in the outcome's problems."""
        problems: list[str] = []
        self._started_s = time.monotonic()
        with LiveProgress(self._console, self._flights) as display:
            # Each one whatever became of the one before: if a flight is never booked, the
            # auditors still tell which entries are missing.
            for step in (self._start, self._drive, self._end_workers, self._end_auditors):
                try:
                    step(display)
                except LogtxError as error:
                    problems.append(str(error))
        return self._outcome(problems)

    def _start(self, _display: LiveProgress) -> None:
        for child in self._fleet.children:
            child.start()
        self._publisher.start()
        self._monkey.start()

    def _drive(self, display: LiveProgress) -> None:
        """Until every flight is booked."""

        def done() -> bool:
            self._monkey.step()
            for child in (*self._fleet.children, self._fleet.coordinator):
                child.check()
            if self._publisher.failure is not None:
                raise self._publisher.failure
            return self._booked >= self._flights

        # Aborted transactions are no progress: a run that only aborts must end too.
        self._follow(display, done, lambda: (self._publisher.published, self._booked))
        self._booked_all_s = time.monotonic()

    def _end_workers(self, _display: LiveProgress) -> None:
        for worker in self._fleet.workers:
            worker.child.ask_to_stop()
        bad = [w for w in self._fleet.workers if not w.child.await_end(_END_TIMEOUT_S)]
        # What stays unfinished is told by the verdict.
        self._tail.read_until(lambda: not self._view.unfinished, timeout_s=_END_TIMEOUT_S)
        if bad:
            names = ", ".join(worker.child.name for worker in bad)
            raise ProcessDiedError(f"Did not end well when asked to: {names}.")

    def _end_auditors(self, display: LiveProgress) -> None:
        for auditor in self._fleet.auditors.values():
            auditor.ask_to_stop()
        auditors = self._fleet.auditors.values()
        self._follow(
            display, lambda: not any(a.is_running for a in auditors), lambda: self._statuses
        )
        self._read_statuses()

    def _follow(
        self, display: LiveProgress, done: Callable[[], bool], progress: Callable[[], object]
    ) -> None:
        """Read the journal and show how far it is until `done`.

        Raises:
            DemoError: `progress` was the same for `STALL_S`.
        """
        watch = StallWatch(STALL_S)
        while not done():
            self._tail.read(_TICK_S)
            if time.monotonic() >= self._statuses_due_s:
                self._statuses_due_s = time.monotonic() + _STATUS_EVERY_S
                self._read_statuses()
            snapshot = self._snapshot()
            display.show(snapshot)
            if watch.stalled(progress()):
                raise DemoError(
                    f"No progress for {STALL_S:.0f} s, with {snapshot.published:,} of "
                    f"{snapshot.flights:,} flights published, {snapshot.booked:,} booked, "
                    f"{snapshot.audited:,} entries audited and {snapshot.open} transactions open."
                )

    def _read_statuses(self) -> None:
        self._statuses = {
            level: read_status(self._fleet.status_path(level)) for level in self._fleet.auditors
        }

    def _snapshot(self) -> Snapshot:
        findings = self._statuses.get("read_committed", {}).get("findings", {})
        return Snapshot(
            flights=self._flights,
            published=self._publisher.published,
            booked=self._booked,
            audited=findings.get("entries", 0),
            committed=self._view.committed,
            aborted=self._view.aborted,
            open=len(self._view.unfinished),
            worker_kills=len(self._monkey.worker_kills),
            coordinator_kills=len(self._monkey.coordinator_kills),
        )

    def _outcome(self, problems: list[str]) -> Outcome:
        committed = self._statuses.get("read_committed", {})
        uncommitted = self._statuses.get("read_uncommitted", {})
        commit_ms = read_commit_ms(self._fleet.commit_reports())
        view, monkey, publisher = self._view, self._monkey, self._publisher
        return Outcome(
            flights=self._flights,
            flights_booked=self._booked,
            cancelled=publisher.cancelled,
            without_tail_number=publisher.without_tail_number,
            transactions_committed=view.committed,
            transactions_aborted=view.aborted,
            transactions_unfinished=len(view.unfinished),
            worker_kills=sum(kill.counts(view) for kill in monkey.worker_kills),
            worker_kills_required=self._plan.worker_kills_required,
            coordinator_kills=sum(kill.counts(view) for kill in monkey.coordinator_kills),
            coordinator_kills_required=self._plan.coordinator_kills_required,
            elapsed_s=(self._booked_all_s or time.monotonic()) - self._started_s,
            commit_p50_ms=percentile(commit_ms, 50),
            commit_p99_ms=percentile(commit_ms, 99),
            findings=LedgerFindings(**committed["findings"]) if committed.get("final") else None,
            transactions_audited=committed.get("transactions", 0),
            entries_uncommitted=uncommitted["entries"] if uncommitted.get("final") else None,
            problems=tuple(problems),
        )

    # ---- afterwards ------------------------------------------------------------------------

    def print_logs(self) -> None:
        """Show the last lines of every process's log: a temporary directory goes at the end."""
        for path in sorted(self._fleet.directory.glob("*.log")):
            if lines := last_lines(path, _LOG_LINES):
                text = "\n    ".join((f"{path.name}:", *lines))
                self._console.print(
                    text, style="dim", markup=False, highlight=False, soft_wrap=True
                )

    def keep(self) -> None:
        """Leave Kafka and the coordinator running until Ctrl-C."""
        names, coordinator = self._fleet.names, self._fleet.coordinator
        print_keep(
            self._console,
            servers=self._log.bootstrap_servers,
            coordinator=coordinator.address,
            topics=(names.flights, names.ledger),
            directory=self._fleet.directory,
        )
        try:
            while True:
                coordinator.check()
                time.sleep(_KEEP_POLL_S)
        except KeyboardInterrupt:
            self._console.print("Stopping.")
