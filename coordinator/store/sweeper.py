"""Deletes from the store what no reader needs any more.

A write that is placed is needed for as long as a reader may begin below its place: until the log's
start passed it, or its topic is gone. Then the header goes, when it is old enough and has no
operations left. A store with little room keeps a window of time instead.

Source: PIP-471, "Garbage collection". What is placed outlives the transaction, for a header that
went while data is there would make a new reader take what is committed for an orphan.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ...journal.control import TopicPartition
from ...journal.errors import LogtxError, MetadataStoreError
from ...journal.logs.interface import Log
from ...journal.txid import TxId
from ..protocol.metadata import Header, HeaderState, Operation
from .base import Item, MetadataStore
from .core.changes import MUTATIONS_MAX, Change
from .core.codec import decode
from .core.keys import (
    WRITES,
    Span,
    after,
    final,
    operations_of,
    parse,
    prefixed,
    segment,
    writes,
)
from .counters import StoreCounters

_LOG = logging.getLogger(__name__)

ASK_TIMEOUT_S: Final = 10.0
"""Longest wait for one answer of Kafka; past it the sweep leaves those partitions for the next."""
PAGE: Final = 500
"""Records looked at before others have their turn."""
PAUSE_S: Final = 0.005
"""Pause between two pages. A longer one makes a sweep longer; without it a large sweep would take
processor time from the coordinator's clients in one go."""
FULL_EVERY: Final = 60
"""Sweeps until one looks at all headers again: some finish long after they were decided, and so lie
before what was looked at. Fewer cost more; more leave such headers for longer."""
ASKED_MAX: Final = 1_000
"""Data partitions whose starts are asked for at once."""


