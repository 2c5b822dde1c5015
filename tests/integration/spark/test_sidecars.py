"""Ranges of topics with sidecars, read without Spark: what they get is what a consumer gets."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from logtx.consumer.range_reader import reading
from logtx.consumer.range_reader.reading import Range, RangeReader, Share
from logtx.consumer.sidecar_read import SidecarReader
from logtx.integration.spark import planning
from logtx.integration.spark.frames import Batches
from logtx.integration.spark.options import SinkOptions
from logtx.integration.spark.planning import SourceOptions
from logtx.integration.testing import Cluster
from logtx.journal.errors import (
    BrokerError,
    IntegrityError,
    TornTransactionError,
    UnsupportedTopicError,
)
from logtx.journal.position import Position
from logtx.journal.sidecar import is_delivered_from_sidecar, sidecar_of, to_delivered
from logtx.producer.branch import Branch
from logtx.producer.config import ProducerConfig
from logtx.producer.transaction import Transaction

from ...waiting import eventually
from .test_reading import as_consumed, plan, read, values, whole

STAMP_MS = 5_000_000


@pytest.fixture(autouse=True)
def quickly_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believes a lost sidecar almost at once: this log has no leader that could have slept."""
    monkeypatch.setattr("logtx.consumer.sidecar_read.CONFIRM_S", 0.2)


@pytest.fixture
def busy_topic(logtx_memory_cluster: Cluster) -> str:
    """Interleaved transactions with sidecars, without, and such that grow into theirs."""
    cluster, chance = logtx_memory_cluster, random.Random(4)
    topic = cluster.topic(1)
    producer = cluster.producer(transaction_sidecar_min_bytes=6)

    def begin() -> Transaction:
        return producer.begin_transaction(sidecar=chance.choice((True, False, None)))

    open_now, ended = [begin() for _ in range(4)], 0
    for number in range(300):
        txn = chance.choice(open_now)
        txn.produce(topic, b"%d" % number, partition=0)
        if chance.random() < 0.1:
            open_now.remove(txn)
            (txn.abort if chance.random() < 0.3 else txn.commit)()
            ended += 1
            open_now.append(begin())
    for txn in open_now[:3]:
        txn.commit(finished=True)
    producer.close()
    return topic


def committed(cluster: Cluster, topic: str, count: int) -> None:
    with cluster.producer() as producer, producer.begin_transaction(sidecar=True) as txn:
        for number in range(count):
            txn.produce(topic, b"%d" % number, partition=0)
    eventually(lambda: cluster.log.end_offset(topic, 0) > 0)


def test_a_range_is_what_a_consumer_gets(logtx_memory_cluster: Cluster, busy_topic: str) -> None:
    shares = read(logtx_memory_cluster, whole(logtx_memory_cluster, busy_topic))
    assert values(shares) == as_consumed(logtx_memory_cluster, busy_topic)
    lies: dict[bytes | None, set[bool]] = {}
    for share in shares:
        places = {is_delivered_from_sidecar(record.offset() or 0) for record in share.records}
        lies.setdefault(share.txid, set()).update(places)
    for kind in ({False}, {True}, {False, True}):
        assert sum(found == kind for found in lies.values()) > 2, "transactions of each kind"
    for share in shares:
        assert share.commit_sequence is not None
        for record in share.records:
            assert dict(record.headers() or ()).get("TxId") == share.txid
            assert (record.topic(), record.partition()) == (busy_topic, 0)


@pytest.mark.parametrize("seed", range(3))
def test_ranges_join_and_split_nothing(
    logtx_memory_cluster: Cluster, busy_topic: str, seed: int
) -> None:
    cluster, chance = logtx_memory_cluster, random.Random(seed)
    end = whole(cluster, busy_topic).end
    cuts = sorted({0, end, *(chance.randrange(end) for _ in range(12))})
    ranges = [Range(busy_topic, 0, Position.at(low), high) for low, high in pairwise(cuts)]
    parts = [read(cluster, part) for part in ranges]
    assert [v for part in parts for v in values(part)] == as_consumed(cluster, busy_topic)
    homes: dict[bytes | None, set[int]] = {}
    for number, part in enumerate(parts):
        for share in part:
            homes.setdefault(share.txid, set()).add(number)
    assert all(len(numbers) == 1 for numbers in homes.values())


