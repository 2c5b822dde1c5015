"""Mutations of metadata mode: places, the gates of readers, mode records, fences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from logtx.consumer import home_starts, homes
from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.home_journal import HomeJournal
from logtx.consumer.core.home_view import HomeView, where_to_begin
from logtx.consumer.core.placed_input import PlacedInput
from logtx.consumer.followed import Followed
from logtx.consumer.following import Following
from logtx.consumer.home_starts import HomeStarts
from logtx.consumer.registry import Registry
from logtx.coordinator.core.fences import Fences
from logtx.coordinator.core.lanes import MarkerLanes
from logtx.coordinator.core.mode_records import ModeRecords, ModeWrite
from logtx.coordinator.core.modes import TopicMode
from logtx.coordinator.core.placing import Placer, Question
from logtx.journal.control import ModeRecord
from logtx.journal.mode_registry import TopicModeRecord
from logtx.journal.places import GONE, PartitionId, Placed, Unplaced
from logtx.journal.records.fate import EpochFilter

from .registry import Patch, caught_by


@caught_by("commit-order", of="consumer")
def no_gate(patch: Patch) -> None:
    """Whatever was fetched is passed on (R7)."""
    advance = PlacedInput.advance

    def mutant(self: PlacedInput) -> None:
        self.horizon = max(self.horizon, self.next_offset)
        advance(self)

    patch(PlacedInput, "advance", mutant)


@caught_by("no-blocking", of="consumer")
def gate_asked_before_the_fetch(patch: Patch) -> None:
    """A gate passes on what was fetched after the home's end was asked for, too (R7)."""
    gate = PlacedInput.gate

    def mutant(self: PlacedInput, frontier: int, end: int) -> None:
        gate(self, max(frontier, self.next_offset), end)

    patch(PlacedInput, "gate", mutant)


@caught_by("finished", of="consumer")
def what_is_placed_elsewhere_is_waited_for(patch: Patch) -> None:
    """What is placed in a former topic of the name stays pending in the next one (trap 297)."""
    patch(Following, "_is_placed_elsewhere", lambda *_: False)


@caught_by("placed-order")
def trimmed_at_once(patch: Patch) -> None:
    """The journal is trimmed though data lies below the last places (R14)."""
    original = Fences.advance

    def mutant(self: Fences, log_starts: Any) -> None:
        waiting = self.waiting
        original(self, log_starts if waiting is None else dict(waiting.last))

    patch(Fences, "advance", mutant)


@caught_by("placed-order")
def marker_overtakes_a_place(patch: Patch) -> None:
    """A marker goes out while an earlier transaction waits for its place (R4)."""
    patch(Placer, "may_mark", lambda *_: True)


@caught_by("placed-order")
def other_ids_are_not_heard_of(patch: Patch) -> None:
    """An end is believed though a marker under another id of the name may lie above (trap 296)."""
    patch(MarkerLanes, "reached_beside", lambda *_: None)


@caught_by("exactly-once", of="consumer")
def turns_at_the_offset(patch: Patch) -> None:
    """A reader turns to markers while what is placed at the mode record waits (trap 64)."""

    def is_over(self: Followed) -> bool:
        if self.back is None or self.input is None or not self.input.is_over:
            return False
        return self.buffer.position().o2 >= self.back.offset

    patch(Followed, "is_over", property(is_over))


@caught_by("exactly-once", of="consumer")
def home_without_the_topics_id(patch: Patch) -> None:
    """A reader that restarts before the mode is published does not ask for the id (trap 65)."""
    patch(Registry, "topic_id", lambda *_: "")


@caught_by("exactly-once", of="consumer")
def fence_must_be_named(patch: Patch) -> None:
    """Only snapshots that something names are looked at (trap 66)."""
    patch(HomeStarts, "_first", lambda *_: [])
    patch(HomeStarts, "_counting_with", lambda *_: [])


@caught_by("commit-order", of="consumer")
def what_is_decided_is_not_awaited(patch: Patch) -> None:
    """A gate is passed though something is decided and not placed (R7)."""
    patch(HomeView, "is_settled", lambda self, _, end: self.next_offset >= end)


@caught_by("placed-order")
def end_asked_before_the_decision(patch: Patch) -> None:
    """A place is the end that was told in the round before, and so before its decision (R2)."""
    answered = Placer.answered

    def mutant(self: Placer, question: Question, ends: Any, now_ms: int) -> Any:
        kept = self.__dict__.setdefault("kept", {})
        earlier = {partition: kept.get(partition, end) for partition, end in ends.items()}
        kept |= ends
        return answered(self, question, earlier, now_ms)

    patch(Placer, "answered", mutant)


