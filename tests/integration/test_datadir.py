"""The data directory's lock and memory, and ports."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from logtx.integration.kafka.datadir import HOST, DataDir, State, check_port, pick_ports
from logtx.integration.kafka.errors import DataDirError, DataDirInUseError, PortInUseError

STATE = State(cluster_id="-abc", port=20_001, controller_port=20_002)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[DataDir]:
    directory = DataDir(tmp_path / "held")
    directory.acquire()
    yield directory
    directory.release()


def test_one_holder_at_a_time(held: DataDir) -> None:
    second = DataDir(held.path)
    with pytest.raises(DataDirInUseError, match=f"started by process {os.getpid()}"):
        second.acquire()
    held.release()
    second.acquire()
    second.release()


def test_remembers_what_was_written(held: DataDir) -> None:
    assert held.read_state() is None
    held.write(STATE, {"log.dirs": "/a\\b"})
    assert held.read_state() == STATE
    assert held.properties.read_text() == "log.dirs=/a\\\\b\n"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cluster_id": "x", "port": "y"}'])
def test_damaged_state_is_one_sentence(held: DataDir, text: str) -> None:
    (held.path / "state.json").write_text(text)
    with pytest.raises(DataDirError, match="choose another data directory"):
        held.read_state()


def test_unwritable_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")  # root may write anywhere, but not below a file
    with pytest.raises(DataDirError, match="Cannot write to the data directory"):
        DataDir(tmp_path / "file" / "below").acquire()


def test_busy_port_is_named() -> None:
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"Port {port} .* choose another port"):
            check_port(port)
    check_port(port)


def test_picked_ports_differ_and_are_no_outgoing_ones() -> None:
    ports = pick_ports(20)
    assert len(set(ports)) == 20
    assert all(20_000 <= port < 32_768 for port in ports)
