"""Journal records to bytes and back: version byte, type byte, Avro body (``schemas/v1.avsc``)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Final

import fastavro

from .control import BranchRange, TopicPartition
from .errors import CorruptRecordError, UnknownRecordError
from .position import Journal, Place, Position
from .records import (
    Aborted,
    AbortReason,
    AddOffsets,
    AddPartitions,
    Begin,
    Bind,
    Committed,
    DataPartition,
    Entry,
    JournalRecord,
    OffsetStep,
    Owner,
    PartitionWrites,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
    RecordType,
)

FORMAT_VERSION: Final = 1
"""Written into every record; a schema change that old readers can't read needs the next one."""

Avro = dict[str, Any]


def _signed(branch: int) -> int:
    # Avro's long is signed, a branch nonce is not.
    return branch - 2**64 if branch >= 2**63 else branch


def _partitions_to_avro(partitions: Iterable[DataPartition]) -> list[Avro]:
    grouped: dict[tuple[str, str], list[int]] = {}
    for p in partitions:
        grouped.setdefault((p.topic, p.topic_id), []).append(p.partition)
    return [{"topic": t, "topic_id": i, "partitions": ps} for (t, i), ps in grouped.items()]


def _partitions_from_avro(rows: Sequence[Avro]) -> tuple[DataPartition, ...]:
    return tuple(DataPartition(r["topic"], p, r["topic_id"]) for r in rows for p in r["partitions"])


def _gone_to_avro(gone: Iterable[TopicPartition]) -> list[Avro]:
    return _partitions_to_avro(DataPartition(topic, partition) for topic, partition in gone)


def _gone_from_avro(rows: Sequence[Avro]) -> tuple[TopicPartition, ...]:
    return tuple(p.key for p in _partitions_from_avro(rows))


def _writes_to_avro(writes: Iterable[PartitionWrites]) -> list[Avro]:
    return [
        {
            "topic": w.partition.topic,
            "topic_id": w.partition.topic_id,
            "partition": w.partition.partition,
            "branches": [
                {
                    "branch": _signed(b.branch),
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
    return tuple(
        PartitionWrites(
            DataPartition(r["topic"], r["partition"], r["topic_id"]),
            tuple(
                BranchRange(b["branch"] % 2**64, b["first_offset"], b["last_offset"], b["count"])
                for b in r["branches"]
            ),
        )
        for r in rows
    )


def _sequences_to_avro(sequences: Mapping[Journal, int]) -> list[Avro]:
    return [
        {"partition": p, "incarnation": i, "sequence": s} for (p, i), s in sorted(sequences.items())
    ]


def _sequences_from_avro(rows: Sequence[Avro]) -> dict[Journal, int]:
    return {(r["partition"], r["incarnation"]): r["sequence"] for r in rows}


def _steps_to_avro(steps: Iterable[OffsetStep]) -> list[Avro]:
    return [
        {
            "topic": s.topic,
            "partition": s.partition,
            "from_o2": None if s.from_place is None else s.from_place.o2,
            "from_o3": 0 if s.from_place is None else s.from_place.o3,
            "o1": s.to.o1,
            "o2": s.to.o2,
            "o3": s.to.o3,
            "met": _sequences_to_avro(s.to.met),
            "delivered": _sequences_to_avro(s.to.delivered),
        }
        for s in steps
    ]


def _steps_from_avro(rows: Sequence[Avro]) -> tuple[OffsetStep, ...]:
    return tuple(
        OffsetStep(
            r["topic"],
            r["partition"],
            None if r["from_o2"] is None else Place(r["from_o2"], r["from_o3"]),
            Position(
                o1=r["o1"],
                o2=r["o2"],
                o3=r["o3"],
                met=_sequences_from_avro(r["met"]),
                delivered=_sequences_from_avro(r["delivered"]),
            ),
        )
        for r in rows
    )


# Fields whose Avro form differs from the dataclass's own value, by field name. A name means the
# same in every record, so one table serves them all.
_TO_AVRO: Final[Mapping[str, Callable[[Any], Any]]] = {
    "partitions": _partitions_to_avro,
    "gone": _gone_to_avro,
    "writes": _writes_to_avro,
    "steps": _steps_to_avro,
    "reason": lambda reason: reason.value,
}
_FROM_AVRO: Final[Mapping[str, Callable[[Any], Any]]] = {
    "partitions": _partitions_from_avro,
    "gone": _gone_from_avro,
    "writes": _writes_from_avro,
    "steps": _steps_from_avro,
    "reason": AbortReason,
}
_CLASSES: Final[Mapping[int, type[JournalRecord]]] = {
    cls.type: cls
    for cls in (
        Owner,
        ProducerRecord,
        Begin,
        AddPartitions,
        AddOffsets,
        PrepareCommit,
        PrepareAbort,
        Committed,
        Aborted,
        Bind,
    )
}


def _load_schemas(version: int) -> dict[int, Any]:
    text = resources.files(__package__).joinpath(f"schemas/v{version}.avsc").read_text("utf-8")
    named: dict[str, Any] = {}
    parsed = {s["name"]: fastavro.parse_schema(s, named) for s in json.loads(text)}
    return {code: parsed[cls.__name__] for code, cls in _CLASSES.items()}


_SCHEMAS: Final[Mapping[int, Mapping[int, Any]]] = {1: _load_schemas(1)}
_CURRENT: Final = _SCHEMAS[FORMAT_VERSION]
_PREFIX: Final = {code: bytes((FORMAT_VERSION, code)) for code in _CLASSES}


def encode_entry(entry: Entry) -> bytes:
    """The value of a journal record."""
    record = entry.record
    body: Avro = {
        "epoch": entry.epoch,
        "incarnation": entry.incarnation,
        "predicted": entry.predicted,
    }
    for name in record.__dataclass_fields__:
        value = getattr(record, name)
        convert = _TO_AVRO.get(name)
        body[name] = convert(value) if convert else value
    out = io.BytesIO()
    out.write(_PREFIX[record.type])
    fastavro.schemaless_writer(out, _CURRENT[record.type], body)
    return out.getvalue()


def decode_entry(raw: bytes | None) -> Entry:
    """Read a journal record back, of this format version or an older one.

    Raises:
        UnknownRecordError: a newer format version or record type.
        CorruptRecordError: anything else that does not decode.
    """
    if raw is None or len(raw) < 2:
        raise CorruptRecordError("the journal record is empty")
    version, code = raw[0], raw[1]
    if version not in _SCHEMAS or code not in _CLASSES:
        kind = RecordType(code).name if code in _CLASSES else code
        raise UnknownRecordError(
            f"journal record of version {version} and type {kind}; upgrade this program"
        )
    source = io.BytesIO(raw)
    source.seek(2)
    try:
        body = fastavro.schemaless_reader(source, _SCHEMAS[version][code], _CURRENT[code])
        if not isinstance(body, dict) or source.read(1):
            raise CorruptRecordError("the journal record has bytes left over")
        epoch, incarnation = body.pop("epoch"), body.pop("incarnation")
        predicted = body.pop("predicted")
        for name in body.keys() & _FROM_AVRO.keys():
            body[name] = _FROM_AVRO[name](body[name])
        return Entry(epoch, incarnation, _CLASSES[code](**body), predicted)
    except (ValueError, TypeError, KeyError, EOFError, IndexError, OverflowError) as error:
        raise CorruptRecordError(f"the journal record does not decode: {error!r}") from error
