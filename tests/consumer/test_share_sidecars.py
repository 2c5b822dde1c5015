"""Messages of a queue that lie in sidecars: given out as pointers name them, in shares."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import KafkaError

import logtx
from logtx.consumer import sidecar_read
from logtx.consumer.leased import LeaseReader
from logtx.consumer.share_consumer import ShareConsumer
from logtx.consumer.sidecar_read import SidecarReader
from logtx.coordinator.protocol.queues import AcknowledgeType
from logtx.journal.errors import (
    BrokerError,
    ConsumerError,
    IntegrityError,
    NotAuthorizedError,
    NotHeldError,
    TornTransactionError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Mode
from logtx.journal.sidecar import in_sidecar, is_delivered_from_sidecar, sidecar_of
from logtx.journal.spans import AT_OFFSET, MessageId
from logtx.producer.producer import Producer

from ..waiting import eventually
from .logs import Transactions
from .test_share_consumer import GONE_S, coordinator, fill, producer, take, values
from .test_share_letters import LIMIT, headers, letters, queues
from .test_share_topics import switch

__all__ = ["coordinator", "producer", "queues"]
Queues = Callable[..., ShareConsumer]
RELEASE, REJECT = AcknowledgeType.RELEASE, AcknowledgeType.REJECT
ASIDE = sidecar_of("orders")


@pytest.fixture(autouse=True)
def quickly_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believes a lost sidecar almost at once: this log has no leader that could have slept."""
    monkeypatch.setattr(sidecar_read, "CONFIRM_S", 0.2)


@pytest.fixture
def transactions(memory_log: MemoryLog) -> Transactions:
    """Writes transactions to the topic and its sidecar, without a coordinator."""
    memory_log.create_topic(ASIDE, partitions=2)
    return Transactions(memory_log)


def commit(producer: Producer, *written: bytes, sidecar: bool = True) -> None:
    """Commits a transaction with these records in partition 0, and waits for its pointer."""
    txn = producer.begin_transaction(sidecar=sidecar)
    for value in written:
        txn.produce("orders", value, partition=0)
    txn.commit(finished=True)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def kill(queue: ShareConsumer) -> None:
    """Ends a consumer as kill -9 does: nothing is released, and its stream ends."""
    assert queue._client is not None
    queue._client.close()


def names(queue: ShareConsumer, messages: list[Any]) -> list[tuple[int, int]]:
    """Returns (offset of the pointer, number in it) of messages that are held."""
    found = []
    for message in messages:
        given = queue._work.holdings.look(("orders", 0, message.offset()))
        assert given is not None
        offset, sequence, nth = given.span.hi
        assert sequence == AT_OFFSET
        found.append((offset, nth - 1))
    return found


def grow(memory_log: MemoryLog) -> None:
    """Commits 8 records in partition 0, of which the last 5 lie in the sidecar."""
    settings = {"transactional.id": "grows", "transaction.sidecar.min.bytes": 3}
    with Producer(settings, log=memory_log) as own:
        txn = own.begin_transaction()
        for value in numbered(8):
            txn.produce("orders", value, partition=0)
        txn.commit(finished=True)


# ---- what is given out --------------------------------------------------------------------------


