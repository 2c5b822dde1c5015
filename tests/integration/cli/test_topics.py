"""`logtx topics` against a coordinator whose home answers as each test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, NoReturn

import pytest
import typer
from typer.testing import CliRunner, Result

import logtx
from logtx.coordinator.client.admin import AdminQueries, TopicHome
from logtx.coordinator.core.decision import Decision
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.commands import TopicModeInfo, TopicModes
from logtx.coordinator.server import streams
from logtx.coordinator.service import CoordinatorConfig
from logtx.integration.cli import main as cli
from logtx.integration.cli import topics as cli_topics
from logtx.journal.errors import (
    BrokerError,
    CoordinatorNotAvailableError,
    LogtxError,
    TopicModeError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Mode, Phase
from logtx.journal.reader import journal_partition_of

from ...waiting import eventually

PARTITIONS: Final = 3
PATHS: Final = {
    Mode.METADATA: [Phase.TO_METADATA, Phase.METADATA],
    Mode.MARKERS: [Phase.TO_MARKERS, Phase.MARKERS],
}

Run = Callable[..., Result]


class Homes:
    """Stand in for the homes of topics: each question takes a switch a step further."""

    def __init__(self) -> None:
        self.topics: dict[int, dict[str, TopicModeInfo]] = {p: {} for p in range(PARTITIONS)}
        self.stuck = False
        """Whether a switch stays in its first phase."""
        self.page = 2
        """Most topics on a page."""
        self.without_records: list[bool] = []

    def set_mode(self, partition: int, command: commands.SetTopicMode) -> TopicModes:
        """Takes a switch a step further."""
        self.without_records.append(command.without_records)
        known = self.topics[partition]
        first = TopicModeInfo(
            topic=command.topic, topic_id="id", phase=Phase.MARKERS, mode_offset=-1
        )
        info = known.get(command.topic, first)
        begins, ends = PATHS[command.mode]
        if info.phase is ends and info.mode_offset >= 0:
            info = replace(info, published=True)
        elif info.phase is begins:
            if not self.stuck:
                info = replace(info, phase=ends, since={0: 5, 1: 7}, waiting=0, last={0: 9})
        else:
            info = replace(info, phase=begins, mode_offset=40, published=False, waiting=2)
        known[command.topic] = info
        return TopicModes((info,))

    def describe(self, partition: int, command: commands.DescribeTopics) -> TopicModes:
        """Returns what was switched."""
        found = [
            info
            for name, info in sorted(self.topics[partition].items())
            if name > command.after and (not command.topics or name in command.topics)
        ]
        return TopicModes(tuple(found[: self.page]), more=len(found) > self.page)


@pytest.fixture
def homes(monkeypatch: pytest.MonkeyPatch) -> Homes:
    """What the shards answer about topics."""
    made, handle = Homes(), Shard.handle

    def answer(shard: Shard, command: Any, ref: Any, *rest: Any) -> Decision:
        match command:
            case commands.SetTopicMode():
                reply = made.set_mode(shard.partition, command)
            case commands.DescribeTopics():
                reply = made.describe(shard.partition, command)
            case _:
                return handle(shard, command, ref, *rest)
        return Decision(replies=((ref, reply),), fresh=True)

    monkeypatch.setattr(Shard, "handle", answer)
    return made


@pytest.fixture
def run(homes: Homes, real: Run) -> Run:
    """`run("topics", "list")`: the command, on a cluster whose shards answer as `homes` says."""
    assert homes
    return real


@pytest.fixture
def real(memory_log: MemoryLog) -> Iterator[Run]:
    """The same with the shards as they are: a log with a coordinator and some topics."""
    for name in ("orders", "orders.eu", "orders.us", "payments"):
        memory_log.create_topic(name, partitions=2)
    memory_log.create_topic("orders.table", partitions=1, settings={"cleanup.policy": "compact"})
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=PARTITIONS,
    )

    def invoke(*arguments: str) -> Result:
        environment = {"LOGTX_BOOTSTRAP_SERVERS": memory_log.bootstrap_servers, "COLUMNS": "200"}
        return CliRunner().invoke(cli.app, [*arguments], env=environment)

    with EmbeddedCoordinator(config):
        yield invoke


def test_a_topic_is_switched_while_transactions_are_under_way(
    real: Run, memory_log: MemoryLog
) -> None:
    settings = {"bootstrap.servers": memory_log.bootstrap_servers, "transaction.group": "billing"}
    with logtx.Producer({**settings, "transaction.begin.ahead": False}) as producer:
        pending = producer.begin_transaction()
        pending.produce("orders", b"before", partition=0)
        producer.flush(10)
        assert set_mode(real, "orders", "metadata", *BILLING).exit_code == 0
        end = memory_log.end_offset("orders", 0)
        assert pending.commit().state.commits
        with producer.begin_transaction() as later:
            later.produce("orders", b"later", partition=0)
        eventually(lambda: not transactions(real))
        assert memory_log.end_offset("orders", 0) == end + 1, "the record, and no marker"
        described = json.loads(real("topics", "describe", "orders", "--json").output)
        assert (described["mode"], described["waiting"]) == ("metadata", 0)
        assert described["since"] == {"0": 1, "1": 0}
        assert set_mode(real, "orders", "markers").stdout == "orders: markers\n"
        with producer.begin_transaction() as last:
            last.produce("orders", b"last", partition=0)
        eventually(lambda: not transactions(real))
        assert memory_log.end_offset("orders", 0) == end + 4, "a mode record, a record, a marker"


def transactions(run: Run) -> list[dict[str, Any]]:
    """Returns what `logtx txn list` shows."""
    listed: dict[str, list[dict[str, Any]]] = json.loads(run("txn", "list", "--json").output)
    return listed["transactions"]


def test_what_waits_for_places_alone_is_placing(
    real: Run, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set_mode(real, "orders", "metadata", *BILLING).exit_code == 0

    def silent(*_: object, **__: object) -> dict[Any, Any]:
        return {("orders", 0): BrokerError("no answer")}

    monkeypatch.setattr(memory_log, "each_end_offset", silent)
    settings = {"bootstrap.servers": memory_log.bootstrap_servers, "transaction.group": "billing"}
    with logtx.Producer(
        {**settings, "transaction.begin.ahead": False, "coordinator.timeout.ms": 1_000}
    ) as producer:
        with producer.begin_transaction() as waiting:
            waiting.produce("orders", b"x", partition=0)
        (row,) = transactions(real)
        assert (row["txid"], row["state"], row["placing"]) == (
            str(waiting.txid), "committing", True,
        )  # fmt: skip
        assert "committing: placing" in real("txn", "list").output
        assert "placing: True" in real("txn", "describe", str(waiting.txid)).output
        described = json.loads(real("topics", "describe", "orders", "--json").output)
        assert described["waiting"] == 1
        monkeypatch.setattr(streams, "PLACES_WAITING_MAX", 1)
        refused = producer.begin_transaction()
        refused.produce("orders", b"y", partition=0)
        with pytest.raises(LogtxError, match=r"orders\[0\] has 1 transactions that wait"):
            refused.commit()
        refused.abort()
        monkeypatch.undo()
        eventually(lambda: not transactions(real))


def test_who_switches_a_sealed_topic_is_told_what_waits_for_markers(
    real: Run, memory_log: MemoryLog
) -> None:
    settings = {"bootstrap.servers": memory_log.bootstrap_servers, "transaction.group": "billing"}
    switch = partial(set_mode, real, "orders", "metadata", *BILLING, "--without-records")
    with logtx.Producer({**settings, "transaction.begin.ahead": False}) as producer:
        waiting = producer.begin_transaction()
        waiting.produce("orders", b"x", partition=0)
        producer.flush(10)
        memory_log.hold_appends("orders", 0)
        assert waiting.commit().state.commits
        told = switch()
        assert told.exit_code == 0, told.output
        assert told.stdout.startswith("orders: metadata")
        assert f"orders: 1 transactions are decided and wait for markers, as {waiting.txid}" in (
            told.stderr
        )
        memory_log.release_appends("orders", 0)
        eventually(lambda: not transactions(real))
        assert "wait for markers" not in switch().stderr


def test_a_topic_is_switched_though_nobody_tells_what_waits_for_markers(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise CoordinatorNotAvailableError("no coordinator owns it")

    monkeypatch.setattr(AdminQueries, "list_transactions", refuse)
    done = set_mode(run, "orders", "metadata", *BILLING, "--without-records")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("orders: metadata")
    assert "orders is switched, but nobody told what waits for markers there: no" in done.stderr


def set_mode(run: Run, topic: str, mode: str, *options: str) -> Result:
    return run("topics", "set-mode", topic, "--mode", mode, *options)


BILLING: Final = ("--transaction-group", "billing")
HOME: Final = journal_partition_of("billing", PARTITIONS)


@pytest.mark.parametrize("name", ["list", "describe", "set-mode", "remove-rule"])
def test_every_command_and_option_has_help(name: str) -> None:
    group: Any = typer.main.get_command(cli_topics.topics)
    command = group.commands[name]
    assert "Examples:" in command.help
    assert f"logtx topics {name}" in command.help
    for parameter in command.params:
        assert parameter.help, f"{name} {parameter.name} has no help text"


def test_there_and_back(run: Run) -> None:
    assert "all have markers" in run("topics", "list").output
    done = set_mode(run, "orders", "metadata", *BILLING)
    assert done.exit_code == 0, done.output
    assert "orders: to-metadata, 2 places to wait for" in done.stderr
    assert done.stdout == (
        f"orders: metadata, placed by transaction group billing (journal partition {HOME})\n"
    )
    described = json.loads(run("topics", "describe", "orders", "--json").output)
    assert described == {
        "topic": "orders",
        "topic_id": "id",
        "mode": "metadata",
        "home": HOME,
        "transaction_group": "billing",
        "mode_offset": 40,
        "published": True,
        "waiting": 0,
        "since": {"0": 5, "1": 7},
        "last": {"0": 9},
        "rule": None,
    }
    assert "last: [0] 9" in run("topics", "describe", "orders").output
    assert "since: [0] 5, [1] 7" in run("topics", "describe", "orders").output
    back = set_mode(run, "orders", "markers")
    assert back.stdout == "orders: markers\n", "the group need not be named again"


def test_a_repeat_changes_nothing(run: Run, homes: Homes) -> None:
    for _ in range(2):
        done = set_mode(run, "orders", "metadata", *BILLING, "--without-records", "--json")
        assert json.loads(done.stdout)["topics"][0]["mode"] == "metadata"
    assert all(homes.without_records)
    assert len(homes.without_records) == 4, "three steps, and one question"


def test_a_rule_is_for_what_exists_too(run: Run) -> None:
    done = set_mode(run, "orders*", "metadata", *BILLING, "--json")
    assert done.exit_code == 1, "one is compacted"
    assert "orders.table: topic orders.table is compacted" in done.stderr
    switched = [t["topic"] for t in json.loads(done.stdout)["topics"]]
    assert switched == ["orders", "orders.eu", "orders.us"]
    listed = json.loads(run("topics", "list", "--json").output)
    assert [(t["topic"], t["home"]) for t in listed["topics"]] == [(t, HOME) for t in switched]
    shown = run("topics", "list").output
    assert "orders.us" in shown
    assert "payments" not in shown
    assert listed["rules"] == [
        {"rule": "orders*", "mode": "metadata", "transaction_group": "billing"}
    ]


class Switches:
    """Stand in for the switches of topics, and count those that are under way."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.under_way = self.most = 0
        self.begun: list[str] = []
        self.given_up = threading.Event()
        self.full = threading.Event()
        """Whether as many as may be were under way at one time."""

    def switch(self, name: str) -> TopicHome:
        """Switches a topic; waits until others are under way, too."""
        with self.lock:
            self.begun.append(name)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            if self.under_way == cli_topics.AT_ONCE:
                self.full.set()
        try:
            assert self.full.wait(30)
            if name == "gone":
                raise CoordinatorNotAvailableError("nobody answers")
            if name.startswith("bad"):
                raise TopicModeError(f"{name} is bound elsewhere")
            if name == "slow":
                assert self.given_up.wait(30), "nobody gave it up"
                raise CoordinatorNotAvailableError("closed")
            info = TopicModeInfo(topic=name, topic_id="id", phase=Phase.METADATA, mode_offset=1)
            return TopicHome(info, 0, "billing")
        finally:
            with self.lock:
                self.under_way -= 1


