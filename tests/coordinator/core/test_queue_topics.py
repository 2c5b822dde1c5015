"""Queues of topics that are no more: what is given out, asked for and acknowledged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.queues import AcknowledgeType, AckResult
from logtx.journal.errors import UnknownSubscriptionError, UnknownTopicError

from .queue_harness import GROUP, P0, Queue, acks, message, offsets

NEW = P0._replace(topic_id="id-new")


@pytest.fixture
def queue() -> Queue:
    """A consumer, 1, of ten messages."""
    queue = Queue()
    queue.attach(1)
    return queue


def create_anew(queue: Queue) -> None:
    known = queue.coordinator.topics["a"]
    queue.coordinator.topics["a"] = replace(known, topic_id=NEW.topic_id)


def attach_in_doubt(queue: Queue, *topics: str) -> Any:
    """Returns the answer to one that names a topic which was looked up and not found."""
    coordinator = queue.coordinator
    attach = commands.Attach(group=GROUP, consumer=1, topics=topics)
    doubt = UnknownTopicError("there is no such topic")
    coordinator.tenure.submit(attach, topics, coordinator.now, coordinator.topics, doubt)
    coordinator._tell_end()
    coordinator.ack()
    return coordinator.replies[topics]


def test_nothing_is_given_out_of_a_topic_that_was_created_anew(queue: Queue) -> None:
    assert queue.acquire(1, 2)
    create_anew(queue)
    queue.attach(1, message(0))
    queue.tell_ends(3, NEW)
    new = queue.acquire(1)
    assert new is not None
    assert (new.partition, new.span) == (NEW, offsets(0, 3))
    assert queue.acquire(1) is None
    wanted = queue.coordinator.shard.queues.dispatch.wanted()
    assert NEW in wanted
    assert P0 not in wanted, "nobody could tell where it ends"


def test_a_topic_that_was_deleted_keeps_nobody_from_the_others(queue: Queue) -> None:
    queue.attach(1, topics=("a", "b"))
    del queue.coordinator.topics["a"]
    assert attach_in_doubt(queue, "a", "b") == commands.Attached(())
    other = P0._replace(topic="b", topic_id="id-b")
    queue.tell_ends(1, other)
    lease = queue.acquire(1)
    assert lease is not None
    assert lease.partition == other
    assert isinstance(attach_in_doubt(queue, "b", "nowhere"), UnknownTopicError)


def test_what_was_a_topics_may_be_acknowledged_though_nobody_tells_its_end(queue: Queue) -> None:
    """The owner that knew where it ended is gone (trap 112)."""
    txid = queue.begin("t")
    create_anew(queue)
    queue.fail_over()
    queue.attach(1, message(0), message(1))
    plain = queue.acknowledge(1, AcknowledgeType.ACCEPT, message(0))
    assert plain == (AckResult.DONE,)
    assert queue.add_acks("t", txid, message(1)) == commands.Done()
    assert not queue.coordinator.shard.queues.dispatch.wanted()


def test_a_topic_that_a_consumer_left_is_known_to_be_no_more(queue: Queue) -> None:
    """It subscribes to another one, and has messages of this one still (trap 121)."""
    txid = queue.begin("t")
    create_anew(queue)
    queue.fail_over()
    queue.attach(1, message(0), message(1), topics=("b",))
    assert queue.add_acks("t", txid, message(0)) == commands.Done()
    plain = queue.acknowledge(1, AcknowledgeType.ACCEPT, message(1))
    assert plain == (AckResult.DONE,)
    del queue.coordinator.topics["a"]
    queue.fail_over()
    assert isinstance(queue.attach(1, message(2), topics=("b",)), commands.Attached)
    assert queue.add_acks("t", txid, message(2)) == commands.Done()


def test_a_partition_that_a_queue_does_not_have_is_refused_at_once(queue: Queue) -> None:
    """Its end would be asked for, for ever."""
    nowhere = acks(message(0), partition=P0._replace(partition=99))
    command = commands.Acknowledge(
        group=GROUP, consumer=1, type=AcknowledgeType.ACCEPT, acks=nowhere
    )
    assert isinstance(queue.ask(command), UnknownSubscriptionError)
    txid = queue.begin("t")
    add = commands.AddAcks(session=queue.sessions["t"], txid=txid, group=GROUP, acks=nowhere)
    assert isinstance(queue.ask(add), UnknownSubscriptionError)
    assert not queue.coordinator.shard.queues.dispatch.wanted()
