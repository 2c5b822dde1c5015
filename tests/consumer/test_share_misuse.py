"""What a program of `confluent_kafka.ShareConsumer` does otherwise, or wrong, and is told."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, cast

import confluent_kafka
import pytest

from logtx.consumer import share_consumer
from logtx.consumer.messages import Messages
from logtx.consumer.share_consumer import ShareConsumer
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol.queues import AcknowledgeType
from logtx.integration.blocks import process
from logtx.journal.errors import (
    ClosedError,
    ConfigError,
    DeadLetterError,
    GroupBoundError,
    NotHeldError,
    NotSubscribedError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.producer.producer import Producer

from .test_share_consumer import Queues, coordinator, fill, producer, queues, take, values

__all__ = ["coordinator", "producer", "queues"]
TOPIC, LETTERS = "errors.deadletterqueue.topic.name", "letters"
ACCEPT, REJECT, RENEW = AcknowledgeType.ACCEPT, AcknowledgeType.REJECT, AcknowledgeType.RENEW


def open_queue(log: MemoryLog, letters_by: Any = None, **settings: Any) -> ShareConsumer:
    """Returns a consumer that is not subscribed; with dead letters, if somebody writes them."""
    given = {"group.id": "q", "auto.offset.reset": "earliest", **settings}
    if letters_by is not None:
        given[TOPIC] = LETTERS
    given.setdefault("share.acknowledgement.mode", "explicit")
    return ShareConsumer(given, producer=letters_by, log=log)


# ---- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"isolation.level": "serializable"}, "isolation.level must be one of read_committed"),
        ({"kafka.isolation.level": "read_committed"}, "kafka.isolation.level can't be set"),
        ({"enable.partition.eof": False}, "enable.partition.eof is for members"),
        ({"session.timeout.ms": 6_000}, "session.timeout.ms is for members"),
    ],
)
def test_settings_are_refused_when_it_is_made(
    memory_log: MemoryLog, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        open_queue(memory_log, **settings)


def test_what_librdkafka_does_not_know_is_refused_when_it_is_made() -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "group.id": "q"}
    with pytest.raises(ConfigError, match=r"fetch\.wait\.max\.ms"):
        ShareConsumer({**settings, "fetch.wait.max.msec": 5})


def test_to_say_what_a_queue_does_anyway_is_no_error(memory_log: MemoryLog) -> None:
    with open_queue(memory_log, **{"isolation.level": "read_committed"}) as queue:
        assert queue.subscription() == []


# ---- the time of calls --------------------------------------------------------------------------


def calls(queue: ShareConsumer) -> list[Callable[[], object]]:
    return [
        queue.poll,
        queue.commit_sync,
        queue.commit_async,
        queue.rest,
        lambda: next(process(queue, cast(Any, BindsAll()), timeout=1.0)),
    ]


class BindsAll:
    """A producer that is asked for no transaction."""

    def bind_group(self, group: str) -> None:
        """Says yes."""


def test_who_is_not_subscribed_or_closed_is_told_at_once(queues: Queues) -> None:
    queue = queues()
    queue.unsubscribe()
    with pytest.raises(NotSubscribedError, match="call subscribe"):
        queue.poll(0)
    queue.close()
    for call in calls(queue):
        with pytest.raises(ClosedError, match="closed") as refused:
            call()
        assert isinstance(refused.value, RuntimeError), "as confluent-kafka's IllegalStateException"
        assert not refused.value.args[0].retriable(), "a loop that repeats would never end"


def test_a_new_one_must_subscribe(memory_log: MemoryLog) -> None:
    with open_queue(memory_log) as queue:
        for call in calls(queue):
            with pytest.raises(NotSubscribedError, match="call subscribe") as refused:
                call()
            assert not refused.value.args[0].retriable()


def test_no_number_is_no_time(queues: Queues) -> None:
    queue = queues()
    for call in (queue.poll, queue.commit_sync):
        with pytest.raises(ValueError, match="number of seconds"):
            call(math.nan)


# ---- messages -----------------------------------------------------------------------------------


def test_a_poll_returns_a_list_that_has_what_confluents_has(
    queues: Queues, producer: Producer
) -> None:
    fill(producer, 2)
    queue = queues()
    found = Messages()
    while not found:
        found = queue.poll(1.0)
    assert isinstance(found, Messages)
    assert isinstance(found, list), "as ours was, and confluent's is not"
    assert (found.count(), found.is_empty(), found.records()) == (len(found), False, list(found))
    assert list.count(found, found[0]) == found.count(found[0]) == 1
    for message in [*found, *take(queue, 2 - len(found))]:
        queue.acknowledge(message)
    assert queue.poll(0.1).is_empty()


@pytest.mark.parametrize("wrong", ["x", None, confluent_kafka.Message()])
def test_only_messages_are_acknowledged(queues: Queues, wrong: Any) -> None:
    queue = queues()
    for call in (queue.acknowledge, queue.is_held, queue.delivery_count):
        with pytest.raises((TypeError, NotHeldError)):
            call(wrong)
    with pytest.raises(TypeError, match="poll returned"):
        queue.acknowledge(wrong, REJECT)


@pytest.mark.parametrize("wrong", ["txn", 5, confluent_kafka.Producer])
def test_only_transactions_of_logtx_take_acknowledgements(
    queues: Queues, producer: Producer, wrong: Any
) -> None:
    fill(producer, 1)
    queue = queues()
    (message,) = take(queue, 1)
    for call in (queue.acknowledge, queue.acknowledge_cumulative):
        with pytest.raises(TypeError, match=r"transaction of a logtx\.Producer"):
            call(message, txn=wrong)
    with pytest.raises(TypeError, match=r"logtx\.Producer"):
        queue.acknowledge_all([message], txn=wrong)
    assert queue.is_held(message)


def test_a_delay_is_bounded(queues: Queues, producer: Producer) -> None:
    fill(producer, 1)
    queue = queues()
    (message,) = take(queue, 1)
    for delay in (-1, math.nan, math.inf, 1e12):
        with pytest.raises(ValueError, match="a delay is 0 to"):
            queue.acknowledge(message, AcknowledgeType.RELEASE, delay=delay)
    assert queue.is_held(message)


def test_a_reason_is_text(queues: Queues, producer: Producer) -> None:
    fill(producer, 1)
    queue = queues()
    (message,) = take(queue, 1)
    with pytest.raises(TypeError, match=r"str\(error\)"):
        queue.acknowledge(message, REJECT, reason=ValueError("bad"))
    assert queue.is_held(message)
    for block in process(queue, producer, timeout=0.2):
        raise AssertionError(f"{block} has what is held here")
    queue.release_all()
    for block in process(queue, producer, timeout=2.0):
        (message,) = block
        with pytest.raises(TypeError, match=r"str\(error\)"):
            block.reject(message, ValueError("bad"))
        block.reject(message, "bad")


# ---- renewals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["said first", "said last", "in a transaction"])
def test_what_is_said_of_a_message_makes_its_renewal_idle_and_no_error(
    queues: Queues, producer: Producer, way: str
) -> None:
    fill(producer, 3)
    queue = queues()
    told: list[Any] = []
    queue.set_acknowledgement_commit_callback(lambda _offsets, error: told.append(error))
    first, second, third = take(queue, 3)
    if way == "said first":
        queue.acknowledge(first)
    queue.acknowledge(second, RENEW)
    queue.acknowledge(third, RENEW)
    if way == "in a transaction":
        with producer.begin_transaction() as txn:
            queue.acknowledge(second, txn=txn)
    else:
        queue.acknowledge(second)
    assert set(queue.commit_sync().values()) == {None}
    assert set(told) == {None}
    assert queue.is_held(third)


# ---- transaction groups -------------------------------------------------------------------------


def test_transactions_are_of_the_subscriptions_group(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    fill(producer, 2)
    queue = queues()
    found = take(queue, 2)
    settings = {"transactional.id": "x", "transaction.group": "others"}
    with Producer(settings, log=memory_log) as other:
        txn = other.begin_transaction()
        for call in (
            lambda: queue.acknowledge(found[0], txn=txn),
            lambda: queue.acknowledge(found[0], REJECT, txn=txn),
            lambda: queue.acknowledge_cumulative(found[1], txn=txn),
            lambda: queue.acknowledge_all(found, txn=txn),
        ):
            with pytest.raises(GroupBoundError, match=r"transaction\.group to 'default'"):
                call()
        txn.abort()
        assert all(map(queue.is_held, found))
        with (
            open_queue(memory_log, other) as with_letters,
            pytest.raises(GroupBoundError, match="'others'"),
        ):
            with_letters.subscribe(["orders"])


def test_dead_letters_need_a_producer_of_logtx(memory_log: MemoryLog) -> None:
    plain = confluent_kafka.Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    with pytest.raises(TypeError, match=r"logtx\.Producer"):
        open_queue(memory_log, plain)


# ---- dead letters that can't be written ---------------------------------------------------------


def test_commit_sync_keeps_to_its_time(
    memory_log: MemoryLog,
    coordinator: EmbeddedCoordinator,
    producer: Producer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coordinator is gone, so nobody decides the letter's transaction."""
    monkeypatch.setattr(share_consumer, "CLOSE_S", 0.5)
    memory_log.create_topic(LETTERS, partitions=1)
    producer.begin_transaction().abort()
    fill(producer, 1)
    with open_queue(memory_log, producer) as queue:
        queue.subscribe(["orders"])
        (message,) = take(queue, 1)
        queue.acknowledge(message, REJECT)
        coordinator.stop()
        began_s = time.monotonic()
        try:
            errors = list(queue.commit_sync(0.5).values())
        except confluent_kafka.KafkaException as error:
            errors = [error]
        assert time.monotonic() - began_s < 10.0
        assert any(errors)
    producer.close(0.1)


def test_the_error_of_a_letter_that_is_too_large_says_what_helps(
    memory_log: MemoryLog, producer: Producer
) -> None:
    memory_log.create_topic(LETTERS, partitions=1)
    fill(producer, 1)
    with open_queue(memory_log, producer) as queue:
        queue.subscribe(["orders"])
        (message,) = take(queue, 1)
        message.set_value("x" * 5_000_000)
        queue.acknowledge(message, REJECT)
        (error,) = queue.commit_sync().values()
    assert isinstance(error, DeadLetterError)
    assert "subscription skip" in str(error)
    assert "abort this transaction" not in str(error), "nobody has it"


def test_what_was_taken_is_not_given_out_again(queues: Queues, producer: Producer) -> None:
    """A renewal that comes behind what was said of a message changes nothing."""
    fill(producer, 2)
    queue = queues()
    first, second = take(queue, 2)
    queue.acknowledge(first, RENEW)
    queue.acknowledge(first)
    queue.acknowledge(second, ACCEPT)
    queue.commit_sync()
    assert values(take(queue, 1, 0.5)) == []
