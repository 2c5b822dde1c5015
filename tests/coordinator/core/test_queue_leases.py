"""Leases of consumers that attach again, and what an owner remembers of leases that are over."""

from __future__ import annotations

import random

import pytest

from logtx.coordinator.core import dispatch
from logtx.coordinator.core.decision import Instant
from logtx.coordinator.core.subscriptions import MessageState
from logtx.coordinator.core.tenure import Tenure
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.queues import AcknowledgeType, AckResult, Lease
from logtx.journal.errors import CoordinatorLoadingError
from logtx.journal.spans import MessageId, Span

from .queue_harness import END, GROUP, Queue, acks, message, offsets

DAY_MS = 24 * 3_600_000


@pytest.fixture
def queue() -> Queue:
    """Two consumers, 1 and 2, of ten messages; what is given out is theirs for 90 seconds."""
    queue = Queue()
    queue.attach(1, timeout_ms=90_000)
    queue.attach(2, timeout_ms=90_000)
    return queue


# ---- consumers that attach again ----------------------------------------------------------------


def test_who_attaches_again_has_no_more_time_and_no_delivery_more(queue: Queue) -> None:
    """Each does once a minute: what it never acknowledges would stay with it for ever, and would
    count as given out again (trap 113)."""
    lease = queue.acquire(1, 3)
    assert lease is not None
    queue.coordinator.pass_time(60_000)
    (kept,) = queue.attach(1, lease.span, timeout_ms=90_000).leases
    assert (kept.span, kept.delivery_count, kept.left_ms) == (lease.span, 1, 30_000)
    queue.coordinator.pass_time(29_999)
    assert queue.state(0) is MessageState.PENDING
    queue.coordinator.pass_time(1)
    assert queue.state(0) is MessageState.AVAILABLE
    again = queue.acquire(2)
    assert again is not None
    assert again.delivery_count == 2


def test_who_attaches_again_lets_go_of_what_it_does_not_name(queue: Queue) -> None:
    lease = queue.acquire(1)
    assert lease is not None
    named = message(2), offsets(5, 8)
    attached = queue.attach(1, *named, timeout_ms=90_000)
    assert [kept.span for kept in attached.leases] == list(named)
    left = [n for n in range(END) if queue.state(n) is MessageState.PENDING]
    assert left == [2, 5, 6, 7]
    assert queue.acknowledge(1, AcknowledgeType.RENEW, *named) == (AckResult.DONE,) * 2


def test_trap_123_what_was_under_way_to_one_that_attached_counts_though_nobody_saw_it(
    queue: Queue,
) -> None:
    """docs/queues.md tells of it. A consumer rests, closes, subscribes to other topics or connects
    anew while the answer to its last request is under way. It does not name what it does not know
    of, nor does it what its application had when it closed. The owner can't tell one from the
    other, and the latter must count: else nobody would give up a message that ends each loop.
    """
    assert queue.acquire(1, 3) is not None
    assert queue.attach(1, timeout_ms=90_000).leases == ()
    again = queue.acquire(2)
    assert again is not None
    assert (again.span.lo, again.delivery_count) == (MessageId(0), 2)


def test_what_is_over_is_not_a_consumers_again_because_it_attaches(queue: Queue) -> None:
    lease = queue.acquire(1)
    assert lease is not None
    queue.coordinator.pass_time(90_000)
    assert queue.attach(1, lease.span, timeout_ms=90_000) == commands.Attached(())
    assert queue.state(0) is MessageState.AVAILABLE


def test_a_new_owner_counts_no_delivery_when_a_consumer_keeps_what_it_has(queue: Queue) -> None:
    lease = queue.acquire(1)
    assert lease is not None
    queue.coordinator.tenure.consumer_gone(GROUP, 1, queue.coordinator.now)
    queue.coordinator.pass_time(dispatch.GONE_MS)
    (again,) = queue.attach(1, lease.span, timeout_ms=90_000).leases
    assert (again.delivery_count, again.left_ms) == (1, 90_000)
    queue.fail_over()
    queue.tell_ends()
    (again,) = queue.attach(1, lease.span, timeout_ms=90_000).leases
    assert (again.delivery_count, again.left_ms) == (1, 90_000)


def test_an_attachment_that_is_not_told_takes_nothing_away(queue: Queue) -> None:
    """It has its leases by what it was told before, and attaches again."""
    lease = queue.acquire(1)
    assert lease is not None
    tenure = queue.coordinator.tenure
    attach = commands.Attach(
        group=GROUP, consumer=1, topics=("a",), held=acks(lease.span), ack_timeout_ms=90_000
    )
    tenure.submit(attach, "lost", queue.coordinator.now, queue.coordinator.topics)
    tenure.end_told(None, queue.coordinator.now.monotonic_ms, "no answer")
    assert isinstance(queue.coordinator.replies["lost"], CoordinatorLoadingError)
    assert queue.acquire(2) is None
    (kept,) = queue.attach(1, lease.span, timeout_ms=90_000).leases
    assert (kept.span, kept.delivery_count) == (lease.span, 1)


