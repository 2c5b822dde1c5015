"""Values in a RocksDB that is written once, read once and never compacted.

Values go to one column family after the other, a *generation*. One is dropped, with all of its
files at once, when nobody needs a value in it any more: its space is free without rewriting any
other's. Nothing outlives the process, so the write-ahead log is off.

Knows nothing of transactions; who needs what is its caller's to say.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteOptions,
)

from ...journal.errors import SpillError
from .scratch import ScratchDirectory

_LOG = logging.getLogger(__name__)
_MIB: Final = 1024 * 1024
WRITE_BUFFER_BYTES: Final = 16 * _MIB
"""Of each of the two buffers, and so of each file."""
WRITE_TIMEOUT_S: Final = 60.0
"""How long a value waits for those before it to reach the disk."""
_WRITE_PAUSE_S: Final = 0.002
_STALLED: Final = "Write stall"
_ADVICE: Final = (
    "free space or set pending.dir to a writable directory, then start the consumer again"
)
VALUE_OVERHEAD_BYTES: Final = 64
"""What RocksDB writes for a value beyond its bytes: key, index, filter, checksum."""


def _options() -> Options:
    # Bounded: about 45 MB however much is stored (measured), against 122 MB at the defaults.
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_db_write_buffer_size(2 * WRITE_BUFFER_BYTES)
    options.set_max_open_files(256)
    # A file is synced at its end; what is on its way before need not be waited for then.
    options.set_bytes_per_sync(_MIB)
    options.set_compression_type(DBCompressionType.none())
    options.set_disable_auto_compactions(True)
    # Without compactions files stay in level 0, and would soon stop all writing.
    options.set_level_zero_slowdown_writes_trigger(2**30)
    options.set_level_zero_stop_writes_trigger(2**30)
    # Values that were written together are read together: the kernel may read ahead.
    options.set_advise_random_on_open(False)
    options.set_manifest_preallocation_size(64 * 1024)
    options.set_max_log_file_size(_MIB)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(8 * _MIB))
    table.set_cache_index_and_filter_blocks(True)
    # The files of a generation overlap where runs are interleaved.
    table.set_bloom_filter(10, block_based=False)
    options.set_block_based_table_factory(table)
    return options


def value_bytes(value: bytes) -> int:
    """What a value counts as on disk."""
    return len(value) + VALUE_OVERHEAD_BYTES


class Generation:
    """One column family."""

    __slots__ = ("live", "name", "table", "written")

    def __init__(self, name: str, table: Rdict) -> None:
        """Use `Generations.writable`."""
        self.name = name
        self.table: Rdict | None = table
        """None once it is being dropped."""
        self.written = 0
        """Bytes put into it, so what it occupies."""
        self.live = 0
        """Of those, what is still needed; kept by the caller."""

    @property
    def garbage(self) -> int:
        """Bytes that it occupies and nobody needs."""
        return self.written - self.live


class Generations:
    """A database in a fresh directory, opened with the first value. One thread at a time."""

    def __init__(self, parent: Path, generation_bytes: int) -> None:
        """Nothing is opened yet.

        Args:
            parent: where the directory is made.
            generation_bytes: a generation's size, unless one value alone is larger.
        """
        self.disk_bytes = 0
        """Of all values put and not dropped yet. RocksDB's own logs, below 2 MB, do not count."""
        self.generation_bytes = generation_bytes
        self._parent = parent
        self._directory: ScratchDirectory | None = None
        self._database: Rdict | None = None
        self._options: Options | None = None
        self._all: list[Generation] = []
        """In the order they were begun; the last one is written to."""
        self._begun = 0
        self._write_options = WriteOptions()
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        # RocksDB would wait for its files as long as it takes, a full disk for ever.
        self._write_options.no_slowdown = True
        self._read_options = ReadOptions()
        # A value is read once: the cache is for indexes and filters.
        self._read_options.fill_cache(False)  # type: ignore[call-arg]

    @property
    def place(self) -> Path:
        """Where it is, or is going to be."""
        return self._parent if self._directory is None else self._directory.path

    @property
    def garbage(self) -> int:
        """Bytes that are occupied and nobody needs."""
        return sum(generation.garbage for generation in self._all)

    @property
    def full(self) -> Sequence[Generation]:
        """All but the one that is written to."""
        return self._all[:-1]

    def writable(self, size: int) -> Generation:
        """The generation that takes the next values, of `size` bytes together.

        Raises:
            SpillError: the disk refuses.
        """
        if self._all:
            last = self._all[-1]
            if not last.written or last.written + size <= self.generation_bytes:
                return last
        with telling("write", self):
            database = self._open()
            assert self._options is not None
            self._begun += 1
            name = str(self._begun)
            self._all.append(Generation(name, database.create_column_family(name, self._options)))
        return self._all[-1]

    def _open(self) -> Rdict:
        if self._directory is None:
            self._directory = ScratchDirectory.make(self._parent)
        if self._database is None:
            self._options = _options()
            self._database = Rdict(str(self._directory.path / "rocksdb"), self._options)
        return self._database

    def put(self, generation: Generation, key: bytes, value: bytes) -> None:
        """Write a value.

        Raises:
            SpillError: the disk refuses. What was put before can be read, what had not reached
                the disk too. RocksDB looks every 5 s whether there is room again.
        """
        assert generation.table is not None
        deadline_s = time.monotonic() + WRITE_TIMEOUT_S
        with telling("write", self):
            while not self._put(generation.table, key, value):
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"it took nothing for {WRITE_TIMEOUT_S:.0f} s")
                time.sleep(_WRITE_PAUSE_S)
        generation.written += value_bytes(value)
        self.disk_bytes += value_bytes(value)

    def _put(self, table: Rdict, key: bytes, value: bytes) -> bool:
        """False: both buffers are full, and have yet to reach the disk."""
        try:
            table.put(key, value, self._write_options)
        except Exception as error:
            if _STALLED in str(error):
                return False
            raise
        return True

    def get(self, generation: Generation, key: bytes) -> bytes:
        """Read a value, and compare its checksum.

        Raises:
            SpillError: the disk has something else.
        """
        assert generation.table is not None
        with telling("read", self, "start the consumer again, with another pending.dir"):
            found: bytes | None = generation.table.get(key, None, self._read_options)
            if found is None:
                raise FileNotFoundError("a value is missing")
        return found

    def drop_dead(self) -> None:
        """Drop the generations that nobody needs, but the one that is written to.

        Raises:
            SpillError: the disk refuses; it is tried again by the next call.
        """
        for generation in self.full:
            if generation.live:
                continue
            generation.table = None  # else it keeps the files
            assert self._database is not None
            with telling("write", self):
                self._database.drop_column_family(generation.name)
            self._all.remove(generation)
            self.disk_bytes -= generation.written

    def close(self) -> None:
        """Delete everything; the next value begins anew."""
        for generation in self._all:
            generation.table = None
        self._all.clear()
        self.disk_bytes = 0
        try:
            with telling("close", self):
                if self._database is not None:
                    self._database.close()
        except SpillError as error:
            # What was still in memory did not fit the disk, and is not needed.
            _LOG.warning("spill_close_failed path=%s error=%s", self.place, error)
        self._database = self._options = None
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.remove()


@contextmanager
def telling(what: str, generations: Generations, advice: str = _ADVICE) -> Iterator[None]:
    """What a disk or RocksDB refuses as a SpillError that says what to do."""
    try:
        yield
    except Exception as error:
        # rocksdict raises plain Exception; what is more special is a mistake in the code.
        if not isinstance(error, OSError) and type(error) is not Exception:
            raise
        raise SpillError(
            f"can't {what} {generations.place}: {error}. Nothing was lost; {advice}"
        ) from error
