"""Marker lanes: each state by each event, and random histories against a broker that may refuse.

`docs/lanes.md` is drawn from `VALID_PREVIOUS` and from `WHEN`;
``pytest tests/coordinator --rewrite-transcripts`` writes it. That lanes make all of these
transitions, and no other, is shown here.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from logtx.coordinator.core import lanes, topics
from logtx.coordinator.core.decision import TopicFacts
from logtx.coordinator.core.floors import WrittenBeside
from logtx.coordinator.core.lane import (
    VALID_PREVIOUS,
    Failure,
    Flow,
    Headers,
    Job,
    Lane,
    LaneState,
    Producer,
    Target,
)
from logtx.coordinator.core.lanes import MarkerLanes
from logtx.coordinator.core.mode_records import MayMark
from logtx.coordinator.core.topics import TopicKnowledge
from logtx.coordinator.core.transactions import TransactionMetadata
from logtx.journal.control import BranchRange, Marker, TopicPartition, decode_control
from logtx.journal.places import PartitionId
from logtx.journal.records.types import DataPartition
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ...parameters import slow

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
IDS: Final = {"a": "id-a", "b": "id-b"}


def decided(
    begin: int,
    *partitions: TopicPartition,
    journal: int = 0,
    topic_id: str | None = None,
    records: bool = False,
) -> TransactionMetadata:
    """Returns a committing transaction; its commit sequence is 1,000 above its BEGIN."""
    return TransactionMetadata(
        txid=TxId(journal, 1, begin),
        producer_id="p",
        generation=0,
        timeout_ms=1,
        started_ms=0,
        state=State.COMMITTING,
        commit_sequence=1_000 + begin,
        partitions={
            p: DataPartition(*p, IDS[p[0]] if topic_id is None else topic_id) for p in partitions
        },
        branches={p: (BranchRange(0, 1, 2, 2),) for p in partitions} if records else {},
    )


def always(_partition: PartitionId, _sequence: int) -> bool:
    """Lets every marker go out: nothing is placed."""
    return True


class LanesOfOldFriends(MarkerLanes):
    """Lanes whose producers all brokers know."""

    def _has_room(self, target: Target, topic: str, size: int, *, knows_us: bool) -> bool:
        del knows_us
        return super()._has_room(target, topic, size, knows_us=True)


@dataclass(slots=True)
class _Sent:
    job: Job
    headers: Headers
    producer: Producer
    flow: Flow
    number: int
    """Number of its producer."""


@dataclass
class Stage:
    """Lanes, what they sent, and what they finished."""

    now_ms: int = 1
    known: TopicKnowledge = field(default_factory=TopicKnowledge)
    sent: deque[_Sent] = field(default_factory=deque)
    looked_up: Counter[str] = field(default_factory=Counter)
    finished: dict[tuple[int, int], tuple[TopicPartition, ...]] = field(default_factory=dict)
    pointers: dict[TopicPartition, int] = field(default_factory=dict)
    """Sidecar partition → offset of the pointer, of the latest that is finished there."""
    renewed: int = 0
    wake_ms: int | None = None
    has_met: bool = True
    """Whether brokers know each producer: then none of its markers goes alone."""

    def __post_init__(self) -> None:
        kind = LanesOfOldFriends if self.has_met else MarkerLanes
        self.lanes = kind(self, self.known)

    # ---- the lanes' shell

    def append(self, job: Job, headers: Headers, producer: Producer, flow: Flow) -> None:
        """Keeps what is sent."""
        self.sent.append(_Sent(job, headers, producer, flow, self.renewed))

    def renew(self) -> None:
        """Counts."""
        self.renewed += 1

    def look_up(self, topic: str) -> None:
        """Counts."""
        self.looked_up[topic] += 1

    def wake_at(self, at_ms: int) -> None:
        """Keeps the earliest time."""
        self.wake_ms = at_ms if self.wake_ms is None else min(self.wake_ms, at_ms)

    # ---- what tests do

    def write(self, transaction: TransactionMetadata, may_mark: MayMark = always) -> None:
        """Writes a transaction's markers."""
        journal = transaction.txid.partition

        def finished(
            begin: int, gone: tuple[TopicPartition, ...], pointers: Mapping[TopicPartition, int]
        ) -> None:
            assert (journal, begin) not in self.finished, "finished once"
            self.finished[journal, begin] = gone
            self.pointers.update(pointers)

        self.lanes.write(transaction, 0, lambda: 0, finished, may_mark)

    def know(self, topic: str, *, record_max_bytes: int = 1_000_000) -> None:
        """Tells what a look-up finds."""
        facts = TopicFacts(
            topic_id=IDS[topic], partition_count=2, record_max_bytes=record_max_bytes
        )
        self.known.told(topic, facts, self.now_ms, certain=True)
        self.lanes.looked_up(topic, self.now_ms)

    def tell(self, topic: str, topic_id: str | None) -> None:
        """Tells the answer of a broker that may be behind."""
        facts = None
        if topic_id is not None:
            facts = TopicFacts(topic_id=topic_id, partition_count=2, record_max_bytes=1_000_000)
        self.known.told(topic, facts, self.now_ms)
        self.lanes.looked_up(topic, self.now_ms)

    def answer(self, failure: Failure | None = None, offset: int | None = 0) -> TopicPartition:
        """Answers the oldest marker in flight."""
        sent = self.sent.popleft()
        if failure is None:
            self.lanes.written(sent.job, self.now_ms, offset)
        else:
            self.lanes.not_written(sent.job, failure, self.now_ms)
        return sent.job.partition.key

    def wait(self, for_ms: int = lanes.RETRY_MAX_MS) -> None:
        """Lets time pass."""
        self.now_ms += for_ms
        self.lanes.tick(self.now_ms)

    def state(self, partition: TopicPartition = A0) -> LaneState:
        """Returns the state of a lane."""
        return self.lanes._lanes[0, partition].state

    def in_flight(self) -> list[tuple[int, TopicPartition]]:
        """Returns BEGIN and partition of what is in flight."""
        return [(s.job.txid.offset, s.job.partition.key) for s in self.sent]


