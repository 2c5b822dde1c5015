"""Follows the journal and applies it to the store. Nothing waits for it; it waits for the store.

One thread reads the journal and turns it into changes; the event loop hands them to the store. A
store that fails is tried again after a pause, from where it stands. A store that was lost, or that
is behind the journal's start, is made again from the journal.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final, NamedTuple, TypeVar

from confluent_kafka import KafkaException

from ...journal.errors import (
    BrokerError,
    CorruptRecordError,
    LogtxError,
    MetadataStoreError,
)
from ...journal.follower import JournalFollower
from ...journal.logs.interface import Log
from ...journal.reader import (
    JOURNAL_TOPIC,
    STANDING_READER_SETTINGS,
    RecordsTrimmedError,
    earlier_snapshots,
    find_snapshot,
    read_entries,
)
from ...journal.records.fate import NO_EPOCH
from ...journal.records.types import Entry
from ...journal.txid import MAX_OFFSET
from ..protocol.metadata import Header, HeaderState, Projected
from .base import Item, MetadataStore
from .core.changes import REBUILDING, Change, Cursor, HeaderDiffersError, Write
from .core.codec import decode
from .core.keys import Span, deadlines, final, headers_of, operations_of_journal
from .core.projection import Projection
from .counters import StoreCounters

_LOG = logging.getLogger(__name__)

POLL_S: Final = 0.05
"""Longest time until a change of what is followed takes effect; also until the thread ends."""
ASK_TIMEOUT_S: Final = 5.0
"""Longest wait for one answer of Kafka when a partition is begun."""
READ_TIMEOUT_S: Final = 60.0
"""Longest wait without progress while a snapshot is looked for."""
PAUSE_MIN_S: Final = 0.05
PAUSE_MAX_S: Final = 5.0
"""Pauses before what failed is tried again: a shorter one loads a store that is ill, a longer one
finds it well later."""
FORGIVEN_S: Final = 120.0
"""How long a partition must go on until its next failure counts as the first; half of it is the
longest pause before one that can't be read is tried again, and perhaps made again."""
ROUND_S: Final = 0.02
"""Pause between two looks of `projected` at a store that others write."""
CLEAR_PAGE: Final = 500
"""Records deleted at once where a store is made again, if it takes as many."""

T = TypeVar("T")


class _Following:
    """One journal partition that is projected."""

    def __init__(self, projection: Projection, written: Cursor | None, first: int) -> None:
        self.projection = projection
        self.written = written
        """What the store's cursor is."""
        self._first = first

    @property
    def next_offset(self) -> int:
        """Journal offset of the record to feed next; where it begins, before the first."""
        fed = self.projection.next_offset
        return self._first if fed is None else fed


class _Progress(NamedTuple):
    """What was read of one partition."""

    partition: int
    writes: Sequence[Write]
    error: LogtxError | None = None
    """Why it does not go on behind that."""
    anew: bool = False
    """Whether what the store has is not what the journal says, so that it is to be made again."""


