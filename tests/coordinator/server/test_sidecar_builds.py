"""Transactions with sidecars in topics in metadata mode, beside older coordinators."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

import logtx
from logtx.coordinator.client.admin import AdminQueries
from logtx.journal.errors import NotSupportedError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Mode
from logtx.journal.reader import journal_partition_of
from logtx.journal.records.codec import FORMAT_VERSION, WITH_PLACED_SIDECARS
from logtx.journal.sidecar import sidecar_of

from ..clusters import PARTITIONS, Cluster, Node, cluster_of, until


@pytest.fixture
def cluster(memory_log: MemoryLog) -> Iterator[Cluster]:
    """Coordinators over a log with the topic `orders`."""
    memory_log.create_topic("orders", partitions=1)
    with cluster_of(memory_log) as made:
        yield made


@pytest.fixture
def nodes(cluster: Cluster, memory_log: MemoryLog) -> list[Node]:
    """Two coordinators that may place such transactions; the topic is in metadata mode."""
    found = [cluster.join() for _ in range(2)]
    cluster.settled()
    with closing(AdminQueries(memory_log, timeout_s=10.0)) as admin:
        admin.set_topic_mode("orders", Mode.METADATA, transaction_group="default")
    return found


def reads(nodes: list[Node], node: Node, version: int) -> None:
    """Lets a coordinator tell the others up to which version it reads journals."""
    ownership = node.coordinator._ownership
    assert ownership is not None
    ownership.peers._me = lambda: replace(ownership.me(), journal_format=version)
    node.loop.call_soon_threadsafe(ownership.peers.tell)
    for other in nodes:
        members = other.coordinator._sidecars.members
        assert members is not None
        until(
            lambda members=members, other=other: (
                other is node
                or [m.journal_format for m in members.reached(time.monotonic())] == [version]
            )
        )


def older(cluster: Cluster, nodes: list[Node]) -> Node:
    """Returns the coordinator that does not serve what the producer writes to."""
    owner = cluster.owner(journal_partition_of("default", PARTITIONS))
    return next(node for node in nodes if node is not owner)


@pytest.fixture
def producer(nodes: list[Node], memory_log: MemoryLog) -> Iterator[logtx.Producer]:
    assert nodes
    settings = {"bootstrap.servers": memory_log.bootstrap_servers, "coordinator.timeout.ms": 3_000}
    with logtx.Producer(settings, log=memory_log) as made:
        yield made


def test_a_commit_waits_for_builds_that_read_it(
    cluster: Cluster, nodes: list[Node], producer: logtx.Producer, memory_log: MemoryLog
) -> None:
    """One of a version before came back after the sidecar was opened."""
    txn = producer.begin_transaction(sidecar=True)
    txn.produce("orders", b"a", partition=0)
    producer.flush()
    before = older(cluster, nodes)
    reads(nodes, before, WITH_PLACED_SIDECARS - 1)
    with pytest.raises(NotSupportedError, match=f"{before.address} .*upgrade it, then abort"):
        txn.commit()
    txn.abort()
    reads(nodes, before, FORMAT_VERSION)
    with producer.begin_transaction(sidecar=True) as again:
        again.produce("orders", b"a", partition=0)
    assert memory_log.end_offset(sidecar_of("orders"), 0) >= 2
