"""Converts commands of a queue's consumers, and the answers to them, to protobuf and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ...journal.acks import Acks, SubscriptionKind
from ...journal.errors import ConfigError, NotSupportedError
from ...journal.places import PartitionId
from ...journal.spans import MessageId, Span
from ...journal.txid import TxId
from . import commands
from . import coordinator_pb2 as pb
from .fields import (
    ATTACH_VERSION,
    check_group,
    check_new_name,
    check_new_topics,
    check_topic,
    first_offsets_from_wire,
    first_offsets_to_wire,
)
from .queues import (
    AcknowledgeType,
    AckResult,
    AttachedConsumer,
    Lease,
    Refused,
    SubscribedPartitionInfo,
    SubscriptionInfo,
)

_KINDS: Final[Mapping[SubscriptionKind, pb.Attach.Kind]] = {
    SubscriptionKind.SHARED: pb.Attach.SHARED,
    SubscriptionKind.FAILOVER: pb.Attach.FAILOVER,
}
_KINDS_FROM_WIRE: Final = {wire: kind for kind, wire in _KINDS.items()}
_TYPES: Final[Mapping[AcknowledgeType, pb.Acknowledge.Type]] = {
    AcknowledgeType.ACCEPT: pb.Acknowledge.ACCEPT,
    AcknowledgeType.REJECT: pb.Acknowledge.REJECT,
    AcknowledgeType.RELEASE: pb.Acknowledge.RELEASE,
    AcknowledgeType.RENEW: pb.Acknowledge.RENEW,
}
_TYPES_FROM_WIRE: Final = {wire: type_ for type_, wire in _TYPES.items()}
_RESULTS: Final[Mapping[AckResult, pb.AckResults.Result]] = {
    AckResult.DONE: pb.AckResults.DONE,
    AckResult.PENDING: pb.AckResults.PENDING,
    AckResult.DELETED: pb.AckResults.DELETED,
    AckResult.LOST: pb.AckResults.LOST,
}
_RESULTS_FROM_WIRE: Final = {wire: result for result, wire in _RESULTS.items()}


# ---- messages -----------------------------------------------------------------------------------


def _span_to_wire(span: Span) -> pb.Span:
    return pb.Span(lo=_bound_to_wire(span.lo), hi=_bound_to_wire(span.hi))


def _bound_to_wire(bound: MessageId) -> pb.MessageId:
    return pb.MessageId(**bound._asdict())


def _span_from_wire(wire: pb.Span) -> Span:
    return Span(_bound_from_wire(wire.lo), _bound_from_wire(wire.hi)).check()


def _bound_from_wire(wire: pb.MessageId) -> MessageId:
    return MessageId(wire.offset, wire.sequence, wire.nth)


def _acks_to_wire(acks: Iterable[Acks]) -> list[pb.Acks]:
    return [
        pb.Acks(**each.partition._asdict(), spans=map(_span_to_wire, each.spans)) for each in acks
    ]


def _acks_from_wire(wire: Iterable[pb.Acks]) -> tuple[Acks, ...]:
    return tuple(
        Acks(
            PartitionId(check_topic(each.topic), each.partition, check_topic(each.topic_id)),
            tuple(map(_span_from_wire, each.spans)),
        )
        for each in wire
    )


def _lease_to_wire(lease: Lease) -> pb.Lease:
    return pb.Lease(
        number=lease.number,
        **lease.partition._asdict(),
        span=_span_to_wire(lease.span),
        delivery_count=lease.delivery_count,
        left_ms=lease.left_ms,
    )


def _lease_from_wire(wire: pb.Lease) -> Lease:
    return Lease(
        number=wire.number,
        partition=PartitionId(wire.topic, wire.partition, wire.topic_id),
        span=_span_from_wire(wire.span),
        delivery_count=wire.delivery_count,
        left_ms=wire.left_ms,
    )


# ---- commands -----------------------------------------------------------------------------------


def encode_attach(wire: pb.Attach, command: commands.Attach) -> None:
    """Encodes a consumer's joining. Leaves the journal partition to the caller."""
    wire.version = ATTACH_VERSION
    wire.group, wire.consumer = command.group, command.consumer
    wire.kind = _KINDS[command.kind]
    wire.topics.extend(command.topics)
    wire.starts.extend(first_offsets_to_wire(command.starts, command.starts))
    wire.held.extend(_acks_to_wire(command.held))
    wire.ack_timeout_ms = command.ack_timeout_ms
    if command.era is not None:
        wire.era = command.era


def decode_attach(wire: pb.Attach, _: Any) -> commands.Attach:
    """Decodes a consumer's joining.

    Raises:
        NotSupportedError: a kind of subscription that this version does not have.
        ConfigError: a name is too long, or one that nobody could read.
        ValueError: a span is impossible.
    """
    kind = _KINDS_FROM_WIRE.get(wire.kind)
    if kind is None:
        raise NotSupportedError(f"subscription kind {wire.kind} of a newer client: none such here")
    check_new_topics(wire.topics)
    return commands.Attach(
        group=check_new_name("subscription", wire.group),
        consumer=wire.consumer,
        kind=kind,
        topics=tuple(wire.topics),
        starts=first_offsets_from_wire(wire.starts),
        held=_acks_from_wire(wire.held),
        ack_timeout_ms=wire.ack_timeout_ms,
        era=wire.era if wire.HasField("era") else None,
    )


