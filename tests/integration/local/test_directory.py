"""The data directory's lock and memory, and ports."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from logtx.integration.local import ports
from logtx.integration.local.directory import BrokerDir, ClusterDir, Ports, State
from logtx.integration.local.errors import DataDirError, DataDirInUseError, PortInUseError
from logtx.integration.local.ports import HOST, check_port, pick_ports

STATE = State(
    cluster_id="-abc",
    brokers=(
        Ports(client=20_001, broker=20_002, controller=20_003),
        Ports(client=20_004, broker=20_005, controller=20_006),
    ),
)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[ClusterDir]:
    directory = ClusterDir(tmp_path / "held")
    directory.acquire()
    yield directory
    directory.release()


def test_one_holder_at_a_time(held: ClusterDir) -> None:
    second = ClusterDir(held.path)
    with pytest.raises(DataDirInUseError, match=f"started by process {os.getpid()}"):
        second.acquire()
    held.release()
    second.acquire()
    second.release()


def test_remembers_what_was_written(held: ClusterDir) -> None:
    assert held.read_state() is None
    held.write(STATE)
    assert held.read_state() == STATE


def test_remembers_what_was_written_before_there_were_clusters(held: ClusterDir) -> None:
    (held.path / "state.json").write_text('{"cluster_id": "x", "port": 1, "controller_port": 2}')
    known = held.read_state()
    assert known == State(cluster_id="x", brokers=(Ports(client=1, broker=0, controller=2),))


def test_a_broker_has_a_directory_of_its_own_unless_it_is_alone(held: ClusterDir) -> None:
    assert held.broker_dir(1, 1).path == held.path
    assert held.broker_dir(2, 3).path == held.path / "broker-2"


def test_properties_are_escaped(tmp_path: Path) -> None:
    directory = BrokerDir(tmp_path / "broker-1")
    directory.write({"log.dirs": "/a\\b"})
    assert directory.properties.read_text() == "log.dirs=/a\\\\b\n"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"cluster_id": "x", "port": "y"}', '{"cluster_id": "x", "brokers": [1]}'],
)
def test_damaged_state_is_one_sentence(held: ClusterDir, text: str) -> None:
    (held.path / "state.json").write_text(text)
    with pytest.raises(DataDirError, match="choose another data directory"):
        held.read_state()


def test_unwritable_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")  # root may write anywhere, but not below a file
    with pytest.raises(DataDirError, match="Cannot write to the data directory"):
        ClusterDir(tmp_path / "file" / "below").acquire()


def test_busy_port_is_named() -> None:
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"Port {port} .* choose another port"):
            check_port(port)
    check_port(port)


def test_picked_ports_differ_and_are_no_outgoing_ones() -> None:
    picked = pick_ports(20)
    assert len(set(picked)) == 20
    assert all(20_000 <= port < 32_768 for port in picked)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets a claim with its process")
def test_a_port_that_another_process_has_picked_is_not_picked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (port,) = pick_ports(1)
    monkeypatch.setattr(ports, "_FREE_PORTS", range(port, port + ports._PORT_ATTEMPTS))
    monkeypatch.setattr(ports, "is_free", lambda each: each == port)
    assert pick_ports(1) == [port], "it is this process's own"
    code = (
        "from logtx.integration.local import ports\n"
        f"ports._FREE_PORTS = range({port}, {port + ports._PORT_ATTEMPTS})\n"
        f"ports.is_free = lambda each: each == {port}\n"
        "ports.pick_ports(1)"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert "PortInUseError" in asked.stderr.decode()
