"""Reads one lease of a queue: the messages that end in its span, whole, wherever they begin.

A lease ends below an end that its partition had when it was given. With markers that settles what
it holds. Where a home places transactions, one that was decided before may be placed below that end
later; so the reader asks for the end of the home's journal, after it got the lease, and waits until
what is decided below is placed (decision 31).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Message

from ..coordinator.protocol.queues import Lease
from ..journal.errors import TopicRecreatedError
from ..journal.logs.interface import Log, LogConsumer
from ..journal.spans import AT_OFFSET, MessageId
from .range_reader.places import PLACE_S, PlacesAhead, require_complete
from .range_reader.reading import CONSUMER, Range, RangeReader, ReadConfig, Share
from .range_reader.spot import Spot
from .topic_ids import TopicIds


class LeaseReader:
    """Reads the leases of one consumer, one after the other. One thread at a time may use it."""

    def __init__(self, log: Log, kafka: Mapping[str, Any], config: ReadConfig) -> None:
        """Opens the consumer that reads records.

        Args:
            log: the log to read; the caller closes it.
            kafka: librdkafka's settings.
            config: how to read.
        """
        self._log, self._config = log, config
        settings = {**CONSUMER, **kafka}
        self._ahead = PlacesAhead(log, settings)
        self._topic_ids = TopicIds(log)
        self._consumer: LogConsumer = log.consumer(settings)

    def messages(self, lease: Lease) -> Iterator[tuple[Message, MessageId]]:
        """Yields the messages of a lease with their names, in the order of delivery.

        Raises:
            TopicRecreatedError: the topic was deleted and created anew: its messages are others.
            NotSupportedError: a transaction has its records in a sidecar.
            TornTransactionError, IntegrityError, MalformedHeaderError, BrokerError: as
                `RangeReader.shares`.
            RequestTimedOutError: what is committed is not placed in time.
        """
        topic, number, topic_id = lease.partition
        if self._topic_ids.is_another(topic, topic_id):
            raise TopicRecreatedError(
                f"topic {topic} was deleted and created anew while its messages were given out:"
                " the former ones are gone; go on with the next poll"
            )
        lo, hi = lease.span
        end = hi.offset if hi == MessageId(hi.offset) else hi.offset + 1
        key = topic, number
        start = Spot(lo.offset)
        reach = self._ahead.reach({key: start}, {key: Spot(end)}, {topic: topic_id}, wait_s=PLACE_S)
        require_complete(reach)
        places = reach[key].until(Spot(end)) if key in reach else None
        part = Range(topic, number, start.position, end, places=places)
        with closing(RangeReader(self._config, part, self._log, self._consumer)) as reader:
            for share in reader.shares():
                for message, name in _named(share):
                    if lo <= name < hi:
                        yield message, name

    def close(self) -> None:
        """Closes everything that was opened."""
        self._consumer.close()
        self._ahead.close()


def _named(share: Share) -> Iterator[tuple[Message, MessageId]]:
    if share.first is None:
        for message in share.records:
            yield message, MessageId(message.offset() or 0, AT_OFFSET)
        return
    offset, sequence, nth = share.first
    for message in share.records:
        yield message, MessageId(offset, sequence, nth)
        nth += 1
