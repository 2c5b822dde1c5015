"""Messages of a queue that are given up: the limit of deliveries, and dead letters."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from logtx.consumer import dead_letters, outbox, share_consumer
from logtx.consumer.consumer import Consumer
from logtx.consumer.core.letters import pause_ms
from logtx.consumer.share_consumer import ShareConsumer
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol.queues import AcknowledgeType
from logtx.journal.errors import (
    AckConflictError,
    BrokerError,
    ConfigError,
    DeadLetterError,
    NotHeldError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.producer.producer import Producer

from ..waiting import eventually
from .test_share_consumer import breaking, coordinator, fill, producer, take, values

__all__ = ["coordinator", "producer"]
TOPIC, LETTERS = "errors.deadletterqueue.topic.name", "letters"
LIMIT, DELAY = "share.delivery.count.limit", "redelivery.delay.ms"
RELEASE, REJECT = AcknowledgeType.RELEASE, AcknowledgeType.REJECT
Queues = Callable[..., ShareConsumer]


@pytest.fixture
def queues(
    memory_log: MemoryLog, coordinator: EmbeddedCoordinator, producer: Producer
) -> Iterator[Queues]:
    """`queues(…)` makes a consumer whose dead letters go to an empty topic."""
    memory_log.create_topic(LETTERS, partitions=1)
    assert coordinator.address
    made: list[ShareConsumer] = []

    def make(*topics: str, **settings: Any) -> ShareConsumer:
        given = {"group.id": "q", "auto.offset.reset": "earliest", DELAY: 0, TOPIC: LETTERS}
        given.update({"share.acknowledgement.mode": "explicit", **settings})
        given = {name: value for name, value in given.items() if value is not None}
        consumer = ShareConsumer(given, producer=producer, log=memory_log)
        made.append(consumer)
        consumer.subscribe(topics or ("orders",))
        return consumer

    yield make
    for each in made:
        each.close()


def letters(log: MemoryLog, count: int, topic: str = LETTERS) -> list[Any]:
    """Returns what is committed in a topic, which is `count` records and no more."""
    settings = {"group.id": "audit", "auto.offset.reset": "earliest"}
    found: list[Any] = []
    with Consumer({**settings, "enable.auto.commit": False}, log=log) as audit:
        audit.subscribe([topic])
        deadline_s = time.monotonic() + 20
        while len(found) < count and time.monotonic() < deadline_s:
            found += audit.consume(500, 0.1)
        found += audit.consume(500, 0.3)
    assert len(found) == count, values(found)
    return found


def headers(letter: Any) -> dict[str, str]:
    """Returns what a dead letter says of its message."""
    return {
        name.removeprefix("__dlq.errors."): value.decode()
        for name, value in letter.headers()
        if name.startswith("__dlq.errors.")
    }


def is_done(queue: ShareConsumer) -> bool:
    """Returns whether nothing is left to be worked off."""
    return take(queue, 1, 0.7) == []


def test_what_was_given_out_too_often_becomes_a_dead_letter(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    producer.produce("orders", b"poison", b"k", partition=1, headers=[("own", b"h")])
    producer.flush()
    queue = queues(**{LIMIT: 3})
    for count in (1, 2, 3):
        (message,) = take(queue, 1)
        assert queue.delivery_count(message) == count
        queue.acknowledge(message, RELEASE)
    assert is_done(queue)
    (letter,) = letters(memory_log, 1)
    assert (letter.key(), letter.value()) == (b"k", b"poison")
    assert ("own", b"h") in letter.headers()
    assert headers(letter) == {
        "topic": "orders",
        "partition": "1",
        "offset": "0",
        "group": "q",
        "delivery.count": "3",
        "message": "not worked off in 3 deliveries",
    }
    stats = queue.stats()
    assert (stats["exhausted_records"], stats["dead_letters"]) == (1, 1)
    assert (stats["delivered_records"], stats["redelivered_records"]) == (3, 2)
    queue.close()
    assert is_done(queues())


def test_without_a_topic_it_is_deleted_and_told(
    queues: Queues, producer: Producer, memory_log: MemoryLog, caplog: pytest.LogCaptureFixture
) -> None:
    fill(producer, 2)
    queue = queues(**{LIMIT: 1, TOPIC: None})
    first, second = take(queue, 2)
    with caplog.at_level(logging.WARNING):
        queue.acknowledge(first, REJECT, reason="of no use")
        queue.acknowledge(second, RELEASE)
        assert is_done(queue)
    told = [r.getMessage() for r in caplog.records if "message_given_up" in r.getMessage()]
    assert [text.split("offset=")[1] for text in told] == [
        "0 delivery_count=1",
        "1 delivery_count=1",
    ]
    stats = queue.stats()
    assert (stats["rejected_records"], stats["exhausted_records"]) == (1, 1)
    queue.close()
    assert is_done(queues())
    assert letters(memory_log, 0) == []


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_a_rejected_message_becomes_a_dead_letter(
    queues: Queues, producer: Producer, memory_log: MemoryLog, mode: str
) -> None:
    with producer.begin_transaction() as txn:
        for number in range(3):
            txn.produce("orders", b"%d" % number, partition=0)
    queue = queues(**{"share.acknowledgement.mode": mode})
    first, second, third = take(queue, 3)
    queue.acknowledge(first)
    queue.acknowledge(second, REJECT, reason="no such customer")
    queue.acknowledge_offset("orders", 0, third.offset(), 3)
    assert set(queue.commit_sync().values()) == {None}
    found = letters(memory_log, 2)
    assert sorted(values(found)) == [b"1", b"2"]
    told = {letter.value(): headers(letter) for letter in found}
    assert told[b"1"]["message"] == "no such customer"
    assert told[b"2"]["message"] == "rejected by a consumer"
    assert told[b"1"]["delivery.count"] == "1"
    assert told[b"1"]["offset"] == str(second.offset())
    queue.close()
    assert is_done(queues())


def test_a_message_is_rejected_with_a_transaction_or_not_at_all(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    memory_log.create_topic("invoices", partitions=1)
    fill(producer, 2)
    queue = queues()
    for commit in (False, True):
        good, bad = sorted(take(queue, 2), key=lambda m: m.offset())
        txn = producer.begin_transaction()
        txn.produce("invoices", good.value())
        queue.acknowledge(good, txn=txn)
        queue.acknowledge(bad, REJECT, txn=txn, reason="bad")
        with pytest.raises(NotHeldError):
            queue.acknowledge(bad)
        producer.flush()
        if commit:
            txn.commit()
        else:
            txn.abort()
        count = int(commit)
        assert values(letters(memory_log, count)) == [b"1"][:count]
        assert values(letters(memory_log, count, "invoices")) == [b"0"][:count]
    (letter,) = letters(memory_log, 1)
    assert (headers(letter)["message"], headers(letter)["delivery.count"]) == ("bad", "2")
    assert is_done(queue)


def test_a_poll_within_an_applications_transaction_leaves_that_alone(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    """Dead letters have transactions of their own, also with a producer of confluent's style
    (trap 130)."""
    memory_log.create_topic("invoices", partitions=1)
    fill(producer, 2)
    queue = queues()
    first, second = take(queue, 2)
    producer.begin_transaction()
    producer.produce("invoices", b"one")
    queue.acknowledge(first, REJECT)
    queue.acknowledge(second, REJECT)
    queue.poll(0)
    assert letters(memory_log, 2)
    assert letters(memory_log, 0, "invoices") == []
    producer.produce("invoices", b"two")
    producer.commit_transaction()
    assert values(letters(memory_log, 2, "invoices")) == [b"one", b"two"]


def test_a_dead_letter_that_can_not_be_written_leaves_its_message(
    queues: Queues,
    producer: Producer,
    memory_log: MemoryLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each has a transaction of its own, so one does not keep the others back."""
    monkeypatch.setattr(dead_letters, "PAUSE_MS", 100)
    monkeypatch.setattr(outbox, "PAUSE_MS", 100)
    fill(producer, 3)
    queue = queues(**{LIMIT: 2, TOPIC: "nowhere"})
    for count in (1, 2):
        found = take(queue, 3)
        assert {queue.delivery_count(m) for m in found} == {count}
        for message in found:
            queue.acknowledge(message, RELEASE)
    for _ in range(3):
        with pytest.raises(DeadLetterError, match=r"orders\[0\].*nowhere.*stays in the queue"):
            take(queue, 1)
    memory_log.create_topic("nowhere", partitions=1)

    def written() -> bool:
        try:
            assert queue.poll(0.2) == []
        except DeadLetterError:
            return False
        return queue.stats()["dead_letters"] == 3

    eventually(written, 20.0)
    found = letters(memory_log, 3, "nowhere")
    assert {headers(letter)["delivery.count"] for letter in found} == {"2"}


