"""What a consumer asks the brokers on the application's behalf, within the application's time-out.

librdkafka passes a broker's refusal on at once, also one that passes: the partition's leader is
being elected, or is another one than librdkafka knows. Here such a question is asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from ..journal.logs.asking import PASSING, Asking
from ..journal.logs.interface import LogConsumer

_T = TypeVar("_T")
_FOREVER_S: Final = 2_000_000.0
"""Stands for a time-out without end: librdkafka counts milliseconds in 31 bits."""


def seconds(timeout: float | None) -> float | None:
    """Returns a time-out in seconds; None for one without end, which is negative or None."""
    return None if timeout is None or timeout < 0 else timeout


class Inquiries:
    """Asks through librdkafka's consumer. One thread at a time may use it.

    Each call raises KafkaException if the broker refuses for a reason that does not pass, or goes
    on refusing until the time-out. A negative time-out, or None, waits for ever.
    """

    def __init__(self, inner: LogConsumer) -> None:
        self._inner = inner

    def watermarks(
        self, partition: KafkaPartition, timeout: float | None, *, cached: bool
    ) -> tuple[int, int]:
        """Returns a partition's first offset, and the offset after its last record."""
        return self._ask(
            timeout, lambda left: self._inner.get_watermark_offsets(partition, left, cached)
        )

    def for_times(
        self, partitions: list[KafkaPartition], timeout: float | None
    ) -> list[KafkaPartition]:
        """Returns each partition's first offset at or after a time (in its `offset` field, ms)."""

        def ask(left_s: float) -> list[KafkaPartition]:
            found = self._inner.offsets_for_times(list(partitions), left_s)
            for place in found:
                if place.error is not None and place.error.code() in PASSING:
                    raise KafkaException(place.error)
                if place.error is None and place.offset == OFFSET_INVALID:
                    text = f"{place.topic}[{place.partition}]: its leader did not answer"
                    raise KafkaException(KafkaError(KafkaError._TRANSPORT, text))
            return found

        return self._ask(timeout, ask)

    def metadata(self, topic: str | None, timeout: float | None) -> Any:
        """Returns Kafka's metadata of the cluster, or of one topic."""
        return self._ask(timeout, lambda left: self._inner.list_topics(topic, left))

    def cluster_id(self, timeout: float | None) -> str | None:
        """Returns the cluster's id."""
        found: str | None = self.metadata(None, timeout).cluster_id
        return found

    def _ask(self, timeout: float | None, ask: Callable[[float], _T]) -> _T:
        asking = Asking("", _FOREVER_S if seconds(timeout) is None else timeout or 0.0)
        return asking.until_led(ask, lambda left: self._inner.list_topics(None, left))
