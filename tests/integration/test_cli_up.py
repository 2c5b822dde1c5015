"""`logtx up`: its parts with a fake broker, and the whole of it with a real one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from rich.console import Console

from logtx.integration import cli_up
from logtx.integration.cli_up import CoordinatorDiedError, UpOptions, parse_topic, run_up
from logtx.integration.kafka.child import spawn
from logtx.integration.kafka.datadir import pick_ports
from logtx.integration.kafka.errors import BrokerStartError, PortInUseError

READY = "echo coordinator ready on 127.0.0.1:1;"


class FakeKafka:
    """Runs for so many checks, and notes what was done to it."""

    log_path = Path("server.log")
    bootstrap_servers = "127.0.0.1:9"

    def __init__(self, events: list[str], checks: int) -> None:
        self._events = events
        self._checks = checks

    def start(self) -> None:
        self._events.append("start")

    def stop(self) -> None:
        self._events.append("stop")

    def kill(self) -> None:
        self._events.append("kill")

    @property
    def is_running(self) -> bool:
        self._checks -= 1
        return self._checks > 0

    def log_tail(self) -> list[str]:
        return ["the end"]


Up = Callable[..., list[str]]


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[str]) -> Up:
    """Run `run_up` with a fake broker and, as coordinator, a shell command; its output lines."""

    def run(
        coordinator: str | None, *, checks: int = 1_000_000, coordinators: int = 1
    ) -> list[str]:
        def start(_command: list[str], *, output: Path) -> subprocess.Popen[bytes]:
            return spawn(["/bin/sh", "-c", coordinator or ""], output=output)

        monkeypatch.setattr(cli_up, "spawn", start)
        monkeypatch.setattr(
            cli_up, "LocalKafka", lambda *_args, **_options: FakeKafka(events, checks)
        )
        options = UpOptions(
            data_dir=tmp_path,
            port=1,
            coordinator_ports=() if coordinator is None else tuple(pick_ports(coordinators)),
            topics=(),
        )
        with (tmp_path / "console").open("w") as output:
            run_up(options, console=Console(file=output, width=200))
        return (tmp_path / "console").read_text().splitlines()

    return run


def test_coordinator_that_dies_at_once(up: Up, events: list[str]) -> None:
    with pytest.raises(CoordinatorDiedError, match="exit status 3") as caught:
        up("echo boom; exit 3")
    assert caught.value.details == ("boom",)
    assert events == ["start", "stop"]


def test_coordinator_that_dies_later(up: Up, events: list[str]) -> None:
    with pytest.raises(CoordinatorDiedError, match="exit status 4") as caught:
        up(f"{READY} sleep 0.5; echo lost; exit 4")
    assert caught.value.details[-1] == "lost"
    assert events == ["start", "stop"]


def test_coordinator_that_is_never_ready(
    up: Up, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_up, "_START_TIMEOUT_S", 0.3)
    with pytest.raises(CoordinatorDiedError, match="not ready"):
        up("exec sleep 60")
    assert events == ["start", "stop"]


def test_broker_that_dies(up: Up, events: list[str]) -> None:
    with pytest.raises(BrokerStartError, match="Kafka ended by itself") as caught:
        up(f"{READY} exec sleep 60", checks=2)
    assert caught.value.details == ("the end",)
    assert events == ["start", "stop"]


def interrupted(*_arguments: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_stops_both(up: Up, events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_up, "_watch", interrupted)
    shown = up(f"{READY} exec sleep 60")
    assert shown[0].startswith("Kafka is ready. bootstrap.servers = 127.0.0.1:9")
    assert shown[-1] == "Stopping."
    assert events == ["start", "stop"]


def test_several_coordinators_listen_and_log_apart(
    up: Up, events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_up, "_watch", interrupted)
    shown = up(f"{READY} exec sleep 60", coordinators=3)
    (line,) = [line for line in shown if line.startswith("Coordinators listen on")]
    ports = re.findall(r"127\.0\.0\.1:(\d+)", line)
    assert len(set(ports)) == 3
    logs = {path.name for path in tmp_path.glob("*.log")}
    assert logs == {f"coordinator-{port}.log" for port in ports}
    assert events == ["start", "stop"]


def test_one_of_several_coordinators_that_dies(up: Up, events: list[str], tmp_path: Path) -> None:
    # Whichever makes the directory goes on; the other ends.
    command = f"{READY} mkdir {tmp_path}/first 2>/dev/null && exec sleep 60; exit 5"
    with pytest.raises(CoordinatorDiedError, match="exit status 5"):
        up(command, coordinators=2)
    assert events == ["start", "stop"]


def test_busy_coordinator_port_is_noticed_before_kafka_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(port: int) -> None:
        raise PortInUseError(f"Port {port} is not free.")

    monkeypatch.setattr(cli_up, "check_port", busy)
    options = UpOptions(data_dir=tmp_path / "data", port=1, coordinator_ports=(2,), topics=())
    with pytest.raises(PortInUseError):
        run_up(options, console=Console(quiet=True))
    assert not (tmp_path / "data").exists()


def test_topics_are_parsed() -> None:
    assert parse_topic("orders:6") == ("orders", 6)
    assert parse_topic("orders") == ("orders", 1)


@pytest.mark.parametrize("text", ["", ":3", "orders:", "orders:0", "orders:-1", "orders:x"])
def test_bad_topics_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_topic(text)


@pytest.mark.kafka
def test_the_whole_command_until_ctrl_c(tmp_path: Path) -> None:
    (port,) = pick_ports(1)
    arguments = ["up", "--no-coordinator", "--port", str(port), "--data-dir", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "logtx", *arguments, "--topic", "orders:3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        shown = ""
        while "Ctrl-C stops it" not in shown and (line := process.stdout.readline()):
            shown += line
        assert f"bootstrap.servers = 127.0.0.1:{port}" in shown
        assert "Topic orders has 3 partitions." in shown
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=30)[0]
        assert process.returncode == 0, rest
        assert time.monotonic() - started < 20
        assert (tmp_path / "kafka" / "data" / ".kafka_cleanshutdown").exists()
    finally:
        process.kill()
        process.wait()
