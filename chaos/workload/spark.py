"""A Spark driver: a streaming query that writes one record for each input record, exactly once.

    python -m logtx.chaos.workload.spark DIRECTORY NUMBER LIFE

The query has format "logtx" as source and as sink, a consumer group, and a checkpoint. When it
fails it is started again. When it refuses a checkpoint that was restored, the driver does what the
error says: the query gets a new checkpoint, and goes on from the group's committed offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...consumer.range_reader.errors import DataLossError
from ...integration.spark.application import Application
from ...integration.spark.errors import BatchGapError, ReplayDiffersError
from ...integration.spark.jobs import Jobs
from ...integration.spark.plans import Plans
from ...integration.spark.recovery import resume
from ...integration.spark.session import SHORT_LIVED, keeper_of, local_session
from ...journal.errors import LogtxError, OffsetsConflictError
from ...journal.state import State
from ..checkpoints import Checkpoints
from ..errors import ChaosError
from ..settings import METADATA_MS, SPARK_GROUP
from .clients import Ended
from .logtx_writer import workers_sidecars
from .output import enter_end
from .process import Process, TakenOverError, run
from .spark_output import SCHEMA, Run

MEMORY: Final = "512m"
"""Memory of the JVM's heap. Less may not be enough, more is taken from the brokers."""
BATCH: Final = 2_000
"""Most offsets by which a micro-batch advances. A larger value makes fewer and longer ones."""
TRANSACTION_TIMEOUT_MS: Final = 60_000
"""Longer than a broker's death stalls a micro-batch on a busy machine."""
RETRIES: Final = 30
"""Failures in a row before the driver ends: brokers and coordinators are gone for longer than a few
failures take."""
REFUSALS: Final = (ReplayDiffersError, BatchGapError, OffsetsConflictError, DataLossError)
"""With what a query refuses a restored checkpoint; each says to start it with a new one."""
_PAUSE_S: Final = 1.0
"""Pause after a failure."""
_ASK_S: Final = 0.2
"""How often the query is asked whether it has ended; bounds how late SIGTERM is noticed."""
_SAID: Final = 400
"""Characters of a failure that the history keeps."""


class WatchedJobs(Jobs):
    """The keeper's transactions; writes to the history what it is asked to commit, and told."""

    def __init__(
        self,
        plans: Plans,
        application: Callable[[], Application],
        process: Process,
        committed: Callable[[], None],
    ) -> None:
        """Begins without any; `committed` is called after each commit."""
        super().__init__(plans, application)
        self._process = process
        self._committed = committed
        self._runs: dict[str, Run] = {}
        self.run: Run | None = None
        """The query's present run."""

    def begin(self, options: str, stream: bool, shared: bool = False) -> dict[str, Any]:
        """Begins as `Jobs.begin` does."""
        begun = super().begin(options, stream, shared)
        if self.run is not None:
            self._runs[begun["token"].rpartition(":")[2]] = self.run
        return begun

    def commit(
        self,
        txid: str,
        summaries: list[str],
        query_id: str | None = None,
        batch_id: int | None = None,
    ) -> dict[str, Any]:
        """Commits as `Jobs.commit` does."""
        run = self._runs.get(txid)
        if run is None or batch_id is None or not run.begun(batch_id).exists():
            return super().commit(txid, summaries, query_id, batch_id)
        operation = run.operation(batch_id)
        self._process.recorder.write("commit", op=operation)
        try:
            done = super().commit(txid, summaries, query_id, batch_id)
        except LogtxError as error:
            ended = Ended(outcome="unknown", txid=txid, error=repr(error))
            enter_end(self._process, operation, ended)
            raise
        if done["state"] == str(State.COMMITTED):
            sequence = done["commit_sequence"]
            ended = Ended(outcome="committed", txid=txid, commit_sequence=sequence)
            self._committed()
        else:  # It was committed before, and this transaction was aborted.
            ended = Ended(outcome="aborted", txid=txid, error=done["state"])
        enter_end(self._process, operation, ended)
        return done


