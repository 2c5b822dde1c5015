"""Answers questions from a store: ranges, and up to where a data partition is settled.

Source: PIP-471, "MetadataTransactionBuffer".
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from ...journal.records.types import UNKNOWN_OFFSET
from ..protocol.metadata import (
    Found,
    HeaderState,
    Horizon,
    Index,
    Operation,
    Question,
)
from .base import READY, Event, MetadataStore
from .core.codec import decode, deleted
from .core.keys import Span, spans_of, unplaced
from .counters import StoreCounters


async def answer(
    store: MetadataStore, question: Question, limit: int, counters: StoreCounters
) -> AsyncIterator[list[Found]]:
    """Yields what is there, in pages; 0: no limit. Counts the time that the store takes."""
    left, taken_s, index = limit, 0.0, None
    for span in spans_of(question):
        index = span.of_index
        pages = store.scan(span, left)
        while True:
            began_s = time.monotonic()
            page = await anext(pages, None)
            taken_s += time.monotonic() - began_s
            if page is None:
                break
            yield [Found(decode(*item)) for item in page]
            left -= len(page)
        if limit and left <= 0:
            break
    if index is not None:
        counters.queries[index].observe(taken_s)


def watched(question: Question) -> Span:
    """Returns the range to watch for the changes of an answer."""
    spans = spans_of(question)
    return Span(spans[0].low, spans[-1].high)


async def watch(store: MetadataStore, question: Question) -> AsyncIterator[list[Found] | None]:
    """Yields what is there, then None, then changes.

    Raises:
        WatchLaggedError: the caller did not keep up.
    """
    spans = spans_of(question)
    async for events in store.watch(watched(question)):
        if events == [READY]:
            yield None
            continue
        # Of two ranges the watch covers what lies between them too.
        found = [_found(e) for e in events if any(span.covers(e.key) for span in spans)]
        if found:
            yield found


def _found(event: Event) -> Found:
    if event.value is None:
        return Found(deleted(event.key), deleted=True)
    return Found(decode(event.key, event.value))


async def horizon(
    store: MetadataStore, topic: str, partition: int, end_offset: int, counters: StoreCounters
) -> Horizon:
    """Returns up to where a data partition is settled.

    Args:
        store: what to ask; it must have all that the journal had after `end_offset` was asked for.
        topic: the data topic.
        partition: number of its partition.
        end_offset: its end.
        counters: counts the time that the store takes.
    """
    began_s = time.monotonic()
    least, undecided, exact = end_offset, 0, True
    known: dict[bytes, bool] = {}
    async for page in store.scan(unplaced(topic, partition)):
        for item in page:
            operation = decode(*item)
            assert isinstance(operation, Operation), "the index is one of operations"
            txid = operation.txid.to_bytes()
            if txid not in known:
                header = await store.header(operation.txid)
                known[txid] = header is not None and header.state is HeaderState.OPEN
                undecided += known[txid]
            if not known[txid]:
                continue
            if operation.first_offset == UNKNOWN_OFFSET:
                exact = False
            else:
                least = min(least, operation.first_offset)
    counters.queries[Index.WRITES_BY_SEGMENT].observe(time.monotonic() - began_s)
    return Horizon(
        max_read_position=least - 1, end_offset=end_offset, undecided=undecided, exact=exact
    )
