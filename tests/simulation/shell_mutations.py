"""Mutations of what surrounds the shard: topics, marker lanes, sessions, and what is due."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from logtx.coordinator.client import pursuit
from logtx.coordinator.core import lanes, topics
from logtx.coordinator.core.clocks import Clocks
from logtx.coordinator.core.decision import TopicFacts
from logtx.coordinator.core.lane import Job, LaneState, Producer, count, headers_of
from logtx.coordinator.core.lanes import MarkerLanes
from logtx.coordinator.core.offsets_lanes import OffsetsLanes
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.core.tenure import Tenure
from logtx.coordinator.core.topics import TopicKnowledge
from logtx.coordinator.core.waiting import WaitingCommits
from logtx.journal import producer_ids
from logtx.journal.errors import CoordinatorBusyError, RetriableError, UnknownTopicError

from .registry import Patch, caught_by


@caught_by("decided-once", of="shell")
def topics_before_the_outcome(patch: Patch) -> None:
    """A commit is refused for its topics, though an earlier copy of it was decided."""
    handle = Shard._handle_end

    def mutant(self: Shard, *args: Any) -> Any:
        if args[-1] is not None:
            raise UnknownTopicError("refused before it is looked whether it is decided")
        return handle(self, *args)

    patch(Shard, "_handle_end", mutant)


# ---- markers and what is known of topics --------------------------------------------------------


@caught_by("durable", of="shell")
def gone_at_once(patch: Patch) -> None:
    """One answer that there is no such topic is enough to give up its markers (trap 12)."""
    patch(topics, "LOOKS_MIN", 1)
    patch(topics, "CONFIRM_MS", -(10**9))  # The answer is of after its question.


@caught_by("durable", of="shell")
def first_marker_goes_with_others(patch: Patch) -> None:
    """A producer sends many markers to a partition whose leader has not met it (trap 291)."""
    has_room = MarkerLanes._has_room

    def mutant(self: MarkerLanes, *args: Any, knows_us: bool) -> bool:
        del knows_us
        return has_room(self, *args, knows_us=True)

    patch(MarkerLanes, "_has_room", mutant)


@caught_by("durable", of="shell")
def another_topic_is_none(patch: Patch) -> None:
    """A marker is given up if another topic has the name, by the latest answer."""
    send = MarkerLanes._send

    def mutant(self: MarkerLanes, lane: Any) -> None:
        while lane.queue and not lane.in_flight:
            partition = lane.queue[0].partition
            facts = self._topics.facts.get(partition.topic)
            if facts is None or facts.topic_id == partition.topic_id:
                break
            count(lane.queue.popleft(), gone=True)
        send(self, lane)

    patch(MarkerLanes, "_send", mutant)


@caught_by("exactly-once", of="shell")
def markers_name_no_topic(patch: Patch) -> None:
    """A marker does not tell which topic has its records, if another one got its name since."""

    def mutant(job: Job) -> Any:
        nameless = replace(job.partition, topic_id="")
        return headers_of(replace(job, partition=nameless))

    patch(lanes, "headers_of", mutant)


@caught_by("exactly-once", of="shell")
def latest_topic_is_stated(patch: Patch) -> None:
    """A marker states the topic that has the name, not the one from when its transaction began."""
    patch(TopicFacts, "id_at", lambda facts, _: facts.topic_id)


@caught_by("exactly-once", of="shell")
def former_topics_are_not_heard_of(patch: Patch) -> None:
    """A coordinator ignores what the others heard of a topic's former ids (trap 242)."""
    patch(TopicKnowledge, "hear", lambda *_: None)


@caught_by("commit-order", of="shell")
def failed_markers_are_overtaken(patch: Patch) -> None:
    """What was in flight at a failure goes out behind the markers that waited."""
    answered = MarkerLanes._answered

    def mutant(self: MarkerLanes, lane: Any, now_ms: int) -> None:
        waited = list(lane.queue)
        answered(self, lane, now_ms)
        if lane.state is LaneState.PAUSED and waited:
            failed = [job for job in lane.queue if job not in waited]
            lane.queue = deque([*waited, *failed])

    patch(MarkerLanes, "_answered", mutant)