class Projector:
    """Projects journal partitions into one store; lives on an event loop."""

    def __init__(
        self,
        log: Log,
        store: MetadataStore,
        wanted: Callable[[], Collection[int]],
        counters: StoreCounters,
    ) -> None:
        """Does nothing before `run`.

        Args:
            log: the log that the journal lies in.
            store: the store to write.
            wanted: returns the journal partitions that this coordinator projects at present.
            counters: counts what is written.
        """
        self._log = log
        self._store = store
        self._wanted = wanted
        self._counters = counters
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metadata-journal")
        self._follower: JournalFollower | None = None
        self._following: dict[int, _Following] = {}
        self._problems: dict[int, str] = {}
        self._retry_s: dict[int, float] = {}
        """Partition that can't be begun → when to try again."""
        self._failures: dict[int, tuple[int, float]] = {}
        """Partition → how often it failed lately, and when it did last."""
        self._rebuild: set[int] = set()
        """Partitions that are to be begun anew."""
        self._dirty = False
        """Whether the reader of the journal follows others than are wanted."""
        self._moved = asyncio.Event()
        self.store_problem = ""
        """Why the store takes nothing; "" if it does."""

    # ---- what others ask ------------------------------------------------------------------------

    def offsets(self) -> dict[int, int]:
        """Returns, for each partition projected here, the journal offset up to which it is."""
        return {
            p: REBUILDING if f.written is None else f.written.offset
            for p, f in self._following.items()
        }

    def describe(self, ends: Mapping[int, int]) -> tuple[Projected, ...]:
        """Returns how far each partition is that is projected here."""
        offsets = self.offsets()
        return tuple(
            Projected(
                partition=partition,
                next_offset=offsets.get(partition, REBUILDING),
                lag_records=(
                    max(0, ends[partition] - max(0, offsets.get(partition, 0)))
                    if partition in ends
                    else None
                ),
                problem=self._problems.get(partition, ""),
            )
            for partition in sorted({*self._wanted(), *offsets})
        )

    async def projected(self, ends: Mapping[int, int], timeout_s: float) -> None:
        """Waits until the store has each journal partition up to an offset.

        Raises:
            MetadataStoreError: it did not within `timeout_s` seconds; the message says why.
        """
        try:
            async with asyncio.timeout(timeout_s):
                for partition, end in ends.items():
                    while not await self._has(partition, end):
                        self._moved.clear()
                        try:
                            await asyncio.wait_for(self._moved.wait(), ROUND_S)
                        except TimeoutError:
                            continue
        except TimeoutError as error:
            why = self.store_problem or "; ".join(self._problems.values())
            raise MetadataStoreError(
                f"the metadata store did not catch up with the journal in {timeout_s:g} s"
                f"{': ' + why if why else ''}; ask again, or ask for what it has (fresh=False)"
            ) from error

    async def _has(self, partition: int, end: int) -> bool:
        following = self._following.get(partition)
        if following is not None:
            written = following.written
        elif self._store.shared:
            written = await self._store.cursor(partition)
        else:
            written = None
        return (written.offset if written is not None else 0) >= end

    # ---- the loop -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Projects until it is cancelled."""
        try:
            while True:
                await self._join()
                for partition, writes, error, anew in await self._in_thread(self._read):
                    await self._apply(partition, writes)
                    if error is not None and partition in self._following:
                        self._fail(partition, error, anew=anew)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def close(self) -> None:
        """Closes the reader of the journal. Call it when `run` has ended."""
        follower, self._follower = self._follower, None
        if follower is not None:
            await asyncio.to_thread(follower.close)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _read(self) -> list[_Progress]:
        """Waits for records. Returns, by partition, what they change, and why it ends there."""
        if not self._following:
            time.sleep(POLL_S)
            return []
        try:
            if self._follower is None:
                places = {p: f.next_offset for p, f in self._following.items()}
                self._follower = JournalFollower(self._log, places, STANDING_READER_SETTINGS)
            entries = self._follower.poll(POLL_S)
        except KafkaException as error:
            # A LogtxError is one too: it is that of one partition, and the others go on.
            failed = None if self._follower is None else self._follower.failed
            told = error if isinstance(error, LogtxError) else BrokerError(f"reading: {error}")
            if failed is None:
                failed = next(iter(self._following))
            return [_Progress(failed, (), told)]
        read: dict[int, list[tuple[int, Entry]]] = {}
        for partition, offset, entry in entries:
            if partition in self._following:
                read.setdefault(partition, []).append((offset, entry))
        return [self._project(partition, found) for partition, found in read.items()]

    def _project(self, partition: int, entries: Sequence[tuple[int, Entry]]) -> _Progress:
        try:
            return _Progress(partition, self._following[partition].projection.feed(entries))
        except CorruptRecordError as error:
            return _Progress(partition, (), error, anew=True)

    async def _apply(self, partition: int, writes: Iterable[Write]) -> None:
        """Writes changes; tries again for as long as the store fails."""
        for write in writes:
            following = self._following.get(partition)
            if following is None:
                return
            failures = 0
            while not await self._applied(partition, following, write):
                failures += 1
                if self._following.get(partition) is not following:
                    return
                await asyncio.sleep(_pause_s(failures))
                if partition not in self._wanted():
                    self._leave(partition)
                    return

    async def _applied(self, partition: int, following: _Following, write: Write) -> bool:
        try:
            done = await self._store.write(partition, following.written, write)
        except HeaderDiffersError as error:
            self._fail(partition, error, anew=True)
            return False
        except MetadataStoreError as error:
            self._store_fails(error)
            return False
        self._store_works()
        if not done:
            # Another one is further: it was written by a coordinator that owned the partition
            # before or does now, or by an attempt of ours whose answer was lost. Or the store was
            # lost.
            _LOG.info("metadata_projected_elsewhere partition=%d", partition)
            self._leave(partition)
            return False
        following.written = write.cursor
        self._counters.op_writes += write.put
        self._moved.set()
        return True

    def _store_fails(self, error: MetadataStoreError) -> None:
        if not self.store_problem:
            _LOG.error("metadata_store_fails error=%s", error)
        self.store_problem = str(error)

    def _store_works(self) -> None:
        if self.store_problem:
            _LOG.info("metadata_store_works_again")
        self.store_problem = ""

    # ---- beginning and ending -------------------------------------------------------------------

    def _leave(self, partition: int) -> None:
        """Stops projecting a partition; `_join` begins it again if it is wanted."""
        self._following.pop(partition, None)
        self._dirty = True

    def _fail(self, partition: int, error: LogtxError, *, anew: bool = False) -> None:
        """Stops projecting a partition, for a while that grows with its failures."""
        self._leave(partition)
        now_s = time.monotonic()
        failures, at_s = self._failures.get(partition, (0, now_s))
        failures = 1 if now_s - at_s > FORGIVEN_S else failures + 1
        self._failures[partition] = failures, now_s
        if failures == 1:
            _LOG.warning("metadata_not_projected partition=%d error=%s", partition, error)
        self._retry_s[partition] = now_s + _pause_s(failures, FORGIVEN_S / 2)
        self._problems[partition] = str(error)
        if anew:
            self._rebuild.add(partition)

    async def _join(self) -> None:
        """Follows the partitions that are wanted, and no others."""
        wanted = set(self._wanted())
        for partition in self._following.keys() - wanted:
            self._leave(partition)
        for partition in sorted(wanted - self._following.keys()):
            if time.monotonic() < self._retry_s.get(partition, 0):
                continue
            try:
                self._following[partition] = await self._begin(partition)
            except MetadataStoreError as error:
                self._store_fails(error)
                self._retry_s[partition] = time.monotonic() + PAUSE_MAX_S / 5
                return
            except LogtxError as error:
                self._fail(partition, error)
            else:
                self._store_works()
                self._problems.pop(partition, None)
                self._retry_s.pop(partition, None)
                self._dirty = True
        if self._dirty:
            self._dirty = False
            await self._in_thread(self._move)

    def _move(self) -> None:
        if self._follower is None:
            return
        self._follower.move({p: f.next_offset for p, f in self._following.items()})

    async def _begin(self, partition: int) -> _Following:
        """Returns the projection of a partition, from where the store has it.

        Raises:
            MetadataStoreError: the store does not answer.
            LogtxError: the journal can't be read; the message says why.
        """
        cursor = await self._store.cursor(partition)
        if cursor is None or partition in self._rebuild:
            return await self._begin_anew(partition, cursor)
        start, usable = await self._in_thread(lambda: self._is_usable(partition, cursor))
        if not usable:
            _LOG.warning(
                "metadata_store_made_again partition=%d cursor=%d start=%d",
                *(partition, cursor.offset, start),
            )
            return await self._begin_anew(partition, cursor)
        projection = await resume(self._store, partition, cursor)
        return _Following(projection, cursor, cursor.offset)

    def _is_usable(self, partition: int, cursor: Cursor) -> tuple[int, bool]:
        """Returns where the journal begins, and whether it can be read on from the cursor."""
        start = self._log.start_offset(JOURNAL_TOPIC, partition, timeout_s=ASK_TIMEOUT_S)
        end = self._log.end_offset(JOURNAL_TOPIC, partition, timeout_s=ASK_TIMEOUT_S)
        if cursor.offset == REBUILDING or not start <= cursor.offset <= end:
            return start, False
        last = max(start, cursor.offset - 1)
        entries = read_entries(
            self._log, partition, last, min(last + 1, end), timeout_s=ASK_TIMEOUT_S
        )
        with closing(entries):
            for _, entry in entries:
                known = cursor.incarnation
                # Behind the first record, one without an epoch may have any: see `Projection`.
                says_nothing = known is None or (last > 0 and entry.epoch == NO_EPOCH)
                return start, says_nothing or entry.incarnation == known
        return start, True

    async def _begin_anew(self, partition: int, cursor: Cursor | None) -> _Following:
        """Empties the store of a journal partition, and begins it where the journal does."""
        base = await self._in_thread(lambda: find_base(self._log, partition))
        await clear(self._store, partition, cursor)
        self._rebuild.discard(partition)
        self._counters.rebuilt += 1
        start = Cursor(REBUILDING if base else 0)
        return _Following(Projection(partition, start, self._store.mutations_max), None, base)


