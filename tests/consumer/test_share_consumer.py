"""Queues end to end: producers, consumers that share the work, transactions, a coordinator."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import confluent_kafka
import pytest

import logtx
from logtx.consumer import share_consumer
from logtx.consumer.core.runs import Run
from logtx.consumer.leased import LeaseReader
from logtx.consumer.share_consumer import ShareConsumer
from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.core import dispatch
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol.queues import AcknowledgeType, Lease
from logtx.coordinator.service import CoordinatorConfig
from logtx.journal.errors import (
    AckConflictError,
    BrokerError,
    ClosedError,
    ConcurrentUseError,
    ConfigError,
    GroupBoundError,
    LogtxError,
    NotHeldError,
    NotSubscribedError,
    TornTransactionError,
    UnknownTopicError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Mode
from logtx.journal.sidecar import sidecar_of
from logtx.producer.producer import Producer

from ..waiting import eventually

TIMEOUT_S = 20.0
GONE_S = dispatch.GONE_MS / 1000
Queues = Callable[..., ShareConsumer]
RELEASE, REJECT = AcknowledgeType.RELEASE, AcknowledgeType.REJECT


@pytest.fixture
def coordinator(memory_log: MemoryLog) -> Iterator[EmbeddedCoordinator]:
    """A coordinator, and an empty topic `orders` of two partitions."""
    memory_log.create_topic("orders", partitions=2)
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers, listen="127.0.0.1:0", journal_partitions=2
    )
    with EmbeddedCoordinator(config) as running:
        yield running


@pytest.fixture
def queues(memory_log: MemoryLog, coordinator: EmbeddedCoordinator) -> Iterator[Queues]:
    """`queues(…)` makes a consumer of the queue, which is closed with the test."""
    made: list[ShareConsumer] = []
    assert coordinator.address

    def make(*topics: str, **settings: Any) -> ShareConsumer:
        given = {"group.id": "q", "auto.offset.reset": "earliest", **settings}
        given.setdefault("share.acknowledgement.mode", "explicit")
        consumer = ShareConsumer(given, log=memory_log)
        made.append(consumer)
        consumer.subscribe(topics or ("orders",))
        return consumer

    yield make
    for each in made:
        each.close()


@pytest.fixture
def producer(memory_log: MemoryLog, coordinator: EmbeddedCoordinator) -> Iterator[Producer]:
    """A producer with an id."""
    assert coordinator.address
    with Producer({"transactional.id": "p"}, log=memory_log) as made:
        yield made


def fill(producer: Producer, count: int, *, partition: int = 0, first: int = 0) -> None:
    for number in range(first, first + count):
        producer.produce("orders", b"%d" % number, partition=partition)
    producer.flush()


def take(queue: ShareConsumer, count: int, timeout_s: float = TIMEOUT_S) -> list[Any]:
    """Returns the next messages, at least `count` if they come in time."""
    found: list[Any] = []
    deadline_s = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline_s:
        found += queue.poll(0.2)
    return found


def values(messages: list[Any]) -> list[bytes]:
    return [message.value() for message in messages]


# ---- messages -----------------------------------------------------------------------------------


def test_messages_come_and_are_worked_off_once(queues: Queues, producer: Producer) -> None:
    fill(producer, 5)
    fill(producer, 5, partition=1, first=5)
    queue = queues()
    found = take(queue, 10)
    assert sorted(values(found)) == sorted(b"%d" % n for n in range(10))
    for message in found:
        queue.acknowledge(message)
    assert set(queue.commit_sync().values()) == {None}
    other = queues()
    assert take(other, 1, 1.0) == []
    fill(producer, 1, first=10)
    assert values(take(other, 1)) == [b"10"]


def test_implicit_mode_accepts_what_the_last_poll_returned(
    queues: Queues, producer: Producer
) -> None:
    fill(producer, 3)
    queue = queues(**{"share.acknowledgement.mode": "implicit"})
    assert len(take(queue, 3)) == 3
    assert queue.poll(0) == []
    queue.commit_sync()
    fill(producer, 1, first=3)
    assert values(take(queue, 1)) == [b"3"]
    queue.close()
    again = queues()
    assert values(take(again, 1)) == [b"3"], "nobody said that it was worked off"


def test_transactions_of_the_input_come_whole_and_aborted_ones_do_not(
    queues: Queues, producer: Producer
) -> None:
    queue = queues(**{"max.poll.records": 2})
    with producer.begin_transaction() as first:
        for number in range(5):
            first.produce("orders", b"%d" % number, partition=0)
    aborted = producer.begin_transaction()
    aborted.produce("orders", b"never", partition=0)
    aborted.abort()
    fill(producer, 1, first=5)
    found = take(queue, 6)
    assert values(found) == [b"%d" % n for n in range(6)]
    queue.acknowledge_cumulative(found[2])
    with pytest.raises(NotHeldError):
        queue.acknowledge(found[1])
    queue.acknowledge(found[4], RELEASE)
    queue.commit_sync()
    (again,) = take(queue, 1)
    assert (again.value(), queue.delivery_count(again)) == (b"4", 2)
    assert queue.delivery_count(found[3]) == 1


@pytest.mark.parametrize("last", ["a plain record", "a transaction"])
def test_a_topic_in_metadata_mode_is_a_queue_too(
    queues: Queues, producer: Producer, memory_log: MemoryLog, last: str
) -> None:
    """Transactions are placed at the partition's end, where no record may ever come (trap 109)."""
    queue = queues()
    with producer.begin_transaction() as txn:
        txn.produce("orders", b"0", partition=0)
    with closing(AdminQueries(memory_log, timeout_s=TIMEOUT_S)) as admin:
        admin.set_topic_mode("orders", Mode.METADATA, transaction_group="default")
    fill(producer, 1, first=1)
    with producer.begin_transaction() as txn:
        for number in (2, 3):
            txn.produce("orders", b"%d" % number, partition=0)
    if last == "a plain record":
        fill(producer, 1, first=4)
    count = 5 if last == "a plain record" else 4
    found = take(queue, count)
    assert sorted(values(found)) == [b"%d" % n for n in range(count)]
    # Two more are placed at one offset. The second one comes when the first one was worked off.
    both = [producer.begin_transaction() for _ in range(2)]
    for number, txn in enumerate(both, 5):
        txn.produce("orders", b"%d" % number, partition=0)
    producer.flush()
    for number, txn in enumerate(both, 5):
        txn.commit(finished=True)
        (message,) = take(queue, 1)
        assert message.value() == b"%d" % number
        assert queue.delivery_count(message) == 1
        queue.acknowledge(message)
        queue.commit_sync()
        queue.poll(0.5)
    queue.acknowledge(found[values(found).index(b"2")])
    queue.close()
    rest = [value for value in values(found) if value != b"2"]
    assert sorted(values(take(queues(), len(rest)))) == sorted(rest)


