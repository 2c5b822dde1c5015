"""Deliberately broken builds of logtx, for the chaos to catch.

    python -m logtx.tests.chaos.broken NAME MODULE [ARGUMENT…]     a process, broken
    python -m logtx.tests.chaos.broken NAME                        a whole run, broken

Each is a plausible bug of a core: it breaks consumers, producers or coordinators wherever they run.
What the chaos does is as always.
"""

from __future__ import annotations

import asyncio
import runpy
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from logtx.chaos.options import SECONDS_MIN, ChaosOptions, Metadata
from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.entries import EntryState
from logtx.consumer.core.home_view import Due
from logtx.consumer.core.placed_buffer import PlacedBuffer
from logtx.consumer.core.placed_input import PlacedInput
from logtx.consumer.core.serial_order import Buffers, SerialOrder, Whole
from logtx.coordinator.client.session import CoordinatorClient
from logtx.coordinator.core.decision import Effect, Instant
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.protocol.commands import End
from logtx.coordinator.runtime.placing import Placing
from logtx.coordinator.runtime.serving import Serving
from logtx.journal.control import TopicPartition
from logtx.journal.errors import LogtxError, TransactionAbortedError
from logtx.journal.position import Position
from logtx.producer.core.tally import BranchTally
from logtx.tests.simulation import mutations

MODULE: Final = "logtx.tests.chaos.broken"
BEHIND_S: Final = 0.2
"""How far the journal of `told_too_early` is behind."""

SHORT: Final = ChaosOptions(seconds=SECONDS_MIN, mild=True, coordinators=1)
"""For what shows without faults."""
PLACES: Final = ChaosOptions(seed=2, seconds=12, mild=True, coordinators=1, metadata=Metadata.HALF)
"""By this seed the topic that producers write to begins in metadata mode."""
PLACED_SIDECARS: Final = replace(PLACES, sidecar=True)
TAKE_OVERS: Final = ChaosOptions(seed=149, seconds=24, coordinators=1)
"""The coordinator is killed three times. There is but one, for of several it is
chance which of them has the partition that the others miss."""
FAULTS: Final = ChaosOptions(seed=2909, seconds=30)
"""Coordinators are paused and killed, brokers cut off, producers paused and replaced."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A broken build."""

    apply: Callable[[mutations.Patch], None]
    anomalies: frozenset[str]
    """The checker must find each of these."""
    run: ChaosOptions
    """A run that has what brings it out."""


def ignores_aborts(patch: mutations.Patch) -> None:
    """The consumer takes an ABORTED marker for a COMMITTED one."""
    mutations.marker_not_looked_at(patch)


def does_not_wait(patch: mutations.Patch) -> None:
    """The consumer delivers records of open transactions."""
    from logtx.consumer import reading
    from logtx.consumer.core.uncommitted import UncommittedBuffer

    patch(reading, "PartitionBuffer", UncommittedBuffer)


def position_ahead(patch: mutations.Patch) -> None:
    """A position tells what was read, not what was delivered."""
    position = PartitionBuffer.position

    def mutant(self: PartitionBuffer) -> Position:
        told = position(self)
        if told.o2 >= self.next_offset:
            return told
        return replace(told, o2=self.next_offset, o3=0)

    patch(PartitionBuffer, "position", mutant)


def last_report_not_awaited(patch: mutations.Patch) -> None:
    """The producer commits when all records but the last are reported."""
    close = BranchTally.close

    def mutant(self: BranchTally) -> None:
        if self._closed_at is None:
            close(self)
            self._goal = max(self._goal - 1, min(self._goal, 1))

    def settled(self: BranchTally) -> bool:
        return self._closed_at is not None and self._reports >= self._goal

    patch(BranchTally, "close", mutant)
    patch(BranchTally, "settled", property(settled))


def offsets_forgotten(patch: mutations.Patch) -> None:
    """A new owner does not know which input offsets its predecessors committed."""
    loaded = Shard.loaded

    def mutant(self: Shard, now: Instant) -> list[Effect]:
        for group in self.offsets._groups.values():
            group.offsets.clear()
        return loaded(self, now)

    patch(Shard, "loaded", mutant)


def told_too_early(patch: mutations.Patch) -> None:
    """The coordinator answers at once, and writes its journal behind."""
    mutations.reply_before_acknowledgement(patch)
    append = Serving.append
    behind: deque[Callable[[], None]] = deque()

    def mutant(self: Serving, predicted: int, value: bytes) -> None:
        behind.append(partial(append, self, predicted, value))
        asyncio.get_running_loop().call_later(BEHIND_S, catch_up)

    def catch_up() -> None:
        # In order, which two timers of the same instant would not keep.
        behind.popleft()()

    patch(Serving, "append", mutant)


def markers_not_redone(patch: mutations.Patch) -> None:
    """A new owner does not write the markers that its predecessor has left out."""
    mutations.nothing_redone(patch)


def duplicates_believed(patch: mutations.Patch) -> None:
    """The consumer takes each marker for the first."""
    mutations.duplicate_marker_believed(patch)


