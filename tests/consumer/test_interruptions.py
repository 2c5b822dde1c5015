"""Whatever is raised while records are read, and wherever reading goes on: nothing is lost.

Findings 3, 4 and 12 of the clients.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from logtx.consumer import reading
from logtx.consumer.consumer import Consumer
from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.pending import PendingTransactionMap, Record
from logtx.consumer.malformed import UNREADABLE, malformed_event, readable_runs
from logtx.consumer.reading import Reading
from logtx.journal.errors import MalformedHeaderError, SpillError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Position

from ..parameters import slow
from ..signals import KINDS, Tracer
from .conftest import MakeConsumer
from .logs import Transactions, nothing_more, read

MakeTopic = Callable[..., str]
COUNT = 200


@pytest.fixture
def topic(make_topic: MakeTopic, transactions: Transactions) -> str:
    """A topic with plain records and transactions of several records, numbered in order."""
    name = make_topic()
    for first in range(0, COUNT, 10):
        values = [b"%d" % number for number in range(first, first + 10)]
        if first % 20:
            transactions.transaction(name, values)
        else:
            transactions.append(name, values)
    return name


def values(first: int = 0) -> list[bytes]:
    """Returns what a consumer gets from a record on."""
    return [b"%d" % number for number in range(first, COUNT)]


@pytest.mark.parametrize("how", ["seek", "assign"])
def test_finding_3_a_partition_that_was_throttled_goes_on_elsewhere(
    how: str,
    topic: str,
    make_topic: MakeTopic,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "AHEAD_MAX_RECORDS", 20)
    idle = make_topic()
    consumer = make_consumer(enable_auto_commit="false")
    consumer.assign([TopicPartition(topic, 0, 0), TopicPartition(idle, 0, 0)])
    read(consumer, 5)
    assigned = consumer._reading.assigned[topic, 0]
    deadline = time.monotonic() + 10
    while not assigned.throttled:
        assert time.monotonic() < deadline
        consumer._reading.fetch(0.1)
    if how == "seek":
        consumer.seek(TopicPartition(topic, 0, 0))
    else:
        consumer.assign([TopicPartition(topic, 0, 0)])
    assert read(consumer, COUNT) == values()


class _Once:
    """Raises an exception at one call of a method, in the middle of its work or before it."""

    def __init__(self, original: Any, error: BaseException, at: int, *, after: bool) -> None:
        self.original, self.error, self.at, self.after = original, error, at, after
        self.calls = 0

    def __get__(self, instance: Any, _owner: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls != self.at:
                return self.original(instance, *args, **kwargs)
            if self.after:
                self.original(instance, *args, **kwargs)
            raise self.error

        return call


ERRORS = (
    KeyboardInterrupt(),
    MemoryError(),
    SpillError("no space"),
    KafkaException(KafkaError(KafkaError._TRANSPORT)),
    ValueError("of a callback"),
)


def read_on(consumer: Consumer, count: int) -> list[bytes | None]:
    """Reads as an application does that goes on after an error."""
    found: list[bytes | None] = []
    deadline = time.monotonic() + 20
    raised = 0
    while len(found) < count:
        assert time.monotonic() < deadline, found
        try:
            found += [m.value() for m in consumer.consume(7, 0.5)]
        except BaseException as error:
            if not isinstance(error, tuple(map(type, ERRORS))):
                raise
            raised += 1
    assert raised == 1
    return found


@pytest.mark.parametrize("transport", ["memory"], indirect=True)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("owner", "method", "at"),
    [
        (Reading, "_sort", 1),
        (Reading, "_sort", 2),
        (Reading, "_feed", 2),
        (PartitionBuffer, "feed", 2),
        (PartitionBuffer, "_scan", 1),
        (PartitionBuffer, "_after_batch", 1),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_finding_4_an_exception_while_records_are_taken_loses_none(
    owner: type,
    method: str,
    at: int,
    after: bool,
    error: BaseException,
    topic: str,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Reading.fetch, "__defaults__", (30,))
    consumer = make_consumer()
    consumer.assign([TopicPartition(topic, 0, 0)])
    once = _Once(getattr(owner, method), error, at, after=after)
    monkeypatch.setattr(owner, method, once)
    assert read_on(consumer, COUNT) == values()
    assert nothing_more(consumer)


def test_finding_12_a_move_that_fails_is_done_again(
    topic: str, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = make_consumer()
    consumer.assign([TopicPartition(topic, 0, 0)])
    read(consumer, 5)
    once = _Once(Reading.sync_pauses, MemoryError(), 1, after=False)
    monkeypatch.setattr(Reading, "sync_pauses", once)
    with pytest.raises(MemoryError):
        consumer.seek(TopicPartition(topic, 0, 0))
    assert read(consumer, COUNT) == values()


class FakeMessage(Message):
    """A record whose headers may be unreadable."""

    def __init__(self, number: int, *, readable: bool) -> None:
        super().__init__(topic="t", partition=0, offset=number, value=b"v")
        self.readable = readable

    def headers(self) -> Any:
        """Raises as confluent-kafka does for a name that is not UTF-8."""
        found = super().headers()
        if not self.readable and found is None:
            raise SystemError("<method 'headers'> returned a result with an exception set")
        return found


@pytest.mark.parametrize(
    ("readable", "runs"),
    [("yyy", [[0, 1, 2]]), ("yny", [[0], [1], [2]]), ("nny", [[0], [1], [2]]), ("n", [[0]])],
)
def test_finding_4_records_whose_headers_cant_be_read_come_by_themselves(
    readable: str, runs: list[list[int]]
) -> None:
    batch: list[Any] = [
        FakeMessage(number, readable=letter == "y") for number, letter in enumerate(readable)
    ]
    found = list(readable_runs(batch))
    assert [[record.offset() for record in run] for run in found] == runs
    for run in found:
        for record in run:
            assert len(record.headers() or ()) == (readable[record.offset()] == "n")
            assert len(record) == 1


@pytest.mark.parametrize("readable", ["yny", "nyy"])
def test_records_whose_headers_cant_be_read_may_be_fed_with_others(readable: str) -> None:
    """Those that wait for a horizon are."""
    batch: list[Any] = [
        Message(topic="t", partition=0, offset=number, value=b"v")
        for number in range(len(readable))
    ]
    at = readable.index("n")
    batch[at].set_headers(UNREADABLE)
    malformed: list[int] = []

    def report(record: Any, _: MalformedHeaderError) -> Any:
        malformed.append(record.offset())
        return record

    buffer = PartitionBuffer(
        ("t", 0), Position.at(0), PendingTransactionMap(1_000_000), malformed=report
    )
    buffer.feed(batch)
    assert malformed == [at]


def test_a_record_whose_headers_cant_be_read_is_an_event(
    topic: str, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = make_consumer()
    consumer.assign([TopicPartition(topic, 0, 0)])
    feed = PartitionBuffer.feed
    broken: list[int] = []

    def unreadable_once(self: PartitionBuffer, batch: Any, runs: Any = None) -> None:
        if not broken:
            broken.append(batch[0].offset())
            raise SystemError("<method 'headers'> returned a result with an exception set")
        feed(self, batch, runs)

    monkeypatch.setattr(PartitionBuffer, "feed", unreadable_once)
    assert read(consumer, COUNT) == values()
    assert consumer._reading.assigned[topic, 0].checks_headers
    message = Message(topic=topic, partition=0, offset=9, value=b"v")
    message.set_headers(UNREADABLE)
    event: Any = malformed_event(cast(Record, message), MalformedHeaderError("no TxId"))
    assert event.headers() is None
    assert event.error().code() == KafkaError._BAD_MSG
    assert event.value() == b"v"


# ---- anywhere ------------------------------------------------------------------------------------


def poll(consumer: Consumer) -> list[Message]:
    """Takes one message."""
    message = consumer.poll(1)
    return [] if message is None else [message]


def consume(consumer: Consumer) -> list[Message]:
    """Takes some messages."""
    return consumer.consume(3, 1)


def consume_arrow(consumer: Consumer) -> list[Message]:
    """Takes some messages, as columns."""
    return [Message(value=value.as_py()) for value in consumer.consume_arrow(3, 1).column("value")]


def commit(consumer: Consumer) -> list[Message]:
    """Commits what it got before it takes some messages."""
    consumer.commit(asynchronous=False)
    return consumer.consume(3, 1)


def transactions(consumer: Consumer) -> list[Message]:
    """Takes a transaction."""
    for transaction in consumer.transactions(1):
        return list(transaction.records)
    return []


def write_30(log: MemoryLog, *, plain: bool) -> list[bytes]:
    """Writes transactions to two partitions, and plain records between them if asked to.

    Returns:
        The values.
    """
    log.create_topic("t", partitions=2)
    written = Transactions(log)
    written.with_journal()
    want: list[bytes] = []
    for number in range(30):
        records = [b"%d-%d" % (number, i) for i in range(4)]
        want += records
        if number % 3 and plain:
            written.append("t", records, partition=number % 2)
        else:
            written.transaction("t", records, number % 2)
    return want


def reader(log: MemoryLog, **settings: Any) -> Consumer:
    """Returns a consumer of both partitions, which commits when it is told to."""
    config = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({**config, **settings}, log=log)
    consumer.assign([TopicPartition("t", 0), TopicPartition("t", 1)])
    return consumer


CALLS = [
    (poll, "read_committed"),
    (poll, "serializable"),
    (consume, "read_committed"),
    (consume, "serializable"),
    (consume_arrow, "read_committed"),
    (consume_arrow, "serializable"),
    (commit, "read_committed"),
    (commit, "serializable"),
    (transactions, "serializable"),
]
BY_TURNS = [
    (*call, ("KeyboardInterrupt", "MemoryError")[number % 2]) for number, call in enumerate(CALLS)
]
"""Each call at each isolation level with one of the two, so that each call meets both."""
OTHERS = [
    (*call, ("MemoryError", "KeyboardInterrupt")[number % 2]) for number, call in enumerate(CALLS)
]


@pytest.mark.parametrize("seed", [0, *slow([1, 10])])
@pytest.mark.parametrize(
    ("call", "isolation", "kind"),
    [*BY_TURNS, *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS)],
)
def test_finding_8_an_exception_at_any_point_costs_nothing(
    call: Callable[[Consumer], list[Message]],
    isolation: str,
    kind: str,
    seed: int,
    memory_log: MemoryLog,
) -> None:
    want = write_30(memory_log, plain=isolation == "read_committed")
    consumer = reader(memory_log, **{"isolation.level": isolation})
    got: list[bytes | None] = []
    interrupted: set[str] = set()
    chance = random.Random(seed)
    deadline_s = time.monotonic() + 30
    while len(got) < len(want):
        assert time.monotonic() < deadline_s, "nothing more comes"
        tracer = Tracer("logtx.consumer", int(2 ** chance.uniform(0, 14)), KINDS[kind])
        try:
            with tracer.on():
                found = call(consumer)
        except (KeyboardInterrupt, MemoryError):
            interrupted.add(tracer.where)
        else:
            got += [message.value() for message in found]
            deadline_s = time.monotonic() + 30
    assert sorted(got, key=str) == sorted(want, key=str)
    assert len(interrupted) > 10
    assert nothing_more(consumer) if call is not transactions else not transactions(consumer)
    consumer.commit(asynchronous=False)
    consumer.close()
    with reader(memory_log, **{"isolation.level": isolation}) as again:
        assert nothing_more(again)


@pytest.mark.parametrize("seed", range(3))
def test_a_commit_that_is_interrupted_covers_nothing_that_was_not_delivered(
    seed: int, memory_log: MemoryLog
) -> None:
    want = write_30(memory_log, plain=True)
    got: list[bytes | None] = []
    chance = random.Random(seed)
    for _ in range(20):
        consumer = reader(memory_log)
        got += [message.value() for message in consumer.consume(chance.randrange(1, 12), 0.2)]
        tracer = Tracer("logtx.consumer", chance.randrange(1, 120), KINDS["KeyboardInterrupt"])
        with suppress(KeyboardInterrupt), tracer.on():
            consumer.commit(asynchronous=False)
        consumer.close()
    with reader(memory_log) as consumer:
        while found := consumer.consume(100, 0.3):
            got += [message.value() for message in found]
    assert set(got) == set(want)
    assert len(got) > len(want)


@pytest.mark.parametrize("isolation", ["read_committed", "serializable"])
def test_a_rewind_that_is_interrupted_is_done_again(isolation: str, memory_log: MemoryLog) -> None:
    memory_log.create_topic("t", partitions=2)
    written = Transactions(memory_log)
    written.with_journal()
    for number in range(10):
        written.transaction("t", [b"%d" % number])
    consumer = reader(memory_log, **{"isolation.level": isolation})
    assert read(consumer, 2) == [b"0", b"1"]
    consumer.commit(asynchronous=False)
    at = ended = 0
    while not ended:
        at += 1
        assert read(consumer, 3) == [b"2", b"3", b"4"]
        tracer = Tracer("logtx.consumer", at, KINDS["KeyboardInterrupt"])
        try:
            with tracer.on():
                consumer.rewind()
            ended = tracer.points
        except KeyboardInterrupt:
            # It goes on where it stood, if the interruption came first, or does what was asked.
            found = read(consumer, 1)
            assert found in ([b"5"], [b"2"]), tracer.where
            consumer.rewind()
    assert ended > 30
    assert read(consumer, 8) == [b"%d" % number for number in range(2, 10)]
    consumer.close()


@pytest.mark.parametrize("cooperative", [False, True])
@pytest.mark.parametrize("how", ["unassign", "incremental_unassign"])
def test_trap_275_what_an_interrupted_call_has_left_to_the_reader_is_read(
    how: str, cooperative: bool, memory_log: MemoryLog
) -> None:
    memory_log.create_topic("t", partitions=2)
    written = Transactions(memory_log)
    written.with_journal()
    strategy = "cooperative-sticky" if cooperative else "range"
    consumer = reader(memory_log, **{"partition.assignment.strategy": strategy})
    both = [TopicPartition("t", 0), TopicPartition("t", 1)]
    interrupted_at: set[str] = set()
    at = left = 0
    while not left:
        at += 1
        tracer = Tracer("logtx.consumer", at, KINDS["KeyboardInterrupt"])
        with suppress(KeyboardInterrupt), tracer.on():
            if how == "unassign":
                consumer.unassign()
            else:
                consumer.incremental_unassign(both[:1])
        left = int(tracer.points < at)
        there = sorted(place.partition for place in consumer.assignment())
        if len(there) == 2:
            interrupted_at.add(tracer.where)
        for partition in there:
            written.transaction("t", [b"%d-%d" % (at, partition)], partition=partition)
        assert sorted(read(consumer, len(there)), key=str) == [b"%d-%d" % (at, p) for p in there]
        consumer.commit(asynchronous=False)
        missing = [place for place in both if place.partition not in there]
        if missing:
            consumer.incremental_assign(missing)
    assert at > 10
    assert interrupted_at
    consumer.close()


def members(log: MemoryLog, at: int) -> tuple[Consumer, Any]:
    """Returns two members of a new group, of which the second has not joined it yet."""
    config = {"group.id": f"g{at}", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer, rival = Consumer(config, log=log), log.consumer(config)
    consumer.subscribe(["t"])
    return consumer, rival


def test_trap_276_who_is_interrupted_in_the_callback_of_an_assignment_reads_what_was_given(
    memory_log: MemoryLog,
) -> None:
    want = write_30(memory_log, plain=True)
    at, done = 0, False
    while not done:
        at += 1
        consumer, rival = members(memory_log, at)
        tracer = Tracer("logtx.consumer.assignment", at, KINDS["KeyboardInterrupt"])
        got: list[bytes | None] = []
        while len(consumer.assignment()) < 2 and tracer.points < at:
            with suppress(KeyboardInterrupt), tracer.on():
                got += [message.value() for message in consumer.consume(1, 1)]
        done = tracer.points < at
        got += read(consumer, len(want) - len(got))
        assert sorted(got, key=str) == sorted(want, key=str)
        consumer.close()
        rival.close()
    assert at > 20


def test_trap_276_who_is_interrupted_in_the_callback_of_a_revocation_reads_nothing_of_others(
    memory_log: MemoryLog,
) -> None:
    write_30(memory_log, plain=True)
    at, done = 0, False
    while not done:
        at += 1
        consumer, rival = members(memory_log, at)
        read(consumer, 1)
        rival.subscribe(["t"])
        tracer = Tracer("logtx.consumer.assignment", at, KINDS["KeyboardInterrupt"])
        rounds = 0
        while rounds < 50 and len(rival.assignment()) != 1:
            rounds += 1
            with suppress(KeyboardInterrupt), tracer.on():
                consumer.poll(0.01)
            rival.poll(0.01)
        done = tracer.points < at
        for _ in range(3):
            consumer.poll(0.01)
        inner = consumer._reading._inner.assignment()
        ours, theirs, read_by_us = (
            {(p.topic, p.partition) for p in each}
            for each in (consumer.assignment(), rival.assignment(), inner)
        )
        assert len(ours) == len(theirs) == 1, tracer.where
        assert not ours & theirs, tracer.where
        assert read_by_us == ours, tracer.where
        consumer.close()
        rival.close()
    assert at > 20
