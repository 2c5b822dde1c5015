"""Queues of topics that are switched, deleted or created anew, end to end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from logtx.consumer import leased, share_consumer, topic_ids
from logtx.consumer.core.holdings import Holdings
from logtx.consumer.leased import LeaseReader
from logtx.consumer.range_reader import reading
from logtx.consumer.share_consumer import ShareConsumer
from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.journal.errors import (
    BrokerError,
    LogtxError,
    NotHeldError,
    TopicRecreatedError,
    UnknownTopicError,
)
from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import MODES_TOPIC, Mode
from logtx.producer.producer import Producer

from ..waiting import eventually
from .test_share_consumer import (
    TIMEOUT_S,
    Queues,
    coordinator,
    fill,
    producer,
    queues,
    take,
    values,
)

__all__ = ["coordinator", "producer", "queues"]
HEARS_S = 1.5


class Behind:
    """A log as a consumer sees it whose broker has not heard of `__transaction_topics`."""

    def __init__(self, log: MemoryLog, error: Callable[[], Exception], hears_s: float) -> None:
        """Hears of it after `hears_s` seconds; until then, it answers with `error`."""
        self._log, self._error = log, error
        self.hears_s = time.monotonic() + hears_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def partition_count(self, topic: str, *, timeout_s: float = 10) -> int:
        if topic == MODES_TOPIC and time.monotonic() < self.hears_s:
            raise self._error()
        return self._log.partition_count(topic, timeout_s=timeout_s)


def not_there() -> Exception:
    return UnknownTopicError("there is no topic of modes")


def refused() -> Exception:
    return BrokerError("not allowed", kafka_code=KafkaError.TOPIC_AUTHORIZATION_FAILED)


def behind(log: MemoryLog, error: Callable[[], Exception], hears_s: float) -> ShareConsumer:
    """Returns a consumer of the queue `q` by such a log."""
    settings = {"group.id": "q", "auto.offset.reset": "earliest"}
    settings["share.acknowledgement.mode"] = "explicit"
    made = ShareConsumer(settings, log=cast(Log, Behind(log, error, hears_s)))
    made.subscribe(["orders"])
    return made


def switch(log: MemoryLog, mode: Mode) -> None:
    with closing(AdminQueries(log, timeout_s=TIMEOUT_S)) as admin:
        admin.set_topic_mode("orders", mode, transaction_group="default")


# ---- topics that are switched -------------------------------------------------------------------


@pytest.mark.parametrize("where", ["in the lease", "below the lease"])
def test_who_is_not_told_of_a_switch_takes_no_placed_transaction_for_a_gap(
    queues: Queues, producer: Producer, memory_log: MemoryLog, where: str
) -> None:
    """Another consumer had the mode record (trap 110).

    Records that lie below the lease are in nobody's sight: that the reader looks up what is pending
    would not help.
    """
    told = queues()
    switch(memory_log, Mode.METADATA)
    assert told.poll(0.5) == [], "it has the mode records"
    txn = producer.begin_transaction()
    txn.produce("orders", b"placed", partition=0)
    producer.flush()
    if where == "below the lease":
        assert told.poll(0.5) == [], "it has the record, of which nobody knows what becomes"
    told.close()
    txn.commit(finished=True)
    fill(producer, 1)
    with closing(behind(memory_log, not_there, HEARS_S)) as late:
        assert sorted(values(take(late, 2))) == [b"0", b"placed"]


def test_who_may_not_read_of_switches_is_told_so(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    told = queues()
    fill(producer, 1)
    with closing(behind(memory_log, refused, TIMEOUT_S)) as late:
        (message,) = take(late, 1)
        late.acknowledge(message)
        assert set(late.commit_sync().values()) == {None}, "never switched: it need not read"
        switch(memory_log, Mode.METADATA)
        with producer.begin_transaction() as txn:
            txn.produce("orders", b"placed", partition=0)
        fill(producer, 1)
        with pytest.raises(BrokerError, match=r"READ.*__transaction_topics"):
            take(late, 1)
    assert sorted(values(take(told, 2))) == [b"0", b"placed"], "given out again"


ONE_BY_ONE = {"max.poll.records": 1, "max.prefetch.records": 0}


def write(producer: Producer, *values: bytes) -> None:
    """Writes plain messages to partition 0."""
    for value in values:
        producer.produce("orders", value, partition=0)
    producer.flush()


def test_of_a_backlog_coordinators_are_asked_once_whether_the_topic_was_switched(
    queues: Queues, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leased, "BACKLOG_OFFSETS", 1)
    hears, asked = LeaseReader._hears_of_switch, 0

    def counts(self: LeaseReader, topic: str, topic_id: str) -> bool:
        nonlocal asked
        asked += 1
        return hears(self, topic, topic_id)

    monkeypatch.setattr(LeaseReader, "_hears_of_switch", counts)
    write(producer, b"0", b"1", b"2")
    queue = queues(**ONE_BY_ONE)
    assert values(take(queue, 3)) == [b"0", b"1", b"2"]
    assert asked == 1
    write(producer, b"3")
    assert values(take(queue, 1)) == [b"3"]
    assert asked == 2, "it lies above the end of before"


def test_what_is_placed_above_an_end_that_was_told_before_is_no_gap(
    queues: Queues, producer: Producer, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is switched right behind the answer that it never was (trap 197)."""
    monkeypatch.setattr(leased, "BACKLOG_OFFSETS", 1)
    txn = producer.begin_transaction()
    txn.produce("orders", b"placed", partition=0)
    producer.flush()
    write(producer, b"0", b"1")
    hears, is_switched = LeaseReader._hears_of_switch, False

    def answers_before(self: LeaseReader, topic: str, topic_id: str) -> bool:
        nonlocal is_switched
        answer = hears(self, topic, topic_id)
        if not is_switched:
            is_switched = True
            switch(memory_log, Mode.METADATA)
            txn.commit(finished=True)
            write(producer, b"2", b"3")
        return answer

    monkeypatch.setattr(LeaseReader, "_hears_of_switch", answers_before)
    found = values(take(queues(**ONE_BY_ONE), 5))
    assert sorted(found) == [b"0", b"1", b"2", b"3", b"placed"]


