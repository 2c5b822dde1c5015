"""Provides pytest fixtures: a real Kafka for the test session, topics on it, and coordinators.

pytest loads this module wherever logtx is installed, so it imports nothing but pytest until a test
asks for a fixture. With `--logtx-bootstrap-servers` (or the environment variable
LOGTX_BOOTSTRAP_SERVERS) the tests run on that cluster, and no Kafka is started.

`docs/testing.md` shows examples.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from .local.cluster import LocalCluster
    from .testing import Cluster

_VARIABLE = "LOGTX_BOOTSTRAP_SERVERS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingKafka:
    """A Kafka cluster that runs before the tests and after them."""

    bootstrap_servers: str


class TopicFactory(Protocol):
    """Creates a topic and returns its name."""

    def __call__(
        self,
        partitions: int = 1,
        *,
        name: str = "test",
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Creates a topic `<name>-<random>` and waits until each partition has a leader."""
        ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--logtx-bootstrap-servers`, `--logtx-brokers`, `--logtx-coordinators` and
    `--logtx-coordinator-processes`."""
    group = parser.getgroup("logtx")
    group.addoption(
        "--logtx-bootstrap-servers",
        default=os.environ.get(_VARIABLE) or None,
        metavar="HOST:PORT",
        help=f"run on this Kafka cluster instead of starting one (default: ${_VARIABLE})",
    )
    group.addoption(
        "--logtx-brokers",
        type=int,
        default=1,
        metavar="N",
        help="number of brokers to start (default: 1); topics get min(3, N) replicas",
    )
    group.addoption(
        "--logtx-coordinators",
        type=int,
        default=1,
        metavar="N",
        help="number of coordinators in logtx_cluster (default: 1)",
    )
    group.addoption(
        "--logtx-coordinator-processes",
        action="store_true",
        help="run the coordinators of logtx_cluster as processes instead of threads",
    )


@pytest.fixture(scope="session")
def logtx_kafka(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster | ExistingKafka]:
    """Gives a Kafka cluster with `.bootstrap_servers`, shared by all tests of the session: a
    `LocalKafka`, or a `LocalCluster` if `--logtx-brokers` is more than 1.

    Tests that kill or pause brokers start their own `LocalKafka` or `LocalCluster` instead.
    """
    existing: str | None = request.config.getoption("--logtx-bootstrap-servers")
    if existing:
        yield ExistingKafka(bootstrap_servers=existing)
        return
    from .local.cluster import QUICK_TO_START, LocalCluster, LocalKafka
    from .local.errors import LocalKafkaError

    brokers = request.config.getoption("--logtx-brokers")
    data_dir = tmp_path_factory.mktemp("logtx-kafka")
    kafka = (
        LocalKafka(data_dir, java_options=QUICK_TO_START)
        if brokers == 1
        else LocalCluster(data_dir, brokers=brokers, java_options=QUICK_TO_START)
    )
    try:
        kafka.start()
    except LocalKafkaError as error:
        pytest.fail(str(error), pytrace=False)
    try:
        yield kafka
    finally:
        kafka.stop()


@pytest.fixture
def logtx_topic(logtx_kafka: LocalCluster | ExistingKafka) -> Iterator[TopicFactory]:
    """Gives a factory of topics with unique names.

    On an existing cluster the topics are deleted after the test.
    """
    import uuid

    from .local.topics import create_topic, delete_topic

    servers = logtx_kafka.bootstrap_servers
    made: list[str] = []

    def make(
        partitions: int = 1, *, name: str = "test", config: Mapping[str, str] | None = None
    ) -> str:
        topic = f"{name}-{uuid.uuid4().hex[:12]}"
        create_topic(servers, topic, partitions=partitions, config=config)
        made.append(topic)
        return topic

    yield make
    if isinstance(logtx_kafka, ExistingKafka):
        for topic in made:
            delete_topic(servers, topic)


@pytest.fixture(scope="session")
def _logtx_session_cluster(
    request: pytest.FixtureRequest,
    logtx_kafka: LocalCluster | ExistingKafka,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    from .testing import Cluster

    in_processes = request.config.getoption("--logtx-coordinator-processes")
    cluster = Cluster.on_kafka(
        logtx_kafka.bootstrap_servers,
        coordinators=request.config.getoption("--logtx-coordinators"),
        directory=tmp_path_factory.mktemp("logtx-coordinators") if in_processes else None,
        delete_topics=isinstance(logtx_kafka, ExistingKafka),
    )
    yield cluster
    cluster.close()


@pytest.fixture
def logtx_cluster(_logtx_session_cluster: Cluster) -> Iterator[Cluster]:
    """Gives the session's Kafka with coordinators.

    After each test it aborts open transactions, closes clients and restarts killed coordinators.
    """
    yield _logtx_session_cluster
    _logtx_session_cluster.reset()


@pytest.fixture
def logtx_memory_cluster() -> Iterator[Cluster]:
    """Gives this test its own log in memory with a coordinator; needs neither Kafka nor Java."""
    from .testing import Cluster

    cluster = Cluster.in_memory()
    yield cluster
    cluster.close()
