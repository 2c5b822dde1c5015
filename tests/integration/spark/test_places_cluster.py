"""Topics in metadata mode with real coordinators: groups that Spark and consumers share, the sink,
the exports, and the audit."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import logtx
from logtx.coordinator.client.admin import AdminQueries
from logtx.integration.inspect.audit import run_audit
from logtx.integration.inspect.sums import sum_up
from logtx.integration.spark.compacting import export_to_topic
from logtx.integration.spark.source import BatchSource, Part
from logtx.integration.spark.vector import from_offsets
from logtx.integration.testing import Cluster
from logtx.journal.modes import Mode
from logtx.journal.producer_ids import DEFAULT_TRANSACTION_GROUP

from ...waiting import eventually
from .conftest import committed
from .test_compacting import read as read_of_kafka
from .test_data_loss import Query


def switch(cluster: Cluster, topic: str, mode: Mode = Mode.METADATA) -> None:
    with closing(AdminQueries(cluster.log, timeout_s=20)) as admin:
        group = DEFAULT_TRANSACTION_GROUP if mode is Mode.METADATA else None
        admin.set_topic_mode(topic, mode, transaction_group=group)


def put(cluster: Cluster, numbers: range, *topics: str, partitions: int = 1) -> None:
    """One transaction over these topics; waits until it is finished."""
    with closing(cluster.producer()) as producer:
        txn = producer.begin_transaction()
        for topic, number in itertools.product(topics, numbers):
            txn.produce(topic, b"%d" % number, b"k", partition=number % partitions)
        txn.commit()
        eventually(lambda: producer.outcome(txn.txid).state.finished)


def consumed(cluster: Cluster, topic: str, group: str, count: int) -> list[int]:
    """Takes some records of a group, and commits them."""
    consumer = cluster.consumer(
        topic, group_id=group, offsets_storage="transactions", enable_auto_commit=False
    )
    found: list[int] = []
    deadline_s = time.monotonic() + 20
    while len(found) < count and time.monotonic() < deadline_s:
        found += [int(m.value() or b"") for m in consumer.consume(count - len(found), 1)]
    with closing(cluster.producer()) as producer, producer.begin_transaction() as txn:
        txn.send_offsets(group, consumer)
    consumer.close()
    return found


def test_spark_and_consumers_share_a_group(logtx_memory_cluster: Cluster) -> None:
    cluster = logtx_memory_cluster
    topic, marked = cluster.topic(1), cluster.topic(1)
    put(cluster, range(3), topic, marked)
    switch(cluster, topic)
    end = cluster.log.end_offset(topic, 0)
    put(cluster, range(3, 6), topic, marked)
    assert cluster.log.end_offset(topic, 0) == end + 3, "there is no marker"
    query = Query(cluster, f"{topic},{marked}", group="g")
    assert query.trigger() == sorted([*range(6)] * 2)
    steps = query.keeper.steps[-1]  # type: ignore[attr-defined]
    with closing(cluster.producer()) as producer, producer.begin_transaction() as txn:
        txn.send_offsets("g", steps)
    put(cluster, range(6, 9), topic, marked)
    assert consumed(cluster, topic, "g", 2) == [6, 7]
    again = Query(cluster, f"{topic},{marked}", group="g")  # with a new checkpoint
    assert again.trigger() == [6, 7, 8, 8]
    switch(cluster, topic, Mode.MARKERS)
    put(cluster, range(9, 12), topic, marked)
    assert again.trigger() == sorted([*range(9, 12)] * 2)
    again.restart()
    switch(cluster, topic)
    put(cluster, range(12, 14), topic)
    assert again.trigger() == [12, 13]
    assert again.trigger() == []
    told = from_offsets(json.loads(again.ends[-1])).places
    assert told[topic, 0].passed is not None
    assert told[marked, 0].passed is None


def test_the_audit_of_a_log_with_both_modes(logtx_memory_cluster: Cluster) -> None:
    cluster = logtx_memory_cluster
    topic = cluster.topic(2)
    for number in range(4):
        put(cluster, range(number * 10, number * 10 + 4), topic, partitions=2)
        switch(cluster, topic, Mode.MARKERS if number % 2 else Mode.METADATA)

    def sums(spans: Any) -> Any:
        return [g for key, span in spans.items() for g in sum_up(cluster.log, key, span)]

    report = run_audit(cluster.log, None, sums)
    assert report.clean, report.findings
    assert report.counts == {}
    assert (report.transactions, report.markers, report.records) == (4, 4, 16)


kafka = [pytest.mark.kafka, pytest.mark.timeout(400)]


@pytest.fixture
def in_both_modes(logtx_cluster: Cluster) -> Iterator[tuple[str, str]]:
    """A topic that was switched, and one that was not; each has the numbers 0 to 5."""
    cluster = logtx_cluster
    topic, marked = cluster.topic(2), cluster.topic(2)
    put(cluster, range(3), topic, marked, partitions=2)
    switch(cluster, topic)
    put(cluster, range(3, 6), topic, marked, partitions=2)
    yield topic, marked
    switch(cluster, topic, Mode.MARKERS)


class TestOnKafka:
    """The same on Kafka, with Spark where it is needed."""

    pytestmark = kafka

    def test_an_export_to_a_compacted_topic(
        self, logtx_cluster: Cluster, in_both_modes: tuple[str, str]
    ) -> None:
        cluster, (topic, _) = logtx_cluster, in_both_modes

        def export() -> int:
            servers = cluster.bootstrap_servers
            to = f"{topic}-latest"
            return export_to_topic(topic=topic, to_topic=to, bootstrap_servers=servers).records

        assert [export(), export()] == [6, 0]
        put(cluster, range(6, 8), topic, partitions=2)
        assert [export(), export()] == [2, 0]
        found = [
            [int(v) for _, v, _ in read_of_kafka(cluster, f"{topic}-latest", p)] for p in (0, 1)
        ]
        assert found == [[0, 2, 4, 6], [1, 3, 5, 7]]

    @pytest.mark.slow
    def test_spark_reads_writes_and_exports(
        self,
        spark: Any,
        logtx_cluster: Cluster,
        in_both_modes: tuple[str, str],
        sink: Callable[..., Any],
        tmp_path: Path,
    ) -> None:
        cluster, topics = logtx_cluster, in_both_modes
        named = {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "subscribe": ",".join(topics),
        }
        rows = spark.read.format("logtx").options(**named).load().collect()
        assert sorted(int(row.value) for row in rows) == sorted([*range(6)] * 2)
        # The stream writes into a topic in metadata mode what it reads of both.
        target = cluster.topic(1)
        switch(cluster, target)
        stream = (
            spark.readStream.format("logtx").options(**named, startingOffsets="earliest").load()
        )
        checkpoint = str(tmp_path / "checkpoint")

        def run() -> None:
            writer = sink(stream.select("key", "value"), topic=target)
            query = writer.option("checkpointLocation", checkpoint)
            query.trigger(availableNow=True).start().awaitTermination()

        run()
        put(cluster, range(6, 8), *topics, partitions=2)
        run()
        found = sorted(int(value) for _, _, value in committed(cluster, target, 16))
        assert found == sorted([*range(8)] * 2)
        assert cluster.log.end_offset(target, 0) == 17, "records, a mode record, and no marker"
        path = str(tmp_path / "export")
        runs = []
        for number in range(2):
            options = {
                "subscribe": topics[0],
                "bootstrap_servers": cluster.bootstrap_servers,
                "path": path,
            }
            runs.append(logtx.spark.export(spark, **options).records)
            put(cluster, range(8 + number, 9 + number), topics[0], partitions=2)
        assert runs == [8, 1]
        exported = spark.read.parquet(path).orderBy("commit_sequence", "partition", "offset")
        assert sorted(int(row.value) for row in exported.collect()) == [*range(9)]
        switch(cluster, target, Mode.MARKERS)
        report = logtx.spark.audit(
            spark, bootstrap_servers=cluster.bootstrap_servers, topics=[*topics, target]
        )
        assert report.clean, report.findings


def test_a_batch_of_a_topic_with_a_home(logtx_memory_cluster: Cluster) -> None:
    cluster = logtx_memory_cluster
    topic = cluster.topic(1)
    switch(cluster, topic)
    put(cluster, range(5), topic)
    options = Query(cluster, topic).options
    parts = [p for p in BatchSource(options).partitions() if isinstance(p, Part)]
    assert len(parts) == 1
    places = parts[0].range.places
    assert places is not None
    assert [d.place for d in places.dues] == [cluster.log.end_offset(topic, 0)]
