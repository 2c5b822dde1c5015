"""The command line: help for everything, and one red sentence for each expected error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import typer
from confluent_kafka import KafkaError
from rich.console import Console
from typer.testing import CliRunner

from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.runtime.housekeeping import HousekeepingConfig
from logtx.coordinator.server.retention import RetentionConfig
from logtx.coordinator.server.trimming import SidecarConfig
from logtx.coordinator.store.opening import MetadataConfig
from logtx.integration.cli import checkout
from logtx.integration.cli import main as cli
from logtx.integration.cli.up import UpOptions
from logtx.integration.demo.options import DemoOptions
from logtx.integration.local.errors import BrokerStartError
from logtx.journal.errors import BrokerError, LogtxError, NotSupportedError
from logtx.journal.modes import Mode


def _commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, *path, name)
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(_commands(typer.main.get_command(cli.app)))
"""Every command, those in groups too, as it is typed behind `logtx`."""


@pytest.fixture(autouse=True)
def keep_signal_handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["logtx", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    code = caught.value.code
    return code if isinstance(code, int) else 0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    if " " not in name:
        assert "Examples:" in command.help
        assert f"logtx {name}" in command.help
    for parameter in command.params:
        assert parameter.help, f"{name} {parameter.name} has no help text"


def test_help_and_version() -> None:
    runner = CliRunner()
    listing = runner.invoke(cli.app, ["--help"])
    assert listing.exit_code == 0
    assert all(name in listing.output for name in ("up", "coordinator", "demo"))
    assert runner.invoke(cli.app, ["--version"]).output.startswith("logtx ")


def test_python_dash_m_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "logtx", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("logtx ")


@pytest.mark.parametrize(
    "error", [LogtxError("It is so."), BrokerStartError("It is so.", ["[bold]last line"])]
)
def test_expected_errors_are_one_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: object) -> int:
        raise error

    fake_module(monkeypatch, "logtx.integration.demo.run", run_demo=fail)
    assert run_main(monkeypatch, "demo") == 1
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "It is so."
    assert shown[1:] in ([], ["    [bold]last line"])


def test_demo_gets_its_options_and_gives_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[DemoOptions] = []

    def run_demo(options: DemoOptions) -> int:
        seen.append(options)
        return 7

    fake_module(monkeypatch, "logtx.integration.demo.run", run_demo=run_demo)
    assert run_main(monkeypatch, "demo", "--flights", "5", "--keep", "--data-dir", "d") == 7
    assert run_main(monkeypatch, "demo", "--coordinators", "2", "--chaos") == 7
    assert run_main(monkeypatch, "demo", "--spark") == 7
    assert run_main(monkeypatch, "demo", "--no-spark") == 7
    assert run_main(monkeypatch, "demo", "--mode", "metadata") == 7
    assert seen == [
        DemoOptions(flights=5, keep=True, data_dir=Path("d")),
        DemoOptions(coordinators=2, chaos=True),
        DemoOptions(spark=True),
        DemoOptions(spark=False),
        DemoOptions(mode=Mode.METADATA),
    ]


def test_up_gets_a_port_for_each_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[UpOptions] = []

    def run_up(options: UpOptions, *, console: Console) -> None:
        assert console is not None
        seen.append(options)

    monkeypatch.setattr("logtx.integration.cli.up.run_up", run_up)
    assert run_main(monkeypatch, "up") == 0
    assert run_main(monkeypatch, "up", "--coordinators", "3", "--coordinator-port", "65533") == 0
    assert run_main(monkeypatch, "up", "--no-coordinator") == 0
    assert [o.coordinator_ports for o in seen] == [(9095,), (65533, 65534, 65535), ()]
    assert run_main(monkeypatch, "up", "--coordinators", "3", "--coordinator-port", "65534") == 2


def test_up_gets_a_port_for_each_broker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[UpOptions] = []
    monkeypatch.setattr(
        "logtx.integration.cli.up.run_up", lambda options, **_console: seen.append(options)
    )
    assert run_main(monkeypatch, "up") == 0
    assert run_main(monkeypatch, "up", "--brokers", "3") == 0
    assert run_main(monkeypatch, "up", "--brokers", "4", "--no-coordinator") == 0
    assert [(o.brokers, o.port) for o in seen] == [(1, 9092), (3, 9092), (4, 9092)]
    assert run_main(monkeypatch, "up", "--brokers", "4") == 2
    assert "port 9095 is that of a broker, too" in capsys.readouterr().err
    assert run_main(monkeypatch, "up", "--brokers", "3", "--port", "65534") == 2
    assert run_main(monkeypatch, "up", "--brokers", "0") == 2


def test_coordinator_passes_on_only_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    fake_module(
        monkeypatch,
        "logtx.coordinator.service",
        CoordinatorConfig=SimpleNamespace,
        run=seen.append,
    )
    arguments = ("--bootstrap-servers", "k:9092", "--advertise", "me:1", "--session-grace-ms", "9")
    assert run_main(monkeypatch, "coordinator", *arguments) == 0
    assert vars(seen[0]) == {
        "bootstrap_servers": "k:9092",
        "client": {},
        "listen": "127.0.0.1:9095",
        "advertised": "me:1",
        "limits": ShardConfig(session_grace_ms=9),
        "housekeeping": HousekeepingConfig(),
        "retention": RetentionConfig(),
        "sidecars": SidecarConfig(),
        "metadata": MetadataConfig(),
        "tls": None,
    }


def test_a_coordinator_without_kafka_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_config: object) -> None:
        raise BrokerError("create topic 'x': _TRANSPORT", kafka_code=KafkaError._TRANSPORT)

    fake_module(
        monkeypatch, "logtx.coordinator.service", CoordinatorConfig=SimpleNamespace, run=run
    )
    assert run_main(monkeypatch, "coordinator", "--bootstrap-servers", "k:9092") == 1
    assert capsys.readouterr().err == (
        "No Kafka answers at k:9092: check --bootstrap-servers, or start a local Kafka with: "
        "logtx up\n"
    )


def test_a_coordinators_limits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []
    fake_module(
        monkeypatch,
        "logtx.coordinator.service",
        CoordinatorConfig=SimpleNamespace,
        run=seen.append,
    )
    start = ("coordinator", "--bootstrap-servers", "k:9092")
    limits = ("--max-open-transactions", "7", "--retention-abort-share", "0.6")
    assert run_main(monkeypatch, *start, *limits) == 0
    assert seen[0].limits == ShardConfig(max_open_transactions=7)
    assert seen[0].retention == RetentionConfig(warn_share=0.5, abort_share=0.6)
    assert run_main(monkeypatch, *start, "--retention-abort-share", "0.4") == 1
    assert "the warning comes first" in capsys.readouterr().err
    assert run_main(monkeypatch, *start, "--sidecar-trim-delay-ms", "-1") == 0
    assert seen[-1].sidecars == SidecarConfig(trim_delay_ms=-1)


def test_demo_and_chaos_are_commands_of_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    here, elsewhere = typer.Typer(), typer.Typer()
    checkout.add_commands(here)
    assert "--system" in CliRunner().invoke(here, ["chaos", "--help"]).output
    assert "--flights" in CliRunner().invoke(here, ["demo", "--help"]).output
    absent = dict.fromkeys(("demo", "chaos"), ("logtx.nothing_of_this_name", "Do it."))
    monkeypatch.setattr(checkout, "COMMANDS", absent)
    checkout.add_commands(elsewhere)
    for name in absent:
        said = CliRunner().invoke(elsewhere, [name, "--seconds", "60", "anything"]).exception
        assert isinstance(said, NotSupportedError)
        assert f"`make {name}`" in str(said)


def test_sigterm_ends_like_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned: list[bool] = []

    def run_demo(*_arguments: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            cleaned.append(True)
        return 0

    fake_module(monkeypatch, "logtx.integration.demo.run", run_demo=run_demo)
    assert run_main(monkeypatch, "demo") == 130
    assert cleaned


def test_data_home_respects_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/x")
    assert cli.data_home() == Path("/x/logtx")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert cli.data_home() == Path.home() / ".local" / "share" / "logtx"


def fake_module(monkeypatch: pytest.MonkeyPatch, name: str, **members: object) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)
