"""How to reach Kafka: the same options for every command, and which of them wins."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.integration.cli import main as cli
from logtx.journal.errors import ConfigError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.tls import TlsConfig

from .test_main import COMMANDS, fake_module

Started = Callable[..., Any]
CONNECTED = [
    "audit", "coordinator", "demo", "export", "group delete", "group history", "group list",
    "group reset", "group show", "group unbind", "journal accept-loss", "keys delete", "keys get",
    "keys list", "metadata check", "metadata horizon", "metadata status",
    "sidecar compact", "sidecar list",
    "sidecar trim", "subscription delete", "subscription list", "subscription peek",
    "subscription reset", "subscription show", "subscription skip", "topics describe",
    "topics list", "topics remove-rule", "topics set-mode", "txn abort", "txn describe",
    "txn list", "txn show", "txn watch",
]  # fmt: skip


def run(*arguments: str, **environment: str) -> Result:
    """Runs a command, in an environment without settings of this machine."""
    nothing = dict.fromkeys(("LOGTX_BOOTSTRAP_SERVERS", "LOGTX_CONFIG"))
    env = {"COLUMNS": "200", **nothing, **environment}
    return CliRunner().invoke(cli.app, list(arguments), env=env)


def refused(*arguments: str, **environment: str) -> str:
    """Runs a command that must end by ConfigError. Returns the error's text."""
    result = run(*arguments, **environment)
    assert isinstance(result.exception, ConfigError), (result.exception, result.output)
    return str(result.exception)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """`started(*options, **environment)`: the configuration that `logtx coordinator` runs with."""
    seen: list[Any] = []
    fake_module(
        monkeypatch, "logtx.coordinator.service", CoordinatorConfig=SimpleNamespace, run=seen.append
    )

    def start(*options: str, **environment: str) -> Any:
        result = run("coordinator", *options, **environment)
        assert result.exit_code == 0, (result.exception, result.output)
        return seen.pop()

    return start


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A settings file."""
    path = tmp_path / "logtx.toml"
    path.write_text(
        """
        [kafka]
        bootstrap.servers = "k-file:1"
        client.id = "file"

        [coordinator]
        listen = "127.0.0.1:1"
        session_grace_ms = 5
        retention_warn_share = 0.25
        """
    )
    return path


def test_every_command_that_connects_has_the_options() -> None:
    options = {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in COMMANDS.items()
    }
    wanted = {"--bootstrap-servers", "--config", "-X"}
    assert sorted(name for name, found in options.items() if wanted & found) == CONNECTED
    assert all(wanted <= options[name] for name in CONNECTED)


def test_what_wins(started: Started, config: Path) -> None:
    file = ("--config", str(config))
    assert started(LOGTX_BOOTSTRAP_SERVERS="k-env:1").bootstrap_servers == "k-env:1"
    assert started(*file, LOGTX_BOOTSTRAP_SERVERS="k-env:1").bootstrap_servers == "k-file:1"
    assert started(LOGTX_CONFIG=str(config)).client == {"client.id": "file"}
    x = ("-X", "bootstrap.servers=k-x:1", "-Xclient.id=x")
    found = started(*file, *x)
    assert (found.bootstrap_servers, found.client) == ("k-x:1", {"client.id": "x"})
    found = started(*file, *x, "--bootstrap-servers", "k-option:1")
    assert (found.bootstrap_servers, found.client) == ("k-option:1", {"client.id": "x"})
    alias = ("-X", "metadata.broker.list=k-alias:1")
    assert started(*alias).bootstrap_servers == "k-alias:1"
    assert started(*alias).client == {}


def test_the_file_gives_options_of_the_coordinator(started: Started, config: Path) -> None:
    found = started("--config", str(config))
    assert found.listen == "127.0.0.1:1"
    assert found.limits == ShardConfig(session_grace_ms=5)
    assert found.retention.warn_share == 0.25
    found = started("--config", str(config), "--listen", "127.0.0.1:2", "--session-grace-ms", "6")
    assert found.listen == "127.0.0.1:2"
    assert found.limits == ShardConfig(session_grace_ms=6)


def test_tls_of_a_coordinator(started: Started, config: Path) -> None:
    own = ("--bootstrap-servers", "k:1", "--ssl-certificate-location", "c.pem")
    assert started(*own).tls == TlsConfig(certificate=Path("c.pem"), of_coordinator=True)
    assert started("--config", str(config)).tls is None
    config.write_text(
        "[coordinator]\nssl_certificate_location = 'c.pem'\nssl_key_password = '${PASSWORD}'\n"
        "[kafka]\nbootstrap.servers = 'k:1'\ncoordinator.security.protocol = 'SSL'\n"
    )
    found = started("--config", str(config), PASSWORD="secret")
    assert found.tls.key_password == "secret"
    assert refused("coordinator", *own, "--ssl-client-auth", "x").startswith("--ssl-client-auth")
    told = refused("coordinator", *own[:2], "-Xcoordinator.security.protocol=SSL")
    assert "give it --ssl-certificate-location" in told


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("listn = 'x'", "no option 'listn' of logtx coordinator: did you mean listen?"),
        ("metrics-listen = 'x'", "did you mean metrics_listen?"),
        ("bootstrap_servers = 'x'", 'belongs into [kafka]: write "bootstrap.servers" there'),
        ("config = 'x'", "no option 'config'"),
        ("journal_partitions = 'x'", "journal_partitions = 'x': "),
        ("journal_partitions = 2.5", "journal_partitions = '2.5': "),
        ("journal_partitions = true", "journal_partitions = 'true': "),
        ("journal_partitions = 0", "journal_partitions = '0': "),
    ],
)
def test_options_in_the_file_are_checked(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "logtx.toml"
    path.write_text(f"[coordinator]\n{line}\n")
    text = refused("coordinator", "--config", str(path))
    assert text.startswith(f"{path}: [coordinator]: ")
    assert said in text


def test_nothing_is_guessed() -> None:
    told = refused("coordinator")
    assert "--bootstrap-servers" in told
    assert "--config" in told
    assert "no brokers are named" in refused("txn", "list", "-X", "client.id=a")
    assert "no brokers are named" in refused("demo", "-X", "client.id=a")
    assert "did you mean security.protocol" in refused("txn", "list", "-X", "secure.protocol=SSL")
    assert "No such file" in refused("keys", "list", "--config", "/none")
    assert "No such file" in refused("keys", "list", LOGTX_CONFIG="/none")


def test_librdkafka_refuses_a_value_in_one_sentence() -> None:
    told = refused("txn", "list", "--bootstrap-servers", "127.0.0.1:1", "-Xsecurity.protocol=SLS")
    assert "security.protocol" in told
    assert "SLS" in told


def test_settings_without_effect_are_named(
    memory_log: MemoryLog, caplog: pytest.LogCaptureFixture
) -> None:
    servers = memory_log.bootstrap_servers
    with (
        EmbeddedCoordinator(CoordinatorConfig(bootstrap_servers=servers, listen="127.0.0.1:0")),
        caplog.at_level(logging.WARNING),
    ):
        listed = run(
            "txn", "list", "--json", "-X", f"bootstrap.servers={servers}",
            "-X", "linger.ms=5", "-X", "client.id=me",
            "-X", "coordinator.security.protocol=PLAINTEXT",
        )  # fmt: skip
    assert json.loads(listed.stdout)["transactions"] == []
    warned = [r.getMessage() for r in caplog.records if "without effect" in r.getMessage()]
    assert warned == ["without effect here: linger.ms"]
