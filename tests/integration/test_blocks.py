"""`logtx.process` on a log in memory, with a real coordinator: whatever fails in the middle, the
output is exactly that of the input, each once. Traps 24, 26, 29.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

import logtx
from logtx.integration import block as shared
from logtx.integration import blocks as module
from logtx.integration.block import Block
from logtx.integration.testing import Cluster
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC

WAIT_S = 20.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


class Bench:
    """Numbers in topic `source`, and workers that copy them to topic `sink`."""

    def __init__(self, cluster: Cluster, partitions: int = 2) -> None:
        self.cluster = cluster
        self.partitions = partitions
        self.source, self.sink = cluster.topic(partitions), cluster.topic()
        self.count = 0
        self._feeder = cluster.producer()
        self._names = 0

    def feed(self, count: int) -> None:
        """More input, spread over the partitions, in transactions that no block ends with."""
        while count > 0:
            with self._feeder.begin_transaction() as txn:
                for _ in range(min(count, 17)):
                    txn.produce(self.source, b"%d" % self.count, partition=self.count % 2)
                    self.count += 1
            count -= 17

    def consumer(self, *, subscribe: bool = False, **settings: Any) -> logtx.Consumer:
        made = self.cluster.consumer(group_id="g", offsets_storage="transactions", **settings)
        if subscribe:
            made.subscribe([self.source])
        else:
            made.assign([TopicPartition(self.source, n) for n in range(self.partitions)])
        return made

    def producer(self, **settings: Any) -> logtx.Producer:
        self._names += 1
        return self.cluster.producer(transactional_id=f"worker-{self._names}", **settings)

    def copy(self, block: Block) -> None:
        """What a worker does."""
        for message in block:
            block.produce(self.sink, message.value())

    def check(self) -> None:
        """Each number is in the sink, once."""
        reader = self.cluster.consumer()
        reader.assign([TopicPartition(self.sink, 0)])
        found: list[int] = []
        deadline_s = time.monotonic() + WAIT_S
        while len(found) < self.count and time.monotonic() < deadline_s:
            found += [int(m.value() or b"") for m in reader.consume(1_000, 0.2)]
        found += [int(m.value() or b"") for m in reader.consume(1_000, 0.1)]
        assert sorted(found) == list(range(self.count))


@pytest.fixture
def bench(logtx_memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(shared, "PAUSE_MIN_S", 0.01)
    monkeypatch.setattr(shared, "PAUSE_MAX_S", 0.1)
    return Bench(logtx_memory_cluster)


@pytest.fixture
def memory(bench: Bench) -> MemoryLog:
    """The log that the bench stands on, with its faults at hand."""
    assert isinstance(bench.cluster.log, MemoryLog)
    return bench.cluster.log


@pytest.mark.parametrize("in_flight", [1, 4])
def test_each_block_is_a_transaction_and_all_together_the_input(
    bench: Bench, in_flight: int
) -> None:
    bench.feed(250)
    sizes, ids = [], set()
    for block in logtx.process(
        bench.consumer(), bench.producer(), max_records=40, in_flight=in_flight, timeout=0.3
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
    consumer, producer = bench.consumer(), bench.producer()
    blocks = logtx.process(consumer, producer, max_records=20, linger=5, timeout=0.3)
    timer = threading.Timer(0.3, bench.feed, [10])
    timer.start()
    first = next(blocks)
    timer.join()
    assert len(first) == 20
    bench.copy(first)
    assert list(blocks) == []
    bench.check()


@pytest.mark.parametrize("in_flight", [1, 3])
@pytest.mark.parametrize("isolation", ["read_committed", "serializable"])
@pytest.mark.parametrize("fault", ["aborted by the operator", "aborted by the application"])
def test_trap_26_what_goes_on_from_an_aborted_one_is_redone_with_it(
    bench: Bench, in_flight: int, isolation: str, fault: str
) -> None:
    bench.feed(300)
    aborted, redone = 0, []
    consumer = bench.consumer(isolation_level=isolation)
    producer = bench.producer()
    for number, block in enumerate(
        logtx.process(consumer, producer, max_records=10, in_flight=in_flight, timeout=0.5)
    ):
        redone.append(block.redone)
        bench.copy(block)
        if number % 7 == 3:
            aborted += 1
            if fault == "aborted by the application":
                block.txn.abort()
            else:
                abort_behind_its_back(bench, block)
    assert aborted > 3
    # Those that were in flight behind it are redone too.
    assert sum(n > 0 for n in redone) in range(aborted, in_flight * aborted + 1)
    bench.check()


def abort_behind_its_back(bench: Bench, block: Block) -> None:
    """Abort a block's transaction as an operator does."""
    from logtx.coordinator.client.queries import CoordinatorQueries
    from logtx.coordinator.protocol.commands import AbortTransaction, Outcome

    queries = CoordinatorQueries(bench.cluster.log, timeout_s=WAIT_S)
    txid = block.txn.txid
    queries._ask(txid.partition, AbortTransaction(txid=txid), Outcome)
    queries.close()


