"""`logtx subscription reset` and `delete` against a coordinator, with consumers that come back."""

from __future__ import annotations

import json
import time
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import logtx
from logtx.consumer.share_consumer import ShareConsumer
from logtx.coordinator.core import dispatch
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.integration.cli import main as cli
from logtx.journal.errors import (
    ConfigError,
    GroupBoundError,
    NotAllowedError,
    NotHeldError,
    SubscriptionResetError,
    UnknownSubscriptionError,
)
from logtx.journal.logs.memory.log import MemoryLog

from ...waiting import eventually
from .test_subscription import SETTINGS, asked, coordinator, fill, producer, queue, run, shown, take

__all__ = ["coordinator", "producer", "queue"]


def values(messages: list[Any]) -> list[int]:
    return sorted(int(each.value()) for each in messages)


def worked_off(queue: ShareConsumer, count: int) -> list[Any]:
    """Takes so many messages, and acknowledges them."""
    messages = take(queue, count)
    for each in messages:
        queue.acknowledge(each)
    queue.commit_sync()
    return messages


def run_group(log: MemoryLog, *arguments: str) -> Result:
    """Runs `logtx group`."""
    environment = {"LOGTX_BOOTSTRAP_SERVERS": log.bootstrap_servers}
    return CliRunner().invoke(cli.app, ["group", *arguments], env=environment)


