"""The audit: clean where all is well, and each broken promise is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import logtx
from logtx.integration.inspect.audit import run_audit, waves
from logtx.integration.inspect.checks import Report
from logtx.integration.inspect.groups import Group, Span
from logtx.integration.inspect.sums import sum_up
from logtx.integration.testing import Cluster
from logtx.journal.control import BranchRange, Marker, TopicPartition, encode_marker
from logtx.journal.errors import UnknownTopicError
from logtx.journal.logs.interface import Log
from logtx.journal.position import Position
from logtx.journal.records.types import OffsetStep
from logtx.journal.txid import TxId

from .conftest import eventually

Raw = Callable[..., None]


@pytest.fixture
def log_at_work(logtx_memory_cluster: Cluster) -> tuple[Cluster, str, list[TxId]]:
    """Transactions of all kinds, with input offsets, and nothing under way."""
    cluster = logtx_memory_cluster
    topic = cluster.topic(2)
    txids = []
    # So that every transaction is one of these.
    producer = cluster.producer(transaction_begin_ahead=False)
    for n in range(6):
        txn = producer.begin_transaction()
        for i in range(4):
            txn.produce(topic, b"%d" % i, partition=i % 2)
        place = None if n == 0 else Position.at(n).place
        txn.send_offsets("readers", [OffsetStep("input", 0, place, Position.at(n + 1))])
        txn.commit()
        txids.append(txn.txid)
    txn = producer.begin_transaction()
    txn.produce(topic, b"gone", partition=0)
    txn.abort()
    txids.append(txn.txid)
    eventually(lambda: [cluster.log.end_offset(topic, p) for p in (0, 1)] == [20, 18])
    eventually(lambda: audited(cluster).transactions == 7 and finished(cluster))
    return cluster, topic, txids


def finished(cluster: Cluster) -> bool:
    from logtx.integration.inspect.journal import Journal

    journal = Journal(cluster.log)
    journal.read_on()
    return all(str(s.state) in ("committed", "aborted") for s in journal)


def sums_here(log: Log) -> Callable[[Mapping[TopicPartition, Span]], Iterator[Group]]:
    """Sums without Spark."""

    def sums(spans: Mapping[TopicPartition, Span]) -> Iterator[Group]:
        for key, span in spans.items():
            yield from sum_up(log, key, span)

    return sums


def audited(cluster: Cluster) -> Report:
    report = run_audit(cluster.log, None, sums_here(cluster.log))
    # However little is held at a time, it finds the same.
    again = run_audit(cluster.log, None, sums_here(cluster.log), wave_offsets=1)
    assert (again.counts, again.records, again.markers) == (
        *(report.counts, report.records, report.markers),
    )
    return report


def checks(report: Report) -> set[tuple[str, str]]:
    return {(str(severity), check) for severity, check in report.counts}


def append(cluster: Cluster, topic: str, txid: TxId, marker: Marker | None, **fields: Any) -> None:
    headers: list[tuple[str, bytes | None]] = [("TxId", txid.to_bytes())]
    if marker is not None:
        headers.append(("TxCtl", encode_marker(marker)))
    producer = cluster.log.producer({})
    producer.produce(topic, None if marker else b"x", None, 0, headers=headers, **fields)
    assert producer.flush(10) == 0


def test_portions_hold_no_more_than_they_may() -> None:
    spans = {("t", p): span for p, span in enumerate([(0, 5), (4, 9), (0, 20), (3, 4), (0, 0)])}
    portions = [[p for _, p in portion] for portion in waves(spans, 10)]
    assert portions == [[0, 1], [2], [3, 4]]
    assert list(waves({}, 10)) == []


def test_a_clean_log(log_at_work: tuple[Cluster, str, list[TxId]]) -> None:
    cluster, _, _ = log_at_work
    report = audited(cluster)
    assert (report.transactions, report.markers, report.records) == (7, 13, 25)
    assert report.clean
    assert report.findings == []
    assert report.as_dict()["clean"] is True


def test_late_records_and_second_markers_are_notices(
    log_at_work: tuple[Cluster, str, list[TxId]],
) -> None:
    cluster, topic, txids = log_at_work
    cluster.late_record(txids[0], topic)
    committed = Marker(
        committed=True, commit_sequence=1, hw=0, epoch=0, branches=(BranchRange(0, 0, 1, 2),)
    )
    append(cluster, topic, txids[2], committed)
    report = audited(cluster)
    assert report.clean, report.findings
    assert checks(report) == {("notice", "late_records"), ("notice", "duplicate_markers")}
    assert [f.count for f in report.findings if f.check == "late_records"] == [1]


def test_what_breaks_a_promise(log_at_work: tuple[Cluster, str, list[TxId]]) -> None:
    cluster, topic, txids = log_at_work
    stranger = TxId(txids[0].partition, txids[0].incarnation, 10**6)
    append(cluster, topic, stranger, None)
    assert checks(audited(cluster)) == {("violation", "orphaned_records")}
    append(
        cluster, topic, stranger, Marker(committed=True, commit_sequence=10**6 + 1, hw=0, epoch=0)
    )
    found = checks(audited(cluster))
    assert found == {("violation", "marker_decision"), ("notice", "late_records")}
    assert not audited(cluster).clean


def test_records_that_are_missing(log_at_work: tuple[Cluster, str, list[TxId]]) -> None:
    cluster, topic, _ = log_at_work
    report = run_audit(
        cluster.log, [topic], lambda spans: [g for g in sums_here(cluster.log)(spans) if g.blank]
    )
    assert checks(report) == {("violation", "record_counts")}
    report = run_audit(
        cluster.log,
        [topic],
        lambda spans: [g for g in sums_here(cluster.log)(spans) if not g.blank],
    )
    assert checks(report) == {("violation", "decision_markers")}


def test_what_retention_took_can_not_be_verified(
    log_at_work: tuple[Cluster, str, list[TxId]],
) -> None:
    cluster, topic, _ = log_at_work
    cluster.log.delete_records(topic, 0, 4)
    report = audited(cluster)
    assert report.clean
    assert checks(report) == {
        ("unverifiable", "decision_markers"),
        ("unverifiable", "record_counts"),
    }


def test_an_open_transaction_is_no_finding(
    log_at_work: tuple[Cluster, str, list[TxId]],
) -> None:
    cluster, topic, _ = log_at_work
    cluster.open_transaction(topic)
    assert audited(cluster).findings == []


def test_an_unknown_topic(log_at_work: tuple[Cluster, str, list[TxId]]) -> None:
    cluster, _, _ = log_at_work
    with pytest.raises(UnknownTopicError):
        run_audit(cluster.log, ["nowhere"], sums_here(cluster.log))


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_in_spark(spark: Any, logtx_cluster: Cluster) -> None:
    topic = logtx_cluster.topic(2)
    producer = logtx_cluster.producer()
    for n in range(20):
        txn = producer.begin_transaction()
        for i in range(50):
            txn.produce(topic, b"%d" % i, partition=i % 2)
        (txn.commit if n % 5 else txn.abort)()
    logtx_cluster.late_record(txn.txid, topic)
    servers = logtx_cluster.bootstrap_servers
    report = logtx.spark.audit(spark, bootstrap_servers=servers, topics=[topic])
    assert report.clean, report.findings
    assert (report.records, report.markers) == (1001, 40)
    frame = logtx.spark.findings(spark, report)
    assert [r.check for r in frame.collect()] == ["late_records"]
