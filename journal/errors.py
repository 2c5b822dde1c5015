"""All errors of logtx, in one tree. Each class says what happened and what to do about it.

Errors that cross the wire carry a stable ``code``; the coordinator's client turns a code back into
its class with `error_from_code`. A code is never given to another error.

Each is a `confluent_kafka.KafkaException` too, so that programs that were written for
confluent-kafka handle them: ``args[0]`` is a `KafkaError` that says what librdkafka would say.
"""

from __future__ import annotations

from typing import Any, ClassVar

from confluent_kafka import KafkaError, KafkaException


class LogtxError(KafkaException):
    """Base of everything that logtx raises on purpose."""

    code: ClassVar[int] = 0
    """Number on the wire; 0 marks an error that never crosses it."""
    kafka_code: ClassVar[int] = KafkaError._FAIL
    """Code of the `KafkaError`."""
    retriable: ClassVar[bool] = False
    """Whether the same call may be made again."""
    fatal: ClassVar[bool] = False
    """Whether the client can't go on: close it, and make another."""
    txn_requires_abort: ClassVar[bool] = False
    """Whether the transaction can only be aborted; then its work is done again in a new one."""

    def __init__(self, message: str = "", *, kafka_code: int | None = None) -> None:
        """Keeps what happened.

        Args:
            message: what happened, for people.
            kafka_code: code of the `KafkaError`, if it is another one than the class has.
        """
        told = self.kafka_code if kafka_code is None else kafka_code
        message = message.replace("\0", "\\0")  # `KafkaError` refuses it
        super().__init__(
            KafkaError(told, message, self.fatal, self.retriable, self.txn_requires_abort)
        )
        self._message = message
        self._told = told

    def __str__(self) -> str:
        return self._message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark sends errors between processes, and `KafkaError` would be taken for the message.
        return _again, (type(self), self._message, self._told), self.__dict__


def _again(cls: type[LogtxError], message: str, kafka_code: int) -> LogtxError:
    error = cls.__new__(cls)
    LogtxError.__init__(error, message, kafka_code=kafka_code)
    return error


class ConfigError(LogtxError, ValueError):
    """A setting is missing, unknown or out of range; the message names it and the fix."""

    code = 1
    kafka_code = KafkaError._INVALID_ARG


class NotSupportedError(LogtxError):
    """The request asks for something that this version does not do. Nothing was changed."""

    code = 2
    kafka_code = KafkaError._NOT_IMPLEMENTED


class ForkedError(LogtxError):
    """A forked process used a client of its parent: it is to make one of its own."""

    kafka_code = KafkaError._STATE
    fatal = True


class ConcurrentUseError(LogtxError):
    """A call came while another one of the same consumer was under way; it did nothing.

    Another thread made one of the two, or a signal handler. Give each thread a consumer of its own,
    or a lock; in a signal handler set a flag that the loop looks at.
    """

    kafka_code = KafkaError._STATE


class RetriableError(LogtxError):
    """A passing condition: the same request may be sent again and is safe to repeat."""

    kafka_code = KafkaError._RETRY
    retriable = True


class CoordinatorNotAvailableError(RetriableError):
    """No coordinator could be reached within the time allowed; check that one is running."""

    code = 10
    kafka_code = KafkaError.COORDINATOR_NOT_AVAILABLE


class NotCoordinatorError(RetriableError):
    """The process asked does not own this journal partition; discover the owner again."""

    code = 11
    kafka_code = KafkaError.NOT_COORDINATOR

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        """Stores `hint`: the owner's host:port, or "" if it is not known."""
        super().__init__(message)
        self.hint = hint


class CoordinatorLoadingError(RetriableError):
    """The owner is still replaying its journal partition; retry after a pause."""

    code = 12
    kafka_code = KafkaError.COORDINATOR_LOAD_IN_PROGRESS


class RequestTimedOutError(RetriableError):
    """No answer came within the time allowed; the outcome of the request is not known."""

    code = 13
    kafka_code = KafkaError._TIMED_OUT


