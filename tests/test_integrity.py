"""No duplicates, no late records, no endless waits, even with writers that are foreign or dead.

With a coordinator, in memory and on a real broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

import logtx
from logtx.integration.testing import Cluster
from logtx.journal.control import (
    TXCTL_HEADER,
    TXID_HEADER,
    BranchRange,
    DataControl,
    encode_data_control,
)

from .consumer.logs import nothing_more, read, wait_for

NONCE = 0xB0B


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A log with a coordinator."""
    name = "logtx_cluster" if request.param == "kafka" else "logtx_memory_cluster"
    return request.getfixturevalue(name)


def branch_of_a_foreign_writer(
    cluster: Cluster, txid: logtx.TxId, topic: str, numbered: Sequence[tuple[int | None, bytes]]
) -> logtx.BranchSummary:
    """Writes one branch by a producer without idempotence; each record is (sequence, value).

    The writer knows how many records it has and which offsets it got, not that it sent some twice.
    """
    writer = cluster.log.producer({"enable.idempotence": False, "linger.ms": 0})
    offsets: list[int] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None
        offset = message.offset()
        assert offset is not None
        offsets.append(offset)

    for sequence, value in numbered:
        control = encode_data_control(DataControl(branch=NONCE, sequence=sequence))
        headers: list[tuple[str, bytes | None]] = [(TXID_HEADER, txid.to_bytes())]
        headers.append((TXCTL_HEADER, control))
        writer.produce(topic, value, None, 0, headers=headers, on_delivery=delivered)
        writer.flush(10)
    writer.close()
    count = len(dict.fromkeys(value for _, value in numbered))
    writes = {(topic, 0): BranchRange(NONCE, offsets[0], offsets[-1], count)}
    return logtx.BranchSummary(txid, NONCE, writes)


def test_duplicates_of_a_producer_without_idempotence_go_by_their_sequence_numbers(
    cluster: Cluster,
) -> None:
    topic = cluster.topic()
    sent_twice = [(0, b"a"), (1, b"b"), (1, b"b"), (0, b"a"), (2, b"c"), (3, b"d"), (3, b"d")]
    producer = cluster.producer()
    with producer.begin_transaction() as txn:
        txn.produce(topic, b"own", partition=0)
        producer.flush()
        txn.accept(branch_of_a_foreign_writer(cluster, txn.txid, topic, sent_twice))
    consumer = cluster.consumer(topic, enable_auto_commit=False)
    assert read(consumer, 3) == [b"own", b"a", b"b"]
    consumer.commit(asynchronous=False)
    # In the middle of the transaction: records are counted after duplicates are removed.
    again = cluster.consumer(group_id=consumer.group_id)
    again.assign([TopicPartition(topic, 0)])
    assert read(again, 2) == [b"c", b"d"]
    assert nothing_more(again)


def test_duplicates_without_sequence_numbers_are_an_error_and_never_delivered(
    cluster: Cluster,
) -> None:
    topic = cluster.topic()
    with cluster.producer().begin_transaction() as txn:
        sent_twice = [(None, b"a"), (None, b"b"), (None, b"b")]
        txn.accept(branch_of_a_foreign_writer(cluster, txn.txid, topic, sent_twice))
    with cluster.producer().begin_transaction() as txn:
        txn.produce(topic, b"next", partition=0)
    consumer = cluster.consumer()
    place = TopicPartition(topic, 0, 0)
    consumer.assign([place])
    with pytest.raises(logtx.IntegrityError, match="marker"):
        read(consumer, 1)
    [stands] = consumer.position([place])
    # The application decides to go on without that transaction.
    consumer.seek(TopicPartition(topic, 0, stands.offset + 1))
    assert read(consumer, 1) == [b"next"]


def test_what_a_zombie_writes_after_the_end_is_dropped_and_counted(cluster: Cluster) -> None:
    topic = cluster.topic()
    committed = cluster.open_transaction(topic, [b"1"])
    aborted = cluster.open_transaction(topic, [b"never"])
    committed.commit()
    aborted.abort()
    early = cluster.consumer(topic)
    assert read(early, 1) == [b"1"]
    with cluster.producer().begin_transaction() as txn:
        txn.produce(topic, b"2", partition=0)
    assert read(early, 1) == [b"2"]
    for zombie in (committed, aborted, committed):
        cluster.late_record(zombie.txid, topic)
    with cluster.producer().begin_transaction() as txn:
        txn.produce(topic, b"3", partition=0)
    assert read(early, 1) == [b"3"]
    assert early.counters.late_records == 3
    assert early.stats()["pending_transactions"] == 0
    # A new reader sees the same.
    fresh = cluster.consumer(topic)
    assert read(fresh, 3) == [b"1", b"2", b"3"]
    assert nothing_more(fresh)


def test_a_transaction_older_than_its_timeout_is_looked_up_and_holds_nothing_for_ever(
    cluster: Cluster,
) -> None:
    topic, stray = cluster.topic(), cluster.topic()
    hanging = cluster.open_transaction(topic, [b"never"], timeout=1)
    # Trap 19: the record is written and its partition never registered; no marker will come.
    cluster.late_record(hanging.txid, stray)
    consumer = cluster.consumer(
        enable_auto_commit=False, pending_lookup_age_ms=300, auto_offset_reset="earliest"
    )
    consumer.assign([TopicPartition(topic, 0), TopicPartition(stray, 0)])
    wait_for(consumer.held_back, consumer)
    assert {held.txid for held in consumer.held_back()} == {hanging.txid}
    wait_for(lambda: consumer.counters.discarded_transactions, consumer)
    wait_for(lambda: not consumer.held_back(), consumer)
    assert consumer.counters.look_ups >= 1
    # The stray one; the other has a marker, unless the look-up was told of the abort before that.
    assert consumer.counters.discarded_transactions in (1, 2)
    assert [each.held for each in consumer.lag()] == [0, 0]
    with pytest.raises(logtx.TransactionError):
        hanging.commit()
