"""Makes the configuration of a local cluster's brokers from ports and ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from .directory import Ports
from .ports import HOST
from .security import PROTOCOL, Security

CLIENT: Final = "CLIENT"
BROKER: Final = "BROKER"
CONTROLLER: Final = "CONTROLLER"
"""Listeners: for clients, for the other brokers (and this package), and for the KRaft quorum.
Clients have one of their own, so that a proxy can cut their connections while brokers go on talking
to each other."""

_REPLICAS_MAX: Final = 3
"""Most replicas of a partition: with three, any one broker may be lost; more cost disk and time."""

_ALWAYS: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "controller.listener.names": CONTROLLER,
    "inter.broker.listener.name": BROKER,
    "auto.create.topics.enable": "false",
    # Kafka's own topics have 50 partitions each by default.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    # A killed broker leads until its session ends, and a new one in its place waits that long too;
    # default 9 s. A session that ends too early, on a busy machine, costs a change of leaders and
    # no record.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    # How often an idle controller writes a record that says nothing; by default each 500 ms, which
    # is a third of the CPU of an idle broker.
    "metadata.max.idle.interval.ms": "5000",
    # A broker that comes back leads again after at most this time; default 300 s.
    "leader.imbalance.check.interval.seconds": "10",
    # Half of our heap at its default of 128 MiB; enough here for 350,000 keys in one pass.
    "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
    # The default of 3 s waits for more members to join; here it only delays.
    "group.initial.rebalance.delay.ms": "0",
    # Kafka 4's own kind of group tells its members of changes at their next heartbeat, and notices
    # a dead one when its session ends: 5 and 45 s by default, and clients can't choose.
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "10000",
}


def replication_factor(brokers: int) -> int:
    """Returns the replicas of each partition, also of Kafka's own topics: at most three."""
    return min(_REPLICAS_MAX, brokers)


def min_insync_replicas(brokers: int) -> int:
    """Returns how many replicas must have a record before `acks=all` is acknowledged.

    With three replicas it is two: one broker may be lost, without loss of a record or of service.
    With two replicas it is one: otherwise the death of either would stop all writing.
    """
    return max(1, replication_factor(brokers) - 1)


def broker_settings(
    broker_id: int,
    cluster: Sequence[Ports],
    *,
    advertised_port: int,
    kafka_data: Path,
    security: Security | None = None,
) -> dict[str, str]:
    """Returns the properties of one broker.

    Args:
        broker_id: its id, from 1 on.
        cluster: ports of all brokers, in the order of their ids.
        advertised_port: port to which clients are told to connect.
        kafka_data: the broker's directory of records.
        security: who may connect to the listener for clients; None for everybody.
    """
    own = cluster[broker_id - 1]
    replicas, in_sync = replication_factor(len(cluster)), min_insync_replicas(len(cluster))
    protocol = "PLAINTEXT" if security is None else PROTOCOL
    return {
        **_ALWAYS,
        **({} if security is None else security.broker_settings(CLIENT)),
        "listener.security.protocol.map": f"{CLIENT}:{protocol},{BROKER}:PLAINTEXT,"
        f"{CONTROLLER}:PLAINTEXT",
        "node.id": str(broker_id),
        "listeners": f"{CLIENT}://{HOST}:{own.client},{BROKER}://{HOST}:{own.broker},"
        f"{CONTROLLER}://{HOST}:{own.controller}",
        "advertised.listeners": f"{CLIENT}://{HOST}:{advertised_port},"
        f"{BROKER}://{HOST}:{own.broker}",
        "controller.quorum.voters": ",".join(
            f"{number}@{HOST}:{ports.controller}" for number, ports in enumerate(cluster, start=1)
        ),
        "log.dirs": str(kafka_data),
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(in_sync),
    }