class _Driver:
    def __init__(self, process: Process, spark: Any) -> None:
        self._process = process
        self._spark = spark
        self._checkpoints = Checkpoints(process.directory)
        self._failures = 0
        self._runs = 0
        keeper = keeper_of(spark)
        # Before any query: later the keeper would not know the transactions of the former one.
        keeper.jobs.close()
        self._jobs = keeper.jobs = WatchedJobs(
            keeper.plans, lambda: keeper.application, process, self._goes_on
        )

    def work(self) -> None:
        """Runs the query until SIGTERM.

        Raises:
            TakenOverError: a successor was started.
            ChaosError: the query refused to go on, and nobody had restored its checkpoint; or it
                fails again and again.
        """
        from pyspark.errors import PySparkException

        process = self._process
        self._checkpoints.take(process.life)
        while not process.stopping.is_set():
            try:
                query = self._start()
                while not process.stopping.is_set() and not query.awaitTermination(_ASK_S):
                    pass
                query.stop()
            except (PySparkException, LogtxError) as error:
                self._failed(f"{type(error).__name__}: {error}")
                process.stopping.wait(_PAUSE_S)

    def _start(self) -> Any:
        process, settings = self._process, self._process.settings
        assert settings.spark_topic is not None
        self._runs += 1
        run = Run(process.directory, process.name, self._runs, settings)
        self._jobs.run = run
        kafka: Any = {
            "kafka.topic.metadata.refresh.interval.ms": str(METADATA_MS),
            "kafka.reconnect.backoff.max.ms": "500",
            "kafka.log_level": "2",
        }
        frame = resume(
            self._spark,
            group=SPARK_GROUP,
            subscribe=settings.data_topic,
            bootstrap_servers=settings.bootstrap_servers,
            stream=True,
            create=True,
            maxRecordsPerTrigger=str(BATCH),
            **kafka,
        )

        def outputs(batches: Any) -> Any:
            return run.outputs(batches)

        writer = frame.mapInArrow(outputs, SCHEMA).writeStream.format("logtx").options(**kafka)
        named: Any = {
            "kafka.bootstrap.servers": settings.bootstrap_servers,
            "transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
        }
        return writer.options(
            **named,
            **workers_sidecars(settings, process.random),
            topic=settings.spark_topic,
            group=SPARK_GROUP,
            checkpointLocation=self._checkpoints.path.as_uri(),
        ).start()

    def _goes_on(self) -> None:
        self._failures = 0
        if self._checkpoints.is_restored:
            self._process.recorder.write("note", note="the restored checkpoint goes on")
            self._checkpoints.goes_on()

    def _failed(self, said: str) -> None:
        process, checkpoints = self._process, self._checkpoints
        if checkpoints.is_taken(process.life):
            raise TakenOverError(said[:_SAID])
        process.recorder.write("error", error=_essence(said))
        refusal = next((kind.__name__ for kind in REFUSALS if kind.__name__ in said), None)
        if refusal is not None:
            if not checkpoints.is_restored:
                raise ChaosError(f"The query does not go on, and nothing was restored: {said}")
            checkpoints.begin_anew()
            place = checkpoints.path.name
            note = f"{refusal}: refused what was restored; goes on from the group with {place}"
            process.recorder.write("note", note=note)
        self._failures += 1
        if self._failures > RETRIES:
            raise ChaosError(f"The query failed {RETRIES} times in a row: {said}")


def _essence(said: str) -> str:
    """Returns the line of a failure that names an error of logtx, else its beginning."""
    lines = [line.strip() for line in said.splitlines()]
    return next((line for line in lines if line.startswith("logtx.")), said)[:_SAID]


def work(process: Process) -> None:
    """Runs the query in a session of its own."""
    place = Checkpoints(process.directory).place
    settings = {**SHORT_LIVED, "spark.log.level": "OFF"}
    with local_session(place, "local[1]", MEMORY, settings) as spark:
        process.recorder.write("note", note="the session is there")
        _Driver(process, spark).work()


if __name__ == "__main__":
    run("spark", work)
