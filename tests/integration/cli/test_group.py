"""`logtx group`: where groups stand, setting them back, and who keeps that from being done."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner

from logtx.coordinator.client.admin import AdminQueries
from logtx.integration.cli import main as cli
from logtx.integration.cli.group import group
from logtx.integration.groups import GroupInUseError, Groups
from logtx.integration.inspect.committed_offsets import iov_rows
from logtx.integration.testing import Cluster
from logtx.journal.errors import (
    ConfigError,
    NotAllowedError,
    OffsetsConflictError,
    UnknownTopicError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Place, Position
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.records.types import OffsetStep

from ...waiting import eventually
from ..spark.conftest import ROOT


def move(cluster: Cluster, begin: int | None, end: int, group: str = "ledger") -> str:
    """Commits a step of a group, with a record. Returns the TxId."""
    with cluster.producer().begin_transaction() as txn:
        txn.produce("ledger", b"x")
        place = None if begin is None else Place(begin)
        txn.send_offsets(group, [OffsetStep("flights", 1, place, Position.at(end))])
    return str(txn.txid)


def stands_at(cluster: Cluster, offset: int) -> bool:
    return [r.offset for r in iov_rows(cluster.log, "ledger")] == [offset]


@pytest.fixture
def cluster(logtx_memory_cluster: Cluster) -> Cluster:
    """A cluster where the group "ledger" has committed twice, and is 5 offsets behind."""
    made = logtx_memory_cluster
    made.log.create_topic("flights", partitions=2)
    made.log.create_topic("ledger", partitions=1)
    for begin, end in ((None, 3), (3, 5)):
        move(made, begin, end)
    with made.producer().begin_transaction() as txn:
        for _ in range(9):
            txn.produce("flights", b"x", partition=1)
    eventually(lambda: made.log.end_offset("flights", 1) == 10)
    eventually(lambda: stands_at(made, 5))
    return made


def run(cluster: Cluster, command: str, *arguments: str) -> Any:
    """Runs a command on that cluster."""
    return CliRunner().invoke(
        cli.app,
        ["group", command, "--bootstrap-servers", cluster.bootstrap_servers, *arguments],
    )


def asked(cluster: Cluster, command: str, *arguments: str) -> Any:
    """Runs a command, which succeeds. Returns its JSON."""
    result = run(cluster, command, *arguments, "--json")
    assert result.exit_code == 0, (result.exception, result.output)
    return json.loads(result.output)


def failure(cluster: Cluster, command: str, *arguments: str) -> str:
    """Runs a command, which is refused. Returns the sentence."""
    result = run(cluster, command, *arguments)
    assert isinstance(result.exception, ConfigError | GroupInUseError), (
        result.exception,
        result.output,
    )
    return str(result.exception)


def test_every_command_is_described() -> None:
    page = (ROOT / "docs/groups.md").read_text("utf-8")
    assert [c.name for c in group.registered_commands if f"logtx group {c.name}" not in page] == []


def test_where_groups_stand(cluster: Cluster) -> None:
    (row,) = asked(cluster, "list")
    assert (row["group"], row["partitions"], row["lag"]) == ("ledger", 1, 5)
    assert row["committed_ms"] > 0
    shown = asked(cluster, "show", "ledger")
    assert [tuple(p.values()) for p in shown["partitions"]] == [
        ("flights", 0, None, 0, 0, 0),
        ("flights", 1, 5, 0, 10, 5),
    ]
    assert shown["txid"] == row["txid"]
    of_others = asked(cluster, "show", "ledger", "--topic", "ledger")["partitions"]
    assert [(p["topic"], p["offset"], p["lag"]) for p in of_others] == [("ledger", None, 4)]
    steps = asked(cluster, "history", "ledger")
    assert [(s["from_offset"], s["to_offset"]) for s in steps] == [(None, 3), (3, 5)]
    assert steps[1]["txid"] == row["txid"]
    for command in (("list",), ("show", "ledger"), ("history", "ledger")):
        # Nothing is cut where no terminal is.
        assert row["txid"] in run(cluster, *command).output


def test_a_name_that_is_misspelt(cluster: Cluster) -> None:
    reset = ("reset", "leger", "--to-offsets", "earliest", "--execute")
    for command in (
        *(("show", "leger"), ("show", "leger", "--offsets"), ("history", "leger"), reset),
        *(("delete", "leger"), ("unbind", "leger")),
    ):
        assert "did you mean 'ledger'?" in failure(cluster, *command)
    assert "see `logtx group list`" in failure(cluster, "show", "completely-other")
    assert "no offsets in nowhere" in failure(cluster, "delete", "ledger", "--topic", "nowhere")


def test_setting_back_to_a_commit(cluster: Cluster) -> None:
    first = asked(cluster, "history", "ledger")[0]
    plan = asked(cluster, "reset", "ledger", "--to-commit", first["txid"])
    (moved,) = plan["moved"]
    assert moved == {
        "topic": "flights",
        "partition": 1,
        "from_offset": 5,
        "to_offset": 3,
        "records": 0,
        "end": 10,
        "lag": 7,
    }
    assert (plan["steps"], plan["txid"]) == (1, None)
    assert (
        "Nothing was changed"
        in run(cluster, "reset", "ledger", "--to-commit", str(first["commit_sequence"])).output
    )
    assert stands_at(cluster, 5)
    done = asked(cluster, "reset", "ledger", "--to-commit", first["txid"], "--execute")
    eventually(lambda: stands_at(cluster, 3))
    last = asked(cluster, "history", "ledger")[-1]
    assert (last["txid"], last["from_offset"], last["to_offset"]) == (done["txid"], 5, 3)
    assert last["producer_id"] == "logtx-reset-ledger"
    assert (
        "stands there already"
        in run(cluster, "reset", "ledger", "--to-commit", first["txid"], "--execute").output
    )
    # Who goes on from where the group was is refused; who goes on from where it is, is not.
    with pytest.raises(OffsetsConflictError):
        move(cluster, 5, 6)
    move(cluster, 3, 6)
    for wrong in ("x", "7", done["txid"].rpartition("-")[0] + "-999999"):
        assert wrong in failure(cluster, "reset", "ledger", "--to-commit", wrong)


def test_setting_back_to_a_time(cluster: Cluster) -> None:
    def as_of(wall_ms: float) -> str:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat()

    first, second = (s["committed_ms"] for s in asked(cluster, "history", "ledger"))
    time.sleep(0.01)
    now_ms = time.time() * 1000
    move(cluster, 5, 7)
    (moved,) = asked(cluster, "reset", "ledger", "--as-of", as_of(now_ms), "--execute")["moved"]
    assert (moved["from_offset"], moved["to_offset"]) == (7, 5)
    if first < second:
        (moved,) = asked(cluster, "reset", "ledger", "--as-of", as_of(first))["moved"]
        assert (moved["from_offset"], moved["to_offset"]) == (5, 3)
    before = failure(cluster, "reset", "ledger", "--as-of", as_of(first - 60_000))
    assert "had no committed offsets" in before
    assert "future" in failure(cluster, "reset", "ledger", "--as-of", as_of(now_ms + 10**7))
    for wrong in ("yesterday", "2026-11-23T12:00"):
        assert run(cluster, "reset", "ledger", "--as-of", wrong).exit_code == 2


def test_setting_offsets(cluster: Cluster) -> None:
    printed = run(cluster, "show", "ledger", "--offsets").output
    assert json.loads(printed) == {"flights": {"0": -2, "1": 5}}
    assert asked(cluster, "reset", "ledger", "--to-offsets", printed)["steps"] == 1
    for text, offsets in (
        ("earliest", [0, 0]),
        ("latest", [0, 10]),
        ('{"flights": {"1": -1}}', [10]),
        ('{"flights": {"1": 8}}', [8]),
    ):
        done = asked(cluster, "reset", "ledger", "--to-offsets", text, "--execute")
        assert [m["to_offset"] for m in done["moved"]] == offsets
    # What is published follows the commits.
    eventually(lambda: asked(cluster, "show", "ledger")["partitions"][1]["offset"] == 8)
    for wrong in ("{}", "8", '{"flights": 8}', '{"flights": {"1": -3}}', '{"flights": {"-1": 3}}'):
        assert "offsets must be" in failure(cluster, "reset", "ledger", "--to-offsets", wrong)
    assert run(cluster, "reset", "ledger").exit_code == 2
    assert run(cluster, "reset", "ledger", "--to-commit", "1", "--as-of", "x").exit_code == 2


def test_offsets_that_are_gone(cluster: Cluster) -> None:
    beyond = ("reset", "ledger", "--to-offsets", '{"flights": {"1": 11}}')
    assert "ends at 10" in failure(cluster, *beyond)
    cluster.log.delete_records("flights", 1, 4)
    first = asked(cluster, "history", "ledger")[0]["txid"]
    back = ("reset", "ledger", "--to-commit", first)
    assert "begins at 4 now" in failure(cluster, *back)
    (moved,) = asked(cluster, *back, "--no-fail-on-data-loss")["moved"]
    assert moved["to_offset"] == 4
    cluster.log.delete_topic("flights")
    with pytest.raises(UnknownTopicError, match="name the topics to set back"):
        raise run(cluster, *back).exception
    (place,) = asked(cluster, "show", "ledger")["partitions"]
    assert (place["offset"], place["end"], place["lag"]) == (5, None, None)


def test_a_topic_that_was_created_again(cluster: Cluster) -> None:
    asked(cluster, "reset", "ledger", "--to-offsets", '{"flights": {"1": 4}}', "--execute")
    named = asked(cluster, "history", "ledger")[-1]["txid"]
    move(cluster, 4, 5)
    cluster.log.delete_topic("flights")
    cluster.log.create_topic("flights", partitions=2)
    with cluster.producer().begin_transaction() as txn:
        for _ in range(9):
            txn.produce("flights", b"x", partition=1)
    eventually(lambda: cluster.log.end_offset("flights", 1) == 10)
    # Offset 4 is there, and is one of another topic.
    back = ("reset", "ledger", "--to-commit", named)
    assert "was created again since" in failure(cluster, *back)
    done = asked(cluster, *back, "--no-fail-on-data-loss", "--execute")
    assert [m["to_offset"] for m in done["moved"]] == [0]
    again = ("reset", "ledger", "--to-offsets", '{"flights": {"1": 0}}')
    assert asked(cluster, *again)["steps"] == 0


def test_a_group_in_use_by_a_consumer(cluster: Cluster) -> None:
    consumer = cluster.consumer(
        "flights", group_id="ledger", offsets_storage="transactions", client_id="worker-7"
    )
    eventually(lambda: consumer.poll(0.05) is not None or bool(consumer.assignment()))
    for command in (("reset", "ledger", "--to-offsets", "earliest"), ("delete", "ledger")):
        assert "in use by" in failure(cluster, *command)
    consumer.close()
    asked(cluster, "reset", "ledger", "--to-offsets", "earliest", "--execute")


def test_a_group_in_use_by_a_transaction(cluster: Cluster) -> None:
    producer = cluster.producer(transactional_id="worker-8")
    txn = producer.begin_transaction()
    txn.send_offsets("ledger", [OffsetStep("flights", 1, Place(5), Position.at(6))])
    back = ("reset", "ledger", "--to-offsets", "earliest", "--execute")
    eventually(lambda: str(txn.txid) in failure(cluster, *back))
    said = failure(cluster, *back)
    assert "worker-8" in said
    txn.abort()
    asked(cluster, "reset", "ledger", "--to-offsets", "earliest", "--execute")


def test_who_commits_meanwhile_wins(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work = Groups._commit

    def late(self: Groups, *arguments: Any) -> Any:
        move(cluster, 5, 6)
        return at_work(self, *arguments)

    monkeypatch.setattr(Groups, "_commit", late)
    said = failure(cluster, "reset", "ledger", "--to-offsets", "earliest", "--execute")
    assert "moved meanwhile" in said
    eventually(lambda: stands_at(cluster, 6))


def test_who_commits_where_nothing_is_to_move_wins_too(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster.producer() as producer, producer.begin_transaction() as txn:
        txn.send_offsets("ledger", [OffsetStep("flights", 0, None, Position.at(1))])
    commit = Groups._commit

    def late(self: Groups, *args: Any) -> Any:
        move(cluster, 5, 6)
        return commit(self, *args)

    monkeypatch.setattr(Groups, "_commit", late)
    wanted = '{"flights": {"0": 0, "1": 5}}'
    assert "meanwhile" in failure(cluster, "reset", "ledger", "--to-offsets", wanted, "--execute")


def test_a_commit_that_is_not_finished(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    forget, times = AdminQueries.forget_group, iter([True, True, False])

    def unfinished(self: AdminQueries, group: str) -> None:
        if next(times, True):
            raise NotAllowedError("not finished")
        forget(self, group)

    monkeypatch.setattr(AdminQueries, "forget_group", unfinished)
    assert run(cluster, "delete", "ledger").exit_code == 0
    move(cluster, None, 5)
    assert "in use: not finished" in failure(cluster, "delete", "ledger", "--timeout", "0.3")


def test_deleting_and_beginning_anew(cluster: Cluster) -> None:
    has_offsets = failure(cluster, "unbind", "ledger")
    assert "has offsets in transaction group 'default'" in has_offsets
    assert run(cluster, "delete", "ledger").output == "ledger: deleted\n"
    eventually(lambda: run(cluster, "list").output == "no group\n")
    assert "no committed offsets" in failure(
        cluster, "reset", "ledger", "--to-offsets", '{"flights": {"1": 2}}'
    )
    created = ("reset", "ledger", "--to-offsets", '{"flights": {"1": 2}}', "--create-in", "other")
    asked(cluster, *created, "--execute")
    eventually(lambda: stands_at(cluster, 2))
    wrong = failure(cluster, *created[:-1], "default")
    assert "commits in transaction group 'other'" in wrong
    assert run(cluster, "delete", "ledger", "--topic", "flights").exit_code == 0
    eventually(lambda: asked(cluster, "list") == [])


def test_a_binding_by_mistake(cluster: Cluster) -> None:
    producer = cluster.producer(transaction_group="wrong")
    producer.bind_group("new")
    assert run(cluster, "unbind", "new").output.endswith("transaction group wrong\n")
    move(cluster, None, 1, "new")


def test_without_a_coordinator(memory_log: MemoryLog) -> None:
    memory_log.create_topic(JOURNAL_TOPIC, partitions=1)
    servers = ["--bootstrap-servers", memory_log.bootstrap_servers]
    for arguments in (["delete", "ledger"], ["reset", "ledger", "--to-offsets", "earliest"]):
        command = ["group", *arguments, *servers, "--timeout", "0.3"]
        error = CliRunner().invoke(cli.app, command).exception
        assert str(error).startswith("No coordinator answers")
        assert f"logtx coordinator --bootstrap-servers {servers[1]}" in str(error)
    assert CliRunner().invoke(cli.app, ["group", "list", *servers]).output == "no group\n"


@pytest.fixture
def identity(cluster: Cluster) -> str:
    """A group that counts the writes of an application."""
    producer = cluster.producer()
    for before, version in ((None, 4), (4, 5)):
        with producer.begin_transaction() as txn:
            place = None if before is None else Place(before)
            step = OffsetStep("micro-batch", 0, place, Position.at(version))
            txn.send_offsets("spark-app-nightly", [step])
    eventually(lambda: len(asked(cluster, "list")) == 2)
    return "spark-app-nightly"


def test_versions_of_an_application(cluster: Cluster, identity: str) -> None:
    summary = asked(cluster, "list")[1]
    assert (summary["group"], summary["lag"]) == (identity, None)
    assert "is no topic" in failure(
        cluster, "reset", identity, "--to-offsets", '{"micro-batch": {"0": 4}}'
    )
    assert "name the topics" in failure(cluster, "reset", identity, "--to-offsets", "earliest")
    assert "no offsets of topics" in failure(cluster, "show", identity, "--offsets")
    first = asked(cluster, "history", identity)[0]["txid"]
    (moved,) = asked(cluster, "reset", identity, "--to-commit", first, "--execute")["moved"]
    assert (moved["from_offset"], moved["to_offset"], moved["end"]) == (5, 4, None)


def test_a_reset_names_what_there_is(cluster: Cluster) -> None:
    groups = Groups(cluster.log, {"bootstrap.servers": cluster.bootstrap_servers})
    missing = json.dumps({"flights": {"7": 1}})
    with pytest.raises(ConfigError, match="flights has no partition 7: name those from 0 to 1"):
        groups.reset("ledger", to_offsets=missing)
    with pytest.raises(UnknownTopicError, match=r"gone.*to leave it out"):
        groups.reset("ledger", to_offsets="earliest", topics=["flights", "gone"])
    groups.close()
