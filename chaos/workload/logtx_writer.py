"""The workload's transactions with `logtx.Producer`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from typing import Any, Final

from confluent_kafka import KafkaException

from ...coordinator.protocol.commands import Outcome
from ...journal.errors import (
    DoubleStartError,
    LogtxError,
    ProducerFencedError,
    RequestTimedOutError,
    TransactionCommittedError,
    UnknownOutcomeError,
)
from ...producer.producer import Producer
from ...producer.transaction import Transaction
from ..settings import METADATA_MS, TRANSACTION_TIMEOUT_MS, Settings
from .clients import DeliveryCallback, Ended, FailedError, FencedError

GROWS_BYTES: Final = 80
"""What a growing transaction writes to a topic first: about two records."""
_CLOSE_S: Final = 20.0
"""Bounds the closing of a producer."""
_FENCED: Final = (ProducerFencedError, DoubleStartError)


def producer_settings(settings: Settings) -> dict[str, Any]:
    """Returns the settings that all producers of the workload share."""
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "topic.metadata.refresh.interval.ms": METADATA_MS,
        "log_level": 2,  # errors only: brokers go and come all the time here
    }


def workers_sidecars(settings: Settings, random: Random) -> dict[str, Any]:
    """Returns what a worker's producer says of sidecars: half of them keep clear of them, a quarter
    write to them alone, and the transactions of a quarter grow into them."""
    if not settings.sidecar:
        return {}
    return {"transaction.sidecar.min.bytes": random.choice((-1, -1, 0, GROWS_BYTES))}


def ended_of(future: Future[Outcome]) -> Ended:
    """Returns what the future of a commit or an abort tells."""
    error = future.exception()
    if error is None:
        outcome = future.result()
        return Ended(
            outcome="committed" if outcome.state.commits else "aborted",
            txid=outcome.txid.to_bytes().hex(),
            commit_sequence=outcome.commit_sequence,
        )
    told = f"{type(error).__name__}: {error}"
    if isinstance(error, UnknownOutcomeError | RequestTimedOutError):
        return Ended(outcome="unknown", error=told)
    if isinstance(error, TransactionCommittedError):
        return Ended(outcome="committed", error=told)
    # Every other error says that it is aborted, or that its commit was refused for good.
    assert isinstance(error, LogtxError), error
    return Ended(outcome="aborted", error=told)


class LogtxWriter:
    """A producer of logtx."""

    def __init__(
        self, settings: Settings, *, name: str | None, key: str | None, in_flight: int
    ) -> None:
        """Connects, and so fences the producer that has the name.

        Raises:
            FencedError: a newer producer has it.
            FailedError: no coordinator answered in time.
        """
        self.in_flight: Final = in_flight
        identity: dict[str, Any] = {"transaction.key": key} if key else {"transactional.id": name}
        limit = {} if key else {"transactions.in.flight.max": in_flight}
        grows = {"transaction.sidecar.min.bytes": GROWS_BYTES} if settings.sidecar else {}
        self._producer = Producer({**producer_settings(settings), **identity, **limit, **grows})
        try:
            _translated(self._producer.init_transactions)
        except BaseException:
            self._producer.close(0)
            raise

    def begin(self, *, sidecar: bool | None = False) -> LogtxTransaction:
        """Opens a transaction. With None it goes over to sidecars behind its first records."""
        return LogtxTransaction(
            _translated(lambda: self._producer.begin_transaction(sidecar=sidecar))
        )

    def close(self) -> None:
        """Closes the producer."""
        self._producer.close(_CLOSE_S)


def _translated(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except _FENCED as error:
        raise FencedError(str(error)) from error
    except (LogtxError, KafkaException) as error:
        raise FailedError(f"{type(error).__name__}: {error}") from error


class LogtxTransaction:
    """A transaction of logtx."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def produce(
        self, topic: str, partition: int, key: bytes, value: bytes, told: DeliveryCallback
    ) -> None:
        """Appends a record."""
        _translated(
            lambda: self._transaction.produce(
                topic, value, key, partition=partition, on_delivery=told
            )
        )

    def commit(self, ended: Callable[[Ended], None]) -> None:
        """Requests the commit, and aborts if it is refused."""

        def told(future: Future[Outcome]) -> None:
            found = ended_of(future)
            if found.outcome == "aborted" and self._transaction.is_open:
                self._abort(ended, found.error)
            else:
                ended(found)

        self._transaction.commit_async().add_done_callback(told)

    def abort(self, ended: Callable[[Ended], None]) -> None:
        """Requests the abort."""
        self._abort(ended, None)

    def _abort(self, ended: Callable[[Ended], None], refused: str | None) -> None:
        """Aborts; `refused` says why a commit was refused, if one was requested."""

        def told(future: Future[Outcome]) -> None:
            found = ended_of(future)
            # Even if it is not confirmed: no commit was requested, or it was refused for good.
            if found.outcome == "unknown" or refused is not None:
                found = Ended(outcome="aborted", error=refused or found.error)
            ended(found)

        self._transaction.abort_async().add_done_callback(told)
