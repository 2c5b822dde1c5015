"""Reads the headers TxId and TxCtl from their bytes, with code of the checker's own.

Source: docs/protocol.md, "Headers in data partitions", and `control.proto` for the field numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from ..errors import BrokenLogError

TXID_HEADER: Final = "TxId"
TXCTL_HEADER: Final = "TxCtl"
VERSION: Final = 1
SIDECAR_SUFFIX: Final = "._txnlog"
"""Ends the name of a topic's sidecar."""
ASIDE_FROM: Final = 2**62
"""What a consumer adds to the offset of a record that it read in a sidecar."""
DATA, COMMITTED, ABORTED, PLACES, MARKERS, POINTER = range(6)


class TxId(NamedTuple):
    """The transaction that a record belongs to."""

    partition: int
    """Partition of the journal."""
    incarnation: int
    begin: int
    """Journal offset of its BEGIN."""

    @property
    def journal(self) -> tuple[int, int]:
        """The only scope in which journal offsets may be compared."""
        return self.partition, self.incarnation

    def __str__(self) -> str:
        """Returns the text that logtx prints."""
        return f"{self.partition}-{self.incarnation:012x}-{self.begin}"


class Range(NamedTuple):
    """What a marker states of one branch in its partition."""

    branch: int
    first: int
    last: int
    records: int


def sidecar_of(partition: tuple[str, int]) -> tuple[str, int]:
    """Returns the sidecar of a data partition."""
    return partition[0] + SIDECAR_SUFFIX, partition[1]


class Control(NamedTuple):
    """A TxCtl header: of a marker, of a mode record, or of a data record of a branch."""

    kind: int
    branch: int = 0
    sequence: int | None = None
    commit_sequence: int = 0
    hw: int = 0
    epoch: int = 0
    partition_count: int = 0
    partitions: tuple[tuple[str, int], ...] = ()
    ranges: tuple[Range, ...] = ()
    sidecar: tuple[Range, ...] = ()
    """Of a pointer: what the partition's sidecar holds, with offsets there."""
    since: int = 0
    """Of a pointer: an end of its partition before the decision."""
    pointer: int | None = None
    """Of a COMMITTED marker in a sidecar: offset of its pointer, if its writer knew it."""

    @property
    def is_marker(self) -> bool:
        """Whether it ends a transaction in its partition."""
        return self.kind in (COMMITTED, ABORTED, POINTER)

    @property
    def is_mode_record(self) -> bool:
        """Whether its TxId names a MODE record of the journal, and no transaction."""
        return self.kind in (PLACES, MARKERS)

    @property
    def committed(self) -> bool:
        """Whether it is a marker that says COMMITTED, or a pointer."""
        return self.kind in (COMMITTED, POINTER)

    @property
    def is_pointer(self) -> bool:
        """Whether it ends a transaction with records in the partition's sidecar."""
        return self.kind == POINTER


def read_txid(raw: bytes) -> TxId:
    """Reads the header's 16 bytes: partition 2, incarnation 6, offset 8.

    Raises:
        BrokenLogError: there are not 16 bytes.
    """
    if len(raw) != 16:
        raise BrokenLogError(f"a TxId header of {len(raw)} bytes: {raw.hex()}")
    high, begin = struct.unpack(">QQ", raw)
    return TxId(high >> 48, high & (2**48 - 1), begin)


def read_control(raw: bytes) -> Control:
    """Reads a version byte and the protobuf message behind it.

    Raises:
        BrokenLogError: another version, or bytes that do not decode.
    """
    if not raw or raw[0] != VERSION:
        raise BrokenLogError(f"a TxCtl header of an unknown version: {raw.hex()}")
    try:
        return _control(raw[1:])
    except (IndexError, ValueError, struct.error, UnicodeDecodeError) as error:
        raise BrokenLogError(f"a TxCtl header that does not decode: {raw.hex()}") from error


def _control(raw: bytes) -> Control:
    numbers: dict[int, int] = {}
    partitions: list[tuple[str, int]] = []
    ranges: list[Range] = []
    sidecar: list[Range] = []
    for field, value in _fields(raw):
        if field == 7:
            partitions += _partitions(_sub(value))
        elif field in (8, 16):
            found = {f: v for f, v in _fields(_sub(value)) if isinstance(v, int)}
            stated = Range(*(found.get(f, 0) for f in (1, 2, 3, 4)))
            (ranges if field == 8 else sidecar).append(stated)
        elif isinstance(value, int):
            numbers[field] = value
    return Control(
        kind=numbers.get(1, DATA),
        branch=numbers.get(2, 0),
        sequence=numbers.get(3),
        commit_sequence=numbers.get(4, 0),
        hw=numbers.get(5, 0),
        partition_count=numbers.get(6, 0),
        epoch=numbers.get(9, 0),
        partitions=tuple(partitions),
        ranges=tuple(ranges),
        sidecar=tuple(sidecar),
        since=numbers.get(17, 0),
        pointer=numbers.get(18),
    )


def _partitions(raw: bytes) -> Iterator[tuple[str, int]]:
    topic, numbers = "", []
    for field, value in _fields(raw):
        if field == 1:
            topic = _sub(value).decode()
        elif field == 2 and isinstance(value, int):
            numbers.append(value)
        elif field == 2:
            packed, at = _sub(value), 0
            while at < len(packed):
                number, at = varint(packed, at)
                numbers.append(number)
    return ((topic, number) for number in numbers)


def _sub(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message belongs")  # noqa: TRY004 - bad bytes
    return value


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(raw):
        tag, at = varint(raw, at)
        value: int | bytes
        match tag & 7:
            case 0:  # a number
                value, at = varint(raw, at)
            case 1:  # eight bytes
                (value,) = struct.unpack_from("<Q", raw, at)
                at += 8
            case 2:  # bytes behind their length
                length, at = varint(raw, at)
                if at + length > len(raw):
                    raise ValueError("a message that is cut short")
                value, at = raw[at : at + length], at + length
            case 5:  # four bytes
                (value,) = struct.unpack_from("<I", raw, at)
                at += 4
            case other:
                raise ValueError(f"wire type {other}")
        yield tag >> 3, value


def varint(raw: bytes, at: int) -> tuple[int, int]:
    """Reads a varint as protobuf and Avro write it: seven bits a byte, the lowest first.

    Returns:
        The number, and the index behind it.

    Raises:
        IndexError: it is cut short.
        ValueError: it has more than 64 bits.
    """
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