def _pause_s(failures: int, longest_s: float = PAUSE_MAX_S) -> float:
    return float(min(PAUSE_MIN_S * 2.0 ** min(failures, 16), longest_s))


def find_base(log: Log, partition: int) -> int:
    """Returns where a projection begins that knows nothing: 0, or the first chunk of a snapshot.

    Of the snapshots that count the earliest is taken, so that what is placed is known for as long
    as its data lives. No other names it: the journal may have been trimmed to it, and a snapshot
    names only the fence that waits.

    Raises:
        CorruptRecordError: the journal was trimmed, and no snapshot that counts is in it.
        BrokerError, JournalError: the journal can't be read.
    """
    start = log.start_offset(JOURNAL_TOPIC, partition, timeout_s=ASK_TIMEOUT_S)
    if start == 0:
        return 0
    found = find_snapshot(log, partition, timeout_s=READ_TIMEOUT_S)
    if found is None:
        raise CorruptRecordError(
            f"journal partition {partition} begins at {start}, and no snapshot that counts follows:"
            " restore the journal from a copy"
        )
    try:
        earlier = earlier_snapshots(
            log, partition, start, found.first, found.epochs(), timeout_s=READ_TIMEOUT_S
        )
    except RecordsTrimmedError as error:
        raise BrokerError(f"journal partition {partition} is being trimmed: {error}") from error
    return min(earlier, default=found.first)


