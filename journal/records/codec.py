"""Encodes and decodes journal records: version byte, type byte, Avro body (`schemas/v13.avsc`)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib import resources
from typing import Any, Final, TypeAlias

import fastavro

from ..acks import Ack, AddAcks, Subscribe, SubscribeEffect
from ..errors import CorruptRecordError, MalformedHeaderError, UnknownRecordError
from ..modes import ModeChange
from ..places import GONE, Adoption, Placed
from ..position import Place, Position
from ..record_type import RecordType
from .conversion import FROM_AVRO, TO_AVRO, Avro, columns_from_avro, columns_to_avro
from .fast_reader import LAZY_READERS, NEWER_LAZY_READERS, NEWER_READERS, READERS, read_head
from .fast_writer import COLUMN_WRITERS, COLUMNS_MIN, PLACED_WRITERS, WRITERS, write_head
from .types import (
    NO_FENCE,
    Aborted,
    AddOffsets,
    AddPartitions,
    AddWrites,
    Begin,
    Bind,
    Claim,
    Committed,
    Entry,
    Forget,
    JournalRecord,
    Owner,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
    Snapshot,
)

FORMAT_VERSION: Final = 13
"""Newest format version; a change that old readers can't read needs the next one."""
_CHANGED_IN: Final = {
    RecordType.SNAPSHOT: 3,
    RecordType.FORGET: 3,
    RecordType.ADD_WRITES: 4,
    RecordType.PLACED: 5,
    RecordType.MODE: 5,
    RecordType.ADOPT: 6,
    RecordType.SUBSCRIBE: 9,
    RecordType.ADD_ACKS: 9,
    RecordType.ACK: 9,
}
"""Version in which a type's schema changed last for all its records: their version byte. It is 2
for all others, so a program of the version before still reads them."""
_WITH_PARTS: Final = 4
"""Version of a decision and of a snapshot's chunk that speak of a transaction with parts, and of
records whose input offsets name their topics' ids. All others are written as before, so that
programs of the version before read them."""
_WITH_PLACES: Final = 5
"""Version of a decision that is placed somewhere, of a snapshot's chunk that speaks of modes or
places, and of records whose input offsets say what was passed. An older program that met one would
wait for markers that nobody writes: it stops, and asks to be upgraded."""
_WITH_HOMES: Final = 6
"""Version of a decision that is handed over to another home, and of a snapshot's chunk that speaks
of such. An older program would wait for markers, or write them."""
_WITH_COLUMNS: Final = 7
"""Version of a decision that says in columns what was written: one that is placed or handed over,
and names at least `COLUMNS_MIN` partitions. It takes a fifth of the bytes, and half of the time.
"""
WITH_SIDECARS: Final = 8
"""Version of a decision that accepts records in a sidecar, and of a snapshot's chunk that speaks of
such a one. An older program would write a marker where a pointer must stand, and lose the commit.
Its writes are in rows, however many they are."""
WITH_QUEUES: Final = 9
"""Version of a snapshot's chunk that speaks of subscriptions. An older program would forget them.
"""
WITH_POINTERS: Final = 10
"""Version of a record that finishes a transaction with pointers, and of a snapshot's chunk that
speaks of such. An older program would forget what pointers need, and a newer one that owns the
journal behind it would trim that away."""
WITH_ERAS: Final = 11
"""Version of a record that ends an era of a subscription, and of each snapshot's chunk behind one.
An older program would take a reset for partitions that join, and acknowledgements of before for
such of now."""
WITH_PLACED_SIDECARS: Final = 12
"""Version of a decision that is placed in the main partition of a sidecar in which it accepts
records, and of a snapshot's chunk that says so. Its schema is that of the version before: an older
program would read it, and end the transaction without them."""
WITH_SHARES: Final = 13
"""Version of an ADOPT record that another one of the same transaction goes on, or may, and of a
snapshot's chunk that says how far that is. An older program would take the first for the whole.
"""

_UNDECODABLE: Final = (
    *(ValueError, TypeError, KeyError, EOFError, IndexError, OverflowError),
    MalformedHeaderError,  # an ADOPT record with a TxId of a negative offset
)

_CLASSES: Final[Mapping[int, type[JournalRecord]]] = {
    cls.type: cls
    for cls in (
        Owner,
        ProducerRecord,
        Begin,
        AddPartitions,
        AddOffsets,
        AddWrites,
        PrepareCommit,
        PrepareAbort,
        Committed,
        Aborted,
        Bind,
        Claim,
        Snapshot,
        Forget,
        Placed,
        ModeChange,
        Adoption,
        Subscribe,
        AddAcks,
        Ack,
    )
}


_Converters: TypeAlias = Sequence[tuple[str, Callable[[Any], Any] | None]]


