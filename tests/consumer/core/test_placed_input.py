"""The input of a partition in which a home places. The search has its interleavings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from logtx.consumer.core.home_view import HomeView, HomeWrites, Start
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.core.placed_buffer import PlacedBuffer
from logtx.consumer.core.placed_input import PlacedInput, has_ended
from logtx.journal.control import BranchRange
from logtx.journal.places import PartitionId, Placed
from logtx.journal.position import Passed, Position

from ..records import INCARNATION, FakeRecord, data, malformed, marker, plain, txid

A = PartitionId("delays", 0, "id")
HOME = (2, INCARNATION)
FOREIGN = txid(1, partition=9)


def record(at: int, begin: int) -> FakeRecord:
    return data(at, txid(begin, partition=HOME[0]))


class Reader:
    """A partition's input, at offset 0 of a journal unless it goes on from a position."""

    def __init__(self, position: Position | None = None) -> None:
        start = position or Position(o1=0, o2=0, passed=Passed(HOME, -1))
        passed = None if start.passed is None else start.passed.sequence
        self.view = view = HomeView(HOME, 0)
        view.attach(A, Start(start.o2, passed, start.o1))
        self.buffer = PlacedBuffer(
            A.key,
            start,
            PendingTransactionMap(2**62),
            home=HOME,
            has_ended=lambda begin: has_ended(view, A, begin),
            malformed=malformed,
        )
        self.input = PlacedInput(A, view, self.buffer, None)

    def commit(self, begin: int, sequence: int, *accepted: tuple[int, int, int]) -> None:
        ranges = tuple(BranchRange(0, *each) for each in accepted)
        self.view.committed(begin, sequence, [HomeWrites(A, ranges, True)])
        self.view.read_to(sequence + 1)

    def place(self, upto: int, place: int) -> None:
        self.view.placed(Placed(upto, {A: place}))
        self.input.advance()

    def take(self, limit: int = 99) -> list[int]:
        return [r.offset() for r in self.buffer.take(limit)]

    def feed(self, records: Sequence[FakeRecord]) -> None:
        self.input.feed(records)

    def gate(self, end: int) -> None:
        frontier = self.input.frontier()
        assert frontier is not None
        self.input.gate(frontier, end)


def test_a_plain_record_waits_until_nothing_can_be_placed_before_it() -> None:
    reader = Reader()
    reader.feed([plain(0), plain(1)])
    assert reader.take() == []
    assert reader.input.held_records == 2
    assert reader.input.frontier() == 2
    reader.gate(5)
    assert reader.input.frontier() is None  # one question at a time
    assert reader.take() == []
    reader.view.read_to(5)
    reader.input.advance()
    assert reader.take() == [0, 1]
    assert reader.input.frontier() is None


def test_a_gate_waits_for_what_is_decided_and_not_placed() -> None:
    reader = Reader()
    reader.feed([record(0, 3), plain(1)])
    reader.commit(3, 4, (0, 0, 1))
    reader.gate(5)
    assert reader.input.waits_for_place()
    assert reader.take() == []
    reader.place(4, 1)
    assert reader.take() == [0, 1]
    assert not reader.input.waits_for_place()


def test_a_transaction_is_delivered_at_its_place_and_late_records_are_dropped() -> None:
    reader = Reader()
    reader.feed([record(0, 3), plain(1), record(2, 3), plain(3), record(4, 3)])
    reader.commit(3, 4, (0, 2, 2))
    reader.place(4, 3)
    assert reader.take() == [1, 0, 2]
    reader.gate(5)
    assert reader.take() == [3]
    assert reader.buffer.counters.late_records == 1
    assert list(reader.buffer.pending()) == []


def test_an_aborted_transaction_is_dropped_when_it_is_known() -> None:
    reader = Reader()
    reader.view.begun(3)
    reader.view.read_to(4)
    reader.feed([record(0, 3), plain(1)])
    reader.gate(4)
    assert reader.take() == [1]
    assert reader.buffer.position().o1 == 0
    reader.view.aborted(3)
    reader.view.read_to(5)
    reader.input.advance()
    assert reader.buffer.position().o1 == 2
    assert reader.buffer.counters.discarded_transactions == 1


def test_trap_216_a_marker_of_a_higher_sequence_was_met_before_the_place_is_heard_of() -> None:
    # It was told late of the switch: it has met what the home marked behind that place.
    other = txid(4, partition=HOME[0])
    start = Position(o1=0, o2=3, met={HOME: 12}, passed=Passed(HOME, 5))
    reader = Reader(start)
    reader.feed([record(0, 3), data(1, other), marker(2, other, 12, (0, 1, 1, 1))])
    # A restart now must not go on behind that marker's sequence.
    assert reader.buffer.position() == replace(start, met={HOME: 5})
    reader.commit(3, 9, (0, 0, 1))
    reader.place(9, 1)
    assert reader.take() == [0]
    assert reader.buffer.position().passed == Passed(HOME, 9)
    assert reader.input.misplaced == 1
    # Among themselves markers stand in order, so a copy of that one is told as before.
    reader.feed([marker(3, other, 12, (0, 1, 1, 1)), plain(4)])
    reader.view.read_to(13)
    reader.gate(13)
    assert reader.take() == [4]
    assert reader.buffer.counters.duplicate_markers == 1
    assert reader.buffer.counters.side_reads == 0


def three_at_one_place(reader: Reader) -> None:
    reader.feed([record(0, 1), record(1, 2), record(2, 2), record(3, 3)])
    reader.commit(1, 5, (0, 0, 1))
    reader.commit(2, 6, (1, 2, 2))
    reader.commit(3, 7, (3, 3, 1))
    reader.place(7, 4)


