"""pytest fixtures: a real Kafka for the test session, topics on it, and coordinators.

Loaded by pytest wherever logtx is installed; so it imports nothing but pytest itself until a test
asks for a fixture. With `--logtx-bootstrap-servers` (or the environment's
LOGTX_BOOTSTRAP_SERVERS) the tests run on that cluster, and none is started.

`docs/testing.md` shows them at work.
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
    """A cluster that was there before the tests and stays after them."""

    bootstrap_servers: str


class TopicFactory(Protocol):
    """Makes a topic and returns its name."""

    def __call__(
        self,
        partitions: int = 1,
        *,
        name: str = "test",
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic `<name>-<random>` and wait until each partition has a leader."""
        ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--logtx-bootstrap-servers`, `--logtx-brokers`, `--logtx-coordinators` and
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
        help="brokers of the Kafka that is started (default: 1); topics have min(3, N) replicas",
    )
    group.addoption(
        "--logtx-coordinators",
        type=int,
        default=1,
        metavar="N",
        help="coordinators of logtx_cluster (default: 1)",
    )
    group.addoption(
        "--logtx-coordinator-processes",
        action="store_true",
        help="run the coordinators of logtx_cluster as processes, not in threads",
    )


@pytest.fixture(scope="session")
def logtx_kafka(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster | ExistingKafka]:
    """A Kafka cluster with `.bootstrap_servers`, shared by the session's tests: a `LocalKafka`, or
    with `--logtx-brokers` a `LocalCluster`.

    Tests that kill or pause brokers start a `LocalKafka` or `LocalCluster` of their own instead.
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
    """A factory of topics with unique names; on an existing cluster they are deleted afterwards."""
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
    """The session's Kafka with coordinators; what a test left open or dead is mended after it."""
    yield _logtx_session_cluster
    _logtx_session_cluster.reset()


@pytest.fixture
def logtx_memory_cluster() -> Iterator[Cluster]:
    """A log in memory with a coordinator, of this test's own: neither Kafka nor Java."""
    from .testing import Cluster

    cluster = Cluster.in_memory()
    yield cluster
    cluster.close()
