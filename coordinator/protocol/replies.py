"""Converts replies to protobuf and back: an encoder and a decoder for each, and a table. Pure.

A new reply is a message in `coordinator.proto`, a class in `commands`, and a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ...journal.errors import (
    LogtxError,
    NotCoordinatorError,
    NotSupportedError,
    error_from_code,
)
from ...journal.records.types import AbortReason, PointerStep
from ...journal.state import State
from ...journal.txid import TxId
from . import commands, queue_wire
from . import coordinator_pb2 as pb
from .fields import (
    PHASES,
    PHASES_FROM_WIRE,
    STATES,
    STATES_FROM_WIRE,
    partitions_from_wire,
    partitions_to_wire,
    position_from_wire,
    position_to_wire,
)

MET_MAX: Final = 50_000
"""Commit sequences met that one IOV may carry: 1 MB of a message's 4 MiB. With more, all are left
out, which costs consumers side reads. A larger limit could exceed the message."""

_REASONS_FROM_WIRE: Final = {reason.value: reason for reason in AbortReason}


# ---- sessions and transactions ------------------------------------------------------------------


def _encode_connected(wire: pb.Connected, reply: commands.Connected) -> None:
    wire.generation = reply.generation
    wire.partition = reply.partition
    wire.incarnation = reply.incarnation
    wire.epoch = reply.epoch


def _decode_connected(wire: pb.Connected) -> commands.Connected:
    return commands.Connected(
        generation=wire.generation,
        partition=wire.partition,
        incarnation=wire.incarnation,
        epoch=wire.epoch,
    )


def _encode_began(wire: pb.Began, reply: commands.Began) -> None:
    wire.txid = reply.txid.to_bytes()


def _decode_began(wire: pb.Began) -> commands.Began:
    return commands.Began(TxId.from_bytes(wire.txid))


def _encode_done(wire: pb.Done, _: commands.Done) -> None:
    # A message without fields must be marked as present.
    wire.SetInParent()


def _decode_done(_: pb.Done) -> commands.Done:
    return commands.Done()


def _encode_outcome(wire: pb.Outcome, reply: commands.Outcome) -> None:
    wire.txid = reply.txid.to_bytes()
    wire.state = STATES[reply.state]
    if reply.commit_sequence is not None:
        wire.commit_sequence = reply.commit_sequence
    wire.reason = reply.reason or ""


def _decode_outcome(wire: pb.Outcome) -> commands.Outcome:
    sequence = wire.commit_sequence if wire.HasField("commit_sequence") else None
    state = STATES_FROM_WIRE.get(wire.state, State.UNKNOWN)
    reason = _REASONS_FROM_WIRE.get(wire.reason)
    return commands.Outcome(TxId.from_bytes(wire.txid), state, sequence, reason)


def encode_decided(decided: commands.Decided) -> pb.Decided:
    """Encodes a decision that is told without having been asked for."""
    return pb.Decided(
        txid=decided.txid.to_bytes(), state=STATES[decided.state], reason=decided.reason or ""
    )


def decode_decided(wire: pb.Decided) -> commands.Decided:
    """Decodes such a decision."""
    return commands.Decided(
        TxId.from_bytes(wire.txid),
        STATES_FROM_WIRE.get(wire.state, State.UNKNOWN),
        _REASONS_FROM_WIRE.get(wire.reason),
    )


def _encode_error(wire: pb.Error, reply: LogtxError) -> None:
    wire.code = reply.code
    wire.message = str(reply)
    if isinstance(reply, NotCoordinatorError):
        wire.hint = reply.hint


def _decode_error(wire: pb.Error) -> LogtxError:
    return error_from_code(wire.code, wire.message, wire.hint)


# ---- input offsets ------------------------------------------------------------------------------


def _encode_group_offsets(wire: pb.GroupOffsets, reply: commands.GroupOffsets) -> None:
    wire.SetInParent()
    offsets = reply.offsets
    if sum(len(position.met) for position in offsets.values()) > MET_MAX:
        # They only save side reads. Without them any group's IOV fits.
        offsets = {p: replace(position, met={}) for p, position in offsets.items()}
    wire.offsets.extend(position_to_wire(p, position) for p, position in offsets.items())
    if reply.last_commit is not None:
        wire.last_commit = reply.last_commit.to_bytes()
        if reply.commit_sequence is not None:
            wire.commit_sequence = reply.commit_sequence


def _decode_group_offsets(wire: pb.GroupOffsets) -> commands.GroupOffsets:
    committed = wire.HasField("commit_sequence")
    return commands.GroupOffsets(
        {(w.topic, w.partition): position_from_wire(w) for w in wire.offsets},
        TxId.from_bytes(wire.last_commit) if committed else None,
        wire.commit_sequence if committed else None,
    )


def _encode_claimed(wire: pb.Claimed, reply: commands.Claimed) -> None:
    wire.number = reply.number
    _encode_group_offsets(wire.offsets, reply.offsets)


def _decode_claimed(wire: pb.Claimed) -> commands.Claimed:
    return commands.Claimed(wire.number, _decode_group_offsets(wire.offsets))


def _encode_binding(wire: pb.Binding, reply: commands.Binding) -> None:
    wire.SetInParent()
    if reply.transaction_group is not None:
        wire.transaction_group = reply.transaction_group


def _decode_binding(wire: pb.Binding) -> commands.Binding:
    bound = wire.HasField("transaction_group")
    return commands.Binding(wire.transaction_group if bound else None)


# ---- what operators are told --------------------------------------------------------------------


def _encode_transactions(wire: pb.Transactions, reply: commands.Transactions) -> None:
    for info in reply.transactions:
        wire.transactions.append(
            pb.TransactionInfo(
                txid=info.txid.to_bytes(),
                state=STATES[info.state],
                producer_id=info.producer_id,
                generation=info.generation,
                started_ms=info.started_ms,
                timeout_ms=info.timeout_ms,
                partitions=partitions_to_wire(info.partitions),
                groups=info.groups,
                age_ms=info.age_ms,
                reason=info.reason or "",
                placing=info.placing,
            )
        )
    wire.more = reply.more


def _decode_transactions(wire: pb.Transactions) -> commands.Transactions:
    infos = tuple(
        commands.TransactionInfo(
            txid=TxId.from_bytes(info.txid),
            state=STATES_FROM_WIRE.get(info.state, State.UNKNOWN),
            producer_id=info.producer_id,
            generation=info.generation,
            started_ms=info.started_ms,
            timeout_ms=info.timeout_ms,
            partitions=partitions_from_wire(info.partitions),
            groups=tuple(info.groups),
            age_ms=info.age_ms,
            reason=_REASONS_FROM_WIRE.get(info.reason),
            placing=info.placing,
        )
        for info in wire.transactions
    )
    return commands.Transactions(infos, wire.more)


def _encode_key(wire: pb.KeyInfo, reply: commands.KeyInfo) -> None:
    wire.name, wire.epoch = reply.name, reply.epoch
    wire.connected_ms, wire.age_ms = reply.connected_ms, reply.age_ms
    wire.transactions.extend(txid.to_bytes() for txid in reply.transactions)


def _decode_key(wire: pb.KeyInfo) -> commands.KeyInfo:
    return commands.KeyInfo(
        name=wire.name,
        epoch=wire.epoch,
        connected_ms=wire.connected_ms,
        age_ms=wire.age_ms,
        transactions=tuple(map(TxId.from_bytes, wire.transactions)),
    )


def _encode_keys(wire: pb.Keys, reply: commands.Keys) -> None:
    for key in reply.keys:
        _encode_key(wire.keys.add(), key)
    wire.more = reply.more


def _decode_keys(wire: pb.Keys) -> commands.Keys:
    return commands.Keys(tuple(map(_decode_key, wire.keys)), wire.more)


def _encode_topic_modes(wire: pb.TopicModes, reply: commands.TopicModes) -> None:
    wire.SetInParent()
    for info in reply.topics:
        topic = wire.topics.add(
            topic=info.topic,
            topic_id=info.topic_id,
            phase=PHASES[info.phase],
            since=info.since,
            published=info.published,
            waiting=info.waiting,
            last=info.last,
        )
        if info.mode_offset >= 0:
            topic.mode_offset = info.mode_offset
    wire.more = reply.more


def _decode_topic_modes(wire: pb.TopicModes) -> commands.TopicModes | NotSupportedError:
    unknown = [topic for topic in wire.topics if topic.phase not in PHASES_FROM_WIRE]
    if unknown:
        # Any known phase in its place would be a false answer to an operator.
        return NotSupportedError(
            f"topic {unknown[0].topic} is in a phase that this program does not know: upgrade it"
        )
    infos = tuple(
        commands.TopicModeInfo(
            topic=topic.topic,
            topic_id=topic.topic_id,
            phase=PHASES_FROM_WIRE[topic.phase],
            mode_offset=topic.mode_offset if topic.HasField("mode_offset") else -1,
            since=dict(topic.since),
            published=topic.published,
            waiting=topic.waiting,
            last=dict(topic.last),
        )
        for topic in wire.topics
    )
    return commands.TopicModes(infos, wire.more)


def _encode_sidecar_needs(wire: pb.SidecarNeeds, reply: commands.SidecarNeeds) -> None:
    wire.undecided, wire.end, wire.incarnation = reply.undecided, reply.end, reply.incarnation
    rows: dict[str, pb.PointerSteps] = {}
    for step in reply.steps:
        topic, partition = step.sidecar
        row = rows.get(topic)
        if row is None:
            row = rows[topic] = wire.steps.add(topic=topic)
        row.partitions.append(partition)
        row.pointers.append(step.pointer)
        row.firsts.append(step.first)


def _decode_sidecar_needs(wire: pb.SidecarNeeds) -> commands.SidecarNeeds:
    steps = tuple(
        PointerStep((row.topic, partition), pointer, first)
        for row in wire.steps
        for partition, pointer, first in zip(row.partitions, row.pointers, row.firsts, strict=True)
    )
    return commands.SidecarNeeds(
        undecided=wire.undecided, end=wire.end, incarnation=wire.incarnation, steps=steps
    )


# ---- the table ----------------------------------------------------------------------------------


class Codec(NamedTuple):
    """Encoder and decoder of one kind of reply."""

    kind: str
    """Name of its field in the message `Reply`."""
    encode: Callable[[Any, Any], None]
    decode: Callable[[Any], commands.Reply]


ERROR: Final = Codec("error", _encode_error, _decode_error)
"""The codec of every `LogtxError`."""
CODECS: Final[Mapping[type[commands.Reply], Codec]] = {
    commands.Connected: Codec("connected", _encode_connected, _decode_connected),
    commands.Began: Codec("began", _encode_began, _decode_began),
    commands.Done: Codec("done", _encode_done, _decode_done),
    commands.Outcome: Codec("outcome", _encode_outcome, _decode_outcome),
    commands.GroupOffsets: Codec("group_offsets", _encode_group_offsets, _decode_group_offsets),
    commands.Claimed: Codec("claimed", _encode_claimed, _decode_claimed),
    commands.Binding: Codec("binding", _encode_binding, _decode_binding),
    commands.Transactions: Codec("transactions", _encode_transactions, _decode_transactions),
    commands.KeyInfo: Codec("key", _encode_key, _decode_key),
    commands.Keys: Codec("keys", _encode_keys, _decode_keys),
    commands.TopicModes: Codec("topic_modes", _encode_topic_modes, _decode_topic_modes),
    commands.SidecarNeeds: Codec("sidecar_needs", _encode_sidecar_needs, _decode_sidecar_needs),
    commands.Attached: Codec("attached", queue_wire.encode_attached, queue_wire.decode_attached),
    commands.Leases: Codec("leases", queue_wire.encode_leases, queue_wire.decode_leases),
    commands.AckResults: Codec(
        "ack_results", queue_wire.encode_ack_results, queue_wire.decode_ack_results
    ),
    commands.SubscriptionsPage: Codec(
        "subscriptions", queue_wire.encode_subscriptions, queue_wire.decode_subscriptions
    ),
}
_BY_KIND: Final = {codec.kind: codec for codec in (ERROR, *CODECS.values())}


def encode_reply(request_id: int, reply: commands.Reply) -> pb.Reply:
    """Encodes the reply to a request."""
    answer = pb.Reply(request_id=request_id)
    codec = CODECS.get(type(reply), ERROR)
    codec.encode(getattr(answer, codec.kind), reply)
    return answer


def decode_reply(answer: pb.Reply) -> commands.Reply:
    """Decodes a reply. Returns a `NotSupportedError` for one of an unknown kind."""
    codec = _BY_KIND.get(answer.WhichOneof("result") or "")
    if codec is None:
        return NotSupportedError("a reply of a kind that this client does not know")
    return codec.decode(getattr(answer, codec.kind))
