"""Converts what `metadata` says to protobuf and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ...journal.errors import ConfigError, LogtxError, NotSupportedError, error_from_code
from ...journal.records.types import AbortReason, OffsetStep
from ...journal.txid import MAX_OFFSET, TxId
from . import coordinator_pb2 as common
from . import metadata_pb2 as pb
from .fields import check_group, check_topic, step_from_wire, step_to_wire
from .metadata import (
    Found,
    Header,
    HeaderState,
    Horizon,
    OfAcks,
    OfDeadlines,
    OfFinalState,
    OfHeader,
    OfOperations,
    OfWrites,
    Operation,
    OperationKind,
    Projected,
    Question,
    Record,
    StoreStatus,
)

WAIT_DEFAULT_MS: Final = 10_000
"""How long an answer that must be fresh waits for the store, if the question does not say."""
WAIT_MAX_MS: Final = 60_000
"""Longest such wait that a question may ask for."""
_HEADER: Final = (
    *("version", "finished", "producer_id", "generation"),
    *("created_ms", "timeout_ms", "finalized_ms"),
)
_OPERATION: Final = (
    *("topic", "partition", "topic_id", "first_offset", "last_offset", "count"),
    *("branch", "placed", "subscription"),
)
_HORIZON: Final = ("max_read_position", "end_offset", "undecided", "exact")
_PROJECTED: Final = ("partition", "next_offset", "problem")
_STATUS: Final = (
    *("back_end", "shared", "operations", "swept_ms", "swept_operations"),
    *("swept_headers", "problem", "history_ms"),
)
"""Fields of each record that have one name and type here and on the wire."""


# ---- questions ----------------------------------------------------------------------------------


def question_to_wire(
    question: Question, *, limit: int = 0, fresh: bool = False, timeout_ms: int = 0
) -> pb.MetadataQuery:
    """Encodes a question."""
    wire = pb.MetadataQuery(limit=limit, fresh=fresh, timeout_ms=timeout_ms)
    match question:
        case OfHeader():
            wire.header = question.txid.to_bytes()
        case OfOperations():
            wire.operations = question.txid.to_bytes()
        case OfWrites():
            to_place = question.to_place
            wire.writes_by_segment.CopyFrom(
                pb.MetadataQuery.Writes(
                    topic=question.topic,
                    partition=question.partition,
                    from_place=question.from_place,
                    to_place=None if to_place == MAX_OFFSET else to_place,
                )
            )
        case OfAcks():
            wire.acks_by_segment_subscription.CopyFrom(
                pb.MetadataQuery.Acks(
                    topic=question.topic,
                    partition=question.partition,
                    subscription=question.subscription,
                )
            )
        case OfDeadlines():
            before_ms = question.before_ms
            wire.txn_by_deadline.CopyFrom(
                pb.MetadataQuery.Deadline(before_ms=None if before_ms == MAX_OFFSET else before_ms)
            )
        case OfFinalState():
            to_ms = question.to_ms
            wire.txn_by_final_state.CopyFrom(
                pb.MetadataQuery.Final(
                    state=question.state.name,
                    from_ms=question.from_ms,
                    to_ms=None if to_ms == MAX_OFFSET else to_ms,
                )
            )
    return wire


def question_from_wire(wire: pb.MetadataQuery) -> Question:
    """Decodes a question.

    Raises:
        NotSupportedError: this version knows no such question.
        ConfigError: a name or a number is out of range.
        MalformedHeaderError: a TxId does not decode.
    """
    match wire.WhichOneof("what"):
        case "header":
            return OfHeader(TxId.from_bytes(wire.header))
        case "operations":
            return OfOperations(TxId.from_bytes(wire.operations))
        case "writes_by_segment":
            writes = wire.writes_by_segment
            return OfWrites(
                topic=_name(check_topic(writes.topic)),
                partition=writes.partition,
                from_place=_number(writes.from_place),
                to_place=_number(writes.to_place) if writes.HasField("to_place") else MAX_OFFSET,
            )
        case "acks_by_segment_subscription":
            acks = wire.acks_by_segment_subscription
            named = acks.HasField("subscription")
            return OfAcks(
                topic=_name(check_topic(acks.topic)),
                partition=acks.partition,
                subscription=_name(check_group(acks.subscription)) if named else None,
            )
        case "txn_by_deadline":
            deadline = wire.txn_by_deadline
            bounded = deadline.HasField("before_ms")
            return OfDeadlines(before_ms=_number(deadline.before_ms) if bounded else MAX_OFFSET)
        case "txn_by_final_state":
            final = wire.txn_by_final_state
            if int(final.state) not in (HeaderState.COMMITTED, HeaderState.ABORTED):
                raise ConfigError("a final state is committed or aborted: ask for one of these")
            return OfFinalState(
                state=HeaderState(final.state),
                from_ms=_number(final.from_ms),
                to_ms=_number(final.to_ms) if final.HasField("to_ms") else MAX_OFFSET,
            )
        case _:
            raise NotSupportedError(
                "a question about transactions that this coordinator can't read"
            )


def wait_s_of(told_ms: int) -> float:
    """Returns how long to wait for the store, in seconds."""
    return min(told_ms or WAIT_DEFAULT_MS, WAIT_MAX_MS) / 1_000


def _number(told: int) -> int:
    if told > MAX_OFFSET:
        raise ConfigError(f"{told} is beyond {MAX_OFFSET}, the highest offset and time")
    return told


def _name(name: str) -> str:
    if "\0" in name:
        raise ConfigError(f"{name!r} has a zero byte in it, which no name has")
    return name


# ---- answers ------------------------------------------------------------------------------------


def page_to_wire(found: Iterable[Found], *, ready: bool = False) -> pb.MetadataPage:
    """Encodes what was found."""
    return pb.MetadataPage(entries=map(_entry_to_wire, found), ready=ready)


def error_to_wire(error: LogtxError) -> common.Error:
    """Encodes an error."""
    return common.Error(code=error.code, message=str(error))


def error_from_wire(wire: common.Error) -> LogtxError:
    """Decodes an error."""
    return error_from_code(wire.code, wire.message)


def _raise_error(wire: pb.MetadataPage | pb.HorizonReply | pb.StatusReply) -> None:
    if wire.HasField("error"):
        raise error_from_wire(wire.error)


def _same(names: Iterable[str], source: object) -> dict[str, Any]:
    """Returns the fields of these names."""
    return {name: getattr(source, name) for name in names}


def page_from_wire(wire: pb.MetadataPage) -> list[Found]:
    """Decodes what was found.

    Raises:
        LogtxError: the page ends the answer with an error.
    """
    _raise_error(wire)
    found: list[Found] = []
    for entry in wire.entries:
        which = entry.WhichOneof("record")
        record: Record
        if which == "header":
            record = _header_from_wire(entry.header)
        elif which == "operation":
            record = _operation_from_wire(entry.operation)
        else:
            raise NotSupportedError(
                "the coordinator tells of a record that this program can't read"
            )
        found.append(Found(record, entry.deleted))
    return found


def _entry_to_wire(found: Found) -> pb.MetadataEntry:
    record = found.record
    if isinstance(record, Header):
        return pb.MetadataEntry(header=_header_to_wire(record), deleted=found.deleted)
    return pb.MetadataEntry(operation=_operation_to_wire(record), deleted=found.deleted)


def _header_to_wire(header: Header) -> pb.MetadataHeader:
    return pb.MetadataHeader(
        **_same(_HEADER, header),
        txid=header.txid.to_bytes(),
        state=header.state.name,
        commit_sequence=header.commit_sequence,
        reason="" if header.reason is None else header.reason.value,
    )


def _header_from_wire(wire: pb.MetadataHeader) -> Header:
    return Header(
        **_same(_HEADER, wire),
        txid=TxId.from_bytes(wire.txid),
        state=HeaderState(wire.state),
        commit_sequence=wire.commit_sequence if wire.HasField("commit_sequence") else None,
        reason=AbortReason(wire.reason) if wire.reason else None,
    )


def _operation_to_wire(operation: Operation) -> pb.MetadataOperation:
    step = None
    if operation.to is not None:
        topic, partition = operation.topic, operation.partition
        step = step_to_wire(OffsetStep(topic, partition, operation.from_place, operation.to))
    return pb.MetadataOperation(
        **_same(_OPERATION, operation),
        txid=operation.txid.to_bytes(),
        seq_offset=operation.seq[0],
        seq_index=operation.seq[1],
        kind=operation.kind.name,
        place=operation.place,
        step=step,
    )


def _operation_from_wire(wire: pb.MetadataOperation) -> Operation:
    step = step_from_wire(wire.step) if wire.HasField("step") else None
    return Operation(
        **_same(_OPERATION, wire),
        txid=TxId.from_bytes(wire.txid),
        seq=(wire.seq_offset, wire.seq_index),
        kind=OperationKind(wire.kind),
        place=wire.place if wire.HasField("place") else None,
        from_place=None if step is None else step.from_place,
        to=None if step is None else step.to,
    )


def horizon_to_wire(horizon: Horizon) -> pb.HorizonReply:
    """Encodes a horizon."""
    return pb.HorizonReply(**_same(_HORIZON, horizon))


def horizon_from_wire(wire: pb.HorizonReply) -> Horizon:
    """Decodes a horizon.

    Raises:
        LogtxError: the answer is an error.
    """
    _raise_error(wire)
    return Horizon(**_same(_HORIZON, wire))


def status_to_wire(status: StoreStatus) -> pb.StatusReply:
    """Encodes what a coordinator says of its store."""
    return pb.StatusReply(
        **_same(_STATUS, status),
        partitions=[
            pb.StatusReply.Partition(lag_records=p.lag_records, **_same(_PROJECTED, p))
            for p in status.partitions
        ],
    )


def status_from_wire(wire: pb.StatusReply) -> StoreStatus:
    """Decodes what a coordinator says of its store.

    Raises:
        LogtxError: the answer is an error.
    """
    _raise_error(wire)
    return StoreStatus(
        **_same(_STATUS, wire),
        partitions=tuple(
            Projected(
                lag_records=p.lag_records if p.HasField("lag_records") else None,
                **_same(_PROJECTED, p),
            )
            for p in wire.partitions
        ),
    )
