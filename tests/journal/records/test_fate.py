"""Fates from the journal: which entries count, and what they add up to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.journal.control import BranchRange
from logtx.journal.places import GONE, PartitionId, Placed
from logtx.journal.records.fate import NO_EPOCH, UNKNOWN_FATE, EpochFilter, Fate, FateScan
from logtx.journal.records.types import (
    Aborted,
    AbortReason,
    AddPartitions,
    AddWrites,
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
from logtx.journal.state import State
from logtx.journal.txid import TxId

INCARNATION = 0x9F3AC1D2E4B7
D0, D1, D2 = (DataPartition("d", n) for n in range(3))
WRITES = (PartitionWrites(D1, (BranchRange(0, 5, 6, 2),)), PartitionWrites(D2, ()))


class Journal:
    """A journal partition written by hand."""

    def __init__(self, incarnation: int = INCARNATION) -> None:
        self.entries: list[Entry] = []
        self.incarnation = incarnation

    def add(self, epoch: int, record: JournalRecord, incarnation: int | None = None) -> int:
        at = len(self.entries)
        self.entries.append(Entry(epoch, incarnation or self.incarnation, record, at))
        return len(self.entries) - 1

    def owner(self, replaces: int) -> int:
        return self.add(replaces, Owner(replaces=replaces, address="a:1", process_nonce=1))

    def begin(self, epoch: int, *partitions: DataPartition) -> int:
        return self.add(
            epoch,
            Begin(
                producer_id="p",
                generation=0,
                session_nonce=1,
                request_id=1,
                answered_below=1,
                timeout_ms=1000,
                started_ms=0,
                partitions=partitions,
            ),
        )

    def commit(self, epoch: int, begin: int) -> int:
        return self.add(epoch, PrepareCommit(begin=begin, writes=WRITES, decided_ms=0))

    def abort(self, epoch: int, begin: int, reason: AbortReason = AbortReason.REQUESTED) -> int:
        return self.add(epoch, PrepareAbort(begin=begin, reason=reason, decided_ms=0))

    def txid(self, begin: int) -> TxId:
        return TxId(0, self.incarnation, begin)

    def scan(self, *begins: int) -> FateScan:
        scan = FateScan(self.txid(b) for b in begins)
        for offset in range(scan.start, len(self.entries)):
            scan.feed(offset, self.entries[offset])
        return scan

    def fate(self, begin: int) -> Fate:
        return self.scan(begin).fates()[self.txid(begin)]


def test_a_life_from_begin_to_committed() -> None:
    journal = Journal()
    epoch = journal.owner(NO_EPOCH)
    begin = journal.begin(epoch, D0)
    assert journal.fate(begin) == Fate(State.OPEN, partitions=(D0,))
    journal.add(epoch, AddPartitions(begin=begin, partitions=(D1, D0)))
    decision = journal.commit(epoch, begin)
    committing = Fate(State.COMMITTING, decision, None, WRITES, (D0, D1, D2))
    assert journal.fate(begin) == committing
    assert not journal.scan(begin).is_final
    journal.add(epoch, AddPartitions(begin=begin, partitions=(DataPartition("late", 0),)))
    journal.add(epoch, Committed(begin=begin))
    fate = journal.fate(begin)
    assert (fate.state, fate.partitions) == (State.COMMITTED, (D0, D1, D2))
    assert journal.scan(begin).is_final


def test_an_abort_and_its_reason() -> None:
    journal = Journal()
    epoch = journal.owner(NO_EPOCH)
    begin = journal.begin(epoch, D0)
    decision = journal.abort(epoch, begin, AbortReason.EXPIRED)
    assert journal.fate(begin) == Fate(State.ABORTING, decision, AbortReason.EXPIRED, (), (D0,))
    journal.add(epoch, Aborted(begin=begin))
    assert journal.fate(begin).state is State.ABORTED


def test_the_first_decision_stays() -> None:
    journal = Journal()
    epoch = journal.owner(NO_EPOCH)
    begin = journal.begin(epoch)
    decision = journal.abort(epoch, begin)
    journal.commit(epoch, begin)
    journal.add(epoch, Committed(begin=begin))
    fate = journal.fate(begin)
    assert (fate.state, fate.commit_sequence, fate.writes) == (State.ABORTING, decision, ())


def test_trap_1_a_lost_decision_leaves_the_transaction_open() -> None:
    # PREPARE_COMMIT of the old owner lands behind the OWNER that replaced it: it is void, and
    # the new owner, surprised by it, decides in its next epoch.
    journal = Journal()
    old = journal.owner(NO_EPOCH)
    begin = journal.begin(old)
    new = journal.owner(old)
    journal.commit(old, begin)
    assert journal.fate(begin).state is State.OPEN
    decision = journal.abort(journal.owner(new), begin)
    assert journal.fate(begin).commit_sequence == decision


def test_trap_2_a_void_batch_behind_a_new_owner_decides_nothing() -> None:
    # Batch 1 timed out, a new OWNER took its place, batch 2 lands right where it was predicted.
    journal = Journal()
    old = journal.owner(NO_EPOCH)
    begin = journal.begin(old)
    journal.owner(old)
    journal.commit(old, begin)
    journal.add(old, Committed(begin=begin))
    assert journal.fate(begin) == Fate(State.OPEN)


def test_trap_3_a_late_abort_of_a_dead_epoch_kills_nobody_elses_transaction() -> None:
    # The old owner's BEGIN was predicted at the offset where the new owner's BEGIN came to lie.
    journal = Journal()
    old = journal.owner(NO_EPOCH)
    new = journal.owner(old)
    begin = journal.begin(new)
    journal.abort(old, begin)
    decision = journal.commit(journal.owner(new), begin)
    assert journal.fate(begin).commit_sequence == decision
    assert journal.fate(begin).state is State.COMMITTING


def test_what_was_decided_on_top_of_a_lost_append_is_void() -> None:
    # T0's commit was predicted at 3 and lost; T1's, predicted at 4, lands at 3.
    journal = Journal()
    epoch = journal.owner(NO_EPOCH)
    t0, t1 = journal.begin(epoch), journal.begin(epoch)
    journal.commit(epoch, t1)
    journal.entries[-1] = replace(journal.entries[-1], predicted=4)
    assert journal.fate(t1).state is State.OPEN
    # Nor does anything behind it count, though it lies where it was predicted.
    journal.commit(epoch, t0)
    assert journal.fate(t0).state is State.OPEN
    after = journal.owner(epoch)
    assert journal.commit(after, t0) == journal.fate(t0).commit_sequence
    assert journal.commit(after, t1) == journal.fate(t1).commit_sequence


def test_behind_a_strangers_entry_an_epoch_is_void() -> None:
    # Batch 1 is lost, a void OWNER lies in its place, batch 2 lands where it was predicted.
    journal = Journal()
    epoch = journal.owner(NO_EPOCH)
    begin = journal.begin(epoch)
    journal.owner(NO_EPOCH)
    journal.commit(epoch, begin)
    assert journal.fate(begin).state is State.OPEN


def test_trap_7_of_two_candidates_the_first_wins_and_the_second_is_void() -> None:
    journal = Journal()
    old = journal.owner(NO_EPOCH)
    begin = journal.begin(old)
    first = journal.owner(old)
    second = journal.owner(old)
    journal.abort(second, begin)
    assert journal.fate(begin).state is State.OPEN
    third = journal.owner(first)
    assert journal.commit(third, begin) == journal.fate(begin).commit_sequence


def test_unknown_without_a_begin_of_this_incarnation_at_the_offset() -> None:
    journal = Journal()
    epoch = journal.owner(NO_EPOCH)
    begin = journal.begin(epoch)
    journal.commit(epoch, begin)
    assert journal.fate(epoch) == UNKNOWN_FATE  # an OWNER lies there
    elsewhere = TxId(0, INCARNATION + 1, begin)
    scan = FateScan([elsewhere, journal.txid(begin), journal.txid(99)])
    for offset, entry in enumerate(journal.entries):
        scan.feed(offset, entry)
    fates = scan.fates()
    assert fates[elsewhere] == fates[journal.txid(99)] == UNKNOWN_FATE
    assert fates[journal.txid(begin)].state is State.COMMITTING
    assert not scan.is_final  # offset 99 was not reached


def test_records_of_another_incarnation_decide_nothing() -> None:
    journal = Journal()
    epoch = journal.owner(NO_EPOCH)
    begin = journal.begin(epoch)
    journal.add(epoch, PrepareAbort(begin=begin, reason=AbortReason.FENCED, decided_ms=0), 7)
    journal.add(epoch, Owner(replaces=epoch, address="a:1", process_nonce=1), 7)
    assert journal.fate(begin).state is State.OPEN
    decision = journal.commit(journal.owner(epoch), begin)
    assert journal.fate(begin).commit_sequence == decision


def test_a_made_up_txid_on_a_void_begin_spoils_no_other() -> None:
    journal = Journal()
    old = journal.owner(NO_EPOCH)
    new = journal.owner(old)
    void = journal.begin(old)
    begin = journal.begin(new)
    decision = journal.commit(new, begin)
    journal.abort(old, void)
    scan = journal.scan(void, begin)
    assert scan.fates()[journal.txid(begin)].commit_sequence == decision


def test_the_filter_follows_valid_owners_only() -> None:
    journal = Journal()
    first = journal.owner(NO_EPOCH)
    journal.owner(NO_EPOCH)
    journal.begin(first)
    second = journal.owner(first)
    journal.begin(second)
    journal.begin(first)
    journal.begin(second)
    epochs = EpochFilter()
    accepted = [epochs.accept(o, e) for o, e in enumerate(journal.entries)]
    assert accepted == [True, False, False, True, True, False, False]
    assert (epochs.epoch, epochs.incarnation) == (second, INCARNATION)


def naive_fate(journal: Journal, begin: int) -> tuple[State, int | None]:
    """The same by the definition: keep what is valid from the very start, then look."""
    epochs = EpochFilter()
    valid = [(o, e.record) for o, e in enumerate(journal.entries) if epochs.accept(o, e)]
    mine = [(o, r) for o, r in valid if getattr(r, "begin", None) == begin]
    decided = next(((o, r) for o, r in mine if isinstance(r, PrepareCommit | PrepareAbort)), None)
    if decided is None:
        return State.OPEN, None
    offset, decision = decided
    ends = [type(r) for o, r in mine if o > offset]
    if isinstance(decision, PrepareCommit):
        return (State.COMMITTED if Committed in ends else State.COMMITTING), offset
    return (State.ABORTED if Aborted in ends else State.ABORTING), offset


@given(st.data())
def test_a_scan_from_the_middle_agrees_with_one_from_the_start(data: st.DataObject) -> None:
    journal, epochs, begins = Journal(), EpochFilter(), []
    known = [journal.owner(NO_EPOCH)]
    epochs.accept(0, journal.entries[0])
    for _ in range(data.draw(st.integers(0, 25))):
        epoch = data.draw(st.sampled_from(known))
        target = data.draw(st.sampled_from(begins)) if begins else 0
        kind = data.draw(st.sampled_from(["owner", "begin", "commit", "abort", "done", "gone"]))
        if kind == "owner":
            offset = journal.owner(epoch)
            known.append(offset)
        elif kind == "begin":
            offset = journal.begin(epoch)
        elif kind in ("commit", "abort"):
            offset = getattr(journal, kind)(epoch, target)
        else:
            end = Committed(begin=target) if kind == "done" else Aborted(begin=target)
            offset = journal.add(epoch, end)
        if epochs.accept(offset, journal.entries[offset]) and kind == "begin":
            begins.append(offset)  # acknowledged: a client may know its TxId
    if not begins:
        return
    chosen = data.draw(st.lists(st.sampled_from(begins), min_size=1, unique=True))
    fates = journal.scan(*chosen).fates()
    for begin in chosen:
        fate = fates[journal.txid(begin)]
        assert (fate.state, fate.commit_sequence) == naive_fate(journal, begin)


def test_a_scan_reads_one_journal_partition() -> None:
    with pytest.raises(AssertionError):
        FateScan([TxId(0, 1, 1), TxId(1, 1, 1)])
    with pytest.raises(AssertionError):
        FateScan([])


P0, P1, P2 = (PartitionId(p.topic, p.partition, "id") for p in (D0, D1, D2))
OWN = (BranchRange(0, 5, 6, 2),)


def wrote(partition: PartitionId, branches: tuple[BranchRange, ...] = OWN) -> PartitionWrites:
    return PartitionWrites(DataPartition(*partition), branches)


def place(journal: Journal, epoch: int, begin: int, *writes: PartitionWrites) -> int:
    placed = tuple(w.partition.key for w in writes)
    record = PrepareCommit(begin=begin, writes=writes, decided_ms=0, placed=placed)
    return journal.add(epoch, record)


@pytest.mark.parametrize("writes", [True, False])
def test_a_fate_says_where_a_commit_is_placed(writes: bool) -> None:
    """The first PLACED that covers it counts, whatever else is placed there later (R6)."""
    journal = Journal()
    epoch = journal.owner(NO_EPOCH)
    begin = journal.begin(epoch)
    journal.add(epoch, AddWrites(begin=begin, part=0, writes=(wrote(P2),)))
    nothing = wrote(P1, ())
    decision = journal.add(
        epoch,
        PrepareCommit(
            begin=begin,
            writes=(wrote(P0), nothing, PartitionWrites(DataPartition("m", 0), OWN)),
            decided_ms=0,
            added=(DataPartition(*P2),),
            placed=(P0.key, P1.key, P2.key),
        ),
    )

    def fate() -> Fate:
        scan = FateScan([journal.txid(begin)], writes=writes)
        for offset in range(begin, len(journal.entries)):
            scan.feed(offset, journal.entries[offset])
        return scan.fates()[journal.txid(begin)]

    assert fate().placed == {P0.key, P1.key, P2.key}
    assert fate().places == {P0: None, P2: None}, "what has no records needs no place"
    other = P0._replace(topic_id="of a topic that was created anew")
    journal.add(epoch, Placed(decision - 1, {P0: 3}))
    journal.add(epoch, Placed(decision, {other: 4, P1: 5}))
    assert fate().places == {P0: None, P2: None}
    journal.add(epoch, Placed(decision, {P0: 7}))
    journal.add(epoch, Placed(decision + 9, {P0: 8, P2: GONE}))
    assert fate().places == {P0: 7, P2: GONE}


def test_places_of_a_replaced_owner_are_void() -> None:
    journal = Journal()
    first = journal.owner(NO_EPOCH)
    begin = journal.begin(first)
    decision = place(journal, first, begin, wrote(P0))
    second = journal.owner(first)
    journal.add(first, Placed(decision, {P0: 3}))
    assert journal.fate(begin).places == {P0: None}
    journal.owner(second)
    third = len(journal.entries) - 1
    journal.add(third, Placed(decision, {P0: 5}))
    assert journal.fate(begin).places == {P0: 5}


def test_each_of_several_transactions_has_its_own_place() -> None:
    journal = Journal()
    epoch = journal.owner(NO_EPOCH)
    begins = [journal.begin(epoch) for _ in range(3)]
    decisions = [place(journal, epoch, begin, wrote(P0)) for begin in begins]
    journal.add(epoch, Placed(decisions[1], {P0: 10}))
    journal.add(epoch, Placed(decisions[2], {P0: 12}))
    fates = journal.scan(*begins).fates()
    assert [fates[journal.txid(b)].places for b in begins] == [{P0: 10}, {P0: 10}, {P0: 12}]