@caught_by("commit-order", of="shell")
def careful_with_many(patch: Patch) -> None:
    """The producer that keeps no order has several markers of a lane in flight."""
    send = MarkerLanes._send

    def mutant(self: MarkerLanes, lane: Any) -> None:
        if lane.state is LaneState.CAREFUL:
            lane.state = LaneState.FLOWING
            lane.producer = 0
            if lane.queue:
                lane.target.known = self._known_as(0, lane.queue[0])
            self._shared, shared = 0, self._shared
            append = self._shell.append
            self._shell.append = (  # type: ignore[method-assign]
                lambda job, headers, _producer, flow: append(job, headers, Producer.CAREFUL, flow)
            )
            send(self, lane)
            self._shell.append, self._shared = append, shared  # type: ignore[method-assign]
            lane.state = LaneState.CAREFUL
        else:
            send(self, lane)

    patch(MarkerLanes, "_send", mutant)


@caught_by("commit-order", of="shell")
def full_queue_is_passed_over(patch: Patch) -> None:
    """Behind a marker that the producer's queue had no room for, others are sent."""

    class NeverCut:
        cut = property(lambda _: False, lambda *_: None)

    patch(lanes, "Flow", NeverCut)


@caught_by("finished", of="shell")
def a_lane_dies(patch: Patch) -> None:
    """A lane that was refused is not tried again."""
    patch(MarkerLanes, "tick", lambda *_: None)


@caught_by("finished", of="shell")
def a_lane_is_not_watched(patch: Patch) -> None:
    """A marker that gets no answer is waited for without end."""
    patch(MarkerLanes, "watch", lambda *_: None)


@caught_by("durable", of="shell")
def refused_markers_are_dropped(patch: Patch) -> None:
    """A marker that a partition refused counts as written."""
    patch(MarkerLanes, "not_written", lambda self, job, _, now_ms: self.written(job, now_ms))


@caught_by("commit-order", of="shell")
def sweeping_forgets_what_waits(patch: Patch) -> None:
    """Lanes that are swept away have markers left."""
    patch(MarkerLanes, "sweep", lambda self: self._lanes.clear())


@caught_by("finished", of="shell")
def answers_about_topics_are_not_heard(patch: Patch) -> None:
    """A lane that asked whether its topic is gone does not hear the answer."""
    patch(MarkerLanes, "looked_up", lambda *_: None)


@caught_by("finished", of="shell")
def refused_offsets_are_not_repeated(patch: Patch) -> None:
    """A write of input offsets that failed, or has to wait, is not done later."""
    patch(OffsetsLanes, "tick", lambda *_: None)


@caught_by("offsets", of="shell")
def steps_without_the_vector(patch: Patch) -> None:
    """What a commit moved is written in place of the group's whole IOV."""
    write = OffsetsLanes.write

    def mutant(self: OffsetsLanes, key: Any, steps: Any, *args: Any) -> None:
        if key in self._lanes:
            self._lanes[key].offsets.clear()
        write(self, key, steps, *args)

    patch(OffsetsLanes, "write", mutant)


@caught_by("refused", of="shell")
def new_partitions_are_refused(patch: Patch) -> None:
    """A partition beyond those of the latest answer does not exist, without another look."""
    confirmed = topics._Topic.is_confirmed_absent

    def mutant(self: Any, partition: int, now_ms: int) -> bool:
        return self.facts is not None or confirmed(self, partition, now_ms)

    patch(topics._Topic, "is_confirmed_absent", mutant)


@caught_by("refused", of="shell")
def old_answers_refuse(patch: Patch) -> None:
    """An answer that was long on its way counts as one about the time at which it came."""
    began = TopicKnowledge.began
    told = TopicKnowledge.told

    def mutant(self: TopicKnowledge, topic: str, facts: Any, now_ms: int, *args: Any) -> None:
        began(self, topic, now_ms)
        told(self, topic, facts, now_ms, *args)

    patch(TopicKnowledge, "told", mutant)


