"""Transactions that end without being asked to: no block ends as if it had committed.

Findings 1, 2, 9 and 11 of the clients, through coordinator, producer and consumer in one process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.protocol.commands import TransactionInfo
from logtx.integration.block import Block
from logtx.integration.testing import Cluster
from logtx.journal.errors import (
    LogtxError,
    TransactionAbortedError,
    TransactionStateError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.state import State
from logtx.producer.producer import Producer
from logtx.producer.transaction import Transaction

from ..waiting import eventually


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster in memory."""
    with closing(Cluster.in_memory()) as made:
        yield made


def learn_of_the_end(cluster: Cluster, transaction: Transaction) -> None:
    """Waits until the transaction is known to be aborted: a further partition is refused."""
    other = cluster.topic(1)
    deadline = time.monotonic() + 10
    while not transaction.is_decided:
        assert time.monotonic() < deadline
        transaction.produce(other, b"more")
        time.sleep(0.2)


def unfinished(admin: AdminQueries) -> list[TransactionInfo]:
    """Returns the transactions that are decided, and lack markers."""
    states = (State.COMMITTING, State.ABORTING)
    partitions = range(admin.partition_count())
    return [t for each in partitions for t in admin.list_transactions(each, states=states)]


def read_all(cluster: Cluster, topic: str) -> list[bytes | None]:
    """Returns what a new consumer of a topic gets, up to a plain record that is written now."""
    with closing(AdminQueries(cluster.log, timeout_s=10)) as admin:
        eventually(lambda: not unfinished(admin))  # Markers that come later would lie behind it.
    with cluster.producer() as producer:
        producer.produce(topic, b"end")
        producer.flush(10)
    found: list[bytes | None] = []
    with cluster.consumer(topic) as consumer:
        deadline = time.monotonic() + 10
        while not found or found[-1] != b"end":
            assert time.monotonic() < deadline, found
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append(message.value())
    return found[:-1]


def expire_within_a_block(cluster: Cluster, producer: Producer, transaction: Transaction) -> None:
    """Writes, works for longer than the transaction may take, and goes on as if nothing was."""
    with transaction:
        transaction.produce(cluster.topic(1), b"1")
        producer.flush(5)
        time.sleep(0.6)
        with suppress(LogtxError):
            learn_of_the_end(cluster, transaction)


def test_finding_1_a_block_whose_transaction_expired_raises(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        transaction = producer.begin_transaction(timeout=0.3)
        with pytest.raises(TransactionAbortedError):
            expire_within_a_block(cluster, producer, transaction)
        assert transaction.is_decided
        assert not transaction.is_committed


def test_a_block_that_ended_its_transaction_itself_does_not_raise(cluster: Cluster) -> None:
    topic = cluster.topic(1)
    with cluster.producer() as producer:
        with producer.begin_transaction() as transaction:
            transaction.produce(topic, b"1")
            transaction.abort()
        with producer.begin_transaction() as transaction:
            transaction.produce(topic, b"2")
            transaction.commit()
        assert transaction.is_committed
    assert read_all(cluster, topic) == [b"2"]


def test_finding_2_no_record_of_an_aborted_transaction_is_written_plainly(
    cluster: Cluster,
) -> None:
    topic, other = cluster.topic(1), cluster.topic(1)
    with cluster.producer() as producer:
        producer.init_transactions()
        transaction = producer.begin_transaction(timeout=0.3)
        producer.produce(topic, b"debit")
        producer.flush(5)
        time.sleep(0.6)
        deadline = time.monotonic() + 10
        while not transaction.is_decided:
            assert time.monotonic() < deadline
            with suppress(LogtxError):
                producer.produce(other, b"step")
            time.sleep(0.1)
        with pytest.raises(LogtxError):
            producer.produce(topic, b"credit")
        with pytest.raises(TransactionAbortedError):
            producer.commit_transaction()
        assert transaction.is_decided
    assert read_all(cluster, topic) == []
    assert read_all(cluster, other) == []


def test_finding_2_no_record_is_written_plainly_while_another_thread_commits(
    cluster: Cluster,
) -> None:
    topic, log = cluster.topic(1), cluster.log
    assert isinstance(log, MemoryLog)
    journals = range(log.topic_info(JOURNAL_TOPIC).partition_count)
    with cluster.producer() as producer:
        producer.init_transactions()
        transaction = producer.begin_transaction()
        producer.produce(topic, b"1")
        producer.flush(5)
        for partition in journals:
            log.hold_appends(JOURNAL_TOPIC, partition)
        committing = threading.Thread(target=producer.commit_transaction)
        committing.start()
        deadline = time.monotonic() + 10
        while transaction.is_open:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(TransactionStateError, match="committing"):
            producer.produce(topic, b"2")
        for partition in journals:
            log.release_appends(JOURNAL_TOPIC, partition)
        committing.join(10)
    assert read_all(cluster, topic) == [b"1"]


def test_finding_9_a_block_that_was_committed_takes_no_record(cluster: Cluster) -> None:
    topic = cluster.topic(1)
    with cluster.producer() as producer:
        transaction = producer.begin_transaction()
        block = Block(transaction, [], 0)
        block.produce(topic, b"1")
        transaction.commit()
        with pytest.raises(TransactionStateError):
            block.produce(topic, b"2")
    assert read_all(cluster, topic) == [b"1"]


def test_finding_11_a_producer_with_nothing_queued_is_true(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        assert len(producer) == 0
        assert producer
