"""A metadata store in a directory of this machine: RocksDB, one database, for one coordinator.

One thread writes, others read, and the event loop does neither. The write-ahead log is off: each
write has its cursor with it, so whatever a crash leaves is what the journal said at some point, and
the journal has the rest. A database that is damaged is moved aside and made again from the journal.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from ...journal.errors import MetadataStoreError
from .base import PAGE, READY, Event, Item
from .core.changes import Guards, Mutation
from .core.keys import COUNT, Span
from .keyed import Batch, KeyedStore
from .watching import Watches

_LOG = logging.getLogger(__name__)
_MIB: Final = 1024 * 1024
WRITE_BUFFER_BYTES: Final = 8 * _MIB
"""Bytes of each of the two write buffers. More costs memory, and reads more of the journal again
after a crash; less makes more, smaller files."""
CACHE_BYTES: Final = 8 * _MIB
"""Bytes of blocks kept in memory, indexes and filters among them."""
MUTATIONS_MAX: Final = 15_000
"""Most keys of a write: a few megabytes, and some 50 ms. A larger one lets a watcher wait longer;
smaller ones join fewer changes of the same transaction."""
READERS: Final = 2
"""Ranges read at one time; more take processor time from the clients of the coordinator."""
CLOSE_S: Final = 10.0
"""How long `close` waits for a write that is under way."""
_DAMAGED: Final = ("Corruption", "MANIFEST")
"""Words in RocksDB's messages of files that are missing or wrong."""
_LOCKED: Final = ("lock hold", "While lock file", "LOCK")

_KEY: Final = itemgetter(0)

T = TypeVar("T")


def _options() -> Options:
    # These bound the memory: 25 MB however much is stored.
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_db_write_buffer_size(2 * WRITE_BUFFER_BYTES)
    options.set_max_open_files(64)
    options.set_target_file_size_base(8 * _MIB)
    options.set_bytes_per_sync(_MIB)
    options.set_max_log_file_size(_MIB)
    options.set_keep_log_file_num(2)
    options.set_manifest_preallocation_size(64 * 1024)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(CACHE_BYTES))
    table.set_cache_index_and_filter_blocks(True)
    table.set_bloom_filter(10, block_based=False)
    options.set_block_based_table_factory(table)
    return options


def _below(high: bytes) -> ReadOptions:
    options = ReadOptions()
    options.set_iterate_upper_bound(high)
    return options


class _Database:
    """The open database. One thread at a time writes; any thread reads."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._table = Rdict(str(path), _options())
        self._write_options = WriteOptions()
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        self.count = int.from_bytes(self._table.get(COUNT) or b"")
        """Number of operations."""

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._table.get(key)
        return found

    def _hold(self, guards: Guards) -> bool:
        absent = [key for key, value in guards.items() if value is None]
        # Transactions that begin have keys behind all others of their journal, so one look at the
        # range finds nothing. To ask for each takes a tenth of a projector's time.
        if len(absent) > 1 and self._is_empty(Span(min(absent), max(absent) + b"\0")):
            guards = {key: value for key, value in guards.items() if value is not None}
        return all(self.get(key) == value for key, value in guards.items())

    def _is_empty(self, span: Span) -> bool:
        found = self._table.iter(_below(span.high))
        found.seek(span.low)
        if found.valid():
            return False
        found.status()  # raises if it ends there because a file is damaged
        return True

    def commit(self, batch: Batch) -> list[Mutation] | None:
        if not self._hold(batch.guards):
            return None
        mutations, added = batch.all(), batch.added
        write = WriteBatch(raw_mode=True)
        # RocksDB looks for where a key goes from the key before on, so in their order it takes a
        # third of the time. Watchers are told in the order of the changes: an entry that moves has
        # its old key deleted first.
        for key, value in sorted(mutations, key=_KEY):
            if value is None:
                write.delete(key)
            else:
                write[key] = value
        if added:
            write.put(COUNT, (self.count + added).to_bytes(8))
        self._table.write(write, self._write_options)
        self.count += added
        return mutations

    def items(self, span: Span) -> Iterator[Item]:
        """Yields a range as it is now: RocksDB's iterator does not see what is written later."""
        # Not an iterator of a snapshot: rocksdict 0.3.29 gives one that sees later writes.
        found: Any = self._table.items(False, span.low, _below(span.high))
        return iter(found)

    def page(self, span: Span, limit: int) -> list[Item]:
        page = list(islice(self.items(span), limit))
        if len(page) < limit:
            self.check_end(span, page[-1] if page else None)
        return page

    def check_end(self, span: Span, last: Item | None) -> None:
        """Raises if a range ends where it does because a file is damaged: `items` hides that."""
        rest = self._table.iter(_below(span.high))
        rest.seek(span.low if last is None else last[0] + b"\0")
        rest.status()

    def flush(self) -> None:
        self._table.flush()

    def close(self) -> None:
        self._table.close()


class _Content:
    """What a range has at one moment."""

    def __init__(self, database: _Database, span: Span, behind: int) -> None:
        self._database = database
        self._span = span
        self._items = database.items(span)
        self._last: Item | None = None
        self.behind = behind
        """Number of the last write that is in it."""

    def page(self) -> list[Item]:
        """Returns what follows; nothing at its end."""
        page = list(islice(self._items, PAGE))
        if page:
            self._last = page[-1]
        else:
            self._database.check_end(self._span, self._last)
        return page


