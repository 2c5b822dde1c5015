"""What is placed where: `Places`, `TopicModes` and `Placer`. The search has their interleavings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logtx.coordinator.core.modes import VALID_PREVIOUS, TopicModes
from logtx.coordinator.core.places import Fence, Places
from logtx.coordinator.core.placing import (
    RETRY_MAX_MS,
    RETRY_MIN_MS,
    Placer,
    PlaceWrites,
    Round,
)
from logtx.coordinator.core.placing import VALID_PREVIOUS as ROUNDS
from logtx.journal.control import TopicPartition
from logtx.journal.errors import CorruptRecordError
from logtx.journal.modes import ModeChange, Phase
from logtx.journal.places import GONE, PartitionId, Placed

A, B = PartitionId("a", 0, "id"), PartitionId("b", 3, "id")


def decided(*commits: tuple[int, int, dict[PartitionId, int]]) -> Places:
    places = Places()
    for begin, sequence, ends in commits:
        places.replay_commit(begin, sequence, ends)
    return places


def no_marker(_: TopicPartition) -> int | None:
    return None


# ---- places -------------------------------------------------------------------------------------


def test_a_partition_that_is_not_named_delays_only_itself() -> None:
    places = decided((1, 10, {A: 5, B: 2}), (2, 11, {A: 6}))
    first = places.place(11, {A: 8})
    assert first == Placed(11, {A: 8})
    assert first is not None
    assert places.replay_placed(first) == [2]
    assert places.unplaced.partitions() == [B]
    assert places.replay_placed(Placed(11, {B: 4})) == [1]
    assert len(places.unplaced) == 0
    assert places.last == {A: 8, B: 4}


def test_what_is_decided_behind_upto_waits_for_another_record() -> None:
    places = decided((1, 10, {A: 5}), (2, 11, {A: 6}))
    assert places.replay_placed(Placed(10, {A: 5})) == [1]
    assert [w.what for w in places.unplaced.of(A)] == [2]
    assert places.place(10, {A: 9}) is None


def test_the_first_record_that_covers_a_transaction_counts() -> None:
    places = decided((1, 10, {A: 5}))
    places.replay_placed(Placed(10, {A: 7}))
    assert places.replay_placed(Placed(10, {A: 9})) == []
    assert places.last == {A: 7}
    assert places.rows()[0].places == {A: 7}


def test_places_rise_and_lie_behind_what_they_place() -> None:
    places = decided((1, 10, {A: 5}))
    places.replay_placed(Placed(10, {A: 9}))
    places.replay_commit(2, 11, {A: 6})
    assert places.place(11, {A: 7}) == Placed(11, {A: 9})
    places.replay_commit(3, 12, {A: 20})
    assert places.place(12, {A: 10}) == Placed(12, {A: 20})


def test_a_partition_of_a_deleted_topic_is_placed_nowhere_and_forgotten() -> None:
    places = decided((1, 10, {A: 5}))
    places.replay_placed(Placed(10, {A: 5}))
    places.replay_commit(2, 11, {A: 6})
    gone = places.place(11, {A: GONE})
    assert gone == Placed(11, {A: GONE})
    assert gone is not None
    assert places.replay_placed(gone) == [2]
    assert places.last == {}


def test_a_topic_created_anew_is_another_partition() -> None:
    anew = A._replace(topic_id="other")
    places = decided((1, 10, {A: 5}), (2, 11, {anew: 1}))
    places.replay_placed(Placed(11, {anew: 1}))
    assert places.unplaced.partitions() == [A]


def test_a_snapshot_holds_what_is_unfinished_with_the_places_it_has() -> None:
    places = decided((1, 10, {A: 5, B: 2}), (2, 11, {A: 6}), (3, 12, {B: 3}))
    places.replay_placed(Placed(11, {A: 8}))
    places.replay_finished(2)
    fence = places.fence(20)
    assert fence == Fence(20, {A: 8})
    again = Places.restore(fence, places.rows())
    assert again.rows() == places.rows()
    assert [(row.begin, row.places) for row in again.rows()] == [(1, {A: 8}), (3, {})]
    assert again.replay_placed(Placed(12, {B: 4})) == [1, 3]


@pytest.mark.parametrize(
    ("starts", "passed"),
    [
        ({A: 8, B: 4}, True),
        ({A: 9, B: GONE}, True),
        ({A: 7, B: 4}, False),
        ({A: 8}, False),  # not known is not passed
    ],
)
def test_a_journal_is_trimmed_to_a_fence_behind_which_all_logs_start(
    starts: dict[PartitionId, int], passed: bool
) -> None:
    assert Fence(20, {A: 8, B: 4}).passed(starts) is passed


# ---- rounds -------------------------------------------------------------------------------------


def test_a_round_asks_places_and_ends_when_its_record_is_durable() -> None:
    placer, places = Placer(no_marker), decided((1, 10, {A: 5, B: 2}))
    placer.place(PlaceWrites(1, 10, (A, B)))
    question = placer.ask(0)
    assert question is not None
    assert (question.upto, question.partitions) == (10, (A, B))
    # What is decided meanwhile is the next round's.
    placer.place(PlaceWrites(2, 11, (A,)))
    assert placer.ask(0) is None
    ends = placer.answered(question, {A: 6, B: 3}, 0)
    assert ends is not None
    record = places.place(question.upto, ends)
    assert record == Placed(10, {A: 6, B: 3})
    assert record is not None
    assert not placer.may_mark(A, 12)
    assert placer.placed(record) == [1]
    following = placer.ask(0)
    assert following is not None
    assert following.upto == 11


def test_what_waits_is_known_until_it_is_placed_everywhere() -> None:
    placer = Placer(no_marker)
    placer.place(PlaceWrites(3, 7, (A, B)))
    placer.place(PlaceWrites(4, 9, (A,)))
    placer.placed(Placed(8, {A: 5}))
    assert placer.waiting_begins == {3, 4}
    placer.placed(Placed(8, {B: 5}))
    assert placer.waiting_begins == {4}


def test_what_could_not_be_asked_is_asked_again_after_growing_pauses() -> None:
    placer = Placer(no_marker)
    placer.place(PlaceWrites(1, 10, (A, B)))
    now_ms, pauses = 0, []
    for _ in range(7):
        question = placer.ask(now_ms)
        assert question is not None
        assert placer.answered(question, {}, now_ms) is None
        assert placer.ask(now_ms) is None
        wake_ms = placer.wake_ms
        assert wake_ms is not None
        pauses.append(wake_ms - now_ms)
        now_ms = wake_ms
    assert pauses[0] == RETRY_MIN_MS
    assert pauses == sorted(pauses)
    assert pauses[-1] == RETRY_MAX_MS
    # One partition goes on while the other one waits.
    question = placer.ask(now_ms)
    assert question is not None
    assert placer.answered(question, {B: 1}, now_ms) == {B: 1}
    assert placer.placed(Placed(10, {B: 1})) == []
    assert placer.waiting() == {A: 10}


def test_an_answer_to_a_dropped_question_is_ignored() -> None:
    placer = Placer(no_marker)
    placer.place(PlaceWrites(1, 10, (A,)))
    old = placer.ask(0)
    assert old is not None
    placer.drop()
    new = placer.ask(0)
    assert new is not None
    assert placer.answered(old, {A: 1}, 0) is None
    assert placer.answered(new, {A: 2}, 0) == {A: 2}


def test_a_record_whose_round_was_dropped_counts_when_it_is_durable() -> None:
    placer = Placer(no_marker)
    placer.place(PlaceWrites(1, 10, (A,)))
    question = placer.ask(0)
    assert question is not None
    placer.answered(question, {A: 1}, 0)
    placer.drop()
    assert placer.placed(Placed(10, {A: 1})) == [1]
    assert placer.round is Round.NONE
    assert placer.may_mark(A, 99)


def test_markers_and_places_wait_for_lower_sequences_alone() -> None:
    markers: dict[TopicPartition, int] = {A.key: 11}
    placer = Placer(markers.get)
    placer.place(PlaceWrites(1, 10, (A,)))
    placer.place(PlaceWrites(2, 12, (A, B)))
    # T1 goes before the marker, T2 behind it.
    assert not placer.may_mark(A, 11)
    question = placer.ask(0)
    assert question is not None
    assert (question.upto, question.partitions) == (10, (A,))
    assert placer.answered(question, {A: 1}, 0) == {A: 1}
    assert placer.placed(Placed(10, {A: 1})) == [1]
    assert placer.may_mark(A, 11)
    # B does not wait for the marker in A.
    question = placer.ask(0)
    assert question is not None
    assert (question.upto, question.partitions) == (12, (B,))
    assert placer.answered(question, {B: 1}, 0) == {B: 1}
    assert placer.placed(Placed(12, {B: 1})) == []
    assert placer.ask(0) is None
    markers.clear()
    question = placer.ask(0)
    assert question is not None
    assert question.partitions == (A,)


def test_rounds_follow_their_table() -> None:
    assert set(ROUNDS) == set(Round)
    placer = Placer(no_marker)
    placer.place(PlaceWrites(1, 10, (A,)))
    met = set()
    for drops in ((), ("ends",), ("record",)):
        before = placer.round
        question = placer.ask(0)
        assert question is not None
        met.add((before, placer.round))
        if "ends" in drops:
            placer.drop()
            met.add((Round.ENDS, placer.round))
            continue
        placer.answered(question, {A: 1}, 0)
        met.add((Round.ENDS, placer.round))
        if "record" in drops:
            placer.drop()
        else:
            placer.placed(Placed(9, {A: 1}))
        met.add((Round.RECORD, placer.round))
    assert met == {(old, new) for new, before in ROUNDS.items() for old in before}


# ---- modes --------------------------------------------------------------------------------------


def switched(modes: TopicModes, offset: int, to: Phase) -> None:
    change = modes.switch("a", "id", to)
    assert change is not None
    modes.replay(offset, change)
    assert modes.recorded(A, 100 + offset, (0, 1)) is None
    done = modes.recorded(A._replace(partition=1), 200 + offset, (0, 1))
    assert done == ModeChange("a", "id", to, {0: 100 + offset, 1: 200 + offset})
    modes.replay(offset + 1, done)


def test_a_topic_is_switched_and_back() -> None:
    modes = TopicModes()
    assert modes.switch("a", "id", Phase.MARKERS) is None
    switched(modes, 10, Phase.METADATA)
    assert modes.is_placed(A)
    assert not modes.is_placed(A._replace(topic_id="created anew"))
    assert modes.switch("a", "id", Phase.METADATA) is None
    switched(modes, 20, Phase.MARKERS)
    assert not modes.is_placed(A)
    assert modes.phase("a", "id") is Phase.MARKERS


def test_decisions_are_placed_when_all_mode_records_are_written_and_not_before() -> None:
    modes = TopicModes()
    change = modes.switch("a", "id", Phase.METADATA)
    assert change == ModeChange("a", "id", Phase.TO_METADATA)
    assert change is not None
    modes.replay(10, change)
    assert not modes.is_placed(A)
    # A switch is not turned round.
    assert modes.switch("a", "id", Phase.MARKERS) is None
    assert [(topic, mode.offset) for topic, mode in modes.under_way()] == [("a", 10)]
    # A partition that was added meanwhile needs one as well.
    assert modes.recorded(A, 5, (0, 1)) is None
    assert modes.recorded(A._replace(partition=1), 7, (0, 1)) is not None


@pytest.mark.parametrize("to", [Phase.METADATA, Phase.MARKERS])
def test_a_switch_goes_on_without_mode_records(to: Phase) -> None:
    modes = TopicModes()
    if to is Phase.MARKERS:
        switched(modes, 2, Phase.METADATA)
    begun = modes.switch("a", "id", to)
    assert begun is not None
    modes.replay(10, begun)
    modes.recorded(A, 5, (0, 1))
    change = modes.switch("a", "id", to, with_records=False)
    assert change == replace(begun, with_records=False)
    assert change is not None
    modes.replay(12, change)
    # Its owner had them all before it learned that this one is durable.
    assert modes.recorded(A, 5, (0,)) is None
    again = TopicModes.restore(modes.rows())
    assert again.rows() == modes.rows()
    for each in (modes, again):
        # Mode records that were written name the first MODE record.
        assert [(m.offset, m.with_records) for _, m in each.under_way()] == [(10, False)]
        assert each.switch("a", "id", to, with_records=False) is None
        assert each.switch("a", "id", to) is None, "not taken back"
        with pytest.raises(CorruptRecordError):
            each.replay(13, change)
        with pytest.raises(CorruptRecordError):
            each.replay(13, begun)
        ended = each.ended("a", "id", {0: 9, 1: 9})
        assert ended == ModeChange("a", "id", to, {0: 9, 1: 9}, with_records=False)
        assert ended is not None
        each.replay(14, ended)
        assert (each.phase("a", "id"), each.of("a", "id").offset) == (to, 10)


def test_a_new_owner_writes_the_mode_records_again() -> None:
    modes = TopicModes()
    modes.replay(10, ModeChange("a", "id", Phase.TO_METADATA))
    modes.recorded(A, 5, (0, 1))
    again = TopicModes.restore(modes.rows())
    assert [mode.recorded for _, mode in again.under_way()] == [{}]


def test_a_topic_created_anew_starts_with_markers() -> None:
    modes = TopicModes()
    switched(modes, 10, Phase.METADATA)
    change = modes.switch("a", "other", Phase.METADATA)
    assert change == ModeChange("a", "other", Phase.TO_METADATA)
    assert change is not None
    modes.replay(20, change)
    assert not modes.is_placed(A)


def test_mode_records_follow_the_table_of_phases() -> None:
    assert set(VALID_PREVIOUS) == set(Phase)
    for before in Phase:
        for after in Phase:
            modes = TopicModes()
            order = (Phase.TO_METADATA, Phase.METADATA, Phase.TO_MARKERS, Phase.MARKERS)
            reached = order[: (order.index(before) + 1) % len(order)]
            for offset, phase in enumerate(reached):
                modes.replay(offset, ModeChange("a", "id", phase))
            if before in VALID_PREVIOUS[after]:
                modes.replay(9, ModeChange("a", "id", after))
                assert modes.phase("a", "id") is after
            else:
                with pytest.raises(CorruptRecordError, match=f"is {after}, and it was {before}"):
                    modes.replay(9, ModeChange("a", "id", after))


# ---- two ids of one partition -------------------------------------------------------------------


def test_markers_and_places_keep_one_order_whatever_id_a_topic_was_told_to_have() -> None:
    # A broker of the past told the id of the topic's predecessor, when a later commit was decided.
    data, misnamed = PartitionId("a", 0, "id"), PartitionId("a", 0, "id-of-its-predecessor")
    placer = Placer(lambda _: None)
    placer.place(PlaceWrites(1, 10, (data,)))
    placer.place(PlaceWrites(2, 12, (misnamed,)))
    assert not placer.may_mark(misnamed, 11)
    assert placer.may_mark(misnamed, 9)
    question = placer.ask(0)
    assert question is not None
    assert (question.upto, question.partitions) == (11, (data,))
    placer.answered(question, {data: 5}, 0)
    placer.placed(Placed(11, {data: 5}))
    assert placer.may_mark(data, 11)
    assert not placer.may_mark(data, 13)
    question = placer.ask(0)
    assert question is not None
    assert question.partitions == (misnamed,)
    placer.answered(question, {misnamed: 6}, 0)
    placer.placed(Placed(question.upto, {misnamed: 6}))
    assert placer.may_mark(data, 13)
    assert placer.is_idle
