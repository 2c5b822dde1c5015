"""Transactions with records in sidecars: what is decided, and what goes out in which order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from logtx.coordinator.core.data_partitions import BRANCH_MARKER_BYTES, MARKER_FIXED_BYTES
from logtx.coordinator.core.decision import (
    Decision,
    EndSidecars,
    TopicFacts,
    WriteLateMarkers,
)
from logtx.coordinator.core.lane import Failure
from logtx.coordinator.core.placing import PlaceWrites
from logtx.coordinator.core.replica import Replica
from logtx.coordinator.core.sidecars import check_mains_place_sidecars
from logtx.coordinator.core.transactions import TransactionMetadata
from logtx.coordinator.core.trimming import JournalView
from logtx.coordinator.protocol import commands
from logtx.journal.control import BranchRange, Marker, TopicPartition, decode_control
from logtx.journal.errors import RequestTooLargeError, TopicModeError, UnknownTopicError
from logtx.journal.modes import ModeChange, Phase
from logtx.journal.places import GONE, PartitionId
from logtx.journal.records.codec import encode_entry
from logtx.journal.records.types import (
    Committed,
    DataPartition,
    PointerStep,
    PrepareCommit,
    Snapshot,
)
from logtx.journal.state import State

from ..harness import dump, feed_lazily
from .test_lanes import Stage as LaneStage
from .test_lanes import decided
from .test_shard_parts import Parts, is_committing, wrote

A0, A1 = ("a", 0), ("a", 1)
SIDE0, SIDE1 = ("a._txnlog", 0), ("a._txnlog", 1)
OF_SIDE, OF_MAIN = BranchRange(0, 40, 49, 10), BranchRange(3, 7, 8, 2)


# ---- lanes --------------------------------------------------------------------------------------


def pointed(
    begin: int, *sidecars: TopicPartition, main: tuple[BranchRange, ...] = ()
) -> TransactionMetadata:
    """Returns a committing transaction with records in sidecars."""
    mains = [("a", number) for _, number in sidecars]
    return replace(
        decided(begin),
        partitions={
            **{key: DataPartition(*key, "id-side") for key in sidecars},
            **{key: DataPartition(*key, "id-a") for key in mains},
        },
        branches={**dict.fromkeys(sidecars, (OF_SIDE,)), **dict.fromkeys(mains, main)},
        since=dict.fromkeys(sidecars, 5),
    )


class Stage(LaneStage):
    """Lanes that know a topic and its sidecar."""

    def __init__(self) -> None:
        super().__init__()
        self.know("a")
        self.tell("a._txnlog", "id-side")

    def finish(
        self,
        begin: int,
        gone: tuple[TopicPartition, ...],
        pointers: Mapping[TopicPartition, int],
    ) -> None:
        """Notes what is finished that `write` did not send."""
        self.finished[0, begin] = gone
        self.pointers.update(pointers)

    def headers(self, index: int = 0) -> Marker:
        """Returns a marker in flight."""
        control = decode_control(self.sent[index].headers[1][1])
        assert isinstance(control, Marker)
        return control


def test_a_pointer_goes_first_and_the_sidecars_marker_names_its_offset() -> None:
    stage = Stage()
    stage.write(pointed(0, SIDE0))
    assert stage.in_flight() == [(0, A0)]
    pointer = stage.headers()
    assert pointer.is_pointer
    assert (pointer.sidecar, pointer.branches, pointer.since) == ((OF_SIDE,), (), 5)
    assert (pointer.topic_id, pointer.sidecar_id) == ("", "id-side")
    stage.answer(offset=77)
    assert not stage.finished
    assert stage.pointers == {}, "it is told with the end"
    assert stage.in_flight() == [(0, SIDE0)]
    ended = stage.headers()
    assert not ended.is_pointer
    assert (ended.committed, ended.branches, ended.pointer) == (True, (OF_SIDE,), 77)
    assert (ended.topic_id, ended.sidecar_id) == ("id-side", "")
    stage.answer()
    assert stage.finished == {(0, 0): ()}
    assert stage.pointers == {SIDE0: 77}


def test_one_pointer_is_the_end_of_what_lies_in_both() -> None:
    stage = Stage()
    stage.write(pointed(0, SIDE0, main=(OF_MAIN,)))
    assert stage.in_flight() == [(0, A0)]
    pointer = stage.headers()
    assert (pointer.sidecar, pointer.branches) == ((OF_SIDE,), (OF_MAIN,))
    assert (pointer.topic_id, pointer.sidecar_id) == ("id-a", "id-side")
    stage.answer()
    stage.answer()
    assert stage.finished == {(0, 0): ()}


def test_trap_90_pointers_and_markers_stand_in_one_lane() -> None:
    stage = Stage()
    marked = pointed(1, SIDE0, main=(OF_MAIN,))
    marked.since, marked.branches = {}, {A0: (OF_MAIN,)}
    del marked.partitions[SIDE0]
    stage.write(pointed(0, SIDE0))
    stage.write(marked)
    stage.write(pointed(2, SIDE0))
    assert stage.in_flight() == [(0, A0), (1, A0), (2, A0)]
    # The first is refused: none behind it counts, and all go out again in their order.
    assert stage.answer(Failure.REFUSED) == A0
    stage.answer()
    stage.answer()
    stage.wait()
    order = []
    while stage.sent:
        if stage.sent[0].job.partition.key == A0:
            order.append(stage.sent[0].job.txid.offset)
        stage.answer()
        stage.wait()
    assert order == [0, 1, 2]
    assert set(stage.finished) == {(0, 0), (0, 1), (0, 2)}


def test_a_topic_that_is_gone_leaves_the_marker_of_its_sidecar() -> None:
    stage = Stage()
    stage.write(pointed(0, SIDE0))
    stage.answer(Failure.NO_TOPIC)
    for _ in range(20):
        stage.tell("a", None)
        stage.wait(1_000)
    assert stage.in_flight() == [(0, SIDE0)]
    assert stage.headers().pointer is None, "there is none"
    stage.answer()
    assert stage.finished == {(0, 0): (A0,)}
    assert stage.pointers == {}


def test_a_pointer_whose_offset_is_not_told_is_written_again_before_what_follows() -> None:
    stage = Stage()
    for begin in range(3):
        stage.write(pointed(begin, SIDE0))
    assert stage.in_flight() == [(0, A0), (1, A0), (2, A0)]
    stage.answer(offset=None)
    assert stage.in_flight() == [(1, A0), (2, A0), (0, A0)]
    first = pointed(0, SIDE0).commit_sequence
    assert stage.lanes.first(0, A0) == first, "nothing of a later sequence is placed before it"
    stage.answer(offset=8)
    stage.answer(offset=9)
    stage.answer(offset=10)
    while stage.sent:
        stage.answer()
    assert stage.finished == {(0, begin): () for begin in range(3)}
    assert stage.pointers == {SIDE0: 10}


def test_a_lost_copy_of_such_a_pointer_goes_out_once_more() -> None:
    stage = Stage()
    stage.write(pointed(0, SIDE0))
    stage.write(pointed(1, SIDE0))
    stage.answer(offset=None)
    stage.answer(Failure.REFUSED)
    stage.answer(Failure.STOPPED)
    assert not stage.sent
    stage.wait()
    order = []
    while stage.sent:
        order.append((stage.sent[0].job.txid.offset, stage.answer(offset=20 + len(order))))
        stage.wait()
    assert [begin for begin, key in order if key == A0] == [1, 0]
    assert stage.finished == {(0, 0): (), (0, 1): ()}


def test_who_lost_the_journal_leaves_the_sidecars_marker_to_the_next_owner() -> None:
    stage = Stage()
    stage.write(pointed(0, SIDE0))
    stage.lanes.forget(0)
    stage.answer(offset=77)
    assert not stage.sent
    stage.write(pointed(0, SIDE0))
    assert stage.headers().since == 5, "trap 91: it says what the first one said"
    stage.answer()
    stage.answer()
    assert stage.finished == {(0, 0): ()}


# ---- the shard ----------------------------------------------------------------------------------


class Commits(Parts):
    """A coordinator with an open transaction that writes to sidecars."""

    def end(  # type: ignore[override]
        self,
        writes: dict[TopicPartition, tuple[BranchRange, ...]],
        action: commands.Action = commands.Action.COMMIT,
        ends: dict[TopicPartition, int] | None = None,
        parts: int = 0,
    ) -> commands.Reply | None:
        command = commands.End(
            session=self.session,
            txid=self.txid,
            action=action,
            writes=writes,
            parts=parts,
            main_ends=ends or {},
        )
        return self.reply(self.ask(command))

    @property
    def transaction(self) -> TransactionMetadata:
        """The transaction whose markers go out."""
        return self.coordinator.markers[self.txid.offset].transaction

    def restored(self) -> Replica:
        """Takes a snapshot. Returns a standby that begins at it."""
        first = self.snapshot()
        replica = Replica(self.coordinator.shard.partition, self.coordinator.config, first)
        feed_lazily(replica, self.journal.entries, first)
        replica.read_decisions()
        return replica

    @property
    def main(self) -> PartitionId:
        """The main partition of `SIDE0`."""
        return PartitionId(*A0, self.coordinator.topics["a"].topic_id)

    @property
    def decision(self) -> PrepareCommit:
        """What was decided."""
        [entry] = self.records(PrepareCommit)
        assert isinstance(entry.record, PrepareCommit)
        return entry.record


@pytest.fixture
def stage() -> Commits:
    """A coordinator that knows a sidecar."""
    made = Commits()
    facts = made.coordinator.topics["a"]
    made.coordinator.topics["a._txnlog"] = TopicFacts(
        topic_id="id-side",
        partition_count=facts.partition_count,
        record_max_bytes=facts.record_max_bytes,
    )
    return made


def test_a_commit_names_the_main_partition_too_and_what_it_ended_at(stage: Commits) -> None:
    assert is_committing(stage.end({SIDE0: wrote(0), SIDE1: ()}, ends={A0: 41, A1: 3}))
    assert stage.decision.sidecar_since == ((SIDE0, 41),)
    assert stage.transaction.since == {SIDE0: 41}
    assert set(stage.transaction.partitions) == {SIDE0, SIDE1, A0}
    assert stage.transaction.branches[A0] == ()
    assert encode_entry(stage.records(PrepareCommit)[0])[0] == 8


def test_an_abort_leaves_the_main_partition_alone(stage: Commits) -> None:
    stage.end({SIDE0: wrote(0)}, commands.Action.ABORT)
    assert set(stage.transaction.partitions) == {SIDE0}
    assert not stage.transaction.since


def test_an_end_that_was_not_told_is_the_logs_start(stage: Commits) -> None:
    stage.end({SIDE0: wrote(0)})
    assert stage.transaction.since == {SIDE0: 0}


def test_what_parts_name_counts(stage: Commits) -> None:
    assert stage.add(0, {SIDE0: wrote(1)}) == commands.Done()
    assert is_committing(stage.end({A1: wrote(0)}, ends={A0: 9}, parts=1))
    assert stage.transaction.since == {SIDE0: 9}
    assert set(stage.transaction.partitions) == {SIDE0, A0, A1}


def test_the_next_owner_says_the_same(stage: Commits) -> None:
    stage.end({SIDE0: wrote(0)}, ends={A0: 41})
    loaded = stage.journal.load(stage.coordinator.config)
    assert dump(loaded) == dump(stage.coordinator.shard)
    [transaction] = loaded.transactions
    assert transaction.since == {SIDE0: 41}


def test_trap_91_a_snapshot_keeps_what_a_decision_said(stage: Commits) -> None:
    stage.end({SIDE0: wrote(0)}, ends={A0: 41})
    replica = stage.restored()
    assert {encode_entry(chunk)[0] for chunk in stage.records(Snapshot)} == {8}
    [transaction] = replica.shard.transactions
    assert transaction.since == {SIDE0: 41}


def test_the_end_of_a_commit_tells_what_its_pointers_need(stage: Commits) -> None:
    writes = {SIDE0: (BranchRange(0, 7, 9, 2), BranchRange(3, 4, 8, 2)), SIDE1: wrote(0), A0: ()}
    assert is_committing(stage.end(writes, ends={A0: 41, A1: 3}))
    begin, shard = stage.txid.offset, stage.coordinator.shard
    assert shard.staircases.needed(SIDE0, 0) is None
    stage.coordinator.finish(begin, pointers={SIDE0: 43, SIDE1: 5})
    stage.coordinator.ack()
    [finished] = stage.records(Committed)
    steps = PointerStep(SIDE0, 43, 4), PointerStep(SIDE1, 5, wrote(0)[0].first_offset)
    assert finished.record == Committed(begin=begin, pointers=steps)
    assert encode_entry(finished)[0] == 10
    for known in (shard, stage.journal.load(stage.coordinator.config), stage.restored().shard):
        assert known.staircases.needed(SIDE0, 43) == steps[0]
        assert known.staircases.needed(SIDE0, 44) is None
        assert known.staircases.needed(SIDE1, 0) == steps[1]
    assert {encode_entry(chunk)[0] for chunk in stage.records(Snapshot)} == {10}


def test_what_ends_without_a_pointer_is_written_as_before(stage: Commits) -> None:
    assert is_committing(stage.end({SIDE0: wrote(0)}, ends={A0: 41}))
    stage.coordinator.finish(stage.txid.offset, (A0,))
    stage.coordinator.ack()
    [finished] = stage.records(Committed)
    assert encode_entry(finished)[0] == 2
    assert stage.coordinator.shard.staircases.needed(SIDE0, 0) is None


def test_an_aborted_transaction_needs_nothing(stage: Commits) -> None:
    stage.end({SIDE0: wrote(0)}, commands.Action.ABORT)
    stage.coordinator.finish(stage.txid.offset)
    stage.coordinator.ack()
    assert stage.coordinator.shard.staircases.needed(SIDE0, 0) is None


def views(stage: Commits) -> list[JournalView]:
    """What the owner, one that loads the journal, and one that begins at a snapshot know."""
    loaded = stage.journal.load(stage.coordinator.config)
    shards = stage.coordinator.shard, loaded, stage.restored().shard
    return [JournalView.of(shard) for shard in shards]


def test_a_commit_needs_what_it_names_until_it_is_finished(stage: Commits) -> None:
    many = tuple(BranchRange(n, 30 - n, 40 + n, 2) for n in range(1, 20))
    assert stage.add(0, {SIDE0: many}) == commands.Done()
    writes = {SIDE0: (BranchRange(0, 14, 19, 2),), SIDE1: wrote(0), A0: ()}
    assert is_committing(stage.end(writes, ends={A0: 41, A1: 3}, parts=1))
    other = stage.begun(stage.session, 2)
    for view in views(stage):
        assert view.undecided == other.offset
        assert view.needed(SIDE0, 99) == PointerStep(SIDE0, 41, 11), "its pointer is still to come"
        assert view.needed(SIDE1, 0) == PointerStep(SIDE1, 3, wrote(0)[0].first_offset)
    stage.coordinator.finish(stage.txid.offset, pointers={SIDE0: 43, SIDE1: 5})
    stage.coordinator.ack()
    for view in views(stage):
        assert view.needed(SIDE0, 43) == PointerStep(SIDE0, 43, 11)
        assert view.needed(SIDE0, 44) is None


def test_of_two_commits_the_one_that_needs_more_counts(stage: Commits) -> None:
    for number, (first, pointer) in enumerate([(30, 7), (20, None), (25, None)]):
        stage.txid = stage.begun(stage.session, 2 + number)
        stage.end({SIDE0: wrote(0, first=first)}, ends={A0: number})
        if pointer is not None:
            stage.coordinator.finish(stage.txid.offset, pointers={SIDE0: pointer})
            stage.coordinator.ack()
    for view in views(stage):
        assert view.needed(SIDE0, 0) == PointerStep(SIDE0, 1, 20)


@pytest.mark.parametrize("action", commands.Action)
def test_trap_158_a_decision_in_flight_may_be_lost(stage: Commits, action: commands.Action) -> None:
    end = commands.End(
        session=stage.session,
        txid=stage.txid,
        action=action,
        writes={SIDE0: wrote(0)},
        main_ends={A0: 41},
    )
    stage.coordinator.submit(end, "lost")
    assert stage.coordinator.in_flight
    assert JournalView.of(stage.coordinator.shard).undecided == stage.txid.offset
    stage.coordinator.lose()
    [transaction] = stage.coordinator.shard.transactions
    assert transaction.state is State.OPEN
    assert JournalView.of(stage.coordinator.shard).undecided == stage.txid.offset
    stage.ask(end)
    shard = stage.coordinator.shard
    assert JournalView.of(shard).undecided == shard.watermark.end == len(stage.journal.entries)
    assert shard.hw == stage.txid.offset, "its markers are not written"


def test_a_begin_in_flight_lies_behind_what_is_acknowledged(stage: Commits) -> None:
    stage.end({SIDE0: wrote(0)}, commands.Action.ABORT)
    end = len(stage.journal.entries)
    begin = commands.Begin(session=stage.session, request_id=2, answered_below=0, timeout_ms=9)
    stage.coordinator.submit(begin, "begin")
    assert JournalView.of(stage.coordinator.shard).undecided == end
    stage.coordinator.ack()
    assert JournalView.of(stage.coordinator.shard).undecided == end


def test_a_snapshot_of_many_steps_has_several_chunks(
    stage: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logtx.coordinator.core.snapshot.CHUNK_BYTES", 700)
    steps = [PointerStep(("a._txnlog", p), n, n) for p in range(5) for n in range(9)]
    stage.coordinator.shard.staircases.replay(steps)
    restored = stage.restored().shard
    assert [*restored.staircases.rows()] == [*stage.coordinator.shard.staircases.rows()]
    assert len(stage.records(Snapshot)) > 3


def test_a_main_topic_that_does_not_exist_is_told(stage: Commits) -> None:
    side = ("c._txnlog", 0)
    stage.coordinator.topics["c._txnlog"] = stage.coordinator.topics["a._txnlog"]
    assert isinstance(stage.end({side: wrote(0)}), UnknownTopicError)


# ---- metadata mode ------------------------------------------------------------------------------


@pytest.fixture
def placing(stage: Commits) -> Commits:
    """The same coordinator, which is the home of the topic: what is decided is placed there."""
    topic_id = stage.coordinator.topics["a"].topic_id
    for phase in (Phase.TO_METADATA, Phase.METADATA):
        stage.coordinator.apply(Decision(records=(ModeChange("a", topic_id, phase, {}),)))
        stage.coordinator.ack()
        stage.coordinator.mode_records.clear()
    return stage


def place(stage: Commits, at: int) -> None:
    """Places what waits, and lets the record be durable."""
    assert stage.coordinator.ask_ends()
    stage.coordinator.tell_ends({stage.main: at})
    stage.coordinator.ack()


def test_trap_169_what_lies_in_the_sidecar_alone_gets_a_place_which_its_marker_names(
    placing: Commits,
) -> None:
    assert is_committing(placing.end({SIDE0: wrote(0, first=20)}, ends={A0: 41}))
    assert placing.decision.placed == (A0,)
    assert placing.decision.sidecar_since == ((SIDE0, 41),)
    assert encode_entry(placing.records(PrepareCommit)[0])[0] == 12, (
        "trap 170: an older one loses it"
    )
    begin, coordinator = placing.txid.offset, placing.coordinator
    coordinator.finish(begin)
    assert coordinator.ended_sidecars == [], "its place is not known"
    for view in views(placing):
        assert view.needed(SIDE0, 41) == PointerStep(SIDE0, 41, 20)
    place(placing, 43)
    assert coordinator.ended_sidecars == [(begin, {SIDE0: 43})]
    assert not placing.records(Committed)
    coordinator.finish_sidecars()
    coordinator.ack()
    [entry] = placing.records(Committed)
    assert entry.record == Committed(begin=begin, pointers=(PointerStep(SIDE0, 43, 20),))
    for view in views(placing):
        assert view.needed(SIDE0, 43) == PointerStep(SIDE0, 43, 20), "readers may begin there"
        assert view.needed(SIDE0, 44) is None


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("is_placed", [False, True])
def test_a_new_owner_ends_it_in_the_sidecar(placing: Commits, is_placed: bool, gone: bool) -> None:
    placing.coordinator.keeps_late = True
    placing.end({SIDE0: wrote(0), A1: wrote(0)}, ends={A0: 41})
    begin, at = placing.txid.offset, GONE if gone else 43
    if is_placed:
        assert placing.coordinator.ask_ends()
        placing.coordinator.tell_ends({placing.main: at})
        placing.coordinator.ack()
    for loaded in (placing.journal.load(placing.coordinator.config), placing.restored().shard):
        effects = loaded.loaded(placing.coordinator.now)
        ended = [e for e in effects if isinstance(e, EndSidecars)]
        late = [e.partitions for e in effects if isinstance(e, WriteLateMarkers)]
        waiting = [p for e in effects if isinstance(e, PlaceWrites) for p in e.partitions]
        assert [e.places for e in ended] == [{SIDE0: 43}] * (is_placed and not gone)
        assert late == [(A0,)] * (is_placed and gone)
        assert (placing.main in waiting) is not is_placed
        row = loaded.places.of(begin)
        assert row is not None
        assert row.places.get(placing.main) == (at if is_placed else None)
        assert row.ends[placing.main] == 0


def test_trap_167_the_journal_is_kept_while_the_log_starts_at_the_place(placing: Commits) -> None:
    placing.end({SIDE0: wrote(0)}, ends={A0: 41})
    placing.coordinator.finish(placing.txid.offset)
    place(placing, 43)
    for is_finished in (False, True):
        first = placing.snapshot()
        waiting = placing.coordinator.shard.fences.waiting
        assert waiting is not None
        assert waiting.last == {placing.main: 44}, "no record of it lies below its place"
        assert first >= waiting.offset
        assert not waiting.passed({placing.main: 43})
        assert waiting.passed({placing.main: 44})
        if not is_finished:
            placing.coordinator.finish_sidecars()
            placing.coordinator.ack()


def test_lanes_leave_the_sidecar_to_its_place() -> None:
    stage = Stage()
    placed = pointed(0, SIDE0, SIDE1)
    placed.placed = frozenset({A0})
    stage.write(placed)
    assert stage.in_flight() == [(0, A1)], "the other one has markers"
    stage.lanes.end_sidecars(placed, 1, lambda: 0, stage.finish, {SIDE0: 43})
    assert stage.in_flight() == [(0, A1), (0, SIDE0)]
    ended = stage.headers(1)
    assert (ended.committed, ended.branches, ended.pointer) == (True, (OF_SIDE,), 43)


def test_lanes_have_nothing_to_do_where_all_is_placed() -> None:
    stage = Stage()
    placed = pointed(0, SIDE0)
    placed.placed = frozenset({A0})
    stage.write(placed)
    assert stage.in_flight() == []
    assert stage.finished == {(0, 0): ()}


def test_a_place_that_is_gone_is_made_up_for_by_a_pointer() -> None:
    stage = Stage()
    placed = pointed(0, SIDE0)
    placed.placed = frozenset({A0})
    stage.lanes.write_late(placed, 1, lambda: 0, stage.finish, lambda *_: True, (A0,))
    assert stage.headers().is_pointer
    stage.answer(offset=7)
    assert stage.headers().pointer == 7
    assert not stage.finished
    stage.answer()
    assert stage.finished == {(0, 0): ()}


def test_trap_171_a_topic_of_which_readers_were_not_told_is_refused(stage: Commits) -> None:
    topic_id = stage.coordinator.topics["a"].topic_id
    for phase in (Phase.TO_METADATA, Phase.METADATA):
        change = ModeChange("a", topic_id, phase, with_records=False)
        stage.coordinator.apply(Decision(records=(change,)))
        stage.coordinator.ack()
        stage.coordinator.mode_records.clear()
    refusal = stage.end({SIDE0: wrote(0)}, ends={A0: 41})
    assert isinstance(refusal, TopicModeError)
    assert "without mode records" in str(refusal)
    assert is_committing(stage.end({A0: wrote(0)})), "what lies in the topic is looked up"


def test_what_is_handed_over_is_refused() -> None:
    with pytest.raises(TopicModeError, match="home"):
        check_mains_place_sidecars([SIDE0], (), [A0], (), has_parts=False)
    check_mains_place_sidecars([SIDE0], [A0], (), (), has_parts=False)
    check_mains_place_sidecars([SIDE0], (), (), [A0], has_parts=True)
    check_mains_place_sidecars([SIDE1], [A0], (), (), has_parts=False)


def test_parts_in_metadata_mode_are_refused_and_the_remedy_named(placing: Commits) -> None:
    assert placing.add(0, {SIDE0: wrote(0)}) == commands.Done()
    refusal = placing.end({SIDE1: wrote(0)}, ends={A0: 41, A1: 3}, parts=1)
    assert isinstance(refusal, TopicModeError)
    assert "begin_transaction(sidecar=False)" in str(refusal)
    assert "set-mode a --mode markers" in str(refusal)


def test_a_pointer_must_fit_the_main_topic(stage: Commits) -> None:
    facts = stage.coordinator.topics["a"]
    stage.coordinator.topics["a"] = TopicFacts(
        topic_id=facts.topic_id,
        partition_count=facts.partition_count,
        record_max_bytes=MARKER_FIXED_BYTES + BRANCH_MARKER_BYTES * 3,
    )
    refusal = stage.end({SIDE0: wrote(1, 2), A0: wrote(3, 4)}, ends={A0: 41})
    assert isinstance(refusal, RequestTooLargeError)
    assert "a[0]" in str(refusal)
