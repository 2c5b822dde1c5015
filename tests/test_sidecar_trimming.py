"""Sidecars are trimmed by coordinators at work, and nothing that a reader needs is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import TopicPartition as KafkaPartition

import logtx
from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.server import trimming
from logtx.coordinator.server.sidecars import REQUIRED
from logtx.coordinator.server.trimming import SidecarConfig
from logtx.coordinator.service import CoordinatorConfig
from logtx.integration.inspect.audit import run_audit
from logtx.integration.inspect.sums import sum_up
from logtx.journal.control import TXID_HEADER
from logtx.journal.errors import BrokerError, ConfigError
from logtx.journal.logs.interface import Log
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Mode
from logtx.journal.sidecar import sidecar_of
from logtx.journal.txid import TxId

from .coordinator.clusters import Node, until
from .test_end_to_end import MakeTopic, consumer, values
from .test_sidecars import committed

__all__ = ["consumer"]
MakeConsumer = Callable[..., logtx.Consumer]
DELAY_MS = 300


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """A log in memory: it has but one leader, so one look is enough."""
    return memory_log


@pytest.fixture
def node(log: MemoryLog) -> Iterator[Node]:
    """A coordinator that trims soon."""
    made = Node(log, sidecars=SidecarConfig(trim_delay_ms=DELAY_MS))
    yield made
    made.kill()


@pytest.fixture
def servers(log: MemoryLog, node: Node) -> dict[str, Any]:
    """Settings of every client."""
    assert node.address
    return {"bootstrap.servers": log.bootstrap_servers}


@pytest.fixture
def producer(servers: dict[str, Any]) -> Iterator[logtx.Producer]:
    """A producer that has no transaction open but those of the test."""
    with logtx.Producer({**servers, "transaction.begin.ahead": False}) as made:
        yield made


def start(log: Log, topic: str) -> int:
    """Where a topic's sidecar starts."""
    return log.start_offset(sidecar_of(topic), 0)


def looks(node: Node, count: int = 3) -> None:
    """Waits until it has noted so many checkpoints from now on, and used the first."""
    trimmer = node.coordinator._trimmer
    assert trimmer is not None
    seen: list[object] = []

    def noted_and_passed() -> bool:
        core = trimmer._core
        newest = core._waiting[-1] if core._waiting else core._passed
        if newest is not None and newest not in seen:
            seen.append(newest)
        return len(seen) > count and core._passed in seen

    until(noted_and_passed)


