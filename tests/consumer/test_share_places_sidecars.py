"""Queues of a topic in metadata mode with transactions in its sidecar, end to end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.consumer.share_consumer import ShareConsumer
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.integration.inspect.audit import run_audit
from logtx.integration.inspect.sums import sum_up
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Mode
from logtx.journal.sidecar import is_delivered_from_sidecar
from logtx.journal.spans import AT_OFFSET
from logtx.producer.producer import Producer

from .places import read_upto
from .test_share_consumer import Queues, fill, producer, queues, take, values
from .test_share_sidecars import commit, kill, numbered
from .test_share_topics import switch

__all__ = ["producer", "queues"]


@pytest.fixture
def coordinator(memory_log: MemoryLog) -> Iterator[EmbeddedCoordinator]:
    """A coordinator that places what lies in sidecars, and an empty topic in metadata mode."""
    memory_log.create_topic("orders", partitions=2)
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=2,
    )
    with EmbeddedCoordinator(config) as running:
        switch(memory_log, Mode.METADATA)
        yield running


def grown(memory_log: MemoryLog, count: int, first: int) -> None:
    """Commits records of which the first ones lie in the topic, and the rest in the sidecar."""
    settings = {"transactional.id": "grows", "transaction.sidecar.min.bytes": 4}
    with Producer(settings, log=memory_log) as own:
        txn = own.begin_transaction()
        for value in numbered(count, first):
            txn.produce("orders", value, partition=0)
        txn.commit(finished=True)


def names(queue: ShareConsumer) -> list[tuple[int, int, int]]:
    """Returns the names of the messages that are held in partition 0, in order."""
    held = queue._work.holdings.each()
    own = (of.at(offset).own_span for (*place, offset), of in held if place == ["orders", 0])
    return sorted((lo.offset, lo.sequence, lo.nth) for lo, _ in own)


def test_they_come_as_every_consumer_has_them_and_are_worked_off_once(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    fill(producer, 2)
    commit(producer, *numbered(3, 2))
    grown(memory_log, 6, 5)
    fill(producer, 1, first=11)
    commit(producer, *numbered(2, 12))
    queue = queues()
    found = take(queue, 14)
    assert values(found) == numbered(14)
    assert [is_delivered_from_sidecar(m.offset()) for m in found] == [
        *(False, False, True, True, True, False, False, False),
        *(False, True, True, False, True, True),
    ]
    assert sum(sequence < AT_OFFSET for _, sequence, _ in names(queue)) == 3 + 6 + 2
    settings = {"group.id": "g", "auto.offset.reset": "earliest"}
    with closing(Consumer(settings, log=memory_log)) as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        assert read_upto(consumer, numbered(14)) == numbered(14)
    queue.acknowledge_cumulative(found[-1])
    assert set(queue.commit_sync().values()) == {None}
    queue.close()
    assert take(queues(), 1, 1.0) == []

    def sums(spans: Any) -> list[Any]:
        return [each for key, span in spans.items() for each in sum_up(memory_log, key, span)]

    report = run_audit(memory_log, None, sums)
    severities = {severity for severity, _ in report.counts}
    assert not severities & {"violation", "unverifiable"}, report.findings


def test_they_come_in_shares_and_who_dies_has_had_no_more(
    queues: Queues, producer: Producer
) -> None:
    """Two transactions at one place, as nothing else is written to the partition."""
    commit(producer, *numbered(60))
    commit(producer, *numbered(60, 60))
    dies = queues(**{"max.poll.records": 10})
    assert values(take(dies, 10)) == numbered(10)
    kill(dies)
    one, other = (queues(**{"max.poll.records": 10}) for _ in range(2))
    found: dict[bytes, int] = {}
    while len(found) < 120:
        for queue in (one, other):
            messages = queue.poll(1.0)
            assert len(messages) <= 10
            found.update((m.value(), queue.delivery_count(m)) for m in messages)
            for message in messages:
                queue.acknowledge(message)
            assert set(queue.commit_sync().values()) <= {None}
    assert sorted(found, key=int) == numbered(120)
    assert {found[value] for value in numbered(110, 10)} == {1}
    for queue in (one, other):
        queue.close()
    assert take(queues(), 1, 1.0) == []
