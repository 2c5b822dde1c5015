"""A block of input, and the transaction that its output goes into; what both pipelines have."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from ..journal.errors import (
    AckConflictError,
    BrokerError,
    ClaimFencedError,
    DeadLetterError,
    LogtxError,
    OffsetsConflictError,
    RetriableError,
    TransactionAbortedError,
    TransactionAbortOnlyError,
    TransactionCommittedError,
    TransactionStateError,
    UnknownOutcomeError,
    UnknownTopicError,
    UnknownTransactionError,
)
from ..journal.logs.asking import UNANSWERED, UNKNOWN

if TYPE_CHECKING:
    import logging

    from ..coordinator.protocol.commands import Outcome
    from ..journal.logs.interface import DeliveryCallback
    from ..producer.transaction import Transaction
    from ..producer.writer import Content, UserHeaders

SLICE_S: Final = 0.1
"""Longest wait for input between two checks of signals, `stop` and commits in flight: a larger
value reacts later, a smaller one wakes up more often."""
LEAVE_WAIT_S: Final = 30.0
"""Longest wait, at the loop's end and before a redo, for commits in flight and the abort of the
block at hand. The rest is left to the rewind's claim, or to the timeout."""
PAUSE_MIN_S: Final = 0.05
PAUSE_MAX_S: Final = 5.0
"""Pause before a block is redone: doubles with each failure in a row, and is shortened at random by
up to half. Shorter pauses load failing brokers, longer ones delay the recovery."""

REDONE: Final = (
    AckConflictError,
    RetriableError,
    ClaimFencedError,
    OffsetsConflictError,
    TransactionAbortedError,
    TransactionAbortOnlyError,
    UnknownOutcomeError,
    UnknownTransactionError,
)
"""Errors of a transaction after which its input is redone."""
_PASSING: Final = (
    UNANSWERED
    | UNKNOWN
    | {
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
    }
)
"""Kafka's errors within a rebalance after which the next one may succeed."""


class RefusedError(Exception):
    """Signals that the block must be redone, and carries the reason."""

    def __init__(self, reason: KafkaException) -> None:
        super().__init__(reason)
        self.reason = reason


class Flying(NamedTuple):
    """A block's transaction that was asked to commit."""

    txn: Transaction
    future: Future[Outcome]


@contextmanager
def taking_input() -> Iterator[None]:
    """Surrounds what takes input: raises `RefusedError` for what may be over the next time."""
    try:
        yield
    except (RetriableError, BrokerError, DeadLetterError, UnknownTopicError) as error:
        raise RefusedError(error) from error
    except LogtxError:
        raise
    except KafkaException as error:
        if not _passes(error.args[0]):
            raise
        raise RefusedError(error) from error


def _passes(error: KafkaError) -> bool:
    return not error.fatal() and (error.retriable() or error.code() in _PASSING)


class Block:
    """Holds messages to process, and the transaction that their output goes into.

    Iterating yields the messages, in the order in which the consumer delivered them.
    """

    __slots__ = ("_messages", "failure", "redone", "txn")

    def __init__(self, txn: Transaction, messages: Sequence[Message], redone: int) -> None:
        self.txn: Final = txn
        """The transaction, for what `produce` does not offer (for example `branch`). The loop
        commits it when it asks for the next block, if the application has not asked for that. If
        the application aborts it, the block is redone."""
        self.redone: Final = redone
        """Number of blocks in a row that failed just before this one; 0 unless it is redone."""
        self.failure: LogtxError | None = None
        """Why the transaction can't commit any more, or None. Once set, `produce` sends nothing."""
        self._messages = messages

    def __iter__(self) -> Iterator[Message]:
        """Iterates over the messages."""
        return iter(self._messages)

    def __len__(self) -> int:
        """Returns the number of messages."""
        return len(self._messages)

    def produce(
        self,
        topic: str,
        value: Content = None,
        key: Content = None,
        partition: int = -1,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: UserHeaders = None,
    ) -> None:
        """Writes a record within the block's transaction. Arguments as for `Transaction.produce`.

        If the transaction failed (for example, expired), this raises nothing: the loop redoes the
        block when it is asked for the next one.

        Raises:
            TransactionStateError: the block's commit was asked for, by the loop or the application.
            ProducerFencedError: a newer producer took over.
            ConfigError: a header has the name of one of logtx's own headers.
        """
        if self.failure is not None:
            return
        try:
            self.txn.produce(topic, value, key, partition, on_delivery, timestamp, headers)
        except TransactionStateError as error:
            self._came_late(error)
        except REDONE as error:
            self._must_not_commit(error)

    def _came_late(self, error: TransactionStateError) -> None:
        if not self.txn.is_decided or self.txn.is_committed:
            raise error  # It came too late for a transaction that is, or will be, committed.
        self.failure = TransactionAbortedError(str(error))

    def _must_not_commit(self, error: LogtxError) -> None:
        self.failure = error
        # A record is missing, so the transaction must not commit, even if asked to.
        self.txn.abort_async()


def pause_s(failures: int) -> float:
    """Returns how long to wait after so many failures in a row."""
    return min(PAUSE_MIN_S * 2.0 ** (failures - 1), PAUSE_MAX_S) * (0.5 + random.random() / 2)


def abort(txn: Transaction, log: logging.Logger, timeout_s: float) -> None:
    """Sees to it that a transaction of a block ends, within bounds: aborted, unless it is too late
    for that."""
    deadline_s = time.monotonic() + timeout_s
    for _ in range(2):
        try:
            txn.abort(max(0.0, deadline_s - time.monotonic()))
        except TransactionCommittedError:
            # It was independent of the aborted ones: its input is of other partitions.
            return
        except TransactionStateError:
            # Its commit is on its way; whether it succeeds depends on those before it.
            with suppress(LogtxError):
                txn.commit(max(0.0, deadline_s - time.monotonic()))
        except LogtxError as error:
            # A claim will abort it, or its timeout.
            log.warning("abort_not_confirmed error=%r", error)
            return
        else:
            return
