"""Reads journal records from their bytes, with code of the checker's own.

A value is a version byte, a type byte and an Avro body. Every body begins with the writer's epoch,
the incarnation and the predicted offset. If a record says nothing about a transaction's fate, only
that head is read.

Source: the journal's schemas, versions 2 to 13, and docs/protocol.md, "Places".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import accumulate
from sys import intern
from typing import Any, Final, NamedTuple

from ..errors import BrokenLogError
from .wire import varint

VERSION: Final = 2

Read = Callable[[bytes, int], tuple[Any, int]]


class Kind(IntEnum):
    """The type byte."""

    OWNER = 1
    PRODUCER = 2
    BEGIN = 3
    ADD_PARTITIONS = 4
    ADD_OFFSETS = 5
    PREPARE_COMMIT = 6
    PREPARE_ABORT = 7
    COMMITTED = 8
    ABORTED = 9
    BIND = 10
    ADD_ACKS = 11
    CLAIM = 13
    PLACED = 15
    SNAPSHOT = 16
    FORGET = 17
    ADD_WRITES = 18
    MODE = 19
    ADOPT = 20
    SUBSCRIBE = 21
    ACK = 22


class Entry(NamedTuple):
    """A journal record as it is in the journal."""

    kind: Kind
    epoch: int
    incarnation: int
    predicted: int
    body: dict[str, Any]
    """Fields by the schema's names; empty if only the head is read."""


def _long(raw: bytes, at: int) -> tuple[int, int]:
    value, at = varint(raw, at)
    return (value >> 1) ^ -(value & 1), at


def _bytes(raw: bytes, at: int) -> tuple[bytes, int]:
    length, at = _long(raw, at)
    if length < 0 or at + length > len(raw):
        raise ValueError("a text, or bytes, that are cut short")
    return raw[at : at + length], at + length


def _text(raw: bytes, at: int) -> tuple[str, int]:
    value, at = _bytes(raw, at)
    return intern(value.decode()), at


def _flag(raw: bytes, at: int) -> tuple[bool, int]:
    return raw[at] != 0, at + 1


def _or_none(raw: bytes, at: int) -> tuple[int | None, int]:
    branch, at = _long(raw, at)
    return _long(raw, at) if branch else (None, at)


