"""Stores pending records in RocksDB: a run of chunks for each transaction and data partition.

The state is not durable: a consumer that starts again reads its transactions from the log, and
deletes what a dead process left.

Source: Transactional Messaging in Kafka, "Transactional consumer" (spilling to disk), "Consumer
failure" (delete any state that spilt over to disk and start with a new map); docs/decisions/0010.
"""

from __future__ import annotations

import logging
import os
import struct
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from ...journal.control import TopicPartition
from ...journal.errors import SpillError
from ..core.pending import Record
from .chunks import decode_chunk, encode_chunks
from .families import Families, Family, telling, value_bytes
from .scratch import remove_stale

_LOG = logging.getLogger(__name__)
FAMILY_BYTES: Final = 256 * 1024 * 1024
"""Bytes of a family. Beginning and dropping one takes milliseconds, so smaller ones cost time;
larger ones hold garbage for longer."""
_LIMIT_FAMILIES: Final = 8
"""At least this many families fit in ``pending.disk.max.bytes``, so that there is room to move
what one of them holds. Fewer leave less room, more make families smaller."""
_LIMIT_GARBAGE: Final = 4
"""Divisor: at most this part of ``pending.disk.max.bytes`` may be garbage. A larger one moves live
chunks more often, a smaller one leaves less room for them."""
_KEY: Final = struct.Struct(">QI")
"""Key of a chunk: run number, chunk number."""


class _Part:
    """Consecutive chunks of a run that are in one family."""

    __slots__ = ("family", "size", "start", "stop")

    def __init__(self, family: Family, start: int) -> None:
        self.family = family
        self.start = self.stop = start
        self.size = 0


class _Run:
    """Records of one transaction in one data partition."""

    __slots__ = ("owner", "parts")

    def __init__(self, owner: TopicPartition) -> None:
        self.owner = owner
        self.parts: list[_Part] = []

    @property
    def chunks(self) -> int:
        return self.parts[-1].stop if self.parts else 0


