"""Commands and replies to protobuf and back; both ends of the stream use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ..journal.control import BranchRange, TopicPartition, group_by_topic
from ..journal.errors import (
    LogtxError,
    NotCoordinatorError,
    NotSupportedError,
    error_from_code,
)
from ..journal.position import Journal, Place, Position
from ..journal.records import UNKNOWN_OFFSET, AbortReason, OffsetStep
from ..journal.state import State
from ..journal.txid import TxId
from . import commands as c
from . import coordinator_pb2 as pb
from .names import check_names

PROTOCOL_VERSION: Final = 1
NO_CLAIM: Final = -1
"""Stands for the number of a claim that must not be."""
MET_MAX: Final = 50_000
"""Sequences met in one IOV, 1 MB of a message of 4 MiB; of one with more they are left out."""

_STATES: Final[Mapping[State, pb.Outcome.State]] = {
    State.UNKNOWN: pb.Outcome.UNKNOWN,
    State.OPEN: pb.Outcome.OPEN,
    State.COMMITTING: pb.Outcome.COMMITTING,
    State.COMMITTED: pb.Outcome.COMMITTED,
    State.ABORTING: pb.Outcome.ABORTING,
    State.ABORTED: pb.Outcome.ABORTED,
}
_STATES_BACK: Final = {wire: state for state, wire in _STATES.items()}
_ACTIONS: Final[Mapping[c.Action, pb.End.Action]] = {
    c.Action.COMMIT: pb.End.COMMIT,
    c.Action.ABORT: pb.End.ABORT,
}
_REASONS_BACK: Final = {reason.value: reason for reason in AbortReason}
_ACTIONS_BACK: Final = {wire: action for action, wire in _ACTIONS.items()}


def _partitions(partitions: Iterable[TopicPartition]) -> list[pb.Partitions]:
    grouped = group_by_topic(partitions)
    return [pb.Partitions(topic=t, partitions=p) for t, p in grouped.items()]


def _with_first_offsets(
    partitions: Iterable[TopicPartition], first_offsets: Mapping[TopicPartition, int]
) -> list[pb.Partitions]:
    wire = _partitions(partitions)
    for topic in wire if first_offsets else ():
        found = [first_offsets.get((topic.topic, p), UNKNOWN_OFFSET) for p in topic.partitions]
        topic.first_offsets.extend(found)
    return wire


def _first_offsets_back(wire: Iterable[pb.Partitions]) -> dict[TopicPartition, int]:
    return {
        (w.topic, p): offset
        for w in wire
        for p, offset in zip(w.partitions, w.first_offsets, strict=bool(w.first_offsets))
        if offset >= 0
    }


def _with_expected(
    partitions: Iterable[TopicPartition], expected: Mapping[TopicPartition, int]
) -> list[pb.Partitions]:
    wire = _partitions(partitions)
    for topic in wire:
        topic.claims.extend(expected.get((topic.topic, p), NO_CLAIM) for p in topic.partitions)
    return wire


def _expected_back(wire: Iterable[pb.Partitions]) -> dict[TopicPartition, int]:
    return {
        (w.topic, p): number
        for w in wire
        for p, number in zip(w.partitions, w.claims, strict=True)
        if number >= 0
    }


def _partitions_back(wire: Iterable[pb.Partitions]) -> tuple[TopicPartition, ...]:
    return tuple((w.topic, p) for w in wire for p in w.partitions)


def _sequences(sequences: Mapping[Journal, int]) -> list[pb.Sequence]:
    return [pb.Sequence(partition=p, incarnation=i, sequence=s) for (p, i), s in sequences.items()]


def _sequences_back(wire: Iterable[pb.Sequence]) -> dict[Journal, int]:
    return {(w.partition, w.incarnation): w.sequence for w in wire}


def _position(partition: TopicPartition, position: Position) -> pb.Position:
    return pb.Position(
        topic=partition[0],
        partition=partition[1],
        o1=position.o1,
        o2=position.o2,
        o3=position.o3,
        met=_sequences(position.met),
        delivered=_sequences(position.delivered),
    )


def _position_back(wire: pb.Position) -> Position:
    return Position(
        o1=wire.o1,
        o2=wire.o2,
        o3=wire.o3,
        met=_sequences_back(wire.met),
        delivered=_sequences_back(wire.delivered),
    )


def _step(step: OffsetStep) -> pb.OffsetStep:
    place = step.from_place
    to = _position((step.topic, step.partition), step.to)
    wire = pb.OffsetStep(to=to, claim=step.claim)
    if place is not None:
        # `from` is a keyword, so it can't be an argument's name.
        getattr(wire, "from").CopyFrom(pb.OffsetStep.Place(o2=place.o2, o3=place.o3))
    return wire


def _step_back(wire: pb.OffsetStep) -> OffsetStep:
    place = getattr(wire, "from")
    from_place = Place(place.o2, place.o3) if wire.HasField("from") else None
    claim = wire.claim if wire.HasField("claim") else None
    to = _position_back(wire.to)
    return OffsetStep(wire.to.topic, wire.to.partition, from_place, to, claim)


def _writes(writes: Mapping[TopicPartition, Sequence[BranchRange]]) -> list[pb.Writes]:
    return [
        pb.Writes(
            topic=topic,
            partition=partition,
            branches=[
                pb.Branch(
                    branch=b.branch,
                    first_offset=b.first_offset,
                    last_offset=b.last_offset,
                    count=b.count,
                )
                for b in branches
            ],
        )
        for (topic, partition), branches in writes.items()
    ]


def _writes_back(wire: Sequence[pb.Writes]) -> dict[TopicPartition, tuple[BranchRange, ...]]:
    writes = {
        (w.topic, w.partition): tuple(
            BranchRange(b.branch, b.first_offset, b.last_offset, b.count) for b in w.branches
        )
        for w in wire
    }
    if len(writes) < len(wire):
        raise ValueError("a partition is named twice: its records would be those of one alone")
    return writes


def _action_back(wire: pb.End.Action) -> c.Action:
    # proto3 hands through numbers that this version does not know, such as a newer "prepare".
    action = _ACTIONS_BACK.get(wire)
    if action is None:
        raise NotSupportedError(f"action {wire} of a newer client: this coordinator can't do it")
    return action


def _state_back(wire: pb.Outcome.State) -> State:
    # A filter that this version can't apply would show what was not asked for.
    state = _STATES_BACK.get(wire)
    if state is None:
        raise NotSupportedError(f"state {wire} of a newer client: this coordinator has none such")
    return state


# ---- requests ------------------------------------------------------------------------------


def encode_request(request_id: int, command: c.Command, partition: int) -> pb.Request:
    """A command as it goes over the wire; `partition` is the journal partition it is for."""
    request = pb.Request(request_id=request_id)
    match command:
        case c.Connect():
            wire = pb.Connect(
                version=PROTOCOL_VERSION,
                partition=partition,
                producer_id=command.producer_id,
                nonce=command.nonce,
                generation=command.generation,
            )
            request.connect.CopyFrom(wire)
        case c.Begin():
            begin = request.begin
            begin.answered_below = command.answered_below
            begin.timeout_ms = command.timeout_ms
            begin.partitions.extend(_partitions(command.partitions))
        case c.AddPartitions():
            request.add_partitions.txid = command.txid.to_bytes()
            request.add_partitions.partitions.extend(
                _with_first_offsets(command.partitions, command.first_offsets)
            )
        case c.AddOffsets():
            request.add_offsets.txid = command.txid.to_bytes()
            request.add_offsets.group = command.group
            request.add_offsets.steps.extend(map(_step, command.steps))
        case c.End():
            request.end.txid = command.txid.to_bytes()
            request.end.action = _ACTIONS[command.action]
            request.end.writes.extend(_writes(command.writes))
        case c.GetOutcome():
            request.get_outcome.txid = command.txid.to_bytes()
        case c.FetchOffsets():
            request.fetch_offsets.group = command.group
            request.fetch_offsets.all = command.partitions is None
            request.fetch_offsets.partitions.extend(_partitions(command.partitions or ()))
        case c.ClaimOffsets():
            claim, expected = request.claim_offsets, command.expected
            claim.group, claim.claimant = command.group, command.claimant
            claim.conditional = expected is not None
            claim.partitions.extend(
                _partitions(command.partitions)
                if expected is None
                else _with_expected(command.partitions, expected)
            )
        case c.BindGroup():
            wire_bind = pb.BindGroup(
                group=command.group, transaction_group=command.transaction_group
            )
            request.bind_group.CopyFrom(wire_bind)
        case _:
            _encode_question(request, command)
    return request


def _encode_question(request: pb.Request, command: c.Command) -> None:
    """What operators ask."""
    match command:
        case c.ListTransactions():
            listing = pb.ListTransactions(
                states=[_STATES[state] for state in command.states],
                age_min_ms=command.age_min_ms,
                producer_id=command.producer_id,
                topic=command.topic,
                after=command.after if command.after >= 0 else None,
                limit=command.limit,
            )
            request.list_transactions.CopyFrom(listing)
        case c.AbortTransaction():
            request.abort_transaction.txid = command.txid.to_bytes()
        case c.ListKeys():
            request.list_keys.CopyFrom(pb.ListKeys(after=command.after, limit=command.limit))
        case c.GetKey():
            request.get_key.CopyFrom(pb.GetKey(name=command.name))
        case c.DeleteKey():
            request.delete_key.CopyFrom(pb.DeleteKey(name=command.name))


def decode_request(request: pb.Request, session: c.Session | None) -> c.Command:
    """Read a command.

    Args:
        request: the wire form.
        session: of the stream it came by; None for a single call.

    Raises:
        NotSupportedError: of an unknown kind or action, or one that needs a session.
        ConfigError: a name is too long.
        MalformedHeaderError, ValueError: a TxId or range that can't be.
    """
    kind = request.WhichOneof("command")
    decode = _DECODERS.get(kind or "")
    if decode is None:
        raise NotSupportedError("a request of a kind that this coordinator does not know")
    if session is None and kind in ("begin", "add_offsets", "end"):
        raise NotSupportedError(f"a request {kind!r} outside of a session")
    command: c.Command = decode(getattr(request, kind or ""), session, request.request_id)
    check_names(command)
    return command


_DECODERS: Final[Mapping[str, Callable[[Any, Any, int], c.Command]]] = {
    "connect": lambda w, _s, _i: c.Connect(
        producer_id=w.producer_id,
        nonce=w.nonce,
        generation=w.generation if w.HasField("generation") else None,
    ),
    "begin": lambda w, s, i: c.Begin(
        session=s,
        request_id=i,
        answered_below=w.answered_below,
        timeout_ms=w.timeout_ms,
        partitions=_partitions_back(w.partitions),
    ),
    "add_partitions": lambda w, s, _i: c.AddPartitions(
        txid=TxId.from_bytes(w.txid),
        partitions=_partitions_back(w.partitions),
        session=s,
        first_offsets=_first_offsets_back(w.partitions),
    ),
    "add_offsets": lambda w, s, _i: c.AddOffsets(
        session=s,
        txid=TxId.from_bytes(w.txid),
        group=w.group,
        steps=tuple(map(_step_back, w.steps)),
    ),
    "end": lambda w, s, _i: c.End(
        session=s,
        txid=TxId.from_bytes(w.txid),
        action=_action_back(w.action),
        writes=_writes_back(w.writes),
    ),
    "get_outcome": lambda w, _s, _i: c.GetOutcome(txid=TxId.from_bytes(w.txid)),
    "fetch_offsets": lambda w, _s, _i: c.FetchOffsets(
        group=w.group, partitions=None if w.all else _partitions_back(w.partitions)
    ),
    "claim_offsets": lambda w, _s, _i: c.ClaimOffsets(
        group=w.group,
        partitions=_partitions_back(w.partitions),
        claimant=w.claimant,
        expected=_expected_back(w.partitions) if w.conditional else None,
    ),
    "bind_group": lambda w, _s, _i: c.BindGroup(
        group=w.group,
        transaction_group=w.transaction_group if w.HasField("transaction_group") else None,
    ),
    "list_transactions": lambda w, _s, _i: c.ListTransactions(
        states=tuple(map(_state_back, w.states)),
        age_min_ms=w.age_min_ms,
        producer_id=w.producer_id,
        topic=w.topic,
        after=w.after if w.HasField("after") else -1,
        limit=w.limit or c.PAGE_MAX,
    ),
    "abort_transaction": lambda w, _s, _i: c.AbortTransaction(txid=TxId.from_bytes(w.txid)),
    "list_keys": lambda w, _s, _i: c.ListKeys(after=w.after, limit=w.limit or c.PAGE_MAX),
    "get_key": lambda w, _s, _i: c.GetKey(name=w.name),
    "delete_key": lambda w, _s, _i: c.DeleteKey(name=w.name),
}


# ---- replies -------------------------------------------------------------------------------


def encode_reply(request_id: int, reply: c.Reply) -> pb.Reply:
    """An answer as it goes over the wire."""
    wire = pb.Reply(request_id=request_id)
    match reply:
        case c.Began():
            wire.began.txid = reply.txid.to_bytes()
        case c.Outcome():
            wire.outcome.txid = reply.txid.to_bytes()
            wire.outcome.state = _STATES[reply.state]
            if reply.commit_sequence is not None:
                wire.outcome.commit_sequence = reply.commit_sequence
        case c.Done():
            wire.done.SetInParent()
        case c.Connected():
            wire.connected.generation = reply.generation
            wire.connected.partition = reply.partition
            wire.connected.incarnation = reply.incarnation
            wire.connected.epoch = reply.epoch
        case c.GroupOffsets():
            wire.group_offsets.CopyFrom(_group_offsets(reply))
        case c.Claimed():
            claimed = pb.Claimed(number=reply.number, offsets=_group_offsets(reply.offsets))
            wire.claimed.CopyFrom(claimed)
        case c.Binding():
            binding = pb.Binding(transaction_group=reply.transaction_group)
            wire.binding.CopyFrom(binding)
        case c.Transactions() | c.KeyInfo() | c.Keys():
            _encode_listing(wire, reply)
        case LogtxError():
            wire.error.code = reply.code
            wire.error.message = str(reply)
            if isinstance(reply, NotCoordinatorError):
                wire.error.hint = reply.hint
    return wire


def _group_offsets(iov: c.GroupOffsets) -> pb.GroupOffsets:
    committed = iov.last_commit is not None and iov.commit_sequence is not None
    offsets = iov.offsets
    if sum(len(position.met) for position in offsets.values()) > MET_MAX:
        # They only save side reads; without them an IOV of any group fits.
        offsets = {p: replace(position, met={}) for p, position in offsets.items()}
    return pb.GroupOffsets(
        offsets=[_position(partition, position) for partition, position in offsets.items()],
        last_commit=iov.last_commit.to_bytes() if iov.last_commit is not None else b"",
        commit_sequence=iov.commit_sequence if committed else None,
    )


def _encode_listing(wire: pb.Reply, reply: c.Transactions | c.KeyInfo | c.Keys) -> None:
    """What operators are told."""
    match reply:
        case c.Transactions():
            infos = map(_info, reply.transactions)
            wire.transactions.CopyFrom(pb.Transactions(transactions=infos, more=reply.more))
        case c.KeyInfo():
            wire.key.CopyFrom(_key(reply))
        case c.Keys():
            wire.keys.CopyFrom(pb.Keys(keys=map(_key, reply.keys), more=reply.more))


def _info(info: c.TransactionInfo) -> pb.TransactionInfo:
    return pb.TransactionInfo(
        txid=info.txid.to_bytes(),
        state=_STATES[info.state],
        producer_id=info.producer_id,
        generation=info.generation,
        started_ms=info.started_ms,
        timeout_ms=info.timeout_ms,
        partitions=_partitions(info.partitions),
        groups=info.groups,
        age_ms=info.age_ms,
        reason=info.reason or "",
    )


def _key(info: c.KeyInfo) -> pb.KeyInfo:
    return pb.KeyInfo(
        name=info.name,
        epoch=info.epoch,
        connected_ms=info.connected_ms,
        age_ms=info.age_ms,
        transactions=[txid.to_bytes() for txid in info.transactions],
    )


def decode_reply(wire: pb.Reply) -> c.Reply:
    """Read an answer; of an unknown kind it becomes a `NotSupportedError`."""
    kind = wire.WhichOneof("result")
    match kind:
        case "began":
            return c.Began(TxId.from_bytes(wire.began.txid))
        case "outcome":
            outcome = wire.outcome
            sequence = outcome.commit_sequence if outcome.HasField("commit_sequence") else None
            state = _STATES_BACK.get(outcome.state, State.UNKNOWN)
            return c.Outcome(TxId.from_bytes(outcome.txid), state, sequence)
        case "done":
            return c.Done()
        case "error":
            return error_from_code(wire.error.code, wire.error.message, wire.error.hint)
        case "connected":
            connected = wire.connected
            return c.Connected(
                generation=connected.generation,
                partition=connected.partition,
                incarnation=connected.incarnation,
                epoch=connected.epoch,
            )
        case "group_offsets":
            return _group_offsets_back(wire.group_offsets)
        case "claimed":
            claimed = wire.claimed
            return c.Claimed(claimed.number, _group_offsets_back(claimed.offsets))
        case "binding":
            bound = wire.binding.HasField("transaction_group")
            return c.Binding(wire.binding.transaction_group if bound else None)
        case "transactions":
            page = wire.transactions
            return c.Transactions(tuple(map(_info_back, page.transactions)), page.more)
        case "key":
            return _key_back(wire.key)
        case "keys":
            return c.Keys(tuple(map(_key_back, wire.keys.keys)), wire.keys.more)
        case _:
            return NotSupportedError("a reply of a kind that this client does not know")


def _group_offsets_back(wire: pb.GroupOffsets) -> c.GroupOffsets:
    committed = wire.HasField("commit_sequence")
    return c.GroupOffsets(
        {(w.topic, w.partition): _position_back(w) for w in wire.offsets},
        TxId.from_bytes(wire.last_commit) if committed else None,
        wire.commit_sequence if committed else None,
    )


def _info_back(wire: pb.TransactionInfo) -> c.TransactionInfo:
    return c.TransactionInfo(
        txid=TxId.from_bytes(wire.txid),
        state=_STATES_BACK.get(wire.state, State.UNKNOWN),
        producer_id=wire.producer_id,
        generation=wire.generation,
        started_ms=wire.started_ms,
        timeout_ms=wire.timeout_ms,
        partitions=_partitions_back(wire.partitions),
        groups=tuple(wire.groups),
        age_ms=wire.age_ms,
        reason=_REASONS_BACK.get(wire.reason),
    )


def _key_back(wire: pb.KeyInfo) -> c.KeyInfo:
    return c.KeyInfo(
        name=wire.name,
        epoch=wire.epoch,
        connected_ms=wire.connected_ms,
        age_ms=wire.age_ms,
        transactions=tuple(map(TxId.from_bytes, wire.transactions)),
    )
