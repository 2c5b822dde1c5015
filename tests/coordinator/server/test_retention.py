"""The retention guard: an open transaction ends before the broker deletes its data, not after."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, KafkaException

from logtx.coordinator.core.decision import TopicFacts
from logtx.coordinator.protocol import commands
from logtx.coordinator.server.retention import (
    Limits,
    PartitionView,
    RetentionConfig,
    RetentionGuard,
    Threat,
    assess,
)
from logtx.journal.errors import BrokerError, ConfigError, TransactionAbortedError
from logtx.journal.logs.interface import Log
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.records.types import AbortReason
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ..harness import Coordinator, Journal

CONFIG = RetentionConfig(warn_share=0.5, abort_share=0.8)
HOUR_MS = 3_600_000
AN_HOUR: Final = Limits(retention_ms=HOUR_MS)


def view(
    *,
    start: int = 0,
    end: int = 100,
    warn_keeps: int | None = 0,
    abort_keeps: int | None = 0,
    limits: Limits = AN_HOUR,
    record_bytes: float = 0,
) -> PartitionView:
    """Returns a partition in which nothing is in danger, except for what the test changes."""
    return PartitionView(
        start=start,
        end=end,
        warn_keeps=warn_keeps,
        abort_keeps=abort_keeps,
        limits=limits,
        record_bytes=record_bytes,
    )


@pytest.mark.parametrize(
    ("found", "threat"),
    [
        (view(), Threat.NONE),
        (view(start=50), Threat.NONE),
        (view(start=51), Threat.GONE),
        # A younger record before the data, or the data itself, keeps the segment.
        (view(warn_keeps=50, abort_keeps=50), Threat.NONE),
        (view(warn_keeps=51), Threat.NEAR),
        (view(warn_keeps=None), Threat.NEAR),
        (view(warn_keeps=None, abort_keeps=51), Threat.DUE),
        (view(warn_keeps=None, abort_keeps=None), Threat.DUE),
        (view(warn_keeps=None, abort_keeps=None, limits=Limits()), Threat.NONE),
    ],
)
def test_threats_by_time(found: PartitionView, threat: Threat) -> None:
    assert assess(50, found, CONFIG) is threat


@pytest.mark.parametrize(
    ("found", "threat"),
    [
        # 50 records of 10 bytes lie behind the data: the second half of the log.
        (view(limits=Limits(retention_bytes=10_000), record_bytes=10), Threat.NONE),
        (view(limits=Limits(retention_bytes=1_000), record_bytes=10), Threat.NEAR),
        (view(start=40, limits=Limits(retention_bytes=1_000), record_bytes=10), Threat.NEAR),
        (view(start=40, limits=Limits(retention_bytes=600), record_bytes=10), Threat.DUE),
        # Much of the log lies before the data: it is deleted first, whatever the estimate says.
        (view(limits=Limits(retention_bytes=1), record_bytes=10), Threat.NEAR),
        (view(start=0, end=60, limits=Limits(retention_bytes=1), record_bytes=10), Threat.NONE),
        (view(limits=Limits(), record_bytes=10), Threat.NONE),
    ],
)
def test_threats_by_size(found: PartitionView, threat: Threat) -> None:
    assert assess(50, found, CONFIG) is threat


@pytest.mark.parametrize(("warn", "abort"), [(0, 0.5), (0.9, 0.8), (0.5, 1.1)])
def test_shares_that_make_no_sense(warn: float, abort: float) -> None:
    with pytest.raises(ConfigError, match="warn"):
        RetentionConfig(warn_share=warn, abort_share=abort)


class Stage:
    """A shard with one open transaction, and its guard."""

    def __init__(self, log: Log, topic: str, config: RetentionConfig = CONFIG) -> None:
        self.log, self.topic = log, topic
        self.coordinator = Coordinator(Journal())
        self.coordinator.take_over()
        info = log.topic_info(topic)
        self.coordinator.topics[topic] = TopicFacts(
            topic_id=info.topic_id, partition_count=1, record_max_bytes=1_000_000
        )
        self.refs = 0
        self.session = commands.SessionId("p", 0, 1)
        self.ask(commands.Connect(producer_id="p", nonce=1))
        begun = self.ask(
            commands.Begin(session=self.session, request_id=1, answered_below=0, timeout_ms=60_000)
        )
        assert isinstance(begun, commands.Began)
        self.txid: TxId = begun.txid
        self.guard = RetentionGuard(log, lambda: [self.coordinator.shard], self.do, config)

    def do(self, command: commands.Command) -> None:
        """Submits a command without waiting for its answer."""
        self.ask(command)

    def ask(self, command: commands.Command) -> commands.Reply:
        """Submits a command; returns its answer."""
        self.refs += 1
        self.coordinator.submit(command, self.refs)
        self.coordinator.ack()
        return self.coordinator.replies[self.refs]

    def tell(self, first_offset: int) -> None:
        """Lets the producer tell where it began to write."""
        partition = self.topic, 0
        told = {partition: first_offset}
        command = commands.AddPartitions(
            txid=self.txid, partitions=(partition,), session=self.session, first_offsets=told
        )
        assert self.ask(command) == commands.Done()

    def check(self) -> None:
        """Lets the guard look once."""
        asyncio.run(self.guard.check())

    @property
    def reason(self) -> AbortReason | None:
        """Returns why the transaction is being aborted, if it is."""
        found = self.coordinator.shard.transactions.get(self.txid.offset)
        assert found is not None
        assert (found.state is State.ABORTING) == (found.reason is not None)
        return found.reason


def write(log: Log, topic: str, *ages_ms: int, value: bytes = b"x") -> None:
    """Writes records whose timestamps have these ages."""
    producer = log.producer({})
    now_ms = time.time_ns() // 1_000_000
    for age_ms in ages_ms:
        producer.produce(topic, value, partition=0, timestamp=now_ms - age_ms)
    assert producer.flush(10) == 0
    producer.close()


@pytest.fixture
def topic(memory_log: MemoryLog) -> str:
    """A topic that keeps records for an hour."""
    memory_log.create_topic("d", partitions=1, settings={"retention.ms": str(HOUR_MS)})
    return "d"


def test_first_offsets_are_kept_the_lowest_of_several_writers(
    memory_log: MemoryLog, topic: str
) -> None:
    stage = Stage(memory_log, topic)
    for told, known in ((7, 7), (9, 7), (5, 5), (5, 5)):
        stage.tell(told)
        shard = stage.coordinator.journal.load()
        transaction = shard.transactions.get(stage.txid.offset)
        assert transaction is not None
        assert transaction.partitions[topic, 0].first_offset == known
    appended = [type(e.record).__name__ for e in stage.coordinator.journal.entries]
    assert appended.count("AddPartitions") == 2, "what is known already is not written again"


def test_near_is_said_once_and_due_is_aborted(
    memory_log: MemoryLog, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(memory_log, topic, HOUR_MS * 6 // 10)
    stage = Stage(memory_log, topic)
    stage.tell(0)
    with caplog.at_level(logging.WARNING):
        stage.check()
        stage.check()
    assert [r.getMessage().split()[0] for r in caplog.records] == ["retention_near"]
    assert str(stage.txid) in caplog.text
    assert stage.reason is None

    memory_log.delete_topic(topic)
    memory_log.create_topic(topic, partitions=1, settings={"retention.ms": str(HOUR_MS)})
    write(memory_log, topic, HOUR_MS * 9 // 10)
    stage.check()
    assert stage.reason is AbortReason.RETENTION
    reply = stage.ask(
        commands.End(
            session=stage.session, txid=stage.txid, action=commands.Action.COMMIT, writes={}
        )
    )
    assert isinstance(reply, TransactionAbortedError)
    assert "retention" in str(reply)


def test_young_records_before_old_ones_keep_them(memory_log: MemoryLog, topic: str) -> None:
    # A backfill writes events of last week into a topic that is written to now.
    write(memory_log, topic, 0, HOUR_MS * 100, HOUR_MS * 100)
    stage = Stage(memory_log, topic)
    stage.tell(1)
    stage.check()
    assert stage.reason is None


def test_data_that_is_gone_ends_the_transaction_at_once(
    memory_log: MemoryLog, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(memory_log, topic, 0, 0, 0)
    stage = Stage(memory_log, topic)
    stage.tell(1)
    memory_log.delete_records(topic, 0, 1)
    stage.check()
    assert stage.reason is None
    memory_log.delete_records(topic, 0, 2)
    stage.check()
    assert stage.reason is AbortReason.RETENTION
    assert "retention_lost" in caplog.text


def test_a_log_near_its_size_ends_what_lies_at_its_start(memory_log: MemoryLog) -> None:
    memory_log.create_topic(
        "s", partitions=1, settings={"retention.ms": "-1", "retention.bytes": "10000"}
    )
    stage = Stage(memory_log, "s")
    stage.tell(0)
    write(memory_log, "s", *[0] * 20, value=bytes(100))
    stage.check()
    assert stage.reason is None
    write(memory_log, "s", *[0] * 40, value=bytes(100))
    stage.check()
    assert stage.reason is AbortReason.RETENTION


def test_what_nobody_told_an_offset_of_is_left_alone(memory_log: MemoryLog, topic: str) -> None:
    write(memory_log, topic, HOUR_MS * 2)
    stage = Stage(memory_log, topic)
    partition = topic, 0
    stage.ask(
        commands.AddPartitions(txid=stage.txid, partitions=(partition,), session=stage.session)
    )
    stage.check()
    assert stage.reason is None


def test_the_data_of_a_deleted_topic_is_nobodys_any_more(memory_log: MemoryLog, topic: str) -> None:
    write(memory_log, topic, HOUR_MS * 2)
    stage = Stage(memory_log, topic)
    stage.tell(0)
    memory_log.delete_topic(topic)
    stage.check()
    assert stage.reason is None


@pytest.mark.parametrize(
    "error",
    [BrokerError("no leader"), KafkaException(KafkaError(KafkaError._FAIL))],
    ids=["broker", "kafka"],
)
def test_finding_20_a_partition_that_does_not_answer_is_left_for_a_while(
    memory_log: MemoryLog, topic: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    write(memory_log, topic, HOUR_MS * 2)
    memory_log.create_topic("other", partitions=1, settings={"retention.ms": str(HOUR_MS)})
    dead, other = Stage(memory_log, "other"), Stage(memory_log, topic)
    dead.tell(0)
    other.tell(0)
    both = [dead.coordinator.shard, other.coordinator.shard]
    guard = RetentionGuard(memory_log, lambda: both, other.do, CONFIG)
    asked = []
    start_offset = memory_log.start_offset

    def no_leader(topic: str, partition: int, *, timeout_s: float) -> int:
        asked.append(topic)
        if topic == "other":
            raise error
        return start_offset(topic, partition, timeout_s=timeout_s)

    monkeypatch.setattr(memory_log, "start_offset", no_leader)
    for _ in range(3):
        asyncio.run(guard.check())
    assert asked.count("other") == 1
    assert other.reason is AbortReason.RETENTION
    guard.close()


@pytest.mark.kafka
def test_on_kafka_the_guard_speaks_before_the_data_goes(
    logtx_kafka: Any, unique: Callable[[str], str]
) -> None:
    log = KafkaLog({"bootstrap.servers": logtx_kafka.bootstrap_servers})
    mixed, old = unique("mixed"), unique("old")
    for topic in (mixed, old):
        log.create_topic(topic, partitions=1, settings={"retention.ms": str(HOUR_MS)})
    # All in one segment: a young record keeps the older ones in it.
    write(log, mixed, HOUR_MS // 10, HOUR_MS * 9 // 10, 0)
    write(log, old, HOUR_MS * 9 // 10)
    kept, due, lost = Stage(log, mixed), Stage(log, old), Stage(log, mixed)
    for stage, first_offset in ((kept, 1), (due, 0), (lost, 1)):
        stage.tell(first_offset)
    kept.check()
    assert kept.reason is None
    due.check()
    assert due.reason is AbortReason.RETENTION
    log.delete_records(mixed, 0, 2)
    lost.check()
    assert lost.reason is AbortReason.RETENTION
    log.close()
