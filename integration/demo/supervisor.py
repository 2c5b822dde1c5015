"""Runs the demo: starts its processes, follows the journal, and says the verdict.

Every wait is bounded: a run without progress for `STALL_S` ends with the verdict FALSE and
a sentence that says what stood still.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console

from ...journal.errors import LogtxError
from ...journal.log import Log
from ...journal.open import open_log
from .afterwards import keep, print_logs
from .cluster import (
    Cluster,
    Names,
    StallWatch,
    create_topics,
    delete_topics,
    directory_of,
    journal_ends,
    kafka_at,
)
from .deeds import CoordinatorKill, CoordinatorPause
from .display import LiveProgress, Snapshot, print_outcome
from .errors import DemoError, ProcessDiedError
from .fleet import ASSIGNMENT, Fleet
from .flights import flights_file
from .journal_view import JournalTail, JournalView
from .ledger import LedgerFindings
from .monkey import Monkey
from .options import DemoOptions
from .plan import Fault, Plan
from .publisher import Publisher
from .reports import percentile, read_commit_ms, read_status
from .verdict import Outcome, Sharing, Tally, reasons_against

DEFAULT_GROUP: Final = "default"
"""Transaction group of all workers, where there is one coordinator."""
STALL_S: Final = 60.0
SHARES_TIMEOUT_S: Final = 20.0
"""For coordinators that come new to get a part of the journal."""
_TICK_S: Final = 0.005
_STATUS_EVERY_S: Final = 0.25
_END_TIMEOUT_S: Final = 30.0


def run_worker_demo(options: DemoOptions) -> int:
    """Run the workers' part; the exit status: 0 for the verdict TRUE, 1 for FALSE.

    Raises:
        DemoError, LocalKafkaError: it can't start; the message says why.
        KeyboardInterrupt: Ctrl-C or SIGTERM; every process is stopped first.
    """
    console = Console()
    options.check()
    flights_file()  # before the seconds that Kafka takes
    with ExitStack() as stack:
        directory = stack.enter_context(directory_of(options.data_dir))
        with console.status("Starting Kafka …"):
            cluster = stack.enter_context(kafka_at(directory, options.bootstrap_servers))
        # librdkafka reports every lost connection; what matters here is raised.
        log = open_log({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        stack.callback(log.close)
        starts = journal_ends(log)
        names = create_topics(log)
        if options.bootstrap_servers is not None and not options.keep:
            stack.callback(delete_topics, log, names)
        fleet = _fleet(options, cluster, directory, names, len(starts))
        stack.callback(fleet.stop)
        with console.status("Starting coordinators …"):
            for coordinator in fleet.coordinators:
                coordinator.start()
            for coordinator in fleet.coordinators:
                coordinator.await_ready()
        demo = stack.enter_context(Demo(console, log, cluster, fleet, starts, options))
        outcome = demo.run()
        reasons = reasons_against(outcome)
        print_outcome(console, outcome, reasons)
        if reasons:
            demo.print_logs()
        if options.keep:
            demo.keep()
        return 1 if reasons else 0


def _fleet(
    options: DemoOptions, cluster: Cluster, directory: Path, names: Names, journal_partitions: int
) -> Fleet:
    coordinators = options.coordinator_count
    if coordinators > journal_partitions:
        raise DemoError(
            f"The journal has {journal_partitions} partitions: ask for at most that many "
            "coordinators, so that each gets one."
        )
    # What belongs to one consumer group has one order, hence one owner: to keep several
    # coordinators busy, each worker is a transaction group and a consumer group of its own.
    groups = (
        names.transaction_groups(len(ASSIGNMENT), journal_partitions)
        if coordinators > 1
        else [DEFAULT_GROUP] * len(ASSIGNMENT)
    )
    return Fleet(
        cluster.bootstrap_servers,
        directory,
        names,
        flights=options.flight_count,
        coordinators=coordinators,
        groups=groups,
    )


class Demo:
    """One run of the demo, on a Kafka and coordinators that serve; a context manager."""

    def __init__(
        self,
        console: Console,
        log: Log,
        cluster: Cluster,
        fleet: Fleet,
        journal_starts: Mapping[int, int],
        options: DemoOptions,
    ) -> None:
        """No process is started before `run`.

        Args:
            console: where progress is shown.
            log: the cluster, as clients see it.
            cluster: the cluster, as we started it.
            fleet: the processes.
            journal_starts: ends of the journal's partitions before coordinators were started.
            options: what was asked for.
        """
        self._console = console
        self._log = log
        self._cluster = cluster
        self._fleet = fleet
        self._flights = fleet.flights
        self._plan = Plan.of(
            fleet.flights, coordinators=len(fleet.coordinators), chaos=options.chaos
        )
        self._view = JournalView(fleet.names.producer_prefix)
        self._tail = JournalTail(log, journal_starts, self._view)
        self._publisher = Publisher(log, fleet.names.flights, fleet.flights)
        self._monkey = Monkey(
            self._plan, fleet.workers, fleet.coordinators, self._tail, self._publisher
        )
        self._takeovers_before = 0
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
        with LiveProgress(self._console, Snapshot.totals(self._flights)) as display:
            # Each one whatever became of the one before: if a flight is never booked, the
            # auditors still tell which entries are missing.
            for step in (
                self._await_shares,
                self._start,
                self._drive,
                self._await_shares,
                self._end_workers,
                self._end_auditors,
            ):
                try:
                    step(display)
                except LogtxError as error:
                    problems.append(str(error))
        return self._outcome(problems)

    def _start(self, _display: LiveProgress) -> None:
        self._takeovers_before = len(self._view.takeovers)
        self._started_s = time.monotonic()
        for child in self._fleet.children:
            child.start()
        self._publisher.start()
        self._monkey.start()

    def _drive(self, display: LiveProgress) -> None:
        """Until every flight is booked, and nobody sleeps any more."""

        def done() -> bool:
            self._monkey.step()
            self._cluster.check()
            for child in (*self._fleet.children, *self._fleet.coordinators):
                child.check()
            if self._publisher.failure is not None:
                raise self._publisher.failure
            if self._booked >= self._flights and self._booked_all_s is None:
                self._booked_all_s = time.monotonic()
            return self._booked_all_s is not None and not self._monkey.pauses

        # Aborted transactions are no progress: a run that only aborts must end too.
        self._follow(
            display,
            done,
            lambda: (self._publisher.published, self._booked, len(self._monkey.pauses)),
        )

    def _await_shares(self, display: LiveProgress) -> None:
        """Until every coordinator owns a part of the journal; what is missing, the verdict tells.

        Raises:
            ProcessDiedError: one of them ended.
        """
        deadline_s = time.monotonic() + SHARES_TIMEOUT_S

        def done() -> bool:
            for coordinator in self._fleet.coordinators:
                coordinator.check()
            return all(self._shares()) or time.monotonic() > deadline_s

        self._follow(display, done, time.monotonic)

    def _shares(self) -> list[int]:
        return [len(self._view.partitions_of(c.address)) for c in self._fleet.coordinators]

    def _end_workers(self, _display: LiveProgress) -> None:
        for worker in self._fleet.workers:
            worker.child.ask_to_stop()
        bad = [w.child for w in self._fleet.workers if not w.child.await_end(_END_TIMEOUT_S)]
        # What stays unfinished, or of whom was not fenced, is told by the verdict.
        self._tail.read_until(
            lambda: not (self._view.unfinished or any(z.is_running for z in self._fleet.zombies)),
            timeout_s=_END_TIMEOUT_S,
        )
        if bad:
            names = ", ".join(child.name for child in bad)
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
            faults=self._monkey.counts,
            shares=self._share_words(),
        )

    def _share_words(self) -> tuple[str, ...]:
        coordinators = self._fleet.coordinators
        if len(coordinators) == 1:
            return ()
        asleep = [pause.zombie for pause in self._monkey.pauses]
        return tuple(
            f"{share} (asleep)" if coordinator in asleep else str(share)
            for coordinator, share in zip(coordinators, self._shares(), strict=True)
        )

    def _outcome(self, problems: list[str]) -> Outcome:
        committed = self._statuses.get("read_committed", {})
        uncommitted = self._statuses.get("read_uncommitted", {})
        commit_ms = read_commit_ms(self._fleet.commit_reports())
        view, publisher = self._view, self._publisher
        return Outcome(
            flights=self._flights,
            flights_booked=self._booked,
            cancelled=publisher.cancelled,
            without_tail_number=publisher.without_tail_number,
            transactions_committed=view.committed,
            transactions_aborted=view.aborted,
            transactions_unfinished=len(view.unfinished),
            faults=self._tallies(),
            sharing=self._sharing() if len(self._fleet.coordinators) > 1 else None,
            elapsed_s=(self._booked_all_s or time.monotonic()) - self._started_s,
            commit_p50_ms=percentile(commit_ms, 50),
            commit_p99_ms=percentile(commit_ms, 99),
            commit_worst_ms=percentile(commit_ms, 100),
            findings=LedgerFindings(**committed["findings"]) if committed.get("final") else None,
            transactions_audited=committed.get("transactions", 0),
            entries_uncommitted=uncommitted["entries"] if uncommitted.get("final") else None,
            problems=tuple(problems),
        )

    def _tallies(self) -> dict[Fault, Tally]:
        happened = Counter(deed.fault for deed in self._monkey.deeds if deed.counts(self._view))
        return {f: Tally(happened[f], required) for f, required in self._plan.required.items()}

    def _sharing(self) -> Sharing:
        returned = [
            d for d in self._monkey.deeds if isinstance(d, CoordinatorKill | CoordinatorPause)
        ]
        return Sharing(
            shares=tuple(self._shares()),
            takeovers=len(self._view.takeovers) - self._takeovers_before,
            returned=len(returned),
            served_again=sum(deed.served_again(self._view) for deed in returned),
            void_entries=self._view.void_entries,
        )

    # ---- afterwards ------------------------------------------------------------------------

    def print_logs(self) -> None:
        """Show the last lines of every process's log: a temporary directory goes at the end."""
        print_logs(self._console, self._fleet.directory)

    def keep(self) -> None:
        """Leave Kafka and the coordinators running until Ctrl-C.

        Raises:
            ProcessDiedError: one of them ended by itself.
        """
        fleet = self._fleet
        keep(
            self._console,
            self._cluster,
            fleet.coordinators,
            names=fleet.names,
            groups=fleet.groups,
            directory=fleet.directory,
        )