class QueueFullError(RequestTimedOutError, BufferError):
    """The producer's local queue stayed full; the record was not taken. Check the brokers."""

    code = 0
    kafka_code = KafkaError._QUEUE_FULL


class OffsetsPendingError(RetriableError):
    """A pending transaction holds the offset of a requested partition; retry once it has ended."""

    code = 14
    kafka_code = KafkaError.UNSTABLE_OFFSET_COMMIT


class SessionClosedError(RetriableError):
    """The producer's stream to the coordinator broke; its client connects again by itself."""

    code = 15
    kafka_code = KafkaError._TRANSPORT


class TooManyTransactionsError(RetriableError):
    """The coordinator's limit of open transactions is reached; end some, or begin again later."""

    code = 16
    kafka_code = KafkaError.THROTTLING_QUOTA_EXCEEDED


class CoordinatorBusyError(RetriableError):
    """The coordinator can't take more requests now; nothing was done, so ask again later."""

    code = 17
    kafka_code = KafkaError.THROTTLING_QUOTA_EXCEEDED


class MetadataStoreError(RetriableError):
    """The metadata store does not answer, is full or damaged; transactions go on without it.

    The message says which, and what to do. A store that is lost is made again from the journal.
    """

    code = 18
    kafka_code = KafkaError._STATE


class WatchLaggedError(RetriableError):
    """The watcher did not take its changes in time, so some were left out; watch again."""

    code = 19
    kafka_code = KafkaError._QUEUE_FULL


class TransactionError(LogtxError):
    """A request named a transaction that can't do what was asked. Begin another one."""

    kafka_code = KafkaError.INVALID_TXN_STATE


class UnknownTransactionError(TransactionError):
    """The TxId is not known: it was never begun, or is past the outcome retention."""

    code = 20
    txn_requires_abort = True


class OutcomeNotKeptError(TransactionError):
    """The metadata store keeps finished transactions for a window of time only, and does not have
    this one: it may be committed or aborted. Ask a store without a window, as RocksDB without
    ``--metadata-history-ms``; or ask within the window."""


class TransactionConflictError(TransactionError):
    """The transaction is decided, though this call would still change it. What was decided stays.

    Source: PIP-471, "Late-write race" (TxnConflict).
    """


class TransactionAbortedError(TransactionConflictError):
    """The transaction was aborted, by its producer, a timeout or fencing; redo its work."""

    code = 21
    kafka_code = KafkaError.TRANSACTION_ABORTABLE
    txn_requires_abort = True


class TransactionCommittedError(TransactionConflictError):
    """The transaction is committed already and can't be aborted any more."""

    code = 22


class TransactionStateError(TransactionError):
    """The call does not fit the transaction's state, such as a produce after its commit."""

    code = 23
    kafka_code = KafkaError._STATE


class ClosedError(TransactionStateError, RuntimeError):
    """The producer, or the queue's consumer, was closed. Make another one."""

    code = 0


class TransactionAbortOnlyError(TransactionError):
    """A record of this transaction failed: abort it and redo its work in a new one."""

    code = 24
    kafka_code = KafkaError.TRANSACTION_ABORTABLE
    txn_requires_abort = True


class OffsetsConflictError(TransactionError):
    """The input offsets don't continue the committed ones: another consumer committed them.

    Abort, rewind the consumer to the committed offsets and redo.
    """

    code = 25
    kafka_code = KafkaError.ILLEGAL_GENERATION
    txn_requires_abort = True


class GroupBoundError(TransactionError):
    """The consumer group commits its offsets in another transaction group; use that one."""

    code = 26
    kafka_code = KafkaError.INVALID_GROUP_ID
    txn_requires_abort = True


class RequestTooLargeError(TransactionError):
    """The request, or a record that follows from it, would not fit into one record.

    What may follow is a marker with too many branches, or the record of a consumer group's input
    offsets.
    """

    code = 27
    kafka_code = KafkaError.MSG_SIZE_TOO_LARGE
    txn_requires_abort = True