class Sweeper:
    """Sweeps one store now and then; lives on an event loop."""

    def __init__(
        self,
        log: Log,
        store: MetadataStore,
        counters: StoreCounters,
        *,
        mine: Callable[[], Collection[int]],
        history_ms: int | None,
        header_retention_ms: int,
    ) -> None:
        """Sweeps nothing before `sweep`.

        Args:
            log: the log that the data lies in.
            store: the store.
            counters: counts what is deleted.
            mine: returns the journal partitions whose transactions are swept here.
            history_ms: how long after its decision a finished transaction is kept at most; None:
                for as long as it is needed.
            header_retention_ms: how long a header is kept at least after the decision.
        """
        self._log = log
        self._store = store
        self._counters = counters
        self._mine = mine
        self._history_ms = history_ms
        self._header_retention_ms = header_retention_ms
        self._seen: dict[HeaderState, bytes] = {}
        """State → the entry up to which its headers were looked at. Those that had operations then
        are looked at again when these go."""
        self._sweeps = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metadata-sweep")

    async def sweep(self, now_ms: int) -> None:
        """Deletes what is not needed at `now_ms`, wall clock.

        Raises:
            MetadataStoreError: the store fails.
        """
        if self._sweeps % FULL_EVERY == 0:
            self._seen.clear()
        self._sweeps += 1
        emptied = await self._sweep_operations()
        for state in (HeaderState.COMMITTED, HeaderState.ABORTED):
            await self._sweep_history(state, now_ms)
            await self._sweep_headers(state, now_ms)
        await self._sweep_emptied(emptied, now_ms)
        await self._store.tidy()
        self._counters.operations = await self._store.outstanding()
        self._counters.swept_ms = now_ms

    def close(self) -> None:
        """Lets go of the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    # ---- operations whose data is gone ----------------------------------------------------------

    async def _sweep_operations(self) -> set[TxId]:
        """Returns the transactions of which operations were deleted."""
        touched: set[TxId] = set()
        partitions = [p async for p in self._segments()]
        for at in range(0, len(partitions), ASKED_MAX):
            asked = partitions[at : at + ASKED_MAX]
            loop = asyncio.get_running_loop()
            ids, starts = await loop.run_in_executor(self._thread, self._ask, asked)
            for partition in asked:
                touched |= await self._sweep_partition(partition, ids, starts)
        return touched

    async def _segments(self) -> AsyncIterator[TopicPartition]:
        """Yields the data partitions that the index has, by one look at each."""
        low = WRITES
        while True:
            first = await _first(self._store, Span(low, after(WRITES)), 1)
            if not first:
                return
            told = parse(first[0][0])
            yield told.topic, told.partition
            low = after(segment(told.topic, told.partition))

    def _ask(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[str, str] | None, dict[TopicPartition, int]]:
        """Asks Kafka for the topics' ids, None if it does not tell, and for the logs' starts."""
        try:
            topics = sorted({topic for topic, _ in partitions})
            existing = self._log.topics(timeout_s=ASK_TIMEOUT_S)
            ids = self._log.topic_ids(topics, timeout_s=ASK_TIMEOUT_S)
            found = self._log.each_start_offset(
                [p for p in partitions if p[0] in existing], timeout_s=ASK_TIMEOUT_S
            )
        except LogtxError as error:
            _LOG.warning("metadata_sweep_incomplete error=%s", error)
            return None, {}
        known = {topic: ids.get(topic, "") for topic in topics if topic in existing}
        return known, {p: start for p, start in found.items() if isinstance(start, int)}

    async def _sweep_partition(
        self,
        partition: TopicPartition,
        ids: dict[str, str] | None,
        starts: dict[TopicPartition, int],
    ) -> set[TxId]:
        topic_id = None if ids is None else ids.get(partition[0])
        start = starts.get(partition)
        if ids is not None and topic_id is None:
            span = prefixed(segment(*partition))
        elif start is not None:
            # What is placed at the start itself is still due to a reader that begins there.
            span = writes(*partition, 0, start)
        else:
            return set()
        touched = await self._delete_operations(span, lambda _: True)
        if topic_id:
            # A topic that was created anew has other data.
            other = prefixed(segment(*partition))
            touched |= await self._delete_operations(
                other, lambda o: bool(o.topic_id) and o.topic_id != topic_id
            )
        return touched

    async def _delete_operations(
        self, span: Span, doomed: Callable[[Operation], bool]
    ) -> set[TxId]:
        """Deletes operations of finished transactions. Returns the transactions."""
        touched: set[TxId] = set()
        async for page in self._pages(span):
            found = [decode(*item) for item in page]
            gone = [
                o for o in found if isinstance(o, Operation) and doomed(o) and self._is_mine(o.txid)
            ]
            finished = {t for t in {o.txid for o in gone} if await self._is_finished(t)}
            deleted = [o for o in gone if o.txid in finished]
            self._counters.swept_operations += await self._delete(deleted)
            touched |= finished
        return touched

    async def _is_finished(self, txid: TxId) -> bool:
        header = await self._store.header(txid)
        return header is None or header.finished

    # ---- headers --------------------------------------------------------------------------------

    async def _sweep_history(self, state: HeaderState, now_ms: int) -> None:
        """Deletes what is older than the window, with its operations."""
        if self._history_ms is None:
            return
        before_ms = max(0, now_ms - self._history_ms)
        span = final(state, finished=True, from_ms=0, to_ms=before_ms)
        async for page in self._pages(span):
            for header in self._headers(page):
                operations = await self._store.operations(header.txid)
                # Where they don't go at once the header goes first: a reader that finds it behind
                # the operations has got all of these.
                deleted = await self._delete([header, *operations])
                self._counters.swept_headers += min(deleted, 1)
                self._counters.swept_operations += max(deleted - 1, 0)

    async def _sweep_headers(self, state: HeaderState, now_ms: int) -> None:
        """Deletes the headers that came of age since the last sweep, and have no operations."""
        before_ms = max(0, now_ms - self._header_retention_ms)
        span = final(state, finished=True, from_ms=0, to_ms=before_ms)
        low = max(span.low, self._seen.get(state, b""))
        async for page in self._pages(Span(low, span.high)):
            await self._delete_headers(self._headers(page))
            self._seen[state] = page[-1][0]

    async def _sweep_emptied(self, txids: Iterable[TxId], now_ms: int) -> None:
        """Deletes the headers of transactions whose last operations went just now."""
        before_ms = now_ms - self._header_retention_ms
        found = [await self._store.header(txid) for txid in txids]
        old = [h for h in found if h is not None and h.finished and h.finalized_ms < before_ms]
        for at in range(0, len(old), PAGE):
            await self._delete_headers(old[at : at + PAGE])

    def _headers(self, page: Iterable[Item]) -> list[Header]:
        found = [decode(*item) for item in page]
        return [h for h in found if isinstance(h, Header) and self._is_mine(h.txid)]

    async def _delete_headers(self, headers: Iterable[Header]) -> None:
        empty = [h for h in headers if not await _first(self._store, operations_of(h.txid), 1)]
        self._counters.swept_headers += await self._delete(empty)

    # ---- common ---------------------------------------------------------------------------------

    def _is_mine(self, txid: TxId) -> bool:
        return txid.partition in self._mine()

    async def _pages(self, span: Span) -> AsyncIterator[list[Item]]:
        """Yields a range in pages, with a pause behind each; what was deleted is not met again."""
        while page := await _first(self._store, span, PAGE):
            yield page
            span = Span(page[-1][0] + b"\0", span.high)
            await asyncio.sleep(PAUSE_S)

    async def _delete(self, records: Collection[Header | Operation]) -> int:
        """Deletes records, as many at once as the store takes. Returns their number."""
        size = max(1, self._store.mutations_max // MUTATIONS_MAX)
        changes, deleted = [Change(record, None) for record in records], 0
        for at in range(0, len(changes), size):
            part = changes[at : at + size]
            # Refused if another sweep was quicker with one of them; the next one sees to the rest.
            if await self._store.delete(part):
                deleted += len(part)
        return deleted


async def _first(store: MetadataStore, span: Span, limit: int) -> list[Item]:
    async for page in store.scan(span, limit):
        return page
    return []


async def sweep_for_ever(sweeper: Sweeper, interval_s: float) -> None:
    """Sweeps again and again; a sweep that fails is made up for by the next."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            await sweeper.sweep(time.time_ns() // 1_000_000)
        except MetadataStoreError as error:
            _LOG.warning("metadata_sweep_failed error=%s", error)
