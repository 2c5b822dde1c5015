"""A Kafka with SASL and ACLs, and a coordinator with TLS: everything works from one settings file,
with the documented rights.

And each right that is missing is named, with the command that gives it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, if not in its __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from typer.testing import CliRunner, Result

import logtx
from logtx.coordinator.client.discovery import Discovery
from logtx.coordinator.runtime.internal_topics import prepare_topics
from logtx.integration.cli import main as cli
from logtx.integration.local.cluster import QUICK_TO_START, LocalKafka
from logtx.integration.local.processes import CoordinatorChild
from logtx.integration.local.security import Security
from logtx.integration.spark.cluster import Cluster
from logtx.integration.spark.options import SinkOptions, prefixed
from logtx.integration.spark.planning import Planner, SourceOptions
from logtx.journal.errors import (
    BrokerError,
    LogtxError,
    NotAuthorizedError,
    UnsupportedTopicError,
)
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.reader import COORDINATORS_GROUP, JOURNAL_TOPIC, OFFSETS_TOPIC
from logtx.journal.sidecar import sidecar_of

from .consumer.logs import Transactions
from .coordinator.transport.served import CERTIFICATES

pytestmark = pytest.mark.kafka

SECURITY: Final = Security(
    users={"coordinator": "c-secret", "app": "a-secret", "operator": "o-secret"}
)
TLS: Final = {
    "coordinator.security.protocol": "SSL",
    "coordinator.ssl.ca.location": str(CERTIFICATES / "ca.pem"),
    "coordinator.ssl.certificate.location": str(CERTIFICATES / "locked.pem"),
    "coordinator.ssl.key.password": "secret",
}
OWN_TLS: Final = {
    "ssl_ca_location": str(CERTIFICATES / "ca.pem"),
    "ssl_certificate_location": str(CERTIFICATES / "coordinator.pem"),
    "ssl_client_auth": "required",
}
TOPIC, GROUP, HIDDEN = "orders", "billing", "hidden"
DOCS = Path(__file__).parents[1] / "docs" / "security.md"
SPREAD_S = 5.0
"""Longest wait until a broker heeds a change of ACLs."""


class Right(NamedTuple):
    """One row of the tables in docs/security.md."""

    kind: str
    """`topic` or `group`."""
    name: str
    operations: tuple[str, ...]


COORDINATOR = [
    Right("topic", JOURNAL_TOPIC, ("READ", "WRITE", "DESCRIBE_CONFIGS", "CREATE", "DELETE")),
    Right("topic", OFFSETS_TOPIC, ("READ", "WRITE", "DESCRIBE_CONFIGS", "CREATE")),
    Right("group", COORDINATORS_GROUP, ("READ",)),
    Right("topic", TOPIC, ("WRITE", "DESCRIBE_CONFIGS")),
]
PRODUCER = [
    Right("topic", TOPIC, ("WRITE",)),
    Right("topic", JOURNAL_TOPIC, ("DESCRIBE",)),
    Right("group", COORDINATORS_GROUP, ("DESCRIBE",)),
]
CONSUMER = [
    Right("topic", TOPIC, ("READ",)),
    Right("group", GROUP, ("READ",)),
    Right("topic", JOURNAL_TOPIC, ("READ",)),
    Right("group", COORDINATORS_GROUP, ("DESCRIBE",)),
]
OPERATOR = [
    Right("topic", JOURNAL_TOPIC, ("DESCRIBE",)),
    Right("group", COORDINATORS_GROUP, ("DESCRIBE",)),
]


class Acls:
    """Gives and takes rights, over the brokers' own listener."""

    def __init__(self, servers: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

    def give(self, user: str, rights: Sequence[Right]) -> None:
        """Gives rights to a user."""
        made = [
            AclBinding(
                ResourceType[right.kind.upper()],
                right.name,
                ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                AclOperation[operation],
                AclPermissionType.ALLOW,
            )
            for right in rights
            for operation in right.operations
        ]
        for future in (self._admin.create_acls(made) if made else {}).values():
            future.result(10)

    def take(self, user: str) -> None:
        """Takes all rights of a user."""
        every = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            f"User:{user}",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for future in self._admin.delete_acls([every]).values():
            future.result(10)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A broker that lets in these users only, with a topic."""
    directory = tmp_path_factory.mktemp("secured")
    with LocalKafka(directory, security=SECURITY, java_options=QUICK_TO_START) as running:
        log = KafkaLog({"bootstrap.servers": running.direct_servers})
        for topic in (TOPIC, HIDDEN):
            log.create_topic(topic, partitions=2)
        log.close()
        yield running


@pytest.fixture
def acls(kafka: LocalKafka) -> Iterator[Acls]:
    """Nobody has a right, at first and at the end."""
    made = Acls(kafka.direct_servers)
    yield made
    for user in SECURITY.users:
        made.take(user)


def log_of(kafka: LocalKafka, user: str) -> KafkaLog:
    settings = SECURITY.client_settings(user)
    return KafkaLog({"bootstrap.servers": kafka.bootstrap_servers, **settings})


def config_file(kafka: LocalKafka, directory: Path, user: str) -> Path:
    """Writes logtx's settings file for a user; the password lies in a file beside it."""
    settings = SECURITY.client_settings(user)
    (directory / f"{user}.secret").write_text(settings.pop("sasl.password") + "\n")
    lines = [f'"{name}" = "{value}"' for name, value in {**settings, **TLS}.items()]
    own = [f'{name} = "{value}"\n' for name, value in OWN_TLS.items()]
    path = directory / f"{user}.toml"
    path.write_text(
        "[kafka]\n"
        f'bootstrap.servers = "{kafka.bootstrap_servers}"\n'
        f'sasl.password = "file:{user}.secret"\n'
        + "\n".join(lines)
        + "\n[coordinator]\njournal_partitions = 2\n"
        + "".join(own)
    )
    return path


def run(*arguments: str) -> Result:
    """Runs a command of the command line."""
    nothing = dict.fromkeys(("LOGTX_BOOTSTRAP_SERVERS", "LOGTX_CONFIG"))
    return CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "200", **nothing})


