"""What is kept of a home's journal: the same as what is read, and no more than its bound."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.consumer.core.home_journal import GAP_MAX, HomeJournal, Kept
from logtx.consumer.core.home_said import Decided, Said, packed, unpacked
from logtx.journal.control import BranchRange
from logtx.journal.places import PartitionId, Placed
from logtx.journal.records.fate import EpochFilter
from logtx.journal.records.types import (
    AbortReason,
    Begin,
    Committed,
    DataPartition,
    Entry,
    JournalRecord,
    Owner,
    PartitionWrites,
    PrepareAbort,
    PrepareCommit,
)

INCARNATION = 0xABC
A = PartitionId("a", 0, "id")
BEGIN = Begin(
    producer_id="p",
    generation=0,
    session_nonce=1,
    request_id=1,
    answered_below=0,
    timeout_ms=1,
    started_ms=1,
)
COMMIT = PrepareCommit(begin=1, writes=(), decided_ms=1)
DECIDED = Decided(1, (), ())
WIDE = PrepareCommit(
    begin=4,
    writes=(
        PartitionWrites(DataPartition("a", 0, "id"), (BranchRange(0, 3, 5, 2),)),
        PartitionWrites(
            DataPartition("a", 1, "id"), (BranchRange(0, 1, 1, 1), BranchRange(7, 2, 4, 3))
        ),
        PartitionWrites(DataPartition("a._txnlog", 0, "side"), (BranchRange(0, 8, 9, 2),)),
    ),
    added=(DataPartition("b", 2, ""),),
    placed=(("a", 0), ("b", 2)),
    sidecar_since=((("a._txnlog", 0), 6),),
    decided_ms=1,
)
ABORT = PrepareAbort(begin=1, reason=AbortReason.REQUESTED, decided_ms=1)
PLACED = Placed(2, {A: 3})
FINISHED = Committed(begin=1)
OWNER = Owner(replaces=-1, address="nowhere:1", process_nonce=1)


def journal_of(*records: JournalRecord, epoch: int = 0, first: int = 0) -> list[tuple[int, Entry]]:
    """Returns entries of one owner, from an offset on."""
    return [(at, Entry(epoch, INCARNATION, r, at)) for at, r in enumerate(records, first)]


def owned(*records: JournalRecord) -> list[tuple[int, Entry]]:
    return [(0, Entry(-1, INCARNATION, OWNER, 0)), *journal_of(*records, first=1)]


def read(entries: Sequence[tuple[int, Entry]]) -> HomeJournal:
    journal = HomeJournal(0, EpochFilter())
    journal.feed(entries, len(entries))
    return journal


def said(journal: HomeJournal, offset: int) -> list[tuple[int, Said]]:
    return list(journal.since(offset))


def test_what_views_take_in_is_kept_from_any_offset_on() -> None:
    journal = read(owned(BEGIN, COMMIT, PLACED, FINISHED, BEGIN, ABORT))
    kept = [(1, None), (2, DECIDED), (3, PLACED), (5, None), (6, ABORT)]
    assert [said(journal, at) for at in (0, 2, 4, 7)] == [kept, kept[1:], kept[3:], []]
    assert journal.next_offset == 7


def test_what_does_not_count_is_not_kept() -> None:
    entries = owned(BEGIN)
    entries += [(2, Entry(0, INCARNATION, COMMIT, 1))]  # It was decided for another offset.
    entries += journal_of(ABORT, first=3)
    assert said(read(entries), 0) == [(1, None)]


def test_whether_an_entry_counts_is_known_by_what_was_read_before() -> None:
    journal = HomeJournal(5, EpochFilter(2, INCARNATION))
    journal.feed(journal_of(BEGIN, COMMIT, epoch=2, first=5), 7)
    replaced = (7, Entry(2, INCARNATION, Owner(replaces=2, address="a:1", process_nonce=2), 7))
    journal.feed([replaced, *journal_of(ABORT, epoch=2, first=8)], 9)
    journal.feed(journal_of(PLACED, epoch=7, first=9), 10)
    # The former owner's record is void, and so is what follows it.
    assert said(journal, 5) == [(5, None), (6, DECIDED)]


def test_entries_that_were_read_are_ignored() -> None:
    entries = owned(BEGIN, COMMIT)
    journal = read(entries)
    journal.feed([*entries, *journal_of(PLACED, first=3)], 4)
    assert said(journal, 0) == [(1, None), (2, DECIDED), (3, PLACED)]


def test_offsets_without_entries_are_passed_over() -> None:
    journal = read(owned(BEGIN))
    journal.feed([], 9)
    assert journal.next_offset == 9
    journal.feed([], 5)
    assert journal.next_offset == 9


def test_the_oldest_are_dropped_and_none_that_a_view_needs() -> None:
    journal = read(owned(*[BEGIN] * 20))
    journal.trim(20, needed=21)
    assert journal.first == 0
    journal.trim(8, needed=3)
    assert (journal.first, len(said(journal, 3))) == (3, 18)
    journal.trim(8, needed=21)
    # Some more than must be, for each time moves all that are left.
    assert (journal.first, len(said(journal, journal.first))) == (15, 6)
    with pytest.raises(RuntimeError, match="dropped"):
        said(journal, 14)


def test_where_a_partition_may_begin() -> None:
    journal = read(owned(*[BEGIN] * 20))
    kept = journal.kept(is_idle=False)
    assert kept == Kept(0, None, is_partial=False)
    journal.trim(8, needed=21)
    kept = journal.kept(is_idle=False)
    assert kept is not None
    assert kept.is_partial
    assert [kept.covers(at) for at in (14, 15, 21, 10**9)] == [False, True, True, True]
    # Nobody else needs what lies between.
    idle = journal.kept(is_idle=True)
    assert idle is not None
    assert [idle.covers(at) for at in (15, 21 + GAP_MAX, 22 + GAP_MAX)] == [True, True, False]


def test_what_may_be_lost_counts_no_more_until_reading_begins_anew() -> None:
    journal = read(owned(BEGIN, COMMIT))
    journal.lose()
    assert journal.kept(is_idle=False) is None
    journal.restart(1, EpochFilter(0, INCARNATION))
    assert journal.kept(is_idle=False) == Kept(1, None, is_partial=False)
    assert said(journal, 1) == []
    journal.feed(journal_of(BEGIN, first=1), 2)
    assert said(journal, 1) == [(1, None)]


@given(
    records=st.lists(st.sampled_from([BEGIN, COMMIT, WIDE, ABORT, PLACED, FINISHED]), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    most=st.integers(1, 12),
    back=st.integers(0, 30),
)
def test_what_is_kept_is_what_would_be_read(
    records: list[JournalRecord], cuts: list[int], most: int, back: int
) -> None:
    """However it comes in batches, is dropped, and is read again from further down."""
    entries, end = owned(*records), len(records) + 1
    whole = said(read(entries), 0)
    journal = HomeJournal(0, EpochFilter())
    for at in sorted(cuts):
        journal.feed(entries[: min(at, end)], min(at, end))
        journal.trim(most, journal.next_offset)
    if 0 < back < journal.first:
        journal.restart(back, EpochFilter(0, INCARNATION))
    journal.feed(entries, end)
    assert said(journal, journal.first) == [each for each in whole if each[0] >= journal.first]


def test_what_is_packed_is_the_same_and_costs_the_collector_nothing() -> None:
    ((_, wide), (_, placed)) = said(read(owned(WIDE, PLACED)), 0)
    assert isinstance(wide, Decided)
    assert [w.aside is None for w in wide.writes] == [False, True, True]
    for each in (wide, placed):
        small = packed(each)
        assert isinstance(small, tuple)
        assert packed(small) is small
        assert unpacked(small) == each == unpacked(each)
        gc.collect()
        assert not gc.is_tracked(small)
    for rare in (ABORT, None):
        assert packed(rare) is rare
        assert unpacked(rare) is rare


def test_a_record_counts_with_all_partitions_that_it_names() -> None:
    """Else a journal of wide transactions would take gigabytes."""
    journal = read(owned(*[BEGIN, WIDE, PLACED] * 10))
    journal.trim(80, needed=journal.next_offset)
    assert journal.first == 0
    journal.trim(79, needed=journal.next_offset)
    # A quarter more than must be: of 60 that may be left each transaction has 8.
    left = [told for _, told in said(journal, journal.first)]
    assert (left[0], left.count(None), len(left)) == (PLACED, 7, 1 + 7 * 3)


def test_what_views_were_not_told_is_not_packed_for_them() -> None:
    journal = read(owned(BEGIN, WIDE, PLACED, WIDE))
    (wide,) = [told for at, told in said(journal, 0) if at == 2]
    for needed in (3, 3, 5):
        journal.trim(100, needed=needed)
        assert [isinstance(told, tuple) for _, _, told in journal._recent] == [
            False,
            True,
            needed > 3,
            needed > 4,
        ]
    assert said(journal, 2)[0] == (2, wide)
