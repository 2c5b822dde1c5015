"""The sink: one transaction for a job or a micro-batch, whatever happens to its tasks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logtx
from logtx.integration.spark.session import keeper_of
from logtx.integration.testing import Cluster
from logtx.journal.sidecar import sidecar_of
from logtx.journal.txid import TxId

from .conftest import committed

STAMP_MS = int(time.time()) * 1_000 + 567
pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]
Sink = Callable[..., Any]


def values(rows: list[tuple[Any, ...]]) -> Counter[Any]:
    return Counter(value for *_, value in rows)


def numbered(spark: Any, count: int) -> Any:
    return spark.range(0, count, 1, 3).selectExpr("cast(id as string) as value")


def test_a_job_is_one_transaction(spark: Any, sink: Sink, logtx_cluster: Cluster) -> None:
    topic = logtx_cluster.topic(2)
    sink(numbered(spark, 300), topic=topic, commitName=topic).save()
    told = logtx.spark.last_commit(topic)
    consumer = logtx_cluster.consumer(topic)
    txn = next(iter(consumer.transactions()))
    assert Counter(m.value() for m in txn.records) == {b"%d" % n: 1 for n in range(300)}
    assert txn.complete
    assert told is not None
    assert (told.txid, told.commit_sequence) == (str(txn.txid), txn.commit_sequence)
    assert (told.records, told.query_id) == ({topic: 300}, None)


def test_a_job_may_write_to_the_sidecar(spark: Any, sink: Sink, logtx_cluster: Cluster) -> None:
    topic = logtx_cluster.topic(2)
    frame = numbered(spark, 300)
    sink(frame, topic=topic, sidecar="true", commitName=topic).save()
    with pytest.raises(Exception, match="sidecar"):
        sink(frame, topic=topic, sidecar="perhaps").save()
    told = logtx.spark.last_commit(topic)
    log = logtx_cluster.log
    assert [log.end_offset(topic, p) for p in (0, 1)] == [1, 1], "a pointer each"
    assert sum(log.end_offset(sidecar_of(topic), p) for p in (0, 1)) == 302
    txn = next(iter(logtx_cluster.consumer(topic).transactions()))
    assert Counter(m.value() for m in txn.records) == {b"%d" % n: 1 for n in range(300)}
    assert told is not None
    assert told.records == {topic: 300}


def test_all_columns(spark: Any, sink: Sink, logtx_cluster: Cluster) -> None:
    topic = logtx_cluster.topic(2)
    frame = spark.sql(
        f"select binary('k') key, binary('v') value, '{topic}' topic, 1 partition,"
        f" timestamp_millis({STAMP_MS}) timestamp, 7 other,"
        " array(named_struct('key', 'h', 'value', binary('x'))) headers"
        f" union all select null, null, '{topic}', 0, null, 8, null"
    )
    sink(frame).save()
    found = {}
    consumer = logtx_cluster.consumer(topic)
    while len(found) < 2:
        for m in consumer.consume(10, 5):
            found[m.partition()] = m
    assert (found[1].key(), found[1].value()) == (b"k", b"v")
    assert found[1].timestamp()[1] == STAMP_MS
    assert ("h", b"x") in found[1].headers()
    assert found[0].value() is None
    assert found[0].key() is None


@pytest.mark.slow
def test_a_task_that_fails_once_leaves_nothing(
    spark: Any, sink: Sink, logtx_cluster: Cluster, tmp_path: Path
) -> None:
    topic = logtx_cluster.topic(1)
    marker = tmp_path / "failed"

    def fail_late(batches: Any) -> Any:
        for batch in batches:
            yield batch
            if not marker.exists() and batch.num_rows:
                marker.touch()
                raise RuntimeError("after half of it")

    frame = numbered(spark, 200).mapInArrow(fail_late, "value string")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    try:
        # local[2] does not retry: the whole job fails, and nothing of it is seen.
        with pytest.raises(Exception, match="after half of it"):
            sink(frame, topic=topic).save()
        assert marker.exists()
        sink(frame, topic=topic).save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert values(committed(logtx_cluster, topic, 200)) == {b"%d" % n: 1 for n in range(200)}


@pytest.mark.parametrize(
    ("select", "options", "sentence"),
    [
        ("id", {"topic": "t"}, "no column 'value'"),
        ("id as value", {"topic": "t"}, "'value' is of type bigint and must be string or binary"),
        ("cast(id as string) as value", {}, "name the topic"),
        ("cast(id as string) as value", {"topic": "nowhere-at-all"}, "nowhere-at-all"),
        ("cast(id as string) as value", {"topic": "t", "tpoic": "t"}, "tpoic is no option"),
        ("cast(id as string) as value", {"topic": "t", "group": "idle"}, "none was: read it with"),
    ],
)
def test_what_is_wrong_is_said(
    spark: Any,
    sink: Sink,
    logtx_cluster: Cluster,
    select: str,
    options: dict[str, str],
    sentence: str,
) -> None:
    if options.get("topic") == "t":
        options = {**options, "topic": logtx_cluster.topic(1)}
    with pytest.raises(Exception, match=sentence):
        sink(spark.range(2).selectExpr(select), **options).save()


@pytest.mark.slow
def test_overwrite_is_refused(spark: Any, sink: Sink, logtx_cluster: Cluster) -> None:
    writer = sink(numbered(spark, 1), topic=logtx_cluster.topic(1)).mode("overwrite")
    with pytest.raises(Exception, match="only appended to"):
        writer.save()


def test_an_abort_after_a_durable_commit_undoes_nothing(spark: Any, logtx_cluster: Cluster) -> None:
    """Trap 30: the keeper's answer was lost, Spark calls abort, then commits again."""
    from logtx.integration.spark.options import SinkOptions

    topic = logtx_cluster.topic(1)
    servers = {"kafka.bootstrap.servers": logtx_cluster.bootstrap_servers, "topic": topic}
    options = SinkOptions.parse(servers)
    ask = keeper_of(spark).address.ask
    begun = ask("begin", options=options.to_json(), stream=False)
    with logtx.Branch.join(options.branch(), begun["token"]) as branch:
        branch.produce(topic, b"x")
        summary = branch.finish().to_bytes().decode()
    txid = str(TxId.parse(begun["token"].partition(":")[2]))
    first = ask("commit", txid=txid, summaries=[summary])
    assert ask("abort", txid=txid) == {"state": "committed"}
    assert ask("commit", txid=txid, summaries=[summary]) == first
    assert values(committed(logtx_cluster, topic, 1)) == {b"x": 1}


def rate(spark: Any, directory: Path) -> Any:
    return spark.readStream.schema("value string").text(str(directory))


def test_micro_batches_and_a_restart(
    spark: Any, sink: Sink, logtx_cluster: Cluster, tmp_path: Path
) -> None:
    topic = logtx_cluster.topic(2)
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()

    def run(file: str) -> Any:
        (source / file).write_text("".join(f"{file}-{n}\n" for n in range(50)))
        query = sink(rate(spark, source), topic=topic, checkpointLocation=str(checkpoint))
        query = query.trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        return query.id

    query_id = run("a")
    assert run("b") == query_id
    # As if the driver had died after the commit and before Spark wrote it down: the batch is
    # replayed, by a session that knows nothing of it.
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    assert run("c") == query_id
    expected = {f"{file}-{n}".encode(): 1 for file in "abc" for n in range(50)}
    assert values(committed(logtx_cluster, topic, 150)) == expected
