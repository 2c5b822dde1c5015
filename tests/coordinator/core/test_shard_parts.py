"""Transactions that name in parts, before their commit, what their branches wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from logtx.coordinator.core import snapshot as snapshots
from logtx.coordinator.core.data_partitions import MARKER_BYTES_MAX, MARKER_FIXED_BYTES
from logtx.coordinator.core.decision import Decision
from logtx.coordinator.core.ranges import PackedRanges
from logtx.coordinator.core.replica import Replica
from logtx.coordinator.core.snapshot import SnapshotTaker
from logtx.coordinator.protocol import commands
from logtx.journal.control import BranchRange, TopicPartition
from logtx.journal.errors import (
    CoordinatorBusyError,
    CorruptRecordError,
    RequestTooLargeError,
    TransactionAbortedError,
    TransactionStateError,
)
from logtx.journal.records.codec import decode_entry, encode_entry
from logtx.journal.records.fate import EpochFilter
from logtx.journal.records.scan import JournalScan
from logtx.journal.records.types import AddWrites, Entry, PrepareCommit, Snapshot, joined
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ..harness import PARTITION, dump, fates, feed_lazily
from .test_shard_limits import Stage

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
Writes = Mapping[TopicPartition, tuple[BranchRange, ...]]


def wrote(*branches: int, first: int = 0) -> tuple[BranchRange, ...]:
    return tuple(BranchRange(b, first, first + 9, 10) for b in branches)


class Parts(Stage):
    """A coordinator with an open transaction."""

    def __init__(self, **limits: int) -> None:
        super().__init__(**limits)
        self.session = self.connect("p")
        self.txid = self.begun(self.session, 1)

    def add(self, part: int, writes: Writes, txid: TxId | None = None) -> commands.Reply | None:
        command = commands.AddWrites(
            session=self.session, txid=txid or self.txid, part=part, writes=writes
        )
        return self.reply(self.ask(command))

    def commit(self, parts: int, writes: Writes | None = None) -> commands.Reply | None:
        command = commands.End(
            session=self.session,
            txid=self.txid,
            action=commands.Action.COMMIT,
            writes=writes or {},
            parts=parts,
        )
        return self.reply(self.ask(command))

    @property
    def stated(self) -> dict[TopicPartition, list[BranchRange]]:
        """What the markers state."""
        branches = self.coordinator.markers[self.txid.offset].transaction.branches
        return {key: list(ranges) for key, ranges in branches.items()}

    def records(self, *kinds: type) -> list[Entry]:
        return [e for e in self.journal.entries if isinstance(e.record, kinds)]

    def snapshot(self) -> int:
        taker = SnapshotTaker(self.coordinator.shard)
        while not taker.done:
            self.coordinator.apply(Decision(records=(taker.chunk(),)))
        self.coordinator.ack()
        return taker.first


def is_committing(reply: commands.Reply | None) -> bool:
    return isinstance(reply, commands.Outcome) and reply.state is State.COMMITTING


def lazily(entries: Iterable[Entry], start: int = 0) -> Replica:
    """A coordinator that loads these, and takes over."""
    replica = Replica(PARTITION, Parts().coordinator.config, start, certain=True)
    feed_lazily(replica, entries, start)
    replica.read_decisions()
    return replica


def test_a_commit_has_what_its_parts_and_it_itself_name() -> None:
    stage = Parts()
    assert stage.add(0, {A0: wrote(1, 2), A1: wrote(1)}) == commands.Done()
    assert stage.add(1, {A0: wrote(3), B0: wrote(3)}) == commands.Done()
    assert is_committing(stage.commit(2, {A1: wrote(0, 2), ("b", 1): ()}))
    assert stage.stated == {
        A0: [*wrote(1, 2, 3)],
        A1: [*wrote(1, 0, 2)],
        B0: [*wrote(3)],
        ("b", 1): [],
    }
    [decision] = stage.records(PrepareCommit)
    assert isinstance(decision.record, PrepareCommit)
    assert {p.key for p in decision.record.added} == {A0, B0}
    assert sorted(decision.record.written) == [A0, A1, B0]
    fate = fates(stage.journal.entries, [stage.txid])[stage.txid]
    assert {w.partition.key: [*w.branches] for w in fate.writes} == stage.stated
    assert {p.key for p in fate.partitions} == stage.stated.keys()


def test_a_transaction_without_parts_is_written_as_before() -> None:
    stage = Parts()
    assert is_committing(stage.commit(0, {A0: wrote(1, 2)}))
    [decision] = stage.records(PrepareCommit)
    assert encode_entry(decision)[0] == 2
    stage.snapshot()
    assert {encode_entry(chunk)[0] for chunk in stage.records(Snapshot)} == {3}


def test_what_is_said_of_parts_is_of_the_newest_version() -> None:
    stage = Parts()
    stage.add(0, {A0: wrote(1)})
    stage.snapshot()
    assert is_committing(stage.commit(1))
    kinds = (AddWrites, PrepareCommit, Snapshot)
    assert {encode_entry(e)[0] for e in stage.records(*kinds)} == {4}, (
        "a program of the version before would take a part for the whole"
    )


def test_a_part_that_is_sent_again_changes_nothing() -> None:
    stage = Parts()
    parts = ({A0: wrote(1)}, {A0: wrote(2)})
    for part, writes in enumerate(parts):
        for _ in range(2):
            assert stage.add(part, writes) == commands.Done()
    assert stage.add(0, parts[0]) == commands.Done()
    stage.coordinator.take_over()
    assert stage.add(1, parts[1]) == commands.Done(), "and after a takeover"
    assert len(stage.records(AddWrites)) == 2
    assert is_committing(stage.commit(2))
    assert stage.stated == {A0: [*wrote(1, 2)]}


def test_a_part_out_of_turn_is_refused() -> None:
    stage = Parts()
    refusal = stage.add(1, {A0: wrote(1)})
    assert isinstance(refusal, TransactionStateError)
    assert "before part 0" in str(refusal)
    assert not stage.records(AddWrites)


@pytest.mark.parametrize("told", [0, 1, 3])
def test_a_commit_must_know_of_all_parts(told: int) -> None:
    stage = Parts()
    stage.add(0, {A0: wrote(1)})
    stage.add(1, {A0: wrote(2)})
    assert isinstance(stage.commit(told), TransactionStateError)
    assert not stage.records(PrepareCommit)
    assert is_committing(stage.commit(2))
    assert is_committing(stage.commit(told)), "what is decided is told to anybody"


def test_a_repeat_whose_append_was_lost_is_appended_again() -> None:
    stage = Parts()
    command = commands.AddWrites(
        session=stage.session, txid=stage.txid, part=0, writes={A0: wrote(1)}
    )
    stage.coordinator.submit(command, "lost")
    stage.coordinator.lose()
    assert stage.coordinator.replies.get("lost") is None
    assert stage.add(0, command.writes) == commands.Done()
    assert is_committing(stage.commit(1))
    assert stage.stated == {A0: [*wrote(1)]}


def test_an_abort_forgets_what_was_added_and_marks_its_partitions() -> None:
    stage = Parts()
    stage.add(0, {A0: wrote(1), B0: wrote(1)})
    stage.end(stage.session, stage.txid, commands.Action.ABORT)
    assert stage.stated == {}
    transaction = stage.coordinator.markers[stage.txid.offset].transaction
    assert transaction.partitions.keys() == {A0, B0}
    assert stage.coordinator.shard.transactions.added_count == 0
    assert isinstance(stage.add(1, {A0: wrote(2)}), TransactionAbortedError)
    assert dump(lazily(stage.journal.entries).shard) == dump(stage.coordinator.shard)


def test_a_timeout_ends_it_in_the_middle() -> None:
    stage = Parts()
    stage.add(0, {A0: wrote(1)})
    stage.coordinator.pass_time(1_000)
    stage.coordinator.ack()
    assert isinstance(stage.add(1, {A0: wrote(2)}), TransactionAbortedError)
    assert isinstance(stage.commit(2), TransactionAbortedError)


@pytest.mark.parametrize("decided", [False, True])
@pytest.mark.parametrize("small", [False, True])
def test_a_load_from_a_snapshot_equals_one_from_the_start(
    monkeypatch: pytest.MonkeyPatch, *, decided: bool, small: bool
) -> None:
    if small:
        monkeypatch.setattr(snapshots, "CHUNK_BYTES", 2_000)
        monkeypatch.setattr(snapshots, "SHARE_BRANCHES", 25)
    stage = Parts()
    stage.add(0, {A0: wrote(*range(1, 90)), A1: wrote(1)})
    if decided:
        stage.add(1, {A0: wrote(100)})
        assert is_committing(stage.commit(2, {B0: wrote(0)}))
    first = stage.snapshot()
    if not decided:
        stage.add(1, {A0: wrote(100)})
        assert is_committing(stage.commit(2, {B0: wrote(0)}))
    chunks = [e.record for e in stage.records(Snapshot)]
    assert (len(chunks) > 2) is small
    entries, wanted = stage.journal.entries, dump(stage.coordinator.shard)
    for start in (0, first):
        found = lazily(entries, start).shard
        assert dump(found) == wanted
        assert found.transactions.added_count == 92
    scan = JournalScan(PARTITION, EpochFilter(0, entries[0].incarnation), at_snapshot=True)
    for offset in range(first, len(entries)):
        scan.feed(offset, entries[offset])
    seen = scan.transactions[stage.txid.offset]
    told = {w.partition.key: [*w.branches] for w in seen.writes}
    assert told == {A0: [*wrote(*range(1, 90), 100)], A1: [*wrote(1)], B0: [*wrote(0)]}


def test_a_snapshot_is_of_its_moment() -> None:
    stage = Parts()
    stage.add(0, {A0: wrote(1)})
    taker = SnapshotTaker(stage.coordinator.shard)
    stage.coordinator.apply(Decision())
    shard = stage.coordinator.shard
    shard.transactions.add_writes(stage.txid.offset, ())
    ranges = shard.transactions.get(stage.txid.offset).branches[A0]  # type: ignore[union-attr]
    assert isinstance(ranges, PackedRanges)
    ranges.extend(wrote(2))
    [row] = taker.chunk().transactions
    assert [*row.writes[0].branches] == [*wrote(1)]


def test_a_part_that_does_not_decode_stops_the_partition() -> None:
    stage = Parts()
    stage.add(0, {A0: wrote(1)})
    replica = Replica(PARTITION, stage.coordinator.config, 0)
    for offset, entry in enumerate(stage.journal.entries):
        raw = encode_entry(entry)
        if isinstance(entry.record, AddWrites):
            raw = raw[:-3]
        replica.feed(offset, decode_entry(raw, lazily=True))
    with pytest.raises(CorruptRecordError, match="does not decode"):
        replica.read_decisions()


# ---- limits -------------------------------------------------------------------------------------


def test_a_marker_that_its_topic_refuses_is_refused_with_the_part() -> None:
    stage = Parts()
    facts = stage.coordinator.topics["a"]
    room = (min(facts.record_max_bytes, MARKER_BYTES_MAX) - MARKER_FIXED_BYTES) // 40
    assert stage.add(0, {A0: wrote(*range(1, room + 1))}) == commands.Done()
    refusal = stage.add(1, {A1: wrote(1), A0: wrote(room + 1)})
    assert isinstance(refusal, RequestTooLargeError)
    assert "max.message.bytes" in str(refusal)
    assert isinstance(stage.commit(1, {A0: wrote(0)}), RequestTooLargeError)
    assert is_committing(stage.commit(1))


def test_a_sealed_topic_with_markers_is_named_with_both_ways_out() -> None:
    stage = Parts()
    topics = stage.coordinator.topics
    topics["a"] = replace(topics["a"], record_max_bytes=1)
    refusal = stage.add(0, {A0: wrote(1)})
    assert isinstance(refusal, RequestTooLargeError)
    assert "topic a takes records of at most 1 bytes (max.message.bytes)" in str(refusal)
    assert "logtx topics set-mode a --mode metadata --without-records" in str(refusal)


def test_a_transaction_has_so_many_ranges_and_no_more() -> None:
    stage = Parts(max_added_ranges=10)
    assert stage.add(0, {A0: wrote(*range(10))}) == commands.Done()
    refusal = stage.add(1, {A1: wrote(1)})
    assert isinstance(refusal, RequestTooLargeError)
    assert "--max-added-ranges" in str(refusal)
    assert is_committing(stage.commit(1))


def test_others_make_it_wait_until_they_are_finished() -> None:
    stage = Parts(max_added_ranges=10)
    second = stage.begun(stage.session, 2)
    assert stage.add(0, {A0: wrote(*range(6))}) == commands.Done()
    assert isinstance(stage.add(0, {A1: wrote(*range(6))}, second), CoordinatorBusyError)
    assert is_committing(stage.commit(1))
    assert isinstance(stage.add(0, {A1: wrote(*range(6))}, second), CoordinatorBusyError)
    stage.coordinator.finish(stage.txid.offset)
    stage.coordinator.ack()
    assert stage.add(0, {A1: wrote(*range(6))}, second) == commands.Done()


def test_packed_ranges_are_what_was_packed() -> None:
    ranges = [BranchRange(2**64 - 1, 2**62, 2**62 + 9, 3), *wrote(1, 2, 3)]
    packed = PackedRanges(ranges)
    assert [*packed] == ranges
    assert [packed[at] for at in range(-4, 4)] == ranges * 2
    assert [*packed[1:3]] == ranges[1:3]
    assert packed == PackedRanges(ranges)
    assert packed != PackedRanges(ranges[1:])
    with pytest.raises(IndexError):
        _ = packed[4]


def test_partitions_that_come_twice_are_joined() -> None:
    stage = Parts()
    stage.add(0, {A0: wrote(1)})
    stage.add(1, {A0: wrote(2), A1: wrote(2)})
    writes = [w for e in stage.records(AddWrites) for w in e.record.writes]  # type: ignore[union-attr]
    assert [(w.partition.key, [*w.branches]) for w in joined(writes)] == [
        (A0, [*wrote(1, 2)]),
        (A1, [*wrote(2)]),
    ]
