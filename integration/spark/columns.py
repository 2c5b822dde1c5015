"""Checks a DataFrame's columns before a job runs, and turns them into records: Kafka's convention.

The column ``value`` is required; ``key``, ``headers``, ``topic``, ``partition`` and ``timestamp``
are optional. Other columns are ignored, as by Spark's own Kafka sink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .errors import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

    from ...producer.branch import Branch

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
_CONTENT: Final = ("string", "binary")
TYPES: Final[Mapping[str, Sequence[str]]] = {
    "value": _CONTENT,
    "key": _CONTENT,
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": (HEADERS_TYPE,),
}


def check_columns(types: Mapping[str, str], topic: str | None) -> None:
    """Refuses a DataFrame that can't be written.

    Args:
        types: {column: Spark's name of its type}.
        topic: the option ``topic``, or None.

    Raises:
        SchemaError: a column is missing, or of another type.
    """
    if "value" not in types:
        raise SchemaError(
            f"the DataFrame has no column 'value' (it has {', '.join(types) or 'none'}): name the "
            "column that becomes the records' value so, as in select(to_json(...).alias('value'))"
        )
    if topic is None and "topic" not in types:
        raise SchemaError("name the topic: by option topic, or by a column 'topic'")
    for name, allowed in TYPES.items():
        found = types.get(name)
        if found is not None and found not in allowed:
            raise SchemaError(
                f"column {name!r} is of type {found} and must be {' or '.join(allowed)}: cast it"
            )


class Records(NamedTuple):
    """The records of an Arrow batch, column by column, as `Branch.produce` takes them."""

    topics: list[str] | None
    """None: all go to the topic of the option."""
    values: list[Any]
    keys: list[Any]
    headers: list[Any] | None
    """None: no record has any."""
    partitions: list[int]
    timestamps: list[int]
    """Milliseconds since 1970; 0 means now."""

    def send(self, branch: Branch, topic: str | None) -> None:
        """Writes all of them. Errors are those of `Branch.produce`."""
        values, keys, partitions, timestamps = self.values, self.keys, self.partitions, self[-1]
        if self.topics is None and self.headers is None:
            assert topic is not None
            branch.produce_columns(topic, values, keys, partitions, timestamps)
            return
        topics = repeat(topic or "") if self.topics is None else self.topics
        headers = self.headers or repeat(None)
        produce = branch.produce
        for row in zip(topics, values, keys, headers, partitions, timestamps, strict=False):
            name, value, key, pairs, partition, timestamp = row
            produce(name, value, key, partition, None, timestamp, pairs)


def records_of(batch: pa.RecordBatch, topic: str | None) -> Records:
    """Returns the records of an Arrow batch.

    Args:
        batch: of columns that `check_columns` accepted.
        topic: the option ``topic``, or None.

    Raises:
        SchemaError: a row has no topic.
    """
    size = batch.num_rows
    names = batch.schema.names

    def column(name: str, default: Any, read: Callable[[Any], list[Any]] = _as_is) -> list[Any]:
        if name not in names:
            return [default] * size
        found = read(batch.column(names.index(name)))
        if default is not None and None in found:
            return [default if each is None else each for each in found]
        return found

    topics = None if topic is not None else column("topic", None)
    if topics is not None and None in topics:
        raise SchemaError("a row has no topic: fill the column 'topic', or give option topic")
    return Records(
        topics,
        column("value", None),
        column("key", None),
        column("headers", None, _headers) if "headers" in names else None,
        column("partition", -1),
        column("timestamp", 0, _milliseconds),
    )


def _as_is(column: Any) -> list[Any]:
    found: list[Any] = column.to_pylist()
    return found


def _milliseconds(column: Any) -> list[Any]:
    micros = column.cast("timestamp[us]") if column.type.tz is None else column
    return [None if m is None else m // 1000 for m in micros.cast("int64").to_pylist()]


def _headers(column: Any) -> list[Any]:
    return [
        None if headers is None else [(header["key"], header["value"]) for header in headers]
        for headers in column.to_pylist()
    ]
