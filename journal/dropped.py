"""Closes what the application drops without `close()`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from confluent_kafka import KafkaException

_LOG = logging.getLogger(__name__)


def close_later(kind: str, name: str, close: Callable[[], object]) -> None:
    """Calls `close` on a thread of its own.

    The garbage collector calls this, wherever it runs: on any thread and within any call, also one
    of librdkafka, and under any lock. So it may not wait, and `close` may not refer to the object
    that is garbage.

    Args:
        kind: what was dropped, for the log: ``"consumer"``.
        name: which one: ``"group=g"``.
        close: ends what is left of it.
    """

    def close_quietly() -> None:
        try:
            close()
        except KafkaException as error:
            _LOG.warning("%s_failed_to_close %s error=%s", kind, name, error)

    try:
        threading.Thread(target=close_quietly, name="logtx-dropped", daemon=True).start()
    except RuntimeError as error:  # The interpreter ends.
        _LOG.info("%s_not_closed %s error=%s", kind, name, error)
