"""The workers' part of the demo: three workers, two auditors, one coordinator or several.

It starts them, follows them through the journal, and kills them by plan.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ...journal.modes import Mode
from ...journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from ..local.errors import ProcessDiedError
from ..local.processes import CoordinatorChild
from .cut_over import CutOver, prepare_topics
from .deeds import CoordinatorKill, CoordinatorPause
from .display import LiveProgress, Snapshot, print_outcome
from .errors import DemoError
from .fleet import ASSIGNMENT, Fleet
from .ledger import LedgerFindings
from .letter_reader import read_letters
from .letters import LetterFindings
from .monkey import Monkey
from .options import DemoOptions
from .part import Part, Stage, play
from .plan import Fault, Plan
from .reports import percentile, read_commit_ms, read_status
from .verdict import Letters, Move, Outcome, Sharing, Tally, reasons_against

SHARES_TIMEOUT_S: Final = 20.0
"""Bounds the wait until every coordinator, a new one too, owns a part of the journal."""
_END_TIMEOUT_S: Final = 30.0
"""Bounds each wait for workers to end, and then for their transactions to be finished."""


def run_worker_demo(options: DemoOptions) -> int:
    """Runs the workers' part. Returns the exit status: 0 for the verdict TRUE, 1 for FALSE.

    Raises:
        DemoError, LocalKafkaError: it can't start; the message says why.
        KeyboardInterrupt: Ctrl-C or SIGTERM; every process is stopped first.
    """
    return play(options, WorkerPart)


def _fleet(stage: Stage) -> Fleet:
    coordinators, partitions = stage.options.coordinator_count, len(stage.journal_starts)
    if coordinators > partitions:
        raise DemoError(
            f"The journal has {partitions} partitions: ask for at most that many coordinators,"
            " so that each gets one."
        )
    # One consumer group's work has one order, hence one owner. To keep several coordinators busy,
    # each worker gets a transaction group and a consumer group of its own.
    groups = (
        stage.names.transaction_groups(len(ASSIGNMENT), partitions)
        if coordinators > 1
        else [DEFAULT_TRANSACTION_GROUP] * len(ASSIGNMENT)
    )
    return Fleet(
        stage.cluster,
        stage.directory,
        stage.names,
        flights=stage.options.flight_count,
        coordinators=coordinators,
        groups=groups,
        cuts_over=stage.options.mode is Mode.METADATA,
        queue=stage.options.queue,
    )


class WorkerPart(Part):
    """The workers' part."""

    def __init__(self, stage: Stage) -> None:
        """Prepares the part; `play` starts the processes.

        Raises:
            DemoError: there are more coordinators than journal partitions.
        """
        self._fleet = fleet = _fleet(stage)
        super().__init__(stage, fleet.names.producer_prefix)
        self._plan = Plan.of(
            fleet.flights, coordinators=len(fleet.coordinators), chaos=stage.options.chaos
        )
        self._monkey = Monkey(
            self._plan, fleet.workers, fleet.coordinators, self._tail, self._publisher
        )
        self._cut_over: CutOver | None = None
        if stage.options.mode is Mode.METADATA:
            self._cut_over = CutOver(
                stage.cluster.kafka,
                fleet.names.ledger,
                fleet.reports,
                workers=len(fleet.workers),
                begin_at=fleet.flights // 2,
            )
        self._takeovers_before = 0
        self._statuses: dict[str, dict[str, Any]] = {}
        self._letters: LetterFindings | None = None
        if stage.options.queue:
            stage.log.create_topic(stage.names.dead, partitions=1)

    @property
    def coordinators(self) -> Sequence[CoordinatorChild]:
        """One coordinator, or several that share the journal."""
        return self._fleet.coordinators

    @property
    def _totals(self) -> Mapping[str, int]:
        return Snapshot.totals(self._flights)

    @property
    def _groups(self) -> Sequence[str]:
        return self._fleet.groups

    def _end_children(self) -> None:
        for child in (*self._fleet.children, *self._fleet.zombies):
            child.kill()

    # ---- from start to end ----------------------------------------------------------------------

    def _steps(self) -> Sequence[Callable[[LiveProgress], None]]:
        # If a flight is never booked, the auditors still tell which entries are missing.
        return (
            self._await_shares,
            self._switch,
            self._start,
            self._drive,
            self._await_shares,
            self._end_workers,
            self._end_auditors,
            self._read_letters,
        )

    def _switch(self, _display: LiveProgress) -> None:
        if self._cut_over is not None:
            prepare_topics(self._stage.log, self._fleet.names)

    def _start(self, _display: LiveProgress) -> None:
        self._takeovers_before = len(self._view.takeovers)
        self._started_s = time.monotonic()
        for child in self._fleet.children:
            child.start()
        self._publisher.start()
        self._monkey.start()

    def _drive(self, display: LiveProgress) -> None:
        """Follows the run until every flight is booked and no process is paused."""

        def done() -> bool:
            if self._cut_over is not None:
                self._cut_over.step(self._booked)
            if self._cut_over is None or not self._cut_over.is_under_way(self._view.spanning):
                self._monkey.step()
            self._stage.cluster.check()
            for child in (*self._fleet.children, *self._fleet.coordinators):
                child.check()
            return self._all_booked() and not self._monkey.pauses

        # Aborted transactions are no progress: a run in which all transactions abort must end too.
        self._follow(
            display,
            done,
            lambda: (self._publisher.published, self._booked, len(self._monkey.pauses)),
        )

    def _await_shares(self, display: LiveProgress) -> None:
        """Waits until every coordinator owns a part of the journal.

        After `SHARES_TIMEOUT_S` it goes on all the same, and the verdict reports what is missing.

        Raises:
            ProcessDiedError: a coordinator ended.
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
        # The verdict reports transactions that stay unfinished and zombies that were not fenced.
        self._tail.read_until(
            lambda: not (self._view.unfinished or any(z.is_running for z in self._fleet.zombies)),
            timeout_s=_END_TIMEOUT_S,
        )
        if bad:
            names = ", ".join(child.name for child in bad)
            raise ProcessDiedError(f"Did not end well when asked to: {names}.")

    def _end_auditors(self, display: LiveProgress) -> None:
        auditors = self._fleet.auditors.values()
        for auditor in auditors:
            auditor.ask_to_stop()
        self._follow(
            display, lambda: not any(a.is_running for a in auditors), lambda: self._statuses
        )

    def _read_letters(self, _display: LiveProgress) -> None:
        if self._stage.options.queue:
            self._letters = read_letters(self._stage, self._view.letters)

    def _read_status(self) -> None:
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

    # ---- the verdict ----------------------------------------------------------------------------

    def _verdict(self) -> Sequence[str]:
        outcome = self._outcome()
        reasons = reasons_against(outcome)
        print_outcome(self._stage.console, outcome, reasons)
        return reasons

    def _outcome(self) -> Outcome:
        committed = self._statuses.get("read_committed", {})
        uncommitted = self._statuses.get("read_uncommitted", {})
        commit_ms = read_commit_ms(self._fleet.commit_reports())
        view, publisher = self._view, self._publisher
        return Outcome(
            flights=self._flights,
            flights_booked=self._booked - view.letters,
            cancelled=publisher.cancelled,
            without_tail_number=publisher.without_tail_number,
            transactions_committed=view.committed,
            transactions_aborted=view.aborted,
            transactions_unfinished=len(view.unfinished),
            faults=self._tallies(),
            sharing=self._sharing() if len(self._fleet.coordinators) > 1 else None,
            elapsed_s=self._elapsed_s,
            commit_p50_ms=percentile(commit_ms, 50),
            commit_p99_ms=percentile(commit_ms, 99),
            commit_worst_ms=percentile(commit_ms, 100),
            findings=LedgerFindings(**committed["findings"]) if committed.get("final") else None,
            transactions_audited=committed.get("transactions", 0),
            entries_uncommitted=uncommitted["entries"] if uncommitted.get("final") else None,
            problems=tuple(self._problems),
            letters=self._of_letters(),
            move=None if self._cut_over is None else Move(self._cut_over.sealed_at, view.spanning),
        )

    def _of_letters(self) -> Letters | None:
        if not self._stage.options.queue:
            return None
        return Letters(self._letters, self._view.of_letters_alone)

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
