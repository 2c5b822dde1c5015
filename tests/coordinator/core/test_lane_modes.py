"""Lanes with mode records, and with markers that wait for places: the order that both keep (R4)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import pytest

from logtx.coordinator.core import lanes, topics
from logtx.coordinator.core.lane import Failure, LaneState, Producer
from logtx.coordinator.core.mode_records import ModeWrite
from logtx.coordinator.core.placing import Placer, PlaceWrites
from logtx.journal.control import ModeRecord, TopicPartition, decode_control
from logtx.journal.places import GONE, PartitionId, Placed
from logtx.journal.txid import TxId

from ...parameters import slow
from .test_lanes import A0, A1, B0, IDS, History, Stage, always, decided, in_state, stage

__all__ = ["stage"]

Told = list[tuple[int, PartitionId, int, tuple[int, ...]]]


def switch(
    told: Told,
    *,
    offset: int = 1_005,
    topic: str = "a",
    places: bool = True,
    journal: int = 0,
    may_mark: Callable[[PartitionId, int], bool] = always,
) -> ModeWrite:
    """Returns a switch whose MODE record lies at `offset`; what it tells goes to `told`."""

    def recorded(partition: PartitionId, data_offset: int, all_of_them: Collection[int]) -> None:
        told.append((offset, partition, data_offset, tuple(sorted(all_of_them))))

    return ModeWrite(TxId(journal, 1, offset), topic, IDS[topic], places, may_mark, recorded)


def sequences(stage: Stage, partition: TopicPartition) -> list[int]:
    """Returns the sequences of what is in flight to a partition."""
    return [s.job.sequence for s in stage.sent if s.job.partition.key == partition]


def id_of(partition: TopicPartition) -> PartitionId:
    """Returns a data partition with its topic's id."""
    return PartitionId(*partition, IDS[partition[0]])


def place(placer: Placer, sequence: int, *partitions: TopicPartition) -> None:
    """Tells a placer of a decision that is placed in some partitions."""
    placer.place(PlaceWrites(sequence - 1_000, sequence, tuple(map(id_of, partitions))))


# ---- mode records -------------------------------------------------------------------------------


def test_a_mode_record_stands_between_the_markers_of_lower_and_higher_sequences(
    stage: Stage,
) -> None:
    told: Told = []
    stage.write(decided(0, A0, A1, B0))
    stage.lanes.write_mode(switch(told))
    stage.write(decided(9, A0, A1, B0))
    assert sequences(stage, A0) == sequences(stage, A1) == [1_000, 1_005, 1_009]
    assert sequences(stage, B0) == [1_000, 1_009], "another topic"
    (record,) = [s for s in stage.sent if s.job.sequence == 1_005 and s.job.partition.key == A1]
    (txid, control) = record.headers
    assert TxId.from_bytes(txid[1] or b"") == TxId(0, 1, 1_005)
    assert decode_control(control[1]) == ModeRecord(places=True, topic_id="id-a")


def test_it_stands_before_later_markers_though_no_look_up_told_of_the_partition() -> None:
    stage, told = Stage(), Told()
    stage.lanes.write_mode(switch(told, places=False))
    assert not stage.sent
    stage.write(decided(9, A1))
    assert sequences(stage, A1) == [1_005, 1_009]
    assert stage.looked_up["a"]
    stage.know("a")
    assert sequences(stage, A0) == [1_005]
    assert sequences(stage, A1) == [1_005, 1_009], "once"


def test_a_look_up_that_fails_is_repeated() -> None:
    stage, told = Stage(), Told()
    stage.lanes.write_mode(switch(told))
    for _ in range(3):
        asked = stage.looked_up["a"]
        stage.lanes.looked_up("a", stage.now_ms)
        stage.wait(lanes.LOOK_PAUSE_MS)
        assert stage.looked_up["a"] == asked + 1
    stage.know("a")
    assert sequences(stage, A0) == sequences(stage, A1) == [1_005]


