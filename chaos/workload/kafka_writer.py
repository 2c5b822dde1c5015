"""The workload's transactions with Kafka's own: `confluent_kafka.Producer`, one at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from ..settings import METADATA_MS, TRANSACTION_TIMEOUT_MS, Settings
from .clients import BrokenError, DeliveryCallback, Ended, FailedError, FencedError

_CALL_S: Final = 30.0
"""Bounds a call, its retries included."""
_PAUSE_S: Final = 0.05
"""Pause between two attempts of a call."""
_FENCED: Final = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)

T = TypeVar("T")


class KafkaWriter:
    """A transactional producer of Kafka."""

    in_flight = 1

    def __init__(self, settings: Settings, name: str) -> None:
        """Connects, which fences the producer of that name. Raises FencedError, FailedError."""
        self.producer: Final = Producer(
            {
                "bootstrap.servers": settings.bootstrap_servers,
                "transactional.id": name,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 1,
                "topic.metadata.refresh.interval.ms": METADATA_MS,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "log_level": 2,
            }
        )
        self.failure: FencedError | BrokenError | None = None
        """Why it can do nothing more; None while it can."""
        retried(lambda: self.producer.init_transactions(_CALL_S))

    def begin(self, *, sidecar: bool | None = False) -> KafkaTransaction:
        """Opens a transaction; Kafka's have no sidecars."""
        del sidecar
        if self.failure is not None:
            raise self.failure
        retried(self.producer.begin_transaction)
        return KafkaTransaction(self)

    def close(self) -> None:
        """Waits for the reports, for a second."""
        try:
            self.producer.flush(1.0)
        except KafkaException:
            # It failed for good, and so did all that is on its way: each record's callback is told
            # so.
            self.producer.purge()
            self.producer.poll(0)


class KafkaTransaction:
    """The open transaction of a producer."""

    def __init__(self, writer: KafkaWriter) -> None:
        self._writer = writer

    def produce(
        self, topic: str, partition: int, key: bytes, value: bytes, told: DeliveryCallback
    ) -> None:
        """Appends a record."""
        try:
            self._writer.producer.produce(topic, value, key, partition, on_delivery=told)
        except (KafkaException, BufferError) as error:
            raise FailedError(str(error)) from error

    def send_offsets(self, positions: list[KafkaPartition], metadata: Any) -> None:
        """Makes input offsets part of the transaction. Raises FencedError, FailedError."""
        retried(
            lambda: self._writer.producer.send_offsets_to_transaction(positions, metadata, _CALL_S)
        )

    def commit(self, ended: Callable[[Ended], None]) -> None:
        """Commits, and aborts if the commit is refused."""
        try:
            retried(lambda: self._writer.producer.commit_transaction(_CALL_S))
        except FailedError as error:
            if error.abortable:
                self._abort(ended, str(error))
                return
            # Sent but not answered: it may be committed.
            self._writer.failure = BrokenError(str(error))
            ended(Ended(outcome="unknown", error=str(error)))
        except FencedError as error:
            self._writer.failure = error
            ended(Ended(outcome="unknown", error=str(error)))
        else:
            ended(Ended(outcome="committed"))

    def abort(self, ended: Callable[[Ended], None]) -> None:
        """Aborts."""
        self._abort(ended, None)

    def _abort(self, ended: Callable[[Ended], None], refused: str | None) -> None:
        """Aborts; `refused` says why a commit was refused, if one was requested."""
        told = Ended(outcome="aborted", error=refused)
        try:
            retried(lambda: self._writer.producer.abort_transaction(_CALL_S))
        except (FencedError, FailedError) as error:
            # The next producer of the name aborts it, or its timeout does. But if a commit was
            # requested, there is no confirmation that it is aborted.
            self._writer.failure = (
                error if isinstance(error, FencedError) else BrokenError(str(error))
            )
            if refused is None:
                told = Ended(outcome="aborted", error=str(error))
            else:
                told = Ended(outcome="unknown", error=f"{refused}; {error}")
        ended(told)


def retried(call: Callable[[], T]) -> T:
    """Repeats a call while librdkafka says that it may be. Raises FencedError, FailedError."""
    until_s = time.monotonic() + _CALL_S
    while True:
        try:
            return call()
        except KafkaException as exception:
            error: KafkaError = exception.args[0]
            if error.code() in _FENCED:
                raise FencedError(str(error)) from exception
            if not error.retriable() or time.monotonic() > until_s:
                failed = FailedError(str(error))
                failed.abortable = error.txn_requires_abort()
                raise failed from exception
            time.sleep(_PAUSE_S)
