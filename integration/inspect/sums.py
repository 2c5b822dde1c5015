"""What a log holds of each transaction, summed up on executors: small, whatever the log's size.

In Python: a column of a batch is one pass in C, and no row is made, so that it takes half of the
time that the JVM's connector and Spark SQL need to group the same records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from confluent_kafka import Message

from ...journal.collector import collector_paused
from ...journal.control import TXCTL_HEADER, TXID_HEADER, TopicPartition
from ...journal.log import Log
from ...journal.open import open_log
from ...journal.reader import read_batches
from .vector import split

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ_TIMEOUT_S: Final = 60.0
TASK_OFFSETS: Final = 500_000
"""Offsets that one task in Python reads."""
# Unbound, they are called in C.
_headers_of: Any = Message.headers
_value_of: Any = Message.value


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
    batches = read_batches(log, *key, *span, timeout_s=READ_TIMEOUT_S)
    with closing(batches), collector_paused():
        for batch in batches:
            # Records in a row with equal headers are looked at once.
            for headers, alike in groupby(batch, _headers_of):
                found = {name: value or b"" for name, value in reversed(headers or ())}
                raw = found.get(TXID_HEADER)
                if raw is not None:
                    ctl = found.get(TXCTL_HEADER, b"")
                    _add(sums.setdefault((raw, ctl), [0, -1, -1, 0]), list(alike), blanks=bool(ctl))
    return [Group(*key, raw, ctl, *total) for (raw, ctl), total in sums.items()]


def _add(total: list[int], records: list[Message], *, blanks: bool) -> None:
    if not total[0]:
        total[1] = cast(int, records[0].offset())
    total[0] += len(records)
    total[2] = cast(int, records[-1].offset())
    if blanks and None in map(_value_of, records):
        total[3] += sum(r.value() is None and r.key() is None for r in records)


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
