"""Transactions in the sidecar, at places: what a position says where several end at one offset."""

from __future__ import annotations

import pytest

from logtx.consumer.core.home_view import Aside, Due
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.core.placed_buffer import PlacedBuffer, PlacedPointer
from logtx.consumer.core.serial_buffer import SerialBuffer
from logtx.journal.control import (
    TXCTL_HEADER,
    TXID_HEADER,
    BranchRange,
    Marker,
    encode_marker,
)
from logtx.journal.position import Passed, Position
from logtx.journal.sidecar import in_sidecar
from logtx.journal.txid import TxId

from ..records import FakeRecord, malformed

HOME, OTHER = (0, 7), (1, 7)
MINE, FOREIGN = TxId(*HOME, 5), TxId(*OTHER, 5)
SIDE = [FakeRecord(at, [(TXID_HEADER, (MINE, FOREIGN)[at % 2].to_bytes())]) for at in range(8)]
"""The sidecar: records of both take turns."""
DUE = Due(5, 9, (), aside=Aside((BranchRange(0, 0, 6, 4),), "id"))
START = Position(o1=0, o2=0, o3=0, passed=Passed(HOME, 3))


def buffer_at(position: Position) -> PlacedBuffer:
    return PlacedBuffer(
        ("t", 0),
        position,
        PendingTransactionMap(2**62),
        home=HOME,
        has_ended=lambda _: False,
        malformed=malformed,
    )


def of_sidecar(sequence: int, written: BranchRange) -> Marker:
    """The end of a committed transaction, of which all records lie in the sidecar."""
    return Marker(
        committed=True, commit_sequence=sequence, hw=0, epoch=0, branches=(), sidecar=(written,)
    )


def pointer(offset: int = 0) -> FakeRecord:
    """A pointer of the other journal's transaction."""
    marker = of_sidecar(6, BranchRange(0, 1, 7, 4))
    headers: list[tuple[str, bytes | None]] = [
        (TXID_HEADER, FOREIGN.to_bytes()),
        (TXCTL_HEADER, encode_marker(marker)),
    ]
    return FakeRecord(offset, headers, payload=None)


def take(buffer: PlacedBuffer, count: int) -> list[int]:
    """Delivers some records. Returns their offsets in the sidecar."""
    found: list[int] = []
    while len(found) < count:
        found += [in_sidecar(record.offset()) for record in buffer.take(1)]
        wanted = buffer.stream_wanted()
        if wanted is None:
            if not buffer.ready:
                break
        elif not wanted.is_open:
            buffer.open_stream(wanted, 0, len(SIDE))
        else:
            at = wanted.next_offset
            buffer.push_stream(wanted, SIDE[at : at + 1], at + 1)
    return found


def half_of_both() -> tuple[Position, list[int]]:
    """Delivers half of a pointer's records; then the home places something below, too low; a
    restarted reader delivers half of that first."""
    first = buffer_at(START)
    first.feed([pointer()])
    found = take(first, 2)
    again = buffer_at(first.position())
    assert again.end_at(DUE, 0)
    again.feed([pointer()])
    found += take(again, 2)
    return again.position(), found


def test_trap_168_two_may_be_half_delivered_at_one_offset() -> None:
    position, found = half_of_both()
    assert (position.o2, position.o3, position.passed) == (0, 2, Passed(HOME, 3, 2))
    last = buffer_at(position)
    assert last.end_at(DUE, 0)
    last.feed([pointer()])
    found += take(last, 9)
    assert last.failure is None
    assert found == [1, 3, 0, 2, 4, 6, 5, 7]


def test_trap_168_one_offset_would_be_taken_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PlacedPointer, "keeps_side", property(lambda _: True))
    position, found = half_of_both()
    last = buffer_at(position)
    last.end_at(DUE, 0)
    last.feed([pointer()])
    found += take(last, 9)
    assert found != [1, 3, 0, 2, 4, 6, 5, 7]


@pytest.mark.parametrize("count", range(9))
def test_a_restart_behind_every_record(count: int) -> None:
    def begun(position: Position) -> PlacedBuffer:
        made = buffer_at(position)
        assert position.passed is not None
        if position.passed.sequence < DUE.sequence:  # As `HomeView` does.
            made.end_at(DUE, 0)
        made.feed([pointer()])
        return made

    first = begun(START)
    found = take(first, count)
    second = begun(first.position())
    assert [*found, *take(second, 9)] == [0, 2, 4, 6, 1, 3, 5, 7]
    assert second.failure is None


def test_no_record_of_it_is_looked_for_where_it_has_none() -> None:
    buffer = buffer_at(Position(o1=4, o2=4, o3=0, passed=Passed(HOME, 3)))
    buffer.skip_unseen(9)
    buffer.end_at(DUE, 9)
    assert buffer.side_reads() == [], "a pointer would be looked for from `since` on"
    assert take(buffer, 9) == [0, 2, 4, 6]


@pytest.mark.parametrize("is_known", [False, True])
def test_trap_172_in_serial_order_a_place_that_is_too_low_is_due_to_who_knows_the_order(
    is_known: bool,
) -> None:
    start = Position(o1=9, o2=9, o3=0, delivered={HOME: 3}, met={HOME: 3} if is_known else {})
    buffer = SerialBuffer(
        ("t", 0), start, PendingTransactionMap(2**62), journal_partition=0, malformed=malformed
    )
    end = of_sidecar(9, BranchRange(0, 0, 6, 4))
    buffer.place(MINE.to_bytes(), end, 4)
    assert buffer.will_not_come(MINE.to_bytes()) is not is_known
