"""Encodes and decodes the values of the store. Pure.

A value begins with a version byte and a type byte. Headers and writes, of which there are most,
have version 2: numbers of fixed size, big-endian, which one call packs or unpacks.

    header  2 1 state(1) version(8) generation(8) created_ms(8) timeout_ms(8) finalized_ms(8)
            commit sequence(8; -1: none) size of the producer's id(4) producer's id, reason
    write   2 2 partition(4) size of the topic's name(4) topic's name, topic id
            first(8) last(8) count(8) branch(8) placed(1) place(8; -1: none)

The state is twice the header's, and one more for a finished transaction. Acknowledgements and
cursors are Avro, version 1 (``schemas``), and so are headers and writes of older programs, which
are still read. The schemas lie beside this module as those of the journal do beside its codec, so
one tool reads both.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import resources
from typing import Any, Final, TypeAlias

import fastavro

from ....journal.control import TopicPartition
from ....journal.errors import MetadataStoreError
from ....journal.places import PartitionId
from ....journal.position import Journal, Place, Position
from ....journal.records.conversion import passed_from_avro, passed_to_avro
from ....journal.records.types import AbortReason
from ....journal.txid import TxId
from ....journal.value import value
from ...protocol.metadata import Header, HeaderState, Operation, OperationKind, Record
from .changes import Cursor
from .keys import Parsed, parse, segment, state_code

VERSION: Final = 2
"""Version byte of headers and writes. A change that old programs can't read needs the next one."""
AVRO_VERSION: Final = 1
"""Version byte of what is written by the schema."""
_HEADER, _WRITE, _ACK, _CURSOR = 1, 2, 3, 4
_NAMES: Final = {
    _HEADER: "Header",
    _WRITE: "WriteOperation",
    _ACK: "AckOperation",
    _CURSOR: "Cursor",
}
NONE: Final = -1
"""Stands for a commit sequence or a place that is not there."""
_HEADER_BODY: Final = struct.Struct(">BBBqqqqqqL")
_WRITE_HEAD: Final = struct.Struct(">BBLL")
_RUN: Final = struct.Struct(">qqqQ?q")
_TOLD: Final = struct.Struct(">qqqQ?")
"""A run but for its place."""
_PLACE: Final = struct.Struct(">q")
_PREFIX_BYTES: Final = 2

Avro = dict[str, Any]


def _schemas() -> dict[int, Any]:
    folder = resources.files(__package__.rpartition(".")[0])
    text = folder.joinpath(f"schemas/v{AVRO_VERSION}.avsc").read_text("utf-8")
    named: dict[str, Any] = {}
    parsed = {s["name"]: fastavro.parse_schema(s, named) for s in json.loads(text)}
    return {kind: parsed[name] for kind, name in _NAMES.items()}


_SCHEMAS: Final = _schemas()
_PREFIX: Final = {kind: bytes((AVRO_VERSION, kind)) for kind in _NAMES}


def _write(kind: int, body: Avro) -> bytes:
    out = io.BytesIO()
    out.write(_PREFIX[kind])
    fastavro.schemaless_writer(out, _SCHEMAS[kind], body)
    return out.getvalue()


def _read(raw: bytes) -> tuple[int, Avro]:
    if len(raw) < _PREFIX_BYTES or raw[0] != AVRO_VERSION or raw[1] not in _SCHEMAS:
        raise MetadataStoreError(
            f"the metadata store holds a value that begins with {raw[:2].hex() or 'nothing'}: a"
            " newer program wrote it, or another one; upgrade this one, or give it a store of its"
            " own"
        )
    try:
        body = fastavro.schemaless_reader(io.BytesIO(raw[_PREFIX_BYTES:]), _SCHEMAS[raw[1]], None)
    except (ValueError, TypeError, EOFError, IndexError, StopIteration) as error:
        raise _undecodable(error) from error
    assert isinstance(body, dict), "all types are records"
    return raw[1], body


