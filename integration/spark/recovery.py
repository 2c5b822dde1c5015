"""Makes DataFrames of committed records (`read`, `resume`), and of committed IOVs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ...journal.errors import ConfigError
from ...journal.logs.interface import Log
from ...journal.logs.open import open_log
from .. import groups
from ..inspect.committed_offsets import iov_rows, step_rows
from ..inspect.rows import IOV_SCHEMA, STEP_SCHEMA
from .options import kafka_only
from .planning import Planner, SourceOptions
from .session import keeper_of
from .vector import SourceOffset, steps_between, to_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(
    spark: SparkSession, *, subscribe: str, bootstrap_servers: str, **options: str
) -> DataFrame:
    """Returns committed records as a batch: the format "logtx" with its options as arguments.

    Args:
        spark: a session with `register`.
        subscribe: topics, separated by commas.
        bootstrap_servers: the brokers of the Kafka cluster.
        options: further options of the source; those with dots as ``**{"kafka.…": …}``.

    Raises:
        UnknownTopicError: a topic does not exist.
        ConfigError, DataLossError: by the options.
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
    create: bool = False,
    **options: str,
) -> DataFrame:
    """Returns input from a consumer group's committed IOV on; where it has none, from the start.

    Write the output through the sink with ``.option("group", group)``, which commits the group's
    next IOV with the output. So each input record has its effect once, whatever fails, and also if
    another program continues the group: Spark, or a `Consumer` with
    ``offsets.storage=transactions``.

    This call fixes the range of a batch, so the batch can be evaluated again, and the sink commits
    the offsets of this range. Read all topics of a group with one call.

    Args:
        spark: a session with `register`.
        group: the consumer group.
        subscribe: topics, separated by commas.
        bootstrap_servers: the brokers of the Kafka cluster.
        stream: return a streaming DataFrame instead of a batch.
        replace: drop what this application read for the group earlier and did not write. Without
            it, such a group is refused: if the earlier DataFrame were written later, it would
            commit the offsets of this input instead of its own.
        create: begin at the start if the group has no committed offsets at all. Without it that is
            an error: a group whose name is misspelt would be read from the beginning.
        options: further options of the source; those with dots as ``**{"kafka.…": …}``.

    Raises:
        OffsetsPendingError: an unfinished transaction still holds the group's IOV.
        ConfigError: the group has no offsets; or it was resumed earlier and that was not written;
            or a bad option.
        UnknownTopicError: a topic does not exist.
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
    log = open_log(parsed.read.kafka)
    try:
        with closing(Planner(log, parsed)) as planner:
            if not create:
                planner.require_group()
            if not stream:
                start = planner.start("earliest")
                end = planner.settled_end(start.places, parsed.limits.most)
    finally:
        log.close()
    if not stream:
        steps = steps_between(start.places, end, start.topic_ids)
        keeper_of(spark).plans.plan(group, steps, replace=replace)
        named = {k: v for k, v in named.items() if not k.lower().startswith("ending")}
        named["startingPlaces"] = json.dumps(to_offsets(start))
        named["endingPlaces"] = json.dumps(to_offsets(SourceOffset(end)))
    frame: DataFrame = reader.format("logtx").options(**named).load()
    return frame


def iovs(
    spark: SparkSession, *, bootstrap_servers: str, group: str | None = None, **options: str
) -> DataFrame:
    """Returns the committed IOVs of all groups, or of one; `IovRow` describes the columns.

    `options` are librdkafka's settings, as ``**{"kafka.…": …}``. Raises ConfigError for others.
    """
    kafka = kafka_only(bootstrap_servers, options)
    return _frame(spark, kafka, lambda log: iov_rows(log, group), IOV_SCHEMA)


def iov_history(
    spark: SparkSession, *, bootstrap_servers: str, group: str | None = None, **options: str
) -> DataFrame:
    """Returns the committed steps of all groups, or of one, as far as the journal goes back.

    `StepRow` describes the columns. `options` are librdkafka's settings, as ``**{"kafka.…": …}``.
    Raises ConfigError for others.
    """
    kafka = kafka_only(bootstrap_servers, options)
    return _frame(spark, kafka, lambda log: list(step_rows(log, group)), STEP_SCHEMA)


def starting_offsets(*, group: str, bootstrap_servers: str, **options: str) -> str:
    """Returns where a consumer group stands, as JSON for the option ``startingOffsets``.

    It names all partitions of the topics in which the group has offsets. `options` are librdkafka's
    settings, as ``**{"kafka.…": …}``.

    Raises:
        ConfigError: the group has no committed offsets; or a bad option.
    """
    with closing(open_log(kafka_only(bootstrap_servers, options))) as log:
        return groups.starting_offsets(log, group)


def reset_group(
    *,
    group: str,
    bootstrap_servers: str,
    to_offsets: str | None = None,
    to_commit: str | int | None = None,
    as_of_ms: int | None = None,
    topics: Sequence[str] = (),
    fail_on_data_loss: bool = True,
    execute: bool = False,
    **options: str,
) -> groups.Reset:
    """Sets a consumer group's committed offsets back, as `logtx group reset` does.

    The arguments are those of `Groups.reset`, which says what is raised. Nothing is changed without
    ``execute=True``. `options` are librdkafka's settings, as ``**{"kafka.…": …}``. A streaming
    query of the group goes on only with a new ``checkpointLocation``.
    """
    kafka = kafka_only(bootstrap_servers, options)
    with closing(open_log(kafka)) as log, closing(groups.Groups(log, kafka)) as asked:
        return asked.reset(
            group,
            to_offsets=to_offsets,
            to_commit=to_commit,
            as_of_ms=as_of_ms,
            topics=topics,
            fail_on_data_loss=fail_on_data_loss,
            execute=execute,
        )


def _frame(spark: SparkSession, kafka: Mapping[str, str], rows: Any, schema: str) -> DataFrame:
    log: Log = open_log(kafka)
    try:
        return spark.createDataFrame(rows(log), schema)
    finally:
        log.close()
