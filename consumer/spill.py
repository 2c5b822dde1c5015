"""Pending records on disk: runs of records in a RocksDB of the consumer's own.

The store is no durable state: a consumer that starts again reads its transactions from the log,
so the write-ahead log is off and the directory of a dead process is deleted.

Source: seed 001, "Transactional consumer" (spilling to disk), "Consumer failure" (delete any
state that spilt over to disk and start with a new map).
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec
from confluent_kafka import Message
from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    WriteOptions,
)

from ..journal.control import TopicPartition
from ..journal.errors import SpillError
from .pending import Record

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

CHUNK_MAX_BYTES: Final = 512 * 1024
"""Keys and values in one stored value: what a reader of a run holds in memory at a time."""
CHUNK_MAX_RECORDS: Final = 1_000
COMPACT_AFTER_BYTES: Final = 256 * 1024 * 1024
"""Deleted ranges free no disk by themselves; beyond this much a compaction does."""
_MIB: Final = 1024 * 1024
_KEY: Final = struct.Struct(">QI")
"""Run, chunk."""
_PREFIX: Final = "logtx-pending-"
_Fields = tuple[int, bytes | None, bytes | None, int, int, Any, int | None]


def _options() -> Options:
    # Bounded: about 21 MB however much is stored (measured), against 122 MB at the defaults.
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(8 * _MIB)
    options.set_max_write_buffer_number(2)
    options.set_db_write_buffer_size(16 * _MIB)
    options.set_max_open_files(64)
    options.set_target_file_size_base(8 * _MIB)
    options.set_compression_type(DBCompressionType.none())
    table = BlockBasedOptions()
    table.set_block_cache(Cache(8 * _MIB))
    table.set_cache_index_and_filter_blocks(True)
    options.set_block_based_table_factory(table)
    return options


def _to_fields(message: Any) -> _Fields:
    kind, timestamp = message.timestamp()
    return (
        message.offset(),
        message.key(),
        message.value(),
        kind,
        timestamp,
        message.headers(),
        message.leader_epoch(),
    )


def _to_message(owner: TopicPartition, fields: _Fields) -> Message:
    offset, key, value, kind, timestamp, headers, leader_epoch = fields
    # msgpack has no tuples; confluent-kafka's headers are some.
    pairs = None if headers is None else [(name, raw) for name, raw in headers]
    rest = {} if leader_epoch is None else {"leader_epoch": leader_epoch}
    return Message(
        topic=owner[0],
        partition=owner[1],
        offset=offset,
        key=key,
        value=value,
        headers=pairs,
        timestamp=(kind, timestamp),
        **cast(Any, rest),
    )


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove_stale(parent: Path) -> int:
    """Delete what dead processes left in a ``pending.dir``; returns how many directories."""
    removed = 0
    for found in parent.glob(f"{_PREFIX}*"):
        pid = found.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdecimal() and not _alive(int(pid)):
            shutil.rmtree(found, ignore_errors=True)
            removed += 1
    return removed


class RocksSpillStore:
    """`SpillStore` in RocksDB. Opens lazily: most consumers never spill. One thread at a time."""

    def __init__(self, directory: str | None = None) -> None:
        """Check the directory and clear it of what dead processes left.

        Args:
            directory: where a directory of this process goes; None = the system's temporary one.

        Raises:
            SpillError: it can't be written.
        """
        self.spilled_bytes = 0
        self._parent = Path(directory) if directory is not None else Path(tempfile.gettempdir())
        self._path: Path | None = None
        self._db: Any = None
        self._write_options = WriteOptions()
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        self._next_run = 0
        self._runs: dict[int, tuple[TopicPartition, int, int]] = {}
        """Run → (data partition, chunks, bytes)."""
        self._deleted_bytes = 0
        self._pack = msgspec.msgpack.Encoder()
        self._unpack = msgspec.msgpack.Decoder()
        if directory is not None:
            self._guard("make", partial(self._parent.mkdir, parents=True, exist_ok=True))
            if not os.access(self._parent, os.W_OK | os.X_OK):
                raise self._error("write", PermissionError("not writable"))
        remove_stale(self._parent)

    def append(self, run: int | None, owner: TopicPartition, records: Sequence[Record]) -> int:
        """Append records to a run; where it raises, the run is as before."""
        db = self._open()
        number = self._next_run if run is None else run
        _, chunks, size = self._runs.get(number, (owner, 0, 0))
        for chunk in _chunks(records):
            packed = self._pack.encode([_to_fields(record) for record in chunk])
            key = _KEY.pack(number, chunks)
            self._guard("write to", db.put, key, packed, self._write_options)
            chunks += 1
            size += len(packed)
            self.spilled_bytes += len(packed)
        # Only now: a run whose append failed half-way is overwritten by the next attempt.
        self._runs[number] = owner, chunks, size
        self._next_run = max(self._next_run, number + 1)
        return number

    def read(self, run: int) -> Iterator[Record]:
        """The run's records, one chunk in memory at a time."""
        owner, chunks, _ = self._runs[run]
        for chunk in range(chunks):
            if self._db is None:
                raise SpillError("the consumer was closed while a transaction was being read")
            key = _KEY.pack(run, chunk)
            packed = self._guard("read", self._db.get, key)
            if packed is None:
                raise SpillError(f"{self._path} lost records of pending transactions")
            for fields in self._unpack.decode(packed):
                yield cast(Record, _to_message(owner, fields))

    def delete(self, run: int) -> None:
        """Drop a run. With the last one the whole directory goes; else a compaction, now and then.

        A disk that refuses here is not an error: the space stays taken until the directory goes.
        """
        _, chunks, size = self._runs.pop(run)
        if self._db is None:
            return
        if not self._runs:
            self._remove()
            return
        self._deleted_bytes += size
        try:
            self._db.delete_range(_KEY.pack(run, 0), _KEY.pack(run, chunks), self._write_options)
            if self._deleted_bytes > COMPACT_AFTER_BYTES:
                self._deleted_bytes = 0
                self._db.compact_range(None, _KEY.pack(min(self._runs), 0))
        except Exception as error:  # noqa: BLE001  # rocksdict raises plain Exception
            _LOG.warning("spill_delete_failed path=%s error=%s", self._path, error)

    def close(self) -> None:
        """Delete the directory."""
        self._runs.clear()
        self._remove()

    def _open(self) -> Any:
        if self._db is None:
            prefix = f"{_PREFIX}{os.getpid()}-"
            make = partial(tempfile.mkdtemp, prefix=prefix, dir=self._parent)
            path = self._guard("write to", make)
            self._path = Path(path)
            self._db = self._guard("open", Rdict, str(path), _options())
        return self._db

    def _remove(self) -> None:
        db, self._db = self._db, None
        self._deleted_bytes = 0
        if db is not None:
            try:
                db.close()
            except Exception as error:  # noqa: BLE001  # after a full disk even close() raises
                _LOG.warning("spill_close_failed path=%s error=%s", self._path, error)
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            self._path = None

    def _guard(self, what: str, act: Callable[..., _T], *arguments: Any) -> _T:
        try:
            return act(*arguments)
        except Exception as error:  # rocksdict raises plain Exception
            raise self._error(what, error) from error

    def _error(self, what: str, error: Exception) -> SpillError:
        path = self._path or self._parent
        return SpillError(
            f"can't {what} {path}: {error}. Nothing was lost; free space or set pending.dir to a "
            "writable directory, then start the consumer again"
        )


def _chunks(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    start = size = 0
    for index, record in enumerate(records):
        size += len(record) + len(record.key() or b"") + 100
        if size >= CHUNK_MAX_BYTES or index - start + 1 >= CHUNK_MAX_RECORDS:
            yield records[start : index + 1]
            start, size = index + 1, 0
    if start < len(records):
        yield records[start:]
