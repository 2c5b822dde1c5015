"""What the tests of the store have in common: all of a store, and projectors that may crash."""

from __future__ import annotations

from logtx.coordinator.protocol.metadata import Header, Operation
from logtx.coordinator.store.base import MetadataStore
from logtx.coordinator.store.core.changes import Cursor
from logtx.coordinator.store.core.codec import decode
from logtx.coordinator.store.core.keys import COUNT, CURSOR, HEADER, OPERATION, Span, keys_of
from logtx.coordinator.store.core.projection import Projection
from logtx.coordinator.store.projector import resume
from logtx.integration.inspect.metadata import Expected
from logtx.journal.errors import MetadataStoreError
from logtx.journal.records.types import Entry
from logtx.journal.txid import TxId

from .journals import PARTITION

ALL = Span(b"\0", b"\xff")


async def content(store: MetadataStore) -> dict[bytes, bytes]:
    """Returns all that is in a store."""
    return {i[0]: i[1] async for page in store.scan(ALL) for i in page}


async def transactions(store: MetadataStore) -> dict[TxId, Expected]:
    """Returns what a store has of each transaction, after checking its indexes."""
    everything = await content(store)
    headers: dict[TxId, Header] = {}
    operations: dict[TxId, list[Operation]] = {}
    indexed = {}
    for key, value in everything.items():
        if key[:1] == HEADER:
            header = decode(key, value)
            assert isinstance(header, Header)
            headers[header.txid] = header
            indexed[keys_of(header)[1]] = value
        elif key[:1] == OPERATION:
            operation = decode(key, value)
            assert isinstance(operation, Operation)
            operations.setdefault(operation.txid, []).append(operation)
            indexed[keys_of(operation)[1]] = value
    records = {HEADER, OPERATION, CURSOR, COUNT}
    assert indexed == {k: v for k, v in everything.items() if k[:1] not in records}
    assert operations.keys() <= headers.keys()
    count = sum(map(len, operations.values()))
    assert await store.outstanding() == count
    return {t: Expected(h, tuple(operations.get(t, ()))) for t, h in headers.items()}


class CrashedError(Exception):
    """A projector was killed between two writes."""


class Replaying:
    """A projector of one journal partition that is killed after some writes."""

    def __init__(self, store: MetadataStore, entries: list[tuple[int, Entry]], base: int = 0):
        self._store = store
        self._entries = entries
        self._base = base

    async def run(self, writes: int | None = None, batch: int = 5) -> int:
        """Projects all that is left; raises `CrashedError` after a number of writes."""
        cursor = await self._store.cursor(PARTITION)
        if cursor is None:
            start = Cursor(-1 if self._base else 0)
            projection = Projection(PARTITION, start, self._store.mutations_max)
            first = self._base
        else:
            try:
                projection = await resume(self._store, PARTITION, cursor)
            except MetadataStoreError:
                return 0  # another one moved the cursor meanwhile
            first = cursor.offset
        done, written = 0, cursor
        for at in range(first, len(self._entries), batch):
            for write in projection.feed(self._entries[at : at + batch]):
                assert len(write.mutations) <= self._store.mutations_max
                if done == writes:
                    raise CrashedError
                if not await self._store.write(PARTITION, written, write):
                    return done
                written = write.cursor
                done += 1
        return done
