"""The sidecars of topics, opened when a transaction first writes to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from ..journal.sidecar import check_named_by_user, sidecar_of

REMEMBERED_S: Final = 300.0
"""How long it is believed that a topic has its sidecar. With a longer time it is learnt later that
the sidecar was deleted, or lacks partitions; a shorter one asks the coordinator more often."""


class SidecarNames(dict[str, str]):
    """Topic → its sidecar, which is there. The first look-up of a topic waits for a coordinator."""

    def __init__(
        self, open_sidecars: Callable[[Iterable[str]], None], check_may_wait: Callable[[str], None]
    ) -> None:
        """Asks nothing yet.

        Args:
            open_sidecars: makes sure that topics have sidecars.
            check_may_wait: raises on a thread that must not wait, told what to do instead.
        """
        super().__init__()
        self._open, self._check_may_wait = open_sidecars, check_may_wait
        self._lock = threading.Lock()
        self._until_s = 0.0

    def fresh(self) -> SidecarNames:
        """Returns this mapping; forgets what it holds if that is old. Call it once a
        transaction."""
        now_s = time.monotonic()
        if now_s > self._until_s:
            with self._lock:
                self.clear()
                self._until_s = now_s + REMEMBERED_S
        return self

    def __missing__(self, topic: str) -> str:
        """Opens a sidecar.

        Raises:
            ConfigError, UnsupportedTopicError, UnknownTopicError: the topic can't have one.
            TransactionStateError: this thread must not wait.
            RetriableError: no coordinator answered in time.
        """
        check_named_by_user(topic)
        sidecar = sidecar_of(topic)
        self._check_may_wait("produce to the topic elsewhere first: its sidecar is opened then")
        with self._lock:
            if topic not in self:
                self._open((topic,))
                self[topic] = sidecar
        return sidecar