def _undecodable(error: Exception) -> MetadataStoreError:
    return MetadataStoreError(f"a value of the metadata store does not decode: {error!r}")


# ---- what a projection writes -------------------------------------------------------------------


@value(frozen=True, slots=True)
class Where:
    """A data partition, with what is made of it again and again."""

    key: TopicPartition
    id: PartitionId
    head: bytes
    """How the values of its writes begin."""
    segment: bytes
    """How their keys in the index begin."""


@lru_cache(maxsize=4_096)
def where_of(topic: str, partition: int, topic_id: str) -> Where:
    """Returns a data partition of one topic of that name."""
    name = topic.encode()
    head = _WRITE_HEAD.pack(VERSION, _WRITE, partition, len(name)) + name + topic_id.encode()
    key = (topic, partition)
    return Where(key, PartitionId(topic, partition, topic_id), head, segment(topic, partition))


Run: TypeAlias = tuple[Where, bytes, bytes]
"""A write: (partition, its value but for the place, its place as `pack_place` has it). Packed when
it is decided, for it is written once, and read in parts seldom."""
WHERE: Final = 0
TOLD: Final = 1
PLACE: Final = 2
"""What stands where in a `Run`."""
pack_told: Final = _TOLD.pack
"""Returns what stands behind `Where.head` in a `Run`, of: first offset, last offset, count, branch,
placed."""
pack_place: Final = _PLACE.pack
"""Returns a place, or `NONE`, as a `Run` has it."""
UNPLACED: Final = pack_place(NONE)


def run_of(write: Operation) -> Run:
    """Returns a write in the form in which a projection keeps it."""
    where = where_of(write.topic, write.partition, write.topic_id)
    first, last = write.first_offset, write.last_offset
    told = where.head + pack_told(first, last, write.count, write.branch, write.placed)
    return where, told, UNPLACED if write.place is None else pack_place(write.place)


def first_of(run: Run) -> int:
    """Returns the first offset of a write."""
    return int(_TOLD.unpack(run[TOLD][-_TOLD.size :])[0])


def beginning_at(run: Run, first: int) -> Run:
    """Returns a write with another first offset."""
    where, told, place = run
    _, *rest = _TOLD.unpack(told[-_TOLD.size :])
    return where, where.head + pack_told(first, *rest), place


def ending_by_place(run: Run) -> Run:
    """Returns a write as one that ends by a place."""
    where, told, place = run
    return where, told[:-1] + _YES, place


def ending_behind_last(run: Run) -> Run:
    """Returns a write as one that ends behind its last record, as what is handed over does."""
    where, told, _ = run
    _, last, *_ = _TOLD.unpack(told[-_TOLD.size :])
    return where, told[:-1] + _YES, pack_place(last + 1)


def waits(run: Run) -> bool:
    """Returns whether a write ends by a place that is not known yet."""
    return run[PLACE] == UNPLACED and run[TOLD][-1] != 0


_YES: Final = struct.pack("?", True)


Begun: TypeAlias = tuple[str, int, int]
"""What does not change of a header: producer's id, generation, time of the BEGIN."""
Status: TypeAlias = tuple[int, int, int, int, int, AbortReason | None]
"""What does: (state code (see `keys.state_code`), version, deadline, time of the decision, commit
sequence or `NONE`, reason of an abort)."""


def encode_header(begun: Begun, status: Status) -> bytes:
    """Returns the value of a header.

    Args:
        begun: what does not change of it.
        status: what does.
    """
    producer_id, generation, created_ms = begun
    code, version, timeout_ms, finalized_ms, sequence, reason = status
    name = producer_id.encode()
    times = generation, created_ms, timeout_ms, finalized_ms
    body = _pack_header(VERSION, _HEADER, code, version, *times, sequence, len(name)) + name
    return body if reason is None else body + reason.value.encode()


_pack_header: Final = _HEADER_BODY.pack


# ---- headers and operations ---------------------------------------------------------------------


