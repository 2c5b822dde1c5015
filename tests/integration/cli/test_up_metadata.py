"""`logtx up --metadata-store`: what its coordinators are given, and an etcd that is not there."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from logtx.integration.cli import up
from logtx.integration.cli.up import UpOptions, run_up
from logtx.integration.local.errors import BrokerStartError, EtcdNotFoundError
from logtx.integration.local.etcd import INSTALL, LocalEtcd, find_etcd
from logtx.journal.errors import ConfigError


def options(path: Path, store: str) -> UpOptions:
    """Returns the command line of two coordinators."""
    return UpOptions(
        data_dir=path, port=9092, coordinator_ports=(9095, 9096), topics=(), metadata_store=store
    )


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        ("none", []),
        ("rocksdb", ["--metadata-store", "rocksdb:{path}/metadata/9095"]),
        ("rocksdb:/srv/m", ["--metadata-store", "rocksdb:/srv/m/9095"]),
        ("etcd:h:1,h:2", ["--metadata-store", "etcd:h:1,h:2"]),
    ],
)
def test_each_coordinator_gets_its_store(tmp_path: Path, store: str, expected: list[str]) -> None:
    given = up._store_options(options(tmp_path, store), 9095, None)
    assert given == [text.format(path=tmp_path) for text in expected]


@pytest.mark.parametrize("store", ["disk", "etcd:nowhere", "rocksdb:"])
def test_a_store_that_is_none_is_refused_before_kafka_starts(tmp_path: Path, store: str) -> None:
    with pytest.raises(ConfigError, match="metadata-store"):
        run_up(options(tmp_path, store), console=Console(quiet=True))
    assert not list(tmp_path.iterdir())


def test_without_an_etcd_one_sentence_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(_name: str) -> None:
        return None

    monkeypatch.setattr("logtx.integration.local.etcd.shutil.which", nothing)
    with pytest.raises(EtcdNotFoundError, match="apt-get install etcd-server") as raised:
        run_up(options(tmp_path, "etcd"), console=Console(quiet=True))
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


class FakeKafka:
    """A cluster whose broker runs until a condition holds, or for a bounded time."""

    id = 1
    log_path = Path("server.log")
    bootstrap_servers = "127.0.0.1:9"

    def __init__(self, is_enough: Callable[[], bool]) -> None:
        self._is_enough = is_enough
        self._deadline_s = time.monotonic() + 60
        self.brokers = [self]

    def start(self) -> None:
        """Does nothing."""

    def stop(self) -> None:
        """Does nothing."""

    @property
    def is_running(self) -> bool:
        """Whether the condition does not hold yet."""
        return not self._is_enough() and time.monotonic() < self._deadline_s

    def log_tail(self) -> list[str]:
        """Returns nothing."""
        return []


def test_an_etcd_that_is_killed_is_told_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_etcd() is None:
        pytest.skip(f"there is no etcd on this machine: {INSTALL}")
    started: list[LocalEtcd] = []

    def start(path: Path) -> LocalEtcd:
        started.append(start_etcd(path))
        os.kill(started[0].pid, signal.SIGKILL)
        return started[0]

    start_etcd = up._start_etcd
    output = io.StringIO()
    monkeypatch.setattr(up, "_start_etcd", start)
    monkeypatch.setattr(up, "CHILD_RESTART_AFTER_S", 0.1)
    kafka = FakeKafka(lambda: "The etcd is back" in output.getvalue())
    monkeypatch.setattr(up, "LocalCluster", lambda *_args, **_options: kafka)
    given = replace(options(tmp_path, "etcd"), coordinator_ports=())
    with pytest.raises(BrokerStartError):
        run_up(given, console=Console(file=output, width=200))
    shown = output.getvalue()
    assert "The etcd was killed (SIGKILL); it is started again in 0.1 s." in shown
    assert "The etcd is back, as process" in shown
    assert started[0].starts == 2
    assert not started[0].is_running


def test_an_etcd_is_started_beside_kafkas_data(tmp_path: Path) -> None:
    if find_etcd() is None:
        pytest.skip(f"there is no etcd on this machine: {INSTALL}")
    etcd: Any = up._start_etcd(tmp_path)
    try:
        assert isinstance(etcd, LocalEtcd)
        assert etcd.data.is_dir()
        given = up._store_options(options(tmp_path, "etcd"), 9096, etcd)
        assert given == ["--metadata-store", f"etcd:{etcd.endpoint}"]
        etcd.ask_to_stop()
        etcd.await_end()
        assert not etcd.is_running
    finally:
        etcd.kill()
