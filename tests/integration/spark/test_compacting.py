"""Exports to a compacted topic: committed records once, in order, and nobody writes late."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer

from logtx.consumer.range_reader.errors import DataLossError
from logtx.consumer.range_reader.reading import RangeReader, Share
from logtx.integration.spark import compacting
from logtx.integration.spark.compacting import Compacted, export_to_topic
from logtx.integration.testing import Cluster
from logtx.journal.errors import ConfigError, ProducerFencedError, UnsupportedTopicError

from ...waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(200)]


@pytest.fixture
def topics(logtx_cluster: Cluster) -> tuple[str, str]:
    """A topic that is written in transactions, and the name of one that is not there yet."""
    topic = logtx_cluster.topic(2)
    return topic, f"{topic}-latest"


def run(cluster: Cluster, topics: tuple[str, str], **given: Any) -> Compacted:
    topic, to_topic = topics
    servers = cluster.bootstrap_servers
    return export_to_topic(topic=topic, to_topic=to_topic, bootstrap_servers=servers, **given)


def write(cluster: Cluster, topic: str, value: bytes | None, *, commit: bool = True) -> None:
    """Writes a value under two keys, each in a partition of its own."""
    ends = [cluster.log.end_offset(topic, p) for p in (0, 1)]
    txn = cluster.producer().begin_transaction()
    for partition in (0, 1):
        txn.produce(topic, value, b"k%d" % partition, partition=partition, headers=[("h", b"1")])
    (txn.commit if commit else txn.abort)()
    eventually(lambda: [cluster.log.end_offset(topic, p) for p in (0, 1)] == [e + 2 for e in ends])


def read(cluster: Cluster, topic: str, partition: int) -> list[tuple[Any, Any, Any]]:
    """Returns (key, value, headers) of what Kafka's own consumer gets of committed records."""
    return list(_read(cluster, topic, partition))