def test_what_was_aborted_goes_and_the_topic_was_never_touched(
    log: MemoryLog, producer: logtx.Producer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    txn = producer.begin_transaction(sidecar=True)
    for number in range(50):
        txn.produce(topic, str(number), partition=0)
    producer.flush(10)
    txn.abort()
    until(lambda: start(log, topic) == log.end_offset(sidecar_of(topic), 0) == 51)
    assert log.end_offset(topic, 0) == 0


def test_what_pointers_name_stays_until_retention_took_them(
    log: MemoryLog,
    node: Node,
    producer: logtx.Producer,
    consumer: MakeConsumer,
    make_topic: MakeTopic,
) -> None:
    topic = make_topic()
    for number in range(4):
        committed(producer, topic, *(f"{number} {each}" for each in range(5)), finished=True)
    # Six offsets each, of which the last is the marker.
    looks(node)
    assert start(log, topic) == 0
    for gone in range(1, 4):
        log.delete_records(topic, 0, gone)
        until(lambda gone=gone: start(log, topic) == 6 * gone)
        expected = [f"{n} {each}".encode() for n in range(gone, 4) for each in range(5)]
        assert values(consumer(topic), len(expected)) == expected
    log.delete_records(topic, 0, 4)
    until(lambda: start(log, topic) == 24)


def test_an_open_transaction_holds_its_records_and_all_that_came_later(
    log: MemoryLog,
    node: Node,
    producer: logtx.Producer,
    consumer: MakeConsumer,
    make_topic: MakeTopic,
) -> None:
    topic = make_topic()
    open_ = producer.begin_transaction(sidecar=True)
    open_.produce(topic, "open", partition=0)
    producer.flush(10)
    aborted = producer.begin_transaction(sidecar=True)
    aborted.produce(topic, "aborted", partition=0)
    producer.flush(10)
    aborted.abort()
    trimmer = node.coordinator._trimmer
    assert trimmer is not None
    until(lambda: trimmer.counters.held_ms > 2 * DELAY_MS)
    assert start(log, topic) == 0
    open_.produce(topic, "and more", partition=0)
    open_.commit()
    assert values(consumer(topic), 2) == [b"open", b"and more"]
    until(lambda: trimmer.counters.held_ms == 0)
    log.delete_records(topic, 0, 1)
    until(lambda: start(log, topic) == log.end_offset(sidecar_of(topic), 0))
    assert trimmer.counters.trimmed == start(log, topic)


@pytest.mark.parametrize("commits", [True, False])
def test_one_whose_marker_is_refused_holds_back_what_it_has_in_sidecars_alone(
    log: MemoryLog,
    servers: dict[str, Any],
    node: Node,
    producer: logtx.Producer,
    consumer: MakeConsumer,
    make_topic: MakeTopic,
    commits: bool,
) -> None:
    refusing, its, other = make_topic(), make_topic(), make_topic()

    def abort(topic: str) -> None:
        aborted = producer.begin_transaction(sidecar=True)
        aborted.produce(topic, "aborted", partition=0)
        producer.flush(10)
        aborted.abort()

    def end(topic: str) -> int:
        return log.end_offset(sidecar_of(topic), 0)

    abort(its)
    settings = {**servers, "transaction.begin.ahead": False, "transaction.sidecar.min.bytes": 1}
    with logtx.Producer(settings) as grows:
        refused = grows.begin_transaction()
        refused.produce(refusing, "a", partition=0)
        for value in "abc":
            refused.produce(its, value, partition=0)
        grows.flush(10)
        log._topics[refusing].compacted = True
        refused.commit() if commits else refused.abort()
        abort(its)
        abort(other)
        until(lambda: start(log, other) == end(other))
        # Its two records lie behind the first record that was aborted, and the marker of that.
        until(lambda: start(log, its) == (2 if commits else end(its)))
        looks(node)
        assert start(log, its) == (2 if commits else end(its))
        assert not grows.outcome(refused.txid).state.finished
        log._topics[refusing].compacted = False
        until(lambda: grows.outcome(refused.txid).state.finished)
    if commits:
        assert values(consumer(its), 3) == [b"a", b"b", b"c"]
        log.delete_records(its, 0, log.end_offset(its, 0))
        until(lambda: start(log, its) == end(its))


def test_a_new_coordinator_knows_what_pointers_need(
    log: MemoryLog,
    node: Node,
    producer: logtx.Producer,
    consumer: MakeConsumer,
    make_topic: MakeTopic,
) -> None:
    topic = make_topic()
    for number in range(3):
        committed(producer, topic, str(number), finished=True)
    log.delete_records(topic, 0, 1)
    other = Node(log, sidecars=SidecarConfig(trim_delay_ms=DELAY_MS))
    try:
        node.kill()
        until(lambda: start(log, topic) == 2)
        assert values(consumer(topic), 2) == [b"1", b"2"]
    finally:
        other.kill()


def test_each_sidecar_is_trimmed_by_one_of_several(
    log: MemoryLog, node: Node, producer: logtx.Producer, make_topic: MakeTopic
) -> None:
    topics = [make_topic() for _ in range(6)]
    other = Node(log, sidecars=SidecarConfig(trim_delay_ms=DELAY_MS))
    try:
        until(lambda: len(node.serving) == len(other.serving) == 2)
        txn = producer.begin_transaction(sidecar=True)
        for topic in topics:
            txn.produce(topic, "x", partition=0)
        producer.flush(10)
        txn.abort()
        until(lambda: all(start(log, topic) == 2 for topic in topics))
        trimmed = [each.coordinator._trimmer.counters.trimmed for each in (node, other)]
        assert sum(trimmed) == 12
        assert all(trimmed), "the hash of six names is not the same"
    finally:
        other.kill()


@pytest.mark.parametrize("delay_ms", [-1, 3_600_000])
def test_nothing_goes_before_the_delay(
    log: MemoryLog, servers: dict[str, Any], node: Node, make_topic: MakeTopic, delay_ms: int
) -> None:
    node.kill()
    topic = make_topic()
    config = CoordinatorConfig(
        bootstrap_servers=log.bootstrap_servers,
        listen="127.0.0.1:0",
        sidecars=SidecarConfig(trim_delay_ms=delay_ms),
    )
    ahead = {"transaction.begin.ahead": False}
    with EmbeddedCoordinator(config), logtx.Producer({**servers, **ahead}) as made:
        txn = made.begin_transaction(sidecar=True)
        txn.produce(topic, "x", partition=0)
        made.flush(10)
        txn.abort()
        with pytest.raises(AssertionError):
            until(lambda: start(log, topic) > 0, timeout_s=1.0)


def test_a_delay_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="-1, which deletes nothing"):
        SidecarConfig(trim_delay_ms=-2)


