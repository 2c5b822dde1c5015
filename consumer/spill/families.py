"""Stores values in a RocksDB that is written once, read once and never compacted.

Values go to one of RocksDB's column families after another. When no value in a family
is needed any more, it is dropped with all its files at once, so its space is free without rewriting
another's. Nothing outlives the process, so the write-ahead log is off.

Knows nothing of transactions; the caller says which values are still needed.
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
from .threads import start_threads

_LOG = logging.getLogger(__name__)
_MIB: Final = 1024 * 1024
WRITE_BUFFER_BYTES: Final = 16 * _MIB
"""Bytes of each of the two write buffers, and so of each file. More costs memory; less makes more
files, and writes wait for the disk sooner."""
WRITE_TIMEOUT_S: Final = 60.0
"""How long a value waits for earlier values to reach the disk and free a buffer. A longer wait
blocks the application for longer, a shorter one fails on a slow disk."""
_WRITE_PAUSE_S: Final = 0.002
"""Pause before such a value is tried again. Longer slows spilling, shorter costs CPU meanwhile."""
_STALLED: Final = "Write stall"
_ADVICE: Final = (
    "free space or set pending.dir to a writable directory, then start the consumer again"
)
VALUE_OVERHEAD_BYTES: Final = 64
"""Bytes that RocksDB writes per value besides it: key, index, filter, checksum. They count against
``pending.disk.max.bytes``; if this were too low, more than that would be on disk."""


def _options() -> Options:
    # These bound the memory: about 45 MB however much is stored, 122 MB at the defaults (measured).
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_db_write_buffer_size(2 * WRITE_BUFFER_BYTES)
    options.set_max_open_files(256)
    # A file is synced at its end. What reached the disk before need not be waited for then.
    options.set_bytes_per_sync(_MIB)
    options.set_compression_type(DBCompressionType.none())
    options.set_disable_auto_compactions(True)
    # Without compactions all files stay in level 0, where RocksDB would soon stop all writing.
    options.set_level_zero_slowdown_writes_trigger(2**30)
    options.set_level_zero_stop_writes_trigger(2**30)
    # Values that were written together are read together, so let the kernel read ahead.
    options.set_advise_random_on_open(False)
    options.set_manifest_preallocation_size(64 * 1024)
    options.set_max_log_file_size(_MIB)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(8 * _MIB))
    table.set_cache_index_and_filter_blocks(True)
    # The files of a family overlap where runs are interleaved: filters tell which has a key.
    table.set_bloom_filter(10, block_based=False)
    options.set_block_based_table_factory(table)
    return options


def value_bytes(value: bytes) -> int:
    """Returns the bytes that a value counts as on disk."""
    return len(value) + VALUE_OVERHEAD_BYTES


class Family:
    """A column family, dropped as a whole."""

    __slots__ = ("live", "name", "table", "written")

    def __init__(self, name: str, table: Rdict) -> None:
        """Called by `Families.writable` only."""
        self.name = name
        self.table: Rdict | None = table
        """The open column family; None once it is being dropped."""
        self.written = 0
        """Bytes put into it, which it occupies until it is dropped."""
        self.live = 0
        """Bytes of these that are still needed; the caller keeps this count."""

    @property
    def garbage(self) -> int:
        """Bytes that it occupies and that are not needed any more."""
        return self.written - self.live


class Families:
    """A database in a fresh directory, opened with the first value.

    One thread at a time may use it.
    """

    def __init__(self, parent: Path, family_bytes: int) -> None:
        """Opens nothing: the first value does.

        Args:
            parent: where the directory is made.
            family_bytes: size of a family, unless one value alone is larger.
        """
        self.disk_bytes = 0
        """Bytes of all values put and not dropped. RocksDB's own logs, below 2 MB, do not count."""
        self.family_bytes = family_bytes
        self._parent = parent
        self._directory: ScratchDirectory | None = None
        self._database: Rdict | None = None
        self._options: Options | None = None
        self._all: list[Family] = []
        """Families in the order they were begun; the last one is written to."""
        self._begun = 0
        self._write_options = WriteOptions()
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        # Else RocksDB would wait for its files without limit: on a full disk, for ever.
        self._write_options.no_slowdown = True
        self._read_options = ReadOptions()
        # A value is read once, so the cache is left to indexes and filters.
        self._read_options.fill_cache(False)  # type: ignore[call-arg]

    @property
    def place(self) -> Path:
        """Path of the directory; before it is made, of its parent."""
        return self._parent if self._directory is None else self._directory.path

    @property
    def garbage(self) -> int:
        """Bytes that are occupied and not needed any more."""
        return sum(family.garbage for family in self._all)

    @property
    def full(self) -> Sequence[Family]:
        """All families but the one that is written to."""
        return self._all[:-1]

    def writable(self, size: int) -> Family:
        """Returns the family for the next values, which are `size` bytes together.

        Begins a new one if the last has no room.

        Raises:
            SpillError: the disk refuses.
        """
        if self._all:
            last = self._all[-1]
            if not last.written or last.written + size <= self.family_bytes:
                return last
        with telling("write", self):
            database = self._open()
            assert self._options is not None
            self._begun += 1
            name = str(self._begun)
            self._all.append(Family(name, database.create_column_family(name, self._options)))
        return self._all[-1]

    def _open(self) -> Rdict:
        if self._directory is None:
            self._directory = ScratchDirectory.make(self._parent)
        if self._database is None:
            start_threads()
            self._options = _options()
            self._database = Rdict(str(self._directory.path / "rocksdb"), self._options)
        return self._database

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Writes a value.

        Raises:
            SpillError: the disk refuses. Earlier values can still be read, also those that had not
                reached the disk. RocksDB checks every 5 s whether there is room again.
        """
        assert family.table is not None
        deadline_s = time.monotonic() + WRITE_TIMEOUT_S
        with telling("write", self):
            while not self._put(family.table, key, value):
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"it took nothing for {WRITE_TIMEOUT_S:.0f} s")
                time.sleep(_WRITE_PAUSE_S)
        family.written += value_bytes(value)
        self.disk_bytes += value_bytes(value)

    def _put(self, table: Rdict, key: bytes, value: bytes) -> bool:
        """Returns False if both buffers are full and have not reached the disk yet."""
        try:
            table.put(key, value, self._write_options)
        except Exception as error:
            if _STALLED in str(error):
                return False
            raise
        return True

    def get(self, family: Family, key: bytes) -> bytes:
        """Returns a value, after comparing its checksum.

        Raises:
            SpillError: the disk returned something else, or nothing.
        """
        assert family.table is not None
        with telling("read", self, "start the consumer again, with another pending.dir"):
            found: bytes | None = family.table.get(key, None, self._read_options)
            if found is None:
                raise FileNotFoundError("a value is missing")
        return found

    def drop_dead(self) -> None:
        """Drops the families without live bytes, except the one that is written to.

        Raises:
            SpillError: the disk refuses; the next call tries again.
        """
        for family in self.full:
            if family.live:
                continue
            family.table = None  # an open table would keep the files
            assert self._database is not None
            # First: who is interrupted behind the drop would drop it again, which fails for ever.
            self._all.remove(family)
            self.disk_bytes -= family.written
            try:
                with telling("write", self):
                    self._database.drop_column_family(family.name)
            except SpillError:
                self._all.insert(0, family)
                self.disk_bytes += family.written
                raise

    def close(self) -> None:
        """Deletes everything. The next value opens a new database."""
        for family in self._all:
            family.table = None
        self._all.clear()
        self.disk_bytes = 0
        # First, and in one step: who is interrupted behind it would write to a closed database.
        database, directory = self._database, self._directory
        self._database = self._options = self._directory = None
        try:
            with telling("close", self):
                if database is not None:
                    database.close()
        except SpillError as error:
            # What RocksDB still had in memory did not fit on the disk, and is not needed.
            place = self._parent if directory is None else directory.path
            _LOG.warning("spill_close_failed path=%s error=%s", place, error)
        finally:
            if directory is not None:
                directory.remove()


@contextmanager
def telling(what: str, families: Families, advice: str = _ADVICE) -> Iterator[None]:
    """Turns errors of the disk or RocksDB into a SpillError that says what to do."""
    try:
        yield
    except Exception as error:
        # rocksdict raises plain Exception. Any subclass but OSError is a mistake in the code.
        if not isinstance(error, OSError) and type(error) is not Exception:
            raise
        raise SpillError(
            f"can't {what} {families.place}: {error}. Nothing was lost; {advice}"
        ) from error
