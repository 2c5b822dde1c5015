"""Commits of any number of tasks and partitions, through a real coordinator."""

from __future__ import annotations

import resource
import time
from contextlib import closing

import pytest

from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.journal.control import (
    TXCTL_HEADER,
    BranchRange,
    Marker,
    TopicPartition,
    decode_control,
)
from logtx.journal.errors import RequestTooLargeError
from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC, read_entries
from logtx.journal.records.types import AddWrites, PrepareCommit
from logtx.journal.state import State
from logtx.journal.txid import TxId
from logtx.producer.core.summary import BranchSummary
from logtx.producer.producer import Producer
from logtx.producer.transaction import Transaction

WAIT_S = 120.0


def embedded(log: Log, **limits: int) -> EmbeddedCoordinator:
    config = CoordinatorConfig(
        bootstrap_servers=log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=1,
        limits=ShardConfig(**limits),
    )
    return EmbeddedCoordinator(config)


def summaries(txid: TxId, tasks: int, topic: str, partitions: int) -> list[BranchSummary]:
    """What so many tasks would report, each of which wrote to every partition."""
    return [
        BranchSummary(
            txid,
            task * 0x9E3779B97F4A7C15 % 2**64 or 1,
            {
                (topic, p): BranchRange(
                    task * 0x9E3779B97F4A7C15 % 2**64 or 1, 1_000 * task, 1_000 * task + 999, 7
                )
                for p in range(partitions)
            },
        )
        for task in range(1, tasks + 1)
    ]


def marker_of(log: Log, partition: TopicPartition) -> Marker:
    """The only record of a partition."""
    with closing(log.consumer({"group.id": "markers"})) as consumer:
        from confluent_kafka import TopicPartition as Place

        consumer.assign([Place(*partition, 0)])
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            for message in consumer.consume(1, 0.2):
                headers = dict(message.headers() or ())
                control = decode_control(headers[TXCTL_HEADER])
                assert isinstance(control, Marker)
                return control
    raise AssertionError(f"no marker in {partition}")


def await_finished(producer: Producer, txid: TxId) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while producer.outcome(txid).state is not State.COMMITTED:
        assert time.monotonic() < deadline_s, "its markers are not written"
        time.sleep(0.02)


def producer_on(log: Log) -> Producer:
    return Producer({"coordinator.timeout.ms": 30_000}, log=log)


@pytest.mark.parametrize(
    ("tasks", "partitions"),
    [(100, 500), pytest.param(2_000, 500, marks=pytest.mark.slow)],
)
def test_a_commit_of_any_number_of_tasks_and_partitions(tasks: int, partitions: int) -> None:
    log = MemoryLog.named(f"large-{tasks}")
    log.create_topic("wide", partitions=partitions)
    with embedded(log), closing(producer_on(log)) as producer:
        txn = producer.begin_transaction(timeout=600)
        made = summaries(txn.txid, tasks, "wide", partitions)
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began_s = time.monotonic()
        for summary in made:
            txn.accept(summary)
        accepted_s = time.monotonic()
        outcome = txn.commit(WAIT_S)
        committed_s = time.monotonic()
        await_finished(producer, txn.txid)
        finished_s = time.monotonic()
        grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
        end = log.end_offset(JOURNAL_TOPIC, 0)
        entries = [e for _, e in read_entries(log, 0, 0, end, timeout_s=WAIT_S)]
        parts = [e.record for e in entries if isinstance(e.record, AddWrites)]
        print(
            f"{tasks} x {partitions}: accepted in {accepted_s - began_s:.1f} s, committed in"
            f" {committed_s - accepted_s:.1f} s more, markers {finished_s - committed_s:.1f} s"
            f" later; {len(parts)} parts; {grown_kb / 1024:.0f} MiB of memory in this process"
        )
        assert parts
        [decision] = [e.record for e in entries if isinstance(e.record, PrepareCommit)]
        assert len(decision.written) == partitions
        named = sum(len(w.branches) for r in (*parts, decision) for w in r.writes)
        assert named == tasks * partitions
        for partition in (0, 1, partitions // 2, partitions - 1):
            marker = marker_of(log, ("wide", partition))
            assert marker.committed
            assert marker.commit_sequence == outcome.commit_sequence
            wanted = {s.branch: s.writes["wide", partition] for s in made}
            assert {r.branch: r for r in marker.branches} == wanted
            assert len(marker.branches) == tasks


def accept_slowly(txn: Transaction, made: list[BranchSummary]) -> None:
    for summary in made:
        txn.accept(summary)
        time.sleep(0.02)


def test_what_exceeds_the_limit_is_refused_before_the_commit_is_asked_for() -> None:
    log = MemoryLog.named("too-large")
    log.create_topic("wide", partitions=500)
    with embedded(log, max_added_ranges=20_000), closing(producer_on(log)) as producer:
        txn = producer.begin_transaction(timeout=600)
        made = summaries(txn.txid, 200, "wide", 500)
        with pytest.raises(RequestTooLargeError, match=r"--max-added-ranges.*repartition"):
            accept_slowly(txn, made)
        with pytest.raises(RequestTooLargeError, match="--max-added-ranges"):
            txn.commit()
        txn.abort()
        with producer.begin_transaction() as small:
            small.produce("wide", b"goes on", partition=0)
        assert small.is_committed
