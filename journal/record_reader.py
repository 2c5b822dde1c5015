"""The journal's most frequent records from their Avro bytes, of the current format version.

A coordinator that loads a million records spends most of the time in decoding them; read one by
one by fastavro, through dictionaries, they take twice as long. So the types that make up a journal
are read by hand; `record_codec` reads the others, and older versions, by the schema. That both
agree is tested with whatever records there can be.

Each function takes the bytes and where to begin, and returns the value and where it ends. Bytes
that are no record raise IndexError or ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import repeat
from typing import Final, TypeVar

from .control import BranchRange, TopicPartition
from .position import Journal, Place, Position
from .records import (
    UNKNOWN_OFFSET,
    Aborted,
    AddOffsets,
    AddPartitions,
    Begin,
    Committed,
    DataPartition,
    JournalRecord,
    OffsetStep,
    PartitionWrites,
    PrepareCommit,
    ProducerRecord,
    RecordType,
)

T = TypeVar("T")
_SHIFTS: Final = tuple(range(7, 70, 7))
_CACHED: Final = 4_096
"""Lists of partitions, and partitions, that are remembered by their bytes."""
_CACHED_BYTES: Final = 512


def read_longs(raw: bytes, at: int, count: int) -> tuple[list[int], int]:
    """So many longs: zigzag, seven bits a byte, the lowest first."""
    longs = []
    for _ in range(count):
        byte = raw[at]
        at += 1
        if byte < 128:
            longs.append((byte >> 1) ^ -(byte & 1))
            continue
        value = byte & 127
        for shift in _SHIFTS:
            byte = raw[at]
            at += 1
            if byte < 128:
                break
            value |= (byte & 127) << shift
        else:
            raise ValueError("a number of more than 64 bits")
        value |= byte << shift
        longs.append((value >> 1) ^ -(value & 1))
    return longs, at


def _long(raw: bytes, at: int) -> tuple[int, int]:
    byte = raw[at]
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at + 1
    longs, at = read_longs(raw, at, 1)
    return longs[0], at


def _count(raw: bytes, at: int) -> tuple[int, int]:
    byte = raw[at]
    if byte < 128 and not byte & 1:
        return byte >> 1, at + 1
    count, at = _long(raw, at)
    if count < 0:
        raise ValueError("a block with its size in bytes, which is never written")
    return count, at


def _string(raw: bytes, at: int) -> tuple[str, int]:
    length = raw[at]
    if length < 128 and not length & 1:
        at += 1
        end = at + (length >> 1)
    else:
        length, at = _count(raw, at)
        end = at + length
    return raw[at:end].decode(), end


def _array(raw: bytes, at: int, read: Callable[[bytes, int], tuple[T, int]]) -> tuple[list[T], int]:
    items: list[T] = []
    count, at = _count(raw, at)
    while count:
        for _ in range(count):
            item, at = read(raw, at)
            items.append(item)
        count, at = _count(raw, at)
    return items, at


def _long_array(raw: bytes, at: int) -> tuple[list[int], int]:
    longs: list[int] = []
    count, at = _count(raw, at)
    while count:
        block, at = read_longs(raw, at, count)
        longs += block
        count, at = _count(raw, at)
    return longs, at


def _cached(read: Callable[[bytes], T]) -> Callable[[bytes], T]:
    """Look for what was read of the same bytes: transactions write to the same partitions again."""
    known = lru_cache(maxsize=_CACHED)(read)

    def look(raw: bytes) -> T:
        return known(raw) if len(raw) <= _CACHED_BYTES else read(raw)

    return look


@_cached
def _partitions(rest: bytes) -> tuple[DataPartition, ...]:
    found: list[DataPartition] = []
    rows, at = _array(rest, 0, _partitions_of_topic)
    for row in rows:
        found += row
    if at != len(rest):
        raise ValueError("bytes left over")
    return tuple(found)


def _partitions_of_topic(raw: bytes, at: int) -> tuple[list[DataPartition], int]:
    topic, at = _string(raw, at)
    topic_id, at = _string(raw, at)
    numbers, at = _long_array(raw, at)
    offsets, at = _long_array(raw, at)
    pairs = zip(numbers, offsets or repeat(UNKNOWN_OFFSET, len(numbers)), strict=True)
    return [DataPartition(topic, number, topic_id, offset) for number, offset in pairs], at


@_cached
def _partition(raw: bytes) -> DataPartition:
    topic, at = _string(raw, 0)
    topic_id, at = _string(raw, at)
    return DataPartition(topic, _long(raw, at)[0], topic_id)


def _branch(raw: bytes, at: int) -> tuple[BranchRange, int]:
    (branch, first, last, count), at = read_longs(raw, at, 4)
    return BranchRange(branch % 2**64, first, last, count), at


def _writes(raw: bytes, at: int) -> tuple[PartitionWrites, int]:
    begin = at
    length, at = _count(raw, at)
    length, at = _count(raw, at + length)
    _, at = _long(raw, at + length)
    partition = _partition(raw[begin:at])
    branches, at = _array(raw, at, _branch)
    first_offset, at = _long(raw, at)
    if first_offset != UNKNOWN_OFFSET:
        partition = replace(partition, first_offset=first_offset)
    return PartitionWrites(partition, tuple(branches)), at


def _sequence(raw: bytes, at: int) -> tuple[tuple[Journal, int], int]:
    (partition, incarnation, sequence), at = read_longs(raw, at, 3)
    return ((partition, incarnation), sequence), at


def _step(raw: bytes, at: int) -> tuple[OffsetStep, int]:
    topic, at = _string(raw, at)
    (partition, has_from), at = read_longs(raw, at, 2)
    start = None
    if has_from:
        (o2, o3), at = read_longs(raw, at, 2)
        start = Place(o2, o3)
    else:
        at = _long(raw, at)[1]
    (o1, o2, o3), at = read_longs(raw, at, 3)
    met, at = _array(raw, at, _sequence)
    delivered, at = _array(raw, at, _sequence)
    position = Position(o1=o1, o2=o2, o3=o3, met=dict(met), delivered=dict(delivered))
    return OffsetStep(topic, partition, start, position), at


# ---- the records -----------------------------------------------------------------------------


def _producer(raw: bytes, at: int) -> tuple[ProducerRecord, int]:
    producer_id, at = _string(raw, at)
    (generation, nonce), at = read_longs(raw, at, 2)
    owner, at = _string(raw, at)
    voided = raw[at] != 0
    connected_ms, at = _long(raw, at + 1)
    record = ProducerRecord(
        producer_id=producer_id,
        generation=generation,
        session_nonce=nonce,
        owner=owner,
        voided=voided,
        connected_ms=connected_ms,
    )
    return record, at


def _begin(raw: bytes, at: int) -> tuple[Begin, int]:
    producer_id, at = _string(raw, at)
    (generation, nonce, request_id, answered_below, timeout_ms, started_ms), at = read_longs(
        raw, at, 6
    )
    partitions = _partitions(raw[at:])
    record = Begin(
        producer_id=producer_id,
        generation=generation,
        session_nonce=nonce,
        request_id=request_id,
        answered_below=answered_below,
        timeout_ms=timeout_ms,
        started_ms=started_ms,
        partitions=partitions,
    )
    return record, len(raw)


def _add_partitions(raw: bytes, at: int) -> tuple[AddPartitions, int]:
    begin, at = _long(raw, at)
    partitions = _partitions(raw[at:])
    return AddPartitions(begin=begin, partitions=partitions), len(raw)


def _add_offsets(raw: bytes, at: int) -> tuple[AddOffsets, int]:
    begin, at = _long(raw, at)
    group, at = _string(raw, at)
    steps, at = _array(raw, at, _step)
    return AddOffsets(begin=begin, group=group, steps=tuple(steps)), at


def _prepare_commit(raw: bytes, at: int) -> tuple[PrepareCommit, int]:
    begin, at = _long(raw, at)
    writes, at = _array(raw, at, _writes)
    decided_ms, at = _long(raw, at)
    return PrepareCommit(begin=begin, writes=tuple(writes), decided_ms=decided_ms), at


@_cached
def _gone(rest: bytes) -> tuple[TopicPartition, ...]:
    return tuple(p.key for p in _partitions(rest))


def _finished(cls: type[Committed | Aborted]) -> Callable[[bytes, int], tuple[JournalRecord, int]]:
    def read(raw: bytes, at: int) -> tuple[JournalRecord, int]:
        begin, at = _long(raw, at)
        return cls(begin=begin, gone=_gone(raw[at:])), len(raw)

    return read


READERS: Final[Mapping[int, Callable[[bytes, int], tuple[JournalRecord, int]]]] = {
    RecordType.PRODUCER: _producer,
    RecordType.BEGIN: _begin,
    RecordType.ADD_PARTITIONS: _add_partitions,
    RecordType.ADD_OFFSETS: _add_offsets,
    RecordType.PREPARE_COMMIT: _prepare_commit,
    RecordType.COMMITTED: _finished(Committed),
    RecordType.ABORTED: _finished(Aborted),
}
"""Type byte → what reads the record behind epoch, incarnation and predicted offset."""
