"""The transports that logtx runs on, for tests that must pass on all of them.

`memory` is a log in this process, `mock` is librdkafka's mock cluster, and `kafka` is a real broker
(from the pytest plugin, one for the session).
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import uuid
from collections.abc import Callable, Iterator, Sequence

import hypothesis
import pytest
import typer.testing
from confluent_kafka import Producer

from logtx.integration.local.cluster import QUICK_TO_START, LocalKafka
from logtx.integration.testing import Cluster
from logtx.journal.logs.interface import Log
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.native.loading import VARIABLE

from . import distribution, parameters

# Examples take as long as a busy machine lets them.
hypothesis.settings.register_profile("logtx", deadline=None)
hypothesis.settings.load_profile("logtx")

# The tree of `logtx`' commands takes 45 ms of CPU: it is made once, not at each call of a test.
typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]

MakeTopic = Callable[..., str]
Append = Callable[..., list[int]]


def pytest_configure(config: pytest.Config) -> None:
    """Draws fewer examples where slow tests are left out, and gives files to processes."""
    config.pluginmanager.register(distribution)
    # Tests of both paths choose one; all others take Python's, unless LOGTX_NATIVE=1 is set.
    os.environ.setdefault(VARIABLE, "0")
    if "not slow" in config.getoption("markexpr"):
        parameters.reduce_examples()


def pytest_sessionstart() -> None:
    """Collects tests without garbage collections: they take a sixth of the time, for little."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keeps what was collected out of garbage collections: no test makes garbage of it.

    It is a third of a million objects, which take half a second of each `gc.collect()`, also of one
    before this.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def mock_cluster() -> Iterator[str]:
    """Yields the address of librdkafka's mock cluster, which lives as long as its producer."""
    holder = Producer({"bootstrap.servers": "", "test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(holder.list_topics(timeout=10).brokers.values()))
    yield f"{broker.host}:{broker.port}"
    del holder


@pytest.fixture(scope="session")
def _logtx_session_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The plugin's cluster, separate from the rest of the session.

    Its coordinator is a process of its own, so that what a test breaks on purpose in this process
    does not reach it. It has its own Kafka, where other tests' coordinators can't take a share of
    the journal.
    """
    with LocalKafka(tmp_path_factory.mktemp("kafka"), java_options=QUICK_TO_START) as kafka:
        directory = tmp_path_factory.mktemp("coordinators")
        cluster = Cluster.on_kafka(
            kafka.bootstrap_servers, coordinators=1, directory=directory, delete_topics=False
        )
        yield cluster
        cluster.close()


@pytest.fixture(params=["memory", "mock", pytest.param("kafka", marks=pytest.mark.kafka)])
def transport(request: pytest.FixtureRequest) -> str:
    """Name of the transport that the test runs on."""
    return str(request.param)


@pytest.fixture
def memory_log() -> Iterator[MemoryLog]:
    """An empty log in memory, whose faults a test can use."""
    name = uuid.uuid4().hex
    yield MemoryLog.named(name)
    MemoryLog.drop(name)


@pytest.fixture
def log(transport: str, request: pytest.FixtureRequest) -> Iterator[Log]:
    """A log on each transport; real ones are shared, so use `make_topic` for topics."""
    if transport == "memory":
        yield request.getfixturevalue("memory_log")
        return
    if transport in ("mock", "native"):
        servers = request.getfixturevalue("mock_cluster")
    else:
        servers = request.getfixturevalue("logtx_kafka").bootstrap_servers
    opened = KafkaLog({"bootstrap.servers": servers})
    yield opened
    opened.close()


@pytest.fixture
def own_log(
    transport: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Log]:
    """As `log`, but on Kafka with a broker of its own, without other tests' coordinators."""
    if transport != "kafka":
        yield request.getfixturevalue("log")
        return
    with LocalKafka(tmp_path_factory.mktemp("kafka"), java_options=QUICK_TO_START) as kafka:
        opened = KafkaLog({"bootstrap.servers": kafka.bootstrap_servers})
        yield opened
        opened.close()


@pytest.fixture
def unique() -> Callable[[str], str]:
    """`unique(prefix)` returns a name that no other test uses."""
    run, serial = uuid.uuid4().hex[:8], itertools.count()
    return lambda stem: f"{stem}-{run}-{next(serial)}"


@pytest.fixture
def make_topic(log: Log, unique: Callable[[str], str]) -> MakeTopic:
    """`make_topic(partitions=1, settings=None)` creates a topic of a new name."""

    def make(partitions: int = 1, settings: dict[str, str] | None = None) -> str:
        name = unique("topic")
        assert log.create_topic(name, partitions=partitions, settings=settings)
        return name

    return make


@pytest.fixture
def append(log: Log) -> Append:
    """`append(topic, partition, values, key=None, headers=None)` returns the records' offsets."""
    producer = log.producer({"linger.ms": 0, "enable.idempotence": True})

    def send(
        topic: str,
        partition: int,
        values: Sequence[bytes | None],
        key: bytes | None = None,
        headers: list[tuple[str, bytes | None]] | None = None,
    ) -> list[int]:
        offsets: list[int] = []

        def delivered(error: object, message: object) -> None:
            assert error is None, error
            offsets.append(message.offset())

        for value in values:
            producer.produce(topic, value, key, partition, headers=headers, on_delivery=delivered)
        assert producer.flush(10) == 0
        return offsets

    return send
