"""Decodes the journal's most frequent records, from Avro of the current format version.

A coordinator that loads a million records spends most of the time on decoding them, and fastavro,
one by one and through dictionaries, takes twice as long. So the types that make up most of a
journal are read by hand; `codec` reads all others, and older versions, by the schema. A test
compares both ways on every kind of record.

Each function takes the bytes and the index to begin at, and returns the value and the index behind
it. Bytes that are not a record raise IndexError or ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, Final, NamedTuple, TypeVar

from ..control import BranchRange, TopicPartition
from ..places import PartitionId, Placed
from ..position import Journal, Passed, Place, Position
from ..record_type import RecordType
from .conversion import columns_from_avro
from .types import (
    UNKNOWN_OFFSET,
    Aborted,
    AbortReason,
    AddOffsets,
    AddPartitions,
    AddWrites,
    Begin,
    Claim,
    Committed,
    DataPartition,
    JournalRecord,
    OffsetStep,
    PartitionWrites,
    PointerStep,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
)

T = TypeVar("T")
_SHIFTS: Final = tuple(range(21, 70, 7))
"""Shifts of a long's fourth to tenth byte, seven bits each."""
_ONE: Final = 2
"""The number 1 as a byte: the count of an array with one item."""
_NOTHING: Final = b"\0"
"""The byte of an empty array."""
_COLUMNS: Final = (
    "partitions",
    "registered",
    "range_counts",
    "branches",
    "first_offsets",
    "last_offsets",
    "counts",
)
"""The columns of `TopicWrites`, in the schema's order."""
_CACHED: Final = 4_096
"""Entries per cache of partitions, and of lists of them, found by their bytes.

With fewer, a journal that names many partitions decodes the same bytes again; more take memory for
as long as the process lives.
"""
_CACHED_BYTES: Final = 512
"""Longest input that is cached: bounds the memory of a cache to `_CACHED` times this size."""


class _Head(NamedTuple):
    raw: bytes
    epoch: int
    incarnation: int


class _Heads:
    """Holds the head that was decoded last, by any thread.

    It is a single reference, so no thread ever sees half of one head and half of another.
    """

    last = _Head(b"\0\0", 0, 0)


_heads: Final = _Heads()


def read_longs(raw: bytes, at: int, count: int) -> tuple[list[int], int]:
    """Reads `count` Avro longs (zigzag varints, least significant seven bits first)."""
    longs = []
    for _ in range(count):
        # Most numbers take one to three bytes, and a loop over these would double the cost.
        value = raw[at]
        at += 1
        if value > 127:
            value += (raw[at] << 7) - 128
            at += 1
            if value > 16_383:
                value += (raw[at] << 14) - 16_384
                at += 1
                if value > 2_097_151:
                    value, at = _longer(raw, at, value - 2_097_152)
        longs.append((value >> 1) ^ -(value & 1))
    return longs, at


def _longer(raw: bytes, at: int, value: int) -> tuple[int, int]:
    """Reads the rest of a number that is longer than three bytes; does not undo the zigzag."""
    for shift in _SHIFTS:
        byte = raw[at]
        at += 1
        if byte < 128:
            return value | byte << shift, at
        value |= (byte & 127) << shift
    raise ValueError("a number of more than 64 bits")


def _long(raw: bytes, at: int) -> tuple[int, int]:
    value = raw[at]
    at += 1
    if value > 127:
        value += (raw[at] << 7) - 128
        at += 1
        if value > 16_383:
            value += (raw[at] << 14) - 16_384
            at += 1
            if value > 2_097_151:
                value, at = _longer(raw, at, value - 2_097_152)
    return (value >> 1) ^ -(value & 1), at


def read_head(raw: bytes) -> tuple[int, int, int, int]:
    """Returns an entry's epoch, incarnation and predicted offset, and where its record begins."""
    # All entries under one OWNER record begin with the same bytes, and are read in a row.
    known = _heads.last
    if raw.startswith(known.raw, 2):
        at = 2 + len(known.raw)
    else:
        (epoch, incarnation), at = read_longs(raw, 2, 2)
        known = _heads.last = _Head(raw[2:at], epoch, incarnation)
    predicted, at = _long(raw, at)
    return known.epoch, known.incarnation, predicted, at


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
    """Caches `read` by its bytes: transactions write to the same partitions again and again."""
    known = lru_cache(maxsize=_CACHED)(read)

    def look(raw: bytes) -> T:
        return known(raw) if len(raw) <= _CACHED_BYTES else read(raw)

    return look