class ConcurrentTransactionsError(TransactionError):
    """A transaction key has one open transaction at a time: commit or abort it first."""

    code = 28
    kafka_code = KafkaError.CONCURRENT_TRANSACTIONS


class ClaimFencedError(TransactionError):
    """Another consumer was given these partitions, or claimed them since this consumer read them.

    Abort the transaction, drop what was read of them, and go on with what the group assigns.
    """

    code = 29
    kafka_code = KafkaError.ILLEGAL_GENERATION
    txn_requires_abort = True


class AckConflictError(TransactionError):
    """A message that this transaction acknowledges was acknowledged by another, or is deleted.

    Abort the transaction: what else it acknowledged is given out again.
    """

    code = 35
    kafka_code = KafkaError.TRANSACTION_ABORTABLE
    txn_requires_abort = True


class SubscriptionResetError(AckConflictError):
    """An operator has reset or deleted the subscription since these messages were given out.

    Nothing was acknowledged. Abort the transaction, if there is one. The next poll goes on with
    what is given out now; `logtx subscription show` tells where the subscription stands.
    """

    code = 39


class UnknownOutcomeError(TransactionError):
    """The commit was sent, but its decision could not be learnt in the time allowed.

    It is decided, or will be: ask again with `Producer.outcome`; never assume an abort.
    """

    kafka_code = KafkaError._TIMED_OUT
    retriable = True


class NotFinishedError(TransactionError):
    """The transaction is committed, and was not known to be finished in the time allowed.

    Its decision is durable: never redo its work. `Transaction.commit` with `finished` waits on.
    """

    kafka_code = KafkaError._TIMED_OUT
    retriable = True


class ProducerFencedError(LogtxError):
    """A newer producer of the same ``transactional.id`` took over. Close this one."""

    code = 30
    kafka_code = KafkaError._FENCED
    fatal = True


class NotAllowedError(ProducerFencedError):
    """This connection has an old epoch of its transaction key, or the key was deleted. Close it."""

    code = 32


class ExpiredTransactionError(ProducerFencedError):
    """The transaction belongs to an old epoch of its transaction key, and is aborted."""

    code = 33


class UnknownKeyError(LogtxError):
    """No such transaction key: no client ever connected with it, or it was deleted."""

    code = 34
    kafka_code = KafkaError.INVALID_PRODUCER_ID_MAPPING


class UnknownSubscriptionError(LogtxError):
    """No such subscription here, or it does not have this partition; subscribe first."""

    code = 36
    kafka_code = KafkaError.INVALID_REQUEST


class NotAttachedError(RetriableError):
    """The coordinator does not know this consumer of the subscription; attach again."""

    code = 37


class AckOutOfRangeError(LogtxError):
    """Messages are acknowledged that their partition does not have. Nothing was changed."""

    code = 38
    kafka_code = KafkaError._INVALID_ARG


class NotSubscribedError(LogtxError, RuntimeError):
    """The call needs a queue's consumer that is subscribed: call `subscribe` first."""

    kafka_code = KafkaError._STATE


class NotHeldError(LogtxError):
    """The consumer does not hold this message: it acknowledged it, was never given it, or another
    one has it by now."""

    kafka_code = KafkaError.INVALID_RECORD_STATE


class DeadLetterError(LogtxError):
    """The dead letter of a message can't be written. The message stays in its queue, and is given
    out again: mend what the error names, and go on."""

    retriable = True


class DoubleStartError(LogtxError):
    """Two producers connected with one ``transactional.id`` and one generation: both are closed."""

    code = 31
    kafka_code = KafkaError._FENCED
    fatal = True


class TopicError(LogtxError):
    """A topic can't be used as asked."""

    code = 43
    kafka_code = KafkaError.TOPIC_EXCEPTION
    txn_requires_abort = True


class UnknownTopicError(TopicError):
    """A topic or partition does not exist; create it first."""

    code = 40
    kafka_code = KafkaError.UNKNOWN_TOPIC_OR_PART


