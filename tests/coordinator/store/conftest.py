"""The back ends of the metadata store, for tests that all of them pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logtx.coordinator.store.base import MetadataStore
from logtx.coordinator.store.memory import MemoryStore
from logtx.coordinator.store.rocks import RocksStore
from logtx.integration.local.etcd import INSTALL, LocalEtcd, find_etcd

MakeStore = Callable[[], MetadataStore]
"""Makes a store on the running event loop; two stores of one factory have the same content."""
BACK_ENDS = ("memory", "rocksdb", "etcd")
_PREFIXES = itertools.count()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEtcd]:
    """A real etcd for the tests of one file."""
    if find_etcd() is None:
        pytest.skip(f"there is no etcd on this machine: {INSTALL}")
    process = LocalEtcd(tmp_path_factory.mktemp("etcd"))
    process.start()
    try:
        process.await_ready()
        yield process
    finally:
        process.kill()


@pytest.fixture(params=BACK_ENDS)
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """Makes an empty store, and the same again."""
    if request.param == "rocksdb":
        return lambda: RocksStore(tmp_path)
    if request.param == "etcd":
        from logtx.coordinator.store.etcd import EtcdStore

        endpoint = request.getfixturevalue("etcd").endpoint
        prefix = b"test-%d/" % next(_PREFIXES)
        return lambda: EtcdStore([endpoint], prefix)
    store = MemoryStore()
    return lambda: store
