"""Rules for topics that are created later, on coordinators that apply them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError

import logtx
from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.client.rules import PublishedRules
from logtx.coordinator.protocol import requests
from logtx.coordinator.server import rules
from logtx.journal.errors import BrokerError, ConfigError, LogtxError, NotSupportedError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.mode_rules import ModeRule
from logtx.journal.modes import MODES_TOPIC, Mode, Phase

from ..clusters import Cluster, cluster_of, until

TIMEOUT_S: Final = 10.0
QUIET_S: Final = 0.3
"""How long nothing must happen."""


@pytest.fixture
def cluster(memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Two coordinators that look for rules soon."""
    monkeypatch.setattr(rules, "PAUSE_S", 0.02)
    monkeypatch.setattr(rules, "RETRY_S", 0.1)
    with cluster_of(memory_log) as made:
        made.joined(2)
        yield made


@pytest.fixture
def admin(memory_log: MemoryLog) -> Iterator[AdminQueries]:
    """An operator."""
    with closing(AdminQueries(memory_log, timeout_s=TIMEOUT_S)) as asking:
        yield asking


@pytest.fixture
def producer(memory_log: MemoryLog, cluster: Cluster) -> Iterator[logtx.Producer]:
    """Writes in the transaction group `shipping`."""
    assert cluster
    servers = {"bootstrap.servers": memory_log.bootstrap_servers}
    with logtx.Producer({**servers, "transaction.group": "shipping"}) as made:
        yield made


def write(producer: logtx.Producer, topic: str) -> None:
    with producer.begin_transaction() as txn:
        txn.produce(topic, b"x", b"key", partition=0)


def phase(admin: AdminQueries, topic: str) -> Phase:
    return admin.describe_topic(topic).info.phase


def is_placed(admin: AdminQueries, topic: str) -> bool:
    told = admin.describe_topic(topic)
    return told.info.phase is Phase.METADATA and told.info.published


def test_a_topic_that_is_created_later_is_switched_by_the_longest_rule(
    memory_log: MemoryLog, admin: AdminQueries, producer: logtx.Producer
) -> None:
    admin.set_topic_rule("*", Mode.METADATA, "others")
    admin.set_topic_rule("orders.*", Mode.METADATA, "shipping")
    admin.set_topic_rule("orders.eu.*", Mode.MARKERS)
    for topic in ("orders.us", "orders.eu.x", "payments"):
        memory_log.create_topic(topic, partitions=2)
        write(producer, topic)
    until(lambda: is_placed(admin, "orders.us") and is_placed(admin, "payments"))
    assert admin.describe_topic("orders.us").transaction_group == "shipping"
    assert admin.describe_topic("payments").transaction_group == "others"
    time.sleep(QUIET_S)
    assert admin.describe_topic("orders.eu.x").transaction_group is None
    end = memory_log.end_offset("orders.us", 0)
    write(producer, "orders.us")
    until(lambda: not admin.describe_topic("orders.us").info.waiting)
    assert memory_log.end_offset("orders.us", 0) == end + 1, "the record, and no marker"
    assert set(admin.describe_topic("orders.us").info.last) == {0}


def test_what_an_operator_said_of_a_topic_counts_more(
    memory_log: MemoryLog, admin: AdminQueries, cluster: Cluster, producer: logtx.Producer
) -> None:
    for topic in ("there", "back"):
        memory_log.create_topic(topic, partitions=1)
    admin.set_topic_mode("there", Mode.METADATA, transaction_group="shipping")
    admin.set_topic_mode("back", Mode.METADATA, transaction_group="shipping")
    admin.set_topic_mode("back", Mode.MARKERS)
    admin.set_topic_rule("*", Mode.METADATA, "others")
    for node in list(cluster.nodes):  # The next ones have not come across any topic yet.
        node.kill()
        cluster.joined(1)
    for topic in ("there", "back"):
        write(producer, topic)
    time.sleep(QUIET_S)
    assert phase(admin, "there") is Phase.METADATA
    assert phase(admin, "back") is Phase.MARKERS
    assert admin.describe_topic("back").transaction_group == "shipping"


