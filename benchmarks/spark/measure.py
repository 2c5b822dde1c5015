"""Measures sinks, sources, micro-batches and the audit; where sides compete, in turn each round."""

from __future__ import annotations

import itertools
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
from logtx.journal.logs.kafka import KafkaLog

from ..stats import Spread, ratio
from .session import PeakMemory

VALUE_BYTES: Final = 100
PARTITIONS: Final = 4
TRANSACTION_RECORDS: Final = 1_000
"""Records in a transaction of the log that the sources and the audit read."""
BATCHES: Final = 15
"""Micro-batches of a round; the first third doesn't count."""
BATCH_RECORDS: Final = 100
"""Records in a micro-batch: few, so that its fixed costs are measured."""
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

    bare_ms: list[float]
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

    def _topic(self) -> str:
        name = f"spark-{next(self._numbers)}"
        create_topic(self._servers, name, partitions=PARTITIONS)
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
            goal=0.6,
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
        sides: dict[str, list[float]] = {"bare": [], "kafka": [], "logtx": []}
        for _ in range(rounds):
            for side, times_ms in sides.items():
                self._tell(f"micro-batches, {side}")
                times_ms.append(self._batch_ms(side))
        return Overhead(bare_ms=sides["bare"], kafka_ms=sides["kafka"], logtx_ms=sides["logtx"])

    def _batch_ms(self, side: str) -> float:
        topic = self._topic()
        rows = self._spark.readStream.format("rate-micro-batch").options(
            rowsPerBatch=str(BATCH_RECORDS), numPartitions="2"
        )
        values = rows.load().selectExpr("cast(cast(value as string) as binary) as value")
        options: Mapping[str, str] = (
            {"servers": self._servers} if side == "bare" else {**self._kafka}
        )
        place = self._directory / f"checkpoint-{topic}"
        writer = values.writeStream.format(side).options(
            **options, topic=topic, checkpointLocation=str(place)
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

    def committed_log(self, records: int) -> str:
        """Returns a new topic with `records` records in committed transactions."""
        self._tell(f"writing {records:,} records")
        topic = self._topic()
        value = b"x" * VALUE_BYTES
        with logtx.Producer(
            {"bootstrap.servers": self._servers, "transactional.id": topic}
        ) as producer:
            for first in range(0, records, TRANSACTION_RECORDS):
                transaction = producer.begin_transaction()
                for number in range(first, min(first + TRANSACTION_RECORDS, records)):
                    transaction.produce(topic, value, partition=number % PARTITIONS)
                transaction.commit()
        self._await_markers(topic, records)
        return topic

    def _await_markers(self, topic: str, records: int) -> None:
        transactions = -(-records // TRANSACTION_RECORDS)
        wanted = records + PARTITIONS * transactions
        deadline_s = time.monotonic() + _FINISH_TIMEOUT_S
        while sum(self._log.end_offset(topic, p) for p in range(PARTITIONS)) < wanted:
            if time.monotonic() > deadline_s:
                raise NotMeasuredError("the log did not get its markers")
            time.sleep(0.1)

    def sources(self, records: int, rounds: int) -> list[Compared]:
        """Reads one log by logtx's source, by Spark's own, and by the bare Python source."""
        topic = self.committed_log(records)
        plain = {**self._kafka, "subscribe": topic}
        readers: dict[str, Callable[[], Any]] = {
            "kafka": lambda: self._spark.read.format("kafka").options(**plain).load(),
            "bare": lambda: (
                self._spark.read.format("bare").options(servers=self._servers, topic=topic).load()
            ),
            "logtx": lambda: logtx.spark.read(
                self._spark, subscribe=topic, bootstrap_servers=self._servers
            ),
        }
        self._tell("source, logtx, counted")  # this warms it up too
        count = readers["logtx"]().count()
        if count != records:
            raise NotMeasuredError(f"logtx read {count:,} of {records:,} records")
        rates: dict[str, list[float]] = {side: [] for side in readers}
        for _ in range(rounds):
            for side, read in readers.items():
                self._tell(f"source, {side}")
                started_s = time.perf_counter()
                read().write.format("noop").mode("overwrite").save()
                rates[side].append(records / (time.perf_counter() - started_s))
        self._log.delete_topic(topic)
        pairs = (
            ("batch source, beside the plain JVM connector", "kafka", "logtx", 0.6),
            ("pure-Python source, beside a bare Python source", "bare", "logtx", 0.8),
        )
        return [
            Compared(
                title=f"{title}, {records:,} records",
                unit="records/s",
                baseline=rates[baseline],
                candidate=rates[candidate],
                goal=goal,
            )
            for title, baseline, candidate, goal in pairs
        ]

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
