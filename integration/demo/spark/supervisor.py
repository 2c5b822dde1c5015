"""Spark's part of the demo: a streaming query books the flights, and its driver is killed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from ....journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from ... import spark
from ...local.errors import ProcessDiedError
from ...local.processes import CoordinatorChild
from ...local.spark_driver import SparkChild
from ..cluster import PARTITIONS, coordinator_options
from ..display import LiveProgress
from ..options import DemoOptions
from ..part import Part, Stage, play
from ..reports import read_status
from ..verdict import Tally
from .display import STAGES, SparkSnapshot, print_outcome
from .killer import DriverKiller, kills_for
from .processes import BACKUP, CHECKPOINT
from .verdict import SparkOutcome, reasons_against

_BATCHES: Final = 6
"""About this many micro-batches for all flights. With fewer, kills find fewer open transactions;
more of them take longer."""
_BATCH_FLIGHTS_MAX: Final = 20_000
"""Most flights in one micro-batch, so that a large run has more than `_BATCHES` of them."""
_END_TIMEOUT_S: Final = 60.0
"""Bounds the wait for the driver's end, and then for the end of its transactions."""


def run_spark_demo(options: DemoOptions) -> int:
    """Runs the Spark demo. Returns the exit status: 0 for the verdict TRUE, 1 for FALSE.

    Raises:
        DemoError, LocalKafkaError, SparkError: it can't start; the message says why.
        KeyboardInterrupt: Ctrl-C or SIGTERM; every process is stopped first.
    """
    check_spark()
    return play(options, SparkPart)


def check_spark() -> None:
    """Raises SparkError if Spark can't run."""
    spark.register  # noqa: B018 - raises if PySpark is missing
    from ...spark.session import check_java

    check_java()