def reset(log: MemoryLog, *arguments: str) -> list[dict[str, Any]]:
    """Resets the subscription; returns what is told of its partitions."""
    result = run(log, "reset", "invoicing", *arguments, "--json")
    assert result.exit_code == 0, (result.exception, result.output)
    found: list[dict[str, Any]] = json.loads(result.stdout)["partitions"]
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers that leave are gone soon."""
    monkeypatch.setattr(dispatch, "GONE_MS", 100)


@pytest.fixture
def done(memory_log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer) -> MemoryLog:
    """A queue whose 4 messages of partition 0 and 2 of partition 1 are worked off, and whose
    consumers have left."""
    fill(producer, 4)
    fill(producer, 2, partition=1)
    worked_off(queue, 6)
    queue.close()
    eventually(lambda: not asked(memory_log, "show", "invoicing")["consumers"])
    return memory_log


def test_without_execute_it_only_shows_what_would_be(done: MemoryLog) -> None:
    (first, second) = reset(done, "--to-earliest")
    assert first.pop("topic_id")
    assert first.pop("deleted_to")[0] >= 3
    assert first == {
        "topic": "orders",
        "partition": 0,
        "new_start": 0,
        "depth": 0,
        "new_depth": 4,
    }
    assert (second["new_start"], second["new_depth"]) == (0, 2)
    assert shown(done)["depth"] == 0
    text = run(done, "reset", "invoicing", "--to-earliest").stdout
    assert "Nothing was changed: add --execute" in text
    (row,) = (r.split() for r in text.splitlines() if r.startswith("orders") and " 0 " in r[:18])
    assert (row[:2], row[-3:]) == (["orders", "0"], ["0", "0", "4"])


def test_all_messages_from_the_new_start_on_come_again(done: MemoryLog) -> None:
    text = run(done, "reset", "invoicing", "--to-offset", "1", "--execute")
    assert text.exit_code == 0, (text.exception, text.output)
    assert "subscription invoicing was reset" in text.stdout
    assert [shown(done, p)["depth"] for p in (0, 1)] == [3, 1]
    with closing(ShareConsumer(SETTINGS, log=done)) as again:
        again.subscribe(["orders"])
        assert values(worked_off(again, 4)) == [1, 1, 2, 3]
    assert [shown(done, p)["depth"] for p in (0, 1)] == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "depths"),
    [
        (["--to-earliest", "--topic", "orders[1]"], [0, 2]),
        (["--to-earliest", "--topic", "orders"], [4, 2]),
        (["--to-offset", "3", "--topic", "orders[0]"], [1, 0]),
        (["--to-latest"], [0, 0]),
        (["--to-datetime", "2020-01-01T00:00Z"], [4, 2]),
    ],
)
def test_where_it_begins_anew(done: MemoryLog, arguments: list[str], depths: list[int]) -> None:
    reset(done, *arguments, "--execute")
    assert [shown(done, p)["depth"] for p in (0, 1)] == depths


def test_to_a_time(done: MemoryLog, producer: logtx.Producer) -> None:
    """A partition that has no record since then begins at its end."""
    time.sleep(0.05)
    since = datetime.now(UTC).isoformat()
    time.sleep(0.05)
    fill(producer, 3)
    found = reset(done, "--to-datetime", since, "--execute")
    assert [(each["new_start"], each["new_depth"]) for each in found] == [(4, 3), (2, 0)]


def test_below_the_start_of_the_log_it_begins_there(done: MemoryLog) -> None:
    done.delete_records("orders", 0, 2)
    found = reset(done, "--to-offset", "1", "--topic", "orders[0]", "--execute")
    assert [(each["new_start"], each["new_depth"]) for each in found] == [(2, 2)]


def test_what_it_can_not_do_is_refused(
    done: MemoryLog, producer: logtx.Producer, coordinator: EmbeddedCoordinator
) -> None:
    assert coordinator.address
    for arguments, error, text in (
        (["nobody", "--to-latest"], UnknownSubscriptionError, "no subscription 'nobody'"),
        (
            ["invoicing", "--to-latest", "--topic", "orders[7]"],
            UnknownSubscriptionError,
            "has no orders[7]",
        ),
        (
            ["invoicing", "--to-offset", "3"],
            ConfigError,
            "orders[1] ends at 2, and has no offset 3",
        ),
    ):
        result = run(done, "reset", *arguments, "--execute")
        assert isinstance(result.exception, error), (result.exception, result.output)
        assert text in str(result.exception)
    for wrong in (
        [],
        ["--to-latest", "--to-earliest"],
        ["--to-datetime", "yesterday"],
        ["--to-datetime", "2026-11-23T12:00"],
        ["--to-offset", "-1"],
    ):
        assert run(done, "reset", "invoicing", *wrong).exit_code == 2
    with closing(ShareConsumer(SETTINGS, log=done)) as other:
        other.subscribe(["orders"])
        fill(producer, 1)
        (message,) = take(other, 1)
        for command in (("reset", "invoicing", "--to-latest"), ("delete", "invoicing")):
            result = run(done, *command, "--execute")
            assert isinstance(result.exception, NotAllowedError)
            assert "stop its consumers first" in str(result.exception)
        txn = producer.begin_transaction()
        other.acknowledge(message, txn=txn)
        eventually(lambda: shown(done)["pending"] == 1)
    eventually(lambda: not asked(done, "show", "invoicing")["consumers"])
    for command in (("reset", "invoicing", "--to-latest"), ("delete", "invoicing")):
        result = run(done, *command, "--execute")
        assert isinstance(result.exception, NotAllowedError)
        assert f"logtx txn abort {txn.txid}" in str(result.exception)
    txn.abort()


# ---- consumers that come back -------------------------------------------------------------------


class Away:
    """A consumer whose process stands still, until the coordinator takes it for gone."""

    def __init__(self, log: MemoryLog, queue: ShareConsumer) -> None:
        client = queue._client
        assert client is not None
        assert client._stream is not None
        self._finder, self._find = client._finder, client._finder.find
        self._finder.find = self._nobody  # type: ignore[method-assign]
        client._stream.close()
        eventually(lambda: not asked(log, "show", "invoicing")["consumers"])

    def _nobody(self) -> None:
        time.sleep(0.02)

    def comes_back(self) -> None:
        self._finder.find = self._find  # type: ignore[method-assign]


def polled_until_told(queue: ShareConsumer) -> list[Any]:
    """Polls until it is told that the subscription was reset or deleted. Returns what came."""
    found: list[Any] = []

    def raises() -> bool:
        try:
            found.extend(queue.poll(0.1))
        except SubscriptionResetError:
            return True
        return False

    eventually(raises)
    return found


def test_a_consumer_that_comes_back_has_lost_what_it_had(
    memory_log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer
) -> None:
    """What it says of that does not count, and the application is told (trap 146)."""
    fill(producer, 3)
    first, second, third = take(queue, 3)
    away = Away(memory_log, queue)
    queue.acknowledge(first)
    queue.commit_async()
    reset(memory_log, "--to-earliest", "--execute")
    away.comes_back()
    again = polled_until_told(queue)
    assert shown(memory_log)["depth"] == 3
    again += take(queue, 3 - len(again))
    assert [each.value() for each in again] == [b"0", b"1", b"2"]
    for lost in (second, third):
        with pytest.raises(SubscriptionResetError, match="reset or deleted"):
            queue.acknowledge(lost)
    with (
        pytest.raises(SubscriptionResetError),
        producer.begin_transaction() as txn,
    ):
        queue.acknowledge(second, txn=txn)
    for each in again:
        queue.acknowledge(each)
    assert set(queue.commit_sync().values()) == {None}
    assert shown(memory_log)["depth"] == 0
    with pytest.raises(NotHeldError):
        queue.acknowledge(again[0])


def test_a_transaction_that_took_a_message_of_before_can_not_commit(
    memory_log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer
) -> None:
    fill(producer, 2)
    first, second = take(queue, 2)
    txn = producer.begin_transaction()
    away = Away(memory_log, queue)
    reset(memory_log, "--to-earliest", "--execute")
    queue.acknowledge(first, txn=txn)
    queue.acknowledge(second, txn=txn)
    with pytest.raises(SubscriptionResetError):
        txn.commit()
    txn.abort()
    away.comes_back()
    assert len(take(queue, 2)) == 2


def test_blocks_go_on_behind_a_reset(
    memory_log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer
) -> None:
    """What waited for its block is another one's now, and the block at hand is thrown away."""
    memory_log.create_topic("invoices", partitions=1)
    fill(producer, 6)
    seen: list[bytes | None] = []
    for block in logtx.process(queue, producer, max_records=2, timeout=5.0):
        if not seen:
            away = Away(memory_log, queue)
            block.txn.abort()
            eventually(lambda: shown(memory_log)["pending"] == 0)
            reset(memory_log, "--to-earliest", "--execute")
            away.comes_back()
        for message in block:
            seen.append(message.value())
            block.produce("invoices", message.value())
        if shown(memory_log)["depth"] == 0:
            break
        if len(seen) > 60:
            pytest.fail("it does not end")
    assert {b"0", b"1", b"2", b"3", b"4", b"5"} <= set(seen)


