"""Columns that the C extension makes of light messages, beside what these say themselves."""

from __future__ import annotations

import resource
import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from logtx.journal.native import loading

from .conftest import Mock
from .messages import BYTES_MAX, check, columns, contents
from .test_reader import RECORDS, MakeReading, make_reading, read, topic, write

__all__ = ["make_reading", "topic"]


@pytest.fixture
def messages(topic: str, make_reading: MakeReading) -> list[Any]:
    """Light messages of `RECORDS`."""
    consumer, source = make_reading()
    consumer.assign([TopicPartition(topic, 0, 0)])
    return read(source, len(RECORDS))


def test_columns_say_what_messages_say(messages: list[Any]) -> None:
    before = columns(messages)
    runs = check(messages)
    assert runs == [4, 2, 1, 1]
    # Asked for their headers, they have a list each, of the same pairs.
    assert columns(messages)[:-1] == before[:-1]
    assert check(messages) == runs
    for count in range(1, 20):
        some = (messages * 3)[:count]
        check(some)
        check(some[::-1])
    keys, values, *rest = type(messages[0]).columns([], 0)
    assert contents(keys, 0) == contents(values, 0) == []
    assert rest == [b"", b"", []]


def test_partitions_and_topics_end_a_run(
    mock: Mock, make_reading: MakeReading, messages: list[Any]
) -> None:
    name = f"t{time.monotonic_ns()}"
    write(mock, name, RECORDS[:2], 1)
    consumer, source = make_reading()
    consumer.assign([TopicPartition(name, 1, 0)])
    others = read(source, 2)
    assert check([*messages[:2], *others, *messages[:2]]) == [2, 2, 2]


def test_whatever_is_not_as_it_was_read_makes_no_columns(messages: list[Any]) -> None:
    for other in (Message(), None, 7, object()):
        assert columns([*messages, other]) is None
    changes: dict[str, list[Any]] = {
        "key": ["k", 1, bytearray(b"k")],
        "value": ["v", [b"v"]],
        "error": [KafkaError(KafkaError._BAD_MSG)],
        "headers": [7, {"a": b""}],
    }
    for name, values in changes.items():
        before = getattr(messages[0], name)()
        for value in values:
            getattr(messages[0], f"set_{name}")(value)
            assert columns(messages) is None
        getattr(messages[0], f"set_{name}")(before)
        check(messages)


def test_there_are_limits_of_bytes(messages: list[Any]) -> None:
    size = sum(len(m.value() or b"") for m in messages)
    assert columns(messages, size) is not None
    assert columns(messages, size - 1) is None
    assert columns(messages, -1) is None
    large = bytes(2**30)
    for message in messages:
        message.set_value(large)
    # The last offset would have more than 31 bits.
    assert columns(messages[:2], 2**40) is None


@pytest.mark.parametrize("arguments", [(), (None, 1), ((), 1), ([],), ([], "1"), ([], 2**70)])
def test_wrong_arguments_are_refused(messages: list[Any], arguments: Any) -> None:
    with pytest.raises((TypeError, OverflowError)):
        type(messages[0]).columns(*arguments)


def test_a_lack_of_memory_is_told_wherever_it_comes(messages: list[Any]) -> None:
    lack = pytest.importorskip("_testcapi", reason="this Python has no module for its own tests")
    make = type(messages[0]).columns
    told: list[bool] = []
    for at in range(1, 50):
        lack.set_nomemory(at, at + 1)
        try:
            told.append(make(messages, BYTES_MAX) is None)
        except MemoryError:
            told.append(True)
        finally:
            lack.remove_mem_hooks()
    assert sum(told) > 8
    assert not told[-1]
    check(messages)


def test_columns_leave_no_memory(messages: list[Any]) -> None:
    for message in messages:
        message.set_value(bytes(1_000))
    many = messages * 100
    sizes: list[int] = []
    for turn in range(300):
        assert columns(many) is not None
        assert columns([*many, None]) is None
        assert columns(many, 700_000) is None
        if turn in (99, 299):
            sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    # 160 MB of values were copied in between.
    assert sizes[1] - sizes[0] < 10_000, sizes


def test_a_trial_tells_wrong_columns(messages: list[Any]) -> None:
    made = columns(messages)

    class Wrong:
        @staticmethod
        def columns(messages: list[Any], bytes_max: int) -> Any:
            del messages, bytes_max
            return made

    assert "made the columns" in (loading._try_columns([Wrong()] * 3) or "")
