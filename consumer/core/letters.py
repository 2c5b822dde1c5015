"""What a message that is given up becomes: the record in the dead-letter topic. Pure.

The names of its headers are Kafka's (KIP-1191). The record has the message's key, value and own
headers, too. A dead letter that is given up in its turn has the headers of both: the last ones
count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from ...journal.control import TXCTL_HEADER, TXID_HEADER
from .runs import Given, RecordKey

Headers: TypeAlias = list[tuple[str, bytes | None]]
TOPIC: Final = "__dlq.errors.topic"
PARTITION: Final = "__dlq.errors.partition"
OFFSET: Final = "__dlq.errors.offset"
GROUP: Final = "__dlq.errors.group"
DELIVERY_COUNT: Final = "__dlq.errors.delivery.count"
MESSAGE: Final = "__dlq.errors.message"
REJECTED: Final = "rejected by a consumer"
"""Why a message is given up, unless its consumer says more."""
_OURS: Final = (TXID_HEADER, TXCTL_HEADER)


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that is given up."""

    key: RecordKey
    given: Given
    delivery_count: int
    """How often applications got it, as far as is known."""
    reason: str


def rejected(key: RecordKey, given: Given, reason: str | None) -> Letter:
    """Returns a message that its consumer rejects, for this reason if it says one."""
    return Letter(key, given, given.delivery_count, reason or REJECTED)


def check_reason(reason: object) -> None:
    """Raises TypeError unless a reason is text, or None."""
    if reason is not None and not isinstance(reason, str):
        raise TypeError(f"a reason is text, such as str(error), not {reason!r}")


def over_limit(key: RecordKey, given: Given, limit: int) -> Letter:
    """Returns a message that is not given to the application: this delivery is one too many.

    The coordinator may count more: a dead letter that could not be written comes again.
    """
    reason = f"not worked off in {limit} deliver{'y' if limit == 1 else 'ies'}"
    return Letter(key, given, limit, reason)


def pause_ms(delivery_count: int, delay_ms: int, most_ms: int) -> int:
    """Returns how long a message waits if the transaction that acknowledges it aborts.

    The first failure may be anybody's, so it comes again at once. Then it waits for the delay, and
    twice as long each time.
    """
    return min(delay_ms << min(delivery_count - 2, 32), most_ms) if delivery_count > 1 else 0


def headers_of(
    headers: Iterable[tuple[str, bytes | None]] | None,
    group: str,
    key: RecordKey,
    delivery_count: int,
    reason: str,
) -> Headers:
    """Returns the headers of a dead letter.

    Args:
        headers: those of the message; ours are left out.
        group: the subscription.
        key: where the message is.
        delivery_count: how often applications got it.
        reason: why it is given up.
    """
    topic, partition, offset = key
    own = [(name, value) for name, value in headers or () if name not in _OURS]
    told = {
        TOPIC: topic,
        PARTITION: str(partition),
        OFFSET: str(offset),
        GROUP: group,
        DELIVERY_COUNT: str(delivery_count),
        MESSAGE: reason,
    }
    return [*own, *((name, value.encode()) for name, value in told.items())]