def test_everything_works_with_the_documented_rights(
    kafka: LocalKafka, acls: Acls, tmp_path: Path
) -> None:
    acls.give("coordinator", COORDINATOR)
    acls.give("app", PRODUCER)
    acls.give("app", CONSUMER)
    acls.give("operator", OPERATOR)
    config = config_file(kafka, tmp_path, "coordinator")
    child = CoordinatorChild(
        "coordinator", tmp_path / "log", kafka.bootstrap_servers, "--config", str(config)
    )
    child.start()
    try:
        child.await_ready()
        servers = {"bootstrap.servers": kafka.bootstrap_servers}
        app = {**servers, **SECURITY.client_settings("app"), **TLS}
        consumer = logtx.Consumer(
            {
                **app,
                "group.id": GROUP,
                "offsets.storage": "transactions",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([TOPIC])
        with logtx.Producer({**app, "transactional.id": "worker-1"}) as producer:
            with producer.begin_transaction() as txn:
                txn.produce(TOPIC, value=b"in", partition=0)
            with producer.begin_transaction() as txn:
                (message,) = consumer.consume(1, timeout=15)
                assert message.value() == b"in"
                txn.send_offsets(consumer)
                txn.produce(TOPIC, value=b"out", partition=1)
            hidden = producer.begin_transaction(partitions=[(HIDDEN, 0)])
            with pytest.raises(UnsupportedTopicError) as refused:
                hidden.commit()
            assert "--allow-principal User:coordinator" in str(refused.value)
            assert f"--operation Write --operation DescribeConfigs --topic {HIDDEN}" in str(
                refused.value
            )
            opened = producer.begin_transaction(partitions=[(TOPIC, 0)])
            txid = str(opened.txid)
            operator = str(config_file(kafka, tmp_path, "operator"))
            listed = run("txn", "list", "--json", "--config", operator)
            assert listed.exit_code == 0, listed.output
            assert txid in [t["txid"] for t in json.loads(listed.stdout)["transactions"]]
            properties = tmp_path / "command.properties"
            settings = {**SECURITY.client_settings("operator"), **TLS}
            lines = [f"{name}={value}\n" for name, value in {**servers, **settings}.items()]
            properties.write_text("".join(lines))
            properties.chmod(0o600)
            aborted = run("txn", "abort", txid, "--config", str(properties))
            assert aborted.exit_code == 0, aborted.output
            named = [f"-X{name}={value}" for name, value in settings.items()]
            keys = run("keys", "list", *named, "--bootstrap-servers", kafka.bootstrap_servers)
            assert keys.exit_code == 0, keys.output
        consumer.close()
        committed = run("group", "show", GROUP, "--json", "--config", str(config))
        assert committed.exit_code == 0, committed.output
        (row,) = [r for r in json.loads(committed.stdout)["partitions"] if r["offset"]]
        assert (row["topic"], row["partition"]) == (TOPIC, 0)
    finally:
        child.kill()


def test_who_does_not_get_in_is_told_why(kafka: LocalKafka) -> None:
    where = ("txn", "list", "--timeout", "1", "--bootstrap-servers", kafka.bootstrap_servers)
    plain = run(*where)
    assert isinstance(plain.exception, BrokerError)
    assert "security.protocol?" in str(plain.exception)
    wrong = {**SECURITY.client_settings("operator"), "sasl.password": "guess"}
    denied = run(*where, *(f"-X{name}={value}" for name, value in wrong.items()))
    assert isinstance(denied.exception, BrokerError)
    assert "Invalid username or password" in str(denied.exception)


def test_each_right_that_a_coordinator_lacks_is_named_at_its_start(
    kafka: LocalKafka, acls: Acls
) -> None:
    whole = [Right(r.kind, r.name, r.operations) for r in COORDINATOR if r.name != TOPIC]
    acls.give("coordinator", whole)
    log = log_of(kafka, "coordinator")

    def start() -> str:
        """Returns what a coordinator says that may not start; "" if it may."""
        try:
            prepare_topics(log, partitions=2, replication_factor=1)
        except BrokerError as error:
            return str(error)
        return ""

    await_said(start, "")
    acls.take("coordinator")
    every = "--operation Read --operation Write --operation DescribeConfigs --operation Create"
    await_said(start, f"User:coordinator {every} --topic {JOURNAL_TOPIC}")
    for right in whole:
        for operation in set(right.operations) - {"CREATE", "DELETE"}:
            acls.take("coordinator")
            left = tuple(o for o in right.operations if o != operation)
            acls.give("coordinator", [r for r in whole if r != right])
            acls.give("coordinator", [right._replace(operations=left)])
            word = operation.title().replace("_", "")
            said = f"kafka-acls.sh --bootstrap-server {kafka.bootstrap_servers} --add"
            said += f" --allow-principal User:coordinator --operation {word}"
            said += f" --{right.kind} {right.name}"
            await_said(start, said)
    log.close()


def await_said(start: object, said: str) -> None:
    """Waits until `start` says this, for brokers heed a change of ACLs a moment later."""
    assert callable(start)
    deadline_s = time.monotonic() + SPREAD_S
    while True:
        told = start()
        if said in told if said else not told:
            return
        assert time.monotonic() < deadline_s, (said, told)
        time.sleep(0.05)


def test_a_right_that_a_client_lacks_is_named(kafka: LocalKafka, acls: Acls) -> None:
    log = log_of(kafka, "app")
    discovery = Discovery(log)

    def look_up() -> str:
        try:
            discovery.partition_count(time.monotonic() + 0.3)
            discovery.look_up(0)
        except LogtxError as error:
            return str(error)
        return ""

    await_said(look_up, f"--operation Describe --topic {JOURNAL_TOPIC}")
    acls.give("app", [Right("topic", JOURNAL_TOPIC, ("DESCRIBE",))])
    await_said(look_up, f"--operation Describe --group {COORDINATORS_GROUP}")
    assert "GROUP_AUTHORIZATION_FAILED" in look_up(), "each time, not only once"
    acls.give("app", [Right("group", COORDINATORS_GROUP, ("DESCRIBE",))])
    deadline_s = time.monotonic() + SPREAD_S
    while "AUTHORIZATION" in look_up():
        assert time.monotonic() < deadline_s
    log.close()


@pytest.mark.parametrize("operations", [(), ("DESCRIBE",)])
def test_a_right_on_a_sidecar_that_a_consumer_lacks_is_named(
    kafka: LocalKafka,
    acls: Acls,
    monkeypatch: pytest.MonkeyPatch,
    operations: tuple[str, ...],
) -> None:
    monkeypatch.setattr("logtx.consumer.sidecar_read.CONFIRM_S", 1.0)
    topic = f"aside-{len(operations)}"
    direct = KafkaLog({"bootstrap.servers": kafka.direct_servers})
    for each in (topic, sidecar_of(topic)):
        direct.create_topic(each, partitions=1)
    written = Transactions(direct)
    txid = written.begin()
    written.write(txid, sidecar_of(topic), [b"aside"])
    written.mark(txid, topic)
    acls.give("app", [Right("topic", topic, ("READ",)), Right("group", GROUP, ("READ",))])
    acls.give("app", [Right("topic", sidecar_of(topic), operations)])
    time.sleep(1)  # Else a right may come to be heeded in the middle.
    settings = {**SECURITY.client_settings("app"), "bootstrap.servers": kafka.bootstrap_servers}
    settings |= {"group.id": GROUP, "auto.offset.reset": "earliest"}
    with logtx.Consumer(settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(NotAuthorizedError, match=f"--operation Read --topic {topic}[.]_txnlog"):
            consumer.poll(20)
    acls.give("app", [Right("topic", sidecar_of(topic), ("READ",))])
    monkeypatch.setattr("logtx.consumer.sidecar_read.CONFIRM_S", 10.0)
    with logtx.Consumer(settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        message = consumer.poll(20)
        assert message is not None
        assert message.value() == b"aside"
    direct.close()


def test_a_right_that_spark_lacks_is_named_before_the_job(kafka: LocalKafka, acls: Acls) -> None:
    settings = SECURITY.client_settings("app")
    settings["bootstrap.servers"] = kafka.bootstrap_servers
    sink = SinkOptions.parse({**prefixed(settings), "topic": TOPIC})
    source = SourceOptions.parse({**prefixed(settings), "subscribe": TOPIC})
    cluster, log = Cluster(sink), log_of(kafka, "app")

    def said(ask: Callable[[], object]) -> str:
        try:
            ask()
        except LogtxError as error:
            return str(error)
        return ""

    acls.give("app", [Right("topic", TOPIC, ("DESCRIBE",))])
    await_said(
        lambda: said(lambda: cluster.check_topic(sink)), f"--operation Write --topic {TOPIC}"
    )
    await_said(lambda: said(Planner(log, source).latest), f"--operation Read --topic {TOPIC}")
    acls.give("app", [Right("topic", TOPIC, ("READ", "WRITE"))])
    deadline_s = time.monotonic() + SPREAD_S
    while said(lambda: cluster.check_topic(sink)) or said(Planner(log, source).latest):
        assert time.monotonic() < deadline_s
    cluster.close()
    log.close()


def test_the_documented_rights_are_those_of_these_tests() -> None:
    rows = {
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in DOCS.read_text("utf-8").splitlines()
        if line.startswith("|")
    }
    names = {TOPIC: "each data topic", GROUP: "its consumer group"}
    for who, rights in {
        "coordinator": COORDINATOR,
        "producer": PRODUCER,
        "consumer": CONSUMER,
        "operator": OPERATOR,
    }.items():
        for right in rights:
            name = names.get(right.name, f"{right.kind} `{right.name}`")
            operations = ", ".join(right.operations)
            found = [row for row in rows if row[:3] == (who, name, operations)]
            assert len(found) == 1, (who, name, operations)
    assert re.search(r"never READ", DOCS.read_text("utf-8"))
