"""The audit on Spark: the data of whole topics is summed up on executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ...journal.control import TopicPartition
from ...journal.logs.open import open_log
from ..inspect.audit import run_audit
from ..inspect.checks import FINDING_SCHEMA, Report
from ..inspect.groups import Group, Span, merge
from ..inspect.sums import TASK_OFFSETS, sum_up
from .vector import split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASKS_MIN: Final = 4
"""Tasks in Python that are given work at a time, on however few cores."""


def audit(
    spark: SparkSession, *, bootstrap_servers: str, topics: Sequence[str] | None = None
) -> Report:
    """Check every invariant that a cluster's logs can show; see `docs/spark.md` for the list.

    Others may write meanwhile. `Report.clean` says whether a promise was broken.

    Args:
        spark: a session.
        bootstrap_servers: the Kafka cluster.
        topics: data topics; None: all that the journal names.

    Raises:
        UnknownTopicError: there is no journal, or no such topic.
        JournalError, BrokerError: the logs can't be read.
    """
    kafka = {"bootstrap.servers": bootstrap_servers}
    # Of the driver's memory, a core's task at a time.
    wave_offsets = TASK_OFFSETS * max(spark.sparkContext.defaultParallelism, TASKS_MIN)
    log = open_log(kafka)
    try:
        return run_audit(log, topics, partial(sum_on_executors, spark, kafka), wave_offsets)
    finally:
        log.close()


def findings(spark: SparkSession, report: Report) -> DataFrame:
    """A report's findings as a DataFrame: see `Finding` for the columns."""
    rows = [
        (str(f.severity), f.check, f.topic, f.partition, f.txid, f.count, f.detail)
        for f in report.findings
    ]
    return spark.createDataFrame(rows, FINDING_SCHEMA)


def sum_on_executors(
    spark: SparkSession, kafka: Mapping[str, str], spans: Mapping[TopicPartition, Span]
) -> Iterator[Group]:
    """Sums of these ranges, each task a piece."""
    pieces = [
        (key, piece)
        for key, (start, end) in sorted(spans.items())
        for piece in split(start, end, -(-(end - start) // TASK_OFFSETS))
    ]
    if not pieces:
        return iter(())
    settings = dict(kafka)

    def work(part: tuple[TopicPartition, Span]) -> list[Group]:
        log = open_log(settings)
        try:
            return sum_up(log, *part)
        finally:
            log.close()

    found = spark.sparkContext.parallelize(pieces, len(pieces)).flatMap(work)
    # All at once: an iterator would have the tasks run one after the other.
    return merge(Group(*row) for row in found.collect())