@pytest.fixture
def stage() -> Stage:
    """Lanes that know two topics."""
    made = Stage()
    made.know("a")
    made.know("b")
    return made


# ---- producers that a broker has not met --------------------------------------------------------


@pytest.fixture
def stranger() -> Stage:
    """Lanes whose producer no broker has met; they know two topics."""
    made = Stage(has_met=False)
    made.know("a")
    made.know("b")
    return made


def test_trap_291_the_first_marker_of_a_producer_in_a_partition_goes_alone(stranger: Stage) -> None:
    for begin in range(3):
        stranger.write(decided(begin, A0))
    stranger.write(decided(7, A0, journal=1))
    stranger.write(decided(8, B0))
    assert stranger.in_flight() == [(0, A0), (8, B0)]
    stranger.answer()
    assert stranger.in_flight() == [(8, B0), (1, A0), (2, A0), (7, A0)]
    stranger.write(decided(9, A0))
    assert stranger.in_flight()[-1] == (9, A0), "it is known by now"


def test_an_answer_without_an_offset_says_that_the_broker_knows_the_producer(
    stranger: Stage,
) -> None:
    """It is that of a repetition: nothing of that producer was written behind it."""
    for begin in range(3):
        stranger.write(decided(begin, A0))
    stranger.answer(offset=None)
    assert stranger.in_flight() == [(1, A0), (2, A0)]


def test_a_new_producer_is_met_anew(stranger: Stage) -> None:
    for begin in range(3):
        stranger.write(decided(begin, A0))
    stranger.answer()
    for _ in range(2):
        stranger.answer(Failure.STOPPED)
    stranger.wait()
    assert stranger.in_flight() == [(1, A0)]
    stranger.answer()
    assert stranger.in_flight() == [(2, A0)]


def test_a_topic_that_was_created_anew_has_met_nobody(stranger: Stage) -> None:
    for begin in range(2):
        stranger.write(decided(begin, A0))
    stranger.answer()
    stranger.write(decided(2, A0, topic_id="anew"))
    assert stranger.in_flight() == [(1, A0)]
    stranger.answer()
    assert stranger.in_flight() == [(2, A0)]


