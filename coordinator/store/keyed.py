"""What all back ends have in common: records as keys and values of an ordered store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ...journal.txid import TxId
from ..protocol.metadata import Header, Operation
from .base import PAGE, Event, Item
from .core.changes import Change, Cursor, Guards, HeaderDiffersError, Mutation, Write
from .core.codec import decode, decode_cursor, encode, encode_cursor
from .core.keys import Span, cursor_key, header_key, keys_of, mutations, operations_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A write that is done at once, or not at all."""

    guards: Guards
    mutations: Sequence[Mutation]
    cursor: Mutation | None = None
    """A cursor that moves with them."""
    added: int = 0
    """By how much it changes the number of operations."""

    def all(self) -> list[Mutation]:
        """Returns all keys that it writes."""
        return list(self.mutations) if self.cursor is None else [*self.mutations, self.cursor]


def encoded(changes: Iterable[Change]) -> tuple[list[Mutation], int]:
    """Returns the keys that changes write, and by how much the number of operations changes."""
    found: list[Mutation] = []
    added = 0
    for change in changes:
        before, after = change
        found += mutations(change, None if after is None else encode(after))
        if isinstance(change.record, Operation):
            added += (before is None) - (after is None)
    return found, added


class KeyedStore(ABC):
    """A metadata store on top of keys and values."""

    name: ClassVar[str]
    shared: ClassVar[bool] = False
    mutations_max: int

    @abstractmethod
    async def _get(self, key: bytes) -> bytes | None:
        """Returns the value of a key, or None."""

    @abstractmethod
    async def _page(self, span: Span, limit: int) -> list[Item]:
        """Returns the first keys of a range, at most `limit`."""

    @abstractmethod
    async def _commit(self, batch: Batch) -> bool:
        """Writes a batch if its guards hold. Returns whether they did."""

    @abstractmethod
    def watch(self, span: Span) -> AsyncIterator[list[Event]]:
        """Watches a range: see `MetadataStore`."""

    @abstractmethod
    async def outstanding(self) -> int:
        """Returns the number of operations."""

    @abstractmethod
    async def close(self) -> None:
        """Closes the store: see `MetadataStore`."""

    async def cursor(self, partition: int) -> Cursor | None:
        """Returns how far a journal partition is projected: see `MetadataStore`."""
        return decode_cursor(await self._get(cursor_key(partition)))

    async def apply(
        self,
        partition: int,
        expected: Cursor | None,
        to: Cursor | None,
        changes: Sequence[Change],
    ) -> bool:
        """Writes changes and moves the cursor: see `MetadataStore`."""
        changed, added = encoded(changes)
        headers = {
            keys_of(after)[0]: None if before is None else encode(before)
            for before, after in changes
            if isinstance(after, Header)
        }
        return await self._move(partition, expected, to, changed, added, headers)

    async def write(self, partition: int, expected: Cursor | None, write: Write) -> bool:
        """Writes what a projection gave: see `MetadataStore`."""
        changed, added = write.mutations, write.added
        return await self._move(partition, expected, write.cursor, changed, added, write.guards)

    async def _move(
        self,
        partition: int,
        expected: Cursor | None,
        to: Cursor | None,
        changed: Sequence[Mutation],
        added: int,
        headers: Guards,
    ) -> bool:
        key = cursor_key(partition)
        cursor = {key: None if expected is None else encode_cursor(expected)}
        moved = key, None if to is None else encode_cursor(to)
        batch = Batch(guards={**cursor, **headers}, mutations=changed, cursor=moved, added=added)
        if await self._commit(batch):
            return True
        if await self._get(key) != cursor[key]:
            return False
        found = await self._as_it_is(headers)
        if found is None:
            raise HeaderDiffersError(
                f"the metadata store has another header of journal partition {partition} than the"
                " one that is to be replaced: nothing was written; it is made again from the"
                " journal"
            )
        return await self._commit(replace(batch, guards={**cursor, **found}))

    async def _as_it_is(self, guards: Guards) -> Guards | None:
        """Returns guards with the values that the store has; None: one says something else.

        A value of an older program has other bytes, and says the same.
        """
        found: dict[bytes, bytes | None] = {}
        for key, wanted in guards.items():
            value = found[key] = await self._get(key)
            if value == wanted:
                continue
            if value is None or wanted is None or decode(key, value) != decode(key, wanted):
                return None
        return found

    async def delete(self, changes: Sequence[Change]) -> bool:
        """Deletes records: see `MetadataStore`."""
        doomed, added = encoded(changes)
        guards = {keys_of(b)[0]: encode(b) for b, _ in changes if b is not None}
        batch = Batch(guards=guards, mutations=doomed, added=added)
        if await self._commit(batch):
            return True
        found = await self._as_it_is(guards)
        return found is not None and await self._commit(replace(batch, guards=found))

    async def header(self, txid: TxId) -> Header | None:
        """Returns a header, or None."""
        key = header_key(txid)
        value = await self._get(key)
        record = None if value is None else decode(key, value)
        assert record is None or isinstance(record, Header), "the key says what it is"
        return record

    async def operations(self, txid: TxId) -> list[Operation]:
        """Returns the operations of a transaction, in their order."""
        found: list[Operation] = []
        async for page in self.scan(operations_of(txid)):
            for item in page:
                record = decode(*item)
                assert isinstance(record, Operation), "the key says what it is"
                found.append(record)
        return found

    async def scan(self, span: Span, limit: int = 0) -> AsyncIterator[list[Item]]:
        """Yields what a range has, in pages: see `MetadataStore`."""
        left = limit
        while not limit or left > 0:
            size = min(PAGE, left) if limit else PAGE
            page = await self._page(span, size)
            if page:
                yield page
            if len(page) < size:
                return
            left -= len(page)
            span = Span(page[-1][0] + b"\0", span.high)