def test_a_topic_that_is_created_anew_is_a_later_one(
    memory_log: MemoryLog, admin: AdminQueries, producer: logtx.Producer
) -> None:
    admin.set_topic_rule("t*", Mode.METADATA, "shipping")
    memory_log.create_topic("t", partitions=1)
    write(producer, "t")
    until(lambda: is_placed(admin, "t"))
    former = admin.describe_topic("t").info
    memory_log.delete_topic("t")
    memory_log.create_topic("t", partitions=1)

    def is_switched_again() -> bool:
        try:
            write(producer, "t")
        except LogtxError:
            return False  # Its coordinator has not heard of the new one yet.
        now = admin.describe_topic("t").info
        return now.mode_offset > former.mode_offset and now.phase is Phase.METADATA

    until(is_switched_again)
    assert admin.describe_topic("t").info.topic_id != former.topic_id


def test_a_rule_that_was_removed_is_none(
    memory_log: MemoryLog, admin: AdminQueries, producer: logtx.Producer
) -> None:
    published = PublishedRules(memory_log)
    assert published.read() == {}, "without the topic there are none"
    admin.set_topic_rule("t*", Mode.METADATA, "shipping")
    assert published.read() == {"t*": ModeRule("t*", Mode.METADATA, "shipping")}
    for _ in range(2):
        admin.set_topic_rule("t*", None)
    assert published.read() == {}
    memory_log.create_topic("t", partitions=1)
    write(producer, "t")
    time.sleep(QUIET_S)
    assert admin.describe_topic("t").transaction_group is None


def test_a_topic_that_takes_no_transactions_is_left_alone(
    memory_log: MemoryLog,
    admin: AdminQueries,
    producer: logtx.Producer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    admin.set_topic_rule("t*", Mode.METADATA, "shipping")
    memory_log.create_topic("table", partitions=1, settings={"cleanup.policy": "compact"})
    with caplog.at_level(logging.WARNING), pytest.raises(LogtxError, match="compacted"):
        write(producer, "table")
    until(lambda: "rule_not_applied topic=table" in caplog.text)
    time.sleep(QUIET_S)
    assert caplog.text.count("rule_not_applied") <= 2, "once by each coordinator"


def test_rules_that_can_not_be_read_are_read_later(
    memory_log: MemoryLog,
    admin: AdminQueries,
    producer: logtx.Producer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    admin.set_topic_rule("t*", Mode.METADATA, "shipping")
    read = PublishedRules.read

    def fails(_: PublishedRules) -> None:
        raise BrokerError("no answer")

    monkeypatch.setattr(PublishedRules, "read", fails)
    memory_log.create_topic("t", partitions=1)
    with caplog.at_level(logging.WARNING):
        write(producer, "t")
        until(lambda: "rules_not_read" in caplog.text)
    monkeypatch.setattr(PublishedRules, "read", read)
    until(lambda: is_placed(admin, "t"))


@pytest.mark.parametrize(
    ("rule", "mode", "group", "why"),
    [
        ("t", None, "", "is no rule"),
        ("t*", Mode.METADATA, "", "name a transaction group"),
        ("t*", Mode.MARKERS, "g", "name a transaction group"),
    ],
)
def test_what_is_no_rule_is_refused(
    rule: str,
    mode: Mode | None,
    group: str,
    why: str,
    admin: AdminQueries,
    cluster: Cluster,
    memory_log: MemoryLog,
) -> None:
    assert cluster
    with pytest.raises(ConfigError, match=why):
        admin.set_topic_rule(rule, mode, group)
    assert MODES_TOPIC not in memory_log.topics()


def test_a_coordinator_that_knows_no_rules_is_to_be_upgraded(
    admin: AdminQueries, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster
    monkeypatch.delitem(requests._BY_KIND, "set_topic_rule")
    with pytest.raises(NotSupportedError, match="upgrade all coordinators, then set the rule"):
        admin.set_topic_rule("t*", Mode.METADATA, "shipping")


def test_a_client_that_may_not_read_rules_goes_on_without_them(
    memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = KafkaError.TOPIC_AUTHORIZATION_FAILED

    def refused(*_: Any, **__: Any) -> int:
        raise BrokerError("grant DESCRIBE", kafka_code=code)

    monkeypatch.setattr(memory_log, "partition_count", refused)
    published = PublishedRules(memory_log)
    assert published.read() == {}
    assert "grant DESCRIBE" in str(published.refusal)
    code = KafkaError._TIMED_OUT
    with pytest.raises(BrokerError, match="grant DESCRIBE"):
        published.read()
