"""What light messages, their runs and their columns say, so that it can be compared."""

from __future__ import annotations

from operator import methodcaller
from struct import unpack
from typing import Any, Final

from logtx.consumer.source import Part
from logtx.journal.native.interface import BinaryColumn

BYTES_MAX: Final = 2**31 - 1
UNREADABLE: Final = "unreadable"
"""Stands for headers with a name that is not UTF-8, for which a message raises a SystemError."""

_ask_for_headers: Any = methodcaller("headers")


def headers_of(message: Any) -> Any:
    """Returns a message's headers, or `UNREADABLE`. Ask one of confluent-kafka's only once.

    Python does not look at what a method returns where it calls it often: then confluent-kafka's
    error would be raised by what is called next.
    """
    try:
        return _ask_for_headers(message)
    except SystemError:
        return UNREADABLE


def fields(message: Any) -> tuple[Any, ...]:
    """Returns all that a message says."""
    return (
        *(message.topic(), message.partition(), message.offset(), message.key(), message.value()),
        *(headers_of(message), message.timestamp(), message.error(), message.latency()),
        *(len(message), message.leader_epoch(), message.delivery_count()),
    )


def contents(column: BinaryColumn, count: int) -> list[bytes | None]:
    """Returns what an Arrow reader makes of a column's buffers."""
    validity, ends, data, missing = column
    at = unpack(f"{count + 1}i", ends)
    valid = [validity is None or bool(validity[i // 8] >> i % 8 & 1) for i in range(count)]
    assert valid.count(False) == missing
    assert at[-1] == len(data)
    assert validity is None or len(validity) == (count + 7) // 8
    return [data[at[i] : at[i + 1]] if valid[i] else None for i in range(count)]


def columns(messages: list[Any], bytes_max: int = BYTES_MAX) -> Any:
    """Returns the columns of light messages, of which there is at least one."""
    return type(messages[0]).columns(messages, bytes_max)


def check(messages: list[Any]) -> list[int]:
    """Compares columns with messages. Returns the lengths of the runs."""
    count = len(messages)
    keys, values, offsets, timestamps, runs = columns(messages)
    assert contents(keys, count) == [m.key() for m in messages]
    assert contents(values, count) == [m.value() for m in messages]
    assert unpack(f"{count}q", offsets) == tuple(m.offset() for m in messages)
    assert unpack(f"{count}q", timestamps) == tuple(m.timestamp()[1] for m in messages)
    spread = [alike for *alike, length in runs for _ in range(length)]
    assert [(t, p, kind, h and list(h)) for t, p, kind, h in spread] == [
        (m.topic(), m.partition(), m.timestamp()[0], m.headers()) for m in messages
    ]
    return [run[-1] for run in runs]


def check_part(part: Part) -> None:
    """Compares what is told of a part with its messages."""
    messages: list[Any] = part.records
    # Before anybody asks a message for its headers, and behind that.
    for _ in range(2):
        if columns(messages) is not None:
            check(messages)
        else:
            assert UNREADABLE in map(headers_of, messages)
    assert part.key == (messages[0].topic(), messages[0].partition())
    assert part.value_bytes == sum(map(len, messages))
    spread = [headers for headers, number in part.runs or () for _ in range(number)]
    told = [None if headers is None else list(headers) for headers in spread]
    assert told == ([] if part.runs is None else [m.headers() for m in messages])
    assert (part.runs is None) == (UNREADABLE in map(headers_of, messages))
    sizes = [len(m.key() or b"") + len(m.value() or b"") for m in messages]
    assert messages[0].content_bytes(messages) == sum(sizes)
