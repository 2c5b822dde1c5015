"""`logtx txn` and `logtx keys` against a coordinator, and one journal partition that is gone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import logtx
from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol.commands import KeyInfo, Outcome, TransactionInfo
from logtx.coordinator.service import CoordinatorConfig
from logtx.integration.cli import admin as cli_admin
from logtx.integration.cli import cluster as cli_cluster
from logtx.integration.cli import main as cli
from logtx.integration.local.ports import pick_ports
from logtx.journal.errors import (
    CoordinatorNotAvailableError,
    UnknownKeyError,
    UnknownTransactionError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.state import State
from logtx.journal.txid import TxId

GROUPS = {"txn": cli_admin.txn, "keys": cli_admin.keys}
COMMANDS = [
    (group, command.name) for group, app in GROUPS.items() for command in app.registered_commands
]

Run = Callable[..., Result]
Producers = Callable[..., logtx.Producer]


@pytest.fixture
def coordinator(memory_log: MemoryLog) -> Iterator[EmbeddedCoordinator]:
    """A coordinator of a log in memory."""
    memory_log.create_topic("orders", partitions=6)
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers, listen="127.0.0.1:0", journal_partitions=3
    )
    with EmbeddedCoordinator(config) as running:
        yield running


@pytest.fixture
def producers(memory_log: MemoryLog) -> Iterator[Producers]:
    """`producers(**{setting: value})`: a producer that is closed with the test."""
    made: list[logtx.Producer] = []

    def make(**settings: Any) -> logtx.Producer:
        base = {"bootstrap.servers": memory_log.bootstrap_servers}
        made.append(logtx.Producer({**base, **settings}))
        return made[-1]

    yield make
    for each in made:
        each.close(1)


@pytest.fixture
def run(memory_log: MemoryLog) -> Run:
    """`run("txn", "list")`: the command on that log."""

    def invoke(*arguments: str) -> Result:
        environment = {"LOGTX_BOOTSTRAP_SERVERS": memory_log.bootstrap_servers, "COLUMNS": "200"}
        return CliRunner().invoke(cli.app, [*arguments], env=environment)

    return invoke


@pytest.mark.parametrize(("group", "name"), COMMANDS)
def test_every_command_and_option_has_help(group: str, name: str) -> None:
    command: Any = typer.main.get_command(GROUPS[group]).commands[name]  # type: ignore[attr-defined]
    assert "Examples:" in command.help
    assert f"logtx {group} {name}" in command.help
    for parameter in command.params:
        assert parameter.help, f"{group} {name} {parameter.name} has no help text"


@pytest.mark.usefixtures("coordinator")
def test_who_is_hanging(producers: Producers, run: Run) -> None:
    partitions = [("orders", p) for p in range(5)]
    one = producers(**{"transactional.id": "worker-1"}).begin_transaction(partitions=partitions)
    first = one.txid
    time.sleep(0.01)
    two = producers(**{"transaction.key": "nightly"}).begin_transaction()
    second = two.txid

    shown = run("txn", "list")
    assert shown.exit_code == 0, shown.output
    assert str(first) in shown.output
    assert "worker-1" in shown.output
    assert "and 3 more" in shown.output
    listed = json.loads(run("txn", "list", "--json").output)
    assert listed["unreachable"] == []
    assert [t["txid"] for t in listed["transactions"]] == [str(first), str(second)]
    assert listed["transactions"][0]["partitions"] == [f"orders[{p}]" for p in range(5)]

    def found(*filters: str) -> list[str]:
        rows = json.loads(run("txn", "list", "--json", *filters).output)["transactions"]
        return [row["txid"] for row in rows]

    assert found("--producer", "worker-1") == [str(first)]
    assert found("--producer", "&default&nightly") == [str(second)]
    assert found("--topic", "orders") == [str(first)]
    assert found("--older-than", "1h") == []
    assert found("--state", "open") == [str(first), str(second)]
    assert found("--state", "committing", "--state", "aborting") == []
    assert run("txn", "list", "--older-than", "soon").exit_code == 2

    described = run("txn", "describe", str(first)).output
    assert "orders[4]" in described
    assert "timeout: 1m" in described
    assert f"started: {time.localtime().tm_year}-" in described
    assert "groups" not in described, "it has none"


@pytest.mark.usefixtures("coordinator")
def test_an_operators_abort(producers: Producers, run: Run) -> None:
    producer = producers()
    hanging, done = producer.begin_transaction(), producer.begin_transaction()
    txids = str(hanging.txid), str(done.txid)
    done.commit()
    both = run("txn", "abort", *txids)
    assert both.exit_code == 1
    assert f"{txids[0]}: abort" in both.output
    assert f"{txids[1]}: transaction {txids[1]} is commit" in both.output
    assert run("txn", "abort", txids[0]).exit_code == 0, "a repeat is a success"
    with pytest.raises(logtx.TransactionAbortedError):
        hanging.commit()
    told = json.loads(run("txn", "describe", txids[0], "--json").output)
    assert told["state"] in ("aborting", "aborted")
    assert told["commit_sequence"] > 0
    unknown = run("txn", "describe", txids[0].rpartition("-")[0] + "-99999")
    assert isinstance(unknown.exception, UnknownTransactionError)
    assert run("txn", "abort", "nonsense").exit_code == 2


@pytest.mark.usefixtures("coordinator")
def test_keys(producers: Producers, run: Run) -> None:
    opened = producers(**{"transaction.key": "nightly"}).begin_transaction()
    txid = str(opened.txid)
    producers(**{"transaction.key": "weekly"}).init_transactions()
    shown = run("keys", "list").output
    assert "nightly" in shown
    assert txid in shown
    listed = json.loads(run("keys", "list", "--json").output)["keys"]
    assert [(k["owner"], k["key"], k["epoch"]) for k in listed] == [
        ("default", "nightly", 0),
        ("default", "weekly", 0),
    ]
    got = json.loads(run("keys", "get", "nightly", "--json").output)
    assert got["transactions"] == [txid]
    got_text = run("keys", "get", "nightly").output
    assert "epoch: 0" in got_text
    assert f"connected: {time.localtime().tm_year}-" in got_text
    assert run("keys", "delete", "nightly").output == "nightly: deleted\n"
    assert run("keys", "delete", "nightly").exit_code == 0
    assert isinstance(run("keys", "get", "nightly").exception, UnknownKeyError)
    assert isinstance(run("keys", "delete", "never").exception, UnknownKeyError)
    listed = json.loads(run("keys", "list", "--json").output)["keys"]
    assert [k["key"] for k in listed] == ["weekly"]


@pytest.mark.usefixtures("coordinator")
def test_a_partition_that_does_not_answer_is_reported(
    producers: Producers, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = producers(**{"transactional.id": "worker-1"}).begin_transaction()
    txid = opened.txid
    lost = (txid.partition + 1) % 3
    ask = AdminQueries._ask

    def gone(self: AdminQueries, of: str | int, *arguments: Any) -> Any:
        if of == lost:
            raise CoordinatorNotAvailableError("the coordinator at c-2:9095 can't be reached")
        return ask(self, of, *arguments)

    monkeypatch.setattr(AdminQueries, "_ask", gone)
    shown = run("txn", "list")
    assert shown.exit_code == 3
    assert str(txid) in shown.output
    assert f"journal partition {lost} did not answer: the coordinator at c-2:9095" in shown.output


ASKING = [
    ("txn", "list"),
    ("txn", "describe", "0-9f3ac1d2e4b7-1"),
    ("txn", "abort", "0-9f3ac1d2e4b7-1"),
    ("keys", "list"),
    ("keys", "get", "nightly"),
    ("keys", "delete", "nightly"),
]
READING = [
    ("journal", "accept-loss", "0", "--end", "5"),
    ("group", "list"),
    ("group", "reset", "g", "--to-offsets", "earliest"),
    ("audit",),
    ("export", "--topic", "t", "--path", "p"),
    ("export", "--topic", "t", "--to-topic", "p"),
]


@pytest.mark.parametrize("arguments", ASKING + READING, ids=" ".join)
def test_without_a_journal_a_command_says_what_to_do(arguments: tuple[str, ...]) -> None:
    servers = "--bootstrap-servers=memory://empty"
    error = CliRunner().invoke(cli.app, [*arguments, servers]).exception
    assert str(error) == (
        "The Kafka at memory://empty has no journal of logtx, because no coordinator was ever "
        "started there: start one with: logtx coordinator --bootstrap-servers memory://empty."
    )


@pytest.mark.parametrize("arguments", ASKING + READING, ids=" ".join)
def test_without_kafka_a_command_says_what_to_do(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_cluster, "ASK_TIMEOUT_S", 0.2)
    (port,) = pick_ports(1)
    servers = f"127.0.0.1:{port}"
    error = CliRunner().invoke(cli.app, [*arguments, "--bootstrap-servers", servers]).exception
    assert str(error) == (
        f"No Kafka answers at {servers}: check --bootstrap-servers, or start a local Kafka with: "
        "logtx up"
    )


@pytest.mark.parametrize("arguments", ASKING, ids=" ".join)
def test_without_a_coordinator_a_command_says_what_to_do(
    arguments: tuple[str, ...], memory_log: MemoryLog, run: Run
) -> None:
    servers = memory_log.bootstrap_servers
    config = CoordinatorConfig(
        bootstrap_servers=servers, listen="127.0.0.1:0", journal_partitions=3
    )
    with EmbeddedCoordinator(config) as coordinator:
        address = coordinator.address
    result = run(*arguments, "--timeout=0.2")
    assert "no transaction" not in result.output, "nobody knows whether there is one"
    assert isinstance(result.exception, CoordinatorNotAvailableError)
    said = str(result.exception)
    assert said.startswith("No coordinator answers (")
    assert address in said
    assert said.endswith(f"start one with: logtx coordinator --bootstrap-servers {servers}.")


@pytest.mark.parametrize(
    ("age_ms", "shown"),
    [(0, "0ms"), (999, "999ms"), (59_999, "59s"), (3_600_000, "1h"), (90_061_000, "1d 1h")],
)
def test_ages(age_ms: int, shown: str) -> None:
    assert cli_admin.show_age(age_ms) == shown


def test_names_with_escape_sequences_reach_no_terminal(
    monkeypatch: pytest.MonkeyPatch, run: Run, memory_log: MemoryLog
) -> None:
    memory_log.create_topic("__transaction_control", partitions=1)
    # The journal may have such names from before they were refused.
    evil, txid = "\x1b[2J\u202egood", TxId(0, 1, 2)
    info = TransactionInfo(
        txid=txid, state=State.OPEN, producer_id=evil, generation=1, started_ms=1, timeout_ms=2,
        partitions=((evil, 0),), groups=(evil,), age_ms=3, reason=None,
    )  # fmt: skip
    key = KeyInfo(name=f"&default&{evil}", epoch=1, connected_ms=1, age_ms=1, transactions=())
    for name, answer in {
        "partition_count": 1,
        "list_transactions": [info],
        "describe": info,
        "outcome": Outcome(txid, State.OPEN),
        "list_keys": [key],
        "get_key": key,
    }.items():
        monkeypatch.setattr(AdminQueries, name, lambda *_, answer=answer, **__: answer)
    for command in (
        ("txn", "list"),
        ("txn", "describe", str(txid)),
        ("keys", "list"),
        ("keys", "get", "k"),
        ("txn", "list", "--json"),
    ):
        shown = run(*command).output
        assert "\x1b" not in shown, command
        assert "\u202e" not in shown, command
        assert "good" in shown, command
