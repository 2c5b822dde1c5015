"""`logtx.process` with a queue, on a log in memory, with a real coordinator: whatever fails in the
middle, each message has its output once, or its dead letter.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import TopicPartition

import logtx
from logtx.integration import block as shared
from logtx.integration.queue_blocks import QueueBlock
from logtx.integration.testing import Cluster
from logtx.journal.errors import (
    ConfigError,
    GroupBoundError,
    NotHeldError,
    TransactionAbortedError,
    TransactionStateError,
    UnknownTopicError,
)

from ..waiting import eventually

WAIT_S = 20.0


class Bench:
    """Numbers in topic `source`, workers that copy them to `sink`, and dead letters."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.source, self.sink = cluster.topic(2), cluster.topic()
        self.letters = cluster.topic()
        self.count = 0
        self._feeder = cluster.producer()
        self._names = 0

    def feed(self, count: int, *, partitions: int = 2) -> None:
        """More input: plain records, and transactions that no block ends with."""
        while count > 0:
            for _ in range(min(count, 5)):
                self._feed(self._feeder, partitions)
            self._feeder.flush()
            count -= 5
            if count > 0:
                with self._feeder.begin_transaction() as txn:
                    for _ in range(min(count, 12)):
                        self._feed(txn, partitions)
                count -= 12

    def _feed(self, writer: Any, partitions: int) -> None:
        writer.produce(self.source, b"%d" % self.count, partition=self.count % partitions)
        self.count += 1

    def queue(self, **settings: Any) -> logtx.ShareConsumer:
        given = {"group_id": "q", "share_acknowledgement_mode": "explicit"}
        given |= {"redelivery_delay_ms": 0, "errors_deadletterqueue_topic_name": self.letters}
        letters = self.producer()
        return self.cluster.share_consumer(self.source, producer=letters, **{**given, **settings})

    def producer(self, **settings: Any) -> logtx.Producer:
        self._names += 1
        return self.cluster.producer(transactional_id=f"worker-{self._names}", **settings)

    def copy(self, block: QueueBlock) -> None:
        """What a worker does."""
        for message in block:
            block.produce(self.sink, message.value())

    def read(self, topic: str, count: int) -> list[Any]:
        """Returns all that is committed in a topic, at least `count` records if they come."""
        reader = self.cluster.consumer()
        reader.assign([TopicPartition(topic, 0)])
        found: list[Any] = []
        deadline_s = time.monotonic() + WAIT_S
        while len(found) < count and time.monotonic() < deadline_s:
            found += reader.consume(1_000, 0.2)
        return found + reader.consume(1_000, 0.2)

    def check(self, *dead: int) -> None:
        """Each number is in the sink, once; but for those that are among the dead letters."""
        alive = set(range(self.count)) - set(dead)
        copied = [int(m.value()) for m in self.read(self.sink, len(alive))]
        assert sorted(copied) == sorted(alive), Counter(copied) - Counter(alive)
        assert sorted(int(m.value()) for m in self.read(self.letters, len(dead))) == sorted(dead)


