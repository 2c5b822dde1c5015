"""`logtx up`: its parts with a fake broker, and the whole of it with a real one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer
from confluent_kafka.admin import AdminClient
from rich.console import Console

import logtx
from logtx.integration.cli import up as cli_up
from logtx.integration.cli.up import UpOptions, parse_topic, run_up
from logtx.integration.local import processes
from logtx.integration.local.errors import BrokerStartError, PortInUseError, ProcessDiedError
from logtx.integration.local.ports import is_free, pick_ports
from logtx.integration.local.processes import spawn

READY = "echo coordinator ready on 127.0.0.1:1;"


class FakeKafka:
    """One broker that runs for so many checks; notes what was done to it."""

    id = 1
    log_path = Path("server.log")
    bootstrap_servers = "127.0.0.1:9"

    def __init__(self, events: list[str], checks: int) -> None:
        self._events = events
        self._checks = checks
        self.brokers = [self]

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

    monkeypatch.setenv("LOGTX_CONFIG", "/etc/logtx-of-another-cluster.toml")
    monkeypatch.setenv("LOGTX_BOOTSTRAP_SERVERS", "another:9092")

    def run(
        coordinator: str | None, *, checks: int = 1_000_000, coordinators: int = 1
    ) -> list[str]:
        def start(
            _command: list[str], *, output: Path, env: dict[str, str]
        ) -> subprocess.Popen[bytes]:
            assert not {"LOGTX_CONFIG", "LOGTX_BOOTSTRAP_SERVERS"} & env.keys()
            return spawn(["/bin/sh", "-c", coordinator or ""], output=output)

        monkeypatch.setattr(processes, "spawn", start)
        monkeypatch.setattr(
            cli_up, "LocalCluster", lambda *_args, **_options: FakeKafka(events, checks)
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
    with pytest.raises(match="exit status 3") as caught:
        up("echo boom; exit 3")
    assert caught.value.details == ("boom",)
    assert events == ["start", "stop"]


def test_coordinator_that_dies_later_is_started_again(
    up: Up, events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_up, "CHILD_RESTART_AFTER_S", 0.1)
    # Whoever makes the directory dies, its successor lives until Kafka ends.
    command = f"{READY} mkdir {tmp_path}/first 2>/dev/null && exit 4; exec sleep 60"
    with pytest.raises(BrokerStartError, match="Kafka ended by itself"):
        up(command, checks=20)
    shown = (tmp_path / "console").read_text()
    assert re.search(r"The coordinator ended by itself \(exit status 4\); it is started", shown)
    assert re.search(r"The coordinator is back, as process \d+\.", shown)
    assert events == ["start", "stop"]


def test_coordinator_that_dies_again_and_again(
    up: Up, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_up, "CHILD_RESTART_AFTER_S", 0.01)
    with pytest.raises(ProcessDiedError, match=r"exit status 4.*times within") as caught:
        up(f"{READY} sleep 0.2; echo lost; exit 4")
    assert caught.value.details[-1] == "lost"
    assert events == ["start", "stop"]


def test_coordinator_that_is_never_ready(
    up: Up, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "COORDINATOR_START_TIMEOUT_S", 0.3)
    with pytest.raises(match="not ready"):
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


def test_one_of_several_coordinators_cannot_start(
    up: Up, events: list[str], tmp_path: Path
) -> None:
    # Whichever makes the directory is ready and goes on; the other ends.
    command = f"mkdir {tmp_path}/first 2>/dev/null || exit 5; {READY} exec sleep 60"
    with pytest.raises(ProcessDiedError, match="exit status 5"):
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


@contextmanager
def running_up(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], Callable[[str], str]]]:
    """The command, and a way to read what it says up to a pattern."""
    process = subprocess.Popen(
        [sys.executable, "-m", "logtx", "up", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    output = process.stdout

    def read_to(pattern: str) -> str:
        shown = ""
        while not re.search(pattern, shown):
            line = output.readline()
            assert line, f"ended without {pattern!r}: {shown}"
            shown += line
        return shown

    try:
        yield process, read_to
    finally:
        process.kill()
        process.wait()


@pytest.mark.kafka
def test_the_whole_command_until_ctrl_c(tmp_path: Path) -> None:
    (port,) = pick_ports(1)
    arguments = ["--no-coordinator", "--port", str(port), "--data-dir", str(tmp_path)]
    with running_up(*arguments, "--topic", "orders:3") as (process, read_to):
        shown = read_to("Ctrl-C stops it")
        assert f"bootstrap.servers = 127.0.0.1:{port}" in shown
        assert "Topic orders has 3 partitions." in shown
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=30)[0]
        assert process.returncode == 0, rest
        assert time.monotonic() - started < 20
        assert (tmp_path / "kafka" / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_of_three_brokers_is_killed_and_comes_back(tmp_path: Path) -> None:
    first, coordinator_port = three_ports(), pick_ports(1)[0]
    ports = ["--port", str(first), "--coordinator-port", str(coordinator_port)]
    arguments = ["--brokers", "3", *ports, "--data-dir", str(tmp_path), "--topic", "orders"]
    with running_up(*arguments) as (process, read_to):
        shown = read_to("Ctrl-C stops it")
        servers = ",".join(f"127.0.0.1:{first + number}" for number in range(3))
        assert f"bootstrap.servers = {servers}" in shown
        pids = re.findall(r" \d \(process (\d+)\)", shown)
        assert len(pids) == 3
        topics = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=10).topics
        assert {len(topics[name].partitions[0].replicas) for name in topics} == {3}
        assert "__transaction_control" in topics

        os.kill(int(pids[1]), signal.SIGKILL)
        assert re.search("Broker 2 was killed .SIGKILL.", read_to("started again in"))
        producer = logtx.Producer({"bootstrap.servers": servers, "transactional.id": "worker"})
        with producer, producer.begin_transaction(timeout=60) as txn:
            txn.produce("orders", b"x")
        assert "Broker 2 is back, as process" in read_to("is back")
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[0]
        assert process.returncode == 0, rest

    with running_up("--no-coordinator", "--data-dir", str(tmp_path)) as (process, read_to):
        assert "the records of 3 brokers, not of 1" in read_to("choose another data directory")


def three_ports() -> int:
    """The first of three ports that follow each other and are free."""
    while True:
        (first,) = pick_ports(1)
        if is_free(first + 1) and is_free(first + 2):
            return first


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(200)
def test_one_of_three_coordinators_is_killed_and_comes_back(tmp_path: Path) -> None:
    (port,), first = pick_ports(1), three_ports()
    ports = ["--port", str(port), "--coordinator-port", str(first)]
    arguments = ["--coordinators", "3", *ports, "--data-dir", str(tmp_path), "--topic", "orders"]
    with running_up(*arguments) as (process, read_to):
        pids = re.findall(r":\d+ \(process (\d+)\)", read_to("Ctrl-C stops it"))
        assert len(pids) == 3
        os.kill(int(pids[1]), signal.SIGKILL)
        assert re.search("coordinator-.* was killed .SIGKILL.", read_to("started again in"))
        servers = f"127.0.0.1:{port}"
        producer = logtx.Producer({"bootstrap.servers": servers, "transactional.id": "worker"})
        with producer, producer.begin_transaction(timeout=60) as txn:
            txn.produce("orders", b"x")
        assert re.search(f"coordinator-{first + 1} is back, as process", read_to("is back"))
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[0]
        assert process.returncode == 0, rest
