"""Encodes and decodes journal records: version byte, type byte, Avro body (``schemas/v4.avsc``)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from importlib import resources
from itertools import repeat
from typing import Any, Final, TypeAlias

import fastavro

from ..control import BranchRange, TopicPartition
from ..errors import CorruptRecordError, UnknownRecordError
from ..position import Journal, Place, Position
from ..record_type import RecordType
from ..state import State
from .fast_reader import LAZY_READERS, NEWER_READERS, READERS, read_head
from .fast_writer import WRITERS, signed, write_head
from .types import (
    UNKNOWN_OFFSET,
    Aborted,
    AbortReason,
    AddOffsets,
    AddPartitions,
    AddWrites,
    Begin,
    Bind,
    Claim,
    Committed,
    DataPartition,
    Entry,
    Forget,
    JournalRecord,
    OffsetStep,
    Owner,
    PartitionWrites,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
    Snapshot,
    SnapshotClaim,
    SnapshotGroup,
    SnapshotProducer,
    SnapshotSteps,
    SnapshotTransaction,
    StepIdentity,
)

FORMAT_VERSION: Final = 4
"""Newest format version; a change that old readers can't read needs the next one."""
_CHANGED_IN: Final = {RecordType.SNAPSHOT: 3, RecordType.FORGET: 3, RecordType.ADD_WRITES: 4}
"""Version in which a type's schema changed last for all its records: their version byte. It is 2
for all others, so a program of the version before still reads them."""
_IF_NEEDED: Final = 4
"""Version of a decision and of a snapshot's chunk that speak of a transaction with parts, and of
records whose input offsets name their topics' ids. All others are written as before, so that
programs of the version before read them."""

Avro = dict[str, Any]


def _partitions_to_avro(partitions: Iterable[DataPartition]) -> list[Avro]:
    grouped: dict[tuple[str, str], list[DataPartition]] = {}
    for p in partitions:
        grouped.setdefault((p.topic, p.topic_id), []).append(p)
    return [
        {
            "topic": topic,
            "topic_id": topic_id,
            "partitions": [p.partition for p in found],
            "first_offsets": [p.first_offset for p in found]
            if any(p.first_offset != UNKNOWN_OFFSET for p in found)
            else [],
        }
        for (topic, topic_id), found in grouped.items()
    ]


def _partitions_from_avro(rows: Sequence[Avro]) -> tuple[DataPartition, ...]:
    found: list[DataPartition] = []
    for row in rows:
        topic, topic_id, partitions = row["topic"], row["topic_id"], row["partitions"]
        first_offsets = row["first_offsets"] or repeat(UNKNOWN_OFFSET, len(partitions))
        for partition, first_offset in zip(partitions, first_offsets, strict=True):
            found.append(DataPartition(topic, partition, topic_id, first_offset))
    return tuple(found)


def _keys_to_avro(keys: Iterable[TopicPartition]) -> list[Avro]:
    return _partitions_to_avro(DataPartition(topic, partition) for topic, partition in keys)


def _keys_from_avro(rows: Sequence[Avro]) -> tuple[TopicPartition, ...]:
    return tuple(p.key for p in _partitions_from_avro(rows))


def _writes_to_avro(writes: Iterable[PartitionWrites]) -> list[Avro]:
    return [
        {
            "topic": w.partition.topic,
            "topic_id": w.partition.topic_id,
            "partition": w.partition.partition,
            "first_offset": w.partition.first_offset,
            "branches": [
                {
                    "branch": signed(b.branch),
                    "first_offset": b.first_offset,
                    "last_offset": b.last_offset,
                    "count": b.count,
                }
                for b in w.branches
            ],
        }
        for w in writes
    ]


def _writes_from_avro(rows: Sequence[Avro]) -> tuple[PartitionWrites, ...]:
    found: list[PartitionWrites] = []
    for row in rows:
        partition = DataPartition(
            row["topic"], row["partition"], row["topic_id"], row["first_offset"]
        )
        branches = [
            BranchRange(b["branch"] % 2**64, b["first_offset"], b["last_offset"], b["count"])
            for b in row["branches"]
        ]
        found.append(PartitionWrites(partition, tuple(branches)))
    return tuple(found)