@pytest.fixture
def bench(logtx_memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(shared, "PAUSE_MIN_S", 0.01)
    monkeypatch.setattr(shared, "PAUSE_MAX_S", 0.1)
    return Bench(logtx_memory_cluster)


@pytest.mark.parametrize("in_flight", [1, 4])
def test_each_block_is_a_transaction_and_all_together_the_queue(
    bench: Bench, in_flight: int
) -> None:
    bench.feed(250)
    sizes, ids = [], set()
    for block in logtx.process(
        bench.queue(), bench.producer(), max_records=40, in_flight=in_flight, timeout=2.0
    ):
        assert block.redone == 0
        sizes.append(len(block))
        ids.add(block.txn.txid)
        bench.copy(block)
    assert sum(sizes) == 250
    assert max(sizes) == 40
    assert len(ids) == len(sizes)
    bench.check()


def test_a_block_that_is_not_full_waits_for_more_as_long_as_it_may_linger(bench: Bench) -> None:
    bench.feed(10)
    blocks = logtx.process(bench.queue(), bench.producer(), max_records=20, linger=5, timeout=2)
    timer = threading.Timer(0.5, bench.feed, [10])
    timer.start()
    first = next(blocks)
    assert len(first) == 20
    bench.copy(first)
    assert next(blocks, None) is None
    timer.join()
    bench.check()


# ---- what fails ---------------------------------------------------------------------------------


def test_a_message_that_fails_comes_alone_and_becomes_a_dead_letter(bench: Bench) -> None:
    """Its neighbours are worked off the second time: none of them reaches the limit."""
    bench.feed(20)
    tries: Counter[int] = Counter()
    alone: list[int] = []
    queue = bench.queue(share_delivery_count_limit=3)
    for block in logtx.process(queue, bench.producer(), timeout=2.0, retries=0):
        numbers = [int(m.value()) for m in block]
        tries.update(numbers)
        if block.redone:
            assert len(block) == 1
            alone += numbers
        if 7 in numbers:
            assert block.redone == tries[7] - 1
            block.release()
        else:
            bench.copy(block)
    assert tries.pop(7) == 3
    assert max(tries.values()) == 2
    assert 7 in alone
    bench.check(7)
    (letter,) = bench.read(bench.letters, 1)
    assert ("__dlq.errors.delivery.count", b"3") in letter.headers()


def test_the_first_delivery_is_alone_where_it_is_the_last(bench: Bench) -> None:
    bench.feed(10)
    queue = bench.queue(share_delivery_count_limit=1)
    for block in logtx.process(queue, bench.producer(), timeout=2.0):
        assert len(block) == 1
        if b"3" in [m.value() for m in block]:
            block.release()
        else:
            bench.copy(block)
    bench.check(3)


def test_a_rejected_message_is_a_dead_letter_of_its_blocks_transaction(bench: Bench) -> None:
    bench.feed(10)
    blocks = logtx.process(bench.queue(), bench.producer(), timeout=2.0)
    for number, block in enumerate(blocks):
        for message in block:
            if int(message.value()) in (2, 4):
                block.reject(message, reason=f"number {message.value().decode()}")
                with pytest.raises(NotHeldError, match="rejected already"):
                    block.reject(message)
            else:
                block.produce(bench.sink, message.value())
        if number == 0:
            block.txn.abort()  # The dead letters go with it.
    bench.check(2, 4)
    letters = bench.read(bench.letters, 2)
    told = {m.value(): dict(m.headers())["__dlq.errors.message"] for m in letters}
    assert told == {b"2": b"number 2", b"4": b"number 4"}


def test_without_a_topic_a_rejected_message_is_deleted_and_told(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.feed(5)
    queue = bench.cluster.share_consumer(
        bench.source, group_id="q", share_acknowledgement_mode="explicit"
    )
    for block in logtx.process(queue, bench.producer(), timeout=2.0):
        for message in block:
            block.reject(message)
    assert queue.stats()["rejected_records"] == 5
    assert sum("message_given_up" in r.getMessage() for r in caplog.records) == 5


def test_released_messages_wait_as_long_as_they_are_told(bench: Bench) -> None:
    bench.feed(1)
    when: list[float] = []
    blocks = logtx.process(bench.queue(), bench.producer(), timeout=2.0)
    for block, delay in zip(blocks, (0.8, 0.0, None, 0.0), strict=False):
        when.append(time.monotonic())
        if len(when) < 4:
            block.release(delay)
        else:
            bench.copy(block)
    pauses = [after - before for before, after in pairwise(when)]
    assert pauses[0] >= 0.75
    assert max(pauses[1:]) < 0.7
    bench.check()


def test_a_block_of_which_somebody_took_a_message_is_thrown_away(bench: Bench) -> None:
    """That is no failure, and the other messages come again at once."""
    bench.feed(5)
    queue, thief = bench.queue(), bench.producer()
    stolen: list[int] = []
    for block in logtx.process(queue, bench.producer(), timeout=2.0, retries=0):
        if not stolen:
            continue_with = block
            first = next(iter(block))
            key = (first.topic(), first.partition(), first.offset())
            given = continue_with._given[key]
            block.txn.abort()  # as its timeout would
            with thief.begin_transaction() as txn:
                txn.produce(bench.sink, first.value())
                txn.send_acks("q", [given.acks])
            stolen.append(int(first.value()))
            break
        bench.copy(block)
    for block in logtx.process(queue, bench.producer(), timeout=2.0, retries=0):
        bench.copy(block)
    bench.check()


def test_a_conflict_at_the_commit_is_no_failure(bench: Bench) -> None:
    """A lease ran out before its block began, and another worker was quicker."""
    bench.feed(3)
    slow, quick = bench.queue(ack_timeout_ms=300), bench.queue()
    messages = []
    while len(messages) < 3:
        messages += slow.poll(0.2)
    for block in logtx.process(quick, bench.producer(), timeout=2.0):
        bench.copy(block)
    late = logtx.process(slow, bench.producer(), timeout=2.0, retries=0)
    pipeline: Any = late.gi_frame.f_locals["self"]
    pipeline._waiting.extend(messages)
    for block in late:
        bench.copy(block)
    bench.check()
    assert slow.stats()["conflicts"] == 1


def test_an_expired_block_comes_again(bench: Bench) -> None:
    bench.feed(5)
    attempts = 0
    producer = bench.producer(transaction_timeout_ms=300)
    for block in logtx.process(bench.queue(), producer, timeout=2.0):
        attempts += 1
        if attempts == 1:
            time.sleep(0.8)
        bench.copy(block)
    assert attempts > 1
    bench.check()


def test_what_fails_again_and_again_is_raised(bench: Bench) -> None:
    bench.feed(5)
    queue, attempts = bench.queue(share_delivery_count_limit=0), 0

    def work() -> None:
        nonlocal attempts
        for block in logtx.process(queue, bench.producer(), retries=3):
            attempts += 1
            block.txn.abort()

    with pytest.raises(TransactionAbortedError):
        work()
    assert attempts == 4
    for block in logtx.process(queue, bench.producer(), timeout=2.0):
        bench.copy(block)
    bench.check()


def test_what_can_not_be_better_the_next_time_is_raised_at_once(bench: Bench) -> None:
    bench.feed(5)
    nowhere = bench.cluster.share_consumer(
        "nowhere", group_id="none", share_acknowledgement_mode="explicit"
    )
    with pytest.raises(UnknownTopicError):
        next(logtx.process(nowhere, bench.producer(), retries=0))
    queue, fenced = bench.queue(), bench.cluster.producer(transactional_id="twice")
    blocks = logtx.process(queue, fenced)
    bench.copy(next(blocks))
    assert bench.cluster.producer(transactional_id="twice").begin_transaction().txid
    with pytest.raises(logtx.ProducerFencedError):
        next(blocks)
    for block in logtx.process(queue, bench.producer(), timeout=2.0):
        bench.copy(block)
    bench.check()


def test_work_that_takes_longer_than_a_lease_is_nobody_elses(bench: Bench) -> None:
    """The transaction has its messages."""
    bench.feed(3, partitions=1)
    slow, other = bench.queue(ack_timeout_ms=600), bench.queue()
    took: list[list[Any]] = []

    def steals() -> None:
        took.extend(other.poll(0.2) for _ in range(8))

    thief = threading.Thread(target=steals)
    blocks = logtx.process(slow, bench.producer(), linger=0.2, timeout=2.0)
    first = next(blocks)
    thief.start()
    time.sleep(1.5)
    bench.copy(first)
    for block in blocks:
        bench.copy(block)
    thief.join()
    assert len(first) == 3
    assert not any(took)
    bench.check()


def test_what_waits_for_its_turn_is_renewed(bench: Bench) -> None:
    bench.feed(5, partitions=1)
    first = bench.queue()
    for _ in logtx.process(first, bench.producer(), timeout=2.0):
        break  # Each message was given out once: the second time each is a block of its own.
    first.close()
    slow, other = bench.queue(ack_timeout_ms=1_500), bench.queue()
    seen = 0
    blocks = logtx.process(slow, bench.producer(), timeout=2.0)
    for block in blocks:
        assert len(block) == 1
        seen += 1
        time.sleep(0.5)
        bench.copy(block)
        assert other.poll(0.1) == []
    assert seen == 5
    bench.check()


# ---- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["break", "exception", "stop"])
@pytest.mark.parametrize("in_flight", [1, 4])
def test_leaving_the_loop_gives_back_what_is_not_committed(
    bench: Bench, by: str, in_flight: int
) -> None:
    bench.feed(100)
    queue, producer, stop = bench.queue(), bench.producer(), threading.Event()

    def work(leave_at: int) -> None:
        blocks = logtx.process(
            queue, producer, max_records=10, in_flight=in_flight, timeout=2.0, stop=stop
        )
        for number, block in enumerate(blocks):
            bench.copy(block)
            if number == leave_at:
                if by == "break":
                    break
                if by == "exception":
                    raise ValueError("the application's")
                stop.set()

    for leave_at in (3, 0, 2):
        stop.clear()
        if by == "exception":
            with pytest.raises(ValueError, match="application"):
                work(leave_at)
        else:
            work(leave_at)
    stop.clear()
    other = bench.queue()
    began_s = time.monotonic()
    for block in logtx.process(other, bench.producer(), max_records=10, timeout=2.0):
        bench.copy(block)
    assert time.monotonic() - began_s < 15, "nobody waits until leases are over"
    bench.check()


def test_a_queue_whose_loop_is_over_takes_nothing_up_to_the_next_poll(bench: Bench) -> None:
    """Its last request for messages still waits: what it got would be nobody's for half a minute
    (trap 131).
    """
    idle = bench.queue()
    assert list(logtx.process(idle, bench.producer(), timeout=0.3)) == []
    bench.feed(5)
    began_s = time.monotonic()
    for block in logtx.process(bench.queue(), bench.producer(), timeout=2.0):
        bench.copy(block)
    assert time.monotonic() - began_s < 15, "nobody waits until leases are over"
    bench.check()
    bench.feed(5)
    for block in logtx.process(idle, bench.producer(), timeout=2.0):
        bench.copy(block)
    bench.check()


def test_a_block_whose_turn_is_over_takes_nothing(bench: Bench) -> None:
    bench.feed(1)
    for block in logtx.process(bench.queue(), bench.producer(), timeout=2.0):
        bench.copy(block)
        message = next(iter(block))
    for late in (lambda: block.produce(bench.sink, b"late"), lambda: block.reject(message)):
        with pytest.raises(TransactionStateError):
            late()
    bench.check()


def test_workers_come_and_go_and_nothing_is_doubled(bench: Bench) -> None:
    bench.feed(300)
    errors: list[BaseException] = []
    stops: list[threading.Event] = []
    done = threading.Event()

    def work(stop: threading.Event) -> None:
        try:
            queue, producer = bench.queue(max_poll_records=20), bench.producer()
            blocks = logtx.process(queue, producer, max_records=7, in_flight=3, stop=stop)
            for number, block in enumerate(blocks):
                bench.copy(block)
                # One that was released five times would be given up: among 300, some are by chance.
                if number % 5 == 4 and block.redone < 3:
                    block.release()
            queue.close()
        except BaseException as error:
            errors.append(error)
            raise

    threads = []
    for _ in range(6):
        stops.append(threading.Event())
        threads.append(threading.Thread(target=work, args=(stops[-1],)))
        threads[-1].start()
        time.sleep(0.4)
        if len(stops) > 2:
            stops[-3].set()
    bench.cluster.kill_coordinator()
    time.sleep(0.2)
    bench.cluster.start_coordinators()

    def left() -> int:
        return bench.count - len(bench.read(bench.sink, 0))

    try:
        eventually(lambda: bool(errors) or left() <= 0, 60.0)
    finally:
        done.set()
        for stop in stops:
            stop.set()
        for each in threads:
            each.join(40)
    assert not errors
    bench.check()


# ---- arguments ----------------------------------------------------------------------------------


def test_arguments_are_checked_at_once(bench: Bench) -> None:
    queue, producer = bench.queue(), bench.producer()
    for bad in ({"max_records": 0}, {"in_flight": 0}, {"retries": -1}):
        with pytest.raises(ConfigError, match="at least"):
            logtx.process(queue, producer, **bad)  # type: ignore[call-overload]
    implicit = bench.cluster.share_consumer(bench.source, group_id="implicit")
    with pytest.raises(ConfigError, match="explicit"):
        logtx.process(implicit, producer)


def test_a_queue_of_another_transaction_group_is_refused(bench: Bench) -> None:
    elsewhere = bench.producer(transaction_group="billing")
    with pytest.raises(GroupBoundError, match="billing"):
        next(logtx.process(bench.queue(), elsewhere))