def test_a_switch_is_done_when_a_later_look_up_finds_no_further_partition(stage: Stage) -> None:
    told: Told = []
    stage.lanes.write_mode(switch(told))
    asked = stage.looked_up["a"]
    stage.answer(offset=7)
    assert stage.looked_up["a"] == asked
    # This look-up begins before the last acknowledgement.
    stage.known.began("a", stage.now_ms)
    stage.now_ms += 1
    stage.answer(offset=3)
    assert stage.looked_up["a"] == asked + 1
    stage.know("a")
    assert not told, "a partition may have come since"
    stage.known.began("a", stage.now_ms)
    grown = topics.TopicFacts(topic_id="id-a", partition_count=3, record_max_bytes=1_000_000)
    stage.known.told("a", grown, stage.now_ms, certain=True)
    stage.lanes.looked_up("a", stage.now_ms)
    assert not told
    assert sequences(stage, ("a", 2)) == [1_005]
    stage.answer(offset=0)
    stage.known.told("a", grown, stage.now_ms, certain=True)
    stage.lanes.looked_up("a", stage.now_ms)
    assert told == [
        (1_005, id_of(("a", partition)), offset, (0, 1, 2))
        for partition, offset in enumerate((7, 3, 0))
    ]
    stage.wait()
    assert stage.lanes.backlogs()[0] == (0, 0)
    assert not stage.lanes._modes


def test_a_broker_that_is_behind_does_not_make_a_switch_leave_partitions_out() -> None:
    stage, told = Stage(), Told()
    behind = topics.TopicFacts(topic_id="id-a", partition_count=1, record_max_bytes=1_000_000)
    stage.known.told("a", behind, stage.now_ms)
    stage.lanes.write_mode(switch(told))
    stage.answer()
    for _ in range(3):
        stage.now_ms += lanes.LOOK_PAUSE_MS
        stage.known.told("a", behind, stage.now_ms)
        stage.lanes.looked_up("a", stage.now_ms)
        assert not told, "one answer proves nothing"
    stage.tell("a", "id-a")
    assert stage.in_flight() == [(1_005, A1)]
    stage.answer()
    whole_ms = stage.now_ms
    while not told:
        stage.now_ms += lanes.LOOK_PAUSE_MS
        stage.tell("a", "id-a")
    assert topics.CONFIRM_MS <= stage.now_ms - whole_ms <= 2 * topics.CONFIRM_MS


def test_a_mode_record_whose_offset_is_not_told_is_written_again(stage: Stage) -> None:
    told: Told = []
    stage.lanes.write_mode(switch(told))
    stage.answer(offset=None)
    stage.answer(offset=4)
    assert stage.in_flight() == [(1_005, A0)]
    stage.answer(offset=8)
    stage.know("a")
    assert [(partition.partition, offset) for _, partition, offset, _ in told] == [(0, 8), (1, 4)]


@pytest.mark.parametrize("state", LaneState)
def test_in_every_state_a_mode_record_waits_its_turn(stage: Stage, state: LaneState) -> None:
    told: Told = []
    in_state(stage, state)
    stage.lanes.write_mode(switch(told))
    stage.write(decided(9, A0))
    landed: list[int] = []
    for _ in range(100):
        if stage.sent:
            if stage.state() is not LaneState.FAILED and stage.sent[0].job.partition.key == A0:
                landed.append(stage.sent[0].job.sequence)
            stage.answer(offset=len(landed))
        else:
            stage.wait()
            stage.know("a")
    assert landed == sorted(landed)
    assert landed[-2:] == [1_005, 1_009]
    assert [partition.key for _, partition, _, _ in told] == [A0, A1]


@pytest.mark.parametrize("failure", Failure)
def test_a_mode_record_that_is_refused_is_written_again_before_what_is_behind_it(
    stage: Stage, failure: Failure
) -> None:
    told: Told = []
    stage.lanes.write_mode(switch(told))
    stage.write(decided(9, A0))
    stage.answer(failure)
    while stage.sent:
        stage.answer(None if stage.sent[0].job.partition.key == A1 else Failure.STOPPED)
    again: list[int] = []
    for _ in range(20):
        stage.know("a")
        stage.wait()
        while stage.sent:
            again.append(stage.sent[0].job.sequence)
            stage.answer()
    assert again == [1_005, 1_009]
    stage.know("a")
    assert len(told) == 2


@pytest.mark.parametrize("answer", [None, "id-of-its-successor"])
def test_the_mode_records_of_a_topic_that_is_gone_are_given_up(answer: str | None) -> None:
    stage, told = Stage(), Told()
    stage.lanes.write_mode(switch(told))
    until_ms = stage.now_ms + topics.CONFIRM_MS
    while stage.now_ms < until_ms:
        stage.tell("a", answer)
        assert stage.lanes._modes, "one answer proves nothing"
        stage.now_ms += lanes.LOOK_PAUSE_MS
    stage.tell("a", answer)
    assert not stage.lanes._modes
    assert not told
    assert not stage.sent


