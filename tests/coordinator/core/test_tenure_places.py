"""A tenure that places: its PLACED records late, lost, void, too large; pauses, and its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logtx.coordinator.core import tenure as tenures
from logtx.coordinator.core.decision import TopicFacts, WriteMarkers, WriteModeRecords
from logtx.coordinator.core.fences import Fences
from logtx.coordinator.core.placing import PlaceWrites
from logtx.coordinator.core.replica import Replica
from logtx.coordinator.core.switching import PARTITIONS_MAX
from logtx.coordinator.protocol import commands
from logtx.journal.control import BranchRange, TopicPartition
from logtx.journal.errors import (
    CoordinatorBusyError,
    NotCoordinatorError,
    RequestTooLargeError,
    TopicModeError,
)
from logtx.journal.modes import Mode, Phase
from logtx.journal.places import GONE, PartitionId, Placed
from logtx.journal.records.types import (
    AbortReason,
    Committed,
    PrepareCommit,
    Snapshot,
)
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ..harness import PARTITION, Coordinator, Journal, feed_lazily
from ..harness import txid as txid_of

B0, B1 = PartitionId("b", 0, "id-b"), PartitionId("b", 1, "id-b")


class Stage:
    """A coordinator that owns a journal in which topic b is in metadata mode."""

    def __init__(self, *, partitions: int = 4) -> None:
        self.coordinator = Coordinator(Journal())
        facts = TopicFacts(topic_id="id-b", partition_count=partitions, record_max_bytes=1_000_000)
        self.coordinator.topics["b"] = facts
        self.refs = 0
        self.coordinator.take_over()
        reply = self.ask(commands.Connect(producer_id="p", nonce=1))
        assert isinstance(reply, commands.Connected)
        self.session = commands.SessionId("p", reply.generation, 1)
        self.ask(commands.SetTopicMode(topic="b", mode=Mode.METADATA))
        self.coordinator.record_mode("b", 0)
        self.coordinator.ack()
        self.coordinator.publish("b")

    def submit(self, command: commands.Command) -> int:
        self.refs += 1
        self.coordinator.submit(command, self.refs)
        return self.refs

    def ask(self, command: commands.Command) -> commands.Reply:
        ref = self.submit(command)
        self.coordinator.ack()
        return self.coordinator.replies[ref]

    def begin(self) -> TxId:
        reply = self.ask(
            commands.Begin(
                session=self.session, request_id=self.refs, answered_below=0, timeout_ms=60_000
            )
        )
        assert isinstance(reply, commands.Began)
        return reply.txid

    def commit(self, *keys: TopicPartition, parts: int = 0, txid: TxId | None = None) -> int:
        """Commits a transaction that wrote to these, with all its markers; returns its BEGIN."""
        txid = txid or self.begin()
        self.end(txid, *keys, parts=parts)
        self.coordinator.finish(txid.offset)
        return txid.offset

    def end(self, txid: TxId, *keys: TopicPartition, parts: int = 0) -> None:
        """Commits a transaction that wrote to these; its markers are left to be written."""
        writes = {key: (BranchRange(0, 0, 4, 5),) for key in keys}
        self.ask(
            commands.End(
                session=self.session,
                txid=txid,
                action=commands.Action.COMMIT,
                writes=writes,
                parts=parts,
            )
        )

    def records(self, kind: type) -> list[object]:
        """Returns the records of a type that are in the journal or on their way."""
        flying = [f.entry for f in self.coordinator.in_flight]
        found = [e.record for e in (*self.coordinator.journal.entries, *flying)]
        return [record for record in found if isinstance(record, kind)]

    def state(self, begin: int) -> State:
        outcome = self.coordinator.shard.transactions.outcome(begin)
        assert outcome is not None
        return outcome.state


def test_a_transaction_is_finished_right_behind_its_places() -> None:
    stage = Stage()
    coordinator = stage.coordinator
    begin = stage.commit(("b", 0))
    asked = stage.submit(commands.GetOutcome(txid=txid_of(begin), until_finished=True))
    assert coordinator.ask_ends()
    coordinator.tell_ends({B0: 9})
    placed, finished = coordinator.in_flight
    assert placed.entry.record == Placed(5, {B0: 9})
    assert finished.entry.record == Committed(begin=begin)
    # Late: nothing else follows before they are acknowledged, and no second one is asked for.
    assert not coordinator.ask_ends()
    assert coordinator.shard.hw == begin
    assert asked not in coordinator.replies
    coordinator.ack(1)
    assert (coordinator.shard.hw, asked in coordinator.replies) == (begin, False)
    coordinator.ack()
    assert coordinator.shard.hw > begin
    assert isinstance(coordinator.replies[asked], commands.Outcome)
    assert stage.records(Committed) == [Committed(begin=begin)]


def test_a_transaction_with_markers_left_is_not_finished_with_its_places() -> None:
    stage = Stage()
    coordinator = stage.coordinator
    txid = stage.begin()
    stage.end(txid, ("b", 0), ("a", 1))
    assert coordinator.ask_ends()
    coordinator.tell_ends({B0: 9})
    coordinator.ack()
    assert stage.records(Committed) == []
    coordinator.finish(txid.offset)
    assert stage.records(Committed) == [Committed(begin=txid.offset)]


def test_trap_260_what_is_to_get_a_late_marker_is_not_finished_by_a_later_round() -> None:
    # A topic is told gone, and the record of it is in flight when the tenure pauses. Behind the
    # pause another broker tells an end. The first record counts, so the first transaction gets a
    # marker.
    stage = Stage()
    coordinator, tenure = stage.coordinator, stage.coordinator.tenure
    coordinator.keeps_late = True
    first = stage.commit(("b", 0))
    coordinator.ask_ends()
    second = stage.commit(("b", 0))
    end = coordinator.journal.end
    coordinator.tell_ends({B0: GONE})
    tenure.pause()
    tenure.end_told(end, coordinator.now.monotonic_ms)
    assert coordinator.ask_ends()
    coordinator.tell_ends({B0: 10})
    assert stage.records(Committed) == []
    coordinator.ack()
    assert list(coordinator.late_markers) == [first]
    assert stage.records(Committed) == [Committed(begin=second)]
    coordinator.finish_late(first, gone=False)
    coordinator.ack()
    assert stage.records(Committed)[1:] == [Committed(begin=first)]


def test_what_finishes_a_transaction_is_void_if_its_places_are_lost() -> None:
    stage = Stage()
    coordinator = stage.coordinator
    begin = stage.commit(("b", 0))
    coordinator.ask_ends()
    coordinator.tell_ends({B0: 9})
    coordinator.lose(landed=[1])
    assert stage.state(begin) is State.COMMITTING
    coordinator.finish(begin)
    assert coordinator.ask_ends()
    coordinator.tell_ends({B0: 11})
    coordinator.ack()
    assert stage.state(begin) is State.COMMITTED
    assert coordinator.shard.places.last == {B0: 11}


@pytest.mark.parametrize("dies", ["no", "before", "behind"])
@pytest.mark.parametrize("gone", [False, True])
def test_trap_12_what_is_gone_is_finished_behind_its_late_marker(gone: bool, dies: str) -> None:
    stage = Stage()
    coordinator = stage.coordinator
    coordinator.keeps_late = True
    begin = stage.commit(("b", 0), ("b", 1))
    assert coordinator.ask_ends()
    coordinator.tell_ends({B0: GONE, B1: 9})
    if dies == "before":
        coordinator.lose(landed=1)
        coordinator.take_over()
    else:
        coordinator.ack()
    if dies == "behind":
        coordinator.take_over()
    if dies != "no":
        coordinator.finish(begin)
    assert stage.state(begin) is State.COMMITTING, "the marker is not written"
    assert coordinator.late_markers[begin].partitions == (("b", 0),)
    partition = coordinator.late_markers[begin].transaction.partitions["b", 0]
    assert partition.topic_id == "id-b", "it states where the records were thought to be"
    coordinator.finish_late(begin, gone=gone)
    coordinator.ack()
    (finished,) = stage.records(Committed)
    assert finished == Committed(begin=begin, gone=(("b", 0),) if gone else ())
    assert len(stage.records(Placed)) == 1


def test_what_is_marked_and_placed_waits_for_both() -> None:
    for marker_first in (True, False):
        stage = Stage()
        coordinator = stage.coordinator
        txid = stage.begin()
        writes: dict[TopicPartition, tuple[BranchRange, ...]] = {
            ("b", 0): (BranchRange(0, 0, 4, 5),),
            ("a", 1): (BranchRange(0, 0, 0, 1),),
        }
        end = commands.End(
            session=stage.session, txid=txid, action=commands.Action.COMMIT, writes=writes
        )
        stage.ask(end)
        assert coordinator.markers[txid.offset].transaction.placed == {("b", 0)}
        if marker_first:
            coordinator.finish(txid.offset, (("a", 1),))
        assert coordinator.ask_ends()
        coordinator.tell_ends({B0: GONE})
        coordinator.ack()
        if not marker_first:
            assert stage.records(Committed) == []
            coordinator.finish(txid.offset, (("a", 1),))
        [finished] = stage.records(Committed)
        assert isinstance(finished, Committed)
        assert set(finished.gone) == {("a", 1), ("b", 0)}


def test_a_lost_record_is_asked_for_again_by_the_next_owner() -> None:
    stage = Stage()
    coordinator = stage.coordinator
    begin = stage.commit(("b", 0))
    coordinator.ask_ends()
    former, question = coordinator.tenure, coordinator.question
    coordinator.tell_ends({B0: 9})
    coordinator.lose()
    assert question is not None
    former.ends_told(question, {B0: 10}, coordinator.now)
    assert coordinator.in_flight == type(coordinator.in_flight)()
    coordinator.finish(begin)
    assert coordinator.ask_ends()
    coordinator.tell_ends({B0: 11})
    coordinator.ack()
    coordinator.ack()
    assert stage.records(Placed) == [Placed(5, {B0: 11})]
    assert stage.state(begin) is State.COMMITTED


def test_a_record_of_a_replaced_owner_is_void() -> None:
    stage = Stage()
    coordinator = stage.coordinator
    begin = stage.commit(("b", 0))
    coordinator.ask_ends()
    coordinator.tell_ends({B0: 9})
    other = Coordinator(coordinator.journal, name="c2")
    other.take_over()
    coordinator.ack()  # It lands behind the other's OWNER record, which had no place for it.
    assert not coordinator.serving
    assert stage.records(Placed) == [Placed(5, {B0: 9})]
    assert other.journal.load().places.last == {}
    other.lose()
    other.finish(begin)
    assert other.ask_ends()
    other.tell_ends({B0: 12})
    other.ack()
    other.ack()
    assert other.journal.load().places.last == {B0: 12}
    assert other.journal.load().transactions.get(begin) is None


def test_a_record_that_lands_unacknowledged_counts() -> None:
    stage = Stage()
    coordinator = stage.coordinator
    begin = stage.commit(("b", 0))
    coordinator.ask_ends()
    coordinator.tell_ends({B0: 9})
    coordinator.lose(landed=1)
    assert not coordinator.ask_ends()
    coordinator.finish(begin)
    coordinator.ack()
    assert stage.state(begin) is State.COMMITTED
    assert coordinator.shard.places.last == {B0: 9}


def test_a_pause_drops_the_question_and_asks_anew_after_it() -> None:
    stage = Stage()
    coordinator, tenure = stage.coordinator, stage.coordinator.tenure
    stage.commit(("b", 0))
    coordinator.ask_ends()
    tenure.pause()
    assert coordinator.question is not None
    tenure.ends_told(coordinator.question, {B0: 9}, coordinator.now)
    assert stage.records(Placed) == []
    assert tenure.place_question(0) is None
    assert tenure.wake_ms is None
    tenure.end_told(coordinator.journal.end, coordinator.now.monotonic_ms)
    assert coordinator.ask_ends()
    coordinator.tell_ends({B0: 10})
    coordinator.ack()
    assert stage.records(Placed) == [Placed(5, {B0: 10})]


def test_what_becomes_durable_during_a_pause_is_finished_after_it() -> None:
    stage = Stage()
    coordinator, tenure = stage.coordinator, stage.coordinator.tenure
    txid = stage.begin()
    stage.end(txid, ("b", 0), ("a", 1))
    coordinator.ask_ends()
    coordinator.tell_ends({B0: 9})
    tenure.pause()
    flying = coordinator.in_flight.popleft()
    landed = coordinator.journal.append(flying.entry)
    tenure.acknowledged(flying.predicted, landed, coordinator.now.monotonic_ms)
    coordinator.finish(txid.offset)
    assert stage.records(Committed) == []
    tenure.end_told(coordinator.journal.end, coordinator.now.monotonic_ms)
    assert stage.records(Committed) == [Committed(begin=txid.offset)]


def test_what_was_finished_with_its_places_is_not_finished_again_after_a_pause() -> None:
    stage = Stage()
    coordinator, tenure = stage.coordinator, stage.coordinator.tenure
    first = stage.commit(("b", 0))
    coordinator.ask_ends()
    second = stage.commit(("b", 0))
    end = coordinator.journal.end
    coordinator.tell_ends({B0: 9})
    tenure.pause()
    tenure.end_told(end, coordinator.now.monotonic_ms)
    # The record of the first is still on its way when the second one's is made.
    assert coordinator.ask_ends()
    coordinator.tell_ends({B0: 10})
    coordinator.ack()
    assert stage.records(Committed) == [Committed(begin=first), Committed(begin=second)]


def test_a_mode_record_that_is_written_during_a_pause_ends_the_switch_after_it() -> None:
    stage = Stage()
    coordinator, tenure = stage.coordinator, stage.coordinator.tenure
    stage.ask(commands.SetTopicMode(topic="b", mode=Mode.MARKERS))
    tenure.pause()
    coordinator.record_mode("b", 9)
    assert tenure.shard.modes.phase("b", "id-b") is Phase.TO_MARKERS
    tenure.end_told(coordinator.journal.end, coordinator.now.monotonic_ms)
    assert tenure.shard.modes.phase("b", "id-b") is Phase.MARKERS


def test_an_owner_that_gives_the_partition_away_places_nothing() -> None:
    for leave in ("quiesce", "end"):
        stage = Stage()
        coordinator, tenure = stage.coordinator, stage.coordinator.tenure
        stage.commit(("b", 0))
        coordinator.ask_ends()
        if leave == "quiesce":
            tenure.quiesce()
        else:
            tenure.end(NotCoordinatorError("it is stopped"))
        assert coordinator.question is not None
        tenure.ends_told(coordinator.question, {B0: 9}, coordinator.now)
        assert tenure.place_question(0) is None
        assert not tenure.mode_ends("b", "id-b", {0: 9}, 0, 0)
        tenure.mode_recorded(B0, 9, (0,))
        assert stage.records(Placed) == []
        assert not coordinator.in_flight


def test_a_record_that_would_be_too_large_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(partitions=64)
    begin = stage.commit(*(("b", n) for n in range(64)))
    monkeypatch.setattr(tenures, "RECORD_MAX_BYTES", 120)
    coordinator = stage.coordinator
    coordinator.ask_ends()
    coordinator.tell_ends({PartitionId("b", n, "id-b"): 9 for n in range(64)})
    placed = stage.records(Placed)
    assert len(placed) > 1
    named = [p for record in placed if isinstance(record, Placed) for p in record.ends]
    assert sorted(named) == sorted({PartitionId("b", n, "id-b") for n in range(64)})
    coordinator.ack()
    coordinator.ack()
    assert stage.state(begin) is State.COMMITTED


def test_a_decision_too_large_for_its_places_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(partitions=64)
    txid = stage.begin()
    end = stage.coordinator.journal.end
    monkeypatch.setattr(tenures, "RECORD_MAX_BYTES", 300)
    writes: dict[TopicPartition, tuple[BranchRange, ...]] = {
        ("b", n): (BranchRange(0, 0, 4, 5),) for n in range(64)
    }
    reply = stage.ask(
        commands.End(session=stage.session, txid=txid, action=commands.Action.COMMIT, writes=writes)
    )
    assert type(reply).__name__ == "RequestTooLargeError"
    assert (stage.coordinator.journal.end, stage.state(txid.offset)) == (end, State.OPEN)


def test_trap_79_nothing_is_marked_under_the_id_of_a_former_topic() -> None:
    stage = Stage()
    topics = stage.coordinator.topics
    placing, txid = topics["b"], stage.begin()
    writes: dict[TopicPartition, tuple[BranchRange, ...]] = {("b", 0): (BranchRange(0, 0, 4, 5),)}
    commit = commands.End(
        session=stage.session, txid=txid, action=commands.Action.COMMIT, writes=writes
    )
    topics["b"] = replace(placing, topic_id="id-former", is_settled=False)
    assert isinstance(stage.ask(commit), CoordinatorBusyError), "one broker may be behind"
    assert stage.state(txid.offset) is State.OPEN
    # It began while that broker told of the former topic.
    told = ((0, "id-former"), (10**9, "id-b"))
    topics["b"] = replace(placing, told=told)
    stage.ask(commit)
    [decision] = stage.records(PrepareCommit)
    assert isinstance(decision, PrepareCommit)
    assert decision.placed == (("b", 0),)
    assert decision.writes[0].partition.topic_id == "id-b"


def test_a_topic_that_was_created_anew_has_markers_when_that_is_certain() -> None:
    stage = Stage()
    stage.coordinator.topics["b"] = replace(stage.coordinator.topics["b"], topic_id="id-newer")
    stage.commit(("b", 0))
    [decision] = stage.records(PrepareCommit)
    assert isinstance(decision, PrepareCommit)
    assert decision.placed == ()
    assert decision.writes[0].partition.topic_id == "id-newer"


def test_a_topic_whose_mode_would_not_fit_a_record_is_not_switched() -> None:
    stage = Stage()
    for name, count in (("most", PARTITIONS_MAX), ("more", PARTITIONS_MAX + 1)):
        facts = TopicFacts(topic_id=name, partition_count=count, record_max_bytes=1_000_000)
        stage.coordinator.topics[name] = facts
    end = stage.coordinator.journal.end
    reply = stage.ask(commands.SetTopicMode(topic="more", mode=Mode.METADATA))
    assert isinstance(reply, RequestTooLargeError)
    assert "45001 partitions" in str(reply)
    assert stage.coordinator.journal.end == end

    command = commands.SetTopicMode(topic="most", mode=Mode.METADATA, without_records=True)
    stage.ask(command)
    # Half as many again may be added meanwhile, and offsets take as many bytes as they can.
    ends = dict.fromkeys(range(PARTITIONS_MAX * 3 // 2), 2**63 - 1)
    assert stage.coordinator.end_mode("most", ends)
    stage.coordinator.ack()
    assert stage.coordinator.shard.modes.phase("most", "most") is Phase.METADATA


def test_trap_86_a_topic_goes_back_to_markers_with_mode_records_only() -> None:
    stage = Stage()
    end = stage.coordinator.journal.end
    command = commands.SetTopicMode(topic="b", mode=Mode.MARKERS, without_records=True)
    reply = stage.ask(command)
    assert isinstance(reply, TopicModeError)
    assert "ask without --without-records" in str(reply)
    assert stage.coordinator.journal.end == end


def test_a_topic_that_takes_no_records_takes_commits_that_are_placed() -> None:
    stage = Stage()
    facts = TopicFacts(topic_id="id-b", partition_count=4, record_max_bytes=1)
    stage.coordinator.topics["b"] = facts
    begin = stage.commit(("b", 0))
    assert stage.state(begin) is State.COMMITTING


def test_a_new_owner_carries_out_what_ends_decisions_in_their_order() -> None:
    # A marker that went out before a place of a lower sequence would be taken for the later commit.
    stage = Stage()
    coordinator = stage.coordinator
    placed = stage.commit(("b", 0))
    stage.ask(commands.SetTopicMode(topic="b", mode=Mode.MARKERS))
    txid = stage.begin()
    stage.ask(
        commands.End(
            session=stage.session,
            txid=txid,
            action=commands.Action.COMMIT,
            writes={("b", 0): (BranchRange(0, 9, 9, 1),)},
        )
    )
    effects = coordinator.journal.load().loaded(coordinator.now)
    assert [type(each) for each in effects] == [
        PlaceWrites,
        WriteMarkers,
        WriteModeRecords,
        WriteMarkers,
    ]
    coordinator.lose()
    assert not coordinator.may_mark(txid.offset)
    assert not coordinator.may_record("b")
    coordinator.finish(placed)
    assert coordinator.ask_ends()
    coordinator.tell_ends({B0: 9})
    coordinator.ack()
    assert coordinator.may_record("b")
    assert not coordinator.may_mark(txid.offset)
    coordinator.record_mode("b", 12)
    assert coordinator.may_mark(txid.offset)


def test_nothing_is_asked_before_all_effects_of_loading_are_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    for _ in range(3):
        stage.commit(("b", 0))
    monkeypatch.setattr(tenures, "EFFECTS_MAX", 2)
    stage.coordinator.lose()
    asked = []
    for _ in range(6):
        asked.append(stage.coordinator.ask_ends())
        stage.coordinator.catch_up()
    assert asked.index(True) > 0
    assert stage.coordinator.question is not None
    last = [t.commit_sequence for t in stage.coordinator.shard.transactions][-1]
    assert stage.coordinator.question.upto == last


# ---- loading ------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
def test_parts_that_are_left_unread_are_read_where_something_is_placed(commits: bool) -> None:
    stage = Stage()
    txid = stage.begin()
    stage.ask(
        commands.AddWrites(
            session=stage.session,
            txid=txid,
            part=0,
            writes={("b", 1): (BranchRange(7, 3, 8, 2),)},
        )
    )
    if commits:
        stage.commit(("b", 0), parts=1, txid=txid)
    else:
        stage.ask(commands.AbortTransaction(txid=txid, reason=AbortReason.OPERATOR))
    replica = Replica(PARTITION, stage.coordinator.config)
    feed_lazily(replica, stage.coordinator.journal.entries)
    transaction = replica.shard.transactions.get(txid.offset)
    assert transaction is not None
    if commits:
        assert transaction.placed == {("b", 0), ("b", 1)}
        assert [row.ends for row in replica.shard.places.rows()] == [{B0: 5, B1: 9}]
    else:
        assert transaction.placed == {("b", 1)}
        assert replica.shard.places.rows() == []


def test_a_snapshot_tells_what_gets_no_marker_though_nothing_is_placed() -> None:
    stage = Stage()
    aborted, empty = stage.begin(), stage.begin()
    stage.ask(
        commands.End(
            session=stage.session,
            txid=aborted,
            action=commands.Action.ABORT,
            writes={("b", 0): (BranchRange(0, 0, 0, 1),)},
        )
    )
    stage.ask(
        commands.End(
            session=stage.session,
            txid=empty,
            action=commands.Action.COMMIT,
            writes={("b", 1): ()},
        )
    )
    coordinator = stage.coordinator
    while coordinator.tenure.snapshot():
        pass
    # Their topic has another mode when the next owner loads the snapshot.
    stage.ask(commands.SetTopicMode(topic="b", mode=Mode.MARKERS))
    start = coordinator.shard.snapshot_offset
    assert start is not None
    replica = Replica(PARTITION, coordinator.config, start, certain=True)
    for offset in range(start, coordinator.journal.end):
        replica.feed(offset, coordinator.journal.entries[offset])
    unfinished = {t.begin: t for t in replica.shard.transactions}
    assert unfinished[aborted.offset].placed == {("b", 0)}
    assert unfinished[empty.offset].placed == {("b", 1)}
    assert replica.shard.places.rows() == []
    assert replica.shard.modes.phase("b", "id-b") is Phase.TO_MARKERS


def test_a_listing_says_what_waits_for_nothing_but_places() -> None:
    stage = Stage()
    placed = stage.commit(("b", 0))
    mixed = stage.commit(("b", 1), ("a", 0))
    still_open = stage.begin().offset
    reply = stage.ask(commands.ListTransactions())
    assert isinstance(reply, commands.Transactions)
    told = {info.txid.offset: info.placing for info in reply.transactions}
    assert told == {placed: True, mixed: False, still_open: False}


def test_topics_are_described_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    monkeypatch.setattr(commands, "PAGE_MAX", 2)
    ask = commands.DescribeTopics(topics=("d", "b", "c"))
    reply = stage.ask(ask)
    assert isinstance(reply, commands.TopicModes)
    assert ([info.topic for info in reply.topics], reply.more) == (["b", "c"], True)
    reply = stage.ask(commands.DescribeTopics(topics=ask.topics, after="c"))
    assert isinstance(reply, commands.TopicModes)
    assert ([info.topic for info in reply.topics], reply.more) == (["d"], False)


# ---- fences -------------------------------------------------------------------------------------


def chunk(first: int, *, last: bool = True, index: int = 0, **rows: object) -> Snapshot:
    return Snapshot(
        first=first,
        index=index,
        last=last,
        replaces=-1,
        address="c1",
        process_nonce=1,
        partition_count=1,
        past_epochs=(),
        **rows,  # type: ignore[arg-type]
    )


def test_without_places_every_snapshot_may_be_trimmed_to() -> None:
    fences = Fences()
    for first in (10, 20):
        fences.replay(chunk(first))
        assert (fences.trim_to, fences.waiting, fences.partitions()) == (first, None, [])


def test_a_fence_waits_for_every_partition() -> None:
    fences = Fences()
    fences.replay(chunk(10, last=False, last_places=((B0, 5),)))
    assert fences.trim_to == 0
    fences.replay(chunk(10, index=1, last_places=((B1, 7),)))
    assert sorted(fences.partitions()) == [B0, B1]
    fences.replay(
        chunk(20, last_places=((B0, 8), (B1, 9)), fence=10, fence_places=((B0, 5), (B1, 7)))
    )
    for starts in ({}, {B0: 5}, {B0: 5, B1: 6}, {B0: 4, B1: 7}):
        fences.advance(starts)
        assert fences.trim_to == 0
    fences.advance({B0: 5, B1: GONE})
    assert fences.trim_to == 10
    assert fences.waiting is not None
    assert fences.waiting.offset == 20


def test_a_snapshot_that_was_given_up_is_no_fence() -> None:
    fences = Fences()
    fences.replay(chunk(10, last=False, last_places=((B0, 5),)))
    fences.replay(chunk(20))
    assert (fences.trim_to, fences.waiting) == (20, None)


def test_a_passed_fence_that_a_later_snapshot_states_takes_nothing_back() -> None:
    fences = Fences()
    fences.replay(chunk(10, last_places=((B0, 5),)))
    fences.replay(chunk(20, last=False, last_places=((B0, 9),), fence=10, fence_places=((B0, 5),)))
    fences.advance({B0: 6})
    assert fences.trim_to == 10
    fences.replay(chunk(20, index=1, fence=10))
    assert fences.trim_to == 10
    fences.advance({B0: 6})
    assert fences.waiting is not None
    assert (fences.trim_to, fences.waiting.offset) == (10, 20)
