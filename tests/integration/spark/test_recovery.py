"""Going on from a committed IOV: each input record has its effect once, whoever goes on."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import logtx
from logtx.integration.inspect.committed_offsets import iov_rows, step_rows
from logtx.integration.testing import Cluster

from ...waiting import eventually
from .conftest import committed

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]


def produce(cluster: Cluster, topic: str, numbers: range) -> None:
    ends = lambda: [cluster.log.end_offset(topic, p) for p in (0, 1)]  # noqa: E731
    before = sum(ends())
    with cluster.producer().begin_transaction() as txn:
        for n in numbers:
            txn.produce(topic, b"%d" % n, partition=n % 2)
    eventually(lambda: sum(ends()) == before + len(numbers) + 2)


def resume(spark: Any, cluster: Cluster, group: str, topic: str, **options: Any) -> Any:
    servers = cluster.bootstrap_servers
    options = {"bootstrap_servers": servers, "subscribe": topic, "create": True, **options}
    return logtx.spark.resume(spark, group=group, **options)


def out_of(frame: Any) -> Any:
    return frame.selectExpr("concat('out-', cast(value as string)) as value")


def expected(numbers: range) -> Counter[bytes]:
    return Counter(b"out-%d" % n for n in numbers)


def to_the_end(query: Any, checkpoint: Path) -> None:
    query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)


def values(cluster: Cluster, topic: str, count: int) -> Counter[Any]:
    return Counter(v for *_, v in committed(cluster, topic, count))


def test_batches_go_on_where_the_last_one_ended(
    spark: Any, sink: Callable[..., Any], logtx_cluster: Cluster
) -> None:
    source, target = logtx_cluster.topic(2), logtx_cluster.topic(1)
    group = f"group-{source}"
    produce(logtx_cluster, source, range(20))
    first = resume(spark, logtx_cluster, group, source)
    sink(out_of(first), topic=target, group=group).save()
    # What read the same input commits nothing: neither output nor offsets.
    with pytest.raises(Exception, match="OffsetsConflictError"):
        sink(out_of(first), topic=target, group=group).save()
    produce(logtx_cluster, source, range(20, 30))
    sink(out_of(resume(spark, logtx_cluster, group, source)), topic=target, group=group).save()
    assert values(logtx_cluster, target, 30) == expected(range(30))


@pytest.mark.slow
def test_spark_and_a_consumer_take_over_from_each_other(
    spark: Any, sink: Callable[..., Any], logtx_cluster: Cluster
) -> None:
    source, target = logtx_cluster.topic(2), logtx_cluster.topic(1)
    group = f"group-{source}"

    def by_spark() -> None:
        frame = resume(spark, logtx_cluster, group, source)
        sink(out_of(frame), topic=target, group=group).save()

    produce(logtx_cluster, source, range(20))
    by_spark()
    produce(logtx_cluster, source, range(20, 30))
    consumer = logtx_cluster.consumer(group_id=group, offsets_storage="transactions")
    consumer.subscribe([source])
    producer = logtx_cluster.producer()
    got = 0
    while got < 10:
        with producer.begin_transaction() as txn:
            for message in consumer.consume(4, 10):
                txn.produce(target, b"out-" + message.value())
                got += 1
            txn.send_offsets(consumer)
    consumer.close()
    produce(logtx_cluster, source, range(30, 40))
    by_spark()
    assert values(logtx_cluster, target, 40) == expected(range(40))
    log = logtx_cluster.log
    eventually(lambda: {r.lag for r in iov_rows(log, group)} == {0})
    steps = [s for s in step_rows(log, group) if s.partition == 0]
    assert steps[0].from_offset is None
    assert all(a.to_offset == b.from_offset for a, b in pairwise(steps))
    servers = logtx_cluster.bootstrap_servers
    frame = logtx.spark.iovs(spark, bootstrap_servers=servers, group=group)
    ends = {p: log.end_offset(source, p) for p in (0, 1)}
    assert {r.partition: r.offset for r in frame.collect()} == ends
    history = logtx.spark.iov_history(spark, bootstrap_servers=servers, group=group)
    assert history.where("partition = 0").count() == len(steps)


@pytest.mark.slow
def test_a_stream_without_its_checkpoint(
    spark: Any, sink: Callable[..., Any], logtx_cluster: Cluster, tmp_path: Path
) -> None:
    source, target = logtx_cluster.topic(2), logtx_cluster.topic(1)
    group = f"group-{source}"

    def run(checkpoint: str) -> None:
        frame = out_of(resume(spark, logtx_cluster, group, source, stream=True))
        to_the_end(sink(frame, topic=target, group=group), tmp_path / checkpoint)

    produce(logtx_cluster, source, range(20))
    run("first")
    produce(logtx_cluster, source, range(20, 30))
    run("first")
    produce(logtx_cluster, source, range(30, 50))
    run("second")
    assert values(logtx_cluster, target, 50) == expected(range(50))


@pytest.mark.slow
@pytest.mark.parametrize("of_group", [True, False])
def test_a_query_that_failed_in_its_first_micro_batch_repeats_it(
    spark: Any, sink: Callable[..., Any], logtx_cluster: Cluster, tmp_path: Path, of_group: bool
) -> None:
    source, target = logtx_cluster.topic(2), logtx_cluster.topic(1)
    started = tmp_path / "started"

    def once_failing(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if not started.exists():
                started.touch()
                raise OSError("the first run ends here")
            yield batch

    def run() -> None:
        if of_group:
            frame = resume(spark, logtx_cluster, "g-" + source, source, stream=True)
        else:
            servers = {"kafka.bootstrap.servers": logtx_cluster.bootstrap_servers}
            options = {**servers, "subscribe": source, "startingOffsets": "earliest"}
            frame = spark.readStream.format("logtx").options(**options).load()
        frame = out_of(frame).mapInArrow(once_failing, "value string")
        group = {"group": "g-" + source} if of_group else {}
        to_the_end(sink(frame, topic=target, **group), tmp_path / "checkpoint")

    produce(logtx_cluster, source, range(20))
    with pytest.raises(Exception, match="the first run ends here"):
        run()
    assert [p.name for p in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")] == ["0"]
    assert not list((tmp_path / "checkpoint").glob("commits/[0-9]*"))
    produce(logtx_cluster, source, range(20, 30))
    run()
    assert values(logtx_cluster, target, 20) == expected(range(20))
    run()  # Before 4.2 a run with Trigger.AvailableNow that repeats a micro-batch does no other.
    assert values(logtx_cluster, target, 30) == expected(range(30))


@pytest.mark.slow
def test_a_group_is_set_back(
    spark: Any, sink: Callable[..., Any], logtx_cluster: Cluster, tmp_path: Path
) -> None:
    source, target = logtx_cluster.topic(2), logtx_cluster.topic(1)
    group, servers = f"group-{source}", logtx_cluster.bootstrap_servers
    named = {"group": group, "bootstrap_servers": servers}

    def run(checkpoint: str) -> None:
        frame = out_of(resume(spark, logtx_cluster, group, source, stream=True))
        to_the_end(sink(frame, topic=target, group=group), tmp_path / checkpoint)

    produce(logtx_cluster, source, range(20))
    run("first")
    first = logtx.spark.starting_offsets(**named)
    produce(logtx_cluster, source, range(20, 30))
    run("first")
    # What is printed is taken as startingOffsets: 10 records lie behind the first commit.
    kafka = {"kafka.bootstrap.servers": servers, "subscribe": source}
    read = spark.read.format("logtx").options(**kafka, startingOffsets=first).load()
    assert read.count() == 10
    steps = [s for s in step_rows(logtx_cluster.log, group) if s.partition == 0]
    planned = logtx.spark.reset_group(**named, to_commit=steps[0].txid)
    assert (planned.steps, planned.txid) == (2, None)
    done = logtx.spark.reset_group(**named, to_offsets=first, execute=True)
    assert done.moved == planned.moved
    produce(logtx_cluster, source, range(30, 35))
    # The query's checkpoint stands elsewhere: nothing is written.
    with pytest.raises(Exception, match="OffsetsConflictError"):
        run("first")
    run("second")
    written = expected(range(35)) + expected(range(20, 30))
    assert values(logtx_cluster, target, 45) == written


@pytest.mark.slow
def test_a_query_is_set_back_with_its_checkpoint(
    spark: Any, sink: Callable[..., Any], logtx_cluster: Cluster, tmp_path: Path
) -> None:
    source, target = logtx_cluster.topic(2), logtx_cluster.topic(1)
    group, servers = f"group-{source}", logtx_cluster.bootstrap_servers
    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"

    def run() -> None:
        frame = out_of(resume(spark, logtx_cluster, group, source, stream=True))
        to_the_end(sink(frame, topic=target, group=group), checkpoint)

    produce(logtx_cluster, source, range(20))
    run()
    shutil.copytree(checkpoint, backup)
    produce(logtx_cluster, source, range(20, 30))
    run()
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    produce(logtx_cluster, source, range(30, 35))
    with pytest.raises(Exception, match="ReplayDiffersError"):
        run()
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    first = next(step_rows(logtx_cluster.log, group)).txid
    for each in (group, f"spark-{query_id}"):
        done = logtx.spark.reset_group(
            group=each, bootstrap_servers=servers, to_commit=first, execute=True
        )
        assert done.txid is not None
    run()
    written = expected(range(35)) + expected(range(20, 30))
    assert values(logtx_cluster, target, 45) == written