def _sequences_to_avro(sequences: Mapping[Journal, int]) -> list[Avro]:
    return [
        {"partition": p, "incarnation": i, "sequence": s} for (p, i), s in sorted(sequences.items())
    ]


def _sequences_from_avro(rows: Sequence[Avro]) -> dict[Journal, int]:
    return {(r["partition"], r["incarnation"]): r["sequence"] for r in rows}


def _position_to_avro(position: Position) -> Avro:
    return {
        "o1": position.o1,
        "o2": position.o2,
        "o3": position.o3,
        "met": _sequences_to_avro(position.met),
        "delivered": _sequences_to_avro(position.delivered),
        "topic_id": position.topic_id,
    }


def _position_from_avro(row: Avro) -> Position:
    return Position(
        o1=row["o1"],
        o2=row["o2"],
        o3=row["o3"],
        met=_sequences_from_avro(row["met"]),
        delivered=_sequences_from_avro(row["delivered"]),
        topic_id=row.get("topic_id", ""),
    )


def _from_place_to_avro(place: Place | None) -> Avro:
    return {
        "from_o2": None if place is None else place.o2,
        "from_o3": 0 if place is None else place.o3,
    }


def _from_place_from_avro(row: Avro) -> Place | None:
    return None if row["from_o2"] is None else Place(row["from_o2"], row["from_o3"])


def _steps_to_avro(steps: Iterable[OffsetStep]) -> list[Avro]:
    return [
        {
            "topic": s.topic,
            "partition": s.partition,
            **_from_place_to_avro(s.from_place),
            **_position_to_avro(s.to),
        }
        for s in steps
    ]


def _steps_from_avro(rows: Sequence[Avro]) -> tuple[OffsetStep, ...]:
    return tuple(
        OffsetStep(r["topic"], r["partition"], _from_place_from_avro(r), _position_from_avro(r))
        for r in rows
    )


def _sent_to_avro(sent: Iterable[StepIdentity]) -> list[Avro]:
    return [
        {
            "topic": topic,
            "partition": partition,
            **_from_place_to_avro(from_place),
            "o2": to.o2,
            "o3": to.o3,
        }
        for topic, partition, from_place, to in sent
    ]


def _sent_from_avro(rows: Sequence[Avro]) -> tuple[StepIdentity, ...]:
    return tuple(
        (r["topic"], r["partition"], _from_place_from_avro(r), Place(r["o2"], r["o3"]))
        for r in rows
    )


def _producers_to_avro(rows: Iterable[SnapshotProducer]) -> list[Avro]:
    return [
        row._asdict() | {"begins": [{"request_id": r, "begin": b} for r, b in row.begins]}
        for row in rows
    ]


def _producers_from_avro(rows: Iterable[Avro]) -> tuple[SnapshotProducer, ...]:
    for row in rows:
        row["begins"] = tuple((b["request_id"], b["begin"]) for b in row["begins"])
    return tuple(SnapshotProducer(**row) for row in rows)


def _transactions_to_avro(rows: Iterable[SnapshotTransaction]) -> list[Avro]:
    return [
        row._asdict()
        | {
            "partitions": _partitions_to_avro(row.partitions),
            "writes": _writes_to_avro(row.writes),
            "steps": [
                {
                    "group": s.group,
                    "steps": _steps_to_avro(s.steps),
                    "sent": _sent_to_avro(s.sent),
                }
                for s in row.steps
            ],
        }
        for row in rows
    ]


def _transactions_from_avro(rows: Iterable[Avro]) -> tuple[SnapshotTransaction, ...]:
    for row in rows:
        row["state"] = State(row["state"])
        row["reason"] = None if row["reason"] is None else AbortReason(row["reason"])
        row["doomed"] = None if row["doomed"] is None else AbortReason(row["doomed"])
        row["partitions"] = _partitions_from_avro(row["partitions"])
        row["writes"] = _writes_from_avro(row["writes"])
        row["steps"] = tuple(
            SnapshotSteps(s["group"], _steps_from_avro(s["steps"]), _sent_from_avro(s["sent"]))
            for s in row["steps"]
        )
    return tuple(SnapshotTransaction(**row) for row in rows)


