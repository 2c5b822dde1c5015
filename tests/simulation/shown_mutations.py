"""Mutations of readers of uncommitted records, where what lies in sidecars is placed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from logtx.consumer.assigned import Assigned
from logtx.consumer.core.before_sidecar import BeforeSidecar
from logtx.consumer.core.places_uncommitted import UncommittedPlacedBuffer
from logtx.consumer.following import Following, _anew

from .registry import Patch, caught_by


@caught_by("shown", of="consumer")
def no_sidecar_is_looked_for(patch: Patch) -> None:
    """Readers of uncommitted records follow no home, as if no topic had a sidecar."""
    told = BeforeSidecar.told

    def mutant(self: BeforeSidecar, below: int, *, has_sidecar: bool) -> None:
        del has_sidecar
        told(self, below, has_sidecar=False)

    patch(BeforeSidecar, "told", mutant)


@caught_by("shown", of="consumer")
def sidecar_asked_for_before_the_fetch(patch: Patch) -> None:
    """That there is no sidecar passes on what was fetched after the question, too."""
    told = BeforeSidecar.told

    def mutant(self: BeforeSidecar, below: int, *, has_sidecar: bool) -> None:
        told(self, max(below, self.next_offset), has_sidecar=has_sidecar)

    patch(BeforeSidecar, "told", mutant)
    patch(Following, "_to_sidecar", staticmethod(_from_where_it_stands))


def _from_where_it_stands(assigned: Assigned) -> Assigned:
    return _anew(assigned, assigned.buffer.position())


@caught_by("shown", of="consumer")
def what_is_placed_below_counts_as_shown(patch: Patch) -> None:
    """What is placed below what was shown counts as delivered, as to a new reader."""
    position = UncommittedPlacedBuffer._position

    def mutant(self: Any, *arguments: Any) -> Any:
        return replace(position(self, *arguments), passed=None)

    patch(UncommittedPlacedBuffer, "_position", mutant)
