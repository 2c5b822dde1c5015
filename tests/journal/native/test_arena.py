"""Light messages that the C extension packs as bytes, and makes of these again."""

from __future__ import annotations

import random
import resource
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from logtx.journal.native import loading

from .test_reader import RECORDS, MakeReading, fields, make_reading, read, topic

__all__ = ["make_reading", "topic"]
ROW_BYTES = 24
FRONT = b"front"
LIMITS = 1_000, 10**6
Packed = tuple[bytes, list[Any]]


@pytest.fixture
def messages(topic: str, make_reading: MakeReading) -> list[Any]:
    """Light messages of `RECORDS`."""
    consumer, source = make_reading()
    consumer.assign([TopicPartition(topic, 0, 0)])
    return read(source, len(RECORDS))


def packed(messages: list[Any]) -> Packed:
    """Returns all messages as bytes, and their runs."""
    light = type(messages[0])
    runs = light.packable(messages, 0, *LIMITS)
    return light.pack(FRONT, messages, 0, len(messages)), runs


def unpacked(like: Any, content: bytes, runs: list[Any], count: int) -> list[Any]:
    """Returns the messages of some bytes, in the topic and partition of one that is like them."""
    made: list[Any] = type(like).unpack(
        content, len(FRONT), like.topic(), like.partition(), runs, count
    )
    return made


def test_messages_come_back_equal_in_all_fields(messages: list[Any]) -> None:
    before = [fields(message) for message in messages]
    content, runs = packed(messages)
    back = unpacked(messages[0], content, runs, len(messages))
    assert [fields(message) for message in back] == before
    assert {type(message) for message in back} == {type(messages[0])}
    bytes_of = type(messages[0]).content_bytes
    assert bytes_of(back) == bytes_of(messages)
    assert len(content) == len(FRONT) + len(messages) * ROW_BYTES + bytes_of(messages)
    assert packed(back) == (content, runs)


def test_what_neighbours_share_is_told_once(messages: list[Any]) -> None:
    _, runs = packed(messages)
    assert [number for *_, number in runs] == [4, 2, 1, 1]
    assert [headers and list(headers) for headers, *_ in runs] == [
        None,
        RECORDS[4]["headers"],
        RECORDS[6]["headers"],
        None,
    ]
    content, runs = packed(messages[4:6])
    back = unpacked(messages[0], content, runs, 2)
    back[0].headers().clear()
    assert back[1].headers() == RECORDS[5]["headers"]
    # Equal ones of another reading are no other ones.
    back[0].set_headers(list(RECORDS[4]["headers"]))
    assert [number for *_, number in packed(back)[1]] == [2]


def test_there_are_limits_of_records_and_bytes(messages: list[Any]) -> None:
    light = type(messages[0])

    def count(*limits: int) -> int:
        return sum(run[-1] for run in light.packable(messages, *limits))

    assert [count(0, limit, 10**6) for limit in (0, 1, 3, 8, 9)] == [0, 1, 3, 8, 8]
    assert [count(start, 1_000, 10**6) for start in (0, 3, 7, 8, 9)] == [8, 5, 1, 0, 0]
    sizes = [len(m) + len(m.key() or b"") for m in messages]
    assert [count(0, 8, limit) for limit in (0, 1, 2, 5_000, 5_003)] == [0, 1, 4, 4, 5]
    assert sizes[:4] == [1, 0, 0, 5_001]
    content = light.pack(b"", messages, 2, 3)
    back = light.unpack(content, 0, "t", 3, light.packable(messages, 2, 3, 10**6), 3)
    assert [m.value() for m in back] == [m.value() for m in messages[2:5]]
    with pytest.raises(IndexError):
        light.packable(messages, -1, *LIMITS)
    for start, number in ((-1, 1), (0, -1), (0, 9), (9, 0), (2**62, 2)):
        with pytest.raises(IndexError):
            light.pack(b"", messages, start, number)


def test_whatever_is_not_as_it_was_read_is_not_packed(messages: list[Any]) -> None:
    light = type(messages[0])
    for other in (Message(), None, 7, object()):
        assert light.packable([*messages, other], 0, *LIMITS) is None
        assert light.pack(b"", [*messages, other], 0, 9) is None
    messages[1].set_error(KafkaError(KafkaError._BAD_MSG))
    assert packed(messages[1:2]) == (None, None)
    messages[1].set_error(None)
    for name in ("key", "value"):
        before = getattr(messages[1], name)()
        for value in ("k", 1, bytearray(b"k")):
            getattr(messages[1], f"set_{name}")(value)
            assert light.pack(b"", messages, 0, 8) is None
        getattr(messages[1], f"set_{name}")(before)
    assert light.pack(b"", messages, 0, 8) is not None