class RocksSpillStore:
    """`SpillStore` in RocksDB, which the first append opens: most consumers never spill.

    One thread at a time may use it.
    """

    def __init__(self, directory: str | None = None, disk_max_bytes: int | None = None) -> None:
        """Checks the directory, and deletes what dead processes left in it.

        Args:
            directory: where this process makes its own directory; None = the system's temporary
                directory.
            disk_max_bytes: limit of what is written and not freed yet; None = none but the disk's.

        Raises:
            SpillError: the directory can't be written.
        """
        self.spilled_bytes = 0
        self._disk_max_bytes = disk_max_bytes
        parent = Path(directory) if directory is not None else Path(tempfile.gettempdir())
        size = FAMILY_BYTES
        if disk_max_bytes is not None:
            size = min(size, disk_max_bytes // _LIMIT_FAMILIES)
        self._families = Families(parent, size)
        self._next_run = 0
        self._runs: dict[int, _Run] = {}
        if directory is not None:
            with telling("make", self._families):
                parent.mkdir(parents=True, exist_ok=True)
            with telling("write", self._families):
                if not os.access(parent, os.W_OK | os.X_OK):
                    raise PermissionError("not writable")
        remove_stale(parent)

    @property
    def disk_bytes(self) -> int:
        """Bytes occupied now, including garbage that is not freed yet."""
        return self._families.disk_bytes

    def append(self, run: int | None, owner: TopicPartition, records: list[Record]) -> int:
        """Appends records to a run, or begins one if `run` is None. Returns the run's number.

        If it raises, the run is as before.

        Raises:
            SpillError: the disk refuses, or ``pending.disk.max.bytes`` is reached.
        """
        number = self._next_run if run is None else run
        found = _Run(owner) if run is None else self._runs[run]
        parts: list[_Part] = []
        for index, chunk in enumerate(encode_chunks(records), found.chunks):
            size = value_bytes(chunk)
            self._check_room(size)
            family = self._families.writable(size)
            self._families.put(family, _KEY.pack(number, index), chunk)
            if not parts or parts[-1].family is not family:
                parts.append(_Part(family, index))
            parts[-1].stop = index + 1
            parts[-1].size += size
        # The run changes only now. What an append wrote before it failed is garbage, and the next
        # attempt writes the same keys; a run that could not be begun does not exist.
        self._join(found, parts)
        self._runs[number] = found
        self._next_run = max(self._next_run, number + 1)
        return number

    def _check_room(self, size: int) -> None:
        most = self._disk_max_bytes
        if most is not None and self.disk_bytes + size > most:
            raise SpillError(
                f"pending transactions need more than pending.disk.max.bytes={most} in "
                f"{self._families.place}. Nothing was lost; raise it, or "
                "pending.memory.max.bytes, then start the consumer again"
            )

    def _join(self, run: _Run, parts: list[_Part]) -> None:
        for part in parts:
            part.family.live += part.size
            self.spilled_bytes += part.size
            if run.parts and run.parts[-1].family is part.family:
                run.parts[-1].stop = part.stop
                run.parts[-1].size += part.size
            else:
                run.parts.append(part)

    def read(self, run: int) -> Iterator[Record]:
        """Returns an iterator over the run's records, with one chunk in memory at a time."""
        return chain.from_iterable(self._chunks(run))

    def _chunks(self, number: int) -> Iterator[list[Record]]:
        run = self._require(number)
        index = 0
        # Between two steps of this generator parts may be moved and chunks appended.
        for part in run.parts:
            while index < part.stop:
                self._require(number)
                chunk = self._families.get(part.family, _KEY.pack(number, index))
                yield decode_chunk(run.owner, chunk)
                index += 1

    def _require(self, number: int) -> _Run:
        found = self._runs.get(number)
        if found is None:
            raise SpillError("the consumer was closed while a transaction was being read")
        return found

    def delete(self, run: int) -> None:
        """Drops a run. `_reclaim` frees its space; the last run's space is free at once.

        If the disk refuses here, that is no error: the space stays taken until a later delete frees
        it or the directory is removed.
        """
        for part in self._runs.pop(run).parts:
            part.family.live -= part.size
        if not self._runs:
            self._families.close()
            return
        try:
            self._reclaim()
        except SpillError as error:
            _LOG.warning("spill_delete_failed path=%s error=%s", self._families.place, error)

    def _reclaim(self) -> None:
        """Drops families without live bytes, and empties others while too much is garbage.

        Garbage may be as much as is live, so that no more is moved than is freed, but at least a
        family. With ``pending.disk.max.bytes`` it may be a quarter of that at most. The
        family that is written to is never emptied.
        """
        self._families.drop_dead()
        while (worst := self._worst()) is not None:
            self._empty(worst)
            self._families.drop_dead()

    def _worst(self) -> Family | None:
        families = self._families
        full = families.full
        garbage = families.garbage
        most = max(families.family_bytes, families.disk_bytes - garbage)
        limit = self._disk_max_bytes
        if limit is not None:
            most = min(most, limit // _LIMIT_GARBAGE)
        if garbage <= most or not full:
            return None
        worst = max(full, key=lambda family: family.garbage)
        fits = limit is None or families.disk_bytes + worst.live <= limit
        return worst if worst.garbage and fits else None

    def _empty(self, family: Family) -> None:
        for number, run in self._runs.items():
            for part in run.parts:
                if part.family is family:
                    self._move(number, part)

    def _move(self, number: int, part: _Part) -> None:
        target = self._families.writable(part.size)
        for index in range(part.start, part.stop):
            key = _KEY.pack(number, index)
            self._families.put(target, key, self._families.get(part.family, key))
        part.family.live -= part.size
        target.live += part.size
        part.family = target

    def close(self) -> None:
        """Deletes everything."""
        self._runs.clear()
        self._families.close()
