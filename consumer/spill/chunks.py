"""Chunks: encodes some records of one data partition as bytes.

Light messages are packed by the C extension, and come back as light messages. Others are encoded
column by column and come back as confluent-kafka's. Each column is one pass in C, so no Python
instruction runs per record. A column whose values are all equal, such as the TxId, is stored as one
value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator
from itertools import accumulate, groupby, repeat
from operator import add
from struct import Struct
from typing import Any, Final, TypeVar

import msgspec
from confluent_kafka import Message

from ...journal.collector import collector_paused
from ...journal.control import TopicPartition
from ...journal.native.loading import find_reader
from ..core.pending import Record

CHUNK_MAX_BYTES: Final = 256 * 1024
"""Bytes of keys and values in a chunk, unless one record alone has more. A reader of spilled
records holds one chunk in memory. Twice as much is no quicker, less adds overhead per chunk."""
CHUNK_MAX_RECORDS: Final = 1_000
"""Bounds a chunk of small records, which cost more memory than their bytes. Fewer add overhead per
chunk."""
_NO_EPOCH: Final = -1
"""Value by which confluent-kafka stores a leader epoch of None."""
_NO_LATENCY: Final = -1.0
"""Value of `Message`'s argument for a message that was not produced here."""
_T = TypeVar("_T")
_Headers = list[tuple[str, bytes | None]] | None


class _Columns(msgspec.Struct, array_like=True):
    """The records of a chunk. A column of equal values keeps one, except offsets and values."""

    offsets: list[int]
    values: list[bytes | None]
    keys: list[bytes | None]
    headers: list[_Headers]
    kinds: list[int]
    """Kinds of the timestamps, as confluent-kafka numbers them."""
    times: list[int]
    """Timestamps, in milliseconds since 1970."""
    epochs: list[int]

    def part(self, part: slice) -> _Columns:
        """Returns the columns of some of the records."""
        return _Columns(
            self.offsets[part],
            self.values[part],
            _shared(self.keys[part]),
            _shared(self.headers[part]),
            _shared(self.kinds[part]),
            _shared(self.times[part]),
            _shared(self.epochs[part]),
        )


_Packed = tuple[tuple[tuple[str, bytes | None], ...] | None, int, int, int]
"""A `PackedRun` as C takes it."""
_FRONT: Final = Struct("=BII")
"""What a packed chunk begins with: `_PACKED`, bytes of the runs that follow, number of records."""
_PACKED: Final = 0xC1
"""A byte that begins nothing in MessagePack, and so no chunk of columns."""
_encoder: Final = msgspec.msgpack.Encoder()
_run_decoder: Final = msgspec.msgpack.Decoder(list[_Packed])
_decoder: Final = msgspec.msgpack.Decoder(_Columns)
_message: Any = Message


def encode_chunks(records: list[Record]) -> Iterator[bytes]:
    """Yields the records as chunks, in order."""
    if hasattr(type(records[0]), "pack"):
        packed = yield from _packed(records)
        records = records[packed:]
    for _, alike in groupby(records, type):
        columns = _columns(list(alike))
        for part in _parts(columns.values, columns.keys):
            yield _encoder.encode(columns.part(part))


def _packed(records: list[Record]) -> Generator[bytes, None, int]:
    """Yields chunks of light messages. Returns how many records are in them: all, or the first."""
    light: Any = type(records[0])
    start = 0
    while start < len(records):
        runs = light.packable(records, start, CHUNK_MAX_RECORDS, CHUNK_MAX_BYTES)
        if runs is None:
            break
        count = sum(run[-1] for run in runs)
        shared = _encoder.encode(runs)
        front = _FRONT.pack(_PACKED, len(shared), count) + shared
        chunk: bytes | None = light.pack(front, records, start, count)
        if chunk is None:
            break
        yield chunk
        start += count
    return start


def _columns(records: list[Record]) -> _Columns:
    kind: Any = type(records[0])  # of all of them; `map` calls its methods in C
    with collector_paused():  # each timestamp is a new tuple, which would wake the collector
        kinds, times = map(list, zip(*map(kind.timestamp, records), strict=True))
        epochs = list(map(kind.leader_epoch, records))
        return _Columns(
            list(map(kind.offset, records)),
            list(map(kind.value, records)),
            list(map(kind.key, records)),
            list(map(kind.headers, records)),
            kinds,
            times,
            [_NO_EPOCH if e is None else e for e in epochs] if None in epochs else epochs,
        )


def _parts(values: list[bytes | None], keys: list[bytes | None]) -> Iterator[slice]:
    # Splits where the bytes reach a chunk's size, by bisection of their running sum.
    sums = list(accumulate(map(add, _sizes(values), _sizes(keys))))
    start = 0
    while start < len(sums):
        before = sums[start - 1] if start else 0
        full = bisect_left(sums, before + CHUNK_MAX_BYTES, start) + 1
        stop = min(full, start + CHUNK_MAX_RECORDS, len(sums))
        yield slice(start, stop)
        start = stop


def _sizes(column: list[bytes | None]) -> Iterable[int]:
    if column[0] is None and column.count(None) == len(column):
        return repeat(0, len(column))
    return [len(each) if each else 0 for each in column]


def _shared(column: list[_T]) -> list[_T]:
    first = column[0]
    alike = first == column[-1] and column.count(first) == len(column)
    return column[:1] if alike else column


def decode_chunk(owner: TopicPartition, chunk: bytes) -> list[Record]:
    """Returns the records of a chunk.

    Args:
        owner: the data partition of the records.
        chunk: a chunk from `encode_chunks`.

    Raises:
        ValueError: the bytes are not a chunk.
    """
    if chunk[0] == _PACKED:
        return _unpacked(owner, chunk)
    columns = _decoder.decode(chunk)
    count = len(columns.offsets)
    headers: Iterable[_Headers] = columns.headers
    if len(columns.headers) < count:
        alike = columns.headers[0]
        # Each message gets a list of its own: an application may change the one that it gets.
        headers = repeat(None, count) if alike is None else map(list, repeat(alike, count))
    with collector_paused():
        messages: Iterator[Record] = map(
            _message,
            repeat(owner[0]),
            repeat(owner[1]),
            columns.offsets,
            _spread(columns.keys, count),
            columns.values,
            headers,
            repeat(None),
            zip(_spread(columns.kinds, count), _spread(columns.times, count), strict=True),
            repeat(_NO_LATENCY),
            _spread(columns.epochs, count),
        )
        return list(messages)


def _unpacked(owner: TopicPartition, chunk: bytes) -> list[Record]:
    _, size, count = _FRONT.unpack_from(chunk)
    front = _FRONT.size + size
    runs = _run_decoder.decode(memoryview(chunk)[_FRONT.size : front])
    found: list[Record] = find_reader().extension.Message.unpack(chunk, front, *owner, runs, count)
    return found


def _spread(column: list[_T], count: int) -> Iterable[_T]:
    return column if len(column) == count else repeat(column[0], count)
