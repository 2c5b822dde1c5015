"""What a queue's consumer says of its leases: each part once, and nothing of what it has lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from logtx.consumer.core import holdings
from logtx.consumer.core.runs import Given, RecordKey
from logtx.consumer.core.share_work import END_PAUSE_MS, UNREADABLE_PAUSE_MS, ShareWork
from logtx.coordinator.protocol.queues import AcknowledgeType, Lease
from logtx.journal.acks import Acks
from logtx.journal.places import PartitionId
from logtx.journal.sidecar import to_delivered
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


def given(work: ShareWork, *keys: RecordKey) -> dict[RecordKey, Given]:
    """Returns messages as they were given out."""
    found = {key: work.holdings.look(key) for key in keys}
    return {key: each for key, each in found.items() if each is not None}


def said(work: ShareWork) -> dict[Any, list[Span]]:
    """Returns what is to be sent, all of the one partition; and takes it. By type and delay, and
    whether it is of what no application got."""
    return {
        (how.type, how.delay_ms, *(["unseen"] if how.unseen else [])): [
            span for each in what.acks for span in each.spans
        ]
        for how, what in work.outgoing().items()
        if what.acks
    }


def test_what_lies_behind_the_last_message_is_accepted_up_to_the_bound(work: ShareWork) -> None:
    work.finish(MessageId(8))
    behind = MessageId(4, AT_OFFSET).behind
    assert said(work) == {
        (ACCEPT, 0): [Span(behind, MessageId(8))],
        (RELEASE, END_PAUSE_MS, "unseen"): [Span(MessageId(8), MessageId(10))],
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


def test_what_was_given_out_and_is_lost_is_not_named_and_may_be_acknowledged(
    work: ShareWork,
) -> None:
    """The application left it to its time. A new owner would give it back to this consumer, which
    does not work on it, and of a failover subscription the partition, where another one does."""
    whole = Acks(P0, (Span(MessageId(0), MessageId(10)),))
    assert work.held() == (whole,)
    work.attached([replace(lease(0, 10), span=Span(MessageId(1, AT_OFFSET).behind, MessageId(10)))])
    assert work.held() == (Acks(P0, (Span(MessageId(1, AT_OFFSET).behind, MessageId(10)),)),)
    work.attached([])
    assert work.held() == (Acks(P0, (REST,)),), "of the lease, it learns by this what it has lost"
    work.acknowledge(FIRST, ACCEPT, 0)
    assert said(work)[ACCEPT, 0] == [span(0, 2)]
    work.give_up()
    work.outgoing()
    assert work.held() == ()
    work.leased([lease(2, 10)])
    work.begin()
    work.give(SECOND, MessageId(4, AT_OFFSET))
    assert work.held() == (Acks(P0, (Span(MessageId(2), MessageId(10)),)),), "it has it again"


def test_what_an_application_leaves_to_its_time_is_not_kept_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holdings, "LOST_MAX", 5)
    work = ShareWork()
    for start in range(0, 100, 10):
        work.leased([lease(start, start + 10)])
        work.begin()
        for n in range(start, start + 10):
            work.give(("a", 0, n), MessageId(n, AT_OFFSET))
        work.finish(MessageId(start + 10))
        work.attached([lease(start + 8, start + 10)])
        assert len([*work.holdings.each()]) <= 2 + 5
    kept = [n for n in range(100) if work.holdings.look(("a", 0, n))]
    assert kept == [93, 94, 95, 96, 97, 98, 99]


REST = Span(MessageId(4, AT_OFFSET).behind, MessageId(10))


def test_what_can_not_be_read_is_released_for_a_while(work: ShareWork) -> None:
    work.unreadable(is_lasting=False)
    assert said(work) == {(RELEASE, UNREADABLE_PAUSE_MS, "unseen"): [REST]}
    assert work.holdings.look(FIRST) is not None, "what was given out stays"


def test_what_nobody_can_read_holds_up_one_offset_in_the_end(work: ShareWork) -> None:
    """Its lease is halved until it has nothing else (trap 122)."""
    bad, held_up, lo, hi = 7, [], REST.lo, REST.hi
    while True:
        work.unreadable(is_lasting=True)
        released = said(work)
        (waits,) = released.pop((RELEASE, UNREADABLE_PAUSE_MS, "unseen"))
        at_once = [span for spans in released.values() for span in spans]
        assert [waits.lo, *(s.lo for s in at_once)] == [lo, *(s.lo for s in at_once)]
        assert [waits.hi, *(s.hi for s in at_once)][-1] == hi, "all of it is released"
        held_up.append(waits)
        having = next(s for s in (waits, *at_once) if s.lo <= MessageId(bad, AT_OFFSET) < s.hi)
        if not at_once:
            break
        lo, hi = having
        whole = Lease(number=2, partition=P0, span=having, delivery_count=1, left_ms=9)
        work.leased([whole])
        work.begin()
    assert held_up[-1] == Span(MessageId(bad), MessageId(bad + 1))
    assert len(held_up) == 4


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
    work.acknowledge(FIRST, RELEASE, 0)
    work.accept_returned()
    work.accept_returned()
    assert said(work) == {(RELEASE, 0): [span(0, 2)], (ACCEPT, 0): [span(2, 5)]}


def test_what_is_taken_back_or_released_is_accepted_by_nobody(work: ShareWork) -> None:
    work.take_back([FIRST])
    work.return_all([SECOND])
    work.release_all(7)
    work.accept_returned()
    assert said(work) == {(RELEASE, 0, "unseen"): [span(0, 2)], (RELEASE, 7): [span(2, 5)]}


def test_what_a_transaction_took_is_not_said_of_again(work: ShareWork) -> None:
    work.accepted_elsewhere(given(work, FIRST))
    work.release_all(0)
    assert said(work) == {(RELEASE, 0): [span(2, 5)]}


def test_one_that_lets_go_holds_nothing_and_says_what_nobody_got(work: ShareWork) -> None:
    work.leased([lease(10, 20)])
    assert work.held() == (Acks(P0, (Span(MessageId(0), MessageId(20)),)),)
    work.let_go()
    unread = [Span(REST.lo, MessageId(20))]
    assert said(work) == {(RELEASE, 0, "unseen"): unread}
    assert work.held() == ()
    assert work.begin() is None


def test_what_is_put_back_was_not_delivered_and_the_rest_stays(work: ShareWork) -> None:
    work.put_back()
    assert said(work) == {(RELEASE, 0, "unseen"): [REST]}
    assert work.held() == (Acks(P0, (span(0, 5),)),)


def test_what_is_told_names_the_messages_that_the_application_spoke_of(work: ShareWork) -> None:
    work.acknowledge(FIRST, ACCEPT, 0)
    work.finish(MessageId(10))
    work.accept_up_to(SECOND)
    (accepted,) = work.outgoing().values()
    told = [offset for offsets in accepted.given.values() for offset in offsets]
    assert told == [1, 4], "the gap behind them has none"


def test_a_rejected_message_becomes_a_letter(work: ShareWork) -> None:
    work.acknowledge(FIRST, REJECT, 0, "no such customer")
    work.acknowledge(FIRST, ACCEPT, 0)
    assert work.has_letters
    (letter,) = work.letters()
    assert (letter.key, letter.reason, letter.delivery_count) == (FIRST, "no such customer", 1)
    assert letter.given.acks == Acks(P0, (span(0, 2),))
    assert not work.has_letters
    assert said(work) == {}
    work.keep_letters([letter])
    assert work.letters() == [letter]
    work.not_written(letter, 90)
    assert said(work) == {(RELEASE, 90): [span(0, 2)]}


def test_what_comes_once_more_than_it_may_is_not_given_out() -> None:
    """Its limit is 2: the third delivery makes a letter of it."""
    work = ShareWork(delivery_limit=2)
    for count in (1, 2, 3):
        work.leased([replace(lease(0, 10), delivery_count=count)])
        work.begin()
        assert work.give(FIRST, MessageId(1, AT_OFFSET))
        assert work.exhaust(FIRST) is (count == 3)
        assert (work.holdings.look(FIRST) is None) is (count == 3)
        work.release_all(0)
        work.give_up()
    (letter,) = work.letters()
    assert (letter.key, letter.delivery_count) == (FIRST, 2)
    assert letter.reason == "not worked off in 2 deliveries"


def test_without_a_limit_nothing_is_exhausted(work: ShareWork) -> None:
    assert not work.exhaust(FIRST)
    work.leased([replace(lease(10, 20), delivery_count=1_000)])
    work.finish(MessageId(10))
    work.begin()
    assert work.give(("a", 0, 12), MessageId(12, AT_OFFSET))
    assert not work.exhaust(("a", 0, 12))


def test_what_a_transaction_is_refused_is_released_and_else_nothing_is_said(
    work: ShareWork,
) -> None:
    first, second = [Acks(P0, (span(0, 2),))], [Acks(P0, (span(2, 5),))]
    taken, refused = work.ask(first, 0.0, 9.0), work.ask(second, 0.0, 9.0)
    work.accepted_elsewhere(given(work, FIRST, SECOND))
    assert work.held() == (Acks(P0, (Span(MessageId(0), MessageId(10)),)),), "up to the answers"
    work.answered(taken, is_refused=False)
    work.answered(refused, is_refused=True)
    assert said(work) == {(RELEASE, 0): [span(2, 5)]}
    assert work.held() == (Acks(P0, (REST,)),)
    work.ask(first, 0.0, 9.0)
    work.ask(second, 9.0, 18.0)
    assert work.held() == (Acks(P0, (Span(MessageId(1, AT_OFFSET).behind, MessageId(10)),)),), (
        "one that is never answered is forgotten with its time"
    )


def test_a_lease_whose_time_is_over_is_read_no_further() -> None:
    work = ShareWork()
    long = replace(lease(0, 10), left_ms=2_000)
    work.leased([long], 100.0)
    found = work.begin(100.0)
    assert found is not None
    assert work.give(FIRST, MessageId(1, AT_OFFSET), None, 101.9)
    work.renewed(found, 103.0, is_lost=False)
    assert work.give(SECOND, MessageId(4, AT_OFFSET), None, 102.9)
    assert not work.give(("a", 0, 6), MessageId(6, AT_OFFSET), None, 103.0)
    work.give_up()
    assert said(work) == {(RELEASE, 0, "unseen"): [REST]}
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
    work.acknowledge(FIRST, REJECT, 0)
    work.acknowledge(SECOND, RELEASE, 30)
    assert work.held() == (Acks(P0, (Span(MessageId(0), MessageId(10)),)),)
    assert work.outgoing()
    assert work.letters()
    assert work.held() == (Acks(P0, (REST,)),)


# ---- a subscription that was reset --------------------------------------------------------------


def eras(work: ShareWork) -> dict[tuple[AcknowledgeType, int], list[Span]]:
    """Returns what is to be sent, by type and era; and takes it."""
    return {
        (how.type, how.era): [span for each in what.acks for span in each.spans]
        for how, what in work.outgoing().items()
        if what.acks
    }


def test_nothing_of_before_a_reset_is_held_or_named(work: ShareWork) -> None:
    work.leased([lease(10, 20)])
    work.ask([Acks(P0, (span(0, 2),))], 0.0, 9.0)
    work.acknowledge(SECOND, REJECT, 0, "bad")
    work.return_all([FIRST])
    assert not work.attached([], era=0), "nobody has reset it yet"
    assert work.attached([lease(0, 10)], era=30), "what is told of then is not what it had"
    assert work.held() == ()
    assert not work.has_letters
    work.accept_returned()
    work.give_up()
    work.answered(1, is_refused=True)
    assert eras(work) == {}, "not even a release: it might be of what is leased to it next"
    assert work.begin() is None
    assert work.era == 30


def test_the_lease_that_is_read_ends_with_a_reset_and_no_gap_of_it_is_accepted(
    work: ShareWork,
) -> None:
    work.attached([], era=0)
    work.attached([], era=30)
    assert work.give(("a", 0, 6), MessageId(6, AT_OFFSET)) is None
    work.finish(MessageId(10))
    assert eras(work) == {}


def test_what_was_said_before_a_reset_goes_out_as_it_was_said(work: ShareWork) -> None:
    """So the coordinator refuses it, and the application is told (trap 146)."""
    work.attached([lease(0, 10)], era=0)
    work.acknowledge(FIRST, ACCEPT, 0)
    work.attached([], era=30)
    work.give_up()
    work.leased([lease(0, 10)])
    work.begin()
    assert work.give(FIRST, MessageId(1, AT_OFFSET)) is not None
    work.acknowledge(FIRST, ACCEPT, 0)
    assert eras(work) == {(ACCEPT, 0): [span(0, 2)], (ACCEPT, 30): [span(0, 2)]}


def test_a_message_of_before_a_reset_is_not_the_one_that_is_given_out_again(
    work: ShareWork,
) -> None:
    before: Any = object()
    again: Any = object()
    work.attached([lease(0, 10)], era=0)
    assert not work.holdings.is_another(FIRST, before), "a copy is as good"
    took = given(work, FIRST, SECOND)
    work.attached([], era=30)
    assert work.holdings.was_dropped(FIRST)
    work.give_up()
    work.leased([lease(0, 10)])
    work.begin()
    work.give(FIRST, MessageId(1, AT_OFFSET), again)
    assert work.holdings.is_another(FIRST, before)
    assert not work.holdings.is_another(FIRST, again)
    work.accepted_elsewhere(took)
    assert work.holdings.look(FIRST) is not None, "the transaction took the one of before"
    assert work.ask([each.acks for each in took.values()], 0.0, 9.0, 0)
    assert work.held() == (Acks(P0, (lease(0, 10).span,)),), "and names what it has now alone"


def test_a_consumer_whose_subscription_was_deleted_begins_as_a_new_one(work: ShareWork) -> None:
    work.attached([], era=7)
    work.forget_era()
    assert work.era is None
    assert not work.attached([], era=7), "it is no news that it holds nothing"
    assert work.era == 7


def test_letters_and_renewals_are_of_their_era(work: ShareWork) -> None:
    work.attached([lease(0, 10)], era=0)
    work.acknowledge(FIRST, REJECT, 0, "bad")
    (letter,) = work.letters()
    assert letter.given.era == 0
    work.attached([], era=30)
    work.not_written(letter, 9)
    assert eras(work) == {}


# ---- shares of pointers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deliveries", "limit", "share"),
    [(1, 5, 100), (2, 5, 25), (3, 5, 6), (4, 5, 1), (5, 5, 1), (6, 5, 100), (2, 0, 25), (9, 0, 1)],
)
def test_of_a_pointer_a_share_is_enough(deliveries: int, limit: int, share: int) -> None:
    """As much as of other messages, and less of what comes again (trap 161)."""
    work = ShareWork(delivery_limit=limit)
    work.leased([replace(lease(0, 10), delivery_count=deliveries)])
    work.begin()
    for nth in range(150):
        key = "a", 0, to_delivered(nth)
        assert work.give(key, MessageId(3, AT_OFFSET, nth)) is not None
        if work.has_enough(key, 100):
            break
    work.give_up()
    rest = Span(MessageId(3, AT_OFFSET, share), MessageId(10))
    assert said(work) == {(RELEASE, 0, "unseen"): [rest]}


def test_of_other_messages_it_never_is(work: ShareWork) -> None:
    assert not work.has_enough(SECOND, 1)
    work.give(("a", 0, to_delivered(7)), MessageId(5, AT_OFFSET))
    assert work.has_enough(("a", 0, to_delivered(7)), 3), "they count, too"
