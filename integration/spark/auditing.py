"""The audit job: reads whole data topics and the journal, and checks what logs can show."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...journal.control import TXCTL_HEADER, TXID_HEADER, TopicPartition
from ...journal.errors import UnknownTopicError
from ...journal.log import Log
from ...journal.open import open_log
from ...journal.reader import read_records
from ...journal.state import State
from .checks import FINDING_SCHEMA, Audit, Report, Suspect
from .iov_rows import committed_iovs
from .journal_scan import Journal
from .sums import READ_TIMEOUT_S, TASK_OFFSETS, Span, sum_on_executors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASKS_MIN: Final = 4
"""Tasks in Python that are given work at a time, on however few cores."""
_FINISHED: Final = (State.COMMITTED, State.ABORTED)


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


def run_audit(
    log: Log, topics: Sequence[str] | None, sums: Any, wave_offsets: int = TASK_OFFSETS
) -> Report:
    """The audit, in the order that `checks` needs.

    Args:
        log: the cluster's.
        topics: data topics; None: all that the journal names.
        sums: sums up ranges: {partition: span} → groups.
        wave_offsets: of how many offsets sums are held at a time, or of one partition.
    """
    journal = Journal(log)
    journal.read_on()
    finished = {s.txid: s for s in journal if s.state in _FINISHED}
    keys = _partitions(log, topics, journal)
    starts = {key: log.start_offset(*key) for key in keys}
    ends = {key: log.end_offset(*key) for key in keys}
    journal.read_on()
    audited = Audit(
        finished_before=finished,
        parts=journal.parts,
        starts=starts,
        now_ms=round(time.time() * 1000),
    )
    for spans in waves({key: (starts[key], ends[key]) for key in keys}, wave_offsets):
        audited.feed(sums(spans))
        audited.check(spans)
    iovs = {
        group: {partition: position.place for partition, position in found.offsets.items()}
        for group, (_, found) in committed_iovs(log).items()
    }
    report = audited.finish(iovs)
    for suspect in report.suspects:
        audited.settle(suspect, _count(log, suspect))
    return report


def waves(
    spans: Mapping[TopicPartition, Span], offsets: int
) -> Iterator[dict[TopicPartition, Span]]:
    """Partitions in portions of at most so many offsets, or one that has more."""
    wave: dict[TopicPartition, Span] = {}
    room = offsets
    for key, (start, end) in spans.items():
        if wave and end - start > room:
            yield wave
            wave, room = {}, offsets
        wave[key] = start, end
        room -= end - start
    if wave:
        yield wave


def _partitions(
    log: Log, topics: Sequence[str] | None, journal: Iterable[Any]
) -> list[TopicPartition]:
    named = {topic for seen in journal for topic, _ in seen.partitions}
    keys = []
    for topic in sorted(named if topics is None else topics):
        try:
            count = log.topic_info(topic).partition_count
        except UnknownTopicError:
            if topics is not None:
                raise
            continue  # deleted since
        keys += [(topic, partition) for partition in range(count)]
    return keys


def _count(log: Log, suspect: Suspect) -> int:
    group, stated = suspect.group, suspect.stated
    found = 0
    start = log.start_offset(group.topic, group.partition)
    span = max(stated.first_offset, start), stated.last_offset + 1
    records = read_records(log, group.topic, group.partition, *span, timeout_s=READ_TIMEOUT_S)
    with closing(records):
        for record in records:
            headers: dict[str, Any] = dict(record.headers() or ())
            if headers.get(TXID_HEADER) == group.raw_txid:
                found += (headers.get(TXCTL_HEADER) or b"") == group.ctl
    return found
