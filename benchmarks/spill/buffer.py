"""Measures the buffer alone: feeds it one transaction and takes it out again.

Runs as `python -m benchmarks.spill.buffer`, without broker and librdkafka: what remains is the
consumer's own work, in memory or on disk. Making the records is not measured. They are what the
consumer gets: light messages with their runs, or confluent-kafka's where it reads in Python.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any, Final, cast

from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.pending import PendingTransactionMap, Record
from logtx.consumer.malformed import malformed_event
from logtx.consumer.spill.store import RocksSpillStore
from logtx.journal.collector import collector_paused
from logtx.journal.control import (
    TXCTL_HEADER,
    TXID_HEADER,
    BranchRange,
    Marker,
    encode_marker,
)
from logtx.journal.native.interface import HeaderRun
from logtx.journal.native.loading import find_reader
from logtx.journal.position import Position
from logtx.journal.txid import TxId

from .payload import Payload

BATCH: Final = 1_000
"""Records fed or taken at once, as an application's `consume` would."""
OWNER: Final = ("spill", 0)
_TXID: Final = TxId(0, 1, 1).to_bytes()
_EPOCH_MS: Final = 1_700_000_000_000
_ROW: Final = Struct("=qqii")
"""A packed message: offset, timestamp, sizes of key and value."""
_NO_KEY: Final = -1
_Batch = tuple[list[Record], Sequence[HeaderRun] | None]


def _message(offset: int, value: bytes | None, *headers: tuple[str, bytes]) -> Record:
    message = Message(
        topic=OWNER[0],
        partition=OWNER[1],
        offset=offset,
        value=cast(Any, value),
        headers=[(TXID_HEADER, _TXID), *headers],
        timestamp=(TIMESTAMP_CREATE_TIME, _EPOCH_MS + offset // 100),
        leader_epoch=0,
    )
    return cast(Record, message)


def _marker(offset: int) -> Record:
    marker = Marker(
        committed=True,
        commit_sequence=2,
        hw=0,
        epoch=0,
        partition_count=1,
        branches=(BranchRange(0, 0, offset - 1, offset),),
    )
    return _message(offset, None, (TXCTL_HEADER, encode_marker(marker)))


def _batch(payload: Payload, start: int, stop: int) -> _Batch:
    return [_message(offset, payload.value(offset)) for offset in range(start, stop)], None


def _light_batch(light: Any, payload: Payload, start: int, stop: int) -> _Batch:
    values = [payload.value(offset) for offset in range(start, stop)]
    rows = [
        _ROW.pack(offset, _EPOCH_MS + offset // 100, _NO_KEY, len(value))
        for offset, value in enumerate(values, start)
    ]
    headers, count = ((TXID_HEADER, _TXID),), stop - start
    runs = [(headers, TIMESTAMP_CREATE_TIME, 0, count)]
    return light.unpack(b"".join((*rows, *values)), 0, *OWNER, runs, count), [(headers, count)]


def _making() -> Callable[[Payload, int, int], _Batch]:
    """Returns what makes the records of some offsets, as this process would read them."""
    extension = find_reader().extension
    return _batch if extension is None else partial(_light_batch, extension.Message)


def seconds(payload: Payload, memory_max_bytes: int, directory: Path) -> float:
    """Feeds, spills and takes one transaction of this payload. Returns how long that took."""
    store = RocksSpillStore(str(directory))
    pending_map = PendingTransactionMap(memory_max_bytes, store)
    buffer = PartitionBuffer(OWNER, Position.at(0), pending_map, malformed=malformed_event)
    make = _making()
    spent_s = 0.0
    for start in range(0, payload.count, BATCH):
        stop = min(start + BATCH, payload.count)
        batch, runs = make(payload, start, stop)
        began_s = time.perf_counter()
        pending_map.enforce()
        with collector_paused():  # as the consumer does
            buffer.feed(batch, runs)
        spent_s += time.perf_counter() - began_s
    del batch
    began_s = time.perf_counter()
    pending_map.enforce()
    buffer.feed([_marker(payload.count)])
    taken = 0
    while found := buffer.take(BATCH):
        taken += len(found)
    spent_s += time.perf_counter() - began_s
    if taken != payload.count:
        raise AssertionError(f"{taken} of {payload.count} records came out")
    buffer.close()
    store.close()
    return spent_s


if __name__ == "__main__":
    size, count, limit, where = json.loads(sys.argv[1])
    print(json.dumps(seconds(Payload(size, count), limit, Path(where))))
