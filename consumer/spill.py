"""Pending records on disk: a file per transaction and data partition.

Written by appending, read from its start, deleted as one: so a file's space is known exactly, and
is free as soon as the transaction is delivered. No durable state: a consumer that starts again
reads its transactions from the log, so nothing is synced, and what a dead process left is deleted.

Source: seed 001, "Transactional consumer" (spilling to disk), "Consumer failure" (delete any
state that spilt over to disk and start with a new map).
"""

from __future__ import annotations

import logging
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from ..journal.control import TopicPartition
from ..journal.errors import SpillError
from .chunk import decode_chunk, encode_chunks
from .pending import Record
from .scratch import ScratchDirectory, remove_stale

_LOG = logging.getLogger(__name__)
BLOCK_BYTES: Final = 4096
"""What a file occupies is counted in these."""
_HEAD: Final = struct.Struct(">II")
"""Before each chunk: its length, its CRC-32. A disk that fails when the kernel writes back what it
took tells nobody, and later gives something else."""


class _Run:
    """One file."""

    __slots__ = ("number", "owner", "size")

    def __init__(self, number: int, owner: TopicPartition) -> None:
        self.number = number
        self.owner = owner
        self.size = 0


class FileSpillStore:
    """`SpillStore` in files. Makes its directory lazily: most consumers never spill.

    One thread at a time.
    """

    def __init__(self, directory: str | None = None, disk_max_bytes: int | None = None) -> None:
        """Check the directory and clear it of what dead processes left.

        Args:
            directory: where a directory of this process goes; None = the system's temporary one.
            disk_max_bytes: of all files together, in whole blocks; None = as the disk allows.

        Raises:
            SpillError: it can't be written.
        """
        self.spilled_bytes = 0
        self.disk_bytes = 0
        """Occupied now."""
        self._disk_max_bytes = disk_max_bytes
        self._parent = Path(directory) if directory is not None else Path(tempfile.gettempdir())
        self._directory: ScratchDirectory | None = None
        self._next_run = 0
        self._runs: dict[int, _Run] = {}
        if directory is not None:
            with self._telling("make"):
                self._parent.mkdir(parents=True, exist_ok=True)
            with self._telling("write"):
                if not os.access(self._parent, os.W_OK | os.X_OK):
                    raise PermissionError("not writable")
        remove_stale(self._parent)

    def append(self, run: int | None, owner: TopicPartition, records: Sequence[Record]) -> int:
        """Append records to a run; where it raises, the run is as before."""
        if self._directory is None:
            with self._telling("write"):
                self._directory = ScratchDirectory.make(self._parent)
        number = self._next_run if run is None else run
        found = self._runs.get(number)
        if found is None:
            found = _Run(number, owner)
        with self._telling("write"):
            size = self._write(found, records)
        self.spilled_bytes += size - found.size
        self.disk_bytes += _blocks(size) - _blocks(found.size)
        found.size = size
        # Only now: a run that can't be begun does not exist.
        self._runs[number] = found
        self._next_run = max(self._next_run, number + 1)
        return number

    def _write(self, run: _Run, records: Sequence[Record]) -> int:
        descriptor = os.open(self._path(run), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = run.size
            for chunk in encode_chunks(records):
                head = _HEAD.pack(len(chunk), zlib.crc32(chunk))
                self._check_room(run, size + len(head) + len(chunk))
                size = _write_at(descriptor, size, [head, chunk])
        except BaseException:
            # A part would be overwritten by the next attempt, but holds room until then.
            self._cut(descriptor, run)
            raise
        # A disk behind a network may take all and refuse here.
        os.close(descriptor)
        return size

    def _cut(self, descriptor: int, run: _Run) -> None:
        try:
            os.ftruncate(descriptor, run.size)
            if not run.size:
                self._path(run).unlink()
        except OSError as error:
            _LOG.warning("spill_cut_failed path=%s error=%s", self._path(run), error)
        finally:
            os.close(descriptor)

    def _path(self, run: _Run) -> Path:
        return self._place / str(run.number)

    def _check_room(self, run: _Run, size: int) -> None:
        most = self._disk_max_bytes
        if most is not None and self.disk_bytes - _blocks(run.size) + _blocks(size) > most:
            raise SpillError(
                f"pending transactions need more than pending.disk.max.bytes={most} in "
                f"{self._place}. Nothing was lost; raise it, or pending.memory.max.bytes, then "
                "start the consumer again"
            )

    def read(self, run: int) -> Iterator[Record]:
        """The run's records, one chunk in memory at a time."""
        return chain.from_iterable(self._chunks(run))

    def _chunks(self, number: int) -> Iterator[list[Record]]:
        run = self._runs.get(number)
        with self._telling("read"):
            file = None if run is None else self._path(run).open("rb", buffering=0)
        position = 0
        try:
            while True:
                if run is None or file is None or self._runs.get(number) is not run:
                    raise SpillError("the consumer was closed while a transaction was being read")
                if position >= run.size:
                    return
                with self._telling("read"):
                    head = file.read(_HEAD.size)
                    size, check = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, -1)
                    chunk = file.read(size)
                position += _HEAD.size + size
                yield self._decode(run, chunk, check)
        finally:
            if file is not None:
                file.close()

    def _decode(self, run: _Run, chunk: bytes, check: int) -> list[Record]:
        if zlib.crc32(chunk) == check:
            try:
                return decode_chunk(run.owner, chunk)
            except msgspec.DecodeError:
                _LOG.exception("spill_decode_failed path=%s", self._path(run))
        raise SpillError(
            f"{self._path(run)} does not hold what was written to it: the disk fails, or somebody "
            "changed it. Nothing was lost; start the consumer again, with another pending.dir"
        )

    def delete(self, run: int) -> None:
        """Drop a run, and with the last one the directory.

        A disk that refuses here is not an error: the space stays taken until the directory goes.
        """
        found = self._runs.pop(run)
        self.disk_bytes -= _blocks(found.size)
        if not self._runs:
            self._remove()
            return
        try:
            self._path(found).unlink(missing_ok=True)
        except OSError as error:
            _LOG.warning("spill_delete_failed path=%s error=%s", self._path(found), error)

    def close(self) -> None:
        """Delete the directory."""
        self._runs.clear()
        self.disk_bytes = 0
        self._remove()

    def _remove(self) -> None:
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.remove()

    @property
    def _place(self) -> Path:
        return self._parent if self._directory is None else self._directory.path

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SpillError(
                f"can't {what} {self._place}: {error}. Nothing was lost; free space or set "
                "pending.dir to a writable directory, then start the consumer again"
            ) from error


def _blocks(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def _write_at(descriptor: int, position: int, parts: list[bytes]) -> int:
    """Write all of it, however little the disk takes at a time; returns where it ends."""
    end = position + sum(map(len, parts))
    position += os.pwritev(descriptor, parts, position)
    if position < end:
        rest = memoryview(b"".join(parts))
        while position < end:
            # What no longer fits is refused at the latest when nothing fits.
            position += os.pwrite(descriptor, rest[position - end :], position)
    return end
