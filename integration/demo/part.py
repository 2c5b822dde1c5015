"""What both parts of the demo share: a stage, the loop that follows the journal, an orderly end.

Every wait is bounded: if a run makes no progress for a while, it ends with the verdict FALSE and a
sentence that says what stood still.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from rich.console import Console

from ...journal.errors import LogtxError
from ...journal.logs.interface import Log
from ...journal.logs.open import open_log
from ..local.processes import LOG_LINES, CoordinatorChild, last_lines
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
from .display import LiveProgress, Shown, print_keep
from .errors import DemoError
from .flights import flights_file
from .journal_view import JournalTail, JournalView
from .options import DemoOptions
from .publisher import Publisher

_STATUS_EVERY_S: Final = 0.25
"""How often the report files of the other processes are read. They change about as often, so a
smaller value only costs reads, and a larger one makes the progress line older."""
_KEEP_POLL_S: Final = 0.2
"""How often `--keep` looks whether Kafka and the coordinators still run. A larger value reports a
death later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a part runs on."""

    console: Console
    options: DemoOptions
    directory: Path
    """Logs and reports go here."""
    cluster: Cluster
    log: Log
    """Access to the cluster for topics, ends and records."""
    names: Names
    journal_starts: Mapping[int, int]
    """Journal partition → its end before the coordinators were started."""


@contextmanager
def stage_of(options: DemoOptions, console: Console) -> Iterator[Stage]:
    """Provides a Kafka with topics and no coordinator; stops what it started after the block."""
    with ExitStack() as stack:
        directory = stack.enter_context(directory_of(options.data_dir)).resolve()
        with console.status("Starting Kafka …"):
            cluster = stack.enter_context(kafka_at(directory, options.kafka))
        # librdkafka logs every lost connection; an error that matters is raised here.
        log = open_log({**cluster.kafka, "log_level": 0})
        stack.callback(log.close)
        starts = journal_ends(log)
        names = create_topics(log)
        if options.kafka and not options.keep:
            stack.callback(delete_topics, log, names)
        yield Stage(
            console=console,
            options=options,
            directory=directory,
            cluster=cluster,
            log=log,
            names=names,
            journal_starts=starts,
        )


class Part(ABC):
    """One part of the demo: a context manager that ends every process that it started."""

    stall_s: ClassVar[float] = 60.0
    """A run fails after this time without progress. A smaller value fails slow machines, a larger
    one delays the report of a real stall."""
    tick_s: ClassVar[float] = 0.005
    """Longest wait for the journal's next entries, between two looks at everything else. A larger
    value finds the moments for faults later, a smaller one costs processor time."""

    def __init__(self, stage: Stage, producer_prefix: str) -> None:
        """Prepares the part; `play` starts the processes.

        Args:
            stage: what the part runs on.
            producer_prefix: what the producer ids of its transactions begin with.
        """
        self._stage = stage
        self._flights = stage.options.flight_count
        ledgers = (stage.names.ledger, stage.names.successor)
        self._view = JournalView(producer_prefix, ledgers, stage.names.dead)
        self._tail = JournalTail(stage.log, stage.journal_starts, self._view)
        self._publisher = Publisher(stage.log, stage.names.flights, self._flights)
        self._problems: list[str] = []
        self._started_s = 0.0
        self._booked_all_s: float | None = None
        self._status_due_s = 0.0

    def __enter__(self) -> Self:
        """Returns itself; `play` starts the processes."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends every process, at whatever point the run is."""
        self._publisher.stop()
        self._tail.close()
        self._end_children()
        for coordinator in self.coordinators:
            coordinator.ask_to_stop()
        for coordinator in self.coordinators:
            coordinator.await_end()

    # ---- what a part is made of -----------------------------------------------------------------

    @property
    @abstractmethod
    def coordinators(self) -> Sequence[CoordinatorChild]:
        """The coordinators: started first, and asked to stop last."""

    @property
    @abstractmethod
    def _totals(self) -> Mapping[str, int]:
        """The progress bars, and the final value of each."""

    @abstractmethod
    def _steps(self) -> Sequence[Callable[[LiveProgress], None]]:
        """The steps of the run, in order. Each is done even if the one before it failed."""

    @abstractmethod
    def _read_status(self) -> None:
        """Reads what the processes reported."""

    @abstractmethod
    def _snapshot(self) -> Shown:
        """Returns how far the run is."""

    @abstractmethod
    def _verdict(self) -> Sequence[str]:
        """Prints the outcome. Returns the reasons for the verdict FALSE; empty for TRUE."""

    @abstractmethod
    def _end_children(self) -> None:
        """Kills every process except the coordinators."""

    @property
    @abstractmethod
    def _groups(self) -> Sequence[str]:
        """The transaction groups, printed for `--keep`."""

    # ---- from start to end ----------------------------------------------------------------------

    def play(self) -> int:
        """Runs the whole part. Returns the exit status: 0 for the verdict TRUE, 1 for FALSE.

        Raises:
            ProcessDiedError: a coordinator does not start.
        """
        console = self._stage.console
        with console.status("Starting coordinators …"):
            for coordinator in self.coordinators:
                coordinator.start()
            for coordinator in self.coordinators:
                coordinator.await_ready()
        with LiveProgress(console, self._totals) as display:
            for step in self._steps():
                try:
                    step(display)
                except LogtxError as error:
                    self._problems.append(str(error))
        reasons = self._verdict()
        if reasons:
            self._print_logs()
        if self._stage.options.keep:
            self._keep()
        return 1 if reasons else 0

    @property
    def _booked(self) -> int:
        # Each flight is two ledger entries, or a dead letter.
        return self._view.records_committed // 2 + self._view.letters

    @property
    def _elapsed_s(self) -> float:
        return (self._booked_all_s or time.monotonic()) - self._started_s

    def _all_booked(self) -> bool:
        """Returns whether every flight is booked; raises the publisher's error if it failed."""
        if self._publisher.failure is not None:
            raise self._publisher.failure
        if self._booked >= self._flights and self._booked_all_s is None:
            self._booked_all_s = time.monotonic()
        return self._booked_all_s is not None

    def _follow(
        self, display: LiveProgress, done: Callable[[], bool], progress: Callable[[], object]
    ) -> None:
        """Reads the journal and shows the progress until `done` returns True.

        Raises:
            DemoError: `progress` returned equal values for `stall_s`.
        """
        watch = StallWatch(self.stall_s)
        while True:
            ended = done()
            if not ended:
                self._tail.read(self.tick_s)
            if ended or time.monotonic() >= self._status_due_s:
                self._status_due_s = time.monotonic() + _STATUS_EVERY_S
                self._read_status()
            if ended:
                return
            snapshot = self._snapshot()
            display.show(snapshot)
            if watch.stalled(progress()):
                raise DemoError(
                    f"No progress for {self.stall_s:.0f} s: {snapshot.sentence}, {snapshot.line}."
                )

    # ---- afterwards -----------------------------------------------------------------------------

    def _print_logs(self) -> None:
        """Prints the end of each process's log: a temporary directory is deleted at the end."""
        for path in sorted(self._stage.directory.glob("*.log")):
            if lines := last_lines(path, LOG_LINES):
                text = "\n    ".join((f"{path.name}:", *lines))
                self._stage.console.print(
                    text, style="dim", markup=False, highlight=False, soft_wrap=True
                )

    def _keep(self) -> None:
        """Leaves Kafka and the coordinators running until Ctrl-C.

        Raises:
            ProcessDiedError: Kafka or a coordinator ended by itself.
        """
        stage = self._stage
        print_keep(
            stage.console,
            servers=stage.cluster.bootstrap_servers,
            coordinators=[coordinator.address for coordinator in self.coordinators],
            topics=(stage.names.flights, stage.names.ledger),
            groups=self._groups,
            directory=stage.directory,
        )
        try:
            while True:
                stage.cluster.check()
                for coordinator in self.coordinators:
                    coordinator.check()
                time.sleep(_KEEP_POLL_S)
        except KeyboardInterrupt:
            stage.console.print("Stopping.")


def play(options: DemoOptions, make: Callable[[Stage], Part]) -> int:
    """Plays one part on a stage of its own. Returns the exit status, as `Part.play`.

    Raises:
        DemoError, LocalKafkaError: it can't start; the message says why.
        KeyboardInterrupt: Ctrl-C or SIGTERM; every process is stopped first.
    """
    options.check()
    flights_file()  # reports a missing file before the seconds that Kafka takes to start
    with stage_of(options, Console()) as stage, make(stage) as part:
        return part.play()
