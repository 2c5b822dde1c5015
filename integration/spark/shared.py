"""One transaction over any number of writes, into any topics: all of them, or none."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...journal.errors import LogtxError
from .options import SinkOptions
from .session import keeper_of
from .sink import MicroBatch, micro_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .jobs import Jobs

_LOG = logging.getLogger(__name__)


class SharedTransaction:
    """A transaction that writes join by the option ``transaction``. `transaction` makes it."""

    def __init__(self, jobs: Jobs, begun: dict[str, Any], micro_batch: MicroBatch) -> None:
        """Takes what the keeper has begun, and (query id, batch id) of the ``foreachBatch``."""
        self._jobs = jobs
        self._micro_batch = micro_batch
        self.token: str = begun["token"]
        """Value of the option ``transaction``."""
        self.is_done: bool = begun["is_done"]
        """Whether it was committed before, by its `txn_app_id` and `txn_version`. Then writes that
        join it write nothing."""
        self.commit_sequence: int | None = None
        """Place in the serial order of its transaction group, once it is committed here."""

    @property
    def txid(self) -> str:
        """Its TxId."""
        return self.token.rpartition(":")[2]

    def commit(self) -> None:
        """Commits what was written. Raises as `Jobs.commit`."""
        told = self._jobs.commit(self.txid, [], *self._micro_batch)
        self.commit_sequence = told.get("commit_sequence")
        self.is_done = self.is_done or self.commit_sequence is None


@contextmanager
def transaction(
    spark: SparkSession,
    *,
    bootstrap_servers: str,
    group: str | None = None,
    txn_app_id: str | None = None,
    txn_version: int | None = None,
    **options: str,
) -> Iterator[SharedTransaction]:
    """Begins a transaction for several writes. The end of the block commits, an exception aborts.

    Each write joins with its option ``transaction``::

        with logtx.spark.transaction(spark, bootstrap_servers=servers, group="ledger") as txn:
            flights.write.format("logtx").options(**kafka, topic="enriched",
                                                  transaction=txn.token).mode("append").save()
            legs.write.format("logtx").options(**kafka, topic="ledger",
                                               transaction=txn.token).mode("append").save()

    A write that fails, and whose exception the block catches, is in no commit. A block without any
    write commits the group's offsets.

    Args:
        spark: a session with `register`.
        bootstrap_servers: the brokers of the Kafka cluster.
        group: the consumer group whose input was read by `resume`: its offsets commit as well.
        txn_app_id: what such transactions are counted under. In ``foreachBatch`` they are counted
            by themselves.
        txn_version: the number of this one. If it was committed before, nothing is written again.
        options: further options of the sink; those with dots as ``**{"transaction.group": …}``.

    Raises:
        OffsetsConflictError: another job has committed the group's input.
        LogtxError: as for a write.
    """
    named = {"kafka.bootstrap.servers": bootstrap_servers, **options}
    given = {"group": group, "txnAppId": txn_app_id, "txnVersion": txn_version}
    named |= {name: str(value) for name, value in given.items() if value is not None}
    jobs = keeper_of(spark).jobs
    parsed = SinkOptions.parse(named)
    begun = jobs.begin(parsed.to_json(), stream=False, shared=True)
    shared = SharedTransaction(jobs, begun, micro_batch(spark.sparkContext))
    try:
        yield shared
    except BaseException:
        _abort(jobs, shared)
        raise
    shared.commit()


def _abort(jobs: Jobs, shared: SharedTransaction) -> None:
    try:
        jobs.abort(shared.txid)
    except LogtxError as error:
        # What the block raised says more. The coordinator aborts it when nothing extends it.
        _LOG.warning("not_aborted txid=%s error=%s", shared.txid, error)
