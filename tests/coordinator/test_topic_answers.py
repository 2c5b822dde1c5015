"""Brokers that answer late, wrongly or not at all about topics: no told commit is lost.

Findings 1, 5, 6 and 7 of the coordinator, through the real client and the real service.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.core import topics
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.journal.errors import BrokerError, LogtxError, UnknownTopicError, UnsupportedTopicError
from logtx.journal.logs.interface import TopicInfo
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Mode
from logtx.journal.reader import JOURNAL_TOPIC, find_fates
from logtx.journal.state import State
from logtx.producer.producer import Producer

from ..waiting import eventually

Answers = dict[str, TopicInfo | LogtxError]
Change = Callable[[Answers], Answers]


class Broker:
    """Stands between the coordinator and what the log says about topics."""

    def __init__(self, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.change: Change = lambda answers: answers
        self.asked: list[tuple[str, ...]] = []
        self._ask = log.topic_infos
        monkeypatch.setattr(log, "topic_infos", self._answer)

    def _answer(self, names: Sequence[str], *, timeout_s: float = 10) -> Answers:
        self.asked.append(tuple(names))
        return self.change(self._ask(names, timeout_s=timeout_s))


def silent(_answers: Answers) -> Answers:
    """The admin API does not answer, or is not allowed."""
    raise BrokerError("describe topics: TOPIC_AUTHORIZATION_FAILED")


@pytest.fixture
def broker(memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """A log with topics a and b."""
    memory_log.create_topic("a", partitions=1)
    memory_log.create_topic("b", partitions=1)
    return Broker(memory_log, monkeypatch)


def coordinator(log: MemoryLog) -> EmbeddedCoordinator:
    """A coordinator of one journal partition."""
    config = CoordinatorConfig(
        bootstrap_servers=log.bootstrap_servers, listen="127.0.0.1:0", journal_partitions=1
    )
    return EmbeddedCoordinator(config, log)


@pytest.fixture
def producer(memory_log: MemoryLog, broker: Broker) -> Iterator[Producer]:
    """A producer whose coordinator runs."""
    del broker
    with (
        coordinator(memory_log),
        Producer({"bootstrap.servers": memory_log.bootstrap_servers}) as made,
    ):
        yield made


@pytest.mark.parametrize("what", ["deleted", "unknown for a moment", "silent"])
def test_finding_1_a_decided_commit_is_never_told_as_refused(
    what: str, memory_log: MemoryLog, broker: Broker
) -> None:
    log, first = memory_log, coordinator(memory_log)
    first.start()
    config = {"bootstrap.servers": log.bootstrap_servers, "transactional.id": "w"}
    with Producer(config) as made:
        transaction = made.begin_transaction()
        transaction.produce("a", value=b"1")
        transaction.produce("b", value=b"2")
        made.flush(5)
        log.hold_appends(JOURNAL_TOPIC, 0)
        outcome = transaction.commit_async()
        deadline = time.monotonic() + 10
        while not log.held_appends(JOURNAL_TOPIC, 0):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        first.stop()
        log.release_appends(JOURNAL_TOPIC, 0)  # it lands, and its answer is lost
        if what == "deleted":
            log.delete_topic("b")
        elif what == "silent":
            broker.change = silent
        else:
            until_s = time.monotonic() + 2

            def behind(answers: Answers) -> Answers:
                late = {"b": UnknownTopicError("not known yet")} if "b" in answers else {}
                return {**answers, **late} if time.monotonic() < until_s else answers

            broker.change = behind
        with coordinator(log):
            assert outcome.result(30).state.commits
            txid = transaction.txid
            assert txid is not None
            assert find_fates(log, [txid], timeout_s=5)[txid].state in (
                State.COMMITTING,
                State.COMMITTED,
            )


def test_finding_5_producers_that_begin_at_once_share_the_look_ups(
    memory_log: MemoryLog, broker: Broker
) -> None:
    def slow(answers: Answers) -> Answers:
        time.sleep(0.05)
        return answers

    broker.change = slow
    config = {"bootstrap.servers": memory_log.bootstrap_servers}
    with coordinator(memory_log):
        producers = [Producer(config) for _ in range(20)]
        broker.asked.clear()

        def work(made: Producer) -> None:
            with made.begin_transaction() as transaction:
                transaction.produce("a", value=b"1")

        threads = [threading.Thread(target=work, args=(made,)) for made in producers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sum("a" in names for names in broker.asked) <= 2
        for made in producers:
            made.close()


def test_finding_6_a_partition_that_was_added_just_now_takes_part(
    memory_log: MemoryLog, producer: Producer
) -> None:
    with producer.begin_transaction() as transaction:
        transaction.produce("a", value=b"1", partition=0)
    memory_log.add_partitions("a", 2)
    with producer.begin_transaction() as transaction:
        transaction.produce("a", value=b"2", partition=1)
    assert transaction.commit().state.commits


def test_finding_7_no_commit_needs_the_admin_api_once_a_topic_is_known(
    producer: Producer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with producer.begin_transaction() as transaction:
        transaction.produce("a", value=b"1")
    monkeypatch.setattr(topics, "FRESH_MS", 0)
    monkeypatch.setattr(topics, "RENEW_MS", 0)
    broker.change = silent
    for _ in range(3):
        with producer.begin_transaction() as transaction:
            transaction.produce("a", value=b"2")
        assert transaction.commit().state.commits


def test_finding_7_a_commit_that_names_an_unknown_topic_says_that_nothing_was_done(
    memory_log: MemoryLog, broker: Broker
) -> None:
    broker.change = silent
    config: dict[str, Any] = {
        "bootstrap.servers": memory_log.bootstrap_servers,
        "coordinator.timeout.ms": 4_000,
    }
    with coordinator(memory_log), Producer(config) as made:
        transaction = made.begin_transaction()
        transaction.produce("a", value=b"1")
        with pytest.raises(LogtxError, match="nothing was done") as told:
            transaction.commit()
        assert "TOPIC_AUTHORIZATION_FAILED" in str(told.value)
        transaction.abort()


def allowed(*operations: str) -> Change:
    """The brokers tell these rights of every topic."""
    return lambda answers: {
        name: replace(answer, operations=frozenset(operations))
        if isinstance(answer, TopicInfo)
        else answer
        for name, answer in answers.items()
    }


def invisible(answers: Answers) -> Answers:
    """The coordinator may not see any of them."""
    code = KafkaError.TOPIC_AUTHORIZATION_FAILED
    return dict.fromkeys(answers, BrokerError("Topic authorization failed", kafka_code=code))


@pytest.mark.parametrize(
    ("change", "operation"),
    [
        (allowed("DESCRIBE", "DESCRIBE_CONFIGS"), "Write"),
        (allowed("DESCRIBE", "WRITE"), "DescribeConfigs"),
        (invisible, "Write"),
    ],
)
def test_a_right_that_the_coordinator_lacks_is_named_before_anything_is_decided(
    change: Change, operation: str, memory_log: MemoryLog, broker: Broker, producer: Producer
) -> None:
    broker.change = change
    txn = producer.begin_transaction()
    txn.produce("a", value=b"x")
    began_s = time.monotonic()
    with pytest.raises(UnsupportedTopicError) as refused:
        txn.commit()
    assert time.monotonic() - began_s < 5
    told = str(refused.value)
    assert told.startswith("the coordinator may not ")
    assert f"--operation {operation} --" in told
    assert find_fates(memory_log, [txn.txid], timeout_s=5)[txn.txid].state is not State.COMMITTED
    broker.change = allowed("DESCRIBE", "WRITE", "DESCRIBE_CONFIGS")
    time.sleep(topics.AGAIN_MS / 1000)
    with producer.begin_transaction() as again:
        again.produce("a", value=b"y")


def test_a_sealed_topic_takes_the_commits_that_are_placed_there(
    memory_log: MemoryLog,
    broker: Broker,
    producer: Producer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for age in ("RENEW_MS", "FRESH_MS"):  # Each command looks its topics up.
        monkeypatch.setattr(topics, age, 0)
    with closing(AdminQueries(memory_log, timeout_s=10)) as admin:
        switched = admin.set_topic_mode("a", Mode.METADATA, transaction_group="default")
        txn = producer.begin_transaction()
        txn.produce("a", value=b"written before it was sealed")
        producer.flush(10)
        broker.change = allowed("READ", "DESCRIBE", "DESCRIBE_CONFIGS")
        time.sleep(topics.AGAIN_MS / 1000)
        end = memory_log.end_offset("a", 0)
        assert txn.commit().state.commits
        eventually(lambda: not list(admin.list_transactions(switched.home or 0)))
        assert memory_log.end_offset("a", 0) == end, "nothing was written there"
        with pytest.raises(UnsupportedTopicError, match="may not WRITE"):
            admin.set_topic_mode("b", Mode.METADATA, transaction_group="default", timeout_s=1)


@pytest.mark.parametrize(
    "topic",
    [
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__cluster_metadata",
        "__transaction_control",
        "__transaction_offsets",
    ],
)
def test_no_transaction_writes_to_topics_of_kafka_or_of_logtx(
    topic: str, memory_log: MemoryLog, producer: Producer
) -> None:
    memory_log.create_topic(topic, partitions=1)
    with pytest.raises(UnsupportedTopicError, match=rf"topic {topic} is .* own"):
        producer.begin_transaction(partitions=[(topic, 0)]).commit()
