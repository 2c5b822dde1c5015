"""What a query's filters leave to read: whole partitions, and offsets from some on. Pure.

Spark evaluates the filters as well, so what is left may be more than they let through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ...journal.control import TopicPartition

_TESTS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "EqualTo": lambda a, b: a == b,
    "EqualNullSafe": lambda a, b: a == b,
    "In": lambda a, b: a in b,
    "GreaterThan": lambda a, b: a > b,
    "GreaterThanOrEqual": lambda a, b: a >= b,
    "LessThan": lambda a, b: a < b,
    "LessThanOrEqual": lambda a, b: a <= b,
    "StringStartsWith": lambda a, b: a.startswith(b),
}
"""PySpark's names of filters, and what they test of a column."""
_LOWER: Final = ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual")
"""Those that let through nothing below their value."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What is left to read; picklable."""

    tests: tuple[tuple[str, str, Any], ...] = ()
    """(column, name of the filter, value) of the columns "topic" and "partition"."""
    from_offset: int = 0
    """Rows below it are not wanted. What ends at it or above may have rows above it."""
    from_ms: int | None = None
    """Rows of an earlier time, in milliseconds since 1970, are not wanted."""

    @classmethod
    def of(cls, filters: Iterable[Any]) -> Selection:
        """Makes one of PySpark's filters, all of which must hold; passes over what it can't use."""
        tests: list[tuple[str, str, Any]] = []
        offset, times = 0, list[int]()
        for each in filters:
            name, column = type(each).__name__, getattr(each, "attribute", ())
            value: Any = getattr(each, "value", None)
            if column in (("topic",), ("partition",)) and name in _TESTS and value is not None:
                tests.append((column[0], name, value))
            elif column == ("offset",) and name in _LOWER and type(value) is int:
                offset = max(offset, value)
            elif column == ("timestamp",) and name in _LOWER and _is_zoned(value):
                times.append(int(value.timestamp() * 1000) - 1)  # floats may round up
        return cls(tuple(tests), offset, max(times, default=None))

    def takes(self, key: TopicPartition) -> bool:
        """Returns whether rows of a partition may be wanted."""
        columns = {"topic": key[0], "partition": key[1]}
        return all(_TESTS[name](columns[column], value) for column, name, value in self.tests)


def _is_zoned(value: Any) -> bool:
    """Returns whether it is a time that can be compared with Kafka's."""
    return isinstance(value, datetime) and value.tzinfo is not None