def encode(record: Record) -> bytes:
    """Returns the value of a header or an operation."""
    if isinstance(record, Header):
        sequence = record.commit_sequence
        status = (
            state_code(record.state, finished=record.finished),
            record.version,
            record.timeout_ms,
            record.finalized_ms,
            NONE if sequence is None else sequence,
            record.reason,
        )
        return encode_header((record.producer_id, record.generation, record.created_ms), status)
    if record.kind is OperationKind.WRITE:
        _, told, place = run_of(record)
        return told + place
    assert record.to is not None, "an acknowledgement without its position"
    body: Avro = {
        "topic": record.topic,
        "partition": record.partition,
        "topic_id": record.topic_id,
        "subscription": record.subscription,
        "from_place": None if record.from_place is None else _place(record.from_place),
        "to": _position(record.to),
    }
    return _write(_ACK, body)


def decode(key: bytes, raw: bytes) -> Record:
    """Decodes a header or an operation, at its own key or at that of its entry in an index.

    Raises:
        MetadataStoreError: it does not decode, or a newer program wrote it.
    """
    told = parse(key)
    if raw[:1] != _VERSION_BYTE:
        return _decode_avro(told, raw)
    try:
        return _decode_header(told.txid, raw) if raw[1] == _HEADER else _decode_run(told, raw)
    except (struct.error, ValueError, IndexError) as error:
        raise _undecodable(error) from error


