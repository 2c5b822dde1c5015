"""Measures a metadata store with a journal of its own: BEGIN, decision, PLACED, end."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from logtx.coordinator.protocol.metadata import Header
from logtx.coordinator.store.base import READY, MetadataStore
from logtx.coordinator.store.core.changes import Change, Cursor
from logtx.coordinator.store.core.codec import decode
from logtx.coordinator.store.core.keys import headers_of, writes
from logtx.coordinator.store.core.projection import Projection
from logtx.journal.control import BranchRange
from logtx.journal.places import PartitionId, Placed
from logtx.journal.records.codec import decode_entry, encode_entry
from logtx.journal.records.types import (
    Begin,
    Committed,
    DataPartition,
    Entry,
    JournalRecord,
    Owner,
    PartitionWrites,
    PrepareCommit,
)

PARTITION: Final = 0
INCARNATION: Final = 7
TOPIC: Final = "orders"
WRITES: Final = 2
"""Data partitions of a transaction."""
AT_ONCE: Final = 30
"""Transactions that one PLACED record places."""
READ_AT_ONCE: Final = 1_000
"""Journal records that a projector takes from its reader at once."""
RANGE: Final = 1_000
WATCHED: Final = 500
"""Writes whose way to a watcher is measured."""


def journal(transactions: int) -> Iterator[tuple[int, Entry]]:
    """Yields the entries of transactions that are placed, in batches of `AT_ONCE`."""
    offset = 0

    def entry(record: JournalRecord, predicted: int | None = None) -> tuple[int, Entry]:
        nonlocal offset
        at, offset = offset, offset + 1
        told = at if predicted is None else predicted
        epoch = -1 if isinstance(record, Owner) else 0
        return at, Entry(epoch, INCARNATION, record, told)

    yield entry(Owner(replaces=-1, address="a:1", process_nonce=1), -1)
    partitions = [DataPartition(TOPIC, number, "id") for number in range(WRITES)]
    ids = [PartitionId(p.topic, p.partition, p.topic_id) for p in partitions]
    keys, data_end = tuple(p.key for p in partitions), 0
    for first in range(0, transactions, AT_ONCE):
        begins: list[int] = []
        for number in range(first, min(first + AT_ONCE, transactions)):
            begins.append(offset)
            yield entry(_begin(number))
        for begin in begins:
            runs = (BranchRange(0, data_end, data_end + 9, 10),)
            data_end += 10
            named = tuple(PartitionWrites(p, runs) for p in partitions)
            yield entry(PrepareCommit(begin=begin, writes=named, decided_ms=begin, placed=keys))
        yield entry(Placed(offset - 1, dict.fromkeys(ids, data_end)))
        for begin in begins:
            yield entry(Committed(begin=begin))


def _begin(number: int) -> Begin:
    return Begin(
        producer_id=f"worker-{number % 50}",
        generation=1,
        session_nonce=5,
        request_id=number,
        answered_below=number,
        timeout_ms=60_000,
        started_ms=1_700_000_000_000 + number,
    )


@dataclass(slots=True)
class Figures:
    """What was measured of one store."""

    transactions: int = 0
    projected_s: float = 0.0
    """Time for all transactions, once their records are decoded."""
    cpu_us: list[float] = field(default_factory=list)
    """Processor time of this process in it, for a transaction, of each batch of records."""
    decoding_us: list[float] = field(default_factory=list)
    """The same, of decoding the records beforehand."""
    range_ms: list[float] = field(default_factory=list)
    """Times of a range of `RANGE` entries."""
    range_cpu_ms: list[float] = field(default_factory=list)
    """Processor times of the same."""
    decoded_ms: list[float] = field(default_factory=list)
    """The same, with the entries decoded."""
    watch_ms: list[float] = field(default_factory=list)
    """Times from a write to its watcher."""


async def measure(store: MetadataStore, transactions: int, rounds: int) -> Figures:
    """Returns the figures of an empty store."""
    figures = Figures()
    await _project(store, transactions, figures)
    span = writes(TOPIC, 0)
    for _ in range(rounds):
        began_s, cpu_s = time.perf_counter(), time.process_time()
        items = [item async for page in store.scan(span, RANGE) for item in page]
        figures.range_ms.append((time.perf_counter() - began_s) * 1e3)
        figures.range_cpu_ms.append((time.process_time() - cpu_s) * 1e3)
        found = [decode(*item) for item in items]
        figures.decoded_ms.append((time.perf_counter() - began_s) * 1e3)
        assert len(found) == min(RANGE, transactions)
    await _watch(store, figures)
    return figures


async def _project(store: MetadataStore, transactions: int, figures: Figures) -> None:
    projection = Projection(PARTITION, Cursor(0), store.mutations_max)
    source = iter([(offset, encode_entry(entry)) for offset, entry in journal(transactions)])
    gc.freeze()  # a projector keeps no journal in memory
    cursor: Cursor | None = None
    figures.transactions = transactions
    while raw := list(islice(source, READ_AT_ONCE)):
        decoding_s = time.process_time()
        batch = [(offset, decode_entry(value)) for offset, value in raw]
        began_s, cpu_s = time.perf_counter(), time.process_time()
        for write in projection.feed(batch):
            assert await store.write(PARTITION, cursor, write)
            cursor = write.cursor
        figures.projected_s += time.perf_counter() - began_s
        commits = sum(isinstance(entry.record, PrepareCommit) for _, entry in batch)
        # The last batch may be a short one, whose fixed costs few transactions share.
        if commits and (len(raw) == READ_AT_ONCE or not figures.cpu_us):
            share = 1e6 / commits
            figures.decoding_us.append((cpu_s - decoding_s) * share)
            figures.cpu_us.append((time.process_time() - cpu_s) * share)


async def _watch(store: MetadataStore, figures: Figures) -> None:
    cursor = await store.cursor(PARTITION)
    assert cursor is not None
    span = headers_of(PARTITION)
    ready, written_s = asyncio.Event(), 0.0
    told: asyncio.Queue[float] = asyncio.Queue()

    async def watcher() -> None:
        async for events in store.watch(span):
            if ready.is_set():
                told.put_nowait(time.perf_counter())
            elif events == [READY]:
                ready.set()

    watching = asyncio.create_task(watcher())
    await ready.wait()
    async for page in store.scan(span, WATCHED):
        for item in page:
            header = decode(*item)
            assert isinstance(header, Header)
            after = replace(cursor, part=cursor.part + 1)
            change = Change(header, replace(header, generation=header.generation + 1))
            written_s = time.perf_counter()
            assert await store.apply(PARTITION, cursor, after, [change])
            cursor = after
            figures.watch_ms.append((await told.get() - written_s) * 1e3)
    watching.cancel()
    await asyncio.wait([watching])
