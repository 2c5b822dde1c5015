"""pytest fixtures: a real Kafka for the test session, and topics on it.

Loaded by pytest wherever logtx is installed; so it imports nothing but pytest itself until a test
asks for a fixture. With `--logtx-bootstrap-servers` (or the environment's
LOGTX_BOOTSTRAP_SERVERS) the tests run on that cluster, and none is started.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from .kafka import LocalKafka

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
    """Add `--logtx-bootstrap-servers`."""
    parser.getgroup("logtx").addoption(
        "--logtx-bootstrap-servers",
        default=os.environ.get(_VARIABLE) or None,
        metavar="HOST:PORT",
        help=f"run on this Kafka cluster instead of starting one (default: ${_VARIABLE})",
    )


@pytest.fixture(scope="session")
def logtx_kafka(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalKafka | ExistingKafka]:
    """A Kafka cluster with `.bootstrap_servers`, shared by the session's tests.

    Tests that kill or pause a broker start a `LocalKafka` of their own instead.
    """
    existing: str | None = request.config.getoption("--logtx-bootstrap-servers")
    if existing:
        yield ExistingKafka(bootstrap_servers=existing)
        return
    from .kafka import LocalKafka, LocalKafkaError

    kafka = LocalKafka(tmp_path_factory.mktemp("logtx-kafka"))
    try:
        kafka.start()
    except LocalKafkaError as error:
        pytest.fail(str(error), pytrace=False)
    try:
        yield kafka
    finally:
        kafka.stop()


@pytest.fixture
def logtx_topic(logtx_kafka: LocalKafka | ExistingKafka) -> Iterator[TopicFactory]:
    """A factory of topics with unique names; on an existing cluster they are deleted afterwards."""
    import uuid

    from .kafka.topics import create_topic, delete_topic

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