class UnsupportedTopicError(TopicError):
    """The topic's settings rule out transactions: a compacted topic takes no markers."""

    code = 41
    kafka_code = KafkaError.INVALID_CONFIG


class JournalTopicError(TopicError):
    """The journal topic's settings could lose decisions; the message says how to change them."""

    code = 42
    kafka_code = KafkaError.INVALID_CONFIG


class TopicModeError(TopicError):
    """A topic can't be switched between markers and places, or its mode does not allow what was
    asked for; the message says what is in the way."""

    code = 44
    kafka_code = KafkaError.INVALID_CONFIG


class MetadataNotServedError(LogtxError):
    """No coordinator that was asked has a metadata store; start one with ``--metadata-store``."""

    code = 45
    kafka_code = KafkaError._NOT_IMPLEMENTED


class FrameError(LogtxError):
    """The other end of a connection says what this version of logtx does not; the message says who
    is there, and what to change. Nothing of it was taken."""

    code = 46
    kafka_code = KafkaError._UNKNOWN_PROTOCOL


class TlsError(FrameError):
    """TLS with the other end of a connection can't be set up: one speaks it and the other does not,
    or one does not trust the other. The message names the setting to change."""

    code = 47
    kafka_code = KafkaError._SSL


class JournalError(LogtxError):
    """The journal can't be read in its present state; its partition is not served."""

    code = 60
    kafka_code = KafkaError.KAFKA_STORAGE_ERROR


class CorruptRecordError(JournalError):
    """A journal record does not decode; the message gives partition and offset."""

    code = 61
    kafka_code = KafkaError._BAD_MSG


class UnknownRecordError(JournalError):
    """A journal record has a type or version newer than this program; upgrade it."""

    code = 62
    kafka_code = KafkaError.UNSUPPORTED_VERSION


class HandedOverError(JournalError):
    """Another journal's home places a transaction, and this reader can't tell whether it is due.

    The consumer group changed between serial order and the order of the home, or somebody else than
    its owner trimmed the transaction group's journal. The text says how to go on.
    """

    code = 64
    kafka_code = KafkaError._NOT_IMPLEMENTED


class JournalTruncatedError(JournalError):
    """The journal ends below what was acknowledged: the broker lost its tail."""

    code = 63
    kafka_code = KafkaError._LOG_TRUNCATION


class ConsumerError(LogtxError):
    """A data partition holds something that can't be delivered in its present state."""

    kafka_code = KafkaError._BAD_MSG


class MalformedHeaderError(ConsumerError):
    """A record's TxId or TxCtl header does not decode; the record is not delivered."""


class IntegrityError(ConsumerError):
    """A transaction's records do not match its marker, and re-reading the log did not help.

    Nothing of it is delivered, and nothing behind it. Find out what the log lost. To go on without
    the transaction, commit the offset behind its marker for the group, and start again.
    """

    kafka_code = KafkaError._INCONSISTENT


class TopicRecreatedError(ConsumerError):
    """A topic was deleted and created anew: a group's input offsets, or what a consumer reads, are
    of the former one. The message says what to do.

    Offsets say nothing of the new topic: `logtx group reset` sets the group to its start.
    """

    kafka_code = KafkaError.OFFSET_OUT_OF_RANGE


class TornTransactionError(ConsumerError):
    """Part of a committed transaction was deleted by retention before it was read.

    Set ``torn.reset`` to ``skip`` to go on without it.
    """

    kafka_code = KafkaError.OFFSET_OUT_OF_RANGE


class NotAuthorizedError(ConsumerError):
    """A right to read is missing; the message names it, and what gives it. Then start again."""

    kafka_code = KafkaError.TOPIC_AUTHORIZATION_FAILED


class SpillError(ConsumerError):
    """The consumer can't spill pending transactions to disk; nothing was lost or committed.

    Free space, name a writable ``pending.dir`` or raise ``pending.disk.max.bytes``, then start the
    consumer again.
    """

    kafka_code = KafkaError._FS


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
