"""The transports that logtx runs on, for tests that must pass on all of them.

`memory` is a log in this process, `mock` is librdkafka's mock cluster, and `kafka` is a real broker
(from the pytest plugin, one for the session).
"""

from __future__ import annotations

import functools
import gc
import itertools
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest
import typer.testing
from confluent_kafka import Producer
from xdist.scheduler import LoadFileScheduling

from logtx.integration.local.cluster import QUICK_TO_START, LocalKafka
from logtx.integration.testing import Cluster
from logtx.journal.logs.interface import Log
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.logs.memory.log import MemoryLog

from . import parameters

# Examples take as long as a busy machine lets them.
hypothesis.settings.register_profile("logtx", deadline=None)
hypothesis.settings.load_profile("logtx")

# The tree of `logtx`' commands takes 45 ms of CPU: it is made once, not at each call of a test.
typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]

MakeTopic = Callable[..., str]
Append = Callable[..., list[int]]

ON_KAFKA: Final = (
    (
        "test_sidecars.py",
        "test_end_to_end.py",
        "test_queues.py",
        "consumer/test_commits.py",
    ),
    (
        "consumer/test_interruptions.py",
        "test_faults_kafka.py",
        "producer/test_over_frames.py",
        "consumer/test_rebalance.py",
        "test_sidecar_trimming.py",
    ),
    (
        "coordinator/test_service.py",
        "test_sidecars_grown.py",
        "test_sidecars_placed.py",
        "producer/test_branches.py",
        "producer/test_transactions.py",
        "consumer/test_consumer.py",
        "journal/logs/test_contract.py",
        "coordinator/runtime/test_markers.py",
        "integration/test_pytest_plugin.py",
        "integration/local/test_broker.py",
        "producer/test_confluent_style.py",
        "producer/test_dropped.py",
        "consumer/test_lag.py",
        "test_sidecar_compaction.py",
        "consumer/test_dropped.py",
        "consumer/test_kafka_transactions.py",
        "coordinator/runtime/test_markers_kafka.py",
        "journal/test_reader.py",
        "consumer/test_inquiries.py",
        "consumer/test_confluent_style.py",
        "producer/test_sender.py",
        "coordinator/server/test_retention.py",
    ),
)
"""Files of the tests of `logtx_kafka`, which take about as long in each of these groups. A group is
given to one process: a Kafka costs twenty seconds of CPU in each process that has one."""


LONGEST: Final = (
    "integration/spark/test_sink.py",
    "test_places_kafka.py",
    "search/test_search.py",
    "test_failover_kafka.py",
    "simulation/test_simulation.py",
    "simulation/test_mutations.py",
    "integration/demo/test_runs.py",
    "histories/test_producer.py",
    "test_plain_reader_kafka.py",
    "test_secured_kafka.py",
    "integration/test_blocks.py",
    "coordinator/test_ownership.py",
    "coordinator/test_topic_answers.py",
    "chaos/test_faults.py",
    "integration/cli/test_up.py",
    "integration/test_queue_blocks.py",
    "consumer/test_share_topics.py",
    "consumer/test_share_sidecars.py",
    "search/test_trimming.py",
    # Nearly all of their tests are slow ones.
    "test_rules_kafka.py",
    "chaos/test_run.py",
    "integration/local/test_cluster.py",
    "integration/local/test_kafka_versions.py",
    "benchmarks/test_scenarios.py",
    "integration/demo/test_faults.py",
    "chaos/test_mutations.py",
    "integration/demo/test_spark.py",
)
"""Files that take longest, behind those of `ON_KAFKA`. If one of them began last, all other
processes would wait for it."""


WITH_ONE_CLUSTER: Final = (
    "integration/spark/",
    "test_groups_kafka.py",
    "integration/inspect/test_processes.py",
    "chaos/test_checker_dump.py",
)
"""Files and folders of the tests of `logtx_cluster` and of Spark. One process has them all: a Kafka
with a coordinator, and a Spark, cost half a minute of CPU in each process that starts them."""


def group_of(file: str) -> str:
    """Returns the group of a file of tests, which one process has: of many it is their own."""
    file = file.removeprefix("tests/")
    if file.startswith(WITH_ONE_CLUSTER):
        return "cluster"
    return next((f"kafka {n}" for n, files in enumerate(ON_KAFKA) if file in files), file)


class ByGroup(LoadFileScheduling):
    """Gives each group of files to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(super()._split_scope(nodeid))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Lets a process of pytest-xdist end its Kafka, and its Spark, behind the last test of the
    group that has them, as if the session ended there. They take 1.4 s of CPU in each minute in
    which nobody asks them anything, and other files would follow for minutes.
    """
    here = shared_by(item)
    if not hasattr(item.config, "workerinput") or here is None or nextitem is None:
        return None
    if shared_by(nextitem) == here:
        return None
    return bool(item.config.hook.pytest_runtest_protocol(item=item, nextitem=None))


def shared_by(item: pytest.Item) -> str | None:
    """Returns what the tests of an item's group share: "kafka", "cluster", or None for nothing."""
    group = group_of(item.nodeid.partition("::")[0]).partition(" ")[0]
    return group if group in {"kafka", "cluster"} else None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup | None:
    """Takes the place of pytest-xdist's `--dist loadfile`."""
    return ByGroup(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Lets each process of pytest-xdist begin elsewhere in a folder.

    In a new checkout, pytest translates each file of tests, and keeps the result. Where all
    processes collected in the same order, each of them translated every file.
    """
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker is not None and isinstance(collector, pytest.Package):
        number, found = int(worker["workerid"].removeprefix("gw")), report.result
        first = len(found) * number // worker["workercount"]
        report.result = found[first:] + found[:first]
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first, and keeps the order of tests in each."""
    here = Path(__file__).parent
    firsts = [*(file for files in ON_KAFKA for file in files), *LONGEST]
    places = {here / name: place for place, name in enumerate(firsts)}
    items.sort(key=lambda item: (places.get(item.path, len(places)), item.path))


def pytest_configure(config: pytest.Config) -> None:
    """Draws fewer examples where slow tests are left out."""
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
