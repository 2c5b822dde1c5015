"""Measures sinks, sources, micro-batches and the audit; where sides compete, in turn each round."""

from __future__ import annotations

import itertools
import json
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import logtx
from logtx.integration.inspect.processes import audit as audit_in_processes
from logtx.integration.local.topics import create_topic
from logtx.integration.spark.keeper_client import KeeperAddress
from logtx.integration.spark.planning import SourceOptions
from logtx.integration.spark.source import StreamSource
from logtx.journal.logs.kafka import KafkaLog

from ..stats import Spread, ratio
from .session import PeakMemory

VALUE_BYTES: Final = 100
LARGE_VALUE_BYTES: Final = 1_000
_LARGE_SHARE: Final = 4
"""The sources read fewer of the large records, by this factor."""
PARTITIONS: Final = 4
TRANSACTION_RECORDS: Final = 1_000
"""Records in a transaction of the log that the sources and the audit read."""
BATCHES: Final = 15
"""Micro-batches of a round; the first third doesn't count."""
BATCH_RECORDS: Final = 1_000
"""Records in a micro-batch: few, so that its fixed costs are measured."""
PLANNED_PARTITIONS: Final = 1_000
"""Partitions of the topic whose micro-batches are planned."""
_PLANS: Final = 4
"""Plans of a round of planning; the first doesn't count."""
SPREAD_OVER: Final = 8
"""Tasks that read one large transaction."""
_WARM_SHARE: Final = 10
"""A sink's warm-up round is smaller by this factor."""
_QUERY_TIMEOUT_S: Final = 300.0
"""How long the micro-batches of a round may take."""
_FINISH_TIMEOUT_S: Final = 300.0
"""How long to wait for the markers of a new log."""


