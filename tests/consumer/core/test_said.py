"""Shares of what a queue's consumer says, and what it is told of the answers."""

from __future__ import annotations

import pytest

from logtx.consumer.core import said
from logtx.consumer.core.said import errors, shares
from logtx.coordinator.protocol.queues import AcknowledgeType, AckResult
from logtx.journal.acks import Acks
from logtx.journal.errors import NotHeldError
from logtx.journal.places import PartitionId
from logtx.journal.spans import MessageId, Span

P0, P1 = (PartitionId("a", number, "id-a") for number in (0, 1))


def span(offset: int) -> Span:
    return Span(MessageId(offset), MessageId(offset, 0, 1))


def test_a_request_has_no_more_spans_than_a_record_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said, "SPANS_MAX", 3)
    one_by_one = [Acks(P1 if n % 2 else P0, (span(n),)) for n in range(7)]
    many = Acks(P0, tuple(span(n) for n in range(10, 14)))
    found = list(shares([*one_by_one, many]))
    assert [sum(len(each.spans) for each in share) for share in found] == [3, 3, 3, 2]
    assert all(len({each.partition for each in share}) == len(share) for share in found)
    told = {(each.partition, s) for share in found for each in share for s in each.spans}
    named = {(each.partition, s) for each in [*one_by_one, many] for s in each.spans}
    assert told == named
    assert list(shares([])) == []


@pytest.mark.parametrize("type_", list(AcknowledgeType))
def test_what_did_not_count_is_told_to_who_said_it(type_: AcknowledgeType) -> None:
    acks = (Acks(P0, (span(0), span(1))), Acks(P1, (span(5),)))
    told = errors(type_, acks, (AckResult.DONE, AckResult.DELETED, AckResult.DONE))
    assert list(told) == [P0.key]
    assert isinstance(told[P0.key], NotHeldError)
    assert "a[0] at 1 was acknowledged before" in str(told[P0.key])
    pending = errors(type_, acks, (AckResult.PENDING, AckResult.DELETED, AckResult.PENDING))
    assert [key for key, error in pending.items() if "transaction" in str(error)] == [
        P0.key,
        P1.key,
    ], "the first one of each partition"
    lost = errors(type_, acks, (AckResult.LOST,) * 3)
    assert bool(lost) == (type_ is AcknowledgeType.RENEW)
    gap = (Acks(P0, (Span(MessageId(3), MessageId(9)), Span(MessageId(9), MessageId(9, 7)))),)
    assert not errors(type_, gap, (AckResult.DELETED, AckResult.PENDING))
