"""Shares of what a queue's consumer says, and what it is told of the answers."""

from __future__ import annotations

import pytest

from logtx.consumer.core import said
from logtx.consumer.core.runs import Given, GivenRun, Run
from logtx.consumer.core.said import errors, shares
from logtx.coordinator.protocol.queues import AcknowledgeType, AckResult, AckResults, Refused
from logtx.journal.acks import Acks
from logtx.journal.control import TopicPartition
from logtx.journal.errors import LogtxError, NotHeldError
from logtx.journal.places import PartitionId
from logtx.journal.spans import MessageId, Span

P0, P1 = (PartitionId("a", number, "id-a") for number in (0, 1))


def span(offset: int) -> Span:
    return Span(MessageId(offset), MessageId(offset, 0, 1))


def given_out(partition: PartitionId, offset: int, since: int | None = None) -> Given:
    """Returns a message, with what lies before it from an offset on."""
    run = Run(partition.topic, partition.partition, (None,), (offset,), MessageId(offset))
    lo = MessageId(offset if since is None else since)
    return Given(GivenRun(partition, 1, 0, lo, run), 0)


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
    given = [given_out(P0, 0), given_out(P0, 1), given_out(P1, 5)]

    def told(*refused: tuple[AckResult, int]) -> dict[TopicPartition, LogtxError]:
        of = {0: P0, 1: P0, 5: P1}
        parts = (Refused(result, Acks(of[n], (span(n),))) for result, n in refused)
        return errors(type_, given, AckResults(tuple(parts)))

    deleted = told((AckResult.DELETED, 1))
    assert list(deleted) == [P0.key]
    assert isinstance(deleted[P0.key], NotHeldError)
    assert "a[0] at 1 was acknowledged before" in str(deleted[P0.key])
    pending = told((AckResult.PENDING, 0), (AckResult.DELETED, 1), (AckResult.PENDING, 5))
    assert [key for key, error in pending.items() if "transaction" in str(error)] == [
        P0.key,
        P1.key,
    ], "the first one of each partition"
    lost = told(*((AckResult.LOST, n) for n in (0, 1, 5)))
    assert bool(lost) == (type_ is AcknowledgeType.RENEW)
    assert not told()


@pytest.mark.parametrize("refused", [AckResult.DELETED, AckResult.PENDING])
def test_what_lies_before_a_message_is_nothing_to_tell(refused: AckResult) -> None:
    """Another consumer has acknowledged a gap, of which a part was named with the message."""
    message = given_out(P0, 9, 3)
    gap = Refused(refused, Acks(P0, (Span(MessageId(3), MessageId(9)),)))
    assert not errors(AcknowledgeType.ACCEPT, [message], AckResults((gap,)))
    whole = Refused(refused, Acks(P0, (Span(MessageId(5), MessageId(10)),)))
    assert errors(AcknowledgeType.ACCEPT, [message], AckResults((gap, whole)))
