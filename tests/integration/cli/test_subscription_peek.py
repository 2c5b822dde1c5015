"""`logtx subscription peek` against a coordinator: what would be given out next."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

import logtx
from logtx.consumer.share_consumer import ShareConsumer
from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol.queues import AcknowledgeType
from logtx.integration.inspect import queue_peek
from logtx.journal.errors import UnknownSubscriptionError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Mode
from logtx.journal.sidecar import is_delivered_from_sidecar, sidecar_of

from .test_subscription import SETTINGS, coordinator, fill, producer, queue, run, shown, take

__all__ = ["coordinator", "producer", "queue"]


def peek(log: MemoryLog, *arguments: str) -> list[dict[str, Any]]:
    result = run(log, "peek", "invoicing", *arguments, "--json")
    assert result.exit_code == 0, (result.exception, result.output)
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def values(found: list[dict[str, Any]]) -> list[Any]:
    return [each["value"] for each in found]


def test_what_was_never_given_out(
    memory_log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer
) -> None:
    take(queue, 0)
    queue.close()
    assert run(memory_log, "peek", "invoicing").stdout.strip() == "no message"
    producer.produce("orders", b"x" * 100, b"k", partition=0, headers=[("h", b"1")])
    producer.produce("orders", b"\xff", partition=1)
    producer.flush()
    first, second = peek(memory_log)
    assert first.pop("written_ms") > 0
    assert first == {
        "topic": "orders",
        "partition": 0,
        "place": {"offset": 0, "sequence": None, "nth": 0},
        "offset": 0,
        "key": "k",
        "value": "x" * 100,
        "headers": [{"name": "h", "value": "1"}],
        "transaction": None,
        "failure": None,
    }
    assert second["value"] == {"base64": "/w=="}
    text = run(memory_log, "peek", "invoicing", "orders[0]").stdout
    assert "x" * 60 + "… (100 bytes)" in text
    assert "\N{REPLACEMENT CHARACTER}" not in text, "one partition alone"


def test_what_is_leased_acknowledged_or_delayed_is_left_out(
    memory_log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer
) -> None:
    fill(producer, 7)
    messages = take(queue, 7)
    queue.acknowledge(messages[0])
    queue.acknowledge(messages[2], AcknowledgeType.RELEASE)
    queue.acknowledge(messages[4], AcknowledgeType.RELEASE)
    queue.acknowledge(messages[6], AcknowledgeType.RELEASE, delay=30)
    queue.commit_sync()
    fill(producer, 2)
    before = shown(memory_log)
    assert values(peek(memory_log)) == ["2", "4", "0", "1"]
    assert values(peek(memory_log, "--limit", "3")) == ["2", "4", "0"]
    after = shown(memory_log)
    assert {**before, "oldest_ms": None} == {**after, "oldest_ms": None}, "it changes nothing"


def test_a_transaction_is_shown_at_its_marker_and_an_open_one_is_not(
    memory_log: MemoryLog, producer: logtx.Producer, queue: ShareConsumer
) -> None:
    take(queue, 0)
    queue.close()
    fill(producer, 1)
    txn = producer.begin_transaction()
    for value in (b"a", b"b"):
        txn.produce("orders", value, partition=0)
    hangs = producer.begin_transaction()
    hangs.produce("orders", b"c", partition=0)
    producer.flush()
    assert values(peek(memory_log)) == ["0"]
    txn.commit(finished=True)
    plain, *of_txn = peek(memory_log)
    assert plain["transaction"] is None
    assert values(of_txn) == ["a", "b"]
    assert {each["transaction"] for each in of_txn} == {str(txn.txid)}
    (at,) = {each["place"]["offset"] for each in of_txn}
    assert [each["place"]["nth"] for each in of_txn] == [0, 1]
    assert [each["offset"] for each in of_txn] == [1, 2]
    assert at > 2
    assert of_txn[0]["headers"] == []
    assert f"{at} +1" in run(memory_log, "peek", "invoicing").stdout
    hangs.abort()


def test_a_topic_in_metadata_mode(
    memory_log: MemoryLog, coordinator: EmbeddedCoordinator, producer: logtx.Producer
) -> None:
    assert coordinator.address
    with closing(AdminQueries(memory_log, timeout_s=10.0)) as admin:
        admin.set_topic_mode("orders", Mode.METADATA, transaction_group="default")
    with closing(ShareConsumer(SETTINGS, log=memory_log)) as queue:
        queue.subscribe(["orders"])
        take(queue, 0)
    with producer.begin_transaction() as txn:
        txn.produce("orders", b"a", partition=0)
    txn.commit(finished=True)
    (found,) = peek(memory_log, "orders[0]")
    assert (found["value"], found["transaction"]) == ("a", str(txn.txid))
    assert found["place"]["sequence"] is not None, "it has its place, at the very end"
    named = "{offset}@{sequence}".format(**found["place"])
    assert named in run(memory_log, "peek", "invoicing").stdout
    skipped = run(memory_log, "skip", "invoicing", "orders[0]", named, "--execute")
    assert skipped.exit_code == 0, skipped.output
    assert peek(memory_log, "orders[0]") == []


def test_what_lies_in_a_sidecar(memory_log: MemoryLog, queue: ShareConsumer) -> None:
    take(queue, 0)
    queue.close()
    settings = {"transactional.id": "aside", "transaction.sidecar.min.bytes": 0}
    with logtx.Producer(settings, log=memory_log) as aside:
        with aside.begin_transaction() as txn:
            for value in (b"a", b"b"):
                txn.produce("orders", value, partition=0)
        txn.commit(finished=True)
        aside.produce("orders", b"behind", partition=0)
        aside.flush()
        found = peek(memory_log)
        assert values(found) == ["a", "b", "behind"]
        assert [each["transaction"] for each in found] == [*[str(txn.txid)] * 2, None]
        assert [each["place"]["nth"] for each in found] == [0, 1, 0]
        assert [is_delivered_from_sidecar(each["offset"]) for each in found] == [True, True, False]
        assert values(peek(memory_log, "--limit", "1")) == ["a"]
        memory_log.delete_records(sidecar_of("orders"), 0, 2)
        (gone,) = peek(memory_log)
    assert "retention deleted a part of it" in gone["failure"]
    assert gone["failure"] in run(memory_log, "peek", "invoicing").stdout


def test_long_queues_are_read_in_slices(
    memory_log: MemoryLog,
    producer: logtx.Producer,
    queue: ShareConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take(queue, 0)
    queue.close()
    fill(producer, 9)
    monkeypatch.setattr(queue_peek, "SLICE_OFFSETS", 2)
    assert values(peek(memory_log, "--limit", "8")) == [str(n) for n in range(8)]
    monkeypatch.setattr(queue_peek, "OFFSETS_MAX", 4)
    assert values(peek(memory_log)) == ["0", "1", "2", "3"]
    monkeypatch.setattr(queue_peek, "AVAILABLE_MAX", 0)
    assert peek(memory_log) == [], "what was given out may go on behind what is told"


@pytest.mark.usefixtures("queue")
def test_what_is_not_there_is_refused(memory_log: MemoryLog, producer: logtx.Producer) -> None:
    fill(producer, 1)
    for arguments, text in (
        (["nobody"], "no subscription 'nobody'"),
        (["invoicing", "orders[7]"], "has no partition orders[7]"),
    ):
        result = run(memory_log, "peek", *arguments)
        assert isinstance(result.exception, UnknownSubscriptionError), result.output
        assert text in str(result.exception)
    assert run(memory_log, "peek", "invoicing", "orders").exit_code == 2
    assert run(memory_log, "peek", "invoicing", "--limit", "0").exit_code == 2
