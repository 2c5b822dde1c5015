"""Runs the audit on Spark: executors sum up the data of whole topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ...journal.control import TopicPartition
from ...journal.logs.open import open_log
from ...journal.reader import READER_SETTINGS
from ..inspect.audit import run_audit
from ..inspect.checks import FINDING_SCHEMA, Report
from ..inspect.groups import Group, Span, merge
from ..inspect.sums import TASK_OFFSETS, sum_up
from .clients import lend_fetcher, lend_log
from .options import kafka_only
from .vector import split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASKS_MIN: Final = 4
"""Tasks at a time, on however few cores. A larger value takes more of the driver's memory, with a
smaller one cores are idle more often."""


def audit(
    spark: SparkSession,
    *,
    bootstrap_servers: str,
    topics: Sequence[str] | None = None,
    **options: str,
) -> Report:
    """Checks every invariant that a cluster's logs can show; `docs/spark.md` lists them.

    Others may write during the audit.

    Args:
        spark: a session.
        bootstrap_servers: the brokers of the Kafka cluster.
        topics: data topics to check; None checks all topics that the journal names.
        options: librdkafka's settings, as ``**{"kafka.…": …}``.

    Returns:
        The findings; `Report.clean` says whether all promises were kept.

    Raises:
        UnknownTopicError: there is no journal, or no topic of this name.
        ConfigError: an option is no setting of librdkafka.
        JournalError, BrokerError: the logs can't be read.
    """
    kafka = kafka_only(bootstrap_servers, options)
    # Bounds the sums in the driver's memory: one task per core at a time.
    wave_offsets = TASK_OFFSETS * max(spark.sparkContext.defaultParallelism, TASKS_MIN)
    log = open_log(kafka)
    try:
        return run_audit(log, topics, partial(sum_on_executors, spark, kafka), wave_offsets)
    finally:
        log.close()


def findings(spark: SparkSession, report: Report) -> DataFrame:
    """Returns a report's findings as a DataFrame; `Finding` describes the columns."""
    rows = [
        (str(f.severity), f.check, f.topic, f.partition, f.txid, f.count, f.detail)
        for f in report.findings
    ]
    return spark.createDataFrame(rows, FINDING_SCHEMA)


def sum_on_executors(
    spark: SparkSession, kafka: Mapping[str, str], spans: Mapping[TopicPartition, Span]
) -> Iterator[Group]:
    """Sums up these ranges on executors, cut into one piece per task."""
    pieces = [
        (key, piece)
        for key, (start, end) in sorted(spans.items())
        for piece in split(start, end, -(-(end - start) // TASK_OFFSETS))
    ]
    if not pieces:
        return iter(())
    settings = dict(kafka)

    def work(part: tuple[TopicPartition, Span]) -> list[Group]:
        key, (start, end) = part
        with (
            lend_log(settings) as log,
            lend_fetcher(log, settings, READER_SETTINGS, records=end - start) as fetcher,
        ):
            return sum_up(log, key, (start, end), fetcher)

    found = spark.sparkContext.parallelize(pieces, len(pieces)).flatMap(work)
    # `collect` runs all tasks at once; `toLocalIterator` would run them one after the other.
    return merge(Group(*row) for row in found.collect())
