"""TLS between clients, coordinators and peers, from their settings on."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from typer.testing import CliRunner

import logtx
from logtx.coordinator.store.opening import MetadataConfig
from logtx.integration.cli import main as cli
from logtx.journal.errors import ConfigError, LogtxError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.tls import TlsConfig

from .coordinator.clusters import Cluster, Node, cluster_of, until
from .coordinator.transport.served import CERTIFICATES

TOPIC = "orders"
AT_ONCE_S = 10.0
"""Well below `coordinator.timeout.ms`: what can't work is not tried again."""
SSL = {
    "coordinator.security.protocol": "SSL",
    "coordinator.ssl.ca.location": str(CERTIFICATES / "ca.pem"),
}
MUTUAL = {**SSL, "coordinator.ssl.certificate.location": str(CERTIFICATES / "client.pem")}


def own(certificate: Path | str = "coordinator", client_auth: str = "required") -> TlsConfig:
    """Returns the settings of a coordinator."""
    return TlsConfig(
        ca=CERTIFICATES / "ca.pem",
        certificate=CERTIFICATES / f"{certificate}.pem"
        if isinstance(certificate, str)
        else certificate,
        client_auth=client_auth,
        of_coordinator=True,
    )


@pytest.fixture
def cluster(memory_log: MemoryLog, caplog: pytest.LogCaptureFixture) -> Iterator[Cluster]:
    """No coordinators yet; their log is kept."""
    caplog.set_level(logging.INFO)
    memory_log.create_topic(TOPIC, partitions=1)
    with cluster_of(memory_log) as found:
        yield found


