"""`logtx journal`: a loss is accepted on an operator's word, and only while nobody serves."""

from __future__ import annotations

from typing import Any

import typer
from typer.testing import CliRunner, Result

from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.runtime.lost_tail import MARGIN
from logtx.coordinator.service import CoordinatorConfig
from logtx.integration.cli import main as cli
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC


def run(log: MemoryLog, *arguments: str) -> Result:
    """The command on that log."""
    environment = {"LOGTX_BOOTSTRAP_SERVERS": log.bootstrap_servers, "COLUMNS": "200"}
    return CliRunner().invoke(cli.app, ["journal", "accept-loss", *arguments], env=environment)


def test_a_loss_is_accepted_while_nobody_serves_and_not_before(memory_log: MemoryLog) -> None:
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers, listen="127.0.0.1:0", journal_partitions=2
    )
    with EmbeddedCoordinator(config):
        end = memory_log.end_offset(JOURNAL_TOPIC, 0)
        refused = run(memory_log, "0", "--end", str(end + 7))
        assert refused.exit_code == 1, refused.output
        assert "stop all of them first" in str(refused.exception)
        assert memory_log.end_offset(JOURNAL_TOPIC, 0) == end
    accepted = run(memory_log, "0", "--end", str(end + 7))
    assert accepted.exit_code == 0, accepted.output
    assert f"goes on at {end + 7 + MARGIN}" in accepted.output
    assert memory_log.end_offset(JOURNAL_TOPIC, 0) == end + 7 + MARGIN
    again = run(memory_log, "0", "--end", str(end + 7))
    assert "nothing was written" in str(again.exception)
    with EmbeddedCoordinator(config):
        assert memory_log.end_offset(JOURNAL_TOPIC, 0) == end + 8 + MARGIN, "and served again"


def test_the_command_has_help() -> None:
    commands: Any = typer.main.get_command(cli.app)
    command = commands.commands["journal"].commands["accept-loss"]
    assert "Examples:" in command.help
    assert "logtx journal accept-loss" in command.help
    for parameter in command.params:
        assert parameter.help, f"{parameter.name} has no help text"