def test_a_partition_in_which_nothing_was_to_be_done_has_forgotten_the_producer(
    stranger: Stage,
) -> None:
    stranger.write(decided(0, A0))
    stranger.answer()
    stranger.lanes.sweep()
    for begin in (1, 2):
        stranger.write(decided(begin, A0))
    assert stranger.in_flight() == [(1, A0)]


# ---- out of order -------------------------------------------------------------------------------


def test_an_acknowledgement_out_of_order_fails_the_lane_and_all_goes_out_again(
    stage: Stage,
) -> None:
    # librdkafka forgets a partition whose topic is deleted, with the marker that it has for it. It
    # sends the next one when the topic is made anew, and reports the first one when it is closed.
    for begin in range(3):
        stage.write(decided(begin, A0))
    first, second, third = stage.sent
    stage.sent.clear()
    stage.lanes.written(second.job, stage.now_ms)
    assert stage.state() is LaneState.FAILED
    assert stage.renewed == 1, "so that the first one is reported"
    assert not stage.finished
    stage.lanes.written(third.job, stage.now_ms)
    stage.lanes.not_written(first.job, Failure.STOPPED, stage.now_ms)
    assert stage.renewed == 1
    stage.wait()
    for begin in range(3):
        assert stage.in_flight()[0] == (begin, A0)
        stage.answer()
    assert list(stage.finished) == [(0, 0), (0, 1), (0, 2)]


def test_a_producer_that_knows_no_such_partition_is_not_asked_without_end(stage: Stage) -> None:
    # The topic has grown, and the brokers say so. The careful producer learns of it in seconds.
    stage.write(decided(0, A0))
    asked, until_ms = 0, stage.now_ms + 10_000
    while stage.now_ms < until_ms:
        while stage.sent:
            stage.answer(Failure.NO_TOPIC)
            asked += 1
            assert asked < 1_000
            if stage.state() is LaneState.DOUBTFUL:
                stage.know("a")
        stage.wait(100)
    assert 10 < asked < 100
    assert stage.looked_up["a"] >= asked // 2 - 1, "it may be deleted all the same"
    stage.answer() if stage.sent else stage.wait()
    while stage.sent:
        stage.answer()
    assert list(stage.finished) == [(0, 0)]


# ---- each state by each event -------------------------------------------------------------------


def in_state(stage: Stage, state: LaneState) -> None:
    """Brings the lane of A0 into a state, with a marker to write."""
    stage.write(decided(0, A0))
    if state is LaneState.FLOWING:
        return
    if state is LaneState.FAILED:
        stage.write(decided(1, A0))
        stage.answer(Failure.REFUSED)
        return
    if state is LaneState.DOUBTFUL:
        stage.answer(Failure.NO_TOPIC)
        stage.tell("a", None)
        return
    stage.answer(Failure.REFUSED)
    if state is LaneState.CAREFUL:
        stage.wait()


@pytest.mark.parametrize("state", LaneState)
def test_in_every_state_a_marker_waits_or_goes_out_and_all_are_written_in_the_end(
    stage: Stage, state: LaneState
) -> None:
    in_state(stage, state)
    assert stage.state() is state
    stage.write(decided(5, A0))
    for _ in range(100):
        if stage.sent:
            stage.answer()
        else:
            stage.wait()
            if stage.state() is LaneState.DOUBTFUL:
                stage.know("a")
    assert set(stage.finished.values()) == {()}
    assert (0, 5) in stage.finished
    assert stage.state() is LaneState.FLOWING
    stage.lanes.sweep()
    assert not stage.lanes._lanes
    assert not stage.lanes._targets


@pytest.mark.parametrize("failure", Failure)
@pytest.mark.parametrize("state", [LaneState.FLOWING, LaneState.CAREFUL, LaneState.FAILED])
def test_every_failure_in_every_state_that_has_markers_in_flight(
    stage: Stage, state: LaneState, failure: Failure
) -> None:
    in_state(stage, state)
    renewed = stage.renewed
    stage.answer(failure)
    assert not stage.sent, "nothing goes out behind a failure"
    if failure is Failure.NO_TOPIC:
        assert stage.state() is LaneState.DOUBTFUL
        assert stage.looked_up["a"]
        stage.know("a")
    else:
        assert stage.state() is LaneState.PAUSED
        stage.wait()
    was_refused = failure.is_of_the_partition or state is LaneState.FAILED
    assert stage.state() is (LaneState.CAREFUL if was_refused else LaneState.FLOWING)
    assert len({s.producer for s in stage.sent}) == 1
    stopped = state is not LaneState.CAREFUL and (
        failure is not Failure.FULL or state is LaneState.FAILED
    )
    assert stage.renewed - renewed == stopped, "the shared producer is replaced once"


