"""DataFrames of committed records: `read`, `resume` from committed IOVs; and the IOVs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...journal.errors import ConfigError
from ...journal.logs.interface import Log
from ...journal.logs.open import open_log
from ..inspect.committed_offsets import iov_rows, step_rows
from ..inspect.rows import IOV_SCHEMA, STEP_SCHEMA
from .planning import Planner, SourceOptions
from .session import keeper_of
from .vector import moved, steps_between, to_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(
    spark: SparkSession, *, subscribe: str, bootstrap_servers: str, **options: str
) -> DataFrame:
    """Committed records of a batch: the format "logtx" with its options as arguments.

    Args:
        spark: a session that `register` was called for.
        subscribe: topics, with commas between them.
        bootstrap_servers: the Kafka cluster.
        options: further ones of the source; those with dots as ``**{"kafka.…": …}``.

    Raises:
        UnknownTopicError, ConfigError, DataLossError: by the options.
    """
    named = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": subscribe, **options}
    frame: DataFrame = spark.read.format("logtx").options(**named).load()
    return frame


def resume(
    spark: SparkSession,
    *,
    group: str,
    subscribe: str,
    bootstrap_servers: str,
    stream: bool = False,
    replace: bool = False,
    **options: str,
) -> DataFrame:
    """Input from where a consumer group's committed IOV stands; from the start where it has none.

    What is made of it is written through the sink with ``.option("group", group)``, which commits
    the group's next IOV with the output: so each record of the input has its effect once, whatever
    fails, and whoever goes on (Spark, or a `Consumer` with ``offsets.storage=transactions``).

    A batch is fixed here: it can be evaluated again, and the sink commits what it spans. Several
    topics of one group are read by one call.

    Args:
        spark: a session that `register` was called for.
        group: the consumer group.
        subscribe: topics, with commas between them.
        bootstrap_servers: the Kafka cluster.
        stream: a streaming DataFrame instead of a batch.
        replace: what this application read for the group before, and did not write, will not be
            used any more. Without it that is refused: written later, it would commit the offsets
            of this input instead of its own.
        options: further ones of the source; those with dots as ``**{"kafka.…": …}``.

    Raises:
        OffsetsPendingError: a transaction that is still open holds the group's IOV.
        ConfigError: the group was resumed before and that was not written; or by the options.
        UnknownTopicError: there is no such topic.
    """
    named = {
        "kafka.bootstrap.servers": bootstrap_servers,
        "subscribe": subscribe,
        "group": group,
        **options,
    }
    parsed = SourceOptions.parse(named)
    if parsed.start.offsets is not None or parsed.start.iov is not None:
        raise ConfigError("resume begins at the group's IOV: remove the startingOffsets")
    reader: Any = spark.readStream if stream else spark.read
    if not stream:
        log = open_log(parsed.read.kafka)
        try:
            planner = Planner(log, parsed)
            start = planner.start("earliest")
            end = moved(start, planner.end(), parsed.records_per_trigger)
        finally:
            log.close()
        keeper_of(spark).plan(group, steps_between(start, end), replace=replace)
        named = {k: v for k, v in named.items() if not k.lower().startswith("ending")}
        named["startingPlaces"] = json.dumps(to_offsets(start))
        named["endingPlaces"] = json.dumps(to_offsets(end))
    frame: DataFrame = reader.format("logtx").options(**named).load()
    return frame


def iovs(spark: SparkSession, *, bootstrap_servers: str, group: str | None = None) -> DataFrame:
    """The committed IOVs of all groups, or one: see `IovRow` for the columns."""
    return _frame(spark, bootstrap_servers, lambda log: iov_rows(log, group), IOV_SCHEMA)


def iov_history(
    spark: SparkSession, *, bootstrap_servers: str, group: str | None = None
) -> DataFrame:
    """How the IOVs came about, step by step, as far as the journal goes back: see `StepRow`."""
    return _frame(spark, bootstrap_servers, lambda log: list(step_rows(log, group)), STEP_SCHEMA)


def _frame(spark: SparkSession, servers: str, rows: Any, schema: str) -> DataFrame:
    log: Log = open_log({"bootstrap.servers": servers})
    try:
        return spark.createDataFrame(rows(log), schema)
    finally:
        log.close()
