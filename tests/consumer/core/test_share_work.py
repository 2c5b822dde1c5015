"""What a queue's consumer says of its leases: each part once, and nothing of what it has lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logtx.consumer.core.share_work import END_PAUSE_MS, UNREADABLE_PAUSE_MS, ShareWork
from logtx.coordinator.protocol.queues import AcknowledgeType, Lease
from logtx.journal.acks import Acks
from logtx.journal.places import PartitionId
from logtx.journal.spans import AT_OFFSET, MessageId, Span

P0 = PartitionId("a", 0, "id-a")
FIRST, SECOND = ("a", 0, 1), ("a", 0, 4)
ACCEPT, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.REJECT
RELEASE, RENEW = AcknowledgeType.RELEASE, AcknowledgeType.RENEW


def span(first: int, end: int) -> Span:
    """Offsets from behind the message at `first - 1` on, up to the one at `end - 1`."""
    lo = MessageId(first - 1, AT_OFFSET).behind if first else MessageId(0)
    return Span(lo, MessageId(end - 1, AT_OFFSET).behind)


def lease(first: int, end: int) -> Lease:
    whole = Span(MessageId(first), MessageId(end))
    return Lease(number=1, partition=P0, span=whole, delivery_count=1, left_ms=9)


@pytest.fixture
def work() -> ShareWork:
    """A lease of offsets 0 to 9, of which messages at 1 and 4 are given out."""
    work = ShareWork()
    work.leased([lease(0, 10)])
    work.begin()
    assert work.give(FIRST, MessageId(1, AT_OFFSET))
    assert work.give(SECOND, MessageId(4, AT_OFFSET))
    return work


def said(work: ShareWork) -> dict[tuple[AcknowledgeType, int], list[Span]]:
    """Returns what is to be sent, all of the one partition; and takes it."""
    return {
        how: [s for each in acks for s in each.spans]
        for how, acks in work.outgoing().items()
        if acks
    }


def test_what_lies_behind_the_last_message_is_accepted_up_to_the_bound(work: ShareWork) -> None:
    work.finish(MessageId(8))
    behind = MessageId(4, AT_OFFSET).behind
    assert said(work) == {
        (ACCEPT, 0): [Span(behind, MessageId(8))],
        (RELEASE, END_PAUSE_MS): [Span(MessageId(8), MessageId(10))],
    }
    assert said(work) == {}, "once"


def test_of_a_lease_that_is_anothers_no_gap_is_accepted(work: ShareWork) -> None:
    work.attached([])
    assert not work.give(("a", 0, 6), MessageId(6, AT_OFFSET))
    work.finish(MessageId(10))
    assert said(work) == {}, "it went on to the bound, and says nothing of that"
    work.leased([lease(10, 20)])
    work.begin()
    assert work.give(("a", 0, 12), MessageId(12, AT_OFFSET)), "the next one is its own"
    assert work.holdings.look(("a", 0, 6)) is None


REST = Span(MessageId(4, AT_OFFSET).behind, MessageId(10))


def test_what_can_not_be_read_is_released_for_a_while(work: ShareWork) -> None:
    work.unreadable()
    assert said(work) == {(RELEASE, UNREADABLE_PAUSE_MS): [REST]}
    assert work.holdings.look(FIRST) is not None, "what was given out stays"


def test_what_is_gone_is_rejected_and_so_are_other_leases_of_it(work: ShareWork) -> None:
    work.leased([lease(10, 20)])
    work.gone()
    assert said(work) == {(REJECT, 0): [REST]}
    assert work.begin() is None
    assert said(work) == {(REJECT, 0): [Span(MessageId(10), MessageId(20))]}


def test_each_message_is_said_of_once(work: ShareWork) -> None:
    work.acknowledge(FIRST, RENEW, 0)
    work.acknowledge(FIRST, RELEASE, 30)
    work.acknowledge(FIRST, ACCEPT, 0)
    work.accept_up_to(FIRST)
    work.accept_up_to(SECOND)
    work.accept_up_to(SECOND)
    assert said(work) == {
        (RENEW, 0): [span(0, 2)],
        (RELEASE, 30): [span(0, 2)],
        (ACCEPT, 0): [span(2, 5)],
    }


def test_what_a_poll_returned_is_accepted_but_for_what_was_said_of(work: ShareWork) -> None:
    work.return_all([FIRST, SECOND])
    work.acknowledge(FIRST, REJECT, 0)
    work.accept_returned()
    work.accept_returned()
    assert said(work) == {(REJECT, 0): [span(0, 2)], (ACCEPT, 0): [span(2, 5)]}


def test_what_is_taken_back_or_released_is_accepted_by_nobody(work: ShareWork) -> None:
    work.take_back([FIRST])
    work.return_all([SECOND])
    work.release_all(7)
    work.accept_returned()
    assert said(work) == {(RELEASE, 0): [span(0, 2)], (RELEASE, 7): [span(2, 5)]}


def test_what_a_transaction_took_is_not_said_of_again(work: ShareWork) -> None:
    work.accepted_elsewhere([FIRST])
    work.release_all(0)
    assert said(work) == {(RELEASE, 0): [span(2, 5)]}


def test_one_that_lets_go_holds_and_says_nothing(work: ShareWork) -> None:
    work.leased([lease(10, 20)])
    assert work.held() == (Acks(P0, (Span(MessageId(0), MessageId(20)),)),)
    work.let_go()
    assert work.held() == ()
    assert said(work) == {}
    assert work.begin() is None


def test_a_lease_whose_time_is_over_is_read_no_further() -> None:
    work = ShareWork()
    long = replace(lease(0, 10), left_ms=2_000)
    work.leased([long], 100.0)
    found = work.begin(100.0)
    assert found is not None
    assert work.give(FIRST, MessageId(1, AT_OFFSET), 0, 101.9)
    work.renewed(found, 103.0, is_lost=False)
    assert work.give(SECOND, MessageId(4, AT_OFFSET), 0, 102.9)
    assert not work.give(("a", 0, 6), MessageId(6, AT_OFFSET), 0, 103.0)
    work.give_up()
    assert said(work) == {(RELEASE, 0): [REST]}
    work.leased([long], 103.0)
    assert work.begin(105.0) is None, "it waited for too long"


def test_a_lease_that_is_lost_when_it_is_renewed_is_read_no_further(work: ShareWork) -> None:
    found = work.holdings.lease
    assert found is not None
    work.renewed(lease(0, 10), 9.0, is_lost=True)
    assert work.give(("a", 0, 6), MessageId(6, AT_OFFSET)), "it was of an earlier lease"
    work.renewed(found, 9.0, is_lost=True)
    assert not work.give(("a", 0, 7), MessageId(7, AT_OFFSET))


def test_what_is_said_is_named_until_it_is_sent(work: ShareWork) -> None:
    """Others would be given it, before it comes to the owner (trap 114)."""
    work.acknowledge(FIRST, ACCEPT, 0)
    work.acknowledge(SECOND, RELEASE, 30)
    assert work.held() == (Acks(P0, (Span(MessageId(0), MessageId(10)),)),)
    assert work.outgoing()
    assert work.held() == (Acks(P0, (REST,)),)
