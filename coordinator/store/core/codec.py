"""Encodes and decodes the values of the store: version byte, type byte, Avro (``schemas``). Pure.

The schemas lie beside this module as those of the journal do beside its codec, so one tool reads
both. A file of an old version stays for as long as a store may hold its values.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import resources
from typing import Any, Final

import fastavro

from ....journal.errors import MetadataStoreError
from ....journal.position import Journal, Place, Position
from ....journal.records.conversion import passed_from_avro, passed_to_avro
from ....journal.records.fast_writer import encode_long, encode_string, signed
from ....journal.records.types import AbortReason
from ....journal.txid import TxId
from ...protocol.metadata import Header, HeaderState, Operation, OperationKind, Record
from .changes import Cursor
from .keys import Parsed, parse

VERSION: Final = 1
"""Version byte of all values. A change that old programs can't read needs the next one."""
_HEADER, _WRITE, _ACK, _CURSOR = 1, 2, 3, 4
_NAMES: Final = {
    _HEADER: "Header",
    _WRITE: "WriteOperation",
    _ACK: "AckOperation",
    _CURSOR: "Cursor",
}
_NONE: Final = -1

Avro = dict[str, Any]


def _schemas() -> dict[int, Any]:
    folder = resources.files(__package__.rpartition(".")[0])
    text = folder.joinpath(f"schemas/v{VERSION}.avsc").read_text("utf-8")
    named: dict[str, Any] = {}
    parsed = {s["name"]: fastavro.parse_schema(s, named) for s in json.loads(text)}
    return {kind: parsed[name] for kind, name in _NAMES.items()}


_SCHEMAS: Final = _schemas()
_PREFIX: Final = {kind: bytes((VERSION, kind)) for kind in _NAMES}


def _write(kind: int, body: Avro) -> bytes:
    out = io.BytesIO()
    out.write(_PREFIX[kind])
    fastavro.schemaless_writer(out, _SCHEMAS[kind], body)
    return out.getvalue()


def _read(raw: bytes) -> tuple[int, Avro]:
    if len(raw) < 2 or raw[0] != VERSION or raw[1] not in _SCHEMAS:
        raise MetadataStoreError(
            f"the metadata store holds a value that begins with {raw[:2].hex() or 'nothing'}: a"
            " newer program wrote it, or another one; upgrade this one, or give it a store of its"
            " own"
        )
    try:
        body = fastavro.schemaless_reader(io.BytesIO(raw[2:]), _SCHEMAS[raw[1]], None)
    except (ValueError, TypeError, EOFError, IndexError, StopIteration) as error:
        raise MetadataStoreError(f"a value of the metadata store does not decode: {error!r}") from (
            error
        )
    assert isinstance(body, dict), "all types are records"
    return raw[1], body


# ---- headers and operations ---------------------------------------------------------------------


def encode(record: Record) -> bytes:
    """Returns the value of a header or an operation.

    Headers and writes are written by hand, in a quarter of the time that the schema takes.
    """
    if isinstance(record, Header):
        sequence, reason = record.commit_sequence, record.reason
        return b"".join(
            (
                _PREFIX[_HEADER],
                encode_long(record.version),
                _STATES[record.state, record.finished],
                _cached(record.producer_id),
                encode_long(record.generation),
                encode_long(record.created_ms),
                encode_long(record.timeout_ms),
                encode_long(record.finalized_ms),
                encode_long(_NONE if sequence is None else sequence),
                b"\0" if reason is None else _cached(reason.value),
            )
        )
    if record.kind is OperationKind.ACK:
        return encode_by_schema(record)
    place = record.place
    return b"".join(
        (
            _PREFIX[_WRITE],
            _partition(record.topic, record.partition, record.topic_id),
            encode_long(record.first_offset),
            encode_long(record.last_offset),
            encode_long(record.count),
            encode_long(signed(record.branch)),
            b"\1" if record.placed else b"\0",
            encode_long(_NONE if place is None else place),
        )
    )


_STATES: Final = {
    (state, finished): encode_long(state) + bytes((finished,))
    for state in HeaderState
    for finished in (False, True)
}
_cached = lru_cache(maxsize=4_096)(encode_string)


@lru_cache(maxsize=4_096)
def _partition(topic: str, partition: int, topic_id: str) -> bytes:
    return encode_string(topic) + encode_long(partition) + encode_string(topic_id)


def encode_by_schema(record: Record) -> bytes:
    """Encodes like `encode`, by the schema."""
    if isinstance(record, Header):
        return _write(_HEADER, _header_body(record))
    body: Avro = {
        "topic": record.topic,
        "partition": record.partition,
        "topic_id": record.topic_id,
    }
    if record.kind is OperationKind.ACK:
        assert record.to is not None, "an acknowledgement without its position"
        body["subscription"] = record.subscription
        body["from_place"] = None if record.from_place is None else _place(record.from_place)
        body["to"] = _position(record.to)
        return _write(_ACK, body)
    body["first_offset"] = record.first_offset
    body["last_offset"] = record.last_offset
    body["count"] = record.count
    body["branch"] = signed(record.branch)
    body["placed"] = record.placed
    body["place"] = _NONE if record.place is None else record.place
    return _write(_WRITE, body)


def _header_body(header: Header) -> Avro:
    sequence, reason = header.commit_sequence, header.reason
    return {
        "version": header.version,
        "state": header.state,
        "finished": header.finished,
        "producer_id": header.producer_id,
        "generation": header.generation,
        "created_ms": header.created_ms,
        "timeout_ms": header.timeout_ms,
        "finalized_ms": header.finalized_ms,
        "commit_sequence": _NONE if sequence is None else sequence,
        "reason": "" if reason is None else reason.value,
    }


def decode(key: bytes, raw: bytes) -> Record:
    """Decodes a header or an operation, at its own key or at that of its entry in an index.

    Raises:
        MetadataStoreError: it does not decode, or a newer program wrote it.
    """
    kind, body = _read(raw)
    told = parse(key)
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
            place=None if place == _NONE else place,
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
            version=_NONE,
            state=HeaderState.OPEN,
            producer_id="",
            generation=_NONE,
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
        commit_sequence=None if sequence == _NONE else sequence,
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
            "incarnation": _NONE if cursor.incarnation is None else cursor.incarnation,
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
        None if incarnation == _NONE else incarnation,
        body["surprised"],
        body["part"],
    )
