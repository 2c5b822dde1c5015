"""The sink: the parts of Spark's planner, tasks and committer in one transaction.

The planner asks the keeper to begin the transaction. Each task attempt joins it with its own branch
and sends the branch's summary back. The committer, in yet another process, passes the summaries of
the attempts that Spark accepted to the keeper, which commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ...journal.errors import ConfigError
from .clients import CLIENTS
from .columns import records_of
from .keeper_client import KeeperAddress
from .options import SinkOptions
from .shipping import Shipped
from .versions import counts_as
from .worker import begin_task

if TYPE_CHECKING:
    from pyarrow import RecordBatch

QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
"""Local properties that Spark sets for the thread and the tasks of a micro-batch."""
MicroBatch = tuple[str | None, int | None]
"""(query id, batch id)."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """A task attempt's message; Spark passes those of accepted attempts to the committer."""

    txid: str
    summary: bytes | None
    """Summary of the attempt's branch; None if it wrote nothing."""
    query_id: str | None = None
    batch_id: int | None = None


@counts_as("sql.datasource", "DataSourceStreamArrowWriter")
class BatchSink(Shipped, DataSourceArrowWriter):
    """Writes the records of a job or of a micro-batch in one transaction.

    PySpark 4.0 takes it for both; later versions have another class for streams.
    """

    def __init__(self, keeper: KeeperAddress, options: SinkOptions) -> None:
        """Prepares a writer; `begin` begins its transaction."""
        self._keeper = keeper
        self._options = options
        self._token = ""
        self._committed: int | None = None
        self._is_done = False
        """Whether the write was committed before, by its ``txnAppId`` and ``txnVersion``."""

    def begin(self, *, stream: bool) -> None:
        """In the planner: begins the transaction.

        Raises:
            LogtxError: as for `Jobs.begin`.
        """
        begun = self._keeper.ask("begin", options=self._options.to_json(), stream=stream)
        self._token = begun["token"]
        self._committed = begun["committed"]
        self._is_done = begun["is_done"]

    # ---- on executors ---------------------------------------------------------------------------

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        """Writes a partition of the job as this attempt's own branch. Returns its `Written`."""
        begin_task()
        query_id, batch_id = micro_batch(TaskContext.get())
        txid = self._token.rpartition(":")[2]
        if self._is_done:
            return Written(txid, None, query_id, batch_id)
        if batch_id is not None and self._committed is not None and batch_id <= self._committed:
            # This micro-batch was committed before a restart. The operators before the sink must
            # run all the same: a stateful one saves its state when its rows are read.
            for _ in iterator:
                pass
            return Written(txid, None, query_id, batch_id)
        summary = self._write_branch(iterator)
        return Written(txid, summary, query_id, batch_id)

    def _write_branch(self, iterator: Iterator[RecordBatch]) -> bytes | None:
        batches = (batch for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return None
        from ...producer.branch import Branches

        topic, config = self._options.topic, self._options.branch()
        with (
            CLIENTS.lend("branches", config, lambda: Branches(config)) as branches,
            branches.join(self._token) as branch,
        ):
            while first is not None:
                records_of(first, topic).send(branch, topic)
                first = next(batches, None)
            return branch.finish().to_bytes()

    # ---- beside the driver ----------------------------------------------------------------------

    def commit(self, messages: list[Any], batchId: int | None = None) -> None:  # noqa: N803 - Spark's name
        """Commits the branches of these attempts.

        Raises:
            ConfigError: a task sent no message.
            LogtxError: as for `Jobs.commit`.
        """
        written = _accepted(messages)
        summaries = [w.summary.decode() for w in written if w.summary is not None]
        of_tasks = written[0].batch_id if written else None
        self._keeper.ask(
            "commit" if self._options.transaction is None else "accept",
            txid=written[0].txid if written else self._token.rpartition(":")[2],
            summaries=summaries,
            query_id=written[0].query_id if written else None,
            batch_id=of_tasks if batchId is None else batchId,
        )

    def abort(self, messages: list[Any], batchId: int | None = None) -> None:  # noqa: ARG002, N803
        """Aborts the transaction, unless it is committed: a decision is final."""
        written = next((m for m in messages if m is not None), None)
        if self._options.transaction is not None:
            return  # Others write into it: what this one wrote is accepted by nobody.
        if self._token:
            self._keeper.ask("abort", txid=self._token.rpartition(":")[2])
        elif written is not None:
            self._keeper.ask("abort", txid=written.txid)
        else:
            self._keeper.ask("abort_stream", options=self._options.to_json())


def _accepted(messages: Sequence[Any]) -> list[Written]:
    missing = sum(m is None for m in messages)
    if missing:
        raise ConfigError(f"{missing} of {len(messages)} tasks sent no message: not committed")
    return list(messages)


def micro_batch(context: Any) -> MicroBatch:
    """Returns the running micro-batch; (None, None) outside of a stream.

    Args:
        context: that of a task; or the driver's, which answers for the calling thread.
    """
    if context is None:
        return None, None
    query_id = context.getLocalProperty(QUERY_ID_PROPERTY)
    batch_id = context.getLocalProperty(BATCH_ID_PROPERTY)
    return query_id, None if batch_id is None else int(batch_id)