def test_lanes_make_every_transition_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made: set[tuple[LaneState, LaneState]] = set()
    turn = MarkerLanes._turn

    def noting(self: MarkerLanes, lane: Lane, state: LaneState) -> None:
        made.add((lane.state, state))
        turn(self, lane, state)

    monkeypatch.setattr(MarkerLanes, "_turn", noting)
    for seed in range(200):
        History(random.Random(seed)).run()
    assert made == set(WHEN)


WHEN: Final = {
    (LaneState.FLOWING, LaneState.FAILED): "a marker was not written",
    (LaneState.CAREFUL, LaneState.FAILED): "the marker was not written",
    (LaneState.FAILED, LaneState.PAUSED): "all in flight are answered",
    (LaneState.FAILED, LaneState.DOUBTFUL): "all are answered, and one said: no such topic",
    (LaneState.PAUSED, LaneState.FLOWING): "the pause is over; another partition was the cause",
    (LaneState.PAUSED, LaneState.CAREFUL): "the pause is over; this partition was the cause",
    (LaneState.CAREFUL, LaneState.FLOWING): "a marker was written",
    (
        LaneState.FLOWING,
        LaneState.DOUBTFUL,
    ): "the topic is not known, and a look-up did not find it",
    (
        LaneState.CAREFUL,
        LaneState.DOUBTFUL,
    ): "the topic is not known, and a look-up did not find it",
    (LaneState.DOUBTFUL, LaneState.FLOWING): "the topic lives, or its markers are given up",
    (LaneState.DOUBTFUL, LaneState.CAREFUL): "the same, after the partition refused a marker",
}
"""Transition → what makes it."""
PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "lanes.md"
TEMPLATE: Final = """# States of a marker lane

A lane has the markers of one journal partition for one data partition. Drawn from `VALID_PREVIOUS`
in [`coordinator/core/lane.py`](../coordinator/core/lane.py).
[`lanes.py`](../coordinator/core/lanes.py) says why the order holds. By
`tests/coordinator/core/test_lanes.py`.

```mermaid
stateDiagram-v2
    [*] --> flowing
{steps}
```

| state | what goes out | producer |
|---|---|---|
| flowing | up to 1,000 markers, as many bytes as one batch may have | the shared, gapless one |
| careful | one marker at a time | the careful one, for all refused lanes |
| failed, paused, doubtful | nothing | |

Mode records are in the lane like markers. A marker or mode record that waits until something is
placed in its partition leaves its lane in its state.

| from | to | when |
|---|---|---|
{rows}
"""


def page() -> str:
    """Returns the text of `docs/lanes.md`."""
    names = [(a.name.lower(), b.name.lower(), when) for (a, b), when in WHEN.items()]
    return TEMPLATE.format(
        steps="\n".join(f"    {before} --> {after}" for before, after, _ in names),
        rows="\n".join(f"| {before} | {after} | {when} |" for before, after, when in names),
    )


def test_page_is_current(rewrite: bool) -> None:
    all_of_them = {(old, new) for new, before in VALID_PREVIOUS.items() for old in before}
    assert set(WHEN) == all_of_them
    if rewrite:
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "run: pytest tests/coordinator --rewrite-transcripts"


# ---- single rules -------------------------------------------------------------------------------


def test_no_answer_behind_a_failure_counts(stage: Stage) -> None:
    for begin in range(3):
        stage.write(decided(begin, A0))
    stage.answer(Failure.STOPPED)
    stage.answer()
    assert stage.finished == {}
    stage.answer()
    assert stage.state() is LaneState.PAUSED
    stage.wait()
    assert [begin for begin, _ in stage.in_flight()] == [0, 1, 2], "all again, in order"


