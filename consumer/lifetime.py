"""Ends what a consumer holds: when it is closed, or when nothing refers to it any more.

Nothing that librdkafka or a thread holds may refer to the consumer, or it would live for ever. So
its callbacks reach it through weak references, also those that the application passed: they are
often methods of an object that has the consumer.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..journal.dropped import close_later
from ..journal.logs.interface import LogConsumer
from ..journal.logs.lending import Lease
from .positions import Positions
from .reading import Reading
from .serial_reader import SerialReader

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Parts:
    """What a consumer holds."""

    group_id: str
    inner: LogConsumer
    reading: Reading
    positions: Positions
    lease: Lease
    """By which it uses its log."""
    serial: SerialReader | None = None

    def close(self) -> None:
        """Leaves the group and closes everything.

        Raises:
            Exception: what a rebalance callback raised; everything is closed all the same.
        """
        try:
            self.inner.close()
        finally:
            if self.serial is not None:
                self.serial.close()
            self.reading.close()
            self.positions.close()
            self.lease.close()

    def close_later(self) -> None:
        """Closes everything soon, without a commit, as the garbage collector may call it.

        The application may not have processed what was delivered.
        """
        _LOG.warning(
            "consumer_dropped group=%s: call close(), or use it in a with block", self.group_id
        )
        close_later("consumer", f"group={self.group_id}", self.close)


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls a method while its object lives, and then does nothing."""
    held = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        found = held()
        return None if found is None else found(*args)

    return call
