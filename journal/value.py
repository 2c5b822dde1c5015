"""Makes value classes of which there are millions of objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

__all__ = ["Lazy", "value"]

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:

    def value(*, frozen: bool, **options: bool) -> Callable[[type], type]:
        """Makes a dataclass of a class, frozen to the type checker and unguarded at run time.

        The type checker finds every assignment to a field. The guard at run time would make an
        object three times as slow to make; it took a third of the time in which a coordinator loads
        its journal.
        """
        assert frozen, "for values only"
        return dataclasses.dataclass(unsafe_hash=True, **options)


Unread: TypeAlias = tuple[Callable[[bytes, int], dict[str, Any]], bytes, int]
"""(function that reads the missing fields, the bytes, the index where they begin)."""


class Lazy:
    """A value that may read its remaining fields from bytes when the first of them is used.

    When a coordinator loads a million records, it uses what was decided only for the few
    transactions that are unfinished at the end. Two values with equal fields are equal, read or
    not.

    Every field raises what its bytes raise if they don't decode.
    """

    __slots__ = ("unread",)

    unread: Unread | None
    """The bytes still to be read; None once all fields are there."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Called only for a slot without a value.
            unread = None if name == "unread" else self.unread
            if unread is None:
                if name == "unread":
                    return None
                raise AttributeError(name)
            read, raw, at = unread
            for field, found in read(raw, at).items():
                setattr(self, field, found)
            self.unread = None
            return getattr(self, name)
