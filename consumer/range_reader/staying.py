"""Reads one range after another with one consumer, which stays where the last one ended.

To assign a partition throws away what was fetched of it, and fetches anew. So where the next range
begins at the very place where the consumer stands, nothing is assigned. It stands there if it gave
out all before, and nothing behind, since it was assigned:

- A record moves it behind that record, also one that its reader dropped, as it lay behind the
  range: a range that begins between is assigned.
- The end of the partition moves it to that end. It is told once (trap 199): a range whose last
  offsets hold no records, below an end that was told already, would wait for it in vain.
- Any other event, and an error, leave it nowhere: librdkafka may have stopped the partition. So
  does the caller (`leave`), if reading failed.
- Another topic of the name leaves it nowhere: what was fetched is of the former one. The ids are
  the caller's, and what is read is of the topic only if that has the name behind the fetch, as with
  a consumer that was just assigned (trap 120). It takes another client of librdkafka's, too: one
  that knows a higher leader epoch of the former topic fetches nothing of the new one, for ever, and
  says nothing (trap 293). So it does if the brokers seem to stand still.

What retention takes meanwhile is given out if it was fetched before, as it would have been a moment
ago, and is told as out of range if not. It never pauses a partition: a pause would outlive this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

from ...journal.fetcher import Fetched


class Assigned(Protocol):
    """The part of a `LogConsumer` that reads ranges."""

    def assign(self, partitions: list[KafkaPartition]) -> None: ...
    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]: ...
    def close(self) -> None: ...


class ConsumingFetcher:
    """A `Fetcher` that waits for all that it is asked for, as confluent-kafka's `consume` does."""

    def __init__(self, consumer: Assigned) -> None:
        """Assigns nothing yet. The caller closes the consumer."""
        self._consumer = consumer

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Works as `Fetcher.assign`."""
        self._consumer.assign([KafkaPartition(topic, partition, offset)])

    def fetch(self, limit: int, timeout_s: float) -> Fetched:
        """Works as `Fetcher.fetch`, but waits for `limit` records as long as `timeout_s`."""
        return Fetched.of(self._consumer.consume(limit, timeout_s))


class Staying:
    """A consumer that reads one partition at a time, and knows where it stands."""

    def __init__(self, make: Callable[[], Assigned]) -> None:
        """Stands nowhere.

        Args:
            make: opens a consumer of librdkafka's, which nobody else uses; `close` closes it.
        """
        self._make = make
        self._consumer = make()
        self._is_stale = False
        """Whether another consumer is to be opened before the next assignment."""
        self._ids: dict[str, str] = {}
        """Topic → id of the one that the consumer knows by this name."""
        self._place: tuple[str, int] | None = None
        self._next: int | None = None
        """Offset behind all that was given out; None: unknown."""

    def begin(self, topic: str, topic_id: str) -> None:
        """Notes which topic is read from now on: another one may have had the name before."""
        if self._ids.get(topic, topic_id) != topic_id:
            self.renew()
        self._ids[topic] = topic_id

    def leave(self) -> None:
        """Stands nowhere: what is read next is assigned. If reading failed, that may mend it."""
        self._next = None

    def renew(self) -> None:
        """Leaves, and opens another consumer before the next assignment."""
        self.leave()
        self._is_stale = True

    def assign(self, partitions: list[KafkaPartition]) -> None:
        """Goes to the place in one partition, unless it stands there."""
        (there,) = partitions
        place = there.topic, there.partition
        if place == self._place and there.offset == self._next:
            return
        self._next = None
        if self._is_stale:
            former, self._consumer = self._consumer, self._make()
            self._ids = {topic: id_ for topic, id_ in self._ids.items() if topic == there.topic}
            self._is_stale = False
            former.close()
        self._consumer.assign(partitions)
        self._place, self._next = place, there.offset

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Returns the next records and events, as `LogConsumer.consume`."""
        before, self._next = self._next, None
        batch = self._consumer.consume(num_messages, timeout)
        self._next = self._behind(batch) if batch else before
        return batch

    def _behind(self, batch: Sequence[Message]) -> int | None:
        last = batch[-1]
        error, offset = last.error(), last.offset()
        if offset is None or (last.topic(), last.partition()) != self._place:
            return None
        if error is None:
            return offset + 1
        return offset if error.code() == KafkaError._PARTITION_EOF else None

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()
