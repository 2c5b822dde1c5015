"""Converts commands to protobuf and back: an encoder and a decoder for each, and a table. Pure.

A new command is a message in `coordinator.proto`, a class in `commands`, and a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ...journal.errors import ConfigError, NotSupportedError
from ...journal.mode_rules import check_rule
from ...journal.modes import Mode
from ...journal.txid import TxId
from . import commands, queue_wire
from . import coordinator_pb2 as pb
from .fields import (
    MODES,
    PROTOCOL_VERSION,
    STATES,
    check_group,
    check_name,
    check_new_name,
    check_new_topics,
    check_topic,
    expected_from_wire,
    expected_to_wire,
    first_offsets_from_wire,
    first_offsets_to_wire,
    mode_from_wire,
    partitions_from_wire,
    partitions_to_wire,
    state_from_wire,
    step_from_wire,
    step_to_wire,
    writes_from_wire,
    writes_to_wire,
)

_ACTIONS: Final[Mapping[commands.Action, pb.End.Action]] = {
    commands.Action.COMMIT: pb.End.COMMIT,
    commands.Action.ABORT: pb.End.ABORT,
}
_ACTIONS_FROM_WIRE: Final = {wire: action for action, wire in _ACTIONS.items()}


class Envelope(NamedTuple):
    """What a command has beyond its own message."""

    request_id: int
    session: Any
    """`commands.SessionId` of the stream; None for a single call, which is allowed only for
    commands that need no session."""


# ---- sessions and transactions ------------------------------------------------------------------


def _encode_connect(wire: pb.Connect, command: commands.Connect) -> None:
    # Only the sender knows the journal partition, and sets it: see `CoordinatorClient`.
    wire.version = PROTOCOL_VERSION
    wire.producer_id = command.producer_id
    wire.nonce = command.nonce
    if command.generation is not None:
        wire.generation = command.generation


def _decode_connect(wire: pb.Connect, _: Envelope) -> commands.Connect:
    return commands.Connect(
        producer_id=check_new_name("producer", wire.producer_id),
        nonce=wire.nonce,
        generation=wire.generation if wire.HasField("generation") else None,
    )


def _encode_begin(wire: pb.Begin, command: commands.Begin) -> None:
    wire.answered_below = command.answered_below
    wire.timeout_ms = command.timeout_ms
    wire.partitions.extend(partitions_to_wire(command.partitions))


def _decode_begin(wire: pb.Begin, envelope: Envelope) -> commands.Begin:
    return commands.Begin(
        session=envelope.session,
        request_id=envelope.request_id,
        answered_below=wire.answered_below,
        timeout_ms=wire.timeout_ms,
        partitions=partitions_from_wire(wire.partitions),
    )


def _encode_add_partitions(wire: pb.AddPartitions, command: commands.AddPartitions) -> None:
    wire.txid = command.txid.to_bytes()
    wire.partitions.extend(first_offsets_to_wire(command.partitions, command.first_offsets))


def _decode_add_partitions(wire: pb.AddPartitions, envelope: Envelope) -> commands.AddPartitions:
    return commands.AddPartitions(
        txid=TxId.from_bytes(wire.txid),
        partitions=partitions_from_wire(wire.partitions),
        session=envelope.session,
        first_offsets=first_offsets_from_wire(wire.partitions),
    )


def _encode_add_offsets(wire: pb.AddOffsets, command: commands.AddOffsets) -> None:
    wire.txid = command.txid.to_bytes()
    wire.group = command.group
    wire.steps.extend(map(step_to_wire, command.steps))


def _decode_add_offsets(wire: pb.AddOffsets, envelope: Envelope) -> commands.AddOffsets:
    check_new_topics(step.to.topic for step in wire.steps)
    return commands.AddOffsets(
        session=envelope.session,
        txid=TxId.from_bytes(wire.txid),
        group=check_group(wire.group),
        steps=tuple(map(step_from_wire, wire.steps)),
    )


def _encode_extend_transaction(
    wire: pb.ExtendTransaction, command: commands.ExtendTransaction
) -> None:
    wire.txid = command.txid.to_bytes()


def _decode_extend_transaction(
    wire: pb.ExtendTransaction, envelope: Envelope
) -> commands.ExtendTransaction:
    return commands.ExtendTransaction(session=envelope.session, txid=TxId.from_bytes(wire.txid))


def _encode_add_writes(wire: pb.AddWrites, command: commands.AddWrites) -> None:
    wire.txid = command.txid.to_bytes()
    wire.part = command.part
    wire.writes.extend(writes_to_wire(command.writes))


def _decode_add_writes(wire: pb.AddWrites, envelope: Envelope) -> commands.AddWrites:
    return commands.AddWrites(
        session=envelope.session,
        txid=TxId.from_bytes(wire.txid),
        part=wire.part,
        writes=writes_from_wire(wire.writes),
    )


def _encode_end(wire: pb.End, command: commands.End) -> None:
    wire.txid = command.txid.to_bytes()
    wire.action = _ACTIONS[command.action]
    wire.writes.extend(writes_to_wire(command.writes))
    wire.parts = command.parts


def _decode_end(wire: pb.End, envelope: Envelope) -> commands.End:
    # proto3 passes on numbers that this version does not know, such as a newer "prepare".
    action = _ACTIONS_FROM_WIRE.get(wire.action)
    if action is None:
        raise NotSupportedError(
            f"action {wire.action} of a newer client: this coordinator can't do it"
        )
    return commands.End(
        session=envelope.session,
        txid=TxId.from_bytes(wire.txid),
        action=action,
        writes=writes_from_wire(wire.writes),
        parts=wire.parts,
    )


def _encode_get_outcome(wire: pb.GetOutcome, command: commands.GetOutcome) -> None:
    wire.txid = command.txid.to_bytes()
    wire.until_finished = command.until_finished


def _decode_get_outcome(wire: pb.GetOutcome, _: Envelope) -> commands.GetOutcome:
    return commands.GetOutcome(txid=TxId.from_bytes(wire.txid), until_finished=wire.until_finished)


# ---- input offsets ------------------------------------------------------------------------------


def _encode_fetch_offsets(wire: pb.FetchOffsets, command: commands.FetchOffsets) -> None:
    wire.group = command.group
    wire.all = command.partitions is None
    wire.partitions.extend(partitions_to_wire(command.partitions or ()))


def _decode_fetch_offsets(wire: pb.FetchOffsets, _: Envelope) -> commands.FetchOffsets:
    partitions = None if wire.all else partitions_from_wire(wire.partitions)
    return commands.FetchOffsets(group=check_group(wire.group), partitions=partitions)


def _encode_claim_offsets(wire: pb.ClaimOffsets, command: commands.ClaimOffsets) -> None:
    wire.group, wire.claimant = command.group, command.claimant
    wire.conditional = command.expected is not None
    if command.expected is None:
        wire.partitions.extend(partitions_to_wire(command.partitions))
    else:
        wire.partitions.extend(expected_to_wire(command.partitions, command.expected))


def _decode_claim_offsets(wire: pb.ClaimOffsets, _: Envelope) -> commands.ClaimOffsets:
    check_new_topics(each.topic for each in wire.partitions)
    return commands.ClaimOffsets(
        group=check_group(wire.group),
        partitions=partitions_from_wire(wire.partitions),
        claimant=wire.claimant,
        expected=expected_from_wire(wire.partitions) if wire.conditional else None,
    )


def _encode_bind_group(wire: pb.BindGroup, command: commands.BindGroup) -> None:
    wire.group = command.group
    if command.transaction_group is not None:
        wire.transaction_group = command.transaction_group


def _decode_bind_group(wire: pb.BindGroup, _: Envelope) -> commands.BindGroup:
    if not wire.HasField("transaction_group"):
        return commands.BindGroup(group=check_group(wire.group), transaction_group=None)
    return commands.BindGroup(
        group=check_new_name("consumer group", wire.group),
        transaction_group=check_new_name("transaction group", wire.transaction_group),
    )


# ---- what operators ask -------------------------------------------------------------------------


def _encode_list_transactions(
    wire: pb.ListTransactions, command: commands.ListTransactions
) -> None:
    wire.states.extend(STATES[state] for state in command.states)
    wire.age_min_ms = command.age_min_ms
    wire.producer_id, wire.topic = command.producer_id, command.topic
    if command.after >= 0:
        wire.after = command.after
    wire.limit = command.limit


def _decode_list_transactions(wire: pb.ListTransactions, _: Envelope) -> commands.ListTransactions:
    return commands.ListTransactions(
        states=tuple(map(state_from_wire, wire.states)),
        age_min_ms=wire.age_min_ms,
        producer_id=check_name("producer", wire.producer_id),
        topic=check_topic(wire.topic),
        after=wire.after if wire.HasField("after") else -1,
        limit=wire.limit or commands.PAGE_MAX,
    )


def _encode_abort_transaction(
    wire: pb.AbortTransaction, command: commands.AbortTransaction
) -> None:
    wire.txid = command.txid.to_bytes()


def _decode_abort_transaction(wire: pb.AbortTransaction, _: Envelope) -> commands.AbortTransaction:
    return commands.AbortTransaction(txid=TxId.from_bytes(wire.txid))


def _encode_list_keys(wire: pb.ListKeys, command: commands.ListKeys) -> None:
    wire.after, wire.limit = command.after, command.limit


def _decode_list_keys(wire: pb.ListKeys, _: Envelope) -> commands.ListKeys:
    after = check_name("transaction key", wire.after)
    return commands.ListKeys(after=after, limit=wire.limit or commands.PAGE_MAX)


def _encode_key_name(
    wire: pb.GetKey | pb.DeleteKey, command: commands.GetKey | commands.DeleteKey
) -> None:
    wire.name = command.name


def _decode_get_key(wire: pb.GetKey, _: Envelope) -> commands.GetKey:
    return commands.GetKey(name=check_name("transaction key", wire.name))


def _decode_delete_key(wire: pb.DeleteKey, _: Envelope) -> commands.DeleteKey:
    return commands.DeleteKey(name=check_name("transaction key", wire.name))


def _encode_forget_producer(wire: pb.ForgetProducer, command: commands.ForgetProducer) -> None:
    wire.producer_id = command.producer_id


def _decode_forget_producer(wire: pb.ForgetProducer, _: Envelope) -> commands.ForgetProducer:
    return commands.ForgetProducer(producer_id=check_name("producer", wire.producer_id))


def _encode_forget_group(wire: pb.ForgetGroup, command: commands.ForgetGroup) -> None:
    wire.group = command.group
    wire.topics.extend(command.topics)


def _decode_forget_group(wire: pb.ForgetGroup, _: Envelope) -> commands.ForgetGroup:
    return commands.ForgetGroup(
        group=check_name("consumer group", wire.group), topics=tuple(map(check_topic, wire.topics))
    )


def _encode_unbind_group(wire: pb.UnbindGroup, command: commands.UnbindGroup) -> None:
    wire.group = command.group


def _decode_unbind_group(wire: pb.UnbindGroup, _: Envelope) -> commands.UnbindGroup:
    return commands.UnbindGroup(group=check_name("consumer group", wire.group))


def _encode_set_topic_mode(wire: pb.SetTopicMode, command: commands.SetTopicMode) -> None:
    wire.topic = command.topic
    wire.mode = MODES[command.mode]
    wire.without_records = command.without_records


def _decode_set_topic_mode(wire: pb.SetTopicMode, _: Envelope) -> commands.SetTopicMode:
    check_new_topics((wire.topic,))
    return commands.SetTopicMode(
        topic=wire.topic, mode=mode_from_wire(wire.mode), without_records=wire.without_records
    )


def _encode_describe_topics(wire: pb.DescribeTopics, command: commands.DescribeTopics) -> None:
    # Without fields it must be marked as present.
    wire.SetInParent()
    wire.topics.extend(command.topics)
    wire.after = command.after


def _decode_describe_topics(wire: pb.DescribeTopics, _: Envelope) -> commands.DescribeTopics:
    return commands.DescribeTopics(
        topics=tuple(map(check_topic, wire.topics)), after=check_topic(wire.after)
    )


def _encode_set_topic_rule(wire: pb.SetTopicRule, command: commands.SetTopicRule) -> None:
    wire.rule = command.rule
    if command.mode is not None:
        wire.mode = MODES[command.mode]
    wire.transaction_group = command.transaction_group


def _decode_set_topic_rule(wire: pb.SetTopicRule, _: Envelope) -> commands.SetTopicRule:
    mode = mode_from_wire(wire.mode) if wire.HasField("mode") else None
    places = mode is Mode.METADATA
    if places != bool(wire.transaction_group):
        raise ConfigError(
            f"rule {wire.rule[:20]!r}: name a transaction group with mode metadata, and only then"
        )
    group = check_new_name("transaction group", wire.transaction_group) if places else ""
    check_new_topics((wire.rule,))
    return commands.SetTopicRule(rule=check_rule(wire.rule), mode=mode, transaction_group=group)


def _encode_open_sidecars(wire: pb.OpenSidecars, command: commands.OpenSidecars) -> None:
    wire.topics.extend(command.topics)


def _decode_open_sidecars(wire: pb.OpenSidecars, _: Envelope) -> commands.OpenSidecars:
    check_new_topics(tuple(wire.topics))
    return commands.OpenSidecars(topics=tuple(wire.topics))


def _encode_describe_sidecars(
    wire: pb.DescribeSidecars, command: commands.DescribeSidecars
) -> None:
    # Without fields it must be marked as present.
    wire.SetInParent()
    rows: dict[str, pb.SidecarPartitions] = {}
    for (topic, partition), start in command.main_starts.items():
        row = rows.get(topic)
        if row is None:
            row = rows[topic] = wire.sidecars.add(topic=topic)
        row.partitions.append(partition)
        row.main_starts.append(start)


def _decode_describe_sidecars(wire: pb.DescribeSidecars, _: Envelope) -> commands.DescribeSidecars:
    return commands.DescribeSidecars(
        main_starts={
            (check_topic(row.topic), partition): start
            for row in wire.sidecars
            for partition, start in zip(row.partitions, row.main_starts, strict=True)
        }
    )


# ---- the table ----------------------------------------------------------------------------------


class Codec(NamedTuple):
    """Encoder and decoder of one kind of command."""

    kind: str
    """Name of its field in the message `Request`."""
    encode: Callable[[Any, Any], None]
    decode: Callable[[Any, Envelope], commands.Command]
    in_session: bool = False
    """Whether it needs a session's stream."""


