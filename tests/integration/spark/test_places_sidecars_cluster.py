"""Spark on Kafka, where transactions in sidecars are placed: batches, streams, exports, audit."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import logtx
from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.integration.spark.compacting import export_to_topic
from logtx.integration.testing import Cluster
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.modes import Mode

from .test_compacting import read as read_of_kafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def servers(logtx_kafka: Any) -> Iterator[str]:
    """The brokers, with a coordinator that places what lies in sidecars."""
    config = CoordinatorConfig(
        bootstrap_servers=logtx_kafka.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=4,
    )
    with EmbeddedCoordinator(config):
        yield logtx_kafka.bootstrap_servers


def put(servers: str, topic: str, *commits: tuple[dict[str, Any], tuple[str, ...]]) -> None:
    """Commits transactions: (how each begins, its values)."""
    config = {"bootstrap.servers": servers, "transactional.id": uuid.uuid4().hex}
    with logtx.Producer(config) as producer:
        for how, values in commits:
            txn = producer.begin_transaction(**how)
            for value in values:
                txn.produce(topic, value, value, partition=0)
            txn.commit(finished=True)


def values(frame: Any) -> list[str]:
    """Returns the values of a DataFrame, in the order in which consumers get them."""
    return [bytes(row.value).decode() for row in frame.collect()]


def test_spark_reads_exports_and_audits_what_is_placed(
    spark: Any, servers: str, logtx_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, aside = logtx_topic(), {"sidecar": True}
    with (
        closing(KafkaLog({"bootstrap.servers": servers})) as log,
        closing(AdminQueries(log, timeout_s=60)) as admin,
    ):
        admin.set_topic_mode(topic, Mode.METADATA, transaction_group="default", timeout_s=60)
    put(servers, topic, (aside, ("a1", "a2")), ({}, ("b1",)), (aside, ("c1", "c2")))
    wanted = ["a1", "a2", "b1", "c1", "c2"]
    named = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    for level in ("read_committed", "read_uncommitted"):
        options = {**named, "isolation.level": level}
        assert values(spark.read.format("logtx").options(**options).load()) == wanted

        stream = spark.readStream.format("logtx").options(**options, startingOffsets="earliest")
        name = f"shown_{level}"
        writer = stream.load().writeStream.format("memory").queryName(name)
        query = writer.option("checkpointLocation", str(tmp_path / name)).start()
        try:
            query.processAllAvailable()
            assert sorted(values(spark.table(name))) == sorted(wanted)
            more = f"{level}-more"
            put(servers, topic, (aside, (more,)))
            wanted.append(more)
            query.processAllAvailable()
            assert sorted(values(spark.table(name))) == sorted(wanted)
        finally:
            query.stop()

    path = str(tmp_path / "export")
    given = {"subscribe": topic, "bootstrap_servers": servers, "path": path}
    assert [logtx.spark.export(spark, **given).records for _ in range(2)] == [len(wanted), 0]
    exported = spark.read.parquet(path).orderBy("commit_sequence", "partition", "offset")
    assert values(exported) == wanted
    latest = f"{topic}-latest"
    export_to_topic(topic=topic, to_topic=latest, bootstrap_servers=servers)
    kept = read_of_kafka(cast(Cluster, SimpleNamespace(bootstrap_servers=servers)), latest, 0)
    assert [value.decode() for _, value, _ in kept] == wanted
    report = logtx.spark.audit(spark, bootstrap_servers=servers, topics=[topic])
    severities = {severity for severity, _ in report.counts}
    assert not severities & {"violation", "unverifiable"}, report.findings
