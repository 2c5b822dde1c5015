"""Reading in volume: the JVM's Kafka connector brings the records, Spark SQL sorts them out.

Two passes over the log. The first sums up, on the executors, what there is of each transaction
(one row per partition, TxId and branch) and finds the markers; the driver decides from that what
is delivered, by the consumer's own rules, and checks that it is all there. The second keeps the
records that were accepted. What a sum can't settle (a transaction that begins before what was
read, numbered records that came twice) is left to the pure-Python reader, for that partition.

Rows come in the log's order within a partition, not in the order of markers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...journal.control import (
    TXCTL_HEADER,
    TXID_HEADER,
    DataControl,
    Marker,
    TopicPartition,
    decode_control,
    encode_data_control,
)
from ...journal.errors import MalformedHeaderError
from ...journal.open import open_log
from ...journal.txid import TxId
from .jars import has_connector
from .planning import Planner, SourceOptions
from .sums import Group, Span, sum_on_executors
from .vector import Spot, Vector, to_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
_ACCEPTED: Final = (
    "topic string, partition int, raw_txid binary, ctl binary, first bigint, last bigint, "
    "txid string, commit_sequence bigint"
)


def read(
    spark: SparkSession, *, subscribe: str, bootstrap_servers: str, **options: str
) -> DataFrame:
    """Committed records of a batch: through the JVM's connector where its jars are there.

    Columns and options are those of the format "logtx"; without `connector_jars`, or with an
    option that only the reader in Python knows, it is that which reads.

    Raises:
        UnknownTopicError, ConfigError, DataLossError: by the options.
        IntegrityError: a committed transaction is not whole.
    """
    named = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": subscribe, **options}
    parsed = SourceOptions.parse(named)
    bounds = parsed.start.sequence, parsed.end.sequence
    if not has_connector(spark) or not parsed.read.committed or bounds != (None, None):
        return _in_python(spark, named)
    log = open_log(parsed.read.kafka)
    try:
        planner = Planner(log, parsed)
        start = planner.start("earliest")
        ends = planner.end()
        planner.ranges(start, ends)  # refuses what is gone
        firsts = planner.earliest()
    finally:
        log.close()
    return _Volume(spark, parsed, named, start, firsts, ends).frame()


def _in_python(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    frame: DataFrame = spark.read.format("logtx").options(**options).load()
    return frame


class Accepted(NamedTuple):
    """Records to deliver: of one branch, between two offsets."""

    topic: str
    partition: int
    raw_txid: bytes
    ctl: bytes
    first: int
    last: int
    txid: str
    commit_sequence: int


@dataclass(frozen=True, slots=True)
class Sorted:
    """What `sort_out` made of a partition's groups."""

    accepted: list[Accepted]
    unsettled: set[TopicPartition]
    """Partitions that only the reader in Python can read."""


def sort_out(groups: Iterable[Group], start: Vector) -> Sorted:
    """Apply the consumer's rules to sums. Pure.

    Args:
        groups: of everything between the log's start, or `start`, and the end.
        start: what ends below it is not delivered.
    """
    markers: dict[tuple[str, int, bytes], tuple[int, Marker]] = {}
    data: dict[tuple[str, int, bytes, bytes], Group] = {}
    unsettled: set[TopicPartition] = set()
    for group in groups:
        key = group.topic, group.partition, group.raw_txid
        try:
            TxId.from_bytes(group.raw_txid)
            control = decode_control(group.ctl) if group.ctl else DataControl()
        except MalformedHeaderError:
            unsettled.add(key[:2])
            continue
        if isinstance(control, Marker):
            if group.blank != group.records:
                unsettled.add(key[:2])
            elif key not in markers or group.first < markers[key][0]:
                markers[key] = group.first, control
        elif control.sequence is not None:
            unsettled.add(key[:2])
        else:
            data[*key, group.ctl] = group
    accepted = []
    for key, (offset, marker) in markers.items():
        if not marker.committed or offset < start.get(key[:2], Spot(0)).o2:
            continue
        for stated in marker.branches:
            branch = stated.branch
            ctl = encode_data_control(DataControl(branch=branch)) if branch else b""
            found = data.get((*key, ctl))
            if found is None or (found.records, found.first, found.last) != (
                stated.count,
                stated.first_offset,
                stated.last_offset,
            ):
                unsettled.add(key[:2])
                continue
            accepted.append(
                Accepted(
                    *(*key, ctl, stated.first_offset, stated.last_offset),
                    txid=str(TxId.from_bytes(key[2])),
                    commit_sequence=marker.commit_sequence,
                )
            )
    return Sorted([a for a in accepted if (a.topic, a.partition) not in unsettled], unsettled)