def test_a_queue_begins_at_the_end_by_default(queues: Queues, producer: Producer) -> None:
    fill(producer, 2)
    queue = queues(**{"auto.offset.reset": "latest"})
    assert take(queue, 1, 0.5) == []
    fill(producer, 1, first=2)
    assert values(take(queue, 1)) == [b"2"]


# ---- acknowledgements in transactions -----------------------------------------------------------


def test_a_commit_takes_outputs_and_acknowledgements_together(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    memory_log.create_topic("invoices", partitions=1)
    fill(producer, 2)
    queue = queues()
    first, second = take(queue, 2)
    with producer.begin_transaction() as txn:
        txn.produce("invoices", first.value())
        queue.acknowledge(first, txn=txn)
    failed = producer.begin_transaction()
    queue.acknowledge(second, txn=failed)
    failed.abort()
    (again,) = take(queue, 1)
    assert again.value() == second.value()
    assert queue.delivery_count(again) == 2
    with producer.begin_transaction() as txn:
        queue.acknowledge_cumulative(again, txn=txn)
    queue.close()
    assert take(queues(), 1, 1.0) == []


def test_two_transactions_never_have_one_message(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    fill(producer, 1)
    hasty, other = queues(**{"ack.timeout.ms": 200}), queues()
    (message,) = take(hasty, 1)
    (same,) = take(other, 1)
    assert same.offset() == message.offset()
    with Producer({"transactional.id": "q"}, log=memory_log) as second:
        one, two = producer.begin_transaction(), second.begin_transaction()
        hasty.acknowledge(message, txn=one)
        one.commit()
        other.acknowledge(same, txn=two)
        with pytest.raises(AckConflictError, match="abort"):
            two.commit()
        two.abort()


# ---- what comes again ---------------------------------------------------------------------------


def test_released_with_a_delay_and_rejected(queues: Queues, producer: Producer) -> None:
    fill(producer, 2)
    queue = queues()
    first, second = take(queue, 2)
    began_s = time.monotonic()
    queue.acknowledge(first, RELEASE, delay=0.5)
    queue.acknowledge(second, confluent_kafka.AcknowledgeType.REJECT)
    assert values(take(queue, 1)) == [b"0"]
    assert time.monotonic() - began_s >= 0.45


def test_a_consumer_that_closes_gives_back_at_once(queues: Queues, producer: Producer) -> None:
    fill(producer, 3)
    queue, other = queues(**{"max.poll.records": 1}), queues()
    assert len(take(queue, 1)) == 1
    queue.close()
    with pytest.raises(ClosedError):
        queue.poll(0)
    began_s = time.monotonic()
    assert sorted(values(take(other, 3))) == [b"0", b"1", b"2"]
    assert time.monotonic() - began_s < GONE_S, "nobody waits until it counts as gone"


def test_a_consumer_that_is_dropped_leaves(
    producer: Producer, memory_log: MemoryLog, queues: Queues
) -> None:
    fill(producer, 1)
    settings = {"group.id": "q", "auto.offset.reset": "earliest", "bootstrap.servers": "x:1"}
    dropped = ShareConsumer(settings, log=memory_log)
    dropped.subscribe(["orders"])
    assert len(take(dropped, 1)) == 1
    del dropped
    gc.collect()
    assert values(take(queues(), 1, 10.0)) == [b"0"]
    names = ("queue-client",)
    eventually(lambda: sum(t.name in names for t in threading.enumerate()) == 1)


def test_a_new_owner_gives_a_living_consumer_nothing_twice(
    queues: Queues, producer: Producer, coordinator: EmbeddedCoordinator
) -> None:
    fill(producer, 6)
    queue = queues(**{"max.poll.records": 2})
    before = take(queue, 2)
    coordinator.stop()
    coordinator.start()
    after = take(queue, 4)
    assert values(before + after) == [b"%d" % n for n in range(6)]
    for message in before + after:
        queue.acknowledge(message)
    assert set(queue.commit_sync(TIMEOUT_S).values()) == {None}
    assert take(queue, 1, 1.0) == []


def test_workers_that_die_lose_and_double_nothing(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    """Each order has one invoice, whoever dies: acknowledgements and outputs are one decision."""
    memory_log.create_topic("invoices", partitions=1)
    fill(producer, 60)
    fill(producer, 60, partition=1, first=60)
    left, errors = 120, list[BaseException]()
    lock = threading.Lock()

    def work(number: int) -> None:
        nonlocal left
        try:
            queue = queues(**{"max.poll.records": 7})
            with Producer({"transactional.id": f"w{number}"}, log=memory_log) as own:
                for turn in range(1_000):
                    for message in queue.poll(0.2):
                        txn = own.begin_transaction()
                        try:
                            txn.produce("invoices", message.value())
                            queue.acknowledge(message, txn=txn)
                            txn.commit()
                        except AckConflictError:
                            txn.abort()
                            continue
                        with lock:
                            left -= 1
                    if number == 0 and turn == 2:
                        # As kill -9 does: nothing is released, and the stream ends.
                        assert queue._client is not None
                        queue._client.close()
                        return
                    if left <= 0:
                        return
        except BaseException as error:
            errors.append(error)
            raise

    workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(60)
    assert not errors
    # A reader in serial order reads the journal, with all that it says of the queue.
    settings = {"auto.offset.reset": "earliest", "isolation.level": "serializable"}
    with logtx.Consumer({"group.id": "audit", **settings}, log=memory_log) as audit:
        audit.subscribe(["invoices"])
        found: list[bytes] = []
        eventually(lambda: len(found.__iadd__(values(audit.consume(500, 0.1)))) >= 120, TIMEOUT_S)
        found += values(audit.consume(500, 0.5))
    assert sorted(found, key=int) == [b"%d" % n for n in range(120)]


# ---- what is refused ----------------------------------------------------------------------------


def test_bad_use_is_told(
    queues: Queues, producer: Producer, memory_log: MemoryLog, coordinator: EmbeddedCoordinator
) -> None:
    with pytest.raises(ConfigError, match=r"group\.id"):
        ShareConsumer({}, log=memory_log)
    with pytest.raises(ConfigError, match="acknowledgement"):
        ShareConsumer({"group.id": "q", "share.acknowledgement.mode": "never"}, log=memory_log)
    with pytest.raises(ConfigError, match=r"ack\.time"):
        ShareConsumer({"group.id": "q", "ack.time.ms": 5}, log=memory_log)
    with pytest.raises(NotSubscribedError, match="not subscribed"):
        ShareConsumer({"group.id": "q"}, log=memory_log).poll(0)
    fill(producer, 1)
    queue = queues()
    (message,) = take(queue, 1)
    with pytest.raises(ValueError, match="delay"):
        queue.acknowledge(message, delay=1)
    queue.acknowledge(message)
    with pytest.raises(NotHeldError, match=r"orders\[0\] at 0"):
        queue.acknowledge(message)
    with pytest.raises(GroupBoundError, match=r"set transaction\.group"):
        queues(**{"transaction.group": "another"})
    assert coordinator.address


def test_a_topic_that_does_not_exist_is_told_by_poll(queues: Queues) -> None:
    queue = queues("nowhere")
    with pytest.raises(UnknownTopicError, match="nowhere"):
        take(queue, 1)


def test_one_thread_polls(queues: Queues) -> None:
    queue = queues()
    polling = threading.Thread(target=queue.poll, args=(2.0,))
    polling.start()
    eventually(queue._polling.locked)
    for other in (partial(queue.poll, 0), queue.commit_sync, queue.commit_async, queue.close):
        with pytest.raises(ConcurrentUseError):
            other()
    polling.join()


def test_what_a_transaction_refuses_is_held_as_before(queues: Queues, producer: Producer) -> None:
    fill(producer, 3)
    queue = queues()
    found = take(queue, 3)
    over = producer.begin_transaction()
    over.abort()
    for refused in (queue.acknowledge, queue.acknowledge_cumulative):
        with pytest.raises(LogtxError):
            refused(found[1], txn=over)
    with producer.begin_transaction() as txn:
        queue.acknowledge_cumulative(found[2], txn=txn)
    with pytest.raises(NotHeldError):
        queue.acknowledge(found[0])


def breaking(monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException) -> None:
    """Lets the first reading of a lease fail before its message number `at`."""
    read, failed = LeaseReader.runs, False

    def runs(self: LeaseReader, lease: Lease) -> Iterator[Run]:
        nonlocal failed
        single = (run.part(n, n + 1) for run in read(self, lease) for n in range(len(run)))
        for number, each in enumerate(single):
            if number == at and not failed:
                failed = True
                raise error
            yield each

    monkeypatch.setattr(LeaseReader, "runs", runs)


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
@pytest.mark.parametrize("error", [BrokerError("it is away"), KeyboardInterrupt()])
def test_messages_before_what_can_not_be_read_are_not_lost(
    queues: Queues,
    producer: Producer,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    error: BaseException,
) -> None:
    fill(producer, 3)
    queue = queues(**{"share.acknowledgement.mode": mode})
    breaking(monkeypatch, 2, error)
    seen: list[Any] = []

    def failed() -> bool:
        try:
            seen.extend(queue.poll(0.2))
        except (BrokerError, KeyboardInterrupt):
            return True
        return False

    eventually(failed)
    seen += take(queue, 3 - len(seen))
    assert values(seen) == [b"0", b"1", b"2"]


def test_a_lease_that_another_has_meanwhile_is_given_up(queues: Queues, producer: Producer) -> None:
    fill(producer, 3)
    queue = queues(**{"max.poll.records": 1, "ack.timeout.ms": 60_000})
    queue._config = replace(queue._config, poll_records=3)  # a lease of three, one at a time
    eventually(lambda: queue._acquiring is not None or not queue.poll(0))
    queue._config = replace(queue._config, poll_records=1)
    assert len(take(queue, 1)) == 1
    with queue._lock:
        queue._work._has_lost = True
    rest = take(queue, 2)
    assert sorted(values(rest)) == [b"1", b"2"], "released, and given out again"


def test_implicit_mode_has_no_transactions(queues: Queues, producer: Producer) -> None:
    fill(producer, 1)
    queue = queues(**{"share.acknowledgement.mode": "implicit"})
    (message,) = take(queue, 1)
    with producer.begin_transaction() as txn:
        for refused in (queue.acknowledge, queue.acknowledge_cumulative):
            with pytest.raises(ValueError, match="explicit"):
                refused(message, txn=txn)
        with pytest.raises(ValueError, match="explicit"):
            queue.acknowledge(message, AcknowledgeType.RENEW)


def test_what_is_placed_at_the_very_end_is_given_out_again(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    with closing(AdminQueries(memory_log, timeout_s=TIMEOUT_S)) as admin:
        admin.set_topic_mode("orders", Mode.METADATA, transaction_group="default")
    with producer.begin_transaction() as txn:
        for number in range(3):
            txn.produce("orders", b"%d" % number, partition=0)
    queue = queues()
    first, second, third = take(queue, 3)
    queue.acknowledge(first, RELEASE)
    assert values(take(queue, 1)) == [b"0"]
    queue.acknowledge(third)
    queue.acknowledge(second, RELEASE)
    assert values(take(queue, 1)) == [b"1"]


def test_a_topic_made_anew_begins_at_its_first_message(
    queues: Queues,
    producer: Producer,
    memory_log: MemoryLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_consumer, "ATTACH_AGAIN_S", 0.5)
    fill(producer, 4)
    queue = queues(**{"auto.offset.reset": "latest"})
    assert queue.poll(0.5) == []
    memory_log.delete_topic("orders")
    memory_log.create_topic("orders", partitions=2)
    fill(producer, 3)
    assert sorted(values(take(queue, 3))) == [b"0", b"1", b"2"]


def test_what_can_not_be_read_keeps_nothing_behind_it(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    """All were in one lease (trap 122)."""
    fill(producer, 3)
    txn = producer.begin_transaction(sidecar=True)
    txn.produce("orders", b"gone", partition=0)
    txn.commit(finished=True)
    memory_log.delete_records(sidecar_of("orders"), 0, 1)
    fill(producer, 4, first=3)
    queue = queues()
    found: list[Any] = []

    def has_all() -> bool:
        with suppress(TornTransactionError):
            for message in queue.poll(0.2):
                found.append(message)
                queue.acknowledge(message)
        return len(found) == 7

    eventually(has_all)
    assert sorted(values(found)) == [b"%d" % n for n in range(7)]
    with pytest.raises(TornTransactionError):
        take(queue, 1)
    assert isinstance(queue.commit_sync(), dict), "and the consumer lives on"


def test_errors_of_queues_are_in_the_front_door() -> None:
    for name in ("AckConflictError", "NotHeldError", "UnknownSubscriptionError"):
        assert issubclass(getattr(logtx, name), LogtxError)
    assert logtx.ShareConsumer is ShareConsumer
