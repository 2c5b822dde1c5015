"""Consumers of a process ask the cluster through one log, where their settings agree."""

from __future__ import annotations

from typing import Any

import pytest

from logtx.consumer.consumer import Consumer
from logtx.consumer.share_consumer import ShareConsumer
from logtx.journal.logs.interface import Log
from logtx.journal.logs.kafka import KafkaLog
from logtx.producer.producer import Producer

from ..waiting import eventually


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Log]:
    """The logs of Kafka that were closed."""
    found: list[Log] = []
    close = KafkaLog.close

    def noted(log: KafkaLog) -> None:
        found.append(log)
        close(log)

    monkeypatch.setattr(KafkaLog, "close", noted)
    return found


def log_of(producer: Producer) -> Log:
    coordinators: Any = producer._engine._coordinators
    return coordinators._log  # type: ignore[no-any-return]


def consumer_of(servers: str, group: str = "g", **settings: object) -> Consumer:
    return Consumer({"bootstrap.servers": servers, "group.id": group, **settings})


def test_consumers_and_a_producer_ask_through_one_log(mock_cluster: str, closed: list[Log]) -> None:
    first, second = consumer_of(mock_cluster, "g"), consumer_of(mock_cluster, "h")
    queue = ShareConsumer({"bootstrap.servers": mock_cluster, "group.id": "q"})
    producer = Producer({"bootstrap.servers": mock_cluster})
    assert first._log is second._log is queue._log is log_of(producer)
    first.close()
    queue.close()
    assert not closed
    assert second._log.create_topic("lent", partitions=1)
    assert second._log.end_offset("lent", 0) == 0
    producer.close()
    assert not closed
    second.close()
    assert closed == [second._log]


def test_who_has_another_client_id_asks_through_a_log_of_its_own(
    mock_cluster: str, closed: list[Log]
) -> None:
    first, second = consumer_of(mock_cluster), consumer_of(mock_cluster, **{"client.id": "other"})
    assert first._log is not second._log
    first.close()
    assert closed == [first._log]
    second.close()


def test_a_log_that_was_given_stays_open(mock_cluster: str, closed: list[Log]) -> None:
    log = KafkaLog({"bootstrap.servers": mock_cluster})
    consumer = Consumer({"bootstrap.servers": mock_cluster, "group.id": "g"}, log=log)
    consumer.close()
    assert not closed


def test_a_consumer_that_was_dropped_gives_its_log_back(
    mock_cluster: str, closed: list[Log]
) -> None:
    consumer = consumer_of(mock_cluster)
    log = consumer._log
    del consumer
    eventually(lambda: closed == [log])
