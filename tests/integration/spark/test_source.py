"""The source in Spark: columns, micro-batches, a limit, the end of what is there."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logtx
from logtx.integration.spark.versions import find
from logtx.integration.testing import Cluster
from logtx.journal.sidecar import in_sidecar

from ...waiting import eventually
from .conftest import committed

STAMP_MS = int(time.time()) * 1_000
"""Not older than the topic's retention, by which Kafka would delete the records."""
ADMITS = find("sql.streaming.datasource", "ReadMaxRows") is not None
"""Whether this PySpark limits micro-batches of Python sources by itself."""
pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]


@pytest.fixture
def source(spark: Any, logtx_cluster: Cluster) -> Callable[..., Any]:
    """`source(topic, stream=False, **options)`: a DataFrame."""

    def make(topic: str | None, *, stream: bool = False, **options: str) -> Any:
        reader = spark.readStream if stream else spark.read
        reader = reader.format("logtx")
        if topic is not None:
            reader = reader.option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", logtx_cluster.bootstrap_servers)
        for name, value in options.items():
            reader = reader.option(name.replace("_", "."), value)
        return reader.load()

    return make


def write(
    cluster: Cluster, topic: str, numbers: range, *, abort: bool = False, sidecar: bool = False
) -> Any:
    """A transaction over both partitions; returns when its markers are there."""
    before = sum(cluster.log.end_offset(topic, p) for p in (0, 1))
    txn = cluster.producer().begin_transaction(sidecar=sidecar)
    for n in numbers:
        headers = [("n", b"%d" % n)]
        txn.produce(
            topic, b"%d" % n, b"k", headers=headers, partition=n % 2, timestamp=STAMP_MS + n
        )
    outcome = txn.abort() if abort else txn.commit()
    end = before + (0 if sidecar else len(numbers)) + (0 if sidecar and abort else 2)
    eventually(lambda: sum(cluster.log.end_offset(topic, p) for p in (0, 1)) == end)
    return outcome


def test_a_batch_has_kafkas_columns_and_ours(source: Any, logtx_cluster: Cluster) -> None:
    topic = logtx_cluster.topic(2)
    first = write(logtx_cluster, topic, range(10))
    write(logtx_cluster, topic, range(10, 20), abort=True)
    second = write(logtx_cluster, topic, range(20, 30))
    frame = source(topic, includeHeaders="true")
    assert frame.columns == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
        *("headers", "txid", "commit_sequence"),
    ]
    rows = {int(row.value): row for row in frame.collect()}
    assert sorted(rows) == [*range(10), *range(20, 30)]
    row = rows[21]
    assert (row.topic, row.partition, row.offset) == (topic, 1, 12)
    assert (row.txid, row.commit_sequence) == (str(second.txid), second.commit_sequence)
    assert (bytes(row.key), row.timestampType) == (b"k", 0)
    assert round(row.timestamp.timestamp() * 1_000) == STAMP_MS + 21
    assert [(h.key, bytes(h.value)) for h in row.headers] == [("n", b"21")]
    since = source(topic, startingCommitSequence=str(first.commit_sequence + 1))
    assert {int(r.value) for r in since.collect()} == set(range(20, 30))
    everything = source(topic, isolation_level="read_uncommitted", minPartitions="5")
    assert everything.rdd.getNumPartitions() >= 5
    assert Counter(int(r.value) for r in everything.collect()) == Counter(range(30))