@_cached
def read_partitions(rest: bytes) -> tuple[DataPartition, ...]:
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
    if raw[at] == _ONE:
        # By far most have one branch. Reads all that follows at once; `end` must close the array.
        (_, branch, first, last, count, end, first_offset), after = read_longs(raw, at, 7)
        if not end:
            branches = (BranchRange(branch % 2**64, first, last, count),)
            return _writes_of(partition, branches, first_offset), after
    found, at = _array(raw, at, _branch)
    first_offset, at = _long(raw, at)
    return _writes_of(partition, tuple(found), first_offset), at


def _writes_of(
    partition: DataPartition, branches: tuple[BranchRange, ...], first_offset: int
) -> PartitionWrites:
    if first_offset != UNKNOWN_OFFSET:
        topic, number, topic_id = partition.topic, partition.partition, partition.topic_id
        partition = DataPartition(topic, number, topic_id, first_offset)
    return PartitionWrites(partition, branches)


def _sequences(raw: bytes, at: int) -> tuple[dict[Journal, int], int]:
    byte = raw[at]
    if not byte:
        return {}, at + 1
    if byte == _ONE:
        (_, partition, incarnation, sequence, end), after = read_longs(raw, at, 5)
        if not end:
            return {(partition, incarnation): sequence}, after
    found, at = _array(raw, at, _sequence)
    return dict(found), at


def _sequence(raw: bytes, at: int) -> tuple[tuple[Journal, int], int]:
    (partition, incarnation, sequence), at = read_longs(raw, at, 3)
    return ((partition, incarnation), sequence), at


def _step(raw: bytes, at: int) -> tuple[OffsetStep, int]:
    topic, at = _string(raw, at)
    (partition, has_from), at = read_longs(raw, at, 2)
    start = None
    if has_from:
        (from_o2, from_o3, o1, o2, o3), at = read_longs(raw, at, 5)
        start = Place(from_o2, from_o3)
    else:
        (_, o1, o2, o3), at = read_longs(raw, at, 4)
    met, at = _sequences(raw, at)
    delivered, at = _sequences(raw, at)
    position = Position(o1=o1, o2=o2, o3=o3, met=met, delivered=delivered)
    return OffsetStep(topic, partition, start, position), at


def _step_with_topic_id(raw: bytes, at: int) -> tuple[OffsetStep, int]:
    step, at = _step(raw, at)
    step.to.topic_id, at = _string(raw, at)  # type: ignore[misc]  # not handed out yet
    return step, at


def _step_with_passed(raw: bytes, at: int) -> tuple[OffsetStep, int]:
    step, at = _step_with_topic_id(raw, at)
    passed, at = _passed(raw, at)
    if passed is not None:
        if step.from_place is None:
            raise ValueError("a step from nowhere says what was passed there")
        step.from_place.passed = passed  # type: ignore[misc]  # not handed out yet
    step.to.passed, at = _passed(raw, at)  # type: ignore[misc]
    return step, at


def _passed(raw: bytes, at: int) -> tuple[Passed | None, int]:
    if not raw[at]:
        return None, at + 1
    (kind, partition, incarnation, sequence, taken), at = read_longs(raw, at, 5)
    if kind != 1:
        raise ValueError("neither null nor what was passed")
    return Passed((partition, incarnation), sequence, taken), at


# ---- the records --------------------------------------------------------------------------------


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
    partitions = read_partitions(raw[at:])
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
    partitions = read_partitions(raw[at:])
    return AddPartitions(begin=begin, partitions=partitions), len(raw)


def _add_offsets(
    step: Callable[[bytes, int], tuple[OffsetStep, int]],
) -> Callable[[bytes, int], tuple[AddOffsets, int]]:
    def read(raw: bytes, at: int) -> tuple[AddOffsets, int]:
        begin, at = _long(raw, at)
        group, at = _string(raw, at)
        steps, at = _array(raw, at, step)
        return AddOffsets(begin=begin, group=group, steps=tuple(steps)), at

    return read


def _add_writes(raw: bytes, at: int) -> tuple[AddWrites, int]:
    (begin, part), at = read_longs(raw, at, 2)
    writes, at = _array(raw, at, _writes)
    return AddWrites(begin=begin, part=part, writes=tuple(writes)), at


def _lazy_add_writes(raw: bytes, at: int) -> tuple[AddWrites, int]:
    (begin, part), at = read_longs(raw, at, 2)
    record = AddWrites.__new__(AddWrites)
    record.begin = begin  # type: ignore[misc]  # not handed out yet
    record.part = part  # type: ignore[misc]
    record.unread = (read_part, raw, at)  # type: ignore[misc]
    return record, len(raw)


def read_part(raw: bytes, at: int) -> dict[str, Any]:
    writes, at = _array(raw, at, _writes)
    if at != len(raw):
        raise ValueError("bytes left over")
    return {"writes": tuple(writes)}