def test_a_rejection_that_can_not_be_written_is_told_and_given_out_again(
    queues: Queues, producer: Producer, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "PAUSE_MS", 100)
    monkeypatch.setattr(outbox, "PAUSE_MS", 100)
    fill(producer, 2)
    queue = queues()
    good, bad = sorted(take(queue, 2), key=lambda m: m.offset())
    bad.set_value("x" * 5_000_000)  # The application may change what it was given.
    queue.acknowledge(good, REJECT)
    queue.acknowledge(bad, REJECT)
    (error,) = queue.commit_sync().values()
    assert isinstance(error, DeadLetterError)
    assert values(letters(memory_log, 1)) == [b"0"]
    (again,) = take(queue, 1)
    assert (again.value(), queue.delivery_count(again)) == (b"1", 2)
    queue.acknowledge(again, REJECT)
    assert set(queue.commit_sync().values()) == {None}
    assert values(letters(memory_log, 2)) == [b"0", b"1"]


def test_of_two_that_give_a_message_up_one_writes_a_dead_letter(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    """Its lease ran out, and the next consumer gives it up as well: it conflicts, and goes on."""
    fill(producer, 1)
    slow, other = queues(**{"ack.timeout.ms": 200}), queues()
    (message,) = take(slow, 1)
    (same,) = take(other, 1)
    slow.acknowledge(message, REJECT)
    other.acknowledge(same, REJECT)
    assert set(slow.commit_sync().values()) == {None}
    assert set(other.commit_sync().values()) == {None}
    assert letters(memory_log, 1)
    assert (slow.stats()["dead_letters"], other.stats()["dead_letters"]) == (1, 0)
    assert other.stats()["conflicts"] == 1


def test_an_interrupted_writer_doubles_nothing(
    queues: Queues, producer: Producer, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(producer, 3)
    queue = queues()
    end, calls = dead_letters.DeadLetters._end, 0

    def interrupted(self: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return end(self, *args)

    monkeypatch.setattr(dead_letters.DeadLetters, "_end", interrupted)
    for message in take(queue, 3):
        queue.acknowledge(message, REJECT)
    with pytest.raises(KeyboardInterrupt):
        queue.commit_sync()
    assert set(queue.commit_sync().values()) == {None}
    assert sorted(values(letters(memory_log, 3))) == [b"0", b"1", b"2"]
    assert is_done(queue)


def test_a_dead_letter_of_a_dead_letter_tells_of_both(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    memory_log.create_topic("last", partitions=1)
    fill(producer, 1)
    queue = queues()
    queue.acknowledge(take(queue, 1)[0], REJECT)
    queue.commit_sync()
    second = queues(LETTERS, **{"group.id": "letters", TOPIC: "last"})
    second.acknowledge(take(second, 1)[0], REJECT)
    second.commit_sync()
    (letter,) = letters(memory_log, 1, "last")
    assert headers(letter)["topic"] == LETTERS
    assert [v for n, v in letter.headers() if n == "__dlq.errors.topic"] == [b"orders", b"letters"]
    with pytest.raises(ConfigError, match="dead letters of this subscription"):
        queues("orders", LETTERS, **{"group.id": "loop"})


# ---- what counts as a delivery ------------------------------------------------------------------


def test_what_could_not_be_read_was_not_delivered(
    queues: Queues, producer: Producer, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker's outage would make dead letters of what no application has seen (trap 123)."""
    fill(producer, 3)
    queue = queues(**{LIMIT: 2})
    for _ in range(3):
        breaking(monkeypatch, 0, BrokerError("it is away"))
        with pytest.raises(BrokerError):
            take(queue, 1)
    found = take(queue, 3)
    assert {queue.delivery_count(m) for m in found} == {1}
    assert letters(memory_log, 0) == []


def test_what_a_consumer_did_not_return_when_it_closed_was_not_delivered(
    queues: Queues, producer: Producer
) -> None:
    with producer.begin_transaction() as txn:
        for number in range(4):
            txn.produce("orders", b"%d" % number, partition=0)
    for _ in range(3):
        queue = queues()
        (first,) = queue.poll(10, max_records=1)
        assert first.value() == b"0"
        queue.close()
    queue = queues()
    counts = {m.value(): queue.delivery_count(m) for m in take(queue, 4)}
    assert counts == {b"0": 4, b"1": 1, b"2": 1, b"3": 1}


def test_what_an_aborted_transaction_had_comes_again_later_each_time(
    queues: Queues, producer: Producer
) -> None:
    """A failure that passes would use up all deliveries (trap 124)."""
    assert [pause_ms(n, 1_000, 60_000) for n in (1, 2, 3, 4, 8, 99)] == [
        *(0, 1_000, 2_000, 4_000),
        *(60_000, 60_000),
    ]
    fill(producer, 1)
    queue = queues(**{DELAY: 2_000})

    def fail(count: int, **how: Any) -> None:
        (message,) = take(queue, 1)
        assert queue.delivery_count(message) == count
        txn = producer.begin_transaction()
        queue.acknowledge(message, txn=txn, **how)
        txn.abort()

    began_s = time.monotonic()
    fail(1)
    fail(2)
    assert time.monotonic() - began_s < 2, "the first failure may be anybody's"
    assert take(queue, 1, 0.4) == []
    fail(3, delay=0)
    began_s = time.monotonic()
    fail(4)
    assert time.monotonic() - began_s < 2, "it was told another delay"


def test_after_a_conflict_the_other_messages_come_again_at_once(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    fill(producer, 3)
    queue = queues()
    found = take(queue, 3)
    with Producer({"transactional.id": "other"}, log=memory_log) as second:
        first = second.begin_transaction()
        given = queue._work.holdings.look(("orders", 0, 1))
        assert given is not None
        first.send_acks("q", [given.acks])
        first.commit()
    txn = producer.begin_transaction()
    queue.acknowledge_all(found, txn=txn)
    with pytest.raises(AckConflictError):
        txn.commit()
    txn.abort()
    assert sorted(values(take(queue, 2, 5.0))) == [b"0", b"2"]
    assert queue.stats()["conflicts"] == 1


def test_a_topic_for_dead_letters_needs_a_producer(memory_log: MemoryLog) -> None:
    with pytest.raises(ConfigError, match=r"producer=logtx\.Producer"):
        ShareConsumer({"group.id": "q", TOPIC: "letters"}, log=memory_log)
    for name in ("errors.deadletter.topic", "redelivery.ms", "share.delivery.limit"):
        with pytest.raises(ConfigError, match=name):
            ShareConsumer({"group.id": "q", name: 1}, log=memory_log)


def test_workers_that_die_leave_each_poison_in_one_dead_letter(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    """Every tenth message kills whoever works on it. Its neighbours are worked off, each once
    (trap 119)."""
    memory_log.create_topic("invoices", partitions=1)
    fill(producer, 40)
    fill(producer, 40, partition=1, first=40)
    done = threading.Event()
    errors: list[BaseException] = []
    invoiced: list[bytes] = []
    mine: list[ShareConsumer] = []

    def ended() -> int:
        return len(invoiced) + sum(each.stats()["dead_letters"] for each in list(mine))

    def work(number: int) -> None:
        try:
            while not done.is_set():
                queue = queues(**{LIMIT: 3, "max.poll.records": 8})
                mine.append(queue)
                work_until_poison(queue, number)
        except BaseException as error:
            errors.append(error)
            raise

    def work_until_poison(queue: ShareConsumer, number: int) -> None:
        with Producer({"transactional.id": f"w{number}"}, log=memory_log) as own:
            while not done.is_set():
                for message in queue.poll(0.2):
                    if int(message.value()) % 10 == 0:
                        # As kill -9 does: nothing is released, and the stream ends.
                        assert queue._client is not None
                        queue._client.close()
                        return
                    txn = own.begin_transaction()
                    try:
                        txn.produce("invoices", message.value())
                        queue.acknowledge(message, txn=txn)
                        txn.commit()
                        invoiced.append(message.value())
                    except AckConflictError:
                        txn.abort()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for each in workers:
        each.start()
    poison = [b"%d" % n for n in range(0, 80, 10)]
    rest = [b"%d" % n for n in range(80) if n % 10]
    try:
        eventually(lambda: bool(errors) or ended() >= 80, 90.0)
    finally:
        done.set()
        for each in workers:
            each.join(30)
    assert not errors
    assert sorted(values(letters(memory_log, 8)), key=int) == poison
    assert sorted(values(letters(memory_log, 72, "invoices")), key=int) == rest


@pytest.mark.parametrize("is_connected", [True, False])
def test_to_close_waits_no_longer_for_many_letters_than_for_one(
    memory_log: MemoryLog,
    coordinator: EmbeddedCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    is_connected: bool,
) -> None:
    """Nobody decides their transactions, or begins them."""
    monkeypatch.setattr(share_consumer, "CLOSE_S", 0.5)
    memory_log.create_topic(LETTERS, partitions=1)
    settings = {"group.id": "q", "auto.offset.reset": "earliest", TOPIC: LETTERS}
    config = {"transactional.id": "p", "coordinator.timeout.ms": 30_000 if is_connected else 1_000}
    producer = Producer(config, log=memory_log)
    if is_connected:
        producer.begin_transaction().abort()
    fill(producer, 130)
    settings["share.acknowledgement.mode"] = "explicit"
    queue = ShareConsumer(settings, producer=producer, log=memory_log)
    queue.subscribe(["orders"])
    for message in take(queue, 130):
        queue.acknowledge(message, REJECT)
    coordinator.stop()
    began_s = time.monotonic()
    queue.close()
    took_s = time.monotonic() - began_s
    producer.close(0.1)
    assert took_s < 5.0
