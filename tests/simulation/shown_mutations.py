"""Mutations of readers of uncommitted records, where what lies in sidecars is placed."""

from __future__ import annotations

from collections.abc import Sequence

from logtx.consumer.assigned import Assigned
from logtx.consumer.core.before_sidecar import BeforeSidecar
from logtx.consumer.core.pending import Record
from logtx.consumer.following import Following, _anew

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
