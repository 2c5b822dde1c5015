"""Where a reader in serial order goes on that began in the middle of a partition."""

from __future__ import annotations

import pytest

from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.counters import ConsumerCounters
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.core.serial_buffer import SerialBuffer
from logtx.consumer.core.serial_order import CommitDecision, Floor, SerialOrder
from logtx.journal.control import BranchRange, Marker
from logtx.journal.position import Journal, Position

from ..records import DATA, INCARNATION, FakeRecord, data, malformed, marker, txid

JOURNAL: Journal = (0, INCARNATION)
BELOW, FIRST, LATER = txid(1), txid(2), txid(6)


def buffer_at(position: Position) -> SerialBuffer:
    return SerialBuffer(
        DATA,
        Position.from_metadata(position.o1, position.to_metadata()),
        PendingTransactionMap(2**62),
        journal_partition=0,
        malformed=malformed,
    )


def feed(buffer: SerialBuffer, log: list[FakeRecord]) -> None:
    buffer.feed([record for record in log if record.at >= buffer.next_offset])


def aside(sequence: int) -> Marker:
    """The end of a transaction of which all records lie in the sidecar."""
    written = (BranchRange(0, 0, 0, 1),)
    return Marker(
        committed=True, commit_sequence=sequence, hw=0, epoch=0, branches=(), sidecar=written
    )


COPIED = [
    data(10, FIRST),
    marker(11, FIRST, 20, (0, 10, 10, 1)),
    # Its first marker, and its record, lie below the start. Recovery writes it again.
    marker(12, BELOW, 5, (0, 3, 3, 1)),
]


def gone_on() -> SerialBuffer:
    """Reads it, and goes on where the position says."""
    first = buffer_at(Position.at(10))
    feed(first, COPIED)
    # As if an end of the past had been told of the journal, below its decisions.
    first.skip_to(JOURNAL, 3)
    second = buffer_at(first.position())
    feed(second, COPIED)
    return second


def test_trap_201_a_copy_of_a_marker_from_below_the_start_holds_no_position() -> None:
    reader = gone_on()
    assert reader.ended(FIRST.to_bytes()) is not None
    assert reader.has_ended(BELOW.to_bytes()), "the order must not wait for it"


def test_trap_201_a_copy_that_is_held_would_lose_what_comes_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SerialBuffer, "_pass_duplicate", PartitionBuffer._pass_duplicate)
    assert gone_on().ended(FIRST.to_bytes()) is None


def read_on(first: SerialBuffer) -> SerialBuffer:
    """Returns a reader that goes on where another one stops, which has read to the end, and to
    which other partitions' transactions were passed over, up to sequence 3."""
    first.skip_unseen(20)
    first.release(JOURNAL, 3)
    return buffer_at(first.position())


@pytest.mark.parametrize("lives", [0, 1, 2])
def test_trap_202_what_is_placed_below_the_first_start_is_not_due_to_later_lives(
    lives: int,
) -> None:
    reader = buffer_at(Position.at(9))
    for _ in range(lives):
        reader = read_on(reader)
    reader.place(BELOW.to_bytes(), aside(5), 8)
    assert reader.will_not_come(BELOW.to_bytes())
    reader.place(FIRST.to_bytes(), aside(7), 12)
    assert not reader.will_not_come(FIRST.to_bytes()), "placed behind the start, below the end"


def begun_by_turn(reader: SerialBuffer) -> None:
    reader.place(FIRST.to_bytes(), aside(7), 12)
    reader.skip_unseen(12)
    reader.let_through(FIRST.to_bytes())


def begun_by_order(reader: SerialBuffer) -> None:
    reader.skip_to(JOURNAL, 0)  # As `JournalTail` does, when all from before was passed.


@pytest.mark.parametrize("begun", [begun_by_turn, begun_by_order])
def test_what_is_placed_too_low_is_due_to_who_knows_where_it_stands(begun: object) -> None:
    reader = read_on(buffer_at(Position.at(9)))
    assert callable(begun)
    begun(reader)
    for _ in range(2):
        reader = read_on(reader)
        assert reader.all_due
    assert reader.position().o2 > 9
    reader.place(LATER.to_bytes(), aside(8), 4)
    assert not reader.will_not_come(LATER.to_bytes())


def test_a_decision_from_before_the_beginning_waits_until_it_is_passed() -> None:
    order = SerialOrder(ConsumerCounters())
    buffers = {DATA: buffer_at(Position.at(9))}
    order.begin(Floor(JOURNAL, 4))
    assert not order.has_passed(6), "markers may tell of some below the floor"
    order.begin()
    order.decide(CommitDecision(5, FIRST, 0, (("elsewhere", 0),)))
    order.decide(CommitDecision(8, LATER, 0, (DATA,)))
    assert not order.has_passed(6)
    assert order.head(buffers) is not None
    assert order.has_passed(6)
