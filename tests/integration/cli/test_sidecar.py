"""`logtx sidecar` against a coordinator that trims nothing by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import logtx
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.server.trimming import SidecarConfig
from logtx.coordinator.service import CoordinatorConfig
from logtx.integration.cli import main as cli
from logtx.journal.errors import TransactionStateError, UnknownTopicError
from logtx.journal.logs.memory.log import MemoryLog

SIDE = "orders._txnlog"


@pytest.fixture
def coordinator(memory_log: MemoryLog) -> Iterator[EmbeddedCoordinator]:
    """A coordinator on a log with two topics."""
    for name in ("orders", "payments"):
        memory_log.create_topic(name, partitions=2)
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=3,
        sidecars=SidecarConfig(trim_delay_ms=-1),
    )
    with EmbeddedCoordinator(config) as running:
        yield running


@pytest.fixture
def producer(memory_log: MemoryLog, coordinator: EmbeddedCoordinator) -> Iterator[logtx.Producer]:
    """A producer that begins nothing ahead."""
    assert coordinator
    settings = {"bootstrap.servers": memory_log.bootstrap_servers, "transaction.begin.ahead": False}
    with logtx.Producer(settings) as made:
        yield made


def run(log: MemoryLog, *arguments: str) -> Result:
    """Runs `logtx sidecar`."""
    environment = {"LOGTX_BOOTSTRAP_SERVERS": log.bootstrap_servers, "COLUMNS": "200"}
    return CliRunner().invoke(cli.app, ["sidecar", *arguments], env=environment)


def listed(log: MemoryLog, *arguments: str) -> dict[str, Any]:
    """What `list` shows."""
    result = run(log, "list", *arguments, "--json")
    assert result.exit_code == 0, (result.exception, result.output)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def commit(producer: logtx.Producer, count: int) -> None:
    """A transaction with so many records in the sidecar."""
    with producer.begin_transaction(sidecar=True) as txn:
        for number in range(count):
            txn.produce("orders", str(number), partition=0)
    txn.commit(finished=True)


@pytest.mark.usefixtures("coordinator")
def test_nothing_is_there(memory_log: MemoryLog) -> None:
    assert "no topic has a sidecar" in run(memory_log, "list").stdout
    assert listed(memory_log) == {"sidecars": [], "undecided": [], "unreachable": []}
    for command in (("list", "payments"), ("trim", "payments")):
        result = run(memory_log, *command)
        assert isinstance(result.exception, UnknownTopicError)
        assert "payments has no sidecar" in str(result.exception)


def test_what_holds_a_sidecar_is_shown(memory_log: MemoryLog, producer: logtx.Producer) -> None:
    commit(producer, 4)
    commit(producer, 2)
    memory_log.delete_records("orders", 0, 1)
    open_ = producer.begin_transaction(sidecar=True)
    open_.produce("orders", "open", partition=1)
    producer.flush(10)
    told = listed(memory_log, "orders")
    assert listed(memory_log, SIDE) == told == listed(memory_log)
    first, second = told["sidecars"]
    assert first.pop("journal_partition") in range(3)
    assert first == {
        "topic": "orders",
        "sidecar": SIDE,
        "partition": 0,
        "start": 0,
        "end": 8,
        "main_start": 1,
        "needed_from": 5,
        "pointer": 1,
    }
    assert (second["end"], second["needed_from"], second["pointer"]) == (1, None, None)
    assert told["undecided"] == [str(open_.txid)]
    text = run(memory_log, "list").stdout
    assert "needed from" in text
    assert f"trimming waits for transaction {open_.txid}" in text
    open_.abort()


def test_trimming_waits_for_what_is_open_and_may_only_tell(
    memory_log: MemoryLog, producer: logtx.Producer
) -> None:
    commit(producer, 4)
    commit(producer, 2)
    memory_log.delete_records("orders", 0, 1)
    open_ = producer.begin_transaction()
    open_.produce("payments", "another topic", partition=0)
    producer.flush(10)
    result = run(memory_log, "trim", "orders", "--wait", "0")
    assert isinstance(result.exception, TransactionStateError)
    assert str(open_.txid) in str(result.exception)
    open_.commit(finished=True)
    row = {"topic": "orders", "sidecar": SIDE, "partition": 0, "start": 0, "new_start": 5}
    told = run(memory_log, "trim", "orders", "--dry-run", "--json")
    assert json.loads(told.stdout) == [row]
    assert memory_log.start_offset(SIDE, 0) == 0
    assert "would start at" in run(memory_log, "trim", SIDE, "--dry-run").stdout
    assert "starts at" in run(memory_log, "trim", "orders").stdout
    assert memory_log.start_offset(SIDE, 0) == 5
    assert "nothing can be trimmed" in run(memory_log, "trim", "orders").stdout
    memory_log.delete_records("orders", 0, 2)
    assert run(memory_log, "trim", "orders").exit_code == 0
    assert memory_log.start_offset(SIDE, 0) == 8


def test_a_sidecar_that_is_created_anew_meanwhile_stays(
    memory_log: MemoryLog, producer: logtx.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted = producer.begin_transaction(sidecar=True)
    aborted.produce("orders", "x", partition=0)
    producer.flush(10)
    aborted.abort()
    topic_ids = MemoryLog.topic_ids

    def other(self: MemoryLog, topics: Any, **named: Any) -> dict[str, str]:
        return {**topic_ids(self, topics, **named), SIDE: "another"}

    monkeypatch.setattr(MemoryLog, "topic_ids", other)
    result = run(memory_log, "trim", "orders")
    assert "created anew" in str(result.exception)
    assert memory_log.start_offset(SIDE, 0) == 0
