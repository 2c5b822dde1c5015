"""What a queue's consumer holds: spans of messages, acknowledgements, other owners."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from logtx.consumer.core.holdings import Holdings
from logtx.consumer.core.pending import Record
from logtx.coordinator.protocol.queues import Lease
from logtx.journal.acks import Acks
from logtx.journal.places import PartitionId
from logtx.journal.sidecar import to_delivered
from logtx.journal.spans import AT_OFFSET, MessageId, Span

P0, P1 = (PartitionId("a", number, "id-a") for number in (0, 1))


def at(offset: int, nth: int = 0) -> MessageId:
    return MessageId(offset, AT_OFFSET, nth)


def lease(first: int, end: int, number: int = 1, partition: PartitionId = P0) -> Lease:
    span = Span(MessageId(first), MessageId(end))
    return Lease(number=number, partition=partition, span=span, delivery_count=2, left_ms=9)


@pytest.fixture
def holdings() -> Holdings:
    """One lease of offsets 0 to 9, of which messages at 1 and 4 are given out."""
    holdings = Holdings()
    holdings.leased([lease(0, 10)])
    assert holdings.begin() == lease(0, 10)
    holdings.give(("a", 0, 1), at(1))
    holdings.give(("a", 0, 4), at(4))
    return holdings


def test_gaps_belong_to_the_next_message_and_the_last_one_to_nobody(holdings: Holdings) -> None:
    first, second = holdings.take(("a", 0, 1)), holdings.look(("a", 0, 4))
    assert first is not None
    assert second is not None
    assert first.span == Span(MessageId(0), at(1).behind)
    assert second.span == Span(at(1).behind, at(4).behind)
    assert second.delivery_count == 2
    assert holdings.end() == Acks(P0, (Span(at(4).behind, MessageId(10)),))
    assert holdings.end() is None
    assert holdings.begin() is None
    assert holdings.take(("a", 0, 1)) is None, "acknowledged before"


def test_a_lease_that_was_given_out_to_its_end_leaves_nothing() -> None:
    holdings = Holdings()
    span = Span(MessageId(0), at(3, 2).behind)
    whole = Lease(number=1, partition=P0, span=span, delivery_count=1, left_ms=9)
    holdings.leased([whole])
    holdings.begin()
    holdings.give(("a", 0, 2), at(3, 2))
    assert holdings.end() is None


def test_cumulative_is_about_what_was_given_of_one_partition(holdings: Holdings) -> None:
    holdings.end()
    holdings.leased([lease(0, 5, 2, P1), lease(10, 20, 3)])
    holdings.begin()
    holdings.give(("a", 1, 0), at(0))
    holdings.end()
    holdings.begin()
    holdings.give(("a", 0, 12), at(12))
    found = holdings.up_to(("a", 0, 4))
    assert [each.span.hi for each in found.values()] == [at(1).behind, at(4).behind]
    assert all(map(holdings.take, found))
    assert holdings.up_to(("a", 0, 4)) == {}
    assert {of.partition for of in holdings.take_all()} == {P1, P0}
    assert holdings.take_all() == {}


def test_what_is_held_is_named_by_partition(holdings: Holdings) -> None:
    holdings.leased([lease(10, 20, 2), lease(0, 5, 3, P1)])
    whole = Acks(P0, (Span(MessageId(0), MessageId(20)),))
    assert holdings.held() == (whole, Acks(P1, (lease(0, 5).span,)))
    holdings.take(("a", 0, 4))
    (here, _) = holdings.held()
    assert here.spans == (
        Span(MessageId(0), at(1).behind),
        Span(at(4).behind, MessageId(20)),
    )
    assert holdings.take_unread() == [
        Acks(P0, (Span(at(4).behind, MessageId(10)),)),
        Acks(P0, (lease(10, 20).span,)),
        Acks(P1, (lease(0, 5).span,)),
    ]


def test_after_a_new_owner_only_what_it_grants_is_read(holdings: Holdings) -> None:
    holdings.leased([lease(10, 20, 2), lease(30, 40, 3)])
    assert holdings.attached([lease(0, 15, 7)])
    assert holdings.end() is not None
    found = holdings.begin()
    assert found is not None
    assert (found.span, found.number) == (Span(MessageId(10), MessageId(15)), 7)
    holdings.give(("a", 0, 10), at(10))
    assert not holdings.attached([lease(0, 12, 8)]), "somebody else has the rest of it"
    assert holdings.look(("a", 0, 10)) is not None, "the first acknowledgement counts"
    holdings.end()
    assert holdings.begin() is None


def test_a_lease_that_is_over_is_not_read() -> None:
    holdings = Holdings()
    short = replace(lease(0, 10), left_ms=1_000)
    holdings.leased([short, replace(lease(10, 20, 2), left_ms=3_000)], now_s=100.0)
    found = holdings.begin(now_s=101.0)
    assert found is not None
    assert (found.number, holdings.until_s) == (2, 103.0)
    holdings.end()
    holdings.leased([replace(short, number=3)], now_s=101.0)
    assert holdings.attached([replace(short, number=4, left_ms=500)], now_s=101.0)
    assert holdings.begin(now_s=101.6) is None, "its owner said when it ends"


def test_the_lease_that_is_read_ends_when_its_owner_says() -> None:
    holdings = Holdings()
    holdings.leased([replace(lease(0, 10), left_ms=9_000)], now_s=100.0)
    holdings.begin(now_s=100.0)
    assert holdings.attached([replace(lease(0, 10), left_ms=2_000)], now_s=101.0)
    assert holdings.until_s == 103.0


def test_trap_164_one_name_of_two_messages_is_told_by_the_message_itself() -> None:
    """A copy of one message is as good, also where its span begins elsewhere."""
    holdings, key = Holdings(), ("a", 0, to_delivered(7))
    former, copy, new = (cast("Record", object()) for _ in range(3))
    for place, record in ((at(3), former), (at(3), copy), (at(6), new)):
        holdings.leased([lease(place.offset - (record is copy), 10)])
        holdings.begin()
        holdings.give(key, place, record)
        holdings.end()
        assert not holdings.is_another(key, record)
        if record is copy:
            assert not holdings.is_another(key, former)
    assert holdings.is_another(key, former)
    assert holdings.is_another(key, copy)