def test_a_lane_waits_for_its_old_producer_before_it_uses_a_new_one(stage: Stage) -> None:
    stage.write(decided(0, A0))
    stage.write(decided(1, B0))
    stage.answer(Failure.REFUSED)
    assert stage.renewed == 1
    stage.write(decided(2, B0))
    assert stage.in_flight() == [(1, B0)]
    stage.answer()
    assert stage.in_flight() == [(2, B0)]


def test_refused_lanes_share_one_careful_producer(stage: Stage) -> None:
    for partition in (A0, A1, B0):
        stage.write(decided(partition[1], partition))
    for _ in range(3):
        stage.answer(Failure.REFUSED)
    stage.wait()
    assert [s.producer for s in stage.sent] == [Producer.CAREFUL] * 3


def test_a_marker_is_given_up_when_look_ups_agree_for_long_enough(stage: Stage) -> None:
    stage.write(decided(0, A0, B0))
    assert stage.answer() == A0
    stage.answer(Failure.NO_TOPIC)
    began_ms = stage.now_ms
    while not stage.finished:
        assert stage.now_ms < began_ms + 4 * topics.CONFIRM_MS
        assert stage.state(B0) is LaneState.DOUBTFUL
        stage.tell("b", None)
        stage.now_ms += lanes.LOOK_PAUSE_MS
    assert stage.now_ms - began_ms >= topics.CONFIRM_MS
    assert stage.finished == {(0, 0): (B0,)}


def test_finding_2_one_answer_gives_no_marker_up(stage: Stage) -> None:
    stage.write(decided(0, B0))
    stage.answer(Failure.NO_TOPIC)
    for _ in range(30):
        stage.tell("b", None)
        stage.now_ms += lanes.LOOK_PAUSE_MS
        stage.tell("b", "id-b")
        assert stage.finished == {}
        stage.wait()
        stage.answer(Failure.NO_TOPIC)
    stage.tell("b", "id-b")
    stage.wait()
    stage.answer()
    assert stage.finished == {(0, 0): ()}


def test_finding_2b_an_answer_about_a_predecessor_drops_no_marker(stage: Stage) -> None:
    stage.tell("a", "id-of-its-predecessor")
    stage.write(decided(0, A0))
    assert stage.in_flight() == [(0, A0)]


def test_trap_12_a_marker_is_not_given_up_because_another_topic_has_the_name(stage: Stage) -> None:
    # What BEGIN knew of the topic was of before it was created anew, where the records are. Its new
    # leader is not known yet: that, and any number of answers with the new id, proves nothing.
    stage.write(decided(0, A0, topic_id="id-of-its-predecessor", records=True))
    stage.answer(Failure.NO_TOPIC)
    for _ in range(20):
        stage.tell("a", "id-a")
        stage.now_ms += lanes.LOOK_PAUSE_MS
    assert stage.in_flight() == [(0, A0)]
    control = decode_control(stage.sent[0].headers[1][1])
    assert isinstance(control, Marker)
    assert control.topic_id == "id-of-its-predecessor", "which tells readers whose records it means"


def test_finding_9_no_batch_is_larger_than_its_topic_takes() -> None:
    stage = Stage()
    stage.know("a", record_max_bytes=3_000)
    for begin in range(100):
        stage.write(decided(begin, A0, journal=begin % 3))
    largest = 0
    while stage.sent:
        largest = max(largest, sum(s.job.size for s in stage.sent))
        stage.answer()
    assert 1_500 < largest <= 3_000 - lanes.BATCH_OVERHEAD_BYTES
    assert len(stage.finished) == 100


def test_a_marker_that_is_larger_than_the_limit_goes_out_alone() -> None:
    stage = Stage()
    stage.know("a", record_max_bytes=10)
    for begin in range(3):
        stage.write(decided(begin, A0))
    assert len(stage.sent) == 1


def test_finding_9_a_lane_whose_batch_was_too_large_stays_careful_until_it_is_empty(
    stage: Stage,
) -> None:
    for begin in range(4):
        stage.write(decided(begin, A0))
    for _ in range(4):
        stage.answer(Failure.TOO_LARGE)
    stage.wait()
    for _ in range(4):
        assert [s.producer for s in stage.sent] == [Producer.CAREFUL]
        stage.answer()
    assert stage.state() is LaneState.FLOWING
    assert stage.renewed == 1