def test_what_pointers_name_is_given_out_at_their_places(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    """As `Consumer` delivers it, with markers and plain records between."""
    fill(producer, 2)
    commit(producer, *numbered(3, 2))
    commit(producer, *numbered(2, 5), sidecar=False)
    aborted = producer.begin_transaction(sidecar=True)
    aborted.produce("orders", b"never", partition=0)
    producer.flush()
    aborted.abort()
    commit(producer, *numbered(2, 7))
    fill(producer, 1, first=9)
    queue = queues()
    found = take(queue, 10)
    assert values(found) == numbered(10)
    assert [is_delivered_from_sidecar(m.offset()) for m in found] == [
        *(False, False, True, True, True, False, False, True, True, False)
    ]
    assert {(m.topic(), m.partition(), queue.delivery_count(m)) for m in found} == {
        ("orders", 0, 1)
    }
    pointers = [offset for offset, _ in names(queue, found)]
    assert pointers == sorted(pointers)
    assert [nth for _, nth in names(queue, found)] == [0, 0, 0, 1, 2, 0, 1, 0, 1, 0]
    queue.acknowledge_cumulative(found[-1])
    assert set(queue.commit_sync().values()) == {None}
    queue.close()
    assert take(queues(), 1, 1.0) == []
    assert memory_log.end_offset(ASIDE, 0) > 0


def test_of_one_that_grew_what_lies_in_the_topic_comes_first(
    queues: Queues, coordinator: object, memory_log: MemoryLog
) -> None:
    assert coordinator
    grow(memory_log)
    queue = queues(**{"max.poll.records": 5})
    first = take(queue, 5)
    assert values(first) == numbered(5)
    assert [is_delivered_from_sidecar(m.offset()) for m in first] == [False] * 3 + [True] * 2
    for message in first[:2]:
        queue.acknowledge(message)
    queue.acknowledge(first[2], RELEASE)
    queue.commit_sync()
    kill(queue)
    # In the order of their names: what was given back, what the dead one had, and the rest.
    other, found = queues(), list[bytes]()
    while len(found) < 6:
        for message in take(other, 1):
            found.append(message.value())
            other.acknowledge(message)
    assert sorted(found) == numbered(6, 2)


@pytest.mark.parametrize("worked_off", [5, 3])
def test_of_one_that_grew_the_rest_needs_no_more_of_the_topic_than_is_left_there(
    queues: Queues, coordinator: object, memory_log: MemoryLog, worked_off: int
) -> None:
    """Retention has taken what lies in the topic (trap 117)."""
    assert coordinator
    grow(memory_log)
    one = queues(**{"max.poll.records": 5})
    for message in take(one, 5)[:worked_off]:
        one.acknowledge(message)
    one.close()
    memory_log.delete_records("orders", 0, 3)
    found = values(take(queues(), 8 - worked_off))
    assert sorted(found) == numbered(8 - worked_off, worked_off)


def test_the_rest_of_one_that_grew_is_torn_if_retention_took_a_part_of_it(
    queues: Queues, coordinator: object, memory_log: MemoryLog
) -> None:
    assert coordinator
    grow(memory_log)
    one = queues()
    for message in take(one, 8)[:2]:
        one.acknowledge(message)
    one.close()
    memory_log.delete_records("orders", 0, 3)
    came, error = told(queues())
    assert came == []
    assert isinstance(error, TornTransactionError)


def test_a_message_has_its_own_offset_and_is_acknowledged_by_it(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    memory_log.create_topic("invoices", partitions=1)
    commit(producer, *numbered(6))
    queue = queues()
    found = take(queue, 6)
    offsets = [message.offset() for message in found]
    assert [in_sidecar(offset) for offset in offsets] == list(range(6))
    queue.acknowledge_offset("orders", 0, offsets[0])
    queue.acknowledge_offset("orders", 0, offsets[1], REJECT, reason="no such customer")
    with producer.begin_transaction() as txn:
        txn.produce("invoices", found[2].value())
        queue.acknowledge_offset("orders", 0, offsets[2], txn=txn)
    failed = producer.begin_transaction()
    queue.acknowledge_all(found[4:], txn=failed)
    failed.abort()
    queue.acknowledge_offset("orders", 0, offsets[3], RELEASE)
    told: dict[int, object] = {}
    queue.set_acknowledgement_commit_callback(
        lambda some, error: told.update((o, error) for each in some.values() for o in each)
    )
    queue.commit_sync()
    assert told == dict.fromkeys((offsets[0], offsets[1], offsets[3]))
    (letter,) = letters(memory_log, 1)
    assert letter.value() == b"1"
    assert headers(letter)["offset"] == str(offsets[1])
    with pytest.raises(NotHeldError, match=str(offsets[0])):
        queue.acknowledge_offset("orders", 0, offsets[0])
    again: dict[bytes, int] = {}
    while len(again) < 3:
        for message in take(queue, 1):
            again[message.value()] = queue.delivery_count(message)
            queue.acknowledge(message)
    assert again == {b"3": 2, b"4": 2, b"5": 2}
    queue.close()
    assert take(queues(), 1, 1.0) == []


def test_a_pointer_comes_in_shares_and_others_work_on_the_rest(
    queues: Queues, producer: Producer
) -> None:
    commit(producer, *numbered(1_000))
    one, other = (queues(**{"max.poll.records": 100}) for _ in range(2))
    found: dict[bytes, ShareConsumer] = {}
    while len(found) < 1_000:
        for queue in (one, other):
            messages = queue.poll(1.0)
            assert len(messages) <= 100
            assert {queue.delivery_count(message) for message in messages} <= {1}
            found.update((message.value(), queue) for message in messages)
    assert sorted(found, key=int) == numbered(1_000)
    shares = [sum(each is queue for each in found.values()) for queue in (one, other)]
    assert min(shares) >= 300
    for queue in (one, other):
        held = [key for key, _ in queue._work.holdings.each() if key[2] >= 0]
        for key in held:
            queue.acknowledge_offset(*key)
        assert set(queue.commit_sync().values()) == {None}
    assert take(queues(), 1, 1.0) == []


def test_few_messages_of_a_pointer_wait_in_memory(
    queues: Queues, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none is fetched twice, though each share is of a lease of its own."""
    monkeypatch.setattr(sidecar_read, "SLICE_RECORDS", 100)
    monkeypatch.setattr(sidecar_read, "AHEAD_MAX_RECORDS", 100)
    commit(producer, *numbered(3_000))
    queue = queues(**{"max.poll.records": 50})
    take_in, fetched, most = sidecar_read._Sidecar.take_in, 0, 0

    def counted(self: Any, records: Any) -> None:
        nonlocal fetched, most
        fetched += len(records)
        take_in(self, records)
        request = self.request()
        most = max(most, len(self.window) + (request.ahead if request else 0))

    monkeypatch.setattr(sidecar_read._Sidecar, "take_in", counted)
    found: list[bytes] = []
    while len(found) < 3_000:
        messages = take(queue, 1)
        assert 0 < len(messages) <= 50
        found += values(messages)
        queue.acknowledge_cumulative(messages[-1])
    assert found == numbered(3_000)
    assert most <= 400
    assert fetched <= 3_200


def test_a_lease_that_ends_within_a_pointer_is_read_to_its_end_only(
    queues: Queues, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar_read, "SLICE_RECORDS", 100)
    commit(producer, *numbered(2_000))
    queue = queues(**{"max.poll.records": 20})
    for message in take(queue, 20)[3:]:
        queue.acknowledge(message)
    queue.release_all()
    queue.commit_sync()
    take_in, fetched = sidecar_read._Sidecar.take_in, 0

    def counted(self: Any, records: Any) -> None:
        nonlocal fetched
        fetched += len(records)
        take_in(self, records)

    monkeypatch.setattr(sidecar_read._Sidecar, "take_in", counted)
    other = queues(**{"max.poll.records": 20})
    assert values(take(other, 3)) == numbered(3)
    assert fetched <= 300


# ---- consumers that die -------------------------------------------------------------------------


def test_a_consumer_that_is_killed_in_the_middle_leaves_the_rest(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    memory_log.create_topic("invoices", partitions=1)
    commit(producer, *numbered(40))
    doomed = queues(**{"max.poll.records": 10})
    first, second = take(doomed, 10), take(doomed, 10)
    doomed.acknowledge_cumulative(first[4])
    doomed.commit_sync()
    with producer.begin_transaction() as txn:
        txn.produce("invoices", b"one")
        doomed.acknowledge(second[3], txn=txn)
    open_one = producer.begin_transaction()
    doomed.acknowledge(second[0], txn=open_one)
    producer.flush()
    eventually(lambda: open_one._book.requests == 0)
    kill(doomed)
    queue = queues()
    found: dict[bytes, int] = {}
    while len(found) < 33:
        for message in take(queue, 1):
            found[message.value()] = queue.delivery_count(message)
            queue.acknowledge(message)
    left = {5, 6, 7, 8, 9, 11, 12, *range(14, 40)}
    assert sorted(found, key=int) == [b"%d" % number for number in sorted(left)]
    assert {number for number in left if found[b"%d" % number] == 1} == {*range(20, 40)}
    open_one.abort()
    (last,) = take(queue, 1)
    assert last.value() == b"10"


def test_the_rest_is_given_back_before_the_application_gets_its_share(
    queues: Queues, producer: Producer
) -> None:
    """What it gets may kill it at once."""
    commit(producer, *numbered(30))
    queue = queues(**{"max.poll.records": 10})
    assert values(take(queue, 10)) == numbered(10)
    answers = [answer.done() for answer in queue._outbox.futures()]
    assert answers
    assert all(answers)


def test_trap_161_what_nobody_got_does_not_come_to_the_limit(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    """Message 3 of 200 kills each consumer. One of them after the other dies, and the rest of the
    pointer is worked off all the same."""
    commit(producer, *numbered(200))
    worked_off: list[bytes] = []
    deaths = 0

    def work() -> bool:
        queue = queues(**{LIMIT: 3, "max.poll.records": 20})
        is_over_s = time.monotonic() + 3 * GONE_S
        while time.monotonic() < is_over_s:
            for message in queue.poll(0.2):
                is_over_s = time.monotonic() + 3 * GONE_S
                if message.value() == b"3":
                    kill(queue)
                    return True
                queue.acknowledge(message)
                worked_off.append(message.value())
            queue.commit_sync()
        queue.close()
        return False

    while work():
        deaths += 1
    assert deaths == 3
    assert values(letters(memory_log, 1)) == [b"3"]
    assert {*worked_off} == {*numbered(200)} - {b"3"}
    # Those of the first 20 that its victims had acknowledged, and had not sent.
    assert len(worked_off) <= 200 + 2 * 3


def test_process_works_off_a_pointer_exactly_once(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    memory_log.create_topic("invoices", partitions=1)
    fill(producer, 3)
    commit(producer, *numbered(60, 3))
    count = 0
    with Producer({"transactional.id": "worker"}, log=memory_log) as own:
        for block in logtx.process(queues(), own, max_records=25, timeout=3.0):
            count += 1
            for message in block:
                block.produce("invoices", message.value())
            if count == 2:
                block.txn.abort()  # It comes again, each message alone.
    assert sorted(values(letters(memory_log, 63, "invoices")), key=int) == numbered(63)


def test_a_failover_subscription_gives_a_pointer_to_one_consumer_in_order(
    queues: Queues, producer: Producer
) -> None:
    commit(producer, *numbered(50))
    settings = {"subscription.type": "failover", "max.poll.records": 8}
    active, standby = queues(**settings), queues(**settings)
    first = take(active, 8)
    assert values(first) == numbered(8)
    assert standby.poll(0.5) == []
    active.acknowledge_cumulative(first[-1])
    found = take(active, 8)
    assert values(found) == numbered(8, 8)
    active.acknowledge_cumulative(found[3])
    active.commit_sync()
    kill(active)
    rest: list[bytes] = []
    while len(rest) < 38:
        messages = take(standby, 1)
        rest += values(messages)
        standby.acknowledge_cumulative(messages[-1])
    assert rest == numbered(38, 12)


# ---- to go on within a pointer ------------------------------------------------------------------


def apart(transactions: Transactions, count: int) -> None:
    """Writes a transaction of so many records to the sidecar, with others in between."""
    owner, other = transactions.begin(), transactions.begin()
    for number in range(count):
        transactions.write(owner, ASIDE, [b"%d" % number])
        transactions.write(other, ASIDE, [b"other"], accepted=False)
    transactions.mark(owner, "orders")


def slowly(monkeypatch: pytest.MonkeyPatch, pause_s: float) -> None:
    """Makes each fetch of a sidecar of 20 records take some time."""
    monkeypatch.setattr(sidecar_read, "SLICE_RECORDS", 20)
    monkeypatch.setattr(sidecar_read, "FIRST_BYTES", sidecar_read.SLICE_BYTES // 20)
    step = SidecarReader.step

    def slow(self: SidecarReader, *how: Any, **more: Any) -> bool:
        time.sleep(pause_s)
        return step(self, *how, **more)

    monkeypatch.setattr(SidecarReader, "step", slow)


def test_trap_163_a_lease_is_renewed_while_what_lies_before_is_read(
    queues: Queues, transactions: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart(transactions, 200)
    first = queues(**{"max.poll.records": 180})
    found = take(first, 180)
    assert values(found) == numbered(180)
    first.acknowledge_cumulative(found[-1])
    first.commit_sync()
    first.close()
    slowly(monkeypatch, 0.1)
    queue = queues(**{"ack.timeout.ms": 600})
    began_s = time.monotonic()
    rest = take(queue, 20)
    assert time.monotonic() - began_s > 1.2, "longer than a lease"
    assert values(rest) == numbered(20, 180)
    assert {queue.delivery_count(message) for message in rest} == {1}


def asked_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Notes from where on sidecars are read."""
    asked: list[int] = []
    serve = SidecarReader._serve

    def noted(self: SidecarReader, each: Any) -> bool:
        request = each.request()
        if request is not None:
            asked.append(request.next_offset)
        return serve(self, each)

    monkeypatch.setattr(SidecarReader, "_serve", noted)
    return asked


def test_who_was_there_goes_on_where_it_was(
    queues: Queues, transactions: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart(transactions, 200)
    queue = queues(**{"max.poll.records": 10})
    found = values(take(queue, 10))
    slowly(monkeypatch, 0.0)
    asked = asked_of(monkeypatch)
    while len(found) < 200:
        found += values(take(queue, 1))
    assert found == numbered(200)
    assert asked == sorted(asked), "it never goes back"


def test_trap_165_what_comes_again_is_looked_for_before_where_it_was(
    queues: Queues, transactions: Transactions
) -> None:
    apart(transactions, 90)
    queue = queues(**{"max.poll.records": 15})
    found: list[Any] = []
    while len(found) < 60:
        found += take(queue, 1)
    for number in (44, 7, 20):
        queue.acknowledge(found[number], RELEASE)
    queue.commit_sync()
    again: list[bytes] = []
    while len(again) < 3 + 30:
        again += values(take(queue, 1))
    assert again[:3] == [b"7", b"20", b"44"], "each once, and before the rest"
    assert again[3:] == numbered(30, 60)


# ---- what can't be read -------------------------------------------------------------------------


def told(queue: ShareConsumer, timeout_s: float = 10.0) -> tuple[list[bytes], ConsumerError]:
    """Polls until an error comes. Returns what came before it, and the error."""
    found: list[bytes] = []
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        try:
            found += values(queue.poll(0.2))
        except ConsumerError as error:
            return found, error
    raise AssertionError(f"no error came, but {found}")


@pytest.mark.parametrize("reset", ["error", "skip"])
@pytest.mark.parametrize("part", [0, 2])
def test_records_that_are_gone_are_an_error_or_passed_over(
    queues: Queues, producer: Producer, memory_log: MemoryLog, reset: str, part: int
) -> None:
    commit(producer, *numbered(5))
    fill(producer, 2, first=5)
    if part:
        first = queues()
        for message in take(first, 5)[:part]:
            first.acknowledge(message)
        first.close()
    memory_log.delete_records(ASIDE, 0, 5)
    queue = queues(**{"torn.reset": reset})
    if reset == "skip":
        assert sorted(values(take(queue, 2))) == numbered(2, 5)
        assert take(queue, 1, 1.5) == []
        return
    found: list[bytes] = []
    for _ in range(5):
        came, error = told(queue)
        found += came
        assert isinstance(error, TornTransactionError)
        assert f"{ASIDE}[0] begins at 5" in str(error)
    assert sorted(found) == numbered(2, 5), "what lies behind it is given out"
    if part:
        assert "logtx subscription skip q 'orders[0]' 0 --execute" in str(error)
    else:
        assert "torn.reset=skip" in str(error)


@pytest.mark.parametrize("is_switched", [False, True])
def test_trap_162_the_rest_of_a_pointer_is_no_copy_of_an_earlier_one(
    queues: Queues,
    producer: Producer,
    transactions: Transactions,
    memory_log: MemoryLog,
    is_switched: bool,
) -> None:
    """A pointer whose first copy may be gone is passed over if its records are. Of this one,
    messages were given out. So too if the topic has a home since."""
    fill(producer, 1)
    txid = transactions.begin()
    transactions.write(txid, ASIDE, numbered(5))
    transactions.mark(txid, "orders")  # It could have been there from offset 0 on.
    queue = queues(**{"max.poll.records": 10})
    found = take(queue, 6)
    assert values(found) == [b"0", *numbered(5)]
    for message in found[:3]:
        queue.acknowledge(message)
    queue.commit_sync()
    queue.close()
    if is_switched:
        switch(memory_log, Mode.METADATA)
    memory_log.delete_records("orders", 0, 1)
    memory_log.delete_records(ASIDE, 0, 5)
    came, error = told(queues())
    assert came == []
    assert isinstance(error, TornTransactionError)
    assert "2 of its records are delivered" in str(error)


def test_a_copy_whose_first_pointer_is_gone_is_passed_over(
    queues: Queues, producer: Producer, transactions: Transactions, memory_log: MemoryLog
) -> None:
    """Else it would hold its place in the queue for ever (trap 93)."""
    fill(producer, 1)
    txid = transactions.begin()
    transactions.write(txid, ASIDE, numbered(5))
    transactions.mark(txid, "orders")
    fill(producer, 1, first=7)
    memory_log.delete_records("orders", 0, 1)
    memory_log.delete_records(ASIDE, 0, 5)
    queue = queues()
    (message,) = take(queue, 1)
    assert message.value() == b"7"
    queue.acknowledge(message)
    queue.commit_sync()
    queue.close()
    assert take(queues(), 1, 1.5) == [], "nothing is left of it"


def test_records_that_are_gone_in_the_middle_stop_it_there(
    queues: Queues,
    transactions: Transactions,
    memory_log: MemoryLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sidecar_read, "BELIEVED_S", 0.05)
    slowly(monkeypatch, 0.0)
    apart(transactions, 60)
    queue = queues(**{"max.poll.records": 10})
    first = take(queue, 10)
    queue.acknowledge_cumulative(first[-1])
    queue.commit_sync()
    memory_log.delete_records(ASIDE, 0, 110)
    came, error = told(queue)
    assert isinstance(error, TornTransactionError)
    assert came == numbered(len(came), 10), "what was fetched before"
    assert len(came) < 40
    assert f"{10 + len(came)} of its records are delivered" in str(error)
    queue.close()
    passing = queues(**{"torn.reset": "skip"})
    assert take(passing, 1, 2.5) == []
    passing.close()
    assert take(queues(), 1, 1.5) == [], "the rest was passed over for good"


def test_a_sidecar_that_was_made_anew_holds_up_no_other_message(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    commit(producer, *numbered(2))
    fill(producer, 3, first=2)
    memory_log.delete_topic(ASIDE)
    memory_log.create_topic(ASIDE, partitions=2)
    queue = queues()
    found: list[bytes] = []

    def all_came() -> bool:
        with suppress(IntegrityError):
            found.extend(values(queue.poll(0.2)))
        return len(found) == 3

    eventually(all_came)
    assert sorted(found) == numbered(3, 2)
    _, error = told(queue)
    assert "logtx subscription skip q 'orders[0]' 0 --execute" in str(error)


def test_trap_164_messages_of_two_sidecars_of_one_name_are_told_apart(
    queues: Queues,
    transactions: Transactions,
    memory_log: MemoryLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They have one offset: the application acknowledges the message that it has."""

    def write(value: bytes) -> None:
        txid = transactions.begin()
        transactions.write(txid, ASIDE, [value])
        transactions.mark(txid, "orders")

    monkeypatch.setattr(sidecar_read, "BELIEVED_S", 0.1)
    write(b"former")
    queue = queues()
    (former,) = take(queue, 1)
    memory_log.delete_topic(ASIDE)
    memory_log.create_topic(ASIDE, partitions=2)
    time.sleep(2 * sidecar_read.BELIEVED_S)
    write(b"new")
    (new,) = take(queue, 1)
    assert former.offset() == new.offset()
    with pytest.raises(NotHeldError):
        queue.acknowledge(former)
    assert queue.delivery_count(new) == 1
    queue.close()
    other = queues()
    found: list[bytes] = []

    def has_come() -> bool:
        with suppress(ConsumerError):
            found.extend(values(other.poll(0.2)))
        return b"new" in found

    eventually(has_come)


def test_a_right_that_comes_late_is_used(
    queues: Queues, producer: Producer, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies behind does not wait for it."""
    commit(producer, *numbered(3))
    fill(producer, 2, first=3)
    starts, is_allowed = MemoryLog.each_start_offset, False

    def denied(self: MemoryLog, keys: Any, **how: Any) -> Any:
        found = dict(starts(self, keys, **how))
        if not is_allowed:
            refusal = BrokerError("no", kafka_code=KafkaError.TOPIC_AUTHORIZATION_FAILED)
            found |= {key: refusal for key in found if key[0] == ASIDE}
        return found

    monkeypatch.setattr(MemoryLog, "each_start_offset", denied)
    queue = queues()
    found: list[bytes] = []
    while len(found) < 2:
        came, error = told(queue)
        assert isinstance(error, NotAuthorizedError)
        assert f"may not READ topic {ASIDE}" in str(error)
        found += came
    assert sorted(found) == numbered(2, 3)
    is_allowed = True
    assert memory_log.end_offset(ASIDE, 0) == 4

    def has_come() -> bool:
        with suppress(NotAuthorizedError):
            found.extend(values(queue.poll(0.2)))
        return len(found) == 5

    eventually(has_come)
    assert found[2:] == numbered(3)


# ---- the reader of leases -----------------------------------------------------------------------


def test_one_fetch_serves_all_pointers(
    queues: Queues, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one for each lease: most of the time would go to it."""
    opened = 0
    open_consumer = SidecarReader._open_consumer

    def counted(self: SidecarReader) -> Any:
        nonlocal opened
        opened += self._consumer is None
        return open_consumer(self)

    monkeypatch.setattr(SidecarReader, "_open_consumer", counted)
    queue = queues()
    for number in range(8):
        commit(producer, b"%d" % number)
        (message,) = take(queue, 1)
        assert message.value() == b"%d" % number
        queue.acknowledge(message)
    assert opened == 1
    reader = queue._reader
    assert isinstance(reader, LeaseReader)
    assert reader.bound >= MessageId(0)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Interrupts each seventh fetch of a sidecar. Yields the count of fetches."""
    count = [0]
    fetch = SidecarReader._slice

    def failing(self: SidecarReader, *how: Any) -> None:
        count[0] += 1
        if count[0] % 7 == 0:
            raise KeyboardInterrupt
        fetch(self, *how)

    monkeypatch.setattr(SidecarReader, "_slice", failing)
    yield count
    assert count[0] >= 7


def test_an_interrupted_poll_loses_and_doubles_nothing(
    queues: Queues,
    transactions: Transactions,
    failing: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sidecar_read, "SLICE_RECORDS", 7)
    monkeypatch.setattr(sidecar_read, "FIRST_BYTES", sidecar_read.SLICE_BYTES // 7)
    apart(transactions, 60)
    queue = queues(**{"max.poll.records": 11})
    found: list[bytes] = []
    until_s = time.monotonic() + 20
    while len(found) < 60 and time.monotonic() < until_s:
        with suppress(KeyboardInterrupt):
            for message in queue.poll(0.2):
                found.append(message.value())
                queue.acknowledge(message)
    assert sorted(found, key=int) == numbered(60)
    assert failing