@caught_by("refused", of="shell")
def no_commit_without_look_ups(patch: Patch) -> None:
    """A commit is not decided while look-ups fail, whatever is known of its topics."""
    refusal = TopicKnowledge.refusal

    def mutant(self: TopicKnowledge, partitions: Any, now_ms: int, *how: Any) -> Any:
        failures = [self._topic(name).failure for name, _ in partitions]
        if any(failures):
            return CoordinatorBusyError("not looked up")
        return refusal(self, partitions, now_ms, *how)

    patch(TopicKnowledge, "refusal", mutant)


# ---- sessions -----------------------------------------------------------------------------------


@caught_by("sessions", of="shell")
def one_that_cannot_read_ends_sessions(patch: Patch) -> None:
    """A client believes a coordinator that can't read the journal, and asks no other."""
    patch(pursuit, "may_be_elsewhere", lambda refusal: isinstance(refusal, RetriableError))


@caught_by("sessions", of="shell")
def ids_without_their_groups(patch: Patch) -> None:
    """Equal ids of two transaction groups are one producer."""
    patch(producer_ids, "producer_id_of", lambda _, transactional_id: transactional_id)


# ---- what is due --------------------------------------------------------------------------------


@caught_by("timely", of="shell")
def nothing_is_extended(patch: Patch) -> None:
    """A transaction expires after its first timeout, though its producer began that anew."""
    patch(Clocks, "extend", lambda *_: None)


@caught_by("timely", of="shell")
def clocks_forget_the_running(patch: Patch) -> None:
    """When a transaction ends, the deadlines of the others are lost."""
    stop = Clocks.stop

    def mutant(self: Clocks, begin: int) -> None:
        stop(self, begin)
        self._deadlines.clear()

    patch(Clocks, "stop", mutant)


@caught_by("timely", of="shell")
def waiting_commits_are_not_woken(patch: Patch) -> None:
    """A decision does not wake the commits that waited for it."""
    patch(WaitingCommits, "wake", lambda *_: None)


@caught_by("timely", of="shell")
def chains_are_not_continued(patch: Patch) -> None:
    """A commit that had waited itself wakes nobody when it is decided."""
    pop, wake = WaitingCommits.pop, WaitingCommits.wake
    waited: set[tuple[int, int]] = set()

    def popped(self: WaitingCommits, begin: int) -> Any:
        refs = pop(self, begin)
        if refs:
            waited.add((id(self), begin))
        return refs

    def mutant(self: WaitingCommits, decided: int) -> None:
        if (id(self), decided) not in waited:
            wake(self, decided)

    patch(WaitingCommits, "pop", popped)
    patch(WaitingCommits, "wake", mutant)


@caught_by("finished", of="shell")
def a_pause_never_ends(patch: Patch) -> None:
    """An owner that stood still and asked for the journal's end does not go on."""
    patch(Tenure, "_go_on", lambda _: None)


@caught_by("finished", of="shell")
def what_is_left_is_not_done(patch: Patch) -> None:
    """What is more than one turn does is forgotten."""
    carry_out = Tenure._carry_out

    def mutant(self: Tenure) -> None:
        carry_out(self)
        self._todo.clear()

    patch(Tenure, "_carry_out", mutant)


@caught_by("commit-order", of="shell")
def later_effects_overtake(patch: Patch) -> None:
    """What follows from a new decision is done before what was left for another turn."""
    execute = Tenure._execute

    def mutant(self: Tenure, effects: Any) -> None:
        left, self._todo = self._todo, deque()
        execute(self, effects)
        self._todo.extendleft(reversed(left))

    patch(Tenure, "_execute", mutant)


@caught_by("durable", of="shell")
def acknowledged_in_any_order(patch: Patch) -> None:
    """An acknowledgement is taken for a proof of the appends before it (trap 2)."""
    acknowledged = Tenure.acknowledged

    def mutant(
        self: Tenure, predicted: int, offset: int | None, now_ms: int, why: str = ""
    ) -> None:
        if offset == predicted:
            self.acknowledged_end = offset
        acknowledged(self, predicted, offset, now_ms, why)

    patch(Tenure, "acknowledged", mutant)