def test_a_topic_that_was_sealed_gets_many_markers_at_a_time_once_a_look_up_has_told_why() -> None:
    stage = Stage()
    stage.know("a")
    for begin in range(100):
        stage.write(decided(begin, A0))
    for _ in range(100):
        stage.answer(Failure.TOO_LARGE)
    stage.know("a", record_max_bytes=10)
    for _ in range(3):
        stage.wait()
        assert [s.producer for s in stage.sent] == [Producer.CAREFUL]
        stage.answer(Failure.TOO_LARGE)
    stage.know("a")  # It is unsealed, and the next look-up comes before the next marker.
    stage.wait()
    stage.answer()
    assert stage.state() is LaneState.FLOWING
    assert len(stage.sent) == 99
    assert stage.renewed == 1


def test_a_marker_that_is_written_though_a_look_up_told_less_asks_for_another_look_up() -> None:
    stage = Stage()
    stage.know("a", record_max_bytes=10)
    for begin in range(100):
        stage.write(decided(begin, A0))
    assert not stage.looked_up
    stage.answer()
    assert len(stage.sent) == 1
    assert stage.looked_up["a"] == 1
    stage.know("a")
    stage.answer()
    assert len(stage.sent) == 98
    assert stage.looked_up["a"] == 1


def test_a_lower_limit_that_is_told_ends_the_care(stage: Stage) -> None:
    stage.know("a")
    for begin in range(100):
        stage.write(decided(begin, A0))
    for _ in range(100):
        stage.answer(Failure.TOO_LARGE)
    stage.wait()
    stage.answer()
    assert stage.state() is LaneState.CAREFUL, "nothing tells how much may be in flight"
    stage.know("a", record_max_bytes=3_000)
    stage.answer()
    assert stage.state() is LaneState.FLOWING
    assert 1_500 < sum(s.job.size for s in stage.sent) <= 3_000 - lanes.BATCH_OVERHEAD_BYTES


def test_a_lane_that_gets_no_answer_takes_the_careful_producer(stage: Stage) -> None:
    stage.write(decided(0, A0))
    stage.write(decided(1, B0, A1))
    stage.lanes.watch()
    held = stage.sent.popleft()
    stage.answer()
    stage.answer()
    stage.write(decided(2, B0, A1, A0))
    assert stage.state() is LaneState.FLOWING
    stage.lanes.watch()
    assert stage.state() is LaneState.FAILED
    assert stage.renewed == 1, "what is left is reported when the old producer is closed"
    stage.lanes.watch()
    assert stage.renewed == 1
    stage.sent.appendleft(held)
    while stage.sent:
        stage.answer(Failure.STOPPED)
    assert stage.renewed == 1
    stage.wait()
    assert {s.job.partition.key: s.producer for s in stage.sent} == {
        A0: Producer.CAREFUL,
        A1: Producer.SHARED,
        B0: Producer.SHARED,
    }
    while stage.sent:
        stage.answer()
    assert sorted(stage.finished) == [(0, 0), (0, 1), (0, 2)]


def test_finding_4_a_deleted_topic_of_1000_partitions_needs_one_producer() -> None:
    stage = Stage()
    stage.know("a")
    stage.write(decided(0, *(("a", n) for n in range(1_000))))
    for _ in range(1_000):
        stage.answer(Failure.NO_TOPIC)
    assert stage.renewed == 1
    while not stage.finished:
        stage.tell("a", None)
        stage.now_ms += lanes.LOOK_PAUSE_MS
    assert len(stage.finished[0, 0]) == 1_000
    assert not stage.sent
    stage.lanes.sweep()
    assert not stage.lanes._lanes


