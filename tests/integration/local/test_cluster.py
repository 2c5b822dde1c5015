"""A cluster of several brokers: what it is made of, with a fake Java; its faults, on a real one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, ConfigResource

from logtx.integration.local.cluster import QUICK_TO_START, LocalCluster, LocalKafka, settle_ports
from logtx.integration.local.directory import ClusterDir, Ports, State
from logtx.integration.local.errors import (
    BrokerNotRunningError,
    BrokerStartError,
    DataDirError,
    NotInSyncError,
    PortInUseError,
)
from logtx.integration.local.ports import HOST, pick_ports
from logtx.integration.local.settings import broker_settings
from logtx.integration.local.topics import create_topic
from logtx.integration.testing import Cluster
from logtx.journal.reader import JOURNAL_TOPIC, OFFSETS_TOPIC

from .fake_java import fake_java

NEW = Ports(client=0, broker=0, controller=0)

# --- what it is made of


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)]
)
def test_replicas_follow_the_number_of_brokers(brokers: int, replicas: int, in_sync: int) -> None:
    made = broker_settings(
        1, settle_ports([NEW] * brokers, 0), advertised_port=1, kafka_data=Path("/data")
    )
    factors = {value for name, value in made.items() if name.endswith("replication.factor")}
    least = {value for name, value in made.items() if name.endswith(("insync.replicas", "min.isr"))}
    assert (factors, least) == ({str(replicas)}, {str(in_sync)})
    assert len(made["controller.quorum.voters"].split(",")) == brokers


def test_only_clients_are_told_the_advertised_port() -> None:
    ports = Ports(client=1, broker=2, controller=3)
    made = broker_settings(1, [ports], advertised_port=9, kafka_data=Path("/data"))
    assert made["listeners"] == (
        "CLIENT://127.0.0.1:1,BROKER://127.0.0.1:2,CONTROLLER://127.0.0.1:3"
    )
    assert made["advertised.listeners"] == "CLIENT://127.0.0.1:9,BROKER://127.0.0.1:2"


def test_ports_are_kept_and_differ() -> None:
    first = settle_ports([NEW] * 3, 0)
    assert len({port for p in first for port in (p.client, p.broker, p.controller)}) == 9
    assert settle_ports(first, 0) == first


def test_asked_ports_follow_each_other_and_drive_others_away() -> None:
    known = settle_ports([NEW] * 3, 0)
    wanted = known[1].controller  # asked for clients now
    settled = settle_ports(known, wanted)
    assert [each.client for each in settled] == [wanted, wanted + 1, wanted + 2]
    assert settled[1].controller != wanted
    assert len({port for p in settled for port in (p.client, p.broker, p.controller)}) == 9


def test_a_taken_port_of_clients_is_an_error_and_one_of_brokers_is_replaced() -> None:
    known = settle_ports([NEW] * 3, 0)
    with listening(known[1].broker):
        settled = settle_ports(known, 0)
    assert settled[1].broker != known[1].broker
    assert (settled[0], settled[2]) == (known[0], known[2])
    with (
        listening(known[1].client),
        pytest.raises(PortInUseError, match=f"Port {known[1].client} "),
    ):
        settle_ports(known, 0)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one broker"):
        LocalCluster(Path("data"), brokers=0)
    with pytest.raises(ValueError, match="3 ports from 65534 on"):
        LocalCluster(Path("data"), port=65_534)
    with pytest.raises(ValueError, match=r"advertised ports of brokers \[4\]"):
        LocalCluster(Path("data"), advertised_client_ports={4: 1})
    kafka = LocalCluster(Path("data"))
    for number in (0, 4):
        with pytest.raises(ValueError, match="ids go from 1 to 3"):
            kafka.broker(number)


def test_what_needs_a_started_cluster_says_so(tmp_path: Path) -> None:
    kafka = LocalCluster(tmp_path / "data")
    second = kafka.broker(2)
    for operation in (
        second.start,
        second.pause,
        second.resume,
        lambda: second.pid,
        lambda: second.client_port,
        lambda: kafka.bootstrap_servers,
        lambda: kafka.direct_servers,
        kafka.await_in_sync,
    ):
        with pytest.raises(BrokerNotRunningError, match="start"):
            operation()
    kafka.stop()
    kafka.kill()
    assert not (tmp_path / "data").exists()


def test_one_that_ends_early_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = 'case "$*" in *broker-2*) echo no room; exit 5 ;; *) exec sleep 60 ;; esac'
    fake_java(tmp_path, monkeypatch, run=run)
    kafka = LocalCluster(tmp_path / "data")
    with pytest.raises(BrokerStartError, match=r"broker 2 ended .*exit status 5") as caught:
        kafka.start()
    assert caught.value.details == ("no room",)
    assert not any(broker.is_running for broker in kafka.brokers)
    with pytest.raises(BrokerStartError):  # not DataDirInUseError: the lock was given back
        LocalCluster(tmp_path / "data").start()


@pytest.mark.parametrize(
    ("held", "asked", "sentence"),
    [(1, 3, "the records of one broker, not of 3"), (3, 1, "the records of 3 brokers, not of 1")],
)
def test_a_data_directory_of_another_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int, asked: int, sentence: str
) -> None:
    fake_java(tmp_path, monkeypatch)
    directory = ClusterDir(tmp_path)
    directory.write(State(cluster_id="x", brokers=settle_ports([NEW] * held, 0)))
    kafka = LocalCluster(tmp_path, brokers=asked)
    for _ in range(2):  # the lock is given back
        with pytest.raises(DataDirError, match=sentence):
            kafka.start()


def test_a_taken_port_is_noticed_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, monkeypatch, run=f"touch {tmp_path}/started")
    (port,) = pick_ports(1)
    with listening(port + 2), pytest.raises(PortInUseError, match=f"Port {port + 2}"):
        LocalCluster(tmp_path / "data", port=port).start()
    assert not (tmp_path / "started").exists()


# --- what it lives through: three brokers start in 10 s, and on a busy machine in a minute or two


@pytest.fixture
def three(tmp_path: Path) -> Iterator[LocalCluster]:
    kafka = LocalCluster(tmp_path / "kafka", java_options=QUICK_TO_START)
    kafka.start()
    yield kafka
    kafka.kill()


def topic_of_one_partition(kafka: LocalCluster) -> int:
    """Create `orders`; returns the id of its leader."""
    assert create_topic(kafka.bootstrap_servers, "orders")
    return leader_of(kafka)


def leader_of(kafka: LocalCluster) -> int:
    topics = AdminClient({"bootstrap.servers": kafka.direct_servers}).list_topics(timeout=10).topics
    return topics["orders"].partitions[0].leader


def new_producer(servers: str) -> Producer:
    settings = {"acks": "all", "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
    # A leader that stands still holds what was sent to it until the time-out.
    timeouts = {"socket.timeout.ms": 5_000, "topic.metadata.refresh.interval.ms": 1_000}
    return Producer({"bootstrap.servers": servers, **settings, **timeouts})


def offsets_of(producer: Producer, count: int = 1) -> list[int]:
    """Append so many records one after the other; their offsets."""
    offsets: list[int] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None
        offsets.append(message.offset() or 0)

    for _ in range(count):
        producer.produce("orders", b"x", on_delivery=delivered)
        assert producer.flush(30) == 0
    return offsets


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_of_three_is_killed_and_comes_back(three: LocalCluster) -> None:
    leader = three.broker(topic_of_one_partition(three))
    producer = new_producer(three.bootstrap_servers)
    assert offsets_of(producer, 3) == [0, 1, 2]
    three.await_in_sync()
    resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
    admin = AdminClient({"bootstrap.servers": three.bootstrap_servers})
    settings = admin.describe_configs([resource])[resource].result(10)
    assert settings["min.insync.replicas"].value == "2"

    leader.kill()
    assert not three.is_running
    assert three.has_majority
    assert offsets_of(producer, 2) == [3, 4]
    assert leader_of(three) != leader.id
    with pytest.raises(BrokerNotRunningError, match=f"Broker {leader.id} is not running"):
        three.await_in_sync()

    leader.start()
    three.await_in_sync()
    assert offsets_of(producer) == [5]
    three.stop()
    assert not any(broker.is_running for broker in three.brokers)
    # The third may find no majority left to ask whether it may go, and is killed.
    orderly = [
        broker.id
        for broker in three.brokers
        if (three.data_dir / f"broker-{broker.id}" / "data" / ".kafka_cleanshutdown").exists()
    ]
    assert len(orderly) >= 2


@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_paused_leader_is_replaced_and_catches_up(three: LocalCluster) -> None:
    leader = three.broker(topic_of_one_partition(three))
    producer = new_producer(three.bootstrap_servers)
    assert offsets_of(producer) == [0]
    leader.pause()
    assert leader.is_running
    assert offsets_of(producer, 2) == [1, 2]
    with pytest.raises(NotInSyncError, match="not in sync") as caught:
        three.await_in_sync(0)
    assert any("orders-0" in line for line in caught.value.details)
    leader.resume()
    three.await_in_sync()
    assert offsets_of(producer) == [3]


@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_without_a_majority_nothing_is_acknowledged_and_nothing_is_lost(
    three: LocalCluster,
) -> None:
    topic_of_one_partition(three)
    addresses = three.bootstrap_servers
    producer = new_producer(addresses)
    assert offsets_of(producer, 5) == [0, 1, 2, 3, 4]
    three.broker(1).kill()
    three.broker(2).kill()
    assert not three.has_majority
    done: list[int] = []
    producer.produce("orders", b"x", on_delivery=lambda _error, m: done.append(m.offset()))
    producer.flush(6)
    assert done == []
    three.broker(1).start()
    assert producer.flush(30) == 0
    assert done == [5]

    three.kill()
    three.start()
    assert three.bootstrap_servers == addresses
    three.await_in_sync()
    assert offsets_of(new_producer(addresses)) == [6]
    for broker in three.brokers:  # one by one, the data directory stays ours
        broker.kill()
    for broker in three.brokers:
        broker.start(wait=False)
    three.await_in_sync()
    assert offsets_of(new_producer(addresses)) == [7]


@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_every_broker_is_restarted_in_turn(three: LocalCluster) -> None:
    topic_of_one_partition(three)
    producer = new_producer(three.bootstrap_servers)
    for number, broker in enumerate(three.brokers):
        broker.restart()
        assert offsets_of(producer) == [number]
        three.await_in_sync()


@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_clients_are_cut_off_and_brokers_are_not(tmp_path: Path) -> None:
    proxied = dict(enumerate(pick_ports(3), start=1))
    with LocalCluster(tmp_path / "kafka", advertised_client_ports=proxied) as kafka:
        assert kafka.bootstrap_servers == ",".join(f"{HOST}:{port}" for port in proxied.values())
        create_topic(kafka.direct_servers, "orders")
        kafka.await_in_sync()  # without any proxy yet
        assert new_producer(kafka.direct_servers).list_topics(timeout=5).topics["orders"]
        producer = new_producer(kafka.bootstrap_servers)
        producer.produce("orders", b"x")
        assert producer.flush(1) == 1
        forwards = [Forward(port, kafka.broker(n).client_port) for n, port in proxied.items()]
        assert producer.flush(30) == 0
        for forward in forwards:
            forward.close()
        producer.produce("orders", b"x")
        assert producer.flush(1) == 1
        kafka.await_in_sync()
        assert offsets_of(new_producer(kafka.direct_servers)) == [1]


@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_transactions_outlive_each_broker(three: LocalCluster, tmp_path: Path) -> None:
    cluster = Cluster.on_kafka(
        three.bootstrap_servers, coordinators=1, directory=tmp_path, delete_topics=False
    )
    try:
        for own in (JOURNAL_TOPIC, OFFSETS_TOPIC):
            info = cluster.log.topic_info(own)
            assert info.replication_factor == 3
            assert info.settings is not None
            assert info.settings["min.insync.replicas"] == "2"
        topic = cluster.topic(3)
        producer = cluster.producer()
        for broker in three.brokers:
            broker.kill()
            with producer.begin_transaction(timeout=60) as txn:
                txn.produce(topic, str(broker.id))
            broker.start()
            three.await_in_sync()
        consumer = cluster.consumer(topic)
        found = set()
        deadline = time.monotonic() + 30
        while len(found) < 3 and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.add(message.value())
        assert found == {b"1", b"2", b"3"}
    finally:
        cluster.close()


@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_cluster_of_one_is_a_local_kafka(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "kafka", brokers=1) as kafka:
        topic_of_one_partition(kafka)
        assert offsets_of(new_producer(kafka.bootstrap_servers)) == [0]
        address = kafka.bootstrap_servers
    with LocalKafka(tmp_path / "kafka") as again:
        assert again.bootstrap_servers == address
        assert offsets_of(new_producer(address)) == [1]


class listening:  # noqa: N801 - read as a verb
    """Somebody else has this port."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_server((HOST, port))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        self._socket.close()


class Forward:
    """Takes connections to one port on to another, until it is closed."""

    def __init__(self, port: int, target: int) -> None:
        self._target = target
        self._server = socket.create_server((HOST, port))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in (self._server, *self._open):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other end was quicker
                continue
            finally:
                each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            broker = socket.create_connection((HOST, self._target))
            self._open += [client, broker]
            for source, sink in ((client, broker), (broker, client)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                sink.sendall(data)
        except OSError:
            return
