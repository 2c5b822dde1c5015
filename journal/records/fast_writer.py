"""Encodes the records that every transaction needs, as Avro of the current format version.

With fastavro, through dictionaries, writing these record types took a tenth of a coordinator's
work; written by hand they take a third of that. `codec` writes all other types by the schema, and
also those of these that carry rare fields. A test compares both ways on every kind of record.

Each function takes a record and returns the bytes that follow the entry's head, or None if the
record has to be written by the schema. A number of more than 64 bits raises OverflowError, as it
does in fastavro.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from ..control import TopicPartition
from ..places import Placed
from ..record_type import RecordType
from .columns import TopicColumns, columns_by_topic
from .types import (
    Aborted,
    AddWrites,
    Begin,
    Committed,
    PartitionWrites,
    PrepareCommit,
)

_LAST: Final = tuple(bytes((n,)) for n in range(128))
_FOLLOWED: Final = tuple(bytes((n | 128,)) for n in range(128))
# Joined from these, as each import of a client makes the two tables below.
_LOW: Final = (*_LAST, *(low + high for high in _LAST[1:] for low in _FOLLOWED))
"""The encoded bytes of each number below 2^14."""
_MORE: Final = tuple(low + high for high in _FOLLOWED for low in _FOLLOWED)
"""The bytes of each 14 bits that further ones follow."""
_CACHED: Final = 4_096
"""Entries per cache of encoded epochs, sessions and partitions.

With fewer, a coordinator with many producers or partitions encodes the same names again; more take
memory for as long as the process lives.
"""
COLUMNS_MIN: Final = 32
"""Data partitions from which on a decision that is placed or handed over says in columns what was
written. With fewer, rows are read faster."""
_NOTHING: Final = b"\0"
"""Encodes an empty array, and ends every other array."""
_LONG_MIN: Final = -(2**63)
_LONG_MAX: Final = 2**63 - 1


def signed(branch: int) -> int:
    """Returns a branch nonce as a signed 64-bit number: Avro's longs are signed, nonces are not."""
    return branch - 2**64 if branch >= 2**63 else branch


def _long(value: int) -> bytes:
    """Encodes an Avro long: a zigzag varint, least significant seven bits first."""
    if not _LONG_MIN <= value <= _LONG_MAX:
        raise OverflowError(f"{value} has more than 64 bits")
    rest = value << 1 ^ value >> 63
    if rest < 16_384:
        return _LOW[rest]
    longer = b""
    while rest >= 16_384:
        longer += _MORE[rest & 16_383]
        rest >>= 14
    return longer + _LOW[rest]


def _array(values: Sequence[int]) -> bytes:
    """Encodes an array of Avro longs."""
    if not values:
        return _NOTHING
    low, high = min(values), max(values)
    if low >= 0 and high < 2**13:
        items = b"".join([_LOW[value << 1] for value in values])
    elif low >= 2**13 and high < 2**27:
        items = b"".join([_MORE[value << 1 & 16_383] + _LOW[value >> 13] for value in values])
    else:
        items = b"".join(map(_long, values))
    return _long(len(values)) + items + _NOTHING


def _string(text: str) -> bytes:
    raw = text.encode()
    return _long(len(raw)) + raw


encode_long, encode_string = _long, _string
"""For what is written beside the journal in the same form."""


_ONE_OWN: Final = _long(1) + _long(0)
"""One branch, and it is the transaction's own."""


@lru_cache(maxsize=_CACHED)
def _epoch(epoch: int, incarnation: int) -> bytes:
    return _long(epoch) + _long(incarnation)


@lru_cache(maxsize=_CACHED)
def _session(producer_id: str, generation: int, nonce: int) -> bytes:
    return _string(producer_id) + _long(generation) + _long(nonce)


@lru_cache(maxsize=_CACHED)
def _partition(topic: str, topic_id: str, number: int) -> bytes:
    return _string(topic) + _string(topic_id) + _long(number)


def _writes(writes: PartitionWrites) -> bytes:
    partition, branches = writes.partition, writes.branches
    if len(branches) == 1 and not branches[0].branch:  # nearly always: its own records
        own = branches[0]
        return b"".join(
            (
                _partition(partition.topic, partition.topic_id, partition.partition),
                _ONE_OWN,
                _long(own.first_offset),
                _long(own.last_offset),
                _long(own.count),
                _NOTHING,
                _long(partition.first_offset),
            )
        )
    parts = [_partition(partition.topic, partition.topic_id, partition.partition)]
    if branches:
        parts.append(_long(len(branches)))
        for b in branches:
            parts += (
                _long(signed(b.branch)),
                _long(b.first_offset),
                _long(b.last_offset),
                _long(b.count),
            )
    parts += _NOTHING, _long(partition.first_offset)
    return b"".join(parts)


# ---- the records --------------------------------------------------------------------------------


