"""What a log holds of each transaction, summed up on executors: small, whatever the log's size.

Through the JVM's connector where its jars are there, else in Python; both count alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import groupby
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...journal.collector import collector_paused
from ...journal.control import TXCTL_HEADER, TXID_HEADER, TopicPartition
from ...journal.log import Log
from ...journal.open import open_log
from ...journal.reader import read_records
from .vector import split

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ_TIMEOUT_S: Final = 60.0
TASK_OFFSETS: Final = 500_000
"""Offsets that one task in Python reads."""
FETCH_RECORDS: Final = 4_000
_headers_of: Any = methodcaller("headers")
_HEADER: Final = (
    "case when headers is null then null"
    " when get(headers, 0).key = '{0}' then get(headers, 0).value"
    " when get(headers, 1).key = '{0}' then get(headers, 1).value"
    " when size(headers) <= 2 then null"
    " else get(headers, cast(array_position(headers.key, '{0}') as int) - 1).value end"
)
"""Ours stand in front; the search is for those who moved them. No lambda: Spark makes no code of
one, nor of what stands beside it."""


_BULK: Final = {
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
}
"""At Kafka's defaults, 500 and 1 MiB, the connector is made for small pieces."""


class Group(NamedTuple):
    """What a partition holds of one TxId with one TxCtl: a branch's records, or equal markers."""

    topic: str
    partition: int
    raw_txid: bytes
    ctl: bytes
    """Empty: none."""
    records: int
    first: int
    last: int
    blank: int
    """How many have neither key nor value, as markers do; counted only where there is a TxCtl."""


Span = tuple[int, int]
"""First offset, and the one to stop before."""


def sum_up(log: Log, key: TopicPartition, span: Span) -> list[Group]:
    """Sum up a range of a partition, in Python."""
    sums: dict[tuple[bytes, bytes], list[int]] = {}
    records = read_records(log, *key, *span, timeout_s=READ_TIMEOUT_S, batch=FETCH_RECORDS)
    with closing(records), collector_paused():
        # Records in a row with equal headers are looked at once.
        for headers, alike in groupby(records, _headers_of):
            if not headers:
                continue
            found = {name: value or b"" for name, value in reversed(headers)}
            raw = found.get(TXID_HEADER)
            if raw is None:
                continue
            ctl = found.get(TXCTL_HEADER, b"")
            total = sums.setdefault((raw, ctl), [0, -1, -1, 0])
            for number, record in enumerate(alike, total[0]):
                if not number:
                    total[1] = record.offset()
                if ctl:
                    total[3] += record.key() is None and record.value() is None
            total[0], total[2] = number + 1, record.offset()
    return [Group(*key, raw, ctl, *total) for (raw, ctl), total in sums.items()]


def merge(groups: Iterable[Group]) -> Iterator[Group]:
    """Join the sums of ranges that follow each other."""
    merged: dict[tuple[str, int, bytes, bytes], Group] = {}
    for group in groups:
        key = group[:4]
        before = merged.get(key)
        if before is not None:
            group = Group(  # noqa: PLW2901
                *key,
                before.records + group.records,
                min(before.first, group.first),
                max(before.last, group.last),
                before.blank + group.blank,
            )
        merged[key] = group
    return iter(merged.values())


def sums_by_python(
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


def sums_by_connector(
    spark: SparkSession, kafka: Mapping[str, str], spans: Mapping[TopicPartition, Span]
) -> Iterator[Group]:
    """The same, by the JVM."""
    from pyspark.sql import functions as f

    if not spans:
        return iter(())
    rows = (
        records_by_connector(spark, kafka, spans)
        .where("raw_txid is not null")
        .groupBy("topic", "partition", "raw_txid", "ctl")
        .agg(
            f.count("*").alias("records"),
            f.min("offset").alias("first"),
            f.max("offset").alias("last"),
            f.expr("count_if(key is null and value is null)").alias("blank"),
        )
        .toArrow()
    )
    return (Group(*row) for row in zip(*(c.to_pylist() for c in rows.columns), strict=True))


def records_by_connector(
    spark: SparkSession,
    kafka: Mapping[str, str],
    spans: Mapping[TopicPartition, Span],
    partitions: int = 0,
) -> Any:
    """A DataFrame of everything in these ranges, with ``raw_txid`` and ``ctl``."""
    begin: dict[str, dict[str, int]] = {}
    end: dict[str, dict[str, int]] = {}
    for (topic, partition), (first, last) in sorted(spans.items()):
        begin.setdefault(topic, {})[str(partition)] = first
        end.setdefault(topic, {})[str(partition)] = last
    assigned = {topic: [int(p) for p in places] for topic, places in begin.items()}
    frame = spark.read.format("kafka").options(
        **_BULK,
        **{f"kafka.{name}": value for name, value in kafka.items()},
        assign=json.dumps(assigned),
        startingOffsets=json.dumps(begin),
        endingOffsets=json.dumps(end),
        includeHeaders="true",
        minPartitions=str(max(partitions, 1)),
    )
    raw, ctl = _HEADER.format(TXID_HEADER), _HEADER.format(TXCTL_HEADER)
    return frame.load().selectExpr("*", f"{raw} as raw_txid", f"coalesce({ctl}, X'') as ctl")