def _converters(table: Mapping[str, Callable[[Any], Any]]) -> dict[int, _Converters]:
    """Returns, by type byte, the record's fields, each with its converter or None."""
    return {
        code: [
            (f.name, table.get(f"{cls.__name__}.{f.name}") or table.get(f.name))
            for f in fields(cls)
        ]
        for code, cls in _CLASSES.items()
    }


_FIELDS: Final = _converters(TO_AVRO)
_CONVERTED: Final[Mapping[int, Sequence[tuple[str, Callable[[Any], Any]]]]] = {
    code: [(name, convert) for name, convert in each if convert is not None]
    for code, each in _converters(FROM_AVRO).items()
}


@cache
def _schemas(version: int) -> dict[int, Any]:
    """Returns the schemas of a version by type byte. Most processes meet a few versions: all of
    them would take a tenth of the time in which a client is imported."""
    text = resources.files(__package__).joinpath(f"schemas/v{version}.avsc").read_text("utf-8")
    named: dict[str, Any] = {}
    parsed = {s["name"]: fastavro.parse_schema(s, named) for s in json.loads(text)}
    return {code: parsed[cls.__name__] for code, cls in _CLASSES.items() if cls.__name__ in parsed}


@cache
def _newer_schema(version: int, code: int) -> Any:
    """Returns the newest schema of a type; None if what this version has is read without it.

    Resolving a schema against itself would take as long as reading does.
    """
    if version == _VERSIONS[code]:
        return None
    newest = _schemas(FORMAT_VERSION)[code]
    return None if _schemas(version)[code] == newest else newest


_VERSIONS: Final = {code: _CHANGED_IN.get(cls.type, 2) for code, cls in _CLASSES.items()}
_BY_HAND: Final = {
    code: [
        (bytes((version, code)), writers[code])
        for version, writers in (
            (_VERSIONS[code], WRITERS),
            (_WITH_PLACES, PLACED_WRITERS),
            (_WITH_COLUMNS, COLUMN_WRITERS),
        )
        if code in writers
    ]
    for code in WRITERS
}
"""Type byte → prefixes, and what writes a record of that version or returns None; oldest first."""


def _positions(record: Snapshot) -> Iterator[Position]:
    """Yields the positions of a snapshot's chunk, committed and to be committed."""
    for group in record.groups:
        yield from (position for _, _, position in group.offsets)
    for transaction in record.transactions:
        yield from (step.to for moved in transaction.steps for step in moved.steps)


def _starts(record: Snapshot) -> Iterator[Place | None]:
    """Yields the places of the steps of a snapshot's chunk that are not among `_positions`."""
    for transaction in record.transactions:
        for moved in transaction.steps:
            yield from (step.from_place for step in moved.steps)
            for _, _, start, to in moved.sent:
                yield from (start, to)


def _version(record: JournalRecord) -> int:
    """Returns the version byte of a record: the oldest whose programs read it rightly."""
    if _is_in_shares(record):
        return WITH_SHARES
    if _places_sidecars(record):
        return WITH_PLACED_SIDECARS
    if _speaks_of_eras(record):
        return WITH_ERAS
    if isinstance(record, Committed | Snapshot) and record.pointers:
        return WITH_POINTERS
    if isinstance(record, Snapshot) and record.subscriptions:
        return WITH_QUEUES
    if isinstance(record, PrepareCommit | Snapshot) and record.sidecar_since:
        return WITH_SIDECARS
    if _has_columns(record):
        return _WITH_COLUMNS
    if _speaks_of_homes(record):
        return _WITH_HOMES
    if _speaks_of_places(record):
        return _WITH_PLACES
    return _WITH_PARTS if _speaks_of_parts(record) else _VERSIONS[record.type]


def _is_in_shares(record: JournalRecord) -> bool:
    match record:
        case Adoption():
            return record.more
        case Snapshot():
            return any(row.begun for row in record.adopted)
        case _:
            return False


def _places_sidecars(record: JournalRecord) -> bool:
    match record:
        case PrepareCommit():
            return bool(record.sidecar_since and record.placed) and record.places_sidecars
        case Snapshot():
            rows = (each for row in record.places for each in row.places)
            return any(not end and place != GONE for _, end, place in rows)
        case _:
            return False


def _speaks_of_eras(record: JournalRecord) -> bool:
    match record:
        case Subscribe():
            return record.effect is not SubscribeEffect.JOINS
        case Snapshot():
            return record.last_era > 0
        case _:
            return False


def _has_columns(record: JournalRecord) -> bool:
    # All others are written as before: a cluster without places needs no newer program.
    return (
        isinstance(record, PrepareCommit)
        and bool(record.placed or record.handed)
        and len(record.writes) >= COLUMNS_MIN
    )


def _speaks_of_homes(record: JournalRecord) -> bool:
    match record:
        case PrepareCommit() | PrepareAbort():
            return bool(record.handed)
        case Snapshot():
            return bool(record.handed or record.adopted or record.unplaced)
        case _:
            return False


