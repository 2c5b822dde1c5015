"""Value classes that are made by the million."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

__all__ = ["Lazy", "value"]

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:

    def value(*, frozen: bool, **options: bool) -> Callable[[type], type]:
        """`dataclass(frozen=True, …)` to the type checker, which finds every assignment to a field.

        At run time nothing guards the fields: the guard makes an object three times as slow to
        make, and with it a third of a coordinator's load of its journal.
        """
        assert frozen, "for values only"
        return dataclasses.dataclass(unsafe_hash=True, **options)


Unread: TypeAlias = tuple[Callable[[bytes, int], dict[str, Any]], bytes, int]
"""What reads the missing fields, of which bytes, and where they begin."""


class Lazy:
    """A value whose further fields may be read from its bytes when the first of them is wanted.

    Of a million records that a coordinator loads, it needs most of what was decided for none but
    the few that are unfinished at the end. Two values that say the same are equal, read or not.

    Raises, from any field: what the bytes raise that don't decode.
    """

    __slots__ = ("unread",)

    unread: Unread | None
    """None once all is read."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Called for a slot without a value alone.
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