@pytest.mark.slow
def test_records_of_sidecars_come_in_their_place(source: Any, logtx_cluster: Cluster) -> None:
    topic = logtx_cluster.topic(2)
    write(logtx_cluster, topic, range(10))
    aside = write(logtx_cluster, topic, range(10, 20), sidecar=True)
    write(logtx_cluster, topic, range(20, 30), sidecar=True, abort=True)
    write(logtx_cluster, topic, range(30, 40))
    frame = source(topic, includeHeaders="true", minPartitions="5")
    assert frame.rdd.getNumPartitions() >= 5
    rows = frame.collect()
    for partition in (0, 1):
        mine = [int(row.value) for row in rows if row.partition == partition]
        assert mine == [n for n in (*range(20), *range(30, 40)) if n % 2 == partition]
    [row] = [row for row in rows if bytes(row.value) == b"13"]
    assert (row.topic, row.partition, in_sidecar(row.offset)) == (topic, 1, 1)
    assert (row.txid, row.commit_sequence) == (str(aside.txid), aside.commit_sequence)
    assert (bytes(row.key), row.timestampType) == (b"k", 0)
    assert round(row.timestamp.timestamp() * 1_000) == STAMP_MS + 13
    assert [(h.key, bytes(h.value)) for h in row.headers] == [("n", b"13")]