def test_positions_among_transactions_at_one_place() -> None:
    reader = Reader()
    three_at_one_place(reader)
    found = []
    while offsets := reader.take(1):
        position = reader.buffer.position()
        assert position.passed is not None
        found.append((offsets[0], position.o2, position.passed.sequence, position.passed.taken))
    assert found == [(0, 4, 5, 0), (1, 4, 5, 1), (2, 4, 6, 0), (3, 4, 7, 0)]


def test_each_position_goes_on_exactly() -> None:
    for count in range(5):
        reader = Reader()
        three_at_one_place(reader)
        before = [o for _ in range(count) for o in reader.take(1)]
        position = reader.buffer.position()
        again = Reader(position)
        assert again.buffer.position().place == position.place
        three_at_one_place(again)
        assert before + again.take() == [0, 1, 2, 3], position
        assert list(again.buffer.pending()) == []


def test_any_record_delivered_lately_may_be_committed() -> None:
    def everything(reader: Reader) -> None:
        reader.feed([record(0, 1), record(1, 2), record(2, 2), plain(3), plain(4)])
        reader.commit(1, 5, (0, 0, 1))
        reader.commit(2, 6, (1, 2, 2))
        reader.place(6, 3)
        if reader.input.frontier() is not None:
            reader.gate(7)

    reader = Reader()
    everything(reader)
    delivered = reader.take()
    assert delivered == [0, 1, 2, 3, 4]
    for count, offset in enumerate(delivered, 1):
        position = reader.buffer.position_after(offset)
        again = Reader(position)
        everything(again)
        assert again.take() == delivered[count:], position


def test_put_back_and_earlier_positions_say_the_sequence_too() -> None:
    reader = Reader()
    three_at_one_place(reader)
    assert reader.take(2) == [0, 1]
    assert reader.take(2) == [2, 3]
    after_1, after_3 = reader.buffer.position_after(1), reader.buffer.position_after(3)
    assert after_1 is not None
    assert after_3 is not None
    assert (after_1.o2, after_1.passed) == (4, Passed(HOME, 5, 1))
    # What lies at the place itself comes next.
    assert (after_3.o2, after_3.passed) == (4, Passed(HOME, 7))
    reader.buffer.put_back()
    assert reader.buffer.position().passed == Passed(HOME, 5, 1)


def test_half_a_marked_transaction_of_another_journal_is_counted_apart() -> None:
    reader = Reader()
    records = [data(0, FOREIGN), data(1, FOREIGN), record(2, 3)]
    end = marker(3, FOREIGN, 8, (0, 0, 1, 2))
    reader.feed([*records, end, plain(4)])
    reader.commit(3, 5, (2, 2, 1))
    reader.place(5, 3)
    reader.gate(6)
    assert reader.take(2) == [2, 0]
    position = reader.buffer.position()
    assert (position.o2, position.o3, position.passed) == (3, 1, Passed(HOME, 5))
    again = Reader(position)
    again.feed([*records, end, plain(4)])
    again.commit(3, 5, (2, 2, 1))
    again.place(5, 3)
    again.gate(6)
    assert again.take() == [1, 4]


def test_what_turns_out_to_be_placed_too_low_comes_at_once_and_is_counted() -> None:
    reader = Reader()
    reader.view.begun(3)
    reader.feed([record(0, 3), plain(1), plain(2)])
    reader.gate(4)
    reader.view.read_to(4)
    reader.input.advance()
    assert reader.take() == [1, 2]
    reader.commit(3, 4, (0, 0, 1))
    reader.place(4, 1)  # the end that was told was one of the past
    assert reader.take() == [0]
    assert reader.input.misplaced == 1
    assert reader.buffer.position().passed == Passed(HOME, 4)


def test_a_new_reader_delivers_nothing_before_it_knows_where_it_stands() -> None:
    reader = Reader(Position.at(2))
    reader.feed([record(2, 4), plain(3)])
    assert reader.buffer.position() == Position.at(2)
    reader.commit(3, 4, (0, 1, 2))
    reader.commit(4, 5, (2, 2, 1))
    reader.place(4, 2)
    # T3 is placed exactly at the start, so it is due; its records lie below: a side read.
    assert [r.first_offset for r in reader.buffer.side_reads()] == [0]
    assert reader.buffer.position().passed == Passed(HOME, 3)


def test_a_new_reader_passes_over_what_is_placed_below() -> None:
    reader = Reader(Position.at(3))
    reader.commit(3, 4, (0, 1, 2))
    reader.place(4, 2)
    assert reader.buffer.position().passed is None
    assert reader.input.frontier() == 3  # asked even if there is nothing to read
    reader.gate(5)
    assert reader.take() == []
    assert reader.buffer.position().passed == Passed(HOME, 4)


def test_input_is_over_behind_the_mode_record_that_ends_it() -> None:
    reader = Reader()
    reader.feed([record(0, 3), plain(1)])
    reader.input.skip_unseen(3)  # a mode record at 2
    reader.input.end_with(2)
    reader.feed([plain(3)])
    reader.commit(3, 4, (0, 0, 1))
    reader.place(4, 2)
    assert reader.take() == [1, 0]
    assert not reader.input.is_over
    reader.gate(5)
    assert reader.input.is_over
    assert reader.take() == []
    assert reader.buffer.position().o2 == 2
    assert reader.input.held_records == 1  # read again without a home
