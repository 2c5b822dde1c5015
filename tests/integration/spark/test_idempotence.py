"""What is done again is written once: jobs, `foreachBatch`, and restored checkpoints, in Spark."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread

import logtx
from logtx.integration.inspect.committed_offsets import iov_rows
from logtx.integration.spark.session import keeper_of
from logtx.integration.testing import Cluster
from logtx.journal.errors import ConfigError

from ...waiting import eventually
from .conftest import ROOT, committed

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(400)]
Sink = Callable[..., Any]


def values(cluster: Cluster, topic: str, count: int) -> Counter[str]:
    return Counter(value.decode() for *_, value in committed(cluster, topic, count))


class Lines:
    """A streaming source of text files."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self.frame = spark.readStream.schema("value string").text(str(directory))

    def add(self, *lines: str) -> None:
        """A file for each line, which the next micro-batch reads."""
        for line in lines:
            (self.directory / line).write_text(f"{line}\n")


def run(writer: Any) -> Any:
    """Runs a query over what is there."""
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(90)
    return query


def test_s3_a_job_that_is_run_again(spark: Any, sink: Sink, logtx_cluster: Cluster) -> None:
    topic = logtx_cluster.topic(1)
    for _ in range(2):
        frame = spark.range(0, 10, 1, 2).selectExpr("cast(id as string) as value")
        sink(frame, topic=topic, txnAppId=f"job-{topic}", txnVersion="1").save()
    assert values(logtx_cluster, topic, 10) == {str(n): 1 for n in range(10)}


def test_s3_a_foreach_batch_that_fails_behind_its_write(
    spark: Any, sink: Sink, logtx_cluster: Cluster, tmp_path: Path
) -> None:
    topic, lines, failures = logtx_cluster.topic(1), Lines(spark, tmp_path / "in"), [RuntimeError()]
    lines.add("a", "b")

    def write(frame: Any, _batch_id: int) -> None:
        sink(frame, topic=topic).save()
        sink(frame.selectExpr("upper(value) as value"), topic=topic).save()
        if failures:
            raise failures.pop()

    def query() -> Any:
        writer = lines.frame.writeStream.foreachBatch(write)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint"))

    with pytest.raises(Exception, match="RuntimeError"):
        run(query())
    lines.add("c")
    run(query())
    run(query())
    assert values(logtx_cluster, topic, 6) == dict.fromkeys("abcABC", 1)


def test_a_query_of_another_session_that_is_restarted_in_its_driver(
    spark: Any, sink: Sink, logtx_cluster: Cluster, tmp_path: Path
) -> None:
    # PySpark 4.0.0 registers a format in one session of a driver only: there the frames are made.
    other, topic, failures = spark.newSession(), logtx_cluster.topic(1), [RuntimeError()]
    lines = Lines(other, tmp_path / "in")

    def write(frame: Any, _batch_id: int) -> None:
        rows = [(row.value,) for row in frame.collect()]
        sink(spark.createDataFrame(rows, "value string"), topic=topic).save()
        if failures:
            raise failures.pop()

    writer = lines.frame.writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    lines.add("a")
    with pytest.raises(Exception, match="RuntimeError"):
        run(writer)
    lines.add("b")
    run(writer)
    assert values(logtx_cluster, topic, 2) == {"a": 1, "b": 1}


def test_what_belongs_to_a_micro_batch(spark: Any, logtx_cluster: Cluster, tmp_path: Path) -> None:
    """Transactions without any write, of input of a group, by the threads of `foreachBatch`."""
    source = logtx_cluster.topic(1)
    servers, group = logtx_cluster.bootstrap_servers, f"threads-{source}"
    failures, refused = {0, 1}, list[str]()
    for number in range(2):
        with logtx_cluster.producer() as producer, producer.begin_transaction() as given:
            given.produce(source, b"%d" % number)
        eventually(lambda end=2 * number + 2: logtx_cluster.log.end_offset(source, 0) == end)
    frame = logtx.spark.resume(
        spark,
        group=group,
        subscribe=source,
        bootstrap_servers=servers,
        stream=True,
        create=True,
        maxRecordsPerTrigger="2",
    )

    def write(_batch: Any, batch_id: int) -> None:
        def commit() -> None:
            try:
                with logtx.spark.transaction(spark, bootstrap_servers=servers, group=group):
                    pass
            except ConfigError as error:
                refused.append(str(error))

        if batch_id == 0:
            commit()
        else:
            for kind in (threading.Thread, InheritableThread):
                thread = kind(target=commit)
                thread.start()
                thread.join()
        if batch_id in failures:
            failures.remove(batch_id)
            raise RuntimeError

    def go() -> None:
        writer = frame.writeStream.foreachBatch(write)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    with pytest.raises(Exception, match="RuntimeError"):
        go()
    with pytest.raises(Exception, match="RuntimeError"):
        go()
    go()
    assert ["InheritableThread" in text for text in refused] == [True] * 2, refused
    [place] = [row for row in iov_rows(logtx_cluster.log, group) if row.topic == source]
    assert place.offset == 4