def test_trap_26_those_in_flight_behind_one_that_fails_are_aborted_in_cascade(
    bench: Bench, memory: MemoryLog
) -> None:
    # No more may be open: what failed must have ended before the second time.
    producer = bench.producer(transactions_in_flight_max=3, coordinator_timeout_ms=5_000)
    consumer = bench.consumer()
    for _ in range(2):
        bench.feed(120)
        seen: list[Block] = []
        for block in logtx.process(
            consumer, producer, max_records=10, in_flight=3, timeout=0.3, linger=1
        ):
            seen.append(block)
            bench.copy(block)
            if len(seen) == 1:
                assert block.txn.txid
                memory.hold_appends(JOURNAL_TOPIC, 0)
                operator = threading.Thread(target=abort_behind_its_back, args=[bench, block])
                operator.start()
                wait_until(lambda: memory.held_appends(JOURNAL_TOPIC, 0) > 0)
            if len(seen) == 3:
                threading.Timer(0.3, memory.release_appends, [JOURNAL_TOPIC, 0]).start()
        operator.join(WAIT_S)
        assert [block.redone for block in seen[:4]] == [0, 0, 0, 1]
        assert len(seen) == 15, "twelve, and three for nothing"
        states = [producer.outcome(block.txn.txid).state for block in seen[:4]]
        assert [state.aborts for state in states] == [True, True, True, False]
    bench.check()


def test_an_expired_block_is_redone(bench: Bench) -> None:
    bench.feed(50)
    slow = True
    producer = bench.producer(transaction_timeout_ms=300)
    for block in logtx.process(bench.consumer(), producer, max_records=30, timeout=0.3):
        for message in block:
            block.produce(bench.sink, message.value())
            if slow:
                slow = False
                time.sleep(1)
    bench.check()


def test_a_worker_that_was_fenced_by_a_newer_one_of_its_name_ends(bench: Bench) -> None:
    bench.feed(20)
    old = bench.cluster.producer(transactional_id="w")
    blocks = logtx.process(bench.consumer(), old, max_records=10)
    bench.copy(next(blocks))
    new = bench.cluster.producer(transactional_id="w")
    new.init_transactions()
    with pytest.raises(logtx.ProducerFencedError):
        next(blocks)
    for block in logtx.process(bench.consumer(), new, max_records=10, timeout=0.3):
        bench.copy(block)
    bench.check()


def test_what_fails_again_and_again_is_raised(bench: Bench) -> None:
    bench.feed(5)
    redone = []

    def work() -> None:
        for block in logtx.process(bench.consumer(), bench.producer(), retries=3):
            redone.append(block.redone)
            block.txn.abort()

    with pytest.raises(logtx.TransactionAbortedError):
        work()
    assert redone == [0, 1, 2, 3]


def test_what_can_not_be_better_the_next_time_is_raised_at_once(bench: Bench) -> None:
    bench.feed(5)
    blocks = logtx.process(bench.consumer(), bench.producer())
    next(blocks).produce("__transaction_offsets", b"x", key=b"compacted")
    with pytest.raises(logtx.TopicError):
        next(blocks)


