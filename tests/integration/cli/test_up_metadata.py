"""`logtx up --metadata-store`: what its coordinators are given, and an etcd that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from logtx.integration.cli import up
from logtx.integration.cli.up import UpOptions, run_up
from logtx.integration.local.errors import EtcdNotFoundError
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