# ---- topics that are deleted --------------------------------------------------------------------


@pytest.fixture
def attaches_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers attach again twice a second, so that partitions of a new topic join soon."""
    monkeypatch.setattr(share_consumer, "ATTACH_AGAIN_S", 0.5)


def create_anew(log: MemoryLog) -> None:
    log.delete_topic("orders")
    log.create_topic("orders", partitions=2)


def before_it_hears_of_a_switch(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> None:
    """Does this once, after a reader got its first lease and before it reads."""
    hears, is_done = LeaseReader._hears_of_switch, False

    def waits(self: LeaseReader, topic: str, topic_id: str) -> bool:
        nonlocal is_done
        if not is_done:
            is_done = True
            meanwhile()
        return hears(self, topic, topic_id)

    monkeypatch.setattr(LeaseReader, "_hears_of_switch", waits)


@pytest.mark.usefixtures("attaches_often")
def test_messages_of_a_topic_that_was_created_anew_have_the_same_names(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    """To acknowledge a former one must not acknowledge the new one (trap 111)."""
    fill(producer, 2)
    queue = queues()
    former = take(queue, 2)
    create_anew(memory_log)
    fill(producer, 1, first=7)
    (new,) = take(queue, 1)
    assert (new.value(), new.offset()) == (b"7", former[0].offset())
    for refused in (queue.acknowledge, queue.acknowledge_cumulative, queue.delivery_count):
        with pytest.raises(NotHeldError):
            refused(former[0])
    assert queue.delivery_count(former[1]) == 1, "no new one has its name"
    queue.acknowledge(new)
    assert set(queue.commit_sync().values()) == {None}


@pytest.mark.usefixtures("attaches_often")
def test_trap_111_without_the_rule_the_new_one_is_acknowledged_for_the_former_one(
    queues: Queues, producer: Producer, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Holdings, "is_another", lambda *_: False)
    fill(producer, 1)
    queue = queues()
    (former,) = take(queue, 1)
    create_anew(memory_log)
    fill(producer, 1, first=7)
    (new,) = take(queue, 1)
    queue.acknowledge(former)
    with pytest.raises(NotHeldError):
        queue.acknowledge(new)


def test_of_a_topic_that_is_no_more_a_consumer_is_told_once(
    queues: Queues, producer: Producer, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lease of its rest would fail, after five seconds of questions."""
    monkeypatch.setattr(topic_ids, "CONFIRM_S", 0.3)
    fill(producer, 10)
    queue = queues(**{"max.poll.records": 2})
    former = take(queue, 2)
    create_anew(memory_log)
    fill(producer, 1, first=77)
    found: list[Any] = []
    errors: list[TopicRecreatedError] = []

    def has_new() -> bool:
        try:
            found.extend(queue.poll(0.2))
        except TopicRecreatedError as error:
            errors.append(error)
        return len(found) > 0

    eventually(has_new, 25.0)  # It does not wait until it attaches again by itself.
    assert values(found) == [b"77"]
    assert len(errors) == 1
    queue.acknowledge(former[1])
    queue.acknowledge(found[0])
    assert set(queue.commit_sync().values()) == {None}