def test_a_topic_that_was_gone_long_ago_is_looked_up_before_a_marker_is_given_up(
    stage: Stage,
) -> None:
    # This coordinator saw it go. It was created again, and another one decided a commit there. Now
    # this one takes over its journal partition.
    for _ in range(20):
        stage.tell("a", None)
        stage.now_ms += lanes.LOOK_PAUSE_MS
    stage.now_ms += 3_600_000
    stage.write(decided(0, A0))
    assert stage.state() is LaneState.DOUBTFUL
    for _ in range(20):
        stage.lanes.looked_up("a", stage.now_ms)  # no answer
        stage.now_ms += lanes.LOOK_PAUSE_MS
    assert not stage.finished
    stage.tell("a", "id-a")
    assert stage.in_flight() == [(0, A0)]


def test_a_verdict_does_not_count_for_what_is_decided_behind_its_first_look_ups(
    stage: Stage,
) -> None:
    """The topic may have been created again before the decision (trap 272)."""
    stage.write(decided(0, A0))
    stage.answer(Failure.NO_TOPIC)
    for _ in range(topics.CONFIRM_MS // lanes.LOOK_PAUSE_MS):
        stage.tell("a", None)
        stage.now_ms += lanes.LOOK_PAUSE_MS
    assert not stage.finished
    stage.write(decided(1, A0))
    stage.tell("a", None)
    assert stage.finished == {(0, 0): (A0,)}
    stage.now_ms += lanes.LOOK_PAUSE_MS
    stage.tell("a", "id-of-its-successor")
    assert stage.in_flight() == [(1, A0)]


def test_markers_of_a_topic_that_is_gone_do_not_wait_for_one_another(stage: Stage) -> None:
    written_ms = []
    waited_ms: dict[int, int] = {}
    for begin in range(100):
        if begin < 50:
            stage.write(decided(begin, A0))
            written_ms.append(stage.now_ms)
        if begin == 0:
            stage.answer(Failure.NO_TOPIC)
        stage.tell("a", None)
        for _, done in stage.finished.keys() - {(0, each) for each in waited_ms}:
            waited_ms[done] = stage.now_ms - written_ms[done]
        stage.now_ms += lanes.LOOK_PAUSE_MS
    assert waited_ms == dict.fromkeys(range(50), topics.CONFIRM_MS)


def test_what_was_forgotten_is_not_sent_again(stage: Stage) -> None:
    stage.write(decided(0, A0))
    stage.write(decided(1, A0))
    stage.lanes.forget(0)
    stage.write(decided(1, A0))
    stage.answer(Failure.STOPPED)
    stage.answer(Failure.STOPPED)
    stage.answer(Failure.STOPPED)
    stage.wait()
    assert [begin for begin, _ in stage.in_flight()] == [1]
    stage.answer()
    assert stage.finished == {(0, 1): ()}


def test_trap_296_what_is_written_is_told_by_topic_id() -> None:
    stage, now, former = Stage(), PartitionId("a", 0, "id-a"), PartitionId("a", 0, "former")
    stage.know("a")
    stage.write(decided(0, A0, A1))
    stage.answer(offset=23)
    stage.answer(offset=4)
    assert stage.lanes.reached_beside(0, now) is None
    stage.wait(100)
    stage.write(decided(1, A0, topic_id="former"))
    stage.answer(offset=26)
    assert stage.lanes.reached(0, now) == 24
    assert stage.lanes.reached_beside(0, now) == WrittenBeside(27, stage.now_ms)
    assert stage.lanes.reached(0, former) == 27
    assert stage.lanes.reached_beside(0, former) == WrittenBeside(24, stage.now_ms - 100)
    anew = now._replace(topic_id="anew")
    assert stage.lanes.reached(0, anew) is None
    assert stage.lanes.reached_beside(0, anew) == WrittenBeside(27, stage.now_ms)
    other = PartitionId("a", 1, "former")
    assert stage.lanes.reached_beside(0, other) == WrittenBeside(5, stage.now_ms - 100)
    assert stage.lanes.reached_beside(1, now) is None
    stage.lanes.forget(0)
    assert stage.lanes.reached_beside(0, now) is None


def test_a_marker_of_which_no_answer_tells_the_offset_may_lie_anywhere(stage: Stage) -> None:
    stage.write(decided(0, A0, topic_id="former"))
    stage.answer(offset=None)
    now = PartitionId("a", 0, "id-a")
    assert stage.lanes.reached_beside(0, now) == WrittenBeside(None, stage.now_ms)
    stage.wait(100)
    stage.write(decided(1, A0, topic_id="former"))
    stage.answer(offset=26)
    assert stage.lanes.reached_beside(0, now) == WrittenBeside(None, stage.now_ms)
    assert stage.lanes.reached(0, now._replace(topic_id="former")) == 27


def test_backlogs(stage: Stage) -> None:
    for begin in range(4):
        stage.write(decided(begin, A0, B0, journal=begin % 2))
    stage.write(decided(4, A0))
    assert stage.lanes.backlog(0, A0) == 3
    assert stage.lanes.backlog(1, A1) == 0
    assert stage.lanes.backlogs() == {0: (5, 3), 1: (4, 2)}


# ---- random histories ---------------------------------------------------------------------------


class History:
    """Lanes against producers that stop, full queues, refusals, and brokers that are behind.

    Two journal partitions write to three data partitions. In the end everything is answered and
    every topic is known: then every marker must have been written, in order, and none given up.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.stage = Stage()
        self.landed: dict[TopicPartition, list[tuple[int, int]]] = {p: [] for p in (A0, A1, B0)}
        """Data partition → (journal partition, commit sequence) of its markers."""
        self.cut: set[tuple[int, TopicPartition]] = set()
        """Gapless producers and the partitions in which they write nothing more."""
        self.stopped: set[int] = set()
        self.begun = 0

    def run(self) -> None:
        """Runs to the end, and checks."""
        acts = self.write, self.answer, self.answer, self.wait, self.tell, self.forget
        for _ in range(self.chance.randrange(20, 120)):
            self.chance.choice(acts)()
        calm = 0
        while len(self.stage.finished) < self.begun:
            calm += 1
            assert calm < 10_000, "all markers are written in the end"
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
                assert firsts == sorted(firsts), f"{partition}: first markers are in order"

    def write(self) -> None:
        """Decides a transaction in some of the partitions."""
        some = self.chance.sample((A0, A1, B0), self.chance.randint(1, 3))
        self.stage.write(decided(self.begun, *some, journal=self.chance.randrange(2)))
        self.begun += 1

    def answer(self) -> None:
        """Answers the oldest marker, sometimes by a failure."""
        if self.stage.sent:
            kinds = [None, None, None, *Failure]
            self.settle(self.chance.choice(kinds))

    def settle(self, failure: Failure | None) -> None:
        """Lets the broker take or refuse the oldest marker, as its producer does."""
        sent = self.stage.sent[0]
        key = sent.job.partition.key
        gapless = sent.producer is Producer.SHARED
        where = sent.number, key
        if sent.flow.cut:
            failure = Failure.FULL
        elif gapless and (where in self.cut or sent.number in self.stopped):
            failure = failure or Failure.STOPPED
        elif failure is None or (failure is Failure.STOPPED and self.chance.random() < 0.5):
            # Landed, and perhaps its acknowledgement is lost.
            self.landed[key].append((sent.job.txid.partition, sent.job.sequence))
        if failure is Failure.FULL:
            sent.flow.cut = True
        elif failure is not None and gapless:
            self.cut.add(where)
            if failure is not Failure.STOPPED or self.chance.random() < 0.5:
                self.stopped.add(sent.number)
        self.stage.answer(failure, len(self.landed[key]) - 1)

    def wait(self) -> None:
        """Lets some time pass. No broker is behind for so long."""
        for topic, topic_id in IDS.items():
            self.stage.tell(topic, topic_id)
        self.stage.wait(self.chance.choice((1, 60, 600)))
        if self.chance.random() < 0.3:
            self.stage.lanes.watch()

    def tell(self) -> None:
        """Tells what a broker says, which may be behind."""
        topic = self.chance.choice("ab")
        self.stage.tell(topic, self.chance.choice((IDS[topic], None, "id-of-its-predecessor")))

    def forget(self) -> None:
        """Forgets a topic, as what was not used for long is forgotten."""
        topic = self.chance.choice("ab")
        self.stage.known.facts.pop(topic, None)
        self.stage.known._topics.pop(topic, None)


@pytest.mark.parametrize("seed", [*range(100), *slow(range(100, 300))])
def test_histories(seed: int) -> None:
    History(random.Random(seed)).run()
