"""Consumers of queues that are refused, that attach again, and what they then have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from logtx.consumer import share_consumer
from logtx.consumer.core.holdings import Holdings
from logtx.consumer.share_consumer import ShareConsumer
from logtx.coordinator.client import attached
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.queues import AcknowledgeType, Attach, Lease
from logtx.coordinator.server.consumers import Consumers
from logtx.coordinator.server.streams import Streams
from logtx.journal.acks import Acks
from logtx.journal.errors import (
    AckConflictError,
    CoordinatorBusyError,
    LogtxError,
    NotSupportedError,
    TransactionAbortedError,
    UnknownTopicError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.spans import AT_OFFSET, MessageId
from logtx.producer.producer import Producer

from ..waiting import eventually
from .test_share_consumer import Queues, coordinator, fill, producer, queues, take, values

__all__ = ["coordinator", "producer", "queues"]


def break_stream(queue: ShareConsumer) -> None:
    assert queue._client is not None
    stream = queue._client._stream
    assert stream is not None
    stream.close()


def is_attached(queue: ShareConsumer) -> None:
    """Waits until each Attach of it has its answer."""
    client: Any = queue._client
    eventually(lambda: not any(isinstance(c, Attach) for c, _ in client._requests.values()))


def raised_by(queue: ShareConsumer, kind: type[Exception]) -> None:
    """Polls until an error is raised."""

    def is_raised() -> bool:
        try:
            queue.poll(0.2)
        except kind:
            return True
        return False

    eventually(is_raised)


# ---- refusals -----------------------------------------------------------------------------------


def test_a_topic_that_is_created_later_is_worked_off(
    queues: Queues, memory_log: MemoryLog, producer: Producer
) -> None:
    queue = queues("later")
    raised_by(queue, UnknownTopicError)
    raised_by(queue, UnknownTopicError)
    memory_log.create_topic("later", partitions=1)
    producer.produce("later", b"0")
    producer.flush()

    def has_it() -> bool:
        try:
            return values(queue.poll(0.2)) == [b"0"]
        except UnknownTopicError:
            return False

    eventually(has_it)


def test_a_consumer_that_is_refused_for_a_while_goes_on(
    queues: Queues, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a coordinator of an older build comes back while others are upgraded."""
    fill(producer, 2)
    queue = queues()
    first, second = take(queue, 2)

    def refuse(_: Consumers) -> None:
        raise NotSupportedError("the coordinator at x:1 does not read journals with queues")

    with monkeypatch.context() as patch:
        patch.setattr(Consumers, "check_builds", refuse)
        break_stream(queue)
        raised_by(queue, NotSupportedError)
        queue.acknowledge(first)
        queue.commit_async()
        raised_by(queue, NotSupportedError)
    assert set(queue.commit_sync().values()) == {None}, "what was said is not lost"
    queue.acknowledge(second)
    assert set(queue.commit_sync().values()) == {None}
    fill(producer, 1, first=2)
    assert values(take(queue, 1)) == [b"2"]