def unknown_is_aborted(patch: mutations.Patch) -> None:
    """The client takes for aborted what its coordinator was asked to end and did not answer."""
    serve = CoordinatorClient._serve

    def mutant(self: CoordinatorClient, found: Any) -> None:
        try:
            serve(self, found)
        finally:
            with self._lock:
                asked = [
                    number
                    for number, request in self._requests.items()
                    if request.sent and isinstance(request.command, End)
                ]
            for number in asked:
                self._answered(number, TransactionAbortedError("the stream ended"))

    patch(CoordinatorClient, "_serve", mutant)


def order_of_markers(patch: mutations.Patch) -> None:
    """A serializable reader goes on with what it has all markers of, whatever comes before."""
    take = SerialOrder.take

    def mutant(self: SerialOrder, buffers: Buffers) -> Whole | None:
        for decision in self._decisions:
            raw = decision.txid.to_bytes()
            ended = {key: buffers[key].ended(raw) for key in decision.partitions if key in buffers}
            ready = {
                key: entry
                for key, entry in ended.items()
                if entry is not None and entry.state is EntryState.READY and not entry.taken
            }
            if ready and len(ready) == len(ended):
                self._decisions.remove(decision)
                return Whole(decision, ready)
        return take(self, buffers)

    patch(SerialOrder, "take", mutant)


def gate_not_asked(patch: mutations.Patch) -> None:
    """The consumer passes on what it has read, whatever will be placed before it."""
    advance = PlacedInput.advance

    def mutant(self: PlacedInput) -> None:
        self.horizon = max(self.horizon, self.next_offset)
        advance(self)

    patch(PlacedInput, "advance", mutant)


def places_forget_sidecars(patch: mutations.Patch) -> None:
    """The consumer delivers at a place what lies in the topic, and nothing of its sidecar."""
    end_at = PlacedBuffer.end_at

    def mutant(self: PlacedBuffer, due: Due, place: int, rest_at: int | None = None) -> bool:
        if due.aside is None or (due.branches and self.holds_back):
            return end_at(self, replace(due, aside=None), place, rest_at)
        self._met[self._home] = max(due.sequence, self._met.get(self._home, -1))
        self._passed_over = max(due.sequence, self._passed_over)
        return True

    patch(PlacedBuffer, "end_at", mutant)


def ends_of_before(patch: mutations.Patch) -> None:
    """The coordinator places at the ends that it asked for in the round before."""
    answers = Placing._answers
    known: dict[TopicPartition, int | LogtxError] = {}

    async def mutant(self: Placing, *asked: Any) -> Mapping[TopicPartition, int | LogtxError]:
        told = await answers(self, *asked)
        before = {key: known.get(key, end) for key, end in told.items()}
        known.update(told)
        return before

    patch(Placing, "_answers", mutant)


BROKEN: Final[Mapping[str, Broken]] = {
    "ignores_aborts": Broken(ignores_aborts, frozenset({"g1a"}), SHORT),
    "does_not_wait": Broken(does_not_wait, frozenset({"g1a", "dirty-read"}), SHORT),
    "order_of_markers": Broken(order_of_markers, frozenset({"order-differs"}), SHORT),
    "last_report_not_awaited": Broken(
        last_report_not_awaited, frozenset({"torn-transaction"}), SHORT
    ),
    "position_ahead": Broken(
        position_ahead, frozenset({"iov-gap"}), ChaosOptions(seed=1, seconds=30)
    ),
    "duplicates_believed": Broken(duplicates_believed, frozenset({"duplicate"}), FAULTS),
    "unknown_is_aborted": Broken(unknown_is_aborted, frozenset({"aborted-but-committed"}), FAULTS),
    "told_too_early": Broken(told_too_early, frozenset({"committed-but-aborted"}), TAKE_OVERS),
    "markers_not_redone": Broken(markers_not_redone, frozenset({"unseen"}), TAKE_OVERS),
    "gate_not_asked": Broken(gate_not_asked, frozenset({"nonmonotonic-poll"}), PLACES),
    "ends_of_before": Broken(ends_of_before, frozenset({"nonmonotonic-poll"}), PLACES),
    "places_forget_sidecars": Broken(
        places_forget_sidecars, frozenset({"torn-transaction", "iov-gap"}), PLACED_SIDECARS
    ),
    "offsets_forgotten": Broken(offsets_forgotten, frozenset({"iov-overlap"}), TAKE_OVERS),
}
"""All were seen to be caught."""


def options_of(name: str, directory: Path | None) -> ChaosOptions:
    """A run of this build."""
    return replace(BROKEN[name].run, data_dir=directory, launcher=(MODULE, name))


def main() -> None:
    """Run a process of a broken build, or a whole run with it."""
    name, rest = sys.argv[1], sys.argv[2:]
    if not rest:
        from logtx.chaos.run import run_chaos

        sys.exit(run_chaos(options_of(name, None)))
    BROKEN[name].apply(_patch)
    sys.argv = rest
    runpy.run_module(rest[0], run_name="__main__", alter_sys=True)


def _patch(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)  # for as long as the process lives


if __name__ == "__main__":
    main()
