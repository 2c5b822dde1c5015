"""`logtx subscription` against a coordinator, with a queue at work."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import logtx
from logtx.consumer.share_consumer import ShareConsumer
from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol.queues import SubscriptionInfo
from logtx.coordinator.service import CoordinatorConfig
from logtx.integration.cli import main as cli
from logtx.integration.cli import subscription_skip
from logtx.journal.errors import (
    ConfigError,
    IntegrityError,
    NotAllowedError,
    TopicRecreatedError,
    UnknownSubscriptionError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Mode
from logtx.journal.reader import JOURNAL_TOPIC, journal_partition_of

from ...waiting import eventually

SETTINGS = {
    "group.id": "invoicing",
    "auto.offset.reset": "earliest",
    "share.acknowledgement.mode": "explicit",
}


@pytest.fixture
def coordinator(memory_log: MemoryLog) -> Iterator[EmbeddedCoordinator]:
    """A coordinator of three journal partitions, and a topic of two."""
    memory_log.create_topic("orders", partitions=2)
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers, listen="127.0.0.1:0", journal_partitions=3
    )
    with EmbeddedCoordinator(config) as running:
        yield running


@pytest.fixture
def producer(memory_log: MemoryLog, coordinator: EmbeddedCoordinator) -> Iterator[logtx.Producer]:
    """A producer with an id."""
    assert coordinator.address
    with logtx.Producer({"transactional.id": "p"}, log=memory_log) as made:
        yield made


@pytest.fixture
def queue(memory_log: MemoryLog, coordinator: EmbeddedCoordinator) -> Iterator[ShareConsumer]:
    """A consumer of a queue."""
    assert coordinator.address
    with closing(ShareConsumer(SETTINGS, log=memory_log)) as made:
        made.subscribe(["orders"])
        yield made


def run(log: MemoryLog, *arguments: str) -> Result:
    """Runs `logtx subscription`."""
    environment = {"LOGTX_BOOTSTRAP_SERVERS": log.bootstrap_servers, "COLUMNS": "200"}
    return CliRunner().invoke(cli.app, ["subscription", *arguments], env=environment)


def asked(log: MemoryLog, *arguments: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    result = run(log, *arguments, "--json")
    assert result.exit_code == 0, (result.exception, result.output)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def fill(producer: logtx.Producer, count: int, partition: int = 0) -> None:
    for number in range(count):
        producer.produce("orders", b"%d" % number, partition=partition)
    producer.flush()


def take(queue: ShareConsumer, count: int) -> list[Any]:
    """The next messages: so many."""
    found: list[Any] = []

    def all_came() -> bool:
        found.extend(queue.poll(0.2))
        return len(found) >= count

    eventually(all_came)
    return found


def shown(log: MemoryLog, partition: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = asked(log, "show", "invoicing")["partitions"][partition]
    return found


@pytest.mark.usefixtures("coordinator")
def test_nothing_is_there(memory_log: MemoryLog) -> None:
    assert "no subscription" in run(memory_log, "list").stdout
    assert asked(memory_log, "list") == {"subscriptions": [], "unreachable": []}
    for command in (("show", "nobody"), ("skip", "nobody", "orders[0]", "1")):
        result = run(memory_log, *command)
        assert isinstance(result.exception, UnknownSubscriptionError)
        assert "no subscription 'nobody'" in str(result.exception)
        assert "logtx subscription list" in str(result.exception)


def test_a_queue_at_work_is_shown(
    memory_log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer
) -> None:
    before_ms = time.time_ns() // 1_000_000
    fill(producer, 5)
    messages = take(queue, 5)
    queue.acknowledge(messages[0])
    queue.commit_sync()
    with producer.begin_transaction() as txn:
        queue.acknowledge(messages[1], txn=txn)
        eventually(lambda: shown(memory_log)["pending"] == 1)
        part = shown(memory_log)
        oldest_ms = part.pop("oldest_ms")
        assert before_ms <= oldest_ms <= time.time_ns() // 1_000_000
        assert part.pop("topic_id")
        assert part == {
            "topic": "orders",
            "partition": 0,
            "former": False,
            "start": 0,
            "end": 5,
            "deleted_to": [0, 2**62, 1],
            "pending": 1,
            "leased": 3,
            "depth": 4,
            "transactions": [str(txn.txid)],
        }
        text = run(memory_log, "show", "invoicing").stdout
        assert "invoicing: shared, transaction group default" in text
        assert "within 0" in text
        assert f"logtx txn describe {txn.txid}" in text
        assert "attached" in text
    (listed,) = asked(memory_log, "list")["subscriptions"]
    assert listed.pop("oldest_ms") >= before_ms
    assert listed == {
        "subscription": "invoicing",
        "transaction_group": "default",
        "kind": "shared",
        "topics": ["orders"],
        "consumers": 1,
        "depth": 3,
    }
    row = run(memory_log, "list").stdout.splitlines()[1].split()
    assert row[:6] == ["invoicing", "default", "shared", "orders", "1", "3"]


def test_a_queue_that_nobody_consumes_grows(
    memory_log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer
) -> None:
    """The coordinator is told no ends then (trap 132)."""
    take(queue, 0)
    queue.close()
    fill(producer, 3, partition=1)
    assert shown(memory_log, 1)["depth"] == 3
    eventually(lambda: "no consumer is attached" in run(memory_log, "show", "invoicing").stdout)


def test_messages_are_passed_over(
    memory_log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer
) -> None:
    """The end that the coordinator knows is that of when the consumer left (trap 134)."""
    take(queue, 0)  # The subscription begins before the messages.
    queue.close()
    fill(producer, 10)
    dry = run(memory_log, "skip", "invoicing", "orders[0]", "1", "4-6")
    assert dry.exit_code == 0, dry.exception
    assert "up to 4 offsets of orders[0] would be passed over" in dry.stdout
    assert "--execute" in dry.stdout
    assert shown(memory_log)["depth"] == 10
    done = run(memory_log, "skip", "invoicing", "orders[0]", "1", "4-6", "--execute")
    assert done.exit_code == 0, (done.exception, done.output)
    assert shown(memory_log)["depth"] == 6
    again = run(memory_log, "skip", "invoicing", "orders[0]", "5", "--execute")
    assert "was acknowledged before" in again.stdout
    with closing(ShareConsumer(SETTINGS, log=memory_log)) as other:
        other.subscribe(["orders"])
        assert [m.value() for m in take(other, 6)] == [b"0", b"2", b"3", b"7", b"8", b"9"]
        run(memory_log, "skip", "invoicing", "orders[0]", "--before", "9", "--execute")
        found = shown(memory_log)
        assert (found["depth"], found["deleted_to"], found["leased"]) == (1, [8, 2**62, 1], 1)


def test_what_a_transaction_acknowledges_is_not_passed_over(
    memory_log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer
) -> None:
    fill(producer, 3)
    messages = take(queue, 3)
    with producer.begin_transaction() as txn:
        queue.acknowledge(messages[1], txn=txn)
        eventually(lambda: shown(memory_log)["pending"] == 1)
        result = run(memory_log, "skip", "invoicing", "orders[0]", "0", "1", "--execute")
        assert result.exit_code == 1
        assert "orders[0] 0-0: passed over" in result.stdout
        assert "orders[0] 1-1: acknowledged by a transaction" in result.stdout
        assert "left as it is" in result.stderr
        assert shown(memory_log)["pending"] == 1
    eventually(lambda: shown(memory_log)["deleted_to"][0] == 1)


def test_a_record_of_a_transaction_is_not_passed_over_alone(
    memory_log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer
) -> None:
    """It is delivered at its marker, so nothing of it stands at its own offset (trap 133)."""
    take(queue, 0)
    queue.close()
    with producer.begin_transaction() as txn:
        txn.produce("orders", b"a", partition=0)
        txn.produce("orders", b"b", partition=0)
    txn.commit(finished=True)
    fill(producer, 1)
    refused = run(memory_log, "skip", "invoicing", "orders[0]", "1", "--execute")
    assert isinstance(refused.exception, NotAllowedError)
    assert "the record at offset 1" in str(refused.exception)
    assert shown(memory_log)["depth"] == 4
    done = run(memory_log, "skip", "invoicing", "orders[0]", "2", "--execute")
    assert done.exit_code == 0, (done.exception, done.output)
    assert shown(memory_log)["depth"] == 3
    with closing(ShareConsumer(SETTINGS, log=memory_log)) as other:
        other.subscribe(["orders"])
        assert [m.value() for m in take(other, 1)] == [b"0"]


def place_two(log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer) -> None:
    """Commits a transaction of two records, which is placed at the topic's end. The queue knows the
    topic, and has no consumer."""
    with closing(AdminQueries(log, timeout_s=10)) as admin:
        admin.set_topic_mode("orders", Mode.METADATA, transaction_group="default")
    take(queue, 0)
    queue.close()
    with producer.begin_transaction() as txn:
        txn.produce("orders", b"a", partition=0)
        txn.produce("orders", b"b", partition=0)
    txn.commit(finished=True)


def placed_before_a_record(
    log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer
) -> tuple[int, int]:
    """A committed transaction of two records, placed where plain records begin, which are three.
    Passes over the first two of these. Returns where that is, and the depth before."""
    place_two(log, producer, queue)
    place = log.end_offset("orders", 0)
    fill(producer, 3)
    depth = shown(log)["depth"]
    done = run(log, "skip", "invoicing", "orders[0]", f"{place}-{place + 1}", "--execute")
    assert done.exit_code == 0, (done.exception, done.output)
    return place, depth


def test_trap_155_what_is_placed_before_a_record_is_not_passed_over_with_it(
    memory_log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer
) -> None:
    place, depth = placed_before_a_record(memory_log, producer, queue)
    assert shown(memory_log)["depth"] == depth - 2
    with closing(ShareConsumer(SETTINGS, log=memory_log)) as other:
        other.subscribe(["orders"])
        assert [m.value() for m in take(other, 3)] == [b"a", b"b", b"2"]
        run(memory_log, "skip", "invoicing", "orders[0]", "--before", f"{place + 1}", "--execute")
        assert shown(memory_log)["depth"] == 1


def test_trap_155_without_the_rule_the_transaction_is_thrown_away(
    memory_log: MemoryLog,
    producer: logtx.Producer,
    queue: ShareConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscription_skip, "_home_of", lambda *_: None)
    placed_before_a_record(memory_log, producer, queue)
    with closing(ShareConsumer(SETTINGS, log=memory_log)) as other:
        other.subscribe(["orders"])
        assert [m.value() for m in take(other, 1)] == [b"2"]


def test_what_is_placed_at_the_very_end_is_passed_over_as_the_error_says(
    memory_log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer
) -> None:
    """It alone: what comes before it, and what is placed there later, is given out."""
    place_two(memory_log, producer, queue)
    records = memory_log._partition("orders", 0).records
    # As if the log had lost it, and had another one at its offset.
    key, value, _, stamp = records[-1]
    records[-1] = key, value, None, stamp
    told: list[str] = []
    found: list[bytes | None] = []
    with closing(ShareConsumer(SETTINGS, log=memory_log)) as other:
        other.subscribe(["orders"])

        def fails() -> bool:
            try:
                found.extend(message.value() for message in other.poll(0.2))
            except IntegrityError as error:
                told.append(str(error))
            return bool(told)

        eventually(fails)
        end = memory_log.end_offset("orders", 0)
        command = told[0].partition("logtx subscription ")[2].partition(";")[0].partition(". ")[0]
        assert command.startswith(f"skip invoicing 'orders[0]' {end}@"), told
        arguments = command.replace("'", "").split()
        dry = run(memory_log, *(word for word in arguments if word != "--execute"))
        assert "up to 0 offsets and 1 placed transaction of orders[0] would be" in dry.stdout
        # What will be committed must not be passed over before.
        home = journal_partition_of("default", 3)
        journal_end = memory_log.end_offset(JOURNAL_TOPIC, home)
        for sequence in (journal_end + 10, journal_end - 1):
            later = [*arguments[:3], f"{end}@{sequence}", "--execute"]
            assert "nothing is committed at" in str(run(memory_log, *later).exception)
        done = run(memory_log, *arguments)
        assert done.exit_code == 0, (done.exception, done.output)
        with producer.begin_transaction() as txn:
            txn.produce("orders", b"next", partition=0)

        def goes_on() -> bool:
            # What was given out before is told once more at most.
            with suppress(IntegrityError):
                found.extend(message.value() for message in other.poll(0.2))
            return len(found) == 2

        eventually(goes_on)
        assert found == [b"b", b"next"]


def created_anew(log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer) -> None:
    """The queue had eight messages of a topic that is created anew, and has three then. No consumer
    has attached since, which would have told the coordinator."""
    fill(producer, 8)
    take(queue, 8)
    queue.close()
    log.delete_topic("orders")
    log.create_topic("orders", partitions=2)
    fill(producer, 3)


def test_trap_153_the_former_topic_of_a_name_is_not_taken_for_the_one_that_is_there(
    memory_log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer
) -> None:
    created_anew(memory_log, producer, queue)
    for part in asked(memory_log, "show", "invoicing")["partitions"]:
        assert (part["former"], part["end"], part["depth"]) == (True, None, None)
    assert "topic is no more" in run(memory_log, "show", "invoicing").stdout
    (listed,) = asked(memory_log, "list")["subscriptions"]
    assert listed["depth"] is None
    refused = run(memory_log, "skip", "invoicing", "orders[0]", "0-1", "--execute")
    assert isinstance(refused.exception, UnknownSubscriptionError)
    assert "joins when a consumer attaches" in str(refused.exception)


def test_trap_153_without_the_rule_messages_count_as_passed_over_and_are_given_out(
    memory_log: MemoryLog,
    producer: logtx.Producer,
    queue: ShareConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SubscriptionInfo, "as_named_now", lambda self, _: self)
    created_anew(memory_log, producer, queue)
    done = run(memory_log, "skip", "invoicing", "orders[0]", "0-1", "--execute")
    assert done.exit_code == 0, (done.exception, done.output)
    with closing(ShareConsumer(SETTINGS, log=memory_log)) as other:
        other.subscribe(["orders"])
        with suppress(TopicRecreatedError):  # It is told of what the queue has of the former one.
            take(other, 3)
        assert [m.value() for m in take(other, 3)] == [b"0", b"1", b"2"]


def test_what_is_not_there_is_refused(
    memory_log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer
) -> None:
    take(queue, 0)
    fill(producer, 2)
    for place, offset, error, text in (
        ("orders[2]", "0", UnknownSubscriptionError, "has no partition orders[2]"),
        ("orders[0]", "2", ConfigError, "ends at 2, and has no offset 2"),
        ("orders[0]", "3@1", ConfigError, "ends at 2, and has no offset 3"),
        ("orders[0]", "2@1", NotAllowedError, "not in metadata mode"),
    ):
        result = run(memory_log, "skip", "invoicing", place, offset)
        assert isinstance(result.exception, error), result.exception
        assert text in str(result.exception)
    for wrong in (
        ("orders", "1"),
        ("orders[0]", "x"),
        ("orders[0]", "3-1"),
        ("orders[0]", "1-3@1"),
        ("orders[0]",),
        ("orders[0]", "1", "--before", "1"),
        ("orders[0]", "0-10000"),
    ):
        assert run(memory_log, "skip", "invoicing", *wrong).exit_code == 2
