"""Runs the Spark demo: starts its processes, kills the driver, and says the verdict.

Every wait is bounded, as in the demo without Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console

from ....journal.errors import LogtxError
from ....journal.log import Log
from ....journal.open import open_log
from ... import spark
from ..afterwards import keep, print_logs
from ..cluster import (
    PARTITIONS,
    Cluster,
    Names,
    StallWatch,
    create_topics,
    delete_topics,
    directory_of,
    journal_ends,
    kafka_at,
)
from ..display import LiveProgress
from ..errors import DemoError, ProcessDiedError
from ..flights import flights_file
from ..journal_view import JournalTail, JournalView
from ..options import DemoOptions
from ..processes import CoordinatorChild
from ..publisher import Publisher
from ..reports import read_status
from ..verdict import Tally
from .display import STAGES, SparkSnapshot, print_outcome
from .killer import DriverKiller, kills_for
from .processes import SparkChild
from .verdict import SparkOutcome, reasons_against

TRANSACTION_GROUP: Final = "default"
STALL_S: Final = 300.0
"""From a driver's start to its first commit it is twenty seconds, on a busy machine many more."""
_BATCHES: Final = 6
"""About as many micro-batches as there are flights for."""
_BATCH_FLIGHTS_MAX: Final = 20_000
_TICK_S: Final = 0.02
_STATUS_EVERY_S: Final = 0.25
_END_TIMEOUT_S: Final = 60.0