# ---- what is deleted ----------------------------------------------------------------------------


def test_what_is_deleted_is_forgotten_and_made_anew(done: MemoryLog) -> None:
    dry = run(done, "delete", "invoicing")
    assert dry.exit_code == 0, dry.exception
    assert "of 2 partitions would be forgotten, with 0 offsets" in dry.stdout
    assert "add --execute" in dry.stdout
    text = run(done, "delete", "invoicing", "--execute")
    assert text.exit_code == 0, (text.exception, text.output)
    assert "stays bound to transaction group default (logtx group unbind invoicing)" in text.stdout
    assert asked(done, "list") == {"subscriptions": [], "unreachable": []}
    assert isinstance(run(done, "show", "invoicing").exception, UnknownSubscriptionError)
    with closing(ShareConsumer(SETTINGS, log=done)) as again:
        again.subscribe(["orders"])
        assert values(worked_off(again, 6)) == [0, 0, 1, 1, 2, 3]


def test_the_name_of_what_was_deleted_may_be_bound_elsewhere(done: MemoryLog) -> None:
    elsewhere = {**SETTINGS, "transaction.group": "elsewhere"}
    with closing(ShareConsumer(elsewhere, log=done)) as refused, pytest.raises(GroupBoundError):
        refused.subscribe(["orders"])
    assert run_group(done, "unbind", "invoicing").exit_code != 0
    run(done, "delete", "invoicing", "--execute")
    unbound = run_group(done, "unbind", "invoicing")
    assert unbound.exit_code == 0, (unbound.exception, unbound.output)
    with closing(ShareConsumer(elsewhere, log=done)) as there:
        there.subscribe(["orders"])
        assert values(worked_off(there, 6)) == [0, 0, 1, 1, 2, 3]
    (listed,) = asked(done, "list")["subscriptions"]
    assert listed["transaction_group"] == "elsewhere"


@pytest.mark.parametrize("bound", [True, False])
def test_a_consumer_comes_back_to_what_was_deleted(
    memory_log: MemoryLog, producer: logtx.Producer, coordinator: EmbeddedCoordinator, bound: bool
) -> None:
    """With `latest` it gets what comes from then on, and not all that the topic has (trap 149)."""
    assert coordinator.address
    fill(producer, 3)
    settings = {**SETTINGS, "auto.offset.reset": "latest"}
    with closing(ShareConsumer(settings, log=memory_log)) as queue:
        queue.subscribe(["orders"])
        assert queue.poll(0.2) == []
        fill(producer, 2)
        first, second = take(queue, 2)
        away = Away(memory_log, queue)
        queue.acknowledge(first)
        run(memory_log, "delete", "invoicing", "--execute")
        if not bound:
            run_group(memory_log, "unbind", "invoicing")
        away.comes_back()
        assert polled_until_told(queue) == []
        assert asked(memory_log, "list")["subscriptions"] == [], "not before the next poll"

        def is_made() -> bool:
            try:
                assert queue.poll(0.1) == []
            except SubscriptionResetError:
                return False
            return bool(asked(memory_log, "list")["subscriptions"])

        eventually(is_made)
        fill(producer, 1)
        found: list[Any] = []

        def came() -> bool:
            # What was acknowledged before may be told to be refused only now.
            with suppress(SubscriptionResetError):
                found.extend(queue.poll(0.2))
            return bool(found)

        eventually(came)
        (message,) = found
        assert message.offset() == 5
        with pytest.raises(SubscriptionResetError):
            queue.acknowledge(second)
        queue.commit_sync()  # What was acknowledged before may be told to be refused only now.
        queue.acknowledge(message)
        assert set(queue.commit_sync().values()) == {None}
