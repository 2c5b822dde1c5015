"""The journal's records of subscriptions: what was acknowledged, and in which transaction. Pure.

A subscription's state lies in the journal partition of the transaction group that it is bound to,
as a consumer group's input offsets do. So one PREPARE_COMMIT makes the outputs of a transaction,
its input offsets and its acknowledgements durable.

Source: PIP-31, "Acknowledgements in Transactions"; How transactions work, "Pending acknowledge
state".
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import ClassVar, NamedTuple

from .places import PartitionId
from .record_type import RecordType
from .spans import Span, merged
from .value import value


class SubscriptionKind(StrEnum):
    """How a subscription gives out messages."""

    SHARED = "shared"
    """Each partition to any number of consumers."""
    FAILOVER = "failover"
    """Each partition to one consumer, in order; to the next one when that is gone."""


class SubscribeEffect(StrEnum):
    """What a SUBSCRIBE record does."""

    JOINS = "joins"
    """The subscription is made if there is none, and partitions join it."""
    REPLACES = "replaces"
    """What became of the messages of its partitions is forgotten: they begin at new offsets."""
    ENDS = "ends"
    """The subscription is forgotten."""


@value(frozen=True, slots=True)
class Acks:
    """Messages of one partition."""

    partition: PartitionId
    spans: tuple[Span, ...]


def joined(acks: Iterable[Acks]) -> tuple[Acks, ...]:
    """Returns the same messages, each partition once and in as few spans as possible."""
    spans: dict[PartitionId, list[Span]] = {}
    for each in acks:
        spans.setdefault(each.partition, []).extend(each.spans)
    return tuple(Acks(p, merged(found)) for p, found in spans.items() if found)


@value(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """A subscription that begins, partitions that join or begin anew, or its end (SUBSCRIBE).

    All but JOINS ends an era of the subscription: what was given out before can't be acknowledged
    behind it. Nothing is pending in it then.
    """

    type: ClassVar[RecordType] = RecordType.SUBSCRIBE
    group: str
    kind: SubscriptionKind
    starts: tuple[tuple[PartitionId, int], ...]
    """(partition, offset): nothing that ends below it is given out. Empty with ENDS."""
    effect: SubscribeEffect = SubscribeEffect.JOINS


@value(frozen=True, slots=True, kw_only=True)
class AddAcks:
    """Messages that a transaction acknowledges: pending from here on (ADD_ACKS).

    Its PREPARE_COMMIT deletes them, its PREPARE_ABORT frees them.
    """

    type: ClassVar[RecordType] = RecordType.ADD_ACKS
    begin: int
    """Offset of the transaction's BEGIN."""
    group: str
    acks: tuple[Acks, ...]
    """None of them was deleted, or pending in any transaction, when this was decided."""


@value(frozen=True, slots=True, kw_only=True)
class Ack:
    """Messages that are acknowledged without a transaction, or given up: deleted (ACK)."""

    type: ClassVar[RecordType] = RecordType.ACK
    group: str
    acks: tuple[Acks, ...]
    """What took effect only: none of them was deleted, or pending in a transaction."""
    rejected: bool = False
    """Whether nobody could work them off."""


class SnapshotSubscription(NamedTuple):
    """One partition of a subscription in a snapshot; a large one is spread over several rows."""

    group: str
    kind: SubscriptionKind
    partition: PartitionId
    deleted: tuple[Span, ...]
    pending: tuple[tuple[int, Span], ...]
    """(BEGIN of the transaction that acknowledges them, messages)."""
    era: int = 0
    """The subscription's era: see `Snapshot.last_era`."""
