"""Record batches as bytes, with whatever a broker may hold, put into a mock cluster as they are.

Kafka's clients write none with a header's name that is not UTF-8, nor malformed ones.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from .conftest import PRODUCE, Mock

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""Compressions; a batch's attributes have the index."""
PREFIX: Final = struct.Struct(">qiibIhiqqqhii")
"""What is in front of a batch's records."""
COUNT_AT: Final = PREFIX.size - 4
CODEC_AT: Final = 22
FRAME: Final = 12
"""Bytes of a batch that its length does not count."""
_VERSION: Final = 3
"""Of the request to produce."""


class Record(NamedTuple):
    """A record in a batch."""

    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    timestamp_delta_ms: int = 0


class Batch(NamedTuple):
    """Records that a broker keeps together."""

    records: Sequence[Record]
    codec: str = "none"
    base_timestamp_ms: int = 0
    is_log_append_time: bool = False
    leader_epoch: int = 0


def varint(number: int) -> bytes:
    """Encodes a signed number, of at most 64 bits."""
    left = (number << 1 ^ number >> 63) & (1 << 64) - 1
    made = bytearray()
    while left > 0x7F:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    made.append(left)
    return bytes(made)


def encode(batch: Batch) -> bytes:
    """Returns a batch as a broker holds it, with no checksum, and base offset 0."""
    records = b"".join(_record(record, at) for at, record in enumerate(batch.records))
    if batch.codec != "none":
        records = compressed(batch.codec, records)
    deltas = [record.timestamp_delta_ms for record in batch.records]
    attributes = CODECS.index(batch.codec) | batch.is_log_append_time << 3
    count = len(batch.records)
    prefix = PREFIX.pack(
        *(0, PREFIX.size - FRAME + len(records), batch.leader_epoch, 2, 0, attributes),
        *(count - 1, batch.base_timestamp_ms, batch.base_timestamp_ms + max(deltas, default=0)),
        *(-1, -1, -1, count),
    )
    return prefix + records


def compressed(codec: str, content: bytes) -> bytes:
    """Compresses records as Kafka does."""
    import pyarrow as pa

    return pa.Codec(codec).compress(content, asbytes=True)


def _bytes(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def _record(record: Record, at: int) -> bytes:
    body = b"\0" + varint(record.timestamp_delta_ms) + varint(at)
    body += _bytes(record.key) + _bytes(record.value) + varint(len(record.headers))
    body += b"".join(_bytes(name) + _bytes(value) for name, value in record.headers)
    return varint(len(body)) + body


class RawLog:
    """Appends batches to partitions of a mock cluster, by Kafka's request for that."""

    def __init__(self, mock: Mock) -> None:
        """Connects.

        Args:
            mock: the cluster.
        """
        host, port = mock.address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), 10)
        self._number = 0

    def close(self) -> None:
        """Disconnects."""
        self._socket.close()

    def append(self, topic: str, partition: int, batch: bytes) -> int:
        """Appends one batch. Returns its first offset.

        Raises:
            KafkaException: the mock cluster refuses it: it looks at the magic and at the count.
        """
        self._number += 1
        request = struct.pack(">hhih1s", PRODUCE, _VERSION, self._number, 1, b"f")
        request += struct.pack(">hhiih", -1, -1, 10_000, 1, len(topic)) + topic.encode()
        request += struct.pack(">iii", 1, partition, len(batch)) + batch
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._read(4))
        answer = self._read(size)
        # (number, topics, name, partitions, partition, error, offset, …)
        error, offset = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len(topic) + 4 + 4)
        if error:
            raise KafkaException(KafkaError(error))
        return int(offset)

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            if not more:
                raise ConnectionError
            found += more
        return found
