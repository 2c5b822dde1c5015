"""`logtx metadata` and `logtx txn show` against a coordinator with a store."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import logtx
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.coordinator.store.core.changes import Change
from logtx.coordinator.store.opening import MetadataConfig
from logtx.integration.cli import main as cli
from logtx.integration.cli import metadata as cli_metadata
from logtx.journal.errors import ConfigError, MetadataNotServedError, UnknownTransactionError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Position
from logtx.journal.records.types import OffsetStep

Run = Callable[..., Result]


@pytest.fixture
def coordinator(memory_log: MemoryLog, tmp_path: Path) -> Iterator[EmbeddedCoordinator]:
    """A coordinator with a store, of a log in memory."""
    memory_log.create_topic("orders", partitions=2)
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=3,
        metadata=MetadataConfig(store=f"rocksdb:{tmp_path}"),
    )
    with EmbeddedCoordinator(config) as running:
        yield running


@pytest.fixture
def run(memory_log: MemoryLog) -> Run:
    """`run("metadata", "status")`: runs a command of `logtx`."""

    def invoke(*arguments: str) -> Result:
        servers = "--bootstrap-servers", memory_log.bootstrap_servers
        return CliRunner().invoke(cli.app, [*arguments, *servers])

    return invoke


@pytest.fixture
def producer(memory_log: MemoryLog) -> Iterator[logtx.Producer]:
    """A producer."""
    made = logtx.Producer(
        {
            "bootstrap.servers": memory_log.bootstrap_servers,
            "transactional.id": "w-1",
            "transaction.begin.ahead": False,
        }
    )
    made.init_transactions()
    yield made
    made.close()


def commit(producer: logtx.Producer) -> Any:
    """Commits a transaction, and returns its TxId."""
    transaction = producer.begin_transaction()
    transaction.produce("orders", b"x", partition=0)
    transaction.commit()
    return transaction.txid


@pytest.mark.parametrize("name", ["status", "horizon", "check"])
def test_every_command_and_option_has_help(name: str) -> None:
    command: Any = typer.main.get_command(cli_metadata.metadata).commands[name]  # type: ignore[attr-defined]
    assert f"logtx metadata {name}" in command.help
    for parameter in command.params:
        assert parameter.help, f"{name} {parameter.name} has no help text"


@pytest.mark.usefixtures("coordinator")
def test_what_is_there_is_shown(run: Run, producer: logtx.Producer) -> None:
    txid = commit(producer)
    shown = json.loads(run("txn", "show", str(txid), "--json").stdout)
    assert shown["state"] in ("committing", "committed")
    assert shown["producer"] == "w-1"
    assert "w-1" in run("txn", "show", str(txid)).stdout
    status = json.loads(run("metadata", "status", "--json").stdout)
    assert status["back_end"] == "rocksdb"
    assert len(status["partitions"]) == 3
    assert "rocksdb, of one coordinator" in run("metadata", "status").stdout
    rows = json.loads(run("metadata", "horizon", "orders", "--json").stdout)
    assert [row["partition"] for row in rows] == [0, 1]
    assert rows[1]["max_read_position"] == -1
    assert "max read position" in run("metadata", "horizon", "orders", "0").stdout


@pytest.mark.usefixtures("coordinator")
def test_an_open_transaction_shows_its_operations(run: Run, producer: logtx.Producer) -> None:
    transaction = producer.begin_transaction(partitions=[("orders", 1)])
    shown = run("txn", "show", str(transaction.txid))
    assert shown.exit_code == 0, shown.output
    assert "orders" in shown.stdout
    transaction.abort()


@pytest.mark.usefixtures("coordinator")
def test_a_transaction_that_never_was_is_an_error(run: Run) -> None:
    result = run("txn", "show", "0-00000000007f-3")
    assert isinstance(result.exception, UnknownTransactionError)
    assert "logtx txn describe" in str(result.exception)


def test_without_a_store_the_error_says_how_to_get_one(memory_log: MemoryLog, run: Run) -> None:
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers, listen="127.0.0.1:0", journal_partitions=1
    )
    with EmbeddedCoordinator(config):
        result = run("metadata", "status")
    assert isinstance(result.exception, MetadataNotServedError)
    assert "--metadata-store" in str(result.exception)


def test_a_store_that_is_wrong_is_found(
    coordinator: EmbeddedCoordinator, run: Run, producer: logtx.Producer
) -> None:
    txids = [commit(producer) for _ in range(5)]
    right = run("metadata", "check")
    assert right.exit_code == 0, right.output
    assert "5 transactions" in right.stdout
    assert "is what the journal says" in right.stdout
    falsify(coordinator, txids[2])
    wrong = run("metadata", "check", "--json")
    assert wrong.exit_code == 1
    assert [row["txid"] for row in json.loads(wrong.stdout)["wrong"]] == [str(txids[2])]


def falsify(coordinator: EmbeddedCoordinator, txid: Any) -> None:
    """Makes the store of a coordinator say that another producer began a transaction."""
    import asyncio
    from dataclasses import replace

    found = _running(coordinator)

    async def change() -> None:
        store = found.service._store
        assert store is not None
        header = await store.header(txid)
        assert header is not None
        assert await store.delete([Change(header, replace(header, producer_id="other"))])

    loop = coordinator._loop
    assert loop is not None
    asyncio.run_coroutine_threadsafe(change(), loop).result(10)


def _running(coordinator: EmbeddedCoordinator) -> Any:
    """Returns what runs the store of a coordinator."""
    import gc

    from logtx.coordinator.service import Coordinator

    gc.collect()  # That of an earlier test may have had the same port.
    (found,) = [
        o
        for o in gc.get_objects()
        if isinstance(o, Coordinator) and o.address == coordinator.address
    ]
    return found._metadata


# ---- lists and watches --------------------------------------------------------------------------


def listed(run: Run, *options: str) -> list[str]:
    """Returns the TxIds that `logtx txn list` shows."""
    result = run("txn", "list", *options, "--json")
    assert result.exit_code == 0, result.output
    return [row["txid"] for row in json.loads(result.stdout)["transactions"]]


@pytest.mark.usefixtures("coordinator")
def test_finished_transactions_are_listed(run: Run, producer: logtx.Producer) -> None:
    done = str(commit(producer))
    aborted = producer.begin_transaction()
    lost = str(aborted.txid)
    aborted.abort()
    open_ = producer.begin_transaction(partitions=[("orders", 1)])
    assert listed(run, "--finished") == [done, lost, str(open_.txid)]
    assert listed(run, "--finished", "--since", "1h", "--limit", "2") == [lost, str(open_.txid)]
    assert listed(run, "--finished", "--since", "0s") == [str(open_.txid)]
    shown = listed(run, "--finished", "--state", "aborting", "--state", "aborted")
    assert shown == [lost]
    assert listed(run, "--finished", "--producer", "another") == []
    table = run("txn", "list", "--finished", "--limit", "1").stdout
    assert str(open_.txid) in table
    assert "--limit takes more" in table
    open_.abort()


@pytest.mark.usefixtures("coordinator")
def test_transactions_are_listed_by_what_they_touch(run: Run, producer: logtx.Producer) -> None:
    one = producer.begin_transaction(partitions=[("orders", 0)])
    both = producer.begin_transaction(partitions=[("orders", 0), ("orders", 1)])
    step = OffsetStep("orders", 0, None, Position(o1=7, o2=7))
    both.send_offsets("workers", [step])
    assert listed(run, "--topic", "orders", "--partition", "1") == [str(both.txid)]
    assert listed(run, "--topic", "orders", "--finished") == [str(one.txid), str(both.txid)]
    assert listed(run, "--topic", "orders", "--group", "workers") == [str(both.txid)]
    assert listed(run, "--topic", "orders", "--group", "others") == []
    one.abort()
    both.abort()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["txn", "list", "--partition", "1"], "name it with --topic"),
        (["txn", "list", "--group", "g"], "name it with --topic"),
    ],
)
def test_what_is_of_a_topic_asks_for_it(run: Run, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


@pytest.mark.parametrize("options", [(), ("--topic", "orders", "--txid", "0-00000000007f-3")])
def test_a_watch_is_of_one_thing(run: Run, options: tuple[str, ...]) -> None:
    result = run("txn", "watch", *options)
    assert result.exit_code == 2
    assert "either --txid or --topic" in result.output.replace("\n", " ")


@pytest.mark.usefixtures("coordinator")
def test_a_transaction_is_watched_until_it_is_finished(run: Run, producer: logtx.Producer) -> None:
    transaction = producer.begin_transaction(partitions=[("orders", 0)])
    transaction.produce("orders", b"x", partition=0)
    later = threading.Timer(1.0, transaction.commit)
    later.start()
    watched = run("txn", "watch", "--txid", str(transaction.txid), "--json", "--for", "60s")
    assert watched.exit_code == 0, watched.output
    rows = [json.loads(line) for line in watched.stdout.splitlines()]
    assert [row.get("state", "ready") for row in rows][:2] == ["open", "ready"]
    assert rows[-1]["state"] == "committed"
    later.join()


@pytest.mark.usefixtures("coordinator")
def test_a_topic_is_watched(run: Run, producer: logtx.Producer) -> None:
    transaction = producer.begin_transaction(partitions=[("orders", 1)])
    later = threading.Timer(1.0, transaction.abort)
    later.start()
    watched = run("txn", "watch", "--topic", "orders", "--for", "5s")
    assert watched.exit_code == 0, watched.output
    assert f"{transaction.txid} orders[1]: writes there" in watched.stdout
    assert "that is all so far" in watched.stdout
    assert f"{transaction.txid} is not kept any more" in watched.stdout
    later.join()


@pytest.mark.parametrize(
    "command",
    [
        ("txn", "list", "--finished"),
        ("txn", "watch", "--topic", "orders"),
        ("txn", "show", "0-00000000007f-3"),
    ],
)
def test_commands_of_transactions_say_how_to_get_a_store(
    memory_log: MemoryLog, run: Run, command: tuple[str, ...]
) -> None:
    memory_log.create_topic("orders", partitions=1)
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers, listen="127.0.0.1:0", journal_partitions=1
    )
    with EmbeddedCoordinator(config):
        result = run(*command)
    assert isinstance(result.exception, MetadataNotServedError)
    assert "logtx coordinator --metadata-store rocksdb:DIRECTORY" in str(result.exception)