def _prepare_commit(raw: bytes, at: int) -> tuple[PrepareCommit, int]:
    begin, at = _long(raw, at)
    writes, at = _array(raw, at, _writes)
    decided_ms, at = _long(raw, at)
    return PrepareCommit(begin=begin, writes=tuple(writes), decided_ms=decided_ms), at


def _lazy_prepare_commit(raw: bytes, at: int) -> tuple[PrepareCommit, int]:
    begin, at = _long(raw, at)
    record = PrepareCommit.__new__(PrepareCommit)
    record.begin, record.placed = begin, ()  # type: ignore[misc]  # not handed out yet
    record.handed, record.sidecar_since = (), ()  # type: ignore[misc]
    record.unread = (read_decision, raw, at)  # type: ignore[misc]
    return record, len(raw)


def read_decision(raw: bytes, at: int) -> dict[str, Any]:
    writes, at = _array(raw, at, _writes)
    decided_ms, at = _long(raw, at)
    if at != len(raw):
        raise ValueError("bytes left over")
    return {"writes": tuple(writes), "decided_ms": decided_ms, "added": ()}


def _placed_commit(raw: bytes, at: int) -> tuple[PrepareCommit, int]:
    begin, placed, at = _begin_and_placed(raw, at)
    writes, at = _array(raw, at, _writes)
    decided_ms, at = _long(raw, at)
    record = PrepareCommit(
        begin=begin,
        writes=tuple(writes),
        decided_ms=decided_ms,
        added=read_partitions(raw[at:]),
        placed=placed,
    )
    return record, len(raw)


def _lazy_placed_commit(raw: bytes, at: int) -> tuple[PrepareCommit, int]:
    record = PrepareCommit.__new__(PrepareCommit)
    begin, placed, at = _begin_and_placed(raw, at)
    record.begin, record.placed = begin, placed  # type: ignore[misc]  # not handed out yet
    record.handed, record.sidecar_since = (), ()  # type: ignore[misc]
    record.unread = (_placed_decision, raw, at)  # type: ignore[misc]
    return record, len(raw)


def _placed_decision(raw: bytes, at: int) -> dict[str, Any]:
    writes, at = _array(raw, at, _writes)
    decided_ms, at = _long(raw, at)
    return {"writes": tuple(writes), "decided_ms": decided_ms, "added": read_partitions(raw[at:])}


def _sidecar_commit(raw: bytes, at: int) -> tuple[PrepareCommit, int]:
    begin, placed, at = _begin_and_placed(raw, at)
    handed, at = _array(raw, at, _handed)
    writes, at = _array(raw, at, _writes)
    columns, at = _array(raw, at, _columns)
    decided_ms, at = _long(raw, at)
    added, at = _array(raw, at, _partitions_of_topic)
    ends, at = _array(raw, at, _ends_of_mains)
    record = PrepareCommit(
        begin=begin,
        writes=columns_from_avro(columns) if columns else tuple(writes),
        decided_ms=decided_ms,
        added=tuple(chain.from_iterable(added)),
        placed=placed,
        handed=tuple(chain.from_iterable(handed)),
        sidecar_since=tuple(chain.from_iterable(ends)),
    )
    return record, at


def _handed(raw: bytes, at: int) -> tuple[list[tuple[TopicPartition, int]], int]:
    home, at = _long(raw, at)
    topic, at = _string(raw, at)
    numbers, at = _long_array(raw, at)
    return [((topic, number), home) for number in numbers], at


def _columns(raw: bytes, at: int) -> tuple[dict[str, Any], int]:
    row: dict[str, Any] = {}
    row["topic"], at = _string(raw, at)
    row["topic_id"], at = _string(raw, at)
    for name in _COLUMNS:
        row[name], at = _long_array(raw, at)
    return row, at


def _ends_of_mains(raw: bytes, at: int) -> tuple[list[tuple[TopicPartition, int]], int]:
    topic, at = _string(raw, at)
    numbers, at = _long_array(raw, at)
    ends, at = _long_array(raw, at)
    return [((topic, number), end) for number, end in zip(numbers, ends, strict=True)], at


def _prepare_abort(raw: bytes, at: int) -> tuple[PrepareAbort, int]:
    begin, at = _long(raw, at)
    reason, at = _string(raw, at)
    decided_ms, at = _long(raw, at)
    return PrepareAbort(begin=begin, reason=AbortReason(reason), decided_ms=decided_ms), at