def encode_acquire(wire: pb.Acquire, command: commands.Acquire) -> None:
    """Encodes a consumer's question for messages."""
    wire.group, wire.consumer = command.group, command.consumer
    wire.max_offsets = command.max_offsets
    wire.at_ends = command.at_ends
    wire.delivery_limit = command.delivery_limit
    wire.max_new_offsets = command.max_new_offsets
    wire.ahead = command.ahead


def decode_acquire(wire: pb.Acquire, _: Any) -> commands.Acquire:
    """Decodes a consumer's question for messages.

    Raises:
        ConfigError: it asks for no offset, or the name is too long.
    """
    if wire.max_offsets < 1:
        raise ConfigError("a consumer asks for a lease of 0 offsets: ask for 1 at least")
    return commands.Acquire(
        group=check_group(wire.group),
        consumer=wire.consumer,
        max_offsets=wire.max_offsets,
        at_ends=wire.at_ends,
        delivery_limit=wire.delivery_limit,
        max_new_offsets=wire.max_new_offsets,
        ahead=wire.ahead,
    )


def encode_acknowledge(wire: pb.Acknowledge, command: commands.Acknowledge) -> None:
    """Encodes what became of messages."""
    wire.group, wire.consumer = command.group, command.consumer
    wire.type = _TYPES[command.type]
    wire.acks.extend(_acks_to_wire(command.acks))
    wire.delay_ms, wire.unseen, wire.era = command.delay_ms, command.unseen, command.era


def decode_acknowledge(wire: pb.Acknowledge, _: Any) -> commands.Acknowledge:
    """Decodes what became of messages.

    Raises:
        NotSupportedError: a type that this version does not have.
        ConfigError: a name is too long.
        ValueError: a span is impossible.
    """
    type_ = _TYPES_FROM_WIRE.get(wire.type)
    if type_ is None:
        raise NotSupportedError(f"acknowledgement {wire.type} of a newer client: none such here")
    return commands.Acknowledge(
        group=check_group(wire.group),
        consumer=wire.consumer,
        type=type_,
        acks=_acks_from_wire(wire.acks),
        delay_ms=wire.delay_ms,
        unseen=wire.unseen,
        era=wire.era,
    )


def encode_add_acks(wire: pb.AddAcks, command: commands.AddAcks) -> None:
    """Encodes what a transaction acknowledges."""
    wire.txid = command.txid.to_bytes()
    wire.group, wire.delay_ms, wire.era = command.group, command.delay_ms, command.era
    wire.acks.extend(_acks_to_wire(command.acks))


def decode_add_acks(wire: pb.AddAcks, envelope: Any) -> commands.AddAcks:
    """Decodes what a transaction acknowledges.

    Raises:
        MalformedHeaderError: the TxId is impossible.
        ConfigError: a name is too long.
        ValueError: a span is impossible.
    """
    return commands.AddAcks(
        session=envelope.session,
        txid=TxId.from_bytes(wire.txid),
        group=check_group(wire.group),
        acks=_acks_from_wire(wire.acks),
        delay_ms=wire.delay_ms,
        era=wire.era,
    )


def encode_reset_subscription(
    wire: pb.ResetSubscription, command: commands.ResetSubscription
) -> None:
    """Encodes where a subscription is to begin anew."""
    wire.group, wire.era = command.group, command.era
    for partition, offset in command.starts.items():
        wire.starts.add(**partition._asdict(), offset=offset)


def decode_reset_subscription(wire: pb.ResetSubscription, _: Any) -> commands.ResetSubscription:
    """Decodes where a subscription is to begin anew.

    Raises:
        ConfigError: it names no partition, or a name is too long.
        ValueError: an offset is impossible.
    """
    if not wire.starts:
        raise ConfigError("a reset names no partition: name one at least")
    if any(start.offset >= 2**62 for start in wire.starts):
        raise ValueError("no log has such an offset")
    return commands.ResetSubscription(
        group=check_group(wire.group),
        era=wire.era,
        starts={
            PartitionId(check_topic(s.topic), s.partition, check_topic(s.topic_id)): s.offset
            for s in wire.starts
        },
    )


def encode_delete_subscription(
    wire: pb.DeleteSubscription, command: commands.DeleteSubscription
) -> None:
    """Encodes that a subscription is to be forgotten."""
    wire.group, wire.era = command.group, command.era


def decode_delete_subscription(wire: pb.DeleteSubscription, _: Any) -> commands.DeleteSubscription:
    """Decodes that a subscription is to be forgotten.

    Raises:
        ConfigError: the name is too long.
    """
    return commands.DeleteSubscription(group=check_group(wire.group), era=wire.era)


