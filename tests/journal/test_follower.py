"""Following journal partitions: what comes, what stands still, and what can't be read."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from logtx.journal.errors import BrokerError, UnknownRecordError
from logtx.journal.follower import JournalFollower
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC, RecordsTrimmedError
from logtx.journal.records.codec import encode_entry
from logtx.journal.records.types import Entry, Owner

NEWER_VERSION = b"\x7fnot a record of this version"


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    memory_log.create_topic(JOURNAL_TOPIC, partitions=2)
    return memory_log


def owner() -> bytes:
    record = Owner(replaces=-1, address="nowhere:1", process_nonce=1, partition_count=2)
    return encode_entry(Entry(-1, 5, record))


def append(log: MemoryLog, *values: bytes, partition: int = 0) -> None:
    producer = log.producer({})
    for value in values:
        producer.produce(JOURNAL_TOPIC, value, partition=partition)
    assert producer.flush(5) == 0


@pytest.fixture
def follower(log: MemoryLog) -> Iterator[JournalFollower]:
    made = JournalFollower(log, {0: 0, 1: 0})
    yield made
    made.close()


def test_what_lies_before_damage_comes_first_and_the_error_stays(
    log: MemoryLog, follower: JournalFollower
) -> None:
    append(log, owner(), owner(), NEWER_VERSION, owner())
    assert [(p, o) for p, o, _ in follower.poll(1)] == [(0, 0), (0, 1)]
    assert follower.next_offsets == {0: 2, 1: 0}
    for _ in range(3):
        with pytest.raises(UnknownRecordError, match="offset 2"):
            follower.poll(0)
    follower.move({0: 3})
    assert [(p, o) for p, o, _ in follower.poll(1)] == [(0, 3)]


def test_a_place_that_was_trimmed_is_an_error_until_it_is_left(
    log: MemoryLog, follower: JournalFollower
) -> None:
    append(log, owner(), owner(), owner())
    log.delete_records(JOURNAL_TOPIC, 0, 2)
    for _ in range(2):
        with pytest.raises(RecordsTrimmedError, match="no offset 0"):
            follower.poll(1)
    follower.move({0: 2})
    assert [(p, o) for p, o, _ in follower.poll(1)] == [(0, 2)]


def test_a_busy_partition_does_not_prolong_the_wait_for_another(
    log: MemoryLog, follower: JournalFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, owner())
    append(log, owner(), partition=1)
    polled = itertools.count()
    real_poll = follower._consumer.poll

    def poll_the_other(timeout_s: float = -1) -> Any:
        next(polled)
        append(log, owner(), partition=1)
        message = real_poll(timeout_s)
        # The leader of partition 0 is gone.
        return None if message is not None and message.partition() == 0 else message

    monkeypatch.setattr(follower._consumer, "poll", poll_the_other)
    monkeypatch.setattr(
        follower._consumer,
        "consume",
        lambda *_: [],
    )
    with pytest.raises(BrokerError, match=r"__transaction_control-0 stood at 0 of 1 for 0\.3 s"):
        list(follower.read_to_ends(timeout_s=0.3))
    assert next(polled) > 1


def test_a_partition_that_moves_on_may_take_long(
    log: MemoryLog, follower: JournalFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, *[owner() for _ in range(8)])
    append(log, owner(), partition=1)
    real_poll = follower._consumer.poll

    def slowly(timeout_s: float = -1) -> Any:
        time.sleep(0.1)
        return real_poll(timeout_s)

    monkeypatch.setattr(follower._consumer, "poll", slowly)
    monkeypatch.setattr(follower._consumer, "consume", lambda *_: [])
    found = [(p, o) for p, o, _ in follower.read_to_ends(timeout_s=0.6)]
    assert sorted(found) == [*((0, o) for o in range(8)), (1, 0)]