_VERSION_BYTE: Final = bytes((VERSION,))
_STATES: Final = [(HeaderState(code // 2), bool(code % 2)) for code in range(2 * len(HeaderState))]


def _decode_header(txid: TxId, raw: bytes) -> Header:
    _, _, code, version, generation, created, timeout, finalized, sequence, size = (
        _HEADER_BODY.unpack_from(raw)
    )
    state, finished = _STATES[code]
    at = _HEADER_BODY.size
    reason = raw[at + size :]
    return Header(
        txid=txid,
        version=version,
        state=state,
        finished=finished,
        producer_id=_text(raw[at : at + size]),
        generation=generation,
        created_ms=created,
        timeout_ms=timeout,
        finalized_ms=finalized,
        commit_sequence=None if sequence == NONE else sequence,
        reason=AbortReason(_text(reason)) if reason else None,
    )


def _decode_run(told: Parsed, raw: bytes) -> Operation:
    assert told.seq is not None, "the key of an operation has its sequence"
    at = len(raw) - _RUN.size
    topic, partition, topic_id = _partition(raw[:at])
    first, last, number, branch, placed, place = _RUN.unpack_from(raw, at)
    return Operation(
        txid=told.txid,
        seq=told.seq,
        kind=OperationKind.WRITE,
        topic=topic,
        partition=partition,
        topic_id=topic_id,
        first_offset=first,
        last_offset=last,
        count=number,
        branch=branch,
        placed=placed,
        place=None if place == NONE else place,
    )


@lru_cache(maxsize=4_096)
def _text(raw: bytes) -> str:
    return raw.decode()


@lru_cache(maxsize=4_096)
def _partition(head: bytes) -> tuple[str, int, str]:
    version, kind, partition, size = _WRITE_HEAD.unpack_from(head)
    at = _WRITE_HEAD.size
    if (version, kind) != (VERSION, _WRITE) or len(head) < at + size:
        raise ValueError(f"not a write: {head[:2].hex()}")
    return head[at : at + size].decode(), partition, head[at + size :].decode()


def _decode_avro(told: Parsed, raw: bytes) -> Record:
    kind, body = _read(raw)
    if kind == _HEADER:
        return _header(told.txid, body)
    assert told.seq is not None, "the key of an operation has its sequence"
    if kind == _WRITE:
        place = body["place"]
        return Operation(
            txid=told.txid,
            seq=told.seq,
            kind=OperationKind.WRITE,
            topic=body["topic"],
            partition=body["partition"],
            topic_id=body["topic_id"],
            first_offset=body["first_offset"],
            last_offset=body["last_offset"],
            count=body["count"],
            branch=body["branch"] % 2**64,
            placed=body["placed"],
            place=None if place == NONE else place,
        )
    from_place = body["from_place"]
    return Operation(
        txid=told.txid,
        seq=told.seq,
        kind=OperationKind.ACK,
        topic=body["topic"],
        partition=body["partition"],
        topic_id=body["topic_id"],
        subscription=body["subscription"],
        from_place=None if from_place is None else _place_of(from_place),
        to=_position_of(body["to"]),
    )


def deleted(key: bytes) -> Record:
    """Returns what a key tells of a header or an operation that went."""
    told: Parsed = parse(key)
    if told.seq is None:
        return Header(
            txid=told.txid,
            version=NONE,
            state=HeaderState.OPEN,
            producer_id="",
            generation=NONE,
            created_ms=0,
        )
    kind = OperationKind.ACK if told.subscription else OperationKind.WRITE
    return Operation(
        txid=told.txid,
        seq=told.seq,
        kind=kind,
        topic=told.topic,
        partition=told.partition,
        place=told.place,
        subscription=told.subscription,
    )


def _header(txid: TxId, body: Avro) -> Header:
    sequence, reason = body["commit_sequence"], body["reason"]
    return Header(
        txid=txid,
        version=body["version"],
        state=HeaderState(body["state"]),
        finished=body["finished"],
        producer_id=body["producer_id"],
        generation=body["generation"],
        created_ms=body["created_ms"],
        timeout_ms=body["timeout_ms"],
        finalized_ms=body["finalized_ms"],
        commit_sequence=None if sequence == NONE else sequence,
        reason=AbortReason(reason) if reason else None,
    )


def _place(place: Place) -> Avro:
    return {"o2": place.o2, "o3": place.o3, "passed": passed_to_avro(place.passed)}


def _place_of(row: Avro) -> Place:
    return Place(row["o2"], row["o3"], passed_from_avro(row["passed"]))


def _sequences(sequences: Mapping[Journal, int]) -> list[Avro]:
    return [
        {"partition": p, "incarnation": i, "sequence": s} for (p, i), s in sorted(sequences.items())
    ]


def _sequences_of(rows: Iterable[Avro]) -> dict[Journal, int]:
    return {(r["partition"], r["incarnation"]): r["sequence"] for r in rows}


def _position(position: Position) -> Avro:
    return {
        "o1": position.o1,
        "o2": position.o2,
        "o3": position.o3,
        "met": _sequences(position.met),
        "delivered": _sequences(position.delivered),
        "passed": passed_to_avro(position.passed),
        "topic_id": position.topic_id,
    }


def _position_of(row: Avro) -> Position:
    return Position(
        o1=row["o1"],
        o2=row["o2"],
        o3=row["o3"],
        met=_sequences_of(row["met"]),
        delivered=_sequences_of(row["delivered"]),
        passed=passed_from_avro(row["passed"]),
        topic_id=row["topic_id"],
    )


# ---- cursors ------------------------------------------------------------------------------------


def encode_cursor(cursor: Cursor) -> bytes:
    """Returns the value of a cursor."""
    return _write(
        _CURSOR,
        {
            "offset": cursor.offset,
            "epoch": cursor.epoch,
            "incarnation": NONE if cursor.incarnation is None else cursor.incarnation,
            "surprised": cursor.surprised,
            "part": cursor.part,
        },
    )


def decode_cursor(raw: bytes | None) -> Cursor | None:
    """Decodes a cursor; None if there is none.

    Raises:
        MetadataStoreError: it does not decode, or a newer program wrote it.
    """
    if raw is None:
        return None
    _, body = _read(raw)
    incarnation = body["incarnation"]
    return Cursor(
        body["offset"],
        body["epoch"],
        None if incarnation == NONE else incarnation,
        body["surprised"],
        body["part"],
    )
