"""Which snapshot counts, for a reader that began in the middle of a journal."""

from __future__ import annotations

from typing import Any

import pytest

from logtx.journal.control import BranchRange
from logtx.journal.errors import CorruptRecordError
from logtx.journal.modes import Phase
from logtx.journal.places import GONE, PartitionId
from logtx.journal.records.fate import NO_EPOCH
from logtx.journal.records.snapshots import SnapshotScan, Unfinished
from logtx.journal.records.types import (
    Begin,
    DataPartition,
    Entry,
    JournalRecord,
    Owner,
    PartitionWrites,
    Snapshot,
    SnapshotMode,
    SnapshotPlaces,
    SnapshotTransaction,
)
from logtx.journal.state import State

INCARNATION = 0xABC
OTHER = Begin(
    producer_id="p",
    generation=0,
    session_nonce=1,
    request_id=1,
    answered_below=1,
    timeout_ms=1,
    started_ms=1,
)


class Feeder:
    """A journal from some offset on: from 100, its first epochs are trimmed."""

    def __init__(self, start: int = 100) -> None:
        self.scan = SnapshotScan(start)
        self.at = start

    def put(self, record: JournalRecord, epoch: int, predicted: int | None = None) -> int:
        place = self.at if predicted is None else predicted
        self.scan.feed(self.at, Entry(epoch, INCARNATION, record, place))
        self.at += 1
        return self.at - 1

    def owner(self, replaces: int) -> int:
        return self.put(Owner(replaces=replaces, address="a:1", process_nonce=1), replaces)

    def chunk(
        self,
        epoch: int,
        first: int,
        index: int,
        *rows: SnapshotTransaction,
        last: bool = True,
        **more: Any,
    ) -> int:
        record = Snapshot(
            first=first,
            index=index,
            last=last,
            replaces=-1,
            address="a:1",
            process_nonce=1,
            partition_count=1,
            past_epochs=(),
            transactions=rows,
            **more,
        )
        return self.put(record, epoch)

    @property
    def found(self) -> int | None:
        return None if self.scan.found is None else self.scan.found.first


def row(begin: int, state: State, topic: str, sequence: int | None) -> SnapshotTransaction:
    writes = (PartitionWrites(DataPartition(topic, 0), (BranchRange(0, 1, 2, 2),)),)
    return SnapshotTransaction(begin, "p", 0, 1, 1, state, sequence, None, writes=writes)


def test_chunks_add_up_and_name_what_is_unfinished() -> None:
    journal = Feeder()
    first = journal.chunk(
        9,
        100,
        0,
        row(5, State.COMMITTING, "t", 60),
        row(6, State.OPEN, "t", None),
        row(7, State.ABORTING, "t", 61),
        last=False,
    )
    journal.put(OTHER, 9)  # decided while it was written
    assert journal.found is None
    journal.chunk(9, first, 1, row(5, State.COMMITTING, "u", 60), row(3, State.COMMITTING, "t", 50))
    found = journal.scan.found
    assert found is not None
    assert (found.first, found.epoch, found.incarnation) == (first, 9, INCARNATION)
    assert [(c.begin, c.commit_sequence) for c in found.committing] == [(3, 50), (5, 60)]
    assert [w.partition.topic for w in found.committing[1].writes] == ["t", "u"]


def test_one_that_was_torn_never_counts() -> None:
    for tear in (
        lambda journal: journal.owner(9),
        lambda journal: journal.put(OTHER, 9, predicted=3),
        lambda journal: journal.put(OTHER, 8),
    ):
        journal = Feeder()
        first = journal.chunk(9, 100, 0, last=False)
        tear(journal)
        journal.chunk(9, first, 1)
        assert journal.found is None


def test_a_higher_epoch_and_the_owner_that_ended_it_each_disprove_a_void_one() -> None:
    journal = Feeder()
    void = journal.chunk(9, 100, 0)
    assert journal.found == void
    journal.put(OTHER, 90)  # an epoch that was won before this was written
    assert journal.found is None
    counts = journal.chunk(90, 102, 0)
    assert journal.found == counts
    # A late one of the old owner's does not replace what counts.
    journal.chunk(9, 103, 0)
    assert journal.found == counts


def test_a_newer_valid_one_replaces_an_older() -> None:
    journal = Feeder()
    journal.chunk(9, 100, 0)
    epoch = journal.owner(9)
    newer = journal.chunk(epoch, 102, 0)
    assert journal.found == newer


def test_trap_266_a_void_one_is_the_only_one_of_a_journal_that_was_not_trimmed() -> None:
    journal = Feeder(0)
    former = journal.owner(NO_EPOCH)
    epoch = journal.owner(former)
    journal.chunk(former, 2, 0)  # Its owner has not heard that it was replaced.
    assert journal.found is None
    behind = journal.owner(epoch)
    counts = journal.chunk(behind, 4, 0)
    assert journal.found == counts


P, Q = PartitionId("p", 0, "id"), PartitionId("q", 1, "id")
MODE = SnapshotMode("p", "id", Phase.METADATA, 50, ((0, 7),))


def test_a_reader_that_begins_there_learns_of_modes_and_places() -> None:
    journal = Feeder()
    open_one = row(60, State.OPEN, "p", None)
    committing, aborting = row(70, State.COMMITTING, "p", 80), row(71, State.ABORTING, "p", 81)
    more = row(70, State.COMMITTING, "q", 80)
    rows = SnapshotPlaces(70, 80, ((P, 3, 9), (Q, 3, None)))
    first = journal.chunk(9, 100, 0, committing, aborting, last=False, last_places=((P, 9),))
    rest = SnapshotPlaces(70, 80, ((Q._replace(partition=2), 4, GONE),))
    journal.chunk(9, 100, 1, more, open_one, modes=(MODE,), last=False, places=(rows,))
    journal.chunk(9, 100, 2, last_places=((Q, 0),), places=(rest,))
    found = journal.scan.found
    assert found is not None
    assert (found.first, found.modes, found.last_places) == (first, (MODE,), {P: 9, Q: 0})
    assert found.unfinished == (
        Unfinished(60, State.OPEN, None, open_one.writes),
        Unfinished(
            70,
            State.COMMITTING,
            80,
            committing.writes + more.writes,
            frozenset({P.key, Q.key, ("q", 2)}),
            {P: 9, Q._replace(partition=2): GONE},
            placed_ids=(P, Q, Q._replace(partition=2)),
        ),
        Unfinished(71, State.ABORTING, 81, aborting.writes),
    )
    assert [c.begin for c in found.committing] == [70]


def test_one_without_modes_names_no_unfinished_but_committing() -> None:
    journal = Feeder()
    journal.chunk(9, 100, 0, row(60, State.OPEN, "p", None), row(70, State.COMMITTING, "p", 80))
    assert journal.scan.found is not None
    assert journal.scan.found.unfinished == ()
    assert [c.begin for c in journal.scan.found.committing] == [70]


def test_one_that_places_what_it_does_not_list_is_corrupt() -> None:
    rows = SnapshotPlaces(70, 80, ((P, 3, 9),))
    with pytest.raises(CorruptRecordError, match="began at 70"):
        Feeder().chunk(9, 100, 0, modes=(MODE,), places=(rows,))