def test_a_lane_whose_topic_is_gone_gives_its_mode_record_up(stage: Stage) -> None:
    told: Told = []
    stage.lanes.write_mode(switch(told))
    stage.write(decided(9, A0))
    while stage.sent:
        stage.answer(Failure.NO_TOPIC)
    while not stage.finished:
        stage.tell("a", None)
        stage.now_ms += lanes.LOOK_PAUSE_MS
    assert stage.finished == {(0, 9): (A0,)}
    assert not told
    assert not stage.lanes._modes


def test_an_answer_of_a_predecessor_delays_a_switch_and_does_not_end_it() -> None:
    stage, told = Stage(), Told()
    stage.tell("a", "id-of-its-predecessor")
    stage.lanes.write_mode(switch(told))
    assert not stage.sent, "its partitions may be others"
    stage.know("a")
    assert sequences(stage, A0) == [1_005]


def test_mode_records_that_are_given_up_hold_nothing_up(stage: Stage) -> None:
    told: Told = []
    stage.lanes.write_mode(switch(told))
    assert (sequences(stage, A0), sequences(stage, A1)) == ([1_005], [1_005])
    while stage.sent:  # Partition 0 takes its record; the other one refuses it again and again.
        stage.answer(Failure.REFUSED if stage.sent[0].job.partition.key == A1 else None)
    stage.write(decided(9, A1))
    assert stage.lanes.first(0, A1) == 1_005
    offsets = stage.lanes.stop_mode(0, "a")
    assert list(offsets) == [0]
    assert stage.lanes.first(0, A1) == 1_009
    while not stage.finished:
        stage.wait()
        while stage.sent:
            stage.answer()
    assert not told
    assert stage.lanes.first(0, A1) is None
    assert stage.lanes.stop_mode(0, "a") == {}


@pytest.mark.parametrize("state", LaneState)
def test_mode_records_are_given_up_in_every_state(stage: Stage, state: LaneState) -> None:
    in_state(stage, state)
    told: Told = []
    stage.lanes.write_mode(switch(told, offset=2_000))
    stage.lanes.stop_mode(0, "a")
    stage.write(decided(2_009, A0, A1))
    for _ in range(100):
        while stage.sent:
            job = stage.sent[0].job
            given_up = job.sequence == 2_000 and job.partition.key == A0
            assert not given_up or state is LaneState.FLOWING
            stage.answer()
        stage.wait()
        stage.tell("a", "id-a")
    assert stage.finished[0, 2_009] == ()
    assert not told
    assert not stage.lanes.backlogs().get(0, (0, 0))[0]


def test_a_mode_record_in_flight_is_waited_for_though_it_is_given_up(stage: Stage) -> None:
    stage.lanes.write_mode(switch([]))
    offsets = stage.lanes.stop_mode(0, "a")
    assert stage.lanes.first(0, A0) == 1_005, "it may be written, and no place comes before it"
    stage.answer(Failure.REFUSED)
    while stage.sent:
        stage.answer()
    assert len(offsets) == 1
    stage.wait()
    assert not stage.sent, "it is not written again"
    assert stage.lanes.first(0, A0) is None


def test_the_mode_records_of_a_tenure_that_ended_tell_nobody(stage: Stage) -> None:
    told: Told = []
    stage.lanes.write_mode(switch(told))
    stage.lanes.forget(0)
    later: Told = []
    stage.lanes.write_mode(switch(later))
    assert sequences(stage, A0) == [1_005, 1_005], "the former one's is in flight"
    while stage.sent:
        stage.answer()
    stage.know("a")
    assert not told
    assert len(later) == 2


# ---- places and markers -------------------------------------------------------------------------


def test_a_marker_waits_for_places_of_lower_sequences_and_delays_no_other_lane(
    stage: Stage,
) -> None:
    placer = Placer(lambda key: stage.lanes.first(0, key))
    place(placer, 1_000, A0)
    stage.write(decided(1, A0, A1), placer.may_mark)
    assert stage.in_flight() == [(1, A1)]
    assert stage.state() is LaneState.FLOWING
    assert stage.lanes.first(0, A0) == 1_001
    stage.write(decided(2, A1), placer.may_mark)
    assert stage.in_flight() == [(1, A1), (2, A1)]
    stage.lanes.resume(0)
    assert sequences(stage, A0) == [], "nothing was placed"
    placer.placed(Placed(1_000, {id_of(A0): 5}))
    stage.lanes.resume(0)
    assert sequences(stage, A0) == [1_001]


