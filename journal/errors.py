"""All errors of logtx, in one tree. Each class says what happened and what to do about it.

Errors that cross the wire carry a stable ``code``; the coordinator's client turns a code back into
its class with `error_from_code`. A code is never given to another error.
"""

from __future__ import annotations

from typing import ClassVar


class LogtxError(Exception):
    """Base of everything that logtx raises on purpose."""

    code: ClassVar[int] = 0
    """Number on the wire; 0 marks an error that never crosses it."""


class ConfigError(LogtxError):
    """A setting is missing, unknown or out of range; the message names it and the fix."""

    code = 1


class NotSupportedError(LogtxError):
    """The request asks for something that this version does not do. Nothing was changed."""

    code = 2


class RetriableError(LogtxError):
    """A passing condition: the same request may be sent again and is safe to repeat."""


class CoordinatorNotAvailableError(RetriableError):
    """No coordinator could be reached within the time allowed; check that one is running."""

    code = 10


class NotCoordinatorError(RetriableError):
    """The process asked does not own this journal partition; discover the owner again."""

    code = 11

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        """Stores `hint`: the owner's host:port, or "" if it is not known."""
        super().__init__(message)
        self.hint = hint


class CoordinatorLoadingError(RetriableError):
    """The owner is still replaying its journal partition; retry after a pause."""

    code = 12


class RequestTimedOutError(RetriableError):
    """No answer came within the time allowed; the outcome of the request is not known."""

    code = 13


class OffsetsPendingError(RetriableError):
    """A pending transaction holds the offset of a requested partition; retry once it has ended."""

    code = 14


class SessionClosedError(RetriableError):
    """The producer's stream to the coordinator broke; its client connects again by itself."""

    code = 15


class TooManyTransactionsError(RetriableError):
    """The coordinator's limit of open transactions is reached; end some, or begin again later."""

    code = 16


class CoordinatorBusyError(RetriableError):
    """The coordinator can't take more requests now; nothing was done, so ask again later."""

    code = 17


class TransactionError(LogtxError):
    """A request named a transaction that can't do what was asked. Begin another one."""


class UnknownTransactionError(TransactionError):
    """The TxId is not known: it was never begun, or is past the outcome retention."""

    code = 20


class TransactionAbortedError(TransactionError):
    """The transaction was aborted, by its producer, a timeout or fencing; redo its work."""

    code = 21


class TransactionCommittedError(TransactionError):
    """The transaction is committed already and can't be aborted any more."""

    code = 22


class TransactionStateError(TransactionError):
    """The call does not fit the transaction's state, such as a produce after its commit."""

    code = 23


class TransactionAbortOnlyError(TransactionError):
    """A record of this transaction failed: abort it and redo its work in a new one."""

    code = 24


class OffsetsConflictError(TransactionError):
    """The input offsets don't continue the committed ones: another consumer committed them.

    Abort, rewind the consumer to the committed offsets and redo.
    """

    code = 25


class GroupBoundError(TransactionError):
    """The consumer group commits its offsets in another transaction group; use that one."""

    code = 26


class RequestTooLargeError(TransactionError):
    """The request, or a record that follows from it, would not fit into one record.

    What may follow is a marker with too many branches, or the record of a consumer group's input
    offsets.
    """

    code = 27


class ConcurrentTransactionsError(TransactionError):
    """A transaction key has one open transaction at a time: commit or abort it first."""

    code = 28


class ClaimFencedError(TransactionError):
    """Another consumer was given these partitions, or claimed them since this consumer read them.

    Abort the transaction, drop what was read of them, and go on with what the group assigns.
    """

    code = 29


class UnknownOutcomeError(TransactionError):
    """The commit was sent, but its decision could not be learnt in the time allowed.

    It is decided, or will be: ask again with `Producer.outcome`; never assume an abort.
    """


class ProducerFencedError(LogtxError):
    """A newer producer of the same ``transactional.id`` took over. Close this one."""

    code = 30


class NotAllowedError(ProducerFencedError):
    """This connection has an old epoch of its transaction key, or the key was deleted. Close it."""

    code = 32


class ExpiredTransactionError(ProducerFencedError):
    """The transaction belongs to an old epoch of its transaction key, and is aborted."""

    code = 33


class UnknownKeyError(LogtxError):
    """No such transaction key: no client ever connected with it, or it was deleted."""

    code = 34


class DoubleStartError(LogtxError):
    """Two producers connected with one ``transactional.id`` and one generation: both are closed."""

    code = 31


class TopicError(LogtxError):
    """A topic can't be used as asked."""

    code = 43


class UnknownTopicError(TopicError):
    """A topic or partition does not exist; create it first."""

    code = 40


class UnsupportedTopicError(TopicError):
    """The topic's settings rule out transactions: a compacted topic takes no markers."""

    code = 41


class JournalTopicError(TopicError):
    """The journal topic's settings could lose decisions; the message says how to change them."""

    code = 42


class JournalError(LogtxError):
    """The journal can't be read in its present state; its partition is not served."""

    code = 60


class CorruptRecordError(JournalError):
    """A journal record does not decode; the message gives partition and offset."""

    code = 61


class UnknownRecordError(JournalError):
    """A journal record has a type or version newer than this program; upgrade it."""

    code = 62


class JournalTruncatedError(JournalError):
    """The journal ends below what was acknowledged: the broker lost its tail."""

    code = 63


class ConsumerError(LogtxError):
    """A data partition holds something that can't be delivered in its present state."""


class MalformedHeaderError(ConsumerError):
    """A record's TxId or TxCtl header does not decode; the record is not delivered."""


class IntegrityError(ConsumerError):
    """A transaction's records do not match its marker, and re-reading the log did not help."""


class TornTransactionError(ConsumerError):
    """Part of a committed transaction was deleted by retention before it was read.

    Set ``torn.reset`` to ``skip`` to go on without it.
    """


class SpillError(ConsumerError):
    """The consumer can't spill pending transactions to disk; nothing was lost or committed.

    Free space, name a writable ``pending.dir`` or raise ``pending.disk.max.bytes``, then start the
    consumer again.
    """


class BrokerError(LogtxError):
    """The broker refused, or did not answer in time; the message carries Kafka's own."""

    code = 50


def _classes(root: type[LogtxError]) -> list[type[LogtxError]]:
    return [root, *(c for s in root.__subclasses__() for c in _classes(s))]


def error_from_code(code: int, message: str, hint: str = "") -> LogtxError:
    """Returns the error that a peer sent; an unknown code becomes a plain `LogtxError`."""
    if code == NotCoordinatorError.code:
        return NotCoordinatorError(message, hint=hint)
    for cls in _classes(LogtxError):
        if code and cls.code == code:
            return cls(message)
    return LogtxError(f"error {code} of a newer peer: {message}")
