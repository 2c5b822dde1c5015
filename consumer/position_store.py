"""Where a consumer group's positions are kept: Kafka's group offsets, or the group's IOV.

Source: Transactional Messaging in Kafka, "Transactional consumer", offset management; "Producer IDs
and state groups".
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from ..journal.control import TopicPartition
from ..journal.errors import ClaimFencedError, NotSupportedError, OffsetsPendingError
from ..journal.logs.interface import Log, LogConsumer
from ..journal.position import Position
from .config import ConsumerConfig, OffsetsStorage

if TYPE_CHECKING:
    from ..coordinator.client.queries import CoordinatorQueries

FETCH_TIMEOUT_S: Final = 10.0
PENDING_RETRY_S: Final = 0.05
_PASSING: Final = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
"""The group's broker changes, or has only just started: asked again within `FETCH_TIMEOUT_S`."""


class Taken(NamedTuple):
    """Partitions that are this consumer's now."""

    positions: Mapping[TopicPartition, Position]
    """What is committed; partitions without are left out."""
    claim: int | None
    """Number of the claim; None where there is nothing to claim."""


class PositionStore(Protocol):
    """Committed positions of one consumer group."""

    def fetch(self, keys: Sequence[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """What is committed; partitions without are left out."""

    def take(self, keys: Sequence[TopicPartition]) -> Taken:
        """Take over what the group or the application assigned, from whoever had it."""

    def retake(self, claims: Mapping[TopicPartition, int | None]) -> Taken:
        """Take what was taken under these claims again, unless somebody else did since."""

    def commit(self, positions: Mapping[TopicPartition, Position], *, wait: bool) -> None:
        """Commit positions."""

    def close(self) -> None:
        """Release what it holds."""


class KafkaPositions:
    """Kafka's group offsets: o1 as the offset, the rest in its metadata."""

    def __init__(self, inner: LogConsumer) -> None:
        """Through the consumer that is the group's member."""
        self._inner = inner

    def fetch(self, keys: Sequence[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """What is committed.

        Raises:
            KafkaException: the broker refused, or did not answer in time.
        """
        places = [KafkaPartition(topic, partition) for topic, partition in keys]
        found: dict[TopicPartition, Position] = {}
        for place in self._committed(places):
            if place.offset >= 0:
                position = Position.from_metadata(place.offset, place.metadata)
                found[place.topic, place.partition] = position
        return found

    def take(self, keys: Sequence[TopicPartition]) -> Taken:
        """What is committed. The broker knows whose the partitions are."""
        return Taken(self.fetch(keys), None)

    def retake(self, claims: Mapping[TopicPartition, int | None]) -> Taken:
        """What is committed."""
        return Taken(self.fetch(list(claims)), None)

    def _committed(self, places: list[KafkaPartition]) -> list[KafkaPartition]:
        until_s = time.monotonic() + FETCH_TIMEOUT_S
        while True:
            answer: list[KafkaPartition] = []
            try:
                answer = self._inner.committed(places, max(until_s - time.monotonic(), 0.05))
                error = next((place.error for place in answer if place.error is not None), None)
            except KafkaException as refusal:
                error = refusal.args[0]
            if error is None:
                return answer
            if error.code() not in _PASSING or time.monotonic() + PENDING_RETRY_S > until_s:
                raise KafkaException(error)
            time.sleep(PENDING_RETRY_S)

    def commit(self, positions: Mapping[TopicPartition, Position], *, wait: bool) -> None:
        """Commit positions.

        Raises:
            KafkaException: refused; with `wait` false a refusal is told to ``on_commit`` only.
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
        """Nothing to release: the consumer closes its own."""


class TransactionPositions:
    """The group's IOV, which transactions commit: read from the coordinator, never written.

    Partitions are taken over by a claim. It aborts what is open and would move their offsets, so
    nobody waits for the former holder's transactions.
    """

    def __init__(self, log: Log, config: ConsumerConfig) -> None:
        """Nothing is connected before the first question."""
        self._log = log
        self._config = config
        self._timeout_s = config.coordinator_timeout_ms / 1000
        self._connected: CoordinatorQueries | None = None
        self._unanswered: tuple[object, int] | None = None
        """Terms and claimant of a claim whose answer was lost."""

    @property
    def _queries(self) -> CoordinatorQueries:
        if self._connected is None:
            # Here, for the RPC client's import is paid by those only who use it.
            from ..coordinator.client.queries import CoordinatorQueries

            self._connected = CoordinatorQueries(self._log, timeout_s=self._timeout_s)
        return self._connected

    def fetch(self, keys: Sequence[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """What is committed; waits for pending transactions that hold a partition's offset.

        Raises:
            OffsetsPendingError: one still does after ``coordinator.timeout.ms``.
            CoordinatorNotAvailableError: no coordinator answers.
        """
        deadline_s = time.monotonic() + self._timeout_s
        group = self._config.group_id
        while True:
            if self._queries.bind_group(group, None).transaction_group is None:
                return {}
            try:
                offsets = self._queries.fetch_offsets(group, list(keys)).offsets
            except OffsetsPendingError:
                if time.monotonic() + PENDING_RETRY_S > deadline_s:
                    raise
                time.sleep(PENDING_RETRY_S)
                continue
            wanted = set(keys)
            return {key: p for key, p in offsets.items() if key in wanted}

    def take(self, keys: Sequence[TopicPartition]) -> Taken:
        """Claim partitions, whoever had them.

        Raises:
            CoordinatorNotAvailableError: no coordinator answers.
        """
        return self._claim(tuple(keys), None)

    def retake(self, claims: Mapping[TopicPartition, int | None]) -> Taken:
        """Claim partitions anew.

        Raises:
            ClaimFencedError: somebody else claimed one of them since.
            CoordinatorNotAvailableError: no coordinator answers.
        """
        expected = {key: number for key, number in claims.items() if number is not None}
        return self._claim(tuple(claims), expected)

    def _claim(
        self, keys: tuple[TopicPartition, ...], expected: dict[TopicPartition, int] | None
    ) -> Taken:
        group = self._config.group_id
        # Asked for and not said: it is the producer's, which may be any, and is decided for ever.
        bound = self._queries.bind_group(group, None).transaction_group
        if bound is None or not keys:
            # No transaction ever moved an offset of the group.
            return Taken({}, None)
        terms = keys, expected
        claimant = secrets.randbits(63)
        if self._unanswered is not None and self._unanswered[0] == terms:
            # It may have taken effect: the same claimant gets its number, and is not fenced by it.
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
        """Refuse.

        Raises:
            NotSupportedError: always.
        """
        del positions, wait
        raise NotSupportedError(
            "with offsets.storage=transactions positions are committed by a transaction: "
            "call send_offsets(consumer) on it"
        )

    def close(self) -> None:
        """Close the connections."""
        if self._connected is not None:
            self._connected.close()


def open_positions(log: Log, inner: LogConsumer, config: ConsumerConfig) -> PositionStore:
    """The store that ``offsets.storage`` names."""
    if config.offsets_storage is OffsetsStorage.KAFKA:
        return KafkaPositions(inner)
    return TransactionPositions(log, config)
