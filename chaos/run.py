"""A run from start to end, and the verdict.

1. Three brokers behind proxies, two topics, coordinators, and the processes of the workload are
   started.
2. The load runs under the plan's faults.
3. Everything is healed. Producers end, transactions are decided, workers finish their input.
4. The last readers read everything from the beginning.
5. The checker judges the history and the logs.

Every wait is bounded. What is not done in time ends the run with an error that says what it was.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from ..integration.local.cluster import LocalCluster
from ..journal.errors import LogtxError
from ..journal.logs.interface import Log
from ..journal.logs.open import open_log
from .bounded import ends_within
from .brokers import brokers
from .checkpoints import Checkpoints
from .display import Display, Snapshot
from .drain import (
    CONSUMERS_S,
    PRODUCERS_S,
    SPARK_S,
    await_decided,
    await_until,
    await_worked_off,
    read_to_the_end,
    stop_members,
    write_last,
)
from .errors import ChaosError
from .fleet import ChaosCoordinator, Death, Fleet, Member, fleet
from .inspector import Inspector, open_inspector
from .nemesis import Nemesis
from .operator import Operator
from .options import ChaosOptions, System
from .plan import Fault, Role, plan_faults, plan_upgrades
from .previous import unpack
from .progress import Progress
from .proxy import Proxies
from .recorder import Recorder, history_of
from .settings import (
    FENCED_STATUS,
    FLEETING_TOPIC,
    HISTORY,
    KEYED_PRODUCERS,
    REBALANCES,
    SPARK_TOPIC,
    Settings,
)
from .stores import check_stores
from .topics import Topics
from .trimmer import Trimmer
from .workload.readers import final_readers

VERDICT: Final = "verdict.json"
PREVIOUS: Final = "previous"
"""Directory with the files of the commit that is upgraded from."""
ENDS_S: Final = 1_800.0
"""How long a run may take besides its load: longer than all bounds of its steps together, and than
the checker takes for ten minutes of load."""
LAST_S: Final = 60.0
"""How long it has to end its processes after that; then it ends without a word, and the kernel ends
them."""
READY_S: Final = 180.0
"""Bounds the wait for each coordinator to be ready, and for all clients to begin. A smaller value
fails slow machines, a larger one delays the report of a real failure."""
_TICK_S: Final = 0.2
"""Pause between two looks at processes, history and faults; a smaller one takes processor time from
the run."""
_NOT_OF_KAFKA: Final = (
    "Not looked for: marker-mismatch, missing-marker, marker-order, watermark, zombie-write and the"
    " steps of input by the journal. Kafka has no such journal, and shows nobody its markers."
)


def run_chaos(options: ChaosOptions, console: Console | None = None) -> int:
    """Runs it. Returns the exit status: 0 if there was no anomaly and everything ended well.

    Raises:
        ChaosError, LocalKafkaError: it can't be run or judged; the message says why.
        KeyboardInterrupt: Ctrl-C or SIGTERM; every process is stopped first.
    """
    console = console or Console()
    options.check()
    directory = _directory_of(options)
    ok = keep = False
    try:
        with ends_within(options.seconds + ENDS_S, LAST_S):
            run = _Run(options, directory, console)
            run.run()
            ok = _judge(directory, console) and not run.problems
        for problem in run.problems:
            sentence = f"✗ {problem}"
            console.print(sentence, style="red", highlight=False, markup=False, soft_wrap=True)
        keep = not ok
    except LogtxError:
        keep = True
        raise
    finally:
        if keep or options.data_dir is not None:
            console.print(
                f"History, logs and dump are in {directory}. To check them again: "
                f"logtx chaos --check {directory}",
                highlight=False,
                soft_wrap=True,
            )
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return 0 if ok else 1


def check_again(directory: Path, console: Console | None = None) -> int:
    """Checks a run that is over. Returns the exit status, as `run_chaos`.

    Raises:
        ChaosError: it can't be judged; the message says why.
    """
    return 0 if _judge(directory, console or Console()) else 1


def _judge(directory: Path, console: Console) -> bool:
    from .checker import CheckError, check

    try:
        verdict = check(directory)
    except CheckError as error:
        raise ChaosError(f"{directory} can't be judged. {error}") from error
    if verdict.system == System.KAFKA:
        console.print(_NOT_OF_KAFKA, highlight=False)
    verdict.print(console)
    (directory / VERDICT).write_text(json.dumps(verdict.as_json(), indent=1) + "\n")
    return verdict.ok


def _directory_of(options: ChaosOptions) -> Path:
    path = options.data_dir or Path(tempfile.mkdtemp(prefix="logtx-chaos-"))
    try:
        (path / HISTORY).mkdir(parents=True, exist_ok=True)
        if any((path / HISTORY).iterdir()):
            raise ChaosError(f"{path} has the history of another run: choose another directory.")
    except OSError as error:
        raise ChaosError(f"Cannot make the run directory {path} ({error.strerror}).") from error
    return path.absolute()


class _Run:
    """One run. If a step of its end fails, it keeps the error in `problems` and goes on."""

    def __init__(self, options: ChaosOptions, directory: Path, console: Console) -> None:
        self._options = options
        self._directory = directory
        self._console = console
        self._progress = Progress(directory / HISTORY)
        self._phase = "starting"
        self._started_s = time.monotonic()
        self.problems: list[str] = []
        self._cluster: LocalCluster
        self._fleet: Fleet
        self._nemesis: Nemesis
        self._inspector: Inspector
        self._operator: Operator | None = None
        self._clients_log: Log
        self._settings: Settings
        self._display: Display

    def run(self) -> None:
        """Runs everything from start to end."""
        with ExitStack() as stack:
            with self._console.status("Starting Kafka and coordinators …"):
                self._start(stack)
            self._display = stack.enter_context(Display(self._console))
            self._load()
            self._end()

    # ---- start ----------------------------------------------------------------------------------

    def _start(self, stack: ExitStack) -> None:
        options, directory = self._options, self._directory
        previous = None
        if options.upgrade_from is not None:
            previous = unpack(options.upgrade_from, directory / PREVIOUS)
        proxies = stack.enter_context(Proxies())
        self._cluster = cluster = stack.enter_context(
            brokers(directory / "kafka", proxies, options.brokers)
        )
        servers = cluster.bootstrap_servers
        self._settings = settings = _settings_of(options, servers)
        settings.save(directory)
        topics = Topics(cluster.direct_servers, directory, settings)
        topics.create()
        self._fleet = stack.enter_context(fleet(options, directory, servers, proxies, previous))
        self._start_coordinators()
        quiet = {"log_level": 2}
        log = open_log({"bootstrap.servers": cluster.direct_servers, **quiet})
        stack.callback(log.close)
        clients_log = open_log({"bootstrap.servers": servers, **quiet})
        stack.callback(clients_log.close)
        self._clients_log = clients_log
        self._inspector = open_inspector(log, clients_log, settings, directory)
        stack.callback(self._inspector.close)
        recorder = stack.enter_context(Recorder(directory / HISTORY, "nemesis-0.0"))
        if settings.switched_topics:
            self._operator = Operator(clients_log, settings, recorder)
            stack.callback(self._operator.close)
            self._operator.begin()
        self._nemesis = Nemesis(
            _plan(options),
            seconds=options.seconds,
            cluster=cluster,
            fleet=self._fleet,
            proxies=proxies,
            trimmer=Trimmer(log, self._inspector, settings),
            topics=topics,
            inspector=self._inspector,
            recorder=recorder,
            progress=self._progress,
            checkpoints=Checkpoints(directory) if options.spark else None,
            operator=self._operator,
        )

    def _start_coordinators(self) -> None:
        # One after the other: each creates the internal topics if they do not exist.
        for member in self._fleet.coordinators:
            member.start()
            child = member.child
            assert isinstance(child, ChaosCoordinator)
            if not await_until(partial(_is_ready, child), READY_S, lambda: None):
                said = " / ".join(child.last_lines(3))
                raise ChaosError(f"{member.name} was not ready within {READY_S:.0f} s: {said}")

    # ---- load -----------------------------------------------------------------------------------

    def _load(self) -> None:
        for member in self._fleet.clients:
            member.start()
        # On a busy machine Python alone takes seconds to start: no fault before all clients work.
        limit_s = READY_S + self._spark_s
        if not await_until(self._all_began, limit_s, self._tick):
            raise ChaosError(f"Not all processes began to work within {limit_s:.0f} s.")
        self._started_s = time.monotonic()
        self._phase = "load"
        self._nemesis.start()
        try:
            while time.monotonic() < self._started_s + self._options.seconds:
                self._tick()
                if self._missing == 0:
                    break
                if self._nemesis.failure is not None:
                    raise self._nemesis.failure
                time.sleep(_TICK_S)
        finally:
            self._nemesis.stop()
        self._nemesis.healed()
        if self._missing:
            seconds, wanted = self._options.seconds, self._options.commits
            self.problems.append(
                f"{self._missing:,} of {wanted:,} commits were missing after {seconds:,.0f} s of"
                " load: give it more --seconds, or a machine with more cores."
            )

    @property
    def _missing(self) -> int | None:
        """How many of the commits that end the load are missing; None if only time ends it."""
        wanted = self._options.commits
        return None if wanted is None else max(0, wanted - self._progress.outcomes["committed"])

    @property
    def _spark_s(self) -> float:
        return SPARK_S if self._options.spark else 0.0

    def _all_began(self) -> bool:
        histories = (
            history_of(self._directory / HISTORY, member.process_name)
            for member in self._fleet.clients
        )
        if not all(path.exists() and path.stat().st_size > 0 for path in histories):
            return False
        # A Spark query takes so long to begin that a short load would be over before.
        sparks = {member.process_name for member in self._fleet.sparks}
        return sparks <= self._progress.connected

    def _tick(self) -> None:
        self._fleet.watch()
        self._progress.read()
        self._display.show(
            Snapshot(
                phase=self._phase,
                elapsed_s=time.monotonic() - self._started_s,
                seconds=self._options.seconds,
                outcomes=self._progress.outcomes,
                faults={fault.value: n for fault, n in self._nemesis.counts.items()},
                active=self._nemesis.active,
                deaths=len(self._fleet.deaths),
            )
        )

    # ---- end ------------------------------------------------------------------------------------

    def _end(self) -> None:
        for phase, step in (
            ("stopping producers", self._stop_producers),
            ("switching topics", self._settle),
            ("draining", self._drain),
            ("stopping workers and consumers", self._stop_readers),
            ("reading to the end", self._read_to_the_end),
            ("asking the stores", self._ask_stores),
            ("dumping the logs", self._dump),
        ):
            self._phase = phase
            self._tick()
            try:
                step()
            except LogtxError as error:
                self.problems.append(str(error))
        self.problems += [str(death) for death in self._fleet.deaths if not self._expected(death)]

    def _stop_producers(self) -> None:
        # A producer that was started again a moment ago would die of SIGTERM while Python starts.
        await_until(self._all_began, READY_S + self._spark_s, self._tick)
        self._stop(self._fleet.producers, PRODUCERS_S)

    def _settle(self) -> None:
        if self._operator is not None:
            self._operator.settle()

    def _drain(self) -> None:
        await_decided(self._inspector, self._tick)
        last = write_last(self._directory, self._settings)
        await_worked_off(self._inspector, last, self._tick, self._spark_s)

    def _stop_readers(self) -> None:
        fleet = self._fleet
        readers = [*fleet.workers, *fleet.queue_workers, *fleet.sparks, *fleet.consumers]
        self._stop(readers, CONSUMERS_S + self._spark_s)

    def _stop(self, members: Sequence[Member], limit_s: float) -> None:
        if bad := stop_members(members, limit_s, self._tick):
            raise ChaosError(f"Did not end well when asked to: {', '.join(bad)}.")

    def _read_to_the_end(self) -> None:
        read_to_the_end(self._fleet, len(final_readers(self._settings)), self._tick)

    def _ask_stores(self) -> None:
        if not self._settings.switched_topics:
            return
        children = [member.child for member in self._fleet.coordinators]
        addresses = {c.name: c.advertised for c in children if isinstance(c, ChaosCoordinator)}
        check_stores(self._clients_log, addresses, self._directory, self._settings.seed)

    def _dump(self) -> None:
        from .checker import CheckError, dump

        try:
            dump(self._directory, bootstrap_servers=self._cluster.direct_servers)
        except CheckError as error:
            raise ChaosError(str(error)) from error

    def _expected(self, death: Death) -> bool:
        # The broker fences a producer of Kafka's whose transaction timed out, and it can't go on. A
        # producer of logtx is fenced only by another one of its name. That may be the one that it
        # had replaced: if it was paused before it made its next producer, that is the latest.
        may_be_fenced = self._options.system is System.KAFKA or death.has_rival
        return may_be_fenced and death.status == FENCED_STATUS


def _plan(options: ChaosOptions) -> list[Fault]:
    counts = options.counts()
    plan = plan_faults(options.seed, options.seconds, counts, mild=options.mild)
    if options.upgrade_from is not None:
        plan += plan_upgrades(options.seconds, counts[Role.COORDINATOR])
    return sorted(plan, key=lambda fault: fault.at_s)


def _settings_of(options: ChaosOptions, servers: str) -> Settings:
    return Settings(
        system=options.system,
        seed=options.seed,
        seconds=options.seconds,
        rate=options.rate / options.producers,
        bootstrap_servers=servers,
        rebalance=REBALANCES[options.seed % len(REBALANCES)],
        fleeting_topic=FLEETING_TOPIC if options.system is System.LOGTX else None,
        spark_topic=SPARK_TOPIC if options.spark else None,
        metadata=options.metadata,
        sidecar=options.sidecar,
        queue=options.queue,
        native=options.native,
        producers=options.producers,
        keyed_producers=min(KEYED_PRODUCERS, options.producers // 2),
    )


def _is_ready(child: ChaosCoordinator) -> bool:
    return child.is_ready