def test_it_begins_within_a_pointer(logtx_memory_cluster: Cluster) -> None:
    topic = logtx_memory_cluster.topic(1)
    committed(logtx_memory_cluster, topic, 5)
    part = Range(topic, 0, Position(o1=0, o2=0, o3=2), 1)
    [share] = read(logtx_memory_cluster, part)
    assert values([share]) == [b"2", b"3", b"4"]
    assert share.first is not None
    assert share.first.nth == 2


def test_its_columns_say_where_a_record_lies(logtx_memory_cluster: Cluster) -> None:
    cluster, topic = logtx_memory_cluster, logtx_memory_cluster.topic(1)
    with cluster.producer() as producer, producer.begin_transaction(sidecar=True) as txn:
        headers = [("n", b"x")]
        txn.produce(topic, b"v", b"k", headers=headers, partition=0, timestamp=STAMP_MS)
        txn.produce(topic, None, b"k", partition=0, timestamp=STAMP_MS + 1)
    shares = read(cluster, Range(topic, 0, Position.at(0), 1))
    [batch] = Batches(topic, 0, headers=True).of(shares)
    first, second = batch.to_pylist()
    assert (first["key"], first["value"], second["value"]) == (b"k", b"v", None)
    assert [row["offset"] for row in (first, second)] == [to_delivered(0), to_delivered(1)]
    assert [row["timestamp"].timestamp() for row in (first, second)] == [5_000.0, 5_000.001]
    assert (first["topic"], first["partition"], first["txid"]) == (topic, 0, str(txn.txid))
    assert (first["headers"], second["headers"]) == ([{"key": "n", "value": b"x"}], None)


def test_uncommitted_records_of_a_sidecar_come_with_its_pointer(
    logtx_memory_cluster: Cluster, busy_topic: str
) -> None:
    cluster = logtx_memory_cluster
    shares = read(cluster, whole(cluster, busy_topic), committed=False)
    assert set(as_consumed(cluster, busy_topic)) < set(values(shares))
    assert len(values(shares)) == len(set(values(shares)))
    assert any(is_delivered_from_sidecar(s.records[0].offset() or 0) for s in shares)


def test_a_range_of_commit_sequences(logtx_memory_cluster: Cluster, busy_topic: str) -> None:
    cluster, part = logtx_memory_cluster, whole(logtx_memory_cluster, busy_topic)
    everything = read(cluster, part)
    sequences = sorted({s.commit_sequence for s in everything if s.commit_sequence is not None})
    low, high = sequences[2], sequences[-2]
    found = read(cluster, part, sequences=(0, low - 1, high))
    wanted = [s for s in everything if low <= (s.commit_sequence or -1) <= high]
    assert values(found) == values(wanted) != []


def test_what_is_gone_of_a_sidecar_is_said(logtx_memory_cluster: Cluster) -> None:
    cluster, topic = logtx_memory_cluster, logtx_memory_cluster.topic(1)
    committed(cluster, topic, 5)
    cluster.log.delete_records(sidecar_of(topic), 0, 2)
    part = Range(topic, 0, Position.at(0), 1)
    with pytest.raises(TornTransactionError, match="retention deleted a part"):
        read(cluster, part)
    assert read(cluster, part, torn_skip=True) == []
    cluster.log.delete_topic(sidecar_of(topic))
    with pytest.raises(IntegrityError, match="the sidecar lost records"):
        read(cluster, part)