def run_spark_demo(options: DemoOptions) -> int:
    """Run the Spark demo; the exit status: 0 for the verdict TRUE, 1 for FALSE.

    Raises:
        DemoError, LocalKafkaError, SparkError: it can't start; the message says why.
        KeyboardInterrupt: Ctrl-C or SIGTERM; every process is stopped first.
    """
    console = Console()
    options.check()
    flights_file()  # what is missing is said before the seconds that all takes
    check_spark()
    with ExitStack() as stack:
        directory = stack.enter_context(directory_of(options.data_dir)).resolve()
        with console.status("Starting Kafka …"):
            cluster = stack.enter_context(kafka_at(directory, options.bootstrap_servers))
        log = open_log({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        stack.callback(log.close)
        starts = journal_ends(log)
        names = create_topics(log)
        if options.bootstrap_servers is not None and not options.keep:
            stack.callback(delete_topics, log, names)
        demo = stack.enter_context(SparkDemo(console, log, cluster, directory, names, options))
        outcome = demo.run(starts)
        reasons = reasons_against(outcome)
        print_outcome(console, outcome, reasons)
        if reasons:
            print_logs(console, directory)
        if options.keep:
            demo.keep()
        return 1 if reasons else 0


def check_spark() -> None:
    """Raise SparkError where Spark can't run."""
    spark.register  # noqa: B018 - says so where PySpark is missing
    from ...spark.session import check_java

    check_java()


class SparkDemo:
    """One run, on a Kafka that serves; a context manager that ends what it started."""

    def __init__(
        self,
        console: Console,
        log: Log,
        cluster: Cluster,
        directory: Path,
        names: Names,
        options: DemoOptions,
    ) -> None:
        """No process is started before `run`.

        Args:
            console: where progress is shown.
            log: the cluster, as clients see it.
            cluster: the cluster, as we started it.
            directory: logs and Spark's files go there.
            names: of the run.
            options: what was asked for.
        """
        self._console = console
        self._log = log
        self._cluster = cluster
        self._directory = directory
        self._names = names
        self._flights = options.flight_count
        self._place = directory / "spark" / names.run
        self._place.mkdir(parents=True)
        self._group = names.worker_group(TRANSACTION_GROUP)
        self._producer_id = f"{names.producer_prefix}spark"
        servers = cluster.bootstrap_servers
        self._coordinator = CoordinatorChild("coordinator", directory / "coordinator.log", servers)
        self._driver = self._spark("driver", *self._driver_arguments())
        self._inspector = self._spark("inspector", *self._inspector_arguments())
        self._publisher = Publisher(log, names.flights, self._flights)
        self._view = JournalView(self._producer_id)
        self._tail: JournalTail | None = None
        self._killer: DriverKiller | None = None
        self._started_s = 0.0
        self._booked_all_s: float | None = None
        self._doing = ""
        self._inspection: dict[str, Any] = {}
        self._inspection_due_s = 0.0

    def _spark(self, name: str, *arguments: str) -> SparkChild:
        common = ["--bootstrap-servers", self._cluster.bootstrap_servers]
        common += ["--directory", str(self._place), "--group", self._group]
        common += ["--flights-topic", self._names.flights, "--ledger-topic", self._names.ledger]
        module = f"logtx.integration.demo.spark.{name}"
        log = self._directory / f"spark-{name}.log"
        return SparkChild(f"Spark {name}", log, [module, *common, *arguments])

    def _driver_arguments(self) -> list[str]:
        size = min(max(self._flights // _BATCHES, 1), _BATCH_FLIGHTS_MAX)
        return ["--transactional-id", self._producer_id, "--flights-per-batch", str(size)]

    def _inspector_arguments(self) -> list[str]:
        export = ["--export", str(self._place / "airport_ledger.parquet")]
        return [*export, "--flights", str(self._flights), "--report", str(self._report)]

    @property
    def _report(self) -> Path:
        return self._place / "inspection.json"

    def __enter__(self) -> Self:
        """Nothing to do."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End every process, at whatever point of the run."""
        self._publisher.stop()
        if self._tail is not None:
            self._tail.close()
        self._driver.kill()
        self._inspector.kill()
        self._coordinator.ask_to_stop()
        self._coordinator.await_end()

    @property
    def _booked(self) -> int:
        return self._view.records_committed // 2

    # ---- from start to end -----------------------------------------------------------------

    def run(self, journal_starts: Mapping[int, int]) -> SparkOutcome:
        """Run it all. What goes wrong on the way is told in the outcome's problems.

        Args:
            journal_starts: ends of the journal's partitions before the coordinator is started.

        Raises:
            ProcessDiedError: the coordinator does not start.
        """
        with self._console.status("Starting the coordinator …"):
            self._coordinator.start()
            self._coordinator.await_ready()
        tail = self._tail = JournalTail(self._log, journal_starts, self._view)
        killer = self._killer = DriverKiller(
            driver=self._driver,
            producer_id=self._producer_id,
            tail=tail,
            log=self._log,
            ledger=self._names.ledger,
            partitions=PARTITIONS,
            flights=self._flights,
            kills=kills_for(self._flights),
        )
        problems: list[str] = []
        with LiveProgress(self._console, SparkSnapshot.totals(self._flights)) as display:
            # Each one whatever became of the one before: what is missing, the inspector tells.
            for step in (self._book, self._end_driver, self._inspect):
                try:
                    step(display, tail, killer)
                except LogtxError as error:
                    problems.append(str(error))
        return self._outcome(killer, problems)

    def _book(self, display: LiveProgress, tail: JournalTail, killer: DriverKiller) -> None:
        """Until every flight is booked and the driver was killed as often as planned."""
        self._doing = "streaming"
        self._started_s = time.monotonic()
        self._publisher.allow(self._flights)
        self._publisher.start()
        self._driver.start()

        def done() -> bool:
            killer.step()
            self._check(self._driver)
            if self._publisher.failure is not None:
                raise self._publisher.failure
            if self._booked >= self._flights and self._booked_all_s is None:
                self._booked_all_s = time.monotonic()
            return self._booked_all_s is not None

        # Aborted transactions are no progress: a run that only aborts must end too.
        self._follow(
            display, tail, done, lambda: (self._publisher.published, self._booked, killer.deeds[:])
        )

    def _end_driver(self, display: LiveProgress, tail: JournalTail, _killer: DriverKiller) -> None:
        self._doing = "stopping the query"
        if not self._driver.is_running:
            return  # which `_book` has told
        self._driver.ask_to_stop()
        deadline_s = time.monotonic() + _END_TIMEOUT_S
        self._follow(
            display,
            tail,
            lambda: not self._driver.is_running or time.monotonic() > deadline_s,
            time.monotonic,
        )
        ended_well = self._driver.await_end(1)
        tail.read_until(lambda: not self._view.unfinished, timeout_s=_END_TIMEOUT_S)
        if not ended_well:
            raise ProcessDiedError("The Spark driver did not end well when asked to.")

    def _inspect(self, display: LiveProgress, tail: JournalTail, _killer: DriverKiller) -> None:
        self._doing = "starting the inspector"
        self._inspector.start()

        def done() -> bool:
            self._check()
            if not self._inspection.get("final"):
                self._inspector.check()
            return not self._inspector.is_running

        self._follow(display, tail, done, lambda: self._inspection.get("stage"))
        self._inspector.kill()  # and whatever it may have left behind

    def _check(self, *children: SparkChild) -> None:
        self._cluster.check()
        for child in (self._coordinator, *children):
            child.check()

    def _follow(
        self,
        display: LiveProgress,
        tail: JournalTail,
        done: Callable[[], bool],
        progress: Callable[[], object],
    ) -> None:
        """Read the journal and show how far it is until `done`.

        Raises:
            DemoError: `progress` was the same for `STALL_S`.
        """
        watch = StallWatch(STALL_S)
        while True:
            ended = done()
            tail.read(_TICK_S)
            if ended or time.monotonic() >= self._inspection_due_s:
                self._inspection_due_s = time.monotonic() + _STATUS_EVERY_S
                self._inspection = read_status(self._report)
            if ended:
                return
            snapshot = self._snapshot()
            display.show(snapshot)
            if watch.stalled(progress()):
                raise DemoError(
                    f"No progress for {STALL_S:.0f} s: {snapshot.sentence}, {snapshot.line}."
                )

    def _snapshot(self) -> SparkSnapshot:
        stage = self._inspection.get("stage")
        inspected = 0 if stage is None else STAGES.index(stage)
        return SparkSnapshot(
            flights=self._flights,
            published=self._publisher.published,
            booked=self._booked,
            committed=self._view.committed,
            aborted=self._view.aborted,
            open=len(self._view.unfinished),
            kills=0 if self._killer is None else len(self._killer.deeds),
            drivers=self._driver.starts,
            inspected=len(STAGES) if self._inspection.get("final") else inspected,
            doing=stage or self._doing,
        )

    def _outcome(self, killer: DriverKiller, problems: list[str]) -> SparkOutcome:
        return SparkOutcome(
            flights=self._flights,
            flights_booked=self._booked,
            input_partitions=PARTITIONS,
            committed=self._view.committed,
            aborted=self._view.aborted,
            unfinished=len(self._view.unfinished),
            kills=Tally(killer.counted, killer.kills),
            elapsed_s=(self._booked_all_s or time.monotonic()) - self._started_s,
            group=self._group,
            inspection=self._inspection,
            problems=tuple(problems),
        )

    def keep(self) -> None:
        """Leave Kafka and the coordinator running until Ctrl-C.

        Raises:
            ProcessDiedError: one of them ended by itself.
        """
        self._console.print(f"Spark's checkpoint and the exported files are in {self._place}.")
        keep(
            self._console,
            self._cluster,
            [self._coordinator],
            names=self._names,
            groups=[TRANSACTION_GROUP],
            directory=self._directory,
        )
