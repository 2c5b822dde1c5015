"""Tells the ends of partitions at half of what the admin client's answer costs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from typing import Any, Final

from confluent_kafka import OFFSET_END, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from ..control import TopicPartition
from .asking import NO_TIME_S
from .group_clients import NEVER_POLLED, Make

_LOG = logging.getLogger(__name__)
AGAIN_S: Final = 1.0
"""Pause behind a question that was not answered whole. A shorter one lets those wait longer who ask
while a leader is away, a longer one asks the admin client for more of them."""
_SETTINGS: Final = {
    "group.id": "logtx-ends",
    "enable.auto.commit": False,
    "allow.auto.create.topics": False,
    # The end, and not where the first open transaction of Kafka's own begins.
    "isolation.level": "read_uncommitted",
    **NEVER_POLLED,
}


class EndsClient:
    """Asks through a consumer that reads nothing, and joins no group; safe from any thread.

    The admin client's answer comes through two further threads, and this one's through none. But it
    says nothing while one leader is silent, and takes a partition that does not exist for one whose
    leader is not known yet. So it tells ends alone, and no errors: what it leaves out is to be
    asked for by the admin client.
    """

    def __init__(self, make: Make) -> None:
        """Opens nothing: the first question opens the consumer, by `make`."""
        self._make = make
        self._lock = threading.Lock()
        self._consumer: Any = None
        self._failed_s: float | None = None
        """When a question was not answered whole; None behind one that was."""

    def ends_of(
        self, partitions: Collection[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Returns the end of each partition whose leader told it within `timeout_s`.

        Args:
            partitions: each once.
            timeout_s: longest wait, more than 0.
        """
        began_s, failed_s = time.monotonic(), self._failed_s
        asked = [KafkaPartition(*key, OFFSET_END) for key in partitions]
        if not asked or (failed_s is not None and began_s - failed_s < AGAIN_S):
            return {}
        found: dict[TopicPartition, int] = {}
        try:
            consumer = self._open()
            if failed_s is not None:
                consumer.list_topics(timeout=timeout_s)  # Else it asks the former leader again.
                timeout_s = max(began_s + timeout_s - time.monotonic(), NO_TIME_S)
            for told in consumer.offsets_for_times(asked, timeout_s):
                if told.error is None and told.offset >= 0:
                    found[told.topic, told.partition] = told.offset
        except KafkaException as error:
            _LOG.debug("ends_not_told error=%s", error)
        self._failed_s = None if len(found) == len(asked) else time.monotonic()
        return found

    def _open(self) -> Any:
        with self._lock:
            if self._consumer is None:
                self._consumer = self._make(_SETTINGS)
            return self._consumer

    def close(self) -> None:
        """Drops the consumer, which ends with the last question that it is asked."""
        with self._lock:
            self._consumer = None