@pytest.mark.slow
def test_a_stream_of_a_topic_with_a_sidecar(
    source: Any, sink: Any, spark: Any, logtx_cluster: Cluster, tmp_path: Path
) -> None:
    topic = logtx_cluster.topic(2)
    found: list[list[int]] = []

    def run() -> None:
        frame = source(topic, stream=True, startingOffsets="earliest")
        query = (
            frame.writeStream.foreachBatch(
                lambda batch, _: found.append([int(r.value) for r in batch.collect()])
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    for first in (0, 300):
        values = spark.range(first, first + 300).selectExpr("string(id) value")
        sink(values, topic=topic, sidecar="true").save()
        run()
    assert [sorted(batch) for batch in found if batch] == [[*range(300)], [*range(300, 600)]]


@pytest.mark.slow
def test_a_stream_with_a_limit(source: Any, logtx_cluster: Cluster, tmp_path: Path) -> None:
    topic = logtx_cluster.topic(2)
    for n in range(5):
        write(logtx_cluster, topic, range(n * 10, n * 10 + 10))
    batches: list[list[Any]] = []
    frame = source(topic, stream=True, startingOffsets="earliest", maxRecordsPerTrigger="14")

    def run(count: int, **trigger: Any) -> None:
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: batches.append(batch.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(**trigger)
            .start()
        )
        if "availableNow" in trigger:
            assert query.awaitTermination(120)
        else:
            eventually(lambda: sum(map(len, batches)) >= count, 120)
            query.processAllAvailable()
            query.stop()

    run(50, processingTime="0 seconds")
    assert Counter(int(r.value) for b in batches for r in b) == Counter(range(50))
    assert len([b for b in batches if b]) >= 4
    for batch in batches:
        assert len({(r.partition, r.txid) for r in batch}) * 5 == len(batch)
    # Everything that is there, and the query ends: before 4.2 in one piece, whatever the limit.
    for n in range(5, 8):
        write(logtx_cluster, topic, range(n * 10, n * 10 + 10))
    before = len(batches)
    run(80, availableNow=True)
    assert Counter(int(r.value) for b in batches for r in b) == Counter(range(80))
    assert (len(batches) - before > 1) == ADMITS


@pytest.mark.slow
def test_s7_the_limit_of_a_query_beside_one_that_reads_all(
    source: Any, logtx_cluster: Cluster, tmp_path: Path
) -> None:
    limited, whole = logtx_cluster.topic(2), logtx_cluster.topic(2)
    for topic in (limited, whole):
        for n in range(6):
            write(logtx_cluster, topic, range(n * 10, n * 10 + 10))
    hold, sizes, all_of_it = tmp_path / "hold", list[int](), list[int]()

    def query(topic: str, sink: Any, limit: str) -> Any:
        frame = source(topic, stream=True, startingOffsets="earliest", maxRecordsPerTrigger=limit)
        writer = frame.writeStream.foreachBatch(sink)
        return writer.option("checkpointLocation", str(tmp_path / topic))

    def slowly(batch: Any, _batch_id: int) -> None:
        all_of_it.append(batch.count())
        eventually(hold.exists, 120)

    all_at_once = query(whole, slowly, "12").trigger(availableNow=True).start()
    eventually(lambda: bool(all_of_it), 60)
    assert (all_of_it == [60]) != ADMITS
    bit_by_bit = query(limited, lambda batch, _: sizes.append(batch.count()), "13").start()
    eventually(lambda: sum(sizes) == 60, 120)
    bit_by_bit.stop()
    hold.touch()
    assert all_at_once.awaitTermination(60)
    assert sum(all_of_it) == 60
    assert max(sizes) < 60
    assert len(sizes) >= 4


@pytest.mark.slow
def test_a_pattern_and_what_is_known_of_its_query(
    source: Any, logtx_cluster: Cluster, tmp_path: Path
) -> None:
    first, target = logtx_cluster.topic(2), logtx_cluster.topic(1)
    later = f"{first}-later"
    write(logtx_cluster, first, range(10))
    frame = source(
        None, stream=True, subscribePattern=f"{first}(-later)?", startingOffsets="earliest"
    )
    writer = frame.select("value").writeStream.format("logtx").option("topic", target)
    writer = writer.option("kafka.bootstrap.servers", logtx_cluster.bootstrap_servers)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        assert logtx_cluster.log.create_topic(later, partitions=2)
        write(logtx_cluster, later, range(10, 20))
        query.processAllAvailable()
        told = logtx.spark.progress(query)
        assert (told.query_id, told.lag_total) == (query.id, 0)
        assert set(told.lag) == {(topic, p) for topic in (first, later) for p in (0, 1)}
        assert told.committed is not None
        assert (told.committed.records, told.committed.query_id) == ({target: 10}, query.id)
        if ADMITS:
            [of_source] = query.lastProgress["sources"]
            places = json.loads(of_source["latestOffset"])["places"]
            ends = {(t, int(p)): end for t, ps in places.items() for p, end in ps.items()}
            assert ends == logtx_cluster.log.end_offsets(list(told.lag))
    finally:
        query.stop()
    write(logtx_cluster, later, range(20, 30))
    told = logtx.spark.progress(query)
    assert {key for key, behind in told.lag.items() if behind} == {(later, 0), (later, 1)}
    assert told.lag_total == 12
    rows = committed(logtx_cluster, target, 20)
    assert Counter(int(value) for *_, value in rows) == Counter(range(20))


@pytest.mark.slow
def test_kafkas_options_of_assignment_and_size(source: Any, logtx_cluster: Cluster) -> None:
    topic = logtx_cluster.topic(2)
    write(logtx_cluster, topic, range(10))
    one = source(None, assign=json.dumps({topic: [1]}), maxRecordsPerPartition="2")
    assert one.rdd.getNumPartitions() == 3
    assert sorted(int(r.value) for r in one.collect()) == [1, 3, 5, 7, 9]
    late = {"startingTimestamp": str(STAMP_MS + 10**9)}
    assert source(topic, **late).collect() == []
    with pytest.raises(Exception, match="set startingOffsetsByTimestampStrategy=latest"):
        source(topic, **late, startingOffsetsByTimestampStrategy="error").collect()


@pytest.mark.slow
def test_a_filter_of_one_query_is_none_of_the_next(
    spark: Any, source: Any, logtx_cluster: Cluster
) -> None:
    """Spark keeps a reader that took filters, and uses it for the DataFrame's next query."""
    topic, setting = logtx_cluster.topic(2), "spark.sql.python.filterPushdown.enabled"
    write(logtx_cluster, topic, range(10))
    spark.conf.set(setting, "true")
    try:
        frame = source(topic)
        assert frame.where("partition = 1").count() == 5
        assert frame.count() == 10
    finally:
        spark.conf.unset(setting)


def test_what_is_wrong_is_said(source: Any) -> None:
    with pytest.raises(Exception, match="nowhere-at-all"):
        source("nowhere-at-all").collect()
    with pytest.raises(Exception, match=r"one of the options subscribe, .*, not none"):
        source(None).collect()
    with pytest.raises(Exception, match="startingofsets is no option of the source"):
        source("t", startingOfsets="1").collect()