def _speaks_of_parts(record: JournalRecord) -> bool:
    match record:
        case PrepareCommit():
            return bool(record.added)
        case AddOffsets():
            return any(step.to.topic_id for step in record.steps)
        case Snapshot():
            return any(row.parts for row in record.transactions) or any(
                position.topic_id for position in _positions(record)
            )
        case _:
            return False


def _speaks_of_places(record: JournalRecord) -> bool:
    match record:
        case PrepareCommit():
            return bool(record.placed)
        case AddOffsets():
            return any(_passed(step.to) or _passed(step.from_place) for step in record.steps)
        case Snapshot():
            rows = record.modes or record.last_places or record.places or record.fence_places
            return (
                bool(rows)
                or record.fence != NO_FENCE
                or any(map(_passed, _positions(record)))
                or any(map(_passed, _starts(record)))
            )
        case _:
            return False


def _passed(where: Position | Place | None) -> bool:
    return where is not None and where.passed is not None


def encode_entry(entry: Entry) -> bytes:
    """Returns the value of a journal record.

    Raises:
        OverflowError, ValueError: a number in it is out of range.
    """
    for prefix, write in _BY_HAND.get(entry.record.type, ()):
        body = write(entry.record)
        if body is not None:
            return prefix + write_head(entry.epoch, entry.incarnation, entry.predicted) + body
    return encode_by_schema(entry)


def encode_by_schema(entry: Entry) -> bytes:
    """Encodes like `encode_entry`, by the schema: slower, for any type."""
    record, version = entry.record, _version(entry.record)
    body: Avro = {
        "epoch": entry.epoch,
        "incarnation": entry.incarnation,
        "predicted": entry.predicted,
    }
    for name, convert in _FIELDS[record.type]:
        value = getattr(record, name)
        if version == _WITH_COLUMNS and name == "writes":
            body["writes"], body["columns"] = (), columns_to_avro(value)
            continue
        body[name] = convert(value) if convert else value
    out = io.BytesIO()
    out.write(bytes((version, record.type)))
    fastavro.schemaless_writer(out, _schemas(version)[record.type], body)
    return out.getvalue()


def decode_entry(raw: bytes | None, *, lazily: bool = False) -> Entry:
    """Decodes a journal record, of this format version or an older one.

    Args:
        raw: the record's value.
        lazily: leaves the fields of a PREPARE_COMMIT or ADD_WRITES undecoded until they are used,
            but for `begin` and `placed`; their first use may then raise ValueError or IndexError.
            Takes half the time where most of them are never used. What is in columns is decoded at
            once.

    Raises:
        UnknownRecordError: a newer format version or record type.
        CorruptRecordError: anything else that does not decode.
    """
    if raw is None or len(raw) < 2:
        raise CorruptRecordError("the journal record is empty")
    version, code = raw[0], raw[1]
    read = (LAZY_READERS if lazily else READERS).get(code)
    try:
        if read is None or version != _VERSIONS[code]:
            read = (NEWER_LAZY_READERS if lazily else NEWER_READERS).get((version, code))
        if read is None:
            return _decode_other(raw)
        epoch, incarnation, predicted, at = read_head(raw)
        record, end = read(raw, at)
        if end != len(raw):
            raise CorruptRecordError("the journal record does not end where its bytes do")
        return Entry(epoch, incarnation, record, predicted)
    except _UNDECODABLE as error:
        raise CorruptRecordError(f"the journal record does not decode: {error!r}") from error


def _decode_other(raw: bytes) -> Entry:
    """Decodes an entry of another version, or of a rare type."""
    version, code = raw[0], raw[1]
    if not 1 <= version <= FORMAT_VERSION or code not in _schemas(version):
        kind = RecordType(code).name if code in _CLASSES else code
        raise UnknownRecordError(
            f"journal record of version {version} and type {kind}; upgrade this program"
        )
    return decode_by_schema(raw)


def decode_by_schema(raw: bytes) -> Entry:
    """Decodes like `decode_entry`, by the schema: slower, for any known version and type.

    Does not translate the errors of fastavro and of the converters.
    """
    version, code = raw[0], raw[1]
    source = io.BytesIO(raw)
    source.seek(2)
    body = fastavro.schemaless_reader(source, _schemas(version)[code], _newer_schema(version, code))
    if not isinstance(body, dict) or source.read(1):
        raise CorruptRecordError("the journal record has bytes left over")
    epoch, incarnation = body.pop("epoch"), body.pop("incarnation")
    predicted = body.pop("predicted")
    columns = body.pop("columns", None)
    for name, convert in _CONVERTED[code]:
        # A field of a newer version that the record was read without has its default.
        if name in body:
            body[name] = convert(body[name])
    if columns:
        body["writes"] = columns_from_avro(columns)
    return Entry(epoch, incarnation, _CLASSES[code](**body), predicted)
