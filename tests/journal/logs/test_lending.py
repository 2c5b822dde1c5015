"""Logs that clients of a process share, and questions to one of them that many ask at once."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition

from logtx.journal.errors import BrokerError, ConfigError
from logtx.journal.logs.asking import Asking
from logtx.journal.logs.group_clients import GroupReader
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.logs.lending import Logs

from ...children import in_child
from ...signals import KINDS, Tracer

SERVERS = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({}, True),
        ({"linger.ms": 5}, True),
        ({"metadata.broker.list": "127.0.0.1:1"}, True),
        ({"client.id": "another"}, False),
        ({"sasl.password": "another"}, False),
        ({"oauth_cb": print}, False),
        ({"bootstrap.servers": "127.0.0.1:2"}, False),
    ],
)
def test_who_reaches_the_cluster_in_one_way_uses_one_log(other: dict[str, Any], same: bool) -> None:
    logs = Logs()
    first, second = logs.lend(SERVERS), logs.lend({**SERVERS, **other})
    assert (first.log is second.log) == same
    assert logs.lend(SERVERS, shared=False).log is not first.log


def test_no_log_without_servers() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        Logs().lend({})


def closed_logs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    closed: list[object] = []

    def close(log: KafkaLog) -> None:
        closed.append(log)

    monkeypatch.setattr(KafkaLog, "close", close)
    return closed


def test_the_last_one_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = closed_logs(monkeypatch)
    logs = Logs()
    first, second = logs.lend(SERVERS), logs.lend(SERVERS)
    logs.give_back(first)
    logs.give_back(first)
    assert not closed
    logs.give_back(second)
    assert closed == [second.log]
    assert not logs._lent
    third = logs.lend(SERVERS)
    assert third.log is not second.log


def test_a_log_that_was_given_stays_its_givers(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = closed_logs(monkeypatch)
    logs, log = Logs(), KafkaLog(SERVERS)
    lease = logs.lend(SERVERS, log=log)
    assert lease.log is log
    assert logs.lend(SERVERS).log is not log, "whoever gave it may close it at any time"
    logs.give_back(lease)
    assert not closed


def test_who_is_garbage_keeps_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = closed_logs(monkeypatch)
    logs = Logs()
    lease = logs.lend(SERVERS)
    logs.lend(SERVERS)  # Nobody keeps it.
    gc.collect()
    logs.give_back(lease)
    assert closed == [lease.log]


def test_a_log_may_be_closed_where_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 starts none while functions of `atexit` run: one may close a producer."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    logs = Logs()
    lease = logs.lend(SERVERS)
    with suppress(BrokerError):
        lease.log.group_offset("g", "t", 0, timeout_s=0.01)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    logs.give_back(lease)


def test_nothing_is_kept_of_clients_whose_making_failed() -> None:
    logs = Logs()
    for number in range(5):
        logs.lend({**SERVERS, "sasl.password": f"{number}"})
    gc.collect()
    lease = logs.lend(SERVERS)
    assert [log() for log, _ in logs._lent.values()] == [lease.log]


def test_a_child_lends_logs_of_its_own() -> None:
    logs = Logs()
    lease = logs.lend(SERVERS)

    def work() -> str:
        logs.after_fork()
        return str(logs.lend(SERVERS).log is lease.log)

    with logs._guard:  # Of a thread that does not run in the child.
        assert in_child(work) == "False"


class Slow:
    """A consumer that takes its time to answer, each time with another offset."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = threading.Event()

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        self.asked += 1
        offset = self.asked
        assert self.may_answer.wait(timeout)
        return [TopicPartition(place.topic, place.partition, offset) for place in places]


def ask_at_once(slow: Slow, ask: Callable[[int], None], partitions: Iterable[int]) -> None:
    """Asks of a partition in each of many threads. All but the first come before it is answered."""
    threads = [threading.Thread(target=ask, args=(n,)) for n in partitions]
    for thread in threads:
        thread.start()
    while slow.asked == 0:
        time.sleep(0.001)
    time.sleep(0.05)
    slow.may_answer.set()
    for thread in threads:
        thread.join(10)


def test_those_who_wait_for_one_answer_ask_once() -> None:
    slow = Slow()
    consumer: Any = slow
    reader = GroupReader(lambda _: consumer, "g")
    found: list[int] = []

    def ask(partition: int) -> None:
        place = TopicPartition("t", partition)
        answer = reader.read(place, Asking("it", 10.0))
        assert answer is not None
        found.append(answer.offset)

    ask_at_once(slow, ask, [0] * 20)
    # The first one's may be older than what the others want to know.
    assert (slow.asked, sorted(found)) == (2, [1] + [2] * 19)
    ask(0)
    ask(1)
    assert found[-2:] == [3, 4], "who comes later asks anew, and of another partition too"


def test_those_who_wait_for_other_partitions_are_asked_for_too() -> None:
    """Producers of many groups look for as many owners: one after another would take too long."""
    slow = Slow()
    consumer: Any = slow
    reader = GroupReader(lambda _: consumer, "g")
    found: set[int] = set()

    def ask(partition: int) -> None:
        answer = reader.read(TopicPartition("t", partition), Asking("it", 10.0))
        assert answer is not None
        found.add(answer.partition)

    ask_at_once(slow, ask, range(20))
    assert (slow.asked, found) == (2, set(range(20)))


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_at_any_point_of_a_question_keeps_nobody_from_asking(kind: str) -> None:
    slow = Slow()
    slow.may_answer.set()
    consumer: Any = slow
    reader = GroupReader(lambda _: consumer, "g")
    place = TopicPartition("t", 0)
    at, done = 0, False
    while not done:
        at += 1
        tracer = Tracer("logtx.journal.logs.group_clients", at, KINDS[kind])
        with suppress(KeyboardInterrupt, MemoryError, KafkaException), tracer.on():
            reader.read(place, Asking("it", 1.0))
        done = tracer.points < at
        other = threading.Thread(target=reader.read, args=(place, Asking("it", 1.0)))
        asked = slow.asked
        other.start()
        other.join(5)
        assert slow.asked == asked + 1, tracer.where
    assert at > 5