class _Volume:
    """One batch."""

    def __init__(
        self,
        spark: SparkSession,
        options: SourceOptions,
        named: Mapping[str, str],
        start: Vector,
        firsts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        self._spark = spark
        self._options = options
        self._named = named
        self._start = {key: start.get(key, Spot(0)) for key in ends}
        self._firsts = firsts
        self._ends = ends

    def frame(self) -> DataFrame:
        """The committed records."""
        keys = set(self._ends)
        sure = {k for k in keys if self._start[k].o3 == 0}
        sums = sum_on_executors(self._spark, self._options.read.kafka, self._spans(sure))
        found = sort_out(sums, self._start)
        settled = sure - found.unsettled
        frames: list[DataFrame] = []
        if settled:
            frames.append(self._delivered(settled, found.accepted))
        if keys - settled:
            frames.append(self._by_python(keys - settled))
        frame = frames[0]
        for other in frames[1:]:
            frame = frame.unionByName(other)
        return frame

    def _spans(self, keys: set[TopicPartition]) -> dict[TopicPartition, Span]:
        # From the log's start: what ends behind ours may begin before it.
        return {key: (self._firsts[key], self._ends[key]) for key in keys}

    def _delivered(self, keys: set[TopicPartition], accepted: list[Accepted]) -> Any:
        from pyspark.sql import functions as f

        wanted = [a for a in accepted if (a.topic, a.partition) in keys]
        ranges = f.broadcast(self._spark.createDataFrame(wanted, _ACCEPTED))
        places = ["topic", "partition", "raw_txid", "ctl"]
        # Left, so that one pass serves the plain records too, which match nothing.
        records = _records_by_connector(
            self._spark,
            self._options.read.kafka,
            self._spans(keys),
            self._options.min_partitions,
        )
        joined = records.join(ranges, places, "left")
        begun = " or ".join(
            f"(topic = '{topic}' and partition = {partition} and offset >= {spot.o2})"
            for (topic, partition), spot in sorted(self._start.items())
            if (topic, partition) in keys
        )
        plain = f"raw_txid is null and ({begun})"
        return self._columns(joined.where(f"offset between first and last or ({plain})"))

    def _columns(self, frame: Any) -> Any:
        names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
        if self._options.include_headers:
            ours = "filter(headers, h -> h.key not in ('TxId', 'TxCtl'))"
            names.append(f"if(size({ours}) = 0, null, {ours}) as headers")
        return frame.selectExpr(*names, "txid", "commit_sequence")

    def _by_python(self, keys: set[TopicPartition]) -> Any:
        start = {key: self._start[key] for key in keys}
        end = {key: Spot(self._ends[key]) for key in keys}
        named = {k: v for k, v in self._named.items() if not k.lower().startswith(_BOUNDS)}
        return _in_python(
            self._spark,
            {
                **named,
                "subscribe": ",".join(sorted({topic for topic, _ in keys})),
                "startingPlaces": json.dumps(to_offsets(start)),
                "endingPlaces": json.dumps(to_offsets(end)),
            },
        )


_BOUNDS: Final = ("starting", "ending")


def _records_by_connector(
    spark: SparkSession,
    kafka: Mapping[str, str],
    spans: Mapping[TopicPartition, Span],
    partitions: int,
) -> Any:
    # Everything in these ranges, with `raw_txid` and `ctl`.
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
