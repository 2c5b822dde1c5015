"""Metrics of subscriptions: what is computed from what was told, and over a coordinator at work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import logtx
from logtx.consumer.share_consumer import ShareConsumer
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol.queues import (
    AcknowledgeType,
    SubscribedPartitionInfo,
    SubscriptionInfo,
)
from logtx.coordinator.server import metrics
from logtx.coordinator.server.queue_metrics import OldestSeen, depths_of
from logtx.coordinator.service import CoordinatorConfig
from logtx.journal.acks import SubscriptionKind
from logtx.journal.control import TopicPartition
from logtx.journal.errors import BrokerError, LogtxError, UnknownTopicError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.places import PartitionId
from logtx.journal.spans import MessageId

from ..clusters import until
from .test_metrics import free_port, scrape, value

P0, P1 = PartitionId("a", 0, "id"), PartitionId("a", 1, "id")


def info(*partitions: SubscribedPartitionInfo) -> SubscriptionInfo:
    return SubscriptionInfo(
        group="q",
        kind=SubscriptionKind.SHARED,
        consumers=(),
        partitions=partitions,
        redelivered=0,
        rejected=0,
    )


def part(
    partition: PartitionId, *, reached: int = 4, left: int = 1, former: bool = False
) -> SubscribedPartitionInfo:
    return SubscribedPartitionInfo(
        partition=partition,
        start=MessageId(0),
        reached=MessageId(reached),
        left=left,
        pending=0,
        leased=0,
        former=former,
    )


def test_the_depth_is_what_is_left_and_what_was_never_reached() -> None:
    found = depths_of([info(part(P0), part(P1))], {P0.key: 10, P1.key: 4})
    assert found == {"q": {P0: 7, P1: 1}}


@pytest.mark.parametrize("why", [None, BrokerError("nobody answered")])
def test_a_depth_without_an_end_is_not_told(why: LogtxError | None) -> None:
    ends: dict[TopicPartition, int | LogtxError] = {P0.key: 10}
    if why is not None:
        ends[P1.key] = why
    assert depths_of([info(part(P0), part(P1))], ends) == {}


def test_what_nobody_can_read_counts_not() -> None:
    gone = UnknownTopicError("deleted")
    assert depths_of([info(part(P0), part(P1))], {P0.key: 10, P1.key: gone}) == {"q": {P0: 7}}
    former = part(P0, former=True)
    assert depths_of([info(former, part(P1))], {P0.key: 99, P1.key: 4}) == {"q": {P1: 1}}


def test_trap_153_of_a_former_topic_nothing_is_left_though_another_one_has_its_name() -> None:
    """The coordinator has not heard of it: no consumer has attached since."""
    again = PartitionId("a", 0, "id of the new one")
    told = info(part(P0), part(again, left=2), part(PartitionId("b", 0, "id-b")))
    now = told.as_named_now({"a": again.topic_id})
    assert [each.former for each in now.partitions] == [True, False, False]
    assert depths_of([now], {P0.key: 5, ("b", 0): 4})["q"][again] == 3
    assert depths_of([told], {P0.key: 5, ("b", 0): 4})["q"].keys() > {P0}
    assert told.as_named_now({}) == told, "nobody tells of ids"


def test_the_oldest_is_what_stood_still_for_longest() -> None:
    seen, at = OldestSeen(), MessageId
    assert seen.look({("q", P0): at(3), ("q", P1): at(5)}, 1_000) == {"q": 0.0}
    assert seen.look({("q", P0): at(3), ("q", P1): at(6)}, 4_000) == {"q": 3.0}
    assert seen.look({("q", P0): at(4), ("q", P1): at(6)}, 5_000) == {"q": 1.0}
    assert seen.look({}, 6_000) == {}, "it was empty for a moment: what comes now is new"
    assert seen.look({("q", P0): at(4)}, 9_000) == {"q": 0.0}


@pytest.fixture
def port() -> int:
    """Where the coordinator serves its metrics."""
    return free_port()


@pytest.fixture
def coordinator(memory_log: MemoryLog, port: int) -> Iterator[EmbeddedCoordinator]:
    """A coordinator with metrics, and a topic `orders`."""
    memory_log.create_topic("orders", partitions=1)
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=2,
        metrics_listen=f"127.0.0.1:{port}",
    )
    with EmbeddedCoordinator(config) as running:
        yield running


@pytest.mark.usefixtures("coordinator")
def test_a_queue_at_work_and_one_that_nobody_consumes(memory_log: MemoryLog, port: int) -> None:
    """The coordinator learns no end without consumers, so Kafka is asked (trap 132)."""
    series = scrape(port)
    assert value(series, "subscriptions") == 0
    settings = {
        "group.id": "q",
        "auto.offset.reset": "earliest",
        "share.acknowledgement.mode": "explicit",
    }
    with logtx.Producer({"transactional.id": "p"}, log=memory_log) as producer:
        for number in range(6):
            producer.produce("orders", b"%d" % number)
        producer.flush()
        with closing(ShareConsumer(settings, log=memory_log)) as queue:
            queue.subscribe(["orders"])
            messages: list[Any] = []

            def all_came() -> bool:
                messages.extend(queue.poll(0.2))
                return len(messages) == 6

            until(all_came)
            queue.acknowledge(messages[0])
            queue.acknowledge(messages[1], AcknowledgeType.REJECT)
            queue.commit_sync()
            txn = producer.begin_transaction()
            queue.acknowledge(messages[2], txn=txn)
            until(lambda: value(scrape(port), "subscription_pending_offsets") == 1)
            series = scrape(port)
            names = ("depth", "pending", "leased")
            found = {n: value(series, f"subscription_{n}_offsets", subscription="q") for n in names}
            assert found == {"depth": 4, "pending": 1, "leased": 3}
            assert value(series, "subscription_rejected_offsets_total", subscription="q") == 1
            assert value(series, "subscription_consumers", subscription="q") == 1
            txn.commit()
        for _ in range(5):
            producer.produce("orders", b"nobody is there")
        producer.flush()

        def depth() -> float:
            return value(scrape(port), "subscription_depth_offsets", subscription="q")

        # The marker of the transaction, if it wrote any, would be an offset as well.
        until(lambda: depth() == 3 + 5)
        began_s = time.monotonic()
        until(lambda: value(scrape(port), "subscription_oldest_seconds", subscription="q") > 0.2)
        assert time.monotonic() - began_s > 0.1
        assert value(scrape(port), "subscriptions") == 1
        memory_log.delete_topic("orders")
        memory_log.create_topic("orders", partitions=1)
        assert depth() == 0, "what the former one had is no more (trap 153)"


@pytest.mark.usefixtures("coordinator")
def test_very_many_have_no_series(
    memory_log: MemoryLog, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "SUBSCRIPTIONS_MAX", 1)
    for name in ("b", "a"):
        with closing(ShareConsumer({"group.id": name}, log=memory_log)) as queue:
            queue.subscribe(["orders"])
            queue.poll(0.0)
    until(lambda: value(scrape(port), "subscriptions") == 2)
    series = scrape(port)
    assert value(series, "subscriptions_left_out") == 1
    shown = {dict(labels).get("subscription") for name, labels in series if "depth" in name}
    assert shown == {"a"}