def _begin(record: Begin) -> bytes | None:
    if record.partitions:
        return None
    return b"".join(
        (
            _session(record.producer_id, record.generation, record.session_nonce),
            _long(record.request_id),
            _long(record.answered_below),
            _long(record.timeout_ms),
            _long(record.started_ms),
            _NOTHING,
        )
    )


def _add_writes(record: AddWrites) -> bytes | None:
    parts = [_long(record.begin), _long(record.part)]
    if record.writes:
        parts.append(_long(len(record.writes)))
        parts += map(_writes, record.writes)
    parts.append(_NOTHING)
    return b"".join(parts)


def _prepare_commit(record: PrepareCommit) -> bytes | None:
    if record.added or record.placed or record.handed or record.sidecar_since:
        return None
    return b"".join((_long(record.begin), *_decision(record)))


def _is_placed_alone(record: PrepareCommit) -> bool:
    """Whether a decision has places, and nothing else that is rare."""
    rare = record.added or record.handed or record.sidecar_since
    return bool(record.placed) and not rare


def _placed_commit(record: PrepareCommit) -> bytes | None:
    if not _is_placed_alone(record) or len(record.writes) >= COLUMNS_MIN:
        return None
    return b"".join(
        (_long(record.begin), _placed_in_few(record.placed), *_decision(record), _NOTHING)
    )


def _commit_in_columns(record: PrepareCommit) -> bytes | None:
    if not _is_placed_alone(record) or len(record.writes) < COLUMNS_MIN:
        return None
    topics = columns_by_topic(record.writes)
    return b"".join(
        (
            _long(record.begin),
            _placed_partitions(record.placed),
            # Neither homes nor rows.
            _NOTHING + _NOTHING + _long(len(topics)),
            *map(_topic_columns, topics),
            _NOTHING + _long(record.decided_ms) + _NOTHING,
        )
    )


def _placed_partitions(keys: Iterable[TopicPartition]) -> bytes:
    grouped: dict[str, list[int]] = {}
    for topic, number in keys:
        grouped.setdefault(topic, []).append(number)
    topics = (_string(topic) + _array(numbers) for topic, numbers in grouped.items())
    return b"".join((_long(len(grouped)), *topics, _NOTHING))


_placed_in_few: Final = lru_cache(maxsize=_CACHED)(_placed_partitions)
"""The same, kept: of few partitions, for the others would take memory."""


def _topic_columns(topic: TopicColumns) -> bytes:
    ranges = topic.ranges
    return b"".join(
        (
            _string(topic.topic) + _string(topic.topic_id),
            _array(topic.partitions),
            _array(topic.registered),
            _array(ranges.range_counts),
            _array([*map(signed, ranges.branches)]),
            _array(ranges.first_offsets),
            _array(ranges.last_offsets),
            _array(ranges.counts),
        )
    )


def _decision(record: PrepareCommit) -> list[bytes]:
    parts = []
    if record.writes:
        parts.append(_long(len(record.writes)))
        parts += map(_writes, record.writes)
    parts += _NOTHING, _long(record.decided_ms)
    return parts


def _placed(record: Placed) -> bytes:
    grouped: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
    for (topic, number, topic_id), place in record.ends.items():
        numbers, places = grouped.setdefault((topic, topic_id), ([], []))
        numbers.append(number)
        places.append(place)
    parts = [_long(record.upto)]
    if grouped:
        parts.append(_long(len(grouped)))
    for (topic, topic_id), (numbers, places) in grouped.items():
        parts += _string(topic), _string(topic_id), _array(numbers), _array(places)
    parts.append(_NOTHING)
    return b"".join(parts)


def _finished(record: Committed | Aborted) -> bytes | None:
    if record.gone or (isinstance(record, Committed) and record.pointers):
        return None
    return _long(record.begin) + _NOTHING


WRITERS: Final[Mapping[int, Callable[[Any], bytes | None]]] = {
    RecordType.BEGIN: _begin,
    RecordType.ADD_WRITES: _add_writes,
    RecordType.PREPARE_COMMIT: _prepare_commit,
    RecordType.COMMITTED: _finished,
    RecordType.ABORTED: _finished,
    RecordType.PLACED: _placed,
}
"""Type byte → function that encodes the record behind epoch, incarnation and predicted offset."""

PLACED_WRITERS: Final[Mapping[int, Callable[[Any], bytes | None]]] = {
    RecordType.PREPARE_COMMIT: _placed_commit
}
"""The same for what `WRITERS` leaves, in the version of records that speak of places."""
COLUMN_WRITERS: Final[Mapping[int, Callable[[Any], bytes | None]]] = {
    RecordType.PREPARE_COMMIT: _commit_in_columns
}
"""The same for what `PLACED_WRITERS` leaves, in the version of decisions in columns."""


def write_head(epoch: int, incarnation: int, predicted: int) -> bytes:
    """Returns the bytes that every entry's body begins with."""
    return _epoch(epoch, incarnation) + _long(predicted)
