"""Stores a consumer group's positions, in Kafka's group offsets or in the group's IOV.

Source: Transactional Messaging in Kafka, "Transactional consumer", offset management; "Producer IDs
and state groups".
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from ..journal.control import TopicPartition
from ..journal.errors import ClaimFencedError, NotSupportedError, OffsetsPendingError
from ..journal.logs.asking import NO_TIME_S, Asking
from ..journal.logs.interface import Log, LogConsumer
from ..journal.position import Position
from .config import ConsumerConfig, OffsetsStorage

if TYPE_CHECKING:
    from ..coordinator.client.queries import CoordinatorQueries
    from ..coordinator.client.tls import Tls

FETCH_TIMEOUT_S: Final = 10.0
"""Time-out of fetching committed positions from Kafka, with its retries. A longer one blocks a
rebalance for longer, a shorter one fails while the group's broker changes."""
PENDING_RETRY_S: Final = 0.05
"""Pause before positions are fetched again. A longer one delays the first delivery, a shorter one
asks the broker or coordinator more often."""


class Taken(NamedTuple):
    """The result of taking over partitions."""

    positions: Mapping[TopicPartition, Position]
    """Committed positions; partitions without one are left out."""
    claim: int | None
    """Number of the claim; None if there was nothing to claim."""


class PositionStore(Protocol):
    """Committed positions of one consumer group."""

    def fetch(
        self, keys: Sequence[TopicPartition], timeout_s: float | None = None
    ) -> Mapping[TopicPartition, Position]:
        """Returns committed positions; partitions without one are left out.

        Args:
            keys: the partitions.
            timeout_s: longest wait in seconds; None: the store's own.
        """

    def take(self, keys: Sequence[TopicPartition]) -> Taken:
        """Takes over partitions that the group or the application assigned, from any holder."""

    def retake(self, claims: Mapping[TopicPartition, int | None]) -> Taken:
        """Takes over partitions again that were taken under these claims.

        Raises:
            ClaimFencedError: another consumer has claimed one of them since.
        """

    def commit(self, positions: Mapping[TopicPartition, Position], *, wait: bool) -> None:
        """Commits positions."""

    def close(self) -> None:
        """Releases the store's connections."""


class KafkaPositions:
    """Positions in Kafka's group offsets: o1 as the offset, the rest in its metadata."""

    def __init__(self, inner: LogConsumer) -> None:
        """Uses `inner`, which is the group's member."""
        self._inner = inner

    def fetch(
        self, keys: Sequence[TopicPartition], timeout_s: float | None = None
    ) -> Mapping[TopicPartition, Position]:
        """Returns committed positions; partitions without one are left out.

        Raises:
            KafkaException: the broker refused, or did not answer in time.
        """
        places = [KafkaPartition(topic, partition) for topic, partition in keys]
        found: dict[TopicPartition, Position] = {}
        asking = Asking("committed positions", FETCH_TIMEOUT_S if timeout_s is None else timeout_s)
        for place in asking.until_done(lambda left_s: self._committed(places, left_s)):
            if place.offset >= 0:
                position = Position.from_metadata(place.offset, place.metadata)
                found[place.topic, place.partition] = position
        return found

    def take(self, keys: Sequence[TopicPartition]) -> Taken:
        """Returns committed positions, without a claim: Kafka's group knows who holds what."""
        return Taken(self.fetch(keys), None)

    def retake(self, claims: Mapping[TopicPartition, int | None]) -> Taken:
        """Returns committed positions, as `take`."""
        return Taken(self.fetch(list(claims)), None)

    def _committed(self, places: list[KafkaPartition], left_s: float) -> list[KafkaPartition]:
        answer = self._inner.committed(places, left_s)
        for place in answer:
            if place.error is not None:
                raise KafkaException(place.error)
        return answer

    def commit(self, positions: Mapping[TopicPartition, Position], *, wait: bool) -> None:
        """Commits positions.

        Raises:
            KafkaException: the broker refused. Without `wait` only ``on_commit`` hears of that.
        """
        places = [
            KafkaPartition(topic, partition, position.o1, position.to_metadata())
            for (topic, partition), position in positions.items()
        ]
        answer = self._inner.commit(offsets=places, asynchronous=not wait)
        for place in answer or ():
            if place.error is not None:
                raise KafkaException(place.error)

    def close(self) -> None:
        """Does nothing: `inner` belongs to the consumer, which closes it."""


