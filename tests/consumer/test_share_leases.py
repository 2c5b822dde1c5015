"""Leases that are over at a consumer that does not know it, and what it is told of its messages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from logtx.consumer import share_consumer
from logtx.consumer.core import pace, said
from logtx.consumer.core.entries import EndedTransaction
from logtx.consumer.core.pace import Pace
from logtx.consumer.core.placed_buffer import PlacedTransaction
from logtx.consumer.core.share_work import How
from logtx.consumer.leased import LeaseReader
from logtx.consumer.range_reader import reading
from logtx.consumer.range_reader.reading import ReadConfig
from logtx.consumer.share_consumer import ShareConsumer
from logtx.coordinator.client.attached import AttachedClient
from logtx.coordinator.core.decision import Instant
from logtx.coordinator.core.dispatch import Dispatch
from logtx.coordinator.protocol import coordinator_pb2 as pb
from logtx.coordinator.protocol import queue_wire
from logtx.coordinator.protocol.commands import Acknowledge
from logtx.coordinator.protocol.queues import AcknowledgeType, Acquire, Attached, Lease
from logtx.journal.acks import Acks
from logtx.journal.control import Marker
from logtx.journal.errors import NotHeldError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.producer.producer import Producer
from logtx.producer.transaction_shell import TransactionShell

from ..waiting import eventually
from .test_share_consumer import Queues, coordinator, fill, producer, queues, take, values

__all__ = ["coordinator", "producer", "queues"]
P0 = TopicPartition("orders", 0)


def one_lease(producer: Producer, count: int) -> None:
    """Writes messages that are leased together: they are of one transaction."""
    with producer.begin_transaction() as txn:
        for number in range(count):
            txn.produce("orders", b"%d" % number, partition=0)


def test_no_more_is_read_ahead_of_a_lease_than_the_user_asks_for(
    memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Mapping[str, Any]] = []
    consumer = memory_log.consumer
    monkeypatch.setattr(memory_log, "consumer", lambda c: [made.append(c), consumer(c)][1])
    for kafka, expected in (({}, 5_000), ({"queued.min.messages": 500}, 500)):
        config = ReadConfig(kafka=kafka)
        LeaseReader(memory_log, kafka, config, timeout_s=1.0).close()
        assert made[-1]["queued.min.messages"] == expected


@pytest.mark.parametrize(("kind", "offsets"), [(EndedTransaction, "7"), (PlacedTransaction, "7@3")])
def test_who_can_not_read_a_transaction_is_told_how_to_pass_over_it(
    kind: type[EndedTransaction], offsets: str
) -> None:
    """By the offset of its place, a home's would stay: that names the record there alone."""
    marker = Marker(committed=True, commit_sequence=3, hw=0, epoch=0)
    text = reading._by_skipping("a b", ("orders", 1), kind(b"", marker, 7), "the transaction")
    assert text.endswith(f": logtx subscription skip 'a b' 'orders[1]' {offsets} --execute")


# ---- leases that are over -----------------------------------------------------------------------


def test_what_came_while_the_application_worked_is_not_given_out_late(
    queues: Queues, producer: Producer
) -> None:
    slow, other = queues(**{"ack.timeout.ms": 300}), queues()
    assert slow.poll(0.2) == [], "its question waits"
    fill(producer, 1)
    eventually(lambda: bool(slow._work.holdings._unread))
    assert values(take(other, 1)) == [b"0"], "its time was over"
    assert slow.poll(0) == []


def test_the_rest_of_a_lease_that_is_over_is_not_given_out(
    queues: Queues, producer: Producer
) -> None:
    one_lease(producer, 3)
    slow = queues(**{"ack.timeout.ms": 500, "max.poll.records": 1})
    assert values(take(slow, 1)) == [b"0"]
    time.sleep(0.6)
    other = queues()
    assert values(take(other, 3)) == [b"0", b"1", b"2"]
    assert slow.poll(0.3) == []


def test_a_lease_that_can_not_be_renewed_is_given_up(
    queues: Queues, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_consumer, "RENEW_SHARE", 1)  # It renews with each poll.
    one_lease(producer, 4)
    queue = queues(**{"max.poll.records": 1})
    assert values(take(queue, 1)) == [b"0"]
    lease = queue._work.holdings.lease
    assert lease is not None
    assert queue._client is not None
    rest = Acks(lease.partition, (lease.span,))
    queue._client.submit(queue._outbox._command(How(AcknowledgeType.RELEASE), (rest,)))
    other = queues()
    assert values(take(other, 4)) == [b"0", b"1", b"2", b"3"]
    queue._renew_s = 0.0
    assert values(queue.poll(0)) == [b"1"], "it does not know yet"
    eventually(lambda: queue._work._has_lost)
    assert queue.poll(0.3) == []


