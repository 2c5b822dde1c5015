"""A pointer in one partition: what follows from losses, before and behind a part that is
delivered."""

from __future__ import annotations

from typing import Final

import pytest

from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.counters import ConsumerCounters
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.core.uncommitted import UncommittedBuffer
from logtx.journal.errors import IntegrityError, NotAuthorizedError, TornTransactionError
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


def pointer(at: int, writes: Writes, since: int = 0, sidecar_id: str = "") -> FakeRecord:
    return end_record(at, OWNER, 1, writes, since, commit=True, sidecar_id=sidecar_id)


def tell(buffer: PartitionBuffer, start: int, end: int, topic_id: str = "") -> None:
    """Says what the sidecar holds."""
    request = buffer.stream_wanted()
    assert request is not None
    buffer.open_stream(request, start, end, topic_id)


def stream(buffer: PartitionBuffer, *offsets: int) -> None:
    """Reads these offsets of the sidecar, which are the transaction's."""
    request = buffer.stream_wanted()
    assert request is not None
    assert request.next_offset <= offsets[0]
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


@pytest.mark.parametrize(
    ("side", "first"), [([3, 4, 5, 6], 5), ([3, 4, 5, 7], 3), ([3, 5, 6, 7], 3)]
)
def test_a_reader_that_knows_no_place_in_the_sidecar_begins_there_if_all_is_its_transactions(
    side: list[int], first: int
) -> None:
    buffer = buffer_at(Position(o1=5, o2=5, o3=2))
    buffer.feed([pointer(5, Writes(side=side), since=5)])
    request = buffer.stream_wanted()
    assert request is not None
    assert request.next_offset == first
    tell(buffer, 0, 9)
    stream(buffer, *(offset for offset in side if offset >= first))
    assert taken(buffer) == [to_delivered(offset) for offset in side[2:]]
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


def in_both(sidecar_id: str) -> PartitionBuffer:
    """Returns a reader at a pointer whose transaction has a record in the topic and two aside."""
    buffer = buffer_at(Position.at(0))
    buffer.feed([data(0, OWNER), pointer(5, Writes(main=[0], side=[0, 2]), 0, sidecar_id)])
    return buffer


@pytest.mark.parametrize("told", ["", "x"])
def test_a_sidecar_of_the_id_that_the_pointer_names_is_delivered_as_it_is_read(told: str) -> None:
    buffer = in_both("x")
    tell(buffer, 0, 3, told)
    assert taken(buffer) == [0]
    stream(buffer, 0)
    assert taken(buffer) == [to_delivered(0)]


def test_trap_118_a_sidecar_made_anew_is_told_before_anything_is_delivered() -> None:
    buffer = in_both("x")
    tell(buffer, 0, 9, "y")
    assert taken(buffer) == []
    request = buffer.stream_wanted()
    assert request is not None
    assert request.is_open
    other = TxId(0, INCARNATION, 7)
    buffer.push_stream(request, [data(0, other), data(1, other), data(2, other)], 3)
    assert taken(buffer) == []
    assert isinstance(buffer.failure, IntegrityError)
    assert "deleted and created anew" in str(buffer.failure)


def test_what_is_in_a_sidecar_of_another_id_is_delivered_once_it_is_counted() -> None:
    """The coordinator learnt late that the sidecar is another one; the records are in it."""
    buffer = in_both("x")
    tell(buffer, 0, 3, "y")
    stream(buffer, 0)
    assert taken(buffer) == []
    stream(buffer, 2)
    assert taken(buffer) == [0]
    stream(buffer, 0, 2)
    assert taken(buffer) == [to_delivered(0), to_delivered(2)]
    assert buffer.counters.sidecar_records == 2, "each counts once"
    assert buffer.position().o2 == 6


def test_counting_begins_anew_when_reading_was_refused() -> None:
    buffer = in_both("x")
    for told in ("y", "y", "x"):
        tell(buffer, 0, 3, told)
        stream(buffer, 0)
        buffer.reopen_stream()
    tell(buffer, 0, 3, "x")
    stream(buffer, 2)
    assert taken(buffer) == [0, to_delivered(0), to_delivered(2)]


