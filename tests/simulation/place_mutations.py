"""Mutations of metadata mode: places, the gates of readers, mode records, fences."""

from __future__ import annotations

from typing import Any

from logtx.consumer import homes
from logtx.consumer.core.home_view import HomeView
from logtx.consumer.core.placed_input import PlacedInput
from logtx.consumer.home_starts import HomeStarts
from logtx.consumer.registry import Registry
from logtx.coordinator.core.fences import Fences
from logtx.coordinator.core.placing import Placer

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


@caught_by("exactly-once", of="consumer")
def turns_at_the_offset(patch: Patch) -> None:
    """A reader turns to markers while what is placed at the mode record waits (trap 64)."""

    def is_over(self: homes.Followed) -> bool:
        if self.back is None or self.input is None or not self.input.is_over:
            return False
        return self.buffer.position().o2 >= self.back.offset

    patch(homes.Followed, "is_over", property(is_over))


@caught_by("exactly-once", of="consumer")
def home_without_the_topics_id(patch: Patch) -> None:
    """A reader that restarts before the mode is published does not ask for the id (trap 65)."""
    patch(Registry, "topic_id", lambda *_: "")


@caught_by("exactly-once", of="consumer")
def fence_must_be_named(patch: Patch) -> None:
    """Only snapshots that something names are looked at (trap 66)."""
    patch(HomeStarts, "_first", lambda *_: [])
    patch(HomeStarts, "_between_with", lambda *_: [])


@caught_by("commit-order", of="consumer")
def what_is_decided_is_not_awaited(patch: Patch) -> None:
    """A gate is passed though something is decided and not placed (R7)."""
    patch(HomeView, "is_settled", lambda self, _, end: self.next_offset >= end)
