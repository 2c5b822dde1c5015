"""The docs are complete: they describe every setting. (`make/references.py` checks references.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from logtx.integration.cli.main import app
from logtx.journal.tls import OWN

ROOT = Path(__file__).resolve().parents[1]
SETTING = re.compile(r'"([a-z_]+(?:\.[a-z_]+)+)"')
LIBRDKAFKAS_OWN = {
    "bootstrap.servers",
    "coordinator.query.interval.ms",
    "delivery.report.only.error",
    "enable.gapless.guarantee",
    "enable.partition.eof",
    "fetch.queue.backoff.ms",
    "fetch.wait.max.ms",
    "group.instance.id",
    "group.protocol",
    "message.timeout.ms",
    "partition.assignment.strategy",
    "queued.max.messages.kbytes",
    "request.required.acks",
    "statistics.interval.ms",
}


@pytest.mark.parametrize(
    ("module", "page"),
    [
        ("producer/config.py", "docs/configuration.md"),
        ("consumer/config.py", "docs/configuration.md"),
        ("consumer/share_config.py", "docs/queues.md"),
    ],
)
def test_every_setting_is_described(module: str, page: str) -> None:
    docs = (ROOT / page).read_text("utf-8")
    named = set(SETTING.findall((ROOT / module).read_text("utf-8"))) - LIBRDKAFKAS_OWN
    assert len(named) > 5
    assert not {name for name in named if f"`{name}`" not in docs}


def test_every_setting_of_tls_is_described() -> None:
    docs = (ROOT / "docs/configuration.md").read_text("utf-8")
    assert not {name for name in OWN if f"| `{name}` |" not in docs}


def test_every_option_of_a_coordinator_is_described() -> None:
    docs = (ROOT / "docs/configuration.md").read_text("utf-8")
    command = typer.main.get_command(app).commands["coordinator"]  # type: ignore[attr-defined]
    described = (p for p in command.params if not getattr(p, "hidden", False))
    options = {name for parameter in described for name in parameter.opts} - {"--help"}
    assert len(options) > 10
    assert not {name for name in options if f"`{name}`" not in docs}