def test_a_long_lease_is_renewed_and_given_out_to_its_end(
    queues: Queues, producer: Producer
) -> None:
    one_lease(producer, 5)
    queue, other = queues(**{"ack.timeout.ms": 3_000, "max.poll.records": 1}), queues()
    found = take(queue, 1)
    while len(found) < 5:
        time.sleep(1.0)
        assert other.poll(0) == []
        found += take(queue, 1)
    assert values(found) == [b"%d" % n for n in range(5)]


# ---- what is told -------------------------------------------------------------------------------


def test_a_consumer_is_told_what_of_its_acknowledgements_did_not_count(
    queues: Queues, producer: Producer
) -> None:
    fill(producer, 3)
    hasty = queues(**{"ack.timeout.ms": 300})
    found = take(hasty, 3)
    other = queues()
    same = take(other, 3)
    assert values(same) == values(found)
    hasty.acknowledge(found[2], AcknowledgeType.RENEW)
    (error,) = hasty.commit_sync().values()
    assert isinstance(error, NotHeldError)
    assert "not renewed" in str(error)
    other.acknowledge(same[0])
    assert other.commit_sync() == {P0: None}
    hasty.acknowledge(found[0])
    (error,) = hasty.commit_sync().values()
    assert isinstance(error, NotHeldError)
    assert "orders[0] at 0 was acknowledged before" in str(error)
    pending = producer.begin_transaction()
    other.acknowledge(same[1], txn=pending)
    assert isinstance(pending, TransactionShell)
    eventually(lambda: pending._book.requests == 0)
    hasty.acknowledge(found[1])
    (error,) = hasty.commit_sync().values()
    assert isinstance(error, NotHeldError)
    assert "a transaction that has not ended" in str(error)
    pending.commit()