def test_s2_a_checkpoint_that_was_restored(
    spark: Any, sink: Sink, logtx_cluster: Cluster, tmp_path: Path
) -> None:
    topic, lines = logtx_cluster.topic(1), Lines(spark, tmp_path / "in")
    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"

    def query() -> Any:
        return sink(lines.frame, topic=topic, checkpointLocation=str(checkpoint))

    lines.add("a")
    run(query())
    shutil.copytree(checkpoint, backup)
    lines.add("b")
    run(query())
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    lines.add("c")
    with pytest.raises(Exception, match="was committed with other input than it has now"):
        run(query())
    assert values(logtx_cluster, topic, 2) == {"a": 1, "b": 1}


def test_s8_a_checkpoint_by_the_sessions_settings(
    spark: Any, sink: Sink, logtx_cluster: Cluster, tmp_path: Path
) -> None:
    topic, lines = logtx_cluster.topic(1), Lines(spark, tmp_path / "in")
    setting = "spark.sql.streaming.checkpointLocation"
    spark.conf.set(setting, str(tmp_path / "checkpoints"))
    try:
        lines.add("a")
        run(sink(lines.frame, topic=topic).queryName("named"))
        commits = tmp_path / "checkpoints" / "named" / "commits"
        for file in (commits / "0", commits / ".0.crc"):
            file.unlink(missing_ok=True)
        asked = keeper_of(spark).application.checkpoint_of("named", None)
        assert asked == str(tmp_path / "checkpoints" / "named")
        lines.add("b")
        run(sink(lines.frame, topic=topic).queryName("named"))
    finally:
        spark.conf.unset(setting)
    assert values(logtx_cluster, topic, 2) == {"a": 1, "b": 1}


def test_s11_complete_results_are_appended(
    spark: Any, sink: Sink, logtx_cluster: Cluster, tmp_path: Path
) -> None:
    topic, lines = logtx_cluster.topic(1), Lines(spark, tmp_path / "in")
    counts = lines.frame.groupBy("value").count()
    counts = counts.selectExpr("concat(value, '=', count) as value")

    def query() -> Any:
        writer = sink(counts, topic=topic, checkpointLocation=str(tmp_path / "checkpoint"))
        return writer.outputMode("complete")

    lines.add("a")
    run(query())
    lines.add("b")
    run(query())
    assert values(logtx_cluster, topic, 3) == {"a=1": 2, "b=1": 1}


def test_s11_updates_by_foreach_batch(
    spark: Any, sink: Sink, logtx_cluster: Cluster, tmp_path: Path
) -> None:
    topic, lines, failures = logtx_cluster.topic(1), Lines(spark, tmp_path / "in"), [RuntimeError()]
    counts = lines.frame.groupBy(lines.frame.value.substr(1, 1).alias("of")).count()

    def write(frame: Any, batch_id: int) -> None:
        sink(frame.selectExpr("concat(of, '=', count) as value"), topic=topic).save()
        if batch_id == 1 and failures:
            raise failures.pop()

    def query() -> Any:
        writer = counts.writeStream.outputMode("update").foreachBatch(write)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint"))

    lines.add("a1", "b1")
    run(query())
    lines.add("a2")
    with pytest.raises(Exception, match="RuntimeError"):
        run(query())
    run(query())
    assert values(logtx_cluster, topic, 3) == {"a=1": 1, "b=1": 1, "a=2": 1}, "b did not change"


