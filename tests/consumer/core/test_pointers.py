"""A pointer in one partition: what follows from losses, before and behind a part that is
delivered."""

from __future__ import annotations

from typing import Final

import pytest

from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.counters import ConsumerCounters
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.journal.errors import TornTransactionError
from logtx.journal.position import Position
from logtx.journal.sidecar import to_delivered
from logtx.journal.txid import TxId

from ..records import INCARNATION, FakeRecord, data, malformed
from .test_serial_sidecars import KEYS, Writes, end_record

OWNER: Final = TxId(0, INCARNATION, 0)
FAR: Final = 2**63


def buffer_at(position: Position, *, skip: bool = False) -> PartitionBuffer:
    return PartitionBuffer(
        KEYS[0],
        position,
        PendingTransactionMap(1 << 30),
        malformed=malformed,
        counters=ConsumerCounters(),
        torn_skip_below=FAR if skip else 0,
    )


def pointer(at: int, writes: Writes, since: int = 0) -> FakeRecord:
    return end_record(at, OWNER, 1, writes, since, commit=True)


def tell(buffer: PartitionBuffer, start: int, end: int) -> None:
    """Says what the sidecar holds."""
    request = buffer.stream_wanted()
    assert request is not None
    buffer.open_stream(request, start, end)


def stream(buffer: PartitionBuffer, *offsets: int) -> None:
    """Reads these offsets of the sidecar, which are the transaction's."""
    request = buffer.stream_wanted()
    assert request is not None
    assert request.next_offset == offsets[0]
    buffer.push_stream(request, [data(at, OWNER) for at in offsets], offsets[-1] + 1)


def taken(buffer: PartitionBuffer) -> list[int]:
    return [record.offset() for record in buffer.take(99)]


def unsure() -> PartitionBuffer:
    """Returns a reader at a pointer before which retention may have taken another one."""
    buffer = buffer_at(Position.at(5))
    buffer.feed([pointer(5, Writes(side=[0, 1, 2]))])
    [request] = buffer.side_reads()
    buffer.answer_side_read(request, None, duplicate=False, torn=True)
    return buffer


def test_what_was_not_begun_is_passed_over_where_it_may_be_a_copy() -> None:
    buffer = unsure()
    tell(buffer, 1, 3)
    assert buffer.failure is None
    assert buffer.counters.copied_pointers == 1


def test_trap_116_what_is_delivered_in_part_is_no_copy() -> None:
    buffer = unsure()
    tell(buffer, 0, 3)
    stream(buffer, 0)
    assert taken(buffer) == [to_delivered(0)]
    buffer.reopen_stream()  # Its reading is refused: retention took more.
    tell(buffer, 2, 3)
    assert isinstance(buffer.failure, TornTransactionError)
    assert "1 of its records are delivered" in str(buffer.failure)
    assert "commit offset 6" in str(buffer.failure)
    assert buffer.counters.copied_pointers == 0


@pytest.mark.parametrize("in_this_life", [True, False])
def test_what_is_delivered_in_part_is_not_skipped(in_this_life: bool) -> None:
    started = Position.at(5) if in_this_life else Position(o1=5, o2=5, o3=1, side=1)
    buffer = buffer_at(started, skip=True)
    buffer.feed([pointer(5, Writes(side=[0, 1, 2]), since=5)])
    if in_this_life:
        tell(buffer, 0, 3)
        stream(buffer, 0)
        assert taken(buffer) == [to_delivered(0)]
        buffer.reopen_stream()
    tell(buffer, 2, 3)
    assert isinstance(buffer.failure, TornTransactionError)
    assert buffer.counters.torn_transactions == 0


def test_what_is_not_begun_is_skipped() -> None:
    buffer = buffer_at(Position.at(5), skip=True)
    buffer.feed([pointer(5, Writes(side=[0, 1, 2]), since=5)])
    tell(buffer, 2, 3)
    assert buffer.failure is None
    assert buffer.counters.torn_transactions == 1
    assert buffer.position().o2 == 6


@pytest.mark.parametrize("done", [2, 3])
def test_trap_117_what_is_delivered_of_the_topic_is_not_needed_for_the_rest(done: int) -> None:
    side = to_delivered(done - 2) - to_delivered(0) if done > 2 else None
    buffer = buffer_at(Position(o1=2, o2=5, o3=done, side=side))
    buffer.feed([pointer(5, Writes(main=[0, 1], side=[0, 1]), since=5)])
    assert buffer.side_reads() == [], "retention took what lies in the topic"
    tell(buffer, 0, 2)
    stream(buffer, *range(done - 2, 2))
    assert taken(buffer) == [to_delivered(n) for n in range(done - 2, 2)]
    assert buffer.position().o2 == 6


def test_what_is_left_of_the_topic_is_needed() -> None:
    buffer = buffer_at(Position(o1=2, o2=5, o3=1))
    buffer.feed([pointer(5, Writes(main=[0, 1], side=[0, 1]), since=5)])
    [request] = buffer.side_reads()
    assert buffer.answer_side_read(request, None, duplicate=False, torn=True)
    assert isinstance(buffer.failure, TornTransactionError)


@pytest.mark.parametrize("kept", [True, False])
def test_records_of_the_topic_that_are_delivered_are_dropped(kept: bool) -> None:
    buffer = buffer_at(Position(o1=0, o2=5, o3=2))
    records = [data(0, OWNER), data(1, OWNER)] if kept else [data(1, OWNER)]
    buffer.feed([*records, pointer(5, Writes(main=[0, 1], side=[0, 1]), since=5)])
    tell(buffer, 0, 2)
    stream(buffer, 0, 1)
    assert taken(buffer) == [to_delivered(0), to_delivered(1)]
    assert buffer.counters.late_records == 0
