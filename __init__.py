"""Transactions on any Kafka-compatible log.

    import logtx

    producer = logtx.Producer({"bootstrap.servers": "localhost:9092", "transactional.id": "w-1"})
    consumer = logtx.Consumer({"bootstrap.servers": "localhost:9092", "group.id": "audit"})

Each name is loaded on first use, so a program does not pay for what it does not use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .consumer.consumer import Consumer
    from .consumer.share_consumer import ShareConsumer
    from .coordinator.client.metadata import MetadataClient
    from .coordinator.protocol.queues import AcknowledgeType
    from .integration import spark as spark
    from .integration.block import Block
    from .integration.blocks import process
    from .integration.queue_blocks import QueueBlock
    from .journal.errors import (
        AckConflictError,
        AckOutOfRangeError,
        BrokerError,
        ClaimFencedError,
        ClosedError,
        ConcurrentTransactionsError,
        ConcurrentUseError,
        ConfigError,
        ConsumerError,
        CoordinatorLoadingError,
        CoordinatorNotAvailableError,
        CorruptRecordError,
        DeadLetterError,
        DoubleStartError,
        ExpiredTransactionError,
        ForkedError,
        GroupBoundError,
        IntegrityError,
        JournalError,
        JournalTopicError,
        JournalTruncatedError,
        LogtxError,
        MalformedHeaderError,
        MetadataNotServedError,
        MetadataStoreError,
        NotAllowedError,
        NotAttachedError,
        NotAuthorizedError,
        NotCoordinatorError,
        NotFinishedError,
        NotHeldError,
        NotSubscribedError,
        NotSupportedError,
        OffsetsConflictError,
        OffsetsPendingError,
        OutcomeNotKeptError,
        ProducerFencedError,
        RequestTimedOutError,
        RequestTooLargeError,
        RetriableError,
        SessionClosedError,
        SpillError,
        TlsError,
        TopicError,
        TopicModeError,
        TopicRecreatedError,
        TornTransactionError,
        TransactionAbortedError,
        TransactionAbortOnlyError,
        TransactionCommittedError,
        TransactionConflictError,
        TransactionError,
        TransactionStateError,
        UnknownKeyError,
        UnknownOutcomeError,
        UnknownRecordError,
        UnknownSubscriptionError,
        UnknownTopicError,
        UnknownTransactionError,
        UnsupportedTopicError,
        WatchLaggedError,
    )
    from .journal.txid import TxId
    from .producer.branch import Branch
    from .producer.core.summary import BranchSummary
    from .producer.producer import Producer
    from .producer.transaction import Transaction

__all__ = [
    "AckConflictError",
    "AckOutOfRangeError",
    "AcknowledgeType",
    "Block",
    "Branch",
    "BranchSummary",
    "BrokerError",
    "ClaimFencedError",
    "ClosedError",
    "ConcurrentTransactionsError",
    "ConcurrentUseError",
    "ConfigError",
    "Consumer",
    "ConsumerError",
    "CoordinatorLoadingError",
    "CoordinatorNotAvailableError",
    "CorruptRecordError",
    "DeadLetterError",
    "DoubleStartError",
    "ExpiredTransactionError",
    "ForkedError",
    "GroupBoundError",
    "IntegrityError",
    "JournalError",
    "JournalTopicError",
    "JournalTruncatedError",
    "LogtxError",
    "MalformedHeaderError",
    "MetadataClient",
    "MetadataNotServedError",
    "MetadataStoreError",
    "NotAllowedError",
    "NotAttachedError",
    "NotAuthorizedError",
    "NotCoordinatorError",
    "NotFinishedError",
    "NotHeldError",
    "NotSubscribedError",
    "NotSupportedError",
    "OffsetsConflictError",
    "OffsetsPendingError",
    "OutcomeNotKeptError",
    "Producer",
    "ProducerFencedError",
    "QueueBlock",
    "RequestTimedOutError",
    "RequestTooLargeError",
    "RetriableError",
    "SessionClosedError",
    "ShareConsumer",
    "SpillError",
    "TlsError",
    "TopicError",
    "TopicModeError",
    "TopicRecreatedError",
    "TornTransactionError",
    "Transaction",
    "TransactionAbortOnlyError",
    "TransactionAbortedError",
    "TransactionCommittedError",
    "TransactionConflictError",
    "TransactionError",
    "TransactionStateError",
    "TxId",
    "UnknownKeyError",
    "UnknownOutcomeError",
    "UnknownRecordError",
    "UnknownSubscriptionError",
    "UnknownTopicError",
    "UnknownTransactionError",
    "UnsupportedTopicError",
    "WatchLaggedError",
    "process",
]

_ERRORS = ".journal.errors"
_HOMES = {
    "AcknowledgeType": ".coordinator.protocol.queues",
    "Block": ".integration.block",
    "Branch": ".producer.branch",
    "BranchSummary": ".producer.core.summary",
    "Consumer": ".consumer.consumer",
    "MetadataClient": ".coordinator.client.metadata",
    "Producer": ".producer.producer",
    "QueueBlock": ".integration.queue_blocks",
    "ShareConsumer": ".consumer.share_consumer",
    "Transaction": ".producer.transaction",
    "TxId": ".journal.txid",
    "process": ".integration.blocks",
}


def __getattr__(name: str) -> object:
    if name == "spark":  # needs the extra of that name, so `import *` leaves it out
        return import_module(".integration.spark", __name__)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES.get(name, _ERRORS), __name__), name)
    # From now on Python finds the name without this function.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