def test_eight_topics_are_switched_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    switches, names = Switches(), [*(f"t{n:02}" for n in range(30)), "bad 1", "bad 2"]
    done, failed = cli_topics._switch_each(names, switches.switch, switches.given_up.set)
    assert [each.info.topic for each in done] == names[:30], "in the order of the names"
    assert failed
    assert switches.most == 8
    told = capsys.readouterr().err
    assert "bad 1: bad 1 is bound elsewhere" in told
    assert "bad 2: bad 2 is bound elsewhere" in told
    assert not switches.given_up.is_set()


def test_no_further_topic_is_switched_when_nobody_answers() -> None:
    switches, names = Switches(), [*["slow"] * 7, "gone", *["slow"] * 1_000]
    with pytest.raises(CoordinatorNotAvailableError, match="nobody answers"):
        cli_topics._switch_each(names, switches.switch, switches.given_up.set)
    assert len(switches.begun) <= 9
    assert switches.under_way == 0


def test_rules_are_shown_and_removed(run: Run) -> None:
    kept = set_mode(run, "later.*", "metadata", *BILLING)
    assert kept.stdout == "later.*: metadata, also for topics that are created later\n"
    assert set_mode(run, "later.eu.*", "markers").exit_code == 0
    shown = run("topics", "list").output
    assert "no topic was switched" in shown
    assert [line.split() for line in shown.splitlines()[-2:]] == [
        ["later.*", "metadata", "billing"],
        ["later.eu.*", "markers", "-"],
    ]
    assert run("topics", "remove-rule", "later.*").stdout == "later.*: removed\n"
    for never in ("later.*", "late*"):
        again = run("topics", "remove-rule", never)
        assert again.exit_code == 0, "it may be repeated"
        assert again.stdout == f"{never}: there is no such rule; logtx topics list shows all\n"
    assert "later.* " not in run("topics", "list").output
    assert "rule: later" not in run("topics", "describe", "orders").output
    set_mode(run, "ord*", "markers")
    assert "rule: ord*" in run("topics", "describe", "orders").output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("set-mode", "orders.*", "--mode", "metadata"), "(--transaction-group)"),
        (("set-mode", "or*ders*", "--mode", "markers"), "is no rule: write how"),
        (("set-mode", "or*ders", "--mode", "markers"), "and one * behind it"),
        (("set-mode", "*orders", "--mode", "metadata", *BILLING), "and one * behind it"),
        (("remove-rule", "orders"), "is no rule: write how"),
    ],
)
def test_rules_that_are_refused(arguments: tuple[str, ...], why: str, run: Run) -> None:
    refused = run("topics", *arguments)
    assert refused.exit_code == 1
    assert why in str(refused.exception)
    assert "rule for later topics" not in run("topics", "list").output


