"""Spark jobs whose coordinator speaks TLS and wants certificates: the sink, a resumed batch and
stream, with their questions from the driver, the planner's worker and the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

import logtx
from logtx.integration.local.cluster import QUICK_TO_START, LocalKafka
from logtx.integration.local.processes import CoordinatorChild
from logtx.journal.logs.kafka import KafkaLog

from ...coordinator.transport.served import CERTIFICATES

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(400)]

CA: Final = {
    "coordinator.security.protocol": "SSL",
    "coordinator.ssl.ca.location": str(CERTIFICATES / "ca.pem"),
}
TLS: Final = {**CA, "coordinator.ssl.certificate.location": str(CERTIFICATES / "client.pem")}
OWN: Final = (
    *("--ssl-ca-location", str(CERTIFICATES / "ca.pem")),
    *("--ssl-certificate-location", str(CERTIFICATES / "coordinator.pem")),
    *("--ssl-client-auth", "required"),
)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker, and a coordinator that speaks TLS with whom it knows."""
    directory = tmp_path_factory.mktemp("tls")
    with LocalKafka(directory, java_options=QUICK_TO_START) as kafka:
        child = CoordinatorChild("coordinator", directory / "log", kafka.bootstrap_servers, *OWN)
        child.start()
        try:
            child.await_ready()
            yield kafka.bootstrap_servers
        finally:
            child.kill()


@pytest.fixture
def topics(servers: str, unique: Callable[[str], str]) -> tuple[str, str]:
    """An input and an output, each of two partitions."""
    made = unique("in"), unique("out")
    with closing(KafkaLog({"bootstrap.servers": servers})) as log:
        for topic in made:
            log.create_topic(topic, partitions=2)
    return made


def write(spark: Any, servers: str, topic: str, count: int, **tls: str) -> None:
    """A job of three tasks that writes numbers."""
    frame = spark.range(0, count, 1, 3).selectExpr("cast(id as string) as value")
    writer = frame.write.mode("append").format("logtx").option("topic", topic)
    writer.option("kafka.bootstrap.servers", servers).options(**tls).save()


def read(spark: Any, servers: str, topic: str) -> list[int]:
    """What a batch finds in a topic."""
    reader = spark.read.format("logtx").option("subscribe", topic).options(**TLS)
    rows = reader.option("kafka.bootstrap.servers", servers).load().collect()
    return sorted(int(row.value) for row in rows)


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_read_is_committed_with_the_output(
    spark: Any, servers: str, topics: tuple[str, str], tmp_path: Path, *, stream: bool
) -> None:
    source, target = topics

    def forward() -> None:
        frame = logtx.spark.resume(
            spark,
            group=target,
            subscribe=source,
            bootstrap_servers=servers,
            stream=stream,
            create=True,
            **TLS,
        ).selectExpr("value")
        writer = frame.writeStream if stream else frame.write.mode("append")
        writer = writer.format("logtx").option("topic", target).option("group", target)
        writer = writer.option("kafka.bootstrap.servers", servers).options(**TLS)
        if stream:
            query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
            query.processAllAvailable()
            query.stop()
        else:
            writer.save()

    write(spark, servers, source, 300, **TLS)
    forward()
    assert read(spark, servers, target) == list(range(300))
    write(spark, servers, source, 30, **TLS)
    forward()
    assert read(spark, servers, target) == sorted([*range(300), *range(30)]), "it went on"


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        ({}, "coordinator.security.protocol"),
        (CA, "coordinator.ssl.certificate.location"),
        ({**TLS, "coordinator.ssl.ca.location": str(CERTIFICATES / "stranger.pem")}, "ssl.ca"),
    ],
    ids=["without TLS", "without a certificate", "of another CA"],
)
def test_a_job_that_does_not_get_in_says_which_setting_to_change(
    spark: Any, servers: str, topics: tuple[str, str], tls: dict[str, str], said: str
) -> None:
    bounded = {"coordinator.timeout.ms": "3000"}
    with pytest.raises(Exception, match="TlsError") as refused:
        write(spark, servers, topics[0], 3, **tls, **bounded)
    assert said in str(refused.value)
    assert read(spark, servers, topics[0]) == []