def test_records_of_a_journal_that_is_gone_stay(
    log: MemoryLog,
    node: Node,
    producer: logtx.Producer,
    make_topic: MakeTopic,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = make_topic()
    sidecar = sidecar_of(topic)
    log.create_topic(sidecar, partitions=1, settings=dict(REQUIRED))
    former = TxId(0, 7, 3).to_bytes()
    log.append_directly(sidecar, 0, b"no transaction's", None, [], 1_000)
    log.append_directly(sidecar, 0, b"needed by a pointer", None, [(TXID_HEADER, former)], 1_000)
    with caplog.at_level(logging.WARNING, trimming.__name__):
        aborted = producer.begin_transaction(sidecar=True)
        aborted.produce(topic, "x", partition=0)
        producer.flush(10)
        aborted.abort()
        until(lambda: "whose journal is gone" in caplog.text)
    looks(node)
    assert start(log, topic) == 0
    # By hand, as the message says.
    log.delete_records(sidecar, 0, 2)
    node.coordinator._trimmer._left_alone.clear()
    until(lambda: start(log, topic) == 4)


def test_trap_127_a_sidecar_that_was_created_anew_is_not_trimmed_by_what_was_noted_before(
    log: MemoryLog, node: Node, producer: logtx.Producer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    open_ = producer.begin_transaction(sidecar=True)
    open_.produce(topic, "keeps checkpoints waiting", partition=0)
    producer.flush(10)
    trimmer = node.coordinator._trimmer
    until(lambda: trimmer.counters.held_ms > 0)
    log.delete_topic(sidecar_of(topic))
    log.create_topic(sidecar_of(topic), partitions=1, settings=dict(REQUIRED))
    for number in range(3):
        log.append_directly(sidecar_of(topic), 0, str(number).encode(), None, [], 1_000)
    kept: list[int] = []
    note = trimmer._note

    async def nothing_new() -> None:
        kept.append(log.start_offset(sidecar_of(topic), 0))

    trimmer._note = nothing_new
    open_.abort()
    until(lambda: len(trimmer._core._waiting) == 0 and len(kept) > 3)
    assert set(kept) == {0}
    trimmer._note = note
    until(lambda: start(log, topic) == log.end_offset(sidecar_of(topic), 0))


def test_a_log_that_refuses_is_asked_again_later(
    log: MemoryLog,
    node: Node,
    producer: logtx.Producer,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(trimming, "RETRY_S", 0.2)
    asked = []
    delete = MemoryLog.delete_records

    def refuse(self: MemoryLog, topic: str, *args: Any, **named: Any) -> None:
        asked.append(topic)
        if len(asked) < 3:
            raise BrokerError("not authorized")
        delete(self, topic, *args, **named)

    monkeypatch.setattr(MemoryLog, "delete_records", refuse)
    topic = make_topic()
    with caplog.at_level(logging.WARNING, trimming.__name__):
        aborted = producer.begin_transaction(sidecar=True)
        aborted.produce(topic, "x", partition=0)
        producer.flush(10)
        aborted.abort()
        until(lambda: start(log, topic) == 2)
    assert node.coordinator._trimmer.counters.failed == 2
    assert caplog.text.count("sidecar_not_trimmed") == 2


def test_a_sidecar_with_a_retention_is_told_once(
    log: MemoryLog,
    node: Node,
    producer: logtx.Producer,
    make_topic: MakeTopic,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = make_topic()
    committed(producer, topic, "x")
    with caplog.at_level(logging.WARNING, trimming.__name__):
        log._topics[sidecar_of(topic)].settings["retention.ms"] = "1000"
        looks(node, 4)
    assert caplog.text.count("sidecar_in_danger") == 1
    assert "retention.ms=-1" in caplog.text


def test_a_sidecar_whose_topic_is_gone_is_left_alone_and_told(
    log: MemoryLog,
    node: Node,
    producer: logtx.Producer,
    make_topic: MakeTopic,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = make_topic()
    committed(producer, topic, "x")
    with caplog.at_level(logging.WARNING, trimming.__name__):
        log.delete_topic(topic)
        looks(node, 4)
        until(lambda: "sidecar_without_topic" in caplog.text)
    assert start(log, topic) == 0


def test_an_audit_finds_no_fault_with_what_was_trimmed_and_tells_what_was_trimmed_by_others(
    log: MemoryLog, producer: logtx.Producer, make_topic: MakeTopic
) -> None:
    def found(severity: str) -> set[str]:
        def sums(spans: Any) -> list[Any]:
            return [g for key, span in spans.items() for g in sum_up(log, key, span)]

        counts = run_audit(log, [topic], sums).counts
        return {check for of, check in counts if of == severity}

    topic = make_topic()
    for number in range(3):
        committed(producer, topic, *(f"{number} {each}" for each in range(5)), finished=True)
        aborted = producer.begin_transaction(sidecar=True)
        aborted.produce(topic, "aborted", partition=0)
        producer.flush(10)
        aborted.abort()
    assert found("violation") == found("unverifiable") == set()
    log.delete_records(topic, 0, 1)
    until(lambda: start(log, topic) == 8)
    assert found("violation") == set()
    assert found("unverifiable") == {"decision_markers"}
    log.delete_records(sidecar_of(topic), 0, 9)
    assert found("violation") == {"pointer_records"}


@pytest.mark.kafka
def test_kafka_deletes_what_nobody_needs(logtx_kafka: Any, unique: Callable[[str], str]) -> None:
    servers = {"bootstrap.servers": logtx_kafka.bootstrap_servers}
    ahead = {"transaction.begin.ahead": False}
    kafka = KafkaLog(servers)
    topic = unique("trimmed")
    kafka.create_topic(topic, partitions=1)
    config = CoordinatorConfig(
        bootstrap_servers=logtx_kafka.bootstrap_servers,
        listen="127.0.0.1:0",
        sidecars=SidecarConfig(trim_delay_ms=1_000),
    )
    try:
        with EmbeddedCoordinator(config), logtx.Producer({**servers, **ahead}) as made:
            for number in range(3):
                committed(made, topic, *(f"{number} {each}" for each in range(10)), finished=True)
            aborted = made.begin_transaction(sidecar=True)
            aborted.produce(topic, "aborted", partition=0)
            made.flush(10)
            aborted.abort()
            until(lambda: kafka.end_offset(topic, 0) >= 3)  # the pointers, which come behind
            kafka.delete_records(topic, 0, 2)
            until(lambda: start(kafka, topic) == 22, timeout_s=40)
            settings = {**servers, "group.id": topic, "auto.offset.reset": "earliest"}
            with logtx.Consumer(settings) as reader:
                reader.assign([KafkaPartition(topic, 0)])
                assert values(reader, 10) == [f"2 {each}".encode() for each in range(10)]
            kafka.delete_records(topic, 0, 3)
            until(lambda: start(kafka, topic) == 35, timeout_s=40)
    finally:
        kafka.close()


def test_what_is_placed_at_the_end_of_an_idle_topic_is_told(
    log: MemoryLog, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic()
    node = Node(log, sidecars=SidecarConfig(trim_delay_ms=DELAY_MS))
    settings = {"bootstrap.servers": log.bootstrap_servers, "transaction.begin.ahead": False}
    try:
        with closing(AdminQueries(log, timeout_s=10)) as admin:
            admin.set_topic_mode(topic, Mode.METADATA, transaction_group="default")
        with caplog.at_level(logging.WARNING), logtx.Producer(settings) as producer:
            committed(producer, topic, "x")
            until(lambda: "sidecar_does_not_age" in caplog.text)
            counters = node.coordinator._trimmer.counters
            assert counters.unaging_ms >= DELAY_MS
            log.producer({}).produce(topic, b"plain", partition=0)
            until(lambda: counters.unaging_ms == 0)
            log.delete_records(topic, 0, log.end_offset(topic, 0))
            until(lambda: start(log, topic) > 0)
        assert caplog.text.count("sidecar_does_not_age") == 1
    finally:
        node.kill()
