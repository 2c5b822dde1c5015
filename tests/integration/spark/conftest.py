"""One Spark session for all of these tests: starting one takes longer than they do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logtx
from logtx.integration.spark.session import check_java, close_keeper
from logtx.integration.testing import Cluster

ROOT = Path(__file__).resolve().parents[3]
Rows = list[tuple[Any, ...]]


def make_session(tmp: Path, **settings: str) -> Any:
    """A session of two threads and little memory."""
    from pyspark.sql import SparkSession

    check_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(settings.pop("master", "local[2]"))
        .appName("logtx-tests")
        .config("spark.driver.memory", "768m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp / "warehouse"))
        .config("spark.local.dir", str(tmp / "local"))
    )
    for name, value in settings.items():
        builder = builder.config(name.replace("__", "."), value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session with the format "logtx"."""
    session = make_session(tmp_path_factory.mktemp("spark"))
    logtx.spark.register(session)
    yield session
    session.stop()
    close_keeper()


@pytest.fixture
def sink(logtx_cluster: Cluster) -> Callable[..., Any]:
    """`sink(df, topic=…, …)`: the DataFrame's writer, to be saved or started."""

    def make(frame: Any, **options: str) -> Any:
        writer = frame.writeStream if frame.isStreaming else frame.write.mode("append")
        writer = writer.format("logtx").option(
            "kafka.bootstrap.servers", logtx_cluster.bootstrap_servers
        )
        for name, value in options.items():
            writer = writer.option(name.replace("_", "."), value)
        return writer

    return make


def committed(cluster: Cluster, topic: str, count: int, timeout_s: float = 20) -> Rows:
    """(partition, key, value) of what a read_committed consumer gets: `count`, and no more."""
    consumer = cluster.consumer(topic)
    found: Rows = []
    while len(found) < count:
        messages = consumer.consume(1_000, timeout_s)
        assert messages, f"{len(found)} of {count} records"
        found += [(m.partition(), m.key(), m.value()) for m in messages]
    extra = consumer.consume(1_000, 0.5)
    assert not extra, [m.value() for m in extra][:5]
    return found