@pytest.mark.parametrize(
    ("topic", "options", "why"),
    [
        ("orders", (), "name the one whose transactions shall be placed there"),
        ("nowhere", BILLING, "nowhere"),
        ("orders.table", BILLING, "compacted"),
        ("__transaction_control", BILLING, "logtx's own"),
    ],
)
def test_what_is_refused(topic: str, options: tuple[str, ...], why: str, run: Run) -> None:
    refused = set_mode(run, topic, "metadata", *options)
    assert refused.exit_code == 1
    assert why in str(refused.exception)


def test_a_topic_that_is_bound_elsewhere(run: Run) -> None:
    set_mode(run, "orders", "metadata", *BILLING)
    refused = set_mode(run, "orders", "metadata", "--transaction-group", "shipping")
    assert refused.exit_code == 1
    assert "bound to transaction group 'billing' for ever" in str(refused.exception)


def test_a_switch_that_does_not_end_says_what_waits(run: Run, homes: Homes) -> None:
    homes.stuck = True
    late = set_mode(run, "orders", "metadata", *BILLING, "--wait", "0.3")
    assert late.exit_code == 1
    assert "after 0.3 s: it is in phase to-metadata, and 2 places" in str(late.exception)
    assert "call again" in str(late.exception)
    for partition in homes.topics.values():
        partition.update({name: replace(info, waiting=0) for name, info in partition.items()})
    late = set_mode(run, "orders", "metadata", "--wait", "0.3")
    assert "not every partition has taken its mode record" in str(late.exception)
    assert "--without-records" in str(late.exception), "the way out"
    late = set_mode(run, "orders", "metadata", "--wait", "0.3", "--without-records")
    assert "not every partition has told its end" in str(late.exception)
    homes.stuck = False
    assert set_mode(run, "orders", "metadata").exit_code == 0


def test_a_topic_that_was_never_switched(run: Run) -> None:
    assert set_mode(run, "payments", "markers").stdout == "payments: markers\n"
    described = run("topics", "describe", "payments")
    assert "mode: markers" in described.output
    assert "home" not in described.output
    assert run("topics", "describe", "nowhere").exit_code == 1
