"""What one producer, and all together, may have open, and for how long. Pure."""

from __future__ import annotations

from ..journal.errors import NotSupportedError, TooManyTransactionsError
from .decision import ShardConfig
from .metadata import Producer


def check_room(config: ShardConfig, partition: int, producer: Producer, open_count: int) -> None:
    """Refuse a transaction more than are allowed.

    Args:
        config: has the limits.
        partition: of the journal.
        producer: the one that asks.
        open_count: transactions that are open in the journal partition, of all producers.

    Raises:
        TooManyTransactionsError: of this producer, or of all.
    """
    if len(producer.open) >= config.max_open_per_producer:
        raise TooManyTransactionsError(
            f"the producer has {len(producer.open)} transactions open, as many as allowed"
            " (max.open.transactions.per.producer)"
        )
    if open_count >= config.max_open:
        raise TooManyTransactionsError(
            f"{open_count} transactions are open in journal partition {partition}, as many as"
            " allowed (max.open.transactions)"
        )


def check_timeout(config: ShardConfig, timeout_ms: int) -> None:
    """Refuse a transaction that asks for more time than is allowed, or for none.

    Raises:
        NotSupportedError: it does.
    """
    if not 0 < timeout_ms <= config.max_timeout_ms:
        raise NotSupportedError(
            f"a timeout of {timeout_ms} ms: this coordinator allows 1 to"
            f" {config.max_timeout_ms} ms (max.timeout.ms)"
        )
