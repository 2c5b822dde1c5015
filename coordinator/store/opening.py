"""Makes the store that a setting names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ...journal.errors import ConfigError
from ..transport.address import split
from .base import MetadataStore

NONE: Final = "none"
FORMS: Final = "none, rocksdb:DIRECTORY, or etcd:HOST:PORT,HOST:PORT[/PREFIX]"
ETCD_PREFIX: Final = "logtx"
"""How keys in etcd begin, with a slash behind. A second cluster in one etcd needs another one."""
ETCD_HISTORY_MS: Final = 600_000
"""How long etcd keeps a finished transaction at most: it has room for some gigabytes only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataConfig:
    """Settings of a coordinator's metadata store."""

    store: str = NONE
    """``none``, ``rocksdb:DIRECTORY`` or ``etcd:HOST:PORT,HOST:PORT[/PREFIX]``."""
    history_ms: int | None = None
    """How long after its decision a finished transaction is kept at most; None: in RocksDB for as
    long as it is needed, in etcd `ETCD_HISTORY_MS`."""
    header_retention_ms: int = 60_000
    """How long a header is kept at least after the decision."""
    sweep_interval_ms: int = 60_000
    """Pause between two sweeps."""

    def __post_init__(self) -> None:
        """Checks the name of the store.

        Raises:
            ConfigError: it names no store, or one whose client is not installed.
        """
        kind, place = _parts(self.store)
        if kind == "etcd":
            parse_etcd(place)
            if find_spec("aetcd") is None:
                raise ConfigError(
                    "--metadata-store etcd needs the package aetcd: pip install 'logtx[etcd]'"
                )

    @property
    def served(self) -> bool:
        """Whether there is a store."""
        return self.store != NONE

    @property
    def kept_ms(self) -> int | None:
        """How long a finished transaction is kept at most; None: no limit."""
        is_etcd = _parts(self.store)[0] == "etcd"
        return ETCD_HISTORY_MS if self.history_ms is None and is_etcd else self.history_ms


def _parts(store: str) -> tuple[str, str]:
    if store == NONE:
        return NONE, ""
    kind, _, place = store.partition(":")
    if kind not in ("rocksdb", "etcd") or not place:
        raise ConfigError(f"--metadata-store {store!r} is none of {FORMS}")
    return kind, place


def parse_etcd(text: str) -> tuple[list[str], bytes]:
    """Returns the addresses of an etcd, as host:port, and how all keys begin there.

    Raises:
        ConfigError: an address is not HOST:PORT, or the prefix is none.
    """
    addresses, slash, prefix = text.partition("/")
    found = [each.strip() for each in addresses.split(",")]
    for each in found:
        try:
            split(each)
        except ConfigError as error:
            raise ConfigError(f"--metadata-store etcd: {error}") from error
    if not slash:
        return found, f"{ETCD_PREFIX}/".encode()
    names = prefix.removesuffix("/").split("/")
    if not all(names) or not prefix.isprintable() or " " in prefix:
        raise ConfigError(
            f"--metadata-store etcd: {prefix!r} can't be a prefix of keys: name one without spaces"
            f" and empty parts, as in etcd:HOST:PORT/{ETCD_PREFIX}-2"
        )
    return found, f"{'/'.join(names)}/".encode()


def make_store(config: MetadataConfig) -> MetadataStore:
    """Returns the store that the settings name. Call it on the event loop that uses the store.

    It is opened when it is first used, and again whenever it fails.
    """
    kind, place = _parts(config.store)
    if kind == "etcd":
        # Before gRPC is imported: it would hook into every fork of this process, and a child whose
        # parent's connections are at work may die before it becomes another program.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        from .etcd import EtcdStore

        return EtcdStore(*parse_etcd(place))
    from .rocks import RocksStore

    assert kind == "rocksdb", "there is a store"
    return RocksStore(Path(place))