class NotMeasuredError(Exception):
    """A round failed, or its result is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Two sides' figures, one pair for each round; more is better."""

    title: str
    unit: str
    baseline: list[float]
    candidate: list[float]
    goal: float

    @property
    def ratio(self) -> Spread:
        """Ratio of the medians, with the rounds' least and most."""
        return ratio(self.candidate, self.baseline)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Milliseconds that a micro-batch takes, by its sink: one median for each round."""

    kafka_ms: list[float]
    logtx_ms: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """Result of one audit."""

    by: str
    """What read the data."""
    records: int
    seconds: float
    peak_bytes: int

    @property
    def records_per_s(self) -> float:
        """Records of transactions that it checks in a second."""
        return self.records / self.seconds


class Bench:
    """Measures with one session, on one broker with a coordinator."""

    def __init__(
        self, spark: Any, servers: str, directory: Path, tell: Callable[[str], None]
    ) -> None:
        self._spark = spark
        self._servers = servers
        self._kafka = {"kafka.bootstrap.servers": servers}
        self._directory = directory
        self._tell = tell
        self._log = KafkaLog({"bootstrap.servers": servers})
        self._numbers = itertools.count()

    def close(self) -> None:
        """Closes the log."""
        self._log.close()

    def _topic(self, partitions: int = PARTITIONS) -> str:
        name = f"spark-{next(self._numbers)}"
        create_topic(self._servers, name, partitions=partitions)
        return name

    # ---- sinks ----------------------------------------------------------------------------------

    def sink(self, records: int, rounds: int) -> Compared:
        """Writes a batch into a new topic, by Spark's own sink and by logtx's."""
        sides: dict[str, list[float]] = {"kafka": [], "logtx": []}
        for number in range(-1, rounds):
            for side, rates in sides.items():
                self._tell(f"sink, {side}")
                size = records if number >= 0 else max(records // _WARM_SHARE, 1)
                rate = self._sink_rate(side, size)
                if number >= 0:
                    rates.append(rate)
        return Compared(
            title=f"sink, beside Spark's own at-least-once Kafka sink, {records:,} records",
            unit="records/s",
            baseline=sides["kafka"],
            candidate=sides["logtx"],
            goal=0.95,
        )

    def _sink_rate(self, side: str, records: int) -> float:
        topic = self._topic()
        frame = self._spark.range(0, records, 1, PARTITIONS).selectExpr(
            f"cast(lpad(cast(id as string), {VALUE_BYTES}, 'x') as binary) as value"
        )
        started_s = time.perf_counter()
        frame.write.format(side).options(**self._kafka, topic=topic).mode("append").save()
        seconds = time.perf_counter() - started_s
        end = sum(self._log.end_offset(topic, p) for p in range(PARTITIONS))
        markers = PARTITIONS if side == "logtx" else 0
        if not records <= end <= records + markers:
            raise NotMeasuredError(f"{side} wrote {end:,} of {records:,} records")
        self._log.delete_topic(topic)
        return records / seconds

    def overhead(self, rounds: int) -> Overhead:
        """Runs micro-batches of one stream into each sink."""
        sides: dict[str, list[float]] = {"kafka": [], "logtx": []}
        for _ in range(rounds):
            for side, times_ms in sides.items():
                self._tell(f"micro-batches, {side}")
                times_ms.append(self._batch_ms(side))
        return Overhead(kafka_ms=sides["kafka"], logtx_ms=sides["logtx"])

    def _batch_ms(self, side: str) -> float:
        topic = self._topic()
        rows = self._spark.readStream.format("rate-micro-batch").options(
            rowsPerBatch=str(BATCH_RECORDS), numPartitions="2"
        )
        values = rows.load().selectExpr("cast(cast(value as string) as binary) as value")
        place = self._directory / f"checkpoint-{topic}"
        writer = values.writeStream.format(side).options(
            **self._kafka, topic=topic, checkpointLocation=str(place)
        )
        query = writer.start()
        try:
            deadline_s = time.monotonic() + _QUERY_TIMEOUT_S
            while len(query.recentProgress) < BATCHES:
                if not query.isActive or time.monotonic() > deadline_s:
                    raise NotMeasuredError(
                        f"the query into {side} came to a stand: {query.exception()}"
                    )
                time.sleep(0.1)
            found = [dict(each["durationMs"])["triggerExecution"] for each in query.recentProgress]
        finally:
            query.stop()
        self._log.delete_topic(topic)
        # The first ones wait for the start of Python's processes.
        return float(median(found[BATCHES // 3 : BATCHES]))

    # ---- sources --------------------------------------------------------------------------------

    def committed_log(
        self,
        records: int,
        *,
        partitions: int = PARTITIONS,
        value_bytes: int = VALUE_BYTES,
        of_records: int = TRANSACTION_RECORDS,
    ) -> str:
        """Returns a new topic with `records` records in transactions of `of_records`."""
        self._tell(f"writing {records:,} records of {value_bytes:,} bytes")
        topic = self._topic(partitions)
        value = b"x" * value_bytes
        with logtx.Producer(
            {"bootstrap.servers": self._servers, "transactional.id": topic}
        ) as producer:
            for first in range(0, records, of_records):
                transaction = producer.begin_transaction()
                for number in range(first, min(first + of_records, records)):
                    transaction.produce(topic, value, partition=number % partitions)
                transaction.commit()
        self._await_end(topic, records + partitions * -(-records // of_records), partitions)
        return topic

    def _await_end(self, topic: str, wanted: int, partitions: int) -> None:
        keys = [(topic, partition) for partition in range(partitions)]
        deadline_s = time.monotonic() + _FINISH_TIMEOUT_S
        # Many new partitions take a broker a while.
        while sum(self._log.end_offsets(keys, timeout_s=_FINISH_TIMEOUT_S).values()) < wanted:
            if time.monotonic() > deadline_s:
                raise NotMeasuredError("the log did not get its markers")
            time.sleep(0.1)

    def sources(self, records: int, rounds: int) -> list[Compared]:
        """Reads one log by logtx's source, by Spark's own, and by the bare Python source."""
        small = self._sources(records, VALUE_BYTES, rounds)
        large = self._sources(records // _LARGE_SHARE, LARGE_VALUE_BYTES, rounds)
        jvm = "batch source, beside the plain JVM connector"
        return [
            _compared(f"{jvm}, {VALUE_BYTES} B", small, "kafka", 2),
            _compared(f"{jvm}, {LARGE_VALUE_BYTES:,} B", large, "kafka", 1.2),
            _compared("source, beside a bare Python source", small, "bare", 0.8),
        ]

    def _sources(self, records: int, value_bytes: int, rounds: int) -> dict[str, list[float]]:
        topic = self.committed_log(records, value_bytes=value_bytes)
        plain = {**self._kafka, "subscribe": topic}
        readers: dict[str, Callable[[], Any]] = {
            "kafka": lambda: self._spark.read.format("kafka").options(**plain).load(),
            "bare": lambda: (
                self._spark.read.format("bare").options(servers=self._servers, topic=topic).load()
            ),
            "logtx": lambda: self._reader(topic),
        }
        self._count(topic, records)
        rates: dict[str, list[float]] = {side: [] for side in readers}
        for number in range(-1, rounds):
            for side, read in readers.items():
                self._tell(f"source, {side}")
                rate = records / _noop_s(read())
                if number >= 0:
                    rates[side].append(rate)
        self._log.delete_topic(topic)
        return rates

    def _reader(self, topic: str, **options: str) -> Any:
        given = {**self._kafka, "subscribe": topic, **options}
        return self._spark.read.format("logtx").options(**given).load()

    def _count(self, topic: str, records: int, **options: str) -> None:
        self._tell("source, logtx, counted")
        count = self._reader(topic, **options).count()
        if count != records:
            raise NotMeasuredError(f"logtx read {count:,} of {records:,} records")

    def spread(self, records: int, rounds: int) -> Compared:
        """Reads one transaction in one partition, by one task and by several."""
        topic = self.committed_log(records, partitions=1, of_records=records)
        sides = {"one": "1", "several": str(SPREAD_OVER)}
        rates: dict[str, list[float]] = {side: [] for side in sides}
        self._count(topic, records, minPartitions=str(SPREAD_OVER))
        for number in range(-1, rounds):
            for side, tasks in sides.items():
                self._tell(f"large transaction, {side}")
                rate = records / _noop_s(self._reader(topic, minPartitions=tasks))
                if number >= 0:
                    rates[side].append(rate)
        self._log.delete_topic(topic)
        title = f"one transaction in one partition, by {SPREAD_OVER} tasks, beside one task"
        return _compared(title, rates, "one", 1.3, "several")

    # ---- planning -------------------------------------------------------------------------------

    def planning(self, rounds: int) -> list[float]:
        """Plans micro-batches as a query's worker does. Returns each round's median, in ms."""
        topic = self._topic(PLANNED_PARTITIONS)
        given = {**self._kafka, "subscribe": topic, "startingOffsets": "earliest"}
        self._fill(topic, 1)
        # The keeper is asked only about limits and groups.
        source = StreamSource(SourceOptions.parse(given), KeeperAddress("", 0, b""))
        found = []
        try:
            start = source.initialOffset()
            for number in range(rounds):
                self._tell("planning")
                times_ms = []
                for plan in range(_PLANS):
                    self._fill(topic, number * _PLANS + plan + 2)
                    started_s = time.perf_counter()
                    end = json.loads(json.dumps(source.latestOffset()))
                    parts = source.partitions(start, end)
                    pickle.dumps(parts)
                    times_ms.append((time.perf_counter() - started_s) * 1_000)
                    start = end
                    if len(parts) != PLANNED_PARTITIONS:
                        raise NotMeasuredError(f"{len(parts)} of {PLANNED_PARTITIONS} were planned")
                found.append(float(median(times_ms[1:])))
        finally:
            source.stop()
        self._log.delete_topic(topic)
        return found

    def _fill(self, topic: str, count: int) -> None:
        """Writes a record to each partition, which then has `count`."""
        producer = self._log.producer({})
        for partition in range(PLANNED_PARTITIONS):
            producer.produce(topic, b"x", partition=partition)
        producer.flush(_FINISH_TIMEOUT_S)
        self._await_end(topic, count * PLANNED_PARTITIONS, PLANNED_PARTITIONS)

    def audits(self, records: int) -> Iterator[Audited]:
        """Audits one topic, by processes and by Spark."""
        topic = self.committed_log(records)
        kafka = {"bootstrap.servers": self._servers}
        by_spark = partial(logtx.spark.audit, self._spark, bootstrap_servers=self._servers)
        for by, audit in (("processes", partial(audit_in_processes, kafka)), ("Spark", by_spark)):
            self._tell(f"audit by {by}")
            with PeakMemory() as memory:
                started_s = time.perf_counter()
                report = audit(topics=[topic])
                seconds = time.perf_counter() - started_s
            if not report.clean or report.records != records:
                raise NotMeasuredError(
                    f"the audit found {report.records:,} of {records:,} records, clean:"
                    f" {report.clean}"
                )
            yield Audited(by=by, records=records, seconds=seconds, peak_bytes=memory.peak_bytes)


def _noop_s(frame: Any) -> float:
    """Reads all of a DataFrame. Returns how long it took, in seconds."""
    started_s = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started_s


def _compared(
    title: str, rates: Mapping[str, list[float]], beside: str, goal: float, side: str = "logtx"
) -> Compared:
    return Compared(
        title=title, unit="records/s", baseline=rates[beside], candidate=rates[side], goal=goal
    )
