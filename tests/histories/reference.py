"""What each partition must deliver, in order, and how far a consumer may have come in it.

Knows nothing of buffers, positions and markers: the writer says what it has committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Key = tuple[str, int]
"""Topic and number of a partition."""


class Violation(AssertionError):  # noqa: N818 - it is what a history ends with
    """A promise that was not kept."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker


@dataclass(slots=True)
class Item:
    """One record to deliver, or the event in its place."""

    value: bytes
    first: int
    """Offset below which nothing of it, or of its transaction, lies."""
    place: int
    """Offset at which it is delivered: its own, or its marker's."""
    event: bool = False
    sequence: int = -1
    """Commit sequence of its transaction; -1: it is plain."""
    torn: bool = False
    """Whether retention deleted some of it: then it may be left out."""


class Reference:
    """What each partition must deliver."""

    def __init__(self, keys: Iterable[Key], isolation: str, mode: str) -> None:
        self.serial = isolation == "serializable" or mode == "transactions"
        self._dirty = isolation == "read_uncommitted"
        self.items: dict[Key, list[Item]] = {key: [] for key in keys}
        self.order: dict[Key, dict[bytes, int]] = {key: {} for key in keys}
        """Value → its index in `items`."""
        self._starts = dict.fromkeys(self.items, 0)

    def _add(self, key: Key, item: Item) -> None:
        self.order[key][item.value] = len(self.items[key])
        self.items[key].append(item)

    def plain(self, key: Key, offset: int, value: bytes, *, event: bool = False) -> None:
        """Takes a plain record, or one that becomes an event."""
        if not self.serial:
            self._add(key, Item(value, offset, offset, event))

    def written(self, key: Key, offset: int, value: bytes) -> None:
        """Takes a transaction's record."""
        if self._dirty:
            self._add(key, Item(value, offset, offset))

    def committed(
        self, key: Key, first: int, place: int, values: Sequence[bytes], sequence: int
    ) -> None:
        """Takes a transaction that ends in this partition."""
        if not self._dirty:
            for value in values:
                torn = first < self._starts[key]
                self._add(key, Item(value, first, place, sequence=sequence, torn=torn))

    def trimmed(self, key: Key, before: int) -> None:
        """Takes notice that retention deleted what lies below an offset."""
        self._starts[key] = before
        for item in self.items[key]:
            item.torn = item.torn or item.first < before

    def index(self, key: Key, value: bytes) -> int:
        """Returns a value's place in the order of delivery."""
        found = self.order[key].get(value)
        if found is None:
            raise Violation("order", f"{value!r} must never be delivered")
        return found

    def from_offset(self, key: Key, offset: int) -> int:
        """Returns the first index that is delivered if reading begins at an offset."""
        items = self.items[key]
        return next((i for i, item in enumerate(items) if item.place >= offset), len(items))

    def after(self, key: Key, reached: Iterable[int], index: int) -> set[int]:
        """Returns how far delivery has come after an item; checks that it was its turn.

        Args:
            key: the partition.
            reached: how far it may have come before.
            index: the item that was delivered.
        """
        items = self.items[key]
        if not any(c <= index and all(i.torn for i in items[c:index]) for c in reached):
            wanted = [items[c].value if c < len(items) else b"nothing" for c in sorted(reached)]
            text = f"{key} delivered {items[index].value!r} in place of {wanted}"
            raise Violation("order", text)
        return {index + 1}

    def at_end(self, key: Key, reached: Iterable[int]) -> bool:
        """Returns whether everything may have been delivered."""
        items = self.items[key]
        return any(all(item.torn for item in items[c:]) for c in reached)
