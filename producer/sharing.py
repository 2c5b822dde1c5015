"""Which producers of this process share a sender thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable
from functools import partial
from typing import Final

from .sender_thread import Member, SenderThread
from .succession import Make


class Sharing:
    """The sender threads that further producers may use; safe from any thread."""

    def __init__(self) -> None:
        """Has none."""
        self._guard = threading.Lock()
        self._threads: dict[Hashable, SenderThread] = {}
        self._parents: list[SenderThread] = []

    def join(self, share: Hashable | None, make: Make, member: Member) -> SenderThread:
        """Returns the thread that all with an equal `share` use, or a new one.

        Args:
            share: None: nobody else may use it.
            make: makes its librdkafka producer.
            member: who uses it from now on.

        Raises:
            ConfigError: librdkafka refuses a setting.
        """
        if share is None:
            return SenderThread(make, member)
        with self._guard:
            found = self._threads.get(share)
            if found is None or not found.takes(member):
                found = SenderThread(make, member, partial(self._forget, share))
                self._threads[share] = found
            return found

    def _forget(self, share: Hashable) -> None:
        with self._guard:
            found = self._threads.get(share)
            if found is not None and found.is_closed:
                del self._threads[share]

    def after_fork(self) -> None:
        """Forgets the parent's threads, in a child, and never frees what belongs to them."""
        self._guard = threading.Lock()
        self._parents += self._threads.values()
        self._threads = {}


SHARED: Final = Sharing()
os.register_at_fork(after_in_child=SHARED.after_fork)
