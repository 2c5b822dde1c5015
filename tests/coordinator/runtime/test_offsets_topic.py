"""`__transaction_offsets`: its codecs, and its writer, which has one write in flight per group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from logtx.coordinator.core import offsets_lanes
from logtx.coordinator.core.committed_offsets import IOV_MAX_BYTES, CommittedOffsets
from logtx.coordinator.core.offsets_lanes import OffsetsKey, OffsetsLanes
from logtx.coordinator.protocol.commands import GroupOffsets
from logtx.coordinator.runtime import offsets_topic as offsets_log
from logtx.coordinator.runtime.alarm import monotonic_ms
from logtx.coordinator.runtime.offsets_topic import (
    OffsetsWriter,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from logtx.integration.inspect.committed_offsets import committed_iovs
from logtx.journal.errors import CorruptRecordError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Passed, Position
from logtx.journal.reader import OFFSETS_TOPIC, journal_partition_of
from logtx.journal.txid import TxId

LONG: Final = st.integers(0, 2**63 - 1)
NAME: Final = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
KEY: Final = st.builds(OffsetsKey, NAME, st.integers(0, 65_535), st.integers(0, 2**48 - 1), LONG)
JOURNALS: Final = st.dictionaries(
    st.tuples(st.integers(0, 65_535), st.integers(0, 2**48 - 1)), LONG, max_size=3
)
PASSED: Final = st.builds(
    Passed, st.tuples(st.integers(0, 65_535), st.integers(0, 2**48 - 1)), LONG, LONG
)


@st.composite
def positions(draw: st.DrawFn) -> Position:
    """Draws a position; o2 is never below o1."""
    o1, o2 = sorted((draw(LONG), draw(LONG)))
    return Position(
        o1=o1,
        o2=o2,
        o3=draw(LONG),
        met=draw(JOURNALS),
        delivered=draw(JOURNALS),
        passed=draw(st.none() | PASSED),
    )


OFFSETS: Final = st.builds(
    GroupOffsets,
    st.dictionaries(st.tuples(NAME, st.integers(0, 2**31 - 1)), positions(), max_size=4),
    st.builds(TxId, st.integers(0, 65_535), st.integers(0, 2**48 - 1), LONG),
    LONG,
)

# ---- codecs -------------------------------------------------------------------------------------


@given(KEY)
def test_keys_round_trip(key: OffsetsKey) -> None:
    assert decode_key(encode_key(key)) == key


@given(OFFSETS)
def test_values_round_trip(offsets: GroupOffsets) -> None:
    assert decode_value(encode_value(offsets)) == offsets


HEADER_BYTES: Final = 100
"""Upper bound of a value without its offsets."""


@given(OFFSETS)
def test_a_value_takes_no_more_than_was_reckoned_before_the_commit(offsets: GroupOffsets) -> None:
    committed = CommittedOffsets()
    assert offsets.last_commit is not None
    assert offsets.commit_sequence is not None
    for _ in range(2):  # An entry that is there already is not counted again.
        rows = [(t, p, position) for (t, p), position in offsets.offsets.items()]
        committed.restore("g", rows, offsets.last_commit, offsets.commit_sequence)
    bare = {p: replace(position, met={}) for p, position in offsets.offsets.items()}
    value = encode_value(replace(offsets, offsets=bare))
    reckoned = committed._groups["g"].size_bytes
    assert len(value) - HEADER_BYTES <= reckoned <= 3 * len(value)


def test_sequences_met_are_left_out_of_a_value_that_would_be_too_large() -> None:
    met = {(number, 2**48 - 1): 2**62 for number in range(90)}
    position = Position(o1=1, o2=2, o3=3, met=met, delivered={(1, 2): 3})
    for count, kept in ((250, met), (350, {})):
        iov = GroupOffsets({("é" * 60, p): position for p in range(count)}, TxId(0, 1, 2), 3)
        value = encode_value(iov)
        assert len(value) < IOV_MAX_BYTES
        bare = replace(position, met=kept)
        read = decode_value(value)
        assert all(found == bare for found in read.offsets.values()), "the rest is there"
        assert read.offsets.keys() == iov.offsets.keys()


def test_one_group_has_one_key_for_each_owner() -> None:
    # Compaction must not let a late write of an old owner take its successor's place (trap 27).
    keys = [OffsetsKey("g", 0, 7, epoch) for epoch in (3, 4)]
    assert len({encode_key(key) for key in (*keys, OffsetsKey("g", 0, 8, 3))}) == 3


KEY_BYTES: Final = "01026706f4fc0422"
VALUE_BYTES: Final = (
    "0122332d3030303030303030396633612d333050020c64656c617973020a3"
    "a6c6f6774782f312039203220332d3030303030303030396633613d343000"
)


def test_the_bytes_of_version_1_stay() -> None:
    assert encode_key(OffsetsKey("g", 3, 0x9F3A, 17)).hex() == KEY_BYTES
    offsets = GroupOffsets(
        {("delays", 1): Position(o1=5, o2=9, o3=2, met={(3, 0x9F3A): 40})}, TxId(3, 0x9F3A, 30), 40
    )
    assert encode_value(offsets).hex() == VALUE_BYTES


@pytest.mark.parametrize("decode", [decode_key, decode_value])
@pytest.mark.parametrize("raw", [None, b"", b"\x02", b"\x01", b"\x01\xff"])
def test_what_does_not_decode_is_corrupt(decode: Callable[[Any], Any], raw: bytes | None) -> None:
    with pytest.raises(CorruptRecordError):
        decode(raw)


@given(st.binary(max_size=40))
def test_any_bytes_decode_or_are_corrupt(raw: bytes) -> None:
    for decode in (decode_key, decode_value):
        with suppress(CorruptRecordError):
            decode(b"\x01" + raw)


def test_a_value_with_a_broken_txid_is_corrupt() -> None:
    good = encode_value(GroupOffsets({}, TxId(3, 0x9F3A, 30), 40))
    with pytest.raises(CorruptRecordError):
        decode_value(good.replace(b"3-", b"3+"))


# ---- the writer ---------------------------------------------------------------------------------


class FakeAppender:
    """Keeps appended records until the test acknowledges them."""

    def __init__(self, *_: object) -> None:
        self.appended: list[tuple[int, bytes, bytes | None, Callable[..., None]]] = []

    def append(
        self,
        topic: str,
        partition: int,
        acknowledge: Callable[..., None],
        *,
        key: bytes,
        value: bytes | None,
    ) -> None:
        """Queues a record."""
        assert topic == OFFSETS_TOPIC
        self.appended.append((partition, key, value, acknowledge))

    def renew_if_broken(self) -> None:
        """Does nothing: it never breaks."""

    def acknowledge(self, index: int, error: KafkaError | None = None) -> None:
        """Reports a record as taken, or as refused."""
        self.appended[index][3](None if error else 0, error)

    def sequences(self) -> list[int | None]:
        """Commit sequences appended, in order; None for a removal."""
        return [
            None if value is None else decode_value(value).commit_sequence
            for _, _, value, _ in self.appended
        ]


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch, memory_log: MemoryLog) -> OffsetsWriter:
    """A writer over a `FakeAppender`."""
    monkeypatch.setattr(offsets_log, "Appender", FakeAppender)
    monkeypatch.setattr(offsets_lanes, "RETRY_MS", 0)
    return OffsetsWriter(memory_log, 4)


def fake(writer: OffsetsWriter) -> FakeAppender:
    appender = writer._appender
    assert isinstance(appender, FakeAppender)
    return appender


def iov(sequence: int) -> GroupOffsets:
    return GroupOffsets({("a", 0): Position.at(sequence)}, TxId(0, 7, 1), sequence)


K: Final = OffsetsKey("g", 0, 7, 3)


def test_a_newer_iov_stands_for_those_that_waited(writer: OffsetsWriter) -> None:
    written: list[int] = []
    for sequence in (1, 2, 3):
        writer.write(K, iov(sequence), lambda s=sequence: written.append(s))
    assert fake(writer).sequences() == [1]
    fake(writer).acknowledge(0)
    assert written == [1]
    assert fake(writer).sequences() == [1, 3]
    fake(writer).acknowledge(1)
    assert written == [1, 2, 3]
    assert fake(writer).sequences() == [1, 3]


def test_the_backlog_counts_every_commit_that_waits(writer: OffsetsWriter) -> None:
    assert writer.backlog(K) == 0
    for sequence in (1, 2, 3):
        writer.write(K, iov(sequence), lambda: None)
    assert writer.backlog(K) == 3
    fake(writer).acknowledge(0)
    assert writer.backlog(K) == 2
    fake(writer).acknowledge(1)
    assert writer.backlog(K) == 0


def test_a_commit_gives_what_it_moved_and_the_record_has_all(writer: OffsetsWriter) -> None:
    for partition in range(3):
        moved = {("a", partition): Position.at(partition)}
        writer.write(K, GroupOffsets(moved, TxId(0, 7, 1), partition), lambda: None)
    fake(writer).acknowledge(0)
    raw = fake(writer).appended[1][2]
    assert decode_value(raw).offsets == {("a", n): Position.at(n) for n in range(3)}


def test_a_removal_does_not_overtake_an_iov_that_is_on_its_way(writer: OffsetsWriter) -> None:
    done: list[str] = []
    writer.write(K, iov(1), lambda: done.append("written"))
    writer.clear(K, lambda: done.append("cleared"))
    assert fake(writer).sequences() == [1]
    fake(writer).acknowledge(0)
    assert fake(writer).sequences() == [1, None]
    fake(writer).acknowledge(1)
    assert done == ["written", "cleared"]
    assert not writer._lanes._lanes


def test_a_large_iov_that_is_encoded_while_its_group_is_forgotten(memory_log: MemoryLog) -> None:
    memory_log.create_topic(OFFSETS_TOPIC, partitions=1)

    async def run() -> None:
        writer, cleared = OffsetsWriter(memory_log, 1), asyncio.Event()
        large = {("a", n): Position.at(0) for n in range(10 * offsets_log.ENCODED_AT_ONCE_MAX)}
        writer.write(K, GroupOffsets(large, TxId(0, 7, 1), 1), lambda: None)
        writer.clear(K, cleared.set)
        async with asyncio.timeout(20):
            await cleared.wait()
        await writer.close()

    asyncio.run(run())
    assert committed_iovs(memory_log) == {}


def test_of_two_journal_partitions_the_iov_that_was_written_last_counts(
    memory_log: MemoryLog,
) -> None:
    # The group was forgotten and is bound elsewhere, where sequences are lower. Its former owner
    # has not removed the record yet.
    memory_log.create_topic(OFFSETS_TOPIC, partitions=1)

    async def run() -> None:
        writer = OffsetsWriter(memory_log, 1)
        for key, sequence in ((K, 5_000), (replace(K, partition=1), 40)):
            written = asyncio.Event()
            writer.write(key, iov(sequence), written.set)
            async with asyncio.timeout(20):
                await written.wait()
            await asyncio.sleep(0.01)
        await writer.close()

    asyncio.run(run())
    key, offsets = committed_iovs(memory_log)["g"]
    assert (key.partition, offsets.commit_sequence) == (1, 40)


def test_a_removal_that_failed_is_repeated(writer: OffsetsWriter) -> None:
    done: list[int] = []
    writer.clear(K, lambda: done.append(1))
    fake(writer).acknowledge(0, KafkaError(KafkaError._MSG_TIMED_OUT))
    writer._lanes.tick(monotonic_ms())
    assert fake(writer).sequences() == [None, None]
    assert not done
    fake(writer).acknowledge(1)
    assert done == [1]


def test_an_iov_behind_a_removal_holds_what_was_written_since(writer: OffsetsWriter) -> None:
    # A deleted topic's offsets are taken out: the whole record goes, and the rest is written anew.
    both = {("a", 0): Position.at(1), ("deleted", 0): Position.at(1)}
    done: list[int] = []
    writer.write(K, GroupOffsets(both, TxId(0, 7, 1), 1), lambda: done.append(1))
    for number in (2, 3):
        writer.clear(K, lambda: None)
        writer.write(K, iov(1), lambda n=number: done.append(n))
        fake(writer).acknowledge(len(fake(writer).appended) - 1)
        assert done == list(range(1, number))
    fake(writer).acknowledge(2)
    assert done == [1, 2, 3]
    assert [set(decode_value(v).offsets) for _, _, v, _ in fake(writer).appended if v] == [
        set(both),
        {("a", 0)},
        {("a", 0)},
    ]


class Paced:
    """Lanes, and what they ask of the outside."""

    def __init__(self) -> None:
        self.lanes = OffsetsLanes(self)
        self.appended: list[int] = []
        self.wake_ms = -1

    def append(self, _key: OffsetsKey, offsets: GroupOffsets | None) -> None:
        """Keeps the size of the IOV; -1 for a removal."""
        self.appended.append(-1 if offsets is None else len(offsets.offsets))

    def wake_at(self, at_ms: int) -> None:
        """Keeps the time."""
        self.wake_ms = at_ms


def test_finding_12_the_larger_an_iov_the_less_often_it_is_written() -> None:
    stage, written = Paced(), list[int]()
    whole = {("a", n): Position.at(0) for n in range(1_000)}
    stage.lanes.write(K, GroupOffsets(whole, TxId(0, 7, 1), 0), lambda: written.append(0), 0)
    for now_ms in range(1, 201):
        moved = {("a", now_ms): Position.at(1)}
        offsets = GroupOffsets(moved, TxId(0, 7, 1), now_ms)
        stage.lanes.write(K, offsets, lambda n=now_ms: written.append(n), now_ms)
        stage.lanes.answered(K, now_ms, durable=True)
        if now_ms >= stage.wake_ms:
            stage.lanes.tick(now_ms)
    assert stage.appended == [1_000] * 3, "at 0, 100 and 200 ms"
    assert written == list(range(101))
    stage.lanes.answered(K, 201, durable=True)
    assert written == list(range(201))


def test_groups_do_not_wait_for_each_other(writer: OffsetsWriter) -> None:
    other = OffsetsKey("h", 0, 7, 3)
    writer.write(K, iov(1), lambda: None)
    writer.write(other, iov(2), lambda: None)
    assert fake(writer).sequences() == [1, 2]
    assert [p for p, *_ in fake(writer).appended] == [
        journal_partition_of(group, 4) for group in ("g", "h")
    ]


def test_a_refused_write_is_repeated_with_the_newest(writer: OffsetsWriter) -> None:
    refused = KafkaError(KafkaError.NOT_ENOUGH_REPLICAS)
    written: list[int] = []

    async def run() -> None:
        writer.write(K, iov(1), lambda: written.append(1))
        fake(writer).acknowledge(0, refused)
        await asyncio.sleep(0.01)
        assert fake(writer).sequences() == [1, 1]
        writer.write(K, iov(2), lambda: written.append(2))
        fake(writer).acknowledge(1, refused)
        await asyncio.sleep(0.01)

    asyncio.run(run())
    assert fake(writer).sequences() == [1, 1, 2]
    assert written == []
    fake(writer).acknowledge(2)
    assert written == [1, 2]


def test_a_forgotten_lane_is_not_repeated(writer: OffsetsWriter) -> None:
    async def run() -> None:
        writer.write(K, iov(1), lambda: None)
        writer.forget(0)
        fake(writer).acknowledge(0, KafkaError(KafkaError.NOT_ENOUGH_REPLICAS))
        await asyncio.sleep(0.01)

    asyncio.run(run())
    assert fake(writer).sequences() == [1]


def test_what_is_queued_is_dropped_when_the_partition_is_loaded_again(
    writer: OffsetsWriter,
) -> None:
    # A repeated write would recreate the key of an epoch that the next owner has cleared.
    writer.write(K, iov(1), lambda: None)
    writer.write(K, iov(2), lambda: None)
    writer.forget(0)
    fake(writer).acknowledge(0)
    assert fake(writer).sequences() == [1]


def test_other_partitions_are_not_forgotten(writer: OffsetsWriter) -> None:
    writer.write(K, iov(1), lambda: None)
    writer.write(K, iov(2), lambda: None)
    writer.forget(1)
    fake(writer).acknowledge(0)
    assert fake(writer).sequences() == [1, 2]


def test_what_an_earlier_owner_wrote_is_removed_at_once(writer: OffsetsWriter) -> None:
    writer.write(replace(K, epoch=K.epoch + 1), iov(1), lambda: None)
    writer.clear_former(K)
    assert fake(writer).sequences() == [1, None]
    fake(writer).acknowledge(1, KafkaError(KafkaError.NOT_ENOUGH_REPLICAS))
    assert decode_key(fake(writer).appended[1][1]) == K
