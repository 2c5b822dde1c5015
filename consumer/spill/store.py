"""Pending records on disk: a run of chunks for each transaction and data partition, in RocksDB.

No durable state: a consumer that starts again reads its transactions from the log, and what a dead
process left is deleted.

Source: Transactional Messaging in Kafka, "Transactional consumer" (spilling to disk), "Consumer
failure" (delete any state that spilt over to disk and start with a new map); docs/decisions/0010.
"""

from __future__ import annotations

import logging
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from ...journal.control import TopicPartition
from ...journal.errors import SpillError
from ..core.pending import Record
from .chunks import decode_chunk, encode_chunks
from .generations import Generation, Generations, telling, value_bytes
from .scratch import remove_stale

_LOG = logging.getLogger(__name__)
GENERATION_BYTES: Final = 256 * 1024 * 1024
"""Of each generation. Beginning one and dropping one takes milliseconds."""
_LIMIT_GENERATIONS: Final = 8
"""So many of them in ``pending.disk.max.bytes``, so that there is room to move what one has."""
_LIMIT_GARBAGE: Final = 4
"""And this part of it may be garbage."""
_KEY: Final = struct.Struct(">QI")
"""Run, chunk."""


class _Part:
    """Chunks of a run, one after the other, that are in one generation."""

    __slots__ = ("generation", "size", "start", "stop")

    def __init__(self, generation: Generation, start: int) -> None:
        self.generation = generation
        self.start = self.stop = start
        self.size = 0


class _Run:
    """Some records of a data partition."""

    __slots__ = ("owner", "parts")

    def __init__(self, owner: TopicPartition) -> None:
        self.owner = owner
        self.parts: list[_Part] = []

    @property
    def chunks(self) -> int:
        return self.parts[-1].stop if self.parts else 0


class RocksSpillStore:
    """`SpillStore` in RocksDB, which is opened lazily: most consumers never spill.

    One thread at a time.
    """

    def __init__(self, directory: str | None = None, disk_max_bytes: int | None = None) -> None:
        """Check the directory and clear it of what dead processes left.

        Args:
            directory: where a directory of this process goes; None = the system's temporary one.
            disk_max_bytes: of all that was written and is not freed yet; None = as the disk
                allows.

        Raises:
            SpillError: it can't be written.
        """
        self.spilled_bytes = 0
        self._disk_max_bytes = disk_max_bytes
        parent = Path(directory) if directory is not None else Path(tempfile.gettempdir())
        size = GENERATION_BYTES
        if disk_max_bytes is not None:
            size = min(size, disk_max_bytes // _LIMIT_GENERATIONS)
        self._generations = Generations(parent, size)
        self._next_run = 0
        self._runs: dict[int, _Run] = {}
        if directory is not None:
            with telling("make", self._generations):
                parent.mkdir(parents=True, exist_ok=True)
            with telling("write", self._generations):
                if not os.access(parent, os.W_OK | os.X_OK):
                    raise PermissionError("not writable")
        remove_stale(parent)

    @property
    def disk_bytes(self) -> int:
        """Occupied now, with what is garbage and not freed yet."""
        return self._generations.disk_bytes

    def append(self, run: int | None, owner: TopicPartition, records: Sequence[Record]) -> int:
        """Append records to a run; where it raises, the run is as before."""
        number = self._next_run if run is None else run
        found = _Run(owner) if run is None else self._runs[run]
        parts: list[_Part] = []
        for index, chunk in enumerate(encode_chunks(records), found.chunks):
            size = value_bytes(chunk)
            self._check_room(size)
            generation = self._generations.writable(size)
            self._generations.put(generation, _KEY.pack(number, index), chunk)
            if not parts or parts[-1].generation is not generation:
                parts.append(_Part(generation, index))
            parts[-1].stop = index + 1
            parts[-1].size += size
        # Only now: what an append wrote that failed half-way is garbage, and the next attempt's
        # keys are the same; a run that can't be begun does not exist.
        self._join(found, parts)
        self._runs[number] = found
        self._next_run = max(self._next_run, number + 1)
        return number

    def _check_room(self, size: int) -> None:
        most = self._disk_max_bytes
        if most is not None and self.disk_bytes + size > most:
            raise SpillError(
                f"pending transactions need more than pending.disk.max.bytes={most} in "
                f"{self._generations.place}. Nothing was lost; raise it, or "
                "pending.memory.max.bytes, then start the consumer again"
            )

    def _join(self, run: _Run, parts: list[_Part]) -> None:
        for part in parts:
            part.generation.live += part.size
            self.spilled_bytes += part.size
            if run.parts and run.parts[-1].generation is part.generation:
                run.parts[-1].stop = part.stop
                run.parts[-1].size += part.size
            else:
                run.parts.append(part)

    def read(self, run: int) -> Iterator[Record]:
        """The run's records, one chunk in memory at a time."""
        return chain.from_iterable(self._chunks(run))

    def _chunks(self, number: int) -> Iterator[list[Record]]:
        run = self._require(number)
        index = 0
        # Between two steps parts may be moved, and more be appended.
        for part in run.parts:
            while index < part.stop:
                self._require(number)
                chunk = self._generations.get(part.generation, _KEY.pack(number, index))
                yield decode_chunk(run.owner, chunk)
                index += 1

    def _require(self, number: int) -> _Run:
        found = self._runs.get(number)
        if found is None:
            raise SpillError("the consumer was closed while a transaction was being read")
        return found

    def delete(self, run: int) -> None:
        """Drop a run: its space is free at once with the last run, else as `_reclaim` says.

        A disk that refuses here is not an error: the space stays taken until the directory goes.
        """
        for part in self._runs.pop(run).parts:
            part.generation.live -= part.size
        if not self._runs:
            self._generations.close()
            return
        try:
            self._reclaim()
        except SpillError as error:
            _LOG.warning("spill_delete_failed path=%s error=%s", self._generations.place, error)

    def _reclaim(self) -> None:
        """Drop generations without live bytes, and empty others while too much is garbage.

        Allowed are as many bytes as are live, so that no more is moved than is freed, but at least
        a generation; and the one that is written to is never emptied.
        """
        self._generations.drop_dead()
        while (worst := self._worst()) is not None:
            self._empty(worst)
            self._generations.drop_dead()

    def _worst(self) -> Generation | None:
        generations = self._generations
        full = generations.full
        garbage = generations.garbage
        most = max(generations.generation_bytes, generations.disk_bytes - garbage)
        limit = self._disk_max_bytes
        if limit is not None:
            most = min(most, limit // _LIMIT_GARBAGE)
        if garbage <= most or not full:
            return None
        worst = max(full, key=lambda generation: generation.garbage)
        fits = limit is None or generations.disk_bytes + worst.live <= limit
        return worst if worst.garbage and fits else None

    def _empty(self, generation: Generation) -> None:
        for number, run in self._runs.items():
            for part in run.parts:
                if part.generation is generation:
                    self._move(number, part)

    def _move(self, number: int, part: _Part) -> None:
        target = self._generations.writable(part.size)
        for index in range(part.start, part.stop):
            key = _KEY.pack(number, index)
            self._generations.put(target, key, self._generations.get(part.generation, key))
        part.generation.live -= part.size
        target.live += part.size
        part.generation = target

    def close(self) -> None:
        """Delete everything."""
        self._runs.clear()
        self._generations.close()