@caught_by("exactly-once", of="consumer")
def what_is_not_named_is_covered(patch: Patch) -> None:
    """For readers a PLACED record ends what is decided up to its sequence in all partitions, also
    in those of which no end was told (R5)."""
    cover = Unplaced.cover

    def mutant(self: Unplaced[Any], placed: Placed) -> Iterator[Any]:
        yield from cover(self, placed)
        left = dict.fromkeys(self.partitions(), GONE)
        yield from cover(self, Placed(placed.upto, left))

    patch(Unplaced, "cover", mutant)


@caught_by("exactly-once", of="consumer")
def what_lies_below_the_start_is_due(patch: Patch) -> None:
    """A new reader is given what is placed below where it begins (R11)."""
    place = HomeView._place

    def mutant(self: HomeView, part: Any, at: int, due: Any) -> None:
        part.x = 0
        place(self, part, at, due)

    patch(HomeView, "_place", mutant)


@caught_by("exactly-once", of="consumer")
def any_fence_will_do(patch: Patch) -> None:
    """A reader begins at the latest snapshot, wherever its last places lie (R12)."""

    def mutant(partition: Any, start: Any, journal_start: int, candidates: Any) -> Any:
        latest = max((c.offset for c in candidates), default=-1)
        if latest >= max(journal_start, start.mode_offset):
            return latest, True
        return where_to_begin(partition, start, journal_start, ())

    patch(home_starts, "where_to_begin", mutant)


@caught_by("exactly-once", of="consumer")
def fence_lists_nothing(patch: Patch) -> None:
    """What is unfinished at a fence has ended for readers that begin there (R13)."""
    patch(home_starts, "listed_in", lambda _: [])


@caught_by("exactly-once")
def mode_record_not_waited_for(patch: Patch) -> None:
    """A topic is in metadata mode as soon as one partition has its mode record, and what is decided
    is placed before the others have theirs (R15)."""

    def first(self: MarkerLanes, journal: int, partition: Any) -> int | None:
        lane = self._lanes.get((journal, partition))
        jobs = [] if lane is None else [*lane.in_flight, *lane.queue]
        markers = (job.sequence for job in jobs if not isinstance(job.part_of, ModeWrite))
        return min(markers, default=None)

    def looked_up(self: ModeRecords, topic: str, now_ms: int) -> Any:
        for write in [w for key, w in self._writes.items() if key[1] == topic and w.offsets]:
            for partition, offset in write.offsets.items():
                if write.recorded is not None:
                    where = PartitionId(topic, partition, write.topic_id)
                    write.recorded(where, offset, list(write.offsets))
        return original(self, topic, now_ms)

    original = ModeRecords.looked_up
    patch(MarkerLanes, "first", first)
    patch(ModeRecords, "looked_up", looked_up)


@caught_by("exactly-once", of="consumer")
def stretch_that_was_missed(patch: Patch) -> None:
    """A reader that heard of no switch goes on at the mode record that ends it (trap 70)."""
    change = PartitionBuffer._change_mode

    def mutant(self: PartitionBuffer, raw: bytes, record: ModeRecord, *rest: Any) -> None:
        if record.places:
            change(self, raw, record, *rest)

    patch(PartitionBuffer, "_change_mode", mutant)


@caught_by("commit-order", of="coordinator")
def only_the_latest_switch_is_told(patch: Patch) -> None:
    """A home publishes nothing of the switches before the latest (trap 85)."""
    original = TopicMode.published

    def mutant(self: TopicMode, *args: Any) -> TopicModeRecord:
        return replace(original(self, *args), earlier=())

    patch(TopicMode, "published", mutant)


@caught_by("exactly-once", of="consumer")
def a_view_takes_what_it_went_past(patch: Patch) -> None:
    """A partition is attached to a view that was read further than where it begins."""
    original = homes.Homes._lane_below

    def mutant(self: homes.Homes, home: Any, offset: int) -> Any:
        lanes = self._lanes.get(home)
        return lanes[-1] if lanes else original(self, home, offset)

    patch(homes.Homes, "_lane_below", mutant)


@caught_by("exactly-once", of="consumer")
def what_was_dropped_counts_as_kept(patch: Patch) -> None:
    """A partition begins by what is kept of its home, though what it needs was dropped."""
    original = HomeJournal.trim

    def mutant(self: HomeJournal, most: int, needed: int) -> None:
        first = self.first
        original(self, most, needed)
        self.first = first

    patch(HomeJournal, "trim", mutant)


@caught_by("exactly-once", of="consumer")
def void_records_are_kept(patch: Patch) -> None:
    """A partition that begins by what is kept of its home is told what replaced owners wrote, too
    (R6)."""

    class All(EpochFilter):
        def accept(self, offset: int, entry: Any) -> bool:
            super().accept(offset, entry)
            return True

    original = HomeJournal.restart

    def mutant(self: HomeJournal, read_from: int, epochs: EpochFilter) -> None:
        every = All(epochs.epoch, epochs.incarnation, surprised=epochs.surprised)
        original(self, read_from, every)

    patch(HomeJournal, "restart", mutant)