def _array(read: Read) -> Read:
    def read_array(raw: bytes, at: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        count, at = _long(raw, at)
        while count:
            if count < 0:
                _, at = _long(raw, at)  # size of the block in bytes
            for _ in range(abs(count)):
                item, at = read(raw, at)
                items.append(item)
            count, at = _long(raw, at)
        return items, at

    return read_array


def _record(**fields: Read) -> Read:
    order = tuple(fields.items())

    def read_record(raw: bytes, at: int) -> tuple[dict[str, Any], int]:
        body: dict[str, Any] = {}
        for name, read in order:
            body[name], at = read(raw, at)
        return body, at

    return read_record


_PASSED: Final = _record(partition=_long, incarnation=_long, sequence=_long, taken=_long)


def _passed(raw: bytes, at: int) -> tuple[dict[str, Any] | None, int]:
    branch, at = _long(raw, at)
    return _PASSED(raw, at) if branch else (None, at)


_SEQUENCES: Final = _array(_record(partition=_long, incarnation=_long, sequence=_long))
_PARTITIONS: Final = _array(
    _record(topic=_text, topic_id=_text, partitions=_array(_long), first_offsets=_array(_long))
)
_BRANCHES: Final = _array(_record(branch=_long, first_offset=_long, last_offset=_long, count=_long))
_WRITES: Final = _array(
    _record(topic=_text, topic_id=_text, partition=_long, branches=_BRANCHES, first_offset=_long)
)
_RANGE: Final = ("branch", "first_offset", "last_offset", "count")
_TOPIC_COLUMNS: Final = _array(
    _record(
        topic=_text,
        topic_id=_text,
        partitions=_array(_long),
        registered=_array(_long),
        range_counts=_array(_long),
        branches=_array(_long),
        first_offsets=_array(_long),
        last_offsets=_array(_long),
        counts=_array(_long),
    )
)


def _columns(raw: bytes, at: int) -> tuple[list[dict[str, Any]], int]:
    """Reads the columns of topics as the rows that `_WRITES` reads, but for `first_offset`."""
    topics, at = _TOPIC_COLUMNS(raw, at)
    return [row for columns in topics for row in _rows(columns)], at


def _rows(columns: dict[str, Any]) -> Iterator[dict[str, Any]]:
    numbers, firsts = columns["partitions"], columns["first_offsets"]
    branches = columns["branches"] or [0] * len(firsts)
    told = zip(branches, firsts, columns["last_offsets"], columns["counts"], strict=True)
    ranges = [dict(zip(_RANGE, row, strict=True)) for row in told]
    counts = columns["range_counts"] or [1] * len(numbers)
    if sum(counts) != len(ranges):
        raise ValueError("columns with ranges of no partition")
    for number, end, count in zip(numbers, accumulate(counts), counts, strict=True):
        yield {
            "topic": columns["topic"],
            "topic_id": columns["topic_id"],
            "partition": number,
            "branches": ranges[end - count : end],
        }


_PLACED_IN: Final = _array(_record(topic=_text, partitions=_array(_long)))
_HANDED: Final = _array(_record(home=_long, topic=_text, partitions=_array(_long)))
_SINCE: Final = _array(_record(topic=_text, partitions=_array(_long), ends=_array(_long)))
_POINTERS: Final = _array(
    _record(topic=_text, partitions=_array(_long), pointers=_array(_long), firsts=_array(_long))
)
_STEP: Final = {
    "topic": _text,
    "partition": _long,
    "from_o2": _or_none,
    "from_o3": _long,
    "o1": _long,
    "o2": _long,
    "o3": _long,
    "met": _SEQUENCES,
    "delivered": _SEQUENCES,
}
_STEPS: Final = _array(_record(**_STEP))
_ADOPT: Final = {
    "txid": _bytes,
    "sequence": _long,
    "committed": _flag,
    "writes": _array(
        _record(topic=_text, topic_id=_text, partition=_long, branches=_BRANCHES, placed=_flag)
    ),
    "settled": _array(_long),
}
_CHANGED_IN: Final = {
    Kind.SNAPSHOT: (3, 4, 5, 6, 8, 9, 10, 11, 12, 13),
    Kind.FORGET: (3,),
    Kind.ADD_WRITES: (4,),
    Kind.PREPARE_COMMIT: (4, 5, 6, 7, 8, 12),
    Kind.PREPARE_ABORT: (6,),
    Kind.COMMITTED: (10,),
    Kind.ADD_OFFSETS: (4, 5),
    Kind.PLACED: (5,),
    Kind.MODE: (5,),
    Kind.ADOPT: (6, 13),
    Kind.SUBSCRIBE: (9, 11),
    Kind.ADD_ACKS: (9,),
    Kind.ACK: (9,),
}
"""Versions of the types that are not of `VERSION`, or not always."""
_FINISHED: Final = _record(begin=_long, gone=_PARTITIONS)
_HEAD: Final = _record(epoch=_long, incarnation=_long, predicted=_long)
_BODIES: Final[dict[Kind, Read]] = {
    Kind.OWNER: _record(replaces=_long, address=_text, process_nonce=_long, partition_count=_long),
    Kind.PRODUCER: _record(
        producer_id=_text,
        generation=_long,
        session_nonce=_long,
        owner=_text,
        voided=_flag,
        connected_ms=_long,
    ),
    Kind.BEGIN: _record(
        producer_id=_text,
        generation=_long,
        session_nonce=_long,
        request_id=_long,
        answered_below=_long,
        timeout_ms=_long,
        started_ms=_long,
        partitions=_PARTITIONS,
    ),
    Kind.ADD_PARTITIONS: _record(begin=_long, partitions=_PARTITIONS),
    Kind.ADD_OFFSETS: _record(begin=_long, group=_text, steps=_STEPS),
    Kind.ADD_WRITES: _record(begin=_long, part=_long, writes=_WRITES),
    Kind.PREPARE_COMMIT: _record(begin=_long, writes=_WRITES, decided_ms=_long),
    Kind.PREPARE_ABORT: _record(begin=_long, reason=_text, decided_ms=_long),
    Kind.COMMITTED: _FINISHED,
    Kind.ABORTED: _FINISHED,
    Kind.CLAIM: _record(group=_text, claimant=_long, partitions=_PARTITIONS),
}


_IN_COLUMNS: Final[dict[str, Read]] = {
    "begin": _long,
    "placed": _PLACED_IN,
    "handed": _HANDED,
    "writes": _WRITES,
    "columns": _columns,
    "decided_ms": _long,
    "added": _PARTITIONS,
}
"""The fields of a decision to commit, in order, since version 7."""
_NEWER: Final[dict[tuple[int, Kind], Read]] = {
    (4, Kind.PREPARE_COMMIT): _record(
        begin=_long, writes=_WRITES, decided_ms=_long, added=_PARTITIONS
    ),
    (4, Kind.ADD_OFFSETS): _record(
        begin=_long, group=_text, steps=_array(_record(**_STEP, topic_id=_text))
    ),
    (5, Kind.PREPARE_COMMIT): _record(
        begin=_long,
        placed=_PLACED_IN,
        writes=_WRITES,
        decided_ms=_long,
        added=_PARTITIONS,
    ),
    (6, Kind.PREPARE_COMMIT): _record(
        begin=_long,
        placed=_PLACED_IN,
        handed=_HANDED,
        writes=_WRITES,
        decided_ms=_long,
        added=_PARTITIONS,
    ),
    (7, Kind.PREPARE_COMMIT): _record(**_IN_COLUMNS),
    (8, Kind.PREPARE_COMMIT): _record(**_IN_COLUMNS, sidecar_since=_SINCE),
    (12, Kind.PREPARE_COMMIT): _record(**_IN_COLUMNS, sidecar_since=_SINCE),
    (10, Kind.COMMITTED): _record(begin=_long, gone=_PARTITIONS, pointers=_POINTERS),
    (6, Kind.PREPARE_ABORT): _record(begin=_long, reason=_text, decided_ms=_long, handed=_HANDED),
    (6, Kind.ADOPT): _record(**_ADOPT),
    (13, Kind.ADOPT): _record(**_ADOPT, more=_flag),
    (5, Kind.ADD_OFFSETS): _record(
        begin=_long,
        group=_text,
        steps=_array(_record(**_STEP, topic_id=_text, from_passed=_passed, passed=_passed)),
    ),
    (5, Kind.PLACED): _record(
        upto=_long,
        ends=_array(
            _record(topic=_text, topic_id=_text, partitions=_array(_long), offsets=_array(_long))
        ),
    ),
    (5, Kind.MODE): _record(
        topic=_text,
        topic_id=_text,
        phase=_text,
        since=_array(_record(partition=_long, offset=_long)),
        with_records=_flag,
    ),
}
"""By version and type: bodies that `_BODIES` does not describe."""


def read_entry(raw: bytes) -> Entry:
    """Reads a journal record.

    Raises:
        BrokenLogError: another version, an unknown type, or bytes that do not decode.
    """
    known = len(raw) >= 2 and raw[1] in Kind.__members__.values()
    if not known or raw[0] not in (VERSION, *_CHANGED_IN.get(Kind(raw[1]), ())):
        raise BrokenLogError(f"a journal record of an unknown version or type: {raw[:8].hex()}")
    kind = Kind(raw[1])
    try:
        head, at = _HEAD(raw, 2)
        body: dict[str, Any] = {}
        read = _NEWER.get((raw[0], kind)) or _BODIES.get(kind)
        if read is not None:
            body, at = read(raw, at)
    except (IndexError, ValueError) as error:
        raise BrokenLogError(f"a {kind.name} record that does not decode: {raw.hex()}") from error
    if read is not None and at != len(raw):
        raise BrokenLogError(f"a {kind.name} record with bytes left over: {raw.hex()}")
    return Entry(kind, head["epoch"], head["incarnation"], head["predicted"], body)
