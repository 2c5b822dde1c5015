"""Lends logs to the clients of this process: those that reach the cluster in one way use one.

A log of Kafka has an admin client, and a consumer that reads who owns a journal partition. Both are
clients of librdkafka, with threads and connections of their own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Mapping
from typing import Any, Final
from weakref import ReferenceType, WeakSet, ref

from ..settings import agreed, plain
from .interface import Log
from .memory.broker import SCHEME
from .open import open_log


class Lease:
    """A log that a client uses until it calls `close`."""

    def __init__(self, log: Log, key: Hashable | None, *, closes: bool = True) -> None:
        """Is made by `Logs.lend`.

        Args:
            log: the log.
            key: what has to agree for others to use it; None: nobody else does.
            closes: whether the last one who uses the log closes it.
        """
        self.log: Final = log
        self.key: Final = key
        self.closes: Final = closes

    def close(self) -> None:
        """Uses the log no more. The last one who does closes it, but for one that was given."""
        LOGS.give_back(self)


class Logs:
    """The logs that are lent; safe from any thread."""

    def __init__(self) -> None:
        """Has none."""
        self._guard = threading.Lock()
        # Both weak: who is garbage uses nothing, for Ctrl-C came before anything could close it.
        self._lent: dict[Hashable, tuple[ReferenceType[Log], WeakSet[Lease]]] = {}

    def lend(
        self, config: Mapping[str, Any], *, log: Log | None = None, shared: bool = True
    ) -> Lease:
        """Lends the log of a client's configuration: see `open_log`.

        Args:
            config: the client's.
            log: the one that the client was given, which stays its giver's; None: none.
            shared: whether others may use the same.

        Raises:
            ConfigError: ``bootstrap.servers`` is missing.
        """
        if log is not None:
            return Lease(log, None, closes=False)
        key = _key(plain(config)) if shared else None
        if key is None:
            return Lease(open_log(config), None)
        with self._guard:
            known, leases = self._lent.get(key, (None, WeakSet[Lease]()))
            used = known() if known is not None else None
            if used is None:
                used, leases = open_log(config), WeakSet()
                # A client whose making failed gave its log back by being garbage, and its settings,
                # which may have a password, are of no use any more.
                self._lent = {k: lent for k, lent in self._lent.items() if lent[0]() is not None}
                self._lent[key] = ref(used), leases
            lease = Lease(used, key)
            leases.add(lease)
        return lease

    def give_back(self, lease: Lease) -> None:
        """Closes the log if nobody else uses it, and it was opened here."""
        if not lease.closes:
            return
        with self._guard:
            known, leases = self._lent.get(lease.key, (None, WeakSet[Lease]()))
            if known is not None and known() is lease.log:
                leases.discard(lease)
                if leases:
                    return
                del self._lent[lease.key]
        lease.log.close()

    def after_fork(self) -> None:
        """Forgets the parent's logs, in a child."""
        self._guard = threading.Lock()
        self._lent = {}


def _key(config: Mapping[str, Any]) -> Hashable | None:
    servers = config.get("bootstrap.servers")
    if not isinstance(servers, str) or servers.startswith(SCHEME):
        return None  # One in memory is found by its name in any case.
    # Spares programs that only use a log in memory the import of the admin client.
    from .kafka_cluster import shared_settings

    return agreed({**shared_settings(config), "bootstrap.servers": servers})


LOGS: Final = Logs()
os.register_at_fork(after_in_child=LOGS.after_fork)
