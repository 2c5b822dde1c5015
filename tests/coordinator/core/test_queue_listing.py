"""What operators are told of a subscription: counts of offsets, consumers, transactions."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from logtx.coordinator.core import queue_listing
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.queues import (
    OPERATOR,
    AcknowledgeType,
    AckResult,
    SubscribedPartitionInfo,
    SubscriptionInfo,
)
from logtx.journal.acks import SubscriptionKind
from logtx.journal.errors import (
    AckOutOfRangeError,
    CoordinatorBusyError,
    UnknownSubscriptionError,
)
from logtx.journal.spans import AT_OFFSET, MessageId, Span

from .queue_harness import END, GROUP, P0, Queue, message, offsets


@pytest.fixture
def queue() -> Queue:
    """A consumer, 1, of ten messages."""
    queue = Queue()
    queue.attach(1)
    return queue


def described(queue: Queue) -> SubscriptionInfo:
    page = queue.ask(commands.DescribeSubscriptions())
    assert isinstance(page, commands.SubscriptionsPage), page
    (info,) = page.subscriptions
    return info


def partition(queue: Queue) -> SubscribedPartitionInfo:
    (found,) = (each for each in described(queue).partitions if each.partition == P0)
    return found


@pytest.mark.parametrize(
    ("span", "count"),
    [
        (offsets(3, 7), 4),
        (message(3), 1),
        (Span(message(3).hi, message(5).hi), 2),
        (Span(message(3).hi, MessageId(4)), 0),
        (Span(MessageId(3), MessageId(3, 17)), 0),  # what is placed at 3 alone
        (Span(MessageId(3, AT_OFFSET, 1), MessageId(3, AT_OFFSET, 5)), 0),
        (Span(MessageId(3, AT_OFFSET), MessageId(9, AT_OFFSET)), 6),
    ],
)
def test_a_span_counts_its_offsets(span: Span, count: int) -> None:
    assert span.offset_count == count


def test_what_joins_counts_as_much_as_its_parts() -> None:
    bounds = [
        MessageId(o, *rest) for o in range(4) for rest in ((), (7,), (AT_OFFSET,), (AT_OFFSET, 2))
    ]
    whole = Span(bounds[0], bounds[-1]).offset_count
    assert sum(Span(*each).offset_count for each in itertools.pairwise(bounds)) == whole == 4


def test_a_subscription_at_its_beginning(queue: Queue) -> None:
    info = described(queue)
    assert (info.group, info.kind) == (GROUP, SubscriptionKind.SHARED)
    (consumer,) = info.consumers
    assert (consumer.consumer, consumer.topics, consumer.leased) == (1, ("a",), 0)
    assert not consumer.gone
    found = partition(queue)
    assert (found.left, found.pending, found.leased, found.txids) == (0, 0, 0, ())
    assert found.start == found.reached == MessageId(0)
    assert found.depth(END) == END, "what was never given out lies behind what was reached"
    assert not found.former


def test_each_state_is_counted_and_the_depth_is_all_that_is_not_deleted(queue: Queue) -> None:
    assert queue.acquire(1, 6) is not None
    txid = queue.begin("p")
    queue.add_acks("p", txid, message(2), message(4))
    queue.acknowledge(1, AcknowledgeType.ACCEPT, message(0), message(3))
    found = partition(queue)
    assert found.start == message(0).hi
    assert (found.left, found.pending, found.leased) == (4, 2, 2)
    assert found.txids == (txid,)
    assert found.depth(END) == 8
    assert found.depth(3) == 4, "an end of a broker behind takes nothing away"
    (consumer,) = described(queue).consumers
    assert consumer.leased == 2
    queue.end("p", txid, commit=True)
    found = partition(queue)
    assert (found.left, found.pending, found.txids) == (2, 0, ())
    assert found.depth(END) == 6


def test_a_new_owner_counts_what_the_journal_says(queue: Queue) -> None:
    queue.acquire(1, 6)
    queue.acknowledge(1, AcknowledgeType.REJECT, message(0), message(3))
    assert described(queue).rejected == 2
    queue.fail_over()
    info, found = described(queue), partition(queue)
    assert info.consumers == ()
    assert (info.redelivered, info.rejected) == (0, 0), "its predecessor has counted them"
    assert found.depth(END) == 8
    assert found.leased == 0


def test_what_is_given_out_again_is_counted(queue: Queue) -> None:
    queue.acquire(1, 6)
    assert described(queue).redelivered == 0
    queue.acknowledge(1, AcknowledgeType.RELEASE, offsets(0, 2), unseen=True)
    again = queue.acquire(1, 2)
    assert again is not None
    assert again.span == offsets(0, 2)
    assert described(queue).redelivered == 0, "no application had got them"
    queue.acknowledge(1, AcknowledgeType.RELEASE, offsets(0, 1))
    queue.acquire(1, 1)
    assert described(queue).redelivered == 1


def test_a_consumer_whose_stream_broke_is_shown_as_gone(queue: Queue) -> None:
    queue.coordinator.tenure.consumer_gone(GROUP, 1, queue.coordinator.now)
    (consumer,) = described(queue).consumers
    assert consumer.gone


def test_one_that_is_not_there_is_refused(queue: Queue) -> None:
    answer = queue.ask(commands.DescribeSubscriptions(groups=(GROUP, "nobody")))
    assert isinstance(answer, UnknownSubscriptionError)
    assert "nobody" in str(answer)


def test_pages_hold_each_subscription_once(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("z", "a", "m"):
        queue.ask(commands.Attach(group=name, consumer=9, topics=("a",)))
    monkeypatch.setattr(queue_listing, "_WEIGHT_MAX", 4)
    found: list[str] = []
    more: Any = True
    while more:
        after = found[-1] if found else ""
        page = queue.ask(commands.DescribeSubscriptions(after=after))
        assert page.subscriptions
        found += (info.group for info in page.subscriptions)
        more = page.more
    assert found == ["a", "m", GROUP, "z"]


def test_an_operator_is_not_refused_by_an_end_of_long_ago(queue: Queue) -> None:
    """Nobody asks for it after the consumers left (trap 134). A consumer is: it was given what it
    names."""
    beyond = message(END + 3)
    refused = queue.acknowledge(1, AcknowledgeType.REJECT, beyond)
    assert isinstance(refused, AckOutOfRangeError)
    wanted = queue.coordinator.shard.queues.dispatch.wanted
    assert P0 not in wanted()
    waits = queue.acknowledge(OPERATOR, AcknowledgeType.REJECT, beyond)
    assert isinstance(waits, CoordinatorBusyError)
    assert P0 in wanted()
    queue.tell_ends(END + 4)
    assert queue.acknowledge(OPERATOR, AcknowledgeType.REJECT, beyond) == (AckResult.DONE,)
    assert partition(queue).depth(END + 4) == END + 3
