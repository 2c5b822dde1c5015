"""Mutations of sidecars: what pointers say, who believes them, and where readers go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from logtx.consumer import sidecar_read
from logtx.consumer.core import buffer, pointers
from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.entries import EndedTransaction
from logtx.consumer.core.pointers import PointedTransaction
from logtx.consumer.core.serial_buffer import SerialBuffer
from logtx.coordinator.core import lane, shard, snapshot, trimming
from logtx.coordinator.core.lane import Ending, Job, Lane
from logtx.coordinator.core.lanes import MarkerLanes
from logtx.journal.control import Marker
from logtx.journal.sidecar import in_sidecar, is_delivered_from_sidecar
from logtx.producer.core.growing import Growing

from .registry import Patch, caught_by


@caught_by("sidecars", of="shell")
def marker_overtakes_its_pointer(patch: Patch) -> None:
    """The marker of a sidecar is queued when the pointer is, not behind it."""
    send, follow = MarkerLanes._send, MarkerLanes._follow
    followed: set[Job] = set()

    def early(self: MarkerLanes, lane: Lane) -> None:
        for job in [j for j in lane.queue if j.points_to is not None and j not in followed]:
            followed.add(job)
            assert isinstance(job.part_of, Ending)
            follow(self, job.part_of, job, None)
        send(self, lane)

    patch(MarkerLanes, "_send", early)
    patch(MarkerLanes, "_follow", lambda *_: None)


@caught_by("sidecars", of="shell")
def since_of_each_copy(patch: Patch) -> None:
    """A pointer says that its partition ended at a later place than the decision says (trap 91)."""
    patch(lane, "Marker", _with_later_since(Marker))


def _with_later_since(make: Callable[..., Marker]) -> Callable[..., Marker]:
    def mutant(**fields: Any) -> Marker:
        fields["since"] += 1 if fields["sidecar"] else 0
        return make(**fields)

    return mutant


@caught_by("sidecars")
def since_is_above_the_decision(patch: Patch) -> None:
    """A decision says that main partitions ended later than they did."""
    original = shard.since_of

    def mutant(sidecars: Any, told: Any) -> Any:
        return tuple((key, since + 3) for key, since in original(sidecars, told))

    patch(shard, "since_of", mutant)


@caught_by("sidecars", of="snapshot")
def snapshot_forgets_since(patch: Patch) -> None:
    """A snapshot has no `since`: the next owner marks the main partition, and points nowhere."""
    row = snapshot.SnapshotSince
    patch(snapshot, "SnapshotSince", lambda begin, _: row(begin, ()))


@caught_by("sidecars", of="shell")
def sidecars_are_trimmed_at_once(patch: Patch) -> None:
    """What is trimmed does not wait until what was begun before is decided (trap 128)."""
    patch(trimming._Checkpoint, "is_passed", lambda self, _: self.is_proved)


@caught_by("sidecars", of="shell")
def pointers_to_come_need_nothing(patch: Patch) -> None:
    """What is trimmed waits for decisions, and forgets what commits name that are not finished."""
    patch(trimming, "steps_to_come", lambda _: {})


@caught_by("sidecars", of="shell")
def decisions_in_flight_count(patch: Patch) -> None:
    """What is trimmed goes by decisions that are not durable (trap 158)."""

    def mutant(self: shard.Shard) -> int:
        undecided = (t.begin for t in self.transactions if t.commit_sequence is None)
        return min(next(undecided, self.watermark.end), self.watermark.end)

    patch(shard.Shard, "undecided", property(mutant))


@caught_by("sidecars", of="shell")
def pointers_are_not_told(patch: Patch) -> None:
    """The end of a commit does not tell its pointers: nothing is known to need sidecars."""
    finish = shard.Shard.finish
    patch(shard.Shard, "finish", lambda self, begin, gone, _=None: finish(self, begin, gone))


@caught_by("exactly-once", of="consumer")
def whoever_meets_a_pointer_takes_it(patch: Patch) -> None:
    """A reader that begins between a pointer and its copy delivers at the copy."""
    patch(PointedTransaction, "read_from", property(lambda self: self.marker_offset))


@caught_by("exactly-once", of="consumer")
def goes_on_at_the_last_record(patch: Patch) -> None:
    """`side` is the offset of the last record in the sidecar, not the one behind it."""

    def mutant(offset: int) -> int | None:
        return in_sidecar(offset) if is_delivered_from_sidecar(offset) else None

    patch(pointers, "side_behind", mutant)
    patch(buffer, "side_behind", mutant)


@caught_by("exactly-once", of="consumer")
def short_sidecar_is_lost_at_once(patch: Patch) -> None:
    """A sidecar that one broker calls too short counts as one that lost records."""
    patch(sidecar_read, "CONFIRM_S", 0.0)


@caught_by("atomic", of="consumer")
def all_in_between_counts(patch: Patch) -> None:
    """What other transactions wrote between the records of one is delivered with it."""

    def mutant(self: PointedTransaction, record: Any, controls: Any) -> bool:
        del self, record, controls
        return True

    patch(PointedTransaction, "_accepts", mutant)


@caught_by("finished", of="serial")
def copies_of_what_is_delivered_are_collected(patch: Patch) -> None:
    """A copy of a pointer that comes while its transaction is delivered waits for a turn that never
    comes, and nobody looks at the sidecar behind it (trap 107)."""
    push = SerialBuffer._push

    def mutant(self: SerialBuffer, entry: EndedTransaction) -> None:
        queue, self._queue = self._queue, type(self._queue)()
        push(self, entry)
        self._queue = queue

    patch(SerialBuffer, "_push", mutant)
    patch(SerialBuffer, "_pass_duplicate", PartitionBuffer._pass_duplicate)


@caught_by("sidecars", of="producer")
def small_records_go_to_the_topic_again(patch: Patch) -> None:
    """A record that still fits goes to the topic, behind one that went to the sidecar (trap
    135)."""
    original = Growing.take

    def mutant(self: Growing, topic: str, sizes: Iterable[int]) -> int:
        before = self._left.get(topic, self.min_bytes)
        taken = original(self, topic, sizes)
        if self.is_grown(topic):
            self._left[topic] = before
        return taken

    patch(Growing, "take", mutant)