def _read(cluster: Cluster, topic: str, partition: int) -> Iterator[tuple[Any, Any, Any]]:
    from confluent_kafka import TopicPartition

    settings = {"group.id": "reader", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    reader = Consumer({"bootstrap.servers": cluster.bootstrap_servers, **settings})
    reader.assign([TopicPartition(topic, partition, 0)])
    while True:
        message = reader.poll(20)
        assert message is not None
        if message.error() is not None:
            break
        yield message.key(), message.value(), message.headers()
    reader.close()


def test_only_what_is_committed_in_commit_order(
    logtx_cluster: Cluster, topics: tuple[str, str]
) -> None:
    cluster, topic = logtx_cluster, topics[0]
    producer = cluster.producer()
    early = producer.begin_transaction()
    early.produce(topic, b"early", b"k0", partition=0)
    assert producer.flush(10) == 0
    write(cluster, topic, b"1")
    write(cluster, topic, b"gone", commit=False)
    early.commit()
    eventually(lambda: cluster.log.end_offset(topic, 0) == 6)
    left_open = cluster.open_transaction(topic)
    first = run(cluster, topics)
    assert (first.records, first.offsets) == (3, {0: 7, 1: 4})
    left_open.abort()
    eventually(lambda: cluster.log.end_offset(topic, 0) == 8)
    write(cluster, topic, None)
    assert run(cluster, topics).records == 2
    assert run(cluster, topics).records == 0
    assert read(cluster, topics[1], 0) == [
        (b"k0", b"1", [("h", b"1")]),
        (b"k0", b"early", None),
        (b"k0", None, [("h", b"1")]),
    ]
    assert [value for _, value, _ in read(cluster, topics[1], 1)] == [b"1", None]
    assert cluster.log.topic_info(topics[1]).compacted


def test_a_run_that_dies_and_one_that_is_late(
    logtx_cluster: Cluster, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, topic = logtx_cluster, topics[0]
    monkeypatch.setattr(compacting, "PORTION_OFFSETS", 3)
    monkeypatch.setattr(compacting, "TRANSACTION_RECORDS", 1)
    for value in (b"1", b"2", b"3"):
        write(cluster, topic, value)
    produce = compacting._Run._produce

    def dies(self: Any, record: Any, partition: int) -> None:
        produce(self, record, partition)
        if record.value() == b"3":
            raise RuntimeError("dies")

    with monkeypatch.context() as broken:
        broken.setattr(compacting._Run, "_produce", dies)
        with pytest.raises(RuntimeError, match="dies"):
            run(cluster, topics)
    taken_over = False

    def is_late(self: Any, record: Any, partition: int) -> None:
        nonlocal taken_over
        if not taken_over:
            taken_over = True
            assert run(cluster, topics).records > 0
        produce(self, record, partition)

    with monkeypatch.context() as late:
        late.setattr(compacting._Run, "_produce", is_late)
        with pytest.raises(ProducerFencedError, match="took over"):
            run(cluster, topics)
    for partition in (0, 1):
        values = [value for _, value, _ in read(cluster, topics[1], partition)]
        assert values == [b"1", b"2", b"3"]


def test_what_can_not_be_exported(logtx_cluster: Cluster, topics: tuple[str, str]) -> None:
    cluster, topic = logtx_cluster, topics[0]
    write(cluster, topic, b"1")
    with pytest.raises(UnsupportedTopicError, match="not compacted"):
        run(cluster, (topic, cluster.topic(2)))
    compacted = {"cleanup.policy": "compact"}
    with pytest.raises(UnsupportedTopicError, match="has 3 partitions"):
        run(cluster, (topic, cluster.topic(3, config=compacted)))
    with pytest.raises(ConfigError, match="into itself"):
        run(cluster, (topic, topic))
    others = cluster.topic(2, config=compacted)
    producer = cluster.log.producer({})
    producer.produce(others, b"x", b"k", 0)
    assert producer.flush(10) == 0
    with pytest.raises(ConfigError, match="somebody else's"):
        run(cluster, (topic, others))
    assert run(cluster, (topic, others), restart=True).records == 2

    with cluster.producer().begin_transaction() as txn:
        txn.produce(topic, b"no key", partition=0)
    eventually(lambda: cluster.log.end_offset(topic, 0) == 4)
    with pytest.raises(ConfigError, match="without a key at 2"):
        run(cluster, topics)
    cluster.log.delete_records(topic, 0, 4)
    with pytest.raises(DataLossError, match="retention deleted it"):
        run(cluster, (topic, others))
    # The run that failed had exported nothing of partition 0, so there is nothing to lose.
    assert run(cluster, topics).records == 1
    cluster.log.delete_topic(topic)
    eventually(lambda: cluster.log.create_topic(topic, partitions=2))
    with pytest.raises((DataLossError, ConfigError), match="created again"):
        run(cluster, topics)


def test_a_target_that_was_made_anew(logtx_cluster: Cluster, topics: tuple[str, str]) -> None:
    cluster, topic = logtx_cluster, topics[0]
    write(cluster, topic, b"1")
    assert run(cluster, topics).records == 2
    cluster.log.delete_topic(topics[1])
    compacted = {"cleanup.policy": "compact"}
    eventually(lambda: cluster.log.create_topic(topics[1], partitions=2, settings=compacted))
    write(cluster, topic, b"2")
    for _ in range(2):
        with pytest.raises(DataLossError, match="-latest was deleted and created again"):
            run(cluster, topics)
    assert run(cluster, topics, restart=True).records == 4
    write(cluster, topic, b"3")
    assert run(cluster, topics).records == 2
    for partition in (0, 1):
        values = [value for _, value, _ in read(cluster, topics[1], partition)]
        assert values == [b"1", b"2", b"3"]


def places_kept(cluster: Cluster, topics: tuple[str, str]) -> dict[int, int]:
    """Returns partition → how often the brokers were told its place."""
    group = "-".join(("logtx-export", *topics)).encode()
    found: dict[int, int] = {}
    for number in range(cluster.log.partition_count("__consumer_offsets")):
        for key, value, _ in _read(cluster, "__consumer_offsets", number):
            # Kafka's OffsetCommitKey: version, group, topic, partition.
            if key and key[2:].startswith(len(group).to_bytes(2, "big") + group) and value:
                partition = int.from_bytes(key[-4:], "big")
                found[partition] = found.get(partition, 0) + 1
    return found


def test_the_place_of_an_idle_partition_is_kept(
    logtx_cluster: Cluster, topics: tuple[str, str]
) -> None:
    cluster, topic = logtx_cluster, topics[0]
    write(cluster, topic, b"1")
    run(cluster, topics)
    before = places_kept(cluster, topics)
    with cluster.producer().begin_transaction() as txn:
        txn.produce(topic, b"2", b"k0", partition=0)
    eventually(lambda: cluster.log.end_offset(topic, 0) == 4)
    assert run(cluster, topics).records == 1
    assert run(cluster, topics).records == 0
    # Kafka forgets a place some days after it was told it.
    told = places_kept(cluster, topics)
    assert min(told[p] - before[p] for p in (0, 1)) >= 2


def one_transaction(cluster: Cluster, topic: str, count: int) -> None:
    """Writes one transaction to partition 0, with values from 0."""
    with cluster.producer().begin_transaction() as txn:
        for number in range(count):
            txn.produce(topic, b"%d" % number, b"k", partition=0)
    eventually(lambda: cluster.log.end_offset(topic, 0) == count + 1)


KILLED = """
import os, sys
from logtx.integration.spark import compacting
compacting.TRANSACTION_RECORDS = 10
produce = compacting._Run._produce
def dies(run, record, partition):
    produce(run, record, partition)
    if record.value() == b"33":
        run._producer.flush(10)
        os.kill(os.getpid(), 9)
compacting._Run._produce = dies
topic, to_topic, servers = sys.argv[1:]
compacting.export_to_topic(topic=topic, to_topic=to_topic, bootstrap_servers=servers)
"""


def test_a_large_transaction_takes_several_and_goes_on_within(
    logtx_cluster: Cluster, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, topic = logtx_cluster, topics[0]
    one_transaction(cluster, topic, 50)
    arguments = [*topics, cluster.bootstrap_servers]
    died = subprocess.run([sys.executable, "-c", KILLED, *arguments], timeout=60, check=False)
    assert died.returncode == -9
    monkeypatch.setattr(compacting, "TRANSACTION_RECORDS", 10)
    done = run(cluster, topics)
    assert (done.records, done.offsets) == (20, {0: 51, 1: 0})
    # Of 30 records before the kill, four died; each transaction has a marker of Kafka's.
    assert cluster.log.end_offset(topics[1], 0) == 54 + 6
    assert [int(value) for _, value, _ in read(cluster, topics[1], 0)] == list(range(50))
    assert run(cluster, topics).records == 0


@pytest.mark.slow
def test_reading_for_longer_than_a_transaction_may_take(
    logtx_cluster: Cluster, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, topic = logtx_cluster, topics[0]
    one_transaction(cluster, topic, 2_500)
    monkeypatch.setattr(compacting, "TIMEOUT_MS", 2_000)
    shares = RangeReader.shares

    def slowly(self: RangeReader) -> Iterator[Share]:
        for share in shares(self):
            yield share
            # The brokers look for what takes too long every ten seconds.
            time.sleep(7)

    monkeypatch.setattr(RangeReader, "shares", slowly)
    assert run(cluster, topics).records == 2_500
    assert len(read(cluster, topics[1], 0)) == 2_500
