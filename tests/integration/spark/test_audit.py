"""The audit: clean where all is well, and each broken promise is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

import logtx
from logtx.coordinator.core.offsets_lanes import OffsetsKey
from logtx.coordinator.protocol.commands import GroupOffsets
from logtx.integration.groups import Groups
from logtx.integration.inspect import processes
from logtx.integration.inspect.audit import run_audit, waves
from logtx.integration.inspect.checks import Audit, Report
from logtx.integration.inspect.committed_offsets import committed_iovs
from logtx.integration.inspect.groups import Group, Span
from logtx.integration.inspect.processes import audit
from logtx.integration.inspect.sums import sum_up
from logtx.integration.testing import Cluster
from logtx.journal.control import BranchRange, Marker, TopicPartition, encode_marker
from logtx.journal.errors import ConfigError, UnknownTopicError
from logtx.journal.logs.interface import Log
from logtx.journal.position import Place, Position
from logtx.journal.records.scan import JournalPart, SeenTransaction
from logtx.journal.records.types import OffsetStep
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ...waiting import eventually

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


def test_groups_that_were_reset_or_deleted(
    log_at_work: tuple[Cluster, str, list[TxId]],
) -> None:
    cluster, _, txids = log_at_work
    cluster.log.create_topic("input", partitions=1)

    def move(begin: int | None, end: int) -> None:
        with cluster.producer().begin_transaction() as txn:
            place = None if begin is None else Position.at(begin).place
            txn.send_offsets("readers", [OffsetStep("input", 0, place, Position.at(end))])

    with closing(Groups(cluster.log, {"bootstrap.servers": cluster.bootstrap_servers})) as groups:
        move(6, 9)
        with pytest.raises(ConfigError, match="ends at"):
            groups.reset("readers", to_commit=str(txids[2]), execute=True)
        groups.delete("readers", ["input"])
        move(None, 2)
        groups.delete("readers")
    move(None, 5)
    move(5, 3)
    eventually(lambda: committed_iovs(cluster.log)["readers"][1].offsets[INPUT].o2 == 3)
    assert audited(cluster).findings == []


INPUT = ("input", 0)


@pytest.mark.parametrize(
    ("begin", "committed", "found"),
    [
        (Place(7), Place(9), set()),
        (Place(6), Place(9), {("violation", "iov_steps")}),
        (None, Place(9), {("violation", "iov_steps")}),
        (Place(7), Place(8), {("violation", "iov_committed")}),
    ],
)
def test_steps_behind_a_snapshot(
    begin: Place | None, committed: Place, found: set[tuple[str, str]]
) -> None:
    """A trimmed journal: the group stood at 7 in its snapshot, which lists a decided commit."""

    def seen(offset: int, sequence: int, *places: Any) -> SeenTransaction:
        begin, end = places
        step = OffsetStep(*INPUT, begin, Position.at(end))
        return SeenTransaction(
            txid=TxId(0, 1, offset),
            state=State.COMMITTED,
            commit_sequence=sequence,
            offsets=[("readers", step)],
        )

    transactions = {90: seen(90, 95, Place(1), 7), 101: seen(101, 105, begin, 9)}
    base = {"readers": {INPUT: Position.at(7)}}
    part = JournalPart(0, 100, transactions, base)
    checked = Audit(finished_before={}, parts=[part], starts={}, now_ms=0)
    written = (
        OffsetsKey("readers", 0, 1, 0),
        GroupOffsets({INPUT: Position.at(committed.o2)}, TxId(0, 1, 101), 105),
    )
    assert checks(checked.finish({"readers": written})) == found


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


def broken_log(cluster: Cluster) -> str:
    """Writes what a clean log has, and what breaks each promise that data can break."""
    topic = cluster.topic(2)
    producer = cluster.producer(transaction_begin_ahead=False)
    for n in range(20):
        txn = producer.begin_transaction()
        for i in range(50):
            txn.produce(topic, b"%d" % i, partition=i % 2)
        (txn.commit if n % 5 else txn.abort)()
    eventually(lambda: sum(cluster.log.end_offset(topic, p) for p in (0, 1)) == 1_040)
    cluster.late_record(txn.txid, topic)
    stranger = TxId(txn.txid.partition, txn.txid.incarnation, 10**6)
    append(cluster, topic, stranger, None)
    marker = Marker(committed=True, commit_sequence=3, hw=0, epoch=0)
    append(cluster, topic, TxId(stranger.partition, stranger.incarnation, 2 * 10**6), marker)
    raw = cluster.log.producer({})
    raw.produce(topic, b"x", None, 1, headers=[("TxId", b"short")])
    assert raw.flush(10) == 0
    return topic


BROKEN = {
    ("notice", "late_records"),
    ("violation", "headers"),
    ("violation", "marker_decision"),
    ("violation", "marker_order"),
    ("violation", "orphaned_records"),
}


def told(report: Report) -> tuple[Any, ...]:
    """All that a report says, in an order that is the same however it was found."""
    findings = sorted(str(f) for f in report.findings)
    return report.clean, report.records, report.markers, dict(report.counts), findings


@pytest.mark.kafka
@pytest.mark.timeout(120)
def test_in_processes(logtx_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = broken_log(logtx_cluster)
    kafka = {"bootstrap.servers": logtx_cluster.bootstrap_servers}
    report = audit(kafka, [topic], processes=1)
    assert checks(report) == BROKEN
    # Ranges are cut through transactions, and their sums come in any order.
    monkeypatch.setattr(processes, "PIECE_OFFSETS", 100)
    began: list[int] = []
    advanced: list[int] = []
    again = audit(kafka, [topic], processes=2, begun=began.append, advanced=advanced.append)
    assert told(again) == told(report)
    assert began == [sum(advanced)] == [1_044]


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_in_spark(spark: Any, logtx_cluster: Cluster) -> None:
    topic = broken_log(logtx_cluster)
    servers = logtx_cluster.bootstrap_servers
    report = logtx.spark.audit(spark, bootstrap_servers=servers, topics=[topic])
    assert checks(report) == BROKEN
    assert told(report) == told(audit({"bootstrap.servers": servers}, [topic]))
    frame = logtx.spark.findings(spark, report)
    assert {r.check for r in frame.collect()} == {check for _, check in BROKEN}