@pytest.mark.usefixtures("attaches_often")
def test_trap_293_a_successor_is_read_whose_leader_changed_less_often(
    queues: Queues, producer: Producer, memory_log: MemoryLog
) -> None:
    memory_log.elect("orders", 0)
    fill(producer, 2)
    queue = queues()
    take(queue, 2)
    create_anew(memory_log)
    memory_log.append_directly("orders", 0, b"7")  # That producer does not reach it (trap 294).
    assert values(take(queue, 1)) == [b"7"]


@pytest.mark.usefixtures("attaches_often")
@pytest.mark.parametrize("what", ["messages", "a gap"])
def test_what_a_reader_waited_for_may_be_of_a_topic_that_was_created_anew(
    queues: Queues,
    producer: Producer,
    memory_log: MemoryLog,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    """It would be given out under the former one's id, and then once more (trap 120)."""
    monkeypatch.setattr(topic_ids, "CONFIRM_S", 0.3)
    fill(producer, 2)

    def meanwhile() -> None:
        create_anew(memory_log)
        if what == "messages":
            fill(producer, 3, first=7)
        else:
            with suppress(LogtxError), producer.begin_transaction() as txn:
                txn.produce("orders", b"never", partition=0)
                raise BrokerError("aborted")
            fill(producer, 1, first=7)

    before_it_hears_of_a_switch(monkeypatch, meanwhile)
    queue = queues()
    with pytest.raises(TopicRecreatedError):
        take(queue, 1)
    count = 3 if what == "messages" else 1
    found = take(queue, count)
    assert values(found) == [b"%d" % n for n in range(7, 7 + count)]
    assert [queue.delivery_count(each) for each in found] == [1] * count
    assert take(queue, 1, 1.0) == []


@pytest.mark.usefixtures("attaches_often")
def test_trap_120_without_the_rule_new_messages_are_given_out_under_the_former_id_and_once_more(
    queues: Queues, producer: Producer, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id is asked for before the first fetch alone."""
    fill(producer, 2)

    def meanwhile() -> None:
        create_anew(memory_log)
        fill(producer, 2, first=7)
        monkeypatch.setattr(LeaseReader, "_check_is_it", lambda *_: None)

    before_it_hears_of_a_switch(monkeypatch, meanwhile)
    assert values(take(queues(), 4)) == [b"7", b"8"] * 2


@pytest.mark.usefixtures("attaches_often")
def test_a_reader_that_waits_for_records_of_a_former_topic_learns_of_it_soon(
    queues: Queues, producer: Producer, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new topic is empty, so no fetch ends (trap 198)."""
    monkeypatch.setattr(topic_ids, "CONFIRM_S", 0.3)
    fill(producer, 2)
    before_it_hears_of_a_switch(monkeypatch, partial(create_anew, memory_log))
    queue, began_s = queues(), time.monotonic()
    with pytest.raises(TopicRecreatedError):
        take(queue, 1)
    assert time.monotonic() - began_s < reading.STALL_S / 2


@pytest.mark.parametrize("anew", [True, False])
def test_what_is_acknowledged_of_a_topic_that_is_gone_has_an_answer_after_a_takeover(
    queues: Queues,
    producer: Producer,
    memory_log: MemoryLog,
    coordinator: EmbeddedCoordinator,
    anew: bool,
) -> None:
    """The new owner does not know where the topic ended, and nobody can tell it (trap 112)."""
    memory_log.create_topic("other", partitions=1)
    fill(producer, 2)
    queue = queues("orders", "other")
    first, second = take(queue, 2)
    memory_log.delete_topic("orders")
    if anew:
        memory_log.create_topic("orders", partitions=2)
    coordinator.stop()
    coordinator.start()
    queue.acknowledge(first)
    assert set(queue.commit_sync(15.0).values()) == {None}
    with producer.begin_transaction() as txn:
        queue.acknowledge(second, txn=txn)
    producer.produce("other", b"alive", partition=0)
    producer.flush()
    assert values(take(queue, 1)) == [b"alive"], "the other topics are worked off"