def _groups_to_avro(rows: Iterable[SnapshotGroup]) -> list[Avro]:
    return [
        row._asdict()
        | {
            "offsets": [
                {"topic": topic, "partition": partition, **_position_to_avro(position)}
                for topic, partition, position in row.offsets
            ]
        }
        for row in rows
    ]


def _groups_from_avro(rows: Iterable[Avro]) -> tuple[SnapshotGroup, ...]:
    for row in rows:
        row["offsets"] = tuple(
            (o["topic"], o["partition"], _position_from_avro(o)) for o in row["offsets"]
        )
    return tuple(SnapshotGroup(**row) for row in rows)


def _bindings_to_avro(bindings: Iterable[tuple[str, str]]) -> list[Avro]:
    return [{"group": group, "transaction_group": bound} for group, bound in bindings]


def _bindings_from_avro(rows: Iterable[Avro]) -> tuple[tuple[str, str], ...]:
    return tuple((r["group"], r["transaction_group"]) for r in rows)


def _uses_to_avro(uses: Iterable[tuple[str, int]]) -> list[Avro]:
    return [{"group": group, "used_hour": hour} for group, hour in uses]


def _uses_from_avro(rows: Iterable[Avro]) -> tuple[tuple[str, int], ...]:
    return tuple((r["group"], r["used_hour"]) for r in rows)


def _topics_to_avro(topics: Iterable[tuple[str, str]]) -> list[Avro]:
    return [{"group": group, "topic": topic} for group, topic in topics]


def _topics_from_avro(rows: Iterable[Avro]) -> tuple[tuple[str, str], ...]:
    return tuple((r["group"], r["topic"]) for r in rows)


def _claims_to_avro(rows: Iterable[SnapshotClaim]) -> list[Avro]:
    return [row._asdict() | {"partitions": _keys_to_avro(row.partitions)} for row in rows]


def _claims_from_avro(rows: Iterable[Avro]) -> tuple[SnapshotClaim, ...]:
    for row in rows:
        row["partitions"] = _keys_from_avro(row["partitions"])
    return tuple(SnapshotClaim(**row) for row in rows)


_NAMES: Final = ("Forget.producers", "Forget.groups", "Forget.bindings")
# Converters of the fields whose Avro form differs from the dataclass's own value, by field name. A
# name means the same in every record, so one table serves them all. The exceptions are a claim's
# `partitions`, which are input of any cluster and have no topic id, and the names of a `Forget`.
_TO_AVRO: Final[Mapping[str, Callable[[Any], Any]]] = {
    "partitions": _partitions_to_avro,
    "gone": _keys_to_avro,
    "writes": _writes_to_avro,
    "added": _partitions_to_avro,
    "steps": _steps_to_avro,
    "producers": _producers_to_avro,
    "transactions": _transactions_to_avro,
    "groups": _groups_to_avro,
    "bindings": _bindings_to_avro,
    "claims": _claims_to_avro,
    "group_uses": _uses_to_avro,
    "topics": _topics_to_avro,
    "Claim.partitions": _keys_to_avro,
    **dict.fromkeys(_NAMES, list),
}
_FROM_AVRO: Final[Mapping[str, Callable[[Any], Any]]] = {
    "partitions": _partitions_from_avro,
    "gone": _keys_from_avro,
    "writes": _writes_from_avro,
    "added": _partitions_from_avro,
    "steps": _steps_from_avro,
    "reason": AbortReason,
    "producers": _producers_from_avro,
    "transactions": _transactions_from_avro,
    "groups": _groups_from_avro,
    "bindings": _bindings_from_avro,
    "claims": _claims_from_avro,
    "group_uses": _uses_from_avro,
    "topics": _topics_from_avro,
    "Claim.partitions": _keys_from_avro,
    "past_epochs": tuple,
    **dict.fromkeys(_NAMES, tuple),
}
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


_FIELDS: Final = _converters(_TO_AVRO)
_CONVERTED: Final[Mapping[int, Sequence[tuple[str, Callable[[Any], Any]]]]] = {
    code: [(name, convert) for name, convert in each if convert is not None]
    for code, each in _converters(_FROM_AVRO).items()
}


def _load_schemas(version: int) -> dict[int, Any]:
    text = resources.files(__package__).joinpath(f"schemas/v{version}.avsc").read_text("utf-8")
    named: dict[str, Any] = {}
    parsed = {s["name"]: fastavro.parse_schema(s, named) for s in json.loads(text)}
    return {code: parsed[cls.__name__] for code, cls in _CLASSES.items() if cls.__name__ in parsed}


