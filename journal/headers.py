"""Asks records for their headers, from Python code that is run often."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import Any, Final

headers_of: Final[Callable[[Any], list[tuple[str, bytes | None]] | None]] = methodcaller("headers")
"""Returns a record's headers in order, or None.

Raises a SystemError if confluent-kafka can't read them, as the name of one is not UTF-8. Such a
record must not be asked twice: the next answer is a list with a hole, which ends the process.
`record.headers()` gives that list at once where CPython runs it often, for it does not look at the
error then (trap 304).
"""