class RocksStore(KeyedStore):
    """Keeps everything in one directory, and little of it in memory."""

    name: ClassVar[str] = "rocksdb"

    def __init__(self, directory: Path) -> None:
        """Opens nothing: the first call does, and again later if it can't."""
        self.mutations_max = MUTATIONS_MAX
        self._path = directory / "rocksdb"
        self._database: _Database | None = None
        self._broken = ""
        """Why the database takes no more writes; "" if it does."""
        self._number = 0
        self._watches = Watches()
        self._loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="metadata-writer")
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="metadata-reader")

    # ---- the writer's thread --------------------------------------------------------------------

    def _open(self) -> _Database:
        """Returns the database, opened anew if it is not open or broke."""
        if self._database is not None and not self._broken:
            return self._database
        former, self._database = self._database, None
        if former is not None:
            # What it still had in memory is in the journal.
            with suppress(Exception):
                former.close()
            del former
        if _is_damaged(self._broken):
            self._move_aside()
        try:
            self._database = _Database(self._path)
        except Exception as error:
            if not _is_damaged(str(error)):
                raise
            self._move_aside()
            self._database = _Database(self._path)
        self._broken = ""
        return self._database

    def _move_aside(self) -> None:
        aside = self._path.with_name("rocksdb.damaged")
        shutil.rmtree(aside, ignore_errors=True)
        self._path.rename(aside)
        _LOG.error("metadata_store_damaged path=%s moved_to=%s", self._path, aside)

    def _commit_here(self, batch: Batch) -> bool:
        mutations = self._open().commit(batch)
        if mutations is None:
            return False
        self._number += 1
        # Told from here, for only here the order of the writes is known.
        with suppress(RuntimeError):  # the loop is closed: nobody watches any more
            self._loop.call_soon_threadsafe(self._watches.tell, self._number, mutations)
        return True

    def _content_here(self, span: Span) -> _Content:
        return _Content(self._open(), span, self._number)

    def _flush_here(self) -> None:
        self._open().flush()

    def _close_here(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.flush()
            database.close()

    # ---- the event loop -------------------------------------------------------------------------

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        try:
            return await self._loop.run_in_executor(pool, work)
        except MetadataStoreError:
            raise
        except Exception as error:
            # rocksdict raises plain Exception. Any subclass but OSError is a mistake in the code,
            # or says that the store was closed.
            if not isinstance(error, OSError | RuntimeError) and type(error) is not Exception:
                raise
            if pool is self._writer or _is_damaged(str(error)):
                self._broken = str(error) or repr(error)
            raise self._told(error) from error

    def _told(self, error: Exception) -> MetadataStoreError:
        text = str(error) or repr(error)
        advice = "free space, or make the directory writable, or name another one"
        if any(word in text for word in _LOCKED):
            advice = "another process has it open: give each coordinator a directory of its own"
        elif _is_damaged(text):
            advice = "it is moved aside, and made again from the journal"
        return MetadataStoreError(
            f"the metadata store in {self._path.parent} fails: {text}. Transactions go on without"
            f" it; {advice}"
        )

    async def _opened(self) -> _Database:
        if self._database is not None:
            return self._database
        return await self._run(self._writer, self._open)

    async def _get(self, key: bytes) -> bytes | None:
        database = await self._opened()
        return await self._run(self._readers, lambda: database.get(key))

    async def _page(self, span: Span, limit: int) -> list[Item]:
        database = await self._opened()
        return await self._run(self._readers, lambda: database.page(span, limit))

    async def _commit(self, batch: Batch) -> bool:
        return await self._run(self._writer, lambda: self._commit_here(batch))

    async def watch(self, span: Span) -> AsyncIterator[list[Event]]:
        """Watches a range: see `MetadataStore`."""
        watch = self._watches.begin(span)
        try:
            # The writer's thread makes the iterator, between two writes: the number says which
            # changes it sees. Those that come before it is made wait in the watch.
            content = await self._run(self._writer, lambda: self._content_here(span))
            while page := await self._run(self._readers, content.page):
                watch.check()
                yield [Event(*item) for item in page]
            behind = content.behind
            del content
            yield [READY]
            while True:
                yield await watch.take(behind)
        finally:
            self._watches.end(watch)

    async def outstanding(self) -> int:
        """Returns the number of operations."""
        return (await self._opened()).count

    async def tidy(self) -> None:
        """Writes to the disk what is in memory, so that a crash leaves less to be read again."""
        await self._run(self._writer, self._flush_here)

    async def close(self) -> None:
        """Ends all watches, writes what is in memory to the disk, and closes the database."""
        self._watches.close()
        self._readers.shutdown(wait=False, cancel_futures=True)
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._run(self._writer, self._close_here)
        except (MetadataStoreError, TimeoutError) as error:
            _LOG.warning("metadata_store_not_closed path=%s error=%s", self._path, error)
        self._writer.shutdown(wait=False, cancel_futures=True)


def _is_damaged(text: str) -> bool:
    return any(word in text for word in _DAMAGED)