async def resume(store: MetadataStore, partition: int, cursor: Cursor) -> Projection:
    """Returns the projection that goes on where the store's cursor stands.

    Raises:
        MetadataStoreError: the store fails, or another projector moves the cursor meanwhile: then
            what was read is of several moments.
    """
    projection = Projection(partition, cursor, store.mutations_max)
    for span in (deadlines(), *(_unfinished(state) for state in _DECIDED)):
        async for page in store.scan(span):
            for item in page:
                header = decode(*item)
                assert isinstance(header, Header), "the index is one of headers"
                if header.txid.journal == (partition, cursor.incarnation):
                    projection.restore(header, await store.operations(header.txid))
    projection.restored()
    if await store.cursor(partition) != cursor:
        raise MetadataStoreError(f"journal partition {partition} is projected elsewhere meanwhile")
    return projection


_DECIDED: Final = (HeaderState.COMMITTED, HeaderState.ABORTED)


def _unfinished(state: HeaderState) -> Span:
    return final(state, finished=False, from_ms=0, to_ms=MAX_OFFSET)


async def clear(store: MetadataStore, partition: int, cursor: Cursor | None) -> None:
    """Deletes all that the store has of a journal partition, and its cursor.

    Raises:
        MetadataStoreError: the store fails, or another projector writes it meanwhile.
    """
    # The cursor goes first: whoever finds none begins here.
    if not await store.apply(partition, cursor, None, []):
        raise MetadataStoreError(f"journal partition {partition} is projected elsewhere")
    size = max(1, min(CLEAR_PAGE, store.mutations_max // 2))
    for span in (operations_of_journal(partition), headers_of(partition)):
        while page := await _first(store, span, size):
            doomed = [Change(decode(*item), None) for item in page]
            if not await store.apply(partition, None, None, doomed):
                raise MetadataStoreError(f"journal partition {partition} is projected elsewhere")


async def _first(store: MetadataStore, span: Span, limit: int) -> list[Item]:
    async for page in store.scan(span, limit):
        return page
    return []
