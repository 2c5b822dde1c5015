"""What a scan of a journal says of modes and places, from its start and from a snapshot."""

from __future__ import annotations

from typing import Any

from logtx.journal.control import BranchRange
from logtx.journal.modes import ModeChange, Phase
from logtx.journal.places import GONE, AdoptedWrites, Adoption, PartitionId, Placed
from logtx.journal.records.fate import EpochFilter
from logtx.journal.records.scan import JournalScan, SeenAdoption, SeenTransaction
from logtx.journal.records.types import (
    Aborted,
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
    Snapshot,
    SnapshotAdoption,
    SnapshotMode,
    SnapshotPlaces,
    SnapshotTransaction,
)
from logtx.journal.state import State
from logtx.journal.txid import TxId

P0, P1, M = PartitionId("p", 0, "id"), PartitionId("p", 1, "id"), PartitionId("m", 0, "id")
ON, OFF = (ModeChange("p", "id", phase) for phase in (Phase.METADATA, Phase.TO_MARKERS))
RANGES = (BranchRange(0, 5, 6, 2),)


def writes(*partitions: PartitionId) -> tuple[PartitionWrites, ...]:
    return tuple(PartitionWrites(DataPartition(*p), RANGES) for p in partitions)


class Journal:
    """A journal partition of one owner, and a scan that has read it."""

    def __init__(self) -> None:
        self.scan = JournalScan(0, EpochFilter())
        self.at = 0
        self.epoch = -1
        self.epoch = self.put(Owner(replaces=-1, address="a:1", process_nonce=1))

    def put(self, record: JournalRecord) -> int:
        self.scan.feed(self.at, Entry(self.epoch, 7, record, self.at))
        self.at += 1
        return self.at - 1

    def begin(self, *partitions: PartitionId) -> int:
        named = tuple(DataPartition(*p) for p in partitions)
        return self.put(
            Begin(
                producer_id="p",
                generation=0,
                session_nonce=1,
                request_id=1,
                answered_below=1,
                timeout_ms=1,
                started_ms=1,
                partitions=named,
            )
        )

    def commit(self, begin: int, *placed: PartitionId, marked: tuple[PartitionId, ...] = ()) -> int:
        keys = tuple(p.key for p in placed)
        written = writes(*placed, *marked)
        return self.put(PrepareCommit(begin=begin, writes=written, decided_ms=0, placed=keys))

    def abort(self, begin: int) -> int:
        return self.put(PrepareAbort(begin=begin, reason=AbortReason.REQUESTED, decided_ms=0))

    def seen(self, begin: int) -> SeenTransaction:
        return self.scan.transactions[begin]


def test_a_commit_tells_where_it_is_placed_and_where_it_is_marked() -> None:
    journal = Journal()
    begin = journal.begin()
    decision = journal.commit(begin, P0, P1, marked=(M,))
    journal.put(Placed(decision, {P0: 9, M: 4}))
    seen = journal.seen(begin)
    assert (seen.placed, seen.places) == ({P0.key, P1.key}, {P0: 9, P1: None})
    assert seen.partitions - seen.placed == {M.key}
    journal.put(Placed(decision, {P0: 10, P1: GONE}))
    assert seen.places == {P0: 9, P1: GONE}


def test_an_abort_gets_no_marker_where_its_topic_is_in_metadata_mode() -> None:
    journal = Journal()
    before, within, after = (journal.begin(P0, M) for _ in range(3))
    journal.put(ModeChange("p", "id", Phase.TO_METADATA))
    journal.abort(before)
    journal.put(ON)
    journal.abort(within)
    journal.put(OFF)
    journal.abort(after)
    assert [journal.seen(b).placed for b in (before, within, after)] == [set(), {P0.key}, set()]


def test_a_home_tells_where_it_places_what_it_adopted() -> None:
    journal = Journal()
    txid = TxId(1, 7, 3)
    taken = (AdoptedWrites(P0, RANGES, True), AdoptedWrites(P1, RANGES, False))
    first = journal.put(Adoption(txid, 44, True, taken))
    begin = journal.begin()
    own = journal.commit(begin, P0)
    second = journal.put(Adoption(TxId(1, 7, 9), 45, False, (AdoptedWrites(P0, (), True),)))
    journal.put(Placed(own, {P0: 9, P1: 4}))
    adopted = journal.scan.adopted
    assert adopted[first] == SeenAdoption((0, 7), first, txid, 44, True, {P0: 9})
    assert adopted[second].places == {}, "it is aborted"
    assert journal.seen(begin).places == {P0: 9}


def snapshot(*transactions: SnapshotTransaction, **more: Any) -> Snapshot:
    return Snapshot(
        first=100,
        index=0,
        last=True,
        replaces=-1,
        address="a:1",
        process_nonce=1,
        partition_count=1,
        past_epochs=(),
        transactions=transactions,
        **more,
    )


def listed(begin: int, state: State, sequence: int | None) -> SnapshotTransaction:
    return SnapshotTransaction(
        *(begin, "p", 0, 1, 1, state, sequence, None), writes=writes(P0), partitions=()
    )


def test_a_scan_from_a_snapshot_goes_on_with_modes_and_places() -> None:
    scan = JournalScan(0, EpochFilter(9, 7), at_snapshot=True)
    waiting, has = (listed(60 + n, State.COMMITTING, 80 - n) for n in range(2))
    aborting = listed(62, State.ABORTING, 82)
    rows = (
        SnapshotPlaces(60, 80, ((P0, 7, None), (M, 0, None))),
        SnapshotPlaces(61, 79, ((P0, 7, 8),)),
    )
    mode = SnapshotMode("p", "id", Phase.METADATA, 50)
    records: list[JournalRecord] = [
        snapshot(waiting, has, aborting, listed(63, State.OPEN, None), modes=(mode,), places=rows),
        Placed(80, {P0: 12, M: 3}),
        PrepareAbort(begin=63, reason=AbortReason.REQUESTED, decided_ms=0),
        Committed(begin=60),
        Aborted(begin=62),
    ]
    for offset, record in enumerate(records, 100):
        scan.feed(offset, Entry(9, 7, record, offset))
    places = {begin: (seen.placed, seen.places) for begin, seen in scan.transactions.items()}
    assert places == {
        60: ({P0.key, M.key}, {P0: 12}),
        61: ({P0.key}, {P0: 8}),
        62: ({P0.key}, {}),
        63: ({P0.key}, {}),
    }
    assert scan.unfinished.keys() == {61, 63}


def test_a_snapshot_lists_what_is_adopted_and_not_placed() -> None:
    scan = JournalScan(0, EpochFilter(9, 7), at_snapshot=True)
    txid, both = TxId(1, 7, 3), tuple(AdoptedWrites(p, RANGES, True) for p in (P0, P1))
    records: list[JournalRecord] = [
        snapshot(
            # In its chunks the home's own come first.
            listed(60, State.COMMITTING, 80),
            unplaced=(SnapshotAdoption(79, txid, 44, both),),
            places=(
                SnapshotPlaces(60, 80, ((P0, 7, None),)),
                SnapshotPlaces(79, 79, ((P0, 7, None), (P1, 7, 8))),
            ),
        ),
        Placed(79, {P0: 11}),
        Placed(80, {P0: 12}),
    ]
    for offset, record in enumerate(records, 100):
        scan.feed(offset, Entry(9, 7, record, offset))
    assert scan.adopted[79] == SeenAdoption((0, 7), 79, txid, 44, True, {P0: 11, P1: 8})
    assert scan.transactions[60].places == {P0: 12}
