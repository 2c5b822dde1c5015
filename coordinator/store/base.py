"""What a metadata store does, whatever it is made of.

Everything about one store runs on one event loop. Each call ends in bounded time, and raises
`MetadataStoreError` if the store does not do what was asked.

Source: PIP-471, "A note on metadata-store backends".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import ClassVar, Final, NamedTuple, Protocol, TypeAlias

from ...journal.txid import TxId
from ..protocol.metadata import Header, Operation
from .core.changes import Change, Cursor, Write
from .core.keys import Span

PAGE: Final = 1_000
"""Records read at once. More hold the interpreter for longer; fewer take more calls."""


Item: TypeAlias = tuple[bytes, bytes]
"""A key of the store and its value, as they are; see `codec.decode`. A plain tuple: a page has a
thousand, and most of them are looked at once."""


class Event(NamedTuple):
    """A change of a key, as a watch tells it."""

    key: bytes
    value: bytes | None
    """None: it was deleted."""


READY: Final = Event(b"", None)
"""Comes once in a watch, behind what was there when it began."""


class MetadataStore(Protocol):
    """Headers and operations of transactions, with their indexes, and the projectors' cursors."""

    name: ClassVar[str]
    """Of the back end."""
    shared: ClassVar[bool]
    """Whether all coordinators use one store: then a journal partition's owner alone projects."""
    mutations_max: int
    """Most keys that one write may have, besides the cursor: see `Projection`."""

    async def cursor(self, partition: int) -> Cursor | None:
        """Returns how far a journal partition is projected; None: nothing of it is."""

    async def apply(
        self,
        partition: int,
        expected: Cursor | None,
        to: Cursor | None,
        changes: Sequence[Change],
    ) -> bool:
        """Writes changes with their index entries, and moves the cursor, all at once.

        Args:
            partition: the journal partition.
            expected: what the cursor must be.
            to: what the cursor becomes; None deletes it.
            changes: at most one of each record.

        Returns:
            Whether it was done; False: the cursor was another one, so another projector is further,
            and nothing was done.

        Raises:
            HeaderDiffersError: a header was not the version that is to be replaced, and nothing was
                done.
        """

    async def write(self, partition: int, expected: Cursor | None, write: Write) -> bool:
        """Does what `apply` does, for what a projection has encoded already."""

    async def delete(self, changes: Sequence[Change]) -> bool:
        """Deletes records that nobody changes any more, unless one of them was changed since.

        Returns:
            Whether it was done.
        """

    async def header(self, txid: TxId) -> Header | None:
        """Returns the header of a transaction, or None."""

    async def operations(self, txid: TxId) -> list[Operation]:
        """Returns the operations of a transaction, in their order."""

    def scan(self, span: Span, limit: int = 0) -> AsyncIterator[list[Item]]:
        """Yields what a range has, in the order of the keys, in pages; 0: no limit.

        Each page is read at one moment, and two pages may be read at two.
        """

    def watch(self, span: Span) -> AsyncIterator[list[Event]]:
        """Yields what a range has, as at one moment, then `READY`, then each change behind it.

        Changes that are written at once may be told as one, and come together.

        Raises:
            WatchLaggedError: the caller did not keep up.
        """

    async def outstanding(self) -> int:
        """Returns the number of operations."""

    async def tidy(self) -> None:
        """Does what is due now and then, such as writing to the disk what is in memory."""

    async def close(self) -> None:
        """Ends all watches, and closes the store. Ends in bounded time."""
