"""Transactions in sidecars of topics in metadata mode: all who read what is committed, together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

import logtx
from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.integration.inspect.audit import run_audit
from logtx.integration.inspect.sums import sum_up
from logtx.integration.spark.compacting import export_to_topic
from logtx.journal.logs.interface import Log
from logtx.journal.modes import Mode
from logtx.journal.sidecar import is_delivered_from_sidecar

from .parameters import KAFKA
from .test_end_to_end import TIMEOUT_S, MakeTopic, consumer, producer, servers, values

__all__ = ["consumer", "producer", "servers"]


@pytest.fixture(params=["memory", KAFKA])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cluster(log: Log) -> Iterator[EmbeddedCoordinator]:
    """A coordinator that places what lies in sidecars."""
    config = CoordinatorConfig(
        bootstrap_servers=log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=4,
    )
    with EmbeddedCoordinator(config) as running:
        yield running


def written(producer: logtx.Producer, servers: dict[str, Any], topic: str) -> list[bytes]:
    """Writes transactions of all kinds. Returns what is committed, in order."""

    def commit(*names: str, **how: Any) -> None:
        txn = producer.begin_transaction(**how)
        for name in names:
            txn.produce(topic, name, key=name, partition=0)
        txn.commit(finished=True)

    commit("a1", "a2", "a3", sidecar=True)
    with logtx.Producer(servers) as plain:
        plain.produce(topic, "p", key="p", partition=0)
    commit("b1")
    aborted = producer.begin_transaction(sidecar=True)
    aborted.produce(topic, "never", key="never", partition=0)
    producer.flush(TIMEOUT_S)
    aborted.abort()
    grows = {**servers, "transaction.sidecar.min.bytes": 4, "transactional.id": f"{topic}-grows"}
    with logtx.Producer(grows) as growing:
        txn = growing.begin_transaction()
        for name in ("c1", "c2", "c3"):
            txn.produce(topic, name, key=name, partition=0)
        txn.commit(finished=True)
    commit("d1", "d2", sidecar=True)
    return [b"a1", b"a2", b"a3", b"p", b"b1", b"c1", b"c2", b"c3", b"d1", b"d2"]


def taken(topic: str, servers: dict[str, Any], group: str, count: int) -> list[tuple[bytes, bool]]:
    """Works messages off as a queue. Returns their values, and whether they lay in the sidecar."""
    settings = {**servers, "group.id": group, "auto.offset.reset": "earliest"}
    settings["share.acknowledgement.mode"] = "explicit"
    found: list[tuple[bytes, bool]] = []
    deadline_s = time.monotonic() + TIMEOUT_S
    with closing(logtx.ShareConsumer(settings)) as queue:
        queue.subscribe([topic])
        while len(found) < count:
            assert time.monotonic() < deadline_s, found
            for message in queue.poll(0.5):
                offset = message.offset()
                assert offset is not None
                found.append((message.value() or b"", is_delivered_from_sidecar(offset)))
                queue.acknowledge(message)
        assert set(queue.commit_sync().values()) == {None}
    return found


def test_all_readers_have_what_is_placed(
    transport: str,
    log: Log,
    servers: dict[str, Any],
    producer: logtx.Producer,
    consumer: Callable[..., logtx.Consumer],
    make_topic: MakeTopic,
    unique: Callable[[str], str],
) -> None:
    topic = make_topic()
    with closing(AdminQueries(log, timeout_s=TIMEOUT_S)) as admin:
        admin.set_topic_mode(topic, Mode.METADATA, transaction_group="default", timeout_s=60)
    wanted = written(producer, servers, topic)
    assert values(consumer(topic), len(wanted)) == wanted
    in_order = [value for value in wanted if value != b"p"]
    assert values(consumer(topic, isolation_level="serializable"), len(in_order)) == in_order
    shown = values(consumer(topic, isolation_level="read_uncommitted"), len(wanted))
    assert sorted(shown) == sorted(wanted)

    found = taken(topic, servers, unique("queue"), len(wanted))
    assert sorted(value for value, _ in found) == sorted(wanted)
    aside = {value for value, is_aside in found if is_aside}
    assert {b"a1", b"a2", b"a3", b"c3", b"d1", b"d2"} <= aside
    assert not aside & {b"p", b"b1", b"c1"}

    if transport == "memory":
        return  # It has no transactions of its own, which an export needs.
    latest = unique("latest")
    export_to_topic(topic=topic, to_topic=latest, bootstrap_servers=log.bootstrap_servers)
    assert values(consumer(latest), len(wanted)) == wanted


def test_the_audit_finds_nothing(
    log: Log, servers: dict[str, Any], producer: logtx.Producer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    with closing(AdminQueries(log, timeout_s=TIMEOUT_S)) as admin:
        admin.set_topic_mode(topic, Mode.METADATA, transaction_group="default", timeout_s=60)
    written(producer, servers, topic)

    def sums(spans: Any) -> list[Any]:
        return [each for key, span in spans.items() for each in sum_up(log, key, span)]

    report = run_audit(log, [topic], sums)
    severities = {severity for severity, _ in report.counts}
    assert not severities & {"violation", "unverifiable"}, report.findings