def test_a_sidecar_that_gives_nothing_is_not_awaited_for_ever(
    logtx_memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = logtx_memory_cluster.topic(1)
    committed(logtx_memory_cluster, topic, 5)
    calls: list[int] = []

    def fails(*_: Any, **__: Any) -> bool:
        calls.append(len(calls))
        if len(calls) == 1:
            raise BrokerError("no leader")
        return False

    monkeypatch.setattr(reading, "STALL_S", 0.3)
    monkeypatch.setattr(SidecarReader, "step", fails)
    expected = rf"reading {sidecar_of(topic)}\[0\] stood at 0 of 5 for 0.3 s"
    with pytest.raises(BrokerError, match=expected):
        read(logtx_memory_cluster, Range(topic, 0, Position.at(0), 1))
    assert 2 <= len(calls) <= 10


def test_trap_129_one_that_lies_in_the_topic_too_is_for_one_task(
    logtx_memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that shared what stands together in the topic would leave out the rest of it."""
    monkeypatch.setattr(planning, "PART_RECORDS", 10)
    cluster, topic = logtx_memory_cluster, logtx_memory_cluster.topic(1)
    config = {"bootstrap.servers": cluster.bootstrap_servers}
    txn = cluster.producer().begin_transaction()
    with Branch.join(config, txn.branch_token(), sidecar=True) as branch:
        for number in range(200):
            txn.produce(topic, b"%d" % number, partition=0)
        for number in range(200, 210):
            branch.produce(topic, b"%d" % number, partition=0)
        txn.accept(branch.finish())
    txn.commit(finished=True)
    start, end = {}, {(topic, 0): 201}
    ranges = plan(cluster, topic, minpartitions="4").ranges(start, end)
    assert [part.large for part in ranges] == [None] * 4
    found: list[Share] = []
    for part in ranges:
        found += read(cluster, part)
    assert values(found) == [b"%d" % number for number in range(210)]


def test_sidecars_are_not_read_for_themselves(logtx_memory_cluster: Cluster) -> None:
    topic = logtx_memory_cluster.topic(1)
    committed(logtx_memory_cluster, topic, 1)
    kafka = {"kafka.bootstrap.servers": logtx_memory_cluster.bootstrap_servers}
    options = SourceOptions.parse({**kafka, "subscribePattern": f"{topic}.*"})
    assert planning.Planner(logtx_memory_cluster.log, options).topics == {topic}
    name = sidecar_of(topic)
    for given in ({"subscribe": f"{topic},{name}"}, {"assign": f'{{"{name}": [0]}}'}):
        with pytest.raises(UnsupportedTopicError, match=f"Read {topic}"):
            SourceOptions.parse({**kafka, **given})


def test_nothing_of_it_is_buffered(
    logtx_memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = logtx_memory_cluster.topic(1)
    committed(logtx_memory_cluster, topic, 2_000)
    monkeypatch.setattr("logtx.consumer.sidecar_read.SLICE_RECORDS", 100)
    monkeypatch.setattr("logtx.consumer.sidecar_read.AHEAD_MAX_RECORDS", 100)
    config = reading.ReadConfig(
        kafka={"bootstrap.servers": logtx_memory_cluster.bootstrap_servers},
        pending_memory_max_bytes=0,
    )
    part = Range(topic, 0, Position.at(0), 1)
    reader = RangeReader(config, part, logtx_memory_cluster.log)
    most = count = 0
    for share in reader.shares():
        wanted = reader._buffer.stream_wanted()
        most = max(most, len(share.records) + (wanted.ahead if wanted else 0))
        count += len(share.records)
    spilled = reader._store.spilled_bytes
    reader.close()
    assert (count, spilled) == (2_000, 0)
    assert most <= 500


@pytest.mark.parametrize(
    ("given", "from_bytes"),
    [
        ({}, None),
        ({"sidecar": "false"}, None),
        ({"sidecar": "true"}, 0),
        ({"transaction.sidecar.min.bytes": "5"}, 5),
        ({"transaction.sidecar.min.bytes": "5", "sidecar": "true"}, 0),
    ],
)
def test_a_sink_says_what_goes_to_sidecars(given: dict[str, str], from_bytes: int | None) -> None:
    kafka = {"kafka.bootstrap.servers": "localhost:1"}
    options = SinkOptions.parse({**kafka, **given})
    at_a_task = SinkOptions.from_json(options.to_json())
    assert ProducerConfig.parse(at_a_task.branch()).sidecar_from(None) == from_bytes
    # The driver's producer writes nothing, and is one for all of these.
    assert options.producer("p") == SinkOptions.parse(kafka).producer("p")
