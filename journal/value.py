"""Value classes that are made by the million."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

__all__ = ["value"]

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
