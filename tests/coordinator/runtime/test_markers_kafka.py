"""Marker order on a real broker that refuses markers for a while: see `runtime/markers.py`."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from logtx.coordinator.client.session import CoordinatorClient, SessionOptions
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol.commands import Action, Outcome
from logtx.coordinator.service import CoordinatorConfig
from logtx.journal.control import TXCTL_HEADER, BranchRange, Marker, decode_control
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.reader import read_records

TRANSACTIONS = 3_000
TIMEOUT_S = 20


def set_cleanup_policy(servers: str, topic: str, policy: str) -> None:
    """Alters a topic on the broker."""
    admin = AdminClient({"bootstrap.servers": servers})
    entry = ConfigEntry(
        name="cleanup.policy", value=policy, incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(timeout=10)


@pytest.mark.kafka
def test_first_markers_keep_their_order_while_the_broker_refuses_some(
    logtx_kafka: Any, unique: Callable[[str], str]
) -> None:
    servers, topic = logtx_kafka.bootstrap_servers, unique("refusing")
    log = KafkaLog({"bootstrap.servers": servers})
    log.create_topic(topic, partitions=2)
    config = CoordinatorConfig(
        bootstrap_servers=servers, listen="127.0.0.1:0", journal_partitions=4
    )
    with EmbeddedCoordinator(config):
        client = CoordinatorClient(
            log, SessionOptions(producer_id=unique("producer"), timeout_s=TIMEOUT_S)
        )
        client.connect()
        outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
        writes = {(topic, p): (BranchRange(0, 0, 0, 1),) for p in (0, 1)}

        def on_begin(reply: Any) -> None:
            client.end(reply.txid, Action.COMMIT, writes, outcomes.put)

        # The coordinator looks the topic up now, and believes that for a while.
        client.begin(on_begin, timeout_ms=60_000)
        first = outcomes.get(timeout=TIMEOUT_S)
        for number in range(TRANSACTIONS):
            client.begin(on_begin, timeout_ms=60_000)
            if number % 1_000 == 500:
                # A compacted topic refuses records without a key, and the batches that they are in.
                set_cleanup_policy(servers, topic, "compact")
                time.sleep(0.2)
                set_cleanup_policy(servers, topic, "delete")
        replies = [outcomes.get(timeout=TIMEOUT_S) for _ in range(TRANSACTIONS)]
        assert all(isinstance(r, Outcome) for r in [first, *replies]), replies[:3]
        decided = sorted(r.commit_sequence for r in [first, *replies])
        for partition in (0, 1):
            assert _first_markers(log, topic, partition, decided[-1]) == decided
        client.close()
    log.close()


def _first_markers(log: KafkaLog, topic: str, partition: int, last: int) -> list[int]:
    """Returns commit sequences in the order of their first markers, up to `last`."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found: dict[int, None] = {}
        end = log.end_offset(topic, partition)
        for message in read_records(log, topic, partition, 0, end, timeout_s=10):
            control = decode_control(dict(message.headers() or [])[TXCTL_HEADER])
            assert isinstance(control, Marker)
            found[control.commit_sequence] = None
        if last in found:
            return list(found)
        assert time.monotonic() < deadline, f"{len(found)} markers of {topic}[{partition}]"
        time.sleep(0.1)