CODECS: Final[Mapping[type[commands.Command], Codec]] = {
    commands.Connect: Codec("connect", _encode_connect, _decode_connect),
    commands.Begin: Codec("begin", _encode_begin, _decode_begin, in_session=True),
    commands.AddPartitions: Codec("add_partitions", _encode_add_partitions, _decode_add_partitions),
    commands.AddOffsets: Codec(
        "add_offsets", _encode_add_offsets, _decode_add_offsets, in_session=True
    ),
    commands.ExtendTransaction: Codec(
        "extend_transaction",
        _encode_extend_transaction,
        _decode_extend_transaction,
        in_session=True,
    ),
    commands.AddWrites: Codec(
        "add_writes", _encode_add_writes, _decode_add_writes, in_session=True
    ),
    commands.End: Codec("end", _encode_end, _decode_end, in_session=True),
    commands.GetOutcome: Codec("get_outcome", _encode_get_outcome, _decode_get_outcome),
    commands.FetchOffsets: Codec("fetch_offsets", _encode_fetch_offsets, _decode_fetch_offsets),
    commands.ClaimOffsets: Codec("claim_offsets", _encode_claim_offsets, _decode_claim_offsets),
    commands.BindGroup: Codec("bind_group", _encode_bind_group, _decode_bind_group),
    commands.ListTransactions: Codec(
        "list_transactions", _encode_list_transactions, _decode_list_transactions
    ),
    commands.AbortTransaction: Codec(
        "abort_transaction", _encode_abort_transaction, _decode_abort_transaction
    ),
    commands.ListKeys: Codec("list_keys", _encode_list_keys, _decode_list_keys),
    commands.GetKey: Codec("get_key", _encode_key_name, _decode_get_key),
    commands.DeleteKey: Codec("delete_key", _encode_key_name, _decode_delete_key),
    commands.ForgetProducer: Codec(
        "forget_producer", _encode_forget_producer, _decode_forget_producer
    ),
    commands.ForgetGroup: Codec("forget_group", _encode_forget_group, _decode_forget_group),
    commands.UnbindGroup: Codec("unbind_group", _encode_unbind_group, _decode_unbind_group),
    commands.SetTopicMode: Codec("set_topic_mode", _encode_set_topic_mode, _decode_set_topic_mode),
    commands.DescribeTopics: Codec(
        "describe_topics", _encode_describe_topics, _decode_describe_topics
    ),
    commands.SetTopicRule: Codec("set_topic_rule", _encode_set_topic_rule, _decode_set_topic_rule),
    commands.OpenSidecars: Codec("open_sidecars", _encode_open_sidecars, _decode_open_sidecars),
    commands.DescribeSidecars: Codec(
        "describe_sidecars", _encode_describe_sidecars, _decode_describe_sidecars
    ),
    commands.Attach: Codec("attach", queue_wire.encode_attach, queue_wire.decode_attach),
    commands.Acquire: Codec("acquire", queue_wire.encode_acquire, queue_wire.decode_acquire),
    commands.Acknowledge: Codec(
        "acknowledge", queue_wire.encode_acknowledge, queue_wire.decode_acknowledge
    ),
    commands.AddAcks: Codec(
        "add_acks", queue_wire.encode_add_acks, queue_wire.decode_add_acks, in_session=True
    ),
    commands.DescribeSubscriptions: Codec(
        "describe_subscriptions",
        queue_wire.encode_describe_subscriptions,
        queue_wire.decode_describe_subscriptions,
    ),
    commands.ResetSubscription: Codec(
        "reset_subscription",
        queue_wire.encode_reset_subscription,
        queue_wire.decode_reset_subscription,
    ),
    commands.DeleteSubscription: Codec(
        "delete_subscription",
        queue_wire.encode_delete_subscription,
        queue_wire.decode_delete_subscription,
    ),
}
_BY_KIND: Final = {codec.kind: codec for codec in CODECS.values()}


def encode_request(request_id: int, command: commands.Command) -> pb.Request:
    """Encodes a command. Leaves the journal partition of a `Connect` to the caller."""
    request = pb.Request(request_id=request_id)
    codec = CODECS[type(command)]
    codec.encode(getattr(request, codec.kind), command)
    return request


def decode_request(request: pb.Request, session: commands.SessionId | None) -> commands.Command:
    """Decodes a command.

    Args:
        request: the request as it came.
        session: session of the stream that it came by; None for a single call.

    Raises:
        NotSupportedError: its kind, its action, its mode or a state to filter by is unknown, or it
            needs a session and came without one.
        ConfigError: a name is too long, or one that nobody could read.
        MalformedHeaderError, ValueError: a TxId or a range is impossible.
    """
    kind = request.WhichOneof("command")
    codec = _BY_KIND.get(kind or "")
    if codec is None:
        raise NotSupportedError("a request of a kind that this coordinator does not know")
    if session is None and codec.in_session:
        raise NotSupportedError(f"a request {kind!r} outside of a session")
    return codec.decode(getattr(request, codec.kind), Envelope(request.request_id, session))