def test_places_and_markers_wait_for_lower_sequences_alone_and_so_never_for_each_other(
    stage: Stage,
) -> None:
    placer = Placer(lambda key: stage.lanes.first(0, key))
    stage.write(decided(0, A0), placer.may_mark)
    place(placer, 1_001, A0)
    stage.write(decided(2, A0), placer.may_mark)
    place(placer, 1_003, A0)
    order: list[int] = []
    while placer.waiting() or stage.sent:
        question = placer.ask(stage.now_ms)
        if question is None:
            assert stage.sent, "neither a marker nor a place can go on"
            order.append(stage.sent[0].job.sequence)
            stage.answer()
            continue
        ends = placer.answered(question, {id_of(A0): 9}, stage.now_ms)
        assert ends
        order += [s for s in (1_001, 1_003) if placer.waiting()[id_of(A0)] <= s <= question.upto]
        placer.placed(Placed(question.upto, ends))
        stage.lanes.resume(0)
    assert order == [1_000, 1_001, 1_002, 1_003]


def test_a_mode_record_back_to_markers_waits_for_the_places_before_it(stage: Stage) -> None:
    told: Told = []
    placer = Placer(lambda key: stage.lanes.first(0, key))
    place(placer, 1_000, A0)
    stage.lanes.write_mode(switch(told, places=False, may_mark=placer.may_mark))
    stage.write(decided(9, A0), placer.may_mark)
    assert sequences(stage, A0) == []
    assert sequences(stage, A1) == [1_005]
    placer.placed(Placed(1_000, {id_of(A0): 5}))
    stage.lanes.resume(0)
    assert sequences(stage, A0) == [1_005, 1_009]


def test_where_it_is_placed_a_transaction_gets_no_marker(stage: Stage) -> None:
    transaction = decided(0, A0, A1)
    transaction.placed = frozenset({A0})
    stage.write(transaction)
    assert stage.in_flight() == [(0, A1)]
    control: Any = decode_control(stage.sent[0].headers[1][1])
    assert control.partition_count == 2
    stage.answer()
    assert stage.finished == {(0, 0): ()}
    transaction = decided(1, A0, A1)
    transaction.placed = frozenset({A0, A1})
    stage.write(transaction)
    assert not stage.sent
    assert stage.finished[0, 1] == ()


def test_a_late_marker_goes_out_before_those_of_later_sequences(stage: Stage) -> None:
    placer = Placer(lambda key: stage.lanes.first(0, key))
    late = decided(1, A0)
    late.placed = frozenset({A0})
    former = PartitionId(*A0, "id-of-its-predecessor")
    placer.place(PlaceWrites(1, 1_001, (former,)))
    stage.write(decided(9, A0), placer.may_mark)
    assert not stage.sent
    done: list[tuple[int, Any]] = []
    stage.lanes.write_late(
        late, 7, lambda: 0, lambda *told: done.append(told), placer.may_mark, (A0,)
    )
    assert not stage.sent, "its place is not durable"
    placer.placed(Placed(1_001, {former: GONE}))
    stage.lanes.resume(0)
    assert sequences(stage, A0) == [1_001, 1_009]
    assert stage.lanes.first(0, A0) == 1_001, "a place of a later sequence waits for it"
    while stage.sent:
        stage.answer()
    assert done == [(1, (), {})]


def test_a_late_marker_is_given_up_if_no_topic_has_the_name(stage: Stage) -> None:
    done: list[tuple[int, Any]] = []
    stage.lanes.write_late(
        decided(1, A0, B0), 7, lambda: 0, lambda *told: done.append(told), always, (A0,)
    )
    while stage.sent:
        stage.answer(Failure.NO_TOPIC)
    for _ in range(50):
        assert not done or stage.now_ms >= topics.CONFIRM_MS
        stage.tell("a", None)
        stage.now_ms += lanes.LOOK_PAUSE_MS
        stage.wait()
    assert done == [(1, (A0,), {})]


def test_the_first_marker_that_a_partition_lacks_may_be_behind_those_of_an_ended_tenure(
    stage: Stage,
) -> None:
    assert stage.lanes.first(0, A0) is None
    for begin in (1, 2):
        stage.write(decided(begin, A0))
    stage.lanes.forget(0)
    stage.write(decided(0, A0))
    assert stage.lanes.first(0, A0) == 1_000
    stage.answer(Failure.STOPPED)
    stage.answer(Failure.STOPPED)
    stage.answer(Failure.STOPPED)
    assert stage.lanes.first(0, A0) == 1_000, "it waits to be sent again"
    stage.wait()
    stage.answer()
    assert stage.lanes.first(0, A0) is None


