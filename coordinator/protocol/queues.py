"""Commands of a queue's consumers, and the answers to them. Values.

The names are those of Kafka's share groups (KIP-932).

Source: PIP-31, "New Acknowledgement State".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Final

from ...journal.acks import Acks, SubscriptionKind
from ...journal.control import TopicPartition
from ...journal.places import PartitionId
from ...journal.spans import MessageId, Span, SpanMap
from ...journal.txid import TxId
from ...journal.value import value

OPERATOR: Final = 0
"""Stands for a consumer in what an operator rejects."""
SHRINKING: Final = 2
"""Bits by which less is given out at once with each delivery. More part a message that kills its
consumers from its neighbours sooner, fewer make fewer requests after a failure."""


def most_at_once(most: int, deliveries: int, limit: int) -> int:
    """Returns how much is given out at once of what was given out so often before.

    Args:
        most: how much of what is new: offsets, or messages of one offset.
        deliveries: how often it was given out before.
        limit: how often a consumer lets messages be given out; 0: without end.
    """
    if 0 < limit <= deliveries:
        return max(1, most)  # Nobody works on them: their consumer gives them up.
    if 0 < deliveries == limit - 1:
        return 1
    return max(1, most >> SHRINKING * deliveries)


class AcknowledgeType(StrEnum):
    """What a consumer says of messages, without a transaction."""

    ACCEPT = "accept"
    """They are worked off."""
    REJECT = "reject"
    """They can't be worked off by anybody."""
    RELEASE = "release"
    """They are to be given out again: a negative acknowledgement."""
    RENEW = "renew"
    """They are being worked on: their time begins anew."""


class AckResult(StrEnum):
    """What became of messages that were acknowledged."""

    DONE = "done"
    PENDING = "pending"
    """A transaction acknowledges them: they were left as they are."""
    DELETED = "deleted"
    """They were acknowledged before."""
    LOST = "lost"
    """They are not leased to this consumer any more. Only of RELEASE and RENEW."""


@value(frozen=True, slots=True, kw_only=True)
class Lease:
    """Messages that one consumer is asked to work off, for a time.

    A lease says who is asked, and not who may finish: the first acknowledgement counts.
    """

    number: int
    """The owner's own count: another owner begins anew."""
    partition: PartitionId
    span: Span
    """The consumer reads what ends in it, whole."""
    delivery_count: int
    """How often its messages were leased, this time included, as far as this owner knows."""
    left_ms: int
    """Time until it ends by itself."""


@value(frozen=True, slots=True, kw_only=True)
class Attach:
    """A consumer joins a subscription; the first one makes it. A repeat replaces the former."""

    group: str
    consumer: int
    """Random 63 bits of the consumer."""
    kind: SubscriptionKind = SubscriptionKind.SHARED
    """Counts when the subscription is made."""
    topics: tuple[str, ...] = ()
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where the subscription begins in topics that are new to it; 0 where nothing is said, and in
    partitions that a topic of it got since."""
    held: tuple[Acks, ...] = ()
    """What the consumer works on, by leases of a former owner or connection."""
    era: int | None = None
    """The era in which that was given out: what `Attached` told last. None: the consumer was not
    attached before, and makes the subscription if there is none."""
    ack_timeout_ms: int = 30_000
    """How long its leases last."""

    @property
    def left_topics(self) -> tuple[str, ...]:
        """Topics of what it works on that it does not subscribe to any more."""
        held = dict.fromkeys(each.partition.topic for each in self.held)
        return tuple(topic for topic in held if topic not in self.topics)


@value(frozen=True, slots=True, kw_only=True)
class Acquire:
    """Ask for messages to work on. Waits until there are some, but not for ever."""

    group: str
    consumer: int
    max_offsets: int
    """Most offsets of the lease. What comes again comes in parts of that."""
    max_new_offsets: int = 0
    """The same of what was not given out before, if that is more."""
    at_ends: bool = False
    """Whether it may have what homes place at the very end of a partition, before any record
    stands there. Only of topics in metadata mode: elsewhere there is nothing, and one that reads it
    would be told so again and again."""
    delivery_limit: int = 0
    """How often this consumer lets messages be given out; 0: no limit. It gives up what comes more
    often. The last time, what stands at an offset comes alone."""
    ahead: bool = False
    """Whether it still has something to work on. Then it gets only what was never given out, within
    a backlog, and waits for nothing."""


@value(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """Say what became of messages, without a transaction."""

    group: str
    consumer: int
    """RELEASE and RENEW are about leases of its own. `OPERATOR` may only REJECT."""
    type: AcknowledgeType
    acks: tuple[Acks, ...]
    delay_ms: int = 0
    """With RELEASE: how long nobody gets them."""
    unseen: bool = False
    """With RELEASE: no application got them, so this delivery does not count."""
    era: int = 0
    """The era in which they were given out."""


@value(frozen=True, slots=True, kw_only=True)
class ResetSubscription:
    """Let partitions of a subscription begin anew, whatever became of their messages.

    A repeat changes nothing while they stand where the first one has set them.
    """

    group: str
    era: int
    """The era that this ends: what the operator was told."""
    starts: Mapping[PartitionId, int]
    """Partition → offset. All that ends before is deleted, and all else available."""


@value(frozen=True, slots=True, kw_only=True)
class DeleteSubscription:
    """Forget a subscription. A repeat changes nothing while there is none of the name."""

    group: str
    era: int
    """The era that this ends: what the operator was told."""


@value(frozen=True, slots=True, kw_only=True)
class DescribeSubscriptions:
    """Ask what became of the messages of a journal partition's subscriptions."""

    groups: tuple[str, ...] = ()
    """Only these; empty: all."""
    after: str = ""
    """Name of the last subscription on the page before; empty for the first page."""
    available_max: int = 0
    """Most available spans to be told of each partition."""