class TransactionPositions:
    """Positions in the group's IOV. Transactions write it; this reads it from the coordinator.

    Partitions are taken over by a claim. It aborts open transactions that would move their offsets,
    so the new holder does not wait for the former holder's transactions.
    """

    def __init__(self, log: Log, config: ConsumerConfig) -> None:
        """Connects when it is first used.

        Raises:
            ConfigError: a file of TLS can't be used.
        """
        self._log = log
        self._config = config
        self._timeout_s = config.coordinator_timeout_ms / 1000
        self._connected: CoordinatorQueries | None = None
        self._tls: Tls | None = None
        if config.tls is not None:
            from ..coordinator.client.tls import opened_tls

            self._tls = opened_tls(config.tls)
        self._unanswered: tuple[object, int] | None = None
        """Terms and claimant number of a claim that is not answered, or whose answer was lost."""

    @property
    def _queries(self) -> CoordinatorQueries:
        if self._connected is None:
            # Imported here, so that only consumers that need the RPC client pay for loading it.
            from ..coordinator.client.queries import CoordinatorQueries

            self._connected = CoordinatorQueries(
                self._log, timeout_s=self._timeout_s, tls=self._tls
            )
        return self._connected

    def fetch(
        self, keys: Sequence[TopicPartition], timeout_s: float | None = None
    ) -> Mapping[TopicPartition, Position]:
        """Returns committed positions, once no pending transaction holds a partition's offset.

        Raises:
            OffsetsPendingError: one still holds an offset after that time.
            CoordinatorNotAvailableError: no coordinator answers.
        """
        deadline_s = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        group = self._config.group_id
        while True:
            left_s = max(deadline_s - time.monotonic(), NO_TIME_S)
            if self._queries.bind_group(group, None, timeout_s=left_s).transaction_group is None:
                return {}
            try:
                offsets = self._queries.fetch_offsets(group, list(keys), timeout_s=left_s).offsets
            except OffsetsPendingError:
                if time.monotonic() + PENDING_RETRY_S > deadline_s:
                    raise
                time.sleep(PENDING_RETRY_S)
                continue
            wanted = set(keys)
            return {key: p for key, p in offsets.items() if key in wanted}

    def take(self, keys: Sequence[TopicPartition]) -> Taken:
        """Claims partitions from any former holder.

        Raises:
            CoordinatorNotAvailableError: no coordinator answers.
        """
        return self._claim(tuple(keys), None)

    def retake(self, claims: Mapping[TopicPartition, int | None]) -> Taken:
        """Claims partitions again, provided that their claims are still these.

        Raises:
            ClaimFencedError: another consumer has claimed one of them since.
            CoordinatorNotAvailableError: no coordinator answers.
        """
        expected = {key: number for key, number in claims.items() if number is not None}
        return self._claim(tuple(claims), expected)

    def _claim(
        self, keys: tuple[TopicPartition, ...], expected: dict[TopicPartition, int] | None
    ) -> Taken:
        group = self._config.group_id
        # Ask for the binding, don't propose one: the producers' transaction group decides it, this
        # consumer does not know that group, and a binding is for ever.
        bound = self._queries.bind_group(group, None).transaction_group
        if bound is None or not keys:
            # No transaction has ever moved an offset of the group.
            return Taken({}, None)
        terms = keys, expected
        claimant = secrets.randbits(63)
        if self._unanswered is not None and self._unanswered[0] == terms:
            # The lost claim may have taken effect. With the same claimant number the coordinator
            # returns that claim's number, and the claim does not fence us.
            claimant = self._unanswered[1]
        self._unanswered = terms, claimant
        try:
            claimed = self._queries.claim_offsets(group, bound, keys, claimant, expected)
        except ClaimFencedError:
            self._unanswered = None
            raise
        self._unanswered = None
        return Taken(claimed.offsets.offsets, claimed.number)

    def commit(self, positions: Mapping[TopicPartition, Position], *, wait: bool) -> None:
        """Refuses.

        Raises:
            NotSupportedError: always.
        """
        del positions, wait
        raise NotSupportedError(
            "with offsets.storage=transactions positions are committed by a transaction: "
            "call send_offsets(consumer) on it"
        )

    def close(self) -> None:
        """Closes the connections."""
        if self._connected is not None:
            self._connected.close()


def open_positions(log: Log, inner: LogConsumer, config: ConsumerConfig) -> PositionStore:
    """Returns the store that ``offsets.storage`` names."""
    if config.offsets_storage is OffsetsStorage.KAFKA:
        return KafkaPositions(inner)
    return TransactionPositions(log, config)
