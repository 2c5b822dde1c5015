"""Reading through the JVM's connector: the same rows as the reader in Python gives."""

from __future__ import annotations

import random
from typing import Any

import pytest

import logtx
from logtx.integration.spark.vector import Spot
from logtx.integration.spark.volume import Group, sort_out
from logtx.integration.testing import Cluster
from logtx.journal.control import BranchRange, DataControl, Marker, encode_data_control
from logtx.journal.control import encode_marker as encode
from logtx.journal.txid import TxId

from .conftest import eventually

RAW = TxId(3, 7, 40).to_bytes()
CTL = encode_data_control(DataControl(branch=5))


def marker(*branches: BranchRange, committed: bool = True, offset: int = 9) -> Group:
    ctl = encode(Marker(committed=committed, commit_sequence=77, hw=1, epoch=0, branches=branches))
    return Group("t", 0, RAW, ctl, 1, offset, offset, 1)


def accepted(*groups: Group, start: int = 0) -> list[tuple[bytes, int, int]]:
    found = sort_out(groups, {("t", 0): Spot(start)})
    assert not found.unsettled
    assert all((a.txid, a.commit_sequence) == (str(TxId(3, 7, 40)), 77) for a in found.accepted)
    return [(a.ctl, a.first, a.last) for a in found.accepted]


def test_branches_that_the_marker_names() -> None:
    own = Group("t", 0, RAW, b"", 2, 1, 4, 0)
    stray = Group("t", 0, RAW, encode_data_control(DataControl(branch=6)), 1, 3, 3, 0)
    branch = Group("t", 0, RAW, CTL, 3, 2, 7, 0)
    ends = marker(BranchRange(0, 1, 4, 2), BranchRange(5, 2, 7, 3))
    assert accepted(own, stray, branch, ends) == [(b"", 1, 4), (CTL, 2, 7)]
    assert accepted(own, stray, branch, ends, start=10) == []
    assert accepted(own, marker(committed=False)) == []
    assert accepted(own) == []


@pytest.mark.parametrize(
    "group",
    [
        Group("t", 0, RAW, b"", 1, 1, 4, 0),  # one is missing
        Group("t", 0, RAW, b"", 3, 1, 4, 0),  # one more
        Group("t", 0, RAW, b"", 2, 1, 5, 0),  # elsewhere
        Group("t", 0, RAW, b"\x09", 2, 1, 4, 0),  # of a later version
        Group("t", 0, b"short", b"", 2, 1, 4, 0),
        Group("t", 0, RAW, encode_data_control(DataControl(sequence=1)), 2, 1, 4, 0),
    ],
)
def test_what_sums_cannot_settle(group: Group) -> None:
    found = sort_out([group, marker(BranchRange(0, 1, 4, 2))], {})
    assert found.unsettled == {("t", 0)}
    assert not found.accepted


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_both_readers_give_the_same_rows(spark: Any, logtx_cluster: Cluster) -> None:
    cluster, chance = logtx_cluster, random.Random(6)
    topic = cluster.topic(2)
    producer = cluster.producer()
    open_now = [producer.begin_transaction() for _ in range(3)]
    ended = []
    for number in range(600):
        if chance.random() < 0.1:
            plain = (topic, b"plain-%d" % number, None, number % 2, None, None, 0, None)
            producer._engine.sender.send(*plain)
            continue
        txn = chance.choice(open_now)
        txn.produce(topic, b"%d" % number, b"k", [("h", b"1")] * (number % 3), number % 2)
        if chance.random() < 0.05:
            open_now.remove(txn)
            (txn.abort if chance.random() < 0.3 else txn.commit)()
            ended.append(txn.txid)
            open_now.append(producer.begin_transaction())
    producer.flush(10)
    cluster.late_record(ended[0], topic)
    end = lambda: sum(cluster.log.end_offset(topic, p) for p in (0, 1))  # noqa: E731
    eventually(lambda: end() >= 601 + 2 * len(ended) - 4)
    start = {topic: {"0": 100, "1": 0}}
    for bounds in ({}, {"startingOffsets": str(start).replace("'", '"')}):
        options = {"subscribe": topic, "includeHeaders": "true", **bounds}
        servers = cluster.bootstrap_servers
        ends = {p: cluster.log.end_offset(topic, int(p)) for p in ("0", "1")}
        options["endingOffsets"] = str({topic: ends}).replace("'", '"')
        volume = logtx.spark.read(spark, bootstrap_servers=servers, **options)
        assert "kafka" in volume._jdf.queryExecution().toString().lower()
        python = (
            spark.read.format("logtx")
            .options(**options, **{"kafka.bootstrap.servers": servers})
            .load()
        )
        assert volume.columns == python.columns
        assert volume.dtypes == python.dtypes
        one = sorted(volume.collect(), key=lambda r: (r.partition, r.offset))
        other = sorted(python.collect(), key=lambda r: (r.partition, r.offset))
        assert one == other
        assert len(one) > 100


@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.slow
def test_without_the_jars_python_reads(
    spark: Any, logtx_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logtx.integration.spark.volume.has_connector", lambda _: False)
    topic = logtx_cluster.topic(1)
    with logtx_cluster.producer().begin_transaction() as txn:
        txn.produce(topic, b"x")
    eventually(lambda: logtx_cluster.log.end_offset(topic, 0) == 2)
    servers = logtx_cluster.bootstrap_servers
    rows = logtx.spark.read(spark, subscribe=topic, bootstrap_servers=servers).collect()
    assert [bytes(r.value) for r in rows] == [b"x"]