def told_late(queue: Queue, after_ms: int) -> tuple[Lease, ...]:
    """Returns what a consumer is told that asked for messages, if the journal's end takes so long.

    The owner stood still meanwhile: it has not looked what is due.
    """
    coordinator = queue.coordinator
    ask = commands.Acquire(group=GROUP, consumer=1, max_offsets=3)
    coordinator.tenure.submit(ask, "late", coordinator.now, coordinator.topics)
    now_ms = coordinator.now.monotonic_ms + after_ms
    coordinator.now = Instant(now_ms, coordinator.now.wall_ms + after_ms)
    coordinator.tenure.end_told(coordinator.journal.end, now_ms)
    told = coordinator.replies["late"]
    assert isinstance(told, commands.Leases)
    return told.leases


def test_a_lease_that_is_told_late_has_less_time(queue: Queue) -> None:
    """Else its consumer works on it when another one has it (trap 269)."""
    (lease,) = told_late(queue, 89_999)
    assert lease.left_ms == 1
    queue.coordinator.pass_time(1)
    again = queue.acquire(2, 3)
    assert again is not None
    assert again.span.lo == lease.span.lo


def test_a_lease_that_is_over_is_not_told(queue: Queue) -> None:
    """Its messages go to another consumer at once (trap 269)."""
    assert told_late(queue, 90_000) == ()
    queue.coordinator.pass_time(0)
    again = queue.acquire(2, 3)
    assert again is not None
    assert (again.span.lo, again.delivery_count) == (MessageId(0), 2)


def test_an_attached_consumer_is_told_late_what_time_it_has(queue: Queue) -> None:
    """What it names is its own no longer than before (trap 269)."""
    lease = queue.acquire(1)
    assert lease is not None
    coordinator = queue.coordinator
    attach = commands.Attach(
        group=GROUP, consumer=1, topics=("a",), held=acks(lease.span), ack_timeout_ms=90_000
    )
    coordinator.tenure.submit(attach, "late", coordinator.now, coordinator.topics)
    coordinator.tenure.end_told(coordinator.journal.end, coordinator.now.monotonic_ms + 60_000)
    told = coordinator.replies["late"]
    assert isinstance(told, commands.Attached)
    assert [kept.left_ms for kept in told.leases] == [30_000]


def known_after_a_pause(queue: Queue) -> list[int]:
    """Returns the consumers that an owner knows which stood still while 1 and 3 attached, and their
    streams broke, and 4 came. It decides nothing until it knows that it is the owner."""
    tenure, now = queue.coordinator.tenure, queue.coordinator.now
    tenure.pause()
    for consumer in (1, 3):  # One that attaches again, and one that comes.
        attach, ref = commands.Attach(group=GROUP, consumer=consumer, topics=("a",)), object()
        tenure.submit(attach, ref, now, queue.coordinator.topics)
        tenure.forget([ref])
        tenure.consumer_gone(GROUP, consumer, now)
    others = commands.Attach(group=GROUP, consumer=4, topics=("a",))
    tenure.submit(others, "attach 4", now, queue.coordinator.topics)
    queue.coordinator._tell_end()
    queue.coordinator.pass_time(dispatch.GONE_MS)
    assert queue.coordinator.replies.keys() >= {"attach 4"}
    return [each.consumer for each in queue.coordinator.shard.queues.dispatch.consumers(GROUP)]


def test_trap_152_who_is_gone_before_it_is_attached_is_not_there(queue: Queue) -> None:
    assert known_after_a_pause(queue) == [2, 4]


def test_trap_152_without_the_rule_it_never_leaves(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was kept during the pause is decided, though its stream has ended."""
    monkeypatch.setattr(Tenure, "forget", lambda self, refs: self.shard.forget_waiting(refs))
    assert set(known_after_a_pause(queue)) == {1, 2, 3, 4}


# ---- what an owner remembers --------------------------------------------------------------------


@pytest.mark.parametrize("how", ["accepted", "released", "in a transaction"])
def test_a_lease_of_which_nothing_is_left_is_forgotten(queue: Queue, how: str) -> None:
    """Its time may be a day, and thousands are given each second."""
    queue.attach(1, timeout_ms=DAY_MS)
    given = queue.coordinator.shard.queues.dispatch
    rng = random.Random(1)
    for round_ in range(1, 200):
        queue.tell_ends(END * (round_ + 1))
        lease = queue.acquire(1)
        assert lease is not None
        lo, hi = lease.span.lo.offset, lease.span.hi.offset
        spans = [Span(MessageId(n), MessageId(n + 1)) for n in range(lo, hi)]
        rng.shuffle(spans)
        for span in spans:
            queue.acknowledge(1, AcknowledgeType.RENEW, span)
            if how == "accepted":
                queue.acknowledge(1, AcknowledgeType.ACCEPT, span)
            elif how == "released":
                queue.acknowledge(1, AcknowledgeType.RELEASE, span)
        if how == "released":
            assert queue.acknowledge(2, AcknowledgeType.ACCEPT, lease.span) == (AckResult.DONE,)
        if how == "in a transaction":
            txid = queue.begin("t")
            queue.add_acks("t", txid, *spans)
            queue.end("t", txid, commit=True)
    assert not given._leases
    assert len(given._deadlines) < 200
