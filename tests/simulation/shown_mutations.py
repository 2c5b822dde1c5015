"""Mutations of readers of uncommitted records, where what lies in sidecars is placed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from logtx.consumer.assigned import Assigned
from logtx.consumer.core.before_sidecar import BeforeSidecar
from logtx.consumer.core.entries import EndedTransaction, PlainRun
from logtx.consumer.core.pending import Record
from logtx.consumer.core.placed_input import PlacedInput
from logtx.consumer.core.places_uncommitted import UncommittedPlacedBuffer
from logtx.consumer.following import Following, _anew
from logtx.journal.position import Journal

from .registry import Patch, caught_by


@caught_by("shown", of="consumer")
def no_question_before_records_are_shown(patch: Patch) -> None:
    """Uncommitted records are shown before it is known whether there is a sidecar."""
    feed = BeforeSidecar.feed

    def mutant(self: BeforeSidecar, batch: Sequence[Record]) -> None:
        self._passes_below = 2**63
        feed(self, batch)

    patch(BeforeSidecar, "feed", mutant)
    patch(Following, "_to_sidecar", staticmethod(_from_where_it_stands))


def _from_where_it_stands(assigned: Assigned) -> Assigned:
    return _anew(assigned, assigned.buffer.position())


@caught_by("shown", of="consumer")
def what_was_told_counts_as_given(patch: Patch) -> None:
    """A position passes what the home told, though the application was not given it."""

    def mutant(
        self: UncommittedPlacedBuffer,
        met: Mapping[Journal, int],
        queue: Iterable[PlainRun | EndedTransaction],
    ) -> int | None:
        del met, queue
        return None if self.begun_behind is None else self._told

    patch(UncommittedPlacedBuffer, "_sequence", mutant)


@caught_by("shown", of="consumer")
def no_gate_before_records_are_shown(patch: Patch) -> None:
    """A reader of uncommitted records shows them before it is known what counts as delivered."""
    advance = PlacedInput.advance

    def mutant(self: PlacedInput) -> None:
        if not self._buffer.holds_back:
            self.horizon = max(self.horizon, self.next_offset)
        advance(self)

    patch(PlacedInput, "advance", mutant)