class SparkPart(Part):
    """One run of Spark's part."""

    stall_s: ClassVar[float] = 300.0
    """A driver needs twenty seconds from its start to its first commit, on a busy machine much
    more."""
    tick_s: ClassVar[float] = 0.02

    def __init__(self, stage: Stage) -> None:
        """Prepares the part; `play` starts the processes."""
        names = stage.names
        self._producer_id = f"{names.producer_prefix}spark"
        super().__init__(stage, self._producer_id)
        self._place = stage.directory / "spark" / names.run
        self._place.mkdir(parents=True)
        self._group = names.worker_group(DEFAULT_TRANSACTION_GROUP)
        self._coordinator = CoordinatorChild(
            "coordinator",
            stage.directory / "coordinator.log",
            stage.cluster.bootstrap_servers,
            *coordinator_options(stage.cluster),
        )
        self._driver = self._spark("driver")
        self._inspector = self._spark("inspector", *self._inspector_arguments())
        self._killer = DriverKiller(
            driver=self._driver,
            producer_id=self._producer_id,
            tail=self._tail,
            log=stage.log,
            ledger=names.ledger,
            partitions=PARTITIONS,
            flights=self._flights,
            kills=kills_for(self._flights),
            killed=self._back_up,
        )
        for topic in (names.enriched, names.totals):
            stage.log.create_topic(topic, partitions=PARTITIONS)
        self._doing = ""
        self._inspection: dict[str, Any] = {}

    def _spark(self, name: str, *arguments: str) -> SparkChild:
        stage = self._stage
        common = ["--config", str(stage.cluster.settings_file)]
        common += ["--directory", str(self._place), "--group", self._group]
        common += ["--flights-topic", stage.names.flights, "--ledger-topic", stage.names.ledger]
        common += ["--enriched-topic", stage.names.enriched, *self._query_arguments()]
        module = f"logtx.integration.demo.spark.{name}"
        log = self._stage.directory / f"spark-{name}.log"
        return SparkChild(f"Spark {name}", log, [module, *common, *arguments])

    def _query_arguments(self) -> list[str]:
        size = min(max(self._flights // _BATCHES, 1), _BATCH_FLIGHTS_MAX)
        return ["--transactional-id", self._producer_id, "--flights-per-batch", str(size)]

    def _inspector_arguments(self) -> list[str]:
        export = ["--export", str(self._place / "airport_ledger.parquet")]
        export += ["--totals-topic", self._stage.names.totals]
        return [*export, "--flights", str(self._flights), "--report", str(self._report)]

    def _back_up(self) -> None:
        """Copies Spark's checkpoint as it is at the first kill: the inspector will restore it."""
        backup = self._place / BACKUP
        if not backup.exists():
            shutil.copytree(self._place / CHECKPOINT, backup)

    @property
    def _report(self) -> Path:
        return self._place / "inspection.json"

    @property
    def coordinators(self) -> Sequence[CoordinatorChild]:
        """The only coordinator."""
        return [self._coordinator]

    @property
    def _totals(self) -> Mapping[str, int]:
        return SparkSnapshot.totals(self._flights)

    @property
    def _groups(self) -> Sequence[str]:
        return [DEFAULT_TRANSACTION_GROUP]

    def _end_children(self) -> None:
        self._driver.kill()
        self._inspector.kill()

    # ---- from start to end ----------------------------------------------------------------------

    def _steps(self) -> Sequence[Callable[[LiveProgress], None]]:
        # The inspector still runs if `_book` fails: it reports what is missing.
        return (self._book, self._end_driver, self._inspect)

    def _book(self, display: LiveProgress) -> None:
        """Follows the run until every flight is booked; kills the driver as often as planned."""
        self._doing = "streaming"
        self._started_s = time.monotonic()
        self._publisher.allow(self._flights)
        self._publisher.start()
        self._driver.start()

        def done() -> bool:
            self._killer.step()
            self._check(self._driver)
            return self._all_booked()

        # Aborted transactions are no progress: a run in which all transactions abort must end too.
        self._follow(
            display,
            done,
            lambda: (self._publisher.published, self._booked, self._killer.deeds[:]),
        )

    def _end_driver(self, display: LiveProgress) -> None:
        self._doing = "stopping the query"
        if not self._driver.is_running:
            return  # `_book` has reported it
        self._driver.ask_to_stop()
        deadline_s = time.monotonic() + _END_TIMEOUT_S
        self._follow(
            display,
            lambda: not self._driver.is_running or time.monotonic() > deadline_s,
            time.monotonic,
        )
        ended_well = self._driver.await_end(1)
        self._tail.read_until(lambda: not self._view.unfinished, timeout_s=_END_TIMEOUT_S)
        if not ended_well:
            raise ProcessDiedError("The Spark driver did not end well when asked to.")

    def _inspect(self, display: LiveProgress) -> None:
        self._doing = "starting the inspector"
        self._inspector.start()

        def done() -> bool:
            self._check()
            if not self._inspection.get("final"):
                self._inspector.check()
            return not self._inspector.is_running

        self._follow(display, done, lambda: self._inspection.get("stage"))
        self._inspector.kill()  # and what it may have left behind

    def _check(self, *children: SparkChild) -> None:
        self._stage.cluster.check()
        for child in (self._coordinator, *children):
            child.check()

    def _read_status(self) -> None:
        self._inspection = read_status(self._report)

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
            kills=len(self._killer.deeds),
            drivers=self._driver.starts,
            inspected=len(STAGES) if self._inspection.get("final") else inspected,
            doing=stage or self._doing,
        )

    # ---- the verdict ----------------------------------------------------------------------------

    def _verdict(self) -> Sequence[str]:
        outcome = self._outcome()
        reasons = reasons_against(outcome)
        print_outcome(self._stage.console, outcome, reasons)
        return reasons

    def _outcome(self) -> SparkOutcome:
        return SparkOutcome(
            flights=self._flights,
            flights_booked=self._booked,
            input_partitions=PARTITIONS,
            committed=self._view.committed,
            aborted=self._view.aborted,
            unfinished=len(self._view.unfinished),
            kills=Tally(self._killer.counted, self._killer.kills),
            elapsed_s=self._elapsed_s,
            group=self._group,
            inspection=self._inspection,
            problems=tuple(self._problems),
        )

    def _keep(self) -> None:
        self._stage.console.print(f"Spark's checkpoint and exported files are in {self._place}.")
        super()._keep()