@value(frozen=True, slots=True)
class Attached:
    """Answer to `Attach`."""

    leases: tuple[Lease, ...]
    """What of `held` is the consumer's again. The rest is somebody else's, or done."""
    era: int = 0
    """The subscription's era. If it is another one than the consumer had, an operator has reset the
    subscription, and nothing that was given out before is the consumer's."""
    leases_ahead: bool = True
    """Whether the owner knows `Acquire.ahead`. One of an older build would let such a request wait,
    and answer it with what comes again."""


@value(frozen=True, slots=True)
class Leases:
    """Answer to `Acquire`; without leases: ask again."""

    leases: tuple[Lease, ...] = ()


@value(frozen=True, slots=True)
class Refused:
    """Messages of a request that did not count, and why."""

    result: AckResult
    acks: Acks


@value(frozen=True, slots=True)
class AckResults:
    """Answer to `Acknowledge`."""

    refused: tuple[Refused, ...] = ()
    """What did not count. All else of the request is DONE."""

    def of(self, partition: PartitionId, span: Span) -> AckResult:
        """Returns what became of a span of the request.

        A part that a transaction has pending decides: it may come again. DONE, if any other part
        counted.
        """
        left: SpanMap[bool] = SpanMap()
        left.put(span, True)
        found: list[AckResult] = []
        for each in self.refused:
            if each.acks.partition != partition:
                continue
            for part in each.acks.spans:
                found += [each.result for _ in left.remove(part)]
        if AckResult.PENDING in found or not left:
            return AckResult.PENDING if AckResult.PENDING in found else found[0]
        return AckResult.DONE


@value(frozen=True, slots=True, kw_only=True)
class AttachedConsumer:
    """A consumer of a subscription."""

    consumer: int
    topics: tuple[str, ...]
    leased: int
    """Offsets that are leased to it."""
    gone: bool = False
    """Whether its stream broke a moment ago."""


@value(frozen=True, slots=True, kw_only=True)
class SubscribedPartitionInfo:
    """One partition of a subscription. Counts are of offsets: see `Span.offset_count`."""

    partition: PartitionId
    start: MessageId
    """All before it is deleted."""
    reached: MessageId
    """What lies behind it was never leased or acknowledged, as far as this owner knows."""
    left: int
    """Before `reached`, not deleted."""
    pending: int
    """Acknowledged by transactions that are not finished."""
    leased: int
    txids: tuple[TxId, ...] = ()
    """These transactions."""
    former: bool = False
    """Whether its topic is no more, as far as is known."""
    available: tuple[Span, ...] = ()
    """The first spans before `reached` that may be given out, if they were asked for. All behind
    it may be, too."""

    def depth(self, end: int) -> int:
        """Returns the offsets that are not deleted, of a log that ends there."""
        return self.left + Span(self.reached, max(self.reached, MessageId(end))).offset_count


@value(frozen=True, slots=True, kw_only=True)
class SubscriptionInfo:
    """One subscription, as the owner of its journal partition sees it."""

    group: str
    kind: SubscriptionKind
    consumers: tuple[AttachedConsumer, ...]
    partitions: tuple[SubscribedPartitionInfo, ...]
    redelivered: int
    """Offsets that this owner has leased again."""
    rejected: int
    """Offsets that were rejected to this owner."""
    era: int = 0
    """Offset of the latest record that ended an era before this one; 0: none did."""

    def as_named_now(self, topic_ids: Mapping[str, str]) -> SubscriptionInfo:
        """Returns the same, with the partitions of which another topic has the name by now as those
        of a topic that is no more.

        The owner learns that by consumers that attach. While none does, it takes the topic that was
        deleted for the one that is there (trap 153).

        Args:
            topic_ids: topic → id of the topic that has the name. One that has none, or that nobody
                tells of, is missing.
        """
        parts = (
            replace(
                part,
                former=part.former
                or topic_ids.get(part.partition.topic, part.partition.topic_id)
                != part.partition.topic_id,
            )
            for part in self.partitions
        )
        return replace(self, partitions=tuple(parts))


@value(frozen=True, slots=True)
class SubscriptionsPage:
    """Answer to `DescribeSubscriptions`."""

    subscriptions: tuple[SubscriptionInfo, ...]
    """By name."""
    more: bool = False
    """There is a further page, after the last of these."""
