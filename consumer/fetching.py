"""Opens what reads ranges of partitions: by the C extension where it can, else by Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Final, TypeAlias, cast

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from ..journal.fetcher import Fetched, PollingFetcher
from ..journal.logs.interface import LogConsumer
from ..journal.native.interface import Reader
from ..journal.native.loading import has_tried_reader
from .source import NativeSource, OtherQueueError, open_consumer

TRIAL_PAYS_RECORDS: Final = 100_000
"""How many records a process reads in Python until it tries the extension. That takes up to 0.1 s,
and spares a microsecond of each record. Fewer delay small reads, more let large ones be slow."""
_asked_records = 0
"""How many this process was asked for."""


class NativeFetcher:
    """A `Fetcher` that takes light messages by the C extension, as soon as there is one."""

    def __init__(
        self,
        consumer: LogConsumer,
        reader: Reader,
        error_cb: Callable[[KafkaError], object] | None = None,
    ) -> None:
        """Reads nothing yet; the arguments are those of `NativeSource`."""
        self._consumer = consumer
        self._source = NativeSource(consumer, reader, error_cb)
        self._place = "", 0
        self._next = 0
        """Offset behind all that was given out since the assignment."""

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Works as `Fetcher.assign`."""
        self._place, self._next = (topic, partition), offset
        self._consumer.assign([KafkaPartition(topic, partition, offset)])

    def fetch(self, limit: int, timeout_s: float) -> Fetched:
        """Works as `Fetcher.fetch`."""
        try:
            read = self._source.read(limit, timeout_s)
        except OtherQueueError:
            self.assign(*self._place, self._next)
            return Fetched([])
        if read is None:
            return Fetched([])
        parts = [part for part in read.parts if part.key == self._place]
        if not parts:
            return Fetched([], read.events)
        records = [*chain.from_iterable(part.records for part in parts)]
        self._next = cast(int, records[-1].offset()) + 1
        return Fetched(records, read.events, parts[0].runs if len(parts) == 1 else None)

    def unassign(self) -> None:
        """Reads nothing any more, until it is assigned again."""
        self._consumer.unassign()

    def close(self) -> None:
        """Closes the consumer and its reader."""
        self._consumer.close()


OpenFetcher: TypeAlias = PollingFetcher | NativeFetcher
"""A `Fetcher` with a consumer of its own."""


def open_fetcher(
    make: Callable[[Mapping[str, Any]], LogConsumer], settings: Mapping[str, Any], *, records: int
) -> OpenFetcher:
    """Makes what reads ranges.

    Args:
        make: makes a consumer with some settings.
        settings: the settings.
        records: about how many are to be read.

    Raises:
        KafkaException: librdkafka refuses the settings.
    """
    return open_quickest(make, settings) if pays(records) else PollingFetcher(make(settings))


def pays(records: int) -> bool:
    """Counts records that are to be read. Returns whether `open_quickest` is worth its trial."""
    global _asked_records
    _asked_records += records
    return has_tried_reader() or _asked_records >= TRIAL_PAYS_RECORDS


def open_quickest(
    make: Callable[[Mapping[str, Any]], LogConsumer], settings: Mapping[str, Any]
) -> OpenFetcher:
    """Makes what reads ranges as `open_fetcher`, by the extension if that passes its trial."""
    consumer, reader = open_consumer(make, settings)
    if reader is None:
        return PollingFetcher(consumer)
    return NativeFetcher(consumer, reader, settings.get("error_cb"))