def _begin_and_placed(raw: bytes, at: int) -> tuple[int, tuple[TopicPartition, ...], int]:
    begin, at = _long(raw, at)
    placed: list[TopicPartition] = []
    topics, at = _count(raw, at)
    while topics:
        for _ in range(topics):
            topic, at = _string(raw, at)
            numbers, at = _long_array(raw, at)
            placed += [(topic, number) for number in numbers]
        topics, at = _count(raw, at)
    return begin, tuple(placed), at


def _placed(raw: bytes, at: int) -> tuple[Placed, int]:
    upto, at = _long(raw, at)
    ends: dict[PartitionId, int] = {}
    topics, at = _count(raw, at)
    while topics:
        for _ in range(topics):
            topic, at = _string(raw, at)
            topic_id, at = _string(raw, at)
            numbers, at = _long_array(raw, at)
            places, at = _long_array(raw, at)
            for number, place in zip(numbers, places, strict=True):
                ends[PartitionId(topic, number, topic_id)] = place
        topics, at = _count(raw, at)
    return Placed(upto, ends), at


@_cached
def read_gone(rest: bytes) -> tuple[TopicPartition, ...]:
    return tuple(p.key for p in read_partitions(rest))


def _finished(cls: type[Committed | Aborted]) -> Callable[[bytes, int], tuple[JournalRecord, int]]:
    def read(raw: bytes, at: int) -> tuple[JournalRecord, int]:
        begin, at = _long(raw, at)
        rest = raw[at:]
        return cls(begin=begin, gone=() if rest == _NOTHING else read_gone(rest)), len(raw)

    return read


def _committed_with_pointers(raw: bytes, at: int) -> tuple[Committed, int]:
    begin, at = _long(raw, at)
    gone, at = _array(raw, at, _partitions_of_topic)
    pointers, at = _array(raw, at, _pointers)
    record = Committed(
        begin=begin,
        gone=tuple(each.key for each in chain.from_iterable(gone)),
        pointers=tuple(chain.from_iterable(pointers)),
    )
    return record, at


def _pointers(raw: bytes, at: int) -> tuple[list[PointerStep], int]:
    topic, at = _string(raw, at)
    numbers, at = _long_array(raw, at)
    places, at = _long_array(raw, at)
    firsts, at = _long_array(raw, at)
    rows = zip(numbers, places, firsts, strict=True)
    return [PointerStep((topic, number), place, first) for number, place, first in rows], at


def _claim(raw: bytes, at: int) -> tuple[Claim, int]:
    group, at = _string(raw, at)
    claimant, at = _long(raw, at)
    return Claim(group=group, claimant=claimant, partitions=read_gone(raw[at:])), len(raw)


READERS: Final[Mapping[int, Callable[[bytes, int], tuple[JournalRecord, int]]]] = {
    RecordType.PRODUCER: _producer,
    RecordType.BEGIN: _begin,
    RecordType.ADD_PARTITIONS: _add_partitions,
    RecordType.ADD_OFFSETS: _add_offsets(_step),
    RecordType.ADD_WRITES: _add_writes,
    RecordType.PREPARE_COMMIT: _prepare_commit,
    RecordType.PREPARE_ABORT: _prepare_abort,
    RecordType.COMMITTED: _finished(Committed),
    RecordType.ABORTED: _finished(Aborted),
    RecordType.CLAIM: _claim,
    RecordType.PLACED: _placed,
}
"""Type byte → function that decodes the record behind epoch, incarnation and predicted offset."""

NEWER_READERS: Final[
    Mapping[tuple[int, int], Callable[[bytes, int], tuple[JournalRecord, int]]]
] = {
    (4, RecordType.ADD_OFFSETS): _add_offsets(_step_with_topic_id),
    (5, RecordType.ADD_OFFSETS): _add_offsets(_step_with_passed),
    (5, RecordType.PREPARE_COMMIT): _placed_commit,
    (8, RecordType.PREPARE_COMMIT): _sidecar_commit,
    (12, RecordType.PREPARE_COMMIT): _sidecar_commit,
    (10, RecordType.COMMITTED): _committed_with_pointers,
}
"""The same by version and type byte, for records of a newer version that are read often."""

LAZY_READERS: Final[Mapping[int, Callable[[bytes, int], tuple[JournalRecord, int]]]] = {
    **READERS,
    RecordType.ADD_WRITES: _lazy_add_writes,
    RecordType.PREPARE_COMMIT: _lazy_prepare_commit,
}
"""Like `READERS`, but what branches wrote is decoded only when it is used."""

NEWER_LAZY_READERS: Final[
    Mapping[tuple[int, int], Callable[[bytes, int], tuple[JournalRecord, int]]]
] = {
    **NEWER_READERS,
    (5, RecordType.PREPARE_COMMIT): _lazy_placed_commit,
}
"""Like `NEWER_READERS`, likewise: where a decision is placed is decoded at once."""