@pytest.mark.parametrize(
    "error",
    [
        logtx.UnknownTopicError("not known yet"),
        KafkaException(KafkaError(KafkaError._TRANSPORT)),
        KafkaException(KafkaError(KafkaError._TIMED_OUT)),
        KafkaException(KafkaError(KafkaError.REBALANCE_IN_PROGRESS)),
        KafkaException(KafkaError(KafkaError._FAIL, "of a client that may try again", False, True)),
    ],
    ids=repr,
)
def test_finding_24_what_passes_in_a_rebalance_is_waited_for(
    bench: Bench, error: KafkaException, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.feed(30)
    consumer = bench.consumer(subscribe=True)
    consume, failures = consumer.consume, [error, error]

    def fail_twice(limit: int, wait_s: float) -> Any:
        found = consume(limit, wait_s)
        if found and failures:
            raise failures.pop()
        return found

    monkeypatch.setattr(consumer, "consume", fail_twice)
    for block in logtx.process(consumer, bench.producer(), max_records=7, timeout=2):
        bench.copy(block)
    assert not failures
    bench.check()


@pytest.mark.parametrize(
    "error",
    [
        KafkaException(KafkaError(KafkaError._AUTO_OFFSET_RESET)),
        KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)),
        KafkaException(KafkaError(KafkaError._TRANSPORT, "the end", True)),
        logtx.IntegrityError("a transaction"),
    ],
    ids=repr,
)
def test_finding_24_what_does_not_pass_is_raised_at_once(
    bench: Bench, error: KafkaException, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.feed(5)
    consumer = bench.consumer()
    calls: list[int] = []

    def fail(limit: int, _: float) -> Any:
        calls.append(limit)
        raise error

    monkeypatch.setattr(consumer, "consume", fail)
    with pytest.raises(type(error)):
        next(logtx.process(consumer, bench.producer()))
    assert len(calls) == 1


@pytest.mark.parametrize("by", ["break", "exception"])
@pytest.mark.parametrize("in_flight", [1, 4])
def test_leaving_the_loop_aborts_the_block_at_hand_and_keeps_those_before(
    bench: Bench, by: str, in_flight: int
) -> None:
    bench.feed(100)
    consumer, producer = bench.consumer(), bench.producer()

    def work(leave_at: int) -> None:
        blocks = logtx.process(consumer, producer, max_records=10, in_flight=in_flight, timeout=0.3)
        for number, block in enumerate(blocks):
            bench.copy(block)
            if number == leave_at:
                if by == "break":
                    break
                raise ValueError("the application's")

    for leave_at in (3, 0, 2):
        if by == "break":
            work(leave_at)
        else:
            with pytest.raises(ValueError, match="application"):
                work(leave_at)
    assert consumer.offset_steps() == [], "nothing of the blocks that were aborted"
    with producer.begin_transaction() as txn:
        by_hand = [m for _ in range(3) for m in consumer.consume(10, 5)]
        assert {m.partition() for m in by_hand} == {0, 1}
        for message in by_hand:
            txn.produce(bench.sink, message.value())
        txn.send_offsets(consumer)
    work(leave_at=10**6)
    bench.check()


@pytest.mark.parametrize("in_flight", [1, 4])
def test_the_loop_may_be_left_after_its_clients_are_closed(bench: Bench, in_flight: int) -> None:
    # Who is interrupted within a block closes them: what is left of the loop is collected later.
    bench.feed(100)
    consumer, producer = bench.consumer(), bench.producer()
    blocks = logtx.process(consumer, producer, max_records=10, in_flight=in_flight)
    for _ in range(3):
        bench.copy(next(blocks))
    consumer.close()
    producer.close()
    blocks.close()
    for block in logtx.process(bench.consumer(), bench.producer(), timeout=0.3):
        bench.copy(block)
    bench.check()


def test_stop_ends_the_loop_after_the_block_at_hand(bench: Bench) -> None:
    bench.feed(100)
    stop = threading.Event()
    consumer, producer = bench.consumer(), bench.producer()
    for block in logtx.process(consumer, producer, max_records=10, in_flight=3, stop=stop):
        bench.copy(block)
        stop.set()
    assert consumer.committed([TopicPartition(bench.source, 0)])[0].offset > 0
    threading.Timer(0.2, stop.set).start()
    stop.clear()
    for block in logtx.process(consumer, producer, stop=stop):
        bench.copy(block)
    bench.check()


def test_a_coordinator_that_dies_in_the_middle_costs_time_only(bench: Bench) -> None:
    fleet = Fleet(bench, 4)
    fleet.add()
    for _ in range(3):
        bench.feed(50)
        bench.cluster.kill_coordinator()
        time.sleep(0.1)
        bench.cluster.start_coordinators()
    bench.check()
    fleet.end()


class Fleet:
    """Workers in threads, that share a group."""

    def __init__(self, bench: Bench, in_flight: int) -> None:
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self.records = self.redone = 0
        self._bench = bench
        self._in_flight = in_flight
        self._threads: list[threading.Thread] = []

    def add(self, on_block: Callable[[logtx.Consumer, Block], None] | None = None) -> None:
        # A daemon: where a test fails nobody ends it.
        thread = threading.Thread(target=self._work, args=[on_block], daemon=True)
        thread.start()
        self._threads.append(thread)

    def _work(self, on_block: Callable[[logtx.Consumer, Block], None] | None) -> None:
        consumer, producer = self._bench.consumer(subscribe=True), self._bench.producer()
        try:
            settings: dict[str, Any] = {"max_records": 5, "in_flight": self._in_flight}
            for block in logtx.process(consumer, producer, stop=self.stop, **settings):
                self.records += len(block)
                self.redone += block.redone > 0
                self._bench.copy(block)
                if on_block is not None:
                    on_block(consumer, block)
            consumer.close()
        except BaseException as error:
            self.errors.append(error)
            raise

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert self.errors == []


@pytest.mark.parametrize("in_flight", [1, 4])
def test_trap_24_workers_come_and_go_and_nothing_is_doubled(bench: Bench, in_flight: int) -> None:
    fleet = Fleet(bench, in_flight)
    fleet.add()
    for _ in range(5):
        bench.feed(60)
        time.sleep(0.1)
    fleet.add()
    for _ in range(5):
        bench.feed(60)
        time.sleep(0.1)
    bench.check()
    fleet.end()
    # A rebalance waits for what is in flight, so nobody's work is for nothing.
    assert fleet.redone == 0


def test_a_rebalance_waits_for_what_is_in_flight(bench: Bench, memory: MemoryLog) -> None:
    fleet = Fleet(bench, in_flight=20)
    fleet.add()
    bench.feed(20)
    bench.check()
    memory.hold_appends(bench.sink, 0)
    before = fleet.records
    bench.feed(20)
    wait_until(lambda: fleet.records == before + 20)
    # It waits for input from here on, with all of this in flight.
    fleet.add()
    time.sleep(0.5)
    memory.release_appends(bench.sink, 0)
    bench.feed(100)
    bench.check()
    fleet.end()
    assert fleet.redone == 0


def test_trap_29_a_zombie_that_wakes_up_is_fenced_once_and_the_live_one_never(
    bench: Bench, memory: MemoryLog
) -> None:
    bench.feed(100)
    asleep, awake, told = threading.Event(), threading.Event(), []

    def stand_still(consumer: logtx.Consumer, block: Block) -> None:
        if not asleep.is_set():
            # As a process does that is stopped for longer than the group waits for it.
            memory.expel_member("g", str(consumer.memberid()))
            asleep.set()
            assert awake.wait(WAIT_S)
        told.append(block.redone)

    zombies, live = Fleet(bench, 1), Fleet(bench, 1)
    zombies.add(stand_still)
    assert asleep.wait(WAIT_S)
    began_s = time.monotonic()
    live.add()
    bench.check()
    # It does not wait for the zombie's transaction to expire (60 s): its claim aborts it.
    assert time.monotonic() - began_s < 10
    awake.set()
    for _ in range(5):
        bench.feed(40)
        time.sleep(0.1)
    bench.check()
    live.end()
    zombies.end()
    assert told[0] == 0
    # The zombie's block is refused; all that it does from there on is what the group gives it.
    assert live.redone == 0


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebalances do not wait for what is in flight."""
    monkeypatch.setattr(module._Pipeline, "_await_decisions", lambda _: None)


@pytest.mark.usefixtures("no_waiting")
def test_trap_24_what_is_in_flight_at_a_rebalance_is_claimed_by_the_next_holder(
    bench: Bench,
) -> None:
    fleet = Fleet(bench, 4)
    fleet.add()
    for _ in range(4):
        fleet.add()
        bench.feed(100)
        time.sleep(0.2)
    bench.check()
    fleet.end()


def test_arguments_are_checked_at_once(bench: Bench) -> None:
    consumer, producer = bench.consumer(), bench.producer()
    for wrong in ({"max_records": 0}, {"in_flight": 0}, {"retries": -1}):
        with pytest.raises(logtx.ConfigError):
            logtx.process(consumer, producer, **wrong)
    plain = bench.cluster.consumer()
    with pytest.raises(logtx.ConfigError, match=r"offsets\.storage"):
        logtx.process(plain, producer)


def test_groups_of_another_transaction_group_are_refused(bench: Bench) -> None:
    other = bench.producer(transaction_group="other")
    other.bind_group("g")
    with pytest.raises(logtx.GroupBoundError):
        next(logtx.process(bench.consumer(), bench.producer()))