def encode_describe_subscriptions(
    wire: pb.DescribeSubscriptions, command: commands.DescribeSubscriptions
) -> None:
    """Encodes a question for subscriptions."""
    # Without fields it must be marked as present.
    wire.SetInParent()
    wire.groups.extend(command.groups)
    wire.after, wire.available_max = command.after, command.available_max


def decode_describe_subscriptions(
    wire: pb.DescribeSubscriptions, _: Any
) -> commands.DescribeSubscriptions:
    """Decodes a question for subscriptions.

    Raises:
        ConfigError: a name is too long.
    """
    return commands.DescribeSubscriptions(
        groups=tuple(map(check_group, wire.groups)),
        after=check_group(wire.after),
        available_max=wire.available_max,
    )


# ---- replies ------------------------------------------------------------------------------------


def encode_attached(wire: pb.Attached, reply: commands.Attached) -> None:
    """Encodes the answer to a consumer that joined."""
    wire.SetInParent()
    wire.leases.extend(map(_lease_to_wire, reply.leases))
    wire.era, wire.leases_ahead = reply.era, reply.leases_ahead


def decode_attached(wire: pb.Attached) -> commands.Attached:
    """Decodes the answer to a consumer that joined."""
    return commands.Attached(tuple(map(_lease_from_wire, wire.leases)), wire.era, wire.leases_ahead)


def encode_leases(wire: pb.Leases, reply: commands.Leases) -> None:
    """Encodes leases."""
    wire.SetInParent()
    wire.leases.extend(map(_lease_to_wire, reply.leases))


def decode_leases(wire: pb.Leases) -> commands.Leases:
    """Decodes leases."""
    return commands.Leases(tuple(map(_lease_from_wire, wire.leases)))


def encode_ack_results(wire: pb.AckResults, reply: commands.AckResults) -> None:
    """Encodes the results of an acknowledgement."""
    wire.SetInParent()
    for each in reply.refused:
        [acks] = _acks_to_wire([each.acks])
        wire.refused.add(result=_RESULTS[each.result], acks=acks)


def decode_ack_results(wire: pb.AckResults) -> commands.AckResults | NotSupportedError:
    """Decodes the results of an acknowledgement. An unknown one must not be taken for success."""
    unknown = [each.result for each in wire.refused if each.result not in _RESULTS_FROM_WIRE]
    if unknown:
        return NotSupportedError(f"ack result {unknown[0]} of a newer coordinator: upgrade")
    refused = (
        Refused(_RESULTS_FROM_WIRE[each.result], acks)
        for each in wire.refused
        for acks in _acks_from_wire([each.acks])
    )
    return commands.AckResults(tuple(refused))


def encode_subscriptions(wire: pb.Subscriptions, reply: commands.SubscriptionsPage) -> None:
    """Encodes a page of subscriptions."""
    wire.SetInParent()
    wire.more = reply.more
    for info in reply.subscriptions:
        row = wire.subscriptions.add(
            group=info.group,
            kind=_KINDS[info.kind],
            redelivered=info.redelivered,
            rejected=info.rejected,
            era=info.era,
        )
        for each in info.consumers:
            row.consumers.add(
                consumer=each.consumer, topics=each.topics, leased=each.leased, gone=each.gone
            )
        for part in info.partitions:
            row.partitions.add(
                **part.partition._asdict(),
                start=_bound_to_wire(part.start),
                reached=_bound_to_wire(part.reached),
                left=part.left,
                pending=part.pending,
                leased=part.leased,
                txids=[txid.to_bytes() for txid in part.txids],
                former=part.former,
                available=map(_span_to_wire, part.available),
            )


def decode_subscriptions(
    wire: pb.Subscriptions,
) -> commands.SubscriptionsPage | NotSupportedError:
    """Decodes a page of subscriptions."""
    unknown = [row.kind for row in wire.subscriptions if row.kind not in _KINDS_FROM_WIRE]
    if unknown:
        return NotSupportedError(
            f"subscription kind {unknown[0]} of a newer coordinator: upgrade this command"
        )
    return commands.SubscriptionsPage(tuple(map(_info_from_wire, wire.subscriptions)), wire.more)


def _info_from_wire(row: pb.SubscriptionInfo) -> SubscriptionInfo:
    return SubscriptionInfo(
        group=row.group,
        kind=_KINDS_FROM_WIRE[row.kind],
        consumers=tuple(
            AttachedConsumer(
                consumer=each.consumer,
                topics=tuple(each.topics),
                leased=each.leased,
                gone=each.gone,
            )
            for each in row.consumers
        ),
        partitions=tuple(
            SubscribedPartitionInfo(
                partition=PartitionId(part.topic, part.partition, part.topic_id),
                start=_bound_from_wire(part.start),
                reached=_bound_from_wire(part.reached),
                left=part.left,
                pending=part.pending,
                leased=part.leased,
                txids=tuple(map(TxId.from_bytes, part.txids)),
                former=part.former,
                available=tuple(map(_span_from_wire, part.available)),
            )
            for part in row.partitions
        ),
        redelivered=row.redelivered,
        rejected=row.rejected,
        era=row.era,
    )
