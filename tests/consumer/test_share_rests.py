"""Consumers of a queue that rest, or change their topics, while something else is under way."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from logtx.consumer import share_consumer
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol.queues import Lease
from logtx.coordinator.server.consumers import Consumers
from logtx.journal.acks import Acks
from logtx.journal.errors import NotSupportedError, UnknownTopicError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.places import PartitionId
from logtx.journal.spans import MessageId, Span
from logtx.producer.producer import Producer

from ..waiting import eventually
from .test_share_attaching import is_attached
from .test_share_consumer import Queues, coordinator, fill, producer, queues, take, values

__all__ = ["coordinator", "producer", "queues"]
SOON_S = 8.0
"""Much less than the time of a lease, and than the pause between two attachments."""


def test_who_rests_does_not_get_back_what_it_gave_back(queues: Queues, producer: Producer) -> None:
    """Its last request waits, and is answered first; to attach must not name that (trap 131)."""
    fill(producer, 2)
    worker = queues()
    unseen = take(worker, 2)
    assert worker.poll(0.1) == [], "its request waits"
    worker.rest(unseen)
    other = queues()
    assert sorted(values(take(other, 2, SOON_S))) == [b"0", b"1"]
    assert [other.delivery_count(m) for m in unseen] == [1, 1], "nobody had seen them"


def test_who_rests_holds_nothing_that_comes_late(queues: Queues, producer: Producer) -> None:
    """If its stream broke, it would name that when it attaches, and have it (trap 131)."""
    fill(producer, 1)
    worker = queues()
    (message,) = take(worker, 1)
    worker.rest([message])
    partition = PartitionId("orders", 0, "of the topic")
    span = Span(MessageId(5), MessageId(7))
    late = Lease(number=7, partition=partition, span=span, delivery_count=1, left_ms=30_000)
    worker._leased((late,))
    assert Acks(partition, (span,)) not in worker._attach().held


def test_who_polls_again_while_it_attaches_has_its_topics(
    queues: Queues, producer: Producer, coordinator: EmbeddedCoordinator
) -> None:
    """How it attached was said while it rested. It would ask without topics for a minute (trap
    142).
    """
    worker = queues()
    assert worker.poll(0.5) == []
    worker.rest()
    client: Any = worker._client
    attached, polled = client._on_attached, False

    def polls_meanwhile(leases: tuple[Lease, ...]) -> None:
        nonlocal polled
        attached(leases)
        if not polled:
            polled = True
            assert worker.poll(0) == []

    eventually(lambda: not client._requests.keys() - {1}, 10.0)
    coordinator.stop()
    client._on_attached = polls_meanwhile
    coordinator.start()
    eventually(lambda: polled, 20.0)
    fill(producer, 2)
    assert sorted(values(take(worker, 2, SOON_S))) == [b"0", b"1"]


def test_a_start_is_not_forgotten_with_an_attachment_that_was_refused(
    queues: Queues,
    producer: Producer,
    memory_log: MemoryLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one would begin at the first message of the topic (trap 143)."""
    monkeypatch.setattr(share_consumer, "ATTACH_AGAIN_S", 0.5)
    memory_log.create_topic("other", partitions=1)
    fill(producer, 3)
    worker = queues("other", **{"auto.offset.reset": "latest"})
    assert worker.poll(0.5) == []
    checks = Consumers.check_builds

    def refuses(_: Consumers) -> None:
        monkeypatch.setattr(Consumers, "check_builds", checks)
        raise NotSupportedError("a coordinator of an older build is there")

    monkeypatch.setattr(Consumers, "check_builds", refuses)
    worker.subscribe(["orders"])
    changing: Any = worker._changing
    assert isinstance(changing.result(10), NotSupportedError)
    with pytest.raises(NotSupportedError, match="older build"):
        worker.poll(0)
    fill(producer, 1, first=3)
    assert values(take(worker, 1, SOON_S)) == [b"3"]


def test_a_start_is_not_forgotten_with_an_attachment_without_topics(
    queues: Queues, producer: Producer, memory_log: MemoryLog, coordinator: EmbeddedCoordinator
) -> None:
    """It rested while it attached (trap 143)."""
    memory_log.create_topic("other", partitions=1)
    fill(producer, 3)
    worker = queues("other", **{"auto.offset.reset": "latest"})
    assert worker.poll(0.5) == []
    coordinator.stop()
    worker.subscribe(["orders"])
    changing: Any = worker._changing
    worker.rest()
    coordinator.start()
    assert changing.result(20.0)
    fill(producer, 1, first=3)
    assert values(take(worker, 1, SOON_S)) == [b"3"]


def test_topics_that_are_refused_are_told_and_named_again(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    """The consumer is attached still, for the topics of before: no other answer would tell it."""
    worker = queues()
    assert worker.poll(0.5) == []
    worker.subscribe(["later"])
    changing: Any = worker._changing
    assert isinstance(changing.result(10), UnknownTopicError)
    for _ in range(2):
        with pytest.raises(UnknownTopicError, match="later"):
            eventually(lambda: bool(worker.poll(0.2)))
    memory_log.create_topic("later", partitions=1)
    producer.produce("later", b"0")
    producer.flush()
    found: list[bytes] = []

    def has_it() -> bool:
        with suppress(UnknownTopicError):
            found.extend(values(worker.poll(0.2)))
        return bool(found)

    eventually(has_it)
    assert found == [b"0"]


def test_a_refusal_of_who_polls_again_is_told_and_its_topics_named_again(
    queues: Queues, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it rested, it was attached without topics: it would get nothing for a minute."""
    worker = queues()
    assert worker.poll(0.5) == []
    worker.rest()
    is_attached(worker)
    checks = Consumers.check_builds

    def refuses(_: Consumers) -> None:
        monkeypatch.setattr(Consumers, "check_builds", checks)
        raise NotSupportedError("a coordinator of an older build is there")

    monkeypatch.setattr(Consumers, "check_builds", refuses)
    with pytest.raises(NotSupportedError, match="older build"):
        eventually(lambda: bool(worker.poll(0.2)))
    fill(producer, 2)
    assert sorted(values(take(worker, 2, SOON_S))) == [b"0", b"1"]