def test_what_is_too_much_for_one_request_is_said_by_several(
    queues: Queues, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(said, "SPANS_MAX", 4)
    fill(producer, 10)
    queue = queues()
    messages = sorted(take(queue, 10), key=lambda each: (each.partition(), each.offset()))
    for message in messages[::2]:
        queue.acknowledge(message)
    queue.commit_async()
    assert len(queue._outbox.futures()) >= 2
    for message in messages[1::2]:
        queue.acknowledge(message)
    queue.commit_async()
    assert len(queue._outbox.futures()) >= 4
    assert queue.commit_sync() == {P0: None}
    assert take(queues(), 1, 1.0) == []


def test_who_becomes_slow_gives_back_what_it_has_not_begun(
    queues: Queues, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have nothing to do (trap 186)."""
    monkeypatch.setattr(pace, "SLOW_S", 0.2)
    monkeypatch.setattr(Pace, "ask", lambda _, least, __: 10 * least)
    fill(producer, 40)
    queue = queues(**{"max.poll.records": 2})
    assert len(take(queue, 2)) == 2
    lease = queue._work.holdings.lease
    assert lease is not None
    assert lease.span.offset_count == 20, "as much as there is"
    time.sleep(0.3)
    again = queue.poll(10.0)
    assert len(again) == 2, "the next ones in turn"
    assert [queue.delivery_count(each) for each in again] == [1, 1], "nobody had got them"
    assert queue._work.holdings.lease is not lease
    monkeypatch.setattr(pace, "SLOW_S", 60.0)
    lease = queue._work.holdings.lease
    queue.poll(10.0)
    assert queue._work.holdings.lease in (lease, None), "one that is fast goes on"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each question for messages was asked ahead, in order; all consumers are fast."""
    found: list[bool] = []
    acquire = Dispatch.acquire

    def noting(self: Dispatch, command: Acquire, now: Instant) -> Lease | None:
        if command not in [each.command for each in self._waiting.values()]:
            found.append(command.ahead)
        return acquire(self, command, now)

    monkeypatch.setattr(Dispatch, "acquire", noting)
    monkeypatch.setattr(Pace, "ask", lambda _, least, __: least)
    monkeypatch.setattr(Pace, "ask_ahead", lambda _, least: least)
    return found


def test_who_is_fast_asks_for_the_next_lease_when_it_begins_one(
    queues: Queues, producer: Producer, asked: list[bool]
) -> None:
    fill(producer, 40)
    queue = queues(**{"max.poll.records": 4})
    assert values(take(queue, 40)) == [b"%d" % n for n in range(40)]
    # The very last lease reaches the end: nobody gets that ahead.
    assert asked.count(True) >= 8
    assert asked[0] is False
    assert asked.count(False) <= 5


def test_what_was_leased_ahead_goes_to_others_if_its_consumer_is_slow(
    queues: Queues, producer: Producer, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SLOW_S", 0.2)
    fill(producer, 40)
    queue = queues(**{"max.poll.records": 2})
    assert len(take(queue, 2)) == 2
    eventually(lambda: queue._work.holdings.has_unread)
    time.sleep(0.3)
    other = queues(**{"max.poll.records": 40})
    assert b"2" not in values(take(other, 10)), "it is leased"
    again = queue.poll(10.0)
    assert values(again)[:1] == [b"2"], "the first one is given back first"
    assert {queue.delivery_count(each) for each in again} == {1}, "nobody had got them"
    assert asked.count(True) >= 1


def test_an_owner_of_an_older_build_is_asked_for_nothing_ahead(
    queues: Queues, producer: Producer, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(self: ShareConsumer, attached: Attached) -> None:
        told(self, replace(attached, leases_ahead=False))

    told = ShareConsumer._attached
    monkeypatch.setattr(ShareConsumer, "_attached", older)
    fill(producer, 20)
    assert len(take(queues(**{"max.poll.records": 4}), 20)) == 20
    assert not any(asked)
    assert queue_wire.decode_attached(pb.Attached()).leases_ahead is False


def test_who_leaves_gives_back_what_was_leased_ahead(
    queues: Queues, producer: Producer, asked: list[bool]
) -> None:
    fill(producer, 12)
    queue = queues(**{"max.poll.records": 2})
    first = take(queue, 2)
    eventually(lambda: queue._work.holdings.has_unread)
    for message in first:
        queue.acknowledge(message)
    queue.close()
    other = queues()
    found = take(other, 10)
    assert values(found) == [b"%d" % n for n in range(2, 12)]
    assert {other.delivery_count(each) for each in found} == {1}
    assert True in asked


# ---- when acknowledgements are sent -------------------------------------------------------------


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[AcknowledgeType]:
    """What was sent of messages, in order; what is accepted is sent as late as may be."""
    monkeypatch.setattr(share_consumer, "SEND_S", 1_000.0)
    found: list[AcknowledgeType] = []
    submit = AttachedClient.submit

    def note(self: AttachedClient, command: Any) -> Any:
        if isinstance(command, Acknowledge):
            found.append(command.type)
        return submit(self, command)

    monkeypatch.setattr(AttachedClient, "submit", note)
    return found


def test_while_messages_are_at_hand_what_is_accepted_is_sent_now_and_then(
    queues: Queues, producer: Producer, sent: list[AcknowledgeType]
) -> None:
    one_lease(producer, 6)
    queue = queues(**{"max.poll.records": 2})
    for _ in range(3):
        for message in take(queue, 2):
            queue.acknowledge(message)
    accepts = sent.count(AcknowledgeType.ACCEPT)
    assert queue.poll(0) == []
    assert sent.count(AcknowledgeType.ACCEPT) == accepts + 1, "for nothing is at hand"
    assert set(queue.commit_sync().values()) == {None}


def test_what_is_given_back_is_sent_by_the_next_poll(
    queues: Queues, producer: Producer, sent: list[AcknowledgeType]
) -> None:
    """Others may have nothing to do."""
    one_lease(producer, 6)
    queue = queues(**{"max.poll.records": 2})
    first, second = take(queue, 2)
    queue.acknowledge(first)
    queue.acknowledge(second, AcknowledgeType.RELEASE)
    sent.clear()
    take(queue, 2)
    assert AcknowledgeType.RELEASE in sent
    assert AcknowledgeType.ACCEPT in sent


def test_a_commit_sends_what_was_accepted_at_once(
    queues: Queues, producer: Producer, sent: list[AcknowledgeType]
) -> None:
    one_lease(producer, 6)
    queue = queues(**{"max.poll.records": 2})
    take(queue, 2)
    sent.clear()
    for message in take(queue, 2):
        queue.acknowledge(message)
    queue.commit_async()
    assert sent == [AcknowledgeType.ACCEPT]


def test_what_is_accepted_goes_out_while_the_application_works_on_the_next_message(
    queues: Queues, producer: Producer, sent: list[AcknowledgeType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take long, or kill the process: then what was worked off would come again."""
    monkeypatch.setattr(share_consumer, "SEND_S", 0.2)
    one_lease(producer, 6)
    queue = queues(**{"max.poll.records": 1})
    for _ in range(3):
        (message,) = take(queue, 1)
        queue.acknowledge(message)
    (last,) = take(queue, 1)
    eventually(lambda: bool(sent))
    eventually(lambda: not queue._work._outgoing)
    queue.acknowledge(last)
    assert set(queue.commit_sync().values()) == {None}
    assert set(sent) == {AcknowledgeType.ACCEPT}