@pytest.mark.parametrize("trimmed", [True, False])
def test_a_sidecar_of_another_id_that_lacks_the_range_is_lost(trimmed: bool) -> None:
    buffer = in_both("x")
    tell(buffer, *((1, 9) if trimmed else (0, 2)), "y")
    assert isinstance(buffer.failure, IntegrityError)
    assert "deleted and created anew" in str(buffer.failure)


def test_an_unreadable_header_leaves_a_batch_untouched() -> None:
    class Unreadable(FakeRecord):
        def headers(self) -> list[tuple[str, bytes | None]] | None:
            if self.at == 1:
                raise SystemError("a header's name is not UTF-8")
            return super().headers()

    buffer = in_both("")
    tell(buffer, 0, 3)
    request = buffer.stream_wanted()
    assert request is not None
    records = [Unreadable(n, data(n, OWNER).header_list) for n in range(3)]
    with pytest.raises(SystemError):
        buffer.push_stream(request, records, 3)
    assert buffer.stream_wanted() == request
    buffer.push_stream(request, [data(n, OWNER) for n in (0, 2)], 3)
    assert taken(buffer) == [0, to_delivered(0), to_delivered(2)]


def test_a_sidecar_that_may_not_be_read_stops_the_partition() -> None:
    buffer = in_both("")
    request = buffer.stream_wanted()
    assert request is not None
    buffer.refuse_stream(request, NotAuthorizedError("give it the right"))
    assert isinstance(buffer.failure, NotAuthorizedError)
    assert "give it the right" in str(buffer.failure)


LEVELS: Final = (PartitionBuffer, UncommittedBuffer)


@pytest.mark.parametrize("before", LEVELS)
@pytest.mark.parametrize("after", LEVELS)
@pytest.mark.parametrize("taken_as", ["delivered", "named", "put back"])
def test_trap_159_a_position_within_a_pointer_means_the_same_to_each_level(
    before: type[PartitionBuffer], after: type[PartitionBuffer], taken_as: str
) -> None:
    def reader(kind: type[PartitionBuffer], position: Position) -> PartitionBuffer:
        made = kind(KEYS[0], position, PendingTransactionMap(1 << 30), malformed=malformed)
        made.feed([record for record in records if record.offset() >= position.o1])
        return made

    records = [
        *(data(0, OWNER), data(1, OWNER)),
        pointer(5, Writes(main=[0, 1], side=[0, 1, 2, 3]), since=2),
    ]
    former = reader(before, Position.at(0))
    shown = taken(former)
    tell(former, 0, 4)
    stream(former, 0, 1, 2, 3)
    while len(shown) < 4:
        shown += [record.offset() for record in former.take(1)]
    if taken_as == "put back":
        former.take(2)
        former.put_back()
    elif taken_as == "named":
        former.take(2)
    position = former.position_after(shown[-1]) if taken_as == "named" else former.position()
    assert position is not None
    assert (position.o2, position.o3, position.side) == (5, 4, 2)
    later = reader(after, position)
    assert later.side_reads() == []
    tell(later, 0, 4)
    stream(later, 2, 3)
    assert later.failure is None
    assert [*shown, *taken(later)] == [0, 1, *map(to_delivered, range(4))]
    assert later.position().o2 == 6


def test_a_pointer_that_is_not_begun_has_nothing_delivered_to_readers_of_uncommitted_records() -> (
    None
):
    buffer = UncommittedBuffer(
        KEYS[0], Position.at(3), PendingTransactionMap(1 << 30), malformed=malformed
    )
    buffer.feed([pointer(5, Writes(main=[0, 1], side=[0]), since=2)])
    [request] = buffer.side_reads()
    assert buffer.position().o3 == 0, "it may be a copy"
    assert buffer.answer_side_read(request, None, duplicate=True, torn=False)
    assert taken(buffer) == []
    assert buffer.position().o2 == 6