_SCHEMAS: Final[Mapping[int, Mapping[int, Any]]] = {v: _load_schemas(v) for v in (1, 2, 3, 4)}
_CURRENT: Final = _SCHEMAS[FORMAT_VERSION]
_VERSIONS: Final = {code: _CHANGED_IN.get(cls.type, 2) for code, cls in _CLASSES.items()}
_PREFIX: Final = {code: bytes((version, code)) for code, version in _VERSIONS.items()}


def _positions(record: Snapshot) -> Iterator[Position]:
    """Yields the positions of a snapshot's chunk, committed and to be committed."""
    for group in record.groups:
        yield from (position for _, _, position in group.offsets)
    for transaction in record.transactions:
        yield from (step.to for moved in transaction.steps for step in moved.steps)


def _version(record: JournalRecord) -> int:
    """Returns the version byte of a record: the oldest whose programs read it rightly."""
    match record:
        case PrepareCommit():
            needed = bool(record.added)
        case AddOffsets():
            needed = any(step.to.topic_id for step in record.steps)
        case Snapshot():
            needed = any(row.parts for row in record.transactions)
            needed = needed or any(position.topic_id for position in _positions(record))
        case _:
            needed = False
    return _IF_NEEDED if needed else _VERSIONS[record.type]


def encode_entry(entry: Entry) -> bytes:
    """Returns the value of a journal record.

    Raises:
        OverflowError, ValueError: a number in it is out of range.
    """
    code = entry.record.type
    write = WRITERS.get(code)
    body = write(entry.record) if write is not None else None
    if body is None:
        return encode_by_schema(entry)
    return _PREFIX[code] + write_head(entry.epoch, entry.incarnation, entry.predicted) + body


def encode_by_schema(entry: Entry) -> bytes:
    """Encodes like `encode_entry`, by the schema: slower, for any type."""
    record = entry.record
    body: Avro = {
        "epoch": entry.epoch,
        "incarnation": entry.incarnation,
        "predicted": entry.predicted,
    }
    for name, convert in _FIELDS[record.type]:
        value = getattr(record, name)
        body[name] = convert(value) if convert else value
    out = io.BytesIO()
    version = _version(record)
    out.write(bytes((version, record.type)))
    fastavro.schemaless_writer(out, _SCHEMAS[version][record.type], body)
    return out.getvalue()


def decode_entry(raw: bytes | None, *, lazily: bool = False) -> Entry:
    """Decodes a journal record, of this format version or an older one.

    Args:
        raw: the record's value.
        lazily: leaves the fields of a PREPARE_COMMIT or ADD_WRITES undecoded until they are used;
            their first use may then raise ValueError or IndexError. Takes half the time where most
            of them are never used.

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
            read = NEWER_READERS.get((version, code))
        if read is None:
            return _decode_other(raw)
        epoch, incarnation, predicted, at = read_head(raw)
        record, end = read(raw, at)
        if end != len(raw):
            raise CorruptRecordError("the journal record does not end where its bytes do")
        return Entry(epoch, incarnation, record, predicted)
    except (ValueError, TypeError, KeyError, EOFError, IndexError, OverflowError) as error:
        raise CorruptRecordError(f"the journal record does not decode: {error!r}") from error


def _decode_other(raw: bytes) -> Entry:
    """Decodes an entry of another version, or of a rare type."""
    version, code = raw[0], raw[1]
    if code not in _SCHEMAS.get(version, ()):
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
    # Resolving a schema against itself would take as long as reading does.
    newer = None if version == _VERSIONS[code] else _CURRENT[code]
    body = fastavro.schemaless_reader(source, _SCHEMAS[version][code], newer)
    if not isinstance(body, dict) or source.read(1):
        raise CorruptRecordError("the journal record has bytes left over")
    epoch, incarnation = body.pop("epoch"), body.pop("incarnation")
    predicted = body.pop("predicted")
    for name, convert in _CONVERTED[code]:
        # A field of a newer version that the record was read without has its default.
        if name in body:
            body[name] = convert(body[name])
    return Entry(epoch, incarnation, _CLASSES[code](**body), predicted)