def test_the_pipeline_of_the_docs(spark: Any, logtx_cluster: Cluster, tmp_path: Path) -> None:
    section = (ROOT / "docs" / "spark.md").read_text().partition("### A pipeline")[2]
    code = section.partition("```python")[2].partition("```")[0]
    source, enriched, ledger = (logtx_cluster.topic(1) for _ in range(3))
    named = {"flights": source, "flights-enriched": enriched, "ledger": ledger, "booking": source}
    for name, topic in named.items():
        assert f'"{name}"' in code
        code = code.replace(f'"{name}"', f'"{topic}"')
    checkpoint = tmp_path / "checkpoint"

    def book(number: int, place: Path) -> Any:
        """Books one more flight."""
        end = logtx_cluster.log.end_offset(source, 0) + 2
        flight = {"flight": f"lh {number}", "miles": 1000, "fare": number}
        with logtx_cluster.producer() as producer, producer.begin_transaction() as given:
            given.produce(source, json.dumps(flight).encode())
        eventually(lambda: logtx_cluster.log.end_offset(source, 0) == end)
        return go(place)

    def go(place: Path) -> Any:
        scope = {"spark": spark, "servers": logtx_cluster.bootstrap_servers, "path": str(place)}
        exec(compile(code, "docs/spark.md", "exec"), scope)
        query: Any = scope["query"]
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    book(1, checkpoint)
    shutil.copytree(checkpoint, tmp_path / "backup")
    book(2, checkpoint)
    for file in (checkpoint / "commits").iterdir():
        if "1" in file.name:
            file.unlink()  # as if the driver had died before Spark knew of the second commit
    go(checkpoint)
    with pytest.raises(Exception, match="the checkpoint was restored"):
        book(3, tmp_path / "backup")
    go(tmp_path / "new")
    consumer = logtx_cluster.consumer(enriched, ledger)
    found = [
        [(m.topic(), m.key(), m.value()) for m in sorted(t.records, key=lambda m: m.topic())]
        for t in consumer.transactions(5)
    ]
    kilometres = json.dumps({"flight": "lh 1", "kilometres": 1609.344}, separators=(",", ":"))
    assert len(found) == 3
    assert sorted(map(len, found)) == [2, 2, 2]
    told = {record for transaction in found for record in transaction}
    assert {v for t, _, v in told if t == ledger} == {b"1", b"2", b"3"}
    assert (enriched, b"lh 1", kilometres.encode()) in told


def test_several_writes_in_one_transaction(spark: Any, sink: Sink, logtx_cluster: Cluster) -> None:
    enriched, ledger = logtx_cluster.topic(1), logtx_cluster.topic(1)
    source = logtx_cluster.topic(1)
    servers = logtx_cluster.bootstrap_servers
    with logtx_cluster.producer() as producer, producer.begin_transaction() as given:
        given.produce(source, b"lh 1")
    eventually(lambda: logtx_cluster.log.end_offset(source, 0) == 2)
    group = f"pipeline-{source}"

    def pipeline(*, fail: bool = False) -> Any:
        flights = logtx.spark.resume(
            spark,
            group=group,
            subscribe=source,
            bootstrap_servers=servers,
            replace=True,
            create=True,
        )
        with logtx.spark.transaction(spark, bootstrap_servers=servers, group=group) as txn:
            for topic, column in (
                (enriched, "value"),
                (ledger, "upper(cast(value as string)) as value"),
            ):
                frame = flights.selectExpr(column)
                sink(frame, topic=topic).option("transaction", txn.token).save()
            if fail:
                raise ZeroDivisionError
        return txn

    with pytest.raises(ZeroDivisionError):
        pipeline(fail=True)
    done = pipeline()
    assert done.commit_sequence is not None
    assert pipeline().commit_sequence != done.commit_sequence, "there was nothing left to read"
    consumer = logtx_cluster.consumer(enriched, ledger)
    found = {
        str(t.txid): Counter((m.topic(), m.value()) for m in t.records)
        for t in consumer.transactions(5)
    }
    assert found == {done.txid: {(enriched, b"lh 1"): 1, (ledger, b"LH 1"): 1}}