def test_headers_that_run_code_break_nothing(messages: list[Any]) -> None:
    class Strange:
        def __eq__(self, _other: object) -> bool:
            messages[0].set_headers(None)
            messages.clear()
            return True

        __hash__ = None  # type: ignore[assignment]

    for message in messages:
        message.set_headers([Strange()])
    # None of them is there any more, when the second one was compared.
    assert [run[-1] for run in type(messages[0]).packable(messages, 0, *LIMITS)] == [2]


def test_bytes_that_were_not_packed_so_are_refused(messages: list[Any]) -> None:
    like, count = messages[0], len(messages)
    content, runs = packed(messages)
    for size in range(len(content) - 1):
        with pytest.raises(ValueError, match="no packed"):
            unpacked(like, content[:size], runs, count)
    with pytest.raises(ValueError, match="no packed"):
        unpacked(like, content + b"x", runs, count)
    for number in (-1, 0, count - 1, count + 1, 2**62):
        with pytest.raises(ValueError, match="no packed"):
            unpacked(like, content, runs, number)
    for wrong in ([], runs[1:], [*runs, runs[0]], [(None, 1, 0, 2**40)], [(None, 1, 0, -1)]):
        with pytest.raises(ValueError, match="no packed"):
            unpacked(like, content, wrong, count)
    for wrong in ([7], [(None, 1, 0)], [(None, "", 0, 8)]):
        with pytest.raises((TypeError, ValueError)):
            unpacked(like, content, wrong, count)
    for front in (-1, len(content) + 1):
        with pytest.raises(ValueError, match="no packed"):
            type(like).unpack(content, front, "t", 0, runs, count)


def test_no_damage_makes_it_read_beyond_the_bytes(messages: list[Any]) -> None:
    content, runs = packed(messages)
    rows = range(len(FRONT), len(FRONT) + ROW_BYTES * len(messages))
    chance, refused = random.Random(3), 0
    for at in rows:
        damaged = bytearray(content)
        damaged[at] ^= 1 << chance.randrange(8)
        try:
            unpacked(messages[0], bytes(damaged), runs, len(messages))
        except ValueError:
            refused += 1
    # A third of a row is sizes; offsets and timestamps may be any.
    assert refused == len(messages) * 8


@pytest.mark.parametrize("arguments", [(), (None, 0, 1, 1), ([], "0", 1, 1), ([], 0, 1, 2**70)])
def test_wrong_arguments_are_refused(messages: list[Any], arguments: Any) -> None:
    light = type(messages[0])
    with pytest.raises((TypeError, OverflowError)):
        light.packable(*arguments)
    with pytest.raises((TypeError, OverflowError)):
        light.pack(*arguments)
    with pytest.raises((TypeError, OverflowError)):
        light.unpack(*arguments)


def test_a_lack_of_memory_is_told_wherever_it_comes(messages: list[Any]) -> None:
    lack = pytest.importorskip("_testcapi", reason="this Python has no module for its own tests")
    content, runs = packed(messages)
    steps = (
        lambda: packed(messages) == (content, runs),
        lambda: len(unpacked(messages[0], content, runs, len(messages))) == len(messages),
    )
    for step in steps:
        told: list[bool] = []
        for at in range(1, 60):
            lack.set_nomemory(at, at + 1)
            try:
                told.append(not step())
            except MemoryError:
                told.append(True)
            finally:
                lack.remove_mem_hooks()
        assert sum(told) > 3
        assert not told[-1]


def test_packing_leaves_no_memory(messages: list[Any]) -> None:
    for message in messages:
        message.set_value(bytes(1_000))
    many = messages * 100
    sizes: list[int] = []
    for turn in range(300):
        content, runs = packed(many)
        assert len(unpacked(many[0], content, runs, len(many))) == len(many)
        with pytest.raises(ValueError, match="no packed"):
            unpacked(many[0], content[:-1], runs, len(many))
        assert type(many[0]).pack(b"", [*many, None], 0, len(many) + 1) is None
        if turn in (99, 299):
            sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    # 320 MB of values were copied in between.
    assert sizes[1] - sizes[0] < 10_000, sizes


def test_a_trial_tells_wrong_messages(messages: list[Any]) -> None:
    class Wrong:
        packable = staticmethod(type(messages[0]).packable)
        pack = staticmethod(type(messages[0]).pack)

        @staticmethod
        def unpack(*_: Any) -> list[Any]:
            return messages[::-1]

    assert loading._try_packing(messages, type(messages[0])) is None
    assert "unpacked" in (loading._try_packing(messages, Wrong) or "")