def test_a_careful_lane_that_waits_for_a_place_stays_careful(stage: Stage) -> None:
    placer = Placer(lambda key: stage.lanes.first(0, key))
    stage.write(decided(0, A0), placer.may_mark)
    stage.answer(Failure.REFUSED)
    place(placer, 1_001, A0)
    stage.write(decided(2, A0), placer.may_mark)
    stage.wait()
    stage.answer(Failure.REFUSED)
    stage.wait()
    stage.answer()
    assert stage.state() is LaneState.FLOWING
    assert not stage.sent
    placer.placed(Placed(1_001, {id_of(A0): 5}))
    stage.lanes.resume(0)
    assert [s.producer for s in stage.sent] == [Producer.SHARED]


# ---- random histories ---------------------------------------------------------------------------


class SwitchingHistory(History):
    """The histories of lanes, with switches and places of journal partition 0 in topic a.

    Places are given at random, when the placer may. Checked besides the order of markers: mode
    records and places keep one order with them, and every switch is told in the end.
    """

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.placer = Placer(lambda key: self.stage.lanes.first(0, key))
        self.told: Told = []
        self.switches = 0
        self.counts: Counter[str] = Counter()

    def write(self) -> None:
        """Decides a transaction, or begins a switch, or decides one that is placed in part."""
        sequence = 1_000 + self.begun
        kind = self.chance.random()
        if kind < 0.15 and not self.stage.lanes._modes:
            self.stage.lanes.write_mode(
                switch(self.told, offset=sequence, may_mark=self.placer.may_mark)
            )
            self.switches += 1
        some = self.chance.sample((A0, A1, B0), self.chance.randint(1, 3))
        # While a topic is switched, decisions are marked there.
        may_place = kind > 0.6 and not self.stage.lanes._modes
        placed = frozenset(p for p in some if p[0] == "a" and may_place)
        journal = 0 if placed else self.chance.randrange(2)
        transaction = decided(self.begun + 1, *some, journal=journal)
        transaction.placed = placed
        self.begun += 2
        if placed:
            self.counts["placed"] += 1
            place(self.placer, sequence + 1, *sorted(placed))
        self.stage.write(transaction, self.placer.may_mark if journal == 0 else always)

    def answer(self) -> None:
        """Lets a marker or a question be answered."""
        if self.chance.random() < 0.3:
            self.put()
        super().answer()

    def put(self) -> None:
        """Places what the placer asks for."""
        question = self.placer.ask(self.stage.now_ms)
        if question is None:
            self.counts["waits"] += bool(self.placer.waiting())
            return
        ends = {p: len(self.landed[p.key]) for p in question.partitions}
        for partition in ends:
            first = self.placer.waiting()[partition]
            lower = [s for j, s in self.landed[partition.key] if j == 0 and s > question.upto]
            assert not lower, "no marker overtakes a place"
            self.landed[partition.key].append((0, first))
        self.placer.answered(question, ends, self.stage.now_ms)
        self.placer.placed(Placed(question.upto, ends))
        self.stage.lanes.resume(0)

    def run(self) -> None:
        """Runs to the end, and checks."""
        acts = self.write, self.answer, self.answer, self.wait, self.tell, self.forget
        for _ in range(self.chance.randrange(20, 120)):
            self.chance.choice(acts)()
        calm = 0
        while self.placer.waiting() or self.stage.sent or self.stage.lanes._modes or self.missing:
            calm += 1
            assert calm < 10_000, "nothing waits for ever"
            self.put()
            if self.stage.sent:
                self.settle(None)
            else:
                self.stage.wait()
                self.stage.tell("a", "id-a")
                self.stage.tell("b", "id-b")
        assert set(self.stage.finished.values()) <= {()}, "no topic was gone"
        for partition, found in self.landed.items():
            for journal in (0, 1):
                firsts = list(dict.fromkeys(s for j, s in found if j == journal))
                assert firsts == sorted(firsts), f"{partition}: one order"
        assert len(self.told) == 2 * self.switches
        for sequence, partition, offset, _ in self.told:
            assert self.landed[partition.key][offset] == (0, sequence)

    @property
    def missing(self) -> int:
        """Returns the number of markers that are not written."""
        return sum(total for total, _ in self.stage.lanes.backlogs().values())


@pytest.mark.parametrize("seed", [*range(100), *slow(range(100, 200))])
def test_histories_with_switches_and_places(seed: int) -> None:
    SwitchingHistory(random.Random(seed)).run()


def test_histories_have_what_they_are_about() -> None:
    counts: Counter[str] = Counter()
    for seed in range(50):
        history = SwitchingHistory(random.Random(seed))
        history.run()
        counts += history.counts
        counts["switches"] += history.switches
    assert min(counts[what] for what in ("placed", "waits", "switches")) > 20, counts