def test_whatever_goes_wrong_is_told_and_tried_again(
    queues: Queues, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queues()
    assert queue.poll(0.5) == []
    attached, failed = Holdings.attached, list[Holdings]()

    def breaks(self: Holdings, leases: Iterable[Lease], now_s: float) -> bool:
        if not failed:
            failed.append(self)
            raise RuntimeError("no file handles left")
        return attached(self, leases, now_s)

    monkeypatch.setattr(Holdings, "attached", breaks)
    break_stream(queue)
    raised_by(queue, LogtxError)
    fill(producer, 1)
    assert values(take(queue, 1)) == [b"0"]


# ---- what is named ------------------------------------------------------------------------------


class Asked:
    """A transaction that is asked to acknowledge messages, and answers when the test says so."""

    transaction_group = "default"

    def __init__(self) -> None:
        self.replies: list[Callable[[LogtxError | None], None]] = []

    def produce(
        self, topic: str, value: Any = None, key: Any = None, *, headers: Any = None
    ) -> None:
        raise NotImplementedError

    def send_acks(
        self,
        group: str,
        acks: Sequence[Acks],
        /,
        *,
        delay: float = 0.0,
        on_reply: Callable[[LogtxError | None], None] | None = None,
        era: int = 0,
    ) -> None:
        assert (group, delay, era) == ("q", 0.0, 0)
        assert acks
        assert on_reply is not None
        self.replies.append(on_reply)


def is_named(queue: ShareConsumer, *messages: Any) -> list[bool]:
    named = [span for each in queue._attach().held for span in each.spans]
    places = [MessageId(message.offset(), AT_OFFSET) for message in messages]
    return [any(span.lo <= place < span.hi for span in named) for place in places]


@pytest.mark.parametrize("error", [AckConflictError("taken"), TransactionAbortedError("expired")])
def test_what_a_transaction_is_refused_is_given_out_again_at_once(
    queues: Queues, producer: Producer, error: LogtxError
) -> None:
    fill(producer, 2)
    queue, other, txn = queues(), queues(), Asked()
    found = take(queue, 2)
    queue.acknowledge_cumulative(found[1], txn=txn)
    (reply,) = txn.replies
    reply(error)
    assert queue.poll(0) == []
    assert values(take(other, 2, 5.0)) == [b"0", b"1"]


def test_what_a_transaction_is_asked_for_is_named_up_to_its_answer(
    queues: Queues, producer: Producer
) -> None:
    """Else another consumer would be given it, and conflict (trap 114)."""
    fill(producer, 3)
    queue, txn = queues(), Asked()
    found = take(queue, 3)
    queue.acknowledge(found[0], txn=txn)
    queue.acknowledge(found[1], txn=txn)
    assert is_named(queue, *found) == [True, True, True]
    txn.replies[0](None)
    assert is_named(queue, *found) == [False, True, True]


def test_what_was_acknowledged_and_has_no_answer_is_named(
    queues: Queues,
    producer: Producer,
    coordinator: EmbeddedCoordinator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else others would be given it, before the acknowledgement comes again (trap 114)."""
    fill(producer, 4)
    queue = queues()
    sent, unsent, released, worked_on = take(queue, 4)
    coordinator.stop()
    queue.acknowledge(sent)
    queue.acknowledge(released, AcknowledgeType.RELEASE, delay=30)
    queue.commit_async()
    queue.acknowledge(unsent)
    attaches: list[Attach] = []
    encode = attached.encode_request

    def spy(request_id: int, command: Any) -> Any:
        if isinstance(command, Attach):
            attaches.append(command)
        return encode(request_id, command)

    monkeypatch.setattr(attached, "encode_request", spy)
    coordinator.start()
    eventually(lambda: bool(attaches))
    (here,) = attaches[0].held
    for message in (sent, unsent, released, worked_on):
        name = MessageId(message.offset(), AT_OFFSET)
        assert any(span.lo <= name < span.hi for span in here.spans), message.value()
    queue.acknowledge(worked_on)
    results = queue.commit_sync()
    assert set(results.values()) == {None}
    assert take(queues(), 1, 1.0) == [], "the delay of the one that was released is kept"


# ---- what is put off ----------------------------------------------------------------------------


@pytest.fixture
def put_off(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Attach]]:
    """`put_off()` lets the next Attach be put off for a while: the owner of the binding does not
    answer. Returns the list that has it as soon as that has happened."""
    monkeypatch.setattr(attached, "BUSY_PAUSE_S", 0.5)
    prepare = Streams._prepare_attach

    def begin() -> list[Attach]:
        came: list[Attach] = []

        async def busy(self: Streams, command: commands.Attach, runtime: Any) -> LogtxError | None:
            if not came:
                came.append(command)
                raise CoordinatorBusyError("the owner of the binding does not answer")
            return await prepare(self, command, runtime)

        monkeypatch.setattr(Streams, "_prepare_attach", busy)
        return came

    return begin


def works_while_it_attaches(
    queues: Queues,
    producer: Producer,
    put_off: Callable[[], list[Attach]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A consumer attaches, as it does once a minute, and that is put off. Meanwhile it is given two
    messages, and goes on to work on them."""
    monkeypatch.setattr(share_consumer, "ATTACH_AGAIN_S", 0.2)
    worker = queues()
    assert worker.poll(0.5) == []
    came = put_off()
    eventually(lambda: not worker.poll(0.1) and bool(came))
    monkeypatch.setattr(share_consumer, "ATTACH_AGAIN_S", 60.0)
    worker._attach_s += 60.0
    fill(producer, 2)
    assert values(take(worker, 2)) == [b"0", b"1"]
    is_attached(worker)


def test_trap_154_what_was_given_out_while_an_attachment_was_put_off_is_named(
    queues: Queues,
    producer: Producer,
    put_off: Callable[[], list[Attach]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another one would be given what it works on."""
    works_while_it_attaches(queues, producer, put_off, monkeypatch)
    assert take(queues(), 2, 1.0) == []


def test_trap_154_without_the_rule_two_work_on_one_message(
    queues: Queues,
    producer: Producer,
    put_off: Callable[[], list[Attach]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was put off is repeated as it was."""

    def mutant(self: attached.AttachedClient, request_id: int) -> None:
        with self._lock:
            command, _ = self._requests[request_id]
            stream = self._stream
            assert stream is not None
            stream.send((request_id, command))
        stream.flush()

    monkeypatch.setattr(attached.AttachedClient, "_repeat", mutant)
    works_while_it_attaches(queues, producer, put_off, monkeypatch)
    assert sorted(values(take(queues(), 2, 8.0))) == [b"0", b"1"]


def test_trap_154_who_rests_is_not_woken_by_an_attachment_that_was_put_off(
    queues: Queues, producer: Producer, put_off: Callable[[], list[Attach]]
) -> None:
    """It would be given messages, which are nobody's until the lease is over."""
    worker = queues()
    assert worker.poll(0.5) == []
    worker.rest()
    is_attached(worker)
    came = put_off()
    assert worker.poll(0) == []
    eventually(lambda: bool(came))
    worker.rest()
    changing: Any = worker._changing
    assert changing.result(10), "it is not left without an answer"
    fill(producer, 2)
    assert sorted(values(take(queues(), 2, 8.0))) == [b"0", b"1"]
    assert worker.poll(0.5) == []
    fill(producer, 1, first=2)
    assert values(take(worker, 1, 8.0)) == [b"2"]