def settings(cluster: Cluster, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": cluster.log.bootstrap_servers, **more}


def commit(producer: logtx.Producer, value: bytes) -> None:
    with producer.begin_transaction() as transaction:
        transaction.produce(TOPIC, value)


def break_off(node: Node) -> None:
    """Ends all connections of a coordinator, as a network does."""

    async def abort() -> None:
        assert node.coordinator._listener is not None
        for each in list(node.coordinator._listener._connections):
            if each._transport is not None:
                each._transport.abort()

    node.call(abort())


# ---- clients, each asking a coordinator --------------------------------------------------------


def use_producer(given: dict[str, Any]) -> None:
    with logtx.Producer(given) as producer:
        commit(producer, b"x")


def use_branch(given: dict[str, Any]) -> None:
    with (
        logtx.Producer(given) as producer,
        producer.begin_transaction() as transaction,
        logtx.Branch.join(given, transaction.branch_token()) as branch,
    ):
        branch.produce(TOPIC, b"x")
        transaction.accept(branch.finish())


def use_consumer(given: dict[str, Any]) -> None:
    consumer = logtx.Consumer({**given, "group.id": "g", "offsets.storage": "transactions"})
    try:
        consumer.committed([TopicPartition(TOPIC, 0)])
    finally:
        consumer.close()


def use_queue(given: dict[str, Any]) -> None:
    queue = logtx.ShareConsumer({**given, "group.id": "q", "auto.offset.reset": "earliest"})
    try:
        queue.subscribe([TOPIC])
        queue.poll(1.0)
    finally:
        queue.close()


def use_metadata(given: dict[str, Any]) -> None:
    with logtx.MetadataClient(given) as client:
        client.status()


def use_command(given: dict[str, Any]) -> None:
    rest = dict(given)
    options = [f"--bootstrap-servers={rest.pop('bootstrap.servers')}"]
    options += [each for name, value in rest.items() for each in ("-X", f"{name}={value}")]
    result = CliRunner().invoke(cli.app, ["txn", "list", *options])
    if result.exception is not None:
        raise result.exception


CLIENTS = [use_producer, use_consumer, use_queue, use_metadata, use_command]


@pytest.mark.parametrize("use", [*CLIENTS, use_branch])
def test_each_client_shows_its_certificate_to_coordinators_that_do_so_among_each_other(
    use: Callable[[dict[str, Any]], None],
    cluster: Cluster,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number in range(2):
        store = MetadataConfig(store=f"rocksdb:{tmp_path / str(number)}")
        cluster.join(tls=own(), metadata=store)
    cluster.settled()
    use(settings(cluster, **MUTUAL))
    assert "name=CN=coordinator,O=logtx service=peers" in caplog.text
    if use in (use_producer, use_branch, use_queue):
        assert "name=CN=client,O=logtx,C=DE service=session" in caplog.text
    assert "stranger" not in caplog.text


WRONG: dict[str, tuple[TlsConfig | None, dict[str, str], str]] = {
    "no TLS": (own(), {}, "set coordinator.security.protocol=SSL"),
    "TLS": (None, SSL, "give the coordinator --ssl-certificate-location"),
    "unknown CA": (
        own(client_auth="none"),
        {"coordinator.security.protocol": "SSL"},
        "set coordinator.ssl.ca.location",
    ),
    "no certificate": (own(), SSL, "set coordinator.ssl.certificate.location"),
    "another certificate": (
        own(),
        {**SSL, "coordinator.ssl.certificate.location": str(CERTIFICATES / "stranger.pem")},
        "in the coordinator's --ssl-ca-location",
    ),
    "another host": (
        own("elsewhere", "none"),
        SSL,
        "coordinator.ssl.endpoint.identification.algorithm to none",
    ),
}


@pytest.mark.parametrize(
    ("use", "tls", "given", "sentence"),
    [
        *((use_producer, *wrong) for wrong in WRONG.values()),
        *((use, *WRONG["no TLS"]) for use in CLIENTS if use is not use_producer),
    ],
)
def test_what_does_not_fit_is_one_error_at_once(
    use: Callable[[dict[str, Any]], None],
    tls: TlsConfig | None,
    given: dict[str, Any],
    sentence: str,
    cluster: Cluster,
) -> None:
    cluster.join(tls=tls)
    until(cluster.is_served)
    begun_s = time.monotonic()
    with pytest.raises(logtx.TlsError) as raised:
        use(settings(cluster, **given))
    assert sentence in str(raised.value)
    assert time.monotonic() - begun_s < AT_ONCE_S


def test_names_are_not_checked_if_the_setting_says_so(cluster: Cluster) -> None:
    cluster.join(tls=own("elsewhere", "none"))
    until(cluster.is_served)
    unchecked = {"coordinator.ssl.endpoint.identification.algorithm": "none"}
    use_producer(settings(cluster, **SSL, **unchecked))


# ---- files that change -------------------------------------------------------------------------


def test_renewed_files_are_taken_up_by_coordinators_and_clients_that_run(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = tmp_path / "ours.pem", tmp_path / "theirs.pem"

    def write(name: str, to: Path) -> None:
        shutil.copy(CERTIFICATES / f"{name}.pem", tmp_path / "new")
        (tmp_path / "new").rename(to)

    write("coordinator", ours)
    write("client", theirs)
    node = cluster.join(tls=own(ours))
    until(cluster.is_served)
    mutual = {**SSL, "coordinator.ssl.certificate.location": str(theirs)}
    with logtx.Producer(settings(cluster, **mutual)) as producer:
        commit(producer, b"1")
        assert "name=CN=client,O=logtx,C=DE service=session" in caplog.text
        write("renewed", ours)
        write("renewed", theirs)
        commit(producer, b"2")
        assert "tls_renewed" not in caplog.text, "it lives on by what it has"
        break_off(node)
        commit(producer, b"3")
        assert f"tls_renewed files={CERTIFICATES / 'ca.pem'},{ours}" in caplog.text
        assert "name=CN=renewed,O=logtx service=session" in caplog.text


def test_a_client_that_was_connected_tries_on_and_says_why_in_the_end(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Else one coordinator whose certificate expires would end all clients at once."""
    ours = tmp_path / "ours.pem"
    shutil.copy(CERTIFICATES / "coordinator.pem", ours)
    node = cluster.join(tls=own(ours, "none"))
    until(cluster.is_served)
    given = settings(cluster, **SSL, **{"coordinator.timeout.ms": 3_000})
    with logtx.Producer(given) as producer:
        commit(producer, b"1")
        shutil.copy(CERTIFICATES / "stranger.pem", ours)
        break_off(node)

        def failure() -> str:
            try:
                commit(producer, b"2")
            except LogtxError as error:
                return str(error)
            return ""

        # What was sent while the connection broke has only no answer.
        until(lambda: "set coordinator.ssl.ca.location" in failure())
        shutil.copy(CERTIFICATES / "coordinator.pem", ours)
        until(lambda: not failure())


# ---- coordinators ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tls", "sentence"),
    [
        (None, "--ssl-certificate-location"),
        (own("stranger"), "set --ssl-ca-location to a file with the CA that has signed it"),
    ],
)
def test_coordinators_that_do_not_fit_each_other_say_so(
    tls: TlsConfig | None, sentence: str, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.join(tls=own())
    until(cluster.is_served)
    cluster.join(tls=tls)

    def told() -> list[str]:
        return [r.getMessage() for r in caplog.records if "peer_distrusted" in r.getMessage()]

    until(lambda: any(sentence in each for each in told()))
    time.sleep(1.0)
    assert len(told()) <= 4, "each of both ends may say two things"


def test_a_coordinator_whose_files_can_not_be_used_does_not_start(memory_log: MemoryLog) -> None:
    with pytest.raises(ConfigError, match=r"^--ssl-certificate-location: .* has expired"):
        Node(memory_log, tls=own("expired"))


@pytest.mark.parametrize(
    "make",
    [
        logtx.Producer,
        lambda given: logtx.Consumer({**given, "group.id": "g", "offsets.storage": "transactions"}),
        lambda given: logtx.ShareConsumer({**given, "group.id": "g"}),
        logtx.MetadataClient,
    ],
)
def test_a_client_whose_files_can_not_be_used_is_not_made(
    make: Callable[[dict[str, Any]], Any], memory_log: MemoryLog
) -> None:
    given = {"bootstrap.servers": memory_log.bootstrap_servers, **SSL}
    given["coordinator.ssl.ca.location"] = "/nowhere/ca.pem"
    with pytest.raises(
        ConfigError, match=r"coordinator\.ssl\.ca\.location: can't read /nowhere/ca\.pem"
    ):
        make(given)
